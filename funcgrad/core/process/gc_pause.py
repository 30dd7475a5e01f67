"""A rest for Python's collector of cycles, while a block makes many objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from funcgrad.core.process import fork

_lock = fork.lock()
_resting = 0  # how many blocks there are now, in all threads
_was_on = False
_firsts = 2  # blocks yet to come whose objects mostly stay: importing this library, and LLVM


@contextmanager
def no_collections() -> Iterator[None]:
    """Within the block, cyclic garbage is not looked for: in a compiler each look is in vain, and
    together they cost more than the rest of its work on a long program.

    >>> with no_collections():
    ...     gc.isenabled()
    False
    """
    global _resting, _was_on, _firsts
    with _lock:
        if not _resting:
            _was_on = gc.isenabled()
            gc.disable()
        _resting += 1
    try:
        yield
    finally:
        with _lock:
            _resting -= 1
            if _firsts:
                _settle()
                _firsts -= 1
            if not _resting and _was_on:
                gc.enable()


@fork.in_child
def _none_rests() -> None:
    """The blocks of other threads have no end in a child."""
    global _resting
    if _resting and _was_on:
        gc.enable()
    _resting = 0


def _settle() -> None:
    """Take all objects for old ones. What the first blocks made are mostly modules, and
    the next look at what is young would take longer than a small program's compilation."""
    if hasattr(gc, "freeze") and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
