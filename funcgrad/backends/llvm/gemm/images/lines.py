"""The way of the generated GEMM for windows of image lines and few features: nothing is packed.

Where rows of the windows follow each other in memory, line by line, a vector holds the same element
of several windows. So few columns, which would leave the lanes of panels empty, fill them.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.images.placed import FIELDS as PLACED
from funcgrad.backends.llvm.gemm.images.placed import item_of, orient, packs_a
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.words import SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

FIELDS = (*PLACED, "line", "lines")  # rows of a line, and how many there are
TASK_WORK = 1 << 18


class Lines:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables."""

    def __init__(self, parts: Parts):
        self.parts, self.fmt = parts, parts.fmt
        # Vectors of a kernel: of the wide one, of that for the rest.
        self.widths = (4, 2) if parts.tile.many_registers else (2, 1)
        self.function = self._function(self._task())

    @staticmethod
    def works(parts: Parts) -> bool:
        """Whether masked loads are cheap, on which it lives."""
        return parts.kernels.direct_works

    @staticmethod
    def serves(call: Record, parts: Parts) -> Bool:
        """Whether columns are few, and lines long, and c's follow each other, too."""
        swapped, lanes = packs_a(call), parts.tile.lanes
        cols = swapped.select(call["m"], call["n"])
        c_rows = swapped.select(call["c_cs"], call["c_rs"])
        long = swapped.select(call["n_inner"], call["m_inner"]) * 4 >= lanes * 5
        long = long & swapped.select(call["n_step"], call["m_step"]).eq(1)
        return long & (cols * 4 < lanes * 3) & c_rows.eq(1)

    def _task(self) -> ir.Function:
        """Lines [begin, end) of all items."""
        code = Code(self.parts.module, "lines_task", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.fmt.acc
        line, lines, cols, lanes = call["line"], call["lines"], call["cols"], self.parts.tile.lanes
        wide, narrow = (width * lanes for width in self.widths)
        with code.range(code.args[1], code.args[2]) as t:
            item, first = t // lines, t % lines * line
            x, w, c = (item_of(code, call, name, item, acc) for name in "xwc")
            place = code.load(code.at(call.pointer_at("x_rows"), first, I64), I64)
            x, c = code.at(x, place, acc), code.at(c, first, acc)
            # A wide kernel leaves to the narrow one what it fills.
            rest = line % wide
            stop = line - ((rest > 0) & (rest <= narrow)).select(rest, 0)
            for width, begin, end in ((self.widths[0], code.i64(0), stop),
                                      (self.widths[1], stop, line)):  # fmt: skip
                with code.range(begin, end, width * lanes) as j:
                    args = (code.at(x, j, acc), w, code.at(c, j, acc), end - j)
                    self._columns(code, call, width, cols, args)
        code.ret()
        return code.function

    def _columns(self, code: Code, call: Record, width: int, cols: Int, args: tuple) -> None:
        """All columns, for some rows of a line."""
        x, w, c, left = args
        along, w_along = call.pointer_at("x_ks"), call.pointer_at("w_ks")
        with code.range(0, cols, 4) as i:
            across, out = (
                code.at(call.pointer_at("w_cols"), i, I64),
                code.at(c, i * call["c_cs"], self.fmt.acc),
            )
            given = (call["k"], x, along, w, across, w_along, out, call["c_cs"], left, call["add"])

            def choose(count: int) -> None:
                kernel = self.parts.kernels.lines(count, width)
                if count == 4:
                    code.call(kernel, *given)
                    return
                with code.either(cols - i <= count) as (yes, no):
                    with yes:
                        code.call(kernel, *given)
                    with no:
                        choose(count + 1)

            choose(1)

    def _function(self, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "lines", [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        orient(given, call)
        line = call["line"] = packs_a(given).select(given["n_inner"], given["m_inner"])
        lines = call["lines"] = call["rows"] // line
        work, total = line * call["cols"] * call["k"], lines * call["batch0"] * call["batch1"]
        grain = (code.i64(TASK_WORK) // work).max(1)
        serial = work * total < SERIAL_WORK
        self.parts.loop(code, task, call.pointer, total, serial.select(total, grain))
        code.ret()
        return code.function
