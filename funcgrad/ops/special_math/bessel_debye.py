"""Modified Bessel functions of large orders, by Debye's expansions.

They are uniform in the argument (Abramowitz and Stegun 9.7.7 and 9.7.8), and have 16 digits for
orders of 40 and more.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from funcgrad.ops.special_math.base import polynomial

LARGE, DEBYE = 40, 14


@functools.cache
def _debye() -> tuple[tuple[float, ...], ...]:
    """The polynomials uₖ(p)/pᵏ in p² of Debye's expansion, highest power first."""
    u = [1.0]  # by powers of p: uₖ has p^k, p^(k+2), …, p^3k
    found = []
    for k in range(DEBYE):
        found.append(tuple(u[k + 2 * j] for j in range(k, -1, -1)))
        # ½ p² (1 - p²) u' + ⅛ ∫ (1 - 5 s²) u ds
        after = [0.0] * (len(u) + 3)
        for i, c in enumerate(u):
            after[i + 1] += c * i / 2 + c / (8 * (i + 1))
            after[i + 3] -= c * i / 2 + 5 * c / (8 * (i + 3))
        u = after
    return tuple(found)


def _parts(xp: Any, v: Any, x: Any, sign: float) -> tuple[Any, Any, Any]:
    """√(v² + x²) = r; r - v arcsinh(v/x), less x; and Debye's sum in powers of `sign`/r."""
    most = xp.maximum(v, x)
    r = most * xp.sqrt((v / most) * (v / most) + (x / most) * (x / most))
    square = (v / r) * (v / r)
    total = xp.where(r == r, 0.0, r)
    for row in reversed(_debye()):
        total = sign * total / r + (polynomial(row, square) if len(row) > 1 else row[0])
    y = v / x
    return r, v * (v / (r + x)) - v * xp.log1p(y * (1.0 + y / (1.0 + r / x))), total


def uniform_first(xp: Any, v: Any, x: Any) -> Any:
    """e⁻ˣ Iᵥ(x) of a large order v, x > 0.

    >>> print(f"{uniform_first(np, np.float64(40.0), np.float64(50.0)):.6e}")
    1.158635e-08
    """
    r, exponent, total = _parts(xp, v, x, 1.0)
    return xp.exp(exponent) / xp.sqrt(2 * math.pi * r) * total


def uniform_second(xp: Any, v: Any, x: Any) -> Any:
    """eˣ Kᵥ(x) of a large order v, x > 0.

    >>> print(f"{uniform_second(np, np.float64(40.0), np.float64(50.0)):.6e}")
    6.739442e+05
    """
    r, exponent, total = _parts(xp, v, x, -1.0)
    half = xp.exp(-0.5 * exponent)  # the power itself overflows before the function does
    return half * (xp.sqrt(0.5 * math.pi / r) * total) * half
