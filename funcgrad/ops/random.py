"""Threefry-2x32: the counter-based generator under all random numbers.

(Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.) Twenty rounds of
addition, rotation and exclusive-or turn a key and a counter, two words each, into two random words.
Element i of a draw depends on i alone, so draws are the same however an array is cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.errors import DTypeError
from funcgrad.ops.base import batch_front, broadcast_p
from funcgrad.ops.families import common_shape
from funcgrad.ops.folds import is_away

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
# NumPy makes arrays of numbers for each operation on small arrays, for a third of its time.
_WORDS = [np.array(n, np.uint32) for n in range(32)]


def _impl(xp: Any, key0: Any, key1: Any, x0: Any, x1: Any) -> list:
    word = _WORDS.__getitem__ if xp is np else np.uint32
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(PARITY))
    x0 = x0 + keys[0]
    x1 = x1 + keys[1]
    if is_away(x0):
        # NumPy's scalars give way to arrays in what follows, CuPy's don't.
        x0, x1 = [xp.array(x) for x in xp.broadcast_arrays(x0, x1)]
    # From here on in place: large arrays are in the caches then, and need no new pages.
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x0 += x1
            high = x1 >> word(32 - r)
            x1 <<= word(r)
            x1 |= high
            x1 ^= x0
        x0 += keys[(i + 1) % 3]
        x1 += keys[(i + 2) % 3]
        x1 += word(i + 1)
    return [x0, x1]


def _abstract(*avals: ShapedArray) -> list[ShapedArray]:
    if any(a.dtype != np.uint32 for a in avals):
        raise DTypeError(f"threefry2x32: need four uint32 operands, got {avals}")
    return [ShapedArray(common_shape("threefry2x32", avals), np.uint32)] * 2


def _batch(axis: Any, args: Any, dims: Any) -> tuple:
    ranks = [np.ndim(a) - (d is not None) for a, d in zip(args, dims, strict=True)]
    rank = max(ranks)
    moved = []
    shape: tuple[int, ...] = ()
    for a, d, r in zip(args, dims, ranks, strict=True):
        front = batch_front(a, d, axis.size)
        shape = np.shape(front) if r == rank else shape
        moved.append(front)
    wide = [
        m if np.shape(m) == shape else broadcast_p.bind(m, shape=shape, broadcast_dimensions=(0,))
        for m in moved
    ]
    return threefry2x32_p.bind(*wide), [0, 0]


def _jvp(primals: Any, tangents: Any) -> tuple:
    outs = threefry2x32_p.bind(*primals)
    return outs, [Zero(o.aval.tangent()) for o in outs]


threefry2x32_p = Primitive(
    name="threefry2x32",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=NoRule("its operands are integers"),
    batch=_batch,
    dims=lambda *avals: dims_.pointwise(*avals, results=2),
    multiple=True,
    elementwise=True,
)
