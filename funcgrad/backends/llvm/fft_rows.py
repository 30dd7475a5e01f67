"""Fourier transforms of many rows of 2ⁿ elements, as generated code: a row in each lane.

Rows are transposed, so that an element of all of them is a vector. Passes of radix 4 go from one
array to another and leave frequencies in order, as Stockham's do (Cochran et al., "What is the fast
Fourier transform?", 1967). Real rows go as complex ones of half the length, whose spectrum is that
of even elements, and of odd ones, put together.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llvmlite import ir

from funcgrad import dtypes
from funcgrad.backends.llvm import pool, scratch
from funcgrad.backends.llvm.engine import Engine, engine
from funcgrad.backends.llvm.gemm_build import I64, PTR, Code, Int
from funcgrad.backends.llvm.gemm_job import Record
from funcgrad.backends.llvm.matrix_parts import Matrices
from funcgrad.backends.llvm.sources import generator

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

CALL = ("batch", "x", "out")
# Complex elements of a row: the table of roots is a part of the code.
_LEAST, _MOST = 4, 16384
_ROWS = 4  # fewer leave too many lanes empty
_FORWARD, _REAL = ("FFT", "RFFT"), ("RFFT", "IRFFT")


def fft_call(step: HostStep) -> tuple[str, tuple[int, ...]] | None:
    """The name of the function that runs a step of `fft` on pairs, and the words of its call before
    the arrays; None where the host is to run it."""
    if step.params["prim"].name != "fft":
        return None
    kind, lengths = (step.params["params"][k] for k in ("fft_type", "fft_lengths"))
    (n,), result = lengths if len(lengths) == 1 else (0,), step.params["results"][0]
    dtype = dtypes.real_part(result.dtype).name
    size = n // 2 if kind.name in _REAL else n
    batch = math.prod(result.shape[:-1])
    if n & (n - 1) or not _LEAST <= size <= _MOST or batch < _ROWS:
        return None
    install(kind.name, n, dtype)
    return _name(kind.name, n, dtype), (batch,)


def _name(kind: str, n: int, dtype: str) -> str:
    return f"fg_{kind.lower()}_{n}_{dtype}"


@functools.cache
def install(kind: str, n: int, dtype: str, target: Engine | None = None) -> int:
    """Compile the transform of a kind and length, bind its symbol, and return its address.

    >>> install("FFT", 8, "float32") == install("FFT", 8, "float32")
    True
    """
    target = target or engine()
    pool.bind(target)
    scratch.bind(target)
    name = _name(kind, n, dtype)

    def write() -> ir.Module:
        module = ir.Module("fft")
        _Transform(Matrices(module, dtype, target.target), kind, n).emit(name)
        return module

    library = target.compile(write, key=f"{name} {generator('fft_rows')}")
    target.bind(name, library)
    return library.address(name)


class _Complex(NamedTuple):
    """A vector of complex numbers, a row in each lane."""

    re: ir.Value
    im: ir.Value


class _Numbers:
    """Arithmetic of vectors, and elements in memory: all lanes of the real, then of the imaginary
    part."""

    def __init__(self, parts: Matrices, code: Code, table: ir.GlobalVariable):
        self.parts, self.code, self.b = parts, code, code.b
        self.lanes, self.table = parts.lanes, code.b.bitcast(table, PTR)
        self.table.type = PTR

    def load(self, pointer: ir.Value, i: Int | int) -> _Complex:
        at = self.code.i64(i) * (2 * self.lanes)
        return _Complex(*(
            self.parts.load(self.code, pointer, at + k * self.lanes, self.lanes) for k in (0, 1)
        ))  # fmt: skip

    def store(self, x: _Complex, pointer: ir.Value, i: Int | int) -> None:
        at = self.code.i64(i) * (2 * self.lanes)
        for k, part in enumerate(x):
            self.parts.store(self.code, part, pointer, at + k * self.lanes)

    def root(self, i: Int) -> _Complex:
        """Number i of the table, in all lanes."""
        return _Complex(*(
            self.code.splat(self.parts.load(self.code, self.table, i * 2 + k), self.lanes)
            for k in (0, 1)
        ))  # fmt: skip

    def add(self, x: _Complex, y: _Complex) -> _Complex:
        return _Complex(*(self.b.fadd(v, w) for v, w in zip(x, y, strict=True)))

    def sub(self, x: _Complex, y: _Complex) -> _Complex:
        return _Complex(*(self.b.fsub(v, w) for v, w in zip(x, y, strict=True)))

    def mul(self, x: _Complex, w: _Complex) -> _Complex:
        fma = functools.partial(self.code.intrinsic, "fma")
        re = fma(x.re, w.re, self.b.fneg(self.b.fmul(x.im, w.im)))
        return _Complex(re, fma(x.re, w.im, self.b.fmul(x.im, w.re)))

    def scaled(self, x: _Complex, factor: float) -> _Complex:
        if factor == 1:
            return x
        spread = self.code.splat(ir.Constant(self.parts.type, factor), self.lanes)
        return _Complex(*(self.b.fmul(v, spread) for v in x))

    def conj(self, x: _Complex) -> _Complex:
        return _Complex(x.re, self.b.fneg(x.im))

    def turned(self, x: _Complex) -> _Complex:
        """i x."""
        return _Complex(self.b.fneg(x.im), x.re)


class _Transform:
    """Writes the transform of a kind of rows of n elements."""

    def __init__(self, parts: Matrices, kind: str, n: int):
        self.parts, self.kind, self.n = parts, kind, n
        self.forward, self.real = kind in _FORWARD, kind in _REAL
        self.size = n // 2 if self.real else n
        half = 2 * (self.size + 1)
        self.width_in = {"RFFT": n, "IRFFT": half}.get(kind, 2 * n)
        self.width_out = {"RFFT": half, "IRFFT": n}.get(kind, 2 * n)
        angles = np.arange(n, dtype=np.longdouble) * (8 * np.arctan(np.longdouble(1)) / n)
        roots = np.stack([np.cos(angles), np.sin(angles) * (-1 if self.forward else 1)], 1)
        values = np.where(abs(roots) < 1e-17, 0, roots).astype(parts.dtype).reshape(-1)
        kind_of_table = ir.ArrayType(parts.type, 2 * n)
        self.table = ir.GlobalVariable(parts.module, kind_of_table, "roots")
        self.table.initializer = ir.Constant(kind_of_table, [float(v) for v in values])
        self.table.global_constant, self.table.linkage = True, "internal"

    def emit(self, name: str) -> None:
        """Write void name(ptr call) of the words `CALL`: blocks of rows, in parallel."""
        parts, lanes = self.parts, self.parts.lanes
        pass4, last = self._pass(), self._last()
        ends = self._split() if self.real else None
        task = Code(parts.module, f"{name}_rows", [PTR, I64, I64])
        call = Record(task, CALL, task.args[0])
        x, out, room = call.pointer_at("x"), call.pointer_at("out"), 2 * self.size + 2
        arrays = [task.call(parts.take, room * lanes * parts.bytes) for _ in range(2)]
        with task.range(task.args[1], task.args[2]) as block:
            # The last block is a whole one, too: whoever shares its rows writes the same.
            first = (block * lanes).min((call["batch"] - lanes).max(0))
            rows = call["batch"].min(lanes)
            source = parts.at(task, x, first * self.width_in)
            here, there = arrays
            task.call(parts.transpose, source, self.width_in, here, lanes, rows, self.width_in)
            if ends is not None and not self.forward:
                task.call(ends, here, there)
                here, there = there, here
            step = 1
            while self.size // step > 4:
                task.call(pass4, here, there, self.size // step // 4, step)
                here, there, step = there, here, step * 4
            task.call(last, here, there)
            here, there = there, here
            if ends is not None and self.forward:
                task.call(ends, here, there)
                here, there = there, here
            to = parts.at(task, out, first * self.width_out)
            task.call(parts.transpose, here, lanes, to, self.width_out, self.width_out, rows)
        for array in arrays:
            task.call(parts.give, array)
        task.ret()
        code = Code(parts.module, name, [PTR], public=True)
        blocks = Record(code, CALL, code.args[0])["batch"].ceil_div(lanes)
        code.call(parts.parallel_for, task.function, code.args[0], blocks, 1)
        code.ret()

    def _function(self, name: str, words: int) -> tuple[Code, _Numbers]:
        code = Code(self.parts.module, name, [PTR, PTR, *[I64] * words])
        code.function.attributes.add("noinline")
        for argument in code.function.args[:2]:
            argument.add_attribute("noalias")
        return code, _Numbers(self.parts, code, self.table)

    def _fourth(self, of: _Numbers, values: list[_Complex]) -> list[_Complex]:
        """The transform of four numbers."""
        a, b, c, d = values
        even, odd = of.add(a, c), of.sub(a, c)
        both, turned = of.add(b, d), of.turned(of.sub(b, d))
        one, three = (of.sub, of.add) if self.forward else (of.add, of.sub)
        return [of.add(even, both), one(odd, turned), of.sub(even, both), three(odd, turned)]

    def _pass(self) -> ir.Function:
        """void pass(x, y, quarter, step): of step transforms of 4·quarter elements, step apart."""
        code, of = self._function("pass", 2)
        x, y, quarter, step = code.args
        with code.range(0, quarter) as p:
            # The table's roots are n-th ones.
            unit = p * step * (self.n // self.size)
            roots = [of.root(unit * k) for k in (1, 2, 3)]
            with code.range(0, step) as q:
                at, to = p * step + q, p * step * 4 + q
                values = [of.load(x, at + quarter * step * k) for k in range(4)]
                first, *rest = self._fourth(of, values)
                of.store(first, y, to)
                for k, (value, root) in enumerate(zip(rest, roots, strict=True), 1):
                    of.store(of.mul(value, root), y, to + step * k)
        code.ret()
        return code.function

    def _last(self) -> ir.Function:
        """void last(x, y): of transforms of four elements, or of two, whose roots are 1."""
        code, of = self._function("last", 0)
        x, y = code.args
        radix = 4 if (self.size.bit_length() - 1) % 2 == 0 else 2
        step, factor = self.size // radix, 1.0 if self.forward else 1 / self.n
        with code.range(0, step) as q:
            values = [of.load(x, q + step * k) for k in range(radix)]
            if radix == 4:
                values = self._fourth(of, values)
            else:
                values = [of.add(*values), of.sub(*values)]
            for k, value in enumerate(values):
                of.store(of.scaled(value, factor), y, q + step * k)
        code.ret()
        return code.function

    def _split(self) -> ir.Function:
        """void split(x, y): from the spectrum of pairs of elements to that of all, or back."""
        code, of = self._function("split", 0)
        x, y = code.args
        m, b = self.size, code.b
        first = of.load(x, 0)
        if self.forward:
            zero = code.splat(ir.Constant(self.parts.type, 0.0), of.lanes)
            of.store(_Complex(b.fadd(*first), zero), y, 0)
            of.store(_Complex(b.fsub(*first), zero), y, m)
        else:
            # The imaginary parts of frequencies that are their own mirror image don't count.
            last = of.load(x, m).re
            of.store(_Complex(b.fadd(first.re, last), b.fsub(first.re, last)), y, 0)
        with code.range(1, m) as k:
            value, mirror = of.load(x, k), of.conj(of.load(x, code.i64(m) - k))
            even = of.add(value, mirror)
            odd = of.turned(of.mul(of.sub(value, mirror), of.root(k)))
            if self.forward:
                of.store(of.scaled(of.sub(even, odd), 0.5), y, k)
            else:
                of.store(of.add(even, odd), y, k)
        code.ret()
        return code.function
