"""Sorting, and search in what is sorted. NaN counts as greater than every number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.trace import is_known
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import (
    as_array,
    broadcast_to,
    canonical_axis,
    convert,
    default_int,
    dtype_or,
    index_dtype,
    integers,
    need_real,
    promote,
)
from funcgrad.numpy.manipulation.joining import arrays_of
from funcgrad.numpy.manipulation.shape import flip, ravel
from funcgrad.ops import shape as ops
from funcgrad.ops import sort as sorts
from funcgrad.ops.base import full, position_dtype, sum_p
from funcgrad.ops.cumulative import widened
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_or, ge, le, lt, ne
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.indexing.plan import known
from funcgrad.transforms.control.while_loop import fori_loop

__all__ = [
    "argpartition", "argsort", "digitize", "lexsort", "partition", "searchsorted", "sort",
    "sort_complex",
]  # fmt: skip

# From so many values on a search in a loop takes longer to read and write its bounds in each turn
# than a longer program takes to compile.
_MANY = 1 << 14

# ---- sorting


def _operand(name: str, a: Any, axis: int | None, order: None) -> tuple[Any, int]:
    if order is not None:
        raise ArgumentError(f"{name}: arrays have no fields, so order must be None, got {order!r}")
    a = as_array(name, a, "a")
    if axis is None:
        return ravel(a), 0
    return a, canonical_axis(name, axis, a.ndim)


def sort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """The elements in ascending (or descending) order along an axis; flattened where it is None.

    Complex numbers go by real, then imaginary part; NaN is greatest. `kind` has no effect.

    >>> fnp.sort(fnp.array([3.0, fnp.nan, 1.0]))
    Array([ 1.,  3., nan], dtype=float32)
    """
    a, axis = _operand("sort", a, axis, order)
    out = sorts.sort(a, axis, stable)
    return flip(out, axis) if descending else out


def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
) -> Any:
    """The positions that sort an array along an axis; equal elements keep their order.

    `kind` has no effect. `dtype` is that of the positions, by default the default integer's.

    >>> fnp.argsort(fnp.array([3, 1, 2, 1]))
    Array([1, 3, 2, 0], dtype=int32)
    """
    a, axis = _operand("argsort", a, axis, order)
    places = dtype_or(dtype, index_dtype(a.shape[axis]))
    return convert(sorts.argsort(a, axis, stable, descending), places)


def lexsort(keys: Sequence[Any], axis: int = -1) -> Any:
    """The positions that sort by several keys, the last of which is the first to decide.

    >>> first, last = fnp.array([2, 1, 0]), fnp.array([0, 0, 1])
    >>> fnp.lexsort((first, last))
    Array([1, 0, 2], dtype=int32)
    """
    arrays = arrays_of("lexsort", keys, "keys")
    shape = arrays[0].shape
    if any(a.shape != shape for a in arrays):
        listed = ", ".join(str(a.aval) for a in arrays)
        raise ShapeError(f"lexsort: keys must have one shape, got {listed}")
    if not shape:
        return Array(np.zeros((), default_int()))
    axis = canonical_axis("lexsort", axis, len(shape))
    places = ops.broadcasted_iota(index_dtype(shape[axis]), shape, axis)
    return sorts.sort([*reversed(arrays), places], axis, num_keys=len(arrays))[-1]


def sort_complex(a: Any) -> Any:
    """The elements as complex numbers, sorted along the last axis by real, then imaginary part.

    >>> fnp.sort_complex(fnp.array([2 + 1j, 1, 2 - 1j]))
    Array([1.+0.j, 2.-1.j, 2.+1.j], dtype=complex64)
    """
    a = sort(as_array("sort_complex", a, "a"))
    return convert(a, a.dtype if dtypes.is_complex(a.dtype) else dtypes.to_complex(a.dtype))


def _partition(name: str, a: Any, kth: Any, axis: Any) -> tuple[Any, Any]:
    a, axis = _operand(name, a, axis, None)
    for k in integers(name, "kth", kth if isinstance(kth, list | tuple) else (kth,)):
        if not -a.shape[axis] <= k < a.shape[axis]:
            raise ShapeError(f"{name}: kth {k} is out of range for axis {axis} of a {a.aval}")
    return a, axis


def partition(a: Any, kth: int | Sequence[int], axis: int | None = -1) -> Any:
    """Elements reordered along an axis: smaller ones than the kth before it, greater ones after.

    All that lies before or after it is sorted as well, which NumPy leaves open.

    >>> fnp.partition(fnp.array([7, 1, 5, 3]), 1)
    Array([1, 3, 5, 7], dtype=int32)
    """
    return sort(*_partition("partition", a, kth, axis))


def argpartition(a: Any, kth: int | Sequence[int], axis: int | None = -1) -> Any:
    """The positions that `partition` an array along an axis.

    >>> fnp.argpartition(fnp.array([7, 1, 5, 3]), 1)
    Array([1, 3, 2, 0], dtype=int32)
    """
    return argsort(*_partition("argpartition", a, kth, axis))


# ---- search

_METHODS = ("scan", "scan_unrolled", "sort", "compare_all")


def searchsorted(
    a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan"
) -> Any:
    """The positions at which `v` would be inserted in the sorted vector `a` to keep it sorted.

    With `side` "left" before, with "right" after elements equal to v. `sorter` sorts an unsorted
    `a`. `method` is how it is done in compiled programs: "scan" halves an interval in a loop, which
    is written out for many v and by "scan_unrolled"; "compare_all" compares v with every element,
    "sort" sorts both together.

    >>> fnp.searchsorted(fnp.array([1, 2, 2, 3]), fnp.array([2, 9]))
    Array([1, 4], dtype=int32)
    """
    a, v = promote("searchsorted", a, v)
    if a.ndim != 1:
        raise ShapeError(f"searchsorted: a must be a vector, got {a.aval}")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if method not in _METHODS:
        raise ValueError(f"searchsorted: method must be one of {_METHODS}, got {method!r}")
    need_real("searchsorted", a)
    if sorter is not None:
        order = as_array("searchsorted", sorter, "sorter")
        if order.shape != a.shape:
            raise ShapeError(f"searchsorted: sorter {order.aval} must have the shape of a {a.aval}")
        a = index(a, order)
    if is_known(a) and is_known(v):
        found = np.searchsorted(widened(known(a)), widened(known(v)), side)  # type: ignore[call-overload]
        return Array(np.asarray(found, index_dtype(a.shape[0] + 1)))
    if not a.shape[0]:
        return full(v.shape, 0, default_int())
    before = _before_left if side == "left" else _before_right
    if method == "compare_all":
        found = _compare_all(a, v, before)
    elif method == "sort":
        found = _by_sorting(a, v, side)
    else:
        unrolled = method == "scan_unrolled" or math.prod(v.shape) >= _MANY
        found = _halving(a, v, before, unrolled)
    return convert(found, index_dtype(a.shape[0] + 1))


def _is_nan(x: Any) -> Any:
    return ne(x, x)


def _before_left(a: Any, v: Any) -> Any:
    """Whether elements a of the vector lie before the place of v, left of its equals."""
    if not dtypes.is_inexact(a.dtype):
        return lt(a, v)
    return bitwise_or(lt(a, v), bitwise_and(_is_nan(v), ~_is_nan(a)))


def _before_right(a: Any, v: Any) -> Any:
    """Whether elements a of the vector lie before the place of v, right of its equals."""
    return bitwise_or(le(a, v), _is_nan(v)) if dtypes.is_inexact(a.dtype) else le(a, v)


def _compare_all(a: Any, v: Any, before: Any) -> Any:
    shape = (*v.shape, a.shape[0])
    wide = broadcast_to(ops.expand_dims(v, (v.ndim,)), shape)
    smaller = convert_element_type(before(broadcast_to(a, shape), wide), position_dtype(shape[-1]))
    return sum_p.bind(smaller, axes=(v.ndim,))


def _halving(a: Any, v: Any, before: Any, unrolled: bool) -> Any:
    """Binary search: the place lies within some elements from `low` on, of which half are left."""
    halves = _halves(a.shape[0])

    def step(half: Any, low: Any) -> Any:
        middle = low + (half - 1)
        there = sorts.take_along_axis(a, middle.reshape(-1), 0).reshape(v.shape)
        return select(before(there, v), low + half, low)

    kind = position_dtype(a.shape[0])
    low = full(v.shape, 0, kind)
    if unrolled:
        for half in halves:
            low = step(kind.type(half), low)
        return low
    known_halves = as_array("searchsorted", np.array(halves, kind), "halves")
    return fori_loop(0, len(halves), lambda i, low: step(index(known_halves, i), low), low)


def _halves(n: int) -> list[int]:
    """How many elements each step of a search among n may pass; the last one passes the last.

    Not exactly half of many: elements that are powers of two apart would share places in caches.
    """
    halves, length = [], n
    while length > 1:
        halves.append(length * 31 // 64 if length > 64 else length // 2)
        length -= halves[-1]
    return [*halves, 1]


def _by_sorting(a: Any, v: Any, side: str) -> Any:
    """The rank of v among v and a, less its rank among v alone."""
    flat, n = ravel(v), a.shape[0]
    # A stable sort puts what comes first in front of its equals.
    parts = [flat, a] if side == "left" else [a, flat]
    start = 0 if side == "left" else n

    def ranks(x: Any) -> Any:
        return sorts.argsort(sorts.argsort(x))

    mine = index(ranks(ops.concatenate(parts, 0)), slice(start, start + flat.shape[0]))
    return ops.reshape(mine - ranks(flat), v.shape)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str = "scan") -> Any:
    """The bin that each element lies in: i where bins[i - 1] <= x < bins[i].

    With `right`, where bins[i - 1] < x <= bins[i]. `bins` ascend or descend (then the
    inequalities are turned around); for `method` see `searchsorted`.

    >>> fnp.digitize(fnp.array([0.5, 1.0, 9.0]), fnp.array([0.0, 1.0, 2.0]))
    Array([1, 2, 3], dtype=int32)
    """
    x, bins = as_array("digitize", x, "x"), as_array("digitize", bins, "bins")
    if bins.ndim != 1:
        raise ShapeError(f"digitize: bins must be a vector, got {bins.aval}")
    need_real("digitize", x)
    need_real("digitize", bins)
    n = bins.shape[0]
    if not n:
        return full(x.shape, 0, default_int())
    side = "left" if right else "right"

    def descending() -> Any:
        return n - searchsorted(flip(bins), x, side, method=method)

    up = ge(index(bins, n - 1), index(bins, 0))
    if is_known(up):
        return searchsorted(bins, x, side, method=method) if known(up) else descending()
    return select(up, searchsorted(bins, x, side, method=method), descending())
