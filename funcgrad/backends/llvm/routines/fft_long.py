"""Fourier transforms of rows that are long, or few, as generated code.

A row is a matrix whose columns are transformed and multiplied by roots, before its rows are
transformed: of both, a vector's lanes take as many at once; the last block overlaps another. What
is between is kept block by block, as the rows want it. Threads take rows, or share them if there
are few. Real rows go as complex ones of half the length, as in `fft_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.backends.llvm.gemm.pack import transpose
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code, Int, Record, undefined
from funcgrad.backends.llvm.routines import fft_chirp
from funcgrad.backends.llvm.routines.fft_passes import (
    Complex,
    Numbers,
    Passes,
    radices,
    roots,
    table,
)

CALL = ("batch", "x", "out")
# One row in hand, as complex numbers, and what is between.
_ROW = ("x", "out", "middle")
# Complex elements of a row that a task is to have at least, and roots in a table of neighbours.
_TASK, _NEAR = 4096, 64
_ROWS = 4  # from which on threads take whole rows


def split(size: int, lanes: int) -> tuple[int, int] | None:
    """Rows and columns of the matrix that a row of so many elements is, at least `lanes` of each;
    None if there is none.

    >>> split(1000, 16), split(1 << 11, 16), split(26, 4)
    ((25, 40), (32, 64), None)
    """
    if radices(size) is None:
        return None
    rows = (r for r in range(math.isqrt(size), lanes - 1, -1) if size % r == 0)
    return next(((r, size // r) for r in rows), None)


class Long:
    """Writes the transform of a kind of rows of n elements."""

    def __init__(self, parts: Matrices, kind: str, n: int):
        self.parts, self.kind, self.n, self.lanes = parts, kind, n, parts.lanes
        self.forward, self.real = kind in ("FFT", "RFFT"), kind in ("RFFT", "IRFFT")
        self.halved = self.real and n % 2 == 0
        self.size = n // 2 if self.halved else n
        # Of lengths with large prime factors, the matrix is that of a convolution.
        self.chirped = radices(self.size) is None
        self.within = fft_chirp.room(self.size) if self.chirped else self.size
        self.towards = self.chirped or self.forward
        found = split(self.within, self.lanes)
        assert found is not None
        self.rows, self.columns = found
        self.passes = self.short = Passes(parts, self.columns, self.towards)
        if self.columns % self.rows:
            self.short = Passes(parts, self.rows, self.towards, prefix="short_")

    def emit(self, name: str) -> None:
        """Write void name(ptr call) of the words `CALL`."""
        parts, size, n = self.parts, self.size, self.n
        columns, rows = self._columns(f"{name}_columns"), self._rows(f"{name}_rows")
        code = Code(parts.module, f"{name}_all", [PTR, I64, I64])
        call = Record(code, CALL, code.args[0])
        row = Record(code, _ROW, code.variable(I64, count=len(_ROW)).slot)
        between = 2 * self.columns * self._blocks(self.rows) * self.lanes
        row["middle"] = middle = code.call(parts.take, between * parts.bytes)
        half = 2 * (n // 2 + 1)
        given, made = {"RFFT": (n, half), "IRFFT": (half, n)}.get(self.kind, (2 * n, 2 * n))
        # Blocks that overlap can't be worked on in place.
        apart = self.kind == "IRFFT" or size // 2 % self.lanes != 0 or not self.halved
        own = self.real and apart
        spectrum = code.call(parts.take, 2 * (size + 1) * parts.bytes) if own else None
        ends = self._ends(f"{name}_ends") if self.halved else None
        count = 2 if self.chirped else 0
        room = [code.call(parts.take, 2 * self.within * parts.bytes) for _ in range(count)]

        def loop(task: ir.Function | None, count: int) -> None:
            assert task is not None, "ends are there where halves are"
            blocks = self._blocks(count)
            grain = max(1, _TASK * blocks // self.within)
            code.call(parts.parallel_for, task, row.pointer, blocks, grain)

        def transform() -> None:
            loop(columns, self.columns)
            loop(rows, self.rows)

        with code.range(code.args[1], code.args[2]) as i:
            x = parts.at(code, call.pointer_at("x"), i * given)
            out = parts.at(code, call.pointer_at("out"), i * made)
            row["x"], row["out"] = x, out
            if spectrum is not None and (self.kind == "IRFFT" or not self.halved):
                if self.halved:
                    row["out"] = spectrum
                    loop(ends, size // 2)
                else:
                    self._widen(code, x, spectrum)
                row["x"] = spectrum
            row["out"] = out
            if spectrum is not None and not (self.halved and self.kind == "IRFFT"):
                row["out"] = spectrum
            if self.chirped:
                self._convolved(code, row, room, transform)
            else:
                transform()
            if self.kind == "RFFT" and self.halved:
                row["x"], row["out"] = spectrum or out, out
                loop(ends, size // 2)
            elif spectrum is not None and not self.halved:
                self._narrow(code, spectrum, out)
        for array in (middle, *room, *([] if spectrum is None else [spectrum])):
            code.call(parts.give, array)
        code.ret()
        self._entry(name, code.function)

    def _entry(self, name: str, task: ir.Function) -> None:
        """The function that others call: threads share rows if there are enough, else what is in
        one."""
        code = Code(self.parts.module, name, [PTR], public=True)
        batch = Record(code, CALL, code.args[0])["batch"]
        with code.either(batch < _ROWS) as (few, several):
            with few:
                code.call(task, code.args[0], 0, batch)
            with several:
                grain = max(1, _TASK // self.within)
                code.call(self.parts.parallel_for, task, code.args[0], batch, grain)
        code.ret()

    def _blocks(self, count: int) -> int:
        return -(-count // self.lanes)

    def _first_of(self, block: Int, count: int) -> Int:
        """Where a block of `count` things begins: the last one overlaps the one before."""
        return (block * self.lanes).min(count - self.lanes)

    def _firsts(self, count: int) -> np.ndarray:
        blocks = np.arange(self._blocks(count)) * self.lanes
        return np.minimum(blocks, count - self.lanes)

    def _widen(self, code: Code, x: ir.Value, y: ir.Value) -> None:
        """Of an odd number of elements complex ones; or, of half a spectrum, all of it."""
        parts, zero = self.parts, ir.Constant(self.parts.type, 0.0)
        if self.forward:
            with code.range(0, self.n) as k:
                parts.store(code, parts.load(code, x, k), y, k * 2)
                parts.store(code, zero, y, k * 2 + 1)
            return
        parts.store(code, parts.load(code, x, 0), y, 0)
        parts.store(code, zero, y, 1)
        with code.range(1, self.n // 2 + 1) as k:
            re, im = (parts.load(code, x, k * 2 + i) for i in (0, 1))
            mirror = (code.i64(self.n) - k) * 2
            for value, at in ((re, k * 2), (im, k * 2 + 1), (re, mirror)):
                parts.store(code, value, y, at)
            parts.store(code, code.b.fneg(im), y, mirror + 1)

    def _narrow(self, code: Code, x: ir.Value, y: ir.Value) -> None:
        """Half of a spectrum, or the real parts."""
        step = 1 if self.forward else 2
        with code.range(0, self.n + 1 if self.forward else self.n) as k:
            self.parts.store(code, self.parts.load(code, x, k * step), y, k)

    def _convolved(
        self, code: Code, row: Record, room: list[ir.Value], transform: Callable[[], None]
    ) -> None:
        """A transform from row["x"] to row["out"] by two of convolutions; see `fft_chirp`."""
        size, within = self.size, self.within
        x, out, (here, there) = row.pointer_at("x"), row.pointer_at("out"), room
        of = Numbers(self.parts, code, self.passes.table)
        chirp = self._vectors("chirp", fft_chirp.chirp(size, self.forward))
        spectrum = self._vectors("line", fft_chirp.spectrum(size, within, self.forward))
        with code.range(0, self._blocks(size)) as block:
            at = self._first_of(block, size)
            value = of.mul(self._apart(code, x, at), of.load(chirp, block))
            self._together(code, value, here, at)
        with code.range(0, self._blocks(within - size)) as block:
            self._together(code, of.zero(), here, self._first_of(block, within - size) + size)
        row["x"], row["out"] = here, there
        transform()
        with code.range(0, self._blocks(within)) as block:
            at = self._first_of(block, within)
            value = of.mul(self._apart(code, there, at), of.load(spectrum, block))
            self._together(code, of.conj(value), here, at)
        transform()
        factor = 1.0 if self.forward else 1 / self.n
        with code.range(0, self._blocks(size)) as block:
            at = self._first_of(block, size)
            value = of.mul(of.conj(self._apart(code, there, at)), of.load(chirp, block))
            self._together(code, of.scaled(value, factor), out, at)
        row["x"], row["out"] = x, out

    def _vectors(self, name: str, values: np.ndarray) -> ir.GlobalVariable:
        """A table of numbers by the vectors that blocks take."""
        places = self._firsts(len(values))[:, None] + np.arange(self.lanes)
        taken = values.astype(self.parts.dtype)[places].transpose(0, 2, 1)
        return table(self.parts.module, name, taken)

    def _task(self, name: str) -> tuple[Code, Numbers, list[ir.Value]]:
        task = Code(self.parts.module, name, [PTR, I64, I64])
        row = Record(task, _ROW, task.args[0])
        of = Numbers(self.parts, task, self.passes.table)
        return task, of, [row.pointer_at(field) for field in _ROW]

    def _columns(self, name: str) -> ir.Function:
        """The task that transforms vectors [begin, end) of columns, and multiplies them by roots:
        element k of column j by the root's power j·k."""
        parts, lanes, rows = self.parts, self.lanes, self.rows
        # Powers of the roots of columns to 1, 2, 4, …, by vectors of columns.
        bits = (rows - 1).bit_length()
        places = self._firsts(self.columns)[:, None] + np.arange(lanes)
        powers = np.left_shift.outer(places, np.arange(bits))
        values = roots(self.within, powers, self.towards).astype(parts.dtype)
        seeds = table(parts.module, "seeds", values.transpose(0, 2, 3, 1))
        task, of, (x, _, middle) = self._task(name)
        arrays = tuple(task.call(parts.take, 2 * lanes * rows * parts.bytes) for _ in range(2))
        near, far = bits // 2, bits - bits // 2
        few = [task.variable(parts.type, count=2 * lanes << k).slot for k in (near, far)]
        with task.range(task.args[1], task.args[2]) as block:
            first = self._first_of(block, self.columns)
            with task.range(0, rows) as i:
                value = self._apart(task, x, i * self.columns + first)
                of.store(value, arrays[0], i)
            here, _ = self.short.run(task, rows, arrays)
            self._powers(of, seeds, block * bits, few, (near, far))
            with task.range(0, rows) as i:
                root = of.mul(of.load(few[1], i // (1 << near)), of.load(few[0], i % (1 << near)))
                of.store(of.mul(of.load(here, i), root), here, i)
            with task.range(0, self._blocks(rows)) as k:
                start = self._first_of(k, rows)
                square = [of.load(here, start + i) for i in range(lanes)]
                turned = [transpose(task, [value[p] for value in square]) for p in (0, 1)]
                to = k * self.columns + first
                for j, (re, im) in enumerate(zip(*turned, strict=True)):
                    of.store(Complex(re, im), middle, to + j)
        for array in arrays:
            task.call(parts.give, array)
        task.ret()
        return task.function

    def _powers(
        self, of: Numbers, seeds: ir.Value, first: Int, arrays: Sequence[ir.Value], bits: tuple
    ) -> None:
        """All powers of roots below 2^bits[0], and the multiples of that, each product of few."""
        code, one = of.code, of.code.splat(ir.Constant(self.parts.type, 1.0), self.lanes)
        none = code.splat(ir.Constant(self.parts.type, 0.0), self.lanes)
        for array, count in zip(arrays, bits, strict=True):
            of.store(Complex(one, none), array, 0)
            for bit in range(count):
                seed = of.load(seeds, first + bit)
                with code.range(0, 1 << bit) as i:
                    of.store(of.mul(of.load(array, i), seed), array, i + (1 << bit))
            first = first + count

    def _rows(self, name: str) -> ir.Function:
        """The task that transforms vectors [begin, end) of rows, in the order of the result."""
        parts, lanes, columns = self.parts, self.lanes, self.columns
        task, of, (_, out, middle) = self._task(name)
        room = task.call(parts.take, 2 * lanes * columns * parts.bytes)
        factor = 1.0 if self.towards else 1 / self.n
        with task.range(task.args[1], task.args[2]) as block:
            first = self._first_of(block, self.rows)
            arrays = parts.at(task, middle, block * (2 * lanes * columns)), room
            here, _ = self.passes.run(task, columns, arrays, factor)
            with task.range(0, columns) as k:
                self._together(task, of.load(here, k), out, k * self.rows + first)
        task.call(parts.give, room)
        task.ret()
        return task.function

    def _ends(self, name: str) -> ir.Function:
        """The task that makes the spectrum of all elements from that of pairs, or back: vectors
        [begin, end) of elements from 1 on, together with their mirror images. The first, and its
        own, come first."""
        lanes, size, parts = self.lanes, self.size, self.parts
        firsts = self._firsts(size // 2)
        near = min(_NEAR, len(firsts))
        # The last block, which others overlap, has roots of its own.
        exponents = np.append(firsts[:near], firsts[-1])[:, None] + np.arange(1, lanes + 1)
        values = roots(self.n, exponents, self.forward).transpose(0, 2, 1).astype(parts.dtype)
        close = table(parts.module, "close", values)
        count = -(-len(firsts) // near)
        values = roots(self.n, np.append(firsts[::near], 0), self.forward)
        distant = table(parts.module, "distant", values.astype(parts.dtype))
        task, of, (x, out, _) = self._task(name)
        far = Numbers(parts, task, distant)
        with task.when(task.args[1].eq(0)):
            self._first(task, x, out)
        with task.range(task.args[1], task.args[2]) as block:
            at = self._first_of(block, size // 2) + 1
            back = task.i64(size + 1 - lanes) - at
            last = block.eq(len(firsts) - 1)
            root = of.mul(
                of.load(close, last.select(near, block % near)),
                far.root(last.select(count, block // near)),
            )
            value = self._apart(task, x, at)
            mirror = of.conj(self._apart(task, x, back, backwards=True))
            even = of.add(value, mirror)
            odd = of.turned(of.mul(of.sub(value, mirror), root))
            front, behind = of.sub(even, odd), of.add(even, odd)
            if not self.forward:
                front, behind = behind, front
            half = 0.5 if self.forward else 1.0
            self._together(task, of.scaled(front, half), out, at)
            self._together(task, of.scaled(of.conj(behind), half), out, back, backwards=True)
        task.ret()
        return task.function

    def _first(self, task: Code, x: ir.Value, out: ir.Value) -> None:
        """Element 0, and the one that is its mirror image, of the spectrum of all."""
        parts, b, size = self.parts, task.b, self.size
        re = parts.load(task, x, 0)
        # The imaginary parts of frequencies that are their own mirror image don't count.
        im = parts.load(task, x, 1 if self.forward else 2 * size)
        total, rest = b.fadd(re, im), b.fsub(re, im)
        zero = ir.Constant(parts.type, 0.0)
        found = {0: total, 1: zero, 2 * size: rest, 2 * size + 1: zero}
        for i, value in (found if self.forward else {0: total, 1: rest}).items():
            parts.store(task, value, out, i)

    # ---- complex numbers in memory, real and imaginary parts side by side

    def _apart(self, code: Code, x: ir.Value, at: Int, backwards: bool = False) -> Complex:
        """The numbers from one on, from the last one on if `backwards`."""
        both = self.parts.load(code, x, at * 2, 2 * self.lanes)
        order = range(self.lanes)[:: -1 if backwards else 1]
        return Complex(*(
            code.b.shuffle_vector(both, undefined(both.type), _mask([2 * i + k for i in order]))
            for k in (0, 1)
        ))  # fmt: skip

    def _together(
        self, code: Code, x: Complex, out: ir.Value, at: Int, backwards: bool = False
    ) -> None:
        """Write the numbers from one on."""
        order = range(self.lanes)[:: -1 if backwards else 1]
        mask = _mask([i + k * self.lanes for i in order for k in (0, 1)])
        self.parts.store(code, code.b.shuffle_vector(x.re, x.im, mask), out, at * 2)


def _mask(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
