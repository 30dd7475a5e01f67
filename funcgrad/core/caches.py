"""What the package keeps to be quicker the next time, and how to let it go."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_V = TypeVar("_V")
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


class Latest(Generic[_V]):
    """Values by their keys, at most so many: then a quarter goes, of those that were asked for
    longest ago. Threads may share it.

    >>> squares = Latest(4)
    >>> for i in range(5):
    ...     _ = squares.put(i, i * i), squares.get(0)
    >>> squares.values(), squares.get(1)
    ([0, 4, 9, 16], None)
    """

    def __init__(self, most: int):
        self._most = most
        self._held: dict[Any, list] = {}  # value, and when it was asked for
        self._clock = itertools.count()

    def get(self, key: Hashable) -> _V | None:
        """The value of a key, None if there is none."""
        found = self._held.get(key)
        if found is None:
            return None
        found[1] = next(self._clock)
        return found[0]

    def put(self, key: Hashable, value: _V) -> list[_V]:
        """Keep a value; those that go for it."""
        self._held[key] = [value, next(self._clock)]
        if len(self._held) <= self._most:
            return []
        by_age = sorted(self._held.items(), key=lambda item: item[1][1])
        return [self._held.pop(k, x)[0] for k, x in by_age[: max(1, self._most // 4)]]

    def keys(self) -> list:
        """The keys, the last one put last."""
        return list(self._held)

    def values(self) -> list[_V]:
        """The values in the order of their keys."""
        return [value for value, _ in list(self._held.values())]

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)
