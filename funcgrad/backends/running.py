"""Running sums of few long rows, in parts that run in parallel.

The total of each part comes first, so that each knows what all parts before it come to; that enters
a part with its first element. The parts depend on the row's length alone, so the result doesn't
depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.equations import Equations
from funcgrad.backends.scalars import HALVES, LOOP_DTYPES
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.ops.arithmetic import max as max_
from funcgrad.ops.arithmetic import min as min_
from funcgrad.ops.arithmetic import mul
from funcgrad.ops.base import sum_p
from funcgrad.ops.compare import eq
from funcgrad.ops.convert import select_n_p
from funcgrad.ops.families import add
from funcgrad.ops.reduce import highest, lowest, max_p, min_p, prod_p
from funcgrad.ops.shape import iota_p
from funcgrad.ops.slicing import pad_p

# Rows from this length on are cut, where there are fewer than FEW, into at most MOST_PARTS.
LONG, FEW, MOST_PARTS = 1 << 15, 8, 64
BOOL, FLOAT32, INT32 = np.dtype(bool), np.dtype(np.float32), np.dtype(np.int32)
# Of each op the reduction to a total, what combines two, and a neutral element.
_HOW: dict[str, tuple] = {
    "cumsum": (sum_p, add, lambda dtype: 0),
    "cumprod": (prod_p, mul, lambda dtype: 1),
    "cummax": (max_p, max_, lowest),
    "cummin": (min_p, min_, highest),
}
OPS = tuple(_HOW)


def running(flat: Equations, e: Eqn, ins: list[Atom]) -> Atom | None:
    """The equation of a running sum (one of `OPS`) in parts; None where it is to stay as it is."""
    (x,), shape, axis = ins, ins[0].aval.shape, e.params["axis"]
    n, reverse = shape[axis], e.params["reverse"]
    parts = max((d for d in range(1, MOST_PARTS + 1) if n % d == 0), default=1)
    rows, columns = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if x.aval.dtype not in LOOP_DTYPES or n < LONG or rows >= FEW or columns > 1 or parts < FEW:
        return None
    reduction, combine, neutral = _HOW[e.prim.name]
    out, dtype = x.aval.dtype, FLOAT32 if x.aval.dtype in HALVES else x.aval.dtype
    cut = ShapedArray((rows, parts, n // parts), dtype)
    x = flat.reshape(flat.convert(x, dtype), cut.shape)
    totals = flat.reduce(reduction, x, [2])
    totals = flat.add(e.prim, [totals], totals.aval, axis=1, reverse=reverse)
    # What comes before each part: the running totals, one further on.
    none = Literal(np.array(neutral(dtype), dtype), ShapedArray((), dtype))
    shift = ((0, 0, 0), (-1, 1, 0) if reverse else (1, -1, 0))
    before: Atom = flat.add(pad_p, [totals, none], totals.aval, padding_config=shift)
    before = flat.broadcast(before, cut.shape, (0, 1))
    places = flat.add(iota_p, [], ShapedArray(cut.shape, INT32), dtype=INT32, shape=cut.shape,
                      dimension=2)  # fmt: skip
    end: Atom = Literal(np.array(n // parts - 1 if reverse else 0, INT32), ShapedArray((), INT32))
    end = flat.broadcast(end, cut.shape, ())
    first = flat.add(eq, [places, end], ShapedArray(cut.shape, BOOL))
    begun = flat.add(select_n_p, [first, x, flat.add(combine, [before, x], cut)], cut)
    y = flat.add(e.prim, [begun], cut, axis=2, reverse=reverse)
    return flat.convert(flat.reshape(y, shape), out)
