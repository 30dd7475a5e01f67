"""Scatters of very many single elements, written as the positions where updates go and one step.

A loop over updates that may meet runs in order, on one thread. As a step of its own, in which each
position is one integer, it is done by ranges of the target (see `llvm/routines/elements`): every
element takes its updates in their order still, so the results are the same to the last bit. Where
many are added to few elements, each of some parts has sums of its own, which are added up in the
end. The parts depend on shapes alone, so the result doesn't depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.ops.base import sum_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import bitwise_and, ge, lt
from funcgrad.ops.elementwise.convert import clamp, select_n_p
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.shape import slice_p

BOOL, INT32, INT64 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.int64)
# Of updates. Narrow floats are added in float32.
DTYPES = frozenset(map(np.dtype, "bhilBHILfd"))
# From so many updates on, into an array that has no more than so many elements for each of them:
# all of it is read and written.
MANY, SPARSE = 1 << 16, 4
# Where so many are added to each element, they are added in up to so many parts, and these in turn.
EACH, MOST_PARTS = 16, 8


def _impl(xp, positions, updates, *start, shape, how, lines, wraps):
    out = start[0].reshape(lines, -1).copy() if start else None
    out = xp.zeros((lines, math.prod(shape) // lines), updates.dtype) if out is None else out
    at, values = positions.reshape(lines, -1), updates.reshape(lines, -1)
    at = xp.where(at < 0, at + out.shape[1], at) if wraps else at
    inside = (at >= 0) & (at < out.shape[1])
    place = xp.nonzero(inside)[0], at[inside]
    if how == "add":
        xp.add.at(out, place, values[inside])
    else:
        out[place] = values[inside]
    return out.reshape(shape)


# The updates, each added or set ("add", "set") at its row-major position in its line of `start` (of
# zeros of this shape, if there is none), in order. positions: int32; what lies outside is dropped.
# lines: in how many equal parts arrays and updates fall apart; positions are in a line
# wraps: negative positions count from a line's end
elements_p = lowered(
    "scatter_elements",
    lambda positions, updates, *start, shape, how, lines, wraps: ShapedArray(shape, updates.dtype),
    _impl,
)


def element_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A "scatter" or "scatter_add" of many single elements; None if it is another one.

    flat: to which equations are added
    """
    x, indices, updates = ins
    n, aval, numbers = updates.aval.size, x.aval, eqn.params["dimension_numbers"]
    if n < MANY or n != math.prod(indices.aval.shape[:-1]) or numbers.operand_batching_dims:
        return None
    if not 1 <= aval.size <= min(SPARSE * n, (1 << 31) - 1) or aval.dtype not in DTYPES:
        return None
    clips = GatherScatterMode.from_any(eqn.params["mode"]) is GatherScatterMode.CLIP
    unwrapped = None if clips else _unwrapped(flat, indices, aval.shape)
    positions = unwrapped or positions_of(flat, indices, aval.shape, numbers, clips)
    if positions is None:
        return None
    values = flat.reshape(updates, (n,))
    parts = max(d for d in range(1, MOST_PARTS + 1) if n % d == 0)
    params: dict[str, Any] = {"wraps": unwrapped is not None}
    params["how"] = "add" if eqn.prim is scatter_add_p else "set"
    if params["how"] == "set" or parts == 1 or aval.size * EACH > n:
        start = [] if x in flat.zeros else [x]
        params |= {"shape": aval.shape, "lines": 1}
        return flat.add(elements_p, [positions, values, *start], aval.strong(), **params)
    lines = ShapedArray((parts, *aval.shape), aval.dtype)
    params |= {"shape": lines.shape, "lines": parts}
    sums = flat.add(elements_p, [positions, values], lines, **params)
    return flat.add(add, [x, flat.reduce(sum_p, sums, [0])], aval.strong())


def _unwrapped(flat: Equations, indices: Atom, shape: tuple[int, ...]) -> Atom | None:
    """Of indices into one axis the int32 ones that the user gave, if these are what negative ones
    among them mean, `where(i < 0, i + size, i)`: one pass over them less. None if not."""
    if len(shape) != 1 or indices.aval.dtype != INT32:
        return None
    wrapped = flat.reshaped.get(indices, indices)
    made: dict[Atom, Eqn] = {
        v: e for e in flat.eqns if e.prim in (select_n_p, lt, add) for v in e.outs
    }
    choice = made.get(wrapped)
    if choice is None or choice.prim is not select_n_p:
        return None
    which, given, moved = choice.ins
    for part, prim, value in ((which, lt, 0), (moved, add, shape[0])):
        eqn = made.get(part)
        if eqn is None or eqn.prim is not prim or eqn.ins[0] is not given:
            return None
        if type(eqn.ins[1]) is not Literal or eqn.ins[1].value != value:
            return None
    return flat.reshape(given, (given.aval.size,))


def positions_of(
    flat: Equations,
    indices: Atom,
    shape: tuple[int, ...],
    numbers: ScatterDimensionNumbers,
    clips: bool,
) -> Atom | None:
    """Where windows of one element lie, as int32 (n,): -1 of those that are dropped. None where
    indices are of a dtype that has no such conversion."""
    dtype = indices.aval.dtype
    if dtype not in LOOP_DTYPES or dtype == np.dtype(np.uint64):
        return None
    kind = INT32 if np.can_cast(dtype, INT32) else INT64
    *counts, depth = indices.aval.shape
    n = math.prod(counts)
    wide = flat.convert(flat.reshape(indices, (n, depth)), kind)
    aval = ShapedArray((n,), kind)

    def constant(value: int) -> Literal:
        return Literal(np.asarray(value, kind), ShapedArray((), kind))

    total: Atom | None = None
    valid: Atom | None = None
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        size, step = shape[axis], math.prod(shape[axis + 1 :])
        part = wide
        if depth > 1:
            cut = {"start_indices": (0, k), "limit_indices": (n, k + 1), "strides": None}
            part = flat.add(slice_p, [wide], ShapedArray((n, 1), kind), **cut)
        part = flat.reshape(part, (n,))
        if clips:
            part = flat.add(clamp, [constant(0), part, constant(size - 1)], aval)
        else:
            for prim, bound in ((ge, 0), (lt, size)):
                here = flat.add(prim, [part, constant(bound)], aval.update(dtype=BOOL))
                valid = here if valid is None else flat.add(bitwise_and, [valid, here], here.aval)
        part = part if step == 1 else flat.add(mul, [part, constant(step)], aval)
        total = part if total is None else flat.add(add, [total, part], aval)
    if total is None:
        return None
    if valid is not None:
        nowhere = flat.broadcast(constant(-1), (n,), ())
        total = flat.add(select_n_p, [valid, nowhere, total], aval)
    return flat.convert(total, INT32)
