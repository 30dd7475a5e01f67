"""What `x[idx]` means: NumPy's indexing rules, worked out before anything is computed.

An index is split in two: static slices and integers, which cut and drop axes; and arrays of
indices, which replace the axes that they index by the axes of their common shape.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.record import Record
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import (
    IndexTypeError,
    NonConcreteBooleanIndexError,
    OutOfBoundsError,
    ShapeError,
    TracerIntegerConversionError,
)
from funcgrad.ops.shape import expand_dims
from funcgrad.ops.slicing import concatenate


class Plan(Record, eq=False):
    """How an index acts on an array of a shape.

    slices: for each axis (start, limit, stride > 0) of what is kept of it; `flipped` axes are then
        reversed, `dropped` ones (of size 1, from integers) removed
    arrays: (axis among those that remain, integer array) in the order of the index; known arrays
        are numpy's and count from the start
    common: the broadcast shape of the arrays
    inside: whether all arrays are known to lie inside their axes
    layout: the result's axes: an axis among those that remain, "array" for each axis of `common`,
        "new" for a new axis
    shape: the result's shape
    """

    slices: tuple[tuple[int, int, int], ...]
    flipped: tuple[int, ...]
    dropped: tuple[int, ...]
    arrays: tuple[tuple[int, Any], ...]
    common: tuple[int, ...]
    inside: bool
    layout: tuple[Any, ...]
    shape: tuple[int, ...]

    @property
    def new_axes(self) -> tuple[int, ...]:
        """The result's axes that the index makes (None, np.newaxis)."""
        return tuple(i for i, axis in enumerate(self.layout) if axis == "new")


def known(value: Any) -> Any:
    """The numpy array behind a value where it is known now, else None."""
    if isinstance(value, Tracer):
        value = value.concrete()
        return None if value is None else np.asarray(value)
    return np.asarray(value)


def _of_sequence(entry: list | tuple) -> Any:
    """The array of a list or tuple within an index; its items may be traced."""
    rows = [_of_sequence(x) if isinstance(x, list | tuple) else x for x in entry]
    dtype = next((aval_of(x).dtype for x in rows if isinstance(x, Tracer)), None)
    try:
        if dtype is None:
            return np.asarray(entry) if rows else np.zeros(0, np.int32)
        rows = [x if isinstance(x, Tracer) else np.asarray(x).astype(dtype, casting="same_kind")
                for x in rows]  # fmt: skip
    except (TypeError, ValueError):
        raise IndexTypeError(
            f"a {type(entry).__name__} within an index must hold integers or booleans, in rows of "
            f"one length, got {entry!r}"
        ) from None
    return concatenate([expand_dims(x, (0,)) for x in rows], 0)


def _entry(entry: Any) -> Any:
    """One entry of an index: None, Ellipsis, a slice, an int, or an array."""
    if entry is None or entry is Ellipsis or isinstance(entry, builtins.slice):
        return entry
    if isinstance(entry, list | tuple):
        entry = _of_sequence(entry)
    if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
        return int(entry)
    if not hasattr(entry, "aval") and not isinstance(entry, np.ndarray | np.generic | bool):
        message = "an index must be made of integers, slices, None, ..., or arrays of integers or "
        raise IndexTypeError(f"{message}booleans, got {entry!r} of {type(entry)}")
    aval = aval_of(entry)
    if aval.dtype != dtypes.BOOL and not dtypes.is_integer(aval.dtype):
        raise IndexTypeError(f"arrays used as indices must be of integers or booleans, got {aval}")
    if not aval.shape and aval.dtype != dtypes.BOOL:
        value = known(entry)
        return entry if value is None else int(value)
    return entry


def _is_mask(entry: Any) -> bool:
    if entry is None or entry is Ellipsis or isinstance(entry, builtins.slice):
        return False
    return isinstance(entry, bool) or (
        not isinstance(entry, int) and aval_of(entry).dtype == dtypes.BOOL
    )


def check_mask(mask: Any, shape: tuple[int, ...], axis: int = 0) -> None:
    """Raise IndexError unless a mask has the sizes of the axes from `axis` on."""
    own = aval_of(mask).shape
    there = shape[axis : axis + len(own)]
    if there != own:
        raise IndexError(
            f"boolean index did not match shape of indexed array of shape {shape} in its axes from "
            f"{axis}: they are {there}, and the index {own}"
        )


def _from_mask(mask: Any, shape: tuple[int, ...], axis: int) -> list[Any]:
    """The arrays of indices of a mask's true elements, one for each of its axes."""
    check_mask(mask, shape, axis)
    value = known(mask)
    if value is None:
        raise NonConcreteBooleanIndexError(
            f"x[mask]: the mask {mask.aval} is unknown while the function is traced, so the number "
            "of selected elements is too. Keep the shape: fnp.where(mask, x, 0) to compute with "
            "the selected elements, x.at[mask].set(scalar) to replace them; or bound their number: "
            f"x[fnp.nonzero(mask, size=n)]. {mask.origin()}"
        )
    return list(np.nonzero(value)) if value.ndim else [np.zeros(int(value), np.int32)]


def _expand(shape: tuple[int, ...], idx: Any) -> list[tuple[Any, int | None]]:
    """The index's entries, each with the axis it is for; every axis of the array has one.

    A mask becomes arrays of integers; the one of a 0-d mask is for no axis. An ellipsis stays
    before the slices that it stands for: also of no axes, it keeps arrays apart.
    """
    entries = [_entry(e) for e in (idx if isinstance(idx, tuple) else (idx,))]

    used = 0
    for e in entries:
        if e is not None and e is not Ellipsis:
            used += aval_of(e).ndim if _is_mask(e) else 1
    if used > len(shape):
        raise IndexError(
            f"Too many indices: array is {len(shape)}-dimensional, but {used} were indexed"
        )
    dots = sum(e is Ellipsis for e in entries)
    if dots > 1:
        raise IndexError("an index can hold a single ellipsis (...)")
    if not dots:
        entries.append(Ellipsis)
    out: list[tuple[Any, int | None]] = []
    axis = 0
    for e in entries:
        if e is None:
            out.append((None, None))
        elif e is Ellipsis:
            rest = len(shape) - used
            out.append((Ellipsis, None))
            out += [(builtins.slice(None), a) for a in range(axis, axis + rest)]
            axis += rest
        elif _is_mask(e):
            ndim = aval_of(e).ndim
            out += [(i, axis + k if ndim else None)
                    for k, i in enumerate(_from_mask(e, shape, axis))]  # fmt: skip
            axis += ndim
        else:
            out.append((e, axis))
            axis += 1
    return out


def _bounds(s: builtins.slice, size: int) -> tuple[tuple[int, int, int], bool]:
    """(start, limit, stride > 0) of a slice of an axis, and whether it runs backwards."""
    try:
        start, stop, step = s.indices(size)
    except TracerIntegerConversionError as e:
        raise TracerIntegerConversionError(
            "the bounds of a slice x[start:stop] must be known while the function is traced; for a "
            "window of a fixed size use lax.dynamic_slice_in_dim(x, start, size). "
            f"{e}"
        ) from None
    count = len(range(start, stop, step))
    if step > 0:
        return (start, start + (count - 1) * step + 1 if count else start, step), False
    first = start + (count - 1) * step if count else 0
    return (first, start + 1 if count else 0, -step), True


def all_inside(index: np.ndarray, size: int) -> bool:
    """Whether known indices are of an axis's elements, all counted from its start.

    >>> all_inside(np.array([0, 3]), 4), all_inside(np.array([-1, 3]), 4)
    (True, False)
    """
    return not index.size or bool(index.min() >= 0 and index.max() < size)


def _from_start(index: np.ndarray, axis: int, size: int, checked: bool) -> tuple[np.ndarray, bool]:
    """Known indices counted from the start, where -1 and size stand for those outside the axis, and
    whether there are none of these."""
    if all_inside(index, size):
        return index.astype(np.int64), True
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(2**63 - 1))
    index = index.astype(np.int64)
    outside = (index < -size) | (index >= size)
    if checked and outside.any():
        bad = int(index[outside][0]) if index.ndim else int(index)
        raise OutOfBoundsError(f"index {bad} out of bounds for axis {axis} with size {size}")
    # An array also of one index: what isn't one counts as unknown.
    index = np.asarray(np.clip(np.where(index < 0, index + size, index), -1, size))
    return index, all_inside(index, size)


def parse_index(shape: tuple[int, ...], idx: Any, checked: bool = True) -> Plan:
    """The plan of an index, by NumPy's rules; unknown integers count as 0-d arrays.

    Where `checked`, a known index outside its axis raises OutOfBoundsError; else it is kept for
    the gather's or scatter's mode. Raises IndexError for what is no index of such an array,
    NonConcreteBooleanIndexError for a mask whose value is unknown.

    >>> parse_index((4, 5), (slice(None, None, -2), None, np.array([0, 3]))).shape
    (2, 1, 2)
    """
    entries = _expand(shape, idx)
    slices = [(0, n, 1) for n in shape]
    flipped: list[int] = []
    dropped: list[int] = []
    arrays: list[tuple[int | None, Any]] = []
    inside = True
    layout: list[Any] = []
    # Where the arrays' axes go: where the arrays stand if they stand together, else in front.
    places: list[int] = []
    at = 0
    for position, (entry, axis) in enumerate(entries):
        if entry is None:
            layout.append("new")
        elif entry is Ellipsis:
            continue
        elif isinstance(entry, builtins.slice):
            assert axis is not None
            slices[axis], backwards = _bounds(entry, shape[axis])
            flipped += [axis] * backwards
            layout.append(axis)
        else:
            at = at if places else len(layout)
            places.append(position)
            value = known(entry)
            if axis is None:
                arrays.append((None, entry))
                continue
            if value is not None:
                entry, fits = _from_start(value, axis, shape[axis], checked)
                if fits and not entry.ndim:
                    slices[axis] = (int(entry), int(entry) + 1, 1)
                    dropped.append(axis)
                    continue
            inside &= value is not None and fits
            arrays.append((axis, entry))
    if places and places[-1] - places[0] + 1 != len(places):
        at = 0
    common = _common_shape([aval_of(a).shape for _, a in arrays])
    layout[at:at] = ["array"] * len(common)
    left = [a for a in range(len(shape)) if a not in dropped]
    sizes = [len(range(*slices[a])) for a in left]
    layout = [left.index(a) if isinstance(a, int) else a for a in layout]
    found = iter(common)
    result = tuple(1 if a == "new" else next(found) if a == "array" else sizes[a] for a in layout)
    return Plan(
        tuple(slices),
        tuple(flipped),
        tuple(dropped),
        tuple((left.index(a), i) for a, i in arrays if a is not None),
        common,
        inside,
        tuple(layout),
        result,
    )


def _common_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ShapeError(
            f"arrays used as indices do not broadcast: their shapes are {listed}"
        ) from None
