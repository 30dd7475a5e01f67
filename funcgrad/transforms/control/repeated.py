"""Functions applied to elements of an array as often as these are selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.trace import aval_of
from funcgrad.core.types import Value
from funcgrad.ops.arguments import check_callable, integers
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.compare import gt
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.indexing.plan import known
from funcgrad.ops.indexing.scatter import scatter_add
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.reduce import reduce_max
from funcgrad.transforms.control.while_loop import while_loop

_BOUNDED = 64


def repeated(counts: Value, x: Value, once: Callable[[Value, Value], Value], updates: int) -> Value:
    """x after once(x, 1), once(x, 2), …: as many turns as the greatest count has beyond its first.

    `updates` bounds the counts. Few bound the loop, which then has a derivative in reverse mode.

    >>> int(repeated(np.array([1, 3]), 5, lambda x, turn: x * turn, 4))
    10
    """
    found = known(counts)
    if found is not None:
        for turn in range(1, int(found.max(initial=0))):
            x = once(x, turn)
        return x
    greatest = reduce_max(counts, tuple(range(aval_of(counts).ndim)))

    def body(state: tuple) -> tuple:
        turn, x = state
        return add(turn, 1), once(x, turn)

    start = (np.asarray(1, np.int32), x)
    return while_loop(
        lambda s: gt(greatest, s[0]),
        body,
        start,
        max_steps=updates if updates <= _BOUNDED else None,
    )[1]


def scatter_apply(
    operand: Value,
    scatter_indices: Value,
    func: Callable,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Value:
    """The operand with an elementwise function applied to what the indices select, as often as they
    do.

    update_shape: that of the updates which `scatter_add` would take with these indices.

    >>> from funcgrad import lax
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> at = np.array([[1], [1]])
    >>> lax.scatter_apply(fnp.full(3, 2.0), at, lambda x: x * x, numbers, update_shape=(2,))
    Array([ 2., 16.,  2.], dtype=float32, weak_type=True)
    """
    check_callable("func", func)
    shape = integers("scatter_apply", "update_shape", update_shape)
    counts = scatter_add(
        full(aval_of(operand).shape, 0, np.int32),
        scatter_indices,
        full(shape, 1, np.int32),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )

    def once(x: Value, turn: Value) -> Value:
        return select(gt(counts, turn), func(x), x)

    return repeated(counts, once(operand, 0), once, 1 if unique_indices else max(1, counts.size))
