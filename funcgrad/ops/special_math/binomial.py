"""Logarithms of the beta function and of Poisson's and the binomial terms, for real arguments.

Γ(a + 1) = (a/e)ᵃ exp(rest(a)), and the powers are written as deviations from their peak (Loader,
"Fast and accurate computation of binomial probabilities", 2000): what is large has cancelled
before it is computed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import in_float64, ratio
from funcgrad.ops.special_math.gamma import STIRLING, lgamma, lgamma_1p
from funcgrad.ops.special_math.igamma import NEAR, log_gap


def _stirling(xp: Any, a: Any) -> Any:
    """The remainder of Stirling's formula at max(a, 3)."""
    b = xp.minimum(xp.maximum(a, 3.0), 1e300)
    return ratio(STIRLING, 1.0 / (b * b)) / b


def _rest(xp: Any, a: Any) -> Any:
    """log Γ(a + 1) - a log a + a for a ≥ 0."""
    c = xp.minimum(a, 3.0)
    large = 0.5 * xp.log(xp.maximum(a, 3.0) * (2.0 * math.pi)) + _stirling(xp, a)
    log_gamma = lgamma_1p(xp, xp.where(c < 1.0, c, c - 1.0)) + xp.log(xp.maximum(c, 1.0))
    return xp.where(a > 3.0, large, log_gamma - c * xp.log(xp.where(c > 0.0, c, 1.0)) + c)


def _gap(xp: Any, a: Any, excess: Any, quotient: Any) -> Any:
    """a (μ - log(1 + μ)) for μ = excess/a and quotient = 1 + μ; excess where a = 0."""
    positive = a > 0.0
    mu = excess / xp.where(positive, a, 1.0)
    near = positive & (xp.abs(mu) <= NEAR)
    far = excess - xp.where(positive, a * xp.log(xp.where(positive, quotient, 1.0)), 0.0)
    return xp.where(near, a * log_gap(xp, xp.where(near, mu, 0.0), 1.0), far)


@in_float64
def log_poisson(xp: Any, a: Any, x: Any) -> Any:
    """log xᵃ e⁻ˣ/Γ(a + 1) for a ≥ 0 and x ≥ 0, where 0⁰ = 1; else NaN.

    >>> log_poisson(np, np.array([0.0, 1e9]), np.array([2.0, 1e9]))
    array([ -2.        , -11.28057...])
    """
    y = -_gap(xp, a, x - a, x / xp.where(a > 0.0, a, 1.0)) - _rest(xp, a)
    y = xp.where(xp.isinf(x) | xp.isinf(a), -np.inf, y)
    return xp.where((a >= 0.0) & (x >= 0.0), y + 0.0, np.nan)


@in_float64
def log_binomial(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """log xᵃ (1-x)ᵇ Γ(a+b+1)/(Γ(a+1) Γ(b+1)) for a, b ≥ 0 and x in [0, 1], where 0⁰ = 1; else NaN.

    >>> log_binomial(np, np.array([0.0, 5e8]), np.array([2.0, 5e8]), np.array([0.5, 0.5]))
    array([ -1.38629436, -10.58742...])
    """
    y, total = 1.0 - x, a + b
    excess = b * x - a * y
    left = _gap(xp, a, excess, x * (total / xp.where(a > 0.0, a, 1.0)))
    right = _gap(xp, b, -excess, y * (total / xp.where(b > 0.0, b, 1.0)))
    # One of a and b is 0: the other's power is all there is.
    single = xp.where(a > 0.0, a * xp.log(xp.where(a > 0.0, x, 1.0)), b * xp.log1p(-x))
    single = xp.where(total > 0.0, single, 0.0)
    rest = _rest(xp, total) - _rest(xp, a) - _rest(xp, b)
    value = xp.where((a > 0.0) & (b > 0.0), rest - left - right, single)
    return xp.where((a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0), value + 0.0, np.nan)


@in_float64
def log_beta(xp: Any, a: Any, b: Any) -> Any:
    """log B(a, b) for a > 0 and b > 0, ∞ where one is 0; else NaN.

    >>> log_beta(np, np.array([1.0, 1e9]), np.array([1.0, 2.0]))
    array([  0.        , -41.44653...])
    """
    large, small = xp.maximum(a, b), xp.minimum(a, b)
    t = small / large
    log_small = xp.log1p(1.0 / t)  # log((a + b)/small)
    rest = _stirling(xp, a + b) - _stirling(xp, large) - _rest(xp, small)
    powers = large * xp.log1p(t) + xp.where(small > 0.0, small * log_small, 0.0)
    value = 0.5 * xp.log1p(t) - xp.log(small) - powers - rest
    near = lgamma(xp, small) + lgamma(xp, large) - lgamma(xp, small + large)
    value = xp.where(large <= 3.0, near, value)
    value = xp.where(small == 0.0, np.inf, xp.where(xp.isinf(large), -np.inf, value))
    return xp.where((a >= 0.0) & (b >= 0.0), value, np.nan)
