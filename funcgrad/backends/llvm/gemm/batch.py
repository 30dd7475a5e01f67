"""The way of the generated GEMM for batches of small products: no choice, no records for each.

Operands of a small product lie in a few pages, and a processor's own prefetching has hardly begun
with them when they are read. Where that isn't quick enough, each step of a tile's sums fetches a
little of what the next product reads.
"""

from __future__ import annotations

from typing import Any

from funcgrad.backends.llvm.gemm.job import Parts
from funcgrad.backends.llvm.gemm.kernels import Micro
from funcgrad.backends.llvm.gemm.micro import address
from funcgrad.backends.llvm.gemm.trial import Known
from funcgrad.backends.llvm.gemm.unpacked import SMALL_K
from funcgrad.backends.llvm.gemm.words import SERIAL_WORK, SHARED, SMALL_WORK, THIN
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    BYTE,
    I64,
    PTR,
    VOID,
    Code,
    Int,
    Record,
    Variable,
)

ROWS, JOINED = 8, 4  # rows of a tile, and of a rest that makes the last one taller
LASTS = (*range(1, ROWS), *range(ROWS + 1, ROWS + JOINED + 1))
MANY = 8  # products that pay for code of their own
# Multiply-adds of a product up to which fetching the next one pays, and how long its sums are then
# if they are more than `SERIAL_WORK`.
MOST_WORK, LONG_SUMS = 1 << 21, 32
INNER_LANES = 4  # vectors of a row that inner products are taken of


class Batch:
    """Writes `task`, whose kernels are of modules of their own."""

    name = "batch"

    def __init__(self, parts: Parts):
        self.parts, self.tile, self.fmt = parts, parts.tile, parts.fmt
        self.ahead = not parts.target.follows_strides
        self.packs = self.fmt.storage == self.fmt.acc  # a B that isn't contiguous along n

    def serves(self, call: Any) -> Any:
        """Whether all of a call's products are small, and lie well.

        call: `trial.Facts`
        """
        m, n, k = call["m"], call["n"], call["k"]
        work, lanes, cols = m * n * k, self.tile.lanes, self.tile.cols
        rows = call["a_cs"].eq(1) & call["a_rs"].eq(k)
        columns = call["a_rs"].eq(1) & call["a_cs"].eq(m)
        in_rows = call["b_cs"].eq(1) & call["b_rs"].eq(n)
        # Others multiply more columns of few rows at once, and take inner products for few columns.
        long = k >= INNER_LANES * lanes
        wide = (m.eq(2) | m.eq(4)) & (n >= 2 * cols) & (k >= LONG_SUMS)
        lies_well = in_rows & ~wide & ~(is_thin(m, n) & (n < THIN) & long)
        if self.packs:
            turned = call["b_rs"].eq(1) & call["b_cs"].eq(k) & (work <= SMALL_WORK)
            inner = long & (is_thin(m, n) | (m <= THIN) | (k > SMALL_K))
            lies_well = lies_well | turned & ~in_rows & ~inner
        fits = lies_well & (rows | columns) & call["c_cs"].eq(1) & (m > 1)
        if self.ahead:
            # So they do with more rows of few columns.
            large = (work <= MOST_WORK) & (n > lanes) & (k >= LONG_SUMS) & (m >= ROWS)
            fits = fits & ((work <= SERIAL_WORK) | large)
        else:
            # For more columns, others fetch rows of A.
            fits = fits & (work <= SERIAL_WORK) & (n <= cols)
        return fits & (call["batch0"] * call["batch1"] >= MANY)

    def reached(self, m: int, n: int) -> list[Micro]:
        """The kernels that products of m × n elements call."""
        last, found = n % self.tile.cols, []
        tall, short = (x.value for x in _heights(Known(m)))
        for height in ([ROWS] if tall else []) + ([short] if short else []):
            if n >= self.tile.cols:
                found.append(self._kernel(height, 2))
            if last:
                found.append(self._kernel(height, 2 if last > self.tile.lanes else 1, True))
        return found

    def _kernel(self, rows: int, vectors: int, masked: bool = False) -> Micro:
        return Micro("ahead" if self.ahead else "direct", rows, vectors, masked)

    def task(self, way: str) -> ir.Function:
        """void(call, begin, end): products [begin, end).

        way: the symbol of the function that it is of
        """
        code = Code(self.parts.module, "batch_task", [PTR, I64, I64])
        call, (begin, end) = Record(code, SHARED, code.args[0]), code.args[1:]
        m, n, k, size = call["m"], call["n"], call["k"], self.fmt.bytes
        tall, short = _heights(m)
        tiles = (tall // ROWS + short.min(1)) * n.ceil_div(self.tile.cols)
        step = ((m + n) * k * size).ceil_div(tiles * k)
        heights = (tall.min(ROWS), (ROWS,)), (short, LASTS)
        kernels = [self._kernels(code, way, n, *x) for x in heights]
        a, b = (code.variable(PTR, self._place(code, call, x, begin)) for x in "ab")
        panels = self._room(code, call) if self.packs else None
        with code.range(begin, end) as i:
            these = a.get(), b.get(), self._place(code, call, "c", i)
            for x, operand in zip("ab", (a, b), strict=True):
                operand.set(self._place(code, call, x, (i + 1).min(end - 1)))
            if panels is not None:
                these = these[0], self._pack(code, call, these[1], panels), these[2]
            self._product(code, call, these, (a.get(), b.get(), step), (tall, kernels))
        if panels is not None:
            code.call(self.parts.give, panels)
        code.ret()
        return code.function

    def _room(self, code: Code, call: Record) -> ir.Value:
        """Memory for B as panels, if it is to be packed."""
        panel = self.parts.panel_elements(self.tile.cols, call["k"]) * self.fmt.acc_bytes
        size = panel * call["n"].ceil_div(self.tile.cols)
        return code.call(self.parts.take, call["b_cs"].eq(1).select(0, size))

    def _pack(self, code: Code, call: Record, b: ir.Value, panels: ir.Value) -> ir.Value:
        """A b that kernels can read: itself, or its panels."""
        k, b_cs = call["k"], call["b_cs"]
        step = self.parts.panel_elements(self.tile.cols, k)
        with code.when(b_cs.ne(1)):
            code.call(self.parts.pack_b, panels, b, call["n"], k, b_cs, call["b_rs"], step)
        return b_cs.ne(1).pick(panels, b)

    def _kernels(
        self, code: Code, way: str, n: Int, height: Int, heights: tuple[int, ...]
    ) -> tuple[Variable, Variable]:
        """Addresses of the kernels for tiles of a height: for all columns, and for the last."""
        whole, last = (code.variable(PTR, ir.Constant(PTR, None)) for _ in range(2))
        two = n % self.tile.cols > self.tile.lanes
        for rows in heights:
            with code.when(height.eq(rows)):
                kinds = (2, False), (2, True), (1, True)
                full, *parts = (address(code, way, self._kernel(rows, *x)) for x in kinds)
                whole.set(full)
                last.set(two.pick(*parts))
        return whole, last

    def _place(self, code: Code, call: Record, operand: str, i: Int) -> ir.Value:
        """Where an operand of product number i is."""
        i0, i1 = i // call["batch1"], i % call["batch1"]
        offset = i0 * call[f"{operand}_b0"] + i1 * call[f"{operand}_b1"]
        kind = self.fmt.acc if operand == "c" else self.fmt.storage
        return code.at(call.pointer_at(operand), offset, kind)

    def _product(
        self, code: Code, call: Record, operands: tuple, ahead: tuple, tiles: tuple
    ) -> None:
        """One product, row by row of tiles, and what is fetched meanwhile."""
        (a, b, c), (next_a, next_b, step), (tall, kernels) = operands, ahead, tiles
        fields = ("m", "n", "k", "a_rs", "a_cs", "b_rs", "c_rs", "add")
        m, n, k, a_rs, a_cs, b_rs, c_rs, add = (call[x] for x in fields)
        storage, acc, cols = self.fmt.storage, self.fmt.acc, self.tile.cols
        kind = ir.FunctionType(VOID, self._kernel(ROWS, 2).arguments)
        # Panels are read alike, in rows of their own and further apart.
        in_rows = call["b_cs"].eq(1)
        b_rs = in_rows.select(b_rs, cols)
        apart = in_rows.select(cols, self.parts.panel_elements(cols, k))
        row, fetched = code.variable(I64, I64(0)), code.variable(I64, I64(0))
        with code.loop() as (turn, done):
            i = Int(code, row.get())
            code.b.cbranch((i < m).value, turn, done)
            code.b.position_at_end(turn)
            is_tall = i < tall
            whole, last = (
                is_tall.pick(*(x.get() for x in pair)) for pair in zip(*kernels, strict=True)
            )
            ai, ci = code.at(a, i * a_rs, storage), code.at(c, i * c_rs, acc)
            with code.range(0, n, cols) as j:
                bj, cij = code.at(b, j // cols * apart, storage), code.at(ci, j, acc)
                args = [k, ai, a_rs, a_cs, bj, b_rs, cij, c_rs, n - j, add]
                if self.ahead:
                    # What comes next, first of a, and then of b.
                    at = Int(code, fetched.get())
                    rest = at - m * k * self.fmt.bytes
                    soon = (code.at(p, x, BYTE) for p, x in ((next_a, at), (next_b, rest)))
                    args += [(rest < 0).pick(*soon), step]
                    fetched.set(at + k * step)
                code.call(ir.Called((n - j >= cols).pick(whole, last), kind), *args)
            row.set(is_tall.select(i + ROWS, m))


def _heights(m: Any) -> tuple[Any, Any]:
    """How many rows are of tiles of `ROWS`, and how many are left for the last one."""
    rest = m % ROWS
    joins = (m >= ROWS) & (rest >= 1) & (rest <= JOINED)
    short = rest + joins.select(ROWS, 0)
    return m - short, short


def merge_batches(code: Any, call: Any) -> None:
    """A batch of A against one B is a taller A, if rows go on from item to item."""
    for batch, step in (("batch1", "b1"), ("batch0", "b0")):
        m = call["m"]
        follows = call[f"b_{step}"].eq(0) & call[f"a_{step}"].eq(m * call["a_rs"])
        follows = follows & call[f"c_{step}"].eq(m * call["c_rs"])
        if batch == "batch0":
            follows = follows & call["batch1"].eq(1)
        with code.when(follows & (call[batch] > 1)):
            call["m"] = m * call[batch]
            call[batch] = 1


def is_thin(m: Any, n: Any) -> Any:
    """Whether a product had better be turned: it has few columns, and more rows."""
    return (n <= THIN) & (m > 2 * THIN)
