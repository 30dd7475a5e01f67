"""Sets: distinct elements, membership, union, intersection and differences.

All work on sorted elements. Their number depends on values, so that traced arrays need `size=`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.trace import is_known
from funcgrad.numpy._known import along, unknown_error
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    broadcast_to,
    canonical_axis,
    convert,
    default_int,
    index_dtype,
    integer,
    promote,
)
from funcgrad.numpy.manipulation.indexing import nonzero
from funcgrad.numpy.manipulation.shape import moveaxis, ravel, reshape
from funcgrad.numpy.manipulation.sorting import searchsorted
from funcgrad.ops import shape as ops
from funcgrad.ops import sort as sorts
from funcgrad.ops.base import full
from funcgrad.ops.cumulative import cumsum
from funcgrad.ops.elementwise.arithmetic import min as smaller
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_not, bitwise_or, eq, ne
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.ops.reduce import reduce_or

__all__ = [
    "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all",
    "unique_counts", "unique_inverse", "unique_values",
]  # fmt: skip


def _need_size(name: str, size: Any, **arrays: Any) -> None:
    """Raise where the number of results depends on an array that is traced."""
    for argument, x in arrays.items():
        if size is None and not is_known(x):
            hint = f"Give the length of the result: fnp.{name}(..., size=n) cuts or fills it to n."
            raise unknown_error(name, argument, x, hint)


# ---- distinct elements


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements, sorted; or the distinct slices along an axis.

    On request a tuple is returned: with the position of the first occurrence of each, for each
    element of `ar` the position of its equal in the result, and how often each occurs. With
    `size`, which is needed where `ar` is traced, the results are cut to that length or filled up:
    the distinct ones with `fill_value` (by default the first), the counts with 0.

    >>> fnp.unique(fnp.array([3, 1, 3]), return_counts=True)
    (Array([1, 3], dtype=int32), Array([1, 2], dtype=int32))
    """
    ar = as_array("unique", ar, "ar")
    _need_size("unique", size, ar=ar)
    found = _unique(ar, axis, equal_nan, size, fill_value)
    wanted = (True, return_index, return_inverse, return_counts)
    out = tuple(x for x, w in zip(found, wanted, strict=True) if w)
    return out if len(out) > 1 else out[0]


def _unique(ar: Any, axis: Any, equal_nan: bool, size: Any, fill_value: Any) -> tuple:
    """(values, positions of the first of each, inverse, counts)."""
    if axis is None:
        rows = reshape(ar, (ar.size, 1))
        inverse_shape, axis = ar.shape, 0
        slices = ravel(ar)
    else:
        axis = canonical_axis("unique", axis, ar.ndim)
        slices = moveaxis(ar, axis, 0)
        n = slices.shape[0]
        rows = reshape(slices, (n, ar.size // max(n, 1)))
        inverse_shape = (n,)
    if not rows.shape[0]:
        return _unique_of_none(slices, axis, inverse_shape, size, fill_value)
    order, first = _sorted_rows(rows, equal_nan)
    n = rows.shape[0]
    kind = index_dtype(n + 1)
    # Where each distinct element begins, and behind the last one, where it ends.
    if size is None:
        marks = ops.concatenate([nonzero(first)[0], full((1,), n, kind)], 0)
    else:
        (marks,) = nonzero(first, size=integer("size", size) + 1, fill_value=n)
    starts, ends = marks[:-1], marks[1:]
    count = starts.shape[0]
    # Beyond the distinct ones, the places are those of the first.
    places = index(order, select(starts < n, starts, full((), 0, starts.dtype)))
    values = index(slices, places)
    if fill_value is not None and count:
        there = reshape(starts < n, (count,) + (1,) * (slices.ndim - 1))
        fill = as_dtype("unique", fill_value, values.dtype, "fill_value")
        values = select(broadcast_to(there, values.shape), values, broadcast_to(fill, values.shape))
    rank = cumsum(convert_element_type(first, kind)) - 1
    inverse = index_update(full((n,), 0, kind), order, rank, "set", unique_indices=True)
    return moveaxis(values, 0, axis), places, reshape(inverse, inverse_shape), ends - starts


def _sorted_rows(rows: Any, equal_nan: bool) -> tuple[Any, Any]:
    """The order that sorts rows, and whether each one, in that order, differs from the last."""
    n, width = rows.shape
    places = ops.iota(index_dtype(n), n)
    if not width:
        return places, places < 1
    columns = [index(rows, (slice(None), i)) for i in range(width)]
    *columns, order = sorts.sort([*columns, places], 0, num_keys=width)
    differs = None
    for c in columns:
        now, last = c[1:], c[:-1]
        other = ne(now, last)
        if equal_nan and dtypes.is_inexact(c.dtype):
            other = bitwise_and(other, ~bitwise_and(ne(now, now), ne(last, last)))
        differs = other if differs is None else bitwise_or(differs, other)
    return order, ops.concatenate([full((1,), True, bool), differs], 0)


def _unique_of_none(slices: Any, axis: int, inverse_shape: Any, size: Any, fill: Any) -> tuple:
    count = size or 0
    if count and fill is None:
        raise ValueError("unique: ar is empty, so size needs a fill_value")
    value = as_dtype("unique", 0 if fill is None else fill, slices.dtype, "fill_value")
    values = broadcast_to(value, (count, *slices.shape[1:]))
    none = Array(np.zeros(count, default_int()))
    return moveaxis(values, 0, axis), none, Array(np.zeros(inverse_shape, default_int())), none


class UniqueAll(NamedTuple):
    """The results of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """The results of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """The results of `unique_inverse`."""

    values: Any
    inverse_indices: Any


def _by_standard(name: str, x: Any, size: Any, fill_value: Any) -> tuple:
    """What the array API's functions return: each NaN is distinct."""
    x = as_array(name, x, "x")
    _need_size(name, size, x=x)
    return _unique(x, None, False, size, fill_value)


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAll:
    """Distinct elements with first positions, inverse and counts; each NaN is distinct.

    See `unique` for `size` and `fill_value`.

    >>> fnp.unique_all(fnp.array([3, 1, 3])).indices
    Array([1, 0], dtype=int32)
    """
    return UniqueAll(*_by_standard("unique_all", x, size, fill_value))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueCounts:
    """Distinct elements with their counts; each NaN is distinct. See `unique`.

    >>> fnp.unique_counts(fnp.array([3, 1, 3])).counts
    Array([1, 2], dtype=int32)
    """
    values, _, _, counts = _by_standard("unique_counts", x, size, fill_value)
    return UniqueCounts(values, counts)


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueInverse:
    """Distinct elements with the inverse: values[inverse_indices] is x. See `unique`.

    >>> fnp.unique_inverse(fnp.array([3, 1, 3])).inverse_indices
    Array([1, 0, 1], dtype=int32)
    """
    values, _, inverse, _ = _by_standard("unique_inverse", x, size, fill_value)
    return UniqueInverse(values, inverse)


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Distinct elements, sorted; each NaN is distinct. See `unique`.

    >>> fnp.unique_values(fnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    """
    return _by_standard("unique_values", x, size, fill_value)[0]


# ---- membership


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Any:
    """Elementwise, whether `element` is (with `invert`, is not) among `test_elements`.

    `method` "compare_all" compares all with all, "binary_search" (and "sort") search in the sorted
    `test_elements`; "auto" chooses by their number. NaN is not equal to NaN.

    >>> fnp.isin(fnp.arange(4), fnp.array([1, 3]))
    Array([False,  True, False,  True], dtype=bool)
    """
    x, among = promote("isin", element, test_elements)
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ValueError(
            f"isin: method must be 'auto', 'compare_all', 'binary_search' or 'sort', got {method!r}"
        )
    out = _isin(x, ravel(among), method)
    return bitwise_not(out) if invert else out


def _isin(x: Any, among: Any, method: str = "auto") -> Any:
    n = among.shape[0]
    if not n:
        return full(x.shape, False, bool)
    if method == "auto":
        method = "compare_all" if n <= 16 or dtypes.is_complex(x.dtype) else "binary_search"
    if method == "compare_all":
        shape = (*x.shape, n)
        same = eq(broadcast_to(ops.expand_dims(x, (x.ndim,)), shape), broadcast_to(among, shape))
        return reduce_or(same, (x.ndim,))
    ordered = sorts.sort(among)
    place = smaller(searchsorted(ordered, x), n - 1)
    return eq(along(ordered, place), x)


# ---- two sets


def _two(name: str, ar1: Any, ar2: Any, size: Any) -> list[Any]:
    a, b = promote(name, ar1, ar2)
    _need_size(name, size, ar1=a, ar2=b)
    return [ravel(a), ravel(b)]


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements of two arrays, sorted. See `unique` for `size` and `fill_value`.

    >>> fnp.union1d(fnp.array([3, 1]), fnp.array([2, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    both = ops.concatenate(_two("union1d", ar1, ar2, size), 0)
    return _unique(both, None, True, size, fill_value)[0]


def _kept(name: str, x: Any, keep: Any, size: Any, fill_value: Any) -> tuple[Any, Any]:
    """The elements of a vector where `keep` holds, and their positions (n beyond the last)."""
    n = x.shape[0]
    (places,) = nonzero(keep, size=size, fill_value=n)
    if not n:
        return full(places.shape, 0 if fill_value is None else fill_value, x.dtype), places
    values = along(x, smaller(places, n - 1))
    if fill_value is None:
        # As in unique, by default what is missing is the first that is there.
        fill = index(values, slice(0, 1))
    else:
        fill = as_dtype(name, fill_value, x.dtype, "fill_value")
    return select(places < n, values, broadcast_to(fill, values.shape)), places


def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements that two arrays have in common, sorted.

    With `return_indices` also the positions of their first occurrence in (flattened) `ar1` and
    `ar2`. With `size`, which traced arrays need, results are cut to that length or filled up:
    values as in `unique`, positions with ar1.size and ar2.size.

    >>> fnp.intersect1d(fnp.array([3, 1, 3, 2]), fnp.array([2, 3]))
    Array([2, 3], dtype=int32)
    """
    a, b = _two("intersect1d", ar1, ar2, size)
    if not a.shape[0]:
        order, keep = ops.iota(default_int(), 0), full((0,), False, bool)
    else:
        order, first = _sorted_rows(reshape(a, (-1, 1)), True)
        keep = bitwise_and(first, _isin(index(a, order), b))
    values, places = _kept("intersect1d", index(a, order), keep, size, fill_value)
    if not return_indices:
        return values
    in_a = index(order, places, mode="fill", fill_value=a.shape[0])
    order_b = convert(sorts.argsort(b), index_dtype(b.shape[0] + 1))
    at = searchsorted(index(b, order_b), values)
    at = select(places < a.shape[0], at, full((), b.shape[0], at.dtype))
    return values, in_a, index(order_b, at, mode="fill", fill_value=b.shape[0])


def setdiff1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = 0,
) -> Any:
    """The distinct elements of `ar1` that are not in `ar2`, sorted, in the dtype of `ar1`.

    With `assume_unique`, in the order of `ar1`. See `unique` for `size`; `fill_value` is 0.

    >>> fnp.setdiff1d(fnp.array([3, 1, 4, 1]), fnp.array([3]))
    Array([1, 4], dtype=int32)
    """
    a, b = (as_array("setdiff1d", x, n) for x, n in ((ar1, "ar1"), (ar2, "ar2")))
    _need_size("setdiff1d", size, ar1=a, ar2=b)
    a, b = ravel(a), ravel(b)
    keep = full(a.shape, True, bool)
    if not assume_unique and a.shape[0]:
        order, keep = _sorted_rows(reshape(a, (-1, 1)), True)
        a = index(a, order)
    among = _isin(*promote("setdiff1d", a, b))
    return _kept("setdiff1d", a, bitwise_and(keep, ~among), size, fill_value)[0]


def setxor1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements that are in one of two arrays, but not in both, sorted.

    See `unique` for `size` and `fill_value`.

    >>> fnp.setxor1d(fnp.array([3, 1]), fnp.array([2, 3]))
    Array([1, 2], dtype=int32)
    """
    a, b = _two("setxor1d", ar1, ar2, size)
    both = ops.concatenate([a, b], 0)
    if not both.shape[0]:
        return _kept("setxor1d", both, full((0,), False, bool), size, fill_value)[0]
    order, first = _sorted_rows(reshape(both, (-1, 1)), True)
    both = index(both, order)
    keep = bitwise_and(first, ~bitwise_and(_isin(both, a), _isin(both, b)))
    return _kept("setxor1d", both, keep, size, fill_value)[0]
