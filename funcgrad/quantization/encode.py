"""Arrays as quantized arrays: scales found, codes taken.

`axes` are the axes that products sum over, as negative numbers; groups run along the last of them.
What is reduced for one scale are these axes, never those of a stack of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, DTypeError
from funcgrad.optim.eight_bit import dynamic_map
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import Float8Array, IntArray, MXArray, NF4Array


def _floats(what: str, x: Any) -> tuple[Any, str]:
    """The array in float32, and the name of the dtype that it has."""
    dtype = dtypes.canonical(getattr(x, "dtype", "float32"))
    if not dtypes.is_float(dtype):
        raise DTypeError(f"{what}: need an array of floats, got {dtype} of shape {x.shape}")
    return fnp.asarray(x).astype("float32"), dtype.name


def quantize_int(
    x: Any,
    bits: int = 8,
    group: int = 0,
    axes: Sequence[int] = (-2,),
    symmetric: bool | None = None,
    *,
    scale: Any = None,
    zero: Any = None,
) -> IntArray:
    """An array as integers of 8, 4 or 2 bits; see `formats` for the formula.

    group: how many along the last of `axes` share a scale; 0: all along all of them. symmetric: no
    zero points; by default for 8 bits alone. scale, zero: use these, of the shape of the result's.
    Raises ShapeError where groups, or bytes, don't divide the axis; DTypeError for integers.

    >>> w = fg.quantization.quantize_int(fnp.ones((64, 8)), bits=4, group=32)
    >>> w.codes.shape, w.scale.shape, w.nbytes
    ((32, 8), (2, 8), 336)
    """
    if bits not in formats.BITS:
        raise ArgumentError(f"quantize_int: bits must be 8, 4 or 2, got {bits!r}")
    x, to = _floats("quantize_int", x)
    axes = tuple(axes)
    axis = axes[-1]
    formats.check_group("quantize_int", x.shape, axis, group, 8 // bits)
    symmetric = (bits == 8) if symmetric is None else symmetric
    low, high = formats.limits(bits, symmetric)
    values = formats.split_groups(x, axis, group) if group else x
    reduce = axes if not group else (axis,)
    given = scale is not None
    if given:
        values, scale, *rest = formats.grouped(x, axis, group, scale, *_some(zero))
        z = rest[0].astype("float32") if rest else np.float32(0)
    elif symmetric:
        scale, z = formats.symmetric_scale(values, bits, reduce), np.float32(0)
    else:
        least, most = (f(values, axis=reduce, keepdims=True) for f in (fnp.min, fnp.max))
        scale, z = formats.affine_scale(least, most, low, high)
    codes = formats.to_codes(values, scale, z, low, high).astype("int8" if symmetric else "uint8")
    codes = formats.join_groups(codes, axis) if group else codes
    if symmetric and bits < 8:
        codes = (codes + np.int8(2 ** (bits - 1))).astype("uint8")
    squeeze = (lambda p: fnp.squeeze(p, axis)) if group else (lambda p: p)
    zero_part = None
    if not symmetric:
        exact = given and zero is not None and dtypes.is_float(zero.dtype)
        zero_part = squeeze(z) if exact else squeeze(z).astype("uint8")
    return IntArray(
        formats.pack(codes, bits, axis), squeeze(scale), zero_part,
        width=bits, axis=axis, group=group, to=to,
    )  # fmt: skip


def _some(x: Any) -> list:
    return [] if x is None else [x]


def quantize_nf4(
    x: Any, block: int = 64, double_quant: bool = True, axes: Sequence[int] = (-2,)
) -> NF4Array:
    """An array in NF4, with the scales of blocks along the last of `axes` quantized, too.

    4 + 8/64 + 32/(64·256) = 4.127 bits an element, and a mean for each matrix.

    >>> w = fg.quantization.quantize_nf4(fnp.ones((256, 128)))
    >>> round(w.bits, 3)
    4.128
    """
    x, to = _floats("quantize_nf4", x)
    axis = tuple(axes)[-1]
    formats.check_group("quantize_nf4", x.shape, axis, block, 2)
    values = formats.split_groups(x, axis, block)
    scale = fnp.max(fnp.abs(values), axis=axis, keepdims=True)
    codes = formats.nearest(values / formats.positive(scale), formats.NF4_TABLE)
    packed = formats.pack(formats.join_groups(codes, axis), 4, axis)
    scale = fnp.squeeze(scale, axis)
    if not double_quant:
        return NF4Array(packed, scale, axis=axis, block=block, to=to)
    n_stack = max(0, min(x.ndim + min(axes), x.ndim - 2))
    stack = scale.shape[:n_stack]
    flat = scale.reshape(*stack, -1)
    n = flat.shape[-1]
    mean = fnp.mean(flat, axis=-1, keepdims=True)
    rest = flat - mean
    widths = [*[(0, 0)] * n_stack, (0, -n % 256)]
    blocks = fnp.pad(rest, widths).reshape(*stack, -1, 256)
    second = formats.positive(fnp.max(fnp.abs(blocks), axis=-1))
    relative = blocks / second[..., None]
    places = formats.nearest(relative, dynamic_map(signed=True))
    places = places.reshape(*stack, -1)[..., :n].reshape(scale.shape)
    return NF4Array(packed, places, second, mean, axis=axis, block=block, to=to)


def quantize_float8(
    x: Any, dtype: Any = "float8_e4m3fn", per: str = "row", axes: Sequence[int] = (-2,)
) -> Float8Array:
    """An array in a float8 dtype, scaled by amax over its largest number; per "row" (a result of
    the product) or "tensor" (a matrix).

    >>> fg.quantization.quantize_float8(fnp.array([[1.0], [-2.0]])).codes.ravel()
    Array([224, -448], dtype=float8_e4m3fn)
    """
    if per not in ("row", "tensor"):
        raise ArgumentError(f"quantize_float8: per must be 'row' or 'tensor', got {per!r}")
    if dtypes.canonical(dtype) not in dtypes.FLOAT8:
        raise DTypeError(f"quantize_float8: dtype must be one of float8, got {dtype}")
    x, to = _floats("quantize_float8", x)
    top = float(dtypes.finfo(dtype).max)
    over = tuple(axes) if per == "row" else tuple({-1, *axes} | ({-2} if x.ndim > 1 else set()))
    scale = formats.positive(fnp.max(fnp.abs(x), axis=over, keepdims=True) / np.float32(top))
    codes = formats.to_float8(x / scale, dtype)
    return Float8Array(codes, scale, axis=tuple(axes)[-1], to=to)


def quantize_mxfp4(x: Any, axes: Sequence[int] = (-2,)) -> MXArray:
    """An array in MXFP4: blocks of 32 along the last of `axes`, 4.25 bits an element.

    >>> fg.quantization.quantize_mxfp4(fnp.ones((64, 4))).bits
    4.25
    """
    x, to = _floats("quantize_mxfp4", x)
    axis = tuple(axes)[-1]
    formats.check_group("quantize_mxfp4", x.shape, axis, 32, 2)
    values = formats.split_groups(x, axis, 32)
    exponent = formats.shared_exponent(fnp.max(fnp.abs(values), axis=axis, keepdims=True), 2)
    codes = formats.to_e2m1(values / formats.power_of_two(exponent))
    packed = formats.pack(formats.join_groups(codes, axis), 4, axis)
    return MXArray(packed, fnp.squeeze(exponent, axis), axis=axis, to=to)
