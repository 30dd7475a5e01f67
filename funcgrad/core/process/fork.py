"""Locks and threads of a process that may be forked.

A child has only the thread that forked, so nobody would ever release a lock that another one held.
What the lock guards is then as that thread left it: a value that is made once is made again. Locks
of Python's imports and of LLVM stay as they were, so that nobody forks during what is `undivided`:
the import of modules here, and what threads do `beside` their callers.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakSet

_PATIENCE = 10.0  # seconds that a fork waits for what takes milliseconds

_locks: WeakSet[Any] = WeakSet()
# Held by itself, not by way of the condition: that enters in Python, where a signal's exception can
# come between the lock and the block.
_guard = threading.RLock()
_change = threading.Condition(_guard)
_undivided: Counter[Hashable] = Counter()  # what goes on, by its thread or as an object of its own


def lock() -> threading.Lock:
    """A lock that is free in forked children.

    >>> guard = lock()
    >>> with guard:
    ...     guard.locked()
    True
    """
    made = threading.Lock()
    _locks.add(made)
    return made


def in_child(function: Callable[[], None]) -> Callable[[], None]:
    """Decorates what forked children do first, when the locks are free again."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


@contextmanager
def undivided() -> Iterator[None]:
    """In a `with`: what other threads don't fork during.

    >>> with undivided():
    ...     pass
    """
    thread = threading.get_ident()
    _begin(thread)
    try:
        yield
    finally:
        _end(thread)


def import_module(name: str) -> ModuleType:
    """A module by its name, during whose import other threads don't fork: children would wait
    forever for what this thread has begun to import.

    >>> import_module("math").__name__
    'math'
    """
    with undivided():
        return importlib.import_module(name)


def beside(work: Callable[[], object]) -> None:
    """Do something on a thread of its own, for whose end forks wait, and the interpreter's end; at
    once where there are no more threads.

    >>> done = threading.Event()
    >>> beside(done.set)
    >>> done.wait()
    True
    """
    mark = object()  # from now on, when there is no thread yet
    _begin(mark)

    def run() -> None:
        try:
            work()
        finally:
            _end(mark)

    # Threads that begin when the interpreter has waited for the others would be killed. So would
    # daemons be, and what a daemon begins is one, unless it is told otherwise.
    if threading.main_thread().is_alive():
        try:
            return threading.Thread(target=run, daemon=False).start()
        except RuntimeError:
            pass
    _end(mark)
    with undivided():
        work()


def _begin(what: Hashable) -> None:
    with _guard:
        _undivided[what] += 1


def _end(what: Hashable) -> None:
    with _guard:
        # In one step: a signal's exception between two would leave what is over.
        if _undivided[what] == 1:
            del _undivided[what]
        else:
            _undivided[what] -= 1
        _change.notify_all()


def _others_are_done() -> bool:
    own = threading.get_ident()
    return all(what == own for what in _undivided)


def _before() -> None:
    _guard.acquire()
    _change.wait_for(_others_are_done, _PATIENCE)


def _after() -> None:
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after)


@in_child
def _free() -> None:
    global _guard, _change
    _guard = threading.RLock()
    _change = threading.Condition(_guard)
    own = threading.get_ident()
    for what in [what for what in _undivided if what != own]:
        del _undivided[what]
    for held in list(_locks):
        held._at_fork_reinit()
