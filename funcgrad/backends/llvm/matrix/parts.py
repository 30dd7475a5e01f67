"""What the routines of large matrices share: triangles that are solved with, products, batches.

Matrices lie in rows. Triangles are solved with half by half, down to blocks whose columns are
solved in registers. What is found is kept negated, so that a product that adds takes it off the
rest. Threads share columns out, and multiply on their own: what another one has just written comes
slowly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile, transpose
from funcgrad.backends.llvm.gemm.words import CALL
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import (
    I32,
    I64,
    PTR,
    VOID,
    Code,
    Int,
    Record,
    Variable,
    declare,
)
from funcgrad.backends.llvm.native.target import Target

BLOCK = 32  # rows of a triangle that is not divided any more
# The words of void fg_product_<dtype>(m, n, k, a, a_rs, a_cs, b, b_rs, b_cs, c, c_rs, add).
PRODUCT = (I64, I64, I64, PTR, I64, I64, PTR, I64, I64, PTR, I64, I64)
_WIDE = 256  # the most columns of a block
_VECTORS = 4


class _Triangle(NamedTuple):
    """A block that is solved with: its size, whether its diagonal is of ones, its copy, and the
    rows of what it is solved for."""

    n: Int
    unit: Int
    factors: ir.Value
    x: ir.Value
    x_rs: Int


class Piece(NamedTuple):
    """Columns that are worked on side by side: where vectors of them begin, how many lanes these
    have, and the mask of those that count, if not all do."""

    places: list[Int]
    lanes: int
    mask: ir.Value | None


class Matrices:
    """Writes parts of routines for matrices of a dtype into a module.

    own: whether products are those of `product`
    """

    def __init__(self, module: ir.Module, dtype: str, target: Target, own: bool = False):
        self.module, self.dtype, self.target, self.own = module, dtype, target, own
        self.type, self.bytes = FORMATS[dtype].storage, FORMATS[dtype].bytes
        self.bits = I32 if self.bytes == 4 else I64
        self.lanes = target.vector_bits // (8 * self.bytes)
        self.masks = Tile.of(target, FORMATS[dtype]).masks
        self.parallel_for = declare(
            module, "fg_parallel_for", ir.FunctionType(VOID, [PTR, PTR, I64, I64])
        )
        self.take = declare(module, "fg_scratch_take", ir.FunctionType(PTR, [I64]))
        self.give = declare(module, "fg_scratch_give", ir.FunctionType(VOID, [PTR]))

    # ---- elements

    def at(self, code: Code, pointer: ir.Value, index: Int | int) -> ir.Value:
        """The address of an element."""
        return code.at(pointer, index, self.type)

    def load(
        self, code: Code, pointer: ir.Value, index: Int | int, lanes: int = 0,
        mask: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """An element, or so many lanes from it on, or those of them that a mask has on."""
        place = self.at(code, pointer, index)
        if mask is not None:
            return code.masked_load(place, mask, ir.VectorType(self.type, lanes))
        kind = ir.VectorType(self.type, lanes) if lanes else self.type
        return code.b.load(place, typ=kind, align=self.bytes)

    def store(
        self, code: Code, value: ir.Value, pointer: ir.Value, index: Int | int,
        mask: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Write an element or a vector, or the lanes of it that a mask has on."""
        place = self.at(code, pointer, index)
        if mask is not None:
            code.masked_store(value, place, mask)
        else:
            code.store(value, place, self.bytes)

    def magnitude(self, code: Code, x: ir.Value) -> ir.Value:
        """The bits of |x|, which are in the order of what they stand for; NaN comes last."""
        bits = code.b.bitcast(x, self.bits)
        return code.b.and_(bits, self.bits((1 << 8 * self.bytes - 1) - 1))

    # ---- products

    def add_product(
        self, code: Code, sizes: Sequence[Int], a: tuple, b: tuple, c: tuple, add: int = 1
    ) -> None:
        """c += a b for (pointer, row stride, column stride) each, and sizes m, n, k; add: 0 where
        it is c = a b. Columns of c are contiguous."""
        if self.own:
            kind = ir.FunctionType(VOID, PRODUCT)
            function = declare(self.module, f"fg_product_{self.dtype}", kind)
            code.call(function, *sizes, *a, *b, *c[:2], add)
            return
        call = Record(code, CALL, code.variable(I64, count=len(CALL)).slot)
        words = dict.fromkeys(CALL, 0) | {"batch0": 1, "batch1": 1, "add": add}
        for name, value in words.items():
            call[name] = value
        for name, size in zip("mnk", sizes, strict=True):
            call[name] = size
        for name, (pointer, rows, columns) in zip("abc", (a, b, c), strict=True):
            call[name], call[f"{name}_rs"], call[f"{name}_cs"] = pointer, rows, columns
        kind = ir.FunctionType(VOID, [PTR])
        code.call(declare(self.module, f"fg_gemm_{self.dtype}_{self.dtype}", kind), call.pointer)

    # ---- rows

    def along(self, code: Code, begin: Int, end: Int, body: Callable[[Piece], None]) -> None:
        """body(piece) for columns [begin, end): several vectors at a time, then parts of one."""
        lanes, step = self.lanes, _VECTORS * self.lanes
        whole = begin + (end - begin) // step * step
        with code.range(begin, whole, step) as c:
            body(Piece([c + v * lanes for v in range(_VECTORS)], lanes, None))
        if self.masks:
            with code.range(whole, end, lanes) as c:
                body(Piece([c], lanes, code.first_lanes(end - c, lanes)))
        else:
            with code.range(whole, end) as c:
                body(Piece([c], 1, None))

    @functools.cached_property
    def copy(self) -> ir.Function:
        """void copy(x, x_rs, y, y_rs, rows, columns): y = x."""
        return self._move("copy", lambda code, value: value)

    @functools.cached_property
    def negate(self) -> ir.Function:
        """void negate(x, x_rs, y, y_rs, rows, columns): y = -x, where they may be the same."""
        return self._move("negate", lambda code, value: code.b.fneg(value))

    def _move(self, name: str, change: Callable[[Code, ir.Value], ir.Value]) -> ir.Function:
        code = Code(self.module, name, [PTR, I64, PTR, I64, I64, I64])
        x, x_rs, y, y_rs, rows, columns = code.args
        with code.range(0, rows) as i:

            def move(piece: Piece) -> None:
                values = [self.load(code, x, i * x_rs + at, *piece[1:]) for at in piece.places]
                for at, value in zip(piece.places, values, strict=True):
                    self.store(code, change(code, value), y, i * y_rs + at, piece.mask)

            self.along(code, code.i64(0), columns, move)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    # ---- blocks of columns

    def width(self, n: Int, least: int) -> Int:
        """How many of n columns are a block, of which a decomposition does one in each step."""
        return n.ceil_div(8).round_up(BLOCK).max(least).min(_WIDE)

    def steps(
        self, code: Code, task: ir.Function, job: Record, count: Int, steps: Int | int
    ) -> None:
        """task(job, begin, end) for blocks [0, count - step) in parallel, in each of the steps, the
        word "step" of the job. Of two blocks, one waits for the other."""
        grain = (count < 3).select(count, 1)
        with code.range(0, steps) as i:
            job["step"] = i
            code.call(self.parallel_for, task, job.pointer, count - i, grain)

    # ---- triangles

    @functools.cached_property
    def solve(self) -> ir.Function:
        """void solve(a, a_rs, a_cs, x, x_rs, n, columns, unit, back): x becomes -a⁻¹ x for the
        lower triangle of a, for the upper one if `back`; unit: 1 where its diagonal is of ones."""
        words: list[ir.Type] = [PTR, I64, I64, PTR, I64, I64, I64, I64, I64]
        code = Code(self.module, "solve", words)
        a, a_rs, a_cs, x, x_rs, n, columns, unit, back = code.args
        block = self._solve_block()
        with code.when(n <= BLOCK):
            code.call(block, *code.args)
            code.ret()
        h = (n // 2).round_up(BLOCK)
        backwards = back.ne(0)
        # Rows that are solved first, and the others.
        first, rest = backwards.select(n - h, 0), backwards.select(0, h)
        known, others = self.at(code, x, first * x_rs), self.at(code, x, rest * x_rs)

        def part(i: Int, j: Int) -> ir.Value:
            return self.at(code, a, i * a_rs + j * a_cs)

        code.call(
            code.function, part(first, first), a_rs, a_cs, known, x_rs, h, columns, unit, back
        )
        self.add_product(
            code, (n - h, columns, h),
            (part(rest, first), a_rs, a_cs), (known, x_rs, 1), (others, x_rs, 1),
        )  # fmt: skip
        code.call(
            code.function, part(rest, rest), a_rs, a_cs, others, x_rs, n - h, columns, unit, back
        )
        code.ret()
        return code.function

    def _solve_block(self) -> ir.Function:
        words: list[ir.Type] = [PTR, I64, I64, PTR, I64, I64, I64, I64, I64]
        code = Code(self.module, "solve_block", words)
        a, a_rs, a_cs, x, x_rs, n, columns, unit, back = code.args
        # A copy of the triangle, from its end if it is an upper one, whose rows are near.
        factors = code.variable(self.type, count=BLOCK * BLOCK).slot
        backwards = back.ne(0)
        start = backwards.select((n - 1) * (a_rs + a_cs), 0)
        rows, steps = (backwards.select(code.i64(0) - s, s) for s in (a_rs, a_cs))
        with code.range(0, n) as i:
            with code.range(0, i) as j:
                value = self.load(code, a, start + i * rows + j * steps)
                self.store(code, value, factors, i * BLOCK + j)
            with code.when(unit.eq(0)):
                value = self.load(code, a, start + i * (rows + steps))
                self.store(code, code.b.fneg(value), factors, i * (BLOCK + 1))
        top = self.at(code, x, backwards.select((n - 1) * x_rs, 0))
        down = backwards.select(code.i64(0) - x_rs, x_rs)
        triangle = _Triangle(n, unit, factors, top, down)
        self.along(
            code,
            code.i64(0),
            columns,
            lambda piece: self._solve_columns(code, triangle, piece),
        )
        code.ret()
        return code.function

    def _solve_columns(self, code: Code, triangle: _Triangle, piece: Piece) -> None:
        """Rows in pairs, which share what they read of the rows before them."""
        n, unit, factors, x, x_rs = triangle
        places, lanes, mask = piece
        kind = ir.VectorType(self.type, lanes)

        def factor(i: Int, j: Int) -> ir.Value:
            return code.splat(self.load(code, factors, i * BLOCK + j), lanes)

        def add(i: Int, j: Int, sums: list[Variable], known: list[ir.Value]) -> None:
            spread = factor(i, j)
            for total, value in zip(sums, known, strict=True):
                total.set(code.intrinsic("fmuladd", spread, value, total.get()))

        def finish(i: Int, sums: list[Variable]) -> list[ir.Value]:
            with code.either(unit.eq(0)) as (divided, whole):
                with divided:
                    divisor = factor(i, i)
                    for total in sums:
                        total.set(code.b.fdiv(total.get(), divisor))
                with whole:
                    for total in sums:
                        total.set(code.b.fneg(total.get()))
            for total, at in zip(sums, places, strict=True):
                self.store(code, total.get(), x, i * x_rs + at, mask)
            return [total.get() for total in sums]

        def rows(i: Int, count: int) -> None:
            sums = [[code.variable(kind) for _ in places] for _ in range(count)]
            for r in range(count):
                for total, at in zip(sums[r], places, strict=True):
                    total.set(self.load(code, x, (i + r) * x_rs + at, lanes, mask))
            with code.range(0, i) as j:
                known = [self.load(code, x, j * x_rs + at, lanes, mask) for at in places]
                for r in range(count):
                    add(i + r, j, sums[r], known)
            for r in range(count):
                done = finish(i + r, sums[r])
                for later in range(r + 1, count):
                    add(i + later, i + r, sums[later], done)

        pairs = n // 2 * 2
        with code.range(0, pairs, 2) as i:
            rows(i, 2)
        with code.when(n > pairs):
            rows(pairs, 1)

    # ---- transposes

    @functools.cached_property
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
