"""The modified Bessel function e⁻|x| Iᵥ(x) of the first kind, of real orders v > -1 and whole ones.

For |x| ≤ 8 it is the power series, whose terms are positive; beyond, Debye's uniform expansion in
1/√(v² + x²) (Abramowitz and Stegun 9.7.7) for orders of 40 and more, from which the recurrence goes
down to those below, by sums of positive terms.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from funcgrad.ops.special_math.base import in_float64, polynomial
from funcgrad.ops.special_math.gamma import lgamma

SERIES, LARGE = 8.0, 40
TERMS, DEBYE = 34, 14


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


def _uniform(xp: Any, v: Any, x: Any) -> Any:
    """e⁻ˣ Iᵥ(x) of a large order v, x > 0."""
    most = xp.maximum(v, x)
    r = most * xp.sqrt((v / most) * (v / most) + (x / most) * (x / most))
    square = (v / r) * (v / r)
    total = xp.where(r == r, 0.0, r)
    for row in reversed(_debye()):
        total = total / r + (polynomial(row, square) if len(row) > 1 else row[0])
    # r - v arcsinh(v/x), less x.
    y = v / x
    exponent = v * (v / (r + x)) - v * xp.log1p(y * (1.0 + y / (1.0 + r / x)))
    return xp.exp(exponent) / xp.sqrt(2 * math.pi * r) * total


def _beyond(xp: Any, v: Any, x: Any) -> Any:
    """e⁻ˣ Iᵥ(x) for x ≥ SERIES and v > -1."""
    low = v < LARGE
    top = xp.where(low, v + LARGE, v)
    above, now = _uniform(xp, top + 1.0, x), _uniform(xp, top, x)
    for k in range(LARGE):
        above, now = now, xp.where(low, (2.0 * (top - k) / x) * now + above, now)
    return now


def _series(xp: Any, v: Any, x: Any) -> Any:
    """e⁻ˣ Iᵥ(x) for 0 ≤ x ≤ SERIES and v > -1."""
    half = 0.5 * x
    square, total = half * half, 1.0
    for k in range(TERMS, 0, -1):
        total = 1.0 + square / (k * (k + v)) * total
    # The power is exact, and would overflow for large orders.
    small, scale = v < 100.0, -x - lgamma(xp, v + 1.0)
    plain = xp.power(half, xp.where(small, v, 0.0)) * xp.exp(xp.where(small, scale, 0.0))
    by_log = xp.exp(xp.where(small, 0.0, v) * xp.log(half) + scale)
    return xp.where(small, plain, by_log) * total


@in_float64
def bessel_ive(xp: Any, order: Any, x: Any) -> Any:
    """e⁻|x| Iᵥ(x); NaN for orders of -1 and less, and for negative x, unless the order is whole.

    >>> bessel_ive(np, np.array([0.0, 2.5]), np.array([1.0, 30.0]))
    array([0.46575961, 0.06579569])
    """
    whole, a = order == xp.floor(order), xp.abs(x)
    v = xp.where(whole, xp.abs(order), order)
    inside, finite = xp.where(v > -1.0, v, 0.0), xp.where(a < math.inf, a, 1.0)
    value = xp.where(
        a <= SERIES,
        _series(xp, inside, xp.minimum(finite, SERIES)),
        _beyond(xp, inside, xp.maximum(finite, SERIES)),
    )
    value = xp.where(a == math.inf, 0.0, value)
    value = xp.where((v > -1.0) & (a == a), value, math.nan)
    odd = v - 2.0 * xp.floor(0.5 * v) == 1.0
    mirrored = xp.where(whole, xp.where(odd, -value, value), math.nan)
    return xp.where(x < 0, mirrored, value)
