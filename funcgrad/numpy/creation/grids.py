"""Grids of coordinates, and positions in flattened arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import OutOfBoundsError, ShapeError
from funcgrad.numpy._known import unknown_error
from funcgrad.numpy._util import (
    as_array,
    broadcast_shapes,
    broadcast_to,
    convert,
    default_int,
    dtype_or,
    index_dtype,
    items_of,
    promote,
    shape_of,
)
from funcgrad.numpy.manipulation.indexing import flatnonzero, positions_of
from funcgrad.numpy.manipulation.joining import arrays_of, stack
from funcgrad.numpy.manipulation.shape import reshape
from funcgrad.ops import shape as ops
from funcgrad.ops.elementwise.arithmetic import max as larger
from funcgrad.ops.elementwise.arithmetic import min as smaller
from funcgrad.ops.indexing.plan import known
from funcgrad.ops.indexing.windows_at import index_dtype as indices_dtype

__all__ = ["indices", "ix_", "meshgrid", "ravel_multi_index", "unravel_index"]


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple:
    """Coordinate arrays of the grid of vectors: one for each, varying along its own axis.

    With `indexing` "ij" vector i varies along axis i; with "xy" the first two axes are swapped.
    With `sparse`, each has size 1 in the other axes. Scalars count as vectors of one element.

    >>> fnp.meshgrid(fnp.arange(2), fnp.arange(3), indexing="ij")[1]
    Array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [as_array("meshgrid", x, f"argument {i}") for i, x in enumerate(xi)]
    vectors = [x if x.ndim else reshape(x, (1,)) for x in vectors]
    if any(x.ndim != 1 for x in vectors):
        listed = ", ".join(str(x.aval) for x in vectors)
        raise ShapeError(f"meshgrid: need vectors, got {listed}")
    place = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        place[:2] = 1, 0
    sizes = [vectors[i].shape[0] for i in place]
    out = []
    for i, x in zip(place, vectors, strict=True):
        line = reshape(x, [-1 if j == i else 1 for j in range(len(sizes))])
        out.append(line if sparse else broadcast_to(line, tuple(sizes)))
    return tuple(out)


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """The coordinates of each element of an array of a shape: grid[i] counts along axis i.

    With `sparse`, a tuple of arrays of size 1 in all axes but their own.

    >>> fnp.indices((2, 3))[0]
    Array([[0, 0, 0],
           [1, 1, 1]], dtype=int32)
    """
    shape = shape_of("indices", dimensions)
    kind = dtype_or(dtype, index_dtype(max(shape, default=0)))
    if not sparse:
        if not shape:
            return Array(np.zeros((0,), kind))
        return stack([ops.broadcasted_iota(kind, shape, i) for i in range(len(shape))])
    lines = ([n if j == i else 1 for j in range(len(shape))] for i, n in enumerate(shape))
    return tuple(ops.broadcasted_iota(kind, line, i) for i, line in enumerate(lines))


def ix_(*args: Any) -> tuple:
    """Vectors of positions (or masks) as arrays that index the grid of all their combinations.

    >>> x = fnp.arange(6).reshape(2, 3)
    >>> x[fnp.ix_(fnp.array([0, 1]), fnp.array([2, 0]))]
    Array([[2, 0],
           [5, 3]], dtype=int32)
    """
    out = []
    for i, x in enumerate(args):
        x = as_array("ix_", x, f"argument {i}")
        if x.ndim != 1:
            raise ShapeError(f"ix_: need vectors, got {x.aval}")
        if x.dtype == dtypes.BOOL:
            x = flatnonzero(x)
        elif not x.shape[0]:
            x = convert(x, default_int())
        out.append(reshape(x, [-1 if j == i else 1 for j in range(len(args))]))
    return tuple(out)


# ---- flat positions


def unravel_index(indices: Any, shape: Any) -> tuple:
    """The coordinates, one array for each axis of `shape`, of positions in the flattened array.

    Negative positions count from the end. Known ones outside raise OutOfBoundsError, traced ones
    take the nearest element.

    >>> fnp.unravel_index(fnp.array([5, 2]), (2, 3))
    (Array([1, 0], dtype=int32), Array([2, 2], dtype=int32))
    """
    at = positions_of("unravel_index", indices)
    sizes = shape_of("unravel_index", shape)
    total = math.prod(sizes)
    at = convert(at, indices_dtype([at.aval], [total]))
    value = known(at)
    if value is not None and value.size and not (-total <= value.min() and value.max() < total):
        raise OutOfBoundsError(f"unravel_index: indices {value} reach out of shape {sizes}")
    if dtypes.is_signed(at.dtype):
        at = at + total * convert(at < 0, at.dtype)
        at = larger(at, 0)
    if value is None and total:
        at = smaller(at, total - 1)
    out = []
    for n in reversed(sizes):
        out.append(at % max(n, 1))
        at = at // max(n, 1)
    return tuple(reversed(out))


def ravel_multi_index(
    multi_index: Any,
    dims: Any,
    mode: str | Sequence[str] = "raise",
    order: str = "C",
    *,
    dtype: Any = None,
) -> Any:
    """The positions in a flattened array of `dims` of coordinates, one array for each axis.

    `mode`, one for all axes or one for each, says what coordinates outside do: "raise" (for known
    ones only), "wrap" around, or "clip" to the nearest. `dtype` is the result's.

    >>> fnp.ravel_multi_index((fnp.array([1, 0]), fnp.array([2, 2])), (2, 3))
    Array([5, 2], dtype=int32)
    """
    name = "ravel_multi_index"
    sizes = shape_of(name, dims)
    parts = [positions_of(name, i) for i in arrays_of(name, multi_index, "multi_index")]
    if len(parts) != len(sizes):
        raise ShapeError(f"{name}: {len(parts)} coordinates for the {len(sizes)} axes of {sizes}")
    modes = (mode,) * len(sizes) if isinstance(mode, str) else items_of("mode", mode)
    if len(modes) != len(sizes) or any(m not in ("raise", "wrap", "clip") for m in modes):
        raise ValueError(f"{name}: mode must be 'raise', 'wrap' or 'clip', got {mode!r}")
    if order not in ("C", "F"):
        raise ValueError(f"{name}: order must be 'C' or 'F', got {order!r}")
    inside = [_inside(i, n, m) for i, n, m in zip(parts, sizes, modes, strict=True)]
    shape = broadcast_shapes(name, *(i.shape for i in inside))
    total: Any = Array(np.zeros((), index_dtype(math.prod(sizes))))
    stride = 1
    for i, n in zip(*((inside, sizes) if order == "F" else (inside[::-1], sizes[::-1])),
                    strict=True):  # fmt: skip
        total, i = promote(name, total, i)
        total, stride = total + i * stride, stride * n
    return broadcast_to(convert(total, dtype_or(dtype, total.dtype)), shape)


def _inside(at: Any, size: int, mode: str) -> Any:
    """Coordinates along one axis, brought inside it as a mode says."""
    at = convert(at, indices_dtype([at.aval], [size]))
    if mode == "wrap":
        return at % max(size, 1)
    if mode == "clip":
        return smaller(larger(at, 0), max(size - 1, 0))
    value = known(at)
    if value is None:
        hint = "Say mode='wrap' or mode='clip'."
        raise unknown_error("ravel_multi_index", "multi_index", at, hint)
    if value.size and not (value.min() >= 0 and value.max() < size):
        raise OutOfBoundsError(f"ravel_multi_index: {value} reaches out of an axis of {size}")
    return at
