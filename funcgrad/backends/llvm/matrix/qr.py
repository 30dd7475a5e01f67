"""The QR decomposition of small matrices by Householder's reflections, as generated code.

Reflection j is 1 - τ v vᵀ, with v of zeros before row j, where it is 1; it turns column j into a
multiple of that unit vector, of the opposite sign. Rows are padded to whole vectors of zeros.
"""

from __future__ import annotations

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

# columns: of q
QR = ("batch", "m", "n", "columns", "a", "q", "r")
_VECTORS = 2


def emit_qr(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `QR`."""
    reflect, reflection = _reflect(parts), _reflection(parts)
    zero, one = (ir.Constant(parts.type, x) for x in (0.0, 1.0))
    width = _VECTORS * parts.lanes

    def decompose(code: Code, call: Record, item: Int) -> None:
        m, n, columns = call["m"], call["n"], call["columns"]
        k, wide, q_wide = m.min(n), n.round_up(width), columns.round_up(width)
        a = parts.at(code, call.pointer_at("a"), item * m * n)
        q = parts.at(code, call.pointer_at("q"), item * m * columns)
        r = parts.at(code, call.pointer_at("r"), item * columns * n)
        words = m * wide + m * q_wide + k * m + k
        room = code.call(parts.take, words * parts.bytes)
        x, y = room, parts.at(code, room, m * wide)
        v, taus = parts.at(code, y, m * q_wide), parts.at(code, y, m * q_wide + k * m)
        beta = code.variable(parts.type).slot
        _copy(parts, code, (a, n), (x, wide), m, n)
        with code.range(0, k) as j:
            mine = parts.at(code, v, j * m)
            tau = code.call(reflection, x, wide, j, m, mine, beta)
            parts.store(code, tau, taus, j)
            code.call(reflect, x, wide, (j + 1) // width * width, wide, mine, tau, j, m)
            parts.store(code, parts.load(code, beta, 0), x, j * wide + j)
        with code.range(0, columns) as i, code.range(0, n) as j:
            value = code.b.select((j < i).value, zero, parts.load(code, x, i * wide + j))
            parts.store(code, value, r, i * n + j)
        with code.range(0, m) as i, code.range(0, q_wide) as j:
            parts.store(code, code.b.select(i.eq(j).value, one, zero), y, i * q_wide + j)
        with code.range(0, k) as back:
            # Columns before the reflection's are still those of the unit matrix.
            j = k - 1 - back
            tau = parts.load(code, taus, j)
            mine = parts.at(code, v, j * m)
            code.call(reflect, y, q_wide, j // width * width, q_wide, mine, tau, j, m)
        with code.range(0, m) as i, code.range(0, columns) as j:
            parts.store(code, parts.load(code, y, i * q_wide + j), q, i * columns + j)
        code.call(parts.give, room)

    parts.entry(name, QR, decompose)


def _copy(parts: Matrices, code: Code, source: tuple, to: tuple, m: Int, n: Int) -> None:
    """Rows with their padding."""
    (x, stride), (y, wide) = source, to
    with code.range(0, m) as i:
        with code.range(0, n) as j:
            parts.store(code, parts.load(code, x, i * stride + j), y, i * wide + j)
        with code.range(n, wide) as j:
            parts.store(code, ir.Constant(parts.type, 0.0), y, i * wide + j)


def _reflection(parts: Matrices) -> ir.Function:
    """tau reflection(x, stride, j, m, v, beta): writes v, what column j of x becomes in row j, and
    zeros into that column."""
    code = Code(parts.module, "reflection", [PTR, I64, I64, I64, PTR, PTR], result=parts.type)
    b, (x, stride, j, m, v, to) = code.b, code.args
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    most, total = code.variable(parts.type, zero), code.variable(parts.type, zero)
    alpha = parts.load(code, x, j * stride + j)
    parts.store(code, one, v, j)
    parts.store(code, alpha, to, 0)
    parts.store(code, zero, x, j * stride + j)
    with code.range(j + 1, m) as i:
        value = parts.load(code, x, i * stride + j)
        parts.store(code, value, v, i)
        most.set(code.intrinsic("maximum", most.get(), code.intrinsic("fabs", value)))
    with b.if_then(b.fcmp_ordered("==", most.get(), zero)):
        code.ret(zero)
    # Squares of numbers up to 1 neither overflow nor vanish.
    scale = code.intrinsic("maximum", most.get(), code.intrinsic("fabs", alpha))
    first = b.fdiv(alpha, scale)
    total.set(b.fmul(first, first))
    with code.range(j + 1, m) as i:
        value = b.fdiv(parts.load(code, v, i), scale)
        total.set(code.intrinsic("fmuladd", value, value, total.get()))
    norm = b.fmul(code.intrinsic("sqrt", total.get()), scale)
    beta = b.fneg(code.intrinsic("copysign", norm, alpha))
    divisor = b.fsub(alpha, beta)
    with code.range(j + 1, m) as i:
        parts.store(code, b.fdiv(parts.load(code, v, i), divisor), v, i)
        parts.store(code, zero, x, i * stride + j)
    parts.store(code, beta, to, 0)
    code.ret(b.fdiv(b.fsub(beta, alpha), beta))
    return code.function


def _reflect(parts: Matrices) -> ir.Function:
    """void reflect(x, stride, begin, end, v, tau, j, m): columns [begin, end) of x, from row j on;
    of a column that is done already the rows below are zeros, which stay."""
    kinds = [PTR, I64, I64, I64, PTR, parts.type, I64, I64]
    code = Code(parts.module, "reflect", kinds)
    b, (x, stride, begin, end, v, tau, j, m) = code.b, code.args
    lanes = parts.lanes
    spread = code.splat(tau, lanes)
    with code.range(begin, end, _VECTORS * lanes) as c:
        offsets = [c + i * lanes for i in range(_VECTORS)]
        vector = ir.VectorType(parts.type, lanes)
        sums = [code.variable(vector, ir.Constant(vector, None)) for _ in offsets]
        with code.range(j, m) as i:
            factor = code.splat(parts.load(code, v, i), lanes)
            for total, at in zip(sums, offsets, strict=True):
                row = parts.load(code, x, i * stride + at, lanes)
                total.set(code.intrinsic("fmuladd", factor, row, total.get()))
        for total in sums:
            total.set(b.fneg(b.fmul(total.get(), spread)))
        with code.range(j, m) as i:
            factor = code.splat(parts.load(code, v, i), lanes)
            for total, at in zip(sums, offsets, strict=True):
                row = parts.load(code, x, i * stride + at, lanes)
                row = code.intrinsic("fmuladd", factor, total.get(), row)
                parts.store(code, row, x, i * stride + at)
    code.ret()
    return code.function
