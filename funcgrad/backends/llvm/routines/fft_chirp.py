"""Fourier transforms of lengths with large prime factors, as convolutions with a chirp.

As 2 j k = j² + k² - (k - j)², a transform is a product with w[k] = exp(-iπk²/n), a convolution with
its conjugate, and again a product (L. Bluestein, "A linear filtering approach to the computation
of the discrete Fourier transform", 1970). The convolution goes by transforms of a length that has
small factors, of which the second is the conjugate one.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.llvm.matrix.parts import Matrices
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import Code
from funcgrad.backends.llvm.routines.fft_passes import Numbers, Passes, radices, roots, table

# What passes cost, by their radix.
_COSTS = {2: 1.0, 3: 1.7, 4: 1.4, 5: 2.6}
MOST = 1 << 17  # elements, from which on tables would be too large a part of the code


def room(n: int) -> int:
    """The length of the convolution that a transform of n elements needs: the cheapest one.

    >>> room(37), room(1009)
    (80, 2048)
    """
    least = 2 * n - 1
    sizes = [
        least_power(least, 3**i * 5**k)
        for i in range(4)
        for k in range(3)
    ]  # fmt: skip
    return min(sizes, key=lambda m: m * sum(_COSTS[r] for r in radices(m) or ()))


def least_power(n: int, odd: int) -> int:
    """The least product of `odd` and a power of two that is at least n.

    >>> least_power(100, 3)
    192
    """
    return odd << max(0, math.ceil(math.log2(n / odd)))


def chirp(n: int, forward: bool) -> np.ndarray:
    """w, as real and imaginary parts.

    >>> chirp(2, True).tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    return roots(2 * n, np.arange(n) ** 2 % (2 * n), forward)


def spectrum(n: int, size: int, forward: bool) -> np.ndarray:
    """What a convolution of a size with w's conjugate multiplies by, with the factor 1 / size.

    >>> np.round(spectrum(2, 4, True), 3).tolist()
    [[0.25, 0.5], [0.25, 0.0], [0.25, -0.5], [0.25, 0.0]]
    """
    w = chirp(n, forward)
    line = np.zeros(size, complex)
    line[:n] = w[:, 0] - 1j * w[:, 1]
    line[size - n + 1 :] = line[1:n][::-1]
    found = np.fft.fft(line) / size
    return np.stack([found.real, found.imag], -1)


class Chirp(Passes):
    """Writes transforms of rows in lanes, as `Passes` does, for any length."""

    def __init__(self, parts: Matrices, n: int, forward: bool, numbers: int = 0):
        super().__init__(parts, n, forward, numbers)
        self.n, self.room = n, room(n)
        self.inner = Passes(parts, self.room, True, prefix="inner_")
        values = chirp(n, forward).astype(parts.dtype)
        self.chirp = table(parts.module, "chirp", values)
        values = spectrum(n, self.room, forward).astype(parts.dtype)
        self.spectrum = table(parts.module, "spectrum", values)

    def run(
        self, code: Code, size: int, arrays: tuple[ir.Value, ir.Value], factor: float = 1.0
    ) -> tuple[ir.Value, ir.Value]:
        """Transform what is in the first of two arrays, which have room for `room` numbers."""
        here, there = arrays
        of, line = (Numbers(self.parts, code, t) for t in (self.chirp, self.spectrum))
        with code.range(0, self.n) as k:
            of.store(of.mul(of.load(here, k), of.root(k)), there, k)
        with code.range(self.n, self.room) as k:
            of.store(of.zero(), there, k)
        here, there = self.inner.run(code, self.room, (there, here))
        with code.range(0, self.room) as k:
            of.store(of.conj(of.mul(of.load(here, k), line.root(k))), here, k)
        here, there = self.inner.run(code, self.room, (here, there))
        with code.range(0, self.n) as k:
            value = of.mul(of.conj(of.load(here, k)), of.root(k))
            of.store(of.scaled(value, factor), here, k)
        return here, there
