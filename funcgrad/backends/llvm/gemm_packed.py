"""The packed way of the generated GEMM, for all that is neither small nor thin.

Blocks of at most mo × ko of A and ko × no of B are packed in parallel, then tiles of C are
multiplied in parallel, k in steps of kc (Goto & van de Geijn 2008; Van Zee & van de Geijn, BLIS,
2015). Where one tile has all rows, B's panels are packed by the tile that needs them, just before.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I64, PTR, Bool, Code, Int
from funcgrad.backends.llvm.gemm_job import JOB, SERIAL_WORK, Parts, Record, Way

OWN_ROWS = 252  # rows up to which each tile packs its part of B
OWN_DEPTH = 384  # of what a tile packs itself
TILE_ROWS = 126
TILE_PANELS = 8
MIN_TILE_WORK = 1 << 18
BLOCK_ROWS, BLOCK_COLS = 1100, 2048  # of a block, at most (about)


class Packed:
    """Holds `way`, whose function is void(ptr job)."""

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.way = Way("packed", lambda: self._blocks(self._pack_task(), self._tile_task()))

    def _pack_task(self) -> ir.Function:
        """Packs panels [begin, end) of a block: first those of A, then those of B."""
        code = Code(self.parts.module, "pack_task", [PTR, I64, I64])
        job, acc = Record(code, JOB, code.args[0]), self.fmt.acc
        first, last, panels = code.args[1], code.args[2], job["a_panels"]
        with code.when(first < panels):
            w, rs, cs, step = self.tile.rows, job["a_rs"], job["a_cs"], job["pa_step"]
            offset = (job["ic"] + first * w) * rs + job["ko"] * cs
            src = code.at(job.pointer_at("a"), offset, self.fmt.storage)
            dst = code.at(job.pointer_at("pa"), first * step, acc)
            count = (job["ml"].min(last * w)) - first * w
            with code.either(job["a_rows"].ne(0)) as (tables, plain):
                with tables:
                    rows = code.at(job.pointer_at("a_rows"), job["ic"] + first * w, I64)
                    ks = code.at(job.pointer_at("a_ks"), job["ko"], I64)
                    args = (dst, job.pointer_at("a"), count, job["kl"], rows, ks, step)
                    code.call(self.parts.gather_a, *args)
                with plain:
                    code.call(self.parts.pack_a, dst, src, count, job["kl"], rs, cs, step)
        with code.when(last > panels):
            start, step = first.max(panels) - panels, job["pb_step"]
            dst = code.at(job.pointer_at("pb"), start * step, acc)
            j0, j1 = start * self.tile.cols, (last - panels) * self.tile.cols
            self._pack_b(code, job, dst, j0, j1.min(job["nl"]), code.i64(0), job["kl"], step)
        code.ret()
        return code.function

    def _pack_b(
        self,
        code: Code,
        job: Record,
        dst: ir.Value,
        j0: Int,
        j1: Int,
        first_k: Int,
        k: Int,
        step: Int,
    ) -> None:
        """Panels of B: columns [j0, j1) and rows from first_k on, counted in the block."""
        rs, cs = job["b_rs"], job["b_cs"]
        offset = (job["jc"] + j0) * cs + (job["ko"] + first_k) * rs
        src = code.at(job.pointer_at("b"), offset, self.fmt.storage)
        with code.either(job["b_cols"].ne(0)) as (tables, plain):
            with tables:
                columns = code.at(job.pointer_at("b_cols"), job["jc"] + j0, I64)
                ks = code.at(job.pointer_at("b_ks"), job["ko"] + first_k, I64)
                args = (dst, job.pointer_at("b"), j1 - j0, k, columns, ks, step)
                code.call(self.parts.gather_b, *args)
            with plain:
                code.call(self.parts.pack_b, dst, src, j1 - j0, k, cs, rs, step)

    def _tile_task(self) -> ir.Function:
        """Multiplies tiles [begin, end) of the block's part of C."""
        code = Code(self.parts.module, "tile_task", [PTR, I64, I64])
        job, tile, acc = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc
        depth = tile.depth
        row_tiles, mt, nt = job["row_tiles"], job["mt"], job["nt"]
        m, n, k, rs, cs = job["ml"], job["nl"], job["kl"], job["c_rs"], job["c_cs"]
        pa, pb, c = job.pointer_at("pa"), job.pointer_at("pb"), job.pointer_at("c")
        pa_step, pb_step, prepacked = job["pa_step"], job["pb_step"], job["prepacked"].ne(0)
        c = code.at(c, job["ic"] * rs + job["jc"] * cs, acc)
        add_first = job["add"] + job["ko"]
        own = code.variable(PTR, pb)
        own_depth = min(tile.kc, OWN_DEPTH * (2 if tile.pairs else 1))
        kc = prepacked.select(equal_parts(k, tile.kc, 2), equal_parts(k, own_depth, 2))
        own_step = self.parts.panel_elements(tile.cols, kc)
        with code.when(~prepacked):
            size = own_step * (nt // tile.cols) * self.fmt.acc_bytes
            own.set(code.call(self.parts.take, size))
        with code.range(code.args[1], code.args[2]) as t, code.range(0, k, kc) as pc:
            i0, j0 = t % row_tiles * mt, t // row_tiles * nt
            i1, j1 = (i0 + mt).min(m), (j0 + nt).min(n)
            kl, add = (k - pc).min(kc), add_first + pc
            with code.when(~prepacked):
                self._pack_b(code, job, own.get(), j0, j1, pc, kl, own_step)
            # Along rows of C first: a column of tiles would walk through memory in long strides.
            with code.range(i0, i1, tile.rows) as i, code.range(j0, j1, tile.cols) as j:
                ready = code.at(pb, j // tile.cols * pb_step + depth(pc) * tile.cols, acc)
                fresh = code.at(own.get(), (j - j0) // tile.cols * own_step, acc)
                bp = prepacked.pick(ready, fresh)
                ap = code.at(pa, i // tile.rows * pa_step + depth(pc) * tile.rows, acc)
                cp = code.at(c, i * rs + j * cs, acc)
                self.choose_kernel(code, (depth(kl), ap, bp, cp, rs, cs, m - i, n - j, add))
        with code.when(~prepacked):
            code.call(self.parts.give, own.get())
        code.ret()
        return code.function

    def choose_kernel(self, code: Code, args: tuple[Any, ...]) -> None:
        """The smallest micro-kernel that has the rows and columns that are left."""
        rows_left, columns_left, kernels, tile = args[6], args[7], self.parts.kernels, self.tile

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
                choose([h for h in (4, 8) if h < tile.rows] + [tile.rows])
            with one:
                code.call(kernels.packed(tile.rows, 1), *args)

    def _blocks(self, pack_task: ir.Function, tile_task: ir.Function) -> ir.Function:
        """The loops over blocks, each of two parallel loops: pack, multiply."""
        code = Code(self.parts.module, "packed", [PTR])
        job, tile, size = Record(code, JOB, code.args[0]), self.tile, self.fmt.acc_bytes
        m, n, k, room = job["m"], job["n"], job["k"], self.parts.panel_elements
        mo = equal_parts(m, BLOCK_ROWS, tile.rows)
        no = equal_parts(n, BLOCK_COLS, tile.cols)
        ko = equal_parts(k, 2 * tile.kc, 2)
        several = m > OWN_ROWS // tile.rows * tile.rows
        job["prepacked"] = several.select(1, 0)
        pa_bytes = mo // tile.rows * room(tile.rows, ko) * size
        pb_bytes = no // tile.cols * room(tile.cols, ko) * size
        pa = code.call(self.parts.take, pa_bytes)
        pb = code.call(self.parts.take, several.select(pb_bytes, 0))
        job["pa"], job["pb"] = pa, pb
        with code.range(0, n, no) as jc, code.range(0, k, ko) as kk, code.range(0, m, mo) as ic:
            ml, nl, kl = (m - ic).min(mo), (n - jc).min(no), (k - kk).min(ko)
            a_panels, b_panels = ml.ceil_div(tile.rows), nl.ceil_div(tile.cols)
            for name, value in {"jc": jc, "ic": ic, "ko": kk, "nl": nl, "ml": ml, "kl": kl}.items():
                job[name] = value
            job["pa_step"], job["pb_step"] = room(tile.rows, kl), room(tile.cols, kl)
            job["a_panels"] = a_panels
            work = ml * nl * kl
            serial = work < SERIAL_WORK
            panels = a_panels + (several & ic.eq(0)).select(b_panels, 0)
            grain = serial.select(panels, (code.i64(1 << 15) // (kl * tile.cols)).max(4))
            self.parts.loop(code, pack_task, code.args[0], panels, grain)
            tiles = self._tiling(code, job, work, a_panels, b_panels, kl, several)
            self.parts.loop(code, tile_task, code.args[0], tiles, serial.select(tiles, 1))
        code.call(self.parts.give, pb)
        code.call(self.parts.give, pa)
        code.ret()
        return code.function

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
        job["mt"], job["nt"] = row_panels * tile.rows, col_panels * tile.cols
        job["row_tiles"] = row_tiles
        return row_tiles * b_panels.ceil_div(col_panels)


def equal_parts(size: Int, largest: int, unit: int) -> Int:
    """The size of the parts, in units, if as few equal ones are made as can be."""
    parts = size.ceil_div(largest // unit * unit)
    return size.ceil_div(parts * unit) * unit
