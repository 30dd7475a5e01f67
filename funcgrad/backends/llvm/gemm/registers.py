"""The register tile of the generated GEMM: sums that stay in registers, and how they come to C.

What all micro-kernels of `kernels` are made of, each for a row of the tile, or all of it.
"""

from __future__ import annotations

import itertools

from funcgrad.backends.llvm.gemm.pack import (
    I16,
    I32,
    Format,
    Tile,
    constant,
    first_elements,
    shuffle,
    transpose,
    vector_of,
    widen,
    word_instruction,
)
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    BFLOAT,
    Bool,
    Code,
    Functions,
    Int,
    Variable,
    declare,
    undefined,
    zero_of,
)
from funcgrad.backends.llvm.native.target import Target

Tiles = list[list[ir.Value]]


class Registers(Functions):
    """Writes what is done with the registers of a tile, for one format."""

    def __init__(self, module: ir.Module, fmt: Format, tile: Tile, target: Target):
        super().__init__()
        self.module, self.fmt, self.tile, self.target = module, fmt, tile, target
        self.vec = vector_of(fmt.acc, tile.lanes)
        self.storage_vec = vector_of(fmt.storage, tile.lanes)

    def mask(self, code: Code, count: Int | int) -> ir.Value:
        """Of a vector, the first elements, so many."""
        return first_elements(code, count, self.tile.lanes, self.fmt)

    def _accumulators(self, code: Code, rows: int, vectors: int) -> list[list[Variable]]:
        zero, count = zero_of(self.vec), vectors * self.tile.sums
        return [[code.variable(self.vec, zero) for _ in range(count)] for _ in range(rows)]

    def _factors(self, code: Code, p: ir.Value, packed: bool = True) -> list[ir.Value]:
        """An element of a, at p, in all lanes: of a complex one its real part, then the imaginary.

        packed: whether it has the sums' type
        """
        if self.fmt.is_complex:
            part, lanes = self.vec.element, self.vec.count
            return [code.splat(code.load(code.at(p, i, part), part), lanes) for i in range(2)]
        x = code.load(p, self.fmt.acc if packed else self.fmt.storage)
        x = x if packed else widen(code, self.fmt, self.target, x)
        return [code.splat(x, self.tile.lanes)]

    def _row_product(
        self, code: Code, acc: list[Variable], xs: list[ir.Value], bv: list[ir.Value]
    ) -> None:
        """The products of the factors of an element and vectors of b are added to a row's sums,
        each factor's to its own."""
        for i, x in enumerate(xs):
            self._products(code, acc[i * len(bv) : (i + 1) * len(bv)], x, bv)

    def _joined(self, code: Code, sums: list[ir.Value]) -> ir.Value:
        """The sums of each factor's products as one: those of imaginary parts are turned by a right
        angle."""
        if len(sums) == 1:
            return sums[0]
        (re, im), b, n = sums, code.b, self.vec.count
        turned = self._swapped(code, im)
        places = [i + i % 2 * n for i in range(n)]
        return shuffle(code, b.fsub(re, turned), b.fadd(re, turned), places)

    def _swapped(self, code: Code, x: ir.Value) -> ir.Value:
        """Complex numbers with their parts in each other's place."""
        return shuffle(code, x, x, [i ^ 1 for i in range(x.type.count)])

    def _lane_sum(self, code: Code, sums: list[ir.Value]) -> ir.Value:
        """An inner product, of the sums in lanes; a complex one of sums of parts that were
        multiplied with each other, and crosswise."""
        if len(sums) == 1:
            return code.lane_sum(sums[0])
        (straight, crossed), b = sums, code.b
        re, im = (
            shuffle(code, straight, straight, list(range(i, self.vec.count, 2))) for i in (0, 1)
        )
        real = b.insert_element(undefined(self.fmt.acc), code.lane_sum(b.fsub(re, im)), I32(0))
        return b.insert_element(real, code.lane_sum(crossed), I32(1))

    def _sums(self, code: Code, acc: list[list[Variable]]) -> Tiles:
        """The sums of each row."""
        n = len(acc[0]) // self.tile.sums
        return [[self._joined(code, [x.get() for x in row[v::n]]) for v in range(n)] for row in acc]

    def _products(self, code: Code, acc: list[Variable], x: ir.Value, bv: list[ir.Value]) -> None:
        for slot, y in zip(acc, bv, strict=True):
            slot.set(self._multiply_add(code, x, y, slot.get()))

    def _pair_products(
        self, code: Code, acc: list[Variable], x: ir.Value, bv: list[ir.Value]
    ) -> None:
        """The products of each lane's pair, or four, are added to its sum."""
        name, b = self.tile.pairs, code.b
        if self.tile.along == 4:
            for slot, y in zip(acc, bv, strict=True):
                slot.set(self.fours(code, slot.get(), x, y))
            return
        if "pmadd" in name:
            self.word_products(code, acc, x, bv)
            return
        kind = ir.VectorType(BFLOAT, 2 * self.tile.lanes)
        types = [self.vec, kind, kind]
        f = declare(self.module, f"llvm.x86.{name}", ir.FunctionType(self.vec, types))
        for slot, y in zip(acc, bv, strict=True):
            slot.set(b.call(f, [slot.get(), b.bitcast(x, kind), b.bitcast(y, kind)]))

    def word_products(
        self, code: Code, acc: list[Variable], x: ir.Value, bv: list[ir.Value]
    ) -> None:
        """The products of each lane's pair of int16 are added to its sum."""
        name, b = word_instruction(self.target), code.b
        kind, half = ir.VectorType(I16, 2 * self.tile.lanes), constant(self.vec, 16)
        for slot, y in zip(acc, bv, strict=True):
            if name:
                f = declare(self.module, f"llvm.x86.{name}", ir.FunctionType(self.vec, [kind] * 2))
                both = b.call(f, [b.bitcast(x, kind), b.bitcast(y, kind)])
            else:
                low = (b.ashr(b.shl(z, half), half) for z in (x, y))
                both = b.add(b.mul(*low), b.mul(b.ashr(x, half), b.ashr(y, half)))
            slot.set(b.add(slot.get(), both))

    def fours(self, code: Code, z: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """The sums z with the products of four unsigned bytes of x and four signed ones of y."""
        kind = ir.FunctionType(self.vec, [self.vec] * 3)
        return code.b.call(declare(self.module, f"llvm.x86.{self.tile.pairs}", kind), [z, x, y])

    def _multiply_add(self, code: Code, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if self.fmt.acc == I32:
            return code.b.add(code.b.mul(x, y), z)
        if self.tile.fma:
            return code.intrinsic("fma", x, y, z)
        return code.b.fadd(code.b.fmul(x, y), z)

    def sum(self, code: Code, x: ir.Value, y: ir.Value) -> ir.Value:
        """x + y in the accumulator's type."""
        return code.b.add(x, y) if self.fmt.acc == I32 else code.b.fadd(x, y)

    def _read(
        self, code: Code, p: ir.Value, mask: ir.Value | None, kind: ir.VectorType
    ) -> ir.Value:
        if mask is not None:
            return code.masked_load(p, mask, kind)
        align = self.fmt.align if kind == self.storage_vec else self.fmt.acc_align
        return code.load(p, kind, align)

    def _write(
        self, code: Code, x: ir.Value, p: ir.Value, mask: ir.Value | None, add: bool
    ) -> None:
        if add:
            x = self.sum(code, self._read(code, p, mask, self.vec), x)
        if mask is None:
            code.store(x, p, self.fmt.acc_align)
        else:
            code.masked_store(x, p, mask)

    def write_scalar(self, code: Code, x: ir.Value, p: ir.Value, add: Int) -> None:
        """Write an element, or add it to what is there."""
        align = self.fmt.acc_align
        with code.either(add.ne(0)) as (yes, no):
            with yes:
                code.store(self.sum(code, code.load(p, self.fmt.acc, align), x), p, align)
            with no:
                code.store(x, p, align)

    def _prefetch(self, code: Code, c: ir.Value, c_rs: Int, rows: int, vectors: int) -> None:
        """The tile of C where its rows are contiguous, lest the end of the sums waits for it."""
        for i in range(rows):
            for v in range(vectors):
                code.prefetch(code.at(c, c_rs * i + v * self.tile.lanes, self.fmt.acc), write=True)

    def store_tile(
        self,
        code: Code,
        acc: list[list[Variable]],
        c: ir.Value,
        c_rs: Int,
        c_cs: Int,
        m: Int,
        n: Int,
        add: Int,
    ) -> None:
        """Stores (or adds, where add ≠ 0) the first m × n elements of a register tile to c."""
        values = self._sums(code, acc)
        rows, vectors, lanes = len(values), len(values[0]), self.tile.lanes
        whole = (m >= rows) & (n >= vectors * lanes) & c_cs.eq(1)
        with code.either(whole) as (yes, no):
            with yes, code.either(add.ne(0)) as (more, fresh):
                for branch, adding in ((more, True), (fresh, False)):
                    with branch:
                        for i in range(rows):
                            row = code.at(c, c_rs * i, self.fmt.acc)
                            for v in range(vectors):
                                p = code.at(row, v * lanes, self.fmt.acc)
                                self._write(code, values[i][v], p, None, adding)
            with no:
                self._store_partial(code, values, c, c_rs, c_cs, m, n, add)

    def _store_turned(
        self,
        code: Code,
        acc: list[list[Variable]],
        c: ir.Value,
        c_cs: Int,
        m: Int,
        n: Int,
        add: Int,
    ) -> None:
        """As `store_tile`, for a c that is contiguous along m: squares are transposed first."""
        rows, vectors, lanes = len(acc), len(acc[0]), self.tile.lanes
        side = min(rows, lanes)
        vec = ir.VectorType(self.fmt.acc, side)
        values = [[x.get() for x in row] for row in acc]
        pieces = []
        for low in range(0, rows, side):
            for v, first in itertools.product(range(vectors), range(0, lanes, side)):
                square = [code.part(values[low + i][v], first, side) for i in range(side)]
                for j, x in enumerate(transpose(code, square)):
                    pieces.append((low, v * lanes + first + j, x))
        with code.either((m >= rows) & (n >= vectors * lanes)) as (whole, partial):
            with whole, code.either(add.ne(0)) as (more, fresh):
                for branch, adding in ((more, True), (fresh, False)):
                    with branch:
                        for low, j, x in pieces:
                            p = code.at(c, c_cs * j + low, self.fmt.acc)
                            old = code.load(p, vec, self.fmt.acc_bytes) if adding else None
                            x = x if old is None else self.sum(code, old, x)
                            code.store(x, p, self.fmt.acc_bytes)
            with partial:
                buffer = code.variable(self.fmt.acc, count=rows * vectors * lanes).slot
                for low, j, x in pieces:
                    where = code.at(buffer, j * rows + low, self.fmt.acc)
                    code.store(x, where, self.fmt.acc_bytes)
                with code.range(0, n.min(vectors * lanes)) as column:
                    line, out = (code.at(p, column * step, self.fmt.acc)
                                 for p, step in ((buffer, rows), (c, c_cs)))  # fmt: skip
                    self._store_scalars(code, line, out, code.i64(1), m.min(rows), add)

    def _store_partial(
        self, code: Code, values: Tiles, c: ir.Value, c_rs: Int, c_cs: Int, m: Int, n: Int, add: Int
    ) -> None:
        """By way of memory: rows with masks where c is contiguous, else element by element."""
        rows, vectors, lanes = len(values), len(values[0]), self.tile.lanes
        buffer = code.variable(self.vec, count=rows * vectors).slot
        for i in range(rows):
            for v in range(vectors):
                code.store(values[i][v], code.at(buffer, i * vectors + v, self.vec))
        with code.range(0, m.min(rows)) as r:
            line, out = code.at(buffer, r * vectors, self.vec), code.at(c, c_rs * r, self.fmt.acc)
            masked = c_cs.eq(1) if self.tile.masks else Bool(code, ir.IntType(1)(0))
            with code.either(masked) as (unit, strided):
                with unit:
                    self._store_masked(code, line, out, vectors, n, add)
                with strided:
                    self._store_scalars(code, line, out, c_cs, n.min(vectors * lanes), add)

    def _store_masked(
        self, code: Code, line: ir.Value, out: ir.Value, vectors: int, n: Int, add: Int
    ) -> None:
        for v in range(vectors):
            mask = self.mask(code, n - v * self.tile.lanes)
            x = code.load(code.at(line, v, self.vec), self.vec)
            p = code.at(out, v * self.tile.lanes, self.fmt.acc)
            with code.either(add.ne(0)) as (more, fresh):
                with more:
                    self._write(code, x, p, mask, True)
                with fresh:
                    self._write(code, x, p, mask, False)

    def _store_scalars(
        self, code: Code, line: ir.Value, out: ir.Value, c_cs: Int, n: Int, add: Int
    ) -> None:
        with code.range(0, n) as j:
            x = code.load(code.at(line, j, self.fmt.acc), self.fmt.acc)
            self.write_scalar(code, x, code.at(out, c_cs * j, self.fmt.acc), add)
