"""The way of the generated GEMM for gradients of 3×3 kernels where channels come last: by tiles.

What is said in `winograd_kernel` holds here, too. Operands of products are rows of channels
and of features, one for each tile, and are read as they are made: as columns and as rows. Points
are taken four at a time, those of a line, so that caches hold what belongs to more tiles.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.winograd.tiles import (
    CACHE_SHARE,
    SIDE,
    kernel_taps,
    reached,
    spread,
)
from funcgrad.backends.llvm.gemm.winograd.tiles_last import APART, TILED_LAST, TilesLast
from funcgrad.backends.llvm.gemm.words import SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.code import I1, I64, PTR, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import POINTS, TAPS

FIELDS = (
    *TILED_LAST,
    # The gradient of results: its images, lines, pixels.
    "y", "y_item", "y_pitch", "y_pixel", "features",
    # That of the kernel: rows and columns, whether these are of channels; from row to row, and from
    # tap to tap along both axes.
    "c", "m", "n", "turned", "c_rs", "c_b0", "c_b1",
    # Rows of channels and of features, and from a point's first one to the next point's.
    "row_x", "row_y", "point_x", "point_y",
    # Parts, of how many tiles, in how many tasks; their sums, of so many rows and columns.
    "parts", "apiece", "split", "sums", "tall", "wide",
)  # fmt: skip
LEAST_PART, MOST_PARTS = 256, 16  # tiles of a part; parts
MOST_SUMS = 1 << 21  # elements of sums, if there are several parts
FEW_PARTS = 8  # whose points are spread over tasks
LEAST, MOST = 32, 192  # tiles done at a time
LINE = 64  # bytes of a line of the caches


class WinogradKernelLast(TilesLast):
    """The way of gradients of kernels."""

    name, fields, tables = "winograd_kernel_last", FIELDS, False

    def __init__(self, parts: Parts):
        super().__init__(parts)
        self.inputs = [self._input(i) for i in range(SIDE)]
        self.givens = [self._given(i) for i in range(SIDE)]
        self.products, self.exact = self._products(), self._exact()
        self.function = self._function(self._task(), self._finish())

    # ---- operands

    def _input(self, i: int) -> ir.Function:
        """void(call, to, begin, end): line i of Bᵀ d B of what tiles [begin, end) reach."""
        code = Code(self.parts.module, f"winograd_reached{i}", [PTR, PTR, I64, I64])
        call, to, (begin, end) = Record(code, FIELDS, code.args[0]), code.args[1], code.args[2:]
        (first, second), b = ((0, 2), (1, 2), (1, 2), (1, 3))[i], code.b

        def tile(at: Int, item: Int, y: Int, x: Int) -> None:
            lines = [[self.pixel(code, call, item, y + line, x + j) for j in range(SIDE)]
                     for line in (first, second)]  # fmt: skip
            out = code.at(to, at * call["row_x"], self.acc)

            def vector(k: Int, mask: ir.Value | None) -> None:
                upper, lower = ([self.load(code, code.at(place, k, self.acc), mask)
                                 for place in line] for line in lines)  # fmt: skip
                turned = [self._line_reached(b, i, pair) for pair in zip(upper, lower, strict=True)]
                for j, value in enumerate(reached(b, turned)):
                    self.store(code, value, code.at(out, call["point_x"] * j + k, self.acc))

            self.vectors(code, call["channels"], vector)

        self.each_tile(code, call, begin, end, tile)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _line_reached(self, b: IRBuilder, i: int, d: tuple) -> ir.Value:
        """Element i of Bᵀd, of those two of d that it has."""
        if i == 1:
            return b.fadd(*d)
        return b.fsub(*d[::-1]) if i == 2 else b.fsub(*d)

    def _given(self, i: int) -> ir.Function:
        """void(call, to, begin, end): line i of A y Aᵀ of the gradient y of results of tiles
        [begin, end)."""
        code = Code(self.parts.module, f"winograd_given{i}", [PTR, PTR, I64, I64])
        call, to, (begin, end) = Record(code, FIELDS, code.args[0]), code.args[1], code.args[2:]

        def tile(at: Int, item: Int, y: Int, x: Int) -> None:
            lines = [[self._given_pixel(code, call, item, y + line, x + j) for j in range(2)]
                     for line in range(2)]  # fmt: skip
            out = code.at(to, at * call["row_y"], self.acc)

            def vector(k: Int, mask: ir.Value | None) -> None:
                upper, lower = ([self.load(code, code.at(place, k, self.acc), mask)
                                 for place in line] for line in lines)  # fmt: skip
                turned = [spread(code.b, list(pair))[i] for pair in zip(upper, lower, strict=True)]
                for j, value in enumerate(spread(code.b, turned)):
                    self.store(code, value, code.at(out, call["point_y"] * j + k, self.acc))

            self.vectors(code, call["features"], vector)

        self.each_tile(code, call, begin, end, tile)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _given_pixel(self, code: Code, call: Record, item: Int, y: Int, x: Int) -> ir.Value:
        index = item * call["y_item"] + y * call["y_pitch"] + x * call["y_pixel"]
        place = code.at(call.pointer_at("y"), index, self.acc)
        return ((y < call["height"]) & (x < call["width"])).pick(place, call.pointer_at("zeros"))

    # ---- sums

    def _products(self) -> ir.Function:
        """void(call, xs, ys, sums, tiles, add): products of so many rows of x and y, for each of
        four points: the sums, or added to them."""
        code = Code(self.parts.module, "winograd_products", [PTR, PTR, PTR, PTR, I64, I64])
        call, (xs, ys, sums), (tiles, add) = (
            Record(code, FIELDS, code.args[0]),
            code.args[1:4],
            code.args[4:],
        )
        turned, acc, cols = call["turned"].ne(0), self.acc, self.tile.cols
        along, across = (turned.select(call[f"row_{x}"], call[f"row_{y}"]) for x, y in ("yx", "xy"))
        step_a, step_b = (
            turned.select(call[f"point_{x}"], call[f"point_{y}"]) for x, y in ("yx", "xy")
        )
        rows, columns = turned.pick(ys, xs), turned.pick(xs, ys)
        wide, size = call["wide"], call["wide"] * call["tall"]
        with code.range(0, SIDE) as j, code.range(0, call["n"], cols) as col:
            b = code.at(columns, j * step_b + col, acc)
            out, left = code.at(sums, j * size + col, acc), call["n"] - col

            def multiply(vectors: int) -> None:
                kernel = self.parts.kernels.direct(self.rows, vectors, masked=False)
                with code.range(0, call["m"], self.rows) as row:
                    a, c = (
                        code.at(rows, j * step_a + row, acc),
                        code.at(out, row * wide, acc),
                    )
                    code.call(kernel, tiles, a, 1, along, b, across, c, wide, 0, add)

            def choose(vectors: int) -> None:
                if vectors == 1:
                    multiply(1)
                    return
                with code.either(left > (vectors - 1) * self.lanes) as (yes, no):
                    with yes:
                        multiply(vectors)
                    with no:
                        choose(vectors - 1)

            choose(self.tile.vectors)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _task(self) -> ir.Function:
        """Tasks [begin, end): sums of products of a part, for all points or some."""
        code = Code(self.parts.module, "winograd_last_part", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.acc
        size = (call["point_x"] + call["point_y"]) * SIDE
        own = code.call(self.parts.take, size * self.fmt.acc_bytes)
        # Rows are multiplied to their ends.
        with code.range(0, size // self.lanes * self.lanes, self.lanes) as at:
            self.store(code, zero_of(self.vec), code.at(own, at, acc))
        ys = code.at(own, call["point_x"] * SIDE, acc)
        split, mine, line_size = call["split"], call["mine"], call["tall"] * call["wide"] * SIDE
        with code.range(code.args[1], code.args[2]) as t:
            part, low = t // split, t % split
            high = split.eq(1).select(SIDE, low + 1)
            start = part * call["apiece"]
            stop = (start + call["apiece"]).min(call["total"])
            with code.range(start, stop, mine) as first:
                last = (first + mine).min(stop)
                for i in range(SIDE):
                    with code.when((low <= i) & (high > i)):
                        code.call(self.inputs[i], call.pointer, own, first, last)
                        code.call(self.givens[i], call.pointer, ys, first, last)
                        sums = code.at(call.pointer_at("sums"), (part * SIDE + i) * line_size, acc)
                        args = (call.pointer, own, ys, sums, last - first, first - start)
                        code.call(self.products, *args)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    # ---- results

    def _finish(self) -> ir.Function:
        """GᵀSG of the sums S of all parts, for rows [begin, end)."""
        code = Code(self.parts.module, "winograd_last_finish", [PTR, I64, I64])
        call, acc, b = Record(code, FIELDS, code.args[0]), self.acc, code.b
        wide, step = call["wide"], call["tall"] * call["wide"]
        values = code.call(self.parts.take, wide * TAPS * TAPS * self.fmt.acc_bytes)
        bad = code.variable(self.vec)
        with code.range(code.args[1], code.args[2]) as row:
            bad.set(zero_of(self.vec))
            with code.range(0, wide, self.lanes) as k:
                first = code.at(call.pointer_at("sums"), row * wide + k, acc)
                sums = self.summed(code, first, step, call["parts"])
                for tap, x in enumerate(kernel_taps(b, sums)):
                    self.store(code, x, code.at(values, wide * tap + k, acc))
                    bad.set(b.fadd(bad.get(), self.lost(code, x)))
            some = code.lane_sum(bad.get())
            with b.if_then(b.fcmp_unordered("uno", some, some), rarely=True):
                code.call(self.exact, call.pointer, values, row)
            out = code.at(call.pointer_at("c"), row * call["c_rs"], acc)

            def copy(k: Int, mask: ir.Value | None) -> None:
                for tap in range(TAPS * TAPS):
                    value = self.load(code, code.at(values, wide * tap + k, acc))
                    to = call["c_b0"] * (tap // TAPS) + call["c_b1"] * (tap % TAPS) + k
                    self.store(code, value, code.at(out, to, acc), mask)

            self.vectors(code, call["n"], copy)
        code.call(self.parts.give, values)
        code.ret()
        return code.function

    def _exact(self) -> ir.Function:
        """void(call, values, row): of a row of each tap's gradients, those that aren't finite as
        sums of products."""
        code = Code(self.parts.module, "winograd_last_kernel_exact", [PTR, PTR, I64])
        call, values, row = Record(code, FIELDS, code.args[0]), code.args[1], code.args[2]
        b, wide, acc = code.b, call["wide"], self.acc
        size = wide * TAPS * TAPS
        sums = code.call(self.parts.take, size * self.fmt.acc_bytes)
        with code.range(0, size, self.lanes) as i:
            self.store(code, zero_of(self.vec), code.at(sums, i, acc))
        settled = code.variable(I1, I1(0))

        def settle() -> None:
            """Sets whether all sums that are wanted are NaN: more needn't be added."""
            settled.set(I1(1))
            with code.range(0, TAPS * TAPS) as tap, code.range(0, call["n"], self.lanes) as k:
                mask, place = code.first_lanes(call["n"] - k, self.lanes), wide * tap + k
                lost = self.lost(code, self.load(code, code.at(values, place, acc), mask))
                total = self.load(code, code.at(sums, place, acc))
                more = self.unsettled(code, b.fcmp_unordered("uno", lost, lost), total)
                settled.set(b.and_(settled.get(), b.not_(more)))

        with (
            code.range(0, call["items"], until=settled) as item,
            code.range(0, call["height"], until=settled) as y,
        ):
            with code.range(0, TAPS * TAPS) as tap:
                self._line(code, call, sums, row, item, y, tap)
            settle()
        with code.range(0, size, self.lanes) as i:
            place = code.at(values, i, acc)
            old = self.load(code, place)
            lost = self.lost(code, old)
            total = self.load(code, code.at(sums, i, acc))
            self.store(code, b.select(b.fcmp_unordered("uno", lost, lost), total, old), place)
        code.call(self.parts.give, sums)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _line(self, code: Code, call: Record, sums: ir.Value, row: Int, item: Int, y: Int,
              tap: Int) -> None:  # fmt: skip
        """Adds the products of a line of an image to a row of a tap's sums."""
        acc, wide, turned = self.acc, call["wide"], call["turned"].ne(0)
        line, shift = y + tap // TAPS - call["y_low"], call["x_low"] - tap % TAPS
        met, width = (line >= 0) & (line < call["y_size"]), call["width"]
        low = met.select(shift.max(0).min(width), 0)
        high = met.select((shift + call["x_size"]).min(width).max(low), 0)
        image = item * call["x_item"] + line * call["pitch"] - shift * call["pixel"]
        grads = item * call["y_item"] + y * call["y_pitch"]
        # Zeros in front, what is there, zeros behind: they count where the other isn't finite.
        with code.range(0, TAPS) as third:
            there = third.eq(1)
            begin = third.eq(0).select(0, there.select(low, high))
            end = third.eq(0).select(low, there.select(high, width))
            x = code.at(call.pointer_at("x"), image + begin * call["pixel"], acc)
            x, step = (
                there.pick(x, call.pointer_at("zeros")),
                there.select(call["pixel"], 0),
            )
            given = code.at(call.pointer_at("y"), grads + begin * call["y_pixel"], acc)
            a, other = turned.pick(given, x), turned.pick(x, given)
            along, across = (turned.select(call["y_pixel"], step),
                             turned.select(step, call["y_pixel"]))  # fmt: skip
            with code.when(begin < end), code.range(0, call["n"], self.tile.cols) as k:
                kernel = self.parts.kernels.direct(1, self.tile.vectors, masked=True)
                one, some = code.at(a, row, acc), code.at(other, k, acc)
                out, left = code.at(sums, wide * tap + k, acc), call["n"] - k
                args = (end - begin, one, 0, along, some, across, out, wide, left, 1)
                code.call(kernel, *args)

    # ---- all

    def _function(self, task: ir.Function, finish: ir.Function) -> ir.Function:
        code = Code(self.parts.module, self.name, [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        self._orient(code, given, call)
        channels, features, total = (call[f] for f in ("channels", "features", "total"))
        size, line = self.fmt.acc_bytes, LINE // self.fmt.acc_bytes

        def row(count: Int) -> Int:
            """Elements of a row: of an odd number of lines, lest rows meet in few of a cache."""
            count = count.round_up(self.lanes).max(count.round_up(self.rows)).ceil_div(line)
            return (count + 1 - count % 2) * line

        row_x, row_y = call["row_x"], call["row_y"] = row(channels), row(features)
        tall = call["tall"] = call["m"].round_up(self.rows)
        wide = call["wide"] = call["n"].round_up(self.lanes)
        # What a sum has doesn't depend on the number of threads.
        cells = tall * wide * POINTS
        most = (code.i64(MOST_SUMS) // cells).max(1).min(MOST_PARTS)
        parts = (total // LEAST_PART).max(1).min(most)
        apiece = call["apiece"] = total.ceil_div(parts)
        parts = call["parts"] = total.ceil_div(apiece)
        split = call["split"] = (parts < FEW_PARTS).select(SIDE, 1)
        share = self.parts.target.caches.l2 * CACHE_SHARE[0] // CACHE_SHARE[1]
        fits = code.i64(share // (SIDE * size)) // (row_x + row_y)
        mine = call["mine"] = apiece.ceil_div(apiece.ceil_div(fits.max(LEAST).min(MOST)))
        call["point_x"], call["point_y"] = mine * row_x + APART, mine * row_y + APART
        call["sums"] = sums = code.call(self.parts.take, parts * cells * size)
        zeros = self.take_zeros(code, call, channels.max(features))
        self.parts.loop(code, task, call.pointer, parts * split, code.i64(1))
        self.parts.loop(code, finish, call.pointer, call["m"], code.i64(4))
        code.call(self.parts.give, zeros)
        code.call(self.parts.give, sums)
        code.ret()
        return code.function

    def _orient(self, code: Code, given: Record, call: Record) -> None:
        """Fills a call of `FIELDS` from one of a and b, but for memory."""
        turned = given["windows"].eq(2)
        call["turned"] = turned.select(1, 0)
        for name in ("c", "m", "n", "c_rs", "c_b0", "c_b1"):
            call[name] = given[name]
        call["channels"], call["features"] = (
            turned.select(given[x], given[y]) for x, y in ("nm", "mn")
        )
        self.locate(code, given, call, "k", "k")
        call["y"] = turned.select(given["a"], given["b"])
        for back, name in enumerate(("y_pixel", "y_pitch", "y_item")):
            call[name] = self.axis(code, given, "k_b", "k_a", back)
