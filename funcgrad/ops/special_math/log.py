"""Functions made of logarithms: entropy terms, logit, and the dilogarithm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.ops.special_math.base import in_float64, ratio

# fmt: off
# Li₂(-w)/w, |w| ≤ ½: 4e-18. Our own near-minimax fit.
DILOGARITHM = (
    (-4.649149363844126e-05, -0.00731343620129192, -0.13381446124146418, -0.8795340897319494,
     -2.711167103241262, -4.256652404475466, -3.2975988346450635, -1.0),
    (0.0006907315424941521, 0.02539702577015554, 0.2829128111900964, 1.4114988319245017,
     3.637599705453787, 5.032441002025622, 3.5475988346450635, 1.0),
)
# fmt: on


def xlogy(xp: Any, x: Any, y: Any) -> Any:
    """x log y, and 0 where x = 0 unless y is NaN.

    >>> xlogy(np, np.array([0.0, 2.0]), np.array([0.0, 1.0]))
    array([0., 0.])
    """
    zero = (x == 0.0) & (y == y)
    return xp.where(zero, 0.0, x * xp.log(xp.where(zero, 1.0, y)))


def xlog1py(xp: Any, x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x = 0 unless y is NaN.

    >>> xlog1py(np, np.array([0.0, 2.0]), np.array([-1.0, 1e-30]))
    array([0.e+00, 2.e-30])
    """
    zero = (x == 0.0) & (y == y)
    return xp.where(zero, 0.0, x * xp.log1p(xp.where(zero, 0.0, y)))


def entr(xp: Any, x: Any) -> Any:
    """-x log x; 0 at 0 and -∞ below.

    >>> entr(np, np.array([-1.0, 0.0, 0.5]))
    array([      -inf, 0.        , 0.34657359])
    """
    return xp.where(x < 0.0, -np.inf, 0.0 - xlogy(xp, x, xp.abs(x)))


def logit(xp: Any, p: Any) -> Any:
    """log(p/(1 - p)), the inverse of the logistic function; ±∞ at 0 and 1, NaN outside.

    >>> logit(np, np.array([0.0, 0.5, 1.0]))
    array([-inf,   0.,  inf])
    """
    middle = (p > 0.25) & (p < 0.75)
    near = xp.log1p(xp.where(middle, (2.0 * p - 1.0) / (1.0 - p), 0.0))
    return xp.where(middle, near, xp.log(xp.where(middle, 1.0, p / (1.0 - p))))


@in_float64
def spence(xp: Any, x: Any) -> Any:
    """The dilogarithm Li₂(1 - x) = ∫₁ˣ log t/(1 - t) dt for x ≥ 0, else NaN.

    >>> spence(np, np.array([0.0, 1.0, 2.0]))
    array([ 1.64493407,  0.        , -0.82246703])
    """
    # By x → 1/x and x → 1 - x the argument comes into [½, 3/2].
    log_x = xp.log(x)
    inverted = x > 1.5
    u = xp.where(inverted, 1.0 / x, x)
    mirrored = u < 0.5
    w = xp.where(mirrored, -u, u - 1.0)
    y = w * ratio(DILOGARITHM, w) + 0.0
    log_u = xp.where(u == 0.0, 0.0, xp.where(inverted, -log_x, log_x))
    y = xp.where(mirrored, math.pi**2 / 6 - log_u * xp.log1p(xp.where(mirrored, -u, 0.0)) - y, y)
    return xp.where(inverted, -0.5 * log_x * log_x - y, y)
