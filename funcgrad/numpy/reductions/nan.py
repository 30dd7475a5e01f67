"""Reductions that leave NaN out, and weighted means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.numpy._util import (
    as_array,
    axes_of,
    broadcast_to,
    dtype_or,
    mask_of,
    no_out,
    promote_inexact,
)
from funcgrad.numpy.elementwise.arithmetic import maximum, minimum
from funcgrad.numpy.elementwise.logic import isnan, logical_and
from funcgrad.numpy.reductions import reductions
from funcgrad.ops import reduce
from funcgrad.ops.base import full
from funcgrad.ops.elementwise import arithmetic, compare
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.shape import reshape, transpose
from funcgrad.transforms.recorded import recorded

# ---- sums and products


def _filled(name: str, a: Any, axis: Any, value: Any) -> Any:
    """a with NaN replaced; it must have this axis."""
    x = as_array(name, a, "a")
    axes_of(name, axis, x.ndim)
    if not dtypes.is_inexact(x.dtype):
        return x
    return select(isnan(x), np.asarray(value).astype(x.dtype), x)


def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum over `axis`, in which NaN counts as 0; see `sum`.

    >>> fnp.nansum(fnp.array([1.0, fnp.nan, 3.0]))
    Array(4., dtype=float32)
    """
    no_out("nansum", out)
    return reductions.sum(_filled("nansum", a, axis, 0), axis, dtype, keepdims=keepdims,
                          initial=initial, where=where)  # fmt: skip


def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The product over `axis`, in which NaN counts as 1; see `prod`.

    >>> fnp.nanprod(fnp.array([2.0, fnp.nan, 3.0]))
    Array(6., dtype=float32)
    """
    no_out("nanprod", out)
    return reductions.prod(_filled("nanprod", a, axis, 1), axis, dtype, keepdims=keepdims,
                          initial=initial, where=where)  # fmt: skip


# ---- extrema


def _extremum(
    name: str, reduction: Callable, neutral: Callable, combine: Callable, a: Any, axis: Any,
    keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    x = as_array(name, a, "a")
    filled = _filled(name, x, axis, neutral(x.dtype))
    out = reduction(filled, axis, keepdims=keepdims, initial=initial, where=where)
    if filled is x:
        return out
    if initial is not None:
        return out
    nothing = reductions.all(isnan(x), axis, keepdims=keepdims, where=where)
    return select(nothing, np.asarray(np.nan, x.dtype), out)


def nanmax(
    a: Any,
    axis: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The maximum over `axis` of what is not NaN; NaN where there is nothing else. See `max`.

    >>> fnp.nanmax(fnp.array([1.0, fnp.nan, 3.0]))
    Array(3., dtype=float32)
    """
    no_out("nanmax", out)
    return _extremum("nanmax", reductions.max, reduce.lowest, maximum, a, axis, keepdims, initial,
                     where)  # fmt: skip


def nanmin(
    a: Any,
    axis: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The minimum over `axis` of what is not NaN; NaN where there is nothing else. See `min`.

    >>> fnp.nanmin(fnp.array([1.0, fnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    no_out("nanmin", out)
    return _extremum("nanmin", reductions.min, reduce.highest, minimum, a, axis, keepdims, initial,
                     where)  # fmt: skip


def _position(
    name: str, find: Callable, neutral: Callable, a: Any, axis: Any, keepdims: Any
) -> Any:
    x = as_array(name, a, "a")
    filled = _filled(name, x, axis, neutral(x.dtype))
    out = find(filled, axis, keepdims=keepdims)
    if filled is x:
        return out
    nothing = reductions.all(isnan(x), axis, keepdims=bool(keepdims))
    return select(nothing, np.asarray(-1, out.dtype), out)


def nanargmax(
    a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Any:
    """The position of the maximum of what is not NaN; -1 where there is nothing else.

    >>> fnp.nanargmax(fnp.array([1.0, fnp.nan, 3.0]))
    Array(2, dtype=int32)
    """
    no_out("nanargmax", out)
    return _position("nanargmax", reductions.argmax, reduce.lowest, a, axis, keepdims)


def nanargmin(
    a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Any:
    """The position of the minimum of what is not NaN; -1 where there is nothing else.

    >>> fnp.nanargmin(fnp.array([1.0, fnp.nan, 3.0]))
    Array(0, dtype=int32)
    """
    no_out("nanargmin", out)
    return _position("nanargmin", reductions.argmin, reduce.highest, a, axis, keepdims)


# ---- moments


def _present(name: str, a: Any, where: Any) -> Any:
    """The mask of what is not NaN and not left out."""
    kept = compare.bitwise_not(isnan(a))
    return kept if where is None else logical_and(kept, mask_of(name, where))


@recorded
def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    where: Any = None,
) -> Any:
    """The mean over `axis` of what is not NaN; NaN where there is nothing else. See `mean`.

    >>> fnp.nanmean(fnp.array([1.0, fnp.nan, 3.0]))
    Array(2., dtype=float32)
    """
    no_out("nanmean", out)
    x = as_array("nanmean", a, "a")
    axes_of("nanmean", axis, x.ndim)
    return reductions.mean(x, axis, dtype, keepdims=keepdims, where=_present("nanmean", x, where))


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The variance over `axis` of what is not NaN; see `var`.

    NaN where no more than `ddof` elements are left.

    >>> fnp.nanvar(fnp.array([1.0, fnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    no_out("nanvar", out)
    return _var("nanvar", a, axis, dtype, ddof, keepdims, where, mean, correction)


def _var(
    name: str, a: Any, axis: Any, dtype: Any, ddof: float, keepdims: bool, where: Any, mean: Any,
    correction: float | None,
) -> Any:  # fmt: skip
    x = as_array(name, a, "a")
    if dtype is not None and not dtypes.is_inexact(dtype_or(dtype, x.dtype)):
        raise DTypeError(f"{name}: dtype must be floating-point or complex, got {dtype}")
    mask = _present(name, x, where)
    ddof = ddof if correction is None else correction
    # The guard keeps the derivative of what is left out finite.
    return reductions.var(_filled(name, x, axis, 0), axis, dtype, ddof=ddof, keepdims=keepdims,
                          where=mask, mean=mean)  # fmt: skip


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The standard deviation over `axis` of what is not NaN: the root of `nanvar`.

    >>> fnp.nanstd(fnp.array([1.0, fnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    no_out("nanstd", out)
    return arithmetic.sqrt(_var("nanstd", a, axis, dtype, ddof, keepdims, where, mean, correction))


# ---- weighted means


def average(
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Any:
    """The mean over `axis`, of elements that count by `weights`: Σ w·a / Σ w.

    `weights` has the shape of `a`, or the sizes of the axes in `axis`, in their order. With
    `returned` the result is (mean, sum of weights).

    >>> fnp.average(fnp.array([1.0, 2.0]), weights=fnp.array([3.0, 1.0]))
    Array(1.25, dtype=float32)
    """
    x = as_array("average", a, "a")
    axes_of("average", axis, x.ndim)
    if weights is None:
        out = reductions.mean(x, axis, keepdims=keepdims)
        total = full(out.shape, x.size // (out.size or 1), out.dtype)
        return (out, total) if returned else out
    x, w = promote_inexact("average", a, weights)
    if w.shape != x.shape:
        w = _along_axis(x, w, axis)
    total = reductions.sum(w, axis, keepdims=keepdims)
    out = arithmetic.div(reductions.sum(arithmetic.mul(x, w), axis, keepdims=keepdims), total)
    return (out, total) if returned else out


def _along_axis(x: Any, w: Any, axis: Any) -> Any:
    """Weights along axes as an array of x's shape."""
    axes = axes_of("average", axis, x.ndim)
    if axis is None or w.shape != tuple(x.shape[i] for i in axes):
        raise ShapeError(
            f"average: weights {w.aval} must have the shape of a {x.aval}, or the sizes of the "
            f"axes that are given, got axis {axis}"
        )
    w = transpose(w, sorted(range(w.ndim), key=lambda i: axes[i]))
    return broadcast_to(
        reshape(w, tuple(n if i in axes else 1 for i, n in enumerate(x.shape))), x.shape
    )
