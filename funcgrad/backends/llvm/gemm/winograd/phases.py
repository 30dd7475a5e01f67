"""The way of the generated GEMM for convolutions that double images: by tiles (`tiles`).

A kernel of 4×4 elements, every second of which meets an element of the image, is one of 2×2 for
each phase, the results in even or odd lines and columns. As of 3×3 with a line and a column of
zeros, in front for odd ones and behind for even ones, it is 0 in all but 3×3 of the 16 points of a
tile: the phases share what tiles reach, and take 9 products each. The lines of zeros are what
mirrors the kernel: so of a phase the points, in each direction, are the end of its own (the first
or the last), then the two that all phases have.
"""

from __future__ import annotations

from collections.abc import Iterator

from funcgrad.backends.llvm.gemm.winograd.first import FIELDS as WINOGRAD
from funcgrad.backends.llvm.gemm.winograd.first import Winograd
from funcgrad.backends.llvm.gemm.winograd.tiles import SIDE
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.code import I1, I64, PTR, Code, Int, Record, zero_of
from funcgrad.backends.llvm.rewrites.tiles import PHASE_COUNT, PHASE_POINTS, PHASE_TAPS

# How far apart phases of lines and of columns are in the kernel, and lines of results.
FIELDS = (*WINOGRAD, "w_lines", "w_columns", "c_lines")
THREE = 3  # points of a phase in each direction


class WinogradPhases(Winograd):
    """The way of convolutions that double images, by their kernels."""

    name, products = "winograd_phases", PHASE_COUNT * PHASE_POINTS
    fields = FIELDS
    wide, lines_kept, share = 4, 16, 8

    def kernel_task(self) -> ir.Function:
        """The 9 points of panels [begin, end) of features, those of a phase after another's."""
        code = Code(self.parts.module, "phases_kernel_task", [PTR, I64, I64])
        call, rows, lanes = Record(code, self.fields, code.args[0]), self.tile.rows, self.lanes
        panels, per_channel = call["cols"].ceil_div(rows), PHASE_TAPS**2
        with code.range(code.args[1], code.args[2]) as number:
            phase, panel = number // panels, number % panels
            w = code.at(call.pointer_at("w"), self._offset(call, phase // 2, phase % 2), self.acc)
            starts = []
            for row in range(rows):
                # Rows behind the last one are multiplied, too, and not stored.
                feature = (panel * rows + row).min(call["cols"] - 1)
                start = code.load(code.at(call.pointer_at("w_cols"), feature, I64), I64)
                starts.append(code.at(w, start, self.acc))
            # Odd phases' are mirrored.
            lines, columns = ([bit, 1 - bit] for bit in (phase // 2, phase % 2))
            order = [line * PHASE_TAPS + column for line in lines for column in columns]
            with code.range(0, call["channels"]) as channel:
                k = code.at(call.pointer_at("w_ks"), channel * per_channel, I64)
                places = [code.load(code.at(k, tap, I64), I64) for tap in order]
                to = call["part"] * phase * PHASE_POINTS + panel * call["pw_step"] + channel * rows
                # What a vector has behind a row is written again, by the next one.
                for low in range(0, rows, lanes):
                    some = starts[low : low + lanes]
                    taps = [self.gathered(code, some, place) for place in places]
                    for point, x in enumerate(_kernel_points(code.b, taps)):
                        at = to + call["part"] * point + low
                        self.store(code, x, code.at(call.pointer_at("pw"), at, self.acc))
        code.ret()
        return code.function

    def _offset(self, call: Record, line: Int, column: Int) -> Int:
        """Where the kernel of a phase begins."""
        return line * call["w_lines"] + column * call["w_columns"]

    def results(
        self, code: Code, call: Record, sums: ir.Value
    ) -> Iterator[tuple[int, list[ir.Value]]]:
        """Lines of results, in which columns of both phases alternate."""
        step, b = self.point_step(call, "cols"), code.b
        for odd in range(2):
            found: list[list[list[ir.Value]]] = []
            for column in range(2):
                first = (2 * odd + column) * PHASE_POINTS
                m = [self.load(code, code.at(sums, step * (first + point), self.acc))
                     for point in range(PHASE_POINTS)]  # fmt: skip
                made = [_results(b, m[j::THREE], odd) for j in range(THREE)]
                found.append([_results(b, [x[i] for x in made], column) for i in range(2)])
            for i in range(2):
                yield 2 * i + odd, [y[i][j] for j in range(2) for y in found]

    def exact_results(self) -> ir.Function:
        """void(call, image, out, feature, begin, end): those results of tiles [begin, end) that
        aren't finite, as sums of products."""
        code = Code(self.parts.module, "phases_exact", [PTR, PTR, PTR, I64, I64, I64])
        call, b = Record(code, self.fields, code.args[0]), code.b
        image, out, (feature, begin, end) = code.args[1], code.args[2], code.args[3:]
        start = code.load(code.at(call.pointer_at("w_cols"), feature, I64), I64)
        w = code.at(call.pointer_at("w"), start, self.acc)

        def line(first: Int, width: Int, y: Int, at: Int, parity: Int) -> None:
            with code.range(first, first + width) as x:
                to = code.at(out, y * self.pitch(call) + x, self.acc)
                lost = self.lost(code, code.load(to, self.acc))
                with b.if_then(b.fcmp_unordered("uno", lost, lost)):
                    code.store(total_at(x, y), to)

        def total_at(x: Int, y: Int) -> ir.Value:
            kernel = code.at(w, self._offset(call, y % 2, x % 2), self.acc)
            top, left = y // 2 + y % 2 - call["y_low"], x // 2 + x % 2 - call["x_low"]
            total, settled = code.variable(self.acc, zero_of(self.acc)), code.variable(I1, I1(0))
            with code.range(0, call["channels"], until=settled) as channel:
                plane = code.at(image, channel * call["plane"], self.acc)
                for tap in range(PHASE_TAPS**2):
                    k = code.at(call.pointer_at("w_ks"), channel * PHASE_TAPS**2 + tap, I64)
                    factor = code.load(code.at(kernel, code.load(k, I64), self.acc), self.acc)
                    row, place = top + tap // PHASE_TAPS, left + tap % PHASE_TAPS
                    inside = (row >= 0) & (row < call["y_size"])
                    inside = inside & (place >= 0) & (place < call["x_size"])
                    value = code.variable(self.acc, zero_of(self.acc))
                    with code.when(inside):
                        where = code.at(plane, row * call["pitch"] + place, self.acc)
                        value.set(code.load(where, self.acc))
                    total.set(b.fadd(total.get(), b.fmul(factor, value.get())))
                settled.set(b.fcmp_unordered("uno", total.get(), total.get()))
            return total.get()

        self.each_line(code, call, (begin, end), line)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def pitch(self, call: Record) -> Int:
        """From line to line of results."""
        return call["c_lines"]

    def source(self, code: Code, point: Int) -> Int:
        """The point of what tiles reach that a product is of."""
        phase, line, column = (
            point // PHASE_POINTS, point % PHASE_POINTS // THREE, point % THREE
        )  # fmt: skip
        ends = phase // 2 * (SIDE - 1), phase % 2 * (SIDE - 1)
        line, column = (
            at.eq(0).select(end, at) for at, end in zip((line, column), ends, strict=True)
        )
        return line * SIDE + column

    def kernels(self, panels: Int) -> Int:
        """Panels of all that is transformed of kernels."""
        return panels * PHASE_COUNT

    def orient(self, code: Code, given: Record, call: Record) -> None:
        """Fills a call of `FIELDS` up to its geometry from one of a and b."""
        super().orient(code, given, call)
        self.choose(given, call, {
            "w_lines": ("b_rs", "a_rs"), "w_columns": ("b_cs", "a_cs"), "c_lines": ("c_rs", "c_cs"),
        })  # fmt: skip


def _kernel_points(b: IRBuilder, taps: list[ir.Value]) -> list[ir.Value]:
    """The points of a kernel of 2×2, of which lines and columns of zeros come last."""
    half = ir.Constant(taps[0].type, [0.5] * taps[0].type.count)

    def turned(x: ir.Value, y: ir.Value) -> list[ir.Value]:
        return [x, b.fmul(b.fadd(x, y), half), b.fmul(b.fsub(x, y), half)]

    lines = [turned(*taps[i : i + PHASE_TAPS]) for i in range(0, len(taps), PHASE_TAPS)]
    columns = [turned(*line) for line in zip(*lines, strict=True)]
    return [column[i] for i in range(THREE) for column in columns]


def _results(b: IRBuilder, m: list[ir.Value], odd: int) -> list[ir.Value]:
    """Aᵀm, of the end and the two points that both phases have."""
    both, apart = b.fadd(m[1], m[2]), b.fsub(m[1], m[2])
    return [both, b.fsub(apart, m[0])] if odd else [b.fadd(m[0], both), apart]
