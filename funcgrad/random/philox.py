"""Philox-4x32: the generator under keys of impl "rbg" and "unsafe_rbg".

(Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.) Ten rounds of
products and exclusive-or turn a key of two words and a counter of four into four random words. Keys
and counters are laid out as XLA does on CPUs, so the bits are those of JAX there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp

_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)


def _wide(low: Any, high: Any) -> Any:
    """Two words as one of 64 bits."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def _halves(wide: Any) -> tuple[Any, Any]:
    """The low and the high word of 64 bits."""
    return wide.astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)


def philox_words(words: Any, count: int) -> Any:
    """`count` random words of a key of four: two of Philox's own, two that its counter begins at.

    >>> philox_words(fnp.array([1, 2, 3, 4], "uint32"), 2)
    Array([ 512747620, 1298009047], dtype=uint32)
    """
    k0, k1, c0, c1 = (words[i : i + 1] for i in range(4))
    blocks = -(-count // 4)
    start, above = _wide(c0, c1), _wide(k0, k1)
    low = start + fnp.arange(blocks, dtype=np.uint64)
    x0, x1 = _halves(low)
    x2, x3 = _halves(above + (low < start).astype(np.uint64))
    for turn in range(10):
        low0, high0 = _halves(x0.astype(np.uint64) * np.uint64(_FACTORS[0]))
        low1, high1 = _halves(x2.astype(np.uint64) * np.uint64(_FACTORS[1]))
        step0, step1 = (np.uint32(turn * s & 0xFFFFFFFF) for s in _STEPS)
        x0, x1, x2, x3 = high1 ^ x1 ^ (k0 + step0), low1, high0 ^ x3 ^ (k1 + step1), low0
    return fnp.stack([x0, x1, x2, x3], axis=-1).reshape(-1)[:count]


def philox_bits(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Random unsigned integers of a dtype, from a key of four words.

    >>> philox_bits(fnp.array([1, 2, 3, 4], "uint32"), (2,), np.dtype("uint8"))
    Array([100, 215], dtype=uint8)
    """
    size = math.prod(shape)
    if dtype.itemsize == 8:
        pairs = philox_words(words, 2 * size).reshape(*shape, 2)
        return _wide(pairs[..., 0], pairs[..., 1])
    return philox_words(words, size).reshape(shape).astype(dtype)
