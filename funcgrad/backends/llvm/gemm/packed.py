"""The packed way of the generated GEMM, for all that is neither small nor thin.

Blocks of at most mo × ko of A and ko × no of B are packed in parallel, then tiles of C are
multiplied in parallel, k in steps of kc (Goto & van de Geijn 2008; Van Zee & van de Geijn, BLIS,
2015). Where one tile has all rows, B's columns are packed by the tile that needs them, just before;
`own` has the tasks that pack a part of A, or of a B in rows.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.gemm.job import Parts, Way
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.own import Own
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.words import JOB
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    I64,
    PTR,
    VOID,
    Bool,
    Code,
    Int,
    Record,
)

OWN_ROWS = 280  # rows up to which each tile packs its part of B, unless it is in rows
OWN_DEPTH = 384  # of what a tile packs itself
TILE_ROWS = 126
TILE_PANELS = 8
MIN_TILE_WORK = 1 << 18
BLOCK_ROWS, BLOCK_COLS = 1100, 2048  # of a block, at most (about)
PART = 1 << 15  # elements that a thread packs at a time
FINISHED = 1 << 15  # sums of a task that finishes them: a core's second cache holds them


class Packed:
    """Holds `way`, whose function is void(ptr job).

    tables: whether jobs may have tables
    """

    def __init__(self, parts: Parts, tables: bool):
        self.parts, self.tile, self.fmt, self.tables = parts, parts.tile, parts.fmt, tables
        self.own = Own(parts, self._pack, self.choose_kernel)
        self.way = Way("packed", lambda: self._blocks(self._pack_task(), self._tile_task()))

    def _pack_task(self) -> ir.Function:
        """Packs parts [begin, end) of a block: first those of A, then those of B."""
        code = Code(self.parts.module, "pack_task", [PTR, I64, I64])
        job = Record(code, JOB, code.args[0])
        first, last, parts = code.args[1], code.args[2], job["a_parts"]
        with code.when(first < parts):
            self._pack_parts(code, job, "a", first, last.min(parts))
        with code.when(last > parts):
            self._pack_parts(code, job, "b", first.max(parts) - parts, last - parts)
        code.ret()
        return code.function

    def _pack_parts(self, code: Code, job: Record, side: str, first: Int, last: Int) -> None:
        """Parts [first, last) of an operand: k of all panels, where it is contiguous along them
        and so is read in one go, else some panels."""
        width, size = (self.tile.rows, job["ml"]) if side == "a" else (self.tile.cols, job["nl"])
        k, step, acc = job["kl"], job[f"p{side}_step"], self.fmt.acc
        along_k, depth, panels = self._part(code, job, side)
        packed = job.pointer_at(f"p{side}")
        with code.either(along_k) as (yes, no):
            with yes:
                k0, k1 = first * depth, (last * depth).min(k)
                at = code.at(packed, self.tile.depth(k0) * width, acc)
                self._pack(code, job, side, at, (code.i64(0), size), (k0, k1 - k0), step)
            with no:
                i0, i1 = first * panels * width, (last * panels * width).min(size)
                at = code.at(packed, first * panels * step, acc)
                self._pack(code, job, side, at, (i0, i1), (code.i64(0), k), step)

    def _part(self, code: Code, job: Record, side: str) -> tuple[Bool, Int, Int]:
        """Whether parts of an operand are cut along k, how deep they are then, and else how many
        panels they have."""
        width, size = (self.tile.rows, job["ml"]) if side == "a" else (self.tile.cols, job["nl"])
        unit, table = ("a_rs", "a_rows") if side == "a" else ("b_cs", "b_cols")
        # Without masks, what packs a row may reach into the next one, another thread's.
        apart = width % self.tile.lanes == 0 or self.tile.masks
        along_k = job[unit].eq(1) & job[table].eq(0) if apart else Bool(code, ir.IntType(1)(0))
        depth = (code.i64(PART) // size).max(16).round_up(2)
        return along_k, depth, (code.i64(PART) // (job["kl"] * width)).max(4)

    def _parts(self, code: Code, job: Record, side: str, panels: Int) -> Int:
        """How many parts an operand of the block has."""
        along_k, depth, count = self._part(code, job, side)
        return along_k.select(job["kl"].ceil_div(depth), panels.ceil_div(count))

    def _pack(
        self,
        code: Code,
        job: Record,
        side: str,
        dst: ir.Value,
        outer: tuple[Int, Int],
        inner: tuple[Int, Int],
        step: Int,
    ) -> None:
        """Packs rows of A, or columns of B: from the first to before the last, and of k from the
        first so many; counted in the block."""
        (i0, i1), (k0, k) = outer, inner
        if side == "a":
            start, rs, cs, table = job["ic"], job["a_rs"], job["a_cs"], "a_rows"
            pack = self.parts.pack_a
        else:
            start, rs, cs, table = job["jc"], job["b_cs"], job["b_rs"], "b_cols"
            pack = self.parts.pack_b
        source = job.pointer_at(side)

        def by_strides() -> None:
            offset = (start + i0) * rs + (job["ko"] + k0) * cs
            src = code.at(source, offset, self.fmt.storage)
            code.call(pack, dst, src, i1 - i0, k, rs, cs, step)

        if not self.tables:
            by_strides()
            return
        with code.either(job[table].ne(0)) as (tables, plain):
            with tables:
                gather = self.parts.gather_a if side == "a" else self.parts.gather_b
                across = code.at(job.pointer_at(table), start + i0, I64)
                ks = code.at(job.pointer_at(f"{side}_ks"), job["ko"] + k0, I64)
                code.call(gather, dst, source, i1 - i0, k, across, ks, step)
            with plain:
                by_strides()

    def _tile_task(self) -> ir.Function:
        """Multiplies tiles [begin, end) of the block's part of C."""
        code = Code(self.parts.module, "tile_task", [PTR, I64, I64])
        job, tile, acc = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc
        row_tiles, mt, nt = job["row_tiles"], job["mt"], job["nt"]
        m, n, k, rs, cs = job["ml"], job["nl"], job["kl"], job["c_rs"], job["c_cs"]
        prepacked = job["prepacked"].ne(0)
        start = job["ic"] * rs + job["jc"] * cs
        sums = code.variable(PTR, code.at(job.pointer_at("c"), start, acc))
        rounds = job["rounds"].ne(0) if self.parts.narrow else None
        if rounds is not None:
            rs, cs = rounds.select(nt, rs), rounds.select(1, cs)
            with code.when(rounds):
                sums.set(code.call(self.parts.take, mt * nt * self.fmt.acc_bytes))
        apart = job["apart"].ne(0) if self.parts.finishes else None
        if apart is not None:
            with code.when(apart):
                sums.set(code.call(self.parts.take, mt * n * self.fmt.acc_bytes))
        own = code.variable(PTR, job.pointer_at("pb"))
        own_depth = min(tile.kc, OWN_DEPTH * tile.along)
        depths = (equal_parts(k, most, tile.unit) for most in (tile.kc, own_depth))
        kc = prepacked.select(*depths)
        own_step = self.parts.panel_elements(tile.cols, kc)
        with code.when(~prepacked):
            size = own_step * (nt // tile.cols) * self.fmt.acc_bytes
            own.set(code.call(self.parts.take, size))
        with code.range(code.args[1], code.args[2]) as t:
            i0, j0 = t % row_tiles * mt, t // row_tiles * nt
            i1, j1 = (i0 + mt).min(m), (j0 + nt).min(n)
            at = sums.get()
            if rounds is not None:
                at = code.at(at, rounds.select(0 - i0 * nt - j0, 0), acc)
            if apart is not None:
                at = code.at(at, apart.select(0 - i0 * n, 0), acc)
            with code.range(0, k, kc) as pc:
                some = pc, (k - pc).min(kc)
                with code.when(~prepacked):
                    self._pack(code, job, "b", own.get(), (j0, j1), some, own_step)
                self._tiles(
                    code, job, (i0, i1), (j0, j1), some, (own.get(), own_step), (at, rs, cs)
                )
            if rounds is not None:
                with code.when(rounds):
                    self._round(code, job, sums.get(), (i0, i1), (j0, j1))
            if apart is not None:
                with code.when(job["finish"].ne(0)):
                    self._finish(code, job, at, (i0, i1))
        for aside in (rounds, apart):
            if aside is not None:
                with code.when(aside):
                    code.call(self.parts.give, sums.get())
        with code.when(~prepacked):
            code.call(self.parts.give, own.get())
        code.ret()
        return code.function

    def _tiles(
        self, code: Code, job: Record, rows: tuple[Int, Int], columns: tuple[Int, Int],
        along: tuple[Int, Int], own: tuple[ir.Value, Int], c: tuple[ir.Value, Int, Int],
    ) -> None:  # fmt: skip
        """Multiplies rows and columns of a tile, `along` from one place of k on for some.

        own: where these columns of B lie packed if B isn't as a whole, and how far panels are apart
        c: where the block's part of C begins, and its strides
        """
        (j0, j1), (pc, kl), (panels, own_step), (at, rs, cs) = columns, along, own, c
        tile, acc, depth, m, n = self.tile, self.fmt.acc, self.tile.depth, job["ml"], job["nl"]
        pa, pb, pa_step, pb_step = (
            job.pointer_at("pa"), job.pointer_at("pb"), job["pa_step"], job["pb_step"]
        )  # fmt: skip
        prepacked, add = job["prepacked"].ne(0), job["add"] + job["ko"] + pc
        # Along rows of C first: a column of tiles would walk memory in long strides.
        strip = TILE_PANELS * tile.cols if self.parts.finishes else job["nt"]
        with (
            code.range(j0, j1, strip) as first,
            code.range(*rows, tile.rows) as i,
            code.range(first, (first + strip).min(j1), tile.cols) as j,
        ):
            ready = code.at(pb, j // tile.cols * pb_step + depth(pc) * tile.cols, acc)
            fresh = code.at(panels, (j - j0) // tile.cols * own_step, acc)
            bp = prepacked.pick(ready, fresh)
            ap = code.at(pa, i // tile.rows * pa_step + depth(pc) * tile.rows, acc)
            cp = code.at(at, i * rs + j * cs, acc)
            self.choose_kernel(code, (depth(kl), ap, bp, cp, rs, cs, m - i, n - j, add))

    def _finish(self, code: Code, job: Record, sums: ir.Value, rows: tuple[Int, Int]) -> None:
        """Rows of the block, given to what consumes them; sums: where its first one would lie."""
        finish = ir.Called(job.pointer_at("finish"), ir.FunctionType(VOID, [PTR, I64, I64, PTR]))
        above, (begin, end) = job["ic"], rows
        first = code.at(sums, 0 - above * job["nl"], self.fmt.acc)
        code.call(finish, job.pointer_at("around"), above + begin, above + end, first)

    def _round(
        self, code: Code, job: Record, sums: ir.Value, rows: tuple[Int, Int], cols: tuple[Int, Int]
    ) -> None:
        """A tile's sums, rounded to where they are wanted."""
        (i0, i1), (j0, j1), rs, cs = rows, cols, job["out_rs"], job["out_cs"]
        offset = (job["ic"] + i0) * rs + (job["jc"] + j0) * cs
        out = code.at(job.pointer_at("out"), offset, self.parts.out.storage)
        size, add = (i1 - i0, j1 - j0), job["out_add"]
        code.call(self.parts.round, sums, job["nt"], out, rs, cs, *size, add)

    def choose_kernel(self, code: Code, args: tuple[Any, ...]) -> None:
        """The smallest micro-kernel that has the rows and columns that are left."""
        rows_left, columns_left, kernels, tile = args[6], args[7], self.parts.kernels, self.tile
        heights = self._heights

        def choose(heights: list[int]) -> None:
            if len(heights) == 1:
                code.call(kernels.packed(heights[0], tile.vectors), *args)
                return
            with code.either(rows_left > heights[-2]) as (taller, fits):
                with taller:
                    code.call(kernels.packed(heights[-1], tile.vectors), *args)
                with fits:
                    choose(heights[:-1])

        with code.either(columns_left > tile.lanes) as (several, one):
            with several:
                choose(heights)
            with one:
                code.call(kernels.packed(tile.rows, 1), *args)

    @property
    def _heights(self) -> list[int]:
        return [h for h in (4, 8) if h < self.tile.rows] + [self.tile.rows]

    def reached(self, m: int, n: int) -> list[Micro]:
        """The kernels that are chosen for m × n elements: blocks and tiles have whole panels, but
        for the last ones."""
        tile, (left, last) = self.tile, (m % self.tile.rows, n % self.tile.cols)
        found = []
        if n >= tile.cols or last > tile.lanes:
            heights = [next(h for h in self._heights if h >= left)] if left else []
            heights += [tile.rows] if m >= tile.rows else []
            found += [Micro("packed", h, tile.vectors) for h in dict.fromkeys(heights)]
        return found + ([Micro("packed", tile.rows, 1)] if 0 < last <= tile.lanes else [])

    def _blocks(self, pack_task: ir.Function, tile_task: ir.Function) -> ir.Function:
        """The loops over blocks, each of two parallel loops: pack, multiply."""
        code = Code(self.parts.module, "packed", [PTR])
        job, tile, size = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc_bytes
        m, n, k, room = job["m"], job["n"], job["k"], self.parts.panel_elements
        mo = equal_parts(m, BLOCK_ROWS, tile.rows)
        no = equal_parts(n, BLOCK_COLS, tile.cols)
        ko = equal_parts(k, 2 * tile.kc, tile.unit)
        # What is contiguous along panels is read in one go by packing all of it.
        in_rows = job["b_cs"].eq(1) & job["b_cols"].eq(0)
        several = (m > OWN_ROWS // tile.rows * tile.rows) | in_rows
        job["lazy"] = 0
        never = Bool(code, ir.IntType(1)(0))
        finished = job["finish"].ne(0) if self.parts.finishes else never
        if self.parts.finishes:
            # A task has whole rows, and all of k.
            no, ko = finished.select(n.round_up(tile.cols), no), finished.select(k, ko)
            several = several | finished
        own_rows, own_both, own_columns = self.own.sides(code, job, several, in_rows, no, ko)
        if self.parts.finishes:
            own_rows, own_both, own_columns = (
                x & ~finished for x in (own_rows, own_both, own_columns)
            )
            job["lazy"] = finished.select(0, job["lazy"])
        shared = several & ~own_columns & ~own_both
        lazy = job["lazy"].ne(0)
        mo = lazy.select(equal_parts(m, 2 * BLOCK_ROWS, tile.rows), mo)
        job["prepacked"] = (several & ~own_both).select(1, 0)
        # Tasks pack in parts of k, and what packing writes behind the last one is a panel's, too.
        behind = (own_both | own_columns).select(2 * tile.lanes, 0)
        behind_a = lazy.select(2 * tile.lanes, 0)
        mo = own_rows.select(m, mo)
        pa_bytes = mo // tile.rows * room(tile.rows, ko + behind_a) * size
        pb_bytes = no // tile.cols * room(tile.cols, ko) * size
        states = own_columns.select(mo // tile.rows * 8, 0)  # of its panels, behind A
        pa = code.call(self.parts.take, own_rows.select(0, pa_bytes + states))
        pb = code.call(self.parts.take, shared.select(pb_bytes, 0))
        job["pa"], job["pb"], job["states"] = pa, pb, code.at(pa, pa_bytes, ir.IntType(8))
        # A tile whose sums are whole after one block of k is rounded while they are at hand.
        rounds = job["out"].ne(0) & (k <= ko) if self.parts.narrow else None
        if rounds is not None:
            job["rounds"] = rounds.select(1, 0)
        with code.range(0, n, no) as jc, code.range(0, k, ko) as kk, code.range(0, m, mo) as ic:
            ml, nl, kl = (m - ic).min(mo), (n - jc).min(no), (k - kk).min(ko)
            a_panels, b_panels = ml.ceil_div(tile.rows), nl.ceil_div(tile.cols)
            for name, value in {"jc": jc, "ic": ic, "ko": kk, "nl": nl, "ml": ml, "kl": kl}.items():
                job[name] = value
            job["pa_step"] = room(tile.rows, kl + behind_a)
            job["pb_step"] = room(tile.cols, kl + behind)
            a_parts = (own_rows | lazy).select(0, self._parts(code, job, "a", a_panels))
            job["a_parts"] = a_parts
            # B's are there from the first rows on.
            fresh = shared & ic.eq(0)
            parts = a_parts + fresh.select(self._parts(code, job, "b", b_panels), 0)
            serial = ml * nl * kl < self.parts.serial_work
            self.parts.loop(code, pack_task, code.args[0], parts, serial.select(parts, 1))
            self._multiply(code, job, tile_task, several, (own_rows, own_columns))
        if rounds is not None:
            job["out"] = rounds.select(0, job["out"])
        code.call(self.parts.give, pb)
        code.call(self.parts.give, pa)
        code.ret()
        return code.function

    def _multiply(
        self, code: Code, job: Record, tile_task: ir.Function, several: Bool,
        own: tuple[Bool, Bool],
    ) -> None:  # fmt: skip
        """The parallel loop over the block in hand, which is packed but for what tasks pack."""
        tile, work = self.tile, job["ml"] * job["nl"] * job["kl"]
        a_panels, b_panels = job["ml"].ceil_div(tile.rows), job["nl"].ceil_div(tile.cols)

        def loop(task: ir.Function, count: Int) -> None:
            grain = (work < self.parts.serial_work).select(count, 1)
            self.parts.loop(code, task, code.args[0], count, grain)

        def by_tiles() -> None:
            loop(tile_task, self._tiling(code, job, work, a_panels, b_panels, job["kl"], several))

        def by_columns() -> None:
            self.own.column_tasks(code, job, a_panels, b_panels)
            loop(self.own.columns_task(), self.parts.threads(code).min(job["tasks"]))

        if self.parts.narrow:
            by_tiles()
            return
        job["taken"] = 0
        with code.either(own[0]) as (rows, other):
            with rows:
                loop(self.own.rows_task(), self.parts.threads(code).min(a_panels))
            with other:
                if not self.own.copies:
                    by_tiles()
                    return
                with code.either(own[1]) as (columns, tiles):
                    with columns:
                        by_columns()
                    with tiles:
                        by_tiles()

    def _tiling(
        self,
        code: Code,
        job: Record,
        work: Int,
        a_panels: Int,
        b_panels: Int,
        k: Int,
        several: Bool,
    ) -> Int:
        """Sets the tile shape so that every thread gets several tiles; returns their number."""
        tile = self.tile
        row_tiles = several.select(a_panels.ceil_div(max(1, TILE_ROWS // tile.rows)), 1)
        row_panels = a_panels.ceil_div(row_tiles)
        # Narrow tiles of a B that they pack themselves would read it in short pieces.
        aim = (work // (self.parts.threads(code) * several.select(32, 8))).max(MIN_TILE_WORK)
        per_column = row_panels * (tile.rows * tile.cols) * k
        col_panels = (aim // per_column).max(1).min(TILE_PANELS)
        if self.parts.finishes:
            whole = job["finish"].ne(0)
            some = (code.i64(FINISHED) // (job["nl"] * tile.rows)).min(row_panels).max(1)
            col_panels, row_panels = (
                whole.select(b_panels, col_panels),
                whole.select(some, row_panels),
            )
            row_tiles = a_panels.ceil_div(row_panels)
        job["mt"], job["nt"] = row_panels * tile.rows, col_panels * tile.cols
        job["row_tiles"] = row_tiles
        return row_tiles * b_panels.ceil_div(col_panels)
