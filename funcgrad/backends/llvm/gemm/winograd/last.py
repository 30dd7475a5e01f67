"""The way of the generated GEMM for 3×3 windows of images whose channels come last: by tiles.

The transforms are those of `winograd`, and so is what is said there of results. Vectors are of
channels or features, which follow each other in memory: a task transforms what its tiles reach to
rows of channels, one for each tile and point, multiplies these with panels of the kernel, which is
transformed once, and makes the results of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.pack import equal_parts, widen
from funcgrad.backends.llvm.gemm.winograd.tiles import (
    CACHE_SHARE,
    SIDE,
    kernel_points,
    reached,
    results,
)
from funcgrad.backends.llvm.gemm.winograd.tiles_last import APART, TILED_LAST, TilesLast
from funcgrad.backends.llvm.gemm.words import SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    I1,
    I64,
    PTR,
    Bool,
    Callee,
    Code,
    Int,
    Record,
    zero_of,
)
from funcgrad.backends.llvm.rewrites.tiles import POINTS, TAPS

FIELDS = (
    *TILED_LAST,
    # The kernel, and where its elements lie, by tables; results, and from pixel to pixel of them.
    "w", "w_cols", "w_ks", "c", "c_step", "cols",
    # Elements of a tile's channels; rows of these and of sums, and from a point's first one to the
    # next point's.
    "depth", "row_in", "row_out", "point_in", "point_out",
    # The kernel in panels: one's elements, and those of each of the 16 points; channels at a time.
    "pw", "pw_step", "part", "kc",
)  # fmt: skip
LEAST, MOST = 4, 16  # tiles of a task, by rows of the kernel of products


class WinogradLast(TilesLast):
    """The way of convolutions, by their kernels.

    along: how many channels lie in an element of what is transformed
    """

    name, fields, along = "winograd_last", FIELDS, 1

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.input, self.output = self._input(), self._output()
        self.function = self._function(self._kernel_task(), self._task())

    # ---- the kernel

    def _kernel_task(self) -> ir.Function:
        """G g Gᵀ of panels [begin, end) of features."""
        code = Code(self.parts.module, "winograd_last_kernel_task", [PTR, I64, I64])
        call, cols, lanes = Record(code, FIELDS, code.args[0]), self.tile.cols, self.lanes
        starts, features = call.pointer_at("w_cols"), call["cols"]
        ends = code.load(code.at(starts, features - 1, I64), I64)
        follow = (ends - code.load(starts, I64)).eq(features - 1)
        with (
            code.range(code.args[1], code.args[2]) as panel,
            code.range(0, cols, lanes) as col,
        ):
            first = panel * cols + col
            # Columns behind the last one are multiplied, too, and not stored.
            numbers = [(first + lane).min(features - 1) for lane in range(lanes)]
            places = self._starts(code, call, numbers)
            to = code.at(call.pointer_at("pw"), call["pw_step"] * panel + col, self.acc)
            with code.either(follow & (first + lanes <= features)) as (together, apart):
                with together:
                    self._points(code, call, to, partial(self._follows, code, places[0]))
                with apart:
                    self._points(code, call, to, partial(self.gathered, code, places))
        code.ret()
        return code.function

    def _starts(self, code: Code, call: Record, features: list[Int]) -> list[ir.Value]:
        """Where the kernels of features begin."""
        w, table = call.pointer_at("w"), call.pointer_at("w_cols")
        kind = self.fmt.storage
        return [code.at(w, code.load(code.at(table, f, I64), I64), kind) for f in features]

    def _follows(self, code: Code, place: ir.Value, first: Int) -> ir.Value:
        vec = self.parts.kernels.storage_vec
        x = code.load(code.at(place, first, self.fmt.storage), vec, self.fmt.align)
        return widen(code, self.fmt, self.parts.target, x)

    def _points(self, code: Code, call: Record, to: ir.Value, read: Callable) -> None:
        """G g Gᵀ of a vector of features and all channels.

        read: what loads it, so far behind the first element
        """
        channels, cols = call["channels"], self.tile.cols
        with code.range(0, channels) as channel:
            for part, x in enumerate(self.points_of(code, call, channel, read)):
                self.store(code, x, code.at(to, call["part"] * part + channel * cols, self.acc))

    def points_of(self, code: Code, call: Record, channel: Int, read: Callable) -> list[ir.Value]:
        """G g Gᵀ of a vector of features and one channel; read: as of `_points`."""
        taps = []
        for tap in range(TAPS * TAPS):
            k = code.at(call.pointer_at("w_ks"), channel + call["channels"] * tap, I64)
            taps.append(read(code.load(k, I64)))
        return kernel_points(code.b, taps)

    # ---- what tiles reach

    def each_vector(self, code: Code, count: Int, body: Callable) -> None:
        """`body` of the first of each vector of channels, so many, and of a mask or None."""
        self.vectors(code, count, body)

    def channels_of(self, code: Code, place: ir.Value, i: Int, mask: ir.Value | None) -> ir.Value:
        """A vector of a pixel's channels from the i-th on."""
        return self.load(code, code.at(place, i, self.acc), mask)

    def _input(self) -> ir.Function:
        """void(call, to, begin, end): Bᵀ d B of tiles [begin, end)."""
        code = Code(self.parts.module, "winograd_last_input", [PTR, PTR, I64, I64])
        call, to, (begin, end) = Record(code, FIELDS, code.args[0]), code.args[1], code.args[2:]
        channels, row, step = call["channels"], call["row_in"], call["point_in"]

        def tile(at: Int, item: Int, y: Int, x: Int) -> None:
            places = [self.pixel(code, call, item, y + i, x + j)
                      for i in range(SIDE) for j in range(SIDE)]  # fmt: skip
            out = code.at(to, at * row, self.acc)

            def vector(i: Int, mask: ir.Value | None) -> None:
                d = [self.channels_of(code, place, i, mask) for place in places]
                lines = [reached(code.b, d[SIDE * k : SIDE * (k + 1)]) for k in range(SIDE)]
                for j in range(SIDE):
                    for k, value in enumerate(reached(code.b, [line[j] for line in lines])):
                        where = step * (SIDE * k + j) + i // self.along
                        self.store(code, value, code.at(out, where, self.acc))

            self.each_vector(code, channels, vector)

        self.each_tile(code, call, begin, end, tile)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    # ---- results

    def _output(self) -> ir.Function:
        """void(call, sums, beside, begin, end) → i1: AᵀmA of tiles [begin, end), and whether some
        aren't finite; beside is room for those that aren't in the image."""
        code = Code(self.parts.module, "winograd_last_output", [PTR, PTR, PTR, I64, I64],
                    result=ir.IntType(1))  # fmt: skip
        b, bad = code.b, code.variable(self.vec, zero_of(self.vec))

        def noted(value: ir.Value) -> ir.Value:
            bad.set(b.fadd(bad.get(), self.lost(code, value)))
            return value

        self.each_result(code, noted)
        total = code.lane_sum(bad.get())
        code.ret(b.fcmp_unordered("uno", total, total))
        code.function.attributes.add("noinline")
        return code.function

    def each_result(self, code: Code, made: Callable[[ir.Value], ir.Value]) -> None:
        """Stores what is made of vectors of AᵀmA, in a function as `_output` writes."""
        call, b = Record(code, FIELDS, code.args[0]), code.b
        (sums, beside), (begin, end) = code.args[1:3], code.args[3:]
        cols, row, step = call["cols"], call["row_out"], call["point_out"]

        def tile(at: Int, item: Int, y: Int, x: Int) -> None:
            source = code.at(sums, at * row, self.acc)
            to = [
                self._inside(call, y + i, x + j).pick(self._result(code, call, item, y + i, x + j),
                                                      beside)
                for i in range(2) for j in range(2)
            ]  # fmt: skip

            def vector(k: Int, mask: ir.Value | None) -> None:
                m = [self.load(code, code.at(source, step * point + k, self.acc))
                     for point in range(POINTS)]  # fmt: skip
                columns = [results(b, m[j::SIDE]) for j in range(SIDE)]
                lines = [results(b, [column[i] for column in columns]) for i in range(2)]
                for place, value in zip(to, (v for line in lines for v in line), strict=True):
                    self.store(code, made(value), code.at(place, k, self.acc), mask)

            self.vectors(code, cols, vector)

        self.each_tile(code, call, begin, end, tile)

    def write_results(self, code: Code, args: tuple) -> None:
        """The results of a task's tiles; args: of `_output`."""
        call, _, _, first, last = args
        exact = self._exact()
        with code.b.if_then(code.call(self.output, *args), rarely=True):
            code.call(exact, call, first, last)

    def _inside(self, call: Record, y: Int, x: Int) -> Bool:
        return (y < call["height"]) & (x < call["width"])

    def _result(self, code: Code, call: Record, item: Int, y: Int, x: Int) -> ir.Value:
        place = ((item * call["height"] + y) * call["width"] + x) * call["c_step"]
        return code.at(call.pointer_at("c"), place, self.acc)

    def _exact(self) -> ir.Function:
        """void(call, begin, end): those results of tiles [begin, end) that aren't finite, as sums
        of products."""
        code = Code(self.parts.module, "winograd_last_exact", [PTR, I64, I64])
        call, (begin, end), b = Record(code, FIELDS, code.args[0]), code.args[1:], code.b
        zero, reached_at = zero_of(self.vec), code.variable(PTR, count=TAPS * TAPS).slot

        def result(item: Int, y: Int, x: Int) -> None:
            for tap in range(TAPS * TAPS):
                place = self.pixel(code, call, item, y + tap // TAPS, x + tap % TAPS)
                code.store(place, code.at(reached_at, tap, PTR))
            out = self._result(code, call, item, y, x)

            def vector(k: Int, mask: ir.Value) -> None:
                old = self.load(code, code.at(out, k, self.acc), mask)
                lost = self.lost(code, old)
                some = code.lane_sum(lost)
                with b.if_then(b.fcmp_unordered("uno", some, some)):
                    replace(k, mask, old, b.fcmp_unordered("uno", lost, lost))

            def replace(k: Int, mask: ir.Value, old: ir.Value, lost: ir.Value) -> None:
                total, settled = code.variable(self.vec, zero), code.variable(I1, I1(0))
                numbers = [(k + lane).min(call["cols"] - 1) for lane in range(self.lanes)]
                starts = self._starts(code, call, numbers)
                with code.range(0, call["channels"], until=settled) as channel:
                    with code.range(0, TAPS * TAPS) as tap:
                        at = code.at(call.pointer_at("w_ks"), channel + tap * call["channels"], I64)
                        factor = self.gathered(code, starts, code.load(at, I64))
                        place = code.load(code.at(reached_at, tap, PTR), PTR)
                        value = code.load(code.at(place, channel, self.acc), self.acc)
                        value = b.fmul(code.splat(value, self.lanes), factor)
                        total.set(b.fadd(total.get(), value))
                    settled.set(b.not_(self.unsettled(code, lost, total.get())))
                value = b.select(lost, total.get(), old)
                self.store(code, value, code.at(out, k, self.acc), mask)

            # All vectors with a mask: written once, as this is most of the way's code.
            with code.range(0, call["cols"], self.lanes) as k:
                vector(k, code.first_lanes(call["cols"] - k, self.lanes))

        def tile(at: Int, item: Int, y: Int, x: Int) -> None:
            with (
                code.range(y, (y + 2).min(call["height"])) as line,
                code.range(x, (x + 2).min(call["width"])) as pixel,
            ):
                result(item, line, pixel)

        self.each_tile(code, call, begin, end, tile)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    # ---- all

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some tiles each."""
        code = Code(self.parts.module, "winograd_last_task", [PTR, I64, I64])
        call = Record(code, FIELDS, code.args[0])
        mine, size = call["mine"], (call["point_in"] + call["point_out"]) * POINTS
        own = code.call(self.parts.take, (size + call["row_out"]) * self.fmt.acc_bytes)
        sums = code.at(own, call["point_in"] * POINTS, self.acc)
        beside = code.at(own, size, self.acc)
        with code.range(code.args[1], code.args[2]) as t:
            first, last = t * mine, ((t + 1) * mine).min(call["total"])
            code.call(self.input, call.pointer, own, first, last)
            self._multiply(code, call, (own, sums), last - first)
            self.write_results(code, (call.pointer, sums, beside, first, last))
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _multiply(self, code: Code, call: Record, places: tuple, count: Int) -> None:
        """The 16 products of a task's tiles."""
        (own, sums), acc, cols, lanes = places, self.acc, self.tile.cols, self.lanes
        deep, kc, row_in, row_out = (call[f] for f in ("depth", "kc", "row_in", "row_out"))
        # Rows behind the last one are multiplied, too, and not read.
        with code.range(count, count.round_up(self.rows)) as i, code.range(0, POINTS) as point:
            row = code.at(own, point * call["point_in"] + i * row_in, acc)
            with code.range(0, row_in, lanes) as k:
                self.store(code, zero_of(self.vec), code.at(row, k, acc))
        with (
            code.range(0, POINTS) as point,
            code.range(0, deep, kc) as first,
            code.range(0, call["cols"], cols) as j,
        ):
            at = call["part"] * point + j // cols * call["pw_step"] + first * cols
            panel = code.at(call.pointer_at("pw"), at, acc)
            source = code.at(own, point * call["point_in"] + first, acc)
            out, left = code.at(sums, point * call["point_out"] + j, acc), call["cols"] - j
            depth = (deep - first).min(kc)

            def multiply(vectors: int) -> None:
                kernel = self.kernel(vectors)
                with code.range(0, count, self.rows) as i:
                    a, c = code.at(source, i * row_in, acc), code.at(out, i * row_out, acc)
                    code.call(kernel, depth, a, row_in, 1, panel, cols, c, row_out, 0, first)

            def choose(vectors: int) -> None:
                if vectors == 1:
                    multiply(1)
                    return
                with code.either(left > (vectors - 1) * lanes) as (yes, no):
                    with yes:
                        multiply(vectors)
                    with no:
                        choose(vectors - 1)

            choose(self.tile.vectors)

    def kernel(self, vectors: int) -> Callee:
        """The kernel of products of rows and so many vectors of features."""
        return self.parts.kernels.direct(self.rows, vectors, masked=False)

    def _function(self, kernel_task: ir.Function, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, self.name, [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        self._orient(code, given, call)
        tile, lanes, size, rows = self.tile, self.lanes, self.fmt.acc_bytes, self.rows
        channels, cols = call["channels"], call["cols"]
        total, depth = call["total"], channels // self.along
        call["depth"] = depth
        row_in = call["row_in"] = depth.round_up(lanes)
        row_out = call["row_out"] = cols.round_up(lanes)
        share = self.parts.target.caches.l2 * CACHE_SHARE[0] // CACHE_SHARE[1]
        fits = code.i64(share // (POINTS * size)) // (row_in + row_out)
        shared = total // (self.parts.threads(code) * 4)
        mine = call["mine"] = fits.min(shared).max(LEAST * rows).min(MOST * rows) // rows * rows
        call["point_in"], call["point_out"] = mine * row_in + APART, mine * row_out + APART
        panels = cols.ceil_div(tile.cols)
        step = call["pw_step"] = (row_in * tile.cols + lanes).round_up(16)
        call["part"], call["kc"] = panels * step, equal_parts(depth, tile.kc // tile.along, 1)
        call["pw"] = pw = code.call(self.parts.take, panels * step * POINTS * size)
        zeros = self.take_zeros(code, call, channels)
        grain = (code.i64(SERIAL_WORK // POINTS) // (channels * tile.cols)).max(1)
        self.parts.loop(code, kernel_task, call.pointer, panels, grain)
        self.parts.loop(code, task, call.pointer, total.ceil_div(mine), code.i64(1))
        code.call(self.parts.give, zeros)
        code.call(self.parts.give, pw)
        code.ret()
        return code.function

    def _orient(self, code: Code, given: Record, call: Record) -> None:
        """Fills a call of `FIELDS` from one of a and b, but for memory."""
        self.choose(given, call, {
            "cols": "nm", "w": "ba", "w_cols": ("b_cols", "a_rows"),
            "w_ks": ("b_ks", "a_ks"), "c_step": ("c_rs", "c_cs"),
        })  # fmt: skip
        call["c"], call["channels"] = given["c"], given["k"] // (TAPS * TAPS)
        self.locate(code, given, call, "m", "n")
