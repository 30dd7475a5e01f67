"""Cumulative sums, products, extrema and log-sum-exps along an axis, and linear recurrences.

The derivative of each is a first-order linear recurrence h[k] = a[k] h[k-1] + b[k], computed by
doubling (Kogge and Stone 1973) in log n elementwise steps: no division, so zeros in a product are
no exception, and the steps are ordinary ops, so derivatives of any order follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError
from funcgrad.ops.arguments import canonical_axis
from funcgrad.ops.base import check_axes, full
from funcgrad.ops.elementwise.arithmetic import div, mul, sub
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.elementwise.transcendental import exp
from funcgrad.ops.families import NOT_LINEAR, add
from funcgrad.ops.folds import accumulated
from funcgrad.ops.slicing import pad_p

# ---- linear recurrences


def shift(x: Any, distance: int, axis: int, reverse: bool, fill: Any = 0) -> Any:
    """x moved along an axis towards its end (its start if `reverse`), with `fill` moving in."""
    aval = aval_of(x)
    config = [(0, 0, 0)] * aval.ndim
    config[axis] = (-distance, distance, 0) if reverse else (distance, -distance, 0)
    return pad_p.bind(x, full((), fill, aval.dtype), padding_config=tuple(config))


def recurrence(a: Any, b: Any, axis: int, reverse: bool = False) -> Any:
    """h[k] = a[k] h[k-1] + b[k] along an axis, with h[-1] = 0; linear in b.

    >>> import numpy as np
    >>> recurrence(np.float32([2, 2, 2]), np.float32([1, 1, 1]), axis=0)
    Array([1., 3., 7.], dtype=float32)
    """
    size, distance = aval_of(b).shape[axis], 1
    while distance < size:
        b = add.bind(b, mul.bind(a, shift(b, distance, axis, reverse)))
        distance *= 2
        if distance < size:
            a = mul.bind(a, shift(a, distance // 2, axis, reverse))
    return b


# ---- derivatives


def _sum_jvp(primals, tangents, **params):
    return cumsum_p.bind(*primals, **params), cumsum_p.bind(*tangents, **params)


def _sum_transpose(ct, x, *, axis, reverse):
    return [cumsum_p.bind(ct, axis=axis, reverse=not reverse)]


def _prod_jvp(primals, tangents, *, axis, reverse):
    (x,), (g,) = primals, tangents
    y = cumprod_p.bind(x, axis=axis, reverse=reverse)
    before = shift(y, 1, axis, reverse, fill=1)
    return y, recurrence(x, mul.bind(g, before), axis, reverse)


def _extremum_jvp(prim: Callable[[], Primitive]) -> Callable:
    """Elements that equal the extremum so far share its tangent equally."""

    def rule(primals, tangents, *, axis, reverse):
        (x,), (g,) = primals, tangents
        y = prim().bind(x, axis=axis, reverse=reverse)
        dtype = aval_of(g).dtype
        stays = convert_element_type(eq.bind(y, shift(y, 1, axis, reverse)), dtype)
        hits = convert_element_type(eq.bind(x, y), dtype)
        total = recurrence(stays, mul.bind(hits, g), axis, reverse)
        return y, div.bind(total, recurrence(stays, hits, axis, reverse))

    return rule


def _logsumexp_jvp(primals, tangents, *, axis, reverse):
    (x,), (g,) = primals, tangents
    y = cumlogsumexp_p.bind(x, axis=axis, reverse=reverse)
    dtype = aval_of(y).dtype
    # Where nothing but zeros were summed y is -inf, and exp(x - y) is to be 0, not NaN.
    empty = eq.bind(y, full((), -np.inf, dtype))
    finite = select(empty, full((), 0, dtype), y)
    before = shift(y, 1, axis, reverse, fill=-np.inf)
    decay = exp.bind(sub.bind(before, finite))
    weight = exp.bind(sub.bind(x, finite))
    return y, recurrence(decay, mul.bind(g, weight), axis, reverse)


# ---- the primitives


def _is_number(dtype: np.dtype) -> bool:
    return dtype != dtypes.BOOL


def _is_real(dtype: np.dtype) -> bool:
    return not dtypes.is_complex(dtype)


def widened(x: Any) -> Any:
    """x in a dtype that numpy computes well in: float32 for small floats, int32 for int4."""
    if dtypes.is_float(x.dtype) and x.dtype.itemsize < 4:
        return x.astype(np.float32)
    return x.astype(np.int32) if x.dtype.kind == "V" else x


def _cumulative(
    name: str,
    along: Callable[[Any, Any, int], Any],
    accepts: Callable[[np.dtype], bool],
    need: str,
    jvp: Callable,
    transpose: Callable | NoRule = NOT_LINEAR,
) -> Primitive:
    def abstract(x, *, axis, reverse):
        check_axes(name, (axis,), x)
        if not accepts(x.dtype):
            raise DTypeError(f"{name}: need {need}, got {x}; convert with .astype(...)")
        return x

    def impl(xp, x, *, axis, reverse):
        wide = widened(x)
        if reverse:
            return xp.flip(along(xp, xp.flip(wide, axis), axis), axis)
        return along(xp, wide, axis)

    def batch(axis_data, args, dims, *, axis, reverse):
        axis = axis + (axis >= dims[0])
        return made.bind(args[0], axis=axis, reverse=reverse), dims[0]

    def dims(x, *, axis, reverse):
        names = dims_.letters(x.ndim)
        names[axis] += "!"
        return f"{' '.join(names)} -> {' '.join(names)}"

    made = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=jvp,
        transpose=transpose,
        batch=batch,
        dims=dims,
    )
    return made


cumsum_p: Primitive = _cumulative(
    "cumsum",
    lambda xp, x, axis: xp.cumsum(x, axis=axis, dtype=x.dtype),
    _is_number,
    "numbers",
    _sum_jvp,
    _sum_transpose,
)
cumprod_p: Primitive = _cumulative(
    "cumprod",
    lambda xp, x, axis: xp.cumprod(x, axis=axis, dtype=x.dtype),
    _is_number,
    "numbers",
    _prod_jvp,
)
cummax_p: Primitive = _cumulative(
    "cummax",
    lambda xp, x, axis: accumulated(xp, xp.maximum, x, axis),
    _is_real,
    "real numbers",
    _extremum_jvp(lambda: cummax_p),
)
cummin_p: Primitive = _cumulative(
    "cummin",
    lambda xp, x, axis: accumulated(xp, xp.minimum, x, axis),
    _is_real,
    "real numbers",
    _extremum_jvp(lambda: cummin_p),
)
cumlogsumexp_p: Primitive = _cumulative(
    "cumlogsumexp",
    lambda xp, x, axis: accumulated(xp, xp.logaddexp, x, axis),
    dtypes.is_float,
    "floating-point numbers",
    _logsumexp_jvp,
)


# ---- public functions


def _apply(prim: Primitive, operand: Any, axis: int, reverse: bool) -> Any:
    axis = canonical_axis(prim.name, axis, aval_of(operand).ndim)
    return prim.bind(operand, axis=axis, reverse=bool(reverse))


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """y[k] = x[0] + … + x[k] along an axis; from the end if `reverse`. Raises for bool.

    >>> from funcgrad import lax
    >>> lax.cumsum(lax.iota("int32", 4))
    Array([0, 1, 3, 6], dtype=int32)
    >>> lax.cumsum(lax.iota("int32", 4), reverse=True)
    Array([6, 6, 5, 3], dtype=int32)
    """
    return _apply(cumsum_p, operand, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """y[k] = x[0] · … · x[k] along an axis; from the end if `reverse`. Raises for bool.

    >>> from funcgrad import lax
    >>> lax.cumprod(lax.add(lax.iota("int32", 4), 1))
    Array([ 1,  2,  6, 24], dtype=int32)
    """
    return _apply(cumprod_p, operand, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The maximum so far along an axis; from the end if `reverse`. Raises for complex numbers.

    >>> from funcgrad import lax
    >>> lax.cummax(lax.rev(lax.iota("int32", 3), [0]))
    Array([2, 2, 2], dtype=int32)
    """
    return _apply(cummax_p, operand, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The minimum so far along an axis; from the end if `reverse`. Raises for complex numbers.

    >>> from funcgrad import lax
    >>> lax.cummin(lax.rev(lax.iota("int32", 3), [0]))
    Array([2, 1, 0], dtype=int32)
    """
    return _apply(cummin_p, operand, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """y[k] = log(exp(x[0]) + … + exp(x[k])) along an axis, without overflow.

    >>> from funcgrad import lax
    >>> lax.cumlogsumexp(lax.full((3,), 1000.0))
    Array([1000.     , 1000.6932 , 1001.09863], dtype=float32, weak_type=True)
    """
    return _apply(cumlogsumexp_p, operand, axis, reverse)
