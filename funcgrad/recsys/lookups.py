"""Derivatives with respect to looked-up rows: `value_and_sparse_grad`.

A table's gradient is zero but for the rows that were read, so it is never made. The function runs
with tables that tell their lookups: to what a lookup gives a zero is added, the function is
differentiated with respect to that, and each row that was read gets its share, as `IndexedRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core import context
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DifferentiationError
from funcgrad.ops.csr import NAN, csr_matmul_p
from funcgrad.ops.csr import rows_of as bags_of
from funcgrad.ops.csr_codes import csr_matmul_codes_p
from funcgrad.recsys.rows import IndexedRows, Lines
from funcgrad.recsys.tables import QuantizedTable, as_table, read_rows
from funcgrad.transforms.derivatives.grad import value_and_grad
from funcgrad.transforms.jit.make_jaxpr import eval_shape


class Lookup(NamedTuple):
    """One lookup: ids (n,), and, where rows were pooled, the bag and the factor of each."""

    ids: Any
    bags: Any
    factors: Any


class Tapped:
    """A table that records its lookups. It is no array: only lookups may use it."""

    def __init__(self, array: Any, number: int, recorder: Recorder):
        self.array, self._number, self._recorder = array, number, recorder
        self.shape, self.dtype = array.shape, array.dtype

    def recorded(
        self,
        out: Any,
        ids: Any,
        bags: Any = None,
        factors: Any = None,
        axes: Sequence[str] = (),
        scale: int = 1,
    ) -> Any:
        """What a lookup gives, with the zero added by which the function is differentiated.

        axes: mesh axes over which the table is whole, so that its gradient is the sum over them;
        scale: what the gradient is multiplied with.
        """
        factors = None if factors is None else lax.stop_gradient(factors)
        return self._recorder.record(self, out, Lookup(ids, bags, factors), (tuple(axes), scale))

    @property
    def number(self) -> int:
        """Which of the tables it is."""
        return self._number


class Recorder:
    """The lookups of one run of a function, in their order; and the zeros that are added."""

    def __init__(self, zeros: Sequence[Any] | None = None):
        self._zeros = zeros
        self.types: list[ShapeDtypeStruct] = []
        self.lookups: list[Lookup] = []
        self.tables: list[tuple[int, tuple[str, ...], int]] = []

    def record(self, table: Tapped, out: Any, lookup: Lookup, how: tuple) -> Any:
        """Keep a lookup, and add its zero to what it gave."""
        aval = aval_of(out)
        place = len(self.types)
        self.types.append(ShapeDtypeStruct(aval.shape, aval.dtype))
        self.lookups.append(lookup)
        self.tables.append((table.number, *how))
        if self._zeros is None:
            return out
        if place >= len(self._zeros) or self._zeros[place].shape != aval.shape:
            raise DifferentiationError(
                "recsys.value_and_sparse_grad: the function looked up other rows when it ran again"
            )
        return out + self._zeros[place]


def pooled(
    table: Any,
    ids: Any,
    bounds: tuple[Any, Any],
    factors: Any = None,
    axes: Sequence[str] = (),
    scale: int = 1,
) -> Any:
    """(count, dim): rows times their factors, summed bag by bag; NaN for bags with an id that is no
    row. bounds: where each bag begins and ends, ascending; axes, scale: see `Tapped.recorded`.

    A product of a sparse matrix, a row a bag, with the table: narrow rows are read as they are.
    """
    array = table.array if isinstance(table, Tapped) else table
    starts, ends = bounds
    data, places = _data(array, ids, factors), (ids, starts, ends)
    if isinstance(array, QuantizedTable):
        few = {"bits": array.bits, "columns": array.dim}
        scales = array.scales.astype(data.dtype)
        return csr_matmul_codes_p.bind(data, *places, array.values, scales, **few, missing=NAN)
    out = csr_matmul_p.bind(data, *places, array, missing=NAN)
    if isinstance(table, Tapped):
        bags = bags_of(starts, ends, ids.shape[0])
        return table.recorded(out, ids, bags, factors, axes, scale)
    return out


def _data(array: Any, ids: Any, factors: Any) -> Any:
    """What the row of each id is multiplied with, in the dtype of the sums."""
    wide = array.scales.dtype if isinstance(array, QuantizedTable) else array.dtype
    dtype = fnp.promote_types(wide, fnp.float32)
    if factors is None:
        return fnp.ones(ids.shape, dtype)
    return factors.astype(fnp.promote_types(dtype, factors.dtype))


def rows_of(table: Any, ids: Any) -> Any:
    """(n, dim): the rows of (n,) ids."""
    if isinstance(table, Tapped):
        return table.recorded(read_rows(table.array, ids), ids)
    return read_rows(table, ids)


def value_and_sparse_grad(
    fun: Callable, argnums: int | tuple[int, ...] = (), has_aux: bool = False
) -> Callable:
    """A function of a value and its derivatives, those of tables by rows that were read.

    fun(tables, *args) gives a scalar (with has_aux a pair with it), where tables is a pytree of
    arrays (rows, dim) that `embedding_bag` and `embedding` alone may use, outside of functions
    given to transformations. The result gives (value, table_grads), or with argnums, the numbers of
    other arguments, (value, (table_grads, grads)); grads are as `value_and_grad` gives them. In
    table_grads, `IndexedRows` stand for tables: a row for each id, ids may repeat.

    No array of a table's shape is made. Raises DifferentiationError for a table that can't be
    trained or is used otherwise.

    >>> from funcgrad import recsys
    >>> tables, ids = {"ad": fnp.ones((1000, 2))}, fnp.array([7, 9, 7])
    >>> loss = lambda tables, ids: fnp.sum(recsys.embedding(tables["ad"], ids) ** 2)
    >>> value, grads = recsys.value_and_sparse_grad(loss)(tables, ids)
    >>> grads["ad"].indices.tolist(), grads["ad"].rows.tolist()
    ([7, 9, 7], [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]])
    """
    name = "recsys.value_and_sparse_grad"
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if 0 in numbers:
        raise ArgumentError(f"{name}: argument 0 is the tables; argnums are of others, got 0")

    def differentiated(tables: Any, *args: Any) -> Any:
        leaves, structure = tree.flatten(tables)
        if any(isinstance(x, QuantizedTable) for x in tree.leaves(tables, is_leaf=_quantized)):
            raise DifferentiationError(f"{name}: a QuantizedTable can't be trained")
        leaves = [as_table(f"{name}: a table", leaf) for leaf in leaves]

        def run(recorder: Recorder, *args: Any) -> Any:
            tapped = [Tapped(x, i, recorder) for i, x in enumerate(leaves)]
            out = fun(structure.unflatten(tapped), *args)
            return out if has_aux else (out, None)

        def taped(zeros: list, *args: Any) -> Any:
            recorder = Recorder(zeros)
            value, aux = run(recorder, *args)
            return value, (aux, recorder.lookups)

        first = Recorder()
        eval_shape(lambda: run(first, *args)[0])
        # On many devices lookups differ, and each device wants the cotangents of its own.
        zeros = lax.pvary(
            [fnp.zeros(t.shape, t.dtype) for t in first.types], context.current().manual
        )
        out, grads = value_and_grad(taped, (0, *numbers), has_aux=True)(zeros, *args)
        value, (aux, lookups) = out
        sparse = structure.unflatten(_by_table(first.tables, lookups, grads[0], leaves))
        dense = grads[1] if isinstance(argnums, int) else grads[1:]
        return (value, aux) if has_aux else value, (sparse, dense) if numbers else sparse

    return differentiated


def _quantized(x: Any) -> bool:
    return isinstance(x, QuantizedTable)


def _by_table(
    tables: Sequence[tuple], lookups: Sequence[Lookup], cts: Sequence[Any], leaves: Sequence[Any]
) -> list[IndexedRows]:
    """The gradient of each table, of the cotangents of all lookups."""
    found: list[list[IndexedRows]] = [[] for _ in leaves]
    for (table, axes, scale), lookup, ct in zip(tables, lookups, cts, strict=True):
        ct = ct * scale if scale > 1 else ct
        found[table].append(_gradient(lookup, ct, leaves[table].shape, axes))
    return [IndexedRows.concat(f, x.shape) for f, x in zip(found, leaves, strict=True)]


def _gradient(lookup: Lookup, ct: Any, shape: tuple[int, int], axes: tuple) -> IndexedRows:
    """The rows' cotangents, of that of what a lookup gave."""
    if lookup.bags is None:
        return _summed_over(axes, IndexedRows(lookup.ids, ct, shape[0]))
    # What belongs to no bag is no row.
    ids = fnp.where(lookup.bags < ct.shape[0], lookup.ids, fnp.asarray(shape[0], lookup.ids.dtype))
    rows = ct.at[lookup.bags].get(mode="fill", fill_value=0)
    if lookup.factors is not None:
        rows = rows * lookup.factors[:, None]
    lines = Lines(lookup.bags, lookup.factors, ct)
    return _summed_over(axes, IndexedRows(ids, rows, shape[0], lines=lines))


def _summed_over(axes: tuple[str, ...], g: IndexedRows) -> IndexedRows:
    """The sum over mesh axes, by an all-reduce of all rows, which are few, and of how often each
    was read: rows that no device read are none."""
    if not axes:
        return g
    once = IndexedRows(g.indices, fnp.ones((*g.indices.shape, 1), g.rows.dtype), g.count)
    dense = lax.psum(fnp.concatenate([g.to_dense(), once.to_dense()], axis=1), axes)
    size = min(g.count, g.indices.shape[0] * lax.axis_size(axes))
    (indices,) = fnp.nonzero(dense[:, -1] > 0, size=size, fill_value=g.count)
    indices = indices.astype(g.indices.dtype)
    rows = dense[:, :-1].at[indices].get(mode="fill", fill_value=0)
    return IndexedRows(indices, rows, g.count)
