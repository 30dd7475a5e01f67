"""What the package keeps to be quicker the next time, and how to let it go."""

from __future__ import annotations

import gc
from collections.abc import Callable

_forgetting: list[Callable[[], None]] = []


def forgotten_by(forget: Callable[[], None]) -> Callable[[], None]:
    """Have a function run by `clear_caches`; a decorator, for modules that keep something.

    >>> kept = [1]
    >>> forgotten_by(kept.clear) is not None
    True
    """
    _forgetting.append(forget)
    return forget


def clear_caches() -> None:
    """Forget all traced programs and compiled code, of all `jit` functions and of eager operations.

    Functions stay as they are: their next call traces and compiles anew, or finds the code on
    disk, which is not touched. What runs meanwhile, in other threads, goes on; code that something
    else holds, such as the result of `.compile()`, stays. Memory of arrays is another matter: see
    `release_memory`.

    >>> import funcgrad as fg
    >>> f = fg.jit(lambda x: x + 1)
    >>> f(1.0), f.cache_info().currsize
    (Array(2., dtype=float32, weak_type=True), 1)
    >>> fg.clear_caches()
    >>> f.cache_info().currsize
    0
    """
    for forget in _forgetting:
        forget()
    gc.collect()
