"""Discrete distributions over the integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise.special import lgamma
from funcgrad.random.basic import float_dtype, shape_with, uniform
from funcgrad.random.keys import sampler, split
from funcgrad.random.once import traced_once
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.control.while_loop import while_loop


def _int_dtype(what: str, dtype: Any) -> np.dtype:
    found = current().int_dtype if dtype is None else dtypes.canonical(dtype)
    if not dtypes.is_integer(found):
        raise DTypeError(f"{what}: dtype must be an integer one, got {found}")
    return found


@traced_once(2, 3)
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


@traced_once(2, 3)
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


@sampler
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


@sampler
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


@traced_once(3)
def _by_waiting(key: Any, n: Any, p: Any, shape: tuple[int, ...]) -> Any:
    """Add up the waiting times between successes, which are geometric, until n trials are over
    (Devroye, "Non-Uniform Random Variate Generation", 1986, X.4)."""
    log_fail = fnp.log1p(-p)

    def going(state: Any) -> Any:
        return fnp.any(state[1] <= n)

    def turn(state: Any) -> Any:
        count, waited, key = state
        sub, key = split(key)
        count = fnp.where(waited <= n, count + 1, count)
        wait = fnp.ceil(fnp.log(uniform(sub, shape, p.dtype)) / log_fail)
        # Without any chance of success (0/0 or x/0) the first wait never ends.
        return count, waited + fnp.where(p > 0, wait, fnp.inf), key

    start = (fnp.zeros(shape, p.dtype), fnp.zeros(shape, p.dtype), key)
    return while_loop(going, turn, start)[0] - 1


def _stirling_rest(k: Any) -> Any:
    """log k! less Stirling's formula (k + 1/2)·log(k + 1) - (k + 1) + log(2π)/2."""
    exact = np.array(
        [
            math.lgamma(i + 1) - (i + 0.5) * math.log(i + 1) + i + 1 - math.log(2 * math.pi) / 2
            for i in range(10)
        ]
    )
    k1 = k + 1
    series = (1 / 12 - (1 / 360 - 1 / 1260 / (k1 * k1)) / (k1 * k1)) / k1
    first = fnp.asarray(exact, k.dtype)[fnp.clip(k, 0, 9).astype(np.int32)]
    return fnp.where(k <= 9, first, series)


@traced_once(3)
def _trials_by_rejection(key: Any, n: Any, p: Any, shape: tuple[int, ...]) -> Any:
    """Transformed rejection, BTRS (Hörmann, "The generation of binomial random variates", 1993),
    for n·p ≥ 10 and p ≤ 1/2."""
    deviation = fnp.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    v_r = 0.92 - 4.2 / b
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = fnp.floor((n + 1) * p)
    at_mode = (mode + 0.5) * fnp.log((mode + 1) / (odds * (n - mode + 1)))
    at_mode = at_mode + _stirling_rest(mode) + _stirling_rest(n - mode)

    def turn(state: Any) -> Any:
        held, accepted, key = state
        key, k0, k1 = split(key, 3)
        u = uniform(k0, shape, p.dtype) - 0.5
        v = uniform(k1, shape, p.dtype)
        w = 0.5 - fnp.abs(u)
        k = fnp.floor((2 * a / w + b) * u + n * p + 0.5)
        inside = fnp.logical_and(k >= 0, k <= n)
        bound = (
            at_mode
            + (n + 1) * fnp.log((n - mode + 1) / (n - k + 1))
            + (k + 0.5) * fnp.log(odds * (n - k + 1) / (k + 1))
            - _stirling_rest(k)
            - _stirling_rest(n - k)
        )
        slow = fnp.logical_and(inside, fnp.log(v * alpha / (a / (w * w) + b)) <= bound)
        good = fnp.logical_or(fnp.logical_and(w >= 0.07, v <= v_r), slow)
        return fnp.where(good, k, held), fnp.logical_or(accepted, good), key

    start = (fnp.zeros(shape, p.dtype), fnp.zeros(shape, bool), key)
    return while_loop(lambda state: fnp.any(fnp.logical_not(state[1])), turn, start)[0]


@sampler
def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """The number of successes in n trials of probability p, as floats of dtype.

    NaN where n or p is out of range; of infinitely many trials, infinite, or 0 for p = 0.

    >>> from funcgrad import random
    >>> random.binomial(random.key(0), 10, 0.5, (4,)).shape
    (4,)
    """
    dtype = float_dtype("random.binomial", dtype)
    wide = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
    n, p = fnp.asarray(n, wide), fnp.asarray(p, wide)
    shape = shape_with("random.binomial", shape, n=n, p=p)
    n, p = fnp.floor(fnp.broadcast_to(n, shape)), fnp.broadcast_to(p, shape)
    valid = fnp.logical_and(fnp.logical_and(p >= 0, p <= 1), n >= 0)
    rare = fnp.where(valid, fnp.where(p < 0.5, p, 1 - p), 0.0)
    # Where a loop's result isn't taken, it is given something that ends at once: n and p may be
    # anything there.
    drawn = fnp.logical_and(valid, fnp.isfinite(n))
    few, many = fnp.logical_and(drawn, n * rare <= 10), fnp.logical_and(drawn, n * rare > 10)
    by_waiting = _by_waiting(key, fnp.where(few, n, 0.0), fnp.where(few, rare, 0.0), shape)
    by_rejection = _trials_by_rejection(
        key, fnp.where(many, n, 1e4), fnp.where(many, rare, 0.5), shape
    )
    successes = fnp.where(many, by_rejection, by_waiting)
    result = fnp.where(p < 0.5, successes, n - successes)
    result = fnp.where(n == fnp.inf, fnp.where(p == 0, 0.0, fnp.inf), result)
    return fnp.where(valid, result, fnp.nan).astype(dtype)


@sampler
def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None) -> Any:
    """Counts of n draws from the probabilities p (…, k), as floats: conditional binomials.

    shape: of the result, its last axis included.

    >>> from funcgrad import random
    >>> counts = random.multinomial(random.key(0), 10, fnp.array([0.5, 0.25, 0.25]))
    >>> float(counts.sum())
    10.0
    """
    found = float_dtype("random.multinomial", dtype)
    n, p = fnp.asarray(n, found), fnp.asarray(p, found)
    if not p.ndim:
        raise ShapeError("random.multinomial: p needs at least one axis, got a scalar")
    if shape is not None:
        p = fnp.broadcast_to(p, shape)
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
