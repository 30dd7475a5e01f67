"""Kernels of running sums, products and extremes: a thread goes along each line.

Neighbouring threads have neighbouring columns, so that lines that aren't rows are read as memory
lies. A few long lines would leave a GPU to few threads, one element after the other: there a block
takes a line, its threads a part each, twice: for the parts' totals, and from what is before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.cuda.rows import identity
from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Buffer, Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.core.ir import Eqn
from funcgrad.ops.cumulative import cumlogsumexp_p, cummax_p, cummin_p, cumprod_p, cumsum_p

BOOL = np.dtype(bool)
OPS = {
    cumsum_p: "add", cumprod_p: "multiply", cummax_p: "maximum", cummin_p: "minimum",
    cumlogsumexp_p: "logaddexp",
}  # fmt: skip
LONG, FEW = 4096, 128  # lines of more elements than LONG, if fewer than FEW, are cut
GROUP = 64
PARTS = GROUP * GROUP
Step = Callable[[Operand, Index], list[Operand]]


def write(k: SpecialKernel, eqn: Eqn) -> Written:
    """The kernel of a running sum, product or extremum."""
    (x,), axis, b = eqn.ins, eqn.params["axis"], k.builder
    shape, n = x.aval.shape, x.aval.shape[axis]
    out = k.params.write(eqn.outs[0])
    dtype = np.dtype(np.float32) if x.aval.dtype in HALVES else x.aval.dtype
    op = OPS[eqn.prim]
    nothing = dtype.type(-np.inf) if op == "logaddexp" else identity(op, dtype)
    around = [k.outer(m) for i, m in enumerate(shape) if i != axis]

    def place(at: Index) -> Index:
        at = scale_index(at, -1, n - 1) if eqn.params["reverse"] else at
        return b.flatten([*around[:axis], at, *around[axis:]], shape)

    def combined(total: Operand, at: Index) -> Operand:
        return b.op(op, dtype, total, b.convert(k.pull.read_flat(x, place(at)), dtype))

    def keep(total: Operand, at: Index) -> list[Operand]:
        so_far = combined(total, at)
        b.store(out, place(at), b.convert(so_far, out.dtype))
        return [so_far]

    start = [Const(nothing, dtype)]
    if n <= LONG or math.prod(shape) // n >= FEW:
        b.loop(n, lambda i, total: keep(total, Index(0, ((1, i),))), start)
        return k.done(eqn)
    _in_parts(b, n, [k.params.local(dtype, size) for size in (PARTS, GROUP)], start[0], op,
              lambda total, at: [combined(total, at)], keep)  # fmt: skip
    return k.done(eqn)


def _in_parts(
    b: Builder, n: int, rooms: Sequence[Buffer], nothing: Const, op: str, take: Step, keep: Step
) -> None:
    """A line in `PARTS` parts: their totals and those of `GROUP` groups of them, then each from
    what is before it.

    take, keep: combine a total with an element, and keep it as the element's result
    """
    (totals, groups), dtype, size = rooms, nothing.dtype, -(-n // PARTS)

    def part(c: Value, first: Operand, body: Step) -> Operand:
        def turn(i: Value, total: Value) -> list[Operand]:
            at = Index(0, ((size, c), (1, i)))
            inside = b.compare("less", at, n)
            with b.guarded(inside):
                (found,) = body(total, at)
            return [found if inside is None else b.op("where", dtype, inside, found, total)]

        return b.loop(size, turn, [first])[0]

    def before(room: Buffer, first: Index, count: Index, total: Operand) -> Operand:
        """A total and, one after the other, so many of a room's elements."""

        def turn(i: Value, total: Value) -> list[Operand]:
            own = b.load(room, add_indices(first, Index(0, ((1, i),))))
            here = b.op("less", BOOL, i, b.integer(count))
            return [b.op("where", dtype, here, b.op(op, dtype, total, own), total)]

        return b.loop(GROUP, turn, [total])[0]

    def total_of(c: Value) -> None:
        b.store(totals, Index(0, ((1, c),)), part(c, nothing, take))

    def group_of(g: Value) -> None:
        first = Index(0, ((GROUP, g),))
        b.store(groups, Index(0, ((1, g),)), before(totals, first, Index(GROUP), nothing))

    def finish(c: Value) -> None:
        group, within = b.divide(Index(0, ((1, c),)), GROUP)
        total = before(groups, ZERO, group, nothing)
        total = before(totals, scale_index(group, GROUP), within, total)
        part(c, total, keep)

    b.loop(PARTS, total_of, parallel=True)
    b.loop(PARTS // GROUP, group_of, parallel=True)
    b.loop(PARTS, finish, parallel=True)
