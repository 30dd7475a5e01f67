"""Products of sparse arrays: with dense ones, with each other, and of dense ones at some places.

An element (i, k) of a matrix, times row k of the dense factor, is added to row i of the result:
a gather and a scatter of as many rows as there are elements, whose derivatives are those of these
ops. So the gradient with respect to values is a product of dense matrices at the stored places
alone, and no array of the sparse one's shape is made. Where elements lie in order of rows, both are
one op, `csr_matmul`, which is compiled row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.aval import promote
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, SparseEfficiencyError
from funcgrad.ops.base import position_dtype
from funcgrad.ops.contract import canonical_numbers
from funcgrad.ops.csr import csr_matmul_p, rows_of
from funcgrad.sparse.arrays import BCOO, BCSR, JAXSparse, is_sparse, known
from funcgrad.sparse.compressed import bcsr_to_bcoo
from funcgrad.sparse.layout import (
    bcoo_sum_duplicates,
    bcoo_update_layout,
    full_batches,
    indices_at,
    inside,
    over_batches,
    positions,
    values_at,
    with_data,
    zero_where_not,
)

Axes = Sequence[int]

# ---- sparse and dense


def bcoo_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None,
    preferred_element_type: Any = None, out_sharding: None = None,
) -> Any:  # fmt: skip
    """`lax.dot_general` where one operand is a `BCOO`, or both are.

    dimension_numbers: ((lhs contracting, rhs contracting), (lhs batch, rhs batch)); batch axes must
    be batch axes of sparse operands, and dense axes can't be contracted. precision has no effect;
    preferred_element_type is the dtype of the result, and of the arithmetic. The result of a sparse
    and a dense array is dense. That of two sparse ones is sparse, with duplicates added up; under
    `jit` it has as many elements as there could be.

    Raises ShapeError for axes that don't fit.

    >>> from funcgrad import sparse
    >>> numbers = (([1], [0]), ([], []))
    >>> sparse.bcoo_dot_general(sparse.eye(2), fnp.ones((2, 1)), dimension_numbers=numbers)
    Array([[1.],
           [1.]], dtype=float32)
    """
    name = "bcoo_dot_general"
    if out_sharding is not None:
        raise ArgumentError(f"{name}: there is no out_sharding; use with_sharding_constraint")
    lhs, rhs = (x if is_sparse(x) else fnp.asarray(x) for x in (lhs, rhs))
    numbers = canonical_numbers(name, dimension_numbers, lhs.ndim, rhs.ndim)
    _check_sizes(name, lhs, rhs, numbers)
    lhs, rhs = _of_one_dtype(name, lhs, rhs, preferred_element_type)
    if is_sparse(lhs) and is_sparse(rhs):
        return _sparse_sparse(as_bcoo(lhs), as_bcoo(rhs), numbers)
    if is_sparse(lhs):
        return _sparse_dense(as_bcoo(lhs), rhs, numbers)
    if not is_sparse(rhs):
        raise ArgumentError(f"{name}: need a BCOO, got {aval_of(lhs)} and {aval_of(rhs)}")
    (lc, rc), (lb, rb) = numbers
    out = _sparse_dense(as_bcoo(rhs), lhs, ((rc, lc), (rb, lb)))
    own, others = rhs.ndim - len(rc) - len(rb), lhs.ndim - len(lc) - len(lb)
    n = len(lb)
    order = [*range(n), *range(n + own, n + own + others), *range(n, n + own)]
    return fnp.transpose(out, order)


def as_bcoo(x: Any) -> BCOO:
    """A sparse array in the format BCOO."""
    return bcsr_to_bcoo(x) if isinstance(x, BCSR) else x


def _check_sizes(name: str, lhs: Any, rhs: Any, numbers: Any) -> None:
    (lc, rc), (lb, rb) = numbers
    for what, left, right in (("contracting", lc, rc), ("batch", lb, rb)):
        if [lhs.shape[i] for i in left] != [rhs.shape[i] for i in right]:
            raise ShapeError(
                f"{name}: {what} axes {tuple(left)} of lhs {lhs.shape} and {tuple(right)} of rhs "
                f"{rhs.shape} must have the same sizes"
            )


def _of_one_dtype(name: str, lhs: Any, rhs: Any, preferred: Any) -> tuple[Any, Any]:
    values = [x.data if is_sparse(x) else x for x in (lhs, rhs)]
    dtype, _ = promote([aval_of(v) for v in values])
    dtype = dtype if preferred is None else dtypes.canonical(preferred)
    if dtype == dtypes.BOOL:
        raise DTypeError(f"{name}: need numbers, got bools; convert with .astype(...)")
    return tuple(x if x.dtype == dtype else as_type(x, dtype) for x in (lhs, rhs))


def as_type(x: Any, dtype: Any) -> Any:
    """A sparse or dense array in another dtype."""
    if isinstance(x, BCOO):
        return with_data(x, x.data.astype(dtype))
    if isinstance(x, BCSR):
        data = x.data.astype(dtype)
        return BCSR.of(data, x.indices, x.indptr, x.columns, x.indices_sorted, x.unique_indices)
    return x.astype(dtype)


class _Sides:
    """The axes of a sparse factor and of a dense one: which batches they share, what is contracted,
    and what is the sparse one's own, or the dense one's."""

    def __init__(self, mat: BCOO, numbers: Any, ndim: int):
        (contracted, theirs), (batch, their_batch) = numbers
        self.contracted, self.theirs = tuple(contracted), tuple(theirs)
        self.batch, self.their_batch = tuple(batch), tuple(their_batch)
        self.own = [i for i in range(mat.ndim) if i not in (*contracted, *batch)]
        self.others = [i for i in range(ndim) if i not in (*theirs, *their_batch)]
        n = mat.n_batch
        if any(i >= n for i in self.batch):
            raise ShapeError(
                f"bcoo_dot_general: batch axes {self.batch} must be batch axes of {mat}, the first "
                f"{n}; see update_layout"
            )
        if any(i >= n + mat.n_sparse for i in self.contracted):
            raise ShapeError(
                f"bcoo_dot_general: contracting axes {self.contracted} must not be dense axes of "
                f"{mat}; see update_layout(n_dense=0)"
            )


def _sparse_dense(mat: BCOO, x: Any, numbers: Any) -> Any:
    (contracted, _), (batch, _) = numbers
    first = min([i for i in contracted if i < mat.n_batch], default=mat.n_batch)
    if first < mat.n_batch:
        if any(i > first for i in batch):
            raise ShapeError(
                f"bcoo_dot_general: a batch axis {first} that is contracted must come behind the "
                f"batch axes {tuple(batch)} that aren't, of {mat}"
            )
        mat = bcoo_update_layout(mat, n_batch=first)
    sides = _Sides(mat, numbers, x.ndim)
    n = mat.n_batch
    # Of the dense factor: an axis for each batch axis, those contracted, all others.
    places = [sides.their_batch[sides.batch.index(i)] if i in sides.batch else None
              for i in range(n)]  # fmt: skip
    order = [p for p in places if p is not None] + [*sides.theirs, *sides.others]
    x = fnp.transpose(x, order)
    rest = x.shape[len(sides.batch) :]
    x = x.reshape(*(1 if p is None else mat.shape[i] for i, p in enumerate(places)), *rest)
    axes = tuple(i - n for i in sides.contracted)

    def one(data: Any, indices: Any, x: Any) -> Any:
        return _one_product(mat, data, indices, x, axes)

    out = over_batches(one, n, mat.data, mat.indices, x)
    front = [i for i in range(n) if i not in sides.batch]
    return fnp.transpose(out, [*sides.batch, *front, *range(n, out.ndim)])


def _one_product(mat: BCOO, data: Any, indices: Any, x: Any, axes: Axes) -> Any:
    """Of one batch: x has the sparse axes `axes` in front, which are contracted."""
    sizes = mat.sparse_shape
    kept = [i for i in range(len(sizes)) if i not in axes]
    rows, terms = ([sizes[i] for i in which] for which in (kept, axes))
    others, dense = x.shape[len(axes) :], data.shape[1:]
    lines = x.reshape(math.prod(terms), math.prod(others))
    if kept == [0] and list(axes) == [1] and mat.indices_sorted and not dense:
        row = indices[:, 0]
        bounds = fnp.searchsorted(row, fnp.arange(rows[0] + 1, dtype=row.dtype))
        out = csr_matmul_p.bind(data, indices[:, 1], bounds[:-1], bounds[1:], lines)
        return out.reshape(*rows, *others)
    valid = inside(indices, sizes)
    row, column = (_places(indices, which, sizes, valid) for which in (kept, list(axes)))
    out = add_rows(data.reshape(len(data), math.prod(dense)), row, column, lines, math.prod(rows))
    return out.reshape(*rows, *dense, *others)


def _places(indices: Any, axes: Axes, sizes: Axes, valid: Any) -> Any:
    """Positions along some of the sparse axes; behind the last one for padding."""
    own = [sizes[i] for i in axes]
    place = positions(indices[:, np.asarray(axes, int)], own) if axes else 0
    total = math.prod(own)
    return fnp.where(valid, place, np.asarray(total, position_dtype(total + 1)))


def add_rows(data: Any, row: Any, column: Any, lines: Any, count: int) -> Any:
    """`count` rows, to which data[e, d] · lines[column[e]] are added at (row[e], d).

    Narrow floats are multiplied and added in float32.

    >>> where = fnp.array([0, 1])
    >>> add_rows(fnp.ones((2, 1)), where, where, fnp.eye(2), 3).tolist()
    [[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]]
    """
    dtype = data.dtype
    wide = np.dtype(np.float32) if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype
    taken = lines.at[column].get(mode="fill", fill_value=0)
    terms = data.astype(wide)[:, :, None] * taken.astype(wide)[:, None, :]
    start = fnp.zeros((count, *terms.shape[1:]), wide)
    return start.at[row].add(terms, mode="drop").astype(dtype)


# ---- dense and dense, at some places


def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Any) -> Any:
    """The elements of `lax.dot_general(A, B, dimension_numbers)` at indices, and no others.

    indices: (*batch, nse, n_sparse), with as many batch axes as the product has, or fewer, and all
    other axes of the product sparse. The result is (*batch, nse), zero at indices out of bounds.

    >>> from funcgrad import sparse
    >>> A, B = fnp.arange(4.0).reshape(2, 2), fnp.eye(2)
    >>> numbers = (([1], [0]), ([], []))
    >>> indices = fnp.array([[0, 1], [1, 0]])
    >>> sparse.bcoo_dot_general_sampled(A, B, indices, dimension_numbers=numbers)
    Array([1., 2.], dtype=float32)
    """
    name = "bcoo_dot_general_sampled"
    A, B, indices = fnp.asarray(A), fnp.asarray(B), fnp.asarray(indices)
    (ac, bc), (ab, bb) = numbers = canonical_numbers(name, dimension_numbers, A.ndim, B.ndim)
    _check_sizes(name, A, B, numbers)
    A, B = _of_one_dtype(name, A, B, None)
    free = [[i for i in range(x.ndim) if i not in (*c, *b)]
            for x, c, b in ((A, ac, ab), (B, bc, bb))]  # fmt: skip
    shape = tuple([A.shape[i] for i in (*ab, *free[0])] + [B.shape[i] for i in free[1]])
    if not dtypes.is_integer(indices.dtype):
        raise DTypeError(f"{name}: indices must be integers, got {indices.aval}")
    n = indices.ndim - 2
    if (
        n < 0
        or indices.shape[-1] + n != len(shape)
        or any(got not in (1, want) for got, want in zip(indices.shape[:n], shape, strict=False))
    ):
        raise ShapeError(
            f"{name}: indices {indices.shape} must be (*batch, nse, n_sparse) for a product of "
            f"shape {shape}"
        )
    terms = math.prod(A.shape[i] for i in ac)
    lead, ones = tuple(A.shape[i] for i in ab), [(1,) * len(f) for f in free]
    own = [tuple(x.shape[i] for i in f) for x, f in zip((A, B), free, strict=True)]
    A = fnp.transpose(A, (*ab, *free[0], *ac)).reshape(*lead, *own[0], *ones[1], terms)
    B = fnp.transpose(B, (*bb, *free[1], *bc)).reshape(*lead, *ones[0], *own[1], terms)
    sizes = shape[n:]

    def one(a: Any, b: Any, indices: Any) -> Any:
        return fnp.sum(lines_at(a, indices, sizes) * lines_at(b, indices, sizes), -1)

    return over_batches(one, n, A, B, indices)


def lines_at(x: Any, indices: Any, sizes: Axes, fill: Any = 0) -> Any:
    """What an array has at indices of a shape that it broadcasts to along its first axes; `fill`
    for padding.

    >>> lines_at(fnp.array([[1.0, 2.0]]), fnp.array([[0, 1], [3, 0]]), (4, 2))
    Array([2., 1.], dtype=float32)
    """
    n = len(sizes)
    axes = [i for i in range(n) if x.shape[i] != 1]
    place = _places(indices, axes, sizes, inside(indices, sizes))
    kept = x.reshape(*(x.shape[i] for i in axes), *x.shape[n:])
    return values_at(kept, place, len(axes), fill)


# ---- sparse and sparse


def _sparse_sparse(lhs: BCOO, rhs: BCOO, numbers: Any) -> BCOO:
    (lc, rc), (lb, rb) = numbers
    n = len(lb)
    plain = [*lb] == [*rb] == [*range(n)] and lhs.n_batch == rhs.n_batch == n
    if not plain or lhs.n_dense or rhs.n_dense:
        raise ShapeError(
            "bcoo_dot_general: of two sparse arrays batch axes must be those of the product, in "
            f"front, and none dense, got {lhs} and {rhs} with dimension_numbers {numbers}"
        )
    rhs = bcoo_sum_duplicates(rhs, nse=None if known(rhs.indices) is not None else rhs.nse)
    pairs = _Pairs(lhs, rhs, [i - n for i in lc], [i - n for i in rc])
    if n:
        lhs, rhs = full_batches(lhs), full_batches(rhs)
    count = pairs.count()
    data, indices = over_batches(
        partial(pairs.join, count), n, lhs.data, lhs.indices, rhs.data, rhs.indices
    )
    out = BCOO.of(data, indices, pairs.shape)
    return bcoo_sum_duplicates(out) if known(indices) is not None else out


class _Pairs:
    """Elements of two arrays whose contracted indices are equal. Those of the second are sorted by
    these, so that those that belong to one of the first are neighbours."""

    def __init__(self, lhs: BCOO, rhs: BCOO, lc: Axes, rc: Axes):
        self.lhs, self.rhs, self.lc, self.rc = lhs, rhs, list(lc), list(rc)
        self.kept = [[i for i in range(x.n_sparse) if i not in c]
                     for x, c in ((lhs, self.lc), (rhs, self.rc))]  # fmt: skip
        sizes = [[x.sparse_shape[i] for i in kept]
                 for x, kept in zip((lhs, rhs), self.kept, strict=True)]  # fmt: skip
        self.shape = (*sizes[0], *sizes[1])
        self.widest = min(rhs.nse, math.prod(sizes[1]))

    def order(self, left: Any, right: Any) -> tuple[Any, Any, Any]:
        """The second's elements in order, and where those of each of the first's begin and end."""
        key, other = (
            _places(at, axes, x.sparse_shape, inside(at, x.sparse_shape))
            for at, axes, x in ((left, self.lc, self.lhs), (right, self.rc, self.rhs))
        )
        order = fnp.argsort(other, stable=True)
        line = other[order]
        total = math.prod(self.lhs.sparse_shape[i] for i in self.lc)
        begin = fnp.searchsorted(line, key)
        end = fnp.where(key < total, fnp.searchsorted(line, key, side="right"), begin)
        return order, begin, end

    def count(self) -> int:
        """How many pairs there are, of the batch that has most; or could be."""
        n = self.lhs.n_batch

        def one(left: Any, right: Any) -> Any:
            _, begin, end = self.order(left, right)
            return fnp.sum((end - begin).astype(np.int64))

        found = known(over_batches(one, n, self.lhs.indices, self.rhs.indices))
        return self.lhs.nse * self.widest if found is None else int(found.max(initial=0))

    def join(self, count: int, a: Any, left: Any, b: Any, right: Any) -> tuple[Any, Any]:
        """Data and indices of `count` pairs of one batch, padding among them."""
        kind = left.dtype
        if not count or not len(a) or not len(b):
            return fnp.zeros((0,), a.dtype), fnp.zeros((0, len(self.shape)), kind)
        order, begin, end = self.order(left, right)
        ends = fnp.cumsum((end - begin).astype(position_dtype(count + 1)))
        pair = fnp.arange(count, dtype=ends.dtype)
        i = fnp.minimum(fnp.searchsorted(ends, pair, side="right"), len(a) - 1)
        j = order[fnp.clip(begin[i] + pair - (ends[i] - (end - begin)[i]), 0, len(b) - 1)]
        there = pair < ends[-1]
        data = zero_where_not(there, a[i] * b[j])
        rows, columns = (np.asarray(k, int) for k in self.kept)
        indices = fnp.concatenate([left[i][:, rows], right[j][:, columns].astype(kind)], -1)
        place = fnp.where(there, positions(indices, self.shape), math.prod(self.shape))
        return data, indices_at(place, self.shape, kind)


# ---- the operator @


def matmul(a: Any, b: Any) -> Any:
    """a @ b as of dense arrays, where a or b is sparse, or both are.

    Axes in front of the last two are batches, which broadcast. Those of a sparse array must be
    batch axes of it.

    >>> from funcgrad import sparse
    >>> matmul(fnp.array([1.0, 2.0]), sparse.eye(2))
    Array([1., 2.], dtype=float32)
    """
    a, b = (x if is_sparse(x) else fnp.asarray(x) for x in (a, b))
    if not a.ndim or not b.ndim:
        raise ShapeError(f"matmul: need arrays of one or more axes, got {a} and {b}; use *")
    inner = a.ndim - 1, max(b.ndim - 2, 0)
    if a.shape[inner[0]] != b.shape[inner[1]]:
        raise ShapeError(
            f"matmul: the last axis of a {a.shape} has size {a.shape[inner[0]]}, but the "
            f"{'first' if b.ndim == 1 else 'second-last'} of b {b.shape} has {b.shape[inner[1]]}"
        )
    n = min(max(a.ndim - 2, 0), max(b.ndim - 2, 0))
    if a.ndim <= 2 and isinstance(a, BCSR) and not is_sparse(b) and b.ndim <= 2:
        return bcsr_dot_general(a, b, dimension_numbers=(([1], [0]), ([], [])))
    if a.shape[:n] != b.shape[:n] or n != max(a.ndim - 2, b.ndim - 2, 0):
        return _broadcast_matmul(a, b)
    batch = list(range(n))
    numbers = (([inner[0]], [inner[1]]), (batch, batch))
    product = bcsr_dot_general if isinstance(a, BCSR) and not is_sparse(b) else bcoo_dot_general
    return product(a, b, dimension_numbers=numbers)


def _broadcast_matmul(a: Any, b: Any) -> Any:
    """Products whose batch axes broadcast: those of the dense operand are repeated, or are its own
    rows where the sparse one has none."""
    mat, x = (a, b) if is_sparse(a) else (b, a)
    if is_sparse(x):
        raise ShapeError(f"matmul: batch axes of two sparse arrays must be equal: {a} and {b}")
    n = max(mat.ndim - 2, 0)
    if not n:  # all axes of the dense one but the contracted are free
        axis = max(b.ndim - 2, 0) if mat is a else a.ndim - 1
        own = a.ndim - 1 if mat is a else max(b.ndim - 2, 0)
        pair = ([own], [axis]) if mat is a else ([axis], [own])
        out = bcoo_dot_general(a, b, dimension_numbers=(pair, ([], [])))
        if mat is b or x.ndim < 3 or mat.ndim < 2:
            return out
        return fnp.moveaxis(out, 0, -2)
    try:
        batch = np.broadcast_shapes(mat.shape[:n], x.shape[: max(x.ndim - 2, 0)])
    except ValueError:
        batch = ()
    if batch != mat.shape[:n]:
        raise ShapeError(
            f"matmul: batch axes of {a.shape} and {b.shape} must broadcast to the sparse array's; "
            "broadcast it first"
        )
    vector = x.ndim == 1
    x = fnp.broadcast_to(x, (*batch, *x.shape[-2:]))
    axes = list(range(n))
    last = x.ndim - 1
    if mat is a:
        numbers = (([a.ndim - 1], [last if vector else last - 1]), (axes, axes))
        return bcoo_dot_general(a, x, dimension_numbers=numbers)
    numbers = (([last], [b.ndim - 2]), (axes, axes))
    return bcoo_dot_general(x, b, dimension_numbers=numbers)


# ---- by rows


def bcsr_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None,
    preferred_element_type: Any = None, out_sharding: None = None,
) -> Any:  # fmt: skip
    """`lax.dot_general` where an operand is a `BCSR`; see `bcoo_dot_general`.

    Products of its columns with a dense array go row by row; others as those of a `BCOO`.

    >>> from funcgrad import sparse
    >>> m = sparse.BCSR.fromdense(fnp.array([[0.0, 2.0], [0.0, 0.0]]))
    >>> sparse.bcsr_dot_general(m, fnp.ones(2), dimension_numbers=(([1], [0]), ([], [])))
    Array([2., 0.], dtype=float32)
    """
    rest = {
        "dimension_numbers": dimension_numbers, "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
    }  # fmt: skip
    if not isinstance(lhs, BCSR) or isinstance(rhs, JAXSparse) or lhs.n_dense:
        return bcoo_dot_general(lhs, rhs, **rest)
    name, rhs = "bcsr_dot_general", fnp.asarray(rhs)
    numbers = canonical_numbers(name, dimension_numbers, lhs.ndim, rhs.ndim)
    (lc, rc), (lb, rb) = numbers
    n = lhs.n_batch
    if [*lc] != [n + 1] or [*lb] != [*range(n)] or out_sharding is not None:
        return bcoo_dot_general(lhs, rhs, **rest)
    _check_sizes(name, lhs, rhs, numbers)
    lhs, rhs = _of_one_dtype(name, lhs, rhs, preferred_element_type)
    others = [i for i in range(rhs.ndim) if i not in (*rc, *rb)]
    x = fnp.transpose(rhs, [*rb, *rc, *others])

    def one(data: Any, indices: Any, indptr: Any, x: Any) -> Any:
        lines = x.reshape(lhs.columns, math.prod(x.shape[1:]))
        out = csr_matmul_p.bind(data, indices, indptr[:-1], indptr[1:], lines)
        return out.reshape(out.shape[0], *x.shape[1:])

    return over_batches(one, n, lhs.data, lhs.indices, lhs.indptr, x)


def bcsr_dot_general_sampled(
    A: Any, B: Any, indices: Any, indptr: Any, *, dimension_numbers: Any
) -> Any:
    """The elements of a product at the places of a `BCSR`: its data, (*batch, nse); see
    `bcoo_dot_general_sampled`. Padding is zero.

    >>> from funcgrad import sparse
    >>> A, B, numbers = fnp.arange(4.0).reshape(2, 2), fnp.eye(2), (([1], [0]), ([], []))
    >>> m = sparse.eye(2, sparse_format="bcsr")
    >>> sparse.bcsr_dot_general_sampled(A, B, m.indices, m.indptr, dimension_numbers=numbers)
    Array([0., 3.], dtype=float32)
    """
    columns, ends = fnp.asarray(indices), fnp.asarray(indptr)
    if columns.ndim != ends.ndim or not ends.ndim or not dtypes.is_integer(ends.dtype):
        raise ShapeError(
            "bcsr_dot_general_sampled: need indices (*batch, nse) and integers indptr (*batch, "
            f"rows + 1), got {columns.aval} and {ends.aval}"
        )

    def one(columns: Any, ends: Any) -> Any:
        rows = rows_of(ends[:-1], ends[1:], columns.shape[0])
        return fnp.stack([rows.astype(columns.dtype), columns], -1)

    places = over_batches(one, columns.ndim - 1, columns, ends)
    return bcoo_dot_general_sampled(A, B, places, dimension_numbers=dimension_numbers)


def densified(what: str, mat: JAXSparse, instead: str) -> SparseEfficiencyError:
    """The error where a result would be dense."""
    return SparseEfficiencyError(
        f"{what}: the result of {mat} would be dense; {instead}, or convert with .todense()"
    )
