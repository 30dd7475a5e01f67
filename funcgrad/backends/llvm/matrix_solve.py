"""Solving with large triangular matrices, and their Cholesky decomposition, as generated code."""

from __future__ import annotations

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I64, PTR, Code, Int
from funcgrad.backends.llvm.gemm_job import Record
from funcgrad.backends.llvm.matrix_parts import BLOCK, Matrices

SOLVE = ("batch", "n", "columns", "left", "backwards", "turned", "unit", "a", "b", "out")
CHOLESKY = ("batch", "n", "a", "out")
I1 = ir.IntType(1)


def emit_solve(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `SOLVE`: op(a) out = b, or for left = 0 the same of
    transposes, outᵀ and bᵀ with `columns` columns.

    turned: op transposes; backwards: op(a) is upper triangular; unit: its diagonal is of ones
    """
    solve, transpose = parts.solve(), parts.transpose()

    def one(code: Code, call: Record, item: Int) -> None:
        n, columns, unit = call["n"], call["columns"], call["unit"]
        a, b, out = (
            parts.at(code, call.pointer_at(x), item * n * size)
            for x, size in (("a", n), ("b", columns), ("out", columns))
        )
        # Without a product that subtracts: the negative of a, from its end if it is upper.
        minus = code.call(parts.take, n * n * parts.bytes)
        turned, back = call["turned"].ne(0), call["backwards"].ne(0)
        lower = call["turned"].eq(call["backwards"])
        with code.either(back) as branches:
            for branch, ahead in zip(branches, (False, True), strict=True):
                with (
                    branch,
                    code.range(0, n) as i,
                    code.range(lower.select(0, i), lower.select(i + 1, n)) as j,
                ):
                    at = i * n + j
                    to = at if ahead else n * n - 1 - at
                    parts.store(code, code.b.fneg(parts.load(code, a, at)), minus, to)
        rows, steps = turned.select(1, n), turned.select(n, 1)

        def solve_rows(x: ir.Value) -> None:
            start = parts.at(code, x, back.select((n - 1) * columns, 0))
            x_rs = back.select(code.i64(0) - columns, columns)
            code.call(solve, minus, rows, steps, start, x_rs, n, columns, unit)

        with code.either(call["left"].ne(0)) as (left, right):
            with left:
                with code.range(0, n * columns) as i:
                    parts.store(code, parts.load(code, b, i), out, i)
                solve_rows(out)
            with right:
                x = code.call(parts.take, n * columns * parts.bytes)
                code.call(transpose, b, n, x, columns, columns, n)
                solve_rows(x)
                code.call(transpose, x, columns, out, n, n, columns)
                code.call(parts.give, x)
        code.call(parts.give, minus)

    parts.entry(name, SOLVE, one)


def emit_cholesky(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `CHOLESKY`: the lower triangular factor of matrices of
    which the lower triangle is read; of NaN for one that isn't positive definite."""
    factor, transpose = _factor(parts), parts.transpose()

    def one(code: Code, call: Record, item: Int) -> None:
        n = call["n"]
        a, out = (parts.at(code, call.pointer_at(x), item * n * n) for x in ("a", "out"))
        # U with UᵀU = a, whose rows are columns of the lower triangle; and its negative.
        up, minus = (code.call(parts.take, n * n * parts.bytes) for _ in range(2))
        code.call(transpose, a, n, up, n, n, n)
        good = code.call(factor, up, minus, n, n)
        code.call(transpose, up, n, out, n, n, n)
        zero, nan = ir.Constant(parts.type, 0.0), ir.Constant(parts.type, float("nan"))
        with code.range(0, n) as i:
            with code.b.if_then(code.b.not_(good)), code.range(0, i + 1) as j:
                parts.store(code, nan, out, i * n + j)
            with code.range(i + 1, n) as j:
                parts.store(code, zero, out, i * n + j)
        code.call(parts.give, up)
        code.call(parts.give, minus)

    parts.entry(name, CHOLESKY, one)


def _factor(parts: Matrices) -> ir.Function:
    """i1 factor(a, minus, stride, n): the upper triangle of a becomes U with UᵀU = a, that of minus
    its negative; whether a is positive definite. Blocks below the diagonal hold anything."""
    solve, block = parts.solve(), _factor_block(parts)
    code = Code(parts.module, "factor", [PTR, PTR, I64, I64], result=I1)
    a, minus, stride, n = code.args
    with code.when(n <= BLOCK):
        code.ret(code.call(block, a, minus, stride, n))
    h = (n // 2).round_up(BLOCK)
    rest = n - h
    right, minus_right = (parts.at(code, p, h) for p in (a, minus))
    corner, minus_corner = (parts.at(code, p, h * stride + h) for p in (a, minus))
    first = code.call(code.function, a, minus, stride, h)
    with code.b.if_then(code.b.not_(first)):
        code.ret(first)
    code.call(solve, minus, 1, stride, right, stride, h, rest, 0)
    with code.range(0, h) as i, code.range(0, rest) as j:
        value = parts.load(code, right, i * stride + j)
        parts.store(code, code.b.fneg(value), minus_right, i * stride + j)
    # Nobody reads the quarter of the product that lies below the diagonal's blocks.
    half = (rest > 4 * BLOCK).select((rest // 2).round_up(BLOCK), rest)
    for begin, size, columns in ((code.i64(0), half, rest), (half, rest - half, rest - half)):
        with code.when(size > 0):
            to = parts.at(code, corner, begin * stride + begin)
            left, top = (parts.at(code, p, begin) for p in (minus_right, right))
            sizes = size, columns, h
            parts.add_product(code, sizes, (left, 1, stride), (top, stride, 1), (to, stride, 1))
    code.ret(code.call(code.function, corner, minus_corner, stride, rest))
    return code.function


def _factor_block(parts: Matrices) -> ir.Function:
    code = Code(parts.module, "factor_block", [PTR, PTR, I64, I64], result=I1)
    a, minus, stride, n = code.args
    b = code.b
    square = code.variable(parts.type, count=BLOCK * BLOCK).slot
    good = code.variable(I1, I1(1))
    zero = ir.Constant(parts.type, 0.0)
    with code.range(0, BLOCK * BLOCK) as i:
        parts.store(code, zero, square, i)
    with code.range(0, n) as i, code.range(i, n) as j:
        parts.store(code, parts.load(code, a, i * stride + j), square, i * BLOCK + j)
    lanes = parts.lanes
    with code.range(0, n) as j:
        pivot = parts.load(code, square, j * (BLOCK + 1))
        good.set(b.and_(good.get(), b.fcmp_ordered(">", pivot, zero)))
        root = code.splat(code.intrinsic("sqrt", pivot), lanes)
        for c in range(0, BLOCK, lanes):
            row = parts.load(code, square, j * BLOCK + c, lanes)
            parts.store(code, b.fdiv(row, root), square, j * BLOCK + c)
        with code.range(j + 1, n) as i:
            factor = code.splat(b.fneg(parts.load(code, square, j * BLOCK + i)), lanes)
            for c in range(0, BLOCK, lanes):
                known = parts.load(code, square, j * BLOCK + c, lanes)
                row = parts.load(code, square, i * BLOCK + c, lanes)
                row = code.intrinsic("fmuladd", factor, known, row)
                parts.store(code, row, square, i * BLOCK + c)
    with code.range(0, n) as i, code.range(i, n) as j:
        value = parts.load(code, square, i * BLOCK + j)
        parts.store(code, value, a, i * stride + j)
        parts.store(code, b.fneg(value), minus, i * stride + j)
    code.ret(good.get())
    return code.function
