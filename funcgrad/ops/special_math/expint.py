"""The exponential integrals E₁, Ei and Eₙ.

Near zero their logarithm is split off and the rest is a rational function of x; beyond, x e^±x
times the integral is one of 1/x. The coefficients are our own near-minimax fits, weighted least
squares on Chebyshev points; each table's comment gives its relative error. Eₙ is a power series or
Legendre's continued fraction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import (
    choose_ratio,
    constant,
    in_float64,
    ratio,
    to_accuracy,
    while_,
)
from funcgrad.ops.special_math.gamma import digamma
from funcgrad.ops.special_math.igamma import MOST_TERMS, legendre_fraction

EULER_GAMMA = 0.5772156649015329
# The zero of Ei, as the sum of two float64.
EI_ZERO = (0.3725074107813666, 1.3140183414386028e-17)
# fmt: off
# (E₁(x) + log x + γ)/x, x ≤ 1: 6e-20
E1_NEAR = (
    (-5.973562588383985e-08, 6.715032054671284e-05, 0.0014502465290668137, 0.027806487948295634,
     0.16967315778136777, 1.0),
    (1.1510080620111171e-05, 0.0004459108620820114, 0.007844043222966356, 0.07716922183808136,
     0.41967315778136777, 1.0),
)
# x eˣ E₁(x) in 2/(1 + x), x ≥ 1: 1.3e-17
E1_FAR = (
    (0.16973444333100077, -2.7230513901845295, 1.846507954064549, 39.57206075616185,
     -46.263248214591, -123.9260327032611, 59.59866584072196, 162.76712771728688,
     81.41991406238388, 15.497153775367218, 1.0),
    (-0.06120375330876144, -1.7404634084943271, 9.809460588925663, 17.881363395606932,
     -84.88240082656714, -78.52065653698543, 144.48151820709325, 203.72708474749913,
     89.16849095007548, 15.997153775367192, 1.0),
)
# (Ei(x) - log(x/x₀))/(x - x₀) in x - 6, 0 ≤ x ≤ 6: 2e-18
EI_NEAR = (
    (4.795423965961346e-10, 3.771374041192445e-08, 3.521902745758521e-06, 6.616790925185825e-05,
     0.002548348917834169, 0.024860207152365164, 0.44199547556486635, 2.0395200636001967,
     14.786426282636727),
    (2.358773985649264e-09, -1.5109841140600187e-07, 4.9436043902882136e-06,
     -0.00010478242215906012, 0.0015448926958969759, -0.01601377646449612, 0.11284515513143954,
     -0.4904147088913231, 1.0),
)
# x e⁻ˣ Ei(x) in 1/x - 1/24, 6 ≤ x ≤ 24: 8e-17
EI_MIDDLE = (
    (-781737854.7377396, 1374595613.7702074, 447178292.5927651, 85304558.79210818,
     16387715.382917797, 1867235.2788844774, 216735.41714196076, 13965.122242130932,
     954.4112197690268, 28.821252531627415, 1.0456658121249738),
    (967273642.4739552, 487345105.2338893, 263881792.27313557, 56583660.46864711,
     13042501.536909506, 1513248.6398117635, 190013.4780786133, 12246.706184031926,
     879.2270707940545, 26.407791015491853, 1.0),
)
# the same, x ≥ 24: 5e-17
EI_FAR = (
    (390308871.1608673, -2805134530.6751566, 1707607058.53936, -256016231.38783187,
     10742355.464999821, -180343.28250401033, 4756.146245575575, -40.68311282977176,
     1.0456658121249738),
    (2130923194.962996, -4235599093.1018233, 1899694234.1039884, -256446431.7610105,
     10465019.041820573, -177663.14794075198, 4591.692548851289, -40.061213283457484, 1.0),
)
# fmt: on


@in_float64
def exp1(xp: Any, x: Any) -> Any:
    """E₁(x) = ∫ₓ^∞ e⁻ᵗ/t dt for x ≥ 0, ∞ at 0, NaN below.

    >>> exp1(np, np.array([0.0, 1.0, 100.0]))
    array([           inf, 2.19383934e-01, 3.68359776e-46])
    """
    return _exp1(xp, x)


def _exp1(xp: Any, x: Any) -> Any:
    a = xp.minimum(x, 1.0)
    near = a * ratio(E1_NEAR, a) - (xp.log(a) + EULER_GAMMA)
    b = xp.maximum(x, 1.0)
    far = xp.exp(-b) / b * ratio(E1_FAR, 2.0 / (b + 1.0))
    return xp.where(x < 1.0, near, far)


@in_float64
def expi(xp: Any, x: Any) -> Any:
    """Ei(x), the principal value of ∫₋∞ˣ eᵗ/t dt; -∞ at 0.

    Near its zero 0.3725… the error is an absolute one.

    >>> expi(np, np.array([-1.0, 0.0, 1.0, np.inf]))
    array([-0.21938393,        -inf,  1.89511782,         inf])
    """
    a = xp.minimum(xp.abs(x), 6.0)
    from_zero = a - EI_ZERO[0] - EI_ZERO[1]
    # A denormal number times the zero's inverse has too few digits.
    tiny = a < 1e-300
    near = xp.where(tiny, EULER_GAMMA, from_zero * ratio(EI_NEAR, a - 6.0))
    near = near + xp.log(xp.where(tiny, a, a * (1.0 / EI_ZERO[0])))
    b = xp.maximum(x, 6.0)
    t = 1.0 / b - 1 / 24
    scaled = choose_ratio(xp, b < 24.0, EI_MIDDLE, xp.maximum(t, 0.0), EI_FAR, xp.minimum(t, 0.0))
    half = xp.exp(0.5 * b)
    far = xp.where(xp.isinf(b), b, half / b * scaled * half)
    y = xp.where(x < 6.0, near, far)
    return xp.where(x < 0.0, -_exp1(xp, xp.where(x < 0.0, -x, 1.0)), y)


@to_accuracy
def expn(xp: Any, n: Any, x: Any, eps: float) -> Any:
    """Eₙ(x) = ∫₁^∞ e⁻ˣᵗ/tⁿ dt for n = 0, 1, 2, … and x ≥ 0, else NaN.

    >>> expn(np, np.array([0.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.0]))
    array([0.36787944, 0.21938393, 0.5       ])
    """
    x = xp.where((n >= 0.0) & (n == xp.floor(n)) & (x >= 0.0), x, np.nan)
    near = x <= 1.5
    zero = constant(xp, n * x, 0.0)
    log_term = digamma(xp, xp.maximum(n, 1.0)) - xp.log(x)

    def step(carry: tuple) -> tuple:
        m, power, total = carry
        gap = m - n + 1.0
        special = gap == 0.0
        term = xp.where(special, log_term, -1.0 / xp.where(special, 1.0, gap))
        return m + 1.0, power * -x / (m + 1.0), total + xp.where(power == 0.0, 0.0, power * term)

    def unfinished(carry: tuple) -> Any:
        # One term beyond the small ones, as that of the logarithm may be large.
        m, power, total = carry
        return (xp.abs(power) > 0.001 * eps * xp.abs(total)) & (m < MOST_TERMS)

    init = (zero, xp.where(near, 1.0, zero), zero)
    series = while_(xp, unfinished, step, init)[2]
    fraction = xp.exp(-x) * legendre_fraction(xp, 1.0 - n, x, ~near, eps)
    y = xp.where(near, series, fraction)
    y = xp.where(n == 0.0, xp.exp(-x) / x, y)
    return xp.where((x == 0.0) & (n <= 1.0), np.inf, xp.where(xp.isinf(n + x), 0.0, y))
