"""The way of the generated GEMM for gradients of kernels whose features come last.

An element of a kernel's gradient is a long sum over places of images. Those of a line of the kernel
follow each other in each window, as features do in the gradient of results: so nothing is packed,
and rows of the register tile are neighbours in memory. Threads take parts of the places, with sums
of their own, which are added in order; a part goes by blocks of lines, which stay in the first
caches while all elements meet them.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.pack import Tile
from funcgrad.backends.llvm.gemm.words import JOB, SERIAL_WORK, SHARED
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Bool, Code, Int, Record

# Elements of a line of the kernel, and how many lines a task takes; places of a part and of a
# block; parts and their sums.
FIELDS = (*SHARED, "row", "mine", "apiece", "block", "parts", "sums")
MOST_PARTS, LEAST_PART = 16, 256
MOST_SUMS = 1 << 19  # elements of all parts
LEAST_TASKS = 8
# Elements of a and b that all of the kernel meets, before the next ones do; places, at least.
BLOCK, LEAST_BLOCK = 1 << 13, 128


class Sums:
    """Writes `function`: void(ptr call), of a call of `SHARED` that has tables."""

    name = "sums"

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.function = self._function(self._task())

    @staticmethod
    def serves(call: Record, parts: Parts) -> Bool:
        """Whether rows and columns follow each other, and enough tasks have long sums."""
        m, n, row = call["m"], call["n"], call["m_inner"]
        lies = (row > 0) & call["m_step"].eq(1) & call["n_inner"].eq(n) & call["n_step"].eq(1)
        lies = lies & call["c_cs"].eq(1) & (call["batch0"] * call["batch1"]).eq(1)
        count, lines = _cut(m, n, call["k"], row.max(1))
        long = (call["k"] >= LEAST_PART) & (m * n <= MOST_SUMS)
        return lies & long & (count * lines >= LEAST_TASKS)

    @staticmethod
    def reached(tile: Tile, call: Any) -> list[Micro]:
        """The kernels that a call needs, of which the numbers are known."""
        row, n = call["m_inner"].value, call["n"].value
        rest, found = n % tile.cols, []
        for vectors, met in (2, n >= tile.cols or rest > tile.lanes), (1, 0 < rest <= tile.lanes):
            most = most_rows(tile, vectors)
            height = -(-row // -(-row // most))
            last = row - (-(-row // height) - 1) * height
            found += [Micro(Sums.name, h, vectors, True) for h in {height, last} if met]
        return found

    def _task(self) -> ir.Function:
        """Tasks [begin, end): some lines of the kernel, of a part of the places."""
        code = Code(self.parts.module, "sums_task", [PTR, I64, I64])
        call, acc = Record(code, FIELDS, code.args[0]), self.fmt.acc
        m, n, row, cut = call["m"], call["n"], call["row"], call["parts"] > 1
        groups = m // (row * call["mine"])
        with code.range(code.args[1], code.args[2]) as t:
            part, group = t // groups, t % groups * call["mine"]
            first = part * call["apiece"]
            last = (first + call["apiece"]).min(call["k"])
            sums = code.at(call.pointer_at("sums"), part * m * n, acc)
            c, c_rs = cut.pick(sums, call.pointer_at("c")), cut.select(n, call["c_rs"])
            with code.range(first, last, call["block"]) as pc:
                add = cut.select(0, call["add"]) + pc - first
                depth = (last - pc).min(call["block"])
                with code.range(group, group + call["mine"]) as g:
                    self._multiply(code, call, (pc, depth, g * row), (c, c_rs, add))
        code.ret()
        return code.function

    def _multiply(self, code: Code, call: Record, place: tuple, out: tuple) -> None:
        """A line of the kernel, whose first row is given, with some places."""
        (pc, depth, first), (c, c_rs, add), tile = place, out, self.tile
        n, row, acc = call["n"], call["row"], self.fmt.acc
        begin = code.load(code.at(call.pointer_at("a_rows"), first, I64), I64)
        along = [code.at(call.pointer_at(x), pc, I64) for x in ("a_ks", "b_ks")]
        with code.range(0, n, tile.cols) as j, code.either(n - j > tile.lanes) as ways:
            for way, vectors in zip(ways, (2, 1), strict=True):
                with way:
                    height = row.ceil_div(row.ceil_div(most_rows(tile, vectors)))
                    with code.range(0, row, height) as i:
                        a = code.at(call.pointer_at("a"), begin + i, acc)
                        b = code.at(call.pointer_at("b"), j, acc)
                        to = code.at(c, (first + i) * c_rs + j, acc)
                        args = (depth, a, along[0], b, along[1], to, c_rs, n - j, add)
                        self._call(code, (row - i).min(height), vectors, args)

    def _call(self, code: Code, height: Int, vectors: int, args: tuple) -> None:
        """The kernel of a height."""

        def choose(low: int, high: int) -> None:
            if low == high:
                code.call(self.parts.kernels.sums(low, vectors), *args)
                return
            middle = (low + high) // 2
            with code.either(height <= middle) as (yes, no):
                with yes:
                    choose(low, middle)
                with no:
                    choose(middle + 1, high)

        choose(1, most_rows(self.tile, vectors))

    def _function(self, task: ir.Function) -> ir.Function:
        code = Code(self.parts.module, "sums", [PTR])
        given = Record(code, SHARED, code.args[0])
        call = Record(code, FIELDS, code.variable(I64, count=len(FIELDS)).slot)
        for name in SHARED:
            call[name] = given[name]
        m, n, k, row = call["m"], call["n"], call["k"], call["m_inner"]
        call["row"] = row
        parts, groups = _cut(m, n, k, row)
        apiece = call["apiece"] = k.ceil_div(parts)
        parts = call["parts"] = k.ceil_div(apiece)
        call["mine"] = m // row // groups
        first, second = (code.load(code.at(call.pointer_at("a_ks"), i, I64), I64) for i in (0, 1))
        step = (second - first).max(first - second)
        block = (code.i64(BLOCK) // (n + step)).max(LEAST_BLOCK)
        call["block"] = apiece.ceil_div(apiece.ceil_div(block))
        size = (parts > 1).select(parts * m * n * self.fmt.acc_bytes, 0)
        sums = code.call(self.parts.take, size)
        call["sums"] = sums
        self.parts.loop(code, task, call.pointer, parts * groups, code.i64(1))
        with code.when(parts > 1):
            job = Record(code, JOB, code.variable(I64, count=len(JOB)).slot)
            for name in ("m", "n", "c", "c_rs", "add"):
                job[name] = call[name]
            job["pb"], job["nt"] = sums, parts
            grain = (code.i64(SERIAL_WORK // 4) // (parts * n)).max(1)
            self.parts.loop(code, self.parts.add_parts, job.pointer, m, grain)
        code.call(self.parts.give, sums)
        code.ret()
        return code.function


def most_rows(tile: Tile, vectors: int) -> int:
    """The rows of the register tile beside so many vectors.

    >>> from funcgrad.backends.llvm.gemm.pack import Tile
    >>> most_rows(Tile(14, 2, 16, 1024, True, True), 1)
    28
    """
    return tile.rows * tile.vectors // vectors


def _cut(m: Any, n: Any, k: Any, row: Any) -> tuple[Any, Any]:
    """Into how many parts the places, and the lines of the kernel, are cut."""
    parts = (m * 0 + MOST_SUMS) // (m * n)
    parts = parts.min(k // LEAST_PART).min(MOST_PARTS).max(1)
    return parts, (parts >= LEAST_TASKS).select(1, m // row)
