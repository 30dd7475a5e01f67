"""The way of the generated GEMM for windows of image lines: vectors of a line against all features.

The kernel of a convolution is packed once, as rows. A vector holds the same element of windows that
follow each other in a line of the image, and is multiplied with a panel's elements, so results are
written in whole vectors, too. What some lines' windows reach is copied before, once, as it lies:
where it is compact, neither cache nor page tables lose it. Of every second element in a line, the
even and the odd ones lie apart there.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.images.frames import AHEAD, FRAME, framed_function
from funcgrad.backends.llvm.gemm.images.placed import FIELDS as PLACED
from funcgrad.backends.llvm.gemm.images.placed import item_of, orient, packs_a
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.kernels import LINES_SOON
from funcgrad.backends.llvm.gemm.pack import equal_parts
from funcgrad.backends.llvm.gemm.words import AXES, FRAMED, MAX_AXES, SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Bool, Code, Int, Record

FIELDS = (
    *PLACED,
    # Rows of a line, and how far apart they lie; vectors of a line, of an item, and of a task.
    "line", "apart", "vectors", "all", "mine",
    # Planes of x, and how far apart they lie. What windows reach in one of them, from which element
    # on. Of the copy: where windows' elements are, from plane to plane, and to the odd elements.
    "planes", "x_plane", "first", "reach", "along", "plane", "odd",
    "frame",
)  # fmt: skip
MOST_W = 1 << 22  # elements of the kernel up to which it is packed
MOST_VECTORS, TASK_WORK = 32, 1 << 25  # of a task
FILLS = 15, 16  # the least part of a line's vectors that its rows fill


class Strips:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables, maybe a frame.

    name: of the way
    """

    name = "strips"

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        masks, lanes = self.tile.masks, self.tile.lanes
        self.framed = framed_function(parts.module, self.fmt.acc, lanes, masks)
        self.function = self._function(self._pack_task(), self._task())

    @staticmethod
    def serves(call: Record, parts: Parts) -> Bool:
        """Whether lines fill vectors, also c's, and all items have the same kernel, of so many
        columns that the rows of a tile are used, and not too large."""
        swapped, lanes = packs_a(call), parts.tile.lanes
        cols = swapped.select(call["m"], call["n"])
        line = swapped.select(call["n_inner"], call["m_inner"])
        fills = (line >= lanes) & (line * FILLS[1] >= line.round_up(lanes) * FILLS[0])
        one_w = swapped.select(call["a_b0"], call["b_b0"]).eq(0) | call["batch0"].eq(1)
        also = swapped.select(call["a_b1"], call["b_b1"]).eq(0) | call["batch1"].eq(1)
        c_rows = swapped.select(call["c_cs"], call["c_rs"])
        fits = (cols >= parts.tile.rows) & (cols * call["k"] <= MOST_W)
        return fills & fits & one_w & also & c_rows.eq(1)

    @staticmethod
    def takes_frame(call: Record) -> Bool:
        """Whether the frame of a call is that of the windows."""
        return call[FRAMED].eq(packs_a(call).select(2, 1))

    def _pack_task(self) -> ir.Function:
        """Packs panels [begin, end) of w."""
        code = Code(self.parts.module, "pack_strips_task", [PTR, I64, I64])
        call, width = Record(code, FIELDS, code.args[0]), self.tile.rows
        first, last, step = code.args[1] * width, code.args[2] * width, call["pw_step"]
        dst = code.at(call.pointer_at("pw"), code.args[1] * step, self.fmt.acc)
        count, k = call["cols"].min(last) - first, call["k"]
        across = code.at(call.pointer_at("w_cols"), first, I64)
        args = (dst, call.pointer_at("w"), count, k, across, call.pointer_at("w_ks"), step)
        code.call(self.parts.gather_a, *args)
        code.ret()
        return code.function

    # ---- the copy

    def _place(self, call: Record, u: Int) -> tuple[Int, Int]:
        """The first row of a vector, and how many lanes another one has stored. The last vector of
        a line ends with it."""
        at = u % call["vectors"] * self.tile.lanes
        start = at.min(call["line"] - self.tile.lanes)
        return u // call["vectors"] * call["line"] + start, at - start

    def _span(self, code: Code, call: Record, first: Int, last: Int) -> tuple[Int, Int]:
        """The least and the largest place of the rows of vectors [first, last)."""
        rows, lanes = call.pointer_at("x_rows"), self.tile.lanes
        (begin, _), (end, _) = self._place(call, first), self._place(call, last - 1)
        return self._extremes(code, rows, begin, end + lanes)

    def _extremes(self, code: Code, table: ir.Value, begin: Int, end: Int) -> tuple[Int, Int]:
        x = code.load(code.at(table, begin, I64), I64)
        low, high = code.variable(I64, x), code.variable(I64, x)
        with code.range(begin, end) as i:
            x = code.load(code.at(table, i, I64), I64)
            low.set(Int(code, low.get()).min(x))
            high.set(Int(code, high.get()).max(x))
        return Int(code, low.get()), Int(code, high.get())

    def _layout(self, code: Code, given: Record, call: Record) -> None:
        """Sets what says how x is copied: the fields from "planes" on."""
        low, high = self._extremes(code, call.pointer_at("x_rows"), code.i64(0), call["rows"])
        sizes, steps = (
            code.at(given.pointer_at("axes"), AXES.index(name) * MAX_AXES, I64)
            for name in ("k_sizes", "k_a")
        )
        others = code.at(given.pointer_at("axes"), AXES.index("k_b") * MAX_AXES, I64)
        steps = packs_a(given).pick(others, steps)
        planes, apart = code.variable(I64, I64(1)), code.variable(I64, I64(0))
        with code.range(1, MAX_AXES + 1) as back:
            size, step = (code.load(code.at(x, MAX_AXES - back, I64), I64) for x in (sizes, steps))
            with code.when(size > 1):
                # The outermost axis, if rows of different planes don't meet.
                planes.set((step > high - low).select(size, 1))
                apart.set(step)
        count = call["planes"] = Int(code, planes.get())
        call["x_plane"] = Int(code, apart.get())
        inner = call["k"] // count
        first, last = self._extremes(code, call.pointer_at("x_ks"), code.i64(0), inner)
        call["first"], call["reach"] = first, last - first + 1
        widest = code.variable(I64, I64(0))
        with code.range(0, call["all"], call["mine"]) as v:
            low, high = self._span(code, call, v, (v + call["mine"]).min(call["all"]))
            widest.set(Int(code, widest.get()).max(high - low))
        lanes, two = self.tile.lanes, call["apart"].eq(2)
        size = (Int(code, widest.get()) + call["reach"]).round_up(2 * lanes) + lanes
        odd = call["odd"] = size // 2 + lanes
        plane = call["plane"] = two.select(odd * 2, size)
        along = call.pointer_at("along")
        with code.range(0, count) as c, code.range(0, inner) as kk:
            place = code.load(code.at(call.pointer_at("x_ks"), kk, I64), I64) - first
            split = place // 2 + place % 2 * odd
            to = code.at(along, c * inner + kk, I64)
            code.store(c * plane + two.select(split, place), to)
        with code.range(call["k"], call["k"] + LINES_SOON) as kk:
            code.store(I64(0), code.at(along, kk, I64))

    def _copy(self, code: Code, call: Record, own: ir.Value, begin: Int, count: Int) -> None:
        """What windows reach in each plane, from element `begin` of x on."""
        acc, x, frame = self.fmt.acc, call.pointer_at("x"), call.pointer_at("frame")
        near, planes = call["apart"].eq(1), call["planes"]
        line = code.at(own, planes * call["plane"], acc)
        with code.range(0, planes) as c:
            first, dst = begin + c * call["x_plane"], code.at(own, c * call["plane"], acc)
            source = code.variable(PTR, code.at(x, first, acc))
            with code.when(call["frame"].ne(0)):
                to = near.pick(dst, line)
                place = first + Record(code, FRAME, frame)["start"]
                code.call(self.framed, to, x, frame, place, count)
                source.set(line)
            with code.either(near) as (yes, no):
                with yes, code.when(call["frame"].eq(0)):
                    self._copy_line(code, dst, source.get(), count)
                with no:
                    self._split_line(code, (dst, call["odd"]), source.get(), count)

    def _copy_line(self, code: Code, dst: ir.Value, src: ir.Value, count: Int) -> None:
        with code.range(0, count, self.tile.lanes) as i:
            x = self._read(code, src, i, count)
            code.store(x, code.at(dst, i, self.fmt.acc), self.fmt.acc_bytes)

    def _split_line(self, code: Code, to: tuple, src: ir.Value, count: Int) -> None:
        """The even elements to the first of two places, the odd ones so far behind them."""
        (dst, apart), lanes, acc = to, self.tile.lanes, self.fmt.acc
        with code.range(0, count, 2 * lanes) as i:
            pair = [self._read(code, src, i + j * lanes, count) for j in range(2)]
            for odd in range(2):
                places = [2 * lane + odd for lane in range(lanes)]
                index = ir.Constant(ir.VectorType(I32, lanes), places)
                where = code.at(dst, i // 2 + apart * odd, acc)
                code.store(
                    code.b.shuffle_vector(pair[0], pair[1], index), where, self.fmt.acc_bytes
                )

    def _read(self, code: Code, src: ir.Value, i: Int, count: Int) -> ir.Value:
        """A vector from element i on of so many; what is beyond isn't touched."""
        lanes, place = self.tile.lanes, code.at(src, i, self.fmt.acc)
        vec = ir.VectorType(self.fmt.acc, lanes)
        part = code.variable(vec)
        with code.either(count - i >= lanes) as (whole, tail):
            with whole:
                code.prefetch(code.at(place, AHEAD // self.fmt.bytes, self.fmt.acc), first=True)
                part.set(code.load(place, vec, self.fmt.acc_bytes))
            with tail:
                part.set(code.masked_load(place, code.first_lanes(count - i, lanes), vec))
        return part.get()

    # ---- the product

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some vectors of an item each."""
        code = Code(self.parts.module, "strips_task", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.fmt.acc
        count, mine, k, kc = (call[f] for f in ("all", "mine", "k", "kc"))
        tasks, add, rows = count.ceil_div(mine), call["add"], self.tile.rows
        # Behind the copy there is room for a line that is split.
        size = (call["planes"] + 1) * call["plane"] * self.fmt.acc_bytes
        own = code.call(self.parts.take, size)
        with code.range(code.args[1], code.args[2]) as t:
            item, first = t // tasks, t % tasks * mine
            i0, i1, c = (
                item // call["batch1"],
                item % call["batch1"],
                item_of(code, call, "c", item, acc),
            )
            last = (first + mine).min(count)
            low, high = self._span(code, call, first, last)
            begin = i0 * call["x_b0"] + i1 * call["x_b1"] + low + call["first"]
            self._copy(code, call, own, begin, high - low + call["reach"])
            with code.range(0, k, kc) as pc, code.range(0, call["cols"], rows) as i:
                panel = code.at(call.pointer_at("pw"), i // rows * call["pw_step"], acc)
                panel = code.at(panel, pc * rows, acc)
                along, kl = code.at(call.pointer_at("along"), pc, I64), (k - pc).min(kc)
                out, left = code.at(c, i * call["c_cs"], acc), call["cols"] - i
                with code.range(first, last, 2) as v:
                    args = (kl, panel, along, out, left, add + pc)
                    self._vectors(code, call, (v, last), (own, low), args)
        code.call(self.parts.give, own)
        code.ret()
        return code.function

    def _vectors(self, code: Code, call: Record, place: tuple, copy: tuple, args: tuple) -> None:
        """Vector v and, if there is one, v + 1 with a panel."""
        (kl, panel, along, out, left, add), acc, rows = args, self.fmt.acc, self.tile.rows
        (v, last), (own, low) = place, copy
        given: list = []
        for u in (v, (v + 1).min(last - 1)):
            row, skipped = self._place(call, u)
            begin = code.load(code.at(call.pointer_at("x_rows"), row, I64), I64) - low
            given += [code.at(own, begin // call["apart"], acc), code.at(out, row, acc), skipped]

        def choose(heights: list[int], vectors: int) -> None:
            kernel = self.parts.kernels.strips(heights[0], vectors)
            fits = (kl, panel, along, *given[: 3 * vectors], call["c_cs"], left, add)
            if len(heights) == 1:
                code.call(kernel, *fits)
                return
            with code.either(left <= heights[0]) as (yes, no):
                with yes:
                    code.call(kernel, *fits)
                with no:
                    choose(heights[1:], vectors)

        with code.either(v + 1 < last) as (two, one):
            with two:
                choose([h for h in (4, 8) if h < rows] + [rows], 2)
            with one:
                choose([rows], 1)

    def _function(self, pack_task: ir.Function, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "strips", [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        orient(given, call)
        call["frame"] = given["frame"]
        tile, cols, k, items = self.tile, call["cols"], call["k"], call["batch0"] * call["batch1"]
        for name, of_m, of_n in (("line", "m_inner", "n_inner"), ("apart", "m_step", "n_step")):
            call[name] = packs_a(given).select(given[of_n], given[of_m])
        vectors = call["vectors"] = call["line"].ceil_div(tile.lanes)
        count = call["all"] = call["rows"] // call["line"] * vectors
        shared = count * items // (self.parts.threads(code) * 16)
        few = (code.i64(TASK_WORK) // (k * cols * tile.lanes)).min(MOST_VECTORS)
        mine = call["mine"] = shared.min(few).max(2).round_up(2)
        call["along"] = along = code.call(self.parts.take, (k + LINES_SOON) * 8)
        self._layout(code, given, call)
        call["kc"] = equal_parts(k, tile.kc, 1)
        step = call["pw_step"] = self.parts.panel_elements(tile.rows, k)
        panels = cols.ceil_div(tile.rows)
        call["pw"] = pw = code.call(self.parts.take, panels * step * self.fmt.acc_bytes)
        grain = (code.i64(SERIAL_WORK // 4) // (k * tile.rows)).max(1)
        self.parts.loop(code, pack_task, call.pointer, panels, grain)
        total = count.ceil_div(mine) * items
        serial = call["rows"] * cols * k * items < SERIAL_WORK
        self.parts.loop(code, task, call.pointer, total, serial.select(total, 1))
        code.call(self.parts.give, pw)
        code.call(self.parts.give, along)
        code.ret()
        return code.function
