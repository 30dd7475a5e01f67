"""How an array is stored: to and from dense arrays and SciPy's, sorted, without duplicates.

What works on one batch is mapped over batch axes (`over_batches`). Within one, an element's place
is one number, its row-major position along the sparse axes (`positions`), which is their product
for padding: so gathers fill with zeros there, and scatters drop.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    SparseEfficiencyError,
)
from funcgrad.lax import full_like
from funcgrad.ops.arguments import integer
from funcgrad.ops.base import position_dtype
from funcgrad.sparse.arrays import BCOO, is_sparse, known
from funcgrad.transforms.batching.vmap import vmap


class SparseEfficiencyWarning(UserWarning):
    """What was asked for stores much more than there is."""


# ---- one batch


def over_batches(fun: Callable, n_batch: int, *arrays: Any) -> Any:
    """fun(*arrays) mapped over their first axes; those of size 1 are shared by longer ones.

    >>> over_batches(lambda x, y: x @ y, 1, fnp.ones((2, 3)), fnp.ones((1, 3)))
    Array([3., 3.], dtype=float32)
    """
    if not n_batch:
        return fun(*arrays)
    sizes = [x.shape[0] for x in arrays]
    size = next((n for n in sizes if n != 1), 1)
    axes = tuple(0 if n == size else None for n in sizes)
    arrays = tuple(x if n == size else x[0] for x, n in zip(arrays, sizes, strict=True))
    return vmap(lambda *xs: over_batches(fun, n_batch - 1, *xs), axes)(*arrays)


def inside(indices: Any, sizes: Sequence[int]) -> Any:
    """Which elements are some, of indices (…, n_sparse): those whose indices are all in bounds."""
    found = fnp.ones(indices.shape[:-1], bool)
    for i, n in enumerate(sizes):
        at = indices[..., i]
        found = found & (at >= 0) & (at < _limit(at, n))
    return found


def _limit(indices: Any, n: int) -> Any:
    """A size in the indices' dtype; the greatest of it, where none of them can reach the size."""
    return np.asarray(min(n, int(dtypes.iinfo(indices.dtype).max)), indices.dtype)


def positions(indices: Any, sizes: Sequence[int]) -> Any:
    """Row-major positions of indices (nse, n_sparse), the product of all sizes for padding.

    >>> positions(fnp.array([[0, 1], [2, 0], [1, 9]]), (3, 2))
    Array([1, 4, 6], dtype=int32)
    """
    total = math.prod(sizes)
    kind = position_dtype(total + 1)
    place = fnp.zeros(indices.shape[:-1], kind)
    for i, n in enumerate(sizes):
        place = place * n + indices[..., i].astype(kind)
    return fnp.where(inside(indices, sizes), place, np.asarray(total, kind))


def indices_at(place: Any, sizes: Sequence[int], kind: Any) -> Any:
    """The indices (nse, n_sparse) of positions; those of padding are the sizes."""
    total, left, found = math.prod(sizes), place, []
    for n in reversed(sizes):
        left, rest = (left // max(n, 1), left % max(n, 1))
        found.append(fnp.where(place < total, rest, n).astype(kind))
    return fnp.stack(found[::-1], -1) if found else fnp.zeros((*place.shape, 0), kind)


def zero_where_not(mask: Any, data: Any) -> Any:
    """The data, with zeros where a mask of its first axes is False."""
    wide = mask.reshape(mask.shape + (1,) * (data.ndim - mask.ndim))
    return fnp.where(wide, data, np.zeros((), data.dtype))


def need(what: str, x: Any, *kinds: type) -> Any:
    """An argument as it is, which must be of one of these formats."""
    if not isinstance(x, kinds):
        names = " or ".join(k.__name__ for k in kinds)
        raise ArgumentError(f"{what}: need a {names}, got {type(x)}: {x!r:.80}")
    return x


# ---- dense arrays


def bcoo_todense(mat: BCOO) -> Any:
    """The dense array, of which `mat` has the elements that aren't zero.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_todense(sparse.eye(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    need("bcoo_todense", mat, BCOO)
    sizes = mat.sparse_shape

    def one(data: Any, indices: Any) -> Any:
        start = fnp.zeros((math.prod(sizes), *data.shape[1:]), data.dtype)
        dense = start.at[positions(indices, sizes)].add(data, mode="drop")
        return dense.reshape(*sizes, *data.shape[1:])

    return over_batches(one, mat.n_batch, mat.data, mat.indices)


def bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0,
    index_dtype: Any = "int32",
) -> BCOO:  # fmt: skip
    """The elements of a dense array that aren't zero, of each batch.

    nse: how many are stored, the most of any batch by default, which must be known then: under
    `jit` it must be given, and elements beyond it are left out there. n_batch, n_dense: how many
    axes in front are batches, and how many behind are dense: what is zero all along these isn't
    stored.

    >>> from funcgrad import sparse
    >>> m = sparse.bcoo_fromdense(fnp.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> m.data, m.indices.tolist()
    (Array([2., 3.], dtype=float32), [[0, 1], [1, 0]])
    """
    mat = fnp.asarray(mat)
    n_sparse = _axes("bcoo_fromdense", mat.ndim, n_batch, n_dense)
    kind = index_type("bcoo_fromdense", index_dtype)
    sizes = mat.shape[n_batch : n_batch + n_sparse]
    mask = fnp.any(mat != 0, axis=tuple(range(n_batch + n_sparse, mat.ndim)))
    nse = _stored("bcoo_fromdense", mask, n_batch, nse)

    def one(x: Any, mask: Any) -> Any:
        place = fnp.nonzero(mask.ravel(), size=nse, fill_value=mask.size)[0]
        return values_at(x, place, n_sparse), indices_at(place, sizes, kind)

    data, indices = over_batches(one, n_batch, mat, mask)
    return BCOO.of(data, indices, sizes, indices_sorted=True, unique_indices=True)


def values_at(x: Any, place: Any, n_sparse: int, fill: Any = 0) -> Any:
    """The parts of an array at positions along its first axes, and what fills in for padding."""
    lines = x.reshape(math.prod(x.shape[:n_sparse]), *x.shape[n_sparse:])
    return lines.at[place].get(mode="fill", fill_value=fill)


def _axes(what: str, ndim: int, n_batch: int, n_dense: int) -> int:
    """The number of sparse axes beside others."""
    n_batch, n_dense = integer("n_batch", n_batch), integer("n_dense", n_dense)
    if n_batch < 0 or n_dense < 0 or n_batch + n_dense > ndim:
        raise ShapeError(
            f"{what}: n_batch = {n_batch} and n_dense = {n_dense} must be at least 0, and together "
            f"at most the array's {ndim} axes"
        )
    return ndim - n_batch - n_dense


def index_type(what: str, dtype: Any) -> np.dtype:
    """The dtype of indices that a user gave."""
    kind = dtypes.canonical(dtype)
    if not dtypes.is_integer(kind):
        raise DTypeError(f"{what}: index_dtype must be one of integers, got {kind}")
    return kind


def _stored(what: str, mask: Any, n_batch: int, given: int | None) -> int:
    """How many elements of a mask are stored, of the fullest batch."""
    held = known(mask)
    if held is None:
        if given is None:
            raise ConcretizationError(
                f"{what}: nse must be given where the array is traced: it is part of the result's "
                "type"
            )
        return integer("nse", given)
    most = int(held.sum(axis=tuple(range(n_batch, held.ndim))).max(initial=0))
    if given is not None and integer("nse", given) < most:
        raise ArgumentError(f"{what}: nse is {given}, but {most} elements are not zero")
    return most if given is None else integer("nse", given)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """The elements of a dense array where `sparr` has some, with its indices.

    assume_unique: that its indices are; as it promises by default. Else an element that is there
    several times has its value at the first of these, and zero at the others.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_extract(sparse.eye(2), fnp.array([[1.0, 2.0], [3.0, 4.0]])).data
    Array([1., 4.], dtype=float32)
    """
    need("bcoo_extract", sparr, BCOO)
    arr = fnp.asarray(arr)
    if arr.shape != sparr.shape:
        raise ShapeError(f"bcoo_extract: shapes differ: {sparr} and a dense array {arr.shape}")
    unique = sparr.unique_indices if assume_unique is None else assume_unique
    sizes = sparr.sparse_shape

    def one(x: Any, indices: Any) -> Any:
        place = positions(indices, sizes)
        data = values_at(x, place, len(sizes))
        return data if unique else zero_where_not(_first_of_each(place), data)

    data = over_batches(one, sparr.n_batch, arr, sparr.indices)
    return with_data(sparr, data)


def with_data(mat: BCOO, data: Any) -> BCOO:
    """The array with other values at the same indices."""
    return BCOO.of(data, mat.indices, mat.sparse_shape, mat.indices_sorted, mat.unique_indices)


def _first_of_each(place: Any) -> Any:
    """Whether a position is the first of those that are equal."""
    order = fnp.argsort(place, stable=True)
    line = place[order]
    return fnp.zeros(place.shape, bool).at[order].set(_changes(line))


def _changes(line: Any) -> Any:
    """Whether an element differs from that before it."""
    return fnp.concatenate([fnp.ones(min(1, line.size), bool), line[1:] != line[:-1]])


# ---- order and duplicates


def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """The array with its indices in lexicographic order, padding last.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO((fnp.array([1.0, 2.0]), fnp.array([[1], [0]])), shape=(3,))
    >>> sparse.bcoo_sort_indices(m).data
    Array([2., 1.], dtype=float32)
    """
    if need("bcoo_sort_indices", mat, BCOO).indices_sorted:
        return mat
    sizes = mat.sparse_shape

    def one(data: Any, indices: Any) -> Any:
        place = positions(indices, sizes)
        order = fnp.argsort(place, stable=True)
        return data[order], indices_at(place[order], sizes, indices.dtype)

    data, indices = over_batches(one, mat.n_batch, mat.data, mat.indices)
    return BCOO.of(data, indices, sizes, True, mat.unique_indices)


def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """The array with elements of equal indices added up, sorted, padding last.

    nse: how many are stored then, as few as there are by default; under `jit` it must be given.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO((fnp.array([1.0, 2.0, 3.0]), fnp.array([[1], [0], [1]])), shape=(3,))
    >>> sparse.bcoo_sum_duplicates(m).data
    Array([2., 4.], dtype=float32)
    """
    need("bcoo_sum_duplicates", mat, BCOO)
    sizes, total = mat.sparse_shape, math.prod(mat.sparse_shape)
    count = _distinct("bcoo_sum_duplicates", mat, nse)

    def one(data: Any, indices: Any) -> Any:
        place = positions(indices, sizes)
        order = fnp.argsort(place, stable=True)
        line = place[order]
        group = fnp.cumsum(_changes(line).astype(line.dtype)) - 1
        group = fnp.where(line < total, group, np.asarray(count, line.dtype))
        sums = (
            fnp.zeros((count, *data.shape[1:]), data.dtype).at[group].add(data[order], mode="drop")
        )
        found = full_like(line, total, shape=(count,)).at[group].set(line, mode="drop")
        return sums, indices_at(found, sizes, indices.dtype)

    data, indices = over_batches(one, mat.n_batch, mat.data, mat.indices)
    return BCOO.of(data, indices, sizes, indices_sorted=True, unique_indices=True)


def _distinct(what: str, mat: BCOO, given: int | None) -> int:
    """How many indices there are, of the batch that has most."""
    indices = known(mat.indices)
    if indices is None:
        if given is None:
            raise ConcretizationError(
                f"{what}: nse must be given where the indices are traced: it is part of the "
                "result's type"
            )
        return integer("nse", given)
    sizes = mat.sparse_shape
    flat = indices.reshape(math.prod(indices.shape[:-2]), mat.nse, mat.n_sparse)
    here = [batch[((batch >= 0) & (batch < sizes)).all(axis=-1)] for batch in flat]
    most = max((len(np.unique(batch, axis=0)) for batch in here), default=0)
    if given is not None and integer("nse", given) < most:
        raise ArgumentError(f"{what}: nse is {given}, but there are {most} different indices")
    return most if given is None else integer("nse", given)


def bcoo_eliminate_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """As `bcoo_sum_duplicates`, without elements that are stored though they are zero.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO((fnp.array([0.0, 2.0]), fnp.array([[1], [0]])), shape=(3,))
    >>> sparse.bcoo_eliminate_zeros(m).nse
    1
    """
    need("bcoo_eliminate_zeros", mat, BCOO)
    mat = bcoo_sum_duplicates(mat, nse=None if known(mat.indices) is not None else mat.nse)
    sizes = mat.sparse_shape

    def one(data: Any, indices: Any) -> Any:
        there = fnp.any(data != 0, axis=tuple(range(1, data.ndim)))
        return fnp.where(there[:, None], indices, np.asarray(sizes, indices.dtype))

    indices = over_batches(one, mat.n_batch, mat.data, mat.indices)
    return bcoo_sum_duplicates(BCOO.of(mat.data, indices, sizes), nse=nse)


# ---- which axes are batches, sparse, dense


def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None,
    on_inefficient: str | None = "error",
) -> BCOO:  # fmt: skip
    """The same array with other numbers of batch and dense axes.

    Fewer of them cost little: their indices are stored. More of them store much that is zero,
    where the axes are longer than 1: that is refused by a SparseEfficiencyError, or warned of
    ("warn"), or done (None), as `on_inefficient` says.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO.fromdense(fnp.ones((2, 3)), n_batch=1)
    >>> sparse.bcoo_update_layout(m, n_batch=0)
    BCOO(float32[2, 3], nse=6)
    """
    need("bcoo_update_layout", mat, BCOO)
    n_batch = mat.n_batch if n_batch is None else integer("n_batch", n_batch)
    n_dense = mat.n_dense if n_dense is None else integer("n_dense", n_dense)
    _axes("bcoo_update_layout", mat.ndim, n_batch, n_dense)
    if on_inefficient not in ("error", "warn", None):
        raise ArgumentError(
            'bcoo_update_layout: on_inefficient must be "error", "warn" or None, got '
            f"{on_inefficient!r}"
        )
    shape = mat.shape
    longer = [*shape[mat.n_batch : n_batch], *shape[mat.ndim - n_dense : mat.ndim - mat.n_dense]]
    if any(n > 1 for n in longer) and on_inefficient is not None:
        message = (
            f"bcoo_update_layout: {mat} with n_batch={n_batch} and n_dense={n_dense} would store "
            f"{math.prod(longer)} times as much; on_inefficient=None does it"
        )
        if on_inefficient == "error":
            raise SparseEfficiencyError(message)
        warnings.warn(message, SparseEfficiencyWarning, stacklevel=2)
    while mat.n_dense > n_dense:
        mat = _dense_to_sparse(mat)
    while mat.n_batch > n_batch:
        mat = _batch_to_sparse(mat)
    while mat.n_batch < n_batch:
        mat = _sparse_to_batch(mat)
    while mat.n_dense < n_dense:
        mat = _sparse_to_dense(mat)
    return mat


def full_batches(mat: BCOO) -> BCOO:
    """The array with batch axes of data and indices that have their full sizes."""
    n = mat.n_batch
    batch = mat.shape[:n]
    data = fnp.broadcast_to(mat.data, (*batch, *mat.data.shape[n:]))
    indices = fnp.broadcast_to(mat.indices, (*batch, *mat.indices.shape[n:]))
    return BCOO.of(data, indices, mat.sparse_shape, mat.indices_sorted, mat.unique_indices)


def _batch_to_sparse(mat: BCOO) -> BCOO:
    """The last batch axis as the first sparse one."""
    mat = full_batches(mat)
    last, size = mat.n_batch - 1, mat.shape[mat.n_batch - 1]
    data, indices = mat.data, mat.indices
    line = fnp.arange(size, dtype=indices.dtype)[:, None, None]
    line = fnp.broadcast_to(line, (*indices.shape[:-1], 1))
    indices = fnp.concatenate([line, indices], -1)
    merged = (*indices.shape[:last], size * mat.nse)
    data = data.reshape(*merged, *data.shape[last + 2 :])
    indices = indices.reshape(*merged, indices.shape[-1])
    return BCOO.of(data, indices, (size, *mat.sparse_shape), unique_indices=mat.unique_indices)


def _dense_to_sparse(mat: BCOO) -> BCOO:
    """The first dense axis as the last sparse one."""
    n, nse = mat.n_batch, mat.nse
    size = mat.data.shape[n + 1]
    data, indices = mat.data, mat.indices
    new = fnp.arange(size, dtype=indices.dtype)[:, None]
    shape = (*indices.shape[:-1], size)
    columns = fnp.broadcast_to(indices[..., None, :], (*shape, indices.shape[-1]))
    columns = fnp.concatenate([columns, fnp.broadcast_to(new, (*shape, 1))], -1)
    data = data.reshape(*data.shape[:n], nse * size, *data.shape[n + 2 :])
    indices = columns.reshape(*indices.shape[:n], nse * size, indices.shape[-1] + 1)
    sizes = (*mat.sparse_shape, size)
    return BCOO.of(data, indices, sizes, mat.indices_sorted, mat.unique_indices)


def _sparse_to_batch(mat: BCOO) -> BCOO:
    """The first sparse axis as the last batch axis: each batch has all elements, most padding."""
    n, (size, *sizes) = mat.n_batch, mat.sparse_shape
    data = fnp.expand_dims(mat.data, n)
    line = fnp.arange(size, dtype=mat.indices.dtype)[:, None]
    own = fnp.expand_dims(mat.indices[..., 0], n) == line
    rest = fnp.expand_dims(mat.indices[..., 1:], n)
    outside = np.asarray(sizes, mat.indices.dtype)
    if not sizes:  # there is no index that could say so
        data = zero_where_not(own, fnp.broadcast_to(data, (*own.shape, *data.shape[n + 2 :])))
    indices = fnp.where(own[..., None], rest, outside)
    return BCOO.of(data, indices, sizes, unique_indices=mat.unique_indices)


def _sparse_to_dense(mat: BCOO) -> BCOO:
    """The last sparse axis as the first dense one: each element is a line that is mostly zero."""
    n, (*sizes, size) = mat.n_batch, mat.sparse_shape
    line = fnp.arange(size, dtype=mat.indices.dtype)
    own = mat.indices[..., -1:] == line
    data = fnp.expand_dims(mat.data, n + 1)
    shape = (*np.broadcast_shapes(own.shape[: n + 1], data.shape[: n + 1]), size)
    data = fnp.broadcast_to(data, (*shape, *data.shape[n + 2 :]))
    data = zero_where_not(fnp.broadcast_to(own, shape), data)
    return BCOO.of(data, mat.indices[..., :-1], sizes, mat.indices_sorted)


# ---- SciPy's


def from_scipy(mat: Any, index_dtype: Any) -> BCOO:
    """The elements of a matrix of scipy.sparse, in their order."""
    if is_sparse(mat) or not hasattr(mat, "tocoo"):
        raise ArgumentError(
            f"from_scipy_sparse: need a matrix of scipy.sparse, got {type(mat)}: {mat!r:.80}"
        )
    mat = mat.tocoo()
    parts = getattr(mat, "coords", None) or (mat.row, mat.col)
    indices = np.stack([np.asarray(p) for p in parts], -1).astype(index_dtype)
    return BCOO((mat.data, indices), shape=mat.shape)


def to_scipy(mat: BCOO, form: str) -> Any:
    """A matrix of scipy.sparse ("coo" or "csr"), of one without batch and dense axes."""
    if mat.n_batch or mat.n_dense or mat.n_sparse != 2:
        raise ShapeError(f"to_scipy_sparse: need two axes, both sparse, got {mat}")
    data, indices = known(mat.data), known(mat.indices)
    if data is None or indices is None:
        raise ConcretizationError(f"to_scipy_sparse: {mat} is traced, so its values aren't known")
    there = ((indices >= 0) & (indices < mat.shape)).all(axis=-1)
    try:
        import scipy.sparse
    except ImportError:
        raise ImportError("to_scipy_sparse needs SciPy: pip install scipy") from None
    made = scipy.sparse.coo_array((data[there], tuple(indices[there].T)), shape=mat.shape)
    return made.asformat(form)
