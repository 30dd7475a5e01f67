"""Quantiles, percentiles and medians, by all methods of NumPy.

Rob J. Hyndman, Yanan Fan, "Sample Quantiles in Statistical Packages", 1996. A quantile lies at a
position among the sorted elements, which may be between two: then these are mixed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from funcgrad.core.trace import Tracer
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    axes_of,
    convert,
    is_scalar,
    need_real,
    promote_inexact,
)
from funcgrad.numpy.elementwise.arithmetic import maximum, minimum, true_divide
from funcgrad.numpy.elementwise.floats import ceil, floor, rint
from funcgrad.numpy.elementwise.logic import isnan
from funcgrad.numpy.manipulation.indexing import take_along_axis, where
from funcgrad.numpy.manipulation.shape import moveaxis, reshape
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full, position_dtype, size_of, sum_p
from funcgrad.ops.cumulative import cumsum_p
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.indexing.plan import known
from funcgrad.ops.reduce import reduce_or
from funcgrad.ops.sharding import cut_as_said
from funcgrad.ops.sort import sort, sort_key_val
from funcgrad.transforms.recorded import recorded

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

# The parameters of Hyndman and Fan's continuous methods.
_CONTINUOUS = {
    "interpolated_inverted_cdf": (0, 1),
    "hazen": (0.5, 0.5),
    "weibull": (0, 0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_METHODS = (
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "closest_observation", *_CONTINUOUS,
)  # fmt: skip
_OURS = SimpleNamespace(floor=floor, ceil=ceil, rint=rint, where=where)


def _position(xp: Any, n: Any, q: Any, method: str) -> tuple[Any, Any]:
    """(i, w): the quantiles are element i, mixed with weight w with the next one."""
    if method in ("lower", "higher", "nearest"):
        step = {"lower": xp.floor, "higher": xp.ceil, "nearest": xp.rint}[method]
        return step((n - 1) * q), None
    if method in ("inverted_cdf", "averaged_inverted_cdf", "closest_observation"):
        at = n * q - (1.5 if method == "closest_observation" else 1)
        low = xp.floor(at)
        on_element = at == low
        if method == "averaged_inverted_cdf":
            return low, xp.where(on_element, 0.5, 1.0)
        if method == "closest_observation":
            on_element = on_element & (low % 2 == 1)
        return xp.where(on_element, low, low + 1), None
    if method == "midpoint":
        at = 0.5 * (xp.floor((n - 1) * q) + xp.ceil((n - 1) * q))
    elif method == "linear":
        at = (n - 1) * q
    else:
        alpha, beta = _CONTINUOUS[method]
        at = n * q + (alpha + q * (1 - alpha - beta)) - 1
    low = xp.floor(at)
    return low, at - low


def _quantile(
    name: str, a: Any, q: Any, axis: Any, method: str, keepdims: bool, skip_nan: bool,
    weights: Any = None,
) -> Any:  # fmt: skip
    if method not in _METHODS:
        raise ValueError(f"{name}: method must be one of {', '.join(_METHODS)}, got {method!r}")
    a = as_array(name, a, "a")
    need_real(name, a)
    # A tracer's value may be known, but then it has a derivative.
    exact = np.asarray(q) if is_scalar(q) else q
    given = None if isinstance(q, Tracer) else known(as_array(name, exact, "q"))
    axes = axes_of(name, axis, a.ndim)
    if weights is not None:
        weights = _weights(name, weights, a, axis, axes, method)
        # Sums of weights need more digits than narrow elements have.
        single = np.zeros((), np.float32)
        weights, *_ = promote_inexact(name, weights, a, single)
        share = as_dtype(name, q, weights.dtype, "q")
    a, q = promote_inexact(name, a, q)
    rest = [i for i in range(a.ndim) if i not in axes]
    shape = tuple(a.shape[i] for i in rest)
    size = size_of([a.shape[i] for i in axes])

    def rows(x: Any) -> Any:
        return reshape(ops.transpose(x, (*rest, *axes)), (*shape, size))

    if given is not None and not np.all((given >= 0) & (given <= 1)):
        raise ValueError(f"{name}: q must lie in the range from 0 to 1 (percentiles: 100)")
    if not size:
        out = full((*shape, q.size), np.nan, a.dtype)
    elif weights is None:
        out = _of_rows(sort(rows(a)), q, given, method, skip_nan)
    else:
        out = _of_weighted(rows(a), rows(weights), reshape(share, (-1,)), skip_nan)
    kept = tuple(1 if i in axes else n for i, n in enumerate(a.shape)) if keepdims else shape
    return reshape(moveaxis(out, -1, 0), (*q.shape, *kept))


def _of_rows(x: Any, q: Any, given: np.ndarray | None, method: str, skip_nan: bool) -> Any:
    """Quantiles of each sorted row, [..., quantile]."""
    size, flat = x.shape[-1], reshape(q, (-1,))
    count: Any = size
    # Positions are fractions of elements, and so are float32's between many.
    narrow = size < 2**16
    wide = np.dtype(np.float64 if q.dtype.itemsize > 4 or not narrow else np.float32)
    if skip_nan:
        numbers = convert_element_type(~isnan(x), wide if narrow else position_dtype(size))
        count = ops.expand_dims(sum_p.bind(numbers, axes=(x.ndim - 1,)), (x.ndim - 1,))
        count = convert(count, wide)
    if given is not None and not skip_nan:
        # Positions are known: they are worked out in full precision and are no part of a program.
        low, weight = _position(np, size, given.astype(wide).reshape(-1), method)
        low = np.asarray(low)
    else:
        low, weight = _position(_OURS, count, convert(flat, wide), method)
    first, second = (_element(x, low + i, count) for i in (0, 1 if weight is not None else 0))
    out = first
    if weight is not None and not (isinstance(weight, np.ndarray) and not weight.any()):
        share = as_dtype("quantile", weight, x.dtype)
        # Where nothing is mixed in, an infinite neighbour has no say.
        out = where(share == 0, first, first * (1 - share) + second * share)
    if skip_nan:
        return out
    return where(isnan(index(x, (..., slice(size - 1, size)))), np.asarray(np.nan, x.dtype), out)


def _weights(name: str, weights: Any, a: Any, axis: Any, axes: tuple, method: str) -> Any:
    """The weights of all elements, from those along the axes, or from all."""
    if method != "inverted_cdf":
        raise NotImplementedError(
            f"{name}: method {method!r} has no weights; 'inverted_cdf' is the one that has"
        )
    weights = as_array(name, weights, "weights")
    need_real(name, weights)
    values = None if isinstance(weights, Tracer) else known(weights)
    if values is not None and not np.all((values >= 0) & np.isfinite(values)):
        raise ValueError(f"{name}: weights must be finite and not negative")
    if weights.shape == a.shape:
        return weights
    if axis is None or weights.shape != tuple(a.shape[i] for i in axes):
        along = "" if axis is None else f", or {tuple(a.shape[i] for i in axes)}, that of the axes"
        raise ShapeError(
            f"{name}: weights must have the shape {a.shape} of a{along}; got {weights.shape}"
        )
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    return ops.broadcast_in_dim(ops.transpose(weights, order), a.shape, sorted(axes))


def _of_weighted(x: Any, weights: Any, q: Any, skip_nan: bool) -> Any:
    """Of each row the first elements at which the share of the weight so far reaches q."""
    absent, last = isnan(x), x.ndim - 1
    wrong = ~(weights >= 0) if skip_nan else ~(weights >= 0) | absent
    x, weights = sort_key_val(x, where(absent, 0, weights))
    so_far = cumsum_p.bind(weights, axis=last, reverse=False)
    total = index(so_far, (..., slice(-1, None)))
    share = ops.expand_dims(so_far / total, (last,))
    # What has no weight is no quantile, not even the lowest.
    before = (share < ops.expand_dims(q, (1,))) | (share == 0)
    count = sum_p.bind(convert_element_type(before, position_dtype(x.shape[-1])), axes=(last + 1,))
    out = take_along_axis(x, minimum(count, x.shape[-1] - 1), -1)
    wrong = reduce_or(wrong, (last,)) | ~((total > 0) & (total < np.inf))[..., 0]
    return where(ops.expand_dims(wrong, (last,)), np.asarray(np.nan, x.dtype), out)


def _element(x: Any, position: Any, count: Any) -> Any:
    """Elements at positions, held within the rows' numbers of elements."""
    if isinstance(position, np.ndarray):
        at = np.clip(position, 0, count - 1).astype(np.int64)
        return index(x, (..., at))
    last = as_dtype("quantile", count - 1, position.dtype)
    at = convert_element_type(maximum(minimum(position, last), 0), position_dtype(x.shape[-1]))
    if at.ndim == 1:
        return index(x, (..., at), mode="clip")
    return take_along_axis(x, at, -1, mode="clip")


# ---- public functions


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"{name}: arrays are immutable, so there is no out=")


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """The quantiles q (from 0 to 1) of the elements along axes (all where None).

    q's axes come first in the result. `method` says what a quantile between two elements is:
    "linear", "lower", "higher", "midpoint", "nearest", or one of Hyndman and Fan's: "inverted_cdf",
    "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
    "median_unbiased", "normal_unbiased". NaN among the elements gives NaN. ValueError for known q
    outside the range. weights: of the elements, in the shape of `a` or of the axes, with method
    "inverted_cdf": a quantile is the first element at which their share reaches q.

    >>> fnp.quantile(fnp.array([1.0, 2.0, 4.0]), fnp.array([0.5, 0.75]))
    Array([2., 3.], dtype=float32)
    >>> x, w = fnp.array([1.0, 2.0, 4.0]), fnp.array([1, 1, 3])
    >>> fnp.quantile(x, 0.5, weights=w, method="inverted_cdf")
    Array(4., dtype=float32)
    """
    _no_out("quantile", out)
    return _quantile("quantile", a, q, axis, method, keepdims, False, weights)


def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """The quantiles of the elements that are not NaN; see `quantile`. NaN where there are none.

    >>> fnp.nanquantile(fnp.array([1.0, fnp.nan, 4.0]), 0.5)
    Array(2.5, dtype=float32)
    """
    _no_out("nanquantile", out)
    return _quantile("nanquantile", a, q, axis, method, keepdims, True, weights)


def _hundredth(name: str, q: Any) -> Any:
    return q / 100 if is_scalar(q) else true_divide(as_array(name, q, "q"), 100)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The percentiles q (from 0 to 100) of the elements along axes; see `quantile`. out_sharding:
    how the result is cut over a mesh.

    >>> fnp.percentile(fnp.array([1.0, 2.0, 4.0]), 75)
    Array(3., dtype=float32)
    """
    _no_out("percentile", out)
    q = _hundredth("percentile", q)
    out = _quantile("percentile", a, q, axis, method, keepdims, False, weights)
    return cut_as_said(out, out_sharding)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
) -> Any:
    """The percentiles of the elements that are not NaN; see `quantile`.

    >>> fnp.nanpercentile(fnp.array([1.0, fnp.nan, 4.0]), 50)
    Array(2.5, dtype=float32)
    """
    _no_out("nanpercentile", out)
    q = _hundredth("nanpercentile", q)
    return _quantile("nanpercentile", a, q, axis, method, keepdims, True, weights)


@recorded
def median(
    a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The middle element along axes (all where None), or the mean of the two middle ones.

    >>> fnp.median(fnp.array([3, 1, 2, 9]))
    Array(2.5, dtype=float32)
    """
    _no_out("median", out)
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, False)


def nanmedian(
    a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """The median of the elements that are not NaN; NaN where there are none.

    >>> fnp.nanmedian(fnp.array([3.0, fnp.nan, 1.0]))
    Array(2., dtype=float32)
    """
    _no_out("nanmedian", out)
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, True)
