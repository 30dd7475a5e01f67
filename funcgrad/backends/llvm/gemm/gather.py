"""Packing of operands whose rows and columns begin anywhere, as two tables say.

Element (w, k) of the matrix lies at src[across[w] + along[k]]: windows of an image are such a
matrix, so a convolution is a product that never writes its windows out (implicit GEMM). Where a
vector's worth of a table goes on by one or two, it is read at once; else by elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from funcgrad.backends.llvm.gemm.pack import AHEAD, Format, Packer, Tile
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, zero_of
from funcgrad.backends.llvm.native.target import Target

PART = 6  # columns from which on transposing a part of a square is worth it


def gather_function(
    module: ir.Module, name: str, width: int, tile: Tile, fmt: Format, target: Target
) -> ir.Function:
    """void name(dst, src, count, k, across, along, step): packs the rows of a (count × k) matrix
    into panels as `pack_function` does. A vector behind the tables must be readable."""
    code = Code(module, name, [PTR, PTR, I64, I64, PTR, PTR, I64])
    packer = _Gatherer(code, width, tile, fmt, target)
    with packer.each_panel():
        across, along = packer.longest(packer.across), packer.longest(packer.ks)
        along = (packer.k >= packer.square).select(along, 0)
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
        self.square = self.lanes * self.along  # the side of a square along k
        # What loads lines of a square whose elements are two apart.
        self.apart: Callable[[ir.Value, int], ir.Value] | None = None

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

    def _line(self, table: ir.Value, i: Int, at: Int, step: int) -> ir.Value:
        """Bit by bit, which of a vector of entries from i on differ from one of them, number `at`,
        by `step` times as much as their numbers do."""
        b, vec = self.code.b, ir.VectorType(I64, self.lanes)
        entries = self.code.load(self.code.at(table, i, I64), vec, 8)
        first = self.code.splat((self._entry(table, i + at) - at * step).value, self.lanes)
        wanted = b.add(first, ir.Constant(vec, [step * lane for lane in range(self.lanes)]))
        return b.bitcast(b.icmp_signed("==", entries, wanted), ir.IntType(self.lanes))

    def _steps(self, table: ir.Value, i: Int, step: int) -> Int:
        """How many entries from i on go on by `step`, in a vector."""
        b = self.code.b
        other = b.not_(self._line(table, i, self.code.i64(0), step))
        wide = b.or_(b.zext(other, I64), I64(1 << self.lanes))
        return Int(self.code, b.cttz(wide, ir.IntType(1)(0)))

    def longest(self, table: ir.Value) -> Int:
        """How many entries from the first on go on by one, or by two."""
        zero = self.code.i64(0)
        return self._steps(table, zero, 1).max(self._steps(table, zero, 2))

    def run(self, table: ir.Value, i: Int, count: Int, step: int) -> Int:
        """How many entries from i on go on by `step`, in a vector, whole pairs of them; 0 if the
        square from i on reaches too far."""
        steps = self._steps(table, i, step) // self.along * self.along
        return (i + self.square <= count).select(steps, 0)

    def by_columns(self) -> None:
        """Vectors of rows at once; they never reach behind the panel."""
        with self.each_group() as low:
            high = (low + self.lanes).min(self.width)
            valid = (self.count - low).min(self.lanes)
            with self.code.either(valid > 0) as (some, none):
                with some:
                    self._columns(low, high, valid)
                with none:
                    zero = zero_of(ir.VectorType(self.fmt.acc, self.lanes))
                    with self.code.range(0, self.k, self.along) as kk:
                        self._put(zero, low, kk)

    def _columns(self, low: Int, high: Int, valid: Int) -> None:
        """The rows [low, high) of the panel, of which the first so many exist."""
        code, table = self.code, self.across
        one, two = (self._steps(table, low, step).min(valid) for step in (1, 2))
        with code.either(one.eq(self.lanes)) as (yes, no):
            with yes:
                self._whole(low, 1)
            with no, code.either(two.eq(self.lanes)) as (yes_two, no_two):
                with yes_two:
                    self._whole(low, 2)
                with no_two:
                    self._lines(low, high, valid, one, two)

    def _lines(self, low: Int, high: Int, valid: Int, one: Int, two: Int) -> None:
        """A vector across the end of an image's line, if masks are cheap; elements else."""

        def rows() -> None:
            with self.code.range(0, self.k, self.along) as kk:
                self._row(kk, low, high)

        if not self.masks:
            rows()
            return
        with self.code.either(one >= two) as (near, apart):
            with near:
                self._two_runs(low, one, valid, 1, rows)
            with apart:
                self._two_runs(low, two, valid, 2, rows)

    def _start(self, w: Int) -> ir.Value:
        return self.code.at(self.src, self._entry(self.across, w), self.fmt.storage)

    def _whole(self, low: Int, step: int) -> None:
        code, start = self.code, self._start(low)

        def read(at: Int) -> ir.Value:
            place = code.at(start, self._entry(self.ks, at), self.fmt.storage)
            return self._strided(place, step, self._plain)

        with code.range(0, self.k, self.along) as kk:
            self._put(self._packed(kk, read), low, kk)

    def _plain(self, place: ir.Value, first: int) -> ir.Value:
        where = self.code.at(place, first, self.fmt.storage)
        return self.code.load(where, self.vec, self.fmt.bytes)

    def _strided(
        self, place: ir.Value, step: int, load: Callable[[ir.Value, int], ir.Value]
    ) -> ir.Value:
        """A vector of every element, or every second one: of two that end with its last one.

        load(place, n): what lies from element n on
        """
        x = load(place, 0)
        if step == 1:
            return x
        second = self.lanes - 1
        places = [2 * i if 2 * i < self.lanes else 2 * i - second + self.lanes
                  for i in range(self.lanes)]  # fmt: skip
        index = ir.Constant(ir.VectorType(I32, self.lanes), places)
        return self.code.b.shuffle_vector(x, load(place, second), index)

    def _two_runs(
        self, low: Int, run: Int, valid: Int, step: int, otherwise: Callable[[], None]
    ) -> None:
        """A vector whose first `run` entries go on by `step`, if the other valid ones do, too."""
        code, b = self.code, self.code.b
        bits, at = ir.IntType(self.lanes), run.min(self.lanes - 1)
        inside = b.sub(b.shl(I64(1), valid.value), b.shl(I64(1), run.value))
        line = b.or_(self._line(self.across, low, at, step), b.trunc(b.not_(inside), bits))
        with code.either(Bool(code, b.icmp_signed("==", line, bits(-1)))) as (yes, no):
            with yes:
                mask = code.first_lanes(run, self.lanes)
                later = code.at(self._start(low + at), at * -step, self.fmt.storage)
                loads = [
                    (self._start(low), self._ranges(code.i64(0), run, step)),
                    (later, self._ranges(run, valid, step)),
                ]

                def read(k: Int) -> ir.Value:
                    along = self._entry(self.ks, k)
                    x, y = (
                        self._strided(code.at(p, along, self.fmt.storage), step, load)
                        for p, load in loads
                    )
                    return b.select(mask, x, y)

                with code.range(0, self.k, self.along) as kk:
                    self._put(self._packed(kk, read), low, kk)
            with no:
                otherwise()

    def _ranges(self, first: Int, last: Int, step: int) -> Callable[[ir.Value, int], ir.Value]:
        """What loads the elements number [first, last), which are `step` apart, and leaves the
        rest of the memory alone."""
        code, masks = self.code, {}
        for start in (0, self.lanes - 1)[:step]:
            low, high = first * step - start, last * step - (step - 1) - start
            masks[start] = code.b.and_(
                code.first_lanes(high, self.lanes), code.b.not_(code.first_lanes(low, self.lanes))
            )

        def load(place: ir.Value, start: int) -> ir.Value:
            where = code.at(place, start, self.fmt.storage)
            return code.masked_load(where, masks[start], self.vec)

        return load

    def by_rows(self) -> None:
        """Squares of lanes × lanes are transposed in registers where k goes on; if masks are cheap
        for part of a square, too, whose rest is then written again."""
        code = self.code
        at, least = code.variable(I64, I64(0)), PART if self.masks else self.lanes
        with code.loop() as (turn, done):
            kk = Int(code, at.get())
            code.b.cbranch((kk < self.k).value, turn, done)
            code.b.position_at_end(turn)
            one, two = (self.run(self.ks, kk, self.k, step) for step in (1, 2))
            longest = one if self.pairs else one.max(two)
            with code.either(longest >= min(least, self.lanes)) as (yes, no):
                with yes:
                    if self.pairs:  # elements two apart are no pairs
                        self._squares(kk, one, 1)
                    else:
                        with code.either(one >= two) as (near, apart):
                            for branch, run, step in ((near, one, 1), (apart, two, 2)):
                                with branch:
                                    self._squares(kk, run, step)
                    at.set(kk + longest)
                with no:
                    self._row(kk, code.i64(0), code.i64(self.width))
                    at.set(kk + self.along)

    def _squares(self, kk: Int, run: Int, step: int) -> None:
        """The panel's columns from kk on, of which `run` are `step` apart."""
        mask = self.code.first_lanes(run, self.square) if self.masks else None
        if step > 1:
            self.apart = self._ranges(self.code.i64(0), run, step) if self.masks else self._plain
        with self.each_group() as low:
            self._transpose_block(low, kk, mask)
        self.apart = None

    def _line_of(self, p: ir.Value, mask: ir.Value | None, vec: ir.VectorType) -> ir.Value:
        return self._strided(p, 2, self.apart) if self.apart else super()._line_of(p, mask, vec)

    def _row(self, kk: Int, low: Int, high: Int) -> None:
        """Elements [low, high) of row kk of the panel."""
        code = self.code
        with code.range(low, high.min(self.count)) as w:

            def read(k: Int, w: Int = w) -> ir.Value:
                return code.load(self._source(w, k), self.fmt.storage)

            self._put_scalar(self._packed(kk, read), w, kk)
        with code.range(low.max(self.count), high) as w:
            self._put_scalar(ir.Constant(self.fmt.acc, None), w, kk)
