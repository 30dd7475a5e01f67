"""NumPy-style indexing `x[idx]` and functional updates `x.at[idx].set(y)`.

A plan (`index_plan`) splits an index into a static part, done by slices, and arrays of indices,
done by gather and scatter. Eager indexing of known arrays is NumPy's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.evaluation import EvalTrace
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.base import broadcast_p, full
from funcgrad.ops.elementwise import arithmetic, transcendental
from funcgrad.ops.elementwise.compare import lt
from funcgrad.ops.elementwise.convert import convert_element_type, select, select_n
from funcgrad.ops.families import add
from funcgrad.ops.indexing import scatter
from funcgrad.ops.indexing.gather import default_fill, gather_p
from funcgrad.ops.indexing.plan import Plan, check_mask, parse_index
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from funcgrad.ops.indexing.windows_at import (
    dynamic_slice_p,
    dynamic_update_slice_p,
    index_dtype,
    wrapped,
)
from funcgrad.ops.shape import concatenate, expand_dims, pad_p, reshape, rev, slice_p

_FILL_OR_DROP = GatherScatterMode.FILL_OR_DROP
_PROMISE = GatherScatterMode.PROMISE_IN_BOUNDS


# ---- what NumPy can do at once


_BASIC = frozenset({int, slice, type(None), type(Ellipsis)})


def _plain(entry: Any) -> Any:
    """An entry of an index as numpy takes it, or NotImplemented where it is not known."""
    kind = type(entry)
    if kind in _BASIC:
        return entry
    if kind is Array:
        return entry.value
    return entry if kind is np.ndarray or kind is list or kind is bool else NotImplemented


def _plain_index(idx: Any) -> Any:
    """A whole index as numpy takes it, or NotImplemented."""
    if type(idx) is not tuple:
        return _plain(idx)
    plain = tuple(map(_plain, idx))
    return NotImplemented if any(e is NotImplemented for e in plain) else plain


def _eager(x: Any) -> bool:
    return type(x) is Array and type(context.current().trace) is EvalTrace


def _is_basic(idx: Any) -> bool:
    """Whether a plain index holds no arrays, so that it selects no element twice."""
    entries = idx if type(idx) is tuple else (idx,)
    return not any(isinstance(e, np.ndarray | list | bool) for e in entries)


# ---- reading


def index(
    x: Any,
    idx: Any,
    *,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Any:
    """`x[idx]` by NumPy's rules: integers, slices, None, ..., arrays of integers, masks.

    `mode` says what an integer index outside its axis gives: "fill" gives `fill_value` (by default
    NaN, or the least signed or greatest unsigned integer), "clip" the nearest element,
    "promise_in_bounds" anything. With None, indices that are known raise OutOfBoundsError, and
    traced ones fill. Negative indices count from the end.

    >>> import funcgrad.numpy as fnp
    >>> index(fnp.arange(5), slice(None, None, -2))
    Array([4, 2, 0], dtype=int32)
    """
    if mode is None and fill_value is None and _eager(x):
        plain = idx if type(idx) in _BASIC else _plain_index(idx)
        if plain is not NotImplemented:
            try:
                return Array(np.asarray(x.value[plain]), x.weak_type)
            except IndexError:
                pass  # What follows says which index is wrong, and how.
    checked = mode is None and fill_value is None
    parsed = GatherScatterMode.from_any(mode)
    plan = parse_index(aval_of(x).shape, idx, checked)
    out = _cut(x, plan)
    if plan.arrays or plan.common:
        hints = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
        out = _take(out, plan, parsed, fill_value, hints)
    return reshape(out, plan.shape)


def _cut(x: Any, plan: Plan) -> Any:
    """The static part of an index: slices, reversals, and axes dropped."""
    shape = aval_of(x).shape
    if any(s != (0, n, 1) for s, n in zip(plan.slices, shape, strict=True)):
        starts, limits, steps = zip(*plan.slices, strict=True)
        strides = None if all(s == 1 for s in steps) else steps
        x = slice_p.bind(x, start_indices=starts, limit_indices=limits, strides=strides)
    if plan.flipped:
        x = rev(x, plan.flipped)
    kept = [n for i, n in enumerate(aval_of(x).shape) if i not in plan.dropped]
    return reshape(x, kept)


def _vectors(plan: Plan, shape: tuple[int, ...]) -> Any:
    """The index vectors [*common, number of arrays], counted from the start of each axis."""
    unknown = [aval_of(i) for _, i in plan.arrays if not isinstance(i, np.ndarray)]
    if not unknown:
        known = index_dtype([], shape)
        if len(plan.arrays) == 1 and plan.arrays[0][1].shape == plan.common:
            return plan.arrays[0][1].astype(known, order="C")[..., None]
        found = [np.broadcast_to(i, plan.common) for _, i in plan.arrays]
        return np.stack(found, -1, dtype=known) if found else np.zeros((*plan.common, 0), known)
    some_known = [aval_of(np.int32(0))] if len(unknown) < len(plan.arrays) else []
    dtype = index_dtype(unknown + some_known, shape)
    rank = len(plan.common)
    columns = [
        expand_dims(_broadcast(_counted(i, shape[a], dtype), plan.common), (rank,))
        for a, i in plan.arrays
    ]
    return concatenate(columns, rank)


def _counted(index: Any, size: int, dtype: np.dtype) -> Any:
    """An index of a plan in a dtype; known ones are counted from the axis's start already."""
    if isinstance(index, np.ndarray):
        return index.astype(dtype)
    return wrapped(index, size, dtype)


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """x repeated to a larger shape by NumPy's rules."""
    own = aval_of(x).shape
    if own == shape:
        return x
    dims = tuple(range(len(shape) - len(own), len(shape)))
    return broadcast_p.bind(x, shape=shape, broadcast_dimensions=dims)


def _numbers(plan: Plan) -> GatherDimensionNumbers:
    axes = tuple(a for a, _ in plan.arrays)
    layout = [a for a in plan.layout if a != "new"]
    offsets = tuple(i for i, a in enumerate(layout) if a != "array")
    return GatherDimensionNumbers(offsets, tuple(sorted(axes)), axes)


def _window(plan: Plan, shape: tuple[int, ...]) -> tuple[int, ...]:
    indexed = {a for a, _ in plan.arrays}
    return tuple(1 if i in indexed else n for i, n in enumerate(shape))


def _gathered(plan: Plan) -> tuple[int, ...]:
    """The result's shape without new axes."""
    return tuple(n for n, a in zip(plan.shape, plan.layout, strict=True) if a != "new")


def _reads_nothing(plan: Plan, shape: tuple[int, ...]) -> bool:
    return any(not shape[a] for a, _ in plan.arrays)


def _starts(plan: Plan, shape: tuple[int, ...], mode: GatherScatterMode) -> list[Any] | None:
    """Start indices of the one window that scalars select, where a mode lets it be clamped."""
    if plan.common or not plan.arrays or mode is _FILL_OR_DROP:
        return None
    dtype = index_dtype([aval_of(i) for _, i in plan.arrays], shape)
    starts: list[Any] = [np.zeros((), dtype)] * len(shape)
    for axis, i in plan.arrays:
        starts[axis] = _counted(i, shape[axis], dtype)
    return starts


def _take(x: Any, plan: Plan, mode: GatherScatterMode, fill_value: Any, hints: dict) -> Any:
    """What the arrays of a plan select from what its static part has left."""
    shape = aval_of(x).shape
    if _reads_nothing(plan, shape):
        fill = default_fill(aval_of(x).dtype) if fill_value is None else fill_value
        return full(_gathered(plan), fill, aval_of(x).dtype)
    starts = _starts(plan, shape, mode)
    if starts is not None:
        return dynamic_slice_p.bind(x, *starts, slice_sizes=_window(plan, shape))
    mode = _PROMISE if plan.inside else mode
    return gather_p.bind(
        x,
        _vectors(plan, shape),
        dimension_numbers=_numbers(plan),
        slice_sizes=_window(plan, shape),
        mode=mode,
        fill_value=fill_value if mode is _FILL_OR_DROP else None,
        **hints,
    )


# ---- updating

_COMBINE: dict[str, Callable] = {
    "set": lambda x, y: y,
    "add": add.bind,
    "subtract": arithmetic.sub.bind,
    "mul": arithmetic.mul.bind,
    "divide": arithmetic.div.bind,
    "min": arithmetic.min.bind,
    "max": arithmetic.max.bind,
    "power": transcendental.pow.bind,
    "apply": lambda x, f: f(x),
}
_UFUNCS = {"add": np.add, "subtract": np.subtract, "mul": np.multiply, "min": np.minimum,
           "max": np.maximum}  # fmt: skip
_SCATTERS = {
    "set": scatter.scatter_p,
    "add": scatter.scatter_add_p,
    "mul": scatter.scatter_mul_p,
    "min": scatter.scatter_min_p,
    "max": scatter.scatter_max_p,
}


def index_update(
    x: Any,
    idx: Any,
    y: Any,
    op: str,
    *,
    mode: str | GatherScatterMode | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Any:
    """A copy of x with `x[idx]` replaced by `op(x[idx], y)`, or by y itself for "set".

    `op` is "set", "add", "subtract", "mul", "divide", "min", "max", "power", or "apply", with a
    function for y. An element that is selected several times is updated as often (by "set" and
    "apply", once: the last value stays). y broadcasts to the selection and is converted to x's
    dtype; DTypeError where that would lose its fractional or imaginary part. `mode` says what an
    integer index outside its axis does: "drop" leaves it out, "clip" takes the nearest element,
    "promise_in_bounds" says that there is none. With None, indices that are known raise
    OutOfBoundsError, and traced ones are left out.

    >>> import funcgrad.numpy as fnp
    >>> index_update(fnp.zeros(3), np.array([0, 0, 2]), 1.0, "add")
    Array([2., 0., 1.], dtype=float32)
    """
    aval = aval_of(x)
    if op != "apply":
        y = _converted(y, aval, op)
    if mode is None and op != "apply" and _eager(x):
        done = _update_at_once(x, idx, y, op)
        if done is not None:
            return done
    fits_all = op == "apply" or aval_of(y).ndim <= aval.ndim - _mask_rank(idx)
    if _mask_rank(idx) and fits_all:
        return _update_where(x, idx, y, op)
    parsed = GatherScatterMode.from_any(mode)
    plan = parse_index(aval.shape, idx, mode is None)
    if op != "apply":
        y = _fitted(y, plan, op)
    part = x if op == "set" and not plan.arrays and not plan.common else _cut(x, plan)
    if plan.arrays or plan.common:
        hints = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
        part = _put_arrays(part, plan, y, op, parsed, hints)
    else:
        part = _COMBINE[op](part, y)
    return _put_back(x, plan, part)


def _converted(y: Any, x: ShapedArray, op: str) -> Any:
    """The value in the dtype of the array that it goes into."""
    if hasattr(y, "__jax_array__"):
        y = y.__jax_array__()
    if isinstance(y, list | tuple):
        y = np.asarray(y)
    aval = aval_of(y)
    kinds = (dtypes.is_complex, dtypes.is_inexact, lambda d: d != dtypes.BOOL)
    if any(kind(aval.dtype) and not kind(x.dtype) for kind in kinds):
        raise DTypeError(
            f"x.at[...].{op}: the value {aval} does not fit in x of {x}; convert one of them with "
            ".astype(...)"
        )
    if isinstance(y, bool | int | float | complex):
        return np.asarray(y, x.dtype)
    return y if aval.dtype == x.dtype else convert_element_type(y, x.dtype)


def _update_at_once(x: Array, idx: Any, y: Any, op: str) -> Array | None:
    """The update by NumPy, where index and value are known, else None."""
    plain = _plain_index(idx)
    value = y.value if type(y) is Array else y
    if plain is NotImplemented or not isinstance(value, np.ndarray):
        return None
    basic = _is_basic(plain)
    # Sums of many narrow floats are scatter_add's, which keeps them in float32.
    exact = not dtypes.is_float(x.dtype) or x.dtype.itemsize >= 4
    if op != "set" and (op not in _UFUNCS or not (basic or exact)):
        return None
    out = x.value.copy()
    try:
        with np.errstate(all="ignore"):
            if op == "set" or basic:
                out[plain] = value if op == "set" else _UFUNCS[op](out[plain], value)
            else:
                _UFUNCS[op].at(out, plain, value)
    except (IndexError, TypeError, ValueError):
        return None  # What follows says what does not fit.
    return Array(out, x.weak_type)


def _mask_rank(idx: Any) -> int:
    """The number of axes of an index that is a single mask, else 0."""
    if type(idx) is tuple and len(idx) == 1:
        idx = idx[0]
    is_array = hasattr(idx, "aval") or isinstance(idx, np.ndarray)
    return aval_of(idx).ndim if is_array and aval_of(idx).dtype == dtypes.BOOL else 0


def _update_where(x: Any, idx: Any, y: Any, op: str) -> Any:
    """The update where a mask holds, by a value that is one for all places: a select."""
    mask = idx[0] if type(idx) is tuple else idx
    shape = aval_of(x).shape
    check_mask(mask, shape)
    dims = tuple(range(aval_of(mask).ndim))
    if aval_of(mask).shape != shape:
        mask = broadcast_p.bind(mask, shape=shape, broadcast_dimensions=dims)
    if op != "apply":
        y = _broadcast(_check_fit(y, shape[len(dims) :], op), shape)
    return select_n(mask, x, _COMBINE[op](x, y))


def _check_fit(y: Any, shape: tuple[int, ...], op: str) -> Any:
    own = aval_of(y).shape
    tail = shape[len(shape) - len(own) :]
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(own, tail, strict=True)):
        raise ShapeError(
            f"x.at[...].{op}: the value {aval_of(y)} does not broadcast to the selection's "
            f"shape {shape}"
        )
    return y


def _fitted(y: Any, plan: Plan, op: str) -> Any:
    """The value broadcast to the selection, without its new axes."""
    own = aval_of(y).shape
    extra = len(own) - len(plan.shape)
    if extra > 0 and all(n == 1 for n in own[:extra]):
        y = reshape(y, own[extra:])
    wide = _broadcast(_check_fit(y, plan.shape, op), plan.shape)
    return reshape(wide, _gathered(plan)) if plan.new_axes else wide


def _put_arrays(x: Any, plan: Plan, y: Any, op: str, mode: GatherScatterMode, hints: dict) -> Any:
    """x with what the arrays of a plan select updated."""
    shape = aval_of(x).shape
    if _reads_nothing(plan, shape):
        return x
    starts = _starts(plan, shape, mode)
    if starts is not None:
        sizes = _window(plan, shape)
        old = dynamic_slice_p.bind(x, *starts, slice_sizes=sizes) if op != "set" else None
        value = y if op == "apply" else reshape(y, sizes)
        return dynamic_update_slice_p.bind(x, _COMBINE[op](old, value), *starts)
    if op in ("divide", "power"):
        one = full(shape, 1, aval_of(x).dtype)
        return _COMBINE[op](x, _put_arrays(one, plan, y, "mul", mode, hints))
    if op == "subtract":
        op, y = "add", arithmetic.neg(y)
    if op == "apply":
        inside = _PROMISE if plan.inside else GatherScatterMode.CLIP
        op, y = "set", y(reshape(_take(x, plan, inside, None, hints), _gathered(plan)))
    return _SCATTERS[op].bind(
        x,
        _vectors(plan, shape),
        y,
        dimension_numbers=ScatterDimensionNumbers(*_numbers(plan)),
        mode=_PROMISE if plan.inside else mode,
        **hints,
    )


def _put_back(x: Any, plan: Plan, part: Any) -> Any:
    """x with what the static part of a plan selects replaced."""
    shape = aval_of(x).shape
    sizes = tuple(len(range(*s)) for s in plan.slices)
    part = reshape(part, sizes)
    if plan.flipped:
        part = rev(part, plan.flipped)
    if sizes == shape:
        return part
    if 0 in sizes:
        return x
    if all(step == 1 for _, _, step in plan.slices):
        dtype = index_dtype([], shape)
        starts = [np.asarray(start, dtype) for start, _, _ in plan.slices]
        return dynamic_update_slice_p.bind(x, part, *starts)
    config = tuple(
        (start, n - limit, step - 1)
        for n, (start, limit, step) in zip(shape, plan.slices, strict=True)
    )
    placed = pad_p.bind(part, full((), 0, aval_of(x).dtype), padding_config=config)
    yes, no = full(sizes, True, dtypes.BOOL), full((), False, dtypes.BOOL)
    return select_n(pad_p.bind(yes, no, padding_config=config), x, placed)


# ---- negative indices that do not wrap


def from_start(idx: Any, mode: Any) -> Any:
    """An index in which negative integers are outside their axis, not counted from its end."""
    if isinstance(idx, tuple):
        return tuple(from_start(e, mode) for e in idx)
    if isinstance(idx, list):
        return from_start(np.asarray(idx), mode) if idx else idx
    clips = mode is not None and GatherScatterMode.from_any(mode) is GatherScatterMode.CLIP
    if isinstance(idx, int) and not isinstance(idx, bool):
        return idx if idx >= 0 else 0 if clips else np.iinfo(np.int32).max
    if not hasattr(idx, "dtype") or not dtypes.is_integer(idx.dtype):
        return idx
    outside = 0 if clips else dtypes.iinfo(idx.dtype).max
    return select(lt(idx, 0), np.asarray(outside, idx.dtype), idx)
