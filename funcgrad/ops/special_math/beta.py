"""The regularized incomplete beta function.

Left of its mean it is a continued fraction (of DiDonato and Morris, ACM TOMS 18, 1992, algorithm
708: the even part of the classical one, written in a - (a + b) x), right of it the complement of
its mirror image. The power in front is written as its peak times a Gaussian-like factor, so that
large a and b lose no digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import constant, ratio, to_accuracy, while_
from funcgrad.ops.special_math.gamma import STIRLING, lgamma_1p
from funcgrad.ops.special_math.igamma import log_gap

MOST_TERMS = 5000.0


def _stirling_quotient(xp: Any, a: Any) -> Any:
    """Γ(a) over Stirling's first formula for it, √(2π/a) (a/e)ᵃ."""
    b, c = xp.maximum(a, 3.0), xp.minimum(a, 3.0)
    large = xp.exp(ratio(STIRLING, 1.0 / (b * b)) / b)
    gamma = xp.exp(lgamma_1p(xp, xp.where(c < 1.0, c, c - 1.0))) * xp.maximum(c, 1.0)
    small = gamma / (xp.sqrt(c * (2.0 * math.pi)) * xp.power(c, c) * xp.exp(-c))
    return xp.where(a > 3.0, large, small)


def _peak_power(xp: Any, a: Any, b: Any, x: Any, y: Any, excess: Any) -> Any:
    """xᵃ yᵇ/B(a, b) for y = 1 - x and excess = b x - a y."""
    total = a + b
    # With p = a/(a+b): a log(x/p) + b log(y/(1-p)) = -a φ(x/p) - b φ(y/(1-p)), both signs alike.
    gap = a * log_gap(xp, excess / a, x * (total / a))
    gap = gap + b * log_gap(xp, -excess / b, y * (total / b))
    quotient = _stirling_quotient(xp, total)
    quotient = quotient / _stirling_quotient(xp, a) / _stirling_quotient(xp, b)
    return xp.exp(-gap) * xp.sqrt(a / total * b * (0.5 / math.pi)) * quotient


def _fraction(xp: Any, a: Any, b: Any, x: Any, excess: Any, eps: float) -> Any:
    """The continued fraction f with betainc = xᵃ yᵇ/B(a, b)/f, by Lentz's algorithm."""
    zero = constant(xp, excess, 0.0)
    first = a * (1.0 - excess) / (a + 1.0)

    def step(carry: tuple) -> tuple:
        m, c, d, f, _ = carry
        m = m + 1.0
        u = a + 2.0 * m
        v = m * (b - m) * x / (u - 1.0)
        numerator = ((a + m - 1.0) / (u - 1.0)) * (a + b + m - 1.0) * x * v
        term = m + v + (a + m) / (u + 1.0) * (1.0 - excess + m * (2.0 - x))
        d = 1.0 / (term + numerator * d)
        c = term + numerator / c
        return m, c, d, f * (c * d), c * d

    def unfinished(carry: tuple) -> Any:
        return (xp.abs(carry[4] - 1.0) > eps) & (carry[0] < MOST_TERMS)

    return while_(xp, unfinished, step, (zero, first, zero, first, zero))[3]


@to_accuracy
def betainc(xp: Any, a: Any, b: Any, x: Any, eps: float) -> Any:
    """1/B(a, b) ∫₀ˣ tᵃ⁻¹ (1-t)ᵇ⁻¹ dt for a ≥ 0, b ≥ 0, 0 ≤ x ≤ 1, else NaN.

    Right of the mean its error is one of 1, not of the value. a = b = 0 or ∞ is NaN.

    >>> betainc(np, np.array([1.0, 2.0, 500.0]), np.array([2.0, 3.0, 500.0]), np.array([0.3] * 3))
    array([5.10000000e-01, 3.48300000e-01, 4.32651321e-40])
    """
    y = 1.0 - x
    swapped = x * (a + b + 2.0) > a + 1.0
    a1, b1 = xp.where(swapped, b, a), xp.where(swapped, a, b)
    x1, y1 = xp.where(swapped, y, x), xp.where(swapped, x, y)
    excess = b1 * x1 - a1 * y1
    power = _peak_power(xp, a1, b1, x1, y1, excess)
    value = power / _fraction(xp, a1, b1, x1, excess, eps)
    value = xp.where(swapped, 1.0 - value, value)
    value = xp.where((b == 0.0) | xp.isinf(a), 0.0, value)
    value = xp.where((x == 1.0) | (a == 0.0) | xp.isinf(b), 1.0, value)
    value = xp.where(x == 0.0, 0.0, value)
    bad = ((a == 0.0) & (b == 0.0)) | (xp.isinf(a) & xp.isinf(b))
    inside = (a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0) & ~bad
    return xp.where(inside, value, np.nan)
