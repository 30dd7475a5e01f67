"""Windows of signal processing: vectors that taper towards both ends, and Kaiser's I₀."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from funcgrad.numpy._util import (
    as_dtype,
    default_float,
    documented,
    integer,
    need_real,
    promote_inexact,
)
from funcgrad.ops.base import full
from funcgrad.ops.elementwise import arithmetic, compare, special, transcendental
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.shape import iota

_SHAPE = "A vector of M numbers of the default float, of which the middle one is the largest."


def _window(name: str, summary: str, formula: Callable[[Any], Any], example: str) -> Any:
    """A window from a formula of the position, which goes from 0 to 1."""

    def function(M: int) -> Any:
        n = integer("M", M)
        if n <= 1:
            return full((max(n, 0),), 1, default_float())
        return formula(arithmetic.div(iota(default_float(), n), n - 1))

    return documented(function, name, summary, _SHAPE, example)


def _cosines(*weights: float) -> Callable[[Any], Any]:
    def formula(t: Any) -> Any:
        total: Any = full(t.shape, weights[0], t.dtype)
        for k, w in enumerate(weights[1:], start=1):
            wave = transcendental.cos(arithmetic.mul(t, 2 * math.pi * k))
            total = add(total, arithmetic.mul(wave, w))
        return total

    return formula


bartlett = _window(
    "bartlett",
    "The triangular window, 0 at its ends.",
    lambda t: arithmetic.sub(1.0, arithmetic.abs(arithmetic.sub(arithmetic.mul(t, 2), 1))),
    """>>> fnp.bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """,
)
blackman = _window(
    "blackman",
    "The Blackman window 0.42 - 0.5 cos 2πt + 0.08 cos 4πt.",
    _cosines(0.42, -0.5, 0.08),
    """>>> fnp.blackman(3).shape
    (3,)
    """,
)
hamming = _window(
    "hamming",
    "The Hamming window 0.54 - 0.46 cos 2πt.",
    _cosines(0.54, -0.46),
    """>>> fnp.hamming(3).shape
    (3,)
    """,
)
hanning = _window(
    "hanning",
    "The Hann window 0.5 - 0.5 cos 2πt, 0 at its ends.",
    _cosines(0.5, -0.5),
    """>>> fnp.hanning(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """,
)


def kaiser(M: int, beta: Any) -> Any:
    """The Kaiser window I₀(β √(1 - (2t - 1)²)) / I₀(β); larger β tapers more.

    >>> fnp.kaiser(3, 0.0)
    Array([1., 1., 1.], dtype=float32)
    """
    n = integer("M", M)
    if n <= 1:
        return full((max(n, 0),), 1, default_float())
    beta = as_dtype("kaiser", beta, default_float(), "beta")
    t = arithmetic.div(iota(default_float(), n), n - 1)
    rest = arithmetic.sub(1.0, arithmetic.square(arithmetic.sub(arithmetic.mul(t, 2), 1)))
    root = arithmetic.sqrt(arithmetic.max(rest, 0))
    return arithmetic.div(i0(arithmetic.mul(root, beta)), i0(beta))


def i0(x: Any, /) -> Any:
    """Elementwise I₀(x), the modified Bessel function of order 0. Raises for complex numbers.

    The result has the shape of `x`, and its dtype if that is a float, else the default float.

    >>> fnp.i0(fnp.array([0.0, 1.0]))
    Array([1.       , 1.2660...], dtype=float32)
    """
    (x,) = promote_inexact("i0", x)
    need_real("i0", x)
    size = arithmetic.abs(x)
    half = transcendental.exp(arithmetic.mul(size, 0.5))  # e^|x| overflows before I₀ does
    value = arithmetic.mul(arithmetic.mul(half, special.bessel_i0e(x)), half)
    return select(compare.eq(size, math.inf), size, value)
