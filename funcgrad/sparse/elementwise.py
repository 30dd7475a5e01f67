"""Arithmetic that keeps what isn't stored at zero: products, sums of sparse arrays, functions.

With a dense operand a product gathers what that has at the stored elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.aval import promote
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.sparse.arrays import BCOO, BCSR, is_sparse
from funcgrad.sparse.compressed import bcsr_sum_duplicates, bcsr_to_bcoo
from funcgrad.sparse.layout import (
    bcoo_sum_duplicates,
    full_batches,
    inside,
    need,
    over_batches,
    positions,
    with_data,
    zero_where_not,
)
from funcgrad.sparse.products import as_bcoo, densified, lines_at
from funcgrad.sparse.structure import bcoo_broadcast_in_dim, bcoo_concatenate


def new_data(mat: Any, data: Any) -> Any:
    """A sparse array of either format with other values of the same elements.

    >>> from funcgrad import sparse
    >>> new_data(sparse.eye(2), fnp.array([2.0, 3.0])).todense().tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    if isinstance(mat, BCOO):
        return with_data(mat, data)
    return BCSR.of(
        data, mat.indices, mat.indptr, mat.columns, mat.indices_sorted, mat.unique_indices
    )


def on_data(mat: Any, fun: Callable, linear: bool = False) -> Any:
    """A function that is zero at zero, of each element. Where it isn't linear, duplicates are added
    up before."""
    if not linear and not mat.unique_indices:
        total = bcsr_sum_duplicates if isinstance(mat, BCSR) else bcoo_sum_duplicates
        mat = total(mat, nse=mat.nse)
    return new_data(mat, fun(mat.data))


def at_elements(name: str, mat: BCOO, x: Any, fill: Any = 0) -> Any:
    """What a dense array, which broadcasts to the shape of `mat`, has where that has elements; as
    data of these, with 1 for axes along which it is the same."""
    shape = mat.shape
    short = mat.ndim - x.ndim
    if short < 0 or any(n not in (1, size) for n, size in zip(x.shape, shape[short:], strict=True)):
        raise ShapeError(
            f"{name}: the dense operand of shape {x.shape} must broadcast to {mat}; broadcast the "
            "sparse one before, where it is the smaller"
        )
    x = x.reshape((1,) * short + x.shape)
    sizes = mat.sparse_shape

    def one(indices: Any, x: Any) -> Any:
        return lines_at(x, indices, sizes, fill)

    return over_batches(one, mat.n_batch, mat.indices, x)


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Any:
    """The data of the product of a sparse array with a dense one that broadcasts to its shape.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_multiply_dense(sparse.eye(2), fnp.array([2.0, 3.0]))
    Array([2., 3.], dtype=float32)
    """
    mat = need("bcoo_multiply_dense", sp_mat, BCOO)
    return mat.data * at_elements("bcoo_multiply_dense", mat, fnp.asarray(v))


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The product of two sparse arrays of one shape (or which broadcast), element by element.

    As many elements are stored as of `lhs`, zero where `rhs` has none.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO.fromdense(fnp.array([[2.0, 5.0], [0.0, 3.0]]))
    >>> sparse.bcoo_multiply_sparse(sparse.eye(2), m).data
    Array([2., 3.], dtype=float32)
    """
    name = "bcoo_multiply_sparse"
    lhs, rhs = (need(name, x, BCOO) for x in (lhs, rhs))
    if lhs.shape != rhs.shape:
        lhs, rhs = _of_one_shape(name, lhs, rhs)
    if lhs.indices is rhs.indices and lhs.unique_indices:
        return with_data(lhs, lhs.data * rhs.data)
    _need_one_layout(name, lhs, rhs)
    if not lhs.nse or not rhs.nse:
        return with_data(lhs, lhs.data * np.zeros((), rhs.dtype))
    rhs = bcoo_sum_duplicates(rhs, nse=rhs.nse)
    sizes = lhs.sparse_shape

    def one(a: Any, left: Any, b: Any, right: Any) -> Any:
        place, other = (positions(i, sizes) for i in (left, right))
        found = fnp.minimum(fnp.searchsorted(other, place), len(b) - 1)
        both = inside(left, sizes) & (other[found] == place)
        return a * zero_where_not(both, b[found])

    data = over_batches(one, lhs.n_batch, lhs.data, lhs.indices, rhs.data, rhs.indices)
    return with_data(lhs, data)


def _of_one_shape(name: str, lhs: BCOO, rhs: BCOO) -> tuple[BCOO, BCOO]:
    try:
        shape = np.broadcast_shapes(lhs.shape, rhs.shape)
    except ValueError:
        raise ShapeError(f"{name}: shapes of {lhs} and {rhs} don't broadcast") from None
    return tuple(  # type: ignore[return-value]
        x if x.shape == shape else bcoo_broadcast_in_dim(
            x, shape=shape, broadcast_dimensions=range(len(shape) - x.ndim, len(shape)))
        for x in (lhs, rhs)
    )  # fmt: skip


def _need_one_layout(name: str, lhs: BCOO, rhs: BCOO) -> None:
    if (lhs.n_batch, lhs.n_dense) != (rhs.n_batch, rhs.n_dense):
        raise ShapeError(
            f"{name}: {lhs} and {rhs} must have as many batch and dense axes; see update_layout"
        )


# ---- operators


def add(a: Any, b: Any) -> Any:
    """a + b: sparse where both are, else dense, as the dense one is.

    >>> from funcgrad import sparse
    >>> add(sparse.eye(2), sparse.eye(2)).todense()
    Array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    if is_sparse(a) and is_sparse(b):
        return _add_sparse(a, b)
    mat, x = (a, b) if is_sparse(a) else (b, a)
    x = fnp.asarray(x)
    if x.shape != mat.shape:
        if not x.ndim:
            raise densified("add", mat, "add to .data what is to be added to stored elements")
        raise ShapeError(f"add: {mat} and a dense array of shape {x.shape} must have one shape")
    return _added(as_bcoo(mat), x)


def _added(mat: BCOO, x: Any) -> Any:
    """The elements added to a dense array in its place."""
    dtype, _ = promote([aval_of(mat.data), aval_of(x)])
    sizes = mat.sparse_shape
    n = len(sizes)

    def one(data: Any, indices: Any, x: Any) -> Any:
        lines = x.reshape(int(np.prod(x.shape[:n])), *x.shape[n:])
        out = lines.at[positions(indices, sizes)].add(data, mode="drop")
        return out.reshape(x.shape)

    return over_batches(one, mat.n_batch, mat.data.astype(dtype), mat.indices, x.astype(dtype))


def _add_sparse(a: Any, b: Any) -> Any:
    if a.shape != b.shape:
        raise ShapeError(f"add: {a} and {b} must have one shape; broadcast one before")
    if a.indices is b.indices and getattr(a, "indptr", 0) is getattr(b, "indptr", 0):
        return new_data(a, a.data + b.data)
    a, b = as_bcoo(a), as_bcoo(b)
    _need_one_layout("add", a, b)
    dtype, _ = promote([aval_of(a.data), aval_of(b.data)])
    kind = fnp.result_type(a.indices.dtype, b.indices.dtype)
    a, b = (full_batches(x) for x in (a, b))
    data = fnp.concatenate([a.data.astype(dtype), b.data.astype(dtype)], a.n_batch)
    indices = fnp.concatenate([a.indices.astype(kind), b.indices.astype(kind)], a.n_batch)
    return BCOO.of(data, indices, a.sparse_shape)


def subtract(a: Any, b: Any) -> Any:
    """a - b; see `add`.

    >>> from funcgrad import sparse
    >>> subtract(fnp.ones((2, 2)), sparse.eye(2)).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    return add(a, on_data(b, fnp.negative, linear=True) if is_sparse(b) else -fnp.asarray(b))


def multiply(a: Any, b: Any) -> Any:
    """a * b, sparse: of sparse arrays, a sparse and a dense one, or a sparse one and a number.

    >>> from funcgrad import sparse
    >>> multiply(sparse.eye(2), fnp.array([2.0, 3.0])).data
    Array([2., 3.], dtype=float32)
    """
    if is_sparse(a) and is_sparse(b):
        same = isinstance(a, BCSR) and isinstance(b, BCSR) and a.indices is b.indices
        if same and a.indptr is b.indptr and a.unique_indices:
            return new_data(a, a.data * b.data)
        return bcoo_multiply_sparse(as_bcoo(a), as_bcoo(b))
    mat, x = (a, b) if is_sparse(a) else (b, a)
    return _with_dense("multiply", mat, x, fnp.multiply, 0)


def divide(a: Any, b: Any) -> Any:
    """a / b of a sparse array and a dense one, or a number.

    >>> from funcgrad import sparse
    >>> divide(sparse.eye(2), 2).data
    Array([0.5, 0.5], dtype=float32)
    """
    if is_sparse(b):
        raise densified("divide", b, "divide by .data at stored elements")
    return _with_dense("divide", a, b, fnp.true_divide, 1)


def _with_dense(name: str, mat: Any, x: Any, fun: Callable, fill: Any) -> Any:
    x = x if isinstance(x, bool | int | float | complex) else fnp.asarray(x)
    if not np.ndim(x):
        return new_data(mat, fun(mat.data, x))
    whole = bcsr_to_bcoo(mat) if isinstance(mat, BCSR) else mat
    return new_data(mat, fun(mat.data, at_elements(name, whole, x, fill)))


def power(mat: Any, exponent: Any) -> Any:
    """mat ** exponent for a number above zero.

    >>> from funcgrad import sparse
    >>> power(sparse.eye(2) * 3, 2).data
    Array([9., 9.], dtype=float32)
    """
    number = isinstance(exponent, int | float | np.number) and not isinstance(exponent, bool)
    if not number or exponent <= 0:
        raise densified(f"power with the exponent {exponent!r:.40}", mat, "use one above zero")
    return on_data(mat, lambda x: x**exponent, linear=exponent == 1)


def astype(mat: Any, dtype: Any) -> Any:
    """The array with data of another dtype.

    >>> from funcgrad import sparse
    >>> astype(sparse.eye(2), "int32").data
    Array([1, 1], dtype=int32)
    """
    kind = dtypes.canonical(dtype)
    nonlinear = kind == dtypes.BOOL or (
        dtypes.is_integer(kind) and not dtypes.is_integer(mat.dtype) and mat.dtype != dtypes.BOOL
    )
    return on_data(mat, lambda x: x.astype(kind), linear=not nonlinear)


def compared(mat: Any, other: Any, symbol: str) -> Any:
    """Comparisons of sparse arrays are refused: most of what they give isn't zero."""
    raise densified(f"{symbol} of a sparse array", mat, "compare .data")


def concatenated(operands: list, axis: int) -> BCOO:
    """Sparse arrays of either format, joined along an axis."""
    if not all(map(is_sparse, operands)):
        raise ArgumentError("concatenate: all arrays must be sparse, or all dense")
    return bcoo_concatenate([as_bcoo(x) for x in operands], dimension=axis)
