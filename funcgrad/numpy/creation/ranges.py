"""Evenly spaced numbers: arange, linspace, logspace, geomspace."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray, promote, scalar_dtype
from funcgrad.core.evaluation import EvalTrace
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, within
from funcgrad.numpy._known import concrete
from funcgrad.numpy._util import (
    as_dtype,
    broadcast,
    broadcast_to,
    canonical_axis,
    convert,
    default_float,
    default_int,
    dtype_or,
    integer,
    is_scalar,
    made,
    promote_inexact,
)
from funcgrad.numpy.elementwise.arithmetic import power
from funcgrad.ops.base import full, move_axis, position_dtype
from funcgrad.ops.elementwise import arithmetic, compare, rounding, transcendental
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.shape import broadcasted_iota, iota, reshape
from funcgrad.ops.sharding import cut_as_said

_STATIC_BOUNDS = (
    "Make it static (static_argnames=), or take a known range and mask it: "
    "fnp.where(fnp.arange(most) < n, ..., 0)."
)


def _known(name: str, argument: str, value: Any) -> Any:
    """A static number: Python's or numpy's, or that of a 0-d array whose value is known."""
    if isinstance(value, list | tuple | str) or value is None or aval_of(value).shape:
        raise TypeError(within(f"{name}: {argument} must be a number, got {value!r}"))
    return value if is_scalar(value) else concrete(name, argument, value, _STATIC_BOUNDS).item()


def _kind(value: Any) -> ShapedArray:
    if is_scalar(value):
        return ShapedArray((), scalar_dtype(value), type(value) is not bool)
    return aval_of(value)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The numbers start, start + step, … below stop (above it for a negative step).

    With one argument it is `stop`, and the numbers start at 0. The arguments are static; without
    `dtype` the result has their common dtype (default dtypes for Python's numbers). `out_sharding`
    is how it is to be cut over a mesh.

    >>> fnp.arange(3)
    Array([0, 1, 2], dtype=int32)
    >>> fnp.arange(1.0, 2.0, 0.25)
    Array([1.  , 1.25, 1.5 , 1.75], dtype=float32)
    """
    if out_sharding is not None:
        return cut_as_said(arange(start, stop, step, dtype), out_sharding)
    if device is not None or context.current().device is not None:
        return made(lambda: arange(start, stop, step, dtype), device)
    if dtype is None and type(context.current().trace) is EvalTrace:
        # Mostly: Python's integers that the default dtype holds, as it then does all between them.
        kind = default_int()
        most = 1 << (8 * kind.itemsize - 1) if kind.kind == "i" else 0
        first, last = (0, start) if stop is None else (start, stop)
        whole = (first, last, 1 if step is None else step)
        if all(type(v) is int and -most < v < most for v in whole) and whole[2]:
            return Array(np.arange(*whole, dtype=kind))
    roles = ("stop" if stop is None else "start", "stop", "step")
    given = zip(roles, (start, stop, step), strict=True)
    named = [(r, v) for i, (r, v) in enumerate(given) if not i or v is not None]
    known = [_known("arange", role, v) for role, v in named]
    chosen, dtype = dtype, dtype_or(dtype, promote([_kind(v) for _, v in named])[0])
    if dtype == dtypes.BOOL:
        raise DTypeError(f"arange: need a dtype of numbers, got {dtype}")
    if dtypes.is_complex(dtype) and all(isinstance(v, int | float) for v in known):
        return convert(arange(start, stop, step, dtypes.real_part(dtype)), dtype)
    if any(isinstance(v, complex) for v in known):
        return Array(np.arange(*known).astype(dtype))
    first, last = (0, known[0]) if stop is None else known[:2]
    return _counted(first, last, 1 if step is None else known[-1], dtype, chosen is not None)


def _counted(first: Any, last: Any, by: Any, dtype: np.dtype, asked: bool) -> Any:
    """The real numbers from the first one on below the last, in a dtype, which was asked for or
    follows from theirs."""
    if not by:
        raise ValueError("arange: step must not be 0")
    if not math.isfinite((last - first) / by):
        raise ValueError(within(f"arange: the numbers must be finite, got {[first, last, by]}"))
    size = max(0, math.ceil((last - first) / by))
    if dtypes.is_integer(dtype) and isinstance(first, int) and isinstance(by, int):
        size = max(0, -((first - last) // by)) if isinstance(last, int) else size
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        # In a dtype that was asked for, numbers past its end start again, as in NumPy.
        ends = (first,) if asked or not size else (first, first + (size - 1) * by)
        for end in ends:
            if not int(info.min) <= end <= int(info.max):
                message = f"arange: {end} does not fit {dtype}; pass dtype='int64'"
                raise OverflowError(within(message))
    wide = np.dtype(np.float32) if dtype.itemsize <= 2 and dtypes.is_float(dtype) else dtype
    if dtypes.is_integer(dtype) and not (isinstance(first, int) and isinstance(by, int)):
        wide = np.dtype(np.float64)
    counts = iota(wide, size)
    if by != 1:
        counts = arithmetic.mul(counts, by)
    return convert(counts if not first else add(counts, first), dtype)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` evenly spaced numbers from start to stop, which is the last one if `endpoint`.

    `start` and `stop` may be arrays, which broadcast; the numbers are then along the new `axis`.
    With `retstep` the result is (numbers, step). An integer `dtype` rounds down.

    >>> fnp.linspace(0, 1, 5)
    Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    >>> fnp.linspace(0, 10, 4, endpoint=False, dtype=int)
    Array([0, 2, 5, 7], dtype=int32)
    """
    if device is not None or context.current().device is not None:
        return made(lambda: linspace(start, stop, num, endpoint, retstep, dtype, axis), device)
    num = integer("num", num)
    if num < 0:
        raise ValueError(f"linspace: num must not be negative, got {num}")
    if dtype is None and not retstep and num <= _FEW and type(context.current().trace) is EvalTrace:
        # Mostly: Python's numbers, of which nothing that is worked out is rounded to infinity.
        kind = default_float()
        plain = all(type(v) in (int, float) and abs(v) < _MODERATE for v in (start, stop))
        if plain and kind.kind == "f" and kind.itemsize >= 4:
            canonical_axis("linspace", axis, 1)
            return Array(_plain_line(start, stop, num, endpoint, kind))
    start, stop = broadcast("linspace", *_ends("linspace", start, stop, dtype))
    out_dtype = dtype_or(dtype, start.dtype)
    steps = num - 1 if endpoint else num
    shape = start.shape
    line = (num, *(1,) * len(shape))
    real = arithmetic.real(start).dtype if dtypes.is_complex(start.dtype) else start.dtype
    wide = np.dtype(np.float32) if real.itemsize <= 2 else real
    t = convert(arithmetic.div(iota(wide, num), max(steps, 1)), start.dtype)
    t = broadcast_to(reshape(t, line), (num, *shape))
    first, last = (broadcast_to(v, (num, *shape)) for v in (start, stop))
    out = add(arithmetic.mul(first, arithmetic.sub(1.0, t)), arithmetic.mul(last, t))
    if endpoint and num > 1:
        # The end itself, whatever was rounded on the way.
        at_end = broadcasted_iota(position_dtype(num), (num, *shape), 0)
        out = select(compare.eq(at_end, num - 1), last, out)
    if dtypes.is_integer(out_dtype) and not dtypes.is_complex(out.dtype):
        out = rounding.floor(out)
    out = convert(move_axis(out, 0, canonical_axis("linspace", axis, out.ndim)), out_dtype)
    if not retstep:
        return out
    step = arithmetic.div(arithmetic.sub(stop, start), steps) if steps > 0 else (
        full(shape, np.nan, start.dtype))  # fmt: skip
    return out, step


# Of both kinds of integers and floats no more is counted exactly, or is far from their limits.
_FEW, _MODERATE = 1 << 20, 1 << 24


def _plain_line(first: float, last: float, num: int, endpoint: bool, kind: np.dtype) -> np.ndarray:
    """The numbers of `linspace`, by the operations and in the order that it has for arrays."""
    start, stop = kind.type(first), kind.type(last)
    t = np.arange(num, dtype=kind) / kind.type(max(num - 1 if endpoint else num, 1))
    out = start * (kind.type(1) - t) + stop * t
    if endpoint and num > 1:
        out[-1] = stop
    return out


def _ends(name: str, start: Any, stop: Any, dtype: Any) -> list[Any]:
    """Both ends in the dtype that what lies between is worked out in: no less than `dtype`."""
    first, last = promote_inexact(name, start, stop)
    kind = first.dtype
    if dtype is not None:
        wanted = dtype_or(dtype, kind)
        floats = dtypes.to_inexact(wanted, np.dtype(np.float64 if wanted.itemsize > 4 else kind))
        kind = promote([ShapedArray((), kind), ShapedArray((), floats)])[0]
    return [
        as_dtype(name, given if is_scalar(given) else x, kind)
        for given, x in ((start, first), (stop, last))
    ]


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """`num` numbers from base^start to base^stop, evenly spaced on a logarithmic scale.

    >>> fnp.logspace(0, 3, 4)
    Array([   1.,   10.,  100., 1000.], dtype=float32)
    """
    start, stop = _ends("logspace", start, stop, dtype)
    out = power(base, linspace(start, stop, num, endpoint, False, None, axis))
    return out if dtype is None else convert(out, dtype_or(dtype, out.dtype))


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from start to stop, each the same multiple of the one before.

    Both ends are exact. Ends of different sign need a complex dtype.

    >>> fnp.geomspace(1, 16, 3)
    Array([ 1.,  4., 16.], dtype=float32)
    """
    start, stop = broadcast("geomspace", *_ends("geomspace", start, stop, dtype))
    size = stop.ndim + 1
    place = canonical_axis("geomspace", axis, size)
    sign = arithmetic.sign(start)
    ratio = arithmetic.div(stop, sign)
    logs = (transcendental.log(arithmetic.div(start, sign)), transcendental.log(ratio))
    out = transcendental.exp(linspace(*logs, num, endpoint))
    out = arithmetic.mul(out, broadcast_to(sign, out.shape))
    ends = [(0, start)] + ([(num - 1, stop)] if endpoint and num > 1 else [])
    index = broadcasted_iota(position_dtype(num), out.shape, 0)
    for i, end in ends:
        out = select(compare.eq(index, i), broadcast_to(end, out.shape), out)
    return convert(move_axis(out, 0, place), dtype_or(dtype, out.dtype))
