"""Products in float8, with scales that follow what is multiplied.

Operands become e4m3 (3 bits of mantissa), cotangents, whose sizes differ more, e5m2. Each is first
divided by its largest element over the format's largest number; nothing is remembered from step to
step. (Micikevicius et al., "FP8 Formats for Deep Learning", 2022.)
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.core.types import Param, Value
from funcgrad.ops.base import zeros
from funcgrad.ops.contract import dot_general, dot_general_p
from funcgrad.ops.elementwise.arithmetic import abs as absolute
from funcgrad.ops.elementwise.arithmetic import div, mul
from funcgrad.ops.elementwise.arithmetic import max as maximum
from funcgrad.ops.elementwise.arithmetic import min as minimum
from funcgrad.ops.elementwise.convert import clamp, convert_element_type
from funcgrad.ops.reduce import reduce_max
from funcgrad.ops.shape import broadcast_in_dim, transpose
from funcgrad.transforms.derivatives.custom import custom_vjp

E4M3, E5M2 = np.dtype(dtypes.float8_e4m3fn), np.dtype(dtypes.float8_e5m2)
_WIDE = np.dtype(np.float32)
_LEAST = float(np.finfo(np.float32).tiny)  # a scale: smaller ones have few digits


class Narrow(NamedTuple):
    """An array in float8, and its scale, float32: it stands for values·scale.

    scale: a number, or with an axis of size 1 where elements share one
    """

    values: Value
    scale: Value


class _How(NamedTuple):
    """A product: its dimension numbers, and its operands' dtypes."""

    numbers: Param
    lhs: np.dtype
    rhs: np.dtype


def quantized(x: Value, dtype: np.dtype, axis: int | None = None) -> Narrow:
    """x in a float8 dtype, with one scale, or one for all but an axis. Casts saturate; zeros stay
    zeros, and so do elements that a scale of 2⁻¹²⁶ is too large for.

    >>> values, scale = quantized(fnp.array([1.0, -2.0]), E4M3)
    >>> print(values, scale * 448)
    [224 -448] 2.0
    """
    x, top = convert_element_type(x, _WIDE), np.float32(dtypes.finfo(dtype).max)
    shape = aval_of(x).shape
    axes = range(len(shape)) if axis is None else [axis % len(shape)]
    scale = div(reduce_max(absolute(x), list(axes)), top)
    scale = maximum(scale, _like(scale, _LEAST))
    kept = [i for i in range(len(shape)) if i not in axes]
    if axis is not None:
        scale = broadcast_in_dim(scale, [n if i in kept else 1 for i, n in enumerate(shape)], kept)
        kept = list(range(len(shape)))
    held = clamp(-top, div(x, broadcast_in_dim(scale, shape, kept)), top)
    return Narrow(convert_element_type(held, dtype), scale)


def float8_dot(lhs: Value, rhs: Value, numbers: Param, dtype: np.dtype) -> Value:
    """`dot_general` of operands in float8 (e4m3), each with one scale, whose cotangents are float8
    (e5m2), too; sums are formed in float32, the result is of `dtype`. numbers: dimension numbers.

    >>> x = fnp.array([[1.0, 2.0]])
    >>> print(float8_dot(x, x, (((1,), (1,)), ((), ())), np.dtype("f4")))
    [[5.]]
    """
    how = _How(numbers, aval_of(lhs).dtype, aval_of(rhs).dtype)
    return convert_element_type(_dot(how, lhs, rhs), dtype)


def _like(x: Value, value: float) -> Value:
    return broadcast_in_dim(np.float32(value), aval_of(x).shape, ())


def _times(x: Narrow, y: Narrow, numbers: Param) -> Value:
    """A product of two, in float32."""
    sums = dot_general(x.values, y.values, numbers, preferred_element_type=_WIDE)
    shape = aval_of(sums).shape
    # The smaller one first: by the larger alone a finite product may overflow.
    for scale in (minimum(x.scale, y.scale), maximum(x.scale, y.scale)):
        sums = mul(sums, broadcast_in_dim(scale, shape, ()))
    return sums


@partial(custom_vjp, nondiff_argnums=(0,))
def _dot(how: _How, lhs: Value, rhs: Value) -> Value:
    return _forward(how, lhs, rhs)[0]


def _forward(how: _How, lhs: Value, rhs: Value) -> tuple[Value, tuple[Narrow, Narrow]]:
    if not aval_of(lhs).size or not aval_of(rhs).size:
        kept = Narrow(lhs, np.float32(1)), Narrow(rhs, np.float32(1))
        params = {"dimension_numbers": how.numbers, "preferred_element_type": _WIDE}
        return zeros(dot_general_p.abstract(aval_of(lhs), aval_of(rhs), **params)), kept
    kept = quantized(lhs, E4M3), quantized(rhs, E4M3)
    return _times(*kept, how.numbers), kept


def _backward(how: _How, kept: tuple[Narrow, Narrow], ct: Value) -> tuple[Value, Value]:
    x, y = kept
    lhs, rhs = aval_of(x.values), aval_of(y.values)
    if not lhs.size or not rhs.size:
        return zeros(lhs), zeros(rhs)
    (lc, rc), (lb, rb) = how.numbers
    l_free, r_free = _free(lhs.ndim, lc, lb), _free(rhs.ndim, rc, rb)
    batch = tuple(range(len(lb)))
    rows = tuple(range(len(lb), len(lb) + len(l_free)))
    columns = tuple(range(len(lb) + len(l_free), aval_of(ct).ndim))
    narrow = quantized(ct, E5M2)
    # What was contracted comes in the other operand's order.
    to_lhs = _times(narrow, y, ((columns, r_free), (batch, rb)))
    to_rhs = _times(x, narrow, ((l_free, rows), (lb, batch)))
    l_order = (*lb, *l_free, *(lc[i] for i in np.argsort(rc)))
    r_order = (*rb, *(rc[i] for i in np.argsort(lc)), *r_free)
    return (
        convert_element_type(transpose(to_lhs, np.argsort(l_order).tolist()), how.lhs),
        convert_element_type(transpose(to_rhs, np.argsort(r_order).tolist()), how.rhs),
    )


def _free(ndim: int, *used: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(ndim) if not any(i in axes for axes in used))


_dot.defvjp(_forward, _backward)
