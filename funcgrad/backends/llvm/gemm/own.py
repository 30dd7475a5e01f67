"""Tasks of the packed way that pack what no other task reads: some rows of A, or columns of B.

Packed in a loop before, a large operand goes to memory and back, and all threads wait for all of
it. A task's own part stays in its core's cache, while the other operand, packed before (a B in rows
by each task for itself), is small enough to be read from there as well. Where an operand lies as
its panels will but for its steps along k, the first tile that needs a panel multiplies from where
it lies, and writes it meanwhile; where rows of A are contiguous along k, it multiplies from the
panel, which it writes just ahead. Where lines that another core wrote come late, tasks have blocks
of columns, and pack rows of A for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.kernels import Kernels
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.words import JOB
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

ROW_PANELS = 32  # panels of A a thread from which on each is a task
SOME_PANELS = 12  # the same where reading B in place is slow, and what others pack comes slowly
COLUMN_PANELS = 16  # panels of B from which on tasks are columns
COLUMN_TASKS = 32  # a thread, about
AHEAD = 24  # steps along k that memory is asked for before it is copied
ROWS_AHEAD = 64  # the same of rows that are contiguous along k
PANEL_AHEAD = 96  # the same of the panel that they are copied to
PIECE = 16  # elements of such a row that are copied in one step; rows of a tile are no more
BEHIND = 1 << 32  # what counts as a panel that is taken from the back
FEW_PANELS = 2  # of A, from which on tasks are columns
PART_PANELS = 4  # of A, that a task of columns has at least, to read what it packed again
BLOCK_PANELS = 8  # of B, that a task has at most where they had better be a core's own
# States of a panel of A that whoever needs it first packs for all; of a thread's, CLAIMED and more.
READY, CLAIMED = 1, 2


class Own:
    """Writes the tasks, and decides when they are taken.

    pack(code, job, side, to, (first, last), (k0, k), step): packs a part of an operand
    multiply(code, arguments of `Kernels.packed`): calls the kernel for what is left of C
    """

    def __init__(self, parts: Parts, pack: Callable[..., None], multiply: Callable[..., None]):
        self.parts, self.pack, self.multiply = parts, pack, multiply
        self.tile, self.fmt = parts.tile, parts.fmt
        self.copies = not self.tile.pairs and self.fmt.storage == self.fmt.acc
        # Where lines that another core wrote come late, tasks of columns have large blocks of B,
        # and pack A, too.
        self.blocks = self.copies and not parts.target.follows_strides

    def sides(
        self, code: Code, job: Record, several: Bool, in_rows: Bool, no: Int, ko: Int
    ) -> tuple[Bool, Bool, Bool]:
        """Whether tasks pack their rows of A, and each all of B, too; or else their columns of B.

        several: whether a tile hasn't all rows; in_rows: whether b is contiguous along them
        """
        tile, m, never = self.tile, job["m"], Bool(code, ir.IntType(1)(0))
        if self.parts.narrow:
            return never, never, never
        plain, panels = several & job["a_rows"].eq(0), m.ceil_div(tile.rows)
        caches = self.parts.target.caches
        kept = caches.l2 // self.fmt.acc_bytes
        # All of B is read for each panel of A: by tall ones so seldom that the third cache will do.
        tall = tile.rows * tile.sums > 8
        far = max(kept, min(4 * caches.l2, caches.l3 // 8) // self.fmt.acc_bytes) if tall else kept
        near = self.parts.target.follows_strides
        enough = self.parts.threads(code) * (ROW_PANELS if near else SOME_PANELS)
        rows = plain & (panels >= enough) & (no * ko <= far)
        # Columns of B would have to be turned by each.
        both = rows & in_rows & (no * ko <= (kept if near else kept // 4))
        if not self.copies:
            return rows, both, never
        wide = plain & (no >= COLUMN_PANELS * tile.cols) & (panels >= FEW_PANELS)
        columns = wide & in_rows & ~rows & (m * ko <= kept) & (no >= 2 * m)
        if not self.blocks:
            return rows, both, columns
        blocks = wide & job["b_cols"].eq(0) & ~both & ~columns
        job["lazy"] = blocks.select(1, 0)
        return rows & ~blocks, both, columns | blocks

    def column_tasks(self, code: Code, job: Record, a_panels: Int, b_panels: Int) -> None:
        """Sets how many rows and columns a task has, and the number of tasks."""
        threads, wide, least = self.parts.threads(code), code.i64(1), code.i64(PART_PANELS)
        if self.blocks:
            lazy, half = job["lazy"].ne(0), self.parts.target.caches.l2 // 2 // self.fmt.acc_bytes
            most = (code.i64(half) // (job["kl"] * self.tile.cols)).min(b_panels.ceil_div(threads))
            wide = lazy.select(most.min(BLOCK_PANELS).max(1), wide)
            # Threads that take parts of a block one after the other each pack it.
            least = lazy.select(threads, least)
            with code.range(0, a_panels) as i:
                state = lazy.select(0, READY)
                code.store(state, code.at(job.pointer_at("states"), i, I64))
        blocks = b_panels.ceil_div(wide)
        cuts = (threads * COLUMN_TASKS).ceil_div(blocks)
        parts = job["row_tiles"] = cuts.min(a_panels.ceil_div(least))
        job["nt"], job["tasks"] = wide * self.tile.cols, parts * blocks

    def rows_task(self) -> ir.Function:
        """Multiplies panels of A with all of B, one after the other while there are any.

        Each of the tasks [begin, end), as many as there are threads, packs a B that isn't for
        itself, with the first panel that it has: what another core has written would come from
        there line by line.
        """
        block = _Block(self, "rows_task")
        code, job, tile, m = block.code, block.job, self.tile, block.m
        size, panels, shared = self.fmt.acc_bytes, m.ceil_div(tile.rows), job["prepacked"]
        own = code.call(self.parts.take, self.parts.panel_elements(tile.rows, block.kc) * size)
        room = block.n.ceil_div(tile.cols) * job["pb_step"] * size
        mine = code.call(self.parts.take, shared.ne(0).select(0, room))
        block.pb = shared.ne(0).pick(block.pb, mine)
        packed = code.variable(I64, shared)
        with code.range(code.args[1], code.args[2]) as t, code.loop() as (turn, done):
            panel, some = self._next(code, job, t.eq(0), panels)
            code.b.cbranch(some.value, turn, done)
            code.b.position_at_end(turn)
            i = panel * tile.rows
            fresh = Int(code, packed.get()).eq(0)
            with code.range(0, block.k, block.kc) as pc, code.either(fresh) as (first, later):
                columns = code.i64(0), block.n
                with first:
                    self._pack_rows(block, own, i, pc)
                    self._packing_columns(block, own, i, pc, columns)
                with later:
                    self._packing_rows(block, own, i, pc, columns)
            packed.set(I64(1))
        code.call(self.parts.give, mine)
        return block.end(own)

    def _next(self, code: Code, job: Record, front: Bool, count: Int) -> tuple[Int, Bool]:
        """What a thread takes next of so many, from the front or the back, and whether there is
        one: the pool gives its chunks so, too."""
        step = front.select(1, BEHIND)
        taken = Int(code, code.b.atomic_rmw("add", job.place("taken"), step.value, "monotonic"))
        before, behind = taken % BEHIND, taken // BEHIND
        return front.select(before, count - 1 - behind), before + behind < count

    def _pack_rows(self, block: _Block, to: ir.Value, i: Int, pc: Int) -> None:
        """Packs rows from i on, along k from pc on."""
        kl, end = (block.k - pc).min(block.kc), (i + self.tile.rows).min(block.m)
        self.pack(block.code, block.job, "a", to, (i, end), (pc, kl), block.code.i64(0))

    def _packing_columns(
        self, block: _Block, a: ir.Value, i: Int, pc: Int, columns: tuple[Int, Int]
    ) -> None:
        """Multiplies a panel of A with some columns of B, and packs these meanwhile."""
        code, job, tile, (first, last) = block.code, block.job, self.tile, columns
        kl = (block.k - pc).min(block.kc)
        in_rows = job["b_cs"].eq(1) & job["b_cols"].eq(0) & (block.m - i >= tile.rows)
        with code.range(first, last, tile.cols) as j:
            panel = block.b_panel(j - first, pc)

            def pack(j: Int = j, panel: ir.Value = panel) -> None:
                ends = (j, (j + tile.cols).min(block.n))
                self.pack(code, job, "b", panel, ends, (pc, kl), code.i64(0))
                self.multiply(code, block.arguments(i, j, pc, kl, a, panel))

            if self.copies and tile.masks:
                with code.either(in_rows & (block.n - j >= tile.cols)) as (yes, no):
                    with yes:
                        source = block.source("b", j, pc)
                        arguments = block.arguments(i, j, pc, kl, a, source)
                        code.call(packing(self.parts.kernels, "b"), job["b_rs"], panel, *arguments)
                    with no:
                        pack()
            else:
                pack()

    def _packing_rows(
        self, block: _Block, own: ir.Value, i: Int, pc: Int, columns: tuple[Int, Int]
    ) -> None:
        """The same where B is packed: the first tile packs the rows meanwhile."""
        code, job, tile, (first, last) = block.code, block.job, self.tile, columns
        kl = (block.k - pc).min(block.kc)
        start = code.variable(I64, first)
        if self.copies and tile.masks:
            rs, cs = job["a_rs"], job["a_cs"]
            whole = (block.m - i >= tile.rows) & (block.n - first >= tile.cols)
            with code.either((rs.eq(1) | cs.eq(1)) & whole) as (yes, no):
                with yes:
                    a, b = block.source("a", i, pc), block.b_panel(code.i64(0), pc)
                    arguments = block.arguments(i, first, pc, kl, a, b)
                    with code.either(rs.eq(1)) as (lines, rows):
                        with lines:
                            code.call(packing(self.parts.kernels, "a"), cs, own, *arguments)
                        with rows:
                            code.call(packing_rows(self.parts.kernels), rs, own, *arguments)
                    start.set(first + tile.cols)
                with no:
                    self._pack_rows(block, own, i, pc)
        else:
            self._pack_rows(block, own, i, pc)
        self._row(block, own, i, pc, (first, Int(code, start.get()), last))

    def _row(
        self, block: _Block, a: ir.Value, i: Int, pc: Int, columns: tuple[Int, Int, Int]
    ) -> None:
        """Multiplies a packed panel of A with packed columns of B: of those from the first on, with
        those from the second to before the last."""
        first, start, last = columns
        kl = (block.k - pc).min(block.kc)
        with block.code.range(start, last, self.tile.cols) as j:
            b = block.b_panel(j - first, pc)
            self.multiply(block.code, block.arguments(i, j, pc, kl, a, b))

    def columns_task(self) -> ir.Function:
        """Multiplies blocks of B's columns with parts of A's rows.

        Each of the tasks [begin, end), as many as there are threads, packs the block whose part it
        takes, unless it was the last one's, too: it stays in its core's cache.
        """
        block = _Block(self, "columns_task")
        code, job, tile, size = block.code, block.job, self.tile, self.fmt.acc_bytes
        nt, parts, tasks = job["nt"], job["row_tiles"], job["tasks"]
        own = block.pb = code.call(self.parts.take, nt // tile.cols * job["pb_step"] * size)
        room = self.parts.panel_elements(tile.rows, block.kc) if self.blocks else code.i64(0)
        spare = code.call(self.parts.take, room * size)
        with code.range(code.args[1], code.args[2]) as t:
            packed = code.variable(I64, I64(-1))
            with code.loop() as (turn, done):
                task, some = self._next(code, job, t.eq(0), tasks)
                code.b.cbranch(some.value, turn, done)
                code.b.position_at_end(turn)
                part, panels = task % parts, block.m.ceil_div(tile.rows)
                i0, i1 = (p * panels // parts * tile.rows for p in (part, part + 1))
                j0, i1 = task // parts * nt, i1.min(block.m)
                j1 = (j0 + nt).min(block.n)
                fresh = Int(code, packed.get()).ne(j0)
                with code.range(0, block.k, block.kc) as pc, code.range(i0, i1, tile.rows) as i:
                    self._rows_of_block(block, (t, spare), i, pc, fresh & i.eq(i0), (j0, j1))
                packed.set(j0)
        code.call(self.parts.give, spare)
        return block.end(own)

    def _rows_of_block(
        self, block: _Block, thread: tuple[Int, ir.Value], i: Int, pc: Int, fresh: Bool,
        columns: tuple[Int, Int],
    ) -> None:  # fmt: skip
        """Multiplies rows from i on with a block of columns, and packs what isn't packed: the block
        if it is fresh, and the rows, to where others find them unless another thread does.

        thread: its number, and its own room for rows
        """
        code, a, (number, spare) = block.code, block.a_panel(i, pc), thread
        if self.blocks:
            place, claim = (
                code.at(block.job.pointer_at("states"), i // self.tile.rows, I64),
                number + CLAIMED,
            )
            pair = code.b.cmpxchg(place, I64(0), claim.value, "acquire", "acquire")
            old = Int(code, code.b.extract_value(pair, 0))
            # What is packed along k in parts is ready with the last.
            ready, mine = old.eq(READY), old.eq(0) | old.eq(claim)
            a = (ready | mine).pick(a, spare)
        with code.either(fresh) as (first, later):
            with first:
                if self.blocks:
                    with code.when(~ready):
                        self._pack_rows(block, a, i, pc)
                self._packing_columns(block, a, i, pc, columns)
            with later:
                known = columns[0], columns[0], columns[1]
                if self.blocks:
                    with code.either(ready) as (yes, no):
                        with yes:
                            self._row(block, a, i, pc, known)
                        with no:
                            self._packing_rows(block, a, i, pc, columns)
                else:
                    self._row(block, a, i, pc, known)
        if self.blocks:
            with code.when(mine & (pc + block.kc >= block.k)):
                code.b.atomic_rmw("xchg", place, I64(READY), "release")


class _Block:
    """A task being written, and what it reads of a job: the block in hand, and where it lies."""

    def __init__(self, own: Own, name: str):
        self.own, self.code = own, Code(own.parts.module, name, [PTR, I64, I64])
        self.job = job = Record(self.code, JOB, self.code.args[0])
        self.m, self.n, self.k = job["ml"], job["nl"], job["kl"]
        self.rs, self.cs = job["c_rs"], job["c_cs"]
        start = job["ic"] * self.rs + job["jc"] * self.cs
        self.c = self.code.at(job.pointer_at("c"), start, own.fmt.acc)
        self.add = job["add"] + job["ko"]
        self.kc = equal_parts(self.k, own.tile.kc, 2)
        self.pb = job.pointer_at("pb")

    def source(self, side: str, i: Int, pc: Int) -> ir.Value:
        """Where rows of A, or columns of B, from i on lie at pc of k."""
        start, across = ("ic", "a_rs") if side == "a" else ("jc", "b_cs")
        along = "a_cs" if side == "a" else "b_rs"
        job = self.job
        offset = (job["ko"] + pc) * job[along] + (job[start] + i) * job[across]
        return self.code.at(job.pointer_at(side), offset, self.own.fmt.storage)

    def a_panel(self, i: Int, pc: Int) -> ir.Value:
        """Where rows from i on lie packed, at pc of k."""
        return self._panel(self.job.pointer_at("pa"), "pa_step", i, pc, self.own.tile.rows)

    def b_panel(self, j: Int, pc: Int) -> ir.Value:
        """Where columns from j on lie packed, at pc of k."""
        return self._panel(self.pb, "pb_step", j, pc, self.own.tile.cols)

    def _panel(self, base: ir.Value, step: str, i: Int, pc: Int, width: int) -> ir.Value:
        offset = i // width * self.job[step] + self.own.tile.depth(pc) * width
        return self.code.at(base, offset, self.own.fmt.acc)

    def arguments(self, i: Int, j: Int, pc: Int, kl: Int, a: ir.Value, b: ir.Value) -> tuple:
        """Those of `Kernels.packed`, for the tile of C at (i, j)."""
        c = self.code.at(self.c, i * self.rs + j * self.cs, self.own.fmt.acc)
        rest = (self.rs, self.cs, self.m - i, self.n - j, self.add + pc)
        return (self.own.tile.depth(kl), a, b, c, *rest)

    def end(self, own: ir.Value) -> ir.Function:
        """The function, which gives back the memory of its panels."""
        self.code.call(self.own.parts.give, own)
        self.code.ret()
        return self.code.function


def packing(kernels: Kernels, side: str) -> ir.Function:
    """void(step, to, k, a, b, c, …), as `Kernels.packed`, for a whole tile: one operand lies as its
    panel will, but `step` from one k to the next; the panel is written to `to` meanwhile."""
    return kernels.once(f"packing_{side}", lambda name: _packing(kernels, name, side))


def _packing(kernels: Kernels, name: str, side: str) -> ir.Function:
    code = Code(kernels.module, name, [I64, PTR, I64, PTR, PTR, PTR, *[I64] * 5])
    tile, fmt, vec, lanes = kernels.tile, kernels.fmt, kernels.vec, kernels.tile.lanes
    step, to, k, a, b = code.args[:5]
    source, width = (a, tile.rows) if side == "a" else (b, tile.cols)

    def copy(kk: Int) -> None:
        line, panel, soon = (
            code.at(p, at * along, fmt.acc)
            for p, at, along in (
                (source, kk, step),
                (to, kk, width),
                (source, (kk + AHEAD).min(k - 1), step),
            )
        )
        for first in range(0, width, lanes):
            p, q = code.at(line, first, fmt.acc), code.at(panel, first, fmt.acc)
            if first + lanes <= width:
                code.store(code.load(p, vec, fmt.align), q, fmt.acc_align)
            else:
                mask = kernels.mask(code, width - first)
                code.masked_store(code.masked_load(p, mask, vec), q, mask)
            code.prefetch(code.at(soon, first, fmt.acc))
        code.prefetch(code.at(soon, width - 1, fmt.acc))

    steps = (step, tile.cols) if side == "a" else (tile.rows, step)
    kernels.panels(code, tile.rows, tile.vectors, code.args[2:], steps, copy)
    return code.function


def packing_rows(kernels: Kernels) -> ir.Function:
    """As `packing` of a, whose rows are contiguous along k; `step` is from one to the next."""
    return kernels.once("packing_rows", lambda name: _packing_rows(kernels, name))


def _packing_rows(kernels: Kernels, name: str) -> ir.Function:
    """Each step copies a piece of one row, of a block ahead: several rows at a time would meet in
    the same lines of the first cache where they are a page apart, and in few of its pages' table.
    """
    code = Code(kernels.module, name, [I64, PTR, I64, PTR, PTR, PTR, *[I64] * 5])
    tile, fmt = kernels.tile, kernels.fmt
    step, to, k, a = code.args[:4]
    whole = k // PIECE * PIECE

    def copy(row: Int, k0: Int, size: int) -> None:
        source = code.at(a, row * step + k0, fmt.acc)
        target = code.at(to, k0 * tile.rows + row, fmt.acc)
        for i in range(size):
            there = code.at(target, i * tile.rows, fmt.acc)
            code.copy_word(there, code.at(source, i, fmt.acc), fmt.bytes)

    def ahead(kk: Int) -> None:
        if not kernels.target.follows_strides:
            # Another core may have the panel's lines, from which they come late.
            line = code.at(to, (kk + PANEL_AHEAD) * tile.rows, fmt.acc)
            code.prefetch(line, write=True, first=True)
        row = kk % PIECE
        k0 = kk - row + PIECE
        with code.when((row < tile.rows) & (k0 < whole)):
            copy(row, k0, PIECE)
            soon = row * step + (k0 + ROWS_AHEAD).min(k - 1)
            code.prefetch(code.at(a, soon, fmt.acc))

    line = 64 // fmt.bytes
    with code.range(0, tile.rows) as row:
        for first in range(0, ROWS_AHEAD + PIECE, line):
            code.prefetch(code.at(a, row * step + first, fmt.acc))
    with code.range(0, tile.rows) as row:
        with code.when(whole > 0):
            copy(row, code.i64(0), PIECE)
        with code.range(whole, k) as kk:
            copy(row, kk, 1)
    arguments = [k, to, *code.args[4:]]
    kernels.panels(code, tile.rows, tile.vectors, arguments, (tile.rows, tile.cols), ahead)
    return code.function
