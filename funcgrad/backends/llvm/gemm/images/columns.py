"""The way of the generated GEMM for few windows and a kernel whose features follow each other.

A kernel that few windows meet isn't worth packing: the micro-kernel reads its rows where they lie,
and the windows' elements one by one. A task has some features of all windows of an image.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.images.lines import Lines
from funcgrad.backends.llvm.gemm.images.placed import item_of
from funcgrad.backends.llvm.gemm.images.strips import Strips
from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.words import SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Record

MOST_ROWS = 256  # windows that are few
LEAST_B = 1 << 16  # elements of the kernel that are worth more than a task
DEPTH = 256  # rows of the kernel that a task reads again for each of its windows


class Columns:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables."""

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.function = self._function(self._task())

    @staticmethod
    def serves(call: Record, parts: Parts) -> Bool:
        """Whether a has few rows, and b whole vectors of columns that follow each other, as those
        of c do; unless these are lines of windows, of which strips are copied."""
        m, n, k = call["m"], call["n"], call["k"]
        follows = call["n_inner"].eq(n) & call["n_step"].eq(1) & (n % parts.tile.lanes).eq(0)
        served = follows & call["c_cs"].eq(1) & (m <= MOST_ROWS) & (m < n) & (n * k >= LEAST_B)
        if Lines.works(parts):
            served = served & ~(call["windows"].eq(2) & Strips.serves(call, parts))
        return served

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some columns of an item each."""
        code = Code(self.parts.module, "columns_of_windows_task", [PTR, I64, I64])
        call, acc, tile = Record(code, SHARED, code.args[0]), self.fmt.acc, self.tile
        kernels, k, n, m = self.parts.kernels, call["k"], call["n"], call["m"]
        panels = n.ceil_div(tile.cols)
        with code.range(code.args[1], code.args[2]) as t:
            item, j = t // panels, t % panels * tile.cols
            a, b, c = (item_of(code, call, name, item, acc) for name in "abc")
            left = (n - j).min(tile.cols)
            across = code.load(code.at(call.pointer_at("b_cols"), j, I64), I64)
            b = code.at(b, across, acc)
            with code.range(0, k, DEPTH) as pc, code.range(0, m, kernels.placed_rows) as i:
                depth = (k - pc).min(DEPTH)
                a_ks, b_ks, rows = (
                    code.at(call.pointer_at(x), at, I64)
                    for x, at in (("a_ks", pc), ("b_ks", pc), ("a_rows", i))
                )
                out = code.at(c, i * call["c_rs"] + j, acc)
                args = (depth, a, rows, a_ks, b, b_ks, out, call["c_rs"], 1, m - i, left)
                with code.either(left > tile.lanes) as (several, one):
                    with several:
                        code.call(kernels.columns(tile.vectors), *args, call["add"] + pc)
                    with one:
                        code.call(kernels.columns(1), *args, call["add"] + pc)
        code.ret()
        return code.function

    def _function(self, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "columns_of_windows", [PTR])
        call = Record(code, SHARED, code.args[0])
        total = call["n"].ceil_div(self.tile.cols) * call["batch0"] * call["batch1"]
        self.parts.loop(code, task, call.pointer, total, code.i64(1))
        code.ret()
        return code.function
