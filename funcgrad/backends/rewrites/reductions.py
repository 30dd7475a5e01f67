"""Reductions to few results in two steps, so that they run in parallel.

Partial results come first, then their reduction, in an order that depends on shapes alone, not on
the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Splits
from funcgrad.core.ir import Atom, Eqn

FLOAT32 = np.dtype(np.float32)


def _parts(n: int, total: int, splits: Splits) -> int:
    """In how many equal parts to cut an axis of size n of a reduction of `total` elements."""
    most = min(splits.most, total // splits.part)
    return max((d for d in range(1, most + 1) if n % d == 0), default=1)


def row_parts(rows: int, columns: int, splits: Splits | None, strips: int = 1) -> int:
    """In how many equal parts to cut the rows whose columns, of so many strips, are reduced."""
    if splits is None or rows * columns * strips < splits.tall or columns > splits.wide:
        return 1
    return max(d for d in range(1, splits.rows + 1) if rows % d == 0)


def reduction(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A reduction in two steps, of narrow floats in float32; None where one step is as good.

    >>> from funcgrad.backends.target import Limits, Target
    >>> from funcgrad.core.aval import ShapedArray
    >>> from funcgrad.core.ir import Var
    >>> from funcgrad.ops.base import sum_p
    >>> x, total = (Var(ShapedArray(shape, FLOAT32)) for shape in ((1 << 20,), ()))
    >>> splits = Splits(
    ...     least=1 << 15, few=8, part=1 << 12, most=64, tall=1 << 22, rows=32, wide=8192
    ... )
    >>> flat = Equations(Target("any", limits=Limits(splits=splits)))
    >>> _ = reduction(flat, Eqn(sum_p, [x], [total], {"axes": (0,)}), [x])
    >>> [(e.prim.name, e.outs[0].aval.shape) for e in flat.eqns]
    [('reshape', (64, 16384)), ('reduce_sum', (64,)), ('reduce_sum', ())]
    """
    (x,), axes, splits = ins, sorted(eqn.params["axes"]), flat.limits.splits
    dtype, out = x.aval.dtype, eqn.outs[0].aval
    if not axes:
        return x if dtype == out.dtype else None
    if splits is None or x.aval.size < splits.least or dtype not in LOOP_DTYPES:
        return None
    shape = x.aval.shape
    # Neighbouring axes that are all summed count as one.
    first = last = axes[0]
    while last + 1 in axes:
        last += 1
    size = math.prod(shape[first : last + 1])
    if out.size < splits.few:
        parts = _parts(size, x.aval.size // max(out.size, 1), splits)
    else:
        rows = first == 0 and last == axes[-1]
        parts = row_parts(size, out.size, splits) if rows else 1
    if parts < 2:
        return None
    wide = flat.convert(x, FLOAT32) if dtype in HALVES else x
    cut = flat.reshape(wide, shape[:first] + (parts, size // parts) + shape[last + 1 :])
    moved = [first + 1] + [a - (last - first) + 1 for a in axes if a > last]
    partial = flat.reduce(eqn.prim, cut, moved)
    return flat.convert(flat.reduce(eqn.prim, partial, [first]), dtype)
