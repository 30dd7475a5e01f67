"""Locks of a process that may be forked while other threads hold them.

A child has only the thread that forked, so nobody would ever release what another one held. What
the lock guards is then as that thread left it: a value that is made once is made again. Python's
own locks of modules stay as they were, so that nobody forks while modules are imported here.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

_PATIENCE = 10.0  # seconds that a fork waits for imports, which take milliseconds

_locks: WeakSet[Any] = WeakSet()
_imports = threading.Condition()
_importing: Counter[int] = Counter()  # how many modules by each thread


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


def import_module(name: str) -> ModuleType:
    """A module by its name, during whose import other threads don't fork: children would wait
    forever for what this thread has begun to import.

    >>> import_module("math").__name__
    'math'
    """
    thread = threading.get_ident()
    with _imports:
        _importing[thread] += 1
    try:
        return importlib.import_module(name)
    finally:
        with _imports:
            _importing[thread] -= 1
            _imports.notify_all()


def _nobody_imports() -> bool:
    own = threading.get_ident()
    return not any(count for thread, count in _importing.items() if thread != own)


def _before() -> None:
    _imports.acquire()
    _imports.wait_for(_nobody_imports, _PATIENCE)


def _after() -> None:
    _imports.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after)


@in_child
def _free() -> None:
    global _imports
    _imports = threading.Condition()
    own = threading.get_ident()
    for thread in [thread for thread in _importing if thread != own]:
        del _importing[thread]
    for held in list(_locks):
        held._at_fork_reinit()
