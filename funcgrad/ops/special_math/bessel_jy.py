"""The Bessel functions J and Y of the orders 0 and 1.

Within |x| ≤ 25 Miller's recurrence runs from an order whose function vanishes down to 0, normalized
by J₀ + 2J₂ + 2J₄ + … = 1, and Neumann's series of the same numbers gives Y (Abramowitz and Stegun
9.1.46 and 9.1.88). Beyond, Hankel's expansions hold (9.2.5). Errors are some ulp of √(2/πx) where
the functions oscillate.
"""

from __future__ import annotations

import math
from typing import Any

from funcgrad.ops.special_math.base import constant, in_float64, polynomial

EULER_GAMMA = 0.5772156649015329
FAR = 25.0
TOP = 68  # J of this order is 1e-22 at FAR
TERMS = 11  # of each of Hankel's series


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
