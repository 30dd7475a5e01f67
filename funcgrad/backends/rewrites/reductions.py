"""Reductions to few results in two steps, so that they run in parallel.

Partial results come first, then their reduction, in an order that depends on shapes alone, not on
the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.ir import Atom, Eqn

FLOAT32 = np.dtype(np.float32)

# A reduction of more elements than SPLIT_FROM to fewer than FEW results is split in two; a part
# has no fewer than PART elements.
SPLIT_FROM, FEW, PART, MAX_PARTS = 1 << 15, 8, 1 << 12, 64
# A reduction over rows of more elements than TALL is split in so many parts: a part's totals, one
# for each of at most WIDE columns, stay in the first-level cache while whole rows stream by.
TALL, ROW_PARTS, WIDE = 1 << 22, 32, 1 << 13


def _parts(n: int, total: int) -> int:
    """In how many equal parts to cut an axis of size n of a reduction of `total` elements."""
    most = min(MAX_PARTS, total // PART)
    return max((d for d in range(1, most + 1) if n % d == 0), default=1)


def row_parts(rows: int, columns: int) -> int:
    """In how many equal parts to cut the rows whose columns are reduced."""
    if rows * columns < TALL or columns > WIDE:
        return 1
    return max(d for d in range(1, ROW_PARTS + 1) if rows % d == 0)


def reduction(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A reduction in two steps, of narrow floats in float32; None where one step is as good.

    >>> from funcgrad.core.aval import ShapedArray
    >>> from funcgrad.core.ir import Var
    >>> from funcgrad.ops.base import sum_p
    >>> x, total = (Var(ShapedArray(shape, FLOAT32)) for shape in ((1 << 20,), ()))
    >>> flat = Equations()
    >>> _ = reduction(flat, Eqn(sum_p, [x], [total], {"axes": (0,)}), [x])
    >>> [(e.prim.name, e.outs[0].aval.shape) for e in flat.eqns]
    [('reshape', (64, 16384)), ('reduce_sum', (64,)), ('reduce_sum', ())]
    """
    (x,), axes = ins, sorted(eqn.params["axes"])
    dtype, out = x.aval.dtype, eqn.outs[0].aval
    if not axes:
        return x if dtype == out.dtype else None
    if x.aval.size < SPLIT_FROM or dtype not in LOOP_DTYPES:
        return None
    shape = x.aval.shape
    # Neighbouring axes that are all summed count as one.
    first = last = axes[0]
    while last + 1 in axes:
        last += 1
    size = math.prod(shape[first : last + 1])
    if out.size < FEW:
        parts = _parts(size, x.aval.size // max(out.size, 1))
    else:
        rows = first == 0 and last == axes[-1]
        parts = row_parts(size, out.size) if rows else 1
    if parts < 2:
        return None
    wide = flat.convert(x, FLOAT32) if dtype in HALVES else x
    cut = flat.reshape(wide, shape[:first] + (parts, size // parts) + shape[last + 1 :])
    moved = [first + 1] + [a - (last - first) + 1 for a in axes if a > last]
    partial = flat.reduce(eqn.prim, cut, moved)
    return flat.convert(flat.reduce(eqn.prim, partial, [first]), dtype)
