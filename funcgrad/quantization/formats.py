"""Number formats: from floats to codes and back, exactly as written down here.

Integers: q = clip(round(x / s) + z), with ties to even, a true division and the zero point z added
after rounding; x ≈ s (q − z). Symmetric ones have z = 0 and s = amax / 127 (7, 1 for 4 and 2 bits),
so that −128 isn't used; others cover [min(x, 0), max(x, 0)], so that 0 is exact. NF4: Dettmers et
al., *QLoRA*, 2023. MXFP4: OCP Microscaling formats, 2023.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.errors import ShapeError

BITS = (8, 4, 2)

NF4_TABLE = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
E2M1_TABLE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


# ---- groups along an axis


def split_groups(x: Any, axis: int, group: int) -> Any:
    """The array with an axis (a negative number) as two: groups, and places in them.

    >>> split_groups(fnp.ones((6, 3)), -2, 2).shape
    (3, 2, 3)
    """
    axis += x.ndim
    return x.reshape(*x.shape[:axis], -1, group, *x.shape[axis + 1 :])


def join_groups(x: Any, axis: int) -> Any:
    """The array whose axis was split.

    >>> join_groups(fnp.ones((3, 2, 3)), -2).shape
    (6, 3)
    """
    axis += x.ndim - 1
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def grouped(x: Any, axis: int, group: int, *parts: Any) -> list:
    """An array and what it has for each group, as arrays that broadcast against each other: with
    group 0 they do so already; else `join_groups` undoes it.

    >>> [p.shape for p in grouped(fnp.ones((6, 3)), -2, 2, fnp.ones((3, 3)))]
    [(3, 2, 3), (3, 1, 3)]
    """
    if not group:
        return [x, *parts]
    return [split_groups(x, axis, group), *(fnp.expand_dims(p, p.ndim + axis + 1) for p in parts)]


def check_group(what: str, shape: Sequence[int], axis: int, group: int, per: int = 1) -> None:
    """Raise unless groups, and bytes of so many codes, divide an axis."""
    n = shape[axis]
    if group and n % group:
        raise ShapeError(
            f"{what}: groups of {group} don't divide the axis of {n} that products sum over, of "
            f"shape {tuple(shape)}"
        )
    if (group or n) % per:
        raise ShapeError(
            f"{what}: {per} codes are a byte, so groups must be a multiple of {per}, got "
            f"{group or n} of shape {tuple(shape)}"
        )


# ---- codes in bytes


def pack(codes: Any, bits: int, axis: int) -> Any:
    """Codes of 4 or 2 bits, as many to a byte as it holds, along an axis; the first in the lowest
    bits. Codes of 8 bits stay.

    >>> pack(fnp.array([[1], [15]], "uint8"), 4, -2)
    Array([[241]], dtype=uint8)
    """
    if bits == 8:
        return codes
    per = 8 // bits
    parts = split_groups(codes.astype("uint8"), axis, per)
    at = parts.ndim + axis
    packed = lax.index_in_dim(parts, 0, at, keepdims=False)
    for i in range(1, per):
        digit = lax.index_in_dim(parts, i, at, keepdims=False)
        packed = packed | (digit << np.uint8(bits * i))
    return packed


def unpack(packed: Any, bits: int, axis: int) -> Any:
    """The codes in bytes, as unsigned numbers.

    >>> unpack(fnp.array([[241]], "uint8"), 4, -2).ravel()
    Array([ 1, 15], dtype=uint8)
    """
    if bits == 8:
        return packed
    axis += packed.ndim
    per = (8 // bits, *[1] * (packed.ndim - 1 - axis))
    # Of the places in a byte, which compilers know where they write them out.
    shifts = lax.broadcasted_iota("uint8", per, 0) * np.uint8(bits)
    digits = (fnp.expand_dims(packed, axis + 1) >> shifts) & np.uint8(2**bits - 1)
    return digits.reshape(*packed.shape[:axis], -1, *packed.shape[axis + 1 :])


# ---- integers


def limits(bits: int, symmetric: bool) -> tuple[int, int]:
    """The least and the greatest code. Symmetric ones are signed; others are unsigned.

    >>> limits(8, True), limits(4, False)
    ((-127, 127), (0, 15))
    """
    top = 2 ** (bits - 1) - 1
    return (-top, top) if symmetric else (0, 2**bits - 1)


def positive(scale: Any) -> Any:
    """A scale, 1 where it is 0 (or so small that its inverse isn't finite): there is only 0. NaN
    stays, so that what is scaled by it is NaN.

    >>> positive(fnp.array([0.0, 2.0]))
    Array([1., 2.], dtype=float32)
    """
    return fnp.where(scale <= np.float32(1e-38), np.float32(1), scale)


def symmetric_scale(x: Any, bits: int, axes: Sequence[int]) -> Any:
    """amax / (2^(bits−1) − 1) along these axes, which stay with size 1.

    >>> symmetric_scale(fnp.array([[-2.0, 1.0]]), 2, (-1,))
    Array([[2.]], dtype=float32)
    """
    amax = fnp.max(fnp.abs(x), axis=tuple(axes), keepdims=True)
    return positive(amax / np.float32(limits(bits, True)[1]))


def affine_scale(low: Any, high: Any, lowest: int, highest: int) -> tuple[Any, Any]:
    """Scale and zero point (a float of an integer's value) for numbers of a range, and 0.

    >>> affine_scale(fnp.float32(-1), fnp.float32(2), 0, 15)
    (Array(0.2, dtype=float32), Array(5., dtype=float32))
    """
    low, high = fnp.minimum(low, 0), fnp.maximum(high, 0)
    scale = positive((high - low) / np.float32(highest - lowest))
    return scale, fnp.clip(np.float32(lowest) - fnp.round(low / scale), lowest, highest)


def to_codes(x: Any, scale: Any, zero: Any, lowest: int, highest: int) -> Any:
    """clip(round(x / scale) + zero) as floats of integers' values, ties to even.

    >>> to_codes(fnp.array([0.5, 1.5, 99.0]), 1.0, 1.0, -127, 127)
    Array([  1.,   3., 100.], dtype=float32)
    """
    return fnp.clip(fnp.round(x / scale) + zero, lowest, highest)


# ---- NF4


def nearest(x: Any, table: np.ndarray) -> Any:
    """The place of the nearest number in an ascending table; of two as near the lower one.

    >>> nearest(fnp.array([0.1, 2.0]), np.float32([0, 1]))
    Array([0, 1], dtype=uint8)
    """
    middle = (table[1:].astype(np.float64) + table[:-1]) / 2
    if len(table) > 16:
        places = fnp.searchsorted(fnp.asarray(middle, "float32"), x, side="left")
        return places.astype("uint8")
    found = fnp.zeros(x.shape, "uint8")
    for m in middle.astype(np.float32):
        found = found + (x > m).astype("uint8")
    return found


def from_table(codes: Any, table: np.ndarray) -> Any:
    """The numbers at these places of a table.

    >>> from_table(fnp.array([1, 0], "uint8"), np.float32([0.5, 2]))
    Array([2. , 0.5], dtype=float32)
    """
    return fnp.take(fnp.asarray(table), codes, mode="clip")


# ---- float8 and MXFP4


def to_float8(x: Any, dtype: Any) -> Any:
    """x in a float8 dtype; what is too large becomes its largest number.

    >>> to_float8(fnp.array([1000.0, -0.3]), "float8_e4m3fn")
    Array([448, -0.3125], dtype=float8_e4m3fn)
    """
    top = float(dtypes.finfo(dtype).max)
    return fnp.clip(x, -top, top).astype(dtype)


def from_float8(x: Any) -> Any:
    """float8 numbers in float32. They are looked up by their bits: compilers put that into the loop
    that reads them, where a conversion would be one of the whole array.

    >>> from_float8(fnp.array([448.0, -0.3125], "float8_e4m3fn"))
    Array([ 4.480e+02, -3.125e-01], dtype=float32)
    """
    table = np.arange(256, dtype=np.uint8).view(x.dtype).astype(np.float32)
    return from_table(lax.bitcast_convert_type(x, "uint8"), table)


def to_e2m1(x: Any) -> Any:
    """The code of the nearest number of ±0, 0.5, 1, 1.5, 2, 3, 4, 6: the sign in bit 3, ties to the
    even code.

    >>> to_e2m1(fnp.array([0.25, 0.75, -5.0, 9.0]))
    Array([ 0,  2, 14,  7], dtype=uint8)
    """
    size = fnp.abs(x)
    code = (x < 0).astype("uint8") << np.uint8(3)
    for i, (a, b) in enumerate(itertools.pairwise(E2M1_TABLE)):
        middle = (a + b) / 2
        # To the even code: from an even one up only above the middle.
        above = size > middle if i % 2 == 0 else size >= middle
        code = code + above.astype("uint8")
    return code


def from_e2m1(codes: Any) -> Any:
    """The numbers of such codes.

    >>> from_e2m1(fnp.array([7, 9], "uint8"))
    Array([ 6. , -0.5], dtype=float32)
    """
    return from_table(codes, np.concatenate([E2M1_TABLE, -E2M1_TABLE]))


def shared_exponent(amax: Any, largest: int) -> Any:
    """The E8M0 byte (exponent + 127) by which numbers up to amax fit a format whose largest power
    of two is 2^largest: floor(log2 amax) − largest.

    >>> shared_exponent(fnp.array([6.0, 0.7]), 2)
    Array([127, 124], dtype=uint8)
    """
    bits = lax.bitcast_convert_type(amax.astype("float32"), "int32")
    return fnp.clip((bits >> 23) - largest, 0, 254).astype("uint8")


def power_of_two(exponent: Any) -> Any:
    """2^(byte − 127), exactly.

    >>> power_of_two(fnp.array([127, 124], "uint8"))
    Array([1.   , 0.125], dtype=float32)
    """
    bits = fnp.maximum(exponent.astype("int32") << 23, 1 << 22)
    return lax.bitcast_convert_type(bits, "float32")


def nbytes(x: Any) -> int:
    """The bytes of an array, traced or not.

    >>> nbytes(fnp.ones((2, 3)))
    24
    """
    return math.prod(x.shape) * dtypes.canonical(x.dtype).itemsize
