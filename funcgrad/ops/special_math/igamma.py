"""The regularized incomplete gamma functions and their derivative in the shape a.

With D = xᵃ e⁻ˣ/Γ(a+1): a power series below x ≈ a, Legendre's continued fraction above, and for
large a with x ≈ a Temme's uniform expansion (SIAM J. Math. Anal. 10, 1979), whose coefficients come
from a recurrence in n at the given a (as in Gil, Segura and Temme, SIAM J. Sci. Comput. 34, 2012).
The derivative in a is that of the same three, term by term. What is computed is always the
smaller tail, or both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import constant, ratio, to_accuracy, while_
from funcgrad.ops.special_math.erf import erfcx
from funcgrad.ops.special_math.gamma import STIRLING, digamma, lgamma_1p

# From here on, and for |x - a| ≤ NEAR a, Temme's expansion holds to the last digits.
LARGE = 20.0
NEAR = 0.6
MOST_TERMS = 1000.0
# fmt: off
# (atanh s - s)/s³ in s², |s| ≤ 0.43: 3e-17
ATANH = (
    (0.0002986481103605513, -0.04895685463053115, 0.3159109088165835, -0.5909044474624082,
     0.33333333333333337),
    (0.06384932742044586, -0.6290003323110425, 1.9427893033073518, -2.372713342387199, 1.0),
)
# The powers of η in η/(λ - 1), where η²/2 = λ - 1 - log λ.
TEMME = (
    1.0, -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
    0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05,
    -2.185448510679992e-06, -1.85406221071516e-06, 8.296711340953087e-07,
    -1.7665952736826078e-07, 6.707853543401498e-09, 1.0261809784240309e-08,
    -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11,
    -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12,
    1.1004392031956135e-13, 3.371763262400985e-13, -1.392388722418162e-13,
    2.8534893807047445e-14, -5.139111834242572e-16, -1.9752288294349442e-15,
    8.099521156704561e-16, -1.6522531216398162e-16,
)
# fmt: on


def _gap_over_square(xp: Any, mu: Any) -> Any:
    """(μ - log(1 + μ))/μ² for |μ| ≤ NEAR."""
    s = mu / (mu + 2.0)  # log(1 + μ) = 2 atanh s
    return (1.0 - 2.0 * s * ratio(ATANH, s * s) / (mu + 2.0)) / (mu + 2.0)


def log_gap(xp: Any, mu: Any, one_plus_mu: Any) -> Any:
    """φ = μ - log(1 + μ) ≥ 0, without cancellation.

    >>> log_gap(np, np.array([1e-9, 1.0]), np.array([1.0, 2.0]))
    array([5.00000000e-19, 3.06852819e-01])
    """
    near = xp.abs(mu) <= NEAR
    m = xp.where(near, mu, 0.0)
    return xp.where(near, m * m * _gap_over_square(xp, m), mu - xp.log(one_plus_mu))


class _Point:
    """What all expansions at (a, x) share: λ = 1 + μ = x/a, φ = λ - 1 - log λ, D, the regions."""

    def __init__(self, xp: Any, a: Any, x: Any):
        x = xp.where((a >= 0.0) & (x >= 0.0), x, np.nan)  # which ends every iteration
        self.a, self.x = a, x
        mu = (x - a) / a
        self.uniform = (a >= LARGE) & (xp.abs(mu) <= NEAR)
        self.mu = xp.where(self.uniform, mu, 0.0)
        self.h = _gap_over_square(xp, self.mu)
        phi = log_gap(xp, mu, x / a)
        self.gauss = xp.exp(-a * phi)
        self.root = xp.sqrt(a * (2.0 * math.pi))
        self.density = self._density(xp, phi)
        # The power series of the two functions together, without cancellation in the upper one.
        self.corner = (x <= 1.5) & (a <= 1.0)
        below = x < xp.where(a < LARGE, a + 1.0, a)
        self.series = ~self.uniform & (below | self.corner)
        self.fraction = ~self.uniform & ~self.series

    def _density(self, xp: Any, phi: Any) -> Any:
        """D = xᵃ e⁻ˣ/Γ(a+1), with powers in place of exp(a log x) where a is small."""
        a, x = self.a, self.x
        b = xp.maximum(a, 3.0)
        stirling = self.root * xp.exp(ratio(STIRLING, 1.0 / (b * b)) / b)
        c = xp.minimum(a, 3.0)
        gamma = xp.exp(lgamma_1p(xp, xp.where(c < 1.0, c, c - 1.0))) * xp.maximum(c, 1.0)
        tiny = a <= 3.0
        power = xp.power(xp.where(tiny, x, x / a), xp.minimum(a, LARGE) * 0.5)
        half = power * xp.exp(xp.where(tiny, -x, a - x) * 0.5)
        small = xp.where(a * phi > 760.0, 0.0, half * half)
        return xp.where(a < LARGE, small, self.gauss) / xp.where(tiny, gamma, stirling)


def _series(xp: Any, at: _Point, eps: float) -> Any:
    """M = Σ xⁿ/((a+1)…(a+n)) with P = D M; in the corner Σ (-x)ⁿ/(n! (a+n)), n ≥ 1."""
    a, x, corner = at.a, at.x, at.corner
    zero = constant(xp, x * a, 0.0)

    def step(carry: tuple) -> tuple:
        n, factor, total = carry
        n = n + 1.0
        factor = factor * xp.where(corner, -x / n, x / (a + n))
        return n, factor, total + xp.where(corner, factor / (a + n), factor)

    first = xp.where(at.series, 1.0, zero)
    init = (zero, first, xp.where(corner, 0.0, first))

    def unfinished(carry: tuple) -> Any:
        n, factor, total = carry
        return (xp.abs(factor) > 0.03 * eps * xp.abs(total)) & (n < MOST_TERMS)

    return while_(xp, unfinished, step, init)[2]


def _series_and_derivative(xp: Any, at: _Point, eps: float) -> tuple[Any, Any]:
    """The sum of `_series` and its derivative in a."""
    a, x, corner = at.a, at.x, at.corner
    zero = constant(xp, x * a, 0.0)

    def step(carry: tuple) -> tuple:
        n, factor, d_factor, total, d_total = carry
        n = n + 1.0
        r = 1.0 / (a + n)
        factor = factor * xp.where(corner, -x / n, x * r)
        d_factor = xp.where(corner, zero, (d_factor * x - factor) * r)
        term = xp.where(corner, factor * r, factor)
        d_term = xp.where(corner, -term * r, d_factor)
        return n, factor, d_factor, total + term, d_total + d_term

    first = xp.where(at.series, 1.0, zero)
    init = (zero, first, zero, xp.where(corner, 0.0, first), zero)

    def unfinished(carry: tuple) -> Any:
        n, factor, _, total, _ = carry
        return (xp.abs(factor) > 0.01 * eps * xp.abs(total)) & (n < MOST_TERMS)

    end = while_(xp, unfinished, step, init)
    return end[3], end[4]


def legendre_fraction(xp: Any, a: Any, x: Any, on: Any, eps: float) -> Any:
    """h = x⁻ᵃ eˣ ∫ₓ^∞ tᵃ⁻¹ e⁻ᵗ dt, Legendre's continued fraction by Lentz's algorithm, where `on`.

    >>> legendre_fraction(np, np.float64(1), np.float64(4), np.bool_(True), 1e-15)
    array(0.25)
    """
    start = x + 1.0 - a
    zero = constant(xp, start, 0.0)

    def step(carry: tuple) -> tuple:
        n, c, d, h, _ = carry
        n = n + 1.0
        numerator, b = n * (a - n), start + 2.0 * n
        d = 1.0 / (numerator * d + b)
        c = b + numerator / c
        return n, c, d, h * (c * d), c * d

    def unfinished(carry: tuple) -> Any:
        return (xp.abs(carry[4] - 1.0) > eps) & (carry[0] < MOST_TERMS)

    d = 1.0 / start
    init = (zero, zero + 1e300, d, d, xp.where(on, 2.0, zero + 1.0))
    return while_(xp, unfinished, step, init)[3]


def _fraction_and_derivative(xp: Any, at: _Point, eps: float) -> tuple[Any, Any]:
    """The value of `legendre_fraction` and its derivative in a."""
    a, start = at.a, at.x + 1.0 - at.a
    zero = constant(xp, start, 0.0)

    def step(carry: tuple) -> tuple:
        n, c, dc, d, dd, h, dh, _, _ = carry
        n = n + 1.0
        numerator, b = n * (a - n), start + 2.0 * n
        dd = n * d + numerator * dd - 1.0
        d = 1.0 / (numerator * d + b)
        dd = -dd * d * d
        quotient = numerator / c
        dc = (n - quotient * dc) / c - 1.0
        c = b + quotient
        ratio_, d_ratio = c * d, dc * d + c * dd
        return n, c, dc, d, dd, h * ratio_, dh * ratio_ + h * d_ratio, ratio_, d_ratio

    def unfinished(carry: tuple) -> Any:
        error = xp.maximum(xp.abs(carry[7] - 1.0), 0.1 * xp.abs(carry[8]))
        return (error > eps) & (carry[0] < MOST_TERMS)

    d = 1.0 / start
    ratio0 = xp.where(at.fraction, 2.0, zero + 1.0)
    init = (zero, zero + 1e300, zero, d, d * d, d, d * d, ratio0, zero)
    end = while_(xp, unfinished, step, init)
    return end[5], end[6]


def _temme(xp: Any, at: _Point) -> Any:
    """S with 1 - P = erfc(η √(a/2))/2 + exp(-a η²/2) S/√(2πa)."""
    eta, r = at.mu * xp.sqrt(2.0 * at.h), 1.0 / xp.maximum(at.a, LARGE)
    # S = Σ βₙ ηⁿ/(1 + β₁/a), with βₙ₋₁ = fₙ + (n + 1) βₙ₊₁/a.
    above, beta = 0.0, constant(xp, eta, TEMME[-1])
    total = beta
    for n in range(len(TEMME) - 2, 0, -1):
        above, beta = beta, TEMME[n] + (n + 1.0) * r * above
        total = total * eta + beta
    return total / (1.0 + r * above)


def _temme_derivative(xp: Any, at: _Point) -> Any:
    """∂P/∂a over D."""
    a, mu = xp.maximum(at.a, LARGE), at.mu
    slope = 1.0 / xp.sqrt(2.0 * at.h)  # μ/η
    eta, r = mu / slope, 1.0 / a
    d_eta, d_r = -slope * r, -r * r
    zero = constant(xp, eta, 0.0)
    above, beta = zero, zero + TEMME[-1]
    d_above, d_beta = zero, zero
    total, d_total = beta, zero
    for n in range(len(TEMME) - 2, 0, -1):
        d_above, d_beta = d_beta, (n + 1.0) * (r * d_above + d_r * above)
        above, beta = beta, TEMME[n] + (n + 1.0) * r * above
        d_total = d_total * eta + total * d_eta + d_beta
        total = total * eta + beta
    scale = 1.0 + r * above  # Γ(a+1) over its value by Stirling's first formula
    d_scale = r * d_above + d_r * above
    s = total / scale
    d_s = (d_total - s * d_scale) / scale
    return -scale * (slope - 0.5 * eta + d_s + s * (xp.log1p(mu) - 0.5 * r))


def _tails(xp: Any, a: Any, x: Any, eps: float) -> tuple[Any, Any]:
    """igamma and igammac."""
    at = _Point(xp, a, x)
    t = xp.minimum(xp.abs(at.mu) * xp.sqrt(at.h * a), 1e10)
    side = xp.where(at.mu < 0.0, -1.0, constant(xp, t, 1.0))
    middle = at.gauss * (0.5 * erfcx(xp, t) + side * _temme(xp, at) / at.root)
    m = _series(xp, at, eps)
    log_power = a * xp.log(x) - lgamma_1p(xp, xp.minimum(a, 1.0))
    rest = xp.exp(log_power) * a * m
    fraction = a * at.density * legendre_fraction(xp, a, x, at.fraction, eps)
    small = xp.where(at.uniform, middle, fraction)
    small = xp.where(at.series, at.density * m, small)
    is_lower = at.series | (at.uniform & (at.mu < 0.0))
    p = xp.where(is_lower, small, 1.0 - small)
    q = xp.where(is_lower, 1.0 - small, small)
    p = xp.where(at.corner, xp.exp(log_power) + rest, p)
    q = xp.where(at.corner, -xp.expm1(log_power) - rest, q)
    return p, q


def _with_limits(xp: Any, a: Any, x: Any, y: Any, at_zero: float, at_infinity: float) -> Any:
    """y with its limits in x, the one in a, and NaN outside of a ≥ 0, x ≥ 0."""
    y = xp.where((x == 0.0) | xp.isinf(a), at_zero, y)
    y = xp.where(xp.isinf(x) | (a == 0.0), at_infinity, y)
    bad = ((x == 0.0) & (a == 0.0)) | (xp.isinf(x) & xp.isinf(a))
    return xp.where((a >= 0.0) & (x >= 0.0) & ~bad, y, np.nan)


@to_accuracy
def igamma(xp: Any, a: Any, x: Any, eps: float) -> Any:
    """1/Γ(a) ∫₀ˣ tᵃ⁻¹ e⁻ᵗ dt for a ≥ 0 and x ≥ 0, else NaN.

    >>> igamma(np, np.array([1.0, 100.0, 2.0]), np.array([1.0, 100.0, 1e-100]))
    array([6.32120559e-001, 5.13298798e-001, 5.00000000e-201])
    """
    return _with_limits(xp, a, x, _tails(xp, a, x, eps)[0], 0.0, 1.0)


@to_accuracy
def igammac(xp: Any, a: Any, x: Any, eps: float) -> Any:
    """1 - igamma(a, x), also where that is tiny.

    >>> igammac(np, np.array([1.0, 100.0, 1e-100]), np.array([1.0, 500.0, 1.0]))
    array([3.67879441e-001, 1.50087941e-106, 2.19383934e-101])
    """
    return _with_limits(xp, a, x, _tails(xp, a, x, eps)[1], 1.0, 0.0)


def _derivative(xp: Any, at: _Point, eps: float) -> Any:
    """∂P/∂a over D."""
    a, x = at.a, at.x
    log_slope = xp.log(x) - digamma(xp, a + 1.0)
    m, dm = _series_and_derivative(xp, at, eps)
    h, dh = _fraction_and_derivative(xp, at, eps)
    corner = xp.exp(xp.minimum(x, 2.0)) * (log_slope * (1.0 + a * m) + m + a * dm)
    y = xp.where(at.corner, corner, log_slope * m + dm)
    y = xp.where(at.fraction, -(h + a * (h * log_slope + dh)), y)
    return xp.where(at.uniform, _temme_derivative(xp, at), y)


@to_accuracy
def igamma_grad_a(xp: Any, a: Any, x: Any, eps: float) -> Any:
    """The derivative of igamma(a, x) in a.

    >>> igamma_grad_a(np, np.array([1.0, 100.0]), np.array([1.0, 100.0]))
    array([-0.43172971, -0.0399275 ])
    """
    at = _Point(xp, a, x)
    y = _with_limits(xp, a, x, at.density * _derivative(xp, at, eps), 0.0, 0.0)
    return xp.where((a == 0.0) | xp.isinf(a), np.nan, y)


@to_accuracy
def random_gamma_grad(xp: Any, a: Any, x: Any, eps: float) -> Any:
    """How a sample x of the gamma distribution of shape a moves with a: -(∂P/∂a)/(∂P/∂x).

    >>> random_gamma_grad(np, np.array([1.0, 100.0]), np.array([1.0, 100.0]))
    array([1.1735..., 1.0016...])
    """
    at = _Point(xp, a, x)
    y = xp.where(x == 0.0, 0.0, -_derivative(xp, at, eps) * x / a)
    return xp.where((a > 0.0) & (x >= 0.0) & ~xp.isinf(a) & ~xp.isinf(x), y, np.nan)
