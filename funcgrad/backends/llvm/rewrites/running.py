"""Running sums of few long rows, in parts that run in parallel.

The total of each part comes first, so that each knows what all parts before it come to, and begins
with that. The parts depend on the row's length alone, so the result doesn't depend on the number of
threads. Products of floats stay whole: a part's may overflow, or vanish, where none so far does.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.core.primitive import Primitive
from funcgrad.ops.base import sum_p
from funcgrad.ops.cumulative import cummax_p, cummin_p, cumprod_p, cumsum_p
from funcgrad.ops.reduce import highest, lowest, max_p, min_p, prod_p
from funcgrad.ops.slicing import pad_p

# Rows from this length on are cut, where there are fewer than FEW, into at most MOST_PARTS, which
# fill vectors if possible.
LONG, FEW, MOST_PARTS, LANES = 1 << 15, 8, 256, 16
FLOAT32 = np.dtype(np.float32)
# Of each op the reduction to a total, what combines two, and a neutral element.
_HOW: dict[Primitive, tuple] = {
    cumsum_p: (sum_p, "add", lambda dtype: 0),
    cumprod_p: (prod_p, "multiply", lambda dtype: 1),
    cummax_p: (max_p, "maximum", lowest),
    cummin_p: (min_p, "minimum", highest),
}


def _impl(xp, x, before, *, how, axis, reverse):
    rows = xp.moveaxis(x, axis, -1).astype(before.dtype)
    rows = rows[..., ::-1] if reverse else rows
    rows = xp.concatenate([before[..., None], rows], -1)
    sums = getattr(xp, how).accumulate(rows, axis=-1, dtype=before.dtype)[..., 1:]
    sums = sums[..., ::-1] if reverse else sums
    return xp.moveaxis(sums, -1, axis).astype(x.dtype)


# Running sums along an axis that begin with what is `before`, of the other axes, in the dtype of
# the sums.
running_p = lowered("running", lambda x, before, **params: x, _impl)


def running(flat: Equations, e: Eqn, ins: list[Atom]) -> Atom | None:
    """The equation of a running sum, or the like, in parts; None where it is to stay as it is."""
    (x,), shape, axis = ins, ins[0].aval.shape, e.params["axis"]
    n, reverse = shape[axis], e.params["reverse"]
    divisors = [d for d in range(1, MOST_PARTS + 1) if n % d == 0]
    parts = max(divisors, key=lambda d: (d % LANES == 0, d), default=1)
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if x.aval.dtype not in LOOP_DTYPES or n < LONG or rows >= FEW or columns > 1 or parts < FEW:
        return None
    if e.prim is cumprod_p and x.aval.dtype.kind not in "iu":
        return None
    reduction, how, neutral = _HOW[e.prim]
    out, dtype = x.aval.dtype, FLOAT32 if x.aval.dtype in HALVES else x.aval.dtype
    cut = ShapedArray((rows, parts, n // parts), out)
    x = flat.reshape(x, cut.shape)
    totals = flat.reduce(reduction, flat.convert(x, dtype), [2])
    totals = flat.add(e.prim, [totals], totals.aval, axis=1, reverse=reverse)
    # What comes before each part: the running totals, one further on.
    none = Literal(np.array(neutral(dtype), dtype), ShapedArray((), dtype))
    shift = ((0, 0, 0), (-1, 1, 0) if reverse else (1, -1, 0))
    before = flat.add(pad_p, [totals, none], totals.aval, padding_config=shift)
    y = flat.add(running_p, [x, before], cut, how=how, axis=2, reverse=reverse)
    return flat.reshape(y, shape)
