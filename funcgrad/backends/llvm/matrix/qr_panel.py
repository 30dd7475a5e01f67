"""Householder's reflections of up to 16 columns of a tall matrix, as generated code.

Columns are scaled by powers of two and lie in memory of their own, a row a vector. One sweep over
the rows takes a reflection off the columns behind it and multiplies the next column with all: which
gives its norm, what its reflection will take off, and its products with the reflections before it.
Those make up T of the compact form 1 - V T Vᵀ of all (Schreiber and Van Loan, 1989).
"""

from __future__ import annotations

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record, of_shape

PANEL = 16
_CHAINS = 4  # sums in registers that don't wait for each other
_PART = 1024  # rows of which sums are made apart
_MANTISSA = {"float32": 23, "float64": 52}
# Squares are exact enough in sums from here on.
_LEAST = {"float32": 2.0**-90, "float64": 2.0**-700}


def panel(parts: Matrices) -> ir.Function:
    """void panel(x, stride, v, t, apart, m, count): rows of R take the place of the first `count`
    rows of 16 columns of x, which has m rows, no fewer than reflections; v gets V, zeros and ones
    included, and t the transpose of -T, both with rows `apart` elements apart."""
    sweep = _sweep(parts)
    reflection = _reflection(parts, sweep)
    code = Code(parts.module, "panel", [PTR, I64, PTR, PTR, I64, I64, I64])
    x, stride, v, t, apart, m, count = code.args
    b, row_type = code.b, ir.VectorType(parts.type, PANEL)
    zeros, ones = (ir.Constant(row_type, [c] * PANEL) for c in (0.0, 1.0))
    room = code.call(parts.take, (m + m.ceil_div(_PART)) * PANEL * parts.bytes)
    sums = parts.at(code, room, m * PANEL)
    most = code.variable(
        of_shape(zeros, parts.bits), ir.Constant(of_shape(zeros, parts.bits), None)
    )
    with code.range(0, m) as i:
        bits = _magnitudes(parts, code, parts.load(code, x, i * stride, PANEL))
        most.set(code.intrinsic("umax", bits, most.get()))
    scale, back = power(parts, code, most.get())
    with code.range(0, m) as i:
        row = b.fmul(parts.load(code, x, i * stride, PANEL), scale)
        parts.store(code, row, room, i * PANEL)
    taken, inverses = (code.variable(row_type, zeros).slot for _ in range(2))
    code.call(sweep, room, 1, m, 0, 0, taken, sums)
    with code.range(0, count) as j:
        code.call(reflection, room, m, j, sums, taken, inverses, t, apart)
        with code.when(j + 1 < count):
            below = parts.load(code, room, (j + 1) * PANEL, PANEL)
            factor = code.splat(parts.load(code, room, (j + 1) * PANEL + j), PANEL)
            known = parts.load(code, taken, 0, PANEL)
            below = code.intrinsic("fmuladd", factor, known, below)
            parts.store(code, below, room, (j + 1) * PANEL)
            code.call(sweep, room, j + 2, m, j, j + 1, taken, sums)
    scales = parts.load(code, inverses, 0, PANEL)
    with code.range(0, count) as i:
        row = parts.load(code, room, i * PANEL, PANEL)
        parts.store(code, b.fmul(row, back), x, i * stride)
        before, upto = code.first_lanes(i, PANEL), code.first_lanes(i + 1, PANEL)
        known = b.select(before, b.fmul(row, scales), b.select(upto, ones, zeros))
        parts.store(code, known, v, i * apart)
    with code.range(count, m) as i:
        row = parts.load(code, room, i * PANEL, PANEL)
        parts.store(code, b.fmul(row, scales), v, i * apart)
    code.call(parts.give, room)
    code.ret()
    return code.function


def _magnitudes(parts: Matrices, code: Code, x: ir.Value) -> ir.Value:
    kind = of_shape(x, parts.bits)
    most = (1 << 8 * parts.bytes - 1) - 1
    return code.b.and_(code.b.bitcast(x, kind), ir.Constant(kind, [most] * x.type.count))


def power(parts: Matrices, code: Code, bits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Powers of two that bring numbers, of which these are the bits, near 1, and back."""
    kind, shift = bits.type, _MANTISSA[parts.dtype]
    top = (1 << 8 * parts.bytes - 1 - shift) - 3  # so that neither power is zero or infinite

    def all_of(number: int) -> ir.Constant:
        return ir.Constant(kind, [number] * kind.count)

    b = code.b
    exponent = code.intrinsic("umax", b.lshr(bits, all_of(shift)), all_of(1))
    exponent = code.intrinsic("umin", exponent, all_of(top - 1))
    forth, back = b.sub(all_of(top), exponent), b.add(exponent, all_of(1))
    result = ir.VectorType(parts.type, kind.count)
    near, far = (b.bitcast(b.shl(e, all_of(shift)), result) for e in (forth, back))
    return near, far


def _sweep(parts: Matrices) -> ir.Function:
    """void sweep(p, begin, end, j, next, taken, sums): rows get their number j times those taken;
    their number `next`, which then is, times them adds up to the sums. Those of `_PART` rows each
    are added at last, on any number of threads."""
    rows, job_fields = _sweep_rows(parts), ("p", "begin", "end", "j", "after", "taken", "sums")
    task = Code(parts.module, "sweep_parts", [PTR, I64, I64])
    job = Record(task, job_fields, task.args[0])
    pointers = {name: job.pointer_at(name) for name in ("p", "taken", "sums")}
    with task.range(task.args[1], task.args[2]) as i:
        begin = job["begin"] + i * _PART
        task.call(
            rows, pointers["p"], begin, (begin + _PART).min(job["end"]), job["j"], job["after"],
            pointers["taken"], parts.at(task, pointers["sums"], i * PANEL),
        )  # fmt: skip
    task.ret()
    code = Code(parts.module, "sweep", [PTR, I64, I64, I64, I64, PTR, PTR])
    _, begin, end, _, _, _, sums = code.args
    with code.when(end - begin <= _PART):
        code.call(rows, *code.args)
        code.ret()
    job = Record(code, job_fields, code.variable(I64, count=len(job_fields)).slot)
    for name, value in zip(job_fields, code.args, strict=True):
        job[name] = value
    count = (end - begin).ceil_div(_PART)
    code.call(parts.parallel_for, task.function, job.pointer, count, 1)
    with code.range(1, count) as i:
        total = parts.load(code, sums, 0, PANEL)
        more = parts.load(code, sums, i * PANEL, PANEL)
        parts.store(code, code.b.fadd(total, more), sums, 0)
    code.ret()
    return code.function


def _sweep_rows(parts: Matrices) -> ir.Function:
    code = Code(parts.module, "sweep_rows", [PTR, I64, I64, I64, I64, PTR, PTR])
    p, begin, end, j, after, taken, sums = code.args
    zeros = ir.Constant(ir.VectorType(parts.type, PANEL), None)
    known = parts.load(code, taken, 0, PANEL)
    top = code.splat(parts.load(code, taken, after), PANEL)
    rows = max(_CHAINS * parts.lanes // PANEL, 1)
    totals = [code.variable(zeros.type, zeros) for _ in range(rows)]
    for abreast in sorted({rows, 1}, reverse=True):
        stop = begin + (end - begin).max(0) // abreast * abreast
        with code.range(begin, stop, abreast) as i:
            for u, total in enumerate(totals[:abreast]):
                at = (i + u) * PANEL
                factor = code.splat(parts.load(code, p, at + j), PANEL)
                value = code.splat(parts.load(code, p, at + after), PANEL)
                row = parts.load(code, p, at, PANEL)
                row = code.intrinsic("fmuladd", factor, known, row)
                parts.store(code, row, p, at)
                value = code.intrinsic("fmuladd", factor, top, value)
                total.set(code.intrinsic("fmuladd", value, row, total.get()))
        begin = stop
    values = [total.get() for total in totals]
    while len(values) > 1:
        values = [code.b.fadd(*values[i : i + 2]) for i in range(0, len(values), 2)]
    parts.store(code, values[0], sums, 0)
    code.ret()
    code.function.attributes.add("noinline")
    return code.function


def _reflection(parts: Matrices, sweep: ir.Function) -> ir.Function:
    """void reflection(p, m, j, sums, taken, inverses, t, apart): row j becomes R's; from the sums
    of column j come what the rows below are to be given, what makes their column j one of V, and
    row j of t."""
    enlarge = _enlarge(parts, sweep)
    code = Code(parts.module, "reflection", [PTR, I64, I64, PTR, PTR, PTR, PTR, I64])
    b, (p, m, j, sums, taken, inverses, t, apart) = code.b, code.args
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    zeros, ones = (ir.Constant(ir.VectorType(parts.type, PANEL), [c] * PANEL) for c in (0.0, 1.0))
    back = code.variable(parts.type, one)
    least = ir.Constant(parts.type, _LEAST[parts.dtype])
    with b.if_then(b.fcmp_ordered("<", parts.load(code, sums, j), least)):
        back.set(code.call(enlarge, p, m, j, sums))
    alpha, squares = parts.load(code, p, j * (PANEL + 1)), parts.load(code, sums, j)
    norm = code.intrinsic("sqrt", code.intrinsic("fmuladd", alpha, alpha, squares))
    none = b.fcmp_ordered("==", back.get(), zero)
    beta = b.fneg(code.intrinsic("copysign", norm, alpha))
    difference = b.fsub(alpha, beta)
    inverse = b.select(none, zero, b.fdiv(one, difference))
    minus_tau = b.select(none, zero, b.fdiv(difference, beta))
    before, upto = code.first_lanes(j, PANEL), code.first_lanes(j + 1, PANEL)
    row = parts.load(code, p, j * PANEL, PANEL)
    spread = code.splat(inverse, PANEL)
    products = code.intrinsic("fmuladd", parts.load(code, sums, 0, PANEL), spread, row)
    scales = b.select(before, parts.load(code, inverses, 0, PANEL), ones)
    products = b.fmul(products, scales)
    many = code.splat(minus_tau, PANEL)
    more = b.select(upto, zeros, b.fmul(many, products))
    parts.store(code, b.fadd(row, more), p, j * PANEL)
    parts.store(code, b.select(none, alpha, b.fmul(beta, back.get())), p, j * (PANEL + 1))
    parts.store(code, b.fmul(more, spread), taken, 0)
    parts.store(code, inverse, inverses, j)
    # Row j of t: of the products with V's columns before.
    each, total = code.variable(zeros.type, products).slot, code.variable(zeros.type, zeros)
    with code.range(0, j) as i:
        factor = code.splat(parts.load(code, each, i), PANEL)
        known = parts.load(code, t, i * apart, PANEL)
        total.set(code.intrinsic("fmuladd", factor, known, total.get()))
    mine = b.select(before, b.fmul(many, total.get()), b.select(upto, many, zeros))
    parts.store(code, mine, t, j * apart)
    code.ret()
    return code.function


def _enlarge(parts: Matrices, sweep: ir.Function) -> ir.Function:
    """back enlarge(p, m, j, sums): numbers of column j from row j on whose squares are too small
    are multiplied by 1 / back, and the sums are made anew; 0 where there are only zeros below."""
    code = Code(parts.module, "enlarge", [PTR, I64, I64, PTR], result=parts.type)
    b, (p, m, j, sums) = code.b, code.args
    zero, one = (ir.Constant(parts.type, c) for c in (0.0, 1.0))
    most = code.variable(parts.bits, parts.bits(0))

    def consider(i: Int) -> None:
        bits = parts.magnitude(code, parts.load(code, p, i * PANEL + j))
        most.set(code.intrinsic("umax", bits, most.get()))

    with code.range(j + 1, m) as i:
        consider(i)
    with b.if_then(b.icmp_unsigned("==", most.get(), parts.bits(0))):
        code.ret(zero)
    alpha, least = parts.load(code, p, j * (PANEL + 1)), _LEAST[parts.dtype]
    total = code.intrinsic("fmuladd", alpha, alpha, parts.load(code, sums, j))
    with b.if_then(b.fcmp_ordered(">=", total, ir.Constant(parts.type, least))):
        code.ret(one)
    consider(j)
    pair = code.splat(most.get(), 2)
    forth, back = (b.extract_element(x, ir.IntType(32)(0)) for x in power(parts, code, pair))
    with code.range(j, m) as i:
        value = b.fmul(parts.load(code, p, i * PANEL + j), forth)
        parts.store(code, value, p, i * PANEL + j)
    nothing = code.variable(ir.VectorType(parts.type, PANEL)).slot
    parts.store(code, ir.Constant(ir.VectorType(parts.type, PANEL), None), nothing, 0)
    code.call(sweep, p, j + 1, m, j, j, nothing, sums)
    code.ret(back)
    return code.function
