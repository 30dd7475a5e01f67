"""Tasks that are done on all processors, while more of them come."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Together:
    """In a `with`: does tasks on threads while the block adds more, and all of them by its end.

    With one processor they are done at the end, in order. A task may wait for those that were added
    before it. The block ends with the first error of a task; no other is then begun.

    >>> done = []
    >>> with Together() as work:
    ...     for i in range(3):
    ...         _ = work.add(lambda i=i: done.append(i))
    >>> sorted(done)
    [0, 1, 2]
    """

    def __init__(self) -> None:
        self._most = processors() - 1
        self._change = threading.Condition()
        self._left: deque[tuple[Callable[[], Any], threading.Event]] = deque()
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._all_there = False

    def add(self, task: Callable[[], Any]) -> threading.Event:
        """Have a task done. The event is set when it is over, or won't be begun."""
        done = threading.Event()
        with self._change:
            self._left.append((task, done))
            self._change.notify()
            if len(self._threads) < self._most:
                self._start()
        return done

    def _start(self) -> None:
        thread = threading.Thread(target=self._work)
        try:
            thread.start()
        except RuntimeError:
            # The system has no more of them, or Python is at its end: done by the block's end.
            self._most = 0
        else:
            self._threads.append(thread)

    def __enter__(self) -> Together:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._change:
            self._error = self._error or error
            self._all_there = True
            self._change.notify_all()
        self._work()
        for thread in self._threads:
            thread.join()
        if error is None and self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (found := self._next()) is not None:
            task, done = found
            try:
                if self._error is None:
                    task()
            except BaseException as error:
                self._error = self._error or error
            finally:
                done.set()

    def _next(self) -> tuple[Callable[[], Any], threading.Event] | None:
        with self._change:
            while not self._left and not self._all_there:
                self._change.wait()
            return self._left.popleft() if self._left else None


def processors() -> int:
    """How many this process may run on.

    >>> processors() > 0
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
