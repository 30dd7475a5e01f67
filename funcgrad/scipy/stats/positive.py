"""Distributions of positive variables, and on the unit interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.ops.elementwise.binomial import log_beta, log_binomial, log_poisson
from funcgrad.ops.elementwise.integrals import xlog1py, xlogy
from funcgrad.ops.elementwise.special import (
    betainc,
    digamma,
    erf,
    erf_inv,
    erfc,
    igamma,
    igammac,
    lgamma,
    log_ndtr,
    ndtr,
    ndtri,
)
from funcgrad.scipy.stats.core import INF, Distribution, guarded

PI, EULER = math.pi, float(np.euler_gamma)
LOG_2, LOG_PI = math.log(2), math.log(math.pi)


def _above(a: Any, least: float, formula: Any, other: float = INF) -> Any:
    """formula(a) where a > least, else `other`: a moment that exists only there."""
    return fnp.where(a > least, guarded(a > least, formula, a, least + 1.0), other)


uniform = Distribution(
    "uniform",
    low=0.0,
    high=1.0,
    logpdf=lambda x: 0 * x,
    cdf=lambda x: x,
    ppf=lambda q: q,
    isf=lambda q: 1 - q,
    mean=lambda: 0.5,
    var=lambda: 1 / 12,
    entropy=lambda: 0.0,
)

expon = Distribution(
    "expon",
    low=0.0,
    logpdf=lambda x: -x,
    logsf=lambda x: -x,
    ppf=lambda q: -fnp.log1p(-q),
    isf=lambda q: -fnp.log(q),
    mean=lambda: 1.0,
    var=lambda: 1.0,
    entropy=lambda: 1.0,
)

# ---- gamma and its relatives


def _gamma_logpdf(x: Any, a: Any) -> Any:
    # Both terms are the same function; the second holds where a - 1 < 0, the first loses no digits.
    one = a >= 1
    large = log_poisson(fnp.where(one, a - 1, 0.0), fnp.where(one, x, 1.0))
    b = fnp.where(one, 0.5, a)
    small = xlogy(b - 1, fnp.where(one, 1.0, x)) - x - lgamma(b)
    return fnp.where(one, large, small)


gamma = Distribution(
    "gamma",
    "a",
    low=0.0,
    logpdf=_gamma_logpdf,
    cdf=lambda x, a: igamma(a, x),
    sf=lambda x, a: igammac(a, x),
    mean=lambda a: a,
    var=lambda a: a,
    entropy=lambda a: a + lgamma(a) + (1 - a) * digamma(a),
)

chi2 = Distribution(
    "chi2",
    "df",
    low=0.0,
    logpdf=lambda x, df: _gamma_logpdf(0.5 * x, 0.5 * df) - LOG_2,
    cdf=lambda x, df: igamma(0.5 * df, 0.5 * x),
    sf=lambda x, df: igammac(0.5 * df, 0.5 * x),
    mean=lambda df: df,
    var=lambda df: 2 * df,
    entropy=lambda df: 0.5 * df + LOG_2 + lgamma(0.5 * df) + (1 - 0.5 * df) * digamma(0.5 * df),
)

invgamma = Distribution(
    "invgamma",
    "a",
    low=0.0,
    closed=False,
    logpdf=lambda x, a: _gamma_logpdf(1 / x, a) - 2 * fnp.log(x),
    cdf=lambda x, a: igammac(a, 1 / x),
    sf=lambda x, a: igamma(a, 1 / x),
    mean=lambda a: _above(a, 1, lambda a: 1 / (a - 1)),
    var=lambda a: _above(a, 2, lambda a: 1 / ((a - 1) ** 2 * (a - 2))),
    entropy=lambda a: a + lgamma(a) - (1 + a) * digamma(a),
)

maxwell = Distribution(
    "maxwell",
    low=0.0,
    logpdf=lambda x: 0.5 * (LOG_2 - LOG_PI) + 2 * fnp.log(x) - 0.5 * x * x,
    cdf=lambda x: igamma(1.5, 0.5 * x * x),
    sf=lambda x: igammac(1.5, 0.5 * x * x),
    mean=lambda: math.sqrt(8 / PI),
    var=lambda: 3 - 8 / PI,
    entropy=lambda: EULER + 0.5 * (LOG_2 + LOG_PI) - 0.5,
)

# ---- beta and its relatives


def _beta_logpdf(x: Any, a: Any, b: Any) -> Any:
    one = fnp.logical_and(a >= 1, b >= 1)
    # Where a or b is below 1 nothing large cancels.
    a1, b1 = fnp.where(one, a - 1, 0.0), fnp.where(one, b - 1, 0.0)
    large = log_binomial(a1, b1, fnp.where(one, x, 0.5)) + fnp.log1p(a1 + b1)
    a2, b2, y = fnp.where(one, 0.5, a), fnp.where(one, 0.5, b), fnp.where(one, 0.5, x)
    small = xlogy(a2 - 1, y) + xlog1py(b2 - 1, -y) - log_beta(a2, b2)
    return fnp.where(one, large, small)


def _beta_entropy(a: Any, b: Any) -> Any:
    total = (a + b - 2) * digamma(a + b)
    return log_beta(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b) + total


def _beta_sf(x: Any, a: Any, b: Any) -> Any:
    # Left of the mean from the digits of x, which 1 - x doesn't have.
    left = x * (a + b) < a
    value = betainc(fnp.where(left, a, b), fnp.where(left, b, a), fnp.where(left, x, 1 - x))
    return fnp.where(left, 1 - value, value)


beta = Distribution(
    "beta",
    "a b",
    low=0.0,
    high=1.0,
    logpdf=_beta_logpdf,
    cdf=lambda x, a, b: betainc(a, b, x),
    sf=_beta_sf,
    mean=lambda a, b: a / (a + b),
    var=lambda a, b: a * b / ((a + b) ** 2 * (a + b + 1)),
    entropy=_beta_entropy,
)


def _f_parts(x: Any, dfn: Any, dfd: Any) -> tuple[Any, Any]:
    """The beta variable of x, and 1 minus it."""
    ratio = x * (dfn / dfd)
    return ratio / (1 + ratio), 1 / (1 + ratio)


def _f_logpdf(x: Any, dfn: Any, dfd: Any) -> Any:
    u, v = _f_parts(x, dfn, dfd)
    a, b, low = 0.5 * dfn, 0.5 * dfd, u < 0.5
    inner = _beta_logpdf(fnp.where(low, u, v), fnp.where(low, a, b), fnp.where(low, b, a))
    return inner + fnp.log(dfn / dfd) + 2 * fnp.log(v)


def _f_tails(x: Any, dfn: Any, dfd: Any) -> tuple[Any, Any]:
    u, v = _f_parts(x, dfn, dfd)
    a, b, left = 0.5 * dfn, 0.5 * dfd, x < 1
    value = betainc(fnp.where(left, a, b), fnp.where(left, b, a), fnp.where(left, u, v))
    return fnp.where(left, value, 1 - value), fnp.where(left, 1 - value, value)


def _f_var(dfn: Any, dfd: Any) -> Any:
    def formula(d: Any) -> Any:
        return 2 * d * d * (dfn + d - 2) / (dfn * (d - 2) ** 2 * (d - 4))

    return _above(dfd, 4, formula)


f = Distribution(
    "f",
    "dfn dfd",
    low=0.0,
    logpdf=_f_logpdf,
    cdf=lambda x, dfn, dfd: _f_tails(x, dfn, dfd)[0],
    sf=lambda x, dfn, dfd: _f_tails(x, dfn, dfd)[1],
    mean=lambda dfn, dfd: _above(dfd, 2, lambda d: d / (d - 2), INF) + 0 * dfn,
    var=_f_var,
)

# ---- normal variables' relatives


def _lognorm_var(s: Any) -> Any:
    return fnp.expm1(s * s) * fnp.exp(s * s)


lognorm = Distribution(
    "lognorm",
    "s",
    low=0.0,
    closed=False,
    logpdf=lambda x, s: -0.5 * (fnp.log(x) / s) ** 2 - fnp.log(x * s) - 0.5 * (LOG_2 + LOG_PI),
    cdf=lambda x, s: ndtr(fnp.log(x) / s),
    sf=lambda x, s: ndtr(-fnp.log(x) / s),
    logcdf=lambda x, s: log_ndtr(fnp.log(x) / s),
    logsf=lambda x, s: log_ndtr(-fnp.log(x) / s),
    ppf=lambda q, s: fnp.exp(s * ndtri(q)),
    isf=lambda q, s: fnp.exp(-s * ndtri(q)),
    mean=lambda s: fnp.exp(0.5 * s * s),
    var=_lognorm_var,
    entropy=lambda s: 0.5 * (1 + LOG_2 + LOG_PI) + fnp.log(s),
)

halfnorm = Distribution(
    "halfnorm",
    low=0.0,
    logpdf=lambda x: 0.5 * (LOG_2 - LOG_PI) - 0.5 * x * x,
    cdf=lambda x: erf(x * math.sqrt(0.5)),
    sf=lambda x: erfc(x * math.sqrt(0.5)),
    logsf=lambda x: LOG_2 + log_ndtr(-x),
    ppf=lambda q: math.sqrt(2) * erf_inv(q),
    isf=lambda q: -ndtri(0.5 * q),
    mean=lambda: math.sqrt(2 / PI),
    var=lambda: 1 - 2 / PI,
    entropy=lambda: 0.5 * (LOG_PI - LOG_2) + 0.5,
)

halfcauchy = Distribution(
    "halfcauchy",
    low=0.0,
    logpdf=lambda x: LOG_2 - LOG_PI - 2 * fnp.log(fnp.hypot(x, 1.0)),
    cdf=lambda x: fnp.arctan(x) * (2 / PI),
    sf=lambda x: fnp.arctan2(1.0, x) * (2 / PI),
    ppf=lambda q: fnp.where(
        q < 0.5, fnp.tan(0.5 * PI * q), 1 / fnp.tan(0.5 * PI * fnp.where(q < 0.5, 0.5, 1 - q))
    ),
    isf=lambda q: fnp.where(
        q < 0.5, 1 / fnp.tan(0.5 * PI * q), fnp.tan(0.5 * PI * fnp.where(q < 0.5, 0.5, 1 - q))
    ),
    mean=lambda: INF,
    var=lambda: INF,
    entropy=lambda: math.log(2 * PI),
)

levy = Distribution(
    "levy",
    low=0.0,
    closed=False,
    logpdf=lambda x: -0.5 * (LOG_2 + LOG_PI) - 1.5 * fnp.log(x) - 0.5 / x,
    cdf=lambda x: erfc(fnp.sqrt(0.5 / x)),
    sf=lambda x: erf(fnp.sqrt(0.5 / x)),
    ppf=lambda q: ndtri(0.5 * q) ** -2,
    isf=lambda q: 0.5 * erf_inv(q) ** -2,
    mean=lambda: INF,
    var=lambda: INF,
    entropy=lambda: 0.5 * (1 + 3 * EULER + math.log(16 * PI)),
)

rayleigh = Distribution(
    "rayleigh",
    low=0.0,
    logpdf=lambda x: fnp.log(x) - 0.5 * x * x,
    logsf=lambda x: -0.5 * x * x,
    ppf=lambda q: fnp.sqrt(-2 * fnp.log1p(-q)),
    isf=lambda q: fnp.sqrt(-2 * fnp.log(q)),
    mean=lambda: math.sqrt(PI / 2),
    var=lambda: 2 - PI / 2,
    entropy=lambda: 0.5 * EULER + 1 - 0.5 * LOG_2,
)

# ---- powers

pareto = Distribution(
    "pareto",
    "b",
    low=1.0,
    logpdf=lambda x, b: fnp.log(b) - (b + 1) * fnp.log(x),
    logsf=lambda x, b: -b * fnp.log(x),
    ppf=lambda q, b: fnp.exp(-fnp.log1p(-q) / b),
    isf=lambda q, b: fnp.exp(-fnp.log(q) / b),
    mean=lambda b: _above(b, 1, lambda b: b / (b - 1)),
    var=lambda b: _above(b, 2, lambda b: b / ((b - 1) ** 2 * (b - 2))),
    entropy=lambda b: 1 + 1 / b - fnp.log(b),
)


def _weibull_var(c: Any) -> Any:
    return fnp.exp(lgamma(1 + 2 / c)) - fnp.exp(2 * lgamma(1 + 1 / c))


def _weibull_logpdf(x: Any, c: Any) -> Any:
    return fnp.log(c) + xlogy(c - 1, x) - x**c


weibull_min = Distribution(
    "weibull_min",
    "c",
    low=0.0,
    logpdf=_weibull_logpdf,
    logsf=lambda x, c: -(x**c),
    ppf=lambda q, c: fnp.exp(fnp.log(-fnp.log1p(-q)) / c),
    isf=lambda q, c: fnp.exp(fnp.log(-fnp.log(q)) / c),
    mean=lambda c: fnp.exp(lgamma(1 + 1 / c)),
    var=_weibull_var,
    entropy=lambda c: EULER * (1 - 1 / c) - fnp.log(c) + 1,
)

weibull_max = Distribution(
    "weibull_max",
    "c",
    high=0.0,
    logpdf=lambda x, c: _weibull_logpdf(-x, c),
    logcdf=lambda x, c: -((-x) ** c),
    ppf=lambda q, c: -fnp.exp(fnp.log(-fnp.log(q)) / c),
    isf=lambda q, c: -fnp.exp(fnp.log(-fnp.log1p(-q)) / c),
    mean=lambda c: -fnp.exp(lgamma(1 + 1 / c)),
    var=_weibull_var,
    entropy=lambda c: EULER * (1 - 1 / c) - fnp.log(c) + 1,
)
