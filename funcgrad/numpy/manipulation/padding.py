"""`pad`: an array with a border, in all of NumPy's modes.

A mode fills the two ends of one axis from what is there; the axes are filled one after another, so
that corners follow from edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._known import along
from funcgrad.numpy._util import as_array, as_dtype, broadcast_to, convert, integers
from funcgrad.numpy.manipulation.shape import moveaxis, reshape
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full, sum_p
from funcgrad.ops.elementwise.arithmetic import div
from funcgrad.ops.elementwise.rounding import RoundingMethod, floor
from funcgrad.ops.elementwise.rounding import round as round_to
from funcgrad.ops.indexing.indexing import index
from funcgrad.ops.reduce import reduce_max, reduce_min
from funcgrad.ops.sort import sort
from funcgrad.transforms.batching.vmap import vmap

__all__ = ["pad"]

_OPTIONS: dict[str, str | None] = {
    "constant": "constant_values", "edge": None, "linear_ramp": "end_values",
    "maximum": "stat_length", "mean": "stat_length", "median": "stat_length",
    "minimum": "stat_length", "reflect": "reflect_type", "symmetric": "reflect_type",
    "wrap": None, "empty": None,
}  # fmt: skip


def pad(array: Any, pad_width: Any, mode: str | Callable = "constant", **kwargs: Any) -> Any:
    """An array with a border: pad_width[i] = (before, after) elements in axis i.

    One pair is for all axes, one number for both ends; a dict maps axes to pairs. Modes are
    "constant" (`constant_values`, 0), "edge" (the last element), "linear_ramp" (to `end_values`,
    0), "maximum", "mean", "median", "minimum" (of the `stat_length` elements next to the border, or
    all), "reflect" and "symmetric" (mirrored, without and with the last element; with
    `reflect_type="odd"`, twice that element less the mirrored ones), "wrap" (from the other end),
    "empty" (any value), or a function of (vector, (before, after), axis, kwargs) that returns the
    vector, which holds zeros at its ends, with these filled.

    >>> fnp.pad(fnp.array([1, 2, 3]), (2, 1), mode="reflect")
    Array([3, 2, 1, 2, 3, 2], dtype=int32)
    """
    array = as_array("pad", array, "array")
    widths = _widths(pad_width, array.ndim)
    if callable(mode):
        return _pad_with(array, widths, mode, kwargs)
    if not isinstance(mode, str) or mode not in _OPTIONS:
        raise ValueError(f"pad: mode must be one of {', '.join(_OPTIONS)}, got {mode!r}")
    option = _OPTIONS[mode]
    if set(kwargs) - {option}:
        surplus = ", ".join(sorted(set(kwargs) - {option}))
        raise ArgumentError(f"pad: mode {mode!r} takes no {surplus}")
    if not array.ndim:
        return array
    if mode in ("constant", "empty"):
        return _constant(array, widths, kwargs.get("constant_values", 0))
    fill = _filler(mode, kwargs.get(option) if option else None, array)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            if not array.shape[axis]:
                raise ShapeError(f"pad: axis {axis} of array {array.aval} has nothing to extend")
            array = fill(array, axis, before, after)
    return array


def _filler(mode: str, option: Any, array: Any) -> Callable:
    """fill(array, axis, before, after) for a mode; pairs of options are looked up by axis."""
    if mode == "linear_ramp":
        ends = _pairs("end_values", 0 if option is None else option, array.ndim)
        return lambda x, axis, *widths: _ramp(x, axis, widths, ends[axis])
    if mode in _STATISTICS:
        pairs = ((None, None),) * array.ndim if option is None else _lengths(option, array.ndim)
        statistic = _STATISTICS[mode]
        return lambda x, axis, *widths: _statistic(x, axis, widths, pairs[axis], statistic)
    if mode in ("reflect", "symmetric") and option == "odd":
        return lambda x, axis, *widths: _odd(x, axis, widths, mode)
    if option not in (None, "even", "odd"):
        raise ValueError(f"pad: reflect_type must be 'even' or 'odd', got {option!r}")
    return lambda x, axis, *widths: _taken(x, np.pad(np.arange(x.shape[axis]), widths, mode), axis)  # type: ignore[call-overload]


# ---- arguments


def _widths(pad_width: Any, ndim: int) -> list[tuple[int, int]]:
    if isinstance(pad_width, dict):
        axes = {a + ndim if a < 0 else a: w for a, w in pad_width.items()}
        if any(not 0 <= a < ndim for a in axes):
            raise ShapeError(f"pad: pad_width {pad_width} names axes that are not there ({ndim})")
        pad_width = [axes.get(a, (0, 0)) for a in range(ndim)]
        pad_width = [w if isinstance(w, list | tuple) else (w, w) for w in pad_width]
    pairs = _pairs("pad_width", pad_width, ndim)
    widths = [integers("pad", "pad_width", pair) for pair in pairs]
    if any(n < 0 for w in widths for n in w):
        raise ValueError(f"pad: pad_width must not be negative, got {pad_width}")
    return widths  # type: ignore[return-value]


def _pairs(argument: str, given: Any, ndim: int) -> list[tuple[Any, Any]]:
    """A pair of values for each axis, from one value, one pair, or a pair for each axis."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, list | tuple):
        return [(given, given)] * ndim
    items = [tuple(g) if isinstance(g, list | tuple | np.ndarray) else g for g in given]
    if not any(isinstance(i, tuple) for i in items):
        if len(items) == 1:
            return [(items[0], items[0])] * ndim
        if len(items) == 2:
            return [(items[0], items[1])] * ndim
    elif all(isinstance(i, tuple) and len(i) in (1, 2) for i in items):
        if len(items) == 1:
            items *= ndim
        if len(items) == ndim:
            return [(i[0], i[-1]) for i in items]
    raise ShapeError(
        f"pad: {argument} must be a value, a pair, or a pair for each of {ndim} axes, got {given}"
    )


def _lengths(option: Any, ndim: int) -> list[tuple[int, int]]:
    pairs = [integers("pad", "stat_length", p) for p in _pairs("stat_length", option, ndim)]
    if any(n < 1 for p in pairs for n in p):
        raise ValueError(f"pad: stat_length must be positive, got {option}")
    return pairs  # type: ignore[return-value]


# ---- modes


def _taken(x: Any, positions: np.ndarray, axis: int) -> Any:
    """The elements at known positions of an axis: as a few slices, which fuse and send edges only
    where they are cut, or else gathered."""
    runs = _runs(positions)
    if len(runs) > _MOST_RUNS:
        return along(x, positions, axis)
    parts = []
    for start, step, n in runs:
        last = start + step * (n - 1)
        part = _part(x, axis, min(start, last), max(start, last) + 1)
        if step < 0:
            part = ops.rev(part, (axis,))
        if not step and n > 1:
            part = broadcast_to(part, (*x.shape[:axis], n, *x.shape[axis + 1 :]))
        parts.append(part)
    return ops.concatenate(parts, axis)


_MOST_RUNS = 5  # a border on both ends that is twice as wide as the axis


def _runs(positions: np.ndarray) -> list[tuple[int, int, int]]:
    """(first, step, count) of the stretches in which positions go up or down by one, or stay.

    >>> _runs(np.array([2, 1, 0, 1, 2, 2]))
    [(2, -1, 3), (1, 1, 2), (2, 0, 1)]
    """
    runs: list[tuple[int, int, int]] = []
    start = 0
    while start < len(positions):
        steps = np.diff(positions[start:])
        step = int(steps[0]) if len(steps) and abs(steps[0]) <= 1 else 0
        others = np.flatnonzero(steps != step)
        count = int(others[0]) + 1 if len(others) else len(steps) + 1
        runs.append((int(positions[start]), step, count))
        start += count
    return runs


def _part(x: Any, axis: int, start: int, stop: int) -> Any:
    return index(x, (slice(None),) * axis + (slice(start, stop),))


def _constant(x: Any, widths: list[tuple[int, int]], values: Any) -> Any:
    pairs = _pairs("constant_values", values, x.ndim)
    first = pairs[0][0]
    if all(v is first for pair in pairs for v in pair):
        config = [(before, after, 0) for before, after in widths]
        return ops.pad(x, _value(first, x), config)
    for axis, ((before, after), pair) in enumerate(zip(widths, pairs, strict=True)):
        for low, high, value in ((before, 0, pair[0]), (0, after, pair[1])):
            config = [(0, 0, 0)] * x.ndim
            config[axis] = (low, high, 0)
            x = ops.pad(x, _value(value, x), config)
    return x


def _value(value: Any, x: Any) -> Any:
    """A scalar in the dtype, and the weakness, of the array that it is put into."""
    value = as_dtype("pad", value, x.dtype, "constant_values", x.aval.weak_type)
    return reshape(value, ()) if value.ndim else value


def _extend(x: Any, axis: int, widths: tuple, ends: tuple) -> Any:
    """x between two ends, each broadcast to its width."""
    parts = [x]
    for place, width, end in ((0, widths[0], ends[0]), (2, widths[1], ends[1])):
        if width:
            shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
            parts.insert(place, convert(broadcast_to(end, shape), x.dtype, x.aval.weak_type))
    return ops.concatenate(parts, axis)


def _ramp(x: Any, axis: int, widths: tuple, ends: tuple) -> Any:
    size = x.shape[axis]
    work = x.dtype if dtypes.is_inexact(x.dtype) else np.dtype(np.float64)
    edges = _part(x, axis, 0, 1), _part(x, axis, size - 1, size)
    shares = [np.arange(n) / max(n, 1) for n in widths]
    ramps = []
    for share, edge, end in zip((shares[0], shares[1][::-1]), edges, ends, strict=True):
        start = as_dtype("pad", end, work, "end_values")
        ramp = start + (convert(edge, work) - start) * _line(share, x, axis, work)
        ramps.append(ramp if work == x.dtype else floor(ramp))
    return _extend(x, axis, widths, tuple(ramps))


def _line(values: np.ndarray, x: Any, axis: int, dtype: np.dtype) -> Any:
    """Numbers along one axis of an array of x's rank."""
    return Array(values.reshape([-1 if i == axis else 1 for i in range(x.ndim)]).astype(dtype))


def _odd(x: Any, axis: int, widths: tuple, mode: str) -> Any:
    """Reflection at a point: f(-k) = 2 f(0) - f(k), and so on from segment to segment."""
    size = x.shape[axis]
    period = size if mode == "symmetric" else size - 1
    if not period:
        return along(x, np.zeros(size + sum(widths), int), axis)
    segment, rest = np.divmod(np.arange(-widths[0], size + widths[1]), period)
    mirrored = segment % 2
    positions = np.where(mirrored, period - rest - (mode == "symmetric"), rest)
    turns = segment // 2 * 2

    def factor(values: np.ndarray) -> Any:
        return _line(values, x, axis, x.dtype)

    first, last = _part(x, axis, 0, 1), _part(x, axis, size - 1, size)
    moved = first * factor(-turns) + last * factor(turns + 2 * mirrored)
    return moved + _taken(x, positions, axis) * factor(1 - 2 * mirrored)


# ---- statistics


def _mean(x: Any, axis: int) -> Any:
    work = x if dtypes.is_inexact(x.dtype) else convert(x, np.dtype(np.float64))
    total = sum_p.bind(work, axes=(axis,))
    return div(total, np.asarray(x.shape[axis], total.dtype))


def _median(x: Any, axis: int) -> Any:
    ordered, half = sort(x, axis), x.shape[axis] // 2
    low = half - 1 + x.shape[axis] % 2
    return _mean(_part(ordered, axis, low, half + 1), axis)


_STATISTICS: dict[str, Callable] = {
    "maximum": lambda x, axis: reduce_max(x, (axis,)),
    "minimum": lambda x, axis: reduce_min(x, (axis,)),
    "mean": _mean,
    "median": _median,
}


def _statistic(x: Any, axis: int, widths: tuple, lengths: tuple, statistic: Callable) -> Any:
    size = x.shape[axis]
    before, after = (size if n is None else min(n, size) for n in lengths)
    parts = _part(x, axis, 0, before), _part(x, axis, size - after, size)
    ends = [ops.expand_dims(statistic(p, axis), (axis,)) for p in parts]
    if not dtypes.is_inexact(x.dtype):
        ends = [
            round_to(e, RoundingMethod.TO_NEAREST_EVEN) if dtypes.is_inexact(e.dtype) else e
            for e in ends
        ]
    return _extend(x, axis, widths, tuple(ends))


# ---- a user's function


def _pad_with(x: Any, widths: list[tuple[int, int]], fill: Callable, kwargs: dict) -> Any:
    x = ops.pad(x, full((), 0, x.dtype), [(before, after, 0) for before, after in widths])
    for axis, pair in enumerate(widths):
        last = moveaxis(x, axis, -1)
        rows = reshape(last, (last.size // max(last.shape[-1], 1), last.shape[-1]))
        filled = vmap(lambda row, pair=pair, axis=axis: fill(row, pair, axis, kwargs))(rows)
        if getattr(filled, "shape", None) != rows.shape:
            raise ShapeError(
                "pad: the function given as mode must return a vector of the same size"
            )
        x = moveaxis(reshape(filled, last.shape), -1, axis)
    return x
