"""Continuous distributions by transforming uniform and normal draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import integer
from funcgrad.random.basic import (
    arguments,
    float_dtype,
    gumbel_noise,
    normal,
    rademacher,
    shape_with,
    uniform,
)
from funcgrad.random.gammas import gamma
from funcgrad.random.keys import sampler, split
from funcgrad.transforms.recorded import recorded


@sampler
@recorded
def exponential(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Density exp(-x) for x ≥ 0.

    >>> from funcgrad import random
    >>> random.exponential(random.key(0), (2,)).shape
    (2,)
    """
    return -fnp.log1p(-uniform(key, shape, float_dtype("random.exponential", dtype)))


@sampler
@recorded
def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None) -> Any:
    """Density exp(-x - exp(-x)). mode="high": with twice the random bits, for large values.

    >>> from funcgrad import random
    >>> random.gumbel(random.key(0), (2,)).shape
    (2,)
    """
    return gumbel_noise("random.gumbel", key, shape, float_dtype("random.gumbel", dtype), mode)


@sampler
@recorded
def laplace(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Density exp(-|x|)/2.

    >>> from funcgrad import random
    >>> random.laplace(random.key(0), (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.laplace", dtype)
    u = uniform(key, shape, dtype, -1.0 + float(dtypes.finfo(dtype).epsneg), 1.0)
    return fnp.sign(u) * fnp.log1p(-fnp.abs(u))


@sampler
@recorded
def logistic(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Density exp(-x)/(1 + exp(-x))².

    >>> from funcgrad import random
    >>> random.logistic(random.key(0), (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.logistic", dtype)
    u = uniform(key, shape, dtype, float(dtypes.finfo(dtype).tiny), 1.0)
    return fnp.log(u) - fnp.log1p(-u)


@sampler
@recorded
def cauchy(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Density 1/(π(1 + x²)).

    >>> from funcgrad import random
    >>> random.cauchy(random.key(0), (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.cauchy", dtype)
    u = uniform(key, shape, dtype, float(dtypes.finfo(dtype).eps), 1.0)
    return fnp.tan(np.array(math.pi, dtype) * (u - np.array(0.5, dtype)))


@sampler
@recorded
def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None) -> Any:
    """exp(sigma·z) of a normal z, which may be complex.

    >>> from funcgrad import random
    >>> random.lognormal(random.key(0), 1.0, (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.lognormal", dtype, complex_too=True)
    sigma = fnp.asarray(sigma, dtypes.real_part(dtype))
    shape = shape_with("random.lognormal", shape, sigma=sigma)
    return fnp.exp(normal(key, shape, dtype) * sigma)


@sampler
@recorded
def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Density b·x^(-b-1) for x ≥ 1.

    >>> from funcgrad import random
    >>> random.pareto(random.key(0), 2.0, (2,)).shape
    (2,)
    """
    dtype, shape, b = arguments("random.pareto", shape, dtype, b=b)
    return fnp.exp(exponential(key, shape, dtype) / b)


@sampler
@recorded
def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Density x/s²·exp(-x²/(2s²)) for x ≥ 0 with scale s.

    >>> from funcgrad import random
    >>> random.rayleigh(random.key(0), 1.0, (2,)).shape
    (2,)
    """
    dtype, shape, scale = arguments("random.rayleigh", shape, dtype, scale=scale)
    u = uniform(key, shape, dtype, float(dtypes.finfo(dtype).tiny))
    return fnp.sqrt(-2 * fnp.log(u)) * scale


@sampler
@recorded
def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = None, dtype: Any = None
) -> Any:
    """Density of λ·E^(1/k): E exponential, scale λ, concentration k.

    >>> from funcgrad import random
    >>> random.weibull_min(random.key(0), 1.0, 2.0, (2,)).shape
    (2,)
    """
    dtype, shape, scale, concentration = arguments(
        "random.weibull_min", shape, dtype, scale=scale, concentration=concentration
    )
    u = uniform(key, shape, dtype)
    return fnp.power(-fnp.log1p(-u), 1 / concentration) * scale


@sampler
@recorded
def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None
) -> Any:
    """The density that rises linearly from left to mode and falls to right.

    >>> from funcgrad import random
    >>> random.triangular(random.key(0), 0.0, 0.5, 1.0, (2,)).shape
    (2,)
    """
    dtype, shape, left, mode, right = arguments(
        "random.triangular", shape, dtype, left=left, mode=mode, right=right
    )
    u = uniform(key, shape, dtype)
    cut = (mode - left) / (right - left)
    rising = left + fnp.sqrt(u * (right - left) * (mode - left))
    falling = right - fnp.sqrt((1 - u) * (right - left) * (right - mode))
    return fnp.where(u < cut, rising, falling)


@sampler
@recorded
def maxwell(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """The length of a normal vector in three dimensions.

    >>> from funcgrad import random
    >>> random.maxwell(random.key(0), (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.maxwell", dtype)
    z = normal(key, (*shape, 3), dtype)
    return fnp.sqrt(fnp.sum(z * z, axis=-1))


@sampler
@recorded
def double_sided_maxwell(key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None) -> Any:
    """loc + scale·m with m of either sign and Maxwell-distributed size.

    The result has the shape `shape`, followed by that of loc and scale together.

    >>> from funcgrad import random
    >>> random.double_sided_maxwell(random.key(0), 0.0, 1.0, (2,)).shape
    (2,)
    """
    dtype = float_dtype("random.double_sided_maxwell", dtype)
    loc, scale = fnp.asarray(loc, dtype), fnp.asarray(scale, dtype)
    shape = (*shape, *np.broadcast_shapes(loc.shape, scale.shape))
    k1, k2 = split(key)
    return maxwell(k1, shape, dtype) * rademacher(k2, shape, dtype) * scale + loc


@sampler
def generalized_normal(key: Any, p: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Density proportional to exp(-|x|^p).

    >>> from funcgrad import random
    >>> random.generalized_normal(random.key(0), 2.0, (2,)).shape
    (2,)
    """
    dtype, shape, p = arguments("random.generalized_normal", shape, dtype, p=p)
    k1, k2 = split(key)
    return rademacher(k2, shape).astype(dtype) * gamma(k1, 1 / p, shape, dtype) ** (1 / p)


@sampler
@recorded
def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The inverse Gaussian with scale 1 (Michael, Schucany & Haas, 1976).

    >>> from funcgrad import random
    >>> random.wald(random.key(0), 1.0, (2,)).shape
    (2,)
    """
    dtype, shape, mean = arguments("random.wald", shape, dtype, mean=mean)
    k1, k2 = split(key)
    z, u = normal(k1, shape, dtype), uniform(k2, shape, dtype)
    # The smaller root of the quadratic, written so that nothing cancels.
    half = mean * (z * z) / 2
    small = mean / (1 + half + fnp.sqrt(half * (2 + half)))
    return fnp.where(u <= mean / (mean + small), small, mean * mean / small)


@sampler
@recorded
def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = None, method: str = "cholesky"
) -> Any:
    """Normal vectors with a mean (…, n) and a covariance (…, n, n); shape is that of the batch.

    dtype: that of mean and cov by default.
    method: how the covariance is factored, "cholesky", "eigh" or "svd" (these allow it singular).
        With "eigh", compiled code may draw other samples: the signs of vectors are any.

    >>> from funcgrad import random
    >>> random.multivariate_normal(random.key(0), fnp.zeros(2), fnp.eye(2), (5,)).shape
    (5, 2)
    """
    mean, cov = fnp.asarray(mean), fnp.asarray(cov)
    joint = fnp.result_type(mean, cov)
    if dtype is None and dtypes.is_float(joint):
        dtype = joint
    dtype = float_dtype("random.multivariate_normal", dtype)
    mean, cov = mean.astype(dtype), cov.astype(dtype)
    n = mean.shape[-1] if mean.ndim else -1
    if cov.shape[-2:] != (n, n):
        raise ShapeError(
            f"random.multivariate_normal: mean (…, n) and cov (…, n, n) don't fit: {mean.shape} "
            f"and {cov.shape}"
        )
    shape = shape_with("random.multivariate_normal", shape, mean=mean[..., 0], cov=cov[..., 0, 0])
    if method == "cholesky":
        factor = fnp.linalg.cholesky(cov)
    elif method == "eigh":
        w, v = fnp.linalg.eigh(cov)
        factor = v * fnp.sqrt(w)[..., None, :]
    elif method == "svd":
        u, s, _ = fnp.linalg.svd(cov)
        factor = u * fnp.sqrt(s)[..., None, :]
    else:
        raise ValueError(
            f"random.multivariate_normal: method must be cholesky, eigh or svd, got {method!r}"
        )
    z = normal(key, (*shape, n), dtype)
    return mean + fnp.einsum("...ij,...j->...i", factor, z)


@sampler
def orthogonal(key: Any, n: int, shape: Any = (), dtype: Any = None, m: int | None = None) -> Any:
    """Matrices (…, n, m), uniform among those with orthonormal columns, or rows where n < m.

    m: n by default. Complex dtypes give unitary matrices. Source: Mezzadri, "How to generate random
    matrices from the classical compact groups", 2007.

    >>> from funcgrad import random
    >>> random.orthogonal(random.key(0), 3).shape
    (3, 3)
    """
    dtype = float_dtype("random.orthogonal", dtype, complex_too=True)
    n = integer("n", n)
    m = n if m is None else integer("m", m)
    if not min(n, m):
        return fnp.zeros((*shape, n, m), dtype)
    q, r = fnp.linalg.qr(normal(key, (*shape, max(n, m), min(n, m)), dtype))
    q = q * fnp.sign(fnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return fnp.swapaxes(q, -1, -2) if n < m else q


@sampler
def ball(key: Any, d: int, p: float = 2, shape: Any = (), dtype: Any = None) -> Any:
    """Uniform in the d-dimensional unit ball of the p-norm (Barthe et al., 2005).

    >>> from funcgrad import random
    >>> random.ball(random.key(0), 3, shape=(5,)).shape
    (5, 3)
    """
    dtype = float_dtype("random.ball", dtype)
    k1, k2 = split(key)
    g = generalized_normal(k1, p, (*shape, d), dtype)
    e = exponential(k2, shape, dtype)
    length = (fnp.sum(fnp.abs(g) ** p, axis=-1) + e) ** (1 / p)
    return g / length[..., None]
