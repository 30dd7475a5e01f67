"""The modified Bessel function e⁻|x| Iᵥ(x) of the first kind, of real orders.

For |x| ≤ 8 it is the power series, whose terms are positive; beyond, Debye's expansion for orders
of 40 and more, from which the recurrence goes down to those below, by sums of positive terms.
Orders below -1 are those of the other sign and Kᵥ.
"""

from __future__ import annotations

import math
from typing import Any

from funcgrad.ops.special_math.base import in_float64
from funcgrad.ops.special_math.bessel_debye import LARGE, uniform_first
from funcgrad.ops.special_math.bessel_real import bessel_kve
from funcgrad.ops.special_math.gamma import lgamma

SERIES, TERMS = 8.0, 34


def _beyond(xp: Any, v: Any, x: Any) -> Any:
    """e⁻ˣ Iᵥ(x) for x ≥ SERIES and v > -1."""
    low = v < LARGE
    top = xp.where(low, v + LARGE, v)
    above, now = uniform_first(xp, top + 1.0, x), uniform_first(xp, top, x)
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
    """e⁻|x| Iᵥ(x); NaN for negative x, unless the order is whole.

    >>> bessel_ive(np, np.array([0.0, 2.5, -1.5]), np.array([1.0, 30.0, 2.0]))
    array([0.46575961, 0.06579569, ...])
    """
    whole, a = order == xp.floor(order), xp.abs(x)
    turned = whole | (order <= -1.0)
    v = xp.where(turned, xp.abs(order), order)
    finite = xp.where(a < math.inf, a, 1.0)
    value = xp.where(
        a <= SERIES,
        _series(xp, v, xp.minimum(finite, SERIES)),
        _beyond(xp, v, xp.maximum(finite, SERIES)),
    )
    # I₋ᵥ is Iᵥ + 2/π sin(πv) Kᵥ.
    second = xp.where(whole | ~turned, 0.0, v)
    nearest = xp.floor(second + 0.5)
    sine = xp.sin(math.pi * (second - nearest))
    sine = xp.where(nearest - 2.0 * xp.floor(0.5 * nearest) == 1.0, -sine, sine)
    decay = xp.exp(-finite)
    other = decay * bessel_kve(xp, second, finite) * decay
    value = xp.where(sine == 0.0, value, value + (2 / math.pi) * sine * other)
    value = xp.where((a == math.inf) | (v == math.inf), 0.0, value)
    value = xp.where((a == a) & (v == v), value, math.nan)
    odd = v - 2.0 * xp.floor(0.5 * v) == 1.0
    mirrored = xp.where(whole, xp.where(odd, -value, value), math.nan)
    return xp.where(x < 0, mirrored, value)
