"""Casts between floats of 8 bits and wider ones by tables, bit for bit those of ml_dtypes.

A float of 8 bits is looked up among 256 of float32. The other way, a float32 is first rounded to
its upper 16 bits "to odd" (the last bit is set where anything is cut off), which keeps enough for
the second rounding to be right (Boldo and Melquiond, 2008), and looked up among 65,536.
"""

from __future__ import annotations

import functools

import numpy as np

from funcgrad import dtypes

FEW = 1024  # elements, for which ml_dtypes itself is quick
_WIDE = frozenset(d for d in dtypes.FLOATS if d.itemsize in (2, 4))


@functools.cache
def _widened(dtype: np.dtype) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


@functools.cache
def _narrowed(dtype: np.dtype) -> np.ndarray:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    with np.errstate(all="ignore"):
        return upper.view(np.float32).astype(dtype).view(np.uint8)


def by_table(x: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """x in a dtype, if one of both is a float of 8 bits and the other one of 16 or 32.

    >>> import ml_dtypes
    >>> x = by_table(np.linspace(0, 1, 2000, dtype="float32"), np.dtype(ml_dtypes.float8_e5m2))
    >>> x[-1]
    1
    """
    if type(x) is not np.ndarray or x.size < FEW:
        return None
    if x.dtype in dtypes.FLOAT8 and dtype in _WIDE:
        wide = _widened(x.dtype).take(x.view(np.uint8))
        return wide if dtype == np.float32 else wide.astype(dtype)
    if dtype in dtypes.FLOAT8 and x.dtype in _WIDE:
        bits = x.astype(np.float32, copy=False).view(np.uint32)
        odd = (bits >> 16) | ((bits & 0xFFFF) != 0)
        return _narrowed(dtype).take(odd).view(dtype)
    return None
