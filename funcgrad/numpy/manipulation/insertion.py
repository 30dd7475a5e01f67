"""Arrays with elements inserted or deleted, at positions that may be traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core.trace import is_known
from funcgrad.errors import DTypeError
from funcgrad.numpy._known import along, first_true, unknown_error
from funcgrad.numpy._util import as_array, as_dtype, as_positions, broadcast_to, canonical_axis
from funcgrad.numpy.manipulation.shape import moveaxis, ravel
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.compare import bitwise_not
from funcgrad.ops.indexing.indexing import index_update
from funcgrad.ops.indexing.windows_at import index_dtype, wrapped
from funcgrad.ops.sort import argsort

__all__ = ["delete", "insert"]


def delete(
    arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Any:
    """An array without the elements at positions `obj` of an axis (flattened where None).

    `obj` is an integer (which may be traced), a slice, or known integers or booleans. Traced ones
    need `assume_unique_indices`: the promise that all differ, so that their number is known.

    >>> fnp.delete(fnp.arange(5), fnp.array([0, -1]))
    Array([1, 2, 3], dtype=int32)
    """
    arr = as_array("delete", arr, "arr")
    if axis is None or not arr.ndim:
        arr, axis = ravel(arr), 0
    axis = canonical_axis("delete", axis, arr.ndim)
    size = arr.shape[axis]
    if isinstance(obj, slice):
        return along(arr, np.delete(np.arange(size), obj), axis)
    if isinstance(obj, list | tuple):
        obj = np.asarray(obj) if obj else np.zeros(0, np.int32)
    where = as_positions("delete", obj, "obj")
    if is_known(where):
        try:
            return along(arr, np.delete(np.arange(size), np.asarray(where)), axis)
        except IndexError as e:
            raise IndexError(f"delete: {e}, for arr {arr.aval}") from None
    if where.ndim and not assume_unique_indices:
        hint = "If all positions differ, say so: delete(..., assume_unique_indices=True)."
        raise unknown_error("delete", "obj", where, hint)
    if where.dtype.kind not in "iu":
        raise unknown_error("delete", "obj", where, "Give the positions as integers.")
    gone = index_update(full((size,), False, bool), ravel(where), True, "set")
    return along(arr, first_true(bitwise_not(gone), size - where.size), axis)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """An array with `values` inserted before positions `obj` of an axis (flattened where None).

    Positions are those in `arr`: an integer, a slice, or integers, which may be traced. `values`
    broadcast to the elements that are inserted and are converted to `arr`'s dtype.

    >>> fnp.insert(fnp.arange(3), 1, 9)
    Array([0, 9, 1, 2], dtype=int32)
    """
    arr = as_array("insert", arr, "arr")
    if isinstance(values, list | tuple):
        values = np.asarray(values)
    values = as_dtype("insert", values, arr.dtype, "values")
    if axis is None or not arr.ndim:
        arr, axis = ravel(arr), 0
    axis = canonical_axis("insert", axis, arr.ndim)
    size = arr.shape[axis]
    if isinstance(obj, slice):
        obj = np.arange(*obj.indices(size))
    elif isinstance(obj, list | tuple):
        obj = np.asarray(obj) if obj else np.zeros(0, np.int32)
    if is_known(obj) and np.asarray(obj).dtype == bool:
        obj = np.flatnonzero(np.asarray(obj))
    where = as_positions("insert", obj, "obj")
    if where.dtype.kind not in "iu":
        raise DTypeError(f"insert: obj must be integers, got {where.aval}")
    values = ops.expand_dims(values, tuple(range(max(arr.ndim - values.ndim, 0))))
    if not where.ndim:
        values = moveaxis(values, 0, axis)
    count = max(where.size, values.shape[axis]) if where.size == 1 else where.size
    shape = (*arr.shape[:axis], count, *arr.shape[axis + 1 :])
    joined = ops.concatenate([arr, broadcast_to(values, shape)], axis)
    return along(joined, _merged(where, size, count), axis)


def _merged(where: Any, size: int, count: int) -> Any:
    """For each element of the result of an insertion, its position in [array, values]."""
    if is_known(where):
        try:
            return np.insert(np.arange(size), np.asarray(where), size + np.arange(count))
        except IndexError as e:
            raise IndexError(f"insert: {e}") from None
    if where.dtype.kind not in "iu":
        raise unknown_error("insert", "obj", where, "Give the positions as integers.")
    where = wrapped(where, size, index_dtype([where.aval], [size + count]))
    where = broadcast_to(ravel(where), (count,))
    places = where + argsort(argsort(where))
    empty = full((size + count,), False, bool)
    mine = first_true(bitwise_not(index_update(empty, places, True, "set")), size)
    kind = mine.dtype
    merged = index_update(full((size + count,), 0, kind), mine, ops.iota(kind, size), "set")
    return index_update(merged, places, size + ops.iota(kind, count), "set")
