"""Differences, slopes, integrals and interpolation of sampled functions."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    align,
    as_array,
    as_dtype,
    axes_of,
    broadcast_to,
    canonical_axis,
    integer,
    promote,
    promote_inexact,
)
from funcgrad.numpy.elementwise.arithmetic import add, remainder, subtract
from funcgrad.numpy.reductions import reductions
from funcgrad.numpy.reductions.cumulative import cumsum
from funcgrad.ops.elementwise import arithmetic, compare
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add as add_p
from funcgrad.ops.shape import concatenate, reshape, slice
from funcgrad.transforms.recorded import recorded

# ---- differences


def _part(x: Any, axis: int, start: int, stop: int) -> Any:
    """x[start:stop] along an axis."""
    starts = [start if i == axis else 0 for i in range(x.ndim)]
    stops = [stop if i == axis else n for i, n in enumerate(x.shape)]
    return slice(x, starts, stops)


def _step(x: Any, axis: int) -> Any:
    n = x.shape[axis]
    late, early = _part(x, axis, builtins.min(1, n), n), _part(x, axis, 0, builtins.max(n - 1, 0))
    return compare.ne(late, early) if x.dtype == dtypes.BOOL else arithmetic.sub(late, early)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th differences x[k + 1] - x[k] along an axis, which becomes shorter by n.

    `prepend` and `append` are put at its ends first: scalars, or arrays that fit. Of bools the
    difference is whether they differ. With n = 0 it is `a` itself.

    >>> fnp.diff(fnp.array([1, 4, 9, 16]))
    Array([3, 5, 7], dtype=int32)
    """
    x = as_array("diff", a, "a")
    n = integer("n", n)
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return x
    axis = canonical_axis("diff", axis, x.ndim)
    parts = [_end(x, v, axis) for v in (prepend, append) if v is not None]
    if prepend is not None or append is not None:
        joined = [parts[0], x, *parts[1:]] if prepend is not None else [x, parts[0]]
        x = concatenate(promote("diff", *joined), axis)
    for _ in range(n):
        x = _step(x, axis)
    return x


def _end(x: Any, value: Any, axis: int) -> Any:
    v = as_array("diff", value, "prepend or append")
    if v.ndim:
        return v
    return broadcast_to(v, tuple(1 if i == axis else n for i, n in enumerate(x.shape)))


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of neighbours in the flattened array, between given ends.

    >>> fnp.ediff1d(fnp.array([1, 4, 9]), to_end=0)
    Array([3, 5, 0], dtype=int32)
    """
    x = reshape(as_array("ediff1d", ary, "ary"), (-1,))
    parts = [_step(x, 0)]
    for place, ends in ((0, to_begin), (2, to_end)):
        if ends is not None:
            end = reshape(as_dtype("ediff1d", ends, x.dtype, "to_end"), (-1,))
            parts.insert(place, end)
    return concatenate(parts, 0) if len(parts) > 1 else parts[0]


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """The slope of a sampled function along each axis: central differences, one-sided at the ends.

    `varargs` are the distances of samples (one for all axes or one an axis), or arrays of their
    coordinates. With several axes the result is a list. `edge_order` may only be 1.

    >>> fnp.gradient(fnp.array([1.0, 4.0, 9.0, 16.0]))
    Array([3., 4., 6., 7.], dtype=float32)
    """
    if edge_order != 1:
        raise ValueError(f"gradient: edge_order must be 1, got {edge_order}")
    (x,) = promote_inexact("gradient", f)
    axes = axes_of("gradient", axis, x.ndim)
    spacing = list(varargs) or [1.0]
    if len(spacing) == 1:
        spacing = spacing * len(axes)
    if len(spacing) != len(axes):
        raise TypeError(f"gradient: {len(varargs)} distances given for {len(axes)} axes")
    slopes = [_slope(x, i, h) for i, h in zip(axes, spacing, strict=True)]
    return slopes[0] if len(axes) == 1 else slopes


def _slope(x: Any, axis: int, spacing: Any) -> Any:
    n = x.shape[axis]
    if n < 2:
        raise ShapeError(f"gradient: axis {axis} of f {x.aval} needs two or more samples")
    h = as_dtype("gradient", spacing, x.dtype, "a distance")
    line = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    steps = _step(x, axis)
    if not h.ndim:
        # Neighbours at one distance: the mean of both one-sided slopes.
        slopes = arithmetic.div(steps, h)
        before, after = _part(slopes, axis, 0, n - 2), _part(slopes, axis, 1, n - 1)
        middle = arithmetic.mul(add_p(before, after), 0.5) if n > 2 else None
    else:
        if h.shape != (n,):
            raise ShapeError(f"gradient: coordinates {h.aval} don't fit axis {axis} of f {x.aval}")
        gaps = reshape(_step(h, 0), line)
        slopes = arithmetic.div(steps, broadcast_to(gaps, steps.shape))
        left, right = _part(gaps, axis, 0, n - 2), _part(gaps, axis, 1, n - 1)
        share = arithmetic.div(right, add_p(left, right))
        before, after = _part(slopes, axis, 0, n - 2), _part(slopes, axis, 1, n - 1)
        share = broadcast_to(share, before.shape)
        rest = arithmetic.mul(arithmetic.sub(1.0, share), after)
        middle = add_p(arithmetic.mul(share, before), rest)
    ends = _part(slopes, axis, 0, 1), _part(slopes, axis, n - 2, n - 1)
    parts = [ends[0], *([middle] if n > 2 else []), ends[1]]
    return concatenate(parts, axis)


# ---- integrals


@recorded
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples along an axis by the trapezoidal rule.

    The samples are at the coordinates `x` (a vector, or of the shape of `y`), or at distances `dx`.

    >>> fnp.trapezoid(fnp.array([1.0, 2.0, 3.0]))
    Array(4., dtype=float32)
    """
    if x is None:
        y, gaps = promote_inexact("trapezoid", y, dx)
        axis = canonical_axis("trapezoid", axis, y.ndim)
    else:
        y, x = promote_inexact("trapezoid", y, x)
        axis = canonical_axis("trapezoid", axis, y.ndim)
        if x.ndim not in (1, y.ndim) or not x.ndim:
            raise ShapeError(
                f"trapezoid: x {x.aval} must be a vector, or have the axes of y {y.aval}"
            )
        if x.ndim == 1:
            gaps = reshape(_step(x, 0), tuple(-1 if i == axis else 1 for i in range(y.ndim)))
        else:
            gaps = _step(x, axis)
    n = y.shape[axis]
    heights = add(_part(y, axis, 1, n), _part(y, axis, 0, n - 1))
    heights, gaps = align("trapezoid", [heights, gaps])
    return arithmetic.mul(reductions.sum(arithmetic.mul(heights, gaps), axis), 0.5)


# ---- phases and interpolation


def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * math.pi) -> Any:
    """Angles along an axis without jumps of more than half a period (or `discont`).

    >>> fnp.unwrap(fnp.array([0.0, 3.0, 6.0, 9.0 - 2 * fnp.pi]))
    Array([0., 3., 6., 9.], dtype=float32)
    """
    x = as_array("unwrap", p, "p")
    if not isinstance(period, int | float):
        period = as_array("unwrap", period, "period")
    if not (dtypes.is_integer(x.dtype) and isinstance(period, int)):
        (x,) = promote_inexact("unwrap", x)
    axis = canonical_axis("unwrap", axis, x.ndim)
    steps = _step(x, axis)
    half = period // 2 if dtypes.is_integer(x.dtype) else period / 2
    low = -half if not dtypes.is_integer(x.dtype) else -(period // 2)
    wrapped = add(remainder(subtract(steps, low), period), low)
    if not dtypes.is_integer(x.dtype) or period % 2 == 0:
        # Half a period forwards stays forwards.
        forwards = compare.bitwise_and(compare.eq(wrapped, low), compare.gt(steps, 0))
        wrapped = select(forwards, as_dtype("unwrap", half, x.dtype), wrapped)
    correction = arithmetic.sub(wrapped, steps)
    small = compare.lt(arithmetic.abs(steps), half if discont is None else discont)
    correction = select(small, np.zeros((), x.dtype), correction)
    n = x.shape[axis]
    total = cumsum(correction, axis, x.dtype)
    rest = add_p(_part(x, axis, builtins.min(1, n), n), total)
    return concatenate([_part(x, axis, 0, builtins.min(1, n)), rest], axis)
