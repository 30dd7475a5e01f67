"""Diagonals and triangles of matrices, and the positions of their elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    broadcast_to,
    canonical_axis,
    check_callable,
    default_int,
    integer,
    shape_of,
)
from funcgrad.numpy.manipulation.indexing import nonzero
from funcgrad.numpy.manipulation.joining import resize
from funcgrad.numpy.manipulation.shape import moveaxis, ravel, reshape
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.ops.linalg import matrices
from funcgrad.transforms.recorded import recorded

__all__ = [
    "diag", "diag_indices", "diag_indices_from", "diagflat", "diagonal", "fill_diagonal",
    "mask_indices", "tril", "tril_indices", "tril_indices_from", "triu", "triu_indices",
    "triu_indices_from",
]  # fmt: skip

# ---- triangles


def _triangle(name: str, part: Callable, m: Any, k: Any) -> Any:
    m = as_array(name, m, "m")
    if m.ndim < 2:
        raise ShapeError(f"{name}: need matrices (..., m, n), got m {m.aval}")
    return part(m, integer("k", k))


@recorded
def tril(m: Any, k: int = 0) -> Any:
    """The lower triangle of matrices, up to the k-th diagonal above the main one; else zeros.

    >>> fnp.tril(fnp.ones((2, 3)))
    Array([[1., 0., 0.],
           [1., 1., 0.]], dtype=float32)
    """
    return _triangle("tril", matrices.tril, m, k)


@recorded
def triu(m: Any, k: int = 0) -> Any:
    """The upper triangle of matrices, from the k-th diagonal above the main one; else zeros.

    >>> fnp.triu(fnp.ones((2, 3)), k=1)
    Array([[0., 1., 1.],
           [0., 0., 1.]], dtype=float32)
    """
    return _triangle("triu", matrices.triu, m, k)


def _arrays(found: Any) -> tuple:
    return tuple(Array(i.astype(default_int())) for i in found)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple:
    """The positions (rows, columns) of the lower triangle of an n × m matrix; see `tril`.

    >>> fnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    m = None if m is None else integer("m", m)
    return _arrays(np.tril_indices(integer("n", n), integer("k", k), m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple:
    """The positions (rows, columns) of the upper triangle of an n × m matrix; see `triu`.

    >>> fnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    m = None if m is None else integer("m", m)
    return _arrays(np.triu_indices(integer("n", n), integer("k", k), m))


def _matrix_shape(name: str, arr: Any) -> tuple[int, int]:
    arr = as_array(name, arr, "arr")
    if arr.ndim != 2:
        raise ShapeError(f"{name}: arr must be a matrix, got {arr.aval}")
    return arr.shape


def tril_indices_from(arr: Any, k: int = 0) -> tuple:
    """The positions of the lower triangle of a matrix shaped as `arr`; see `tril_indices`.

    >>> fnp.tril_indices_from(fnp.ones((2, 2)))
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple:
    """The positions of the upper triangle of a matrix shaped as `arr`; see `triu_indices`.

    >>> fnp.triu_indices_from(fnp.ones((2, 2)))
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def mask_indices(n: int, mask_func: Callable, k: int = 0, *, size: int | None = None) -> tuple:
    """The positions where mask_func(ones((n, n)), k) is nonzero; see `nonzero` for `size`.

    >>> fnp.mask_indices(2, fnp.triu)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    n = shape_of("mask_indices", integer("n", n), "n")[0]
    check_callable("mask_func", mask_func)
    return nonzero(mask_func(Array(np.ones((n, n), default_int())), k), size=size)


# ---- diagonals


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonals of the matrices that two axes form; they are the result's last axis.

    `offset` > 0 means a diagonal above the main one, < 0 one below it.

    >>> fnp.diagonal(fnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    a = as_array("diagonal", a, "a")
    if a.ndim < 2:
        raise ShapeError(f"diagonal: need at least two axes, got a {a.aval}")
    axes = [canonical_axis("diagonal", i, a.ndim) for i in (axis1, axis2)]
    if axes[0] == axes[1]:
        raise ShapeError(f"diagonal: axis1 {axis1} and axis2 {axis2} are the same axis")
    offset = integer("offset", offset)
    rows, columns = (a.shape[i] for i in axes)
    first, second = max(-offset, 0), max(offset, 0)
    places = np.arange(max(min(rows - first, columns - second), 0))
    a = moveaxis(a, axes, (-2, -1))
    return index(a, (..., places + first, places + second))


def diag(v: Any, k: int = 0) -> Any:
    """The matrix with a vector on its k-th diagonal, or the k-th diagonal of a matrix.

    >>> fnp.diag(fnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    v, k = as_array("diag", v, "v"), integer("k", k)
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise ShapeError(f"diag: v must be a vector or a matrix, got {v.aval}")
    n = v.shape[0] + abs(k)
    # The element in column j stands in row j - k, so that it is the same in every row.
    zero = full((), 0, v.dtype)
    by_column = ops.pad(v, zero, [(max(k, 0), max(-k, 0), 0)])
    rows, columns = (ops.broadcasted_iota(np.int32, (n, n), i) for i in (0, 1))
    return select(eq(add(rows, k), columns), broadcast_to(by_column, (n, n)), zero)


def diagflat(v: Any, k: int = 0) -> Any:
    """The matrix with all elements of `v`, flattened, on its k-th diagonal.

    >>> fnp.diagflat(fnp.array([[1, 2]]), 1)
    Array([[0, 1, 0],
           [0, 0, 2],
           [0, 0, 0]], dtype=int32)
    """
    return diag(ravel(as_array("diagflat", v, "v")), k)


def diag_indices(n: int, ndim: int = 2) -> tuple:
    """The positions of the main diagonal of an array of `ndim` axes of size n.

    >>> fnp.diag_indices(2)
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    line = Array(np.arange(integer("n", n), dtype=default_int()))
    return (line,) * integer("ndim", ndim)


def diag_indices_from(arr: Any) -> tuple:
    """The positions of the main diagonal of an array, whose axes must have one size.

    >>> fnp.diag_indices_from(fnp.zeros((2, 2)))
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    arr = as_array("diag_indices_from", arr, "arr")
    if arr.ndim < 2 or len(set(arr.shape)) != 1:
        raise ShapeError(f"diag_indices_from: need two or more axes of one size, got {arr.aval}")
    return diag_indices(arr.shape[0], arr.ndim)


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Any:
    """A copy of `a` with its main diagonal replaced by `val`, repeated as needed.

    An array of more than two axes must have them of one size. With `wrap`, the diagonal of a tall
    matrix goes on, one row below each block.

    >>> fnp.fill_diagonal(fnp.zeros((2, 2)), fnp.array([1.0, 2.0]))
    Array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    if inplace:
        raise ValueError("fill_diagonal: arrays are immutable; leave inplace=False")
    a = as_array("fill_diagonal", a, "a")
    val = as_dtype("fill_diagonal", val, a.dtype, "val")
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) != 1):
        raise ShapeError(f"fill_diagonal: need a matrix, or more axes of one size, got a {a.aval}")
    step = 1 + sum(int(np.prod(a.shape[i:])) for i in range(1, a.ndim))
    end = a.size if wrap or a.ndim > 2 else min(a.size, a.shape[1] ** 2)
    places = np.arange(0, end, step)
    if not places.size:
        return a
    values = resize(val, places.size) if val.ndim else val
    return reshape(index_update(ravel(a), places, values, "set"), a.shape)
