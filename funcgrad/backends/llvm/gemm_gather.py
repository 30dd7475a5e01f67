"""Packing of operands whose rows and columns begin anywhere, as two tables say.

Element (w, k) of the matrix lies at src[across[w] + along[k]]: windows of an image are such a
matrix, so a convolution is a product that never writes its windows out (implicit GEMM). Where a
vector's worth of a table goes on by one, it is read at once; else by elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from funcgrad.backends.llvm.engine import Target
from funcgrad.backends.llvm.gemm_build import I64, PTR, Bool, Code, Int
from funcgrad.backends.llvm.gemm_pack import AHEAD, Format, Packer, Tile, widen

PART = 6  # columns from which on transposing a part of a square is worth it


def gather_function(
    module: ir.Module, name: str, width: int, tile: Tile, fmt: Format, target: Target
) -> ir.Function:
    """void name(dst, src, count, k, across, along, step): packs the rows of a (count × k) matrix
    into panels as `pack_function` does. A vector behind the tables must be readable."""
    code = Code(module, name, [PTR, PTR, I64, I64, PTR, PTR, I64])
    packer = _Gatherer(code, width, tile, fmt, target)
    if tile.pairs:
        with packer.each_panel():
            packer.scalars(code.i64(0))
        code.ret()
        return code.function
    with packer.each_panel():
        across = packer.run(packer.across, code.i64(0), packer.count)
        along = packer.run(packer.ks, code.i64(0), packer.k)
        with code.either(along > across) as (yes, no):
            with yes:
                packer.by_rows()
            with no:
                packer.by_columns()
    code.ret()
    return code.function


class _Gatherer(Packer):
    def __init__(self, code: Code, width: int, tile: Tile, fmt: Format, target: Target):
        super().__init__(code, width, tile, fmt, target)
        self.across, self.ks = code.args[4:6]

    @contextmanager
    def each_panel(self) -> Iterator[None]:
        dst, across, count = self.dst, self.across, self.count
        with self.code.range(0, count.ceil_div(self.width)) as p:
            self.dst = self.code.at(dst, p * self.step, self.fmt.acc)
            self.across = self.code.at(across, p * self.width, I64)
            self.count = (count - p * self.width).min(self.width)
            yield
        self.dst, self.across, self.count = dst, across, count

    def _entry(self, table: ir.Value, i: Int) -> Int:
        return self.code.load(self.code.at(table, i, I64), I64)

    def ahead(self) -> Int:
        return self.code.i64(AHEAD // self.fmt.bytes)

    def _source(self, w: Int, kk: Int) -> ir.Value:
        place = self._entry(self.across, w) + self._entry(self.ks, kk)
        return self.code.at(self.src, place, self.fmt.storage)

    def _line(self, table: ir.Value, i: Int, at: Int) -> ir.Value:
        """Bit by bit, which of a vector of entries from i on differ from one of them, number `at`,
        by as much as their numbers do."""
        b, vec = self.code.b, ir.VectorType(I64, self.lanes)
        entries = self.code.load(self.code.at(table, i, I64), vec, 8)
        first = self.code.splat((self._entry(table, i + at) - at).value, self.lanes)
        wanted = b.add(first, ir.Constant(vec, list(range(self.lanes))))
        return b.bitcast(b.icmp_signed("==", entries, wanted), ir.IntType(self.lanes))

    def run(self, table: ir.Value, i: Int, count: Int) -> Int:
        """How many entries from i on go on by one, in a vector; 0 if that reaches too far."""
        b = self.code.b
        other = b.not_(self._line(table, i, self.code.i64(0)))
        wide = b.or_(b.zext(other, I64), I64(1 << self.lanes))
        length = Int(self.code, b.cttz(wide, ir.IntType(1)(0)))
        return (i + self.lanes <= count).select(length, 0)

    def by_columns(self) -> None:
        """Vectors of rows at once; they never reach behind the panel."""
        for g in self.groups:
            low = self.code.i64(g * self.lanes)
            run = self.run(self.across, low, self.count)
            with self.code.either(run.eq(self.lanes)) as (yes, no):
                with yes:
                    self._whole(low)
                with no:
                    self._two_runs(low, run, min((g + 1) * self.lanes, self.width))

    def _start(self, w: Int) -> ir.Value:
        return self.code.at(self.src, self._entry(self.across, w), self.fmt.storage)

    def _whole(self, low: Int) -> None:
        code, start = self.code, self._start(low)
        with code.range(0, self.k) as kk:
            place = code.at(start, self._entry(self.ks, kk), self.fmt.storage)
            x = code.load(place, self.vec, self.fmt.bytes)
            self._put(widen(code, self.fmt, self.target, x), low, kk)

    def _two_runs(self, low: Int, run: Int, high: int) -> None:
        """A vector across the end of an image's line, if masks are cheap; elements else."""
        code, b = self.code, self.code.b

        def rows() -> None:
            with code.range(0, self.k) as kk:
                self._row(kk, low, code.i64(high))

        if not self.masks:
            rows()
            return
        bits = ir.IntType(self.lanes)
        before = b.trunc(b.sub(b.shl(I64(1), run.value), I64(1)), bits)
        at = run.min(self.lanes - 1)
        line = b.or_(self._line(self.across, low, at), before)
        two = Bool(code, b.icmp_signed("==", line, bits(-1))) & (run > 0)
        with code.either(two) as (yes, no):
            with yes:
                mask = code.first_lanes(run, self.lanes)
                starts = self._start(low), self._start(low + at)
                starts = starts[0], code.at(starts[1], 0 - at, self.fmt.storage)
                with code.range(0, self.k) as kk:
                    step = self._entry(self.ks, kk)
                    places = [code.at(p, step, self.fmt.storage) for p in starts]
                    x = code.masked_load(places[0], mask, self.vec)
                    y = code.masked_load(places[1], b.not_(mask), self.vec)
                    x = b.select(mask, x, y)
                    self._put(widen(code, self.fmt, self.target, x), low, kk)
            with no:
                rows()

    def by_rows(self) -> None:
        """Squares of lanes × lanes are transposed in registers where k goes on; if masks are cheap
        for part of a square, too, whose rest is then written again."""
        code = self.code
        at, least = code.variable(I64, I64(0)), PART if self.masks else self.lanes
        with code.loop() as (turn, done):
            kk = Int(code, at.get())
            code.b.cbranch((kk < self.k).value, turn, done)
            code.b.position_at_end(turn)
            run = self.run(self.ks, kk, self.k)
            with code.either(run >= min(least, self.lanes)) as (yes, no):
                with yes:
                    mask = code.first_lanes(run, self.lanes) if self.masks else None
                    for g in self.groups:
                        self._transpose_block(g, kk, mask)
                    at.set(kk + run)
                with no:
                    self._row(kk, code.i64(0), code.i64(self.width))
                    at.set(kk + 1)

    def _row(self, kk: Int, low: Int, high: Int) -> None:
        """Elements [low, high) of row kk of the panel."""
        code = self.code
        line = code.at(self.src, self._entry(self.ks, kk), self.fmt.storage)
        with code.range(low, high.min(self.count)) as w:
            place = code.at(line, self._entry(self.across, w), self.fmt.storage)
            x = code.load(place, self.fmt.storage)
            self._put_scalar(widen(code, self.fmt, self.target, x), w, kk)
        with code.range(low.max(self.count), high) as w:
            self._put_scalar(ir.Constant(self.fmt.acc, None), w, kk)
