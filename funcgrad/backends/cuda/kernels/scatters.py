"""Scatters of many updates on a GPU: the updates' order by row, then each row's own, in that order.

What atomics would do in any order, a team a row does in the updates': results have the CPU's bits,
and the same in each run. The order is a sort of the rows' numbers, so there are no more updates
than a sort has a kernel for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.backends.cuda.kernels.sorts import MOST, Line
from funcgrad.backends.cuda.machine import FEW_UPDATES
from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.llvm.rewrites import rows
from funcgrad.backends.loops.builder import add_indices
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.rewrites import scatters
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.ir import Atom, Eqn

BOOL, INT32 = np.dtype(bool), np.dtype(np.int32)


def rewrite(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Any:
    """A scatter as a selection, or row by row; None if it stays."""
    single = scatters.single_scatter(flat, eqn, ins) if eqn.prim not in rows.HOW else None
    return single or _by_rows(flat, eqn, ins)


def _by_rows(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    x, indices, updates = ins
    numbers, dtype = eqn.params["dimension_numbers"], x.aval.dtype
    n = math.prod(indices.aval.shape[:-1])
    if eqn.prim not in rows.HOW or eqn.params["unique_indices"] or not FEW_UPDATES < n <= MOST:
        return None
    if dtype not in LOOP_DTYPES or dtype == BOOL or not x.aval.size:
        return None
    depth = len(numbers.scatter_dims_to_operand_dims)
    whole = rows.are_rows(numbers, x.aval.shape, indices.aval.ndim - 1, updates.aval.shape)
    if not whole or depth == x.aval.ndim or math.prod(x.aval.shape[:depth]) >= 1 << 30:
        return None
    fresh = rows.HOW[eqn.prim] == "add" and x in flat.zeros
    return rows.in_rows(flat, eqn, ins, fresh=fresh)


def order(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "row_order"; None for more updates than a team sorts."""
    (positions,), count, b = eqn.ins, eqn.params["rows"], k.builder
    n = positions.aval.size
    if not 0 < n <= MOST:
        return None
    out = k.params.write(eqn.outs[0])
    nowhere = Const(count, INT32)

    def row(at: Index) -> Operand:
        """The row of an update; what is none's comes last."""
        value = b.convert(k.element(positions, [at]), INT32)
        low, high = (b.op(name, BOOL, value, bound) for name, bound in
                     (("less", Const(0, INT32)), ("greater_equal", nowhere)))  # fmt: skip
        return b.op("where", INT32, b.op("bitwise_or", BOOL, low, high), nowhere, value)

    line = Line(k, [row], [INT32], n)
    numbers = line.sorted()
    keys = line.held[0]

    def begins(at: list[Index]) -> None:
        """How many updates are of rows before one."""
        this, steps = b.integer(at[0], INT32), n.bit_length()

        def halve(_: Operand, low: Operand, high: Operand) -> list[Operand]:
            total = b.op("add", INT32, low, high)
            middle = b.op("right_shift", INT32, total, Const(1, INT32))
            inside = b.op("less", BOOL, low, high)
            with b.guarded(inside):
                key = b.load(keys, b.value_index(middle, 0, n - 1))
            before = b.op("bitwise_and", BOOL, inside, b.op("less", BOOL, key, this))
            after = b.op("bitwise_and", BOOL, inside, b.op("greater_equal", BOOL, key, this))
            more = b.op("add", INT32, middle, Const(1, INT32))
            return [b.op("where", INT32, before, more, low),
                    b.op("where", INT32, after, middle, high)]  # fmt: skip

        low, _ = b.loop(steps, halve, [Const(0, INT32), Const(n, INT32)])
        b.store(out, at[0], low)

    def number(at: list[Index]) -> None:
        b.store(out, add_indices(at[0], Index(count + 2)), b.load(numbers, at[0]))

    b.nest([count + 2], begins, parallel=True)
    b.nest([n], number, parallel=True)
    return k.done(eqn)
