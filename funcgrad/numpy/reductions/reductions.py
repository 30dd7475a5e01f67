"""Sums, products, extrema, means and truth over axes.

`axis=None` means all axes, a tuple several. Sums of bool and of integers narrower than the default
integer are formed in the default integer. `where=` masks elements out, `initial=` begins with a
value. Products and extrema of nothing need an `initial=` where they have no identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.primitive import Primitive
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.numpy._util import (
    align,
    as_array,
    as_dtype,
    axes_of,
    broadcast_shapes,
    broadcast_to,
    convert,
    default_float,
    default_int,
    dtype_or,
    index_dtype,
    is_scalar,
    mask_of,
    need_real,
    need_scalar,
    no_out,
    scalar_as,
)
from funcgrad.numpy.elementwise.arithmetic import add as add_numbers
from funcgrad.numpy.elementwise.arithmetic import maximum, minimum, multiply
from funcgrad.numpy.elementwise.logic import truth
from funcgrad.ops import reduce
from funcgrad.ops.base import size_of, sum_p
from funcgrad.ops.elementwise import arithmetic, compare
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.shape import reshape
from funcgrad.transforms.recorded import recorded

# ---- how a reduction goes


def keep_axes(x: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    """A result over `axes` of an array of a shape, with these axes kept in size 1."""
    return reshape(x, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def masked(name: str, x: Any, where: Any, neutral: Any) -> Any:
    """x with `neutral` where the mask `where` is False; both broadcast."""
    if where is None:
        return x
    mask = mask_of(name, where)
    shape = broadcast_shapes(name, x.shape, mask.shape)
    return select(broadcast_to(mask, shape), broadcast_to(x, shape),
                  np.asarray(neutral).astype(x.dtype))  # fmt: skip


def accumulation_dtype(dtype: np.dtype, count: int) -> np.dtype:
    """The dtype in which so many numbers of `dtype` are summed: narrow integers in the default one,
    bool in one that holds their count."""
    if dtype == dtypes.BOOL:
        return index_dtype(count + 1)
    if not dtypes.is_integer(dtype) or dtype.itemsize >= default_int().itemsize:
        return dtype
    return default_int() if dtypes.is_signed(dtype) else np.dtype(f"u{default_int().name}")


def _summed(
    name: str,
    prim: Primitive,
    a: Any,
    axis: Any,
    dtype: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
    combine: Callable,
    neutral: int,
    promote: bool = True,
) -> Any:
    """A sum or product over axes."""
    x = as_array(name, a, "a")
    if where is not None:
        x = masked(name, x, where, neutral)
    axes = axes_of(name, axis, x.ndim)
    if dtype is None:
        if x.dtype.kind not in "fc" and (promote or x.dtype == dtypes.BOOL):
            count = size_of([x.shape[i] for i in axes])
            x = convert(x, accumulation_dtype(x.dtype, count))
    else:
        x = convert(x, dtype_or(dtype, x.dtype))
        if x.dtype == dtypes.BOOL:
            out = _summed(name, prim, x, axis, None, keepdims, initial, None, combine, neutral)
            return truth(out)
    out = prim.bind(x, axes=axes)
    if keepdims:
        out = keep_axes(out, x.shape, axes)
    if initial is None:
        return out
    return combine(out, scalar_as(name, initial, out.dtype, "initial"))


@recorded
def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The sum over `axis` (None: all axes; an axis or a tuple).

    The dtype is that of `a`, but bool and narrow integers become the default integer, or int64
    where that doesn't hold the number of elements that are true. `initial` is added, and only
    elements where `where` is True count. The sum of nothing is 0. Without `promote_integers`
    narrow integers stay what they are.

    >>> fnp.sum(fnp.array([[1, 2], [3, 4]]), axis=0)
    Array([4, 6], dtype=int32)
    """
    no_out("sum", out)
    return _summed("sum", sum_p, a, axis, dtype, keepdims, initial, where, add_numbers, 0,
                   promote_integers)  # fmt: skip


@recorded
def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The product over `axis` (None: all axes; an axis or a tuple).

    The dtype is that of `a`, but bool and narrow integers become the default integer. `initial` is
    a factor, and only elements where `where` is True count. The product of nothing is 1. Without
    `promote_integers` narrow integers stay what they are.

    >>> fnp.prod(fnp.array([[1, 2], [3, 4]]), axis=1)
    Array([ 2, 12], dtype=int32)
    """
    no_out("prod", out)
    return _summed("prod", reduce.prod_p, a, axis, dtype, keepdims, initial, where, multiply, 1,
                   promote_integers)  # fmt: skip


# ---- extrema


def _extremum(
    name: str,
    prim: Primitive,
    a: Any,
    axis: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
    combine: Callable,
    identity: Callable,
) -> Any:
    x = as_array(name, a, "a")
    if where is not None and initial is None:
        raise ValueError(f"{name}: where= needs an initial= value, as there may be no element")
    x = masked(name, convert(x, x.dtype), where, identity(x.dtype))
    axes = axes_of(name, axis, x.ndim)
    if initial is None and not size_of([x.shape[i] for i in axes]):
        raise ShapeError(
            f"{name}: axis {axis} of a {x.aval} is empty, so there is no extremum; pass initial="
        )
    out = prim.bind(x, axes=axes)
    if keepdims:
        out = keep_axes(out, x.shape, axes)
    if initial is None:
        return out
    if dtypes.is_integer(x.dtype):
        return combine(out, need_scalar(name, initial, "initial"))
    return combine(out, scalar_as(name, initial, x.dtype, "initial"))


@recorded
def max(
    a: Any,
    axis: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The maximum over `axis` (None: all axes; an axis or a tuple); NaN if any is. Also `amax`.

    `initial` takes part; only elements where `where` is True do. Raises ShapeError where there is
    no element and no `initial`. Equal maxima share the derivative.

    >>> fnp.max(fnp.array([[1, 5], [3, 4]]), axis=0)
    Array([3, 5], dtype=int32)
    """
    no_out("max", out)
    return _extremum("max", reduce.max_p, a, axis, keepdims, initial, where, maximum,
                     reduce.lowest)  # fmt: skip


@recorded
def min(
    a: Any,
    axis: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The minimum over `axis` (None: all axes; an axis or a tuple); NaN if any is. Also `amin`.

    `initial` takes part; only elements where `where` is True do. Raises ShapeError where there is
    no element and no `initial`. Equal minima share the derivative.

    >>> fnp.min(fnp.array([[1, 5], [3, 4]]), axis=0)
    Array([1, 4], dtype=int32)
    """
    no_out("min", out)
    return _extremum("min", reduce.min_p, a, axis, keepdims, initial, where, minimum,
                     reduce.highest)  # fmt: skip


amax, amin = max, min


def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The range over `axis`: maximum - minimum.

    >>> fnp.ptp(fnp.array([3, 7, 5]))
    Array(4, dtype=int32)
    """
    no_out("ptp", out)
    axes_of("ptp", axis, as_array("ptp", a, "a").ndim)
    return arithmetic.sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


# ---- truth


def _truth(name: str, prim: Primitive, neutral: bool, a: Any, axis: Any, keepdims: bool,
           where: Any) -> Any:  # fmt: skip
    x = masked(name, truth(as_array(name, a, "a")), where, neutral)
    axes = axes_of(name, axis, x.ndim)
    out = prim.bind(x, axes=axes)
    return keep_axes(out, x.shape, axes) if keepdims else out


@recorded
def all(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether all elements over `axis` are true (nonzero), as bool; True where there is none.

    >>> fnp.all(fnp.array([[1, 0], [1, 1]]), axis=1)
    Array([False,  True], dtype=bool)
    """
    no_out("all", out)
    return _truth("all", reduce.and_p, True, a, axis, keepdims, where)


@recorded
def any(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether any element over `axis` is true (nonzero), as bool; False where there is none.

    >>> fnp.any(fnp.array([[1, 0], [0, 0]]), axis=1)
    Array([ True, False], dtype=bool)
    """
    no_out("any", out)
    return _truth("any", reduce.or_p, False, a, axis, keepdims, where)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of nonzero (true) elements over `axis`.

    It has the default integer dtype, or int64 where that doesn't hold the number of all elements.

    >>> fnp.count_nonzero(fnp.array([[1, 0], [3, 4]]), axis=0)
    Array([2, 1], dtype=int32)
    """
    x = as_array("count_nonzero", a, "a")
    return sum(truth(x), axes_of("count_nonzero", axis, x.ndim), keepdims=keepdims)


# ---- means and moments


def _mean_dtypes(dtype: np.dtype, asked: Any) -> tuple[np.dtype, np.dtype]:
    """The dtypes in which a mean is formed and given."""
    out = dtype_or(asked, dtypes.to_inexact(dtype, default_float()))
    work = dtypes.to_inexact(out, default_float())
    # 8 and 16-bit sums lose what they add.
    return (np.dtype(np.float32) if work.itemsize <= 2 else work), out


@recorded
def mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Any:
    """The mean over `axis` (None: all axes; an axis or a tuple): sum / number of elements.

    Integers become the default float; floats below 32 bits are summed in float32. Only elements
    where `where` is True count. NaN where there is none.

    >>> fnp.mean(fnp.array([[1, 2], [3, 4]]), axis=1)
    Array([1.5, 3.5], dtype=float32)
    """
    no_out("mean", out)
    x = as_array("mean", a, "a")
    axes_of("mean", axis, x.ndim)
    if dtype is None and x.dtype.kind in "fc" and x.dtype.itemsize >= 4:
        work = out_dtype = x.dtype
    else:
        work, out_dtype = _mean_dtypes(x.dtype, dtype)
    total = sum(x, axis, work, keepdims=keepdims, where=where)
    count = _count("mean", x, axis, keepdims, where, total)
    return convert(arithmetic.div.bind(total, count), out_dtype)


def _count(name: str, x: Any, axis: Any, keepdims: bool, where: Any, total: Any) -> Any:
    """How many elements a reduction counts: known, or where a mask says so an array like total."""
    if where is None:
        n = size_of([x.shape[i] for i in axes_of(name, axis, x.ndim)])
        return Array(np.asarray(n, np.float64).astype(total.dtype))
    mask = mask_of(name, where)
    mask = broadcast_to(mask, broadcast_shapes(name, x.shape, mask.shape))
    return convert(sum(mask, axis, keepdims=keepdims), total.dtype)


@recorded
def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The variance over `axis`: the mean of |a - mean|², with n - ddof in place of n.

    `correction` is the array API's name of `ddof`; `mean` saves its computation, its axes kept.
    Integers become the default float, complex numbers have a real variance; but with `dtype`, that
    is the result's. NaN where no more than `ddof` elements are counted.

    >>> fnp.var(fnp.array([1.0, 2.0, 3.0, 4.0]))
    Array(1.25, dtype=float32)
    """
    no_out("var", out)
    return _var("var", a, axis, dtype, ddof, keepdims, where, mean, correction)


def _var(
    name: str, a: Any, axis: Any, dtype: Any, ddof: float, keepdims: bool, where: Any, mean: Any,
    correction: float | None,
) -> Any:  # fmt: skip
    x = as_array(name, a, "a")
    axes_of(name, axis, x.ndim)
    ddof = ddof if correction is None else correction
    if not is_scalar(ddof):
        ddof = as_array(name, ddof, "ddof")
    work, out_dtype = _mean_dtypes(x.dtype, dtype)
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(work):
        work = dtypes.to_complex(work)
    x = convert(x, work)
    centre = _mean(x, axis, keepdims=True, where=where) if mean is None else (
        as_dtype(name, mean, work, "mean"))  # fmt: skip
    offset = arithmetic.sub(*align(name, [x, centre]))
    if dtypes.is_complex(work):
        parts = arithmetic.real(offset), arithmetic.imag(offset)
        squares = add_numbers(*map(arithmetic.square, parts))
    else:
        squares = arithmetic.square(offset)
    total = sum(squares, axis, keepdims=keepdims, where=where)
    count = _count(name, x, axis, keepdims, where, total)
    if where is None:
        n = count.value - count.dtype.type(ddof)
        count = Array(np.asarray(np.nan if n <= 0 else n, count.dtype))
    else:
        count = arithmetic.sub(count, ddof)
        count = select(compare.le(count, 0), np.asarray(np.nan, count.dtype), count)
    out = arithmetic.div.bind(total, count)
    return convert(out, dtypes.real_part(out_dtype) if dtype is None else out_dtype)


_mean = mean


@recorded
def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The standard deviation over `axis`: the root of `var`, whose arguments it takes.

    >>> fnp.std(fnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    no_out("std", out)
    if dtype is not None and not dtypes.is_inexact(dtypes.canonical(dtype)):
        raise DTypeError(f"std: dtype must be floating-point or complex, got {dtype}")
    return arithmetic.sqrt(_var("std", a, axis, dtype, ddof, keepdims, where, mean, correction))


# ---- positions of extrema


def _position(name: str, prim: Primitive, a: Any, axis: Any, keepdims: bool | None) -> Any:
    x = as_array(name, a, "a")
    need_real(name, x)
    axes = axes_of(name, axis, x.ndim)
    if not size_of([x.shape[i] for i in axes]):
        raise ShapeError(f"{name}: a {x.aval} is empty, so there is no position in it")
    if axis is None:
        kind = index_dtype(size_of(x.shape))
        out = prim.bind(reshape(x, (-1,)), axes=(0,), index_dtype=kind)
        return keep_axes(out, x.shape, tuple(range(x.ndim))) if keepdims else out
    if len(axes) != 1:
        raise TypeError(f"{name}: axis must be one integer or None, got {axis}")
    out = prim.bind(x, axes=axes, index_dtype=index_dtype(x.shape[axes[0]]))
    return keep_axes(out, x.shape, axes) if keepdims else out


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the (first) maximum along `axis`, or in the flattened array if None.

    A NaN counts as the maximum. The result has the default integer dtype, or int64 where that
    doesn't hold all positions.

    >>> fnp.argmax(fnp.array([[1, 5], [3, 4]]), axis=1)
    Array([1, 1], dtype=int32)
    """
    no_out("argmax", out)
    return _position("argmax", reduce.argmax_p, a, axis, keepdims)


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the (first) minimum along `axis`, or in the flattened array if None.

    A NaN counts as the minimum. The result has the default integer dtype, or int64 where that
    doesn't hold all positions.

    >>> fnp.argmin(fnp.array([[1, 5], [3, 4]]), axis=1)
    Array([0, 0], dtype=int32)
    """
    no_out("argmin", out)
    return _position("argmin", reduce.argmin_p, a, axis, keepdims)
