"""Piecewise linear interpolation of samples."""

from __future__ import annotations

from typing import Any

from funcgrad import dtypes
from funcgrad.core.aval import promote
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import as_dtype, convert, need_real, promote_inexact
from funcgrad.numpy.elementwise.arithmetic import remainder
from funcgrad.numpy.manipulation.sorting import argsort, searchsorted
from funcgrad.ops.base import full
from funcgrad.ops.elementwise import arithmetic, compare
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.shape import concatenate


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """The values at x of the function that is linear between the points (xp, fp).

    `xp` and `fp` are vectors, `xp` increasing. Below and above the points the result is `left` and
    `right`, by default the first and last of `fp`, or on the outermost lines for "extrapolate";
    with `period` the points repeat instead.
    Derivatives exist in all of x, xp and fp.

    >>> xp, fp = fnp.array([0.0, 1.0, 2.0]), fnp.array([1.0, 3.0, 2.0])
    >>> fnp.interp(fnp.array([0.5, 1.5, 5.0]), xp, fp)
    Array([2. , 2.5, 2. ], dtype=float32)
    """
    x, xp = promote_inexact("interp", x, xp)
    (fp,) = promote_inexact("interp", fp)
    need_real("interp", x)
    if xp.ndim != 1 or fp.shape != xp.shape or not xp.size:
        raise ShapeError(
            f"interp: xp and fp must be vectors of one length, got xp {xp.aval} and fp {fp.aval}"
        )
    dtype = promote([x.aval.strong(), fp.aval.strong()])[0]
    x, xp = (convert(v, dtypes.real_part(dtype)) for v in (x, xp))
    fp = convert(fp, dtype)
    if period is not None:
        return _between(*_repeated(x, xp, fp, period))
    inside = _between(x, xp, fp) if xp.size > 1 else full(x.shape, index(fp, 0))
    below, above = compare.lt(x, index(xp, 0)), compare.gt(x, index(xp, -1))
    for outside, i, v, name in ((above, -1, right, "right"), (below, 0, left, "left")):
        if not (isinstance(v, str) and v == "extrapolate"):
            end = index(fp, i) if v is None else as_dtype("interp", v, dtype, name)
            inside = select(outside, end, inside)
    return inside


def _between(x: Any, xp: Any, fp: Any) -> Any:
    """The line through the points on both sides of x; a step where both have one coordinate."""
    at = searchsorted(xp, x, side="right")
    at = arithmetic.min(arithmetic.max(at, 1), xp.size - 1)
    before = arithmetic.sub(at, 1)
    x0, x1, f0, f1 = index(xp, before), index(xp, at), index(fp, before), index(fp, at)
    width = arithmetic.sub(x1, x0)
    step = compare.eq(width, 0)
    share = arithmetic.div(arithmetic.sub(x, x0), select(step, 1.0, width))
    slope = arithmetic.mul(convert(share, fp.dtype), arithmetic.sub(f1, f0))
    return select(step, f0, add(f0, slope))


def _repeated(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """Points of one period in order, with the last one before and the first one after them."""
    period = arithmetic.abs(as_dtype("interp", period, xp.dtype, "period"))
    x, xp = remainder(x, period), remainder(xp, period)
    order = argsort(xp)
    xp, fp = index(xp, order), index(fp, order)
    first, last = index(xp, slice(0, 1)), index(xp, slice(-1, None))
    ends = arithmetic.sub(last, period), add(first, period)
    values = index(fp, slice(-1, None)), index(fp, slice(0, 1))
    around = [concatenate([e[0], v, e[1]], 0) for e, v in ((ends, xp), (values, fp))]
    return x, *around
