"""Discrete distributions over the integers."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.errors import DTypeError
from funcgrad.ops.special import lgamma
from funcgrad.random.basic import shape_with, uniform
from funcgrad.random.keys import split
from funcgrad.transforms.scan import scan
from funcgrad.transforms.while_loop import while_loop


def _int_dtype(what: str, dtype: Any) -> np.dtype:
    found = current().int_dtype if dtype is None else dtypes.canonical(dtype)
    if not dtypes.is_integer(found):
        raise DTypeError(f"{what}: dtype must be an integer one, got {found}")
    return found


def _by_products(key: Any, lam: Any, shape: tuple[int, ...], limit: int) -> Any:
    """Multiply uniform variables until the product falls below exp(-lam) (Knuth, 1969)."""

    def going(state: Any) -> Any:
        i, _, _, log_product = state
        return fnp.logical_and(fnp.any(log_product > -lam), i < limit)

    def turn(state: Any) -> Any:
        i, k, key, log_product = state
        key, sub = split(key)
        k = fnp.where(log_product > -lam, k + 1, k)
        return i + 1, k, key, log_product + fnp.log(uniform(sub, shape, np.float32))

    start = (fnp.zeros((), "int32"), fnp.zeros(shape, "int32"), key, fnp.zeros(shape, "float32"))
    return while_loop(going, turn, start)[1] - 1


def _by_rejection(key: Any, lam: Any, shape: tuple[int, ...], limit: int) -> Any:
    """Transformed rejection (Hörmann, "The transformed rejection method for generating Poisson
    random variables", 1993)."""
    log_lam = fnp.log(lam)
    b = 0.931 + 2.53 * fnp.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2)

    def going(state: Any) -> Any:
        i, _, accepted, _ = state
        return fnp.logical_and(fnp.any(fnp.logical_not(accepted)), i < limit)

    def turn(state: Any) -> Any:
        i, held, accepted, key = state
        key, k0, k1 = split(key, 3)
        u = uniform(k0, shape, lam.dtype) - 0.5
        v = uniform(k1, shape, lam.dtype)
        w = 0.5 - fnp.abs(u)
        k = fnp.floor((2 * a / w + b) * u + lam + 0.43)
        s = fnp.log(v * inverse_alpha / (a / (w * w) + b))
        likely = -lam + k * log_lam - lgamma(k + 1)
        at_once = fnp.logical_and(w >= 0.07, v <= v_r)
        never = fnp.logical_or(k < 0, fnp.logical_and(w < 0.013, v > w))
        good = fnp.logical_or(at_once, fnp.logical_and(fnp.logical_not(never), s <= likely))
        return i + 1, fnp.where(good, k, held), fnp.logical_or(accepted, good), key

    start = (
        fnp.zeros((), "int32"),
        fnp.full(shape, -1.0, lam.dtype),
        fnp.zeros(shape, bool),
        key,
    )
    return while_loop(going, turn, start)[1].astype("int32")


def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of events of rate lam ≥ 0: P(k) = lamᵏ·exp(-lam)/k!.

    >>> from funcgrad import random
    >>> random.poisson(random.key(0), 3.0, (4,)).shape
    (4,)
    """
    dtype = _int_dtype("random.poisson", dtype)
    lam = fnp.asarray(lam)
    if lam.dtype != np.float32:
        lam = lam.astype(np.float32)
    shape = shape_with("random.poisson", shape, lam=lam)
    limit = int(np.iinfo(np.int32).max)
    wide = fnp.broadcast_to(lam, shape)
    small = fnp.logical_or(fnp.isnan(wide), wide < 10)
    by_products = _by_products(key, fnp.where(small, wide, 0.0), shape, limit)
    by_rejection = _by_rejection(key, fnp.where(small, 1e5, wide), shape, limit)
    drawn = fnp.where(small, by_products, by_rejection)
    drawn = fnp.where(wide == 0, fnp.zeros_like(drawn), drawn)
    return fnp.where(wide >= 0, drawn, -1).astype(dtype)


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of trials until the first success of probability p: P(k) = (1-p)^(k-1)·p.

    >>> from funcgrad import random
    >>> random.geometric(random.key(0), 0.5, (4,)).shape
    (4,)
    """
    dtype = _int_dtype("random.geometric", dtype)
    p = fnp.asarray(p, current().float_dtype)
    shape = shape_with("random.geometric", shape, p=p)
    u = uniform(key, shape, p.dtype, float(dtypes.finfo(p.dtype).tiny))
    return (fnp.floor(fnp.log(u) / fnp.log1p(-p)) + 1).astype(dtype)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of successes in n trials of probability p, as floats of dtype.

    Waiting times between successes are geometric; they are added up until n is passed (Devroye,
    "Non-Uniform Random Variate Generation", 1986, X.4), so the time grows with n·min(p, 1-p).

    >>> from funcgrad import random
    >>> random.binomial(random.key(0), 10, 0.5, (4,)).shape
    (4,)
    """
    found = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    n, p = fnp.asarray(n, found), fnp.asarray(p, found)
    shape = shape_with("random.binomial", shape, n=n, p=p)
    n, p = fnp.broadcast_to(n, shape), fnp.broadcast_to(p, shape)
    valid = fnp.logical_and(fnp.logical_and(p >= 0, p <= 1), n >= 0)
    rare = fnp.where(p <= 0.5, p, 1 - p)
    rare = fnp.where(valid, rare, fnp.zeros_like(rare))
    log_fail = fnp.log1p(-rare)

    def going(state: Any) -> Any:
        _, waited, _ = state
        return fnp.any(fnp.logical_and(waited <= n, rare > 0))

    def turn(state: Any) -> Any:
        count, waited, key = state
        key, sub = split(key)
        wait = fnp.ceil(
            fnp.log1p(-uniform(sub, shape, found)) / fnp.where(rare > 0, log_fail, -1.0)
        )
        waited = waited + fnp.maximum(wait, 1)
        return fnp.where(waited <= n, count + 1, count), waited, key

    start = (fnp.zeros(shape, found), fnp.zeros(shape, found), key)
    successes = while_loop(going, turn, start)[0]
    successes = fnp.where(rare > 0, successes, fnp.zeros_like(successes))
    result = fnp.where(p <= 0.5, successes, n - successes)
    return fnp.where(valid, result, fnp.nan)


def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None) -> Any:
    """Counts of n draws from the probabilities p (…, k), as floats: conditional binomials.

    >>> from funcgrad import random
    >>> counts = random.multinomial(random.key(0), 10, fnp.array([0.5, 0.25, 0.25]))
    >>> float(counts.sum())
    10.0
    """
    found = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    p = fnp.asarray(p, found)
    n = fnp.asarray(n, found)
    if shape is not None:
        p = fnp.broadcast_to(p, tuple(shape))
    batch = np.broadcast_shapes(n.shape, p.shape[:-1])
    p = fnp.moveaxis(fnp.broadcast_to(p, (*batch, p.shape[-1])), -1, 0)
    remaining = fnp.flip(fnp.cumsum(fnp.flip(p, 0), axis=0), 0)
    ratio = fnp.where(remaining > 0, p / fnp.where(remaining > 0, remaining, 1.0), 0.0)

    def turn(left: Any, x: Any) -> Any:
        sub, share = x
        count = binomial(sub, left, fnp.clip(share, 0.0, 1.0), batch, found)
        return left - count, count

    keys = split(key, (p.shape[0],))
    _, counts = scan(turn, fnp.broadcast_to(n, batch), (keys, ratio))
    return fnp.moveaxis(counts, 0, -1)
