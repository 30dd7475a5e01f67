"""Products of attention in register tiles, all of whose operands are panels of `cols` columns.

A panel holds one row after the other. An operand is read along its rows (what it is multiplied by
has a row for each of its columns) or across them (it has as many rows itself). So queries, keys,
values and cotangents are packed as they lie, once for all products; sums have features as lanes,
and are written without being turned. What a tile's rows don't see is left out of its sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from funcgrad.backends.llvm.attention.ahead import Ahead
from funcgrad.backends.llvm.attention.parts import Attention
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Functions, Int, Record, Variable

ROWS = 8  # of a tile, at most
# For a part of a tile's rows, the first and how many: which rows of both operands count, from the
# first to the one behind the last.
Seen = Callable[[int, int], tuple[Int, Int]]


class OfKeys(Protocol):
    """A key head of an item of the batch, its sums of dk and dv, and room for a panel."""

    @property
    def batch(self) -> Int:
        """The item of the batch."""

    @property
    def key_head(self) -> Int:
        """The number of the key head."""

    @property
    def dk(self) -> ir.Value:
        """The sums of dk."""

    @property
    def dv(self) -> ir.Value:
        """The sums of dv."""

    @property
    def weights(self) -> ir.Value:
        """Room for a panel of weights."""


class Tiles(Functions):
    """Writes the products into a module."""

    def __init__(self, parts: Attention):
        super().__init__()
        self.parts, self.cols, self.lanes = parts, parts.cols, parts.lanes
        self.vectors = parts.tile.vectors
        # How many rows a tile of all vectors has, or one of all but one. Few are as fast as many
        # where what they read is near, and compute less that isn't seen.
        self.rows = parts.rows if parts.rows <= ROWS else parts.rows // 2
        # Sums of all keys read those anew for each tile, from further away: of more rows.
        self.tall = parts.rows
        self.heights = [4, self.rows] if self.rows > 4 else [self.rows]
        self.tall_heights = sorted({*self.heights, self.tall})
        self.low_heights = [n for n in (4, 8, 16) if n < self.lanes] + [self.lanes]

    # ---- a·b, where a is read along its rows

    def along(self, code: Code, m: Int, k: Int, a: ir.Value, apart: Int, b: ir.Value,
              c: ir.Value, ahead: Ahead, late: bool = False,
              early: bool = False) -> None:  # fmt: skip
        """c[m, cols] = a·b, for k columns of a, whose panels are `apart` elements apart.

        Some rows of c behind the last are overwritten. late: without the first vector of lanes;
        early: without the last
        """
        heights, size, acc = self.heights, code.i64(self.cols), self.parts.acc
        vectors = self.vectors - late - early
        if vectors < self.vectors:
            heights = self.low_heights
        if late:
            b, c = (code.at(p, self.lanes, acc) for p in (b, c))
        with code.range(0, m, heights[-1]) as i:
            x, y = (code.at(p, i * self.cols, acc) for p in (a, c))
            self._choose(code, m - i, heights, lambda rows: code.call(
                self._along(rows, vectors, False), k, x, apart, b, y, size))  # fmt: skip
            ahead.fetch()

    def along_all(self, code: Code, m: Int, k: Int, a: ir.Value, apart: Int, b: ir.Value,
                  step: Int, c: ir.Value, h: Int, ahead: Ahead) -> None:  # fmt: skip
        """c[m, h] += a·b for k columns of a, and all panels of b, which are `step` elements apart.

        m is at most `tall`; the rows of c that a tile has more are added to.
        """
        acc = self.parts.acc
        size = h.round_up(self.cols)
        with code.range(0, h, self.cols) as j:
            y, z = code.at(b, j // self.cols * step, acc), code.at(c, j, acc)

            def tile(vectors: int, y: ir.Value = y, z: ir.Value = z) -> None:
                self._choose(code, m, self.tall_heights, lambda rows: code.call(
                    self._along(rows, vectors, True), k, a, apart, y, z, size))  # fmt: skip

            self._vectors(code, h - j, tile)
            ahead.fetch()

    def _choose(self, code: Code, left: Int, heights: list[int], tile: Callable) -> None:
        """The shortest tile that has the rows that are left."""
        if len(heights) == 1:
            tile(heights[0])
            return
        with code.either(left > heights[-2]) as (taller, fits):
            with taller:
                tile(heights[-1])
            with fits:
                self._choose(code, left, heights[:-1], tile)

    def _vectors(self, code: Code, left: Int, tile: Callable) -> None:
        """The narrowest tile that has the lanes that are left, one vector of them or all."""
        with code.either(left > self.lanes) as (several, one):
            with several:
                tile(self.vectors)
            with one:
                tile(1)

    def _along(self, rows: int, vectors: int, add: bool) -> ir.Function:
        """void(k, a, apart, b, c, size)."""
        name = f"along{rows}x{vectors}{'_add' * add}"
        return self.once(name, lambda name: self._write_along(name, rows, vectors, add))

    def _write_along(self, name: str, rows: int, vectors: int, add: bool) -> ir.Function:
        parts, acc = self.parts, self.parts.acc
        code = Code(parts.module, name, [I64, PTR, I64, PTR, PTR, I64])
        k, a, apart, b, c, size = code.args
        sums = self._sums(code, rows, vectors)
        with code.range(0, k, self.cols) as start:
            panel = code.at(a, start // self.cols * apart, acc)
            lines = code.at(b, start * self.cols, acc)
            with code.range(0, (k - start).min(self.cols)) as kk:
                self._outer(code, sums, code.at(panel, kk, acc), self.cols, lines, kk)
        for i, row in enumerate(sums):
            for v, slot in enumerate(row):
                at, x = size * i + v * self.lanes, slot.get()
                if add:
                    x = code.b.fadd(parts.load(code, c, at), x)
                parts.store(code, x, c, at)
        code.ret()
        return code.function

    # ---- aᵀ·b, where a is read across its rows

    def across(self, code: Code, m: Int, h: Int, a: ir.Value, seen: Seen, b: ir.Value, apart: Int,
               c: ir.Value, ahead: Ahead, factors: ir.Value | None = None) -> None:  # fmt: skip
        """c[m, h] = c·factors + aᵀ·b for the first m columns of one panel a, and h columns of b,
        whose panels are `apart` elements apart.

        c has rows for all columns of a panel. factors: a number for each row of c, 1 if not given
        """
        acc, size = self.parts.acc, h.round_up(self.cols)
        # Columns of b outside: one panel of it and a stay in the first-level cache.
        with code.range(0, h, self.cols) as j:
            for i, rows in self.parts_of_panel():
                with code.when(m > i):
                    start, stop = seen(i, rows)
                    k = (stop - start).max(0)
                    x = code.at(a, start * self.cols + i, acc)
                    scales = [] if factors is None else [code.at(factors, i, acc)]
                    y = code.at(b, j // self.cols * apart + start * self.cols, acc)
                    z = code.at(c, size * i + j, acc)
                    args = (k, x, y, z, size, *scales)

                    def tile(vectors: int, rows: int = rows, args: tuple = args) -> None:
                        scaled = factors is not None
                        code.call(self._across(rows, vectors, scaled), *args)

                    self._vectors(code, h - j, tile)
                    ahead.fetch()

    def parts_of_panel(self) -> Iterator[tuple[int, int]]:
        """The tiles of a panel's columns: where they begin, and how many rows they have."""
        start = 0
        for rest in range(-(-self.cols // self.parts.rows), 0, -1):
            rows = -(-(self.cols - start) // rest)
            yield start, rows
            start += rows

    def _across(self, rows: int, vectors: int, scaled: bool) -> ir.Function:
        """void(k, a, b, c, size), or with factors behind."""
        name = f"across{rows}x{vectors}{'_scaled' * scaled}"
        return self.once(name, lambda name: self._write_across(name, rows, vectors, scaled))

    def _write_across(self, name: str, rows: int, vectors: int, scaled: bool) -> ir.Function:
        parts, acc = self.parts, self.parts.acc
        code = Code(parts.module, name, [I64, PTR, PTR, PTR, I64, *[PTR] * scaled])
        k, a, b, c, size = code.args[:5]
        sums = self._sums(code, rows, vectors)
        with code.range(0, k) as kk:
            self._outer(code, sums, code.at(a, kk * self.cols, acc), 1, b, kk)
        for i, row in enumerate(sums):
            factor = None
            if scaled:
                factor = code.load(code.at(code.args[5], i, acc), acc)
                factor = code.splat(factor, self.lanes)
            for v, slot in enumerate(row):
                at = size * i + v * self.lanes
                old, x = parts.load(code, c, at), slot.get()
                x = code.b.fadd(old, x) if factor is None else parts.fma(code, old, factor, x)
                parts.store(code, x, c, at)
        code.ret()
        return code.function

    # ---- both

    def _sums(self, code: Code, rows: int, vectors: int) -> list[list[Variable]]:
        zero = ir.Constant(self.parts.vec, None)
        return [[code.variable(self.parts.vec, zero) for _ in range(vectors)] for _ in range(rows)]

    def _outer(self, code: Code, sums: list[list[Variable]], a: ir.Value, apart: int, b: ir.Value,
               kk: Int) -> None:  # fmt: skip
        """Adds a[i·apart]·b[kk, j]."""
        parts = self.parts
        ys = [parts.load(code, b, kk * self.cols + v * self.lanes) for v in range(len(sums[0]))]
        for i, row in enumerate(sums):
            x = code.load(code.at(a, i * apart, parts.acc), parts.acc)
            x = code.splat(x, self.lanes)
            for slot, y in zip(row, ys, strict=True):
                slot.set(parts.fma(code, x, y, slot.get()))

    # ---- memory

    def step(self, rows: Int) -> Int:
        """How far panels are apart that have so many rows, and what a tile reads behind them."""
        return self.parts.panel(self.cols, rows + max(*self.heights, *self.low_heights))

    def write_rows(self) -> ir.Function:
        """void(source, size, factors, to, n, h, sn, sh): to[j·sn + i·sh] =
        source[j·size + i]·factors[j] for j < n and i < h."""
        return self.once("write_rows", self._write_rows)

    def _write_rows(self, name: str) -> ir.Function:
        parts = self.parts
        code = Code(parts.module, name, [PTR, I64, PTR, PTR, *[I64] * 4])
        source, size, factors, to, n, h, sn, sh = code.args
        whole = sh.eq(1).select(h // self.lanes * self.lanes, 0)
        with code.range(0, n) as j:
            factor = code.load(code.at(factors, j, parts.acc), parts.acc)
            factors_vec = code.splat(factor, self.lanes)
            row = code.at(source, j * size, parts.acc)
            out = code.at(to, j * sn, parts.fmt.storage)
            with code.range(0, whole, self.lanes) as i:
                x = code.b.fmul(parts.load(code, row, i), factors_vec)
                parts.write(code, x, code.at(out, i, parts.fmt.storage))
            with code.range(whole, h) as i:
                x = code.b.fmul(code.load(code.at(row, i, parts.acc), parts.acc), factor)
                parts.write(code, x, code.at(out, i * sh, parts.fmt.storage))
        code.ret()
        return code.function

    def write_keys(self, code: Code, call: Record, b: OfKeys, s: Int, n: Int) -> None:
        """The cotangents of n keys and values from number s on."""
        parts, size = self.parts, call["features"].round_up(self.cols)
        for name, sums in (("dk", b.dk), ("dv", b.dv)):
            factor = parts.scale(code, call) if name == "dk" else parts.value(1.0)
            for v in range(self.vectors):
                parts.store(code, factor, b.weights, v * self.lanes)
            with code.range(0, n, self.cols) as j:
                to = parts.pointer(code, call, name, (b.batch, s + j, b.key_head))
                source = code.at(sums, j * size, parts.acc)
                code.call(self.write_rows(), source, size, b.weights, to, (n - j).min(self.cols),
                          call["features"], call[f"{name}_place"],
                          call[f"{name}_feature"])  # fmt: skip
