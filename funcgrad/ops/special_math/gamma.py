"""The logarithm of the gamma function, its derivatives, and the Hurwitz zeta function.

On [½, 3] `lgamma(1 + s) = s (s - 1) R(s)` and `digamma(1 + s) = (1 + s - x₀) R(s)` keep the zeros
exact; below, the recurrence leads there; above stands Stirling's series with a fitted remainder,
and left of zero the reflection formula. Zeta is Euler and Maclaurin's sum. The coefficients are our
own near-minimax fits, weighted least squares on Chebyshev points in 60 digits; each table's comment
gives its error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import (
    FOR_FLOAT32,
    constant,
    fori,
    in_float64,
    ratio,
    to_accuracy,
    while_,
)

PI = math.pi

# fmt: off
# lgamma(1 + s)/(s (s - 1)) in s + ½, -½ ≤ s ≤ 2: 2e-18
LGAMMA = (
    (3.6245502481989887e-06, 0.002062005557994629, 0.07778751760071444, 0.9154904947330554,
     4.696000180808039, 12.151950120305791, 16.947081669811002, 12.849234372424316,
     4.9648971750519335, 0.7631532572329335),
    (0.0005103275526314232, 0.030856752102112684, 0.5316484064009817, 3.8871712556143683,
     14.303515753752025, 28.863311195908366, 33.12657102712022, 21.449353403548567,
     7.269621321639727, 1.0),
)
# the same: 1e-9
LGAMMA_SINGLE = (
    (-0.00018611816867103543, 0.009006140605786661, 0.40058903750919195, 1.786236940633139,
     2.190965503132474, 0.7631532563318829),
    (0.17825190031716215, 1.6696981708252732, 4.176451021827879, 3.634791980432251, 1.0),
)
# x times the remainder of Stirling's formula, in 1/x², x ≥ 3: 2e-17
STIRLING = (
    (-0.004396347831457216, 0.403625442069023, 2.417150437697735, 2.8090403331409086,
     0.9367816337711555, 0.08333333333333333),
    (5.590796302732616, 30.041396019881276, 34.07478395280627, 11.274712938587149, 1.0),
)
# the same: 7e-9
STIRLING_SINGLE = (
    (-0.0004555662471659785, 0.0007849088778833595, -0.0027775942266238273, 0.08333333272323246),
    (0.0, 1.0),
)
# digamma(1 + s)/(1 + s - x₀), 0 ≤ s ≤ 2: 2e-17
DIGAMMA = (
    (7.733056997219899e-07, 0.000470398216007219, 0.017509725722071337, 0.20033358077277277,
     0.9330559244021251, 1.8386851566038525, 1.2503801375034054),
    (9.561869797081417e-05, 0.0052486532793286364, 0.08294245192215532, 0.5405603259429295,
     1.616818676702324, 2.1540477462985113, 1.0),
)
# the same: 7e-10
DIGAMMA_SINGLE = (
    (-0.00010481691531342329, 0.004504325437177448, 0.24765439453883026, 1.1856489868767668,
     1.2503801365550933),
    (0.07952166315913267, 0.7116693516148606, 1.6317775598091102, 1.0),
)
# x² (log x - 1/(2x) - digamma(x)), in 1/x², x ≥ 3: 7e-18 of digamma
DIGAMMA_TAIL = (
    (0.09547315519287403, 1.2062860564198605, 1.9383869750085982, 0.7981937153379935,
     0.08333333333332321),
    (2.035511757606048, 16.482645112459767, 24.180857119491282, 9.678324584001007, 1.0),
)
# the same: 1e-10
DIGAMMA_TAIL_SINGLE = (
    (-0.0027818487574378004, 0.0038560031590120173, -0.0083294976176618, 0.08333329159743996),
    (0.0, 1.0),
)
# fmt: on
# The zero of digamma, as the sum of two float64.
DIGAMMA_ZERO = (1.4616321449683622, 9.549995429965697e-17)
HALF_LOG_2PI = 0.9189385332046728
# B₂ⱼ/(2j)!, j = 12 … 1: the weights of Euler and Maclaurin's sum.
EULER_MACLAURIN = tuple(
    b / math.factorial(2 * j)
    for j, b in zip(
        range(12, 0, -1),
        (
            -236364091 / 2730, 854513 / 138, -174611 / 330, 43867 / 798, -3617 / 510, 7 / 6,
            -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6,
        ),
        strict=True,
    )
)  # fmt: skip
ZETA_TERMS = 9


def lgamma_1p(xp: Any, s: Any, table: tuple = LGAMMA) -> Any:
    """log Γ(1 + s) for -½ ≤ s ≤ 2, exact at its zeros 0 and 1.

    >>> lgamma_1p(np, np.array([1e-20, 0.5, 1.0]))
    array([-5.77215665e-21, -1.20782238e-01,  0.00000000e+00])
    """
    return s * (s - 1.0) * ratio(table, s + 0.5)


@to_accuracy
def lgamma(xp: Any, x: Any, eps: float) -> Any:
    """log |Γ(x)|: ∞ at 0, -1, -2, … and at ±∞.

    Near its zeros left of -2 the error is an absolute one, a few ulp of `lgamma(-x)`.

    >>> lgamma(np, np.array([-1.0, 0.5, 2.0, 100.0]))
    array([         inf,   0.57236494,   0.        , 359.13420537])
    """
    short = eps == FOR_FLOAT32
    table = LGAMMA_SINGLE if short else LGAMMA
    remainder = STIRLING_SINGLE if short else STIRLING
    a = xp.abs(x)
    log_a = xp.log(a)
    # Γ(x) = Γ(1 + x)/x below ½, also where x is a little negative; 1 + x is not formed.
    below = a < 0.5
    s = xp.minimum(xp.where(below, x, a - 1.0), 2.0)
    low = xp.where(below, -log_a, 0.0) + lgamma_1p(xp, s, table)
    b = xp.minimum(xp.maximum(a, 3.0), 1e300)
    high = (a - 0.5) * (log_a - 1.0) + (HALF_LOG_2PI - 0.5) + ratio(remainder, 1.0 / (b * b)) / b
    y = xp.where(a < 3.0, low, high)
    # Γ(x) Γ(-x) = -π/(x sin πx); the fraction of x keeps the sine exact.
    reflected = x <= -0.5
    c = xp.minimum(xp.where(reflected, a, 0.5), 1e300)
    sine = xp.abs(xp.sin((c - xp.rint(c)) * PI))
    y = xp.where(reflected, xp.where(sine == 0.0, np.inf, xp.log(PI / (c * sine)) - y), y)
    return xp.where(xp.isinf(x), a, y)


def gammasgn(xp: Any, x: Any) -> Any:
    """The sign of Γ(x): ±1, that of x at ±0, NaN at the poles -1, -2, … and at -∞.

    >>> gammasgn(np, np.array([-2.5, -1.5, -1.0, -0.0, 3.0]))
    array([-1.,  1., nan, -1.,  1.])
    """
    half = xp.floor(x) * 0.5
    odd = half != xp.floor(half)
    one = constant(xp, x, 1.0)
    sign = xp.where((x < 0.0) & odd, -one, one)
    sign = xp.where(x == 0.0, xp.copysign(one, x), sign)
    return xp.where((x < 0.0) & (x == xp.floor(x)), np.nan, sign)


@to_accuracy
def digamma(xp: Any, x: Any, eps: float) -> Any:
    """The derivative of log Γ: ∓∞ at ±0, NaN at the other poles -1, -2, … and at -∞.

    Near its zeros left of 0 the error is an absolute one.

    >>> digamma(np, np.array([-1.0, 0.0, 1.0, 100.0]))
    array([        nan,        -inf, -0.57721566,  4.60016185])
    """
    short = eps == FOR_FLOAT32
    table, tail = (DIGAMMA_SINGLE, DIGAMMA_TAIL_SINGLE) if short else (DIGAMMA, DIGAMMA_TAIL)
    a = xp.abs(x)
    below = a < 1.0
    s = xp.minimum(xp.where(below, a, a - 1.0), 2.0)
    low = (s + 1.0 - DIGAMMA_ZERO[0] - DIGAMMA_ZERO[1]) * ratio(table, s)
    b = xp.maximum(a, 3.0)
    z = 1.0 / b
    high = xp.log(b) - 0.5 * z - z * z * ratio(tail, z * z)
    y = xp.where(a < 3.0, low, high)
    # y is digamma(a), or digamma(1 + a) where a < 1. Left of zero, with x = -a,
    # digamma(x) = digamma(1 + a) + π/tan(πa).
    f = a - xp.rint(a)
    cotangent = PI / xp.tan(xp.where((x < 0.0) & (f != 0.0), f, 0.5) * PI)
    inverse = 1.0 / xp.where(below & (x < 0.0), 1.0, x)
    right = xp.where(below, y - inverse, y)
    left = xp.where(below, y + cotangent, y - inverse + cotangent)
    y = xp.where(x < 0.0, left, right)
    return xp.where((x < 0.0) & ((f == 0.0) | xp.isinf(x)), np.nan, y)


@in_float64
def zeta(xp: Any, x: Any, q: Any) -> Any:
    """The Hurwitz zeta function Σₖ (q + k)^-x, k = 0, 1, …, for x > 1.

    ∞ at x = 1 and NaN below. Left of zero q needs a whole x. The poles q = -1, -2, … are ∞ for
    even x and NaN for odd x; q = ±0 is ∞ for even x and ±∞ else.

    >>> zeta(np, np.array([2.0, 2.0, 1.0]), np.array([1.0, -0.5, 3.0]))
    array([1.64493407, 8.9348022 ,        inf])
    """
    return _zeta(xp, x, q, 1.0)


def _zeta(xp: Any, s: Any, q: Any, unit: Any) -> Any:
    """Σₖ ((q + k)/unit)⁻ˢ."""
    # Left of zero the terms with q + k < 0 are, up to their sign, the first of ζ(s, 1 - f),
    # f = q - ⌊q⌋: so ζ(s, q) = ζ(s, f) + (-1)ˢ (ζ(s, 1 - f) - ζ(s, 1 - q)).
    floor = xp.floor(q)
    pole = (q <= 0.0) & (q == floor)
    left = (q < 0.0) & ~pole
    even = s * 0.5 == xp.floor(s * 0.5)
    one, zero = constant(xp, q, 1.0), constant(xp, q, 0.0)
    sign = xp.where(left, xp.where(even, one, -one), zero)
    first = xp.where(left, q - floor, xp.where(pole, one, q))
    second = xp.where(left, floor + 1.0 - q, one)
    third = xp.where(left, 1.0 - q, one)

    def add_next(carry: tuple) -> tuple:
        total, q0, q1, q2, sign0, sign1, sign2 = carry
        total = total + sign0 * _zeta_right(xp, s, q0, unit)
        return total, q1, q2, q2, sign1, sign2, zero

    init = (zero, first, second, third, one, sign, -sign)
    y = while_(xp, lambda carry: xp.abs(carry[4]) > 0.0, add_next, init)[0]
    # At a pole of odd order the sides differ: only a signed zero tells which is meant.
    at_pole = xp.where(
        even, np.inf, xp.where(q == 0.0, xp.copysign(constant(xp, q, np.inf), q), np.nan)
    )
    y = xp.where(pole, at_pole, y)
    y = xp.where((q < 0.0) & (s != xp.floor(s)), np.nan, y)
    y = xp.where(s == 1.0, np.inf, xp.where(q == np.inf, 0.0, y))
    return xp.where((s >= 1.0) & (q == q), y, np.nan)


def _zeta_right(xp: Any, s: Any, q: Any, unit: Any) -> Any:
    """`_zeta` for s > 1, q > 0: the first terms, and Euler and Maclaurin's formula for the rest."""

    def add_term(_: Any, carry: tuple) -> tuple:
        total, w = carry
        return total + xp.power(w / unit, -s), w + 1.0

    total, w = fori(xp, ZETA_TERMS, add_term, (constant(xp, s, 0.0) + 0.0 * q, q))
    # Where s is far above w the rest is nothing beside the first term, whatever the series says.
    t = xp.minimum(xp.minimum(s, 1e300), 40.0 * w)
    series = constant(xp, t, EULER_MACLAURIN[0])
    for j, c in enumerate(EULER_MACLAURIN[1:]):
        n = 2 * len(EULER_MACLAURIN) - 2 * j - 3
        series = series * ((t + n) / w) * ((t + (n + 1.0)) / w) + c
    rest = xp.power(w / unit, 1.0 - s) * (1.0 / (s - 1.0) + (0.5 + series * (t / w)) / w) * unit
    return xp.where(xp.isinf(total), total, total + rest)


@in_float64
def polygamma(xp: Any, n: Any, x: Any) -> Any:
    """The n-th derivative of digamma, (-1)ⁿ⁺¹ n! ζ(n + 1, x), for n = 0, 1, 2, …; else NaN.

    >>> polygamma(np, np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, -0.5]))
    array([-0.57721566,  1.64493407, -0.82879664])
    """
    odd = n * 0.5 != xp.floor(n * 0.5)
    order = xp.maximum(n, 1.0)
    # n! = unitⁿ⁺¹ goes into the sum where it may overflow, or the sum underflow.
    large = order > 20.0
    unit = xp.where(large, xp.exp(lgamma(xp, order + 1.0) / (order + 1.0)), 1.0)
    factorial = xp.where(large, 1.0, xp.rint(xp.exp(lgamma(xp, xp.minimum(order, 20.0) + 1.0))))
    y = factorial * _zeta(xp, order + 1.0, x, unit)
    y = xp.where(odd, y, -y)
    y = xp.where(n == 0.0, digamma(xp, x), y)
    return xp.where((n >= 0.0) & (n == xp.floor(n)), y, np.nan)
