"""Kernels of running sums, products and extremes: a thread goes along each line.

Neighbouring threads have neighbouring columns, so that lines that aren't rows are read as memory
lies. A few long lines would leave a GPU to few threads, one element after the other: they have no
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.cuda.rows import identity
from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.core.ir import Eqn
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p

OPS = {
    cumsum_p: "add", cumprod_p: "multiply", cummax_p: "maximum", cummin_p: "minimum",
    cumlogsumexp_p: "logaddexp",
}  # fmt: skip
LONG, FEW = 4096, 128  # lines of more elements than LONG, if fewer than FEW, have no kernel


def write(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a running sum, product or extremum; None if it has none."""
    (x,), axis, b = eqn.ins, eqn.params["axis"], k.builder
    shape, n = x.aval.shape, x.aval.shape[axis]
    if n > LONG and math.prod(shape) // n < FEW:
        return None
    out = k.params.write(eqn.outs[0])
    dtype = np.dtype(np.float32) if x.aval.dtype in HALVES else x.aval.dtype
    op = OPS[eqn.prim]
    nothing = dtype.type(-np.inf) if op == "logaddexp" else identity(op, dtype)
    around = [k.outer(m) for i, m in enumerate(shape) if i != axis]

    def turn(i: Value, total: Value) -> Sequence[Operand]:
        at = Index(0, ((1, i),))
        at = scale_index(at, -1, n - 1) if eqn.params["reverse"] else at
        place = b.flatten([*around[:axis], at, *around[axis:]], shape)
        so_far = b.op(op, dtype, total, b.convert(k.pull.read_flat(x, place), dtype))
        b.store(out, place, b.convert(so_far, out.dtype))
        return [so_far]

    b.loop(n, turn, [Const(nothing, dtype)])
    return k.done(eqn)
