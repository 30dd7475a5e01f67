"""The ways of the generated GEMM that pack nothing, or little: small and thin products.

`direct` runs the outer-product kernels on the operands where they lie; `small` does so after
copying a panel of B to the stack, `panelled` after packing all of it, `apart` after packing what a
task reads; `turned` writes a thin C that is not contiguous by way of scratch; `axpy` adds multiples
of B's rows for a single row of A; `dot` takes inner products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from funcgrad.backends.llvm.gemm.job import Parts, Way
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.words import JOB, THIN
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, Record, Variable

SMALL_K = 128  # rows of B that `small` has room for on the stack
LINE = 64  # bytes of a line of the caches
SHORT_ROW = 4096  # bytes of a row of A up to which the processor's own prefetching is too slow
AS_THEY_LIE = ("at_once", "direct", "turned")  # ways that read B where it is
TILED = (*AS_THEY_LIE, "panelled")  # ways by `grid`
CALLS = (*TILED, "small", "apart")  # and others that call kernels of several ways
# Rows of a C of one vector's columns: more sums than a step takes to add to one, and ways of the
# first cache, each of a page, for as many rows of A and for B.
NARROW_ROWS, NARROW_WAYS, WAY = 10, 12, 4096
# Tasks a thread, at least, where they pack columns of B apart; and rows that pay for packing.
APART_TASKS, APART_ROWS = 2, 128
ROW_BLOCK = 2048  # columns of C that `axpy` keeps in the first cache


class Unpacked:
    """Ways whose functions are void(ptr job); see the conditions in `driver`.

    brief: whether fewer kernels, which are sooner compiled, serve all sizes
    """

    def __init__(self, parts: Parts, brief: bool = False):
        self.brief = brief and parts.tile.many_registers
        self.parts, self.fmt, self.tile = parts, parts.fmt, parts.tile
        many, sums = self.tile.many_registers, self.tile.sums
        self.heights = tuple(h // sums for h in ((8 if many else 6), 4, 2, 1) if h >= sums)
        # Two rows are too few sums to add to one at each step: eight rows are two tiles of four.
        self.halves = 4 if self.heights == (6, 4, 2, 1) else 0
        plain = self.fmt.storage == self.fmt.acc and self.fmt.acc != I32
        ways = parts.target.caches.l1 // WAY
        fits = plain and many and ways >= NARROW_WAYS
        self.narrow = NARROW_ROWS // sums if fits and not self.brief else 0
        # Vectors of a B that isn't packed, by rows that are few.
        self.wide = {4 // sums: 4, 2 // sums: 8} if many else {}
        self.at_once = Way("at_once", lambda: self._at_once(self.grid_task))
        self.direct = Way("direct", self._direct)
        packs = self.fmt.storage == self.fmt.acc
        self.small = Way("small", self._small) if packs else None
        self.panelled = Way("panelled", self._panelled) if packs else None
        # Elsewhere, one panelled B serves all tasks.
        packs_apart = packs and not parts.target.follows_strides
        self.apart = Way("apart", self._apart) if packs_apart else None
        self.turned = Way("turned", self._turned)
        self.axpy = Way("axpy", lambda: self._axpy(self._axpy_task()))
        self.dot = Way("dot", lambda: self._dot(self._dot_task()))

    @cached_property
    def grid_task(self) -> ir.Function:
        """The task of `grid`."""
        return self._grid_task()

    @cached_property
    def grid(self) -> ir.Function:
        """Does a job whose b lies in panels, or as if in one."""
        return self._grid(self.grid_task)

    def reached(self, way: str, m: int, n: int, a_cs: int, brief: bool) -> list[Micro]:
        """The kernels that a way calls for m × n elements, if not more: tasks have whole tiles, but
        for the last rows and columns."""
        found, left = [], m
        narrow = way in TILED and self.narrow and not brief
        if narrow and n <= self.tile.lanes and a_cs == 1:
            times, left = divmod(m, self.narrow)
            found += [Micro("narrow", self.narrow, 1, n < self.tile.lanes)] if times else []
        halves = self.halves and left >= 2 * self.halves and left % self.heights[0] == 2
        for h in self.heights if way in CALLS else ():
            times, left = divmod(left, h)
            # A task of all rows has two of these in place of a whole tile and the rest.
            times = times or (halves and h == self.halves)
            found += self._reached_across(way, h, n, brief) if times else []
        return found

    def _reached_across(self, way: str, height: int, n: int, brief: bool) -> list[Micro]:
        cols, lanes, found = self.tile.cols, self.tile.lanes, []
        wide, last = self.wide.get(height, 0), n % self.tile.cols
        if wide and n >= wide * lanes and way in AS_THEY_LIE:
            found.append(Micro("direct", height, wide))
        if n >= cols:
            masked = height <= 2 or (brief and self.tile.many_registers)
            found.append(Micro("direct", height, 2, masked))
        if last:
            found.append(Micro("direct", height, 2 if last > lanes else 1, True))
        return found

    @contextmanager
    def _while_fits(self, code: Code, counter, step: int, stop: Int) -> Iterator[Int]:
        """while counter + step ≤ stop: …; counter += step."""
        with code.loop() as (turn, done):
            i = Int(code, counter.get())
            code.b.cbranch((i + step <= stop).value, turn, done)
            code.b.position_at_end(turn)
            yield i
            counter.set(i + step)

    def _start(self, name: str, task: bool = False) -> tuple[Code, Record]:
        code = Code(self.parts.module, name, [PTR, I64, I64] if task else [PTR])
        return code, Record(code, JOB, code.args[0])

    def _direct(self) -> ir.Function:
        """b and c contiguous along n."""
        code, job = self._start("direct")
        job["pb_step"] = self.tile.cols
        code.call(self.grid, code.args[0])
        code.ret()
        return code.function

    def _at_once(self, task: ir.Function) -> ir.Function:
        """As `direct`, in the caller."""
        code, job = self._start("at_once")
        job["pb_step"] = self.tile.cols
        job["mt"], job["nt"], job["by_rows"] = job["m"], job["n"], 0
        code.call(task, code.args[0], 0, 1)
        code.ret()
        return code.function

    def _panelled(self) -> ir.Function:
        """c contiguous along n, b any way: its columns are packed first, a stays where it is."""
        code, job = self._start("panelled")
        cols, k = self.tile.cols, job["k"]
        panels = job["n"].ceil_div(cols)
        step = job["pb_step"] = self.parts.panel_elements(cols, k)
        job["pb"] = pb = code.call(self.parts.take, panels * step * self.fmt.acc_bytes)
        grain = (code.i64(self.parts.serial_work // 4) // (k * cols)).max(1)
        self.parts.loop(code, self._panel_task(), code.args[0], panels, grain)
        job["b"], job["b_rs"] = pb, cols
        code.call(self.grid, code.args[0])
        code.call(self.parts.give, pb)
        code.ret()
        return code.function

    def _panel_task(self) -> ir.Function:
        """Packs panels [begin, end) of B."""
        code, job = self._start("panel_task", task=True)
        cols, k, rs, cs, step = self.tile.cols, job["k"], job["b_rs"], job["b_cs"], job["pb_step"]
        start, stop = code.args[1] * cols, (code.args[2] * cols).min(job["n"])
        dst = code.at(job.pointer_at("pb"), code.args[1] * step, self.fmt.acc)
        src = code.at(job.pointer_at("b"), start * cs, self.fmt.storage)
        code.call(self.parts.pack_b, dst, src, stop - start, k, cs, rs, step)
        code.ret()
        return code.function

    def _grid(self, task: ir.Function) -> ir.Function:
        """Cuts C into tiles for the threads: by rows if there are enough, so that each reads its
        part of A once, else by columns."""
        code, job = self._start("grid")
        m, n, k, unit = job["m"], job["n"], job["k"], self.tile.cols
        height = self._is_narrow(code, job).select(self.narrow, self.heights[0])
        job["mt"], job["nt"], job["by_rows"] = m, n, 0
        tiles = code.variable(I64, I64(1))
        with code.when(m * n * k > 2 * self.parts.serial_work):
            rows, columns = m.ceil_div(height), n.ceil_div(unit)
            by_rows = (rows >= 8) | (rows > columns)
            with code.either(by_rows) as (yes, no):
                with yes:
                    enough = code.i64(self.parts.serial_work) // (n * k * height)
                    mt = enough.max(rows // (self.parts.threads(code) * 16)).max(1) * height
                    job["mt"], job["by_rows"] = mt, 1
                    tiles.set(m.ceil_div(mt))
                with no:
                    # Long pieces of B's rows, where they are read but once or twice.
                    least = (m <= THIN).select(8, 1)
                    nt = (code.i64(self.parts.serial_work) // (m * k * unit)).max(least) * unit
                    job["nt"] = nt
                    tiles.set(n.ceil_div(nt))
        self.parts.loop(code, task, code.args[0], Int(code, tiles.get()), code.i64(1))
        code.ret()
        return code.function

    def _grid_task(self) -> ir.Function:
        """Tiles [begin, end) of C."""
        code, job = self._start("grid_task", task=True)
        storage, acc, cols = self.fmt.storage, self.fmt.acc, self.tile.cols
        fields = ("k", "a_rs", "a_cs", "b_rs", "c_rs", "add", "pb_step", "mt", "nt", "by_rows")
        k, a_rs, a_cs, b_rs, c_rs, add, step, mt, nt, rows_first = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        by_rows = rows_first.ne(0)
        wide = self.wide
        with code.range(code.args[1], code.args[2]) as t:
            i0, start = by_rows.select(t * mt, 0), by_rows.select(0, t * nt)
            m, stop = (i0 + mt).min(job["m"]), (start + nt).min(job["n"])
            # Several vectors of B lie side by side only where it isn't packed.
            wide_stop = step.eq(cols).select(stop, start)
            bytes_a_row = k * self.fmt.bytes
            short = a_cs.eq(1) & (bytes_a_row <= SHORT_ROW) & (bytes_a_row > 2 * LINE)
            # In a cache already, if it is small; and one step along rows would fetch all of them.
            far = job["m"] * bytes_a_row > self.parts.target.caches.l2 // 4
            short = short & (far | (stop - start > cols))
            share = self._share(stop - start)
            row = code.variable(I64, i0)
            if self.narrow:
                self._narrow_rows(code, job, row, m)
            for h in self.heights:
                stop_row = self._without_halves(m, Int(code, row.get())) if h == 6 else m
                with self._while_fits(code, row, h, stop_row) as i:
                    ai, ci = code.at(a, i * a_rs, storage), code.at(c, i * c_rs, acc)
                    column = code.variable(I64, start)
                    if h in wide:
                        with self._while_fits(
                            code, column, wide[h] * self.tile.lanes, wide_stop
                        ) as j:
                            kernel = self.parts.kernels.direct(h, wide[h], masked=False)
                            bj, cj = code.at(b, j, storage), code.at(ci, j, acc)
                            code.call(kernel, k, ai, a_rs, a_cs, bj, b_rs, cj, c_rs, stop - j, add)
                    with code.range(Int(code, column.get()), stop, cols) as j:
                        if h == self.heights[0]:
                            first = (j - start) // cols * share
                            with code.when(short):
                                rows = (code.at(ai, a_rs * h, storage), first, first + share)
                                self._prefetch_rows(code, *rows, a_rs, k)
                        bj = code.at(b, j // cols * step, storage)
                        cj = code.at(ci, j, acc)
                        args = (k, ai, a_rs, a_cs, bj, b_rs, cj, c_rs, stop - j, add)
                        self._one_or_two_vectors(code, h, stop - j, args)
        code.ret()
        return code.function

    def _without_halves(self, stop: Int, row: Int) -> Int:
        """Where the rows of whole tiles end, if those behind a first one end at `stop`."""
        left, both = stop - row, 2 * self.halves
        if not self.halves:
            return stop
        return ((left >= both) & (left % self.heights[0]).eq(2)).select(stop - both, stop)

    def _is_narrow(self, code: Code, job: Record) -> Bool:
        """Whether `_narrow_rows` does all rows but the last few."""
        if not self.narrow:
            return Bool(code, ir.IntType(1)(0))
        return (job["n"] <= self.tile.lanes) & job["a_cs"].eq(1)

    def _narrow_rows(self, code: Code, job: Record, row: Variable, stop: Int) -> None:
        """The rows from this one on, as far as kernels for a few columns fit."""
        storage, acc, n = self.fmt.storage, self.fmt.acc, job["n"]
        fields = ("k", "a_rs", "a_cs", "b_rs", "c_rs", "add")
        k, a_rs, a_cs, b_rs, c_rs, add = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        with (
            code.when(self._is_narrow(code, job)),
            self._while_fits(code, row, self.narrow, stop) as i,
        ):
            ai, ci = code.at(a, i * a_rs, storage), code.at(c, i * c_rs, acc)
            args = (k, ai, a_rs, a_cs, b, b_rs, ci, c_rs, n, add)
            with code.either(n.eq(self.tile.lanes)) as (whole, part):
                for branch, masked in ((whole, False), (part, True)):
                    with branch:
                        code.call(self.parts.kernels.narrow(self.narrow, masked), *args)

    def _share(self, width: Int) -> Int:
        """How many of the next rows are prefetched with each step along these, to get them all."""
        share, steps = width.code.i64(1), self.heights[0] - 1
        while steps:
            rows = -(-self.heights[0] // (steps // 2 + 1))
            share = (width > steps * self.tile.cols).select(share, rows)
            steps //= 2
        return share

    def _prefetch_rows(
        self, code: Code, a: ir.Value, begin: Int, end: Int, a_rs: Int, k: Int
    ) -> None:
        """Rows [begin, end) of those that the tallest kernel reads next."""
        rows, line = end.min(self.heights[0]), LINE // self.fmt.bytes
        with code.range(begin, rows) as r, code.range(0, k, line) as kk:
            code.prefetch(code.at(a, r * a_rs + kk, self.fmt.storage))

    def _one_or_two_vectors(self, code: Code, height: int, n: Int, args: tuple) -> None:
        direct = self.parts.kernels.direct

        def masked() -> None:
            with code.either(n > self.tile.lanes) as (two, one):
                with two:
                    code.call(direct(height, 2, masked=True), *args)
                with one:
                    code.call(direct(height, 1, masked=True), *args)

        if height <= 2 or self.brief:
            masked()
            return
        # Masks take the place of sums in the registers of processors that have none for them, and
        # take some time elsewhere.
        with code.either(n >= self.tile.cols) as (whole, part):
            with whole:
                code.call(direct(height, 2, masked=False), *args)
            with part:
                masked()

    def _small(self) -> ir.Function:
        """c contiguous along n, k ≤ SMALL_K; b any way."""
        code, job = self._start("small")
        panel = code.variable(self.fmt.acc, count=(SMALL_K + 1) * self.tile.cols).slot
        with code.range(0, job["n"], self.tile.cols) as j:
            self._column(code, job, panel, j, code.i64(0), job["m"])
        code.ret()
        return code.function

    def _column(
        self, code: Code, job: Record, panel: ir.Value, j: Int, start: Int, stop: Int
    ) -> None:
        """Rows [start, stop) of the columns of C from j on that a panel of B has, which is packed
        here."""
        acc, cols = self.fmt.acc, self.tile.cols
        fields = ("n", "k", "a_rs", "a_cs", "b_rs", "b_cs", "c_rs", "add")
        n, k, a_rs, a_cs, b_rs, b_cs, c_rs, add = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        left = (n - j).min(cols)
        code.call(self.parts.pack_b, panel, code.at(b, j * b_cs, acc), left, k, b_cs, b_rs, 0)
        row = code.variable(I64, start)
        for h in self.heights:
            with self._while_fits(code, row, h, stop) as i:
                ai, cij = code.at(a, i * a_rs, acc), code.at(c, i * c_rs + j, acc)
                args = (k, ai, a_rs, a_cs, panel, cols, cij, c_rs, left, add)
                self._one_or_two_vectors(code, h, left, args)

    def _apart(self) -> ir.Function:
        """c contiguous along n, b any way: each task packs the columns of b that it reads, as lines
        that another core wrote come late; a stays where it is.

        Tasks go from row to row of C, of which there are as many parts as threads, if these are
        large: what wrote a, or will read c, probably does so, too.
        """
        code, job = self._start("apart")
        columns, threads = job["n"].ceil_div(self.tile.cols), self.parts.threads(code)
        few = (threads * APART_TASKS).ceil_div(columns)
        parts = few.max(threads.min(job["m"] // APART_ROWS))
        job["mt"] = mt = job["m"].ceil_div(parts).round_up(self.heights[0])
        tasks = job["m"].ceil_div(mt) * columns
        self.parts.loop(code, self._apart_task(), code.args[0], tasks, code.i64(1))
        code.ret()
        return code.function

    def _apart_task(self) -> ir.Function:
        """Pieces [begin, end) of C, row by row."""
        code, job = self._start("apart_task", task=True)
        cols, mt = self.tile.cols, job["mt"]
        columns = job["n"].ceil_div(cols)
        size = self.parts.panel_elements(cols, job["k"]) * self.fmt.acc_bytes
        panel = code.call(self.parts.take, size)
        with code.range(code.args[1], code.args[2]) as t:
            start, j = t // columns * mt, t % columns * cols
            self._column(code, job, panel, j, start, (start + mt).min(job["m"]))
        code.call(self.parts.give, panel)
        code.ret()
        return code.function

    def _turned(self) -> ir.Function:
        """b contiguous along n, c not; m small."""
        code, job = self._start("turned")
        m, n, rs, cs, add = (job[f] for f in ("m", "n", "c_rs", "c_cs", "add"))
        c, acc = job.pointer_at("c"), self.fmt.acc
        rows = code.call(self.parts.take, m * n * self.fmt.acc_bytes)
        job["c"], job["c_rs"], job["c_cs"], job["add"] = rows, n, 1, 0
        code.call(self.direct.function, code.args[0])
        with code.range(0, n) as j, code.range(0, m) as i:
            x = code.load(code.at(rows, i * n + j, acc), acc, self.fmt.acc_align)
            self.parts.kernels.write_scalar(code, x, code.at(c, i * rs + j * cs, acc), add)
        code.call(self.parts.give, rows)
        code.ret()
        return code.function

    def _axpy(self, task: ir.Function) -> ir.Function:
        """m = 1, b and c contiguous along n."""
        code, job = self._start("axpy")
        lanes, work = self.tile.lanes, code.i64(self.parts.serial_work // 2)
        grain = (work // (job["k"] * lanes).max(1)).max(512 // lanes)
        self.parts.loop(code, task, code.args[0], job["n"].ceil_div(lanes), grain)
        code.ret()
        return code.function

    def _axpy_task(self) -> ir.Function:
        """Columns [begin, end), in units of a vector."""
        code, job = self._start("axpy_task", task=True)
        n, k, a_cs, b_rs, add = (job[f] for f in ("n", "k", "a_cs", "b_rs", "add"))
        a, b, c = (job.pointer_at(f) for f in "abc")
        lanes, storage, acc = self.tile.lanes, self.fmt.storage, self.fmt.acc
        start, stop = code.args[1] * lanes, (code.args[2] * lanes).min(n)
        with code.range(start, stop, ROW_BLOCK) as j:
            width = (stop - j).min(ROW_BLOCK)
            at_k = code.variable(I64, I64(0))
            for rows in (8, 1):
                with self._while_fits(code, at_k, rows, k) as kk:
                    ak = code.at(a, kk * a_cs, storage)
                    bk = code.at(b, kk * b_rs + j, storage)
                    more = add + kk
                    kernel = self.parts.kernels.axpy(rows)
                    code.call(kernel, ak, a_cs, bk, b_rs, code.at(c, j, acc), width, more)
        code.ret()
        return code.function

    def _dot(self, task: ir.Function) -> ir.Function:
        """m small, b contiguous along k; rows of a are made contiguous if they are not."""
        code, job = self._start("dot")
        storage, m, n, k = self.fmt.storage, job["m"], job["n"], job["k"]
        rs, cs, work = job["a_rs"], job["a_cs"], code.i64(self.parts.serial_work // 2)
        grain = (work // (m * k).max(1)).max(1).round_up(4)
        copied = cs.ne(1)
        with code.when(copied):
            rows, a = code.call(self.parts.take, m * k * self.fmt.bytes), job.pointer_at("a")
            with code.range(0, m) as i, code.range(0, k) as kk:
                x = code.load(code.at(a, i * rs + kk * cs, storage), storage)
                code.store(x, code.at(rows, i * k + kk, storage))
            job["a"], job["a_rs"] = rows, k
        self.parts.loop(code, task, code.args[0], n, grain)
        with code.when(copied):
            code.call(self.parts.give, job.pointer_at("a"))
        code.ret()
        return code.function

    def _dot_task(self) -> ir.Function:
        code, job = self._start("dot_task", task=True)
        fields = ("m", "k", "a_rs", "b_cs", "c_rs", "c_cs", "add")
        m, k, a_rs, b_cs, c_rs, c_cs, add = (job[f] for f in fields)
        a, b, c = (job.pointer_at(f) for f in "abc")
        begin, end = code.args[1:]
        fours = end - (end - begin) % 4
        heights = [h for h in (4, 2, 1) if h * self.tile.sums <= 4]
        for cols, start, stop in ((4, begin, fours), (1, fours, end)):
            with code.range(start, stop, cols) as j:
                bj = code.at(b, j * b_cs, self.fmt.storage)
                row = code.variable(I64, I64(0))
                for h in heights if cols > 1 else (1,):
                    with self._while_fits(code, row, h, m) as i:
                        ai = code.at(a, i * a_rs, self.fmt.storage)
                        cij = code.at(c, i * c_rs + j * c_cs, self.fmt.acc)
                        kernel = self.parts.kernels.dot(h, cols)
                        code.call(kernel, k, ai, a_rs, bj, b_cs, cij, c_rs, c_cs, add)
        code.ret()
        return code.function
