"""The Bessel functions Jₙ and Yₙ of whole orders.

Within |x| ≤ 25 Miller's recurrence runs from an order whose function vanishes down to 0, normalized
by J₀ + 2J₂ + 2J₄ + … = 1, and Neumann's series of the same numbers gives Y (Abramowitz and Stegun
9.1.46 and 9.1.88). Beyond, Hankel's expansions hold (9.2.5). Orders of 2 and more are found by
recurrence: upwards where that is stable, else downwards. Errors are some ulp of √(2/πx) where
the functions oscillate.
"""

from __future__ import annotations

import math
from typing import Any

from funcgrad.ops.special_math.base import constant, in_float64, polynomial, while_
from funcgrad.ops.special_math.gamma import lgamma

EULER_GAMMA = 0.5772156649015329
FAR = 25.0
TOP = 68  # J of this order is 1e-22 at FAR
TERMS = 11  # of each of Hankel's series
SMALL = 1e-3
MOST = 900  # orders beyond would take too many turns


def _hankel(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The coefficients of P and of Q in 1/x², highest power first."""
    a = [1.0]
    for k in range(1, 2 * TERMS):
        a.append(a[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    p, q = ([(-1) ** k * a[2 * k + odd] for k in range(TERMS)] for odd in (0, 1))
    return tuple(reversed(p)), tuple(reversed(q))


HANKEL = _hankel(0), _hankel(1)


def _far(xp: Any, order: int, second: bool, x: Any) -> Any:
    """J or Y of order 0 or 1 for x ≥ FAR."""
    p, q = (polynomial(c, 1.0 / (x * x)) for c in HANKEL[order])
    q = q / x
    cosine, sine = xp.cos(x), xp.sin(x)
    plus, minus = cosine + sine, sine - cosine
    # √2 times the cosine and the sine of x - π/4, and of x - 3π/4.
    c, s = (plus, minus) if order == 0 else (minus, -plus)
    wave = p * s + q * c if second else p * c - q * s
    value = wave / (math.sqrt(math.pi) * xp.sqrt(x))
    return xp.where(x < math.inf, value, constant(xp, x, 0.0))


def _near(xp: Any, order: int, second: bool, x: Any) -> tuple[Any, Any]:
    """J of order 0 or 1, and the sum in Neumann's series of Y, for 0 ≤ x ≤ FAR."""
    half = 0.5 * x
    square = half * half
    # What recurs are Jₖ(x)/(x/2)ᵏ, which are finite at 0.
    above, now = constant(xp, x, 0.0), constant(xp, x, 1 / math.factorial(TOP))
    whole = series = above
    wanted = now
    for k in range(TOP, -1, -1):
        if k % 2 == 0:
            whole = whole * square + (now if k == 0 else 2.0 * now)
        m = (k - order) // 2
        if second and k % 2 == order and m >= 1:
            weight = 1.0 / m if order == 0 else (2 * m + 1) / (m * (m + 1))
            series = series * square + (-1) ** m * weight * now
        if k == order:
            wanted = now
        above, now = now, k * now - square * above
    if order == 1:
        wanted, series = wanted * half, series * half
    # The sums over m ≥ 1 lack their common factor.
    return wanted / whole, series * square / whole


def _first(xp: Any, order: int, x: Any) -> Any:
    a = xp.abs(x)
    near, _ = _near(xp, order, False, xp.minimum(a, FAR))
    value = xp.where(a <= FAR, near, _far(xp, order, False, xp.maximum(a, FAR)))
    return value * xp.copysign(1.0, x) if order == 1 else value


def _second(xp: Any, order: int, x: Any) -> Any:
    a = xp.minimum(xp.where(x > 0, x, 1.0), FAR)
    first, series = _near(xp, order, True, a)
    near = (2 / math.pi) * ((xp.log(a) + (EULER_GAMMA - math.log(2) - order)) * first)
    near = near - (4 / math.pi if order == 0 else 2 / math.pi) * series
    if order == 1:
        near = near - (2 / math.pi) * _near(xp, 0, False, a)[0] / a
    value = xp.where(x <= FAR, near, _far(xp, order, True, xp.maximum(x, FAR)))
    value = xp.where(x == 0, -math.inf, value)
    return xp.where(x < 0, math.nan, value)


@in_float64
def bessel_j0(xp: Any, x: Any) -> Any:
    """J₀(x), an even function.

    >>> bessel_j0(np, np.array([0.0, 1.0, -100.0]))
    array([1.        , 0.76519769, 0.01998585])
    """
    return _first(xp, 0, x)


@in_float64
def bessel_j1(xp: Any, x: Any) -> Any:
    """J₁(x), an odd function.

    >>> bessel_j1(np, np.array([0.0, 1.0, -100.0]))
    array([0.        , 0.44005059, 0.07714535])
    """
    return _first(xp, 1, x)


@in_float64
def bessel_y0(xp: Any, x: Any) -> Any:
    """Y₀(x), -inf at 0 and NaN for negative x.

    >>> bessel_y0(np, np.array([1.0, 100.0]))
    array([ 0.08825696, -0.07724431])
    """
    return _second(xp, 0, x)


@in_float64
def bessel_y1(xp: Any, x: Any) -> Any:
    """Y₁(x), -inf at 0 and NaN for negative x.

    >>> bessel_y1(np, np.array([1.0, 100.0]))
    array([-0.78121282, -0.02037231])
    """
    return _second(xp, 1, x)


def _upwards(xp: Any, order: Any, x: Any, zeroth: Any, first: Any) -> Any:
    """The function of a whole order from those of orders 0 and 1, for x > 0."""

    def step(carry: tuple) -> tuple:
        k, before, now = carry
        # What has become infinite stays so.
        after = xp.where(xp.abs(now) < math.inf, (2.0 * k / x) * now - before, now)
        return k + 1.0, now, after

    start = constant(xp, x, 1.0), zeroth, first
    out = while_(xp, lambda c: c[0] < order, step, start)[2]
    return xp.where(order == 0, zeroth, out)


def _downwards(xp: Any, order: Any, x: Any, zeroth: Any, first: Any) -> Any:
    """J of a whole order above x ≥ SMALL, from those of orders 0 and 1."""
    start = order + xp.floor(8.0 * xp.power(order, 1 / 3)) + 16.0
    tiny = constant(xp, x, 1e-30)

    def step(carry: tuple) -> tuple:
        k, above, now, wanted = carry
        wanted = xp.where(k == order, now, wanted)
        below = (2.0 * k / x) * now - above
        scale = xp.where(xp.abs(below) > 1e100, 1e-100, 1.0)
        return k - 1.0, now * scale, below * scale, wanted * scale

    init = start, tiny * 0.0, tiny, tiny * 0.0
    _, ours1, ours0, wanted = while_(xp, lambda c: c[0] > 0.0, step, init)
    # Matched with the larger one of what is known.
    by_first = xp.abs(first) > xp.abs(zeroth)
    return wanted * xp.where(by_first, first, zeroth) / xp.where(by_first, ours1, ours0)


def _of_order(xp: Any, order: Any, x: Any, value: Any) -> Any:
    """(-1)ⁿ for negative orders, and NaN for those that aren't whole, or too large."""
    odd = xp.abs(order) - 2.0 * xp.floor(0.5 * xp.abs(order)) == 1.0
    value = xp.where(odd, xp.where(order < 0, -value, value), value)
    return xp.where(_is_known(xp, order), value, math.nan)


def _is_known(xp: Any, order: Any) -> Any:
    return (order == xp.floor(order)) & (xp.abs(order) <= MOST)


@in_float64
def bessel_jn(xp: Any, order: Any, x: Any) -> Any:
    """Jₙ(x) of a whole order up to ±900; NaN for other orders.

    >>> bessel_jn(np, np.array([2.0, -3.0]), np.array([1.0, 50.0]))
    array([ 0.11490348, -0.0927348 ])
    """
    whole, a = xp.where(_is_known(xp, order), xp.abs(order), 0.0), xp.abs(x)
    finite = xp.where(a < math.inf, a, 0.0)
    up, small = finite >= whole, finite < SMALL
    # Each way runs where it is wanted, and elsewhere ends at once.
    zeroth, first = _first(xp, 0, finite), _first(xp, 1, finite)
    upwards = _upwards(xp, xp.where(up, whole, 0.0), xp.where(finite > 0, finite, 1.0),
                       zeroth, first)  # fmt: skip
    down = xp.where(up, 1.0, xp.where(small, 1.0, whole))
    downwards = _downwards(xp, down, xp.maximum(finite, SMALL), zeroth, first)
    half = 0.5 * xp.where(small, finite, 0.0)
    lowest = xp.power(half, whole) * xp.exp(-lgamma(xp, whole + 1.0))
    lowest = lowest * (1.0 - half * half / (whole + 1.0))
    value = xp.where(up, upwards, xp.where(small, lowest, downwards))
    value = xp.where(a < math.inf, value, constant(xp, a, 0.0))
    value = _of_order(xp, order, x, value)
    odd = whole - 2.0 * xp.floor(0.5 * whole) == 1.0
    return xp.where(odd, xp.where(x < 0, -value, value), value)


@in_float64
def bessel_yn(xp: Any, order: Any, x: Any) -> Any:
    """Yₙ(x) of a whole order up to ±900, NaN for other orders and for negative x.

    >>> bessel_yn(np, np.array([2.0, -3.0]), np.array([1.0, 50.0]))
    array([-1.65068261, -0.06445912])
    """
    whole = xp.where(_is_known(xp, order), xp.abs(order), 0.0)
    inside = xp.where(x > 0, x, 1.0)
    value = _upwards(xp, whole, inside, _second(xp, 0, inside), _second(xp, 1, inside))
    value = xp.where(x > 0, value, xp.where(x == 0, -math.inf, math.nan))
    return _of_order(xp, order, x, value)
