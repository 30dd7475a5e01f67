"""Scatters that combine whole rows, written row by row: the order of the updates, then each row.

Updates are counted by row first (a step of its own, see `llvm/routines/rows`). Then a row takes all
its updates, in their order, before it is written: results are those of a loop over the updates, to
the last bit, but rows are independent, so that threads share them; zeros needn't be written before
the sums are, and narrow floats are summed in float32 and rounded once without a wider copy of the
rest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.backends.llvm.rewrites.elements import positions_of
from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.scatters import FEW
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_mul_p
from funcgrad.ops.indexing.windows import GatherScatterMode

BOOL, INT32, FLOAT32 = np.dtype(bool), np.dtype(np.int32), np.dtype(np.float32)
# Elements of rows that are worth it, and bytes of sums from which on zeros are not left in a cache.
LEAST, MOST, LARGE = 64, 1 << 13, 1 << 23
# How many rows there may be for each update, as each has its count; and how many updates for each
# row: where they are more, their order costs more than to come back to rows does.
SPARSE, DENSE = 64, 8
HOW = {scatter_add_p: "add", scatter_mul_p: "multiply"}


def _order(xp, positions, *, rows):
    at = xp.where((positions < 0) | (positions >= rows), rows, positions)
    counts = xp.bincount(at, minlength=rows + 1)
    parts = [0], xp.cumsum(counts), xp.argsort(at, kind="stable")
    return xp.concatenate(parts).astype(INT32)


# Where each row's updates begin in the order that follows, with those of no row, and an end, last;
# then the numbers of the updates by row, in their order.
row_order_p = lowered(
    "row_order", lambda positions, *, rows: ShapedArray((rows + 2 + positions.size,), INT32), _order
)


def _combine(xp, x, order, updates, depth, how):
    rows, n = math.prod(x.shape[:depth]), math.prod(updates.shape[: updates.ndim - x.ndim + depth])
    wide = x.astype(FLOAT32 if x.dtype in HALVES else x.dtype).reshape(rows, -1)
    bounds, numbers = order[: rows + 1], order[rows + 2 :]
    at = xp.repeat(xp.arange(rows), bounds[1:] - bounds[:-1])
    values = updates.reshape(n, -1)[numbers[: at.size]].astype(wide.dtype)
    getattr(xp, how).at(wide, at, values)
    return wide.astype(x.dtype).reshape(x.shape)


# Rows of x, of as many axes less as `depth` says, combined with updates by an order of `row_order`.
update_rows_p = lowered(
    "update_rows",
    lambda x, order, updates, *, depth, how: x.strong(),
    lambda xp, x, order, updates, *, depth, how: _combine(xp, x, order, updates, depth, how),
)
# The same from zeros of a shape.
sum_rows_p = lowered(
    "sum_rows",
    lambda order, updates, *, shape, depth, how: ShapedArray(shape, updates.dtype),
    lambda xp, order, updates, *, shape, depth, how: _combine(
        xp, xp.zeros(shape, updates.dtype), order, updates, depth, how
    ),
)


def row_scatter(flat: Any, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A "scatter_add" or "scatter_mul" of many rows, where that is worth an order of the updates:
    of narrow floats, or into large zeros. None if it is another one.

    flat: the flattener of `normalize`, to which equations are added
    """
    x, indices, updates = ins
    how, p = HOW.get(eqn.prim), eqn.params
    numbers, aval, n = p["dimension_numbers"], x.aval, math.prod(indices.aval.shape[:-1])
    depth = len(numbers.scatter_dims_to_operand_dims)
    if how is None or aval.dtype not in LOOP_DTYPES or aval.dtype == BOOL or p["unique_indices"]:
        return None
    if not are_rows(numbers, aval.shape, indices.aval.ndim - 1, updates.aval.shape):
        return None
    rows, width = math.prod(aval.shape[:depth]), math.prod(aval.shape[depth:])
    fresh = how == "add" and x in flat.zeros
    worth = aval.dtype in HALVES or (fresh and aval.nbytes >= LARGE)
    if not worth or n <= FEW or not LEAST <= width <= MOST or rows + n >= 1 << 30:
        return None
    if rows > SPARSE * n or n > DENSE * rows:
        return None
    return in_rows(flat, eqn, ins, fresh=fresh)


def in_rows(flat: Any, eqn: Eqn, ins: list[Atom], *, fresh: bool) -> Atom | None:
    """A scatter of whole rows, row by row; None for indices that have no positions.

    fresh: whether it adds to zeros
    """
    x, indices, updates = ins
    how, p, aval = HOW[eqn.prim], eqn.params, x.aval
    numbers, n = p["dimension_numbers"], math.prod(indices.aval.shape[:-1])
    depth = len(numbers.scatter_dims_to_operand_dims)
    rows = math.prod(aval.shape[:depth])
    clips = GatherScatterMode.from_any(p["mode"]) is GatherScatterMode.CLIP
    positions = positions_of(flat, indices, aval.shape[:depth], numbers, clips)
    if positions is None:
        return None
    order = flat.add(row_order_p, [positions], ShapedArray((rows + 2 + n,), INT32), rows=rows)
    rest: dict[str, Any] = {"depth": depth, "how": how}
    if fresh:
        rest["shape"] = aval.shape
        return flat.add(sum_rows_p, [order, updates], aval.strong(), **rest)
    return flat.add(update_rows_p, [x, order, updates], aval.strong(), **rest)


def are_rows(numbers: Any, shape: tuple[int, ...], counts: int, updates: tuple[int, ...]) -> bool:
    """Whether positions are in the first axes, and windows are all of the others, in order."""
    lead = tuple(range(len(numbers.scatter_dims_to_operand_dims)))
    if numbers.operand_batching_dims or tuple(numbers.inserted_window_dims) != lead:
        return False
    windows = tuple(range(counts, len(updates)))
    if not lead or tuple(sorted(numbers.scatter_dims_to_operand_dims)) != lead:
        return False
    return tuple(numbers.update_window_dims) == windows and updates[counts:] == shape[len(lead) :]
