"""Kernels of small decompositions: LU, Cholesky, and solving with triangular matrices.

Matrices of a batch are taken `LANES` at a time, element (i, c) of all of them side by side, so that
the innermost loops run over matrices and need no order. Elimination looks right: each column, when
done, is subtracted from the columns behind it. Large matrices are the host's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, add_indices, scale_index
from funcgrad.backends.loops.ir import INDEX, Buffer, Const, Index, Operand, Value
from funcgrad.core.ir import Eqn

BOOL, INT32 = np.dtype(bool), np.dtype(np.int32)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
LANES = 16
# Larger matrices have work enough for products of blocks.
MOST = 32
# How many runs of columns have loops of their own, which leave out what is done already.
RUNS = 4


class _Lanes:
    """Matrices in scratch memory, some of a batch together."""

    def __init__(self, k: SpecialKernel, batch: int):
        self.k, self.b = k, k.builder
        self.lanes = min(LANES, batch)
        self.block = k.outer(-(-batch // self.lanes))
        self.batch = batch

    def room(self, dtype: np.dtype, size: int) -> Buffer:
        return self.k.params.local(dtype, size * self.lanes)

    def each(self, body: Callable[[Index], None]) -> None:
        """body(lane), for matrices in no order."""
        if self.lanes == 1:
            body(ZERO)
            return
        self.b.loop(self.lanes, lambda lane: body(_index(lane)), parallel=True)

    def copy(self, rows: int, columns: int, body: Callable[..., None]) -> None:
        """body(place in the batch's matrix, lane, row, column) for what lies in the batch."""

        def element(at: list[Index]) -> None:
            def one(lane: Index) -> None:
                number = add_indices(scale_index(self.block, self.lanes), lane)
                with self.b.guarded(self.b.compare("less", number, self.batch)):
                    body(number, lane, *at)

            self.each(one)

        self.b.nest([rows, columns], element)

    def at(self, place: Index, lane: Index) -> Index:
        return add_indices(scale_index(place, self.lanes), lane)

    def load(self, buffer: Buffer, place: Index, lane: Index) -> Operand:
        return self.b.load(buffer, self.at(place, lane))

    def store(self, buffer: Buffer, place: Index, lane: Index, value: Operand) -> None:
        self.b.store(buffer, self.at(place, lane), value)

    def fill(self, buffer: Buffer, size: int, value: Callable[[Index], Operand]) -> None:
        self.b.nest([size], lambda at: self.each(
            lambda lane: self.store(buffer, at[0], lane, value(at[0]))
        ))  # fmt: skip

    def columns(self, count: int, body: Callable[[Index, int], None]) -> None:
        """body(column, first): columns in order, in runs; `first` is the first of the run."""
        size = max(1, -(-count // RUNS))
        for first in range(0, count, size):
            turns = min(size, count - first)
            if turns == 1:
                body(Index(first), first)
            else:
                self.b.loop(turns, lambda i, first=first: body(_index(i, first), first))

    def behind(self, index: Index, column: Index) -> Operand | None:
        """Whether an index is greater than the column's; None where it always is."""
        low, _ = self.b.index_bounds(add_indices(index, scale_index(column, -1)))
        if low > 0:
            return None
        return self.b.op("greater", BOOL, self.b.integer(index), self.b.integer(column))

    def where(self, condition: Operand | None, value: Operand, other: Operand) -> Operand:
        if condition is None:
            return value
        return self.b.op("where", value.dtype, condition, value, other)


def _index(value: Value, plus: int = 0) -> Index:
    return Index(plus, ((1, value),))


def _shifted(at: list[Index], *starts: int) -> list[Index]:
    return [scale_index(i, 1, s) for i, s in zip(at, starts, strict=True)]


def _place(i: Index, c: Index, columns: int) -> Index:
    return add_indices(scale_index(i, columns), c)


def _fits(*shapes: tuple[int, ...]) -> bool:
    return all(0 < n <= MOST for s in shapes for n in s[-2:]) and math.prod(shapes[0]) > 0


def _read_matrices(w: _Lanes, eqn: Eqn, rows: int, columns: int) -> Buffer:
    (x,) = eqn.ins
    a = w.room(x.aval.dtype, rows * columns)

    def read(number: Index, lane: Index, i: Index, c: Index) -> None:
        flat = w.b.flatten([number, i, c], (w.batch, rows, columns))
        w.store(a, _place(i, c, columns), lane, w.k.pull.read_flat(x, flat))

    w.copy(rows, columns, read)
    return a


def lu(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """An LU decomposition with pivots; None if matrices are large, or not of floats."""
    aval = eqn.ins[0].aval
    if aval.dtype not in FLOATS or not _fits(aval.shape):
        return None
    *lead, m, n = aval.shape
    factors, pivots, order = (k.params.write(v) for v in eqn.outs)
    w, b = _Lanes(k, math.prod(lead)), k.builder
    a, swaps, rows = _read_matrices(w, eqn, m, n), w.room(INT32, min(m, n)), w.room(INT32, m)
    w.fill(rows, m, lambda i: b.integer(i, INT32))
    best = w.room(aval.dtype, 1)

    def column(j: Index, first: int) -> None:
        _find_pivot(w, (a, swaps, best), (m, n), j, first)

        def swap(buffer: Buffer, width: int, c: Index, lane: Index) -> None:
            row = b.value_index(w.load(swaps, j, lane), 0, m - 1)
            here, there = _place(j, c, width), _place(row, c, width)
            x, y = w.load(buffer, here, lane), w.load(buffer, there, lane)
            w.store(buffer, here, lane, y)
            w.store(buffer, there, lane, x)

        b.nest([n], lambda at: w.each(lambda lane: swap(a, n, at[0], lane)))
        w.each(lambda lane: swap(rows, 1, ZERO, lane))
        _divide_column(w, a, (m, n), j, first)
        _subtract_column(w, a, (m, n), j, first)

    w.columns(min(m, n), column)

    def write(buffer: Buffer, source: Buffer, rows: int, columns: int) -> None:
        def one(number: Index, lane: Index, i: Index, c: Index) -> None:
            value = w.load(source, _place(i, c, columns), lane)
            b.store(buffer, b.flatten([number, i, c], (w.batch, rows, columns)), value)

        w.copy(rows, columns, one)

    write(factors, a, m, n)
    write(pivots, swaps, 1, min(m, n))
    write(order, rows, 1, m)
    return k.done(eqn)


def _find_pivot(
    w: _Lanes, buffers: tuple[Buffer, Buffer, Buffer], shape: tuple[int, int], j: Index, first: int
) -> None:
    """The row of the first greatest (or NaN) element of a column, from the diagonal on."""
    b, (a, swaps, best), (m, n) = w.b, buffers, shape
    dtype = a.dtype

    def start(lane: Index) -> None:
        w.store(best, ZERO, lane, b.op("abs", dtype, w.load(a, _place(j, j, n), lane)))
        w.store(swaps, j, lane, b.integer(j, INT32))

    def look(at: list[Index]) -> None:
        (i,) = _shifted(at, first + 1)

        def one(lane: Index) -> None:
            value = b.op("abs", dtype, w.load(a, _place(i, j, n), lane))
            most = w.load(best, ZERO, lane)
            fresh = b.op("bitwise_and", BOOL, b.op("isnan", BOOL, value),
                         b.op("equal", BOOL, most, most))  # fmt: skip
            better = b.op("bitwise_or", BOOL, fresh, b.op("greater", BOOL, value, most))
            behind = w.behind(i, j)
            if behind is not None:
                better = b.op("bitwise_and", BOOL, better, behind)
            w.store(best, ZERO, lane, w.where(better, value, most))
            place = w.where(better, b.integer(i, INT32), w.load(swaps, j, lane))
            w.store(swaps, j, lane, place)

        w.each(one)

    w.each(start)
    b.nest([m - first - 1], look)


def _divide_column(w: _Lanes, a: Buffer, shape: tuple[int, int], j: Index, first: int) -> None:
    b, (m, n), dtype = w.b, shape, a.dtype

    def divide(at: list[Index]) -> None:
        (i,) = _shifted(at, first + 1)

        def one(lane: Index) -> None:
            pivot = w.load(a, _place(j, j, n), lane)
            zero = b.op("equal", BOOL, pivot, Const(0, dtype))
            value = w.load(a, _place(i, j, n), lane)
            done = b.op("divide", dtype, value, w.where(zero, Const(1, dtype), pivot))
            w.store(a, _place(i, j, n), lane, w.where(w.behind(i, j), done, value))

        w.each(one)

    b.nest([m - first - 1], divide)


def _subtract_column(
    w: _Lanes, a: Buffer, shape: tuple[int, int], j: Index, first: int, symmetric: bool = False
) -> None:
    """a[i, c] -= a[i, j] a[j, c] behind column j, with a[c, j] for a[j, c] if symmetric."""
    b, (m, n), dtype = w.b, shape, a.dtype

    def subtract(at: list[Index]) -> None:
        i, c = _shifted(at, first + 1, first + 1)
        both = b.all_of([w.behind(i, j), w.behind(c, j)])

        def one(lane: Index) -> None:
            other = w.load(a, _place(c, j, n) if symmetric else _place(j, c, n), lane)
            value = w.load(a, _place(i, c, n), lane)
            part = b.op("multiply", dtype, w.load(a, _place(i, j, n), lane), other)
            w.store(a, _place(i, c, n), lane, w.where(both, b.op("subtract", dtype, value, part),
                                                      value))  # fmt: skip

        w.each(one)

    if m - first - 1 > 0 and n - first - 1 > 0:
        b.nest([m - first - 1, n - first - 1], subtract)


def cholesky(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """A Cholesky decomposition; None if matrices are large, or not of floats."""
    aval = eqn.ins[0].aval
    if aval.dtype not in FLOATS or not _fits(aval.shape):
        return None
    *lead, n, _ = aval.shape
    dtype, out = aval.dtype, k.params.write(eqn.outs[0])
    w, b = _Lanes(k, math.prod(lead)), k.builder
    a = _read_matrices(w, eqn, n, n)
    good = w.room(INT32, 1)
    w.fill(good, 1, lambda i: Const(1, INT32))

    def column(j: Index, first: int) -> None:
        def root(lane: Index) -> None:
            value = w.load(a, _place(j, j, n), lane)
            positive = b.op("greater", BOOL, value, Const(0, dtype))
            so_far = w.load(good, ZERO, lane)
            w.store(good, ZERO, lane, w.where(positive, so_far, Const(0, INT32)))
            w.store(a, _place(j, j, n), lane, b.op("sqrt", dtype, value))

        w.each(root)
        _divide_column(w, a, (n, n), j, first)
        _subtract_column(w, a, (n, n), j, first, symmetric=True)

    w.columns(n, column)

    def write(number: Index, lane: Index, i: Index, c: Index) -> None:
        definite = b.op("equal", BOOL, w.load(good, ZERO, lane), Const(1, INT32))
        value = w.where(definite, w.load(a, _place(i, c, n), lane), Const(np.nan, dtype))
        above = b.op("greater", BOOL, b.integer(c, INDEX), b.integer(i, INDEX))
        value = w.where(above, Const(0, dtype), value)
        b.store(out, b.flatten([number, i, c], (w.batch, n, n)), value)

    w.copy(n, n, write)
    return k.done(eqn)


def triangular_solve(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The solution of triangular systems; None if matrices are large, or not of floats."""
    a_in, b_in = eqn.ins
    p, dtype = eqn.params, a_in.aval.dtype
    if dtype not in FLOATS or not _fits(a_in.aval.shape, b_in.aval.shape):
        return None
    *lead, n, _ = a_in.aval.shape
    left, lower, turned = p["left_side"], p["lower"], p["transpose_a"]
    # x op(a) = b says the same as op(a)ᵀ xᵀ = bᵀ; an upper triangle backwards is a lower one.
    turned, size = turned != (not left), b_in.aval.shape[-1 if left else -2]
    backwards = lower == turned
    out = k.params.write(eqn.outs[0])
    w, b = _Lanes(k, math.prod(lead)), k.builder
    a, x = w.room(dtype, n * n), w.room(dtype, n * size)

    def row(i: Index) -> Index:
        return scale_index(i, -1, n - 1) if backwards else i

    def read_matrix(number: Index, lane: Index, i: Index, c: Index) -> None:
        at = (row(c), row(i)) if turned else (row(i), row(c))
        flat = b.flatten([number, *at], (w.batch, n, n))
        w.store(a, _place(i, c, n), lane, k.pull.read_flat(a_in, flat))

    def place(number: Index, i: Index, q: Index) -> Index:
        if left:
            return b.flatten([number, row(i), q], (w.batch, n, size))
        return b.flatten([number, q, row(i)], (w.batch, size, n))

    def read_right(number: Index, lane: Index, i: Index, q: Index) -> None:
        w.store(x, _place(i, q, size), lane, k.pull.read_flat(b_in, place(number, i, q)))

    def write(number: Index, lane: Index, i: Index, q: Index) -> None:
        b.store(out, place(number, i, q), w.load(x, _place(i, q, size), lane))

    def column(j: Index, first: int) -> None:
        if not p["unit_diagonal"]:
            b.nest([size], lambda at: w.each(lambda lane: divide(j, at[0], lane)))
        if n - first - 1 > 0:
            b.nest([n - first - 1, size], lambda at: w.each(
                lambda lane: subtract(j, scale_index(at[0], 1, first + 1), at[1], lane)
            ))  # fmt: skip

    def divide(j: Index, q: Index, lane: Index) -> None:
        value, pivot = w.load(x, _place(j, q, size), lane), w.load(a, _place(j, j, n), lane)
        w.store(x, _place(j, q, size), lane, b.op("divide", dtype, value, pivot))

    def subtract(j: Index, i: Index, q: Index, lane: Index) -> None:
        value = w.load(x, _place(i, q, size), lane)
        factor, known = w.load(a, _place(i, j, n), lane), w.load(x, _place(j, q, size), lane)
        less = b.op("subtract", dtype, value, b.op("multiply", dtype, factor, known))
        w.store(x, _place(i, q, size), lane, w.where(w.behind(i, j), less, value))

    w.copy(n, n, read_matrix)
    w.copy(n, size, read_right)
    w.columns(n, column)
    w.copy(n, size, write)
    return k.done(eqn)
