"""Arrays that go round a ring of devices, and the sums that follow them.

While a device works on what it has, it sends it on: the next turn's arrays are on their way. What
devices add up about travelling arrays follows one turn behind, and comes home in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.types import AxisName

# step(turn, carry, what is there) → (carry, what is to be added to the sums that follow it)
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def shift(x: Any, axis: AxisName, by: int) -> Any:
    """x (a pytree) from each device to the one `by` places on, round the ring of a mesh axis.

    >>> from funcgrad.parallel.attention.rotation import shift
    >>> fg.vmap(lambda x: shift(x, "i", 1), axis_name="i")(fnp.arange(3))
    Array([2, 0, 1], dtype=int32)
    """
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % n) for i in range(n)]) if by % n else x


def around(
    axis: AxisName, turns: Sequence[int], step: Step, carry: Any, arrays: Any, alike: bool = False
) -> Any:
    """(carry, sums) after a step with a device's own arrays, and one with those of the device
    `turn` places before it, for each of `turns`.

    turns: rising numbers, of 1 … n - 1 on a ring of n devices. alike: they are all of these, and a
    loop may go over them, in which the number of a turn is traced. Arrays are sent len(turns)
    times, and so are sums.

    >>> from funcgrad.parallel.attention.rotation import around
    >>> total = lambda x: around("i", [1, 2], lambda turn, c, x: (c + x, x), 0.0, x)
    >>> fg.vmap(total, axis_name="i")(fnp.array([1.0, 2.0, 3.0]))
    (Array([6., 6., 6.], dtype=float32), Array([3., 6., 9.], dtype=float32))
    """
    carry, home = step(0, carry, arrays)
    if not turns:
        return carry, home
    arrays = shift(arrays, axis, turns[0])
    sums, at, rest = None, 0, list(turns)

    def turn(number: Any, came: int, goes: int, state: tuple) -> tuple:
        carry, arrays, sums = state
        # What comes next is sent before the work, and may arrive during it.
        following = shift(arrays, axis, goes)
        sums = shift(sums, axis, came)
        carry, more = step(number, carry, arrays)
        return carry, following, more if sums is None else tree.map(fnp.add, sums, more)

    state = (carry, arrays, sums)
    if alike and len(rest) > 3:
        state = turn(1, 1, 1, state)
        middle = lax.iota(np.int32, rest[-1] - 2) + 2
        state, _ = lax.scan(lambda state, j: (turn(j, 1, 1, state), None), state, middle)
        at, rest = rest[-2], rest[-1:]
    for i, number in enumerate(rest):
        goes = rest[i + 1] - number if i + 1 < len(rest) else 0
        state = turn(number, number - at, goes, state)
        at = number
    carry, _, sums = state
    return carry, tree.map(fnp.add, home, shift(sums, axis, -at))


def gathered(
    axis: AxisName, turns: Sequence[int], step: Step, carry: Any, arrays: Any, alike: bool = False
) -> Any:
    """As `around`, of arrays that are cut along their third axis, which each device gathers whole
    at once; of sums, what devices added is put together in the end.

    >>> from funcgrad.parallel.attention.rotation import gathered
    >>> total = lambda x: gathered("i", [1, 2], lambda turn, c, x: (c + x, x), 0.0, x)
    >>> x = fnp.array([1.0, 2.0, 3.0]).reshape(3, 1, 1, 1)
    >>> carry, sums = fg.vmap(total, axis_name="i")(x)
    >>> carry.ravel(), sums.ravel()
    (Array([6., 6., 6.], dtype=float32), Array([3., 6., 9.], dtype=float32))
    """
    size, n, own = arrays.shape[2], lax.axis_size(axis), lax.axis_index(axis)
    whole = lax.all_gather(arrays, axis, axis=2, tiled=True)

    def put(total: Any, x: Any, start: Any) -> Any:
        return lax.dynamic_update_slice_in_dim(total, x, start, 2)

    def turn(state: tuple, number: Any) -> tuple:
        carry, totals = state
        start = (own - number) % n * size
        carry, more = step(number, carry, lax.dynamic_slice_in_dim(whole, start, size, 2))
        return (carry, tree.map(lambda t, x: put(t, x, start), totals, more)), None

    carry, home = step(0, carry, arrays)
    empty = tree.map(lambda x: fnp.zeros((*x.shape[:2], n * size, *x.shape[3:]), x.dtype), home)
    state = carry, tree.map(lambda t, x: put(t, x, own * size), empty, home)
    if alike and len(turns) > 3:
        state, _ = lax.scan(turn, state, lax.iota(np.int32, len(turns)) + 1)
    else:
        for number in turns:
            state, _ = turn(state, number)
    carry, totals = state
    own_part = partial(lax.psum_scatter, axis_name=axis, scatter_dimension=2, tiled=True)
    return carry, tree.map(own_part, totals)
