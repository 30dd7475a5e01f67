"""Decompositions of small matrices, and solving with them, in little code, which is soon compiled.

Nothing is done by blocks: a matrix lies in scratch, its rows padded to whole vectors, and rows are
made some at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from funcgrad.backends.llvm.matrix.lu import LU, write_order
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.matrix.solve import CHOLESKY, SOLVE
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, Bool, Code, Int, Record, Variable

_VECTORS = 4  # of a row, side by side
_ROWS = 4  # that a row is taken off at a time, where rows are swapped
# Numbers whose reciprocals are no more than large.
_SMALL = {"float32": 2.0**-100, "float64": 2.0**-1000}


def _move(parts: Matrices, code: Code, source: tuple, to: tuple, m: Int, n: Int) -> None:
    """Copy rows of n elements, a vector at a time: (pointer, distance of rows) each."""
    (x, x_rs), (y, y_rs) = source, to
    with code.range(0, n, parts.lanes) as c:
        mask = code.first_lanes(n - c, parts.lanes)
        with code.range(0, m) as i:
            row = parts.load(code, x, i * x_rs + c, parts.lanes, mask)
            parts.store(code, row, y, i * y_rs + c, mask)


# ---- LU


def emit_lu_small(parts: Matrices, name: str) -> None:
    """As `emit_lu`."""
    lanes = parts.lanes

    def one(code: Code, call: Record, item: Int) -> None:
        m, n = call["m"], call["n"]
        k, stride = m.min(n), n.round_up(lanes)
        a, out = (parts.at(code, call.pointer_at(f), item * m * n) for f in ("a", "factors"))
        pivots = code.at(call.pointer_at("pivots"), item * k, I32)
        # Behind the last row are some that hold anything, and that of a pivot.
        x = code.call(parts.take, ((m + _ROWS) * stride + lanes) * parts.bytes)
        _move(parts, code, (a, n), (x, stride), m, n)
        greatest = _Greatest(parts, code)
        greatest.begin(code.i64(0))
        with code.range(0, m) as i:
            greatest.consider(i, parts.load(code, x, i * stride), i < m)
        with code.range(0, k) as j:
            pivot = Int(code, greatest.best.get())
            code.store(code.b.trunc(pivot.value, I32), code.at(pivots, j, I32))
            here, there = (parts.at(code, x, row * stride) for row in (j, pivot))
            with code.range(0, stride, lanes) as c:
                rows = [parts.load(code, row, c, lanes) for row in (here, there)]
                parts.store(code, rows[1], here, c)
                parts.store(code, rows[0], there, c)
            greatest.begin(j + 1)
            _eliminate(parts, code, greatest, x, stride, j, m)
        _move(parts, code, (x, stride), (out, n), m, n)
        code.call(parts.give, x)
        write_order(code, code.at(call.pointer_at("order"), item * m, I32), m, pivots, k)

    parts.entry(name, LU, one)


class _Greatest:
    """The row, of those that are considered, whose element is greatest: the first of equals."""

    def __init__(self, parts: Matrices, code: Code):
        self.parts, self.code = parts, code
        self.best, self.most = code.variable(I64), code.variable(parts.bits)

    def begin(self, first: Int) -> None:
        self.best.set(first)
        self.most.set(self.parts.bits(0))

    def consider(self, i: Int, value: ir.Value, counts: Bool) -> None:
        b, bits = self.code.b, self.parts.magnitude(self.code, value)
        greater = b.and_(counts.value, b.icmp_unsigned(">", bits, self.most.get()))
        self.best.set(b.select(greater, i.value, self.best.get()))
        self.most.set(b.select(greater, bits, self.most.get()))


def _eliminate(
    parts: Matrices, code: Code, greatest: _Greatest, x: ir.Value, stride: Int, j: Int, m: Int
) -> None:
    """Rid column j of what is below its diagonal, where its factors are written, and see where the
    next column is greatest there."""
    b, lanes, number = code.b, parts.lanes, partial(ir.Constant, parts.type)
    pivot = parts.load(code, x, j * stride + j)
    # A power of 2 brings a small one to where its reciprocal is a number.
    small = b.fcmp_ordered("<", code.intrinsic("fabs", pivot), number(_SMALL[parts.dtype]))
    scale = b.select(small, number(1 / _SMALL[parts.dtype]), number(1.0))
    none = b.fcmp_ordered("==", pivot, number(0.0))
    inverse = b.fdiv(number(1.0), b.select(none, number(1.0), b.fmul(pivot, scale)))
    first, top = (j + 1) // lanes * lanes, parts.at(code, x, (m + _ROWS - 1) * stride)
    with code.range(first, stride, lanes) as c:
        row = parts.load(code, x, j * stride + c, lanes)
        done = code.first_lanes(j + 1 - c, lanes)
        parts.store(code, b.select(done, ir.Constant(row.type, None), row), top, c)
    with code.range(j + 1, m, _ROWS) as i:
        rows = [parts.at(code, x, (i + r) * stride) for r in range(_ROWS)]
        factors = [b.fmul(b.fmul(parts.load(code, row, j), scale), inverse) for row in rows]
        spread = [code.splat(b.fneg(factor), lanes) for factor in factors]
        with code.range(first, stride, lanes) as c:
            above = parts.load(code, top, c, lanes)
            for row, factor in zip(rows, spread, strict=True):
                old = parts.load(code, row, c, lanes)
                parts.store(code, code.intrinsic("fmuladd", factor, above, old), row, c)
        # Not sooner: vectors that are read would wait for it.
        for r, (row, factor) in enumerate(zip(rows, factors, strict=True)):
            parts.store(code, factor, row, j)
            greatest.consider(i + r, parts.load(code, row, j + 1), i + r < m)


# ---- rows, one after the other


def _forward(
    parts: Matrices, code: Code, x: ir.Value, stride: Int, n: Int, vectors: int,
    start: Callable[[Int], Int], factor: Callable[[Int, Int], ir.Value],
    finish: Callable[[Int, int, Int, list[Variable]], None],
) -> None:  # fmt: skip
    """From row i of x, for i < n, are taken factor(i, j) times row j for all j < i, in the columns
    from start(i) on; then finish(i, r, c, sums) for so many vectors from column c on, where row i
    is the r-th of those that are made at once. n is a multiple of 4, and start(i) is the same for
    4 rows."""
    lanes = parts.lanes
    kind = ir.VectorType(parts.type, lanes)
    # Enough sums that don't wait for each other, and not too many for the registers.
    rows = 4 if vectors == 1 else 2
    sums = [[code.variable(kind) for _ in range(vectors)] for _ in range(rows)]

    def less(i: Int, j: Int, row: list[Variable], known: list[ir.Value]) -> None:
        spread = code.splat(code.b.fneg(factor(i, j)), lanes)
        for total, value in zip(row, known, strict=True):
            total.set(code.intrinsic("fmuladd", spread, value, total.get()))

    with code.range(0, n, rows) as i, code.range(start(i), stride, vectors * lanes) as c:
        places = [c + v * lanes for v in range(vectors)]
        for r, row in enumerate(sums):
            for total, at in zip(row, places, strict=True):
                total.set(parts.load(code, x, (i + r) * stride + at, lanes))
        with code.range(0, i) as j:
            known = [parts.load(code, x, j * stride + at, lanes) for at in places]
            for r, row in enumerate(sums):
                less(i + r, j, row, known)
        for r, row in enumerate(sums):
            finish(i + r, r, c, row)
            for total, at in zip(row, places, strict=True):
                parts.store(code, total.get(), x, (i + r) * stride + at)
            for later in range(r + 1, rows):
                less(i + later, i + r, sums[later], [total.get() for total in row])


def emit_cholesky_small(parts: Matrices, name: str) -> None:
    """As `emit_cholesky`: rows of U with UᵀU = a."""
    width = _VECTORS * parts.lanes

    def one(code: Code, call: Record, item: Int) -> None:
        b, n = code.b, call["n"]
        rows, stride = n.round_up(4), n.round_up(width)
        a, out = (parts.at(code, call.pointer_at(f), item * n * n) for f in ("a", "out"))
        x = code.call(parts.take, rows * stride * parts.bytes)
        zero, nan = (ir.Constant(parts.type, c) for c in (0.0, float("nan")))
        nothing = ir.Constant(ir.VectorType(parts.type, parts.lanes), None)
        with code.range(0, rows * stride, parts.lanes) as c:
            parts.store(code, nothing, x, c)
        with code.range(0, n) as i, code.range(0, i + 1) as j:
            parts.store(code, parts.load(code, a, i * n + j), x, j * stride + i)
        good = code.variable(ir.IntType(1), ir.IntType(1)(1))
        roots = [code.variable(parts.type) for _ in range(4)]

        def start(i: Int) -> Int:
            return i // width * width

        def finish(i: Int, r: int, c: Int, row: list[Variable]) -> None:
            with code.when(c.eq(start(i))):
                for v, total in enumerate(row):
                    parts.store(code, total.get(), x, i * stride + c + v * parts.lanes)
                pivot = parts.load(code, x, i * stride + i)
                positive = b.fcmp_ordered(">", pivot, zero)
                good.set(b.and_(good.get(), b.or_(positive, (i >= n).value)))
                roots[r].set(code.intrinsic("sqrt", pivot))
            divisor = code.splat(roots[r].get(), parts.lanes)
            for total in row:
                total.set(b.fdiv(total.get(), divisor))

        def factor(i: Int, j: Int) -> ir.Value:
            return parts.load(code, x, j * stride + i)

        _forward(parts, code, x, stride, rows, _VECTORS, start, factor, finish)
        with code.range(0, n) as i, code.range(0, n) as j:
            value = b.select(good.get(), parts.load(code, x, j * stride + i), nan)
            parts.store(code, b.select((j > i).value, zero, value), out, i * n + j)
        code.call(parts.give, x)

    parts.entry(name, CHOLESKY, one)


def emit_solve_small(parts: Matrices, name: str) -> None:
    """As `emit_solve`."""
    _emit_solve(parts, name, _VECTORS)


def emit_solve_few(parts: Matrices, name: str) -> None:
    """As `emit_solve`, for no more columns than a vector has."""
    _emit_solve(parts, name, 1)


def _emit_solve(parts: Matrices, name: str, vectors: int) -> None:
    lanes = parts.lanes

    def one(code: Code, call: Record, item: Int) -> None:
        n, columns, left = call["n"], call["columns"], call["left"].ne(0)
        rows, stride = n.round_up(4), columns.round_up(vectors * lanes)
        factors = code.call(parts.take, rows * (rows + stride) * parts.bytes)
        x = parts.at(code, factors, rows * rows)
        _copy_triangle(parts, code, call, item, factors, rows)
        first, step = _places(call, left.select(columns, 1))
        b, out = (
            parts.at(code, call.pointer_at(f), item * n * columns + first) for f in ("b", "out")
        )

        def factor(i: Int, j: Int) -> ir.Value:
            return parts.load(code, factors, i * rows + j)

        def finish(i: Int, r: int, c: Int, row: list[Variable]) -> None:
            divisor = code.splat(factor(i, i), lanes)
            for total in row:
                total.set(code.b.fdiv(total.get(), divisor))

        with code.either(left) as (straight, turned):
            with straight:
                _move(parts, code, (b, step), (x, stride), n, columns)
            with turned, code.range(0, n) as i, code.range(0, columns) as c:
                value = parts.load(code, b, i * step + c * n)
                parts.store(code, value, x, i * stride + c)
        _forward(parts, code, x, stride, rows, vectors, lambda i: code.i64(0), factor, finish)
        with code.either(left) as (straight, turned):
            with straight:
                _move(parts, code, (x, stride), (out, step), n, columns)
            with turned, code.range(0, n) as i, code.range(0, columns) as c:
                value = parts.load(code, x, i * stride + c)
                parts.store(code, value, out, i * step + c * n)
        code.call(parts.give, factors)

    parts.entry(name, SOLVE, one)


def _places(call: Record, step: Int) -> tuple[Int, Int]:
    """Where row 0 lies, and how far it is to the next, of rows that are `step` apart and come last
    to first where the triangle is an upper one."""
    back = call["backwards"].ne(0)
    return back.select((call["n"] - 1) * step, 0), back.select(0 - step, step)


def _copy_triangle(
    parts: Matrices, code: Code, call: Record, item: Int, to: ir.Value, rows: Int
) -> None:
    """Write the triangle as a lower one, of so many rows: those that it hasn't are the unit
    matrix's. What is above isn't written."""
    n, turned, unit = call["n"], call["turned"].ne(0), call["unit"].ne(0)
    a = parts.at(code, call.pointer_at("a"), item * n * n + _places(call, n + 1)[0])
    row, column = (_places(call, turned.select(x, y))[1] for x, y in ((1, n), (n, 1)))
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    with code.range(0, n) as i:
        with code.range(0, i) as j:
            value = parts.load(code, a, i * row + j * column)
            parts.store(code, value, to, i * rows + j)
        diagonal = unit.pick(one, parts.load(code, a, i * (row + column)))
        parts.store(code, diagonal, to, i * (rows + 1))
    with code.range(n, rows) as i:
        with code.range(0, i) as j:
            parts.store(code, zero, to, i * rows + j)
        parts.store(code, one, to, i * (rows + 1))
