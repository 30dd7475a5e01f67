"""The LU decomposition of complex matrices with partial pivoting, as generated code.

Real and imaginary parts are matrices of their own. A panel of columns is eliminated row by row, the
rows beside it are solved for in registers, and the rest is rid of it by four real products.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from funcgrad.backends.llvm.matrix.lu import write_order
from funcgrad.backends.llvm.matrix.parts import Matrices, Piece
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, Record

LU_PARTS = ("batch", "m", "n", "re", "im", "factors_re", "factors_im", "pivots", "order")
PANEL = 32


class _Complex(NamedTuple):
    """A complex number or vector, or the matrices of both parts."""

    re: ir.Value
    im: ir.Value


def emit_lu_parts(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `LU_PARTS`: factors, row that each row was swapped
    with, and the order of rows that this leads to."""
    eliminate, beside, subtract = _eliminate(parts), _beside(parts), _subtract(parts)

    def one(code: Code, call: Record, item: Int) -> None:
        m, n = call["m"], call["n"]
        k, size = m.min(n), item * m * n
        matrices = []
        for part in ("re", "im"):
            source, to = (call.pointer_at(f) for f in (part, f"factors_{part}"))
            source, to = (parts.at(code, p, size) for p in (source, to))
            code.call(parts.copy, source, n, to, n, m, n)
            matrices.append(to)
        pivots = code.at(call.pointer_at("pivots"), item * k, I32)
        with code.range(0, k, PANEL) as first:
            end = k.min(first + PANEL)
            code.call(eliminate, *matrices, m, n, first, end, pivots)
            with code.when(end < n):
                code.call(beside, *matrices, n, first, end)
                with code.when(end < m):
                    code.call(subtract, *matrices, m, n, first, end)
        write_order(code, code.at(call.pointer_at("order"), item * m, I32), m, pivots, k)

    parts.entry(name, LU_PARTS, one)


class _Elements:
    """Elements of complex matrices of n columns, and their arithmetic."""

    def __init__(self, parts: Matrices, code: Code, re: ir.Value, im: ir.Value, n: Int):
        self.parts, self.code, self.pointers, self.n = parts, code, (re, im), n

    def load(self, i: Int, j: Int, lanes: int = 0, mask: ir.Value | None = None) -> _Complex:
        at = i * self.n + j
        return _Complex(*(self.parts.load(self.code, p, at, lanes, mask) for p in self.pointers))

    def store(self, value: _Complex, i: Int, j: Int, mask: ir.Value | None = None) -> None:
        for part, pointer in zip(value, self.pointers, strict=True):
            self.parts.store(self.code, part, pointer, i * self.n + j, mask)

    def spread(self, x: _Complex, lanes: int) -> _Complex:
        return _Complex(*(self.code.splat(v, lanes) for v in x))

    def less(self, sum_: _Complex, x: _Complex, y: _Complex) -> _Complex:
        """sum - x y."""
        code, minus = self.code, self.code.b.fneg(x.re)
        re = code.intrinsic("fmuladd", minus, y.re, sum_.re)
        im = code.intrinsic("fmuladd", minus, y.im, sum_.im)
        re = code.intrinsic("fmuladd", x.im, y.im, re)
        return _Complex(re, code.intrinsic("fmuladd", code.b.fneg(x.im), y.re, im))

    def size(self, x: _Complex) -> ir.Value:
        return self.code.b.fadd(*(self.code.intrinsic("fabs", v) for v in x))


class _Divisor:
    """Quotients by one number, by its larger part, as `complex_math` has them; by 1 if it is 0.

    A power of 2 brings it near 1, where the reciprocal has all digits.
    """

    def __init__(self, parts: Matrices, code: Code, y: _Complex):
        b, number = code.b, partial(ir.Constant, parts.type)
        self.b, far = b, 2.0 ** (int(np.finfo(parts.dtype).maxexp) // 2)
        nothing = b.and_(*(b.fcmp_ordered("==", v, number(0.0)) for v in y))
        y = _Complex(b.select(nothing, number(1.0), y.re), y.im)
        sizes = [code.intrinsic("fabs", v) for v in y]
        self.turned = Bool(code, b.fcmp_ordered("<", *sizes))
        size = self.turned.pick(*reversed(sizes))
        less = b.select(b.fcmp_ordered(">", size, number(far)), number(1 / far), number(1.0))
        self.near = b.select(b.fcmp_ordered("<", size, number(1 / far)), number(far), less)
        y = _Complex(*(b.fmul(v, self.near) for v in y))
        large, small = self.turned.pick(y.im, y.re), self.turned.pick(y.re, y.im)
        self.ratio = b.fdiv(small, large)
        self.scale = b.fdiv(number(1.0), b.fadd(large, b.fmul(small, self.ratio)))

    def divide(self, x: _Complex) -> _Complex:
        b, pick = self.b, self.turned.pick
        x = _Complex(*(b.fmul(v, self.near) for v in x))
        first, second = pick(x.im, x.re), pick(x.re, x.im)
        re = b.fadd(first, b.fmul(second, self.ratio))
        part = b.fmul(first, self.ratio)
        im = pick(b.fsub(part, second), b.fsub(second, part))
        return _Complex(b.fmul(re, self.scale), b.fmul(im, self.scale))


def _eliminate(parts: Matrices) -> ir.Function:
    """void eliminate(re, im, m, n, first, end, pivots): columns [first, end) from row `first` on;
    rows are swapped in all columns."""
    words = [PTR, PTR, I64, I64, I64, I64, PTR]
    code = Code(parts.module, "eliminate", words)
    re, im, m, n, first, end, pivots = code.args
    of, best = _Elements(parts, code, re, im, n), code.variable(I64)
    most = code.variable(parts.type)
    with code.range(first, end) as j:
        best.set(j)
        most.set(of.size(of.load(j, j)))
        with code.range(j + 1, m) as i:
            size, so_far = of.size(of.load(i, j)), most.get()
            # NaN is greater than numbers, as in NumPy's argmax.
            better = code.b.and_(
                code.b.fcmp_unordered(">", size, so_far), code.b.fcmp_ordered("ord", so_far, so_far)
            )
            most.set(code.b.select(better, size, so_far))
            best.set(Bool(code, better).select(i, Int(code, best.get())))
        pivot = Int(code, best.get())
        code.store(code.b.trunc(pivot.value, I32), code.at(pivots, j, I32))
        with code.when(pivot.ne(j)):
            _swap_rows(parts, code, of, j, pivot)
        divisor = _Divisor(parts, code, of.load(j, j))
        with code.range(j + 1, m) as i:
            factor = divisor.divide(of.load(i, j))
            of.store(factor, i, j)

            def columns(piece: Piece, i: Int = i, j: Int = j, factor: _Complex = factor) -> None:
                places, lanes, mask = piece
                for at in places:
                    known, old = of.load(j, at, lanes, mask), of.load(i, at, lanes, mask)
                    rest = of.less(old, of.spread(factor, lanes), known)
                    of.store(rest, i, at, mask)

            parts.along(code, j + 1, end, columns)
    code.ret()
    return code.function


def _swap_rows(parts: Matrices, code: Code, of: _Elements, i: Int, j: Int) -> None:
    def exchange(piece: Piece) -> None:
        places, lanes, mask = piece
        for at in places:
            x, y = of.load(i, at, lanes, mask), of.load(j, at, lanes, mask)
            of.store(y, i, at, mask)
            of.store(x, j, at, mask)

    parts.along(code, code.i64(0), of.n, exchange)


def _beside(parts: Matrices) -> ir.Function:
    """void beside(re, im, n, first, end): solve for rows [first, end) behind column `end`."""
    code = Code(parts.module, "beside", [PTR, PTR, I64, I64, I64])
    re, im, n, first, end = code.args
    of = _Elements(parts, code, re, im, n)

    def columns(piece: Piece) -> None:
        places, lanes, mask = piece
        kind = ir.VectorType(parts.type, lanes)
        sums = [[code.variable(kind) for _ in range(2)] for _ in places]
        with code.range(first + 1, end) as i:
            for total, at in zip(sums, places, strict=True):
                for slot, value in zip(total, of.load(i, at, lanes, mask), strict=True):
                    slot.set(value)
            with code.range(first, i) as j:
                factor = of.spread(of.load(i, j), lanes)
                for total, at in zip(sums, places, strict=True):
                    so_far = _Complex(*(slot.get() for slot in total))
                    rest = of.less(so_far, factor, of.load(j, at, lanes, mask))
                    for slot, value in zip(total, rest, strict=True):
                        slot.set(value)
            for total, at in zip(sums, places, strict=True):
                of.store(_Complex(*(slot.get() for slot in total)), i, at, mask)

    parts.along(code, end, n, columns)
    code.ret()
    return code.function


def _subtract(parts: Matrices) -> ir.Function:
    """void subtract(re, im, m, n, first, end): from what lies behind row and column `end`, the
    product of the columns and the rows [first, end)."""
    code = Code(parts.module, "subtract", [PTR, PTR, I64, I64, I64, I64])
    re, im, m, n, first, end = code.args
    k, columns = end - first, n - end
    left, right, rest = (
        [parts.at(code, p, at) for p in (re, im)]
        for at in (end * n + first, first * n + end, end * n + end)
    )
    room = code.call(parts.take, k * columns * (2 * parts.bytes))
    minus = [room, parts.at(code, room, k * columns)]
    for x, y in zip(right, minus, strict=True):
        code.call(parts.negate, x, n, y, columns, k, columns)
    for part, pairs in enumerate((
        ((left[0], minus[0], columns), (left[1], right[1], n)),
        ((left[0], minus[1], columns), (left[1], minus[0], columns)),
    )):  # fmt: skip
        for x, y, stride in pairs:
            sizes = m - end, columns, k
            parts.add_product(code, sizes, (x, n, 1), (y, stride, 1), (rest[part], n, 1))
    code.call(parts.give, room)
    code.ret()
    return code.function
