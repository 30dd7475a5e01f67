"""The way of the generated GEMM for gradients of kernels of 3×3 elements: by tiles (`gemm_tiles`).

The transpose of the convolution by its kernel: the sum of Gᵀ[(Bᵀ d B) ⊙ (A y Aᵀ)]G over tiles, of
2×2 elements y of the gradient of results and 4×4 elements d of the images. Here ⊙ multiplies each
feature of y with each channel of d, 16 products of matrices whose sums are over tiles. They are cut
into parts by shapes alone, whose sums are added in order. Gradients that aren't finite are computed
once more, as sums of products.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I1, I64, PTR, Code, Int, zero_of
from funcgrad.backends.llvm.gemm_frames import FRAME
from funcgrad.backends.llvm.gemm_job import SHARED, Parts, Record
from funcgrad.backends.llvm.gemm_tiles import TILED, Tiles, kernel_taps
from funcgrad.backends.tiles import POINTS, TAPS

FIELDS = (
    *TILED,
    # The gradient of results: an image's, a feature's and a line's distance.
    "y", "y_b0", "y_b1", "y_plane", "y_pitch",
    # That of the kernel, of which elements of a feature are in the order of channels, then taps.
    "c", "c_cs", "c_ns",
    # Parts, how many tiles each has; their sums, a row of which has channels in whole panels.
    "parts", "apiece", "sums", "across_sums",
)  # fmt: skip
# Tiles of a part, where there are few parts, and where there are many, whose sums take time to add.
LEAST_PART, MOST_FEW, LONG_PART, MOST_PARTS = 256, 8, 512, 32
MOST_SUMS = 1 << 25  # elements of all sums, if there are many parts


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
        self.function = self._function(self._task(), self._finish())

    def _task(self) -> ir.Function:
        """Parts [begin, end): their sums of products."""
        code = Code(self.parts.module, "winograd_part", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.acc
        channels, cols, room, mine = (call[f] for f in ("channels", "cols", "room", "mine"))
        first_y, lines = self.point_step(call, "channels") * POINTS, self.kept(call) * 8
        points = first_y + self.point_step(call, "cols") * POINTS
        step = self.parts.panel_elements(self.tile.cols, mine)
        packed = channels.ceil_div(self.tile.cols) * step
        own = code.call(self.parts.take, (points + lines + packed) * self.fmt.acc_bytes)
        given, beside = (code.at(own, at, acc) for at in (first_y, points))
        panels = code.at(own, points + lines, acc)
        with code.range(code.args[1], code.args[2]) as part:
            start = part * call["apiece"]
            stop = (start + call["apiece"]).min(call["total"])
            with code.range(start, stop, mine) as first:
                tiles = first, (first + mine).min(stop)

                def read(item: Int, begin: Int, end: Int, at: Int) -> None:
                    for name, rows, to, plane, function in (
                        ("x", channels, own, "plane", self.input),
                        ("y", cols, given, "y_plane", self.given),
                    ):
                        image = self.item(code, call, name, item)
                        with code.range(0, rows) as row:
                            source = code.at(image, row * call[plane], acc)
                            where = code.at(to, row * room + at, acc)
                            code.call(function, call.pointer, source, beside, where, begin, end)

                self.each_image(code, call, tiles, read)
                places = own, given, (panels, step), part
                self._multiply(code, call, places, tiles[1] - tiles[0], first - start)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _multiply(self, code: Code, call: Record, places: tuple, tiles: Int, add: Int) -> None:
        """The 16 products of some tiles, of which each element of y meets panels of channels."""
        (own, given, (panels, step), part), acc, cols = places, self.acc, self.tile.cols
        channels, features, room, wide = (
            call[f] for f in ("channels", "cols", "room", "across_sums")
        )
        with code.range(0, POINTS) as point:
            source = code.at(own, point * self.point_step(call, "channels"), acc)
            code.call(self.parts.pack_b, panels, source, channels, tiles, room, 1, step)
            a = code.at(given, point * self.point_step(call, "cols"), acc)
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
                with b.if_then(lost, likely=False):
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

    def _function(self, task: ir.Function, finish: ir.Function) -> ir.Function:
        code = Code(self.parts.module, self.name, [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        self._orient(code, given, call)
        channels, cols = call["channels"], call["cols"]
        # What a sum has doesn't depend on the number of threads.
        self.count(code, call, (channels + cols) * POINTS, code.i64(8 * self.lanes))
        total, mine = call["total"], call["mine"]
        few = (total // LEAST_PART).max(1).min(MOST_FEW)
        wide = call["across_sums"] = channels.round_up(self.tile.cols)
        cells = cols * wide * POINTS
        most = (code.i64(MOST_SUMS) // cells).min(MOST_PARTS)
        parts = (total // LONG_PART).min(most).max(few)
        apiece = call["apiece"] = total.ceil_div(parts).round_up(mine)
        parts = call["parts"] = total.ceil_div(apiece)
        call["sums"] = sums = code.call(self.parts.take, parts * cells * self.fmt.acc_bytes)
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
