"""Joining, cutting and repeating arrays: stacks, splits, tiles, rolls."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.trace import is_known
from funcgrad.errors import ShapeError
from funcgrad.numpy._keys import for_keys
from funcgrad.numpy._known import along, concrete, unknown_error
from funcgrad.numpy._util import (
    as_array,
    as_positions,
    axes_of,
    broadcast_to,
    canonical_axis,
    convert,
    dtype_or,
    integer,
    integers,
    is_scalar,
    promote,
)
from funcgrad.numpy.manipulation.shape import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    expand_dims,
    ravel,
    reshape,
)
from funcgrad.ops import cumulative
from funcgrad.ops import shape as ops
from funcgrad.ops.arguments import sizes_of
from funcgrad.ops.base import full, position_dtype
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.ops.indexing.windows_at import index_dtype
from funcgrad.ops.shape import slice_p
from funcgrad.ops.sharding import cut_as_said

__all__ = [
    "append", "array_split", "block", "column_stack", "concat", "concatenate", "dsplit",
    "dstack", "hsplit", "hstack", "repeat", "resize", "roll", "split", "stack", "tile",
    "trim_zeros", "unstack", "vsplit", "vstack",
]  # fmt: skip


def arrays_of(name: str, arrays: Any, argument: str = "arrays") -> list[Any]:
    """A sequence of arrays; an array stands for its rows. TypeError for everything else."""
    listed = isinstance(arrays, list | tuple)
    if not listed and not hasattr(arrays, "shape"):
        raise TypeError(f"{name}: {argument} must be a list or tuple of arrays, got {arrays!r}")
    if not arrays if listed else arrays.shape[:1] == (0,):
        raise ValueError(f"{name}: {argument} must hold at least one array, got none")
    if listed:
        parts = [as_array(name, a, f"{argument}[{i}]") for i, a in enumerate(arrays)]
        # Numbers beside arrays keep their full precision in the common dtype.
        return promote(name, *arrays) if any(map(_is_number, arrays)) else parts
    return list(unstack(arrays))


def _is_number(x: Any) -> bool:
    return is_scalar(x) or isinstance(x, np.generic)


# ---- joining


@for_keys
def concatenate(arrays: Sequence[Any], axis: int | None = 0, dtype: Any = None) -> Any:
    """Join arrays along an existing axis (flattened ones where `axis` is None).

    The result has `dtype`, or the arrays' common one. ShapeError where other sizes differ.

    >>> fnp.concatenate([fnp.arange(2), fnp.array([0.5])])
    Array([0. , 1. , 0.5], dtype=float32)
    """
    return _join("concatenate", arrays_of("concatenate", arrays), axis, dtype)


def _join(name: str, arrays: list[Any], axis: int | None, dtype: Any = None) -> Any:
    if axis is None:
        arrays, axis = [ravel(a) for a in arrays], 0
    parts = promote(name, *arrays)
    if dtype is not None:
        parts = [convert(p, dtype_or(dtype, p.dtype)) for p in parts]
    if not parts[0].ndim:
        raise ShapeError(f"{name}: arrays without axes can't be joined; use stack")
    axis = canonical_axis(name, axis, parts[0].ndim)
    rests = [p.shape[:axis] + p.shape[axis + 1 :] for p in parts]
    if any(r != rests[0] for r in rests):
        listed = ", ".join(str(p.aval) for p in parts)
        raise ShapeError(f"{name}: arrays must agree in all axes but {axis}, got {listed}")
    return ops.concatenate(parts, axis)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    """Join arrays along an existing axis: the array API's name of `concatenate`.

    >>> fnp.concat([fnp.arange(2), fnp.arange(3)])
    Array([0, 1, 0, 1, 2], dtype=int32)
    """
    return concatenate(arrays, axis)


@for_keys
def stack(arrays: Sequence[Any], axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Join arrays of one shape along a new axis. ShapeError where shapes differ.

    >>> fnp.stack([fnp.arange(3), fnp.ones(3)], axis=1)
    Array([[0., 1.],
           [1., 1.],
           [2., 1.]], dtype=float32)
    """
    if out is not None:
        raise NotImplementedError("stack: arrays are immutable, so there is no out=")
    parts = arrays_of("stack", arrays)
    if any(p.shape != parts[0].shape for p in parts):
        listed = ", ".join(str(p.aval) for p in parts)
        raise ShapeError(f"stack: arrays must have one shape, got {listed}")
    axis = canonical_axis("stack", axis, parts[0].ndim + 1)
    return _join("stack", [expand_dims(p, axis) for p in parts], axis, dtype)


def vstack(tup: Sequence[Any], dtype: Any = None) -> Any:
    """Join arrays along the first axis; vectors become rows.

    >>> fnp.vstack([fnp.arange(3), fnp.arange(3)]).shape
    (2, 3)
    """
    return _join("vstack", [atleast_2d(a) for a in arrays_of("vstack", tup, "tup")], 0, dtype)


def hstack(tup: Sequence[Any], dtype: Any = None) -> Any:
    """Join arrays along the second axis, vectors along their only one.

    >>> fnp.hstack([fnp.zeros((2, 1)), fnp.ones((2, 2))]).shape
    (2, 3)
    """
    parts = [atleast_1d(a) for a in arrays_of("hstack", tup, "tup")]
    return _join("hstack", parts, 0 if parts[0].ndim == 1 else 1, dtype)


def dstack(tup: Sequence[Any], dtype: Any = None) -> Any:
    """Join arrays along the third axis: (n,) counts as (1, n, 1), and (m, n) as (m, n, 1).

    >>> fnp.dstack([fnp.arange(3), fnp.arange(3)]).shape
    (1, 3, 2)
    """
    return _join("dstack", [atleast_3d(a) for a in arrays_of("dstack", tup, "tup")], 2, dtype)


def column_stack(tup: Sequence[Any]) -> Any:
    """Join arrays along the second axis; vectors become columns.

    >>> fnp.column_stack([fnp.arange(3), fnp.arange(3)]).shape
    (3, 2)
    """
    parts = arrays_of("column_stack", tup, "tup")
    return _join("column_stack", [reshape(a, (-1, 1)) if a.ndim < 2 else a for a in parts], 1)


def block(arrays: Any) -> Any:
    """Assemble an array from nested lists of blocks: innermost lists join along the last axis.

    >>> one = fnp.ones((2, 2))
    >>> fnp.block([[one, one], [0.0, fnp.ones(3)]]).shape
    (3, 4)
    """

    def depth(tree: Any) -> int:
        if not isinstance(tree, list):
            if isinstance(tree, tuple):
                raise TypeError("block: only lists can be nested, got a tuple")
            return 0
        if not tree:
            raise ValueError("block: a list of blocks is empty")
        depths = {depth(t) for t in tree}
        if len(depths) > 1:
            raise ValueError("block: lists must be nested to one depth everywhere")
        return 1 + depths.pop()

    def leaves(tree: Any) -> list[Any]:
        if not isinstance(tree, list):
            return [as_array("block", tree, "a block")]
        return [a for t in tree for a in leaves(t)]

    levels = depth(arrays)
    ndim = max(levels, *(a.ndim for a in leaves(arrays)))

    def join(tree: Any, level: int) -> Any:
        if not isinstance(tree, list):
            a = as_array("block", tree, "a block")
            return ops.expand_dims(a, tuple(range(ndim - a.ndim)))
        return _join("block", [join(t, level - 1) for t in tree], ndim - level)

    return join(arrays, levels)


@for_keys
def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Join `values` to the end of `arr` along an axis; both flattened where `axis` is None.

    >>> fnp.append(fnp.arange(2), 7)
    Array([0, 1, 7], dtype=int32)
    """
    pair = [as_array("append", arr, "arr"), as_array("append", values, "values")]
    return _join("append", promote("append", arr, values) if _is_number(values) else pair, axis)


# ---- cutting


def unstack(x: Any, /, *, axis: int = 0) -> tuple:
    """The slices of an array along an axis, as a tuple: the inverse of `stack`.

    >>> fnp.unstack(fnp.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    x = as_array("unstack", x, "x")
    if not x.ndim:
        raise ShapeError("unstack: x has no axes")
    axis = canonical_axis("unstack", axis, x.ndim)
    return tuple(index(x, (slice(None),) * axis + (i,)) for i in range(x.shape[axis]))


def _cut(name: str, ary: Any, sections: Any, axis: int, equal: bool) -> list:
    ary = as_array(name, ary, "ary")
    axis = canonical_axis(name, axis, ary.ndim)
    size = ary.shape[axis]
    try:
        count = operator.index(sections)
    except TypeError:
        points = [size + p if p < 0 else p for p in integers(name, "indices", sections)]
        bounds = [0, *(min(max(p, 0), size) for p in points), size]
    else:
        if integer("indices_or_sections", count) < 1:
            raise ValueError(f"{name}: need at least one section, got {count}")
        if equal and size % count:
            raise ValueError(
                f"{name}: axis {axis} of ary {ary.aval} does not divide into {count} equal "
                "sections; array_split cuts unequal ones"
            )
        each, more = divmod(size, count)
        bounds = [i * each + min(i, more) for i in range(count + 1)]
    pairs = itertools.pairwise(bounds)
    return [_section(ary, axis, start, max(start, stop)) for start, stop in pairs]


def _section(ary: Any, axis: int, start: int, stop: int) -> Any:
    """ary[start:stop] along an axis; a part of it without the work of reading an index."""
    shape = ary.shape
    if stop - start == shape[axis]:
        return index(ary, ...)
    starts = (*(0 for _ in shape[:axis]), start, *(0 for _ in shape[axis + 1 :]))
    limits = (*shape[:axis], stop, *shape[axis + 1 :])
    return slice_p.bind(ary, start_indices=starts, limit_indices=limits, strides=None)


@for_keys
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list:
    """Cut an array along an axis into equal sections, or before each of a list of positions.

    Raises ValueError where a number of sections does not divide the axis.

    >>> fnp.split(fnp.arange(4), [1])
    [Array([0], dtype=int32), Array([1, 2, 3], dtype=int32)]
    """
    return _cut("split", ary, indices_or_sections, axis, equal=True)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list:
    """Cut an array along an axis as `split`, but the first sections may be longer by one.

    >>> fnp.array_split(fnp.arange(3), 2)
    [Array([0, 1], dtype=int32), Array([2], dtype=int32)]
    """
    return _cut("array_split", ary, indices_or_sections, axis, equal=False)


def hsplit(ary: Any, indices_or_sections: Any) -> list:
    """Cut an array along its second axis, a vector along its only one; see `split`.

    >>> [part.shape for part in fnp.hsplit(fnp.zeros((2, 4)), 2)]
    [(2, 2), (2, 2)]
    """
    axis = 0 if as_array("hsplit", ary, "ary").ndim == 1 else 1
    return _cut("hsplit", ary, indices_or_sections, axis, equal=True)


def vsplit(ary: Any, indices_or_sections: Any) -> list:
    """Cut an array along its first axis; see `split`.

    >>> [part.shape for part in fnp.vsplit(fnp.zeros((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return _cut("vsplit", ary, indices_or_sections, 0, equal=True)


def dsplit(ary: Any, indices_or_sections: Any) -> list:
    """Cut an array along its third axis; see `split`.

    >>> [part.shape for part in fnp.dsplit(fnp.zeros((1, 1, 4)), 2)]
    [(1, 1, 2), (1, 1, 2)]
    """
    return _cut("dsplit", ary, indices_or_sections, 2, equal=True)


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """An array without the zeros at the front ("f" in `trim`) and back ("b") of axes (None: all).

    The values of `filt` must be known: the shape of the result depends on them.

    >>> fnp.trim_zeros(fnp.array([0, 1, 0, 2, 0]))
    Array([1, 0, 2], dtype=int32)
    """
    filt = as_array("trim_zeros", filt, "filt")
    axes, ends = axes_of("trim_zeros", axis, filt.ndim), str(trim).lower()
    if not set(ends) <= set("fb"):
        raise ValueError(f'trim_zeros: trim must be made of "f" and "b", got {trim!r}')
    nonzero = np.nonzero(
        np.atleast_1d(concrete("trim_zeros", "filt", filt, "Trim outside of jit."))
    )
    kept = [slice(None)] * filt.ndim
    for i in axes:
        if nonzero[i].size:
            first, last = int(nonzero[i].min()), int(nonzero[i].max())
            kept[i] = slice(first if "f" in ends else 0, last + 1 if "b" in ends else None)
        else:
            kept[i] = slice(0)
    return filt[tuple(kept)]


# ---- repetition


@for_keys
def tile(A: Any, reps: Any) -> Any:
    """Repeat a whole array: reps[i] times along axis i.

    Where there are fewer numbers than axes they are for the last axes; where there are more, the
    array gets new axes in front.

    >>> fnp.tile(fnp.arange(2), (2, 2))
    Array([[0, 1, 0, 1],
           [0, 1, 0, 1]], dtype=int32)
    """
    A = as_array("tile", A, "A")
    counts = sizes_of("tile", "reps", reps)
    ndim = max(A.ndim, len(counts))
    shape = (1,) * (ndim - A.ndim) + A.shape
    counts = (1,) * (ndim - len(counts)) + counts
    if any(c < 0 for c in counts):
        raise ValueError(f"tile: reps must not be negative, got {reps}")
    paired = [m for c, n in zip(counts, shape, strict=True) for m in (c, n)]
    wide = broadcast_to(reshape(A, [m for n in shape for m in (1, n)]), tuple(paired))
    return reshape(wide, [c * n for c, n in zip(counts, shape, strict=True)])


@for_keys
def repeat(
    a: Any,
    repeats: Any,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    out_sharding: Any = None,
) -> Any:
    """Repeat each element along an axis (of the flattened array where it is None).

    `repeats` is one number, or one for each element. Where it is traced, `total_repeat_length`
    must say how long the axis becomes: the result is cut or its last element repeated further.
    `out_sharding` is how it is to be cut over a mesh.

    >>> fnp.repeat(fnp.array([3, 5]), fnp.array([1, 2]))
    Array([3, 5, 5], dtype=int32)
    """
    if out_sharding is not None:
        whole = repeat(a, repeats, axis, total_repeat_length=total_repeat_length)
        return cut_as_said(whole, out_sharding)
    a = as_array("repeat", a, "a")
    if axis is None or not a.ndim:
        a, axis = ravel(a), 0
    axis = canonical_axis("repeat", axis, a.ndim)
    size = a.shape[axis]
    counts = _counts(repeats, size)
    if is_known(counts) and total_repeat_length is None:
        times = np.asarray(counts)
        if (times < 0).any():
            raise ValueError(f"repeat: repeats must not be negative, got {times}")
        if times.ndim == 0:
            wide = ops.expand_dims(a, (axis + 1,))
            wide = broadcast_to(wide, (*a.shape[: axis + 1], int(times), *a.shape[axis + 1 :]))
            return ops.collapse(wide, axis, axis + 2)
        return along(a, np.repeat(np.arange(size), times), axis)
    if total_repeat_length is None:
        raise unknown_error("repeat", "repeats", counts, "Give total_repeat_length=n.")
    total = integer("total_repeat_length", total_repeat_length)
    if not size:
        return full((*a.shape[:axis], total, *a.shape[axis + 1 :]), 0, a.dtype)
    # A one at the place where each element's repetitions begin; their sum counts the elements.
    counts = broadcast_to(as_array("repeat", counts), (size,))
    ends = cumulative.cumsum(convert_element_type(counts, np.int64))
    begins = ops.concatenate([full((1,), 0, np.int64), ops.slice(ends, (0,), (size - 1,))], 0)
    marks = index_update(full((total,), 0, position_dtype(size)), begins, 1, "add", mode="drop")
    return along(a, cumulative.cumsum(marks) - 1, axis)


def _counts(repeats: Any, size: int) -> Any:
    """The number of repetitions: a scalar, or an array of `size` of them."""
    if isinstance(repeats, list | tuple):
        repeats = np.asarray(integers("repeat", "repeats", repeats), np.int64)
    counts = as_positions("repeat", repeats, "repeats")
    if counts.shape == (1,):
        # Known numbers stay known: an operation would make them part of a traced program.
        counts = Array(np.asarray(counts).reshape(())) if is_known(counts) else reshape(counts, ())
    if counts.ndim > 1 or (counts.ndim and counts.shape[0] != size):
        raise ShapeError(
            f"repeat: repeats must be a number, or one for each of {size} elements, got "
            f"{counts.aval}"
        )
    if counts.dtype.kind not in "iu":
        raise TypeError(f"repeat: repeats must be integers, got {counts.aval}")
    return counts


def resize(a: Any, new_shape: Any) -> Any:
    """The elements of `a`, repeated as often as needed, under a shape of any size.

    >>> fnp.resize(fnp.arange(3), (2, 2))
    Array([[0, 1],
           [2, 0]], dtype=int32)
    """
    a = ravel(as_array("resize", a, "a"))
    sizes = sizes_of("resize", "new_shape", new_shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"resize: new_shape must not be negative, got {new_shape}")
    total = math.prod(sizes)
    if not a.size:
        return full(sizes, 0, a.dtype)
    return reshape(tile(a, -(-total // a.size))[:total], sizes)


@for_keys
def roll(a: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Move elements along axes (of the flattened array where None), around the end.

    `shift` is a number or one for each axis, and may be traced.

    >>> fnp.roll(fnp.arange(5), 2)
    Array([3, 4, 0, 1, 2], dtype=int32)
    """
    a = as_array("roll", a, "a")
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), a.shape)
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    shifts = list(shift) if isinstance(shift, list | tuple) else shift
    if not isinstance(shifts, list):
        shifts = as_positions("roll", shifts, "shift")
        if not dtypes.is_integer(shifts.dtype):
            raise TypeError(f"roll: shift must be integers, got {shifts.aval}")
        shifts = list(unstack(shifts)) if shifts.ndim else [shifts]
    count = max(len(axes), len(shifts))
    if min(len(axes), len(shifts)) not in (1, count):
        raise ValueError(f"roll: {len(shifts)} shifts do not fit {len(axes)} axes")
    axes = list(axes) * (count // len(axes)) if axes else []
    for s, i in zip(shifts * (count // len(shifts)) if shifts else [], axes, strict=True):
        a = _roll_axis(a, s, canonical_axis("roll", i, a.ndim))
    return a


def _roll_axis(a: Any, shift: Any, axis: int) -> Any:
    size = a.shape[axis]
    if not size:
        return a
    if is_known(shift):
        start = -operator.index(shift) % size
        parts = [ops.slice(a, *_bounds(a.shape, axis, *b)) for b in ((start, size), (0, start))]
        return ops.concatenate(parts, axis) if start else a
    shift = convert_element_type(shift, index_dtype([shift.aval], [size])) % size
    return along(a, (ops.iota(shift.dtype, size) - shift) % size, axis)


def _bounds(shape: tuple[int, ...], axis: int, start: int, stop: int) -> tuple[list, list]:
    starts, stops = [0] * len(shape), list(shape)
    starts[axis], stops[axis] = start, stop
    return starts, stops
