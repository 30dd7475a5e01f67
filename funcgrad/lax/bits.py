"""Random bits of a key that holds a counter: `rng_bit_generator`, and Philox's, which
`funcgrad.random` uses under keys of impl "rbg" and "unsafe_rbg".

Keys and counters lie as XLA lays them out on CPUs, so bits are those of JAX there.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError
from funcgrad.lax.ciphers import halves, philox4x32, wide_of
from funcgrad.ops.arguments import shape_of
from funcgrad.ops.random import threefry2x32_p
from funcgrad.ops.sharding import cut_as_said


def philox_words(words: Any, count: int) -> Any:
    """`count` random words of a key of four: two of Philox's own, two that its counter begins at.

    >>> philox_words(fnp.array([1, 2, 3, 4], "uint32"), 2)
    Array([ 512747620, 1298009047], dtype=uint32)
    """
    k0, k1, c0, c1 = (words[i : i + 1] for i in range(4))
    blocks = -(-count // 4)
    start, above = wide_of(c0, c1), wide_of(k0, k1)
    low = start + fnp.arange(blocks, dtype=np.uint64)
    counter = (*halves(low), *halves(above + (low < start).astype(np.uint64)))
    return fnp.stack(philox4x32(k0, k1, *counter), axis=-1).reshape(-1)[:count]


def philox_bits(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Random unsigned integers of a dtype, from a key of four words.

    >>> philox_bits(fnp.array([1, 2, 3, 4], "uint32"), (2,), np.dtype("uint8"))
    Array([100, 215], dtype=uint8)
    """
    size = math.prod(shape)
    if dtype.itemsize == 8:
        pairs = philox_words(words, 2 * size).reshape(*shape, 2)
        return wide_of(pairs[..., 0], pairs[..., 1])
    return philox_words(words, size).reshape(shape).astype(dtype)


class RandomAlgorithm(enum.IntEnum):
    """The generators of `rng_bit_generator`; the default one is Philox."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2


def rng_bit_generator(
    key: Any,
    shape: Any,
    dtype: Any = np.uint32,
    algorithm: RandomAlgorithm = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: Any = None,
) -> tuple[Any, Any]:
    """The next key, and random bits, of a generator that counts on: for what `random` doesn't do.

    key: four uint32 words, or two of uint64, a key and a counter; the next one counts from behind
    what was drawn. dtype: an unsigned integer one. out_sharding: how the bits are cut over a mesh.
    Bits are JAX's on CPUs.

    >>> from funcgrad import lax
    >>> lax.rng_bit_generator(fnp.array([1, 2, 3, 4], "uint32"), (2,))
    (Array([1, 2, 4, 4], dtype=uint32), Array([ 512747620, 1298009047], dtype=uint32))
    """
    name, aval = "rng_bit_generator", aval_of(key)
    if (aval.shape, aval.dtype.name) not in (((4,), "uint32"), ((2,), "uint64")):
        raise ArgumentError(f"{name}: key must be uint32 of shape (4,), or uint64 (2,), got {aval}")
    shape, dtype = shape_of(name, shape, "shape"), dtypes.canonical(dtype)
    if dtype.kind != "u" or dtype.itemsize < 1 or dtype.name not in _UNSIGNED:
        raise DTypeError(f"{name}: dtype must be one of {', '.join(_UNSIGNED)}, got {dtype}")
    if algorithm not in [*RandomAlgorithm]:
        raise ArgumentError(f"{name}: algorithm must be a RandomAlgorithm, got {algorithm!r}")
    wide = aval.dtype == np.uint64
    words = fnp.stack(halves(key), axis=-1).reshape(-1) if wide else fnp.asarray(key)
    if algorithm == RandomAlgorithm.RNG_THREE_FRY:
        drawn, bits = _threefry_bits(words, shape, dtype)
    else:
        drawn = -(-math.prod(shape) * max(dtype.itemsize // 4, 1) // 4)
        bits = philox_bits(words, shape, dtype)
    bits = cut_as_said(bits, out_sharding)
    counter = wide_of(words[2], words[3]) + np.uint64(drawn)
    if wide:
        return fnp.stack([key[0], counter]), bits
    return fnp.concatenate([words[:2], fnp.stack(halves(counter))]), bits


_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def _threefry_bits(words: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, Any]:
    """How far the counter went, and the bits. Each counter gives two words: of one number of 64
    bits, or of two numbers, which lie in the two halves of the first even axis (else in pairs along
    the longest)."""
    if dtype.itemsize == 8:
        low, high = _threefry(words, math.prod(shape))
        return math.prod(shape), wide_of(low, high).reshape(shape)
    even = [i for i, n in enumerate(shape) if n % 2 == 0]
    line = shape or (1,)
    axis = even[0] if even else max(range(len(line)), key=lambda i: line[i])
    half = (*line[:axis], -(-line[axis] // 2), *line[axis + 1 :])
    drawn = math.prod(half)
    pairs = [x.reshape(half) for x in _threefry(words, drawn)]
    both = fnp.stack(pairs, axis=axis + 1).reshape(*half[:axis], -1, *half[axis + 1 :])
    kept = fnp.take(both, fnp.arange(line[axis]), axis=axis)
    return drawn, kept.reshape(shape).astype(dtype)


def _threefry(words: Any, count: int) -> list:
    start = wide_of(words[2], words[3])
    low, high = halves(start + fnp.arange(count, dtype=np.uint64))
    return threefry2x32_p.bind(*(fnp.broadcast_to(w, (count,)) for w in words[:2]), low, high)
