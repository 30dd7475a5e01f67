"""The way of the generated GEMM for windows of 3×3 elements: by tiles (see `tiles`).

A result depends on no other elements than its window has; where they are of one scale, it rounds no
worse than 9·C products and their sum. Results that aren't finite are computed once more, as such
sums, so that an infinity stays one.
A task takes some tiles, transforms what they reach, multiplies that with the kernel, which is
transformed once, and makes the results of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from funcgrad.backends.llvm.gemm.images.frames import FRAME
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.kernels import LINES_SOON
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.winograd.tiles import SIDE, TILED, Tiles, kernel_points, results
from funcgrad.backends.llvm.gemm.words import SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I1, I64, PTR, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import POINTS, TAPS

FIELDS = (
    *TILED,
    # The kernel, and where its elements lie, by tables.
    "w", "w_cols", "w_ks",
    "c", "c_b0", "c_b1", "c_cs",
    # The transformed kernel: a panel's elements, and those of one of its parts, for a point each.
    "pw", "pw_step", "part", "along", "kc",
)  # fmt: skip


class Winograd(Tiles):
    """The way of convolutions, by their kernels.

    products: of matrices; wide: results of a tile in each direction
    lines_kept: of those that tiles reach, or of their results; share: tasks of a thread
    """

    name, products = "winograd", POINTS
    fields: tuple[str, ...] = FIELDS
    wide, lines_kept, share = 2, 8, 4

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.input = self.transform("winograd_input", "channels", {}, reach=True)
        self.output, self.exact = self._output(), self.exact_results()
        self.function = self._function(self.kernel_task(), self._task())

    # ---- the kernel

    def kernel_task(self) -> ir.Function:
        """G g Gᵀ of panels [begin, end) of features."""
        code = Code(self.parts.module, "winograd_kernel_task", [PTR, I64, I64])
        call, rows, lanes = Record(code, self.fields, code.args[0]), self.tile.rows, self.lanes
        w = call.pointer_at("w")
        with code.range(code.args[1], code.args[2]) as panel:
            starts = []
            for row in range(rows):
                # Rows behind the last one are multiplied, too, and not stored.
                feature = (panel * rows + row).min(call["cols"] - 1)
                start = code.load(code.at(call.pointer_at("w_cols"), feature, I64), I64)
                starts.append(code.at(w, start, self.acc))
            with code.range(0, call["channels"]) as channel:
                k = code.at(call.pointer_at("w_ks"), channel * TAPS * TAPS, I64)
                places = [code.load(code.at(k, tap, I64), I64) for tap in range(TAPS * TAPS)]
                to = code.at(call.pointer_at("pw"), panel * call["pw_step"] + channel * rows,
                             self.acc)  # fmt: skip
                # What a vector has behind a row is written again, by the next one.
                for low in range(0, rows, lanes):
                    some = starts[low : low + lanes]
                    taps = [self.gathered(code, some, place) for place in places]
                    for point, x in enumerate(kernel_points(code.b, taps)):
                        self.store(code, x, code.at(to, call["part"] * point + low, self.acc))
        code.ret()
        return code.function

    # ---- results

    def _output(self) -> ir.Function:
        """void(call, sums, lines, out, begin, end) → i1: AᵀmA of tiles [begin, end) of an image's
        feature, and whether some aren't finite."""
        code = Code(self.parts.module, "winograd_output", [PTR, PTR, PTR, PTR, I64, I64],
                    result=ir.IntType(1))  # fmt: skip
        call, b, lanes = Record(code, self.fields, code.args[0]), code.b, self.lanes
        (sums, lines, out), (begin, end) = code.args[1:4], code.args[4:]
        step = call["room"] * self.wide
        with code.range(begin, end, lanes) as tile:
            at = tile - begin
            for i, y in self.results(code, call, code.at(sums, at, self.acc)):
                for part, x in enumerate(self.interleaved(code, y)):
                    where = code.at(lines, step * i + at * self.wide + part * lanes, self.acc)
                    self.store(code, x, where)
        bad = code.variable(self.vec, zero_of(self.vec))

        def line(x: Int, width: Int, y: Int, at: Int, parity: Int) -> None:
            source = code.at(lines, step * parity + at * self.wide, self.acc)
            to = code.at(out, y * self.pitch(call) + x, self.acc)
            with code.range(0, width, lanes) as i:
                mask = code.first_lanes(width - i, lanes)
                value = code.masked_load(code.at(source, i, self.acc), mask, self.vec)
                # The same of the next feature, whose plane no prefetcher foresees.
                code.prefetch(code.at(to, i + call["c_cs"], self.acc), write=True)
                bad.set(b.fadd(bad.get(), self.lost(code, value)))
                code.masked_store(value, code.at(to, i, self.acc), mask)

        self.each_line(code, call, (begin, end), line)
        total = code.lane_sum(bad.get())
        code.ret(b.fcmp_unordered("uno", total, total))
        code.function.attributes.add("noinline")
        return code.function

    def results(
        self, code: Code, call: Record, sums: ir.Value
    ) -> Iterator[tuple[int, list[ir.Value]]]:
        """Lines of the results of a vector of tiles: their numbers, and vectors of the first
        result of each tile in them, the second one, …"""
        step, b = self.point_step(call, "cols"), code.b
        m = [self.load(code, code.at(sums, step * point, self.acc)) for point in range(POINTS)]
        columns = [results(b, m[j::SIDE]) for j in range(SIDE)]
        for i in range(2):
            yield i, results(b, [column[i] for column in columns])

    def interleaved(self, code: Code, parts: list[ir.Value]) -> list[ir.Value]:
        """The lanes of vectors in turn, as many vectors, a power of two."""
        if len(parts) == 1:
            return parts
        near, lanes = [self.interleaved(code, parts[k::2]) for k in range(2)], self.lanes
        places = [[half * lanes // 2 + k // 2 + k % 2 * lanes for k in range(lanes)]
                  for half in range(2)]  # fmt: skip
        return [self.shuffled(code, x, y, half) for x, y in zip(*near, strict=True)
                for half in places]  # fmt: skip

    def each_line(self, code: Code, call: Record, tiles: tuple[Int, Int], line: Callable) -> None:
        """`line` of the results of tiles [begin, end) of an image, line by line: from which x on,
        of how many, of which y, the first tile's number from `begin` on, and which of its lines."""
        (begin, end), across, wide = tiles, call["across"], self.wide
        with code.range(begin // across, (end - 1) // across + 1) as row:
            first, last = begin.max(row * across), end.min((row + 1) * across)
            x = (first - row * across) * wide
            width = ((last - row * across) * wide).min(call["width"] * (wide // 2)) - x
            y = row * wide
            with code.range(0, (call["height"] * (wide // 2) - y).min(wide)) as parity:
                line(x, width, y + parity, first - begin, parity)

    def pitch(self, call: Record) -> Int:
        """From line to line of results."""
        return call["width"]

    def exact_results(self) -> ir.Function:
        """void(call, image, out, feature, begin, end): those results of tiles [begin, end) that
        aren't finite, as sums of products."""
        code = Code(self.parts.module, "winograd_exact", [PTR, PTR, PTR, I64, I64, I64])
        call, b, lanes = Record(code, self.fields, code.args[0]), code.b, self.lanes
        image, out, (feature, begin, end) = code.args[1], code.args[2], code.args[3:]
        start = code.load(code.at(call.pointer_at("w_cols"), feature, I64), I64)
        w, low = code.at(call.pointer_at("w"), start, self.acc), call["x_low"]

        def line(first: Int, width: Int, y: Int, at: Int, parity: Int) -> None:
            to = code.at(out, y * call["width"] + first, self.acc)
            with code.range(0, width, lanes) as i:
                mask = code.first_lanes(width - i, lanes)
                lost = self.lost(code, self.load(code, code.at(to, i, self.acc), mask))
                some = code.lane_sum(lost)
                with b.if_then(b.fcmp_unordered("uno", some, some)):
                    lost = b.fcmp_unordered("uno", lost, lost)
                    self.store(code, sums(first + i, y, lost), code.at(to, i, self.acc), lost)

        def sums(x: Int, y: Int, lost: ir.Value) -> ir.Value:
            """The results of a vector of places, in the lanes that were lost."""
            total = code.variable(self.vec, zero_of(self.vec))
            settled = code.variable(I1, I1(0))
            inside, places = [], []
            for tap in range(TAPS * TAPS):
                place, row = x + tap % TAPS, y + tap // TAPS - call["y_low"]
                reached = (row >= 0) & (row < call["y_size"])
                high = reached.select(low + call["x_size"], low)
                inside.append(self.within(code, place, low, high))
                places.append(row * call["pitch"] + place - low)
            with code.range(0, call["channels"], until=settled) as channel:
                plane = code.at(image, channel * call["plane"], self.acc)
                for tap, (mask, place) in enumerate(zip(inside, places, strict=True)):
                    k = channel * TAPS * TAPS + tap
                    k = code.load(code.at(call.pointer_at("w_ks"), k, I64), I64)
                    factor = code.splat(code.load(code.at(w, k, self.acc), self.acc), lanes)
                    value = self.load(code, code.at(plane, place, self.acc), mask)
                    total.set(b.fadd(total.get(), b.fmul(factor, value)))
                settled.set(b.not_(self.unsettled(code, lost, total.get())))
            return total.get()

        self.each_line(code, call, (begin, end), line)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    # ---- all

    def source(self, code: Code, point: Int) -> Int:
        """The point of what tiles reach that a product is of."""
        return point

    def kernels(self, panels: Int) -> Int:
        """Panels of all that is transformed of kernels."""
        return panels

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some tiles each."""
        code = Code(self.parts.module, "winograd_task", [PTR, I64, I64])
        call, acc = Record(code, self.fields, code.args[0]), self.acc
        channels, cols, room, mine = (call[f] for f in ("channels", "cols", "room", "mine"))
        first_sum = self.point_step(call, "channels") * POINTS
        points = first_sum + self.point_step(call, "cols") * self.products
        lines = self.kept(call) * self.lines_kept
        own = code.call(self.parts.take, (points + lines) * self.fmt.acc_bytes)
        sums = code.at(own, first_sum, acc)
        beside = code.at(own, points, acc)
        with code.range(code.args[1], code.args[2]) as t:
            tiles = t * mine, ((t + 1) * mine).min(call["total"])

            def read(item: Int, begin: Int, end: Int, at: Int) -> None:
                image = self.item(code, call, "x", item)
                with code.range(0, channels) as channel:
                    plane = code.at(image, channel * call["plane"], acc)
                    to = code.at(own, channel * room + at, acc)
                    code.call(self.input, call.pointer, plane, beside, to, begin, end)

            def write(item: Int, begin: Int, end: Int, at: Int) -> None:
                image, c = (self.item(code, call, name, item) for name in "xc")
                with code.range(0, cols) as col:
                    out = code.at(c, col * call["c_cs"], acc)
                    given = code.at(sums, col * room + at, acc)
                    bad = code.call(self.output, call.pointer, given, beside, out, begin, end)
                    with code.b.if_then(bad, rarely=True):
                        code.call(self.exact, call.pointer, image, out, col, begin, end)

            self.each_image(code, call, tiles, read)
            self._multiply(code, call, (own, sums), tiles[1] - tiles[0])
            self.each_image(code, call, tiles, write)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _multiply(self, code: Code, call: Record, places: tuple, tiles: Int) -> None:
        """The products of a task's tiles."""
        (own, sums), acc, lanes, rows = places, self.acc, self.lanes, self.tile.rows
        channels, cols, room, kc = (call[f] for f in ("channels", "cols", "room", "kc"))
        with (
            code.range(0, self.products) as point,
            code.range(0, channels, kc) as first,
            code.range(0, cols, rows) as i,
        ):
            at = call["part"] * point + i // rows * call["pw_step"] + first * rows
            panel = code.at(call.pointer_at("pw"), at, acc)
            source, out = (
                code.at(x, self.point_step(call, name) * number + row * room, acc)
                for x, name, number, row in ((own, "channels", self.source(code, point), first),
                                             (sums, "cols", point, i))
            )  # fmt: skip
            left = cols - i
            depth, along = (channels - first).min(kc), call.pointer_at("along")

            def multiply(at: Int, vectors: int, heights: list[int]) -> None:
                kernel = self.parts.kernels.strips(heights[0], vectors)
                given: list = []
                for v in range(vectors):
                    given += [code.at(x, at + v * lanes, acc) for x in (source, out)] + [0]
                args = (depth, panel, along, *given, room, left, first)
                if len(heights) == 1:
                    code.call(kernel, *args)
                    return
                with code.either(left <= heights[0]) as (yes, no):
                    with yes:
                        code.call(kernel, *args)
                    with no:
                        multiply(at, vectors, heights[1:])

            with code.range(0, tiles, 2 * lanes) as at, code.either(at + lanes < tiles) as pair:
                two, one = pair
                with two:
                    multiply(at, 2, [h for h in (4, 8) if h < rows] + [rows])
                with one:
                    multiply(at, 1, [rows])

    def _function(self, kernel_task: ir.Function, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, self.name, [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, self.fields, code.variable(I64, count=len(self.fields)).slot)
        self.orient(code, given, call)
        tile, size = self.tile, self.fmt.acc_bytes
        channels, cols = call["channels"], call["cols"]
        total = call["items"] * call["height"].ceil_div(2) * call["width"].ceil_div(2)
        rows, most = channels * POINTS + cols * self.products, self.parts.threads(code) * self.share
        self.count(code, call, rows, total // most)
        room = call["room"]
        panels = cols.ceil_div(tile.rows)
        step = call["pw_step"] = self.parts.panel_elements(tile.rows, channels)
        call["part"], call["kc"] = panels * step, equal_parts(channels, tile.kc, 1)
        call["pw"] = pw = code.call(self.parts.take, panels * step * self.products * size)
        call["along"] = along = code.call(self.parts.take, (channels + LINES_SOON) * 8)
        with code.range(0, channels + LINES_SOON) as channel:
            code.store(channel * room, code.at(along, channel, I64))
        grain = (code.i64(SERIAL_WORK // POINTS) // (channels * tile.rows)).max(1)
        self.parts.loop(code, kernel_task, call.pointer, self.kernels(panels), grain)
        self.parts.loop(code, task, call.pointer, total.ceil_div(call["mine"]), code.i64(1))
        code.call(self.parts.give, along)
        code.call(self.parts.give, pw)
        code.ret()
        return code.function

    def orient(self, code: Code, given: Record, call: Record) -> None:
        """Fills a call of `FIELDS` up to its geometry from one of a and b."""
        self.choose(given, call, {
            "cols": "nm", "x_b0": ("a_b0", "b_b0"), "x_b1": ("a_b1", "b_b1"), "x": "ab", "w": "ba",
            "w_cols": ("b_cols", "a_rows"), "w_ks": ("b_ks", "a_ks"), "c_cs": ("c_cs", "c_rs"),
        })  # fmt: skip
        for name in ("batch1", "c", "c_b0", "c_b1"):
            call[name] = given[name]
        call["items"] = given["batch0"] * given["batch1"]
        axis = partial(self.axis, code, given)
        call["height"], call["width"] = (axis("m_sizes", "n_sizes", back) for back in (1, 0))
        call["channels"], call["plane"] = axis("k_sizes", "k_sizes", 2), axis("k_a", "k_b", 2)
        call["pitch"] = axis("k_a", "k_b", 1)
        call["y_low"] = call["x_low"] = 0
        call["y_size"], call["x_size"] = (call[f] + TAPS - 1 for f in ("height", "width"))
        with code.when(given["frame"].ne(0)):
            self.unframe(code, Record(code, FRAME, given.pointer_at("frame")), call)
