"""Sparse arrays made anew: empty, with ones on a diagonal, and random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, random
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.arguments import integer, shape_of
from funcgrad.random.keys import split
from funcgrad.sparse.arrays import BCOO, BCSR
from funcgrad.sparse.compressed import bcsr_from_bcoo
from funcgrad.sparse.layout import bcoo_fromdense, index_type, indices_at, over_batches

FORMATS = ("bcoo", "bcsr")


def _formatted(what: str, mat: BCOO, sparse_format: str) -> Any:
    if sparse_format not in FORMATS:
        raise ArgumentError(
            f"{what}: sparse_format must be one of {FORMATS}, got {sparse_format!r}"
        )
    return mat if sparse_format == "bcoo" else bcsr_from_bcoo(mat)


def empty(
    shape: Sequence[int], dtype: Any = None, index_dtype: Any = "int32",
    sparse_format: str = "bcoo", *, n_batch: int = 0, n_dense: int = 0, nse: int = 0,
) -> BCOO | BCSR:  # fmt: skip
    """An array of zeros, none of which is stored; with `nse` elements of padding.

    sparse_format: "bcoo" or "bcsr".

    >>> from funcgrad import sparse
    >>> sparse.empty((2, 3)).todense()
    Array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    shape, nse = shape_of("empty", shape), integer("nse", nse)
    n_batch, n_dense = integer("n_batch", n_batch), integer("n_dense", n_dense)
    if min(n_batch, n_dense, nse) < 0 or n_batch + n_dense > len(shape):
        raise ShapeError(
            f"empty: n_batch = {n_batch}, n_dense = {n_dense} and nse = {nse} don't fit the shape "
            f"{shape}"
        )
    kind = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    batch, dense = shape[:n_batch], shape[len(shape) - n_dense :]
    sizes = shape[n_batch : len(shape) - n_dense]
    outside = fnp.array(np.asarray(sizes, index_type("empty", index_dtype)))
    indices = fnp.broadcast_to(outside, (*batch, nse, len(sizes)))
    mat = BCOO.of(fnp.zeros((*batch, nse, *dense), kind), indices, sizes, True, True)
    return _formatted("empty", mat, sparse_format)


def eye(
    N: int, M: int | None = None, k: int = 0, dtype: Any = None, index_dtype: Any = "int32",
    sparse_format: str = "bcoo", *, n_batch: int = 0, n_dense: int = 0,
) -> BCOO | BCSR:  # fmt: skip
    """An N × M matrix (M is N by default) with ones on its k-th diagonal.

    >>> from funcgrad import sparse
    >>> sparse.eye(2, 3, k=1).todense()
    Array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    N, k = integer("N", N), integer("k", k)
    M = N if M is None else integer("M", M)
    shape_of("eye", (N, M))
    kind = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    index_kind = index_type("eye", index_dtype)
    if n_batch or n_dense:
        dense = fnp.eye(N, M, k, dtype=kind)
        mat = bcoo_fromdense(dense, n_batch=n_batch, n_dense=n_dense, index_dtype=index_kind)
        return _formatted("eye", mat, sparse_format)
    count = max(0, min(N, M - k) if k >= 0 else min(N + k, M))
    line = fnp.arange(count, dtype=index_kind)
    indices = fnp.stack([line + max(-k, 0), line + max(k, 0)], -1)
    mat = BCOO.of(fnp.ones(count, kind), indices, (N, M), True, True)
    return _formatted("eye", mat, sparse_format)


def random_bcoo(
    key: Any, shape: Sequence[int], *, dtype: Any = None, indices_dtype: Any = None,
    nse: float = 0.2, n_batch: int = 0, n_dense: int = 0, unique_indices: bool = True,
    generator: Callable = random.uniform, **kwds: Any,
) -> BCOO:  # fmt: skip
    """Random elements at random places.

    nse: how many, of each batch; below 1, which share of all. generator(key, shape, dtype, **kwds)
    draws the data. unique_indices: whether places differ.

    >>> from funcgrad import sparse
    >>> sparse.random_bcoo(random.key(0), (10, 20), nse=0.1)
    BCOO(float32[10, 20], nse=20)
    """
    shape = shape_of("random_bcoo", shape)
    n_batch, n_dense = integer("n_batch", n_batch), integer("n_dense", n_dense)
    if min(n_batch, n_dense) < 0 or n_batch + n_dense > len(shape):
        raise ShapeError(
            f"random_bcoo: n_batch = {n_batch} and n_dense = {n_dense} don't fit the shape {shape}"
        )
    batch, dense = shape[:n_batch], shape[len(shape) - n_dense :]
    sizes = shape[n_batch : len(shape) - n_dense]
    total = math.prod(sizes)
    count = math.ceil(total * nse) if 0 < nse < 1 else integer("nse", int(nse))
    if nse < 0 or (nse >= 1 and count != nse):
        raise ArgumentError(
            f"random_bcoo: nse must be a share below 1 or a whole number, got {nse}"
        )
    if unique_indices and count > total:
        raise ArgumentError(f"random_bcoo: {count} different places of only {total} are asked for")
    kind = current().float_dtype if dtype is None else dtypes.canonical(dtype)
    index_kind = index_type("random_bcoo", "int32" if indices_dtype is None else indices_dtype)
    data_key, place_key = split(key)
    data = generator(data_key, (*batch, count, *dense), kind, **kwds)

    def one(key: Any) -> Any:
        if unique_indices:
            place = random.choice(key, total, (count,), replace=False) if count else fnp.arange(0)
        else:
            place = random.randint(key, (count,), 0, total)
        return indices_at(fnp.sort(place), sizes, index_kind)

    keys = split(place_key, math.prod(batch)).reshape(*batch, *split(place_key, 1).shape[1:])
    indices = over_batches(one, n_batch, keys)
    return BCOO.of(data, indices, sizes, True, unique_indices)
