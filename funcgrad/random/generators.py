"""The generators that keys are for: how a seed becomes a key, a key others, and random bits.

Most apply a cipher to a key's words and the number of each element, so that draws are the same
however an array is cut; those named rbg draw from a state that counts on. Keys and bits are those
of `jax.random`: threefry2x32 partitionable, rbg and unsafe_rbg as on CPUs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core.trace import aval_of
from funcgrad.lax.bits import philox_bits, philox_words
from funcgrad.lax.ciphers import philox2x32, philox4x32, threefry4x32
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import (
    bitwise_or,
    bitwise_xor,
    shift_left,
    shift_right_logical,
)
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.indexing.windows_at import index_in_dim
from funcgrad.ops.random import threefry2x32_p
from funcgrad.ops.shape import broadcasted_iota, expand_dims, reshape
from funcgrad.ops.slicing import concatenate
from funcgrad.transforms.recorded import recorded


class Generator(NamedTuple):
    """How random bits are made: the name of its keys' dtype, how many words a key has, and
    functions of words: seed(two words), split(words, shape), fold_in(words, number),
    bits(words, shape, dtype)."""

    tag: str
    words: int
    seed: Callable[[Any], Any]
    split: Callable[[Any, tuple[int, ...]], Any]
    fold_in: Callable[[Any, Any], Any]
    bits: Callable[[Any, tuple[int, ...], np.dtype], Any]


def seed_words(seed: Any) -> Any:
    """The high and the low word of a seed: the last 64 bits of an integer, or 32 of a short one."""
    if isinstance(seed, int):
        low = seed & 0xFFFFFFFF
        high = 0 if -(1 << 31) <= seed < 1 << 32 else (seed >> 32) & 0xFFFFFFFF
        return convert_element_type(np.array([high, low], np.uint32), np.uint32)
    low, dtype = convert_element_type(seed, np.uint32), aval_of(seed).dtype
    high = (
        convert_element_type(shift_right_logical(seed, dtype.type(32)), np.uint32)
        if dtype.itemsize == 8
        else mul(low, np.uint32(0))
    )
    return _line([high, low])


def _words(data: Any) -> list:
    """The words of a single key."""
    return [index_in_dim(data, i, 0, keepdims=False) for i in range(data.shape[0])]


def _line(words: Any) -> Any:
    """Words on a last axis."""
    axis = np.ndim(words[0])
    return concatenate([expand_dims(w, (axis,)) for w in words], axis)


def _numbers(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The row-major number of each element, as high and low words."""
    size = math.prod(shape)
    if size < 1 << 32:
        low = reshape(broadcasted_iota(np.uint32, (size,), 0), shape)
        return np.uint32(0), low
    wide = reshape(broadcasted_iota(np.uint64, (size,), 0), shape)
    high = convert_element_type(shift_right_logical(wide, np.uint64(32)), np.uint32)
    return high, convert_element_type(wide, np.uint32)


def _counting(
    tag: str,
    words: int,
    size: int,
    cipher: Callable[..., Any],
    seed: Callable[[Any], Any],
    in_wide: int = 2,
) -> Generator:
    """The generator of a cipher whose counters have `size` words, and `in_wide` of what it gives
    go into 64 bits. Numbers stand in the last two words for keys, in the first two for bits."""
    rest = (np.uint32(0),) * (size - 2)

    @recorded
    def split(key: Any, shape: tuple[int, ...]) -> Any:
        return _line(cipher(*_words(key), *rest, *_numbers(shape))[:words])

    @recorded
    def fold_in(key: Any, number: Any) -> Any:
        return _line(cipher(*_words(key), *rest, np.uint32(0), number)[:words])

    @recorded
    def bits(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        drawn = cipher(*_words(key), *_numbers(shape), *rest)
        if dtype.itemsize == 8:
            high, low = (
                convert_element_type(functools.reduce(bitwise_xor, drawn[i:in_wide:2]), np.uint64)
                for i in (0, 1)
            )
            return bitwise_or(shift_left(high, np.uint64(32)), low)
        word = functools.reduce(bitwise_xor, drawn)
        return word if dtype.itemsize == 4 else convert_element_type(word, dtype)

    return Generator(tag, words, seed, split, fold_in, bits)


def _zeros(n: int) -> list:
    return [np.uint32(0)] * n


_THREEFRY = _counting("fry", 2, 2, threefry2x32_p.bind, lambda seed: seed)


def _twice(seed: Any) -> Any:
    return concatenate([seed, seed], 0)


def _both(of_one: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What is done to a key of rbg: to the two keys of threefry that it is made of."""

    def of_pair(key: Any, argument: Any) -> Any:
        halves = (index(key, (slice(i, i + 2),)) for i in (0, 2))
        made = [of_one(half, argument) for half in halves]
        return concatenate(made, len(made[0].shape) - 1)

    return of_pair


def _every_tenth(key: Any, shape: tuple[int, ...]) -> Any:
    """Philox's next keys, in the place of a function that hides them."""
    rows = reshape(philox_words(key, 40 * math.prod(shape)), (-1, 4))
    return reshape(index(rows, (slice(None, None, 10),)), (*shape, 4))


def _tenth(key: Any, number: Any) -> Any:
    return bitwise_xor(key, index(philox_words(_twice(seed_words(number)), 40), (slice(36, 40),)))


GENERATORS = {
    "threefry2x32": _THREEFRY,
    "rbg": Generator("rbg", 4, _twice, _both(_THREEFRY.split), _both(_THREEFRY.fold_in),
                     philox_bits),
    "unsafe_rbg": Generator("urbg", 4, _twice, _every_tenth, _tenth, philox_bits),
    "threefry4x32": _counting(
        "fry4", 4, 4, threefry4x32,
        lambda seed: _line(threefry4x32(*_words(seed), *_zeros(6))), in_wide=4,
    ),
    "philox2x32": _counting(
        "phx2", 1, 2, philox2x32,
        lambda seed: _line(philox2x32(np.uint32(0), *_words(seed))[:1]),
    ),
    "philox4x32": _counting(
        "phx4", 2, 4, philox4x32,
        lambda seed: _line(philox4x32(*_zeros(2), *_words(seed), *_zeros(2))[:2]),
    ),
}  # fmt: skip
DEFAULT = "threefry2x32"
# Words without a name are taken for those of these, by how many they are.
OF_WORDS = {2: DEFAULT, 4: "rbg"}
