"""The way of the generated GEMM for batches of gathered B against one A, as convolutions make them.

A, the kernel, is packed once. Then all columns of all items are one parallel loop over tiles; each
packs its part of B, which stays in its core's cache, and multiplies it with all rows of A.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.packed import Packed
from funcgrad.backends.llvm.gemm.words import SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

# The packed operand and its panels' distance, panels of columns in a tile, tiles of an item, and
# rows of B that are packed at a time.
FIELDS = (*SHARED, "pa", "pa_step", "panels", "tiles", "kc")
TILE_ELEMENTS = 1 << 17  # of B, packed at a time
MOST_A = 1 << 22  # elements of A up to which it is packed as a whole


class Windows:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables."""

    def __init__(self, parts: Parts, packed: Packed):
        self.parts, self.tile, self.fmt, self.packed = parts, parts.tile, parts.fmt, packed
        self.function = self._function(self._pack_task(), self._tile_task())

    @staticmethod
    def serves(call: Record) -> Bool:
        """Whether all items of a call have the same A, and it isn't too large."""
        one_a = call["a_b0"].eq(0) | call["batch0"].eq(1)
        one_a = one_a & (call["a_b1"].eq(0) | call["batch1"].eq(1))
        return one_a & (call["m"] * call["k"] <= MOST_A) & (call["batch0"] * call["batch1"] > 1)

    def _pack_task(self) -> ir.Function:
        """Packs panels [begin, end) of A."""
        code = Code(self.parts.module, "pack_kernel_task", [PTR, I64, I64])
        call, rows = Record(code, FIELDS, code.args[0]), self.tile.rows
        first, last, step = code.args[1] * rows, code.args[2] * rows, call["pa_step"]
        dst = code.at(call.pointer_at("pa"), code.args[1] * step, self.fmt.acc)
        across = code.at(call.pointer_at("a_rows"), first, I64)
        count = call["m"].min(last) - first
        args = (dst, call.pointer_at("a"), count, call["k"], across, call.pointer_at("a_ks"), step)
        code.call(self.parts.gather_a, *args)
        code.ret()
        return code.function

    def _tile_task(self) -> ir.Function:
        """Multiplies tiles [begin, end) of all items."""
        code = Code(self.parts.module, "windows_task", [PTR, I64, I64])
        call, tile, acc = Record(code, FIELDS, code.args[0]), self.tile, self.fmt.acc
        n, k, kc, tiles, batch1 = (call[x] for x in ("n", "k", "kc", "tiles", "batch1"))
        step, width = self.parts.panel_elements(tile.cols, kc), call["panels"] * tile.cols
        own = code.call(self.parts.take, step * call["panels"] * self.fmt.acc_bytes)
        with code.range(code.args[1], code.args[2]) as t:
            item, start = t // tiles, t % tiles * width
            i0, i1, columns = item // batch1, item % batch1, (n - start).min(width)
            b, c = (
                code.at(call.pointer_at(x), i0 * call[f"{x}_b0"] + i1 * call[f"{x}_b1"], kind)
                for x, kind in (("b", self.fmt.storage), ("c", acc))
            )
            across = code.at(call.pointer_at("b_cols"), start, I64)
            c = code.at(c, start * call["c_cs"], acc)
            with code.range(0, k, kc) as pc:
                kl, along = (k - pc).min(kc), code.at(call.pointer_at("b_ks"), pc, I64)
                code.call(self.parts.gather_b, own, b, columns, kl, across, along, step)
                self._multiply(code, call, own, step, (pc, kl, columns), c)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _multiply(
        self, code: Code, call: Record, b: ir.Value, step: Int, place: tuple, c: ir.Value
    ) -> None:
        """All rows of A with the columns of a tile, for some k."""
        (pc, kl, columns), tile, acc = place, self.tile, self.fmt.acc
        m, rs, cs, add = call["m"], call["c_rs"], call["c_cs"], call["add"] + pc
        pa, pa_step = call.pointer_at("pa"), call["pa_step"]
        kl, before = tile.depth(kl), tile.depth(pc)
        with code.range(0, m, tile.rows) as i, code.range(0, columns, tile.cols) as j:
            ap = code.at(pa, i // tile.rows * pa_step + before * tile.rows, acc)
            bp = code.at(b, j // tile.cols * step, acc)
            cp = code.at(c, i * rs + j * cs, acc)
            self.packed.choose_kernel(code, (kl, ap, bp, cp, rs, cs, m - i, columns - j, add))

    def _function(self, pack_task: ir.Function, tile_task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "windows", [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        for name in SHARED:
            call[name] = given[name]
        tile, m, n, k = self.tile, call["m"], call["n"], call["k"]
        a_panels, panels = m.ceil_div(tile.rows), n.ceil_div(tile.cols)
        kc = equal_parts(k, tile.kc, tile.unit)
        most = (code.i64(TILE_ELEMENTS // tile.cols) // kc).max(1)
        tiles = panels.ceil_div(most)
        call["kc"], call["tiles"], call["panels"] = kc, tiles, panels.ceil_div(tiles)
        step = call["pa_step"] = self.parts.panel_elements(tile.rows, k)
        call["pa"] = pa = code.call(self.parts.take, a_panels * step * self.fmt.acc_bytes)
        work, items = m * n * k, call["batch0"] * call["batch1"]
        grain = (code.i64(SERIAL_WORK // 4) // (k * tile.rows)).max(1)
        self.parts.loop(code, pack_task, call.pointer, a_panels, grain)
        total = tiles * items
        serial = work * items < SERIAL_WORK
        grain = (code.i64(SERIAL_WORK) // (work // tiles).max(1)).max(1)
        self.parts.loop(code, tile_task, call.pointer, total, serial.select(total, grain))
        code.call(self.parts.give, pa)
        code.ret()
        return code.function
