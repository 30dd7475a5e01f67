"""Locks of a process that may be forked while other threads hold them.

A child has only the thread that forked, so nobody would ever release what another one held. What
the lock guards is then as that thread left it: a value that is made once is made again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


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


@in_child
def _free() -> None:
    for held in list(_locks):
        held._at_fork_reinit()
