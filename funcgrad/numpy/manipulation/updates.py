"""`x.at[idx].set(y)`: functional updates of arrays, as methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.compare import gt
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.indexing.indexing import from_start, index, index_update
from funcgrad.ops.sharding import cut_as_said
from funcgrad.transforms.control.repeated import repeated


class IndexUpdateHelper:
    """`x.at`: index it for functional updates of an array, `x.at[idx].set(y)`.

    >>> import funcgrad.numpy as fnp
    >>> fnp.zeros(3).at[1].set(5.0)
    Array([0., 5., 0.], dtype=float32)
    """

    __slots__ = ("array",)

    def __init__(self, array: Any):
        self.array = array

    def __getitem__(self, idx: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.array, idx)

    def __repr__(self) -> str:
        return f"IndexUpdateHelper({self.array!r})"


class IndexUpdateRef:
    """`x.at[idx]`: each method gives a copy of x in which the elements `x[idx]` are updated.

    All take `mode` ("drop", "clip", "promise_in_bounds": what becomes of indices outside their
    axis; see `index_update`), `indices_are_sorted`, `unique_indices`, and `wrap_negative_indices`:
    where that is False, negative indices are outside, too.

    >>> import funcgrad.numpy as fnp
    >>> fnp.arange(4).at[1:3].multiply(10)
    Array([ 0, 10, 20,  3], dtype=int32)
    """

    __slots__ = ("array", "idx")

    def __init__(self, array: Any, idx: Any):
        self.array = array
        self.idx = idx

    def __repr__(self) -> str:
        return f"IndexUpdateRef({self.array!r}, {self.idx!r})"

    def _index(self, mode: Any, hints: dict) -> Any:
        """The index, as the hints ask for it; they keep the others."""
        wraps = hints.pop("wrap_negative_indices", True)
        return self.idx if wraps else from_start(self.idx, mode)

    def _updated(self, op: str, values: Any, mode: Any, hints: dict) -> Any:
        idx = self._index(mode, hints)
        return index_update(self.array, idx, values, op, mode=mode, **hints)

    def get(
        self, *, mode: Any = None, fill_value: Any = None, out_sharding: Any = None, **hints: bool
    ) -> Any:
        """`x[idx]` with a `mode` for indices outside their axis, and the value to fill with.

        `out_sharding` is how it is to be cut over a mesh.
        """
        idx = self._index(mode, hints)
        found = index(self.array, idx, mode=mode, fill_value=fill_value, **hints)
        return cut_as_said(found, out_sharding)

    def set(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] = values`; where an element is selected twice, the last value stays."""
        return self._updated("set", values, mode, hints)

    def add(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] += values`, for an element selected several times, as often."""
        return self._updated("add", values, mode, hints)

    def subtract(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] -= values`."""
        return self._updated("subtract", values, mode, hints)

    def multiply(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] *= values`."""
        return self._updated("mul", values, mode, hints)

    mul = multiply

    def divide(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] /= values`."""
        return self._updated("divide", values, mode, hints)

    def power(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] **= values`."""
        return self._updated("power", values, mode, hints)

    def min(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] = minimum(x[idx], values)`."""
        return self._updated("min", values, mode, hints)

    def max(self, values: Any, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] = maximum(x[idx], values)`."""
        return self._updated("max", values, mode, hints)

    def apply(self, function: Callable, *, mode: Any = None, **hints: bool) -> Any:
        """x with `x[idx] = function(x[idx])`, for an elementwise function.

        To an element selected several times it is applied as often. Where more than 64 indices are
        traced, reverse-mode differentiation needs `unique_indices=True`, if that is so.
        """
        return _applied(self.array, self._index(mode, hints), function, mode, hints)


# ---- functions of elements


def _is_vector(entry: Any) -> bool:
    if isinstance(entry, list):
        return True
    return bool(getattr(entry, "ndim", 0)) and entry.dtype != dtypes.BOOL


def _applied(x: Any, idx: Any, function: Callable, mode: Any, hints: dict) -> Any:
    def apply(x: Any, f: Callable) -> Any:
        return index_update(x, idx, f, "apply", mode=mode, **hints)

    def noted(f: Callable) -> tuple[Callable, list]:
        seen: list[Any] = []

        def noting(v: Any) -> Any:
            seen.append(v)
            return f(v)

        return noting, seen

    noting, first = noted(function)
    out = apply(x, noting)
    entries = idx if isinstance(idx, tuple) else (idx,)
    if hints.get("unique_indices") or not any(map(_is_vector, entries)):
        return out
    zeros = full(aval_of(x).shape, 0, np.int32)
    counts = index_update(zeros, idx, 1, "add", mode=mode, **hints)
    noting, each = noted(lambda v: v)
    index_update(counts, idx, noting, "apply", mode=mode, **hints)

    def once(x: Any, turn: Any) -> Any:
        """What is due once more; elsewhere the function sees what it was first applied to."""

        def again(v: Any) -> Any:
            due = gt(each[-1], turn)
            return select(due, function(select(due, v, first[0])), v)

        return apply(x, again)

    return repeated(counts, out, once, aval_of(each[-1]).size)
