"""Products of narrow numbers with a scale for each block of them: microscaling formats.

A block of consecutive numbers along what is contracted shares a scale, so that 8 or 4 bits a number
do. (Rouhani et al., "Microscaling Data Formats for Deep Learning", 2023; "nvfp4" has scales of 8
bits for 16 numbers, and one of 32 bits for all.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.lax.scaled import scaled_dot
from funcgrad.ops.contract import canonical_numbers, dot_general
from funcgrad.transforms.derivatives.custom import custom_vjp

_RESULTS = ("float32", "bfloat16", "float16")
E4M3 = np.dtype(dtypes.float8_e4m3fn)
# The largest number of a format: of e4m3, which scales of nvfp4 are, too, and of e2m1.
LARGEST = {"mxfp8": 448.0, "nvfp4": 6.0}


@dataclass(frozen=True, eq=False)
class BlockScaleConfig:
    """How an operand is quantized: see `get_scaled_dot_general_config`.

    block_size: how many numbers share a scale; global_scale: a scale of all, or None
    """

    mode: str
    block_size: int
    global_scale: Any = None


def get_scaled_dot_general_config(mode: str, global_scale: Any = None) -> BlockScaleConfig:
    """The format "mxfp8" (blocks of 32, e4m3 numbers, scales that are powers of two) or "nvfp4"
    (blocks of 16, e2m1 numbers, e4m3 scales).

    global_scale: float32, what all numbers are divided by first, 1 by default; of "nvfp4" alone.

    >>> from funcgrad import nn
    >>> nn.get_scaled_dot_general_config("mxfp8").block_size
    32
    """
    if mode == "mxfp8":
        if global_scale is not None:
            raise ArgumentError("get_scaled_dot_general_config: mxfp8 has no global_scale")
        return BlockScaleConfig(mode, 32)
    if mode != "nvfp4":
        raise ArgumentError(
            f'get_scaled_dot_general_config: mode must be "mxfp8" or "nvfp4", got {mode!r}'
        )
    one = fnp.ones(1, fnp.float32) if global_scale is None else fnp.asarray(global_scale)
    if one.dtype != np.float32 or one.size != 1:
        raise ArgumentError(
            f"get_scaled_dot_general_config: global_scale must be one float32, got {aval_of(one)}"
        )
    return BlockScaleConfig(mode, 16, one)


def scaled_matmul(
    lhs: Any, rhs: Any, lhs_scales: Any, rhs_scales: Any, preferred_element_type: Any = np.float32
) -> Any:
    """Products of matrices of narrow numbers, each block of which has a scale.

    lhs: (B, M, K); rhs: (B, N, K); lhs_scales: (B, M, K/block); rhs_scales: (B, N, K/block). The
    result is (B, M, N), of preferred_element_type; sums are formed in float32.
    Raises ShapeError where shapes don't fit.

    >>> from funcgrad import nn
    >>> a, b = fnp.array([[[1.0, 2.0, 3.0]]]), fnp.array([[[4.0, 5.0, 6.0]]])
    >>> nn.scaled_matmul(a, b, fnp.full((1, 1, 1), 0.5), fnp.full((1, 1, 1), 0.5))
    Array([[[8.]]], dtype=float32)
    """
    shapes = [aval_of(x).shape for x in (lhs, rhs, lhs_scales, rhs_scales)]
    if any(len(s) != 3 for s in shapes):
        raise ShapeError(f"scaled_matmul: need four arrays of three axes, got shapes {shapes}")
    a, b, sa, sb = shapes
    blocks = sa[2]
    fits = a[0] == b[0] == sa[0] == sb[0] and a[2] == b[2] and sa[1] == a[1] and sb[1] == b[1]
    if not fits or sb[2] != blocks or a[2] % max(blocks, 1):
        raise ShapeError(
            "scaled_matmul: need lhs (B, M, K), rhs (B, N, K), lhs_scales (B, M, K/block) and "
            f"rhs_scales (B, N, K/block), got shapes {shapes}"
        )
    return scaled_dot(
        lhs,
        rhs,
        lhs_scale=lhs_scales,
        rhs_scale=rhs_scales,
        dimension_numbers=(((2,), (2,)), ((0,), (0,))),
        preferred_element_type=preferred_element_type,
    )


def scaled_dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    preferred_element_type: Any = np.float32,
    configs: Sequence[BlockScaleConfig] | None = None,
) -> Any:
    """`lax.dot_general` of operands that are quantized first; None as configs: as they are.

    configs: those of lhs, rhs, and cotangents of the result (`get_scaled_dot_general_config`).
    Blocks lie along what is contracted, also in the two products of the backward pass; their last
    one is filled up by zeros. With "nvfp4" that pass isn't quantized, and where an operand was too
    large for the format, its derivative is 0.
    preferred_element_type: float32, bfloat16 or float16, the result's dtype

    >>> from funcgrad import nn
    >>> configs = [nn.get_scaled_dot_general_config("mxfp8")] * 3
    >>> a, b = fnp.ones((2, 64)), fnp.ones((64, 3))
    >>> nn.scaled_dot_general(a, b, (([1], [0]), ([], [])), configs=configs)
    Array([[64., 64., 64.],
           [64., 64., 64.]], dtype=float32)
    """
    dtype = dtypes.canonical(preferred_element_type)
    if configs is None:
        return dot_general(lhs, rhs, dimension_numbers, preferred_element_type=dtype)
    if dtype.name not in _RESULTS:
        raise DTypeError(
            f"scaled_dot_general: preferred_element_type must be one of {', '.join(_RESULTS)}, got "
            f"{dtype}"
        )
    given = configs if isinstance(configs, list | tuple) else []
    if len(given) != 3 or not all(isinstance(c, BlockScaleConfig) for c in given):
        raise ArgumentError(
            "scaled_dot_general: configs must be three of get_scaled_dot_general_config (of lhs, "
            f"rhs and cotangents), got {configs!r}"
        )
    lhs, rhs = fnp.asarray(lhs), fnp.asarray(rhs)
    ndims = lhs.ndim, rhs.ndim
    (lc, rc), (lb, rb) = canonical_numbers("scaled_dot_general", dimension_numbers, *ndims)
    left, right = Side(lhs, lc, lb), Side(rhs, rc, rb)
    if left.paired(lc, lb) != right.paired(rc, rb):
        raise ShapeError(
            f"scaled_dot_general: contracting and batch axes of lhs {aval_of(lhs)} and rhs "
            f"{aval_of(rhs)} must have the same sizes, got {dimension_numbers}"
        )
    fixed = tuple((c.mode, c.block_size) for c in configs)
    scales = [c.global_scale for c in configs]
    out = _product(fixed, dtype, left.matrices(lhs), right.matrices(rhs), scales)
    return out.reshape(*left.batch_shape, *left.free_shape, *right.free_shape)


class Side:
    """An operand of a product, and how it becomes (batch, free, contracted)."""

    def __init__(self, x: Any, contracted: Sequence[int], batch: Sequence[int]):
        free = [i for i in range(x.ndim) if i not in (*contracted, *batch)]
        self.order = (*batch, *free, *contracted)
        self.batch_shape = tuple(x.shape[i] for i in batch)
        self.free_shape = tuple(x.shape[i] for i in free)
        self.shape = x.shape

    def paired(self, contracted: Sequence[int], batch: Sequence[int]) -> list[int]:
        """The sizes that the other operand must have, too."""
        return [self.shape[i] for i in (*contracted, *batch)]

    def matrices(self, x: Any) -> Any:
        """The operand as matrices."""
        rows, batches = math.prod(self.free_shape), math.prod(self.batch_shape)
        return fnp.transpose(x, self.order).reshape(batches, rows, x.size // max(rows * batches, 1))


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _product(fixed: tuple, dtype: np.dtype, x: Any, y: Any, scales: Any) -> Any:
    """x (B, M, K) times y (B, N, K), quantized as the first two of `fixed` and `scales` say."""
    if x.shape[2] == 0:
        return fnp.zeros((x.shape[0], x.shape[1], y.shape[1]), dtype)
    (a, a_scales), (b, b_scales) = (
        _quantized(v, mode, block, s)
        for v, (mode, block), s in zip((x, y), fixed, scales, strict=False)
    )
    whole = [s for s in scales[:2] if s is not None]
    out = scaled_matmul(a, b, a_scales, b_scales, np.float32 if whole else dtype)
    for s in whole:
        out = out * s
    return out.astype(dtype)


def _forward(fixed: tuple, dtype: np.dtype, x: Any, y: Any, scales: Any) -> tuple[Any, Any]:
    return _product(fixed, dtype, x, y, scales), (x, y, scales)


def _backward(fixed: tuple, dtype: np.dtype, kept: Any, ct: Any) -> tuple[Any, Any, None]:
    x, y, scales = kept
    turned = ct.swapaxes(1, 2)

    def of(ct: Any, other: Any, i: int) -> Any:
        other = other.swapaxes(1, 2)
        if fixed[2][0] == "nvfp4":
            return dot_general(ct, other.astype(ct.dtype), (((2,), (2,)), ((0,), (0,))))
        return _product((fixed[2], fixed[i]), ct.dtype, ct, other, (scales[2], scales[i]))

    def held(ct: Any, v: Any, i: int) -> Any:
        """0 where the operand was too large for its format."""
        if fixed[2][0] == "nvfp4" and scales[i] is not None:
            top = fnp.abs(v) <= scales[i] * (LARGEST["nvfp4"] * LARGEST["mxfp8"])
            ct = fnp.where(top, ct, 0)
        return ct.astype(v.dtype)

    return held(of(ct, y, 1), x, 0), held(of(turned, x, 0), y, 1), None


_product.defvjp(_forward, _backward)


def _quantized(x: Any, mode: str, block: int, whole: Any) -> tuple[Any, Any]:
    """Matrices in a narrow dtype, and the scales of their blocks along the last axis.

    Numbers of e2m1 are held in e4m3, which has all of them; powers of two in float32.
    """
    *lead, n = x.shape
    count = -(-n // block)
    x = fnp.pad(x, [(0, 0)] * len(lead) + [(0, count * block - n)])
    blocks = x.reshape(*lead, count, block)
    if whole is not None:
        blocks = blocks / whole
    top = fnp.asarray(LARGEST[mode], blocks.dtype)
    largest = fnp.max(fnp.abs(blocks), axis=-1, keepdims=True) / top
    if mode == "mxfp8":
        scales = _power_above(largest)
    else:
        scales = fnp.minimum(largest, LARGEST["mxfp8"]).astype(E4M3)
    factor = scales.astype(fnp.float32)
    # Blocks of zeros, and of numbers so small that their scale is 0, have nothing to divide by.
    scaled = fnp.where(factor == 0, 0, blocks / fnp.where(factor == 0, 1, factor))
    scaled = fnp.clip(scaled, -top, top)
    narrow = (scaled if mode == "mxfp8" else _to_e2m1(scaled)).astype(E4M3)
    return narrow.reshape(*lead, count * block), scales[..., 0]


def _power_above(x: Any) -> Any:
    """The least power of two that isn't below x ≥ 0, from 2⁻¹²⁷ on, in float32."""
    mantissa, exponent = fnp.frexp(x.astype(fnp.float32))
    exponent = fnp.where(mantissa == 0.5, exponent - 1, exponent)
    return fnp.ldexp(fnp.float32(1), fnp.where(x == 0, -127, fnp.clip(exponent, -127, 127)))


def _to_e2m1(x: Any) -> Any:
    """The nearest of 0, ½, 1, 1½, 2, 3, 4 and 6, with either sign; the even one of two."""
    size = fnp.abs(x)
    step = fnp.where(size < 2, 0.5, fnp.where(size < 4, 1.0, 2.0)).astype(x.dtype)
    return fnp.round(x / step) * step
