"""Distributions of several variables: normal, Dirichlet's, multinomial.

Shapes are those of JAX: the variables of `dirichlet` lie along the first axis, of the others along
the last one.
"""

from __future__ import annotations

import math
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.errors import ShapeError
from funcgrad.ops.elementwise.integrals import xlogy
from funcgrad.ops.elementwise.special import lgamma
from funcgrad.scipy._operands import float_arrays, real_array

LOG_2PI = math.log(2 * math.pi)


def _reals(function: str, **given: Any) -> list:
    for name, value in given.items():
        real_array(function, name, value)
    return float_arrays(list(given.values()))


class MultivariateNormal:
    """The normal distribution of vectors, by mean and covariance."""

    def __repr__(self) -> str:
        return "stats.multivariate_normal"

    def logpdf(self, x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Any:
        """The logarithm of the density at x[..., n]; a number for `cov` is a multiple of I.

        With `allow_singular` a covariance of lower rank gives the density on the space that the
        distribution lies in, and -inf beside it. Else it must be positive definite.

        >>> from funcgrad.scipy import stats
        >>> print(stats.multivariate_normal.logpdf(fnp.zeros(2), fnp.zeros(2), fnp.eye(2)))
        -1.837877
        """
        x, mean, cov = _reals("stats.multivariate_normal.logpdf", x=x, mean=mean, cov=cov)
        if not mean.ndim:
            if cov.ndim:
                raise ShapeError(_mismatch(x, mean, cov))
            return -0.5 * ((x - mean) ** 2 / cov + LOG_2PI + fnp.log(cov))
        n = mean.shape[-1]
        if not cov.ndim:
            gap = x - mean
            return -0.5 * (fnp.sum(gap * gap, axis=-1) / cov + n * (LOG_2PI + fnp.log(cov)))
        if cov.ndim < 2 or cov.shape[-2:] != (n, n) or (x.ndim and x.shape[-1] not in (1, n)):
            raise ShapeError(_mismatch(x, mean, cov))
        if allow_singular:
            return _of_lower_rank(x - mean, cov)
        root = fnp.linalg.cholesky(cov)
        gap = x - mean
        batch = fnp.broadcast_shapes(gap.shape[:-1], cov.shape[:-2])
        # One system of many right sides where there is one matrix.
        if cov.ndim == 2:
            sides = gap.reshape(-1, n).T
            y = lax.linalg.triangular_solve(root, sides, left_side=True, lower=True).T
            y = y.reshape(gap.shape)
        else:
            full = fnp.broadcast_to(root, (*batch, n, n))
            sides = fnp.broadcast_to(gap, (*batch, n))[..., None]
            y = lax.linalg.triangular_solve(full, sides, left_side=True, lower=True)[..., 0]
        log_det = fnp.sum(fnp.log(fnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)
        return -0.5 * fnp.sum(y * y, axis=-1) - 0.5 * n * LOG_2PI - log_det

    def pdf(self, x: Any, mean: Any, cov: Any, allow_singular: bool | None = None) -> Any:
        """The density at x; see `logpdf`.

        >>> from funcgrad.scipy import stats
        >>> print(stats.multivariate_normal.pdf(fnp.zeros(2), fnp.zeros(2), fnp.eye(2)))
        0.159154...
        """
        return fnp.exp(self.logpdf(x, mean, cov, allow_singular))

    def entropy(self, mean: Any, cov: Any) -> Any:
        """The differential entropy, which depends on the covariance cov[..., n, n] alone.

        >>> from funcgrad.scipy import stats
        >>> print(stats.multivariate_normal.entropy(fnp.zeros(2), fnp.eye(2)))
        2.837877...
        """
        mean, cov = _reals("stats.multivariate_normal.entropy", mean=mean, cov=cov)
        n = mean.shape[-1] if mean.ndim else 1
        if cov.ndim and (cov.ndim < 2 or cov.shape[-2:] != (n, n)):
            raise ShapeError(
                "stats.multivariate_normal.entropy: need mean (..., n) and cov (..., n, n), got "
                f"mean {mean.shape} and cov {cov.shape}"
            )
        log_det = fnp.linalg.slogdet(cov)[1] if cov.ndim else n * fnp.log(cov)
        return 0.5 * (n * (1 + LOG_2PI) + log_det)


def _of_lower_rank(gap: Any, cov: Any) -> Any:
    """The log density of what is `gap` from the mean, by the eigenvectors that count."""
    found = fnp.linalg.eigh(cov)
    values, along = found.eigenvalues, fnp.squeeze(gap[..., None, :] @ found.eigenvectors, -2)
    # What SciPy takes for zero, too.
    eps = (1e6 if values.dtype == "float64" else 1e3) * float(dtypes.finfo(values.dtype).eps)
    eps = eps * fnp.max(fnp.abs(values), axis=-1, keepdims=True)
    kept = values > eps
    safe = fnp.where(kept, values, 1.0)
    terms = fnp.where(kept, along * along / safe + fnp.log(safe) + LOG_2PI, 0.0)
    beside = fnp.sqrt(fnp.sum(fnp.where(kept, 0.0, along * along), axis=-1))
    inside = beside <= 1e3 * eps[..., 0]
    return fnp.where(inside, -0.5 * fnp.sum(terms, axis=-1), -fnp.inf)


def _mismatch(x: Any, mean: Any, cov: Any) -> str:
    return (
        "stats.multivariate_normal.logpdf: need x (..., n), mean (..., n) and cov (..., n, n), "
        f"got x {x.shape}, mean {mean.shape} and cov {cov.shape}"
    )


class Dirichlet:
    """Dirichlet's distribution of proportions."""

    def __repr__(self) -> str:
        return "stats.dirichlet"

    def logpdf(self, x: Any, alpha: Any) -> Any:
        """The logarithm of the density at the proportions x[k, ...], of which the last may lack.

        -inf where they are none; their sum may be off by rounding.

        >>> from funcgrad.scipy import stats
        >>> print(stats.dirichlet.logpdf(fnp.array([0.5, 0.5]), fnp.array([1.0, 1.0])))
        0.0
        """
        x, alpha = _reals("stats.dirichlet.logpdf", x=x, alpha=alpha)
        k = alpha.shape[0] if alpha.ndim == 1 else -1
        if x.ndim not in (1, 2) or x.shape[0] not in (k, k - 1):
            raise ShapeError(
                "stats.dirichlet.logpdf: need alpha (k,) and x (k,), (k, n), (k-1,) or (k-1, n), "
                f"got x {x.shape} and alpha {alpha.shape}"
            )
        if x.shape[0] == k - 1:
            x = fnp.concatenate([x, 1 - fnp.sum(x, axis=0, keepdims=True)], axis=0)
        column = alpha if x.ndim == 1 else alpha[:, None]
        inside = fnp.logical_and(
            fnp.all(x >= 0, axis=0),
            fnp.abs(fnp.sum(x, axis=0) - 1) < (1e-6 if x.dtype == fnp.float64 else 1e-5),
        )
        safe = fnp.where(inside, x, 1 / k)
        powers = fnp.sum(xlogy(fnp.broadcast_to(column - 1, x.shape), safe), axis=0)
        norm = fnp.sum(lgamma(alpha)) - lgamma(fnp.sum(alpha))
        value = fnp.where(inside, powers - norm, -fnp.inf)
        return fnp.where(fnp.all(alpha > 0), value, fnp.nan)

    def pdf(self, x: Any, alpha: Any) -> Any:
        """The density at the proportions x.

        >>> from funcgrad.scipy import stats
        >>> print(stats.dirichlet.pdf(fnp.array([0.5, 0.5]), fnp.array([1.0, 1.0])))
        1.0
        """
        return fnp.exp(self.logpdf(x, alpha))


class Multinomial:
    """How often each of several outcomes occurs in n draws."""

    def __repr__(self) -> str:
        return "stats.multinomial"

    def logpmf(self, x: Any, n: Any, p: Any) -> Any:
        """The logarithm of the probability of the counts x[..., k]; -inf if they don't sum to n.

        >>> from funcgrad.scipy import stats
        >>> print(stats.multinomial.logpmf(fnp.array([1, 1]), 2, fnp.array([0.5, 0.5])))
        -0.6931472
        """
        x, n, p = _reals("stats.multinomial.logpmf", x=x, n=n, p=p)
        if not p.ndim or not x.ndim or x.shape[-1] != p.shape[-1]:
            raise ShapeError(
                "stats.multinomial.logpmf: need x (..., k) and p (..., k), "
                f"got x {x.shape} and p {p.shape}"
            )
        x, p = fnp.broadcast_arrays(x, p)
        possible = fnp.logical_and(x >= 0, x == fnp.floor(x))
        safe = fnp.where(possible, x, 0.0)
        value = lgamma(n + 1) + fnp.sum(xlogy(safe, p) - lgamma(safe + 1), axis=-1)
        whole = fnp.logical_and(fnp.all(possible, axis=-1), fnp.sum(x, axis=-1) == n)
        return fnp.where(whole, value, -fnp.inf)

    def pmf(self, x: Any, n: Any, p: Any) -> Any:
        """The probability of the counts x.

        >>> from funcgrad.scipy import stats
        >>> print(stats.multinomial.pmf(fnp.array([1, 1]), 2, fnp.array([0.5, 0.5])))
        0.5
        """
        return fnp.exp(self.logpmf(x, n, p))


multivariate_normal, dirichlet, multinomial = MultivariateNormal(), Dirichlet(), Multinomial()
