"""Products within the routines of matrices that aren't large: one thread's, in little code.

Panels of B's columns are packed, and A stays where it is. Between blocks of at most a few hundred
rows that is about as fast as `gemm`, whose ways for all shapes and threads compile for a second.
"""

from __future__ import annotations

from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.matrix.parts import PRODUCT, Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Functions, Int

IN_PLACE = 16  # rows of A to which B isn't worth packing
_KERNEL = [I64, PTR, I64, I64, PTR, I64, PTR, I64, I64, I64]


def emit_product(parts: Matrices, name: str) -> None:
    """Write void name(…) of the words `PRODUCT`: c = a b, or c += a b where add isn't 0. Columns of
    c are contiguous, and those of b or its rows."""
    _Product(parts).emit(name)


class _Product(Functions):
    def __init__(self, parts: Matrices):
        super().__init__()
        self.parts, self.tile = parts, Tile.of(parts.target, FORMATS[parts.dtype])
        self.rows = 8 if self.tile.many_registers else self.tile.rows
        self.vec = ir.VectorType(parts.type, parts.lanes)

    def emit(self, name: str) -> None:
        parts, rows, lanes, cols = self.parts, self.rows, self.tile.lanes, self.tile.cols
        code = Code(parts.module, name, PRODUCT, public=True)
        m, n, k, a, a_rs, a_cs, b, b_rs, b_cs, c, c_rs, add = code.args
        room = code.call(parts.take, k * (cols * parts.bytes))
        packs = (m > IN_PLACE) & (n > lanes) | b_cs.ne(1)
        with code.range(0, n, cols) as j:
            left, source = (n - j).min(cols), parts.at(code, b, j * b_cs)
            with code.when(packs):
                self._pack(code, (source, b_rs, b_cs), room, k, left)
            panel, step = packs.pick(room, source), packs.select(cols, b_rs)

            def multiply(vectors: int, j: Int = j, left: Int = left, panel: ir.Value = panel,
                         step: Int = step) -> None:  # fmt: skip
                full = m // rows * rows
                for start, stop, height in ((code.i64(0), full, rows), (full, m, 1)):
                    kernel = self._kernel(height, vectors)
                    with code.range(start, stop, height) as i:
                        row, to = parts.at(code, a, i * a_rs), parts.at(code, c, i * c_rs + j)
                        code.call(kernel, k, row, a_rs, a_cs, panel, step, to, c_rs, left, add)

            with code.either(left > lanes) as (several, one):
                for branch, vectors in ((several, self.tile.vectors), (one, 1)):
                    with branch:
                        multiply(vectors)
        code.call(parts.give, room)
        code.ret()

    def _pack(self, code: Code, b: tuple, room: ir.Value, k: Int, columns: Int) -> None:
        """Copy columns of b, so that their rows follow each other."""
        (source, rs, cs), parts, lanes = b, self.parts, self.tile.lanes
        with code.either(cs.eq(1)) as (lies, turned):
            with lies, code.range(0, k) as i:
                for v in range(0, self.tile.cols, lanes):
                    mask = code.first_lanes(columns - v, lanes)
                    row = parts.load(code, source, i * rs + v, lanes, mask)
                    parts.store(code, row, room, i * self.tile.cols + v)
            with turned:
                code.call(parts.transpose, source, cs, room, self.tile.cols, columns, k)

    def _kernel(self, rows: int, vectors: int) -> ir.Function:
        """void(k, a, a_rs, a_cs, b, b_rs, c, c_rs, n, add): a register tile of c, of which the
        first n columns count. Sums begin with what they are added to, and so end in one way."""
        return self.once(f"product{rows}x{vectors}", lambda name: self._write(name, rows, vectors))

    def _write(self, name: str, rows: int, vectors: int) -> ir.Function:
        parts, lanes = self.parts, self.tile.lanes
        code = Code(parts.module, name, _KERNEL)
        k, a, a_rs, a_cs, b, b_rs, c, c_rs, n, add = code.args

        def masks(n: Int) -> list[ir.Value]:
            return [code.first_lanes(n - v * lanes, lanes) for v in range(vectors)]

        def places(row: Int) -> list[Int]:
            return [row + v * lanes for v in range(vectors)]

        inside, known = masks(n), masks(add.ne(0).select(n, 0))
        lines = [parts.at(code, a, a_rs * i) for i in range(rows)]
        sums = [
            [code.variable(self.vec, parts.load(code, c, at, lanes, mask))
             for at, mask in zip(places(c_rs * i), known, strict=True)]
            for i in range(rows)
        ]  # fmt: skip
        with code.range(0, k) as kk:
            right = [parts.load(code, b, at, lanes, mask)
                     for at, mask in zip(places(kk * b_rs), inside, strict=True)]  # fmt: skip
            for line, row in zip(lines, sums, strict=True):
                factor = code.splat(parts.load(code, line, kk * a_cs), lanes)
                for total, y in zip(row, right, strict=True):
                    total.set(code.intrinsic("fmuladd", factor, y, total.get()))
        for i, row in enumerate(sums):
            for total, at, mask in zip(row, places(c_rs * i), inside, strict=True):
                parts.store(code, total.get(), c, at, mask)
        code.ret()
        return code.function
