"""Arrays that are zero but for some rows: `IndexedRows`, the gradients of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.indexing.segment import segment_sum
from funcgrad.recsys.tables import from_zero


@tree.register_pytree_node_class
class IndexedRows:
    """An array (count, dim) that is zero but for `rows` (n, dim) at `indices` (n,).

    Rows at one index are summed; those at indices outside of 0 … count - 1 are left out, so that
    their number can be static. distinct: whether no two indices are equal. A tree of both arrays.

    >>> from funcgrad import recsys
    >>> g = recsys.IndexedRows([2, 0, 2], [[1.0], [5.0], [1.0]], 4)
    >>> g.to_dense()[:, 0]
    Array([5., 0., 2., 0.], dtype=float32)
    """

    indices: Any
    rows: Any
    count: int
    distinct: bool

    def __init__(self, indices: Any, rows: Any, count: int, distinct: bool = False):
        self.indices, self.rows = fnp.asarray(indices), fnp.asarray(rows)
        self.count, self.distinct = count, distinct
        if self.rows.ndim != 2 or self.indices.shape != self.rows.shape[:1]:
            raise ShapeError(
                "recsys.IndexedRows: need indices (n,) and rows (n, dim), got "
                f"{aval_of(self.indices)} and {aval_of(self.rows)}"
            )
        if not dtypes.is_integer(self.indices.dtype):
            raise DTypeError(
                f"recsys.IndexedRows: indices must be integers, got {aval_of(self.indices)}"
            )

    @classmethod
    def concat(cls, parts: Sequence[IndexedRows], shape: tuple[int, int]) -> IndexedRows:
        """The sum of several of an array of some shape."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(fnp.zeros(0, "int32"), fnp.zeros((0, shape[1])), shape[0], True)
        indices = fnp.concatenate([p.indices for p in parts])
        return cls(indices, fnp.concatenate([p.rows for p in parts]), shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Of the array that it stands for."""
        return self.count, self.rows.shape[1]

    def summed(self) -> IndexedRows:
        """The same with distinct indices in ascending order; behind them come ones that are left
        out. There are no more than the array has rows.

        >>> from funcgrad import recsys
        >>> g = recsys.IndexedRows([2, 0, 2], [[1.0], [5.0], [1.0]], 4).summed()
        >>> g.indices, g.rows[:, 0]
        (Array([0, 2, 6], dtype=int32), Array([5., 2., 0.], dtype=float32))
        """
        n = self.indices.shape[0]
        if self.distinct or not n:
            return self
        size = min(n, self.count)
        none = fnp.asarray(self.count, self.indices.dtype)
        indices = fnp.minimum(from_zero(self.indices, self.count), none)
        found, inverse = fnp.unique(indices, return_inverse=True, size=size, fill_value=none)
        rows = segment_sum(self.rows, inverse, size)
        place = none + fnp.arange(size, dtype=found.dtype)
        return IndexedRows(fnp.where(found < none, found, place), rows, self.count, True)

    def to_dense(self) -> Any:
        """The array itself."""
        zeros = fnp.zeros(self.shape, self.rows.dtype)
        return zeros.at[from_zero(self.indices, self.count)].add(self.rows, mode="drop")

    def tree_flatten(self) -> tuple:
        """For `tree`: both arrays."""
        return (self.indices, self.rows), (self.count, self.distinct)

    def tree_flatten_with_keys(self) -> tuple:
        """For `tree`: both arrays with their names."""
        keys = map(tree.GetAttrKey, ("indices", "rows"))
        return list(zip(keys, (self.indices, self.rows), strict=True)), (self.count, self.distinct)

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Iterable) -> IndexedRows:
        """For `tree`: nothing is checked, as children may be anything."""
        new = object.__new__(cls)
        new.count, new.distinct = static
        new.indices, new.rows = children
        return new

    def __repr__(self) -> str:
        return f"IndexedRows({self.indices}, {self.rows}, count={self.count})"
