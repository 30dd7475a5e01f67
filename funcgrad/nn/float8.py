"""Products in float8 for training, with a scale for each operand (`transforms.precision.float8`),
or for each of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.core.trace import aval_of
from funcgrad.dtypes import canonical
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.nn.scaled import Side, scaled_matmul
from funcgrad.ops.contract import canonical_numbers
from funcgrad.transforms.derivatives.custom import custom_vjp
from funcgrad.transforms.precision.float8 import E4M3, E5M2, float8_dot, quantized

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
    >>> print(fg.grad(lambda w: fnp.sum(nn.fp8_dot(x, w, scaling="row")))(w)[0].round(4))
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
    dtype = lhs.dtype if preferred_element_type is None else preferred_element_type
    if scaling == "tensor":
        return float8_dot(lhs, rhs, numbers, canonical(dtype))
    out = _product(left.matrices(lhs), right.matrices(rhs))
    return out.astype(dtype).reshape(*left.batch_shape, *left.free_shape, *right.free_shape)


def _multiplied(x: Any, x_dtype: np.dtype, y: Any) -> Any:
    """(B, M, K) times (B, N, K), in float32, a scale for each row of either."""
    a, b = quantized(x, x_dtype, -1), quantized(y, E4M3, -1)
    return scaled_matmul(a.values, b.values, a.scale, b.scale)


@custom_vjp
def _product(x: Any, y: Any) -> Any:
    if not x.size or not y.size:
        return fnp.zeros((x.shape[0], x.shape[1], y.shape[1]), np.float32)
    return _multiplied(x, E4M3, y)


def _forward(x: Any, y: Any) -> tuple[Any, Any]:
    return _product(x, y), (x, y)


def _backward(kept: Any, ct: Any) -> tuple[Any, Any]:
    x, y = kept
    if not ct.size or not x.size:
        return fnp.zeros_like(x), fnp.zeros_like(y)
    # Other axes are contracted now: rows are quantized anew, from what they were.
    to_x = _multiplied(ct, E5M2, y.swapaxes(1, 2))
    to_y = _multiplied(ct.swapaxes(1, 2), E5M2, x.swapaxes(1, 2))
    return to_x.astype(x.dtype), to_y.astype(y.dtype)


_product.defvjp(_forward, _backward)
