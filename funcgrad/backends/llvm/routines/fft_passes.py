"""What transforms in rows and of long rows share: complex vectors, and passes over rows in lanes.

A number in memory is all lanes of the real, then of the imaginary part. Passes of radix 4, 2 and
odd primes go from one array to another and leave frequencies in order, as Stockham's do (Cochran et
al., "What is the fast Fourier transform?", 1967).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code, Functions, Int

_ODD = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # radices besides 2 and 4


class Complex(NamedTuple):
    """A vector of complex numbers."""

    re: ir.Value
    im: ir.Value


class Numbers:
    """Arithmetic of vectors, and elements in memory: all lanes of the real, then of the imaginary
    part."""

    def __init__(self, parts: Matrices, code: Code, table: ir.GlobalVariable):
        self.parts, self.code, self.b = parts, code, code.b
        self.lanes, self.table = parts.lanes, table

    def load(self, pointer: ir.Value, i: Int | int) -> Complex:
        """Number i of an array."""
        at = self.code.i64(i) * (2 * self.lanes)
        return Complex(*(
            self.parts.load(self.code, pointer, at + k * self.lanes, self.lanes) for k in (0, 1)
        ))  # fmt: skip

    def store(self, x: Complex, pointer: ir.Value, i: Int | int) -> None:
        """Write number i of an array."""
        at = self.code.i64(i) * (2 * self.lanes)
        for k, part in enumerate(x):
            self.parts.store(self.code, part, pointer, at + k * self.lanes)

    def root(self, i: Int) -> Complex:
        """Number i of the table, in all lanes."""
        return Complex(*(
            self.code.splat(self.parts.load(self.code, self.table, i * 2 + k), self.lanes)
            for k in (0, 1)
        ))  # fmt: skip

    def zero(self) -> Complex:
        """Zeros."""
        return Complex(*[self.code.splat(ir.Constant(self.parts.type, 0.0), self.lanes)] * 2)

    def add(self, x: Complex, y: Complex) -> Complex:
        """x + y."""
        return Complex(*(self.b.fadd(v, w) for v, w in zip(x, y, strict=True)))

    def sub(self, x: Complex, y: Complex) -> Complex:
        """x - y."""
        return Complex(*(self.b.fsub(v, w) for v, w in zip(x, y, strict=True)))

    def mul(self, x: Complex, w: Complex) -> Complex:
        """x w."""
        fma = functools.partial(self.code.intrinsic, "fma")
        re = fma(x.re, w.re, self.b.fneg(self.b.fmul(x.im, w.im)))
        return Complex(re, fma(x.re, w.im, self.b.fmul(x.im, w.re)))

    def scaled(self, x: Complex, factor: float) -> Complex:
        """x times a real number."""
        if factor == 1:
            return x
        spread = self.code.splat(ir.Constant(self.parts.type, factor), self.lanes)
        return Complex(*(self.b.fmul(v, spread) for v in x))

    def plus(self, x: Complex, y: Complex, factor: float) -> Complex:
        """x + factor y."""
        spread = self.code.splat(ir.Constant(self.parts.type, factor), self.lanes)
        fma = functools.partial(self.code.intrinsic, "fma")
        return Complex(*(fma(w, spread, v) for v, w in zip(x, y, strict=True)))

    def conj(self, x: Complex) -> Complex:
        """Its conjugate."""
        return Complex(x.re, self.b.fneg(x.im))

    def turned(self, x: Complex) -> Complex:
        """i x."""
        return Complex(self.b.fneg(x.im), x.re)


def roots(n: int, exponents: np.ndarray, forward: bool) -> np.ndarray:
    """Powers of the n-th root of one that a transform multiplies by: real and imaginary parts, in
    extended precision.

    >>> roots(4, np.arange(4), True).tolist()
    [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 1.0]]
    """
    angles = (exponents % n).astype(np.longdouble) * (8 * np.arctan(np.longdouble(1)) / n)
    parts = np.stack([np.cos(angles), np.sin(angles) * (-1 if forward else 1)], -1)
    return np.where(abs(parts) < 1e-17, 0, parts).astype(np.float64)


def table(module: ir.Module, name: str, values: np.ndarray) -> ir.GlobalVariable:
    """A constant array in a module."""
    data = ir.Data(values.tobytes())
    made = ir.GlobalVariable(module, data.type, name)
    made.initializer, made.global_constant, made.linkage = data, True, "internal"
    made.align = 64
    return made


def radices(n: int) -> list[int] | None:
    """The radices of a transform's passes, in their order; None if n has a prime factor that no
    pass is for. The last pass multiplies by no roots, so it has the largest.

    >>> radices(360), radices(2 * 37)
    ([4, 2, 3, 3, 5], None)
    """
    found = []
    for radix in (4, 2, *_ODD):
        while n % radix == 0:
            found.append(radix)
            n //= radix
    return found if n == 1 else None


class Passes:
    """Writes the passes of transforms of a direction into a module, for rows of n elements.

    numbers: roots in the table, if there are to be more than n; prefix: what names begin with;
    room: numbers that arrays have room for
    """

    def __init__(self, parts: Matrices, n: int, forward: bool, numbers: int = 0, prefix: str = ""):
        self.parts, self.numbers, self.forward = parts, numbers or n, forward
        self.prefix, self.room = prefix, n
        values = roots(self.numbers, np.arange(self.numbers), forward).astype(parts.dtype)
        self.table = table(parts.module, f"{prefix}roots", values)
        self._functions = Functions()

    def function(self, name: str, words: int) -> tuple[Code, Numbers]:
        """Code of void name(x, y, words…), of arrays that are apart."""
        code = Code(self.parts.module, name, [PTR, PTR, *[I64] * words])
        for argument in code.function.args[:2]:
            argument.add_attribute("noalias")
        return code, Numbers(self.parts, code, self.table)

    def run(
        self, code: Code, size: int, arrays: tuple[ir.Value, ir.Value], factor: float = 1.0
    ) -> tuple[ir.Value, ir.Value]:
        """Transform what is in the first of two arrays, scaled; it is in the first of those that
        this gives. The number of roots in the table is a multiple of `size`."""
        (here, there), step = arrays, 1
        *others, final = radices(size) or [1]
        for radix in others:
            write = functools.partial(self._pass, radix=radix)
            turn = self._functions.once(f"{self.prefix}pass{radix}", write)
            code.call(turn, here, there, size // step // radix, step)
            here, there, step = there, here, step * radix
        name = f"{self.prefix}last{final}" + "_scaled" * (factor != 1)
        write = functools.partial(self._last, radix=final, factor=factor)
        code.call(self._functions.once(name, write), here, there, step)
        return there, here

    def _short(self, of: Numbers, values: list[Complex]) -> list[Complex]:
        """The transform of a few numbers."""
        if len(values) < 2:
            return values
        if len(values) == 2:
            return [of.add(*values), of.sub(*values)]
        if len(values) > 4 or len(values) == 3:
            return self._odd(of, values)
        a, b, c, d = values
        even, odd = of.add(a, c), of.sub(a, c)
        both, turned = of.add(b, d), of.turned(of.sub(b, d))
        one, three = (of.sub, of.add) if self.forward else (of.add, of.sub)
        return [of.add(even, both), one(odd, turned), of.sub(even, both), three(odd, turned)]

    def _odd(self, of: Numbers, values: list[Complex]) -> list[Complex]:
        """The transform of an odd number of them: of pairs of opposite ones, sums by cosines and
        differences by sines."""
        r, (first, *rest) = len(values), values
        pairs = list(zip(rest, reversed(rest), strict=True))[: r // 2]
        sums = [of.add(x, y) for x, y in pairs]
        differences = [of.turned(of.sub(x, y)) for x, y in pairs]
        total = functools.reduce(of.add, sums, first)
        circle = roots(r, np.arange(r), self.forward)
        found: list[Complex] = [total] * r
        for k in range(1, r // 2 + 1):
            even, odd = first, None
            for j, (x, y) in enumerate(zip(sums, differences, strict=True), 1):
                cosine, sine = circle[j * k % r]
                even = of.plus(even, x, float(cosine))
                odd = of.scaled(y, float(sine)) if odd is None else of.plus(odd, y, float(sine))
            assert odd is not None
            found[k], found[r - k] = of.add(even, odd), of.sub(even, odd)
        return found

    def _pass(self, name: str, radix: int) -> ir.Function:
        """void pass(x, y, part, step): of step transforms of radix·part elements, step apart."""
        code, of = self.function(name, 2)
        x, y, part, step = code.args
        unit = code.i64(self.numbers) // (part * radix)
        with code.range(0, part) as p:
            turns = [of.root(p * unit * k) for k in range(1, radix)]
            with code.range(0, step) as q:
                at, to = p * step + q, p * step * radix + q
                values = [of.load(x, at + part * step * k) for k in range(radix)]
                first, *rest = self._short(of, values)
                of.store(first, y, to)
                for k, (value, root) in enumerate(zip(rest, turns, strict=True), 1):
                    of.store(of.mul(value, root), y, to + step * k)
        code.ret()
        return code.function

    def _last(self, name: str, radix: int, factor: float) -> ir.Function:
        """void last(x, y, step): of transforms of `radix` elements, whose roots are 1."""
        code, of = self.function(name, 1)
        x, y, step = code.args
        with code.range(0, step) as q:
            values = self._short(of, [of.load(x, q + step * k) for k in range(radix)])
            for k, value in enumerate(values):
                of.store(of.scaled(value, factor), y, q + step * k)
        code.ret()
        return code.function
