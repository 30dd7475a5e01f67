"""Distributions of whole numbers."""

from __future__ import annotations

import math
from typing import Any

import funcgrad.numpy as fnp
from funcgrad.ops.elementwise.binomial import log_beta, log_binomial, log_poisson
from funcgrad.ops.elementwise.integrals import xlog1py, xlogy
from funcgrad.ops.elementwise.special import betainc, igamma, igammac, zeta
from funcgrad.scipy.stats.core import INF, Distribution, guarded


def _probability(p: Any) -> Any:
    return fnp.logical_and(p >= 0, p <= 1)


def _count(n: Any) -> Any:
    return fnp.logical_and(n >= 0, n == fnp.floor(n))


def _entropy(p: Any) -> Any:
    return -xlogy(p, p) - xlog1py(1 - p, -p)


bernoulli = Distribution(
    "bernoulli",
    "p",
    low=0.0,
    high=1.0,
    valid=_probability,
    logpmf=lambda k, p: xlogy(k, p) + xlog1py(1 - k, -p),
    cdf=lambda k, p: fnp.where(k < 1, 1 - p, 1.0),
    sf=lambda k, p: fnp.where(k < 1, p, 0.0),
    mean=lambda p: p,
    var=lambda p: p * (1 - p),
    entropy=_entropy,
)


def _rest(k: Any, n: Any) -> Any:
    return fnp.where(k < n, n - k, 1.0)


binom = Distribution(
    "binom",
    "n p",
    low=0.0,
    high=lambda n, p: n,
    valid=lambda n, p: fnp.logical_and(_count(n), _probability(p)),
    logpmf=lambda k, n, p: log_binomial(k, n - k, p),
    cdf=lambda k, n, p: fnp.where(k < n, betainc(_rest(k, n), k + 1, 1 - p), 1.0),
    sf=lambda k, n, p: fnp.where(k < n, betainc(k + 1, _rest(k, n), p), 0.0),
    mean=lambda n, p: n * p,
    var=lambda n, p: n * p * (1 - p),
)

nbinom = Distribution(
    "nbinom",
    "n p",
    low=0.0,
    valid=lambda n, p: (n > 0) & (p > 0) & (p <= 1),
    logpmf=lambda k, n, p: log_binomial(n, k, p) - fnp.log1p(k / n),
    cdf=lambda k, n, p: betainc(n, k + 1, p),
    sf=lambda k, n, p: betainc(k + 1, n, 1 - p),
    mean=lambda n, p: n * (1 - p) / p,
    var=lambda n, p: n * (1 - p) / (p * p),
)

geom = Distribution(
    "geom",
    "p",
    low=1.0,
    valid=lambda p: fnp.logical_and(p > 0, p <= 1),
    logpmf=lambda k, p: xlog1py(k - 1, -p) + fnp.log(p),
    logsf=lambda k, p: k * fnp.log1p(-p),
    mean=lambda p: 1 / p,
    var=lambda p: (1 - p) / (p * p),
    entropy=lambda p: _entropy(p) / p,
)

LARGE, TERMS = 60.0, 160


def _poisson_entropy(mu: Any) -> Any:
    """A sum over all that is likely, or the asymptotic series in 1/mu."""
    small = mu < LARGE
    m = fnp.where(small, mu, 0.0)[..., None]
    k = fnp.arange(TERMS, dtype=mu.dtype)
    log_p = log_poisson(fnp.broadcast_to(k, (*mu.shape, TERMS)), m + 0 * k)
    likely = log_p > -INF
    log_p = fnp.where(likely, log_p, 0.0)
    total = -fnp.sum(fnp.where(likely, fnp.exp(log_p), 0.0) * log_p, axis=-1)
    u = 1 / fnp.where(small, LARGE, mu)
    series = u * (1 / 12 + u * (1 / 24 + u * (19 / 360 + u * (9 / 80 + u * 863 / 2520))))
    far = 0.5 * (math.log(2 * math.pi) + 1 - fnp.log(u)) - series
    return fnp.where(small, total, far)


poisson = Distribution(
    "poisson",
    "mu",
    low=0.0,
    valid=lambda mu: mu >= 0,
    logpmf=log_poisson,
    cdf=lambda k, mu: igammac(k + 1, mu),
    sf=lambda k, mu: igamma(k + 1, mu),
    mean=lambda mu: mu,
    var=lambda mu: mu,
    entropy=_poisson_entropy,
)


def _betabinom_logpmf(k: Any, n: Any, a: Any, b: Any) -> Any:
    rest = log_beta(k + a, n - k + b) - log_beta(a, b)
    return rest - fnp.log1p(n) - log_beta(n - k + 1, k + 1)


def _betabinom_var(n: Any, a: Any, b: Any) -> Any:
    total = a + b
    return n * a * b * (total + n) / (total**2 * (total + 1))


betabinom = Distribution(
    "betabinom",
    "n a b",
    low=0.0,
    high=lambda n, a, b: n,
    valid=lambda n, a, b: _count(n) & (a > 0) & (b > 0),
    logpmf=_betabinom_logpmf,
    mean=lambda n, a, b: n * a / (a + b),
    var=_betabinom_var,
)


def _hypergeom_logpmf(k: Any, M: Any, n: Any, N: Any) -> Any:
    # Two binomial terms over a third one, at a probability at which none is tiny.
    p = N / fnp.where(M > 0, M, 1.0)
    given = log_binomial(k, n - k, p) + log_binomial(N - k, M - n - N + k, p)
    return given - log_binomial(N, M - N, p)


def _hypergeom_var(M: Any, n: Any, N: Any) -> Any:
    spread = n * (N / M) * ((M - n) / M) * (M - N)
    return guarded(M > 1, lambda m: 1 / (m - 1), M, 2.0) * spread


hypergeom = Distribution(
    "hypergeom",
    "M n N",
    low=lambda M, n, N: fnp.maximum(0.0, N - (M - n)),
    high=lambda M, n, N: fnp.minimum(n, N),
    valid=lambda M, n, N: _count(M) & _count(n) & _count(N) & (n <= M) & (N <= M),
    logpmf=_hypergeom_logpmf,
    mean=lambda M, n, N: N * (n / M),
    var=_hypergeom_var,
)

zipf = Distribution(
    "zipf",
    "a",
    low=1.0,
    valid=lambda a: a > 1,
    logpmf=lambda k, a: -a * fnp.log(k) - fnp.log(zeta(a, fnp.ones_like(a))),
    sf=lambda k, a: zeta(a, k + 1) / zeta(a, fnp.ones_like(a)),
    mean=lambda a: (
        fnp.where(a > 2, guarded(a > 2, lambda a: zeta(a - 1, fnp.ones_like(a)), a, 3.0), INF)
        / zeta(a, fnp.ones_like(a))
    ),
)

randint = Distribution(
    "randint",
    "low high",
    low=lambda low, high: low,
    high=lambda low, high: high - 1,
    valid=lambda low, high: (low < high) & (low == fnp.floor(low)) & (high == fnp.floor(high)),
    logpmf=lambda k, low, high: -fnp.log(high - low) + 0 * k,
    cdf=lambda k, low, high: (k + 1 - low) / (high - low),
    sf=lambda k, low, high: (high - 1 - k) / (high - low),
    mean=lambda low, high: 0.5 * (low + high - 1),
    var=lambda low, high: ((high - low) ** 2 - 1) / 12,
    entropy=lambda low, high: fnp.log(high - low),
)
