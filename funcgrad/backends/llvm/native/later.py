"""Code that runs as it is soonest translated, until its optimized form is there.

Translating takes a fifth of the time that optimizing does, and the code several times as long to
run: small programs begin with it. Both do the same operations in the same order, so that a result
never depends on which one ran.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from funcgrad.core.process import fork

if TYPE_CHECKING:
    from funcgrad.backends.llvm.native.engine import Library

_soon: ContextVar[bool] = ContextVar("soon", default=False)


def soon(task: Callable[[], Any], brief: bool = True) -> None:
    """Do something whose code, if it isn't on disk, is optimized later (`Later.begin`).

    brief: False for code that is optimized at once

    >>> from funcgrad.backends.llvm.native.engine import engine
    >>> soon(lambda: engine().compile("define i32 @five() { ret i32 5 }"))
    >>> engine().later.settle()
    """
    before = _soon.set(brief)
    try:
        task()
    finally:
        _soon.reset(before)


def is_soon() -> bool:
    """Whether this thread is at a `soon` task.

    >>> is_soon()
    False
    """
    return _soon.get()


def has_an_order(text: str) -> bool:
    """Whether a module's code gives the same bits before it is optimized: what may be reassociated
    doesn't, as its order is the optimizer's.

    >>> has_an_order("define i32 @five() { ret i32 5 }")
    True
    """
    return "reassoc" not in text


class Later:
    """What optimizes libraries, by their names."""

    _works: bool  # whether a thread is at it

    def __init__(self) -> None:
        self._left: dict[str, Callable[[], None]] = {}
        self.after_fork()

    def add(self, name: str, optimize: Callable[[], None]) -> None:
        """Have a library optimized in the end."""
        self._left[name] = optimize

    def begin(self) -> None:
        """Optimize beside what the program does next, on one thread at a time.

        >>> from funcgrad.backends.llvm.native.engine import engine
        >>> engine().later.begin()
        """
        with self._guard:
            if self._works or not self._left:
                return
            self._works = True
        fork.beside(self._work)

    def _work(self) -> None:
        """Optimize what is left and what comes meanwhile."""
        while True:
            with self._guard:
                name = next(iter(self._left), None)
                if name is None:
                    self._works = False
                    return
            try:
                self._take(name)
            except BaseException:
                self._works = False
                raise

    def settle(self, library: Library | None = None) -> None:
        """Optimize all that is left, or what a library calls of it, and wait for who is at it.

        >>> from funcgrad.backends.llvm.native.engine import engine
        >>> engine().later.settle()
        """
        if library is None:
            while self._left:
                self._take(next(iter(self._left), ""))
            self._take("")
            return
        wanted, known = [library], {library}
        while wanted:
            last = wanted.pop()
            self._take(last.name)
            wanted += last.uses - known
            known |= last.uses

    def _take(self, name: str) -> None:
        with self._lock:
            optimize = self._left.pop(name, None)
            if optimize is not None:
                optimize()

    def after_fork(self) -> None:
        """Wait for no thread of the process that this one is a copy of."""
        self._lock, self._guard, self._works = threading.Lock(), threading.Lock(), False
