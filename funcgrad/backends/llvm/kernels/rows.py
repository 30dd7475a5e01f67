"""Kernels of updates by row: each row takes its own, in an order that a step before them found.

Rows are independent: see `rewrites.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.core.ir import Eqn

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)


def rows(k: SpecialKernel, eqn: Eqn) -> Written:
    """Row by row: in place, those that have updates; else all of them, from zeros."""
    b, depth, how = k.builder, eqn.params["depth"], eqn.params["how"]
    *start, order, updates = eqn.ins
    shape, dtype = eqn.outs[0].aval.shape, eqn.outs[0].aval.dtype
    out = k.params.write(eqn.outs[0], "inout" if start else "out")
    count, inner = math.prod(shape[:depth]), shape[depth:]
    counts = updates.aval.shape[: updates.aval.ndim - len(inner)]
    n, row = math.prod(counts), k.outer(count)
    block = k.column_block(inner[-1], count)
    first = scale_index(k.outer(inner[-1] // block), block)
    sizes = (*inner[:-1], block)
    wide = FLOAT32 if dtype in HALVES else dtype
    sums = k.params.local(wide, math.prod(sizes))
    begin, end = (k.pull.start(order, [add_indices(row, Index(i))], n) for i in (0, 1))
    last = b.integer(end)

    def there(at: Operand) -> Operand:
        return b.op("less", BOOL, at, last)

    def columns(write: Callable[[Index, list[Index], Index], None]) -> None:
        """write(place in the sums, indices in a row, place in the result) for each column."""

        def column(at: Sequence[Index]) -> None:
            inside = [*at[:-1], add_indices(first, at[-1])]
            flat = add_indices(scale_index(row, math.prod(inner)), b.flatten(inside, inner))
            write(b.flatten(at, sizes), inside, flat)

        b.nest(sizes, column, parallel=True)

    def begin_row(place: Index, inside: list[Index], flat: Index) -> None:
        b.store(sums, place, b.convert(b.load(out, flat), wide) if start else Const(0, wide))

    def combine(at: Value) -> list[Operand]:
        number = k.pull.start(order, [Index(count + 2, ((1, at),))], n - 1)
        source = b.unflatten(number, counts)

        def one(place: Index, inside: list[Index], flat: Index) -> None:
            value = b.convert(k.pull.read(updates, [*source, *inside]), wide)
            b.store(sums, place, b.op(how, wide, b.load(sums, place), value))

        columns(one)
        return [b.op("add", at.dtype, at, Const(1, at.dtype))]

    def finish_row(place: Index, inside: list[Index], flat: Index) -> None:
        b.store(out, flat, b.convert(b.load(sums, place), dtype))

    def write_row(at: Operand) -> list[Operand]:
        columns(begin_row)
        b.while_(there, combine, [at])
        columns(finish_row)
        return [last]

    if start:
        b.while_(there, write_row, [b.integer(begin)])
    else:
        write_row(b.integer(begin))
    return k.done(eqn)
