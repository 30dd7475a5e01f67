"""The Bessel functions J, Y and K of real orders.

An order is n + μ with a whole n and |μ| ≤ ½. Of the orders μ and μ + 1, near zero J is its power
series and Y, K are Temme's (J. Comput. Phys. 19, 1975); beyond x = 2 Hankel's function is its
integral along the path of steepest descent, cosh u cos φ = 1, and K is the integral of
e⁻ˣ ᶜᵒˢʰ ᵗ cosh μt: the trapezoidal rule gives both (Watson, 8.3 and 6.22; Trefethen and Weideman,
SIAM Review 56, 2014). Recurrence leads upwards from there, and downwards to J of orders beyond x.
"""

from __future__ import annotations

import math
from typing import Any

from funcgrad.ops.special_math.base import constant, fori, in_float64, polynomial, while_
from funcgrad.ops.special_math.bessel_debye import LARGE, uniform_second
from funcgrad.ops.special_math.gamma import lgamma

SPLIT = 2.0  # where series give way to integrals
TERMS, POINTS = 20, 28
MOST = 900  # orders of J and Y beyond would take too many turns
# fmt: off
# (1/Γ(1 - μ) - 1/Γ(1 + μ))/2μ and half their sum, in μ²: Taylor's coefficients, |μ| ≤ ½
ODD = (
    1.1812593016974588e-16, 5.348122539423018e-15, -5.100370287454476e-13, -7.782263439905071e-12,
    1.18127457048702e-09, -6.116095104481416e-09, -1.133027231981696e-06, 2.013485478078824e-05,
    0.00021524167411495098, -0.0072189432466631, 0.04219773455554433, 0.04200263503409524,
    -0.5772156649015329,
)
EVEN = (
    1.2267786282382608e-15, -2.0583260535665066e-14, -3.696805618642206e-12,
    1.0434267116911005e-10, 5.002007644469223e-09, -2.056338416977607e-07,
    -1.2504934821426706e-06, 0.0001280502823881162, -0.0011651675918590652,
    -0.009621971527876973, 0.16653861138229148, -0.6558780715202539, 1.0,
)
# fmt: on


def _split(xp: Any, order: Any) -> tuple[Any, Any]:
    """(n, μ) of an order that is not negative."""
    whole = xp.floor(order + 0.5)
    return whole, order - whole


def _over(xp: Any, top: Any, bottom: Any) -> Any:
    """top/bottom, 1 where both vanish."""
    return xp.where(bottom == 0.0, 1.0, top) / xp.where(bottom == 0.0, 1.0, bottom)


def _temme(xp: Any, mu: Any, x: Any, second: bool) -> tuple[Any, Any]:
    """K, or if `second` Y, of the orders μ and μ + 1 for 0 < x ≤ SPLIT."""
    odd, even = polynomial(ODD, mu * mu), polynomial(EVEN, mu * mu)
    log = math.log(2) - xp.log(x)
    e, angle = mu * log, math.pi * mu
    power, m = xp.exp(e), xp.expm1(e)
    sinh, cosh = 0.5 * (m + m / power), 0.5 * (power + 1.0 / power)
    first = _over(xp, angle, xp.sin(angle)) * (odd * cosh + even * _over(xp, sinh, e) * log)
    p, q = 0.5 * power / (even - mu * odd), 0.5 / (power * (even + mu * odd))
    square, turn, scale = 0.25 * x * x, 0.0, 1.0
    if second:
        half = _over(xp, xp.sin(0.5 * angle), 0.5 * angle)
        square, turn, scale = -square, 0.5 * math.pi * angle * half * half, 2 / math.pi
    first, p, q = scale * first, scale * p, scale * q

    def step(_: Any, carry: tuple) -> tuple:
        i, f, p, q, c, total, total1 = carry
        f = (i * f + p + q) / (i * i - mu * mu)
        c, p, q = c * square / i, p / (i - mu), q / (i + mu)
        term = c * (f + turn * q)
        return i + 1.0, f, p, q, c, total + term, total1 + c * p - i * term

    one = constant(xp, mu * x, 1.0)
    init = one, first * one, p * one, q * one, one, (first + turn * q) * one, p * one
    total, total1 = fori(xp, TERMS, step, init)[5:]
    sign = -1.0 if second else 1.0
    return sign * total, sign * total1 * (2.0 / x)


def _series(xp: Any, order: Any, x: Any) -> Any:
    """J of an order above -1, where x²/4 is at most the order plus 1, or 1."""
    square, total = 0.25 * x * x, 1.0
    for k in range(TERMS, 0, -1):
        total = 1.0 - square / (k * (k + order)) * total
    # The power is exact, and would overflow for large orders.
    small, scale = order < 100.0, -lgamma(xp, order + 1.0)
    plain = xp.power(0.5 * x, xp.where(small, order, 0.0)) * xp.exp(xp.where(small, scale, 0.0))
    by_log = xp.exp(xp.where(small, 0.0, order) * xp.log(0.5 * x) + scale)
    return xp.where(small, plain, by_log) * total


def _descent(xp: Any, mu: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """J of the orders μ and μ + 1, and Y of both, for x ≥ SPLIT."""
    # x sinh u tanh u is 38 at the last point, so that what is left out is 1e-17.
    w = 38.0 / x
    c = 0.5 * (w + xp.sqrt(w * w + 4.0))
    h = xp.log1p((c - 1.0) + xp.sqrt(w * c)) / POINTS

    def step(_: Any, carry: tuple) -> tuple:
        k, re, im, re1, im1 = carry
        m = xp.expm1(k * h)
        sinh, cosh = 0.5 * (m + m / (m + 1.0)), 1.0 + 0.5 * m * m / (m + 1.0)
        power, angle = xp.exp(mu * (k * h)), mu * xp.arctan(sinh)
        up, down = 0.5 * (power + 1.0 / power), 0.5 * (power - 1.0 / power)
        cos, sin = xp.cos(angle), xp.sin(angle)
        a, b = up * cos, down * sin  # cosh of μ(u + iφ)
        s, t = down * cos, up * sin  # sinh of it
        high, tanh = sinh * sinh / cosh, sinh / cosh
        # cosh of (μ + 1)(u + iφ), by those of u + iφ: 1 + i sinh u tanh u and tanh u + i sinh u.
        a1, b1 = a - b * high + s * tanh - t * sinh, b + a * high + t * tanh + s * sinh
        weight = xp.exp(-x * high) * xp.where(k == 0.0, 0.5, 1.0)
        re, im = re + weight * (a - b / cosh), im + weight * (b + a / cosh)
        re1, im1 = re1 + weight * (a1 - b1 / cosh), im1 + weight * (b1 + a1 / cosh)
        return k + 1.0, re, im, re1, im1

    zero = constant(xp, mu * x, 0.0)
    _, re, im, re1, im1 = fori(xp, POINTS + 1, step, (zero, zero, zero, zero, zero))
    # Turned by x - πμ/2.
    c, s = xp.cos(x), xp.sin(x)
    cmu, smu = xp.cos(0.5 * math.pi * mu), xp.sin(0.5 * math.pi * mu)
    cos, sin = c * cmu + s * smu, s * cmu - c * smu
    scale = (2 / math.pi) * h
    first, second = scale * (cos * im + sin * re), scale * (sin * im - cos * re)
    first1, second1 = scale * (sin * im1 - cos * re1), -scale * (cos * im1 + sin * re1)
    return first, first1, second, second1


def _upwards(xp: Any, whole: Any, mu: Any, x: Any, sign: float, zeroth: Any, first: Any) -> Any:
    """Of the order n + μ, from μ and μ + 1, where that is stable."""

    def step(carry: tuple) -> tuple:
        k, before, now = carry
        # What has become infinite stays so.
        after = xp.where(xp.abs(now) < math.inf, (2.0 * (k + mu) / x) * now + sign * before, now)
        return k + 1.0, now, after

    start = constant(xp, mu * x, 1.0), zeroth, first
    out = while_(xp, lambda c: c[0] < whole, step, start)[2]
    return xp.where(whole == 0.0, zeroth, out)


def _downwards(xp: Any, whole: Any, mu: Any, x: Any, zeroth: Any, first: Any) -> Any:
    """J of the order n + μ above x, from those of μ and μ + 1."""
    start = whole + xp.floor(8.0 * xp.power(whole, 1 / 3)) + 16.0
    tiny = constant(xp, mu * x, 1e-30)

    def step(carry: tuple) -> tuple:
        k, above, now, wanted = carry
        wanted = xp.where(k == whole, now, wanted)
        below = (2.0 * (k + mu) / x) * now - above
        scale = xp.where(xp.abs(below) > 1e100, 1e-100, 1.0)
        return k - 1.0, now * scale, below * scale, wanted * scale

    init = start + tiny * 0.0, tiny * 0.0, tiny, tiny * 0.0
    _, ours1, ours0, wanted = while_(xp, lambda c: c[0] > 0.0, step, init)
    # Matched with the larger one of what is known.
    by_first = xp.abs(first) > xp.abs(zeroth)
    return wanted * xp.where(by_first, first, zeroth) / xp.where(by_first, ours1, ours0)


def _both(xp: Any, order: Any, x: Any) -> tuple[Any, Any]:
    """J and Y of an order from 0 to MOST, for finite x > 0."""
    whole, mu = _split(xp, order)
    near = x <= SPLIT
    low, high = xp.minimum(x, SPLIT), xp.maximum(x, SPLIT)
    j, j1, y, y1 = _descent(xp, mu, high)
    near_y, near_y1 = _temme(xp, mu, low, True)
    j = xp.where(near, _series(xp, mu, low), j)
    j1 = xp.where(near, _series(xp, mu + 1.0, low), j1)
    y, y1 = xp.where(near, near_y, y), xp.where(near, near_y1, y1)
    second = _upwards(xp, whole, mu, x, -1.0, y, y1)
    # Each way runs where it is wanted, and elsewhere ends at once.
    square = 0.25 * x * x
    up, direct = x >= order, square <= order + 1.0
    upwards = _upwards(xp, xp.where(up, whole, 0.0), mu, x, -1.0, j, j1)
    down = xp.where(up, 1.0, xp.where(direct, 1.0, whole))
    downwards = _downwards(xp, down, mu, xp.where(direct, SPLIT, x), j, j1)
    series = _series(xp, order, xp.where(direct, x, 1.0))
    return xp.where(direct, series, xp.where(up, upwards, downwards)), second


def _of_order(xp: Any, order: Any, x: Any) -> tuple[Any, Any, Any, Any, Any]:
    """J and Y of the order's absolute value, whether it is known, and its cosine and sine."""
    known = xp.abs(order) <= MOST
    size = xp.where(known, xp.abs(order), 0.0)
    first, second = _both(xp, size, xp.where((x > 0) & (x < math.inf), x, 1.0))
    first = xp.where(x == 0, xp.where(size == 0, 1.0, 0.0), xp.where(x == math.inf, 0.0, first))
    second = xp.where(x == 0, -math.inf, xp.where(x == math.inf, 0.0, second))
    whole, mu = _split(xp, size)
    sign = xp.where(whole - 2.0 * xp.floor(0.5 * whole) == 1.0, -1.0, 1.0)
    halfway = xp.abs(mu) == 0.5
    cos = xp.where(halfway, 0.0, sign * xp.cos(math.pi * mu))
    return first, second, known & (x == x), cos, sign * xp.sin(math.pi * mu)


def _turned(xp: Any, a: Any, x: Any, b: Any, y: Any) -> Any:
    """a x + b y, of which what is multiplied by 0 is left out."""
    return xp.where(b == 0, a * x, xp.where(a == 0, 0.0, a * x) + b * y)


@in_float64
def bessel_jn(xp: Any, order: Any, x: Any) -> Any:
    """Jᵥ(x) of a real order up to ±900; NaN beyond, and for x < 0 unless the order is whole.

    >>> bessel_jn(np, np.array([2.0, -3.0, 0.5]), np.array([1.0, 50.0, 2.0]))
    array([ 0.11490348, -0.0927348 ,  0.51301614])
    """
    first, second, known, cos, sin = _of_order(xp, order, xp.abs(x))
    value = xp.where(order < 0, _turned(xp, cos, first, -sin, second), first)
    whole = order == xp.floor(order)
    mirrored = xp.where(whole, cos * value, math.nan)
    return xp.where(known, xp.where(x < 0, mirrored, value), math.nan)


@in_float64
def bessel_yn(xp: Any, order: Any, x: Any) -> Any:
    """Yᵥ(x) of a real order up to ±900, NaN beyond and for negative x.

    >>> bessel_yn(np, np.array([2.0, -3.0, 0.5]), np.array([1.0, 50.0, 2.0]))
    array([-1.65068261, -0.06445912,  0.23478571])
    """
    first, second, known, cos, sin = _of_order(xp, order, xp.where(x < 0, math.nan, x))
    value = xp.where(order < 0, _turned(xp, sin, first, cos, second), second)
    return xp.where(known, value, math.nan)


def _by_rule(xp: Any, mu: Any, x: Any) -> tuple[Any, Any]:
    """eˣ K of the orders μ and μ + 1 for x ≥ SPLIT."""
    w = 38.0 / x  # x (cosh t - 1) at the last point
    h = xp.log1p(w + xp.sqrt(w * (w + 2.0))) / POINTS

    def step(_: Any, carry: tuple) -> tuple:
        k, total, total1 = carry
        t = k * h
        m = xp.expm1(t)
        weight = xp.exp(-x * (0.5 * m * m / (m + 1.0))) * xp.where(k == 0.0, 0.5, 1.0)
        power = xp.exp(mu * t)
        total1 = total1 + weight * (power * (m + 1.0) + 1.0 / (power * (m + 1.0)))
        return k + 1.0, total + weight * (power + 1.0 / power), total1

    zero = constant(xp, mu * x, 0.0)
    _, total, total1 = fori(xp, POINTS + 1, step, (zero, zero, zero))
    return 0.5 * h * total, 0.5 * h * total1


@in_float64
def bessel_kve(xp: Any, order: Any, x: Any) -> Any:
    """eˣ Kᵥ(x) of a real order, ∞ at 0 and NaN for negative x.

    >>> bessel_kve(np, np.array([0.0, 2.5]), np.array([1.0, 30.0]))
    array([1.14446308, 0.25246783])
    """
    size = xp.abs(order)
    inside = xp.where((x > 0) & (x < math.inf), x, 1.0)
    low = size < LARGE
    whole, mu = _split(xp, xp.where(low, size, 0.0))
    at = xp.minimum(inside, SPLIT)
    near, near1 = _temme(xp, mu, at, False)
    far, far1 = _by_rule(xp, mu, xp.maximum(inside, SPLIT))
    zeroth = xp.where(inside <= SPLIT, xp.exp(at) * near, far)
    first = xp.where(inside <= SPLIT, xp.exp(at) * near1, far1)
    recurred = _upwards(xp, whole, mu, inside, 1.0, zeroth, first)
    value = xp.where(low, recurred, uniform_second(xp, xp.where(low, LARGE, size), inside))
    value = xp.where(x == math.inf, 0.0, value)
    value = xp.where((x == 0) | (size == math.inf), math.inf, value)
    return xp.where((x >= 0) & (order == order), value, math.nan)
