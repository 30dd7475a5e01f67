"""The LU decomposition of large matrices with partial pivoting, as generated code.

Columns are halved down to panels; the left half, when done, is taken off the right one by a solve
and a product. Multipliers are kept negated, so that the product adds. A row of a panel is a vector.
"""

from __future__ import annotations

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I32, I64, PTR, Code, Int
from funcgrad.backends.llvm.gemm_job import Record
from funcgrad.backends.llvm.matrix_parts import Matrices

LU = ("batch", "m", "n", "a", "factors", "pivots", "order")
PANEL = 16


def emit_lu(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `LU`: factors, row that each row was swapped with, and
    the order of rows that this leads to."""
    factor, swap, solve = _factor(parts), _swap(parts), parts.solve()

    def one(code: Code, call: Record, item: Int) -> None:
        m, n = call["m"], call["n"]
        k, b = m.min(n), code.b
        a, x = (parts.at(code, call.pointer_at(f), item * m * n) for f in ("a", "factors"))
        pivots = code.at(call.pointer_at("pivots"), item * k, I32)
        order = code.at(call.pointer_at("order"), item * m, I32)
        with code.range(0, m * n) as i:
            parts.store(code, parts.load(code, a, i), x, i)
        code.call(factor, x, n, m, k, pivots)
        with code.when(n > k):
            right = parts.at(code, x, k)
            code.call(swap, right, n, n - k, pivots, k)
            code.call(solve, x, n, 1, right, n, k, n - k, 1)
        with code.range(0, m) as i, code.range(0, i.min(k)) as j:
            parts.store(code, b.fneg(parts.load(code, x, i * n + j)), x, i * n + j)
        with code.range(0, m) as i:
            code.store(b.trunc(i.value, I32), code.at(order, i, I32))
        with code.range(0, k) as j:
            here = code.at(order, j, I32)
            there = code.at(order, Int(code, b.sext(code.load(code.at(pivots, j, I32), I32), I64)),
                            I32)  # fmt: skip
            held = code.load(here, I32)
            code.store(code.load(there, I32), here)
            code.store(held, there)

    parts.entry(name, LU, one)


def _factor(parts: Matrices) -> ir.Function:
    """void factor(a, stride, m, n, pivots): with m ≥ n; pivots count rows of a."""
    panel, swap, solve = _any_panel(parts), _swap(parts), parts.solve()
    code = Code(parts.module, "factor", [PTR, I64, I64, I64, PTR])
    a, stride, m, n, pivots = code.args
    with code.when(n <= PANEL):
        code.call(panel, *code.args)
        code.ret()
    h = (n // 2).round_up(PANEL)
    right, below = parts.at(code, a, h), parts.at(code, a, h * stride)
    corner, later = parts.at(code, below, h), code.at(pivots, h, I32)
    code.call(code.function, a, stride, m, h, pivots)
    code.call(swap, right, stride, n - h, pivots, h)
    code.call(solve, a, stride, 1, right, stride, h, n - h, 1)
    parts.add_product(
        code, (m - h, n - h, h), (below, stride, 1), (right, stride, 1), (corner, stride, 1)
    )
    code.call(code.function, corner, stride, m - h, n - h, later)
    code.call(swap, below, stride, h, later, n - h)
    with code.range(0, n - h) as j:
        at = code.at(later, j, I32)
        code.store(code.b.add(code.load(at, I32), code.b.trunc(h.value, I32)), at)
    code.ret()
    return code.function


def _swap(parts: Matrices) -> ir.Function:
    """void swap(a, stride, columns, pivots, count): row j with row pivots[j], one after another."""
    found = parts.module.globals.get("swap")
    if found is not None:
        return found
    code = Code(parts.module, "swap", [PTR, I64, I64, PTR, I64])
    a, stride, columns, pivots, count = code.args
    with code.range(0, count) as j:
        p = Int(code, code.b.sext(code.load(code.at(pivots, j, I32), I32), I64))
        with code.when(p.ne(j)):
            here, there = parts.at(code, a, j * stride), parts.at(code, a, p * stride)
            begin = code.i64(0)
            # All that is read comes before what is written, which might have been the same.
            for vectors, lanes in ((4, parts.lanes), (1, parts.lanes), (1, 0)):
                step = vectors * max(lanes, 1)
                stop = columns // step * step
                with code.range(begin, stop, step) as c:
                    places = [c + v * lanes for v in range(vectors)]
                    x, y = (
                        [parts.load(code, row, at, lanes) for at in places] for row in (here, there)
                    )
                    for at, old, new in zip(places, x, y, strict=True):
                        parts.store(code, new, here, at)
                        parts.store(code, old, there, at)
                begin = stop
    code.ret()
    return code.function


def _any_panel(parts: Matrices) -> ir.Function:
    """A panel in memory of its own, filled up with zeros where it is narrower: each of its columns
    is a pass over all rows, which lie in the same few lines of a cache where a matrix has many."""
    panel = _panel(parts)
    code = Code(parts.module, "any_panel", [PTR, I64, I64, I64, PTR])
    a, stride, m, n, pivots = code.args
    with code.when(n.eq(PANEL) & stride.eq(PANEL)):
        code.call(panel, *code.args)
        code.ret()
    room = code.call(parts.take, m * PANEL * parts.bytes)

    def copy(source: ir.Value, source_rs: Int, to: ir.Value, to_rs: Int) -> None:
        with code.either(n.eq(PANEL)) as (whole, narrow):
            with whole, code.range(0, m) as i:
                row = parts.load(code, source, i * source_rs, PANEL)
                parts.store(code, row, to, i * to_rs)
            with narrow, code.range(0, m) as i, code.range(0, n) as j:
                parts.store(code, parts.load(code, source, i * source_rs + j), to, i * to_rs + j)

    copy(a, stride, room, code.i64(PANEL))
    with code.when(n < PANEL), code.range(0, m) as i, code.range(n, PANEL) as j:
        parts.store(code, ir.Constant(parts.type, 0.0), room, i * PANEL + j)
    code.call(panel, room, code.i64(PANEL), m, n, pivots)
    copy(room, code.i64(PANEL), a, stride)
    code.call(parts.give, room)
    code.ret()
    return code.function


def _panel(parts: Matrices) -> ir.Function:
    code = Code(parts.module, "panel", [PTR, I64, I64, I64, PTR])
    a, stride, m, n, pivots = code.args
    b, zero, one = code.b, ir.Constant(parts.type, 0.0), ir.Constant(parts.type, 1.0)
    most, best = code.variable(parts.bits), code.variable(I64)

    def consider(i: Int, value: ir.Value) -> None:
        bits = parts.magnitude(code, value)
        greater = b.icmp_unsigned(">", bits, most.get())
        most.set(b.select(greater, bits, most.get()))
        best.set(b.select(greater, i.value, best.get()))

    def begin(i: Int | int, value: ir.Value) -> None:
        most.set(parts.magnitude(code, value))
        best.set(code.i64(i))

    begin(0, parts.load(code, a, 0))
    with code.range(1, m) as i:
        consider(i, parts.load(code, a, i * stride))
    for j in range(PANEL):
        with code.when(n > j):
            pivot_row = Int(code, best.get())
            code.store(b.trunc(pivot_row.value, I32), code.at(pivots, j, I32))
            row = parts.load(code, a, pivot_row * stride, PANEL)
            parts.store(code, parts.load(code, a, stride * j, PANEL), a, pivot_row * stride)
            parts.store(code, row, a, stride * j)
            pivot = b.extract_element(row, I32(j))
            divisor = b.fneg(b.select(b.fcmp_ordered("==", pivot, zero), one, pivot))
            behind = ir.Constant(ir.VectorType(ir.IntType(1), PANEL),
                                 [c > j for c in range(PANEL)])  # fmt: skip
            known = b.select(behind, row, ir.Constant(row.type, None))
            here = ir.Constant(behind.type, [c == j for c in range(PANEL)])
            begin(j + 1, zero)
            with code.range(j + 1, m) as i:
                # Numbers are read apart from their row: what takes elements out of vectors and puts
                # them in keeps busy what multiplies.
                factor = b.fdiv(parts.load(code, a, i * stride + j), divisor)
                if j + 1 < PANEL:
                    x = parts.load(code, a, i * stride + (j + 1))
                    top = b.extract_element(row, I32(j + 1))
                    consider(i, code.intrinsic("fmuladd", factor, top, x))
                there = parts.load(code, a, i * stride, PANEL)
                spread = code.splat(factor, PANEL)
                there = code.intrinsic("fmuladd", spread, known, there)
                parts.store(code, b.select(here, spread, there), a, i * stride)
    code.ret()
    return code.function
