"""Running sums, products and extrema along an axis, and sums of differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.primitive import Primitive
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import as_array, canonical_axis, convert, documented, dtype_or, no_out
from funcgrad.numpy.elementwise.logic import isnan, truth
from funcgrad.numpy.reductions.reductions import accumulation_dtype
from funcgrad.ops import cumulative
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.shape import concatenate, reshape

_AXIS = """Along `axis`, or over the flattened array where it is None. bool and integers narrower
than the default one become the default integer, unless `dtype` says otherwise."""


def _along(name: str, prim: Primitive, a: Any, axis: int | None, dtype: Any, skip: Any) -> Any:
    """A running reduction, in which NaN counts as `skip` unless that is None."""
    x = as_array(name, a, "a")
    if skip is not None and dtypes.is_inexact(x.dtype):
        x = select(isnan(x), np.asarray(skip, x.dtype), x)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = canonical_axis(name, axis, x.ndim)
    count = x.shape[axis]
    out_dtype = dtype_or(dtype, accumulation_dtype(x.dtype, count))
    if out_dtype != dtypes.BOOL:
        return prim.bind(convert(x, out_dtype), axis=axis, reverse=False)
    x = convert(truth(x), accumulation_dtype(out_dtype, count))
    return truth(prim.bind(x, axis=axis, reverse=False))


def _running(name: str, prim: Primitive, skip: Any, summary: str, example: str) -> Any:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
        no_out(name, out)
        return _along(name, prim, a, axis, dtype, skip)

    return documented(function, name, summary, _AXIS, example)


cumsum = _running(
    "cumsum",
    cumulative.cumsum_p,
    None,
    "The running sum: y[k] = x[0] + … + x[k].",
    """>>> fnp.cumsum(fnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """,
)
cumprod = _running(
    "cumprod",
    cumulative.cumprod_p,
    None,
    "The running product: y[k] = x[0] · … · x[k]. The derivative is right also at zeros.",
    """>>> fnp.cumprod(fnp.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """,
)
nancumsum = _running(
    "nancumsum",
    cumulative.cumsum_p,
    0,
    "The running sum, in which NaN counts as 0.",
    """>>> fnp.nancumsum(fnp.array([1.0, fnp.nan, 3.0]))
    Array([1., 1., 4.], dtype=float32)
    """,
)
nancumprod = _running(
    "nancumprod",
    cumulative.cumprod_p,
    1,
    "The running product, in which NaN counts as 1.",
    """>>> fnp.nancumprod(fnp.array([2.0, fnp.nan, 3.0]))
    Array([2., 2., 6.], dtype=float32)
    """,
)


def _array_api(
    name: str, prim: Primitive, x: Any, axis: Any, dtype: Any, initial: int | None
) -> Any:
    x = as_array(name, x, "x")
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"{name}: axis= must be given for x {x.aval}, which is no vector")
        axis = 0
    axis = canonical_axis(name, axis, x.ndim)
    out = _along(name, prim, x, axis, dtype, None)
    if initial is None:
        return out
    shape = tuple(1 if i == axis else n for i, n in enumerate(out.shape))
    return concatenate([full(shape, initial, out.dtype), out], axis)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The running sum along an axis, with a 0 before it if `include_initial`.

    `axis` may be left out for vectors. Narrow integers become the default integer.

    >>> fnp.cumulative_sum(fnp.array([1, 2, 3]), include_initial=True)
    Array([0, 1, 3, 6], dtype=int32)
    """
    initial = 0 if include_initial else None
    return _array_api("cumulative_sum", cumulative.cumsum_p, x, axis, dtype, initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The running product along an axis, with a 1 before it if `include_initial`.

    `axis` may be left out for vectors. Narrow integers become the default integer.

    >>> fnp.cumulative_prod(fnp.array([1, 2, 3]), include_initial=True)
    Array([1, 1, 2, 6], dtype=int32)
    """
    initial = 1 if include_initial else None
    return _array_api("cumulative_prod", cumulative.cumprod_p, x, axis, dtype, initial)
