"""Eigenvalues and eigenvectors of symmetric matrices, as generated code.

Reflections make the matrix tridiagonal, `ql` finds the values of that, and turns the rows of
Qᵀ into eigenvectors. Matrices are scaled by a power of two to magnitudes around 1; the tridiagonal
one is held in float64. What isn't finite, or does not converge, has results of NaN.
"""

from __future__ import annotations

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.matrix.ql import (
    DOUBLE,
    GROUP,
    JOB,
    ROWS,
    SLOTS,
    emit_ql,
    row_of,
    run,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

EIGH = ("batch", "n", "lower", "a", "vectors", "values")
EIGVALSH = ("batch", "n", "lower", "a", "values")
# Rows of a task, and elements from which on tasks are shared, in walks through the matrix.
_BLOCK, _LARGE = 64, 1 << 17
# A column whose greatest element is less than this (times the matrix) is taken for zeros.
_NOTHING = {"float32": 2.0**-120, "float64": 2.0**-1000}
_EXPONENT = {"float32": (23, 0xFF), "float64": (52, 0x7FF)}


def emit_eigh(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `EIGH`."""
    _emit(parts, name, EIGH)


def emit_eigvalsh(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `EIGVALSH`."""
    _emit(parts, name, EIGVALSH)


def _emit(parts: Matrices, name: str, fields: tuple[str, ...]) -> None:
    vectors = "vectors" in fields
    load, reduce, sort = _load(parts), _reduce(parts), _sort(parts)
    back, write = (_back(parts), _write(parts)) if vectors else (None, None)
    ql = emit_ql(parts, back)
    nan = ir.Constant(parts.type, float("nan"))

    def one(code: Code, call: Record, item: Int) -> None:
        n = call["n"]
        values = parts.at(code, call.pointer_at("values"), item * n)
        job = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
        room = _lay_out(parts, code, job, n, vectors)
        a = parts.at(code, call.pointer_at("a"), item * n * n)
        if vectors:
            job["out"] = parts.at(code, call.pointer_at("vectors"), item * n * n)
        good = code.variable(I64, code.call(load, job.pointer, a, call["lower"]))
        inverse = code.load(job.pointer_at("factor"), DOUBLE)
        with code.when(Int(code, good.get()).ne(0)):
            code.call(reduce, job.pointer)
            good.set(code.call(ql, job.pointer))
        with code.either(Int(code, good.get()).ne(0)) as (yes, no):
            with yes:
                code.call(sort, job.pointer)
                with code.range(0, n) as i:
                    value = code.load(code.at(job.pointer_at("d"), i, DOUBLE), DOUBLE)
                    value = code.b.fmul(value, inverse)
                    if parts.type != DOUBLE:
                        value = code.b.fptrunc(value, parts.type)
                    parts.store(code, value, values, i)
                if write is not None:
                    run(parts, code, write, job, n.ceil_div(16))
            with no:
                with code.range(0, n) as i:
                    parts.store(code, nan, values, i)
                if vectors:
                    with code.range(0, n * n) as i:
                        parts.store(code, nan, job.pointer_at("out"), i)
        code.call(parts.give, room)

    parts.entry(name, fields, one)


def _lay_out(parts: Matrices, code: Code, job: Record, n: Int, vectors: bool) -> ir.Value:
    """Room for one matrix, to give back; the job's sizes and pointers into it."""
    wide = n.round_up(parts.lanes)
    # Rows an odd number of vectors apart don't compete for the same lines of a cache.
    odd = (wide // parts.lanes % 2).eq(1)
    stride = wide + odd.select(0, parts.lanes)
    turns = n + 2 * GROUP
    job["n"], job["wide"], job["stride"], job["turns"] = n, wide, stride, turns
    doubles = 8 // parts.bytes
    sizes = {
        "x": n * stride, "v": (n + 1) * stride, "taus": wide, "y": wide, "w": wide,
        "d": wide * doubles, "e": (wide + 8) * doubles, "factor": code.i64(16),
        "order": wide * doubles,
    }  # fmt: skip
    if vectors:
        sizes["z"] = (n.round_up(ROWS) + 2 * GROUP) * stride
        sizes |= dict.fromkeys(("c", "s", "used_c", "used_s"), turns * SLOTS)
        groups = code.i64(2 * SLOTS // GROUP * doubles)
        sizes |= {"ranges": groups, "used_ranges": groups}
    total = code.i64(0)
    for size in sizes.values():
        total = total + size.round_up(16)
    room = at = code.call(parts.take, total * parts.bytes)
    for name, size in sizes.items():
        job[name] = at
        at = parts.at(code, at, size.round_up(16))
    return room


# ---- the matrix


def _load(parts: Matrices) -> ir.Function:
    """i64 load(job, a, lower): whether a is finite; x becomes a, from one triangle, scaled; factor
    what undoes that."""
    code = Code(parts.module, "eigen_load", [PTR, PTR, I64], result=I64)
    job, a, lower = Record(code, JOB, code.args[0]), *code.args[1:]
    b, n, stride, x = code.b, job["n"], job["stride"], job.pointer_at("x")
    most, zero = code.variable(parts.bits, parts.bits(0)), ir.Constant(parts.type, 0.0)
    with code.range(0, n) as i:
        begin, end = lower.ne(0).select(0, i), lower.ne(0).select(i + 1, n)
        with code.range(begin, end) as j:
            bits = parts.magnitude(code, parts.load(code, a, i * n + j))
            most.set(b.select(b.icmp_unsigned(">", bits, most.get()), bits, most.get()))
    shift, top = _EXPONENT[parts.dtype]
    exponent = Int(code, b.lshr(most.get(), parts.bits(shift)))
    exponent = Int(code, b.zext(exponent.value, I64) if parts.bytes == 4 else exponent.value)
    with code.when(exponent.eq(top)):
        code.ret(code.i64(0))
    power = (code.i64(top - 1) - exponent).max(1).min(top - 2)

    def number(power: Int) -> ir.Value:
        bits = power.value if parts.bytes == 8 else b.trunc(power.value, parts.bits)
        return b.bitcast(b.shl(bits, parts.bits(shift)), parts.type)

    scale, inverse = number(power), number(code.i64(top - 1) - power)
    inverse = inverse if parts.bytes == 8 else b.fpext(inverse, DOUBLE)
    code.store(inverse, job.pointer_at("factor"))
    with code.range(0, n) as i:
        begin, end = lower.ne(0).select(0, i), lower.ne(0).select(i + 1, n)
        with code.range(begin, end) as j:
            value = b.fmul(parts.load(code, a, i * n + j), scale)
            parts.store(code, value, x, i * stride + j)
            parts.store(code, value, x, j * stride + i)
        with code.range(n, job["wide"]) as j:
            parts.store(code, zero, x, i * stride + j)
    code.ret(code.i64(1))
    return code.function


# ---- tridiagonal form


def _reduce(parts: Matrices) -> ir.Function:
    """void reduce(job): d and e of the tridiagonal matrix. Reflection k, 1 - τ v vᵀ, changes all
    after row k; v is row k + 1 of v. What it changes is written when the next one is known: one
    walk through the matrix changes its rows and multiplies them by the next v."""
    task, reflection, finish = _walk(parts), _reflection(parts), _finish(parts)
    code = Code(parts.module, "eigen_reduce", [PTR])
    job = Record(code, JOB, code.args[0])
    n, wide, stride, x = job["n"], job["wide"], job["stride"], job.pointer_at("x")
    zero = ir.Constant(parts.type, 0.0)
    for name in ("v", "y", "w"):
        with code.range(0, wide) as j:
            parts.store(code, zero, job.pointer_at(name), j)
    d, e = job.pointer_at("d"), job.pointer_at("e")
    with code.range(0, n - 1) as k:
        job["k"] = k
        _change(parts, code, job, k, 1, k // parts.lanes * parts.lanes, product=False)
        _store_double(code, parts, parts.load(code, x, k * stride + k), d, k)
        _store_double(code, parts, code.call(reflection, job.pointer), e, k)
        large = (n - k) * (n - k) > _LARGE
        run(parts, code, task, job, (n - k - 1).ceil_div(_BLOCK), large)
        code.call(finish, job.pointer)
    _store_double(code, parts, parts.load(code, x, (n - 1) * (stride + 1)), d, n - 1)
    code.store(ir.Constant(DOUBLE, 0.0), code.at(e, n - 1, DOUBLE))
    code.ret()
    return code.function


def _store_double(code: Code, parts: Matrices, value: ir.Value, to: ir.Value, i: Int) -> None:
    value = value if parts.type == DOUBLE else code.b.fpext(value, DOUBLE)
    code.store(value, code.at(to, i, DOUBLE))


def _walk(parts: Matrices) -> ir.Function:
    """void walk(job, begin, end): blocks of rows after row k."""
    code = Code(parts.module, "eigen_walk", [PTR, I64, I64])
    job = Record(code, JOB, code.args[0])
    k, n = job["k"], job["n"]
    first = (k + 1) // parts.lanes * parts.lanes
    begin, end = k + 1 + code.args[1] * _BLOCK, (k + 1 + code.args[2] * _BLOCK).min(n)
    whole = begin + (end - begin) // ROWS * ROWS
    for start, stop, rows in ((begin, whole, ROWS), (whole, end, 1)):
        with code.range(start, stop, rows) as i:
            _change(parts, code, job, i, rows, first, product=True)
    code.ret()
    return code.function


def _change(
    parts: Matrices, code: Code, job: Record, i: Int, rows: int, first: Int, product: bool
) -> None:
    """Take v wᵀ + w vᵀ of the last reflection off rows i…; y gets them times the next v."""
    b, lanes, k = code.b, parts.lanes, job["k"]
    stride, x, w, y = job["stride"], job.pointer_at("x"), job.pointer_at("w"), job.pointer_at("y")
    v = parts.at(code, job.pointer_at("v"), k * stride)
    following = parts.at(code, v, stride)
    factors = [
        [code.splat(b.fneg(parts.load(code, p, i + r)), lanes) for p in (v, w)] for r in range(rows)
    ]
    places = [parts.at(code, x, (i + r) * stride) for r in range(rows)]
    vector = ir.VectorType(parts.type, lanes)
    sums = [code.variable(vector, ir.Constant(vector, None)) for _ in range(rows)]
    with code.range(first, job["wide"], lanes) as c:
        pair = parts.load(code, w, c, lanes), parts.load(code, v, c, lanes)
        other = parts.load(code, following, c, lanes) if product else None
        for place, both, total in zip(places, factors, sums, strict=True):
            row = parts.load(code, place, c, lanes)
            for factor, column in zip(both, pair, strict=True):
                row = code.intrinsic("fmuladd", factor, column, row)
            parts.store(code, row, place, c)
            if other is not None:
                total.set(code.intrinsic("fmuladd", row, other, total.get()))
    if product:
        for r, total in enumerate(sums):
            parts.store(code, code.lane_sum(total.get()), y, i + r)


def _reflection(parts: Matrices) -> ir.Function:
    """beta reflection(job): v and τ of reflection k, from row k: its next element becomes beta."""
    code = Code(parts.module, "eigen_reflection", [PTR], result=parts.type)
    job, b, lanes = Record(code, JOB, code.args[0]), code.b, parts.lanes
    k, wide, stride = job["k"], job["wide"], job["stride"]
    x = parts.at(code, job.pointer_at("x"), k * stride)
    v = parts.at(code, job.pointer_at("v"), (k + 1) * stride)
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    vector = ir.VectorType(parts.type, lanes)
    alpha = parts.load(code, x, k + 1)
    first = (k + 1) // lanes * lanes
    with code.range(first, k + 2) as j:
        parts.store(code, zero, x, j)
    with code.range(0, first) as j:
        parts.store(code, zero, v, j)
    most = code.variable(vector, ir.Constant(vector, None))
    with code.range(first, wide, lanes) as c:
        size = code.intrinsic("fabs", parts.load(code, x, c, lanes))
        most.set(b.select(b.fcmp_ordered(">", size, most.get()), size, most.get()))
    greatest: ir.Value = zero
    for i in range(lanes):
        size = b.extract_element(most.get(), ir.Constant(I64, i))
        greatest = b.select(b.fcmp_ordered(">", size, greatest), size, greatest)
    nothing = ir.Constant(parts.type, _NOTHING[parts.dtype])
    with b.if_then(b.fcmp_ordered("<", greatest, nothing)):
        with code.range(first, wide) as j:
            parts.store(code, zero, v, j)
        parts.store(code, zero, job.pointer_at("taus"), k)
        code.ret(alpha)
    # Squares of numbers up to 1 neither overflow nor vanish.
    size = code.intrinsic("fabs", alpha)
    unit = b.fdiv(one, b.select(b.fcmp_ordered(">", size, greatest), size, greatest))
    spread, total = code.splat(unit, lanes), code.variable(vector, ir.Constant(vector, None))
    with code.range(first, wide, lanes) as c:
        value = b.fmul(parts.load(code, x, c, lanes), spread)
        total.set(code.intrinsic("fmuladd", value, value, total.get()))
    head = b.fmul(alpha, unit)
    square = code.intrinsic("fmuladd", head, head, code.lane_sum(total.get()))
    norm = code.intrinsic("copysign", code.intrinsic("sqrt", square), alpha)
    divisor = code.splat(b.fdiv(one, b.fadd(head, norm)), lanes)
    with code.range(first, wide, lanes) as c:
        value = b.fmul(b.fmul(parts.load(code, x, c, lanes), spread), divisor)
        parts.store(code, value, v, c)
    parts.store(code, one, v, k + 1)
    parts.store(code, b.fdiv(b.fadd(head, norm), norm), job.pointer_at("taus"), k)
    code.ret(b.fneg(b.fdiv(norm, unit)))
    return code.function


def _finish(parts: Matrices) -> ir.Function:
    """void finish(job): w = τ y - (τ²/2 yᵀv) v, which `_change` takes off."""
    code = Code(parts.module, "eigen_finish", [PTR])
    job, b, lanes = Record(code, JOB, code.args[0]), code.b, parts.lanes
    k, wide, y, w = job["k"], job["wide"], job.pointer_at("y"), job.pointer_at("w")
    v = parts.at(code, job.pointer_at("v"), (k + 1) * job["stride"])
    tau = parts.load(code, job.pointer_at("taus"), k)
    vector, first = ir.VectorType(parts.type, lanes), (k + 1) // lanes * lanes
    total = code.variable(vector, ir.Constant(vector, None))
    with code.range(first, wide, lanes) as c:
        pair = parts.load(code, y, c, lanes), parts.load(code, v, c, lanes)
        total.set(code.intrinsic("fmuladd", *pair, total.get()))
    half = b.fmul(b.fmul(tau, tau), ir.Constant(parts.type, -0.5))
    factor = code.splat(b.fmul(half, code.lane_sum(total.get())), lanes)
    spread = code.splat(tau, lanes)
    with code.range(first, wide, lanes) as c:
        value = b.fmul(parts.load(code, v, c, lanes), factor)
        value = code.intrinsic("fmuladd", parts.load(code, y, c, lanes), spread, value)
        parts.store(code, value, w, c)
    code.ret()
    return code.function


# ---- vectors


def _back(parts: Matrices) -> ir.Function:
    """void back(job, begin, end): groups of rows of z = Qᵀ, each a row of the unit matrix times the
    reflections, the last one first."""
    code = Code(parts.module, "eigen_back", [PTR, I64, I64])
    job, b, lanes = Record(code, JOB, code.args[0]), code.b, parts.lanes
    n, wide, stride = job["n"], job["wide"], job["stride"]
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    vector = ir.VectorType(parts.type, lanes)
    with code.range(code.args[1], code.args[2]) as group:
        i = group * ROWS
        rows = [row_of(parts, code, job, i + r) for r in range(ROWS)]
        for r, row in enumerate(rows):
            with code.range(0, wide, lanes) as c:
                parts.store(code, ir.Constant(vector, None), row, c)
            with code.when(i + r < n):
                parts.store(code, one, row, i + r)
        last = (i + ROWS - 1).min(n - 1)
        with code.range(0, last) as turn:
            k = last - 1 - turn
            v = parts.at(code, job.pointer_at("v"), (k + 1) * stride)
            first = (k + 1) // lanes * lanes
            sums = [code.variable(vector, ir.Constant(vector, None)) for _ in rows]
            with code.range(first, wide, lanes) as c:
                factor = parts.load(code, v, c, lanes)
                for row, total in zip(rows, sums, strict=True):
                    value = parts.load(code, row, c, lanes)
                    total.set(code.intrinsic("fmuladd", value, factor, total.get()))
            tau = b.fneg(parts.load(code, job.pointer_at("taus"), k))
            steps = [code.splat(b.fmul(code.lane_sum(t.get()), tau), lanes) for t in sums]
            with code.range(first, wide, lanes) as c:
                factor = parts.load(code, v, c, lanes)
                for row, step in zip(rows, steps, strict=True):
                    value = parts.load(code, row, c, lanes)
                    parts.store(code, code.intrinsic("fmuladd", step, factor, value), row, c)
    # Rows around, which turns that do nothing read and write.
    with code.when(code.args[1].eq(0)):
        below = n.round_up(ROWS)
        for r in range(GROUP):
            for around in (code.i64(-1 - r), below + r):
                place = row_of(parts, code, job, around)
                with code.range(0, wide) as j:
                    parts.store(code, zero, place, j)
    code.ret()
    return code.function


def _sort(parts: Matrices) -> ir.Function:
    """void sort(job): d ascending; order says where each came from."""
    code = Code(parts.module, "eigen_sort", [PTR])
    job, b = Record(code, JOB, code.args[0]), code.b
    d, order = job.pointer_at("d"), job.pointer_at("order")
    with code.range(0, job["n"]) as i:
        value, j = code.load(code.at(d, i, DOUBLE), DOUBLE), code.variable(I64, i)
        with code.loop() as (move, done):
            at = Int(code, j.get())
            here = code.b.append_basic_block("compare")
            b.cbranch((at > 0).value, here, done)
            b.position_at_end(here)
            before = code.load(code.at(d, at - 1, DOUBLE), DOUBLE)
            b.cbranch(b.fcmp_ordered(">", before, value), move, done)
            b.position_at_end(move)
            code.store(before, code.at(d, at, DOUBLE))
            code.store(code.load(code.at(order, at - 1, I64), I64), code.at(order, at, I64))
            j.set(at - 1)
        code.store(value, code.at(d, j.get(), DOUBLE))
        code.store(i, code.at(order, j.get(), I64))
    code.ret()
    return code.function


def _write(parts: Matrices) -> ir.Function:
    """void write(job, begin, end): blocks of rows of the result, whose columns are vectors."""
    code = Code(parts.module, "eigen_write", [PTR, I64, I64])
    job = Record(code, JOB, code.args[0])
    n, out, order = job["n"], job.pointer_at("out"), job.pointer_at("order")
    with code.range(code.args[1], code.args[2]) as block, code.range(0, n) as j:
        row = row_of(parts, code, job, code.load(code.at(order, j, I64), I64))
        with code.range(block * 16, (block * 16 + 16).min(n)) as i:
            parts.store(code, parts.load(code, row, i), out, i * n + j)
    code.ret()
    return code.function
