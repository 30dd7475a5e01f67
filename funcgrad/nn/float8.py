"""Products in float8, with scales that follow what is multiplied: for training.

Operands become e4m3 (3 bits of mantissa), cotangents, whose sizes differ more, e5m2. Each is first
divided by its largest element over the format's largest number, of the whole array or of each row;
nothing is remembered from step to step. (Micikevicius et al., "FP8 Formats for Deep Learning",
2022.)
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.nn.scaled import E4M3, Side, scaled_matmul
from funcgrad.ops.contract import canonical_numbers
from funcgrad.transforms.derivatives.custom import custom_vjp

E5M2 = np.dtype(dtypes.float8_e5m2)
SCALINGS = ("tensor", "row")
_FLOATS = ("float32", "bfloat16", "float16")


def fp8_dot(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any = None,
    *,
    scaling: str = "tensor",
    preferred_element_type: Any = None,
) -> Any:
    """`lax.dot_general` of operands in float8 (e4m3), whose cotangents are float8 (e5m2), too.

    dimension_numbers: by default the last axis of lhs is contracted with the first of rhs. scaling:
    "tensor", one scale for each operand, or "row", one for each index that isn't contracted, in
    the backward pass as well. Sums are formed in float32; casts saturate, and a row of zeros stays
    zeros. Infinities and NaN give NaN. preferred_element_type: the result's dtype, by default that
    of lhs; gradients have their operands'.
    Raises DTypeError for operands that aren't float32, bfloat16 or float16.

    >>> from funcgrad import nn
    >>> x, w = fnp.ones((2, 3)), fnp.full((3, 4), 0.1)
    >>> print(nn.fp8_dot(x, w)[0])
    [0.3 0.3 0.3 0.3]
    >>> print(fg.grad(lambda w: fnp.sum(nn.fp8_dot(x, w, scaling="row")))(w)[0])
    [2. 2. 2. 2.]
    """
    lhs, rhs = fnp.asarray(lhs), fnp.asarray(rhs)
    if scaling not in SCALINGS:
        raise ArgumentError(f'fp8_dot: scaling must be "tensor" or "row", got {scaling!r}')
    if not {lhs.dtype.name, rhs.dtype.name} <= set(_FLOATS):
        raise DTypeError(
            f"fp8_dot: operands must be of {', '.join(_FLOATS)}, got lhs {aval_of(lhs)} and rhs "
            f"{aval_of(rhs)}"
        )
    if dimension_numbers is None:
        dimension_numbers = (((lhs.ndim - 1,), (0,)), ((), ()))
    numbers = canonical_numbers("fp8_dot", dimension_numbers, lhs.ndim, rhs.ndim)
    (lc, rc), (lb, rb) = numbers
    left, right = Side(lhs, lc, lb), Side(rhs, rc, rb)
    if left.paired(lc, lb) != right.paired(rc, rb):
        raise ShapeError(
            f"fp8_dot: contracting and batch axes of lhs {aval_of(lhs)} and rhs {aval_of(rhs)} "
            f"must have the same sizes, got {dimension_numbers}"
        )
    out = _product(scaling, left.matrices(lhs), right.matrices(rhs))
    dtype = lhs.dtype if preferred_element_type is None else preferred_element_type
    return out.astype(dtype).reshape(*left.batch_shape, *left.free_shape, *right.free_shape)


class _Narrow(NamedTuple):
    """Matrices (batch, row, contracted) in float8, and the scale of each row."""

    values: Any
    scales: Any


def quantize_fp8(x: Any, dtype: Any, scaling: str) -> tuple[Any, Any]:
    """x (…, row, element) in a float8 dtype, and scales (…, row, 1) in float32: x ≈ values·scales.

    >>> values, scales = quantize_fp8(fnp.array([[1.0, -2.0]]), E4M3, "tensor")
    >>> print(values, scales * 448)
    [[224 -448]] [[2.]]
    """
    x, top = x.astype(np.float32), np.float32(dtypes.finfo(dtype).max)
    axes = -1 if scaling == "row" else None
    scales = fnp.max(fnp.abs(x), axis=axes, keepdims=True, initial=0) / top
    scales = fnp.where(scales == 0, 1, scales)
    values = fnp.clip(x / scales, -top, top).astype(dtype)
    return values, fnp.broadcast_to(scales, (*x.shape[:-1], 1))


def _quantized(x: Any, dtype: np.dtype, scaling: str) -> _Narrow:
    return _Narrow(*quantize_fp8(x, dtype, scaling))


def _multiplied(x: _Narrow, y: _Narrow) -> Any:
    """(B, M, K) times (B, N, K), in float32."""
    return scaled_matmul(x.values, y.values, x.scales, y.scales)


@partial(custom_vjp, nondiff_argnums=(0,))
def _product(scaling: str, x: Any, y: Any) -> Any:
    if not x.size or not y.size:
        return fnp.zeros((x.shape[0], x.shape[1], y.shape[1]), np.float32)
    return _multiplied(_quantized(x, E4M3, scaling), _quantized(y, E4M3, scaling))


def _forward(scaling: str, x: Any, y: Any) -> tuple[Any, Any]:
    return _product(scaling, x, y), (x, y)


def _backward(scaling: str, kept: Any, ct: Any) -> tuple[Any, Any]:
    x, y = kept

    def of(ct: Any, other: Any, like: Any) -> Any:
        # Other axes are contracted now: rows are quantized anew, from what they were.
        other = _quantized(other.swapaxes(1, 2), E4M3, scaling)
        return _multiplied(_quantized(ct, E5M2, scaling), other).astype(like.dtype)

    if not ct.size or not x.size:
        return fnp.zeros_like(x), fnp.zeros_like(y)
    return of(ct, y, x), of(ct.swapaxes(1, 2), x, y)


_product.defvjp(_forward, _backward)
