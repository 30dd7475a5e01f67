"""What the ways of the generated GEMM that multiply by tiles share: tiles, and what they reach.

Winograd's F(2×2, 3×3): a tile's 2×2 results are y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A of a kernel g and the
4×4 elements d that the tile reaches, where ⊙ sums over channels by 16 products of matrices, one a
point (S. Winograd, 1980; A. Lavin and S. Gray, arXiv:1509.09308).
Tiles are counted through all images. In `Tiles`, vectors are of tiles: those of one image follow
each other, whatever lines they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.pack import widen
from funcgrad.backends.llvm.gemm.words import AXES, MAX_AXES
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import POINTS, TAPS

TILED = (
    # Images and how they follow each other; channels, features.
    "batch1", "items", "channels", "cols",
    # Element (y, x) of a channel's plane is there from `low` on, for so many, elsewhere 0.
    "x", "x_b0", "x_b1", "plane", "pitch", "y_low", "y_size", "x_low", "x_size",
    # Of results. Tiles of a line, an image, all images, and those done at a time; elements of a row
    # of these, with room behind.
    "height", "width", "across", "tiles", "total", "mine", "room",
)  # fmt: skip
SIDE = 4  # of the square that a tile reaches
CACHE_SHARE = 2, 3  # of a core's own cache, for what is transformed at a time


class TiledWay:
    """A way that multiplies by tiles.

    function: void(ptr call), of a call of `SHARED` that has axes and says "tiled", maybe a frame
    tables: whether it reads those of the call
    """

    name, tables = "", True
    function: ir.Function

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.acc, self.lanes = parts.fmt.acc, parts.tile.lanes
        self.vec = parts.kernels.vec

    def load(self, code: Code, place: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """A vector; 0 in lanes that a mask leaves out."""
        if mask is not None:
            return code.masked_load(place, mask, self.vec)
        return code.load(place, self.vec, self.fmt.acc_bytes)

    def store(self, code: Code, x: ir.Value, place: ir.Value, mask: ir.Value | None = None) -> None:
        """A vector, but for lanes that a mask leaves out."""
        if mask is not None:
            code.masked_store(x, place, mask)
        else:
            code.store(x, place, self.fmt.acc_bytes)

    def gathered(self, code: Code, places: list[ir.Value], first: Int) -> ir.Value:
        """A vector of single elements, so far behind places; 0 in the lanes that are left."""
        x: ir.Value = zero_of(self.parts.kernels.storage_vec)
        for lane, place in enumerate(places):
            one = code.load(code.at(place, first, self.fmt.storage), self.fmt.storage)
            x = code.b.insert_element(x, one, I32(lane))
        return widen(code, self.fmt, self.parts.target, x)

    def lost(self, code: Code, x: ir.Value) -> ir.Value:
        """What is NaN where x isn't finite, else 0."""
        return code.b.fmul(x, zero_of(x.type))

    def unsettled(self, code: Code, lost: ir.Value, total: ir.Value) -> ir.Value:
        """Whether a sum that takes the place of a lane that was lost may become a number, or an
        infinity: it isn't NaN yet. More products needn't be added to sums that are."""
        return code.some(code.b.and_(lost, code.b.fcmp_ordered("ord", total, total)))

    def summed(self, code: Code, first: ir.Value, step: Int, parts: Int) -> list[ir.Value]:
        """A vector of each of the 16 sums, which lie `step` apart in a part, added over parts."""
        places = [code.at(first, step * point, self.acc) for point in range(POINTS)]
        totals = [code.variable(self.vec, self.load(code, place)) for place in places]
        with code.range(1, parts) as part:
            for place, total in zip(places, totals, strict=True):
                more = self.load(code, code.at(place, part * step * POINTS, self.acc))
                total.set(code.b.fadd(total.get(), more))
        return [total.get() for total in totals]

    def choose(self, given: Record, call: Record, names: Mapping[str, Sequence[str]]) -> None:
        """Sets words to those that a call has by one name if the windows are in a, by another if
        they are in b."""
        in_b = given["windows"].eq(2)
        for name, (in_a, of_b) in names.items():
            call[name] = in_b.select(given[of_b], given[in_a])

    def axis(self, code: Code, given: Record, in_a: str, of_b: str, back: int) -> Int:
        """The size or stride of the last axis but `back`, by the name it has if the windows are in
        a, or if they are in b."""
        values = (code.load(code.at(given.pointer_at("axes"), AXES.index(name) * MAX_AXES
                                    + MAX_AXES - 1 - back, I64), I64)
                  for name in (of_b, in_a))  # fmt: skip
        return given["windows"].eq(2).select(*values)


class Tiles(TiledWay):
    """A way whose vectors are of tiles.

    fields: of its record, `TILED` first
    """

    fields: tuple[str, ...] = TILED

    def shuffled(self, code: Code, x: ir.Value, y: ir.Value, places: list[int]) -> ir.Value:
        """A vector of lanes of two."""
        index = ir.Constant(ir.VectorType(I32, self.lanes), places)
        return code.b.shuffle_vector(x, y, index)

    def within(self, code: Code, place: Int, low: Int, high: Int) -> ir.Value:
        """The lanes of a vector at a place that are from low to high."""
        below = code.first_lanes(low - place, self.lanes)
        return code.b.and_(code.first_lanes(high - place, self.lanes), code.b.not_(below))

    # ---- where what is

    def count(self, code: Code, call: Record, rows: Int, most: Int) -> None:
        """Sets the words of tiles: done at a time are those of which so many rows fit in a cache,
        and at most so many."""
        lanes = self.lanes
        across = call["across"] = call["width"].ceil_div(2)
        tiles = call["tiles"] = across * call["height"].ceil_div(2)
        call["total"] = tiles * call["items"]
        share = self.parts.target.caches.l2 * CACHE_SHARE[0] // CACHE_SHARE[1]
        fits = (code.i64(share // self.fmt.acc_bytes) // rows).min(most)
        fits = fits // (2 * lanes) * (2 * lanes)
        mine = call["mine"] = fits.max(2 * lanes).min(8 * lanes)
        call["room"] = mine + lanes

    def point_step(self, call: Record, rows: str) -> Int:
        """Elements from the rows of a point to those of the next one: some more than they have, as
        often whole pages would lie between all 16 points of a tile, which met in a few lines of
        the first cache.

        rows: the field that says how many rows there are of a point
        """
        return call[rows] * call["room"] + self.lanes

    def unframe(self, code: Code, frame: Record, call: Record) -> None:
        """Distances in memory, in place of those in an array with zeros around it."""
        whole, inner = frame["all1"] * frame["all2"], frame["size1"] * frame["size2"]
        for name in ("x_b0", "x_b1", "plane"):
            call[name] = call[name] // whole * inner
        start = frame["start"]
        call["x"] = code.at(call.pointer_at("x"), start // whole * inner, self.acc)
        call["y_low"] = frame["low1"] - start % whole // frame["all2"]
        call["x_low"] = frame["low2"] - start % frame["all2"]
        call["pitch"] = call["x_size"] = frame["size2"]
        call["y_size"] = frame["size1"]

    def item(self, code: Code, call: Record, name: str, item: Int) -> ir.Value:
        """Where an image of an operand begins."""
        place = item // call["batch1"] * call[f"{name}_b0"]
        place = place + item % call["batch1"] * call[f"{name}_b1"]
        return code.at(call.pointer_at(name), place, self.acc)

    def each_image(self, code: Code, call: Record, tiles: tuple[Int, Int], body: Callable) -> None:
        """`body` of each image's part of tiles [first, last): the image's number, its tiles, and
        how many came before. Parts of long lines end with them."""
        (first, last), across = tiles, call["across"]
        at = code.variable(I64, first)
        with code.loop() as (turn, done):
            now = Int(code, at.get())
            code.b.cbranch((now < last).value, turn, done)
            code.b.position_at_end(turn)
            item, begin = now // call["tiles"], now % call["tiles"]
            long = across >= 2 * self.lanes
            stop = long.select((begin // across + 1) * across, call["tiles"])
            end = stop.min(begin + last - now)
            body(item, begin, end, now - first)
            at.set(now + (end - begin))

    # ---- what tiles reach

    def kept(self, call: Record) -> Int:
        """Elements of one of the 8 kinds of lines that tiles of an image reach, done at a time."""
        return call["room"] + call["across"] * 3

    def transform(
        self, name: str, rows: str, geometry: Mapping[str, str | int], reach: bool
    ) -> ir.Function:
        """void(call, plane, lines, to, begin, end): the 4×4 elements of tiles [begin, end) of an
        image, Bᵀ d B of those that they reach or A d Aᵀ of their own 2×2.

        First along lines, of which even and odd ones are kept apart: so the vectors of tiles that
        follow each other lie together there. The same of the plane behind is asked for.

        rows: the field that says how many rows of tiles there are of a point
        geometry: the fields, or numbers, in place of those of x
        """
        code = Code(self.parts.module, name, [PTR, PTR, PTR, PTR, I64, I64])
        call, lanes = Record(code, self.fields, code.args[0]), self.lanes
        across = call["across"]
        (plane, lines, to), (begin, end) = code.args[1:4], code.args[4:]
        fields = ("pitch", "plane", "y_low", "y_size", "x_low", "x_size")
        pitch, apart, y_low, y_size, low, x_size = (
            code.i64(x) if isinstance(x, int) else call[x]
            for x in (geometry.get(f, f) for f in fields)
        )
        kept, turn = self.kept(call), reached if reach else spread
        top, bottom = begin // across, (end - 1) // across
        one = top.eq(bottom)
        left, right = one.select(begin - top * across, 0), one.select(end - top * across, across)
        halves = [[2 * i + odd for i in range(lanes)] for odd in range(2)]
        with code.range(left, right, lanes) as tile:
            places = [tile * 2 + move + part * lanes for move in (0, 2)[: 1 + reach]
                      for part in range(2)]  # fmt: skip
            masks = [self.within(code, place, low, low + x_size) for place in places]
            whole = code.first_lanes(right - tile, lanes)
            with code.range(top, bottom + (2 if reach else 1)) as pair:
                out = code.at(lines, (pair - top) * across + tile, self.acc)
                for parity in range(2):
                    y = pair * 2 + parity - y_low
                    to_j = [code.at(out, kept * (SIDE * parity + j), self.acc) for j in range(SIDE)]
                    with code.either((y >= 0) & (y < y_size)) as (inside, outside):
                        with inside:
                            row = code.at(plane, y * pitch - low, self.acc)
                            for first in places[:2]:
                                code.prefetch(code.at(row, apart + first, self.acc), first=True)
                            x = [
                                code.masked_load(code.at(row, place, self.acc), mask, self.vec)
                                for place, mask in zip(places, masks, strict=True)
                            ]
                            d = [self.shuffled(code, x[i], x[i + 1], half)
                                 for i in range(0, len(x), 2) for half in halves]  # fmt: skip
                            for place, turned in zip(to_j, turn(code.b, d), strict=True):
                                code.masked_store(turned, place, whole)
                        with outside:
                            for place in to_j:
                                code.masked_store(zero_of(self.vec), place, whole)
        step, back = self.point_step(call, rows), top * across
        with code.range(begin, end, lanes) as tile:
            for j in range(SIDE):
                ends = [code.at(lines, kept * (SIDE * odd + j) + (tile - back), self.acc)
                        for odd in range(2)]  # fmt: skip
                d = [self.load(code, code.at(ends[i % 2], across * (i // 2), self.acc))
                     for i in range(2 + 2 * reach)]  # fmt: skip
                for i, turned in enumerate(turn(code.b, d)):
                    where = code.at(to, step * (SIDE * i + j) + (tile - begin), self.acc)
                    self.store(code, turned, where)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function


def reached(b: IRBuilder, d: list[ir.Value]) -> list[ir.Value]:
    """Bᵀd: d0 - d2, d1 + d2, d2 - d1, d1 - d3."""
    return [_minus(b, d[0], d[2]), _plus(b, d[1], d[2]), _minus(b, d[2], d[1]),
            _minus(b, d[1], d[3])]  # fmt: skip


def results(b: IRBuilder, m: list[ir.Value]) -> list[ir.Value]:
    """Aᵀm: m0 + m1 + m2, m1 - m2 - m3."""
    first = _plus(b, _plus(b, m[0], m[1]), m[2])
    return [first, _minus(b, _minus(b, m[1], m[2]), m[3])]


def _plus(b: IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.add(x, y) if _whole(x) else b.fadd(x, y)


def _minus(b: IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.sub(x, y) if _whole(x) else b.fsub(x, y)


def _whole(x: ir.Value) -> bool:
    """Whether it is a vector of integers."""
    return isinstance(x.type.element, ir.IntType)


def kernel_taps(b: IRBuilder, sums: list[ir.Value]) -> list[ir.Value]:
    """The 9 elements of GᵀSG.

    sums: the 16 elements of S
    """
    columns = [_folded(b, sums[j::SIDE]) for j in range(SIDE)]
    return [x for i in range(TAPS) for x in _folded(b, [column[i] for column in columns])]


def _folded(b: IRBuilder, m: list[ir.Value]) -> list[ir.Value]:
    """Gᵀm: m0 + (m1 + m2)/2, (m1 - m2)/2, (m1 + m2)/2 + m3."""
    half = ir.Constant(m[0].type, [0.5] * m[0].type.count)
    both = b.fmul(b.fadd(m[1], m[2]), half)
    return [b.fadd(m[0], both), b.fmul(b.fsub(m[1], m[2]), half), b.fadd(both, m[3])]


def kernel_points(b: IRBuilder, taps: list[ir.Value]) -> list[ir.Value]:
    """The 16 elements of G g Gᵀ, where G is half of [[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]];
    of integers 4 times as much.

    taps: the 9 elements of g, vectors of those of several kernels
    """
    kind = taps[0].type
    half = None if _whole(taps[0]) else ir.Constant(kind, [0.5] * kind.count)

    def turned(g: list[ir.Value]) -> list[ir.Value]:
        if half is None:
            outer = b.add(g[0], g[2])
            return [b.add(g[0], g[0]), b.add(outer, g[1]), b.sub(outer, g[1]), b.add(g[2], g[2])]
        outer, inner = b.fmul(b.fadd(g[0], g[2]), half), b.fmul(g[1], half)
        return [g[0], b.fadd(outer, inner), b.fsub(outer, inner), g[2]]

    lines = [turned(taps[TAPS * i : TAPS * (i + 1)]) for i in range(TAPS)]
    points = [turned([line[j] for line in lines]) for j in range(SIDE)]
    return [points[point % SIDE][point // SIDE] for point in range(POINTS)]


def spread(b: IRBuilder, y: list[ir.Value]) -> list[ir.Value]:
    """A y: y0, y0 + y1, y0 - y1, -y1."""
    return [y[0], b.fadd(y[0], y[1]), b.fsub(y[0], y[1]), b.fneg(y[1])]
