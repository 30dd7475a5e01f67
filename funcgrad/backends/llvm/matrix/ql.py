"""Eigenvalues of a symmetric tridiagonal matrix by the implicit QL algorithm, and its rotations.

Sweeps (Dubrulle, Martin, Wilkinson 1968) are recorded, then turn the rows of a matrix in groups: a
group is one walk, in which each row is read and written once. Columns are shared among threads.
"""

from __future__ import annotations

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

DOUBLE = ir.DoubleType()
_MADE, _USED = ("c", "s", "ranges", "held"), ("used_c", "used_s", "used_ranges", "used")
JOB = (
    "n", "wide", "stride", "x", "v", "taus", "y", "w", "k", "d", "e", "factor", "order", "out",
    # Where the first value is that isn't found, sweeps so far, and how it ended.
    "low", "sweeps", "state",
    # Rows of vectors. Cosines and sines, a row of `turns` for each of `held` sweeps, and for each
    # group of sweeps its first and last row: those that are recorded, then those that are used.
    "z", "turns", *_MADE, *_USED,
)  # fmt: skip
SLOTS = 64  # sweeps that are recorded before they turn rows
GROUP = 4  # sweeps that turn rows in one walk
ROWS = 4  # rows that are made side by side
_SWEEPS = 30  # a value, on average, after which there is no convergence
_SMALL = 96  # rows up to which a second thread is no gain
_DONE, _FAILED = 1, 2
# Nothing beside a matrix of magnitude 1: x² + y² less than this, an element of at most that.
_NOTHING, _LEAST = 2.0**-960, 2.0**-450


def row_of(parts: Matrices, code: Code, job: Record, i: Int) -> ir.Value:
    """Where row i of z begins; there are `GROUP` rows before the first and after the last."""
    return parts.at(code, job.pointer_at("z"), (i + GROUP) * job["stride"])


def run(
    parts: Matrices, code: Code, task: ir.Function, job: Record, n: Int, large: Bool | None = None
) -> None:
    """A task on [0, n), by several threads where there is much to do (or `large` says so)."""
    large = job["n"] > _SMALL if large is None else large
    with code.either(large) as (yes, no):
        with yes:
            code.call(parts.parallel_for, task, job.pointer, n, 1)
        with no:
            code.call(task, job.pointer, 0, n)


def emit_ql(parts: Matrices, prepare: ir.Function | None) -> ir.Function:
    """i64 ql(job): d becomes the eigenvalues, unordered; 1 if it converged. With `prepare`, which
    makes z by groups of `ROWS` rows, the rows of z are turned as well.

    Sweeps depend on each other, rows don't: one thread records sweeps while the others make the
    rows, then turn them by the sweeps of the round before.
    """
    record = _record(parts, prepare is not None)
    code = Code(parts.module, "ql", [PTR], result=I64)
    job = Record(code, JOB, code.args[0])
    for name in ("low", "sweeps", "held", "used", "state"):
        job[name] = 0
    if prepare is None:
        code.call(record, job.pointer)
    else:
        turn = _turn(parts)
        first, later = _round(parts, "first", record, prepare), _round(parts, "later", record, turn)
        run(parts, code, first, job, job["n"].ceil_div(ROWS) + 1)
        with code.loop() as (test, done):
            _swap(code, job)
            code.b.cbranch(job["used"].ne(0).value, test, done)
            code.b.position_at_end(test)
            units = job["wide"].ceil_div(_width(parts) * parts.lanes)
            run(parts, code, later, job, units + 1)
    code.ret(job["state"].eq(_DONE).select(1, 0))
    return code.function


def _round(parts: Matrices, name: str, record: ir.Function, other: ir.Function) -> ir.Function:
    """void round(job, begin, end): 0 stands for recording sweeps, the rest for parts of `other`."""
    code = Code(parts.module, f"ql_{name}", [PTR, I64, I64])
    pointer, begin, end = code.args
    with code.when(begin.eq(0)):
        code.call(record, pointer)
    code.call(other, pointer, (begin - 1).max(0), end - 1)
    code.ret()
    return code.function


def _swap(code: Code, job: Record) -> None:
    """What was recorded is to be used, its memory the other way round."""
    for made, used in zip(_MADE, _USED, strict=True):
        held, job_used = job[made], job[used]
        job[made], job[used] = job_used, held
    job["held"] = 0


def _record(parts: Matrices, vectors: bool) -> ir.Function:
    """void record(job): sweeps until all slots are full or the values are found."""
    find, shift, sweep = _find(parts), _shift(parts), _sweep(parts, vectors)
    code = Code(parts.module, "ql_record", [PTR])
    job, b = Record(code, JOB, code.args[0]), code.b
    with code.loop() as (test, done):
        going = b.append_basic_block("going")
        b.cbranch((job["state"].eq(0) & job["held"].ne(SLOTS)).value, going, done)
        b.position_at_end(going)
        b.branch(test)
        b.position_at_end(test)
        low, n, count = job["low"], job["n"], job["sweeps"]
        with code.either(low.eq(n)) as (over, more):
            with over:
                job["state"] = _DONE
            with more:
                high = Int(code, code.call(find, job.pointer, low))
                with code.either(high.eq(low)) as (found, wanted):
                    with found:
                        job["low"] = low + 1
                    with wanted, code.either(count.eq(n * _SWEEPS)) as (many, few):
                        with many:
                            job["state"] = _FAILED
                        with few:
                            job["sweeps"] = count + 1
                            g = code.call(shift, job.pointer, low, high)
                            code.call(sweep, job.pointer, low, high, g)
    code.ret()
    return code.function


def _find(parts: Matrices) -> ir.Function:
    """high find(job, low): where the block that begins at low ends; e[high] is nothing."""
    code = Code(parts.module, "ql_find", [PTR, I64], result=I64)
    job, low, b = Record(code, JOB, code.args[0]), code.args[1], code.b
    d, e, last = job.pointer_at("d"), job.pointer_at("e"), job["n"] - 1
    eps = ir.Constant(DOUBLE, 2.0**-24 if parts.bytes == 4 else 2.0**-53)
    least, high = ir.Constant(DOUBLE, _LEAST), code.variable(I64, low)

    def size(p: ir.Value, i: Int) -> ir.Value:
        return code.intrinsic("fabs", code.load(code.at(p, i, DOUBLE), DOUBLE))

    with code.loop() as (test, done):
        i = Int(code, high.get())
        inside = b.append_basic_block("inside")
        b.cbranch((i < last).value, inside, done)
        b.position_at_end(inside)
        limit = code.intrinsic("fmuladd", eps, b.fadd(size(d, i), size(d, i + 1)), least)
        b.cbranch(b.fcmp_ordered(">", size(e, i), limit), test, done)
        b.position_at_end(test)
        high.set(i + 1)
    code.ret(high.get())
    return code.function


def _shift(parts: Matrices) -> ir.Function:
    """g shift(job, low, high): d[high] less Wilkinson's shift."""
    code = Code(parts.module, "ql_shift", [PTR, I64, I64], result=DOUBLE)
    job, low, high, b = Record(code, JOB, code.args[0]), *code.args[1:], code.b
    one = ir.Constant(DOUBLE, 1.0)
    here, following, last = (
        code.load(code.at(job.pointer_at("d"), i, DOUBLE), DOUBLE) for i in (low, low + 1, high)
    )
    e = code.load(code.at(job.pointer_at("e"), low, DOUBLE), DOUBLE)
    g = b.fdiv(b.fsub(following, here), b.fadd(e, e))
    r = code.intrinsic("sqrt", code.intrinsic("fmuladd", g, g, one))
    g = b.fadd(g, code.intrinsic("copysign", r, g))
    code.ret(b.fadd(b.fsub(last, here), b.fdiv(e, g)))
    return code.function


def _sweep(parts: Matrices, vectors: bool) -> ir.Function:
    """void sweep(job, low, high, g): one step of QL on rows low to high, recorded in a slot."""
    code = Code(parts.module, "ql_sweep", [PTR, I64, I64, DOUBLE])
    job, low, high, first, b = Record(code, JOB, code.args[0]), *code.args[1:], code.b
    d, e = job.pointer_at("d"), job.pointer_at("e")
    zero, one = (ir.Constant(DOUBLE, x) for x in (0.0, 1.0))
    cosines, sines = _slot(parts, code, job, low, high) if vectors else (None, None)
    c, s = code.variable(DOUBLE, one), code.variable(DOUBLE, one)
    p, g = code.variable(DOUBLE, zero), code.variable(DOUBLE, first)
    following = code.variable(DOUBLE, code.load(code.at(d, high, DOUBLE), DOUBLE))

    def fma(*args: ir.Value) -> ir.Value:
        return code.intrinsic("fmuladd", *args)

    with code.range(0, high - low) as turn:
        i = high - 1 - turn
        here = code.load(code.at(d, i, DOUBLE), DOUBLE)
        beside = code.load(code.at(e, i, DOUBLE), DOUBLE)
        x, y, held = g.get(), b.fmul(s.get(), beside), b.fmul(c.get(), beside)
        square = fma(y, y, b.fmul(x, x))
        none = b.fcmp_ordered("<", square, ir.Constant(DOUBLE, _NOTHING))
        # √a / a is as good as 1 / √a, and its parts don't wait for each other.
        inverse = b.fmul(code.intrinsic("sqrt", square), b.fdiv(one, square))
        cosine = b.select(none, one, b.fmul(x, inverse))
        sine = b.select(none, zero, b.fmul(y, inverse))
        code.store(b.select(none, x, b.fmul(square, inverse)), code.at(e, i + 1, DOUBLE))
        old = b.fsub(following.get(), p.get())
        r = fma(cosine, b.fadd(held, held), b.fmul(b.fsub(here, old), sine))
        p.set(b.fmul(sine, r))
        code.store(b.fadd(old, p.get()), code.at(d, i + 1, DOUBLE))
        g.set(b.fsub(b.fmul(cosine, r), held))
        c.set(cosine)
        s.set(sine)
        following.set(here)
        if vectors:
            assert cosines is not None
            assert sines is not None
            for place, value in ((cosines, cosine), (sines, sine)):
                value = value if parts.type == DOUBLE else b.fptrunc(value, parts.type)
                parts.store(code, value, place, i)
    code.store(b.fsub(following.get(), p.get()), code.at(d, low, DOUBLE))
    code.store(g.get(), code.at(e, low, DOUBLE))
    code.store(zero, code.at(e, high, DOUBLE))
    code.ret()
    return code.function


def _slot(
    parts: Matrices, code: Code, job: Record, low: Int, high: Int
) -> tuple[ir.Value, ir.Value]:
    """The next slot's cosines and sines, where those of row 0 are; a group begins with turns that
    do nothing."""
    turns, held, ranges = job["turns"], job["held"], job.pointer_at("ranges")
    group = held // GROUP * 2
    first, last = code.at(ranges, group, I64), code.at(ranges, group + 1, I64)
    with code.either((held % GROUP).eq(0)) as (new, old):
        with new:
            for name, value in (("c", 1.0), ("s", 0.0)):
                begin = parts.at(code, job.pointer_at(name), held * turns)
                with code.range(0, turns * GROUP) as i:
                    parts.store(code, ir.Constant(parts.type, value), begin, i)
            code.store(low, first)
            code.store(high, last)
        with old:
            code.store(low.min(code.load(first, I64)), first)
            code.store(high.max(code.load(last, I64)), last)
    job["held"] = held + 1
    cosines, sines = (
        parts.at(code, job.pointer_at(name), held * turns + GROUP) for name in ("c", "s")
    )
    return cosines, sines


# ---- rows


def _width(parts: Matrices) -> int:
    """Vectors that are turned side by side: what the registers hold."""
    return 4 if parts.lanes * parts.bytes == 64 else 2


def _turn(parts: Matrices) -> ir.Function:
    """void turn(job, begin, end): all recorded sweeps, on blocks of columns of z."""
    code = Code(parts.module, "ql_turn", [PTR, I64, I64])
    job, count = Record(code, JOB, code.args[0]), _width(parts)
    step = count * parts.lanes
    walks = [_group(parts, count), _group(parts, 1)]
    begin, end = code.args[1] * step, (code.args[2] * step).min(job["wide"])
    whole = begin + (end - begin) // step * step
    groups = job["used"].ceil_div(GROUP)
    for (start, stop, width), walk in zip(
        ((begin, whole, step), (whole, end, parts.lanes)), walks, strict=True
    ):
        with code.range(start, stop, width) as column, code.range(0, groups) as group:
            code.call(walk, job.pointer, group, column)
    code.ret()
    return code.function


def _group(parts: Matrices, count: int) -> ir.Function:
    """void group(job, group, column): the sweeps of a group on `count` vectors of columns.

    Sweep q turns rows (i + q, i + q + 1) when the first one turns (i, i + 1): what it needs of the
    sweep before is done.
    """
    code = Code(parts.module, f"ql_group_{count}", [PTR, I64, I64])
    job, group, column = Record(code, JOB, code.args[0]), *code.args[1:]
    b, lanes, ranges = code.b, parts.lanes, job.pointer_at("used_ranges")
    low, high = (code.load(code.at(ranges, 2 * group + i, I64), I64) for i in (0, 1))
    stride, turns = job["stride"], job["turns"]
    z = parts.at(code, row_of(parts, code, job, code.i64(0)), column)
    tables = [
        [parts.at(code, job.pointer_at(f), (group * GROUP + q) * turns + GROUP) for q in
         range(GROUP)] for f in ("used_c", "used_s")
    ]  # fmt: skip
    vector = ir.VectorType(parts.type, lanes)
    held = [[code.variable(vector) for _ in range(count)] for _ in range(GROUP)]

    def place(i: Int) -> ir.Value:
        return parts.at(code, z, i * stride)

    for q, row in enumerate(held):
        for x, variable in enumerate(row):
            variable.set(parts.load(code, place(high + q), x * lanes, lanes))
    with code.range(0, high - low + GROUP - 1) as turn:
        i = high - 1 - turn
        values = [parts.load(code, place(i), x * lanes, lanes) for x in range(count)]
        for q, row in enumerate(held):
            c, s = (code.splat(parts.load(code, t[q], i + q), lanes) for t in tables)
            minus = b.fneg(s)
            for x, variable in enumerate(row):
                above, below = values[x], variable.get()
                values[x] = code.intrinsic("fmuladd", s, above, b.fmul(c, below))
                variable.set(code.intrinsic("fmuladd", minus, below, b.fmul(c, above)))
        for x, value in enumerate(values):
            parts.store(code, value, place(i + GROUP), x * lanes)
    for q, row in enumerate(held):
        for x, variable in enumerate(row):
            parts.store(code, variable.get(), place(low - GROUP + 1 + q), x * lanes)
    code.ret()
    return code.function
