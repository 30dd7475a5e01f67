"""Reductions, running results and merged updates by an operator alone.

NumPy's functions do these in one pass. CuPy's have `initial` nowhere, `reduce` and `accumulate` for
sums and products only, and `at` for some operators and dtypes and in no order: there they take a
logarithmic number of elementwise steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def is_away(x: Any) -> bool:
    """Whether x is an array in a device's memory, CuPy's: neither NumPy's nor a symbol.

    >>> is_away(np.zeros(3))
    False
    """
    return hasattr(x, "get")


def extreme(xp: Any, x: Any, axes: Sequence[int], which: str, start: Any) -> Any:
    """The "max" or "min" over axes of x and of `start`, a scalar beyond which nothing is.

    >>> extreme(np, np.zeros((2, 0)), (1,), "max", -np.inf)
    array([-inf, -inf])
    """
    if xp is np:
        return getattr(x, which)(axis=axes, initial=start)
    if not axes:
        return x
    if any(not x.shape[a] for a in axes):
        return xp.full([n for i, n in enumerate(x.shape) if i not in axes], start, x.dtype)
    return getattr(x, which)(axis=axes)


def reduced(xp: Any, ufunc: Any, x: Any, axes: Sequence[int], start: Callable) -> Any:
    """Elements over axes combined by an associative, commutative operator, start(dtype) if none.

    >>> reduced(np, np.bitwise_xor, np.array([1, 2, 7]), (0,), np.int64)
    np.int64(4)
    """
    try:
        return ufunc.reduce(x, axis=axes)
    except NotImplementedError:
        pass
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = tuple(x.shape[i] for i in kept)
    size = int(np.prod([x.shape[i] for i in axes]))
    if not size:
        return xp.full(shape, start(x.dtype), x.dtype)
    x = xp.transpose(x, (*axes, *kept)).reshape((size, *shape))
    while len(x) > 1:
        half = len(x) // 2
        pairs = ufunc(x[:half], x[half : 2 * half])
        x = xp.concatenate([pairs, x[2 * half :]])
    return x[0]


def accumulated(xp: Any, ufunc: Any, x: Any, axis: int) -> Any:
    """The elements up to each one along an axis, combined by an associative operator.

    >>> accumulated(np, np.maximum, np.array([1, 3, 2]), 0)
    array([1, 3, 3])
    """
    try:
        return ufunc.accumulate(x, axis=axis)
    except NotImplementedError:
        pass
    line, distance = (slice(None),) * axis, 1
    while distance < x.shape[axis]:
        before, first = (*line, slice(-distance)), (*line, slice(distance))
        later = (*line, slice(distance, None))
        x = xp.concatenate([x[first], ufunc(x[before], x[later])], axis=axis)
        distance *= 2
    return x


def merged(xp: Any, combine: Callable, place: Any, values: Any) -> tuple[Any, Any]:
    """Flat places, each once, and there the values meant for it combined in their order.

    >>> merged(np, np.add, np.array([5, 2, 5]), np.array([1, 2, 3]))
    (array([2, 5]), array([2, 4]))
    """
    if not place.size:
        return place, values
    order = xp.argsort(place, kind="stable")
    place, values = place[order], values[order]
    distance = 1
    while distance < place.size:
        same = place[distance:] == place[:-distance]
        if not same.any():
            break
        both = combine(values[:-distance], values[distance:])
        later = xp.where(same, both, values[distance:])
        values = xp.concatenate([values[:distance], later])
        distance *= 2
    last = xp.concatenate([place[1:] != place[:-1], xp.ones(1, bool)])
    return place[last], values[last]
