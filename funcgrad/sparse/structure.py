"""Sparse arrays moved, summed, reshaped, cut and joined: their indices are, and data if need be.

Axes stay what they are: batch axes are permuted and reshaped among themselves, and so are sparse
and dense ones. What is cut away becomes padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, OutOfBoundsError, ShapeError, SparseEfficiencyError
from funcgrad.ops.arguments import canonical_axes, canonical_axis, integers, shape_of
from funcgrad.ops.slicing import pad
from funcgrad.sparse.arrays import BCOO
from funcgrad.sparse.layout import (
    bcoo_sum_duplicates,
    full_batches,
    indices_at,
    inside,
    need,
    positions,
    zero_where_not,
)


def _groups(mat: BCOO) -> tuple[range, range, range]:
    """The axes that are batches, sparse, dense."""
    n, m = mat.n_batch, mat.n_batch + mat.n_sparse
    return range(n), range(n, m), range(m, mat.ndim)


def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """The array with its axes permuted: batch, sparse and dense ones among themselves.

    Raises SparseEfficiencyError where an axis would change its kind; see `update_layout`.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO.fromdense(fnp.array([[1.0, 2.0, 0.0]]))
    >>> sparse.bcoo_transpose(m, permutation=(1, 0)).todense().tolist()
    [[1.0], [2.0], [0.0]]
    """
    need("bcoo_transpose", mat, BCOO)
    order = canonical_axes("bcoo_transpose", permutation, mat.ndim)
    if len(order) != mat.ndim:
        raise ShapeError(f"bcoo_transpose: permutation {order} must have each axis of {mat} once")
    batch, sparse, dense = _groups(mat)
    n = mat.n_batch
    parts = order[:n], order[n : n + mat.n_sparse], order[n + mat.n_sparse :]
    if any(sorted(p) != list(g) for p, g in zip(parts, (batch, sparse, dense), strict=True)):
        raise SparseEfficiencyError(
            f"bcoo_transpose: permutation {order} exchanges batch, sparse or dense axes of {mat} "
            "with others; make them sparse first, with update_layout(n_batch=..., n_dense=...)"
        )
    columns = [i - n for i in parts[1]]
    data = fnp.transpose(mat.data, [*parts[0], n, *(i - mat.n_sparse + 1 for i in parts[2])])
    indices = fnp.transpose(mat.indices, [*parts[0], n, n + 1])
    same = columns == sorted(columns)
    if not same:
        indices = indices[..., np.asarray(columns, int)]
    sizes = [mat.sparse_shape[i] for i in columns]
    return BCOO.of(data, indices, sizes, mat.indices_sorted and same, mat.unique_indices)


def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """The sums along axes, as a sparse array: what has the same indices then is a duplicate.

    >>> from funcgrad import sparse
    >>> m = sparse.BCOO.fromdense(fnp.array([[1.0, 2.0], [0.0, 3.0]]))
    >>> sparse.bcoo_reduce_sum(m, axes=(0,)).todense()
    Array([1., 5.], dtype=float32)
    """
    need("bcoo_reduce_sum", mat, BCOO)
    axes = canonical_axes("bcoo_reduce_sum", axes, mat.ndim)
    batch, sparse, dense = (sorted({*axes} & {*g}) for g in _groups(mat))
    if not axes:
        return mat
    n = mat.n_batch
    sizes: Sequence[int] = mat.sparse_shape
    if batch:
        mat = full_batches(mat)
    data = fnp.sum(mat.data, axis=tuple(i - mat.n_sparse + 1 for i in dense))
    indices = mat.indices
    if sparse:
        kept = [i for i in range(mat.n_sparse) if i + n not in sparse]
        valid = inside(indices, sizes)
        if kept:
            sizes = [sizes[i] for i in kept]
            outside = np.asarray(sizes, indices.dtype)
            indices = fnp.where(valid[..., None], indices[..., np.asarray(kept)], outside)
        else:  # no index is left that could be out of bounds
            shape = (*np.broadcast_shapes(valid.shape[:n], data.shape[:n]), *data.shape[n:])
            valid = fnp.broadcast_to(valid, shape[: n + 1])
            data, sizes = zero_where_not(valid, fnp.broadcast_to(data, shape)), []
            indices = fnp.zeros((*indices.shape[:-1], 0), indices.dtype)
    if batch:
        left = [i for i in range(n) if i not in batch]
        data, indices = (_merged(x, left, batch) for x in (data, indices))
    kept_order = mat.indices_sorted and not sparse and not batch
    return BCOO.of(data, indices, sizes, kept_order, mat.unique_indices and not (sparse or batch))


def _merged(x: Any, kept: list[int], batch: list[int]) -> Any:
    """An array of which batch axes are merged with that of elements, which follows them all."""
    n = len(kept) + len(batch)
    x = fnp.transpose(x, [*kept, *batch, *range(n, x.ndim)])
    lead = x.shape[: len(kept)]
    return x.reshape(*lead, math.prod(x.shape[len(kept) : n + 1]), *x.shape[n + 1 :])


def bcoo_broadcast_in_dim(
    mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: None = None
) -> BCOO:
    """`lax.broadcast_in_dim` of a sparse array.

    New axes are batches in front of batches, dense behind a dense axis, else sparse: where these
    are longer than 1, elements are stored as often.

    >>> from funcgrad import sparse
    >>> v = sparse.BCOO.fromdense(fnp.array([0.0, 2.0]))
    >>> sparse.bcoo_broadcast_in_dim(v, shape=(2, 2), broadcast_dimensions=(1,)).todense()
    Array([[0., 2.],
           [0., 2.]], dtype=float32)
    """
    need("bcoo_broadcast_in_dim", mat, BCOO)
    name, old = "bcoo_broadcast_in_dim", mat.shape
    shape = shape_of(name, shape)
    to = integers(name, "broadcast_dimensions", broadcast_dimensions)
    if (
        len(to) != len(old)
        or list(to) != sorted(set(to))
        or any(
            not 0 <= d < len(shape) or n not in (1, shape[d]) for n, d in zip(old, to, strict=False)
        )
    ):
        raise ShapeError(f"{name}: {mat} with axes at {to} doesn't broadcast to {shape}")
    n_batch = 1 + to[mat.n_batch - 1] if mat.n_batch else 0
    n_dense = len(shape) - to[mat.ndim - mat.n_dense] if mat.n_dense else 0
    batch, dense = shape[:n_batch], shape[len(shape) - n_dense :]
    n, nse = mat.n_batch, mat.nse

    def spread(x: Any, behind: tuple[int, ...], keep: int) -> Any:
        """An array whose batch axes are at their places, the others of these sizes."""
        lead = [1] * n_batch
        for size, d in zip(x.shape[:n], to, strict=False):
            lead[d] = size
        return x.reshape(*lead, *behind)

    wide = [1] * n_dense
    for size, d in zip(mat.data.shape[n + 1 :], to[mat.ndim - mat.n_dense :], strict=True):
        wide[d - len(shape) + n_dense] = size
    data = spread(mat.data, (nse, *wide), n)
    data = fnp.broadcast_to(data, (*batch, nse, *dense))
    indices = spread(mat.indices, (nse, mat.n_sparse), n)
    sizes = shape[n_batch : len(shape) - n_dense]
    at = {d - n_batch: i for i, d in enumerate(to[n : n + mat.n_sparse])}
    old_sizes = mat.sparse_shape
    repeated = {i: size for i, size in enumerate(sizes) if i not in at or old_sizes[at[i]] != size}
    return _repeated(BCOO.of(data, indices, old_sizes), sizes, at, repeated, mat.unique_indices)


def _repeated(
    mat: BCOO, sizes: Sequence[int], at: dict[int, int], repeated: dict[int, int], unique: bool
) -> BCOO:
    """Sparse axes at other places (`at`), and elements repeated along some (`repeated`)."""
    n, nse = mat.n_batch, mat.nse
    times, kind = math.prod(repeated.values()), mat.indices.dtype
    valid = inside(mat.indices, mat.sparse_shape)[..., None]
    which = indices_at(fnp.arange(times), list(repeated.values()), kind)
    shape = (*mat.indices.shape[:n], nse, times)
    columns = []
    for i, size in enumerate(sizes):
        if i in repeated:
            new = which[:, list(repeated).index(i)]
        else:
            new = mat.indices[..., at[i], None]
        new = fnp.where(valid, new, np.asarray(size, kind))
        columns.append(fnp.broadcast_to(new, shape))
    indices = fnp.stack(columns, -1) if columns else fnp.zeros((*shape, 0), kind)
    data = fnp.expand_dims(mat.data, n + 1)
    data = fnp.broadcast_to(data, (*data.shape[: n + 1], times, *data.shape[n + 2 :]))
    data = data.reshape(*data.shape[:n], nse * times, *data.shape[n + 2 :])
    indices = indices.reshape(*indices.shape[:n], nse * times, len(sizes))
    return BCOO.of(data, indices, sizes, unique_indices=unique)


def bcoo_reshape(
    mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None,
    sharding: None = None,
) -> BCOO:  # fmt: skip
    """The array's elements, in row-major order, as an array of another shape.

    Batch axes become batch axes, sparse ones sparse, dense ones dense. Raises ShapeError where
    sizes don't allow that.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_reshape(sparse.eye(2), new_sizes=(4,)).todense()
    Array([1., 0., 0., 1.], dtype=float32)
    """
    need("bcoo_reshape", mat, BCOO)
    if dimensions is not None and tuple(dimensions) != tuple(range(mat.ndim)):
        mat = bcoo_transpose(mat, permutation=dimensions)
    new = shape_of("bcoo_reshape", new_sizes, "new_sizes")
    shape, n = mat.shape, mat.n_batch
    ends = [n, n + mat.n_sparse]
    wanted = [math.prod(shape[: ends[0]]), math.prod(shape[ends[1] :])]
    n_batch = next((i for i in range(len(new) + 1) if math.prod(new[:i]) == wanted[0]), -1)
    n_batch = n_batch if n else 0
    ends_at = range(len(new) + 1)
    n_dense = next((i for i in ends_at if math.prod(new[len(new) - i :]) == wanted[1]), -1)
    n_dense = n_dense if mat.n_dense else 0
    sizes = new[n_batch : len(new) - n_dense]
    fits = n_batch >= 0 and n_dense >= 0 and n_batch + n_dense <= len(new)
    if not fits or math.prod(sizes) != math.prod(mat.sparse_shape):
        raise ShapeError(
            f"bcoo_reshape: {mat} has no shape {new}: sizes of batch, of sparse and of dense axes "
            "must each have the same product as before"
        )
    mat = full_batches(mat) if n else mat
    data = mat.data.reshape(*new[:n_batch], mat.nse, *new[len(new) - n_dense :])
    place = positions(mat.indices, mat.sparse_shape)
    indices = indices_at(place, sizes, mat.indices.dtype)
    indices = indices.reshape(*new[:n_batch], mat.nse, len(sizes))
    return BCOO.of(data, indices, sizes, mat.indices_sorted, mat.unique_indices)


def bcoo_squeeze(mat: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """The array without axes of size 1.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_squeeze(sparse.eye(1, 2), dimensions=(0,))
    BCOO(float32[2], nse=1)
    """
    axes = canonical_axes("bcoo_squeeze", dimensions, need("bcoo_squeeze", mat, BCOO).ndim)
    if any(mat.shape[i] != 1 for i in axes):
        raise ShapeError(f"bcoo_squeeze: axes {axes} of {mat} must have size 1")
    unique = mat.unique_indices
    out = bcoo_reduce_sum(mat, axes=axes)
    return BCOO.of(out.data, out.indices, out.sparse_shape, mat.indices_sorted, unique)


def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """The array with the order of elements reversed along axes.

    >>> from funcgrad import sparse
    >>> v = sparse.BCOO.fromdense(fnp.array([1.0, 2.0, 0.0]))
    >>> sparse.bcoo_rev(v, (0,)).todense()
    Array([0., 2., 1.], dtype=float32)
    """
    mat = need("bcoo_rev", operand, BCOO)
    axes = canonical_axes("bcoo_rev", dimensions, mat.ndim)
    batch, sparse, dense = (sorted({*axes} & {*g}) for g in _groups(mat))
    mat = full_batches(mat) if batch else mat
    data = fnp.flip(mat.data, (*batch, *(i - mat.n_sparse + 1 for i in dense)))
    indices = fnp.flip(mat.indices, tuple(batch))
    if sparse:
        sizes = np.asarray(mat.sparse_shape, indices.dtype)
        turned = np.asarray([i + mat.n_batch in sparse for i in range(mat.n_sparse)])
        valid = inside(indices, mat.sparse_shape)[..., None]
        indices = fnp.where(valid & turned, sizes - 1 - indices, fnp.where(valid, indices, sizes))
    kept = mat.indices_sorted and not sparse
    return BCOO.of(data, indices, mat.sparse_shape, kept, mat.unique_indices)


# ---- cut


def bcoo_slice(
    mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> BCOO:  # fmt: skip
    """The elements from a start up to a limit along each axis, in steps of `strides`.

    What isn't among them is padding; where fewer elements can be left than there were, no more than
    that are stored.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_slice(sparse.eye(3), start_indices=(0, 1), limit_indices=(3, 3)).todense()
    Array([[0., 0.],
           [1., 0.],
           [0., 1.]], dtype=float32)
    """
    need("bcoo_slice", mat, BCOO)
    name, n = "bcoo_slice", mat.ndim
    starts = integers(name, "start_indices", start_indices)
    limits = integers(name, "limit_indices", limit_indices)
    steps = integers(name, "strides", (1,) * n if strides is None else strides)
    if not len(starts) == len(limits) == len(steps) == n or any(
        not 0 <= a <= b <= size or s < 1
        for a, b, s, size in zip(starts, limits, steps, mat.shape, strict=True)
    ):
        raise ShapeError(
            f"{name}: starts {starts}, limits {limits} and strides {steps} must be within the "
            f"shape of {mat}, and strides positive"
        )
    cuts = [slice(*cut) for cut in zip(starts, limits, steps, strict=True)]
    batch, sparse, dense = _groups(mat)
    mat = full_batches(mat) if mat.n_batch else mat
    lead = tuple(cuts[i] for i in batch)
    data = mat.data[(*lead, slice(None), *(cuts[i] for i in dense))]
    moved = [(starts[i], steps[i], len(range(starts[i], limits[i], steps[i]))) for i in sparse]
    cut = BCOO.of(data, mat.indices[lead], mat.sparse_shape, mat.indices_sorted, mat.unique_indices)
    return _window(cut, moved)


def _window(mat: BCOO, moved: Sequence[tuple[Any, int, int]]) -> BCOO:
    """Of each sparse axis the elements from a start in steps, so many."""
    sizes, kind = [size for _, _, size in moved], mat.indices.dtype
    whole = [(0, 1, n) for n in mat.sparse_shape]
    if all(isinstance(start, int) for start, _, _ in moved) and list(moved) == whole:
        return mat
    valid, columns = inside(mat.indices, mat.sparse_shape), []
    for i, (start, step, size) in enumerate(moved):
        at = mat.indices[..., i] - fnp.asarray(start, kind)
        valid = valid & (at >= 0) & (at % step == 0) & (at // step < size)
        columns.append(at // step)
    outside = np.asarray(sizes, kind)
    indices = fnp.where(valid[..., None], fnp.stack(columns, -1), outside)
    cut = BCOO.of(mat.data, indices, sizes, unique_indices=mat.unique_indices)
    most = math.prod(sizes)
    return bcoo_sum_duplicates(cut, nse=most) if most < mat.nse else cut


def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """A window of given sizes, whose start may be traced; it is moved inside where it reaches out.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_dynamic_slice(sparse.eye(3), (1, 1), (2, 2)).todense()
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    need("bcoo_dynamic_slice", mat, BCOO)
    sizes = integers("bcoo_dynamic_slice", "slice_sizes", slice_sizes)
    starts = [fnp.asarray(s) for s in start_indices]
    shape = mat.shape
    if (
        len(starts) != mat.ndim
        or len(sizes) != mat.ndim
        or any(not 0 <= m <= n for m, n in zip(sizes, shape, strict=False))
    ):
        raise ShapeError(
            f"bcoo_dynamic_slice: need a start and a size for each axis of {mat}, got "
            f"{len(starts)} starts and sizes {sizes}"
        )
    starts = [fnp.where(s < 0, s + n, s) for s, n in zip(starts, shape, strict=True)]
    starts = [fnp.clip(s, 0, n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    batch, sparse, dense = _groups(mat)
    mat = full_batches(mat) if mat.n_batch else mat
    data, indices = mat.data, mat.indices
    for i in batch:
        data, indices = (_part(x, starts[i], sizes[i], i) for x in (data, indices))
    for i in dense:
        data = _part(data, starts[i], sizes[i], i - mat.n_sparse + 1)
    cut = BCOO.of(data, indices, mat.sparse_shape, mat.indices_sorted, mat.unique_indices)
    return _window(cut, [(starts[i], 1, sizes[i]) for i in sparse])


def _part(x: Any, start: Any, size: int, axis: int) -> Any:
    return fnp.take(x, start + fnp.arange(size), axis=axis, mode="clip")


def getitem(mat: BCOO, idx: Any) -> BCOO:
    """mat[idx] for integers (which may be traced), slices of positive steps, None and `...`.

    >>> from funcgrad import sparse
    >>> getitem(sparse.eye(3), (1, slice(1, None))).todense()
    Array([1., 0.], dtype=float32)
    """
    entries = list(idx) if isinstance(idx, tuple) else [idx]
    given = sum(e is not None and e is not Ellipsis for e in entries)
    if sum(e is Ellipsis for e in entries) > 1 or given > mat.ndim:
        raise ShapeError(f"{mat} has no element [{idx}]: too many indices")
    fill = [slice(None)] * (mat.ndim - given)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries = [*entries[:at], *fill, *entries[at + 1 :]]
    cuts = [_cut(mat, e, n) for e, n in
            zip([e for e in entries if e is not None], mat.shape, strict=True)]  # fmt: skip
    if any(isinstance(c, tuple) for c in cuts):
        starts = [c[0] if isinstance(c, tuple) else 0 for c in cuts]
        sizes = [1 if isinstance(c, tuple) else n for c, n in zip(cuts, mat.shape, strict=True)]
        mat = bcoo_dynamic_slice(mat, starts, sizes)
        cuts = [slice(0, 1, 1) if isinstance(c, tuple) else c for c in cuts]
    start, limit, steps = ([getattr(c, k) for c in cuts] for k in ("start", "stop", "step"))
    out = bcoo_slice(mat, start_indices=start, limit_indices=limit, strides=steps)
    single = [not isinstance(e, slice) for e in entries if e is not None]
    out = bcoo_squeeze(out, dimensions=[i for i, s in enumerate(single) if s])
    kept = [e for e in entries if e is None or isinstance(e, slice)]
    shape, places, left = [], [], iter(out.shape)
    for i, e in enumerate(kept):
        shape.append(1 if e is None else next(left))
        places += [] if e is None else [i]
    if len(shape) == out.ndim:
        return out
    return bcoo_broadcast_in_dim(out, shape=shape, broadcast_dimensions=places)


def _cut(mat: BCOO, entry: Any, n: int) -> Any:
    """An entry of an index as a slice; a traced integer as a tuple of it."""
    if isinstance(entry, slice):
        start, stop, step = entry.indices(n)
        if step < 1:
            raise ArgumentError(f"{mat}[...]: steps of slices must be positive, got {entry}")
        return slice(start, max(start, stop), step)
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        at = _from_start(mat, int(entry), n)
        return slice(at, at + 1, 1)
    if hasattr(entry, "aval") and not entry.shape:
        return (entry,)
    raise ArgumentError(
        f"{mat}[...]: an index must be an integer, a slice, None or ..., got {entry!r:.80}"
    )


def _from_start(mat: BCOO, at: int, n: int) -> int:
    """An index of an axis of size n, counted from its start."""
    if not -n <= at < n:
        raise OutOfBoundsError(f"{mat}[...]: index {at} is out of bounds for an axis of size {n}")
    return at % n


# ---- joined


def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Sparse arrays of as many batch and dense axes one behind the other along an axis.

    >>> from funcgrad import sparse
    >>> sparse.bcoo_concatenate([sparse.eye(1), sparse.eye(1)], dimension=1).todense()
    Array([[1., 1.]], dtype=float32)
    """
    mats = [need("bcoo_concatenate", x, BCOO) for x in operands]
    if not mats:
        raise ArgumentError("bcoo_concatenate: need at least one array")
    first = mats[0]
    axis = canonical_axis("bcoo_concatenate", dimension, first.ndim)
    rest = {(x.n_batch, x.n_dense, (*x.shape[:axis], *x.shape[axis + 1 :])) for x in mats}
    if len(rest) > 1:
        raise ShapeError(
            "bcoo_concatenate: arrays must have the same shapes but along axis "
            f"{axis}, and as many batch and dense axes, got {', '.join(map(repr, mats))}"
        )
    mats = [full_batches(x) for x in mats]
    kind = fnp.result_type(*(x.indices.dtype for x in mats))
    n, total = first.n_batch, sum(x.shape[axis] for x in mats)
    if axis < n:
        most = max(x.nse for x in mats)
        mats = [_padded(x, most) for x in mats]
        data = fnp.concatenate([x.data for x in mats], axis)
        indices = fnp.concatenate([x.indices.astype(kind) for x in mats], axis)
        return BCOO.of(data, indices, first.sparse_shape)
    sizes, offset, parts = list(first.sparse_shape), 0, []
    column = axis - n if axis < n + first.n_sparse else None
    if column is not None:
        sizes[column] = total
    for x in mats:
        valid = inside(x.indices, x.sparse_shape)[..., None]
        indices, data = x.indices.astype(kind), x.data
        if column is not None:
            moved = [offset * (i == column) for i in range(len(sizes))]
            indices = indices + np.asarray(moved, kind)
        else:
            where = axis - first.n_sparse + 1
            edges = (offset, total - offset - x.shape[axis], 0)
            none = np.zeros((), data.dtype)
            data = pad(data, none, [edges if i == where else (0, 0, 0) for i in range(data.ndim)])
        parts.append((data, fnp.where(valid, indices, np.asarray(sizes, kind))))
        offset += x.shape[axis]
    data, indices = (fnp.concatenate(part, n) for part in zip(*parts, strict=True))
    unique = column is not None and all(x.unique_indices for x in mats)
    return BCOO.of(data, indices, sizes, unique_indices=unique)


def _padded(mat: BCOO, nse: int) -> BCOO:
    """The array with padding up to a number of stored elements."""
    n, more = mat.n_batch, nse - mat.nse
    if not more:
        return mat
    data = fnp.zeros((*mat.data.shape[:n], more, *mat.data.shape[n + 1 :]), mat.data.dtype)
    outside = np.asarray(mat.sparse_shape, mat.indices.dtype)
    indices = fnp.broadcast_to(outside, (*mat.indices.shape[:n], more, mat.n_sparse))
    return BCOO.of(
        fnp.concatenate([mat.data, data], n), fnp.concatenate([mat.indices, indices], n),
        mat.sparse_shape, unique_indices=mat.unique_indices,
    )  # fmt: skip
