"""What steps with moments are made of: decaying means, and the correction for their beginning at 0.

Means are kept in the parameters' dtype. Steps are computed from them in float32 where that is less
precise, so that a small eps doesn't vanish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.optim.base import abs_square, wide


class AdamState(NamedTuple):
    """Step count, first and second moments."""

    count: Any
    mu: Any
    nu: Any


def no_steps() -> Any:
    """A count of steps, at its beginning."""
    return fnp.zeros((), np.int32)


def zeros(params: Any, dtype: Any = None) -> Any:
    """Zeros like the parameters, in a dtype if one is given."""
    return tree.map(lambda p: fnp.zeros_like(p, dtype=dtype), params)


def real_zeros(params: Any, value: float = 0.0) -> Any:
    """Zeros (or another value) like the parameters' absolute values."""
    return tree.map(lambda p: fnp.full_like(fnp.real(p), value), params)


def cast(values: Any, dtype: Any) -> Any:
    """The values in a dtype, or as they are for None."""
    return values if dtype is None else tree.map(lambda x: x.astype(dtype), values)


def mean(updates: Any, moments: Any, decay: Any) -> Any:
    """The decaying mean of updates: (1 - decay)·g + decay·m."""
    return tree.map(lambda g, m: (1 - decay) * g + decay * m, updates, moments)


def mean_square(updates: Any, moments: Any, decay: Any) -> Any:
    """The decaying mean of |g|²."""
    return tree.map(lambda g, v: (1 - decay) * abs_square(g) + decay * v, updates, moments)


def debias(decay: Any, count: Any) -> Callable[[Any], Any]:
    """From a dtype to 1/(1 - decay^count): makes a decaying mean that began at 0 one of the steps
    so far. Computed once for all leaves of a dtype.

    >>> print(debias(0.5, no_steps() + 1)(np.dtype("float32")))
    2.0
    """
    # Not by subtraction from 1: with decay 0.999 that would lose three digits.
    if isinstance(decay, int | float):
        rate = math.log(decay) if decay > 0 else -math.inf
    else:
        rate = fnp.log(decay)

    @cache
    def factor(dtype: np.dtype) -> Any:
        return -1 / fnp.expm1(count.astype(dtype) * rate)

    return factor


def first_moment(b1: Any, count: Any, nesterov: bool) -> Callable[[Any, Any, Any], Any]:
    """From an update, its mean and a dtype to the direction of a step: the corrected mean, with
    `nesterov` one that looks a step ahead (Dozat, 2016)."""
    now = debias(b1, count)
    if not nesterov:
        return lambda g, m, dtype: m * now(dtype)
    later = debias(b1, count + 1)
    return lambda g, m, dtype: b1 * m * later(dtype) + (1 - b1) * g * now(dtype)


def each_wide(f: Callable[..., Any], updates: Any, *rest: Any) -> Any:
    """f(dtype, update, …) of all leaves, in float32 or wider, with results in the updates' dtypes.

    The dtype that f gets is the one to compute scalars in.
    """

    def one(g: Any, *others: Any) -> Any:
        dtype, g = fnp.asarray(g).dtype, wide(g)
        return fnp.asarray(f(fnp.real(g).dtype, g, *map(wide, others)), dtype)

    return tree.map(one, updates, *rest)
