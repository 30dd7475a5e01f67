"""The regularized incomplete beta function.

What is computed is the function left of its mean, or the complement of its mirror image. For a ≤ 1
it is a power series, whose complement has no cancellation; else a continued fraction (of DiDonato
and Morris, ACM TOMS 18, 1992, algorithm 708: the even part of the classical one, written in
a - (a + b) x), with the power in front written as its peak times a Gaussian-like factor, so that
large a and b lose no digits. Where that would converge slowly it is an integral, by the double
exponential rule (Takahasi and Mori, Publ. RIMS 9, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import constant, polynomial, ratio, to_accuracy, while_
from funcgrad.ops.special_math.gamma import STIRLING, lgamma_1p
from funcgrad.ops.special_math.igamma import NEAR, log_gap

MOST_TERMS = 500.0
# From here on in both a and b, the integral takes fewer steps than the fraction.
LARGE = 1e4
# Its nodes are exp(s - exp(-s)) for s between -END and END.
END, STEP = 3.75, 0.125
# Taylor's coefficients of (exp(z) - 1 - z)/z².
EXP_REST = tuple(1 / math.factorial(n) for n in range(13, 1, -1))
# Below this the function is proportional to b; between, reciprocals overflow.
TINY = 1e-290


def _stirling_quotient(xp: Any, a: Any) -> Any:
    """Γ(a) over Stirling's first formula for it, √(2π/a) (a/e)ᵃ."""
    b, c = xp.maximum(a, 3.0), xp.minimum(a, 3.0)
    large = xp.exp(ratio(STIRLING, 1.0 / (b * b)) / b)
    gamma = xp.exp(lgamma_1p(xp, xp.where(c < 1.0, c, c - 1.0))) * xp.maximum(c, 1.0)
    small = gamma / (xp.sqrt(c * (2.0 * math.pi)) * xp.power(c, c) * xp.exp(-c))
    return xp.where(a > 3.0, large, small)


def _gap(xp: Any, a: Any, excess: Any, one_plus_mu: Any) -> Any:
    """a (μ - log(1 + μ)) for μ = excess/a, which may overflow."""
    mu = excess / a
    near = xp.abs(mu) <= NEAR
    return xp.where(
        near,
        a * log_gap(xp, xp.where(near, mu, 0.0), 1.0),
        excess - a * xp.log(xp.minimum(one_plus_mu, 1e300)),
    )


def _peak_power(xp: Any, a: Any, b: Any, x: Any, y: Any, excess: Any) -> Any:
    """xᵃ yᵇ/B(a, b) for y = 1 - x and excess = b x - a y."""
    total = a + b
    # With p = a/(a+b): a log(x/p) + b log(y/(1-p)) = -a φ(x/p) - b φ(y/(1-p)), both signs alike.
    gap = _gap(xp, a, excess, x * (total / a)) + _gap(xp, b, -excess, y * (total / b))
    quotient = _stirling_quotient(xp, total)
    quotient = quotient / _stirling_quotient(xp, a) / _stirling_quotient(xp, b)
    return xp.exp(-gap) * xp.sqrt(a / total * b * (0.5 / math.pi)) * quotient


def _fraction(xp: Any, a: Any, b: Any, x: Any, excess: Any, on: Any, eps: float) -> Any:
    """The continued fraction f with betainc = xᵃ yᵇ/B(a, b)/f, by Lentz's algorithm, where `on`."""
    zero = constant(xp, excess, 0.0)
    first = a / (a + 1.0) * (1.0 - excess)

    def step(carry: tuple) -> tuple:
        m, c, d, f, _ = carry
        m = m + 1.0
        u = a + 2.0 * m
        v = m * ((b - m) * x) / (u - 1.0)
        numerator = ((a + m - 1.0) / (u - 1.0)) * ((a + b + m - 1.0) * x) * v
        term = m + v + (a + m) / (u + 1.0) * (1.0 - excess + m * (2.0 - x))
        d = 1.0 / (term + numerator * d)
        c = term + numerator / c
        return m, c, d, f * (c * d), c * d

    def unfinished(carry: tuple) -> Any:
        return (xp.abs(carry[4] - 1.0) > eps) & (carry[0] < MOST_TERMS)

    init = (zero, first, zero, first, xp.where(on, 0.0, zero + 1.0))
    return while_(xp, unfinished, step, init)[3]


def _integral(xp: Any, a: Any, b: Any, x: Any, y: Any, excess: Any, on: Any) -> Any:
    """The integral of (t/x)ᵃ ((1-t)/y)ᵇ/(t (1-t)) from 0 to x, where `on`.

    In the difference u of the logits of x and t it is that of exp(-h), h convex and from 0 on.
    """
    total = a + b
    scale = 1.0 / (xp.sqrt(total * x * y) + xp.maximum(-excess, 0.0))
    side, p = xp.where(x < y, -1.0, 1.0), xp.minimum(x, y)

    def step(carry: tuple) -> tuple:
        s, result = carry
        gap = xp.exp(-s)
        w = xp.exp(s - gap)
        u = xp.minimum(w * scale, 0.5)
        rest = u * u * polynomial(EXP_REST, side * u)  # expm1(side u) - side u
        mu = p * (side * u + rest)
        h = total * (p * rest - log_gap(xp, mu, 1.0 + mu)) - excess * u
        return s + STEP, result + (1.0 + gap) * w * xp.exp(-h)

    zero = constant(xp, excess, 0.0)
    init = (xp.where(on, -END, zero + (END + 1.0)), zero)
    return while_(xp, lambda carry: carry[0] <= END, step, init)[1] * (scale * STEP)


def _slope(table: Sequence[float], x: Any, y: Any) -> tuple[Any, Any]:
    """The divided difference (f(x) - f(y))/(x - y) of the polynomial f, and f(y)."""
    slope, value = 0.0, table[0]
    for c in table[1:]:
        slope, value = slope * x + value, value * y + c
    return slope, value


def _log_rising(xp: Any, b: Any, a: Any) -> Any:
    """log Γ(b + a)/Γ(b) for 0 ≤ a ≤ 1 ≤ b, without cancellation for small a."""
    # By Stirling's formula at b, or at b + 2.
    small = b < 3.0
    below = xp.log1p(a / b) + xp.log1p(a / (b + 1.0))
    c = xp.where(small, b + 2.0, b)
    z, y = 1.0 / (c + a), 1.0 / c
    p_slope, p = _slope(STIRLING[0], z * z, y * y)
    q_slope, q = _slope(STIRLING[1], z * z, y * y)
    slope = (p_slope - p / q * q_slope) / polynomial(STIRLING[1], z * z)
    remainder = -a * y * z * (p / q + z * (y + z) * slope)
    above = (c + (a - 0.5)) * xp.log1p(a * y) + a * (xp.log(c) - 1.0) + remainder
    return xp.where(small, above - below, above)


def _series(xp: Any, a: Any, b: Any, x: Any, on: Any, eps: float) -> tuple[Any, Any]:
    """betainc for a ≤ 1 and its complement, by powers of x, where `on`."""
    zero = constant(xp, a * b * x, 0.0)

    def step(carry: tuple) -> tuple:
        n, factor, total = carry
        n = n + 1.0
        factor = factor * ((n - b) * x / n)
        return n, factor, total + factor / (a + n)

    def unfinished(carry: tuple) -> Any:
        n, factor, total = carry
        return (xp.abs(factor) > 0.03 * eps * xp.abs(total)) & (n < MOST_TERMS)

    total = while_(xp, unfinished, step, (zero, xp.where(on, 1.0, zero), zero))[2]
    # Γ(a + b)/(Γ(a + 1) Γ(b)), once as a product with small factors, once as a logarithm.
    log_rest = _log_rising(xp, b + 1.0, a) - lgamma_1p(xp, a)
    power = xp.power(x, a) * xp.exp(log_rest) * (b / (a + b))
    log_power = a * xp.log(x) + log_rest - xp.log1p(a / b)
    rest = power * a * total
    return power + rest, -xp.expm1(log_power) - rest


@to_accuracy
def betainc(xp: Any, a: Any, b: Any, x: Any, eps: float) -> Any:
    """1/B(a, b) ∫₀ˣ tᵃ⁻¹ (1-t)ᵇ⁻¹ dt for a ≥ 0, b ≥ 0, 0 ≤ x ≤ 1, else NaN.

    a = b = 0 or ∞ is NaN. Near the mean large a and b amplify x's rounding, as 1 - x is formed.

    >>> betainc(np, np.array([1.0, 2.0, 500.0]), np.array([2.0, 3.0, 500.0]), np.array([0.3] * 3))
    array([5.10000000e-01, 3.48300000e-01, 4.32651321e-40])
    """
    bad = ((a == 0.0) & (b == 0.0)) | (xp.isinf(a) & xp.isinf(b))
    x = xp.where((a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0) & ~bad, x, np.nan)
    at_zero, at_one = (b == 0.0) | xp.isinf(a), (x == 1.0) | (a == 0.0) | xp.isinf(b)
    # Where both are tiny or huge, only their quotient counts.
    scale = xp.where(a + b < 1e-100, 1e50, xp.where(xp.isinf(a + b), 0.25, 1.0))
    a, b, least = a * scale, b * scale, xp.maximum(b * scale, TINY)
    y, small = 1.0 - x, b / least
    swapped = x * (a + least + 2.0) > a + 1.0
    a1, b1 = xp.where(swapped, b, a), xp.where(swapped, xp.maximum(a, TINY), least)
    x1, y1 = xp.where(swapped, y, x), xp.where(swapped, x, y)
    near_zero = a1 <= 1.0
    large = xp.minimum(a1, b1) >= LARGE
    excess = b1 * x1 - a1 * y1
    inverse = 1.0 / _fraction(xp, a1, b1, x1, excess, ~near_zero & ~large, eps)
    inverse = xp.where(large, _integral(xp, a1, b1, x1, y1, excess, large), inverse)
    value = _peak_power(xp, a1, b1, x1, y1, excess) * inverse
    lower, upper = _series(xp, xp.minimum(a1, 1.0), b1, x1, near_zero, eps)
    lower, upper = xp.where(near_zero, lower, value), xp.where(near_zero, upper, 1.0 - value)
    value = xp.where(swapped, upper, lower * small)
    value = xp.where(at_one, 1.0, xp.where(at_zero, 0.0, value))
    return xp.where(x == 0.0, 0.0, xp.where(x == x, value, np.nan))
