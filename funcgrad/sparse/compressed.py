"""Matrices row by row: to and from dense arrays and `BCOO`."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.base import position_dtype
from funcgrad.ops.csr import rows_of
from funcgrad.sparse.arrays import BCOO, BCSR, is_sparse
from funcgrad.sparse.layout import (
    bcoo_extract,
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
    full_batches,
    index_type,
    need,
    over_batches,
)


def bcsr_to_bcoo(mat: BCSR) -> BCOO:
    """The same matrices, each element with its row and column.

    >>> from funcgrad import sparse
    >>> bcsr_to_bcoo(sparse.eye(2, sparse_format="bcsr")).indices.tolist()
    [[0, 0], [1, 1]]
    """
    need("bcsr_to_bcoo", mat, BCSR)
    n, nse = mat.n_batch, mat.nse
    rows = mat.shape[n]

    def one(indices: Any, indptr: Any) -> Any:
        row = rows_of(indptr[:-1], indptr[1:], nse).astype(indices.dtype)
        padding = np.asarray(mat.columns, indices.dtype)
        column = fnp.where(row < rows, indices, padding)  # in order, behind all others
        return fnp.stack([row, column], -1)

    indices = over_batches(one, n, mat.indices, mat.indptr)
    sizes = rows, mat.columns
    return BCOO.of(mat.data, indices, sizes, mat.indices_sorted, mat.unique_indices)


def bcsr_from_bcoo(mat: BCOO) -> BCSR:
    """The same matrices row by row, sorted.

    Raises ShapeError where there are not two sparse axes.

    >>> from funcgrad import sparse
    >>> bcsr_from_bcoo(sparse.eye(2)).indptr
    Array([0, 1, 2], dtype=int32)
    """
    need("BCSR.from_bcoo", mat, BCOO)
    if mat.n_sparse != 2:
        raise ShapeError(f"BCSR.from_bcoo: need two sparse axes, got {mat.n_sparse} of {mat}")
    unique = mat.unique_indices
    mat = bcoo_sort_indices(full_batches(mat) if mat.n_batch else mat)
    rows, columns = mat.sparse_shape

    def one(indices: Any) -> Any:
        kind = position_dtype(mat.nse + 1)
        line = fnp.arange(rows + 1, dtype=indices.dtype)
        return fnp.searchsorted(indices[:, 0], line).astype(kind)

    indptr = over_batches(one, mat.n_batch, mat.indices)
    return BCSR.of(mat.data, mat.indices[..., 1], indptr, columns, True, unique)


def bcsr_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0,
    index_dtype: Any = "int32",
) -> BCSR:  # fmt: skip
    """The elements of dense matrices that aren't zero; see `bcoo_fromdense`.

    >>> from funcgrad import sparse
    >>> sparse.bcsr_fromdense(fnp.array([[0.0, 2.0], [3.0, 0.0]])).data
    Array([2., 3.], dtype=float32)
    """
    mat = fnp.asarray(mat)
    if mat.ndim - n_batch - n_dense != 2:
        raise ShapeError(
            f"bcsr_fromdense: need two axes beside n_batch = {n_batch} and n_dense = {n_dense}, "
            f"got an array of shape {mat.shape}"
        )
    kind = index_type("bcsr_fromdense", index_dtype)
    found = bcoo_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=kind)
    return bcsr_from_bcoo(found)


def bcsr_todense(mat: BCSR) -> Any:
    """The dense matrices.

    >>> from funcgrad import sparse
    >>> sparse.bcsr_todense(sparse.eye(2, sparse_format="bcsr"))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    return bcoo_todense(bcsr_to_bcoo(need("bcsr_todense", mat, BCSR)))


def bcsr_extract(indices: Any, indptr: Any, mat: Any) -> Any:
    """The elements (*batch, nse, *dense) of a dense array at columns and rows of a pattern.

    >>> from funcgrad import sparse
    >>> m = fnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> sparse.bcsr_extract(fnp.array([1, 0]), fnp.array([0, 1, 2]), m)
    Array([2., 3.], dtype=float32)
    """
    indices, indptr, mat = map(fnp.asarray, (indices, indptr, mat))
    n = indices.ndim - 1
    data = fnp.zeros((*indices.shape, *mat.shape[n + 2 :]), mat.dtype)
    pattern = BCSR((data, indices, indptr), shape=mat.shape)
    return bcoo_extract(bcsr_to_bcoo(pattern), mat, assume_unique=True).data


def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """The matrices with elements of equal indices added up; see `bcoo_sum_duplicates`.

    >>> from funcgrad import sparse
    >>> parts = fnp.array([1.0, 2.0]), fnp.array([1, 1]), fnp.array([0, 2])
    >>> sparse.bcsr_sum_duplicates(sparse.BCSR(parts, shape=(1, 2))).data
    Array([3.], dtype=float32)
    """
    return bcsr_from_bcoo(bcoo_sum_duplicates(bcsr_to_bcoo(mat), nse=nse))


def from_scipy(mat: Any, index_dtype: Any) -> BCSR:
    """The elements of a matrix of scipy.sparse, row by row."""
    if is_sparse(mat) or not hasattr(mat, "tocsr"):
        raise ArgumentError(
            f"from_scipy_sparse: need a matrix of scipy.sparse, got {type(mat)}: {mat!r:.80}"
        )
    mat = mat.tocsr()
    if mat.ndim != 2:
        raise ShapeError(f"from_scipy_sparse: need a matrix of two axes, got {mat.ndim}")
    parts = mat.data, mat.indices.astype(index_dtype), mat.indptr.astype(index_dtype)
    return BCSR(parts, shape=mat.shape)
