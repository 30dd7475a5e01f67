"""Statistics of samples along an axis: location, spread, shape, ranks and modes.

`axis=None` takes all elements. NaN goes into results; `nan_policy="omit"` leaves it out where it is
offered.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError
from funcgrad.numpy._util import axes_of
from funcgrad.ops.arguments import integer
from funcgrad.ops.cumulative import cummax, cummin
from funcgrad.scipy._operands import real_array
from funcgrad.scipy.special.functions import entr, rel_entr


def sample(name: str, a: Any, axis: int | None, argument: str = "a") -> tuple[Any, int]:
    """An argument of `stats.<name>` as an array, flat if the axis is None, and the axis.

    >>> sample("sem", [[1, 2], [3, 4]], None)[0].shape
    (4,)
    """
    a = fnp.atleast_1d(real_array(f"stats.{name}", argument, a))
    if axis is None:
        return fnp.ravel(a), 0
    (found,) = axes_of(f"stats.{name}", integer("axis", axis), a.ndim)
    return a, found


def floats(name: str, a: Any, axis: int | None, argument: str = "a") -> tuple[Any, int]:
    """As `sample`, of a floating-point dtype.

    >>> floats("sem", [1, 2], 0)[0].dtype
    dtype('float32')
    """
    a, axis = sample(name, a, axis, argument)
    return (a if dtypes.is_inexact(a.dtype) else a.astype(current().float_dtype)), axis


def _no_policy(name: str, policy: str, offered: tuple[str, ...] = ("propagate",)) -> None:
    if policy not in ("propagate", "omit", "raise"):
        raise ArgumentError(
            f"stats.{name}: nan_policy must be 'propagate', 'omit' or 'raise', got {policy!r}"
        )
    if policy not in offered:
        raise NotImplementedError(
            f"stats.{name}: nan_policy={policy!r} needs shapes that depend on values; "
            f"offered: {', '.join(offered)}"
        )


class ModeResult(NamedTuple):
    """The most frequent values, and how often they occur."""

    mode: Any
    count: Any


def _runs(a: Any) -> tuple[Any, Any, Any]:
    """Of sorted rows: whether a run of equal elements begins, its first and its last position."""
    n = a.shape[-1]
    same = fnp.logical_or(a[..., 1:] == a[..., :-1], (a != a)[..., 1:] & (a != a)[..., :-1])
    edge = fnp.ones((*a.shape[:-1], 1), bool)
    begins = fnp.concatenate([edge, ~same], axis=-1)
    ends = fnp.concatenate([~same, edge], axis=-1)
    at = fnp.broadcast_to(fnp.arange(n), a.shape)
    first = cummax(fnp.where(begins, at, 0), axis=a.ndim - 1)
    last = cummin(fnp.where(ends, at, n), axis=a.ndim - 1, reverse=True)
    return begins, first, last


def mode(
    a: Any, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False
) -> ModeResult:
    """The most frequent value along the axis, the least of them, and its count.

    NaN counts as a value. Of no elements the mode is NaN and the count 0.

    >>> from funcgrad.scipy import stats
    >>> print(stats.mode(fnp.array([3, 1, 3, 2])).mode)
    3
    """
    _no_policy("mode", nan_policy)
    ndim = real_array("stats.mode", "a", a).ndim
    a, along = sample("mode", a, axis)
    rows = fnp.moveaxis(a, along, -1)
    if rows.shape[-1] == 0:
        dtype = current().float_dtype
        shape = rows.shape[:-1]
        value, count = fnp.full(shape, fnp.nan, dtype), fnp.zeros(shape, dtype)
    else:
        rows = fnp.sort(rows, axis=-1)
        _, first, last = _runs(rows)
        counts = last - first + 1
        best = fnp.argmax(counts, axis=-1, keepdims=True)
        value, count = (fnp.take_along_axis(x, best, axis=-1)[..., 0] for x in (rows, counts))
    if keepdims:
        shape = (1,) * ndim if axis is None else (*a.shape[:along], 1, *a.shape[along + 1 :])
        value, count = value.reshape(shape), count.reshape(shape)
    return ModeResult(value, count)


def rankdata(
    a: Any, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate"
) -> Any:
    """Ranks from 1 on, as floats; NaN wherever there is one along the axis.

    method: what equal elements get: "average", "min", "max", "dense" (as min, without gaps), or
    "ordinal" (different ranks, in order).

    >>> from funcgrad.scipy import stats
    >>> print(stats.rankdata([10, 30, 20, 30]))
    [1.  3.5 2.  3.5]
    """
    _no_policy("rankdata", nan_policy)
    if method not in ("average", "min", "max", "dense", "ordinal"):
        raise ArgumentError(
            "stats.rankdata: method must be 'average', 'min', 'max', 'dense' or 'ordinal', "
            f"got {method!r}"
        )
    a, along = sample("rankdata", a, axis)
    dtype = current().float_dtype
    if a.size == 0:
        return fnp.zeros(a.shape, dtype)
    rows = fnp.moveaxis(a, along, -1)
    order = fnp.argsort(rows, axis=-1)
    place = fnp.argsort(order, axis=-1)
    begins, first, last = _runs(fnp.take_along_axis(rows, order, axis=-1))
    if method == "ordinal":
        ranks = place + 1
    else:
        by_method = {
            "average": lambda: 0.5 * (first + last + 2).astype(dtype), "min": lambda: first + 1,
            "max": lambda: last + 1, "dense": lambda: fnp.cumsum(begins, axis=-1),
        }  # fmt: skip
        ranks = fnp.take_along_axis(by_method[method](), place, axis=-1)
    unknown = fnp.any(rows != rows, axis=-1, keepdims=True)
    return fnp.moveaxis(fnp.where(unknown, fnp.nan, ranks.astype(dtype)), -1, along)


def sem(
    a: Any,
    axis: int | None = 0,
    ddof: int = 1,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Any:
    """The standard error of the mean, std(ddof)/√n.

    >>> from funcgrad.scipy import stats
    >>> print(stats.sem([2, 4, 1, 1]))
    0.70710677
    """
    _no_policy("sem", nan_policy, ("propagate", "omit"))
    ndim = real_array("stats.sem", "a", a).ndim
    a, along = floats("sem", a, axis)
    where = ~fnp.isnan(a) if nan_policy == "omit" else fnp.ones_like(a, dtype=bool)
    n = fnp.sum(where, axis=along, keepdims=keepdims).astype(a.dtype)
    spread = fnp.std(a, axis=along, ddof=ddof, keepdims=keepdims, where=where)
    out = spread / fnp.sqrt(n)
    return out.reshape((1,) * ndim) if keepdims and axis is None else out


def moment(a: Any, order: int = 1, axis: int | None = 0, *, center: Any = None) -> Any:
    """The mean of (a - center)^order; the center is the mean, so that the first moment is 0.

    >>> from funcgrad.scipy import stats
    >>> print(stats.moment([1.0, 2.0, 3.0, 4.0], order=2))
    1.25
    """
    a, axis = floats("moment", a, axis)
    order = integer("order", order)
    if center is None:
        center = fnp.mean(a, axis=axis, keepdims=True)
    else:
        center = real_array("stats.moment", "center", center)
    return fnp.mean((a - center) ** order, axis=axis)


def _standardized(name: str, a: Any, axis: int | None, order: int) -> tuple[Any, int]:
    """The moment of this order over the variance's power, NaN where that is 0; and the number."""
    a, axis = floats(name, a, axis)
    centred = a - fnp.mean(a, axis=axis, keepdims=True)
    second = fnp.mean(centred * centred, axis=axis)
    spread = second > 0
    power = fnp.where(spread, second, 1.0) ** (0.5 * order)
    value = fnp.mean(centred**order, axis=axis) / power
    return fnp.where(spread, value, fnp.nan), a.shape[axis]


def skew(a: Any, axis: int | None = 0, bias: bool = True) -> Any:
    """The skewness, the third standardized moment; bias=False corrects for the sample's size.

    >>> from funcgrad.scipy import stats
    >>> print(stats.skew([1.0, 2.0, 3.0, 10.0]))
    1.01823...
    """
    value, n = _standardized("skew", a, axis, 3)
    return value if bias or n < 3 else value * math.sqrt(n * (n - 1)) / (n - 2)


def kurtosis(a: Any, axis: int | None = 0, fisher: bool = True, bias: bool = True) -> Any:
    """The fourth standardized moment, less the normal distribution's 3 if `fisher`.

    >>> from funcgrad.scipy import stats
    >>> print(stats.kurtosis([1.0, 2.0, 3.0, 10.0]))
    -0.76959...
    """
    value, n = _standardized("kurtosis", a, axis, 4)
    if not bias and n > 3:
        value = ((n * n - 1) * value - 3 * (n - 1) ** 2) / ((n - 2) * (n - 3)) + 3
    return value - 3 if fisher else value


class DescribeResult(NamedTuple):
    """What `describe` gives."""

    nobs: int
    minmax: tuple
    mean: Any
    variance: Any
    skewness: Any
    kurtosis: Any


def describe(a: Any, axis: int | None = 0, ddof: int = 1, bias: bool = True) -> DescribeResult:
    """Number, extremes, mean, variance, skewness and kurtosis.

    >>> from funcgrad.scipy import stats
    >>> stats.describe([1.0, 2.0, 3.0]).nobs
    3
    """
    a, axis = floats("describe", a, axis)
    return DescribeResult(
        a.shape[axis],
        (fnp.min(a, axis=axis), fnp.max(a, axis=axis)),
        fnp.mean(a, axis=axis),
        fnp.var(a, axis=axis, ddof=ddof),
        skew(a, axis, bias),
        kurtosis(a, axis, bias=bias),
    )


def zscore(a: Any, axis: int | None = 0, ddof: int = 0) -> Any:
    """(a - mean)/std; NaN where all elements are equal.

    >>> from funcgrad.scipy import stats
    >>> print(stats.zscore([1.0, 3.0]))
    [-1.  1.]
    """
    shape = real_array("stats.zscore", "a", a).shape
    a, along = floats("zscore", a, axis)
    spread = fnp.std(a, axis=along, ddof=ddof, keepdims=True)
    out = (a - fnp.mean(a, axis=along, keepdims=True)) / spread
    return out.reshape(shape) if axis is None else out


def gmean(a: Any, axis: int | None = 0) -> Any:
    """The geometric mean.

    >>> from funcgrad.scipy import stats
    >>> print(stats.gmean([1.0, 4.0]))
    2.0
    """
    a, axis = floats("gmean", a, axis)
    return fnp.exp(fnp.mean(fnp.log(a), axis=axis))


def hmean(a: Any, axis: int | None = 0) -> Any:
    """The harmonic mean.

    >>> from funcgrad.scipy import stats
    >>> print(stats.hmean([1.0, 3.0]))
    1.5
    """
    a, axis = floats("hmean", a, axis)
    return 1 / fnp.mean(1 / a, axis=axis)


def variation(a: Any, axis: int | None = 0, ddof: int = 0) -> Any:
    """The coefficient of variation, std/mean.

    >>> from funcgrad.scipy import stats
    >>> print(stats.variation([1.0, 3.0]))
    0.5
    """
    a, axis = floats("variation", a, axis)
    return fnp.std(a, axis=axis, ddof=ddof) / fnp.mean(a, axis=axis)


def iqr(x: Any, axis: int | None = None, rng: tuple = (25, 75), scale: float = 1.0) -> Any:
    """The range between two percentiles, over `scale`.

    >>> from funcgrad.scipy import stats
    >>> print(stats.iqr([1.0, 2.0, 3.0, 4.0, 5.0]))
    2.0
    """
    x, axis = floats("iqr", x, axis, "x")
    if not (isinstance(rng, tuple | list) and len(rng) == 2):
        raise ArgumentError(f"stats.iqr: rng must be two percentages, got {rng!r}")
    low, high = (fnp.percentile(x, q, axis=axis) for q in rng)
    return (high - low) / real_array("stats.iqr", "scale", scale)


def trim_mean(a: Any, proportiontocut: float, axis: int | None = 0) -> Any:
    """The mean without this share of the least and of the greatest elements.

    >>> from funcgrad.scipy import stats
    >>> print(stats.trim_mean([0.0, 2.0, 3.0, 99.0], 0.25))
    2.5
    """
    a, axis = floats("trim_mean", a, axis)
    n = a.shape[axis]
    share = proportiontocut if isinstance(proportiontocut, int | float) else -1.0
    cut = int(min(share, 1.0) * n) if share >= 0 else -1
    if not 0 <= 2 * cut < max(n, 1):
        raise ArgumentError(
            f"stats.trim_mean: proportiontocut must be from 0 on and below 0.5, "
            f"got {proportiontocut!r}"
        )
    kept = fnp.moveaxis(fnp.sort(a, axis=axis), axis, 0)[cut : n - cut]
    return fnp.mean(kept, axis=0)


def entropy(pk: Any, qk: Any = None, base: float | None = None, axis: int | None = 0) -> Any:
    """Shannon's entropy -Σ p log p of the normalized `pk`; Σ p log(p/q) if `qk` is given.

    >>> from funcgrad.scipy import stats
    >>> print(stats.entropy([1, 1], base=2))
    1.0
    """
    pk, along = floats("entropy", pk, axis, "pk")
    p = pk / fnp.sum(pk, axis=along, keepdims=True)
    if qk is None:
        terms = entr(p)
    else:
        qk, _ = floats("entropy", qk, axis, "qk")
        terms = rel_entr(p, qk / fnp.sum(qk, axis=along, keepdims=True))
    total = fnp.sum(terms, axis=along)
    return (
        total
        if base is None
        else total / fnp.log(real_array("stats.entropy", "base", base).astype(total.dtype))
    )
