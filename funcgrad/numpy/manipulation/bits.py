"""Bits packed into bytes, and taken out of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError
from funcgrad.numpy._util import as_array, canonical_axis, convert, integer
from funcgrad.numpy.elementwise.logic import truth
from funcgrad.numpy.manipulation.shape import moveaxis, ravel, reshape
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full, sum_p

__all__ = ["packbits", "unpackbits"]


def _order(name: str, bitorder: str) -> Any:
    """The place value's exponent of each of the eight bits."""
    if bitorder not in ("big", "little"):
        raise ValueError(f"{name}: bitorder must be 'big' or 'little', got {bitorder!r}")
    places = np.arange(8, dtype=np.uint8)
    return Array(places[::-1].copy() if bitorder == "big" else places)


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements each, zero or not, as the bits of a byte (uint8); the last filled with zeros.

    >>> fnp.packbits(fnp.array([1, 0, 1, 0, 0, 0, 0, 1, 1]))
    Array([161, 128], dtype=uint8)
    """
    places = _order("packbits", bitorder)
    a = as_array("packbits", a, "a")
    if not (dtypes.is_integer(a.dtype) or a.dtype == dtypes.BOOL):
        raise DTypeError(f"packbits: a must be integers or bool, got {a.aval}")
    if axis is None or not a.ndim:
        a, axis = ravel(a), 0
    axis = canonical_axis("packbits", axis, a.ndim)
    bits = moveaxis(convert(truth(a), np.dtype(np.uint8)), axis, -1)
    missing = -bits.shape[-1] % 8
    bits = ops.pad(bits, full((), 0, np.uint8), [(0, 0, 0)] * (a.ndim - 1) + [(0, missing, 0)])
    count = bits.shape[-1] // 8
    values = reshape(bits, (*bits.shape[:-1], count, 8)) << places
    return moveaxis(sum_p.bind(values, axes=(a.ndim,)), -1, axis)


def unpackbits(
    a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Any:
    """The bits of bytes (uint8) as elements 0 and 1, eight each; `count` cuts or fills with zeros.

    A negative `count` cuts that many off.

    >>> fnp.unpackbits(fnp.array([161], dtype="uint8"))
    Array([1, 0, 1, 0, 0, 0, 0, 1], dtype=uint8)
    """
    places = _order("unpackbits", bitorder)
    a = as_array("unpackbits", a, "a")
    if a.dtype != np.uint8:
        raise DTypeError(f"unpackbits: a must be uint8, got {a.aval}")
    if axis is None or not a.ndim:
        a, axis = ravel(a), 0
    axis = canonical_axis("unpackbits", axis, a.ndim)
    a = moveaxis(a, axis, -1)
    bits = (ops.expand_dims(a, (a.ndim,)) >> places) & 1
    bits = reshape(bits, (*a.shape[:-1], a.shape[-1] * 8))
    if count is not None:
        count = integer("count", count)
        size = bits.shape[-1]
        last = max(size + count, 0) if count < 0 else count
        config = [(0, 0, 0)] * (a.ndim - 1) + [(0, last - size, 0)]
        bits = ops.pad(bits, full((), 0, np.uint8), config)
    return moveaxis(bits, -1, axis)
