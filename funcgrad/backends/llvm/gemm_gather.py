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
from funcgrad.backends.llvm.gemm_pack import Format, Packer, Tile, widen


def gather_function(
    module: ir.Module, name: str, width: int, tile: Tile, fmt: Format, target: Target
) -> ir.Function:
    """void name(dst, src, count, k, across, along, step): packs the rows of a (count × k) matrix
    into panels as `pack_function` does. A vector behind the tables must be readable."""
    code = Code(module, name, [PTR, PTR, I64, I64, PTR, PTR, I64])
    packer = _Gatherer(code, width, tile, fmt, target)
    with packer.each_panel():
        across = packer.goes_on(packer.across, code.i64(0), packer.count)
        along = packer.goes_on(packer.along, code.i64(0), packer.k)
        with code.either(along & ~across) as (yes, no):
            with yes:
                packer.by_rows()
            with no:
                packer.by_columns()
    code.ret()
    return code.function


class _Gatherer(Packer):
    def __init__(self, code: Code, width: int, tile: Tile, fmt: Format, target: Target):
        super().__init__(code, width, tile, fmt, target)
        self.across, self.along = code.args[4:6]

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

    def _source(self, w: Int, kk: Int) -> ir.Value:
        place = self._entry(self.across, w) + self._entry(self.along, kk)
        return self.code.at(self.src, place, self.fmt.storage)

    def goes_on(self, table: ir.Value, i: Int, count: Int) -> Bool:
        """Whether a vector of entries from i on is inside and each is its neighbour's plus one."""
        code, b, vec = self.code, self.code.b, ir.VectorType(I64, self.lanes)
        entries = code.load(code.at(table, i, I64), vec, 8)
        first = code.splat(b.extract_element(entries, ir.IntType(32)(0)), self.lanes)
        wanted = b.add(first, ir.Constant(vec, list(range(self.lanes))))
        bits = ir.IntType(self.lanes)
        equal = b.bitcast(b.icmp_signed("==", entries, wanted), bits)
        return Bool(code, b.icmp_signed("==", equal, bits(-1))) & (i + self.lanes <= count)

    def by_columns(self) -> None:
        """Vectors of rows at once; they never reach behind the panel."""
        code, lanes = self.code, self.lanes
        for g in self.groups:
            low, high = code.i64(g * lanes), code.i64(min((g + 1) * lanes, self.width))
            with code.either(self.goes_on(self.across, low, self.count)) as (yes, no):
                with yes:
                    start = code.at(self.src, self._entry(self.across, low), self.fmt.storage)
                    with code.range(0, self.k) as kk:
                        place = code.at(start, self._entry(self.along, kk), self.fmt.storage)
                        x = code.load(place, self.vec, self.fmt.bytes)
                        self._put(widen(code, self.fmt, self.target, x), low, kk)
                with no, code.range(0, self.k) as kk:
                    self._row(kk, low, high)

    def by_rows(self) -> None:
        """Squares of lanes × lanes are transposed in registers where k goes on."""
        code = self.code
        at = code.variable(I64, I64(0))
        with code.loop() as (turn, done):
            kk = Int(code, at.get())
            code.b.cbranch((kk < self.k).value, turn, done)
            code.b.position_at_end(turn)
            with code.either(self.goes_on(self.along, kk, self.k)) as (yes, no):
                with yes:
                    for g in self.groups:
                        self._transpose_block(g, kk, None)
                    at.set(kk + self.lanes)
                with no:
                    self._row(kk, code.i64(0), code.i64(self.width))
                    at.set(kk + 1)

    def _row(self, kk: Int, low: Int, high: Int) -> None:
        """Elements [low, high) of row kk of the panel."""
        code = self.code
        line = code.at(self.src, self._entry(self.along, kk), self.fmt.storage)
        with code.range(low, high.min(self.count)) as w:
            place = code.at(line, self._entry(self.across, w), self.fmt.storage)
            x = code.load(place, self.fmt.storage)
            self._put_scalar(widen(code, self.fmt, self.target, x), w, kk)
        with code.range(low.max(self.count), high) as w:
            self._put_scalar(ir.Constant(self.fmt.acc, None), w, kk)
