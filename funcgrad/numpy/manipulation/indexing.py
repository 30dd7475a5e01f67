"""Choosing elements: by condition, by position, along an axis, and writing them back.

Nothing is written in place: what is `np.put_along_axis` and the like returns the changed copy.
Derivatives are those of a choice: a branch that is not taken contributes none, not even NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.eager.single import single
from funcgrad.core.trace import is_known
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from funcgrad.numpy._keys import for_keys
from funcgrad.numpy._known import along, first_true, unknown_error
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    as_positions,
    broadcast_shapes,
    broadcast_to,
    canonical_axis,
    convert,
    default_int,
    index_dtype,
    integer,
    no_out,
    promote,
)
from funcgrad.numpy.elementwise.logic import truth
from funcgrad.numpy.manipulation.joining import resize
from funcgrad.numpy.manipulation.shape import ravel, reshape
from funcgrad.ops import cumulative
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full, position_dtype, sum_p
from funcgrad.ops.elementwise.arithmetic import max as larger
from funcgrad.ops.elementwise.convert import convert_element_type, select_n_p
from funcgrad.ops.elementwise.convert import select as choice_of
from funcgrad.ops.indexing.gather import gather_p
from funcgrad.ops.indexing.indexing import from_start, index, index_update
from funcgrad.ops.indexing.plan import all_inside, known
from funcgrad.ops.indexing.scatter import scatter_p
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from funcgrad.ops.indexing.windows_at import index_dtype as indices_dtype
from funcgrad.ops.indexing.windows_at import wrapped

__all__ = [
    "argwhere", "compress", "extract", "flatnonzero", "nonzero", "place", "put", "put_along_axis",
    "take", "take_along_axis", "where",
]  # fmt: skip

_DROP = GatherScatterMode.FILL_OR_DROP

# ---- where


@single
@for_keys
def where(
    condition: Any,
    x: Any = None,
    y: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Elementwise x where `condition` holds, else y; all three broadcast, x and y promote.

    The branch that is not taken has derivative zero; so that it is not 0 · inf, keep the branch
    itself finite: `where(x > 0, log(where(x > 0, x, 1)), 0)`. With `condition` alone it is
    `nonzero(condition, size=size, fill_value=fill_value)`.

    >>> fnp.where(fnp.array([True, False]), fnp.array([1.0, 2.0]), 0)
    Array([1., 0.], dtype=float32)
    """
    if x is None and y is None:
        return _nonzero("where", condition, size, fill_value)
    if x is None or y is None:
        raise ArgumentError("where: give both x and y, or neither")
    if size is not None or fill_value is not None:
        raise ValueError("where: size and fill_value are for a condition alone, without x and y")
    mask = truth(as_array("where", condition, "condition"))
    x, y = promote("where", x, y)
    return select_n_p.bind(*cases_of("where", mask, y, x))


def cases_of(name: str, mask: Any, x: Any, y: Any) -> list[Any]:
    """A mask and two cases of a common shape, as select_n takes them."""
    given = {a.shape for a in (mask, x, y)} - {()}
    if len(given) < 2:
        return [mask, x, y]
    shape = broadcast_shapes(name, mask.shape, x.shape, y.shape)
    return [broadcast_to(a, shape) if a.shape else a for a in (mask, x, y)]


# ---- positions of nonzero elements


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple:
    """The positions of nonzero elements, in row-major order: one vector for each axis.

    With `size`, which is needed where `a` is traced, the vectors are cut to that length or filled
    up with `fill_value` (0, or one for each axis).

    >>> fnp.nonzero(fnp.array([0, 5, 0, 7]), size=3)
    (Array([1, 3, 0], dtype=int32),)
    """
    return _nonzero("nonzero", a, size, fill_value)


def _nonzero(name: str, a: Any, size: int | None, fill_value: Any) -> tuple:
    a = as_array(name, a, "condition" if name == "where" else "a")
    if not a.ndim:
        raise ShapeError(f"{name}: a scalar has no positions; use fnp.atleast_1d(...)")
    kind = index_dtype(max(a.shape) + 1)
    if size is None:
        if not is_known(a):
            hint = f"Give the length of the result: fnp.{name}(..., size=n) cuts or fills it to n."
            raise unknown_error(name, "condition" if name == "where" else "a", a, hint)
        return tuple(Array(i.astype(kind)) for i in np.nonzero(np.asarray(known(a))))
    length = integer("size", size)
    flat = ravel(truth(a))
    place = first_true(flat, length)
    count = sum_p.bind(convert_element_type(flat, place.dtype), axes=(0,))
    found = ops.iota(place.dtype, length) < count
    fills = fill_value if isinstance(fill_value, tuple | list) else (fill_value or 0,) * a.ndim
    if len(fills) != a.ndim:
        raise ShapeError(f"{name}: fill_value needs one value for each of {a.ndim} axes")
    out, stride = [], a.size
    for n, fill in zip(a.shape, fills, strict=True):
        stride //= max(n, 1)
        at = convert(place // max(stride, 1) % max(n, 1), kind)
        out.append(choice_of(found, at, full((length,), fill, kind)))
    return tuple(out)


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of nonzero elements in the flattened array; see `nonzero` for `size`.

    >>> fnp.flatnonzero(fnp.array([[0, 5], [7, 0]]))
    Array([1, 2], dtype=int32)
    """
    return _nonzero("flatnonzero", ravel(as_array("flatnonzero", a, "a")), size, fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The positions of nonzero elements, a row for each; see `nonzero` for `size`.

    >>> fnp.argwhere(fnp.array([[0, 5], [7, 0]]))
    Array([[0, 1],
           [1, 0]], dtype=int32)
    """
    a = as_array("argwhere", a, "a")
    if not a.ndim:
        columns = _nonzero("argwhere", reshape(a, (1,)), size, fill_value)
        return full((columns[0].shape[0], 0), 0, default_int())
    columns = _nonzero("argwhere", a, size, fill_value)
    return ops.concatenate([ops.expand_dims(c, (1,)) for c in columns], 1)


def compress(
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
    out: None = None,
) -> Any:
    """The slices of an axis (elements of the flattened array where None) for which a vector holds.

    With `size`, which is needed where `condition` is traced, they are cut to that number or
    filled up with `fill_value`.

    >>> fnp.compress(fnp.array([False, True]), fnp.array([[1, 2], [3, 4]]), axis=0)
    Array([[3, 4]], dtype=int32)
    """
    no_out("compress", out)
    return _compress("compress", condition, a, axis, size, fill_value)


def _compress(name: str, condition: Any, a: Any, axis: Any, size: Any, fill_value: Any) -> Any:
    condition, a = as_array(name, condition, "condition"), as_array(name, a)
    if condition.ndim != 1:
        raise ShapeError(f"{name}: condition must be a vector, got {condition.aval}")
    if axis is None:
        a, axis = ravel(a), 0
    axis = canonical_axis(name, axis, a.ndim)
    if size is None and not is_known(condition):
        hint = f"Give the length of the result: fnp.{name}(..., size=n) cuts or fills it to n."
        raise unknown_error(name, "condition", condition, hint)
    n = a.shape[axis]
    if size is not None:
        condition = condition[:n]
    positions = _nonzero(name, condition, size, n)[0]
    lead = (slice(None),) * axis
    if size is None:
        return index(a, (*lead, positions))
    if not n:
        return full((*a.shape[:axis], integer("size", size), *a.shape[axis + 1 :]), 0, a.dtype)
    return index(a, (*lead, positions), mode="fill", fill_value=fill_value)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of an array where `condition`, of as many elements, holds; see `compress`.

    >>> x = fnp.arange(5)
    >>> fnp.extract(x > 2, x)
    Array([3, 4], dtype=int32)
    """
    condition = ravel(as_array("extract", condition, "condition"))
    arr = as_array("extract", arr, "arr")
    return _compress("extract", condition, ravel(arr), 0, size, fill_value)


# ---- by position


def positions_of(name: str, indices: Any) -> Any:
    """Indices as an array; TypeError in the name of a function where they aren't integers."""
    indices = as_positions(name, indices, "indices")
    if indices.dtype.kind not in "iu":
        raise DTypeError(f"{name}: indices must be integers, got {indices.aval}")
    return indices


def _mode(name: str, mode: str | None) -> str | None:
    if mode in ("wrap", "raise"):
        return None
    if mode not in (None, "fill", "drop", "clip", "promise_in_bounds"):
        raise ValueError(f"{name}: mode must be 'fill', 'clip' or 'wrap', got {mode!r}")
    return mode


@for_keys
def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Any:
    """The elements at positions of an axis (of the flattened array where `axis` is None).

    `mode` says what a position outside the axis gives: "fill" gives `fill_value` (by default NaN,
    or the least signed or greatest unsigned integer), "clip" the nearest element, "wrap" counts
    around the end. With None, known positions outside raise OutOfBoundsError, and traced ones
    fill. Negative positions count from the end, except with "clip".

    >>> fnp.take(fnp.array([10, 20, 30]), fnp.array([2, -3]))
    Array([30, 10], dtype=int32)
    """
    no_out("take", out)
    a, indices = as_array("take", a, "a"), positions_of("take", indices)
    if axis is None:
        a, axis = ravel(a), 0
    axis = canonical_axis("take", axis, a.ndim)
    if mode == "wrap":
        indices = indices % max(a.shape[axis], 1)
    elif mode == "clip":
        indices = larger(indices, 0)
    return index(
        a,
        (slice(None),) * axis + (indices,),
        mode=_mode("take", mode),
        fill_value=fill_value,
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
    )


def take_along_axis(
    arr: Any,
    indices: Any,
    axis: int | None = -1,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool = True,
) -> Any:
    """Elements by position along an axis: out[i, k] = arr[i, indices[i, k]] for the last of two.

    The other axes broadcast. For `mode` and `fill_value` see `take`; with `axis` None both arrays
    are flattened. Without `wrap_negative_indices` negative positions are outside the axis.

    >>> x = fnp.array([[3, 1, 2], [4, 6, 5]])
    >>> fnp.take_along_axis(x, fnp.argsort(x, axis=1), axis=1)
    Array([[1, 2, 3],
           [4, 5, 6]], dtype=int32)
    """
    name = "take_along_axis"
    if not wrap_negative_indices:
        indices = from_start(positions_of(name, indices), mode)
    arr, indices, axis = _along(name, as_array(name, arr, "arr"), indices, axis, mode)
    if not arr.size or not indices.size:
        if indices.size and not arr.shape[axis]:
            raise OutOfBoundsError(f"{name}: axis {axis} of arr {arr.aval} has no elements")
        return full(indices.shape, 0, arr.dtype)
    parsed = GatherScatterMode.from_any(_mode(name, mode) if isinstance(mode, str) else mode)
    others = tuple(i for i in range(arr.ndim) if i != axis)
    return gather_p.bind(
        arr,
        ops.expand_dims(indices, (arr.ndim,)),
        dimension_numbers=GatherDimensionNumbers((), (axis,), (axis,), others, others),
        slice_sizes=(1,) * arr.ndim,
        mode=parsed,
        fill_value=fill_value if parsed is _DROP else None,
        indices_are_sorted=False,
        unique_indices=False,
    )


def _along(name: str, arr: Any, indices: Any, axis: Any, mode: Any) -> tuple[Any, Any, int]:
    """Array and indices with one shape but for `axis`, the indices counted from the start."""
    indices = positions_of(name, indices)
    if axis is None:
        arr, indices, axis = ravel(arr), ravel(indices), 0
    axis = canonical_axis(name, axis, arr.ndim)
    if indices.ndim != arr.ndim:
        raise ShapeError(
            f"{name}: indices {indices.aval} must have as many axes as the array {arr.aval}"
        )
    size = arr.shape[axis]
    value = known(indices)
    inside = value is not None and all_inside(value, size)
    if mode in (None, "raise") and value is not None and not inside:
        bad = value[(value < -size) | (value >= size)]
        if bad.size:
            raise OutOfBoundsError(
                f"{name}: index {bad.flat[0]} is out of bounds for axis {axis} with size {size}"
            )
    dtype = indices_dtype([indices.aval], [size])
    if mode == "wrap":
        indices = indices % max(size, 1)
    elif value is not None:
        value = value.astype(dtype)
        if not inside:
            value = np.where(value < 0, value + size, value).astype(dtype)
        indices = Array(value)
    else:
        indices = wrapped(indices, size, dtype)
    rests = [(*a.shape[:axis], 1, *a.shape[axis + 1 :]) for a in (arr, indices)]
    rest = broadcast_shapes(name, *rests)
    arr, indices = (
        broadcast_to(a, (*rest[:axis], a.shape[axis], *rest[axis + 1 :])) for a in (arr, indices)
    )
    return arr, indices, axis


def _no_inplace(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(
            f"{name}: arrays are immutable, so nothing is done in place; the result is the changed "
            "copy. Leave inplace=False"
        )


def put_along_axis(
    arr: Any,
    indices: Any,
    values: Any,
    axis: int | None,
    inplace: bool = False,
    *,
    mode: str | None = None,
) -> Any:
    """A copy of `arr` with `values` at positions along an axis: the inverse of `take_along_axis`.

    `values` broadcast to `indices` and take `arr`'s dtype. Known positions outside the axis raise
    OutOfBoundsError where `mode` is None; traced ones are left out, as with "drop".

    >>> fnp.put_along_axis(fnp.zeros((2, 2)), fnp.array([[1], [0]]), 5.0, axis=1)
    Array([[0., 5.],
           [5., 0.]], dtype=float32)
    """
    name = "put_along_axis"
    _no_inplace(name, inplace)
    arr = as_array(name, arr, "arr")
    shape = arr.shape
    arr, indices, axis = _along(name, arr, indices, axis, mode)
    values = as_dtype(name, values, arr.dtype, "values")
    if not indices.size:
        return reshape(arr, shape)
    others = tuple(i for i in range(arr.ndim) if i != axis)
    out = scatter_p.bind(
        arr,
        ops.expand_dims(indices, (arr.ndim,)),
        broadcast_to(values, indices.shape),
        dimension_numbers=ScatterDimensionNumbers((), (axis,), (axis,), others, others),
        indices_are_sorted=False,
        unique_indices=False,
        mode=GatherScatterMode.from_any(_mode(name, mode)),
    )
    return reshape(out, shape)


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = False) -> Any:
    """A copy of `a` with `v`, repeated as needed, at positions of the flattened array.

    `mode` is "clip", "wrap", "drop", or None: known positions outside raise OutOfBoundsError,
    traced ones are left out. Negative positions count from the end, except with "clip".

    >>> fnp.put(fnp.zeros(4), fnp.array([0, -1]), 7.0)
    Array([7., 0., 0., 7.], dtype=float32)
    """
    _no_inplace("put", inplace)
    a, ind = as_array("put", a, "a"), ravel(positions_of("put", ind))
    if not a.size or not ind.size:
        return a
    if mode == "wrap":
        ind = ind % a.size
    elif mode == "clip":
        ind = larger(ind, 0)
    values = resize(as_dtype("put", v, a.dtype, "v"), ind.shape)
    out = index_update(ravel(a), ind, values, "set", mode=_mode("put", mode))
    return reshape(out, a.shape)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Any:
    """A copy of `arr` in which the elements where `mask` holds are `vals`, one after another.

    `vals` is repeated as needed. `mask` has as many elements as `arr`, and may be traced.

    >>> fnp.place(fnp.arange(4), fnp.array([True, False, True, True]), fnp.array([7, 8]))
    Array([7, 1, 8, 7], dtype=int32)
    """
    _no_inplace("place", inplace)
    arr, mask = as_array("place", arr, "arr"), truth(as_array("place", mask, "mask"))
    vals = ravel(as_dtype("place", vals, arr.dtype, "vals"))
    if mask.size != arr.size:
        raise ShapeError(f"place: mask {mask.aval} and arr {arr.aval} differ in size")
    if not vals.size:
        if arr.size:
            raise ValueError("place: vals is empty")
        return arr
    flat = ravel(mask)
    rank = cumulative.cumsum(convert_element_type(flat, position_dtype(flat.size))) - 1
    new = along(vals, larger(rank, 0) % vals.size)
    return reshape(choice_of(flat, new, ravel(arr)), arr.shape)
