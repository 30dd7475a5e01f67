"""Fourier transforms of many rows, as generated code: a row in each lane.

Rows are transposed, so that an element of all of them is a vector. Real rows go as complex ones of
half the length, whose spectrum is that of even elements, and of odd ones, put together. Rows that
are long and few go another way (`fft_long`).
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Int, Record
from funcgrad.backends.llvm.native.engine import Engine, engine
from funcgrad.backends.llvm.routines import fft_chirp, fft_long
from funcgrad.backends.llvm.routines.fft_passes import Complex, Numbers, Passes, radices
from funcgrad.backends.llvm.runtime.routine import Call, compiled

if TYPE_CHECKING:
    from funcgrad.backends.program import HostStep

CALL = fft_long.CALL
# Complex elements of a row. So many leave a core's cache, a row in each lane. Tables of roots are a
# part of the code.
_LEAST, _LONG, _MOST = 4, 1024, 1 << 22
_FORWARD, _REAL = ("FFT", "RFFT"), ("RFFT", "IRFFT")


def fft_call(step: HostStep) -> Call | None:
    """How the function that runs a step of `fft` on pairs is called; None where the host is to run
    it."""
    kind, lengths = (step.params["params"][k] for k in ("fft_type", "fft_lengths"))
    (n,), result = lengths if len(lengths) == 1 else (0,), step.params["results"][0]
    dtype = dtypes.real_part(result.dtype).name
    size = n // 2 if kind.name in _REAL and n % 2 == 0 else n
    batch = math.prod(result.shape[:-1])
    smooth = radices(size) is not None
    if not _LEAST <= size <= (_MOST if smooth else fft_chirp.MOST) or not batch:
        return None
    lanes = engine().target.vector_bits // (8 * np.dtype(dtype).itemsize)
    within = size if smooth else fft_chirp.room(size)
    long = within >= lanes**2 and (batch < lanes or within >= _LONG or not smooth)
    alone = long and fft_long.split(within, lanes) is not None
    form = kind.name, n, dtype, alone
    return Call(_name(*form), (batch,), (partial(install, *form),))


def _name(kind: str, n: int, dtype: str, alone: bool) -> str:
    return f"fg_{kind.lower()}_{n}_{dtype}" + "_alone" * alone


@functools.cache
def install(
    kind: str, n: int, dtype: str, alone: bool = False, target: Engine | None = None
) -> int:
    """Compile the transform of a kind and length, bind its symbol, and return its address.

    alone: whether each row goes alone

    >>> install("FFT", 8, "float32") == install("FFT", 8, "float32")
    True
    """
    target = target or engine()
    name, transform = _name(kind, n, dtype, alone), fft_long.Long if alone else _Transform

    def write() -> ir.Module:
        module = ir.Module("fft")
        transform(Matrices(module, dtype, target.target), kind, n).emit(name)
        return module

    # More would take twice as long, and gain nothing where rows are many or long.
    return compiled(name, write, 1, ("routines.fft_rows",), target)


class _Transform:
    """Writes the transform of a kind of rows of n elements."""

    def __init__(self, parts: Matrices, kind: str, n: int):
        self.parts, self.kind, self.n = parts, kind, n
        self.forward, self.real = kind in _FORWARD, kind in _REAL
        self.halved = self.real and n % 2 == 0
        self.size = n // 2 if self.halved else n
        half = 2 * (n // 2 + 1)
        self.width_in = {"RFFT": n, "IRFFT": half}.get(kind, 2 * n)
        self.width_out = {"RFFT": half, "IRFFT": n}.get(kind, 2 * n)
        kind_of = Passes if radices(self.size) else fft_chirp.Chirp
        self.passes = kind_of(parts, self.size, self.forward, n)

    def emit(self, name: str) -> None:
        """Write void name(ptr call) of the words `CALL`: blocks of rows, in parallel."""
        parts, lanes = self.parts, self.parts.lanes
        ends = None if not self.real else self._split() if self.halved else self._widen()
        task = Code(parts.module, f"{name}_rows", [PTR, I64, I64])
        call = Record(task, CALL, task.args[0])
        x, out, room = call.pointer_at("x"), call.pointer_at("out"), 2 * self.passes.room + 2
        arrays = [task.call(parts.take, room * lanes * parts.bytes) for _ in range(2)]
        with task.range(task.args[1], task.args[2]) as block:
            # The last block is a whole one, too: whoever shares its rows writes the same.
            first = (block * lanes).min((call["batch"] - lanes).max(0))
            rows = call["batch"].min(lanes)
            source = parts.at(task, x, first * self.width_in)
            here, there = arrays
            task.call(parts.transpose, source, self.width_in, here, lanes, rows, self.width_in)
            if ends is not None and not (self.halved and self.forward):
                task.call(ends, here, there)
                here, there = there, here
            factor = 1.0 if self.forward else 1 / self.n
            here, there = self.passes.run(task, self.size, (here, there), factor)
            if self.real and not (self.halved or self.forward):
                self._narrow(task, here)
            if ends is not None and self.halved and self.forward:
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

    def _split(self) -> ir.Function:
        """void split(x, y): from the spectrum of pairs of elements to that of all, or back."""
        code, of = self.passes.function("split", 0)
        x, y = code.args
        m, b = self.size, code.b
        first = of.load(x, 0)
        if self.forward:
            zero = code.splat(ir.Constant(self.parts.type, 0.0), of.lanes)
            of.store(Complex(b.fadd(*first), zero), y, 0)
            of.store(Complex(b.fsub(*first), zero), y, m)
        else:
            # The imaginary parts of frequencies that are their own mirror image don't count.
            last = of.load(x, m).re
            of.store(Complex(b.fadd(first.re, last), b.fsub(first.re, last)), y, 0)
        with code.range(1, m) as k:
            value, mirror = of.load(x, k), of.conj(of.load(x, code.i64(m) - k))
            even = of.add(value, mirror)
            odd = of.turned(of.mul(of.sub(value, mirror), of.root(k)))
            if self.forward:
                of.store(of.scaled(of.sub(even, odd), 0.5), y, k)
            else:
                of.store(of.add(even, odd), y, k)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _widen(self) -> ir.Function:
        """void widen(x, y): of an odd number of elements complex ones, which have no imaginary
        parts; or, of half a spectrum, all of it."""
        code, of = self.passes.function("widen", 0)
        x, y = code.args
        zero = code.splat(ir.Constant(self.parts.type, 0.0), of.lanes)
        if self.forward:
            with code.range(0, self.n) as k:
                of.store(Complex(self._vector(code, x, k), zero), y, k)
        else:
            of.store(Complex(of.load(x, 0).re, zero), y, 0)
            with code.range(1, self.n // 2 + 1) as k:
                value = of.load(x, k)
                of.store(value, y, k)
                of.store(of.conj(value), y, code.i64(self.n) - k)
        code.ret()
        code.function.attributes.add("noinline")
        return code.function

    def _narrow(self, code: Code, x: ir.Value) -> None:
        """The real parts, one after another."""
        of = Numbers(self.parts, code, self.passes.table)
        with code.range(0, self.n) as k:
            self.parts.store(code, of.load(x, k).re, x, k * of.lanes)

    def _vector(self, code: Code, x: ir.Value, i: Int) -> ir.Value:
        return self.parts.load(code, x, i * self.parts.lanes, self.parts.lanes)
