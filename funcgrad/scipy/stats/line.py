"""Distributions on the whole line, and on pieces of it that parameters choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.ops.elementwise.arithmetic import sign
from funcgrad.ops.elementwise.binomial import log_beta
from funcgrad.ops.elementwise.integrals import logit
from funcgrad.ops.elementwise.special import (
    bessel_i0e,
    bessel_i1e,
    betainc,
    digamma,
    igamma,
    igammac,
    lgamma,
    log_ndtr,
    ndtr,
    ndtri,
)
from funcgrad.ops.elementwise.transcendental import logistic as expit
from funcgrad.scipy.stats.core import INF, NAN, Distribution, guarded, log_complement
from funcgrad.scipy.stats.inverse import slope_is

PI, EULER = math.pi, float(np.euler_gamma)
HALF_LOG_2PI = 0.5 * math.log(2 * PI)
_NORMAL = HALF_LOG_2PI + 0.5  # the normal distribution's entropy


def _gauss(x: Any) -> Any:
    return -0.5 * x * x - HALF_LOG_2PI


norm = Distribution(
    "norm",
    symmetric=True,
    logpdf=_gauss,
    cdf=ndtr,
    logcdf=log_ndtr,
    ppf=ndtri,
    mean=lambda: 0.0,
    var=lambda: 1.0,
    entropy=lambda: _NORMAL,
)


def _cotangent(q: Any) -> Any:
    """1/tan(πq) for 0 < q < 1."""
    middle = fnp.abs(q - 0.5) < 0.25
    near = -fnp.tan(PI * (fnp.where(middle, q, 0.5) - 0.5))
    return fnp.where(middle, near, 1 / fnp.tan(PI * fnp.where(middle, 0.25, q - fnp.round(q))))


cauchy = Distribution(
    "cauchy",
    symmetric=True,
    logpdf=lambda x: -2 * fnp.log(fnp.hypot(x, 1.0)) - math.log(PI),
    cdf=lambda x: fnp.arctan2(1.0, -x) / PI,
    ppf=lambda q: -_cotangent(q),
    mean=lambda: NAN,
    var=lambda: NAN,
    entropy=lambda: math.log(4 * PI),
)

logistic = Distribution(
    "logistic",
    symmetric=True,
    logpdf=lambda x: x - 2 * fnp.logaddexp(x, 0.0),
    cdf=expit,
    logcdf=lambda x: -fnp.logaddexp(-x, 0.0),
    ppf=logit,
    mean=lambda: 0.0,
    var=lambda: PI**2 / 3,
    entropy=lambda: 2.0,
)


def _laplace_cdf(x: Any) -> Any:
    half = 0.5 * fnp.exp(-fnp.abs(x))
    return fnp.where(x < 0, half, 1 - half)


def _laplace_logcdf(x: Any) -> Any:
    half = fnp.where(x < 0, 0.0, 0.5) * fnp.exp(-fnp.abs(x))
    return fnp.where(x < 0, x - math.log(2), fnp.log1p(-half))


laplace = Distribution(
    "laplace",
    symmetric=True,
    logpdf=lambda x: -fnp.abs(x) - math.log(2),
    cdf=_laplace_cdf,
    logcdf=_laplace_logcdf,
    ppf=lambda q: fnp.where(q < 0.5, fnp.log(2 * q), -fnp.log(2 * (1 - q))),
    mean=lambda: 0.0,
    var=lambda: 2.0,
    entropy=lambda: 1 + math.log(2),
)

gumbel_r = Distribution(
    "gumbel_r",
    logpdf=lambda x: -x - fnp.exp(-x),
    logcdf=lambda x: -fnp.exp(-x),
    ppf=lambda q: -fnp.log(-fnp.log(q)),
    isf=lambda q: -fnp.log(-fnp.log1p(-q)),
    mean=lambda: EULER,
    var=lambda: PI**2 / 6,
    entropy=lambda: 1 + EULER,
)

gumbel_l = Distribution(
    "gumbel_l",
    logpdf=lambda x: x - fnp.exp(x),
    logsf=lambda x: -fnp.exp(x),
    ppf=lambda q: fnp.log(-fnp.log1p(-q)),
    isf=lambda q: fnp.log(-fnp.log(q)),
    mean=lambda: -EULER,
    var=lambda: PI**2 / 6,
    entropy=lambda: 1 + EULER,
)


# ---- with shape parameters


def _t_logpdf(x: Any, df: Any) -> Any:
    finite = df < INF
    d = fnp.where(finite, df, 1.0)
    value = -0.5 * (d + 1) * fnp.log1p(x * (x / d)) - 0.5 * fnp.log(d) - log_beta(0.5 * d, 0.5)
    return fnp.where(finite, value, _gauss(x))


@slope_is(lambda x, df: fnp.exp(_t_logpdf(x, df)))
def _t_cdf(x: Any, df: Any) -> Any:
    finite = df < INF
    d, square = fnp.where(finite, df, 1.0), x * x
    near = square < 4
    centre = betainc(0.5, 0.5 * d, fnp.where(near, square, 0.0) / (d + square))
    tail = 0.5 * betainc(0.5 * d, 0.5, 1 / (1 + square / d))
    value = fnp.where(x < 0, tail, 1 - tail)
    value = fnp.where(near, 0.5 + 0.5 * sign(x) * centre, value)
    return fnp.where(finite, value, ndtr(x))


def _t_entropy(df: Any) -> Any:
    half = 0.5 * (df + 1)
    slope = digamma(half) - digamma(0.5 * df)
    return half * slope + 0.5 * fnp.log(df) + log_beta(0.5 * df, 0.5)


t = Distribution(
    "t",
    "df",
    symmetric=True,
    logpdf=_t_logpdf,
    cdf=_t_cdf,
    mean=lambda df: fnp.where(df > 1, 0.0, INF),
    var=lambda df: fnp.where(
        df > 2, guarded(df > 2, lambda d: 1 + 2 / (d - 2), df, 3.0), fnp.where(df > 1, INF, NAN)
    ),
    entropy=lambda df: fnp.where(df < INF, guarded(df < INF, _t_entropy, df, 1.0), _NORMAL),
)


def _gennorm_cdf(x: Any, beta: Any) -> Any:
    power, a = fnp.abs(x) ** beta, 1 / beta
    tail = 0.5 * igammac(a, power)
    return fnp.where(x < 0, tail, 0.5 + 0.5 * igamma(a, power))


def _gennorm_logpdf(x: Any, beta: Any) -> Any:
    return fnp.log(0.5 * beta) - lgamma(1 / beta) - fnp.abs(x) ** beta


gennorm = Distribution(
    "gennorm",
    "beta",
    symmetric=True,
    logpdf=_gennorm_logpdf,
    cdf=slope_is(lambda x, beta: fnp.exp(_gennorm_logpdf(x, beta)))(_gennorm_cdf),
    mean=lambda beta: 0 * beta,
    var=lambda beta: fnp.exp(lgamma(3 / beta) - lgamma(1 / beta)),
    entropy=lambda beta: 1 / beta - fnp.log(0.5 * beta) + lgamma(1 / beta),
)


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the normal probability of a < x < b."""
    right, left = a > 0, b < 0
    first = fnp.where(right, -a, fnp.where(left, b, -1.0))
    second = fnp.where(right, -b, fnp.where(left, a, -2.0))
    # At -∞ log_ndtr has no derivative.
    finite = second > -INF
    large = log_ndtr(first)
    gap = log_ndtr(fnp.where(finite, second, -2.0)) - large
    some = fnp.logical_and(finite, gap < 0)
    tail = large + fnp.where(some, log_complement(fnp.where(some, gap, -1.0)), 0.0)
    tail = fnp.where(fnp.logical_and(finite, gap >= 0), -INF, tail)
    one_side = fnp.logical_or(right, left)
    outer = ndtr(fnp.where(one_side, -1.0, a)) + ndtr(fnp.where(one_side, -1.0, -b))
    # What is left of one loses digits where little is left.
    centre = fnp.log(ndtr(fnp.where(one_side, 1.0, b)) - ndtr(fnp.where(one_side, -1.0, a)))
    centre = fnp.where(outer < 0.5, fnp.log1p(-outer), centre)
    return fnp.where(one_side, tail, centre)


def _truncnorm_mean(a: Any, b: Any) -> Any:
    mass = _log_mass(a, b)
    return fnp.exp(_gauss(a) - mass) - fnp.exp(_gauss(b) - mass)


def _truncnorm_var(a: Any, b: Any) -> Any:
    mass, mean = _log_mass(a, b), _truncnorm_mean(a, b)
    edges = [
        fnp.where(fnp.abs(e) < INF, guarded(fnp.abs(e) < INF, lambda e: e, e, 0.0), 0.0)
        * fnp.exp(_gauss(e) - mass)
        for e in (a, b)
    ]
    return 1 + edges[0] - edges[1] - mean * mean


truncnorm = Distribution(
    "truncnorm",
    "a b",
    low=lambda a, b: a,
    high=lambda a, b: b,
    valid=lambda a, b: a < b,
    logpdf=lambda x, a, b: _gauss(x) - _log_mass(a, b),
    logcdf=lambda x, a, b: fnp.minimum(_log_mass(a, x) - _log_mass(a, b), 0.0),
    logsf=lambda x, a, b: fnp.minimum(_log_mass(x, b) - _log_mass(a, b), 0.0),
    mean=_truncnorm_mean,
    var=_truncnorm_var,
)


# ---- on the circle

vonmises = Distribution(
    "vonmises",
    "kappa",
    valid=lambda kappa: kappa >= 0,
    logpdf=lambda x, kappa: (
        -2 * kappa * fnp.sin(0.5 * x) ** 2 - fnp.log(2 * PI * bessel_i0e(kappa))
    ),
    mean=lambda kappa: 0 * kappa,
    entropy=lambda kappa: (
        kappa * (1 - bessel_i1e(kappa) / bessel_i0e(kappa)) + fnp.log(2 * PI * bessel_i0e(kappa))
    ),
)


def _wrapcauchy_logpdf(x: Any, c: Any) -> Any:
    # 1 + c² - 2c cos x = (1 - c)² + 4c sin²(x/2)
    return fnp.log((1 - c) * (1 + c) / (2 * PI)) - fnp.log(
        (1 - c) ** 2 + 4 * c * fnp.sin(0.5 * x) ** 2
    )


def _turn(u: Any, factor: Any) -> Any:
    """The angle 2 atan(factor tan(u/2)) for 0 ≤ u ≤ 2π, continued beyond π."""
    return 2 * fnp.arctan2(factor * fnp.sin(0.5 * u), fnp.cos(0.5 * u))


wrapcauchy = Distribution(
    "wrapcauchy",
    "c",
    low=0.0,
    high=2 * PI,
    valid=lambda c: fnp.logical_and(c > 0, c < 1),
    logpdf=_wrapcauchy_logpdf,
    cdf=lambda x, c: _turn(x, (1 + c) / (1 - c)) / (2 * PI),
    ppf=lambda q, c: _turn(2 * PI * q, (1 - c) / (1 + c)),
    isf=lambda q, c: 2 * PI - _turn(2 * PI * q, (1 - c) / (1 + c)),
    entropy=lambda c: fnp.log(2 * PI * (1 - c) * (1 + c)),
)
