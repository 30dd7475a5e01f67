"""Random words as functions of a key and a counter: Philox, and Threefry of four words.

(Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.) Each takes the
words of a key, then those of a counter, uint32 arrays that broadcast, and gives as many words as a
counter has. Philox makes ten rounds of products and exclusive-or, Threefry twenty of sums,
rotations and exclusive-or. The usual Threefry, of two words, is `ops.random`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.ops.random import PARITY

_FACTOR = 0xD256D193
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))


def wide_of(low: Any, high: Any) -> Any:
    """Two words as one of 64 bits."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def halves(wide: Any) -> tuple[Any, Any]:
    """The low and the high word of 64 bits."""
    return wide.astype(np.uint32), (wide >> np.uint64(32)).astype(np.uint32)


def _product(x: Any, factor: int) -> tuple[Any, Any]:
    return halves(x.astype(np.uint64) * np.uint64(factor))


def _step(key: Any, turn: int, place: int) -> Any:
    return key + np.uint32(turn * _STEPS[place] & 0xFFFFFFFF)


def philox2x32(k: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Two random words of a key of one and a counter of two.

    >>> zero = fnp.zeros((), "uint32")
    >>> philox2x32(zero, zero, zero)
    (Array(4280135257, dtype=uint32), Array(1825639922, dtype=uint32))
    """
    for turn in range(10):
        low, high = _product(x0, _FACTOR)
        x0, x1 = high ^ x1 ^ _step(k, turn, 0), low
    return x0, x1


def philox4x32(k0: Any, k1: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> tuple[Any, ...]:
    """Four random words of a key of two and a counter of four.

    >>> zero = fnp.zeros((), "uint32")
    >>> philox4x32(*[zero] * 6)[0]
    Array(1713891541, dtype=uint32)
    """
    for turn in range(10):
        low0, high0 = _product(x0, _FACTORS[0])
        low1, high1 = _product(x2, _FACTORS[1])
        x0, x1 = high1 ^ x1 ^ _step(k0, turn, 0), low1
        x2, x3 = high0 ^ x3 ^ _step(k1, turn, 1), low0
    return x0, x1, x2, x3


def threefry4x32(
    k0: Any, k1: Any, k2: Any, k3: Any, x0: Any, x1: Any, x2: Any, x3: Any
) -> tuple[Any, ...]:
    """Four random words of a key and a counter of four.

    >>> zero = fnp.zeros((), "uint32")
    >>> threefry4x32(*[zero] * 8)[0]
    Array(2624366954, dtype=uint32)
    """
    keys = (k0, k1, k2, k3, k0 ^ k1 ^ k2 ^ k3 ^ np.uint32(PARITY))
    x = [k + word for k, word in zip(keys, (x0, x1, x2, x3), strict=False)]
    for turn in range(20):
        # Pairs of neighbours in even rounds, (0, 3) and (2, 1) in odd ones.
        for a, r in zip((0, 2), _ROTATIONS[turn % 8], strict=True):
            b = a ^ 1 if turn % 2 == 0 else 3 - a
            x[a] = x[a] + x[b]
            x[b] = x[a] ^ (x[b] << np.uint32(r) | x[b] >> np.uint32(32 - r))
        if turn % 4 == 3:
            n = turn // 4 + 1
            x = [word + keys[(n + i) % 5] for i, word in enumerate(x)]
            x[3] = x[3] + np.uint32(n)
    return tuple(x)
