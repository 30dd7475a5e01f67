"""The way of the generated GEMM for gradients of kernels of 3×3 elements: by tiles (`tiles`).

The transpose of the convolution by its kernel: the sum of Gᵀ[(Bᵀ d B) ⊙ (A y Aᵀ)]G over tiles, of
2×2 elements y of the gradient of results and 4×4 elements d of the images. Here ⊙ multiplies each
feature of y with each channel of d, 16 products of matrices whose sums are over tiles. They are cut
into parts by shapes alone, whose sums are added in order. A task takes a part; where there are
fewer parts than threads, some rows of one that are transformed, and then some of its 16 products.
Gradients that aren't finite are computed once more, as sums of products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from funcgrad.backends.llvm.gemm.images.frames import FRAME
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.winograd.tiles import TILED, Tiles, kernel_taps
from funcgrad.backends.llvm.gemm.words import SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I1, I64, PTR, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import POINTS, TAPS

FIELDS = (
    *TILED,
    # The gradient of results: an image's, a feature's and a line's distance.
    "y", "y_b0", "y_b1", "y_plane", "y_pitch",
    # That of the kernel, of which elements of a feature are in the order of channels, then taps.
    "c", "c_cs", "c_ns",
    # Parts, how many tiles each has; their sums, a row of which has channels in whole panels.
    "parts", "apiece", "sums", "across_sums",
    # Of tasks that share a part: what is transformed, of which tiles of the part; where they begin.
    "own", "part", "first", "last", "start",
)  # fmt: skip
# Tiles of a part, where there are few parts, as many as threads often share well, and where there
# are many, whose sums take time to add.
LEAST_PART, FEW, LONG_PART, MOST_PARTS = 256, (1, 2, 4, 8), 512, 32
MOST_SUMS = 1 << 25  # elements of all sums, if there are many parts
ROWS = 8  # transformed by a task, where tasks share a part


class WinogradKernel(Tiles):
    """The way of gradients of kernels."""

    name, fields, tables = "winograd_kernel", FIELDS, False

    def __init__(self, parts: Parts):
        super().__init__(parts)
        own: dict[str, str | int] = {"pitch": "y_pitch", "y_low": 0, "x_low": 0}
        own |= {"y_size": "height", "x_size": "width", "plane": "y_plane"}
        self.input = self.transform("winograd_reached", "channels", {}, reach=True)
        self.given = self.transform("winograd_given", "cols", own, reach=False)
        self.exact = self._exact()
        shared = (
            self._shared_task("winograd_kernel_rows", 1, self._transform_rows),
            self._shared_task("winograd_kernel_points", 2, self._multiply_points),
        )
        self.function = self._function(self._task(), shared, self._finish())

    def _task(self) -> ir.Function:
        """Parts [begin, end): their sums of products."""
        code = Code(self.parts.module, "winograd_part", [PTR, I64, I64])
        call = Record(code, FIELDS, code.args[0])
        points, lines, packed = self._sizes(call)
        own = self._take(code, points + lines + packed)
        beside, panels = (code.at(own, at, self.acc) for at in (points, points + lines))
        with code.range(code.args[1], code.args[2]) as part:
            start, stop = self._tiles_of(call, part)
            with code.range(start, stop, call["mine"]) as first:
                tiles = first, (first + call["mine"]).min(stop)
                self._transform(code, call, (own, beside), tiles, (code.i64(0), self._rows(call)))
                sums = part, first - start
                with code.range(0, POINTS) as point:
                    self._multiply(code, call, (own, panels), point, tiles[1] - first, sums)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _shared_task(self, name: str, size: int, body: Callable) -> ir.Function:
        """`body` of [begin, end) of what tasks share, and memory of its own: one of `_sizes`."""
        code = Code(self.parts.module, name, [PTR, I64, I64])
        call = Record(code, FIELDS, code.args[0])
        beside = self._take(code, self._sizes(call)[size])
        body(code, call, (call.pointer_at("own"), beside), code.args[1:])
        code.call(self.parts.give, beside)
        code.ret()
        return code.function

    def _transform_rows(self, code: Code, call: Record, places: tuple, rows: tuple) -> None:
        self._transform(code, call, places, (call["first"], call["last"]), rows)

    def _multiply_points(self, code: Code, call: Record, places: tuple, points: tuple) -> None:
        tiles, sums = call["last"] - call["first"], (call["part"], call["first"] - call["start"])
        with code.range(*points) as point:
            self._multiply(code, call, places, point, tiles, sums)

    def _shared(self, code: Code, call: Record, tasks: Sequence[ir.Function]) -> None:
        """All parts, one after the other."""
        own = self._take(code, self._sizes(call)[0])
        call["own"] = own
        with code.range(0, call["parts"]) as part:
            start, stop = self._tiles_of(call, part)
            call["part"], call["start"] = part, start
            with code.range(start, stop, call["mine"]) as first:
                call["first"], call["last"] = first, (first + call["mine"]).min(stop)
                counts = self._rows(call), code.i64(POINTS)
                for task, count, grain in zip(tasks, counts, (ROWS, 1), strict=True):
                    self.parts.loop(code, task, call.pointer, count, code.i64(grain))
        code.call(self.parts.give, own)

    def _take(self, code: Code, elements: Int) -> ir.Value:
        return code.call(self.parts.take, elements * self.fmt.acc_bytes)

    def _rows(self, call: Record) -> Int:
        """Rows that are transformed: channels of images, then features of the gradient."""
        return call["channels"] + call["cols"]

    def _sizes(self, call: Record) -> tuple[Int, Int, Int]:
        """Elements that the points of tiles take, the lines of one image, and packed panels."""
        points = (self.point_step(call, "channels") + self.point_step(call, "cols")) * POINTS
        step = self.parts.panel_elements(self.tile.cols, call["mine"])
        return points, self.kept(call) * 8, call["channels"].ceil_div(self.tile.cols) * step

    def _tiles_of(self, call: Record, part: Int) -> tuple[Int, Int]:
        start = part * call["apiece"]
        return start, (start + call["apiece"]).min(call["total"])

    def _given(self, code: Code, call: Record, own: ir.Value) -> ir.Value:
        """Where the points of the gradient of results are, behind those of images."""
        return code.at(own, self.point_step(call, "channels") * POINTS, self.acc)

    def _transform(
        self, code: Code, call: Record, places: tuple, tiles: tuple[Int, Int], rows: tuple
    ) -> None:
        """The points of some rows of tiles."""
        (own, beside), (begin, end), acc = places, rows, self.acc
        channels, given = call["channels"], self._given(code, call, own)
        ranges = (
            ("x", begin.min(channels), end.min(channels), own, "plane", self.input),
            ("y", begin.max(channels) - channels, end.max(channels) - channels, given, "y_plane",
             self.given),
        )  # fmt: skip

        def read(item: Int, first: Int, last: Int, at: Int) -> None:
            for name, low, high, to, plane, function in ranges:
                image = self.item(code, call, name, item)
                with code.range(low, high) as row:
                    source = code.at(image, row * call[plane], acc)
                    where = code.at(to, row * call["room"] + at, acc)
                    code.call(function, call.pointer, source, beside, where, first, last)

        self.each_image(code, call, tiles, read)

    def _multiply(
        self, code: Code, call: Record, places: tuple, point: Int, tiles: Int, sums: tuple
    ) -> None:
        """A point's product of some tiles, of which each element of y meets panels of channels.

        sums: the part whose they are, and whether there are some already
        """
        (own, panels), (part, add), acc, cols = places, sums, self.acc, self.tile.cols
        channels, features, room, wide = (
            call[f] for f in ("channels", "cols", "room", "across_sums")
        )
        step = self.parts.panel_elements(cols, call["mine"])
        source = code.at(own, point * self.point_step(call, "channels"), acc)
        code.call(self.parts.pack_b, panels, source, channels, tiles, room, 1, step)
        a = code.at(self._given(code, call, own), point * self.point_step(call, "cols"), acc)
        c = code.at(call.pointer_at("sums"), (part * POINTS + point) * features * wide, acc)

        def rows(height: int, i: Int) -> None:
            with code.range(0, channels, cols) as j:
                panel = code.at(panels, j // cols * step, acc)
                out = code.at(c, i * wide + j, acc)
                kernel = self.parts.kernels.direct(height, self.tile.vectors, masked=False)
                a_i = code.at(a, i * room, acc)
                code.call(kernel, tiles, a_i, room, 1, panel, cols, out, wide, cols, add)

        at = code.i64(0)
        for height in (8 if self.tile.rows >= 8 else 6, 4, 2, 1):
            stop = at + (features - at) // height * height
            with code.range(at, stop, height) as i:
                rows(height, i)
            at = stop

    def _finish(self) -> ir.Function:
        """GᵀSG of the sums S of all parts, for features [begin, end)."""
        code = Code(self.parts.module, "winograd_finish", [PTR, I64, I64])
        call, acc, lanes, b = Record(code, FIELDS, code.args[0]), self.acc, self.lanes, code.b
        features, wide = call["cols"], call["across_sums"]
        buffer = code.variable(self.vec, count=TAPS * TAPS).slot
        with (
            code.range(code.args[1], code.args[2]) as feature,
            code.range(0, call["channels"], lanes) as channel,
        ):
            first = code.at(call.pointer_at("sums"), feature * wide + channel, acc)
            sums = self.summed(code, first, features * wide, call["parts"])
            bad: ir.Value = zero_of(self.vec)
            for i, x in enumerate(kernel_taps(b, sums)):
                self.store(code, x, code.at(buffer, i, self.vec))
                bad = b.fadd(bad, self.lost(code, x))
            some = code.lane_sum(b.select(code.first_lanes(call["channels"] - channel, lanes), bad,
                                          zero_of(self.vec)))  # fmt: skip
            lost = b.fcmp_unordered("uno", some, some)
            left = (call["channels"] - channel).min(lanes)
            with code.range(0, left) as lane:
                with b.if_then(lost, rarely=True):
                    values = code.at(buffer, lane, acc)
                    code.call(self.exact, call.pointer, feature, channel + lane, values)
                with code.range(0, TAPS * TAPS) as tap:
                    to = ((channel + lane) * TAPS * TAPS + tap) * call["c_ns"]
                    out = code.at(call.pointer_at("c"), feature * call["c_cs"] + to, acc)
                    code.store(code.load(code.at(buffer, tap * lanes + lane, acc), acc), out)
        code.ret()
        return code.function

    def _exact(self) -> ir.Function:
        """void(call, feature, channel, taps): those of 9 values, `lanes` elements apart, that
        aren't finite, as sums of products."""
        code = Code(self.parts.module, "winograd_kernel_exact", [PTR, I64, I64, PTR])
        call, b, lanes = Record(code, FIELDS, code.args[0]), code.b, self.lanes
        feature, channel, taps = code.args[1:]
        low, zero = call["x_low"], zero_of(self.vec)
        totals = [code.variable(self.vec, zero) for _ in range(TAPS * TAPS)]
        settled, lost = code.variable(I1, I1(0)), []
        for tap in range(TAPS * TAPS):
            x = self.lost(code, code.load(code.at(taps, tap * lanes, self.acc), self.acc))
            lost.append(b.fcmp_unordered("uno", x, x))
        with code.range(0, call["width"], lanes, until=settled) as i:
            mask = code.first_lanes(call["width"] - i, lanes)
            inside = [b.and_(mask, self.within(code, i + tap, low, low + call["x_size"]))
                      for tap in range(TAPS)]  # fmt: skip
            with (
                code.range(0, call["items"], until=settled) as item,
                code.range(0, call["height"], until=settled) as line,
            ):
                images, grads = (self.item(code, call, name, item) for name in "xy")
                place = feature * call["y_plane"] + line * call["y_pitch"] + i
                factor = self.load(code, code.at(grads, place, self.acc), mask)
                for tap, total in enumerate(totals):
                    y = line + tap // TAPS - call["y_low"]
                    there = inside[tap % TAPS]
                    there = ((y >= 0) & (y < call["y_size"])).pick(there, zero_of(there.type))
                    place = channel * call["plane"] + y * call["pitch"] + i + tap % TAPS - low
                    x = self.load(code, code.at(images, place, self.acc), there)
                    total.set(b.fadd(total.get(), b.fmul(x, factor)))
                # More needn't be added to sums that are NaN already.
                done: ir.Value = I1(1)
                for total, some in zip(totals, lost, strict=True):
                    x = total.get()
                    nan = code.some(b.fcmp_unordered("uno", x, x))
                    done = b.and_(done, b.or_(nan, b.not_(some)))
                settled.set(done)
        for tap, (total, some) in enumerate(zip(totals, lost, strict=True)):
            with b.if_then(some):
                code.store(code.lane_sum(total.get()), code.at(taps, tap * lanes, self.acc))
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _function(
        self, task: ir.Function, shared: Sequence[ir.Function], finish: ir.Function
    ) -> ir.Function:
        code = Code(self.parts.module, self.name, [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        self._orient(code, given, call)
        channels, cols = call["channels"], call["cols"]
        # What a sum has doesn't depend on the number of threads.
        self.count(code, call, (channels + cols) * POINTS, code.i64(8 * self.lanes))
        total = call["total"]
        few = code.i64(1)
        for n in FEW:
            few = (total >= n * LEAST_PART).select(n, few)
        wide = call["across_sums"] = channels.round_up(self.tile.cols)
        cells = cols * wide * POINTS
        most = (code.i64(MOST_SUMS) // cells).min(MOST_PARTS)
        parts = ((total // LONG_PART).min(most) // FEW[-1] * FEW[-1]).max(few)
        apiece = call["apiece"] = total.ceil_div(parts).round_up(2 * self.lanes)
        parts = call["parts"] = total.ceil_div(apiece)
        call["sums"] = sums = code.call(self.parts.take, parts * cells * self.fmt.acc_bytes)
        with code.either(parts < self.parts.threads(code)) as (few, many):
            with few:
                self._shared(code, call, shared)
            with many:
                self.parts.loop(code, task, call.pointer, parts, code.i64(1))
        self.parts.loop(code, finish, call.pointer, cols, code.i64(4))
        code.call(self.parts.give, sums)
        code.ret()
        return code.function

    def _orient(self, code: Code, given: Record, call: Record) -> None:
        """Fills a call of `FIELDS` up to its geometry from one of a and b."""
        self.choose(given, call, {
            "x": "ab", "y": "ba", "cols": "nm",
            "c_cs": ("c_cs", "c_rs"), "c_ns": ("c_rs", "c_cs"),
        })  # fmt: skip
        axis = partial(self.axis, code, given)
        call["c"], call["batch1"] = given["c"], axis("k_sizes", "k_sizes", 2)
        call["items"] = call["batch1"]
        call["height"], call["width"] = (axis("k_sizes", "k_sizes", back) for back in (1, 0))
        call["channels"], call["plane"] = axis("m_sizes", "n_sizes", 2), axis("m_a", "n_b", 2)
        call["y_plane"] = axis("n_b", "m_a", 0)
        call["pitch"], call["y_pitch"] = axis("k_a", "k_b", 1), axis("k_b", "k_a", 1)
        call["x_b1"], call["y_b1"] = axis("k_a", "k_b", 2), axis("k_b", "k_a", 2)
        call["x_b0"] = call["y_b0"] = call["y_low"] = call["x_low"] = 0
        call["y_size"], call["x_size"] = (call[f] + TAPS - 1 for f in ("height", "width"))
        with code.when(given["frame"].ne(0)):
            self.unframe(code, Record(code, FRAME, given.pointer_at("frame")), call)
