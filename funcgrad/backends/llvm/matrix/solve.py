"""Solving with large triangular matrices, and their Cholesky decomposition, as generated code."""

from __future__ import annotations

from funcgrad.backends.llvm.matrix.parts import BLOCK, Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record

SOLVE = ("batch", "n", "columns", "left", "backwards", "turned", "unit", "a", "b", "out")
CHOLESKY = ("batch", "n", "a", "out")
I1 = ir.IntType(1)
_RUNS = (*SOLVE, "width")
_MOST = 128  # columns of a run, with which products are about as fast as with more
_SERIAL = 1 << 19  # multiply-adds of a run below which a thread of its own is no gain
_LEAST = 64  # columns of a block
_JOB = ("n", "a", "out", "blocks", "width", "step", "bad")


def emit_solve(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `SOLVE`: op(a) out = b, or for left = 0 the same of
    transposes, outᵀ and bᵀ with `columns` columns.

    turned: op transposes; backwards: op(a) is upper triangular; unit: its diagonal is of ones
    """
    task = _solve_runs(parts)

    def one(code: Code, call: Record, item: Int) -> None:
        n, columns = call["n"], call["columns"]
        job = Record(code, _RUNS, code.variable(I64, count=len(_RUNS)).slot)
        for field in SOLVE[: SOLVE.index("a")]:
            job[field] = call[field]
        for field, size in (("a", n), ("b", columns), ("out", columns)):
            job[field] = parts.at(code, call.pointer_at(field), item * n * size)
        # The same runs for any number of threads: an even number of them.
        pairs = columns.ceil_div(2 * _MOST)
        width = columns.ceil_div(2 * pairs).round_up(2 * parts.lanes)
        width = (n * n * width // 2 >= _SERIAL).select(width, columns)
        job["width"] = width
        code.call(parts.parallel_for, task, job.pointer, columns.ceil_div(width), 1)

    parts.entry(name, SOLVE, one)


def _solve_runs(parts: Matrices) -> ir.Function:
    """void solve_runs(job, begin, end): runs of columns, each of which is solved for in memory of
    its own. Beside it, what a processor fetches ahead might be another thread's."""
    code = Code(parts.module, "solve_runs", [PTR, I64, I64])
    job = Record(code, _RUNS, code.args[0])
    n, columns, width = job["n"], job["columns"], job["width"]
    left, turned = job["left"].ne(0), job["turned"].ne(0)
    a, b, out = (job.pointer_at(field) for field in ("a", "b", "out"))
    x = code.call(parts.take, n * width * parts.bytes)
    with code.range(code.args[1], code.args[2]) as run:
        first = run * width
        count = width.min(columns - first)
        with code.either(left) as (straight, turning):
            with straight:
                code.call(parts.copy, parts.at(code, b, first), columns, x, count, n, count)
            with turning:
                code.call(parts.transpose, parts.at(code, b, first * n), n, x, count, count, n)
        rows, steps = turned.select(1, n), turned.select(n, 1)
        code.call(parts.solve, a, rows, steps, x, count, n, count, job["unit"], job["backwards"])
        with code.either(left) as (straight, turning):
            with straight:
                to = parts.at(code, out, first)
                code.call(parts.negate, x, count, to, columns, n, count)
            with turning:
                code.call(parts.negate, x, count, x, count, n, count)
                code.call(parts.transpose, x, count, parts.at(code, out, first * n), n, n, count)
    code.call(parts.give, x)
    code.ret()
    return code.function


def emit_cholesky(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `CHOLESKY`: the lower triangular factor of matrices of
    which the lower triangle is read; of NaN for one that isn't positive definite."""
    step = _step(parts)

    def one(code: Code, call: Record, item: Int) -> None:
        n = call["n"]
        job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
        width = parts.width(n, _LEAST)
        a, out = (parts.at(code, call.pointer_at(x), item * n * n) for x in ("a", "out"))
        blocks = code.call(parts.take, n * n.round_up(width) * parts.bytes)
        for field, value in zip(_JOB, (n, a, out, blocks, width, 0, 0), strict=True):
            job[field] = value
        count = n.ceil_div(width)
        parts.steps(code, step, job, count, count)
        code.call(parts.give, blocks)
        nan = ir.Constant(parts.type, float("nan"))
        with code.when(job["bad"].ne(0)), code.range(0, n) as i, code.range(0, i + 1) as j:
            parts.store(code, nan, out, i * n + j)

    parts.entry(name, CHOLESKY, one)


def _step(parts: Matrices) -> ir.Function:
    """void step(job, begin, end): blocks that many behind the last one that is done.

    A block holds columns of U with UᵀU = a, in memory of its own, negated but on the diagonal; and
    the result rows of Uᵀ. Each step finds the rows beside the last block's diagonal.
    """
    factor, product, lines = _factor(parts), parts.add_product, parts.transpose
    task = Code(parts.module, "step", [PTR, I64, I64])
    job = Record(task, _JOB, task.args[0])
    n, out, width, step = job["n"], job.pointer_at("out"), job["width"], job["step"]
    with task.range(task.args[1], task.args[2]) as i:
        first = (step + i) * width
        columns = width.min(n - first)
        block = parts.at(task, job.pointer_at("blocks"), first * n)
        rows = parts.at(task, out, first * n)
        with task.either(step.eq(0)) as (begin, further):
            with begin:
                source = parts.at(task, job.pointer_at("a"), first * n)
                task.call(lines, source, n, block, width, columns, first + columns)
            with further:
                last = (step - 1) * width
                above, to = parts.at(task, block, last * width), parts.at(task, rows, last)
                left = parts.at(task, out, last * n)
                product(task, (width, columns, last), (left, n, 1), (block, width, 1),
                        (above, width, 1))  # fmt: skip
                corner = parts.at(task, left, last)
                task.call(parts.solve, corner, n, 1, above, width, width, columns, 0, 0)
                task.call(lines, above, width, to, n, width, columns)
                task.call(parts.negate, to, n, to, n, columns, width)
        with task.when(i.eq(0)):
            above, to = parts.at(task, block, first * width), parts.at(task, rows, first)
            product(task, (columns, columns, first), (rows, n, 1), (block, width, 1),
                    (above, width, 1))  # fmt: skip
            minus = task.call(parts.take, columns * width * parts.bytes)
            good = task.call(factor, above, minus, width, columns)
            task.call(parts.give, minus)
            with task.b.if_then(task.b.not_(good)):
                job["bad"] = 1
            task.call(lines, above, width, to, n, columns, columns)
            with task.range(0, columns) as row, task.range(first + row + 1, n) as j:
                parts.store(task, ir.Constant(parts.type, 0.0), rows, row * n + j)
    task.ret()
    return task.function


def _factor(parts: Matrices) -> ir.Function:
    """i1 factor(a, minus, stride, n): the upper triangle of a becomes U with UᵀU = a, what lies
    right of blocks in minus its negative; whether a is positive definite. Blocks below the diagonal
    hold anything."""
    block = _factor_block(parts)
    code = Code(parts.module, "factor", [PTR, PTR, I64, I64], result=I1)
    a, minus, stride, n = code.args
    with code.when(n <= BLOCK):
        code.ret(code.call(block, a, stride, n))
    h = (n // 2).round_up(BLOCK)
    rest = n - h
    right, minus_right = (parts.at(code, p, h) for p in (a, minus))
    corner, minus_corner = (parts.at(code, p, h * stride + h) for p in (a, minus))
    first = code.call(code.function, a, minus, stride, h)
    with code.b.if_then(code.b.not_(first)):
        code.ret(first)
    code.call(parts.solve, a, 1, stride, right, stride, h, rest, 0, 0)
    code.call(parts.copy, right, stride, minus_right, stride, h, rest)
    code.call(parts.negate, right, stride, right, stride, h, rest)
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
    code = Code(parts.module, "factor_block", [PTR, I64, I64], result=I1)
    a, stride, n = code.args
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
        parts.store(code, parts.load(code, square, i * BLOCK + j), a, i * stride + j)
    code.ret(good.get())
    return code.function
