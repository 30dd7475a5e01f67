"""The LU decomposition of large matrices with partial pivoting, as generated code.

In each step, all blocks of columns behind the last one that is done are rid of it, in parallel, and
the first of them is decomposed by a thread that the others don't wait for. Within a block columns
are halved down to panels; the left half, when done, is taken off the right one by a solve and a
product. A panel is turned: each of its columns is a row of vectors.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.matrix.parts import Matrices, Piece
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record, declare

LU = ("batch", "m", "n", "a", "factors", "pivots", "order")
PANEL = 16
_LEAST = 128  # columns of a block, with which products are fast
_JOB = ("m", "n", "k", "a", "factors", "pivots", "width", "step")


def emit_lu(parts: Matrices, name: str) -> None:
    """Write void name(ptr call) of the words `LU`: factors, row that each row was swapped with, and
    the order of rows that this leads to."""
    step, result = _step(parts), _result(parts)

    def one(code: Code, call: Record, item: Int) -> None:
        m, n = call["m"], call["n"]
        k, b = m.min(n), code.b
        width = parts.width(n, _LEAST)
        count = n.ceil_div(width)
        a, x = (parts.at(code, call.pointer_at(f), item * m * n) for f in ("a", "factors"))
        pivots = code.at(call.pointer_at("pivots"), item * k, I32)
        order = code.at(call.pointer_at("order"), item * m, I32)
        job = Record(code, _JOB, code.variable(I64, count=len(_JOB)).slot)
        values: tuple[Any, ...] = (m, n, k, a, x, pivots, width, 0)
        for field, value in zip(_JOB, values, strict=True):
            job[field] = value
        parts.steps(code, step, job, count, k.ceil_div(width) + 1)
        with code.range(0, k) as j:
            at = code.at(pivots, j, I32)
            code.store(b.add(code.load(at, I32), b.trunc((j // width * width).value, I32)), at)
        parts.steps(code, result, job, count, 1)
        write_order(code, order, m, pivots, k)

    parts.entry(name, LU, one)


def write_order(code: Code, order: ir.Value, m: Int, pivots: ir.Value, k: Int) -> None:
    """Write the order of m rows after swapping each of the first k with the row of its pivot."""
    b = code.b
    with code.range(0, m) as i:
        code.store(b.trunc(i.value, I32), code.at(order, i, I32))
    with code.range(0, k) as j:
        pivot = Int(code, b.sext(code.load(code.at(pivots, j, I32), I32), I64))
        here, there = code.at(order, j, I32), code.at(order, pivot, I32)
        held = code.load(here, I32)
        code.store(code.load(there, I32), here)
        code.store(held, there)


class _Block:
    """A block of columns, by its number: where it is, from which row on it is to be done, of how
    many rows, columns, and columns that are decomposed."""

    def __init__(self, parts: Matrices, code: Code, job: Record, number: Int):
        self.width, k = job["width"], job["k"]
        self.first = number * self.width
        self.rows = job["m"] - self.first
        self.columns = self.width.min(job["n"] - self.first)
        self.done = self.width.min(k - self.first)
        self.all = parts.at(code, job.pointer_at("factors"), self.first)
        self.corner = parts.at(code, self.all, self.first * job["n"])
        self.pivots = code.at(job.pointer_at("pivots"), self.first, I32)


def _step(parts: Matrices) -> ir.Function:
    """void step(job, begin, end): blocks that many behind the first which is not done."""
    factor, update = _factor(parts), _update(parts)
    task = Code(parts.module, "step", [PTR, I64, I64])
    job = Record(task, _JOB, task.args[0])
    m, n, step = job["m"], job["n"], job["step"]
    with task.range(task.args[1], task.args[2]) as i:
        block = _Block(parts, task, job, step + i)
        with task.either(step.eq(0)) as (begin, further):
            with begin:
                source = parts.at(task, job.pointer_at("a"), block.first)
                task.call(parts.copy, source, n, block.all, n, m, block.columns)
            with further:
                last = _Block(parts, task, job, step - 1)
                rows = parts.at(task, block.all, last.first * n)
                task.call(update, last.corner, rows, n, last.rows, last.done, block.columns,
                          last.pivots)  # fmt: skip
        with task.when(i.eq(0) & (block.done > 0)):
            corner, done = block.corner, block.done
            task.call(factor, corner, n, block.rows, done, block.pivots)
            with task.when(block.columns > done):
                right = parts.at(task, corner, done)
                task.call(update, corner, right, n, block.rows, done, block.columns - done,
                          block.pivots)  # fmt: skip
    task.ret()
    return task.function


def _result(parts: Matrices) -> ir.Function:
    """void result(job, begin, end): swap rows of blocks as those behind them."""
    task = Code(parts.module, "result", [PTR, I64, I64])
    job = Record(task, _JOB, task.args[0])
    n, k, swap = job["n"], job["k"], _swap(parts)
    with task.range(task.args[1], task.args[2]) as i:
        block = _Block(parts, task, job, i)
        pivots, behind = job.pointer_at("pivots"), block.first + block.width
        task.call(swap, block.all, n, block.columns, pivots, behind, k)
    task.ret()
    return task.function


def _factor(parts: Matrices) -> ir.Function:
    """void factor(a, stride, m, n, pivots): with m ≥ n; pivots count rows of a."""
    panel, swap, update = _panel(parts), _swap(parts), _update(parts)
    code = Code(parts.module, "factor", [PTR, I64, I64, I64, PTR])
    a, stride, m, n, pivots = code.args
    with code.when(n <= PANEL):
        code.call(panel, *code.args)
        code.ret()
    h = (n // 2).round_up(PANEL)
    right, below = parts.at(code, a, h), parts.at(code, a, h * stride)
    corner, later = parts.at(code, below, h), code.at(pivots, h, I32)
    code.call(code.function, a, stride, m, h, pivots)
    code.call(update, a, right, stride, m, h, n - h, pivots)
    code.call(code.function, corner, stride, m - h, n - h, later)
    code.call(swap, below, stride, h, later, 0, n - h)
    with code.range(0, n - h) as j:
        at = code.at(later, j, I32)
        code.store(code.b.add(code.load(at, I32), code.b.trunc(h.value, I32)), at)
    code.ret()
    return code.function


def _update(parts: Matrices) -> ir.Function:
    """void update(a, right, stride, m, h, columns, pivots): rid columns of the h first ones, which
    are done."""
    found = parts.module.globals.get("update")
    if found is not None:
        return found
    swap = _swap(parts)
    code = Code(parts.module, "update", [PTR, PTR, I64, I64, I64, I64, PTR])
    a, right, stride, m, h, columns, pivots = code.args
    code.call(swap, right, stride, columns, pivots, 0, h)
    code.call(parts.solve, a, stride, 1, right, stride, h, columns, 1, 0)
    with code.when(m > h):
        below, rest = (parts.at(code, p, h * stride) for p in (a, right))
        parts.add_product(
            code, (m - h, columns, h), (below, stride, 1), (right, stride, 1), (rest, stride, 1)
        )
    code.call(parts.negate, right, stride, right, stride, h, columns)
    code.ret()
    return code.function


def _swap(parts: Matrices) -> ir.Function:
    """void swap(a, stride, columns, pivots, begin, end): rows [begin, end), one after another, each
    row j with row pivots[j]."""
    found = parts.module.globals.get("swap")
    if found is not None:
        return found
    code = Code(parts.module, "swap", [PTR, I64, I64, PTR, I64, I64])
    a, stride, columns, pivots, begin, end = code.args
    with code.range(begin, end) as j:
        p = Int(code, code.b.sext(code.load(code.at(pivots, j, I32), I32), I64))
        with code.when(p.ne(j)):
            here, there = parts.at(code, a, j * stride), parts.at(code, a, p * stride)

            def exchange(piece: Piece, here: ir.Value = here, there: ir.Value = there) -> None:
                # All that is read comes before what is written, which might have been the same.
                places, lanes, mask = piece
                x, y = (
                    [parts.load(code, row, at, lanes, mask) for at in places]
                    for row in (here, there)
                )
                for at, old, new in zip(places, x, y, strict=True):
                    parts.store(code, new, here, at, mask)
                    parts.store(code, old, there, at, mask)

            parts.along(code, code.i64(0), columns, exchange)
    code.ret()
    return code.function


def _panel(parts: Matrices) -> ir.Function:
    """void panel(a, stride, m, n, pivots): at most `PANEL` columns, in memory of their own, where
    zeros follow them if they are fewer."""
    code = Code(parts.module, "panel", [PTR, I64, I64, I64, PTR])
    a, stride, m, n, pivots = code.args
    # A line more than columns take: they would all lie in the same few lines of a cache.
    ld = m.round_up(PANEL) + PANEL
    room = code.call(parts.take, ld * (PANEL + 1) * parts.bytes)
    code.call(parts.transpose, a, stride, room, ld, m, n)
    with code.range(n * ld, ld * PANEL) as i:
        parts.store(code, ir.Constant(parts.type, 0.0), room, i)
    panel = _Panel(parts, code, room, ld, m)
    panel.look(0)
    with code.range(0, n) as j:
        pivot = panel.pivot()
        code.store(code.b.trunc(pivot.value, I32), code.at(pivots, j, I32))
        panel.swap(j, pivot)
        panel.eliminate(j)
        panel.look(j + 1)
    code.call(parts.transpose, room, ld, a, stride, n, m)
    code.call(parts.give, room)
    code.ret()
    return code.function


class _Panel:
    """A turned panel in memory: element (i, c) at c ld + i, with room for whole vectors."""

    def __init__(self, parts: Matrices, code: Code, room: ir.Value, ld: Int, m: Int):
        self.parts, self.code, self.room, self.ld, self.m = parts, code, room, ld, m
        self.lanes = lanes = parts.lanes
        self.index = ir.VectorType(parts.bits, lanes)
        self.counts = ir.Constant(self.index, list(range(lanes)))
        self.most, self.best = code.variable(self.index), code.variable(self.index)

    def load(self, i: Int | int, c: Int | int, lanes: int = 0) -> ir.Value:
        return self.parts.load(self.code, self.room, self.ld * c + i, lanes)

    def store(self, value: ir.Value, i: Int | int, c: Int | int) -> None:
        self.parts.store(self.code, value, self.room, self.ld * c + i)

    def spread(self, i: Int | int) -> ir.Value:
        """A number in all lanes of indices."""
        value = self.code.i64(i).value
        if self.parts.bits != I64:
            value = self.code.b.trunc(value, self.parts.bits)
        return self.code.splat(value, self.lanes)

    def pivot(self) -> Int:
        """The row of the greatest element, the first of equals, after `look`."""
        b, bits = self.code.b, self.parts.bits

        def reduce(name: str, x: ir.Value) -> ir.Value:
            width = bits.width
            kind = ir.FunctionType(bits, [self.index])
            name = f"llvm.vector.reduce.{name}.v{self.lanes}i{width}"
            return b.call(declare(self.parts.module, name, kind), [x])

        most, best = self.most.get(), self.best.get()
        top = b.icmp_unsigned("==", most, self.code.splat(reduce("umax", most), self.lanes))
        none = ir.Constant(self.index, [-1] * self.lanes)
        row = reduce("umin", b.select(top, best, none))
        return Int(self.code, row if bits == I64 else b.zext(row, I64))

    def swap(self, j: Int, pivot: Int) -> None:
        with self.code.when(pivot.ne(j)), self.code.range(0, PANEL) as c:
            x, y = self.load(j, c), self.load(pivot, c)
            self.store(y, j, c)
            self.store(x, pivot, c)

    def look(self, j: Int | int) -> None:
        """See where column j is greatest from row j on. There is room for a column too many."""
        code, b = self.code, self.code.b
        self.most.set(ir.Constant(self.index, None))
        self.best.set(self.spread(j))
        first, end = self.spread(j), self.spread(self.m)
        with code.range(code.i64(j) // self.lanes * self.lanes, self.m, self.lanes) as i:
            here = b.add(self.spread(i), self.counts)
            inside = b.and_(b.icmp_unsigned(">=", here, first), b.icmp_unsigned("<", here, end))
            self._consider(here, self.load(i, j, self.lanes), inside)

    def eliminate(self, j: Int) -> None:
        """Take column j off those behind it, below its diagonal."""
        code, b, lanes = self.code, self.code.b, self.lanes
        pivot, zero, one = self.load(j, j), *(ir.Constant(self.parts.type, x) for x in (0.0, 1.0))
        pivot = b.select(b.fcmp_ordered("==", pivot, zero), one, pivot)
        divisor, first = code.splat(pivot, lanes), (j + 1) // lanes * lanes
        here = b.add(self.spread(first), self.counts)
        below = b.icmp_unsigned(">=", here, self.spread(j + 1))

        def put(new: ir.Value, old: ir.Value, c: Int) -> None:
            self.store(b.select(below, new, old), first, c)

        old = self.load(first, j, lanes)
        put(b.fdiv(old, divisor), old, j)
        with code.range(first + lanes, self.m, lanes) as i:
            self.store(b.fdiv(self.load(i, j, lanes), divisor), i, j)
        with code.range(j + 1, PANEL) as c:
            top = code.splat(b.fneg(self.load(j, c)), lanes)

            def less(i: Int, c: Int = c, top: ir.Value = top) -> tuple[ir.Value, ir.Value]:
                old = self.load(i, c, lanes)
                return code.intrinsic("fmuladd", self.load(i, j, lanes), top, old), old

            put(*less(first), c)
            with code.range(first + lanes, self.m, lanes) as i:
                self.store(less(i)[0], i, c)

    def _consider(self, here: ir.Value, value: ir.Value, inside: ir.Value) -> None:
        """Numbers of rows whose indices are `here`, of which those `inside` count."""
        b, most, best = self.code.b, self.most.get(), self.best.get()
        bits = b.bitcast(value, self.index)
        limit = (1 << self.parts.bits.width - 1) - 1
        bits = b.and_(bits, ir.Constant(self.index, [limit] * self.lanes))
        greater = b.and_(b.icmp_unsigned(">", bits, most), inside)
        self.most.set(b.select(greater, bits, most))
        self.best.set(b.select(greater, here, best))
