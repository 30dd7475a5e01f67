"""What the routines of large matrices share: triangles that are solved with, products, batches.

Matrices lie in rows. A triangle to be solved with is kept negated, so that what is known is taken
off by a product that adds: half by half, down to blocks whose columns are solved in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from funcgrad.backends.llvm.gemm_build import I32, I64, PTR, VOID, Code, Int, declare
from funcgrad.backends.llvm.gemm_job import CALL, Record
from funcgrad.backends.llvm.gemm_pack import FORMATS, transpose
from funcgrad.backends.llvm.target import Target

BLOCK = 32  # rows of a triangle that is not divided any more
_SERIAL = 1 << 17  # multiply-adds below which a second thread is no gain
_VECTORS = 4
_TRIANGLE = ("n", "unit", "columns", "x", "x_rs", "factors", "diagonal")


class Matrices:
    """Writes parts of routines for matrices of a dtype into a module."""

    def __init__(self, module: ir.Module, dtype: str, target: Target):
        self.module, self.dtype = module, dtype
        self.type, self.bytes = FORMATS[dtype].storage, FORMATS[dtype].bytes
        self.bits = I32 if self.bytes == 4 else I64
        self.lanes = target.vector_bits // (8 * self.bytes)
        self.parallel_for = declare(
            module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        )
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))
        self._solve: ir.Function | None = None

    # ---- elements

    def at(self, code: Code, pointer: ir.Value, index: Int | int) -> ir.Value:
        """The address of an element."""
        return code.at(pointer, index, self.type)

    def load(self, code: Code, pointer: ir.Value, index: Int | int, lanes: int = 0) -> ir.Value:
        """An element, or so many lanes from it on."""
        kind = ir.VectorType(self.type, lanes) if lanes else self.type
        return code.b.load(self.at(code, pointer, index), typ=kind, align=self.bytes)

    def store(self, code: Code, value: ir.Value, pointer: ir.Value, index: Int | int) -> None:
        """Write an element or a vector."""
        code.store(value, self.at(code, pointer, index), self.bytes)

    def magnitude(self, code: Code, x: ir.Value) -> ir.Value:
        """The bits of |x|, which are in the order of what they stand for; NaN comes last."""
        bits = code.b.bitcast(x, self.bits)
        return code.b.and_(bits, self.bits((1 << 8 * self.bytes - 1) - 1))

    # ---- products

    @functools.cached_property
    def product(self) -> ir.Function:
        """The matrix product of this dtype, void(ptr call)."""
        return declare(
            self.module, f"fg_gemm_{self.dtype}_{self.dtype}", ir.FunctionType(VOID, [PTR])
        )

    def add_product(self, code: Code, sizes: Sequence[Int], a: tuple, b: tuple, c: tuple) -> None:
        """c += a b for (pointer, row stride, column stride) each, and sizes m, n, k."""
        call = Record(code, CALL, code.variable(I64, count=len(CALL)).slot)
        words = dict.fromkeys(CALL, 0) | {"batch0": 1, "batch1": 1, "add": 1}
        for name, value in words.items():
            call[name] = value
        for name, size in zip("mnk", sizes, strict=True):
            call[name] = size
        for name, (pointer, rows, columns) in zip("abc", (a, b, c), strict=True):
            call[name], call[f"{name}_rs"], call[f"{name}_cs"] = pointer, rows, columns
        code.call(self.product, call.pointer)

    # ---- triangles

    def solve(self) -> ir.Function:
        """void solve(a, a_rs, a_cs, x, x_rs, n, columns, unit): x becomes l⁻¹ x, for the lower
        triangular l whose negative is a; unit: 1 where the diagonal is of ones, not of -a's."""
        if self._solve is not None:
            return self._solve
        code = Code(self.module, "solve", [PTR, I64, I64, PTR, I64, I64, I64, I64])
        self._solve = code.function
        a, a_rs, a_cs, x, x_rs, n, columns, unit = code.args
        block = self._solve_block()
        with code.when(n <= BLOCK):
            code.call(block, *code.args)
            code.ret()
        h = (n // 2).round_up(BLOCK)
        below, rest = self.at(code, a, h * a_rs), self.at(code, x, h * x_rs)
        code.call(self._solve, a, a_rs, a_cs, x, x_rs, h, columns, unit)
        self.add_product(
            code, (n - h, columns, h), (below, a_rs, a_cs), (x, x_rs, 1), (rest, x_rs, 1)
        )
        corner = self.at(code, below, h * a_cs)
        code.call(self._solve, corner, a_rs, a_cs, rest, x_rs, n - h, columns, unit)
        code.ret()
        return self._solve

    def _solve_block(self) -> ir.Function:
        task = self._columns_task()
        code = Code(self.module, "solve_block", [PTR, I64, I64, PTR, I64, I64, I64, I64])
        a, a_rs, a_cs, x, x_rs, n, columns, unit = code.args
        job = Record(code, _TRIANGLE, code.variable(I64, count=len(_TRIANGLE)).slot)
        factors = code.variable(self.type, count=BLOCK * BLOCK).slot
        diagonal = code.variable(self.type, count=BLOCK).slot
        with code.range(0, n) as i:
            with code.range(0, i) as j:
                value = self.load(code, a, i * a_rs + j * a_cs)
                self.store(code, value, factors, i * BLOCK + j)
            with code.when(unit.eq(0)):
                value = self.load(code, a, i * (a_rs + a_cs))
                self.store(code, code.b.fneg(value), diagonal, i)
        job["n"], job["unit"], job["columns"], job["x"], job["x_rs"] = n, unit, columns, x, x_rs
        job["factors"], job["diagonal"] = factors, diagonal
        width = _VECTORS * self.lanes
        grain = (code.i64(_SERIAL) // (n * n * width // 2 + 1)).max(1)
        code.call(self.parallel_for, task, job.pointer, columns.ceil_div(width), grain)
        code.ret()
        return code.function

    def _columns_task(self) -> ir.Function:
        """Blocks [begin, end) of columns."""
        code = Code(self.module, "solve_columns", [PTR, I64, I64])
        job = Record(code, _TRIANGLE, code.args[0])
        width = _VECTORS * self.lanes
        begin, end = code.args[1] * width, (code.args[2] * width).min(job["columns"])
        for vectors, lanes in ((_VECTORS, self.lanes), (1, self.lanes), (1, 0)):
            step = vectors * max(lanes, 1)
            stop = begin + (end - begin) // step * step
            with code.range(begin, stop, step) as c:
                self._solve_columns(code, job, c, vectors, lanes)
            begin = stop
        code.ret()
        return code.function

    def _solve_columns(self, code: Code, job: Record, c: Int, vectors: int, lanes: int) -> None:
        x, x_rs, unit = job.pointer_at("x"), job["x_rs"], job["unit"]
        factors, diagonal = job.pointer_at("factors"), job.pointer_at("diagonal")
        kind = ir.VectorType(self.type, lanes) if lanes else self.type
        offsets = [c + v * lanes for v in range(vectors)]
        sums = [code.variable(kind) for _ in offsets]

        def spread(value: ir.Value) -> ir.Value:
            return code.splat(value, lanes) if lanes else value

        with code.range(0, job["n"]) as i:
            for total, at in zip(sums, offsets, strict=True):
                total.set(self.load(code, x, i * x_rs + at, lanes))
            with code.range(0, i) as j:
                factor = spread(self.load(code, factors, i * BLOCK + j))
                for total, at in zip(sums, offsets, strict=True):
                    known = self.load(code, x, j * x_rs + at, lanes)
                    total.set(code.intrinsic("fmuladd", factor, known, total.get()))
            with code.when(unit.eq(0)):
                divisor = spread(self.load(code, diagonal, i))
                for total in sums:
                    total.set(code.b.fdiv(total.get(), divisor))
            for total, at in zip(sums, offsets, strict=True):
                self.store(code, total.get(), x, i * x_rs + at)

    # ---- transposes

    def transpose(self) -> ir.Function:
        """void transpose(x, x_rs, y, y_rs, rows, columns): y[j, i] = x[i, j], square by square in
        registers, and what is left over element by element."""
        code = Code(self.module, "transpose", [PTR, I64, PTR, I64, I64, I64])
        x, x_rs, y, y_rs, rows, columns = code.args
        side = self.lanes
        height, width = rows // side * side, columns // side * side
        with code.range(0, height, side) as i0, code.range(0, width, side) as j0:
            square = [self.load(code, x, (i0 + i) * x_rs + j0, side) for i in range(side)]
            for j, turned in enumerate(transpose(code, square)):
                self.store(code, turned, y, (j0 + j) * y_rs + i0)

        def elements(first: tuple[Int | int, Int | int], end: tuple[Int, Int]) -> None:
            with code.range(first[0], end[0]) as i, code.range(first[1], end[1]) as j:
                self.store(code, self.load(code, x, i * x_rs + j), y, j * y_rs + i)

        elements((0, width), (height, columns))
        elements((height, 0), (rows, columns))
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    # ---- batches

    def entry(
        self, name: str, fields: Sequence[str], body: Callable[[Code, Record, Int], None]
    ) -> None:
        """void name(ptr call) of the words `fields`, the first of them "batch": body(code, call, i)
        for each matrix of the batch, in parallel."""
        task = Code(self.module, f"{name}_item", [PTR, I64, I64])
        with task.range(task.args[1], task.args[2]) as i:
            body(task, Record(task, tuple(fields), task.args[0]), i)
        task.ret()
        code = Code(self.module, name, [PTR], public=True)
        batch = Record(code, tuple(fields), code.args[0])["batch"]
        with code.either(batch.eq(1)) as (one, several):
            with one:
                code.call(task.function, code.args[0], 0, 1)
            with several:
                code.call(self.parallel_for, task.function, code.args[0], batch, 1)
        code.ret()
