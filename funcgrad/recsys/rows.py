"""Arrays that are zero but for some rows: `IndexedRows`, the gradients of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.csr import csr_matmul_p
from funcgrad.recsys.tables import from_zero


class Lines(NamedTuple):
    """What (n, dim) rows are made of: row j is `lines[places[j]]`, times `factors[j]` if there are
    factors; zeros where there is no such line."""

    places: Any
    factors: Any
    lines: Any

    def sums(self, order: Any, starts: Any, ends: Any) -> Any:
        """(m, dim): sums of the rows order[starts[i]] … order[ends[i] - 1], which aren't made."""
        dtype = self.lines.dtype
        if self.factors is None:
            factors = fnp.ones(order.shape, dtype)
        else:
            factors = self.factors.astype(dtype)[order]
        return csr_matmul_p.bind(factors, self.places[order], starts, ends, self.lines)

    @classmethod
    def concat(cls, parts: Sequence[Lines]) -> Lines:
        """The rows of several, one after the other."""
        places, base = [], 0
        for p in parts:
            count = p.lines.shape[0]
            there = (p.places >= 0) & (p.places < count)
            places.append(fnp.where(there, p.places + base, -1).astype("int32"))
            base += count
        factors = None
        if any(p.factors is not None for p in parts):
            ones = [fnp.ones(p.places.shape, p.lines.dtype) for p in parts]
            given = zip(parts, ones, strict=True)
            factors = fnp.concatenate([one if p.factors is None else p.factors for p, one in given])
        return cls(fnp.concatenate(places), factors, fnp.concatenate([p.lines for p in parts]))


@tree.register_pytree_node_class
class IndexedRows:
    """An array (count, dim) that is zero but for `rows` (n, dim) at `indices` (n,).

    Rows at one index are summed; those at indices outside of 0 … count - 1 are left out, so that
    their number can be static. distinct: whether no two indices are equal; lines: what the rows are
    made of, where that is known, so that they can be summed without being made. A tree of both
    arrays, without lines.

    >>> from funcgrad import recsys
    >>> g = recsys.IndexedRows([2, 0, 2], [[1.0], [5.0], [1.0]], 4)
    >>> g.to_dense()[:, 0]
    Array([5., 0., 2., 0.], dtype=float32)
    """

    indices: Any
    rows: Any
    count: int
    distinct: bool
    lines: Lines | None

    def __init__(
        self,
        indices: Any,
        rows: Any,
        count: int,
        distinct: bool = False,
        lines: Lines | None = None,
    ):
        self.indices, self.rows = fnp.asarray(indices), fnp.asarray(rows)
        self.count, self.distinct, self.lines = count, distinct, lines
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
        rows = fnp.concatenate([p.rows for p in parts])
        return cls(indices, rows, shape[0], lines=Lines.concat([p.as_lines() for p in parts]))

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
        size, none = min(n, self.count), fnp.asarray(self.count, self.indices.dtype)
        indices = fnp.minimum(from_zero(self.indices, self.count), none)
        entry = fnp.arange(n, dtype="int32")
        indices, order = lax.sort((indices, entry), num_keys=1, is_stable=True)
        first = fnp.concatenate([fnp.ones(1, bool), indices[1:] != indices[:-1]])
        number = fnp.cumsum(first, dtype="int32") - 1
        # Where each run of equal indices begins; those that are left out are the last run.
        begin = fnp.full(size + 1, n, "int32")
        at = fnp.where(first, number, size + 1)
        begin = begin.at[at].set(entry, mode="drop", unique_indices=True)
        found = indices.at[begin[:-1]].get(mode="fill", fill_value=self.count)
        place = none + fnp.arange(size, dtype=found.dtype)
        rows = self.as_lines().sums(order, begin[:-1], begin[1:])
        return IndexedRows(fnp.where(found < none, found, place), rows, self.count, True)

    def as_lines(self) -> Lines:
        """What the rows are made of: themselves, where nothing else is known."""
        if self.lines is not None:
            return self.lines
        return Lines(fnp.arange(self.indices.shape[0], dtype="int32"), None, self.rows)

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
        new.lines = None
        new.indices, new.rows = children
        return new

    def __repr__(self) -> str:
        return f"IndexedRows({self.indices}, {self.rows}, count={self.count})"
