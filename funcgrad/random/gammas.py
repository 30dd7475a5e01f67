"""The gamma distribution, with derivatives by its shape parameter, and what is made from it."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.ops.elementwise.special import random_gamma_grad
from funcgrad.random.basic import arguments, float_dtype, normal, shape_with, uniform
from funcgrad.random.keys import Key, key_data, key_impl, sampler, split, wrap_key_data
from funcgrad.random.once import traced_once
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.control.while_loop import while_loop
from funcgrad.transforms.derivatives.custom import custom_jvp


def _one(key: Any, alpha: Any, log_space: bool) -> Any:
    """A draw by rejection (Marsaglia & Tsang, "A simple method for generating gamma variables",
    2000); for alpha < 1 a draw for alpha + 1 is scaled down."""
    dtype = alpha.dtype

    def const(v: float) -> Any:
        return fnp.asarray(np.array(v, dtype))

    large = alpha >= 1
    d = fnp.where(large, alpha, alpha + 1) - const(1 / 3)
    c = const(1 / 3) / fnp.sqrt(d)

    def rejected(state: Any) -> Any:
        _, x2, v, u = state
        by_squeeze = u >= 1 - const(0.0331) * (x2 * x2)
        by_log = fnp.log(u) >= x2 * const(0.5) + d * ((1 - v) + fnp.log(v))
        return fnp.logical_and(by_squeeze, by_log)

    def draw(state: Any) -> Any:
        key, x_key, u_key = split(state[0], 3)

        def again(inner: Any) -> Any:
            held, sub = split(inner[0])
            x = normal(sub, (), dtype)
            return held, x, 1 + x * c

        _, x, v = while_loop(lambda s: s[2] <= 0, again, (x_key, const(0.0), const(-1.0)))
        return key, x * x, v * v * v, uniform(u_key, (), dtype)

    key, boost_key = split(key)
    start = (key, const(0.0), const(1.0), const(2.0))
    v = while_loop(rejected, draw, start)[2]
    u = 1 - uniform(boost_key, (), dtype)
    if not log_space:
        return d * v * fnp.where(large, const(1.0), u ** (1 / alpha))
    log_u = fnp.log(u)
    boost = fnp.where(fnp.logical_or(large, log_u == 0), const(0.0), log_u * (1 / alpha))
    return fnp.log(d) + fnp.log(v) + boost


@traced_once(2)
def _draws(keys: Any, alpha: Any, log_space: bool) -> Any:
    return vmap(lambda k, a: _one(k, a, log_space))(keys, alpha)


def _keys(words: Any) -> Any:
    """Keys, or words, as keys; those of unsafe_rbg go on as rbg's."""
    if isinstance(words, Key) and words.impl != "unsafe_rbg":
        return words
    words = key_data(words)
    return wrap_key_data(words, impl=key_impl(words))


@custom_jvp
def _gamma(words: Any, alpha: Any) -> Any:
    return _draws(_keys(words), alpha, False)


@_gamma.defjvp
def _gamma_jvp(primals: Any, tangents: Any) -> Any:
    words, alpha = primals
    sample = _gamma(words, alpha)
    return sample, tangents[1] * random_gamma_grad(alpha, sample)


@custom_jvp
def _loggamma(words: Any, alpha: Any) -> Any:
    return _draws(_keys(words), alpha, True)


@_loggamma.defjvp
def _loggamma_jvp(primals: Any, tangents: Any) -> Any:
    words, alpha = primals
    log_sample = _loggamma(words, alpha)
    sample = fnp.exp(log_sample)
    # Where the sample underflows, d log x / d alpha tends to -log(x)/alpha.
    limit = -log_sample / alpha
    safe = fnp.where(sample == 0, fnp.ones_like(sample), sample)
    slope = fnp.where(sample == 0, limit, random_gamma_grad(alpha, safe) / safe)
    return log_sample, tangents[1] * slope


def _sampled(what: str, draw: Any, key: Any, a: Any, shape: Any, dtype: Any) -> Any:
    dtype, shape, a = arguments(what, shape, dtype, a=a)
    flat = fnp.broadcast_to(a, shape).reshape(-1)
    keys = split(key, (flat.size,))
    return draw(keys, flat).reshape(shape)


@sampler
def gamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Density x^(a-1)·exp(-x)/Γ(a); differentiable in a.

    >>> from funcgrad import random
    >>> random.gamma(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    return _sampled("random.gamma", _gamma, key, a, shape, dtype)


@sampler
def loggamma(key: Any, a: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The logarithm of a gamma variable, accurate where the variable itself underflows.

    >>> from funcgrad import random
    >>> random.loggamma(random.key(0), 1e-3, (3,)).shape
    (3,)
    """
    return _sampled("random.loggamma", _loggamma, key, a, shape, dtype)


@sampler
def beta(key: Any, a: Any, b: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Density proportional to x^(a-1)·(1-x)^(b-1) on (0, 1).

    >>> from funcgrad import random
    >>> random.beta(random.key(0), 2.0, 3.0, (3,)).shape
    (3,)
    """
    dtype, shape, a, b = arguments("random.beta", shape, dtype, a=a, b=b)
    k1, k2 = split(key)
    log_x, log_y = loggamma(k1, a, shape, dtype), loggamma(k2, b, shape, dtype)
    top = fnp.maximum(log_x, log_y)
    x, y = fnp.exp(log_x - top), fnp.exp(log_y - top)
    return x / (x + y)


@sampler
def dirichlet(key: Any, alpha: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Points of the simplex: gamma variables of parameters alpha (…, n), divided by their sum.

    >>> from funcgrad import random
    >>> random.dirichlet(random.key(0), fnp.ones(4), (3,)).shape
    (3, 4)
    """
    dtype = float_dtype("random.dirichlet", dtype)
    alpha = fnp.asarray(alpha, dtype)
    if not alpha.ndim:
        raise ValueError("random.dirichlet: alpha needs at least one axis, got a scalar")
    shape = shape_with("random.dirichlet", shape, alpha=alpha[..., 0])
    logs = loggamma(key, alpha, (*shape, alpha.shape[-1]), dtype)
    weights = fnp.exp(logs - fnp.max(logs, axis=-1, keepdims=True))
    return weights / fnp.sum(weights, axis=-1, keepdims=True)


@sampler
def chisquare(key: Any, df: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The sum of df squared normal variables: twice a gamma variable of df/2.

    >>> from funcgrad import random
    >>> random.chisquare(random.key(0), 3.0, (3,)).shape
    (3,)
    """
    dtype, shape, df = arguments("random.chisquare", shape, dtype, df=df)
    return 2 * fnp.exp(loggamma(key, df / 2, shape, dtype))


@sampler
def t(key: Any, df: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Student's t with df degrees of freedom.

    >>> from funcgrad import random
    >>> random.t(random.key(0), 3.0, (3,)).shape
    (3,)
    """
    dtype, shape, df = arguments("random.t", shape, dtype, df=df)
    k1, k2 = split(key)
    half = df / 2
    return normal(k1, shape, dtype) * fnp.sqrt(half / gamma(k2, half, shape, dtype))


@sampler
def f(key: Any, dfnum: Any, dfden: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The ratio of two mean squares, of dfnum and dfden normal variables.

    >>> from funcgrad import random
    >>> random.f(random.key(0), 3.0, 4.0, (3,)).shape
    (3,)
    """
    dtype, shape, above, below = arguments("random.f", shape, dtype, dfnum=dfnum, dfden=dfden)
    k1, k2 = split(key)
    bottom = chisquare(k1, below, shape, dtype) / below
    return chisquare(k2, above, shape, dtype) / above / bottom
