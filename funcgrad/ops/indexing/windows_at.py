"""Windows at positions known only when the program runs: dynamic_slice and dynamic_update_slice.

A window always lies within its array: the primitives clamp their start indices. The public
functions count negative indices from the end first, as NumPy does.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.array import of_scalar
from funcgrad.core.aval import ShapedArray, promote
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import DTypeError, OutOfBoundsError, ShapeError
from funcgrad.ops.arguments import canonical_axes, canonical_axis, integer, integers, items_of
from funcgrad.ops.base import (
    batch_front,
    broadcast_p,
    instantiate,
    is_linear,
    position_dtype,
    zeros,
)
from funcgrad.ops.elementwise.arithmetic import rem
from funcgrad.ops.elementwise.compare import lt
from funcgrad.ops.elementwise.convert import convert_element_type, select_n
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import gather, gather_p
from funcgrad.ops.indexing.scatter import scatter_p
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from funcgrad.ops.shape import concatenate, expand_dims, reshape, slice, squeeze


def _check_starts(name, x, starts):
    if len(starts) != x.ndim:
        raise ShapeError(f"{name}: need a start index for each axis of {x}, got {len(starts)}")
    for i, s in enumerate(starts):
        if s.shape or not dtypes.is_integer(s.dtype):
            raise DTypeError(f"{name}: start index {i} must be an integer scalar, got {s}")
        if s.dtype != starts[0].dtype:
            listed = ", ".join(map(str, starts))
            raise DTypeError(f"{name}: start indices must have one dtype, got {listed}")


def _window(starts, shape, sizes):
    """The slices of a window, moved into the array where it would reach out of it."""
    firsts = [max(0, min(int(s), n - m)) for s, n, m in zip(starts, shape, sizes, strict=True)]
    return tuple(np.s_[a : a + m] for a, m in zip(firsts, sizes, strict=True))


def _stack_starts(starts, dims, size):
    """Batched scalars, some without a batch axis, as index vectors [batch, axis]."""
    columns = [
        broadcast_p.bind(batch_front(s, d, size), shape=(size, 1), broadcast_dimensions=(0,))
        for s, d in zip(starts, dims, strict=True)
    ]
    return concatenate(columns, 1)


def _zero_like(starts, shape=()):
    return np.zeros(shape, aval_of(starts[0]).dtype if starts else np.int32)


def _window_dims(x, sizes):
    names = dims_.letters(x.ndim)
    return " ".join(a if n == m else "." for a, n, m in zip(names, x.shape, sizes, strict=True))


# ---- dynamic_slice


def _slice_abstract(x, *starts, slice_sizes):
    _check_starts("dynamic_slice", x, starts)
    if len(slice_sizes) != x.ndim or any(
        not 0 <= m <= n for m, n in zip(slice_sizes, x.shape, strict=False)
    ):
        raise ShapeError(f"dynamic_slice: slice_sizes {slice_sizes} do not fit in operand {x}")
    return x.update(shape=slice_sizes)


def _slice_jvp(primals, tangents, *, slice_sizes):
    _, *starts = primals
    y = dynamic_slice_p.bind(*primals, slice_sizes=slice_sizes)
    return y, dynamic_slice_p.bind(tangents[0], *starts, slice_sizes=slice_sizes)


def _slice_transpose(ct, x, *starts, slice_sizes):
    base = zeros(x.aval.update(dtype=aval_of(ct).dtype))
    return [dynamic_update_slice_p.bind(base, ct, *starts), *[None] * len(starts)]


def _slice_batch(axis, args, dims, *, slice_sizes):
    (x, *starts), (x_dim, *start_dims) = args, dims
    if all(d is None for d in start_dims):
        x = batch_front(x, x_dim, axis.size)
        sizes = (axis.size, *slice_sizes)
        return dynamic_slice_p.bind(x, _zero_like(starts), *starts, slice_sizes=sizes), 0
    indices = _stack_starts(starts, start_dims, axis.size)
    rank = len(slice_sizes)
    windows = tuple(range(1, rank + 1))
    if x_dim is None:
        numbers = GatherDimensionNumbers(windows, (), tuple(range(rank)))
    else:
        x = batch_front(x, x_dim, axis.size)
        numbers = GatherDimensionNumbers(windows, (), windows, (0,), (0,))
        slice_sizes = (1, *slice_sizes)
    out = gather_p.bind(
        x,
        indices,
        dimension_numbers=numbers,
        slice_sizes=slice_sizes,
        indices_are_sorted=x_dim is not None,
        unique_indices=x_dim is not None,
        mode=GatherScatterMode.CLIP,
        fill_value=None,
    )
    return out, 0


def _slice_dims(x, *starts, slice_sizes):
    names = _window_dims(x, slice_sizes)
    return f"{', '.join([names] + [''] * len(starts))} -> {names}"


dynamic_slice_p = Primitive(
    name="dynamic_slice",
    abstract=_slice_abstract,
    impl=lambda xp, x, *starts, slice_sizes: x[_window(starts, x.shape, slice_sizes)],
    jvp=_slice_jvp,
    transpose=_slice_transpose,
    batch=_slice_batch,
    dims=_slice_dims,
)

# ---- dynamic_update_slice


def _update_abstract(x, update, *starts):
    _check_starts("dynamic_update_slice", x, starts)
    if update.dtype != x.dtype:
        raise DTypeError(
            f"dynamic_update_slice: update must have the operand's dtype, got {update} for {x}"
        )
    if update.ndim != x.ndim or any(m > n for m, n in zip(update.shape, x.shape, strict=True)):
        raise ShapeError(f"dynamic_update_slice: update {update} does not fit in operand {x}")
    return x.update(weak_type=x.weak_type and update.weak_type)


def _update_impl(xp, x, update, *starts):
    out = x.copy()
    out[_window(starts, x.shape, update.shape)] = update
    return out


def _update_jvp(primals, tangents):
    _, _, *starts = primals
    g, g_update = map(instantiate, tangents[:2])
    y = dynamic_update_slice_p.bind(*primals)
    return y, dynamic_update_slice_p.bind(g, g_update, *starts)


def _update_transpose(ct, x, update, *starts):
    ct_x = ct_update = None
    window = aval_of(update)
    if is_linear(x):
        none = zeros(window.update(dtype=aval_of(ct).dtype))
        ct_x = dynamic_update_slice_p.bind(ct, none, *starts)
    if is_linear(update):
        ct_update = dynamic_slice_p.bind(ct, *starts, slice_sizes=window.shape)
    return [ct_x, ct_update, *[None] * len(starts)]


def _update_batch(axis, args, dims):
    (x, update, *starts), (x_dim, update_dim, *start_dims) = args, dims
    x = batch_front(x, x_dim, axis.size)
    update = batch_front(update, update_dim, axis.size)
    if all(d is None for d in start_dims):
        return dynamic_update_slice_p.bind(x, update, _zero_like(starts), *starts), 0
    windows = tuple(range(1, len(starts) + 1))
    out = scatter_p.bind(
        x,
        _stack_starts(starts, start_dims, axis.size),
        update,
        dimension_numbers=ScatterDimensionNumbers(windows, (), windows, (0,), (0,)),
        indices_are_sorted=True,
        unique_indices=True,
        mode=GatherScatterMode.CLIP,
    )
    return out, 0


def _update_dims(x, update, *starts):
    names = _window_dims(x, update.shape)
    return f"{', '.join([names, names] + [''] * len(starts))} -> {names}"


dynamic_update_slice_p = Primitive(
    name="dynamic_update_slice",
    abstract=_update_abstract,
    impl=_update_impl,
    jvp=_update_jvp,
    transpose=_update_transpose,
    batch=_update_batch,
    dims=_update_dims,
)

# ---- start indices as users write them


def _is_static(index: Any) -> bool:
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def _starts(name: str, starts: Any, shape: tuple[int, ...], negative: Any) -> list[Any]:
    """One scalar an axis, of one dtype, negative ones counted from the end where that is said."""
    if hasattr(starts, "aval") or isinstance(starts, np.ndarray):
        aval = aval_of(starts)
        if aval.ndim != 1:
            raise ShapeError(f"{name}: start_indices must be a vector or scalars, got {aval}")
        starts = [reshape(slice(starts, (i,), (i + 1,)), ()) for i in range(aval.shape[0])]
    starts = items_of("start_indices", starts)
    if len(starts) != len(shape):
        raise ShapeError(
            f"{name}: need a start index for each of the operand's {len(shape)} axes, "
            f"got {len(starts)}"
        )
    traced = [aval_of(s) for s in starts if not _is_static(s)]
    if any(a.shape or not dtypes.is_integer(a.dtype) for a in traced):
        raise DTypeError(f"{name}: start_indices must be integer scalars, got {starts}")
    dtype = index_dtype(traced, shape)
    if isinstance(negative, bool):
        counted = [negative] * len(shape)
    else:
        counted = items_of("allow_negative_indices", negative)
    if len(counted) != len(shape) or not all(isinstance(c, bool) for c in counted):
        raise ShapeError(
            f"{name}: allow_negative_indices must be one bool or one for each of {len(shape)} "
            f"axes, got {negative!r}"
        )
    return [
        wrapped(s, n, dtype) if c else _clamped(s, dtype)
        for s, n, c in zip(starts, shape, counted, strict=True)
    ]


def _clamped(index: Any, dtype: np.dtype) -> Any:
    """An index in a dtype, where a negative one is before the axis's start."""
    if _is_static(index):
        return np.asarray(max(int(index), 0), dtype)
    return convert_element_type(index, dtype)


def index_dtype(avals: Sequence[ShapedArray], sizes: Sequence[int]) -> np.dtype:
    """The one dtype of several indices, wide enough to add the sizes of their axes to."""
    least = position_dtype(max(sizes, default=0))
    found = promote([a.strong() for a in avals])[0] if avals else least
    if not dtypes.is_integer(found):
        return np.dtype(np.int64)
    return found if found.itemsize >= least.itemsize else least


def wrapped(index: Any, size: int, dtype: np.dtype) -> Any:
    """An index in a dtype, counted from the axis's end where it is negative."""
    if not isinstance(index, Tracer) and not aval_of(index).shape:
        value = operator.index(index)
        value = value + size if value < 0 else value
        limits = dtypes.iinfo(dtype)
        return np.asarray(min(max(value, int(limits.min)), int(limits.max)), dtype)
    own = aval_of(index).dtype
    if own != dtype:
        index = convert_element_type(index, dtype)
    # Of narrower ones without a sign none becomes negative.
    if not dtypes.is_signed(dtype) or (not dtypes.is_signed(own) and own.itemsize < dtype.itemsize):
        return index
    length = np.asarray(size, dtype)
    return select_n(lt(index, np.zeros((), dtype)), index, add(index, length))


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """The window of static sizes that begins at start indices, which may be traced.

    A negative index counts from the end of its axis, unless `allow_negative_indices` is False (or a
    sequence that is False there); then a window that would reach out of the operand is moved
    inside. Raises ShapeError where sizes and indices do not fit the operand.

    >>> from funcgrad import lax
    >>> lax.dynamic_slice(lax.iota("int32", 6), (4,), (3,))
    Array([3, 4, 5], dtype=int32)
    """
    starts = _starts("dynamic_slice", start_indices, aval_of(operand).shape, allow_negative_indices)
    sizes = integers("dynamic_slice", "slice_sizes", slice_sizes)
    return dynamic_slice_p.bind(operand, *starts, slice_sizes=sizes)


def dynamic_update_slice(
    operand: Any,
    update: Any,
    start_indices: Any,
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """The operand with the window that begins at start indices replaced by `update`.

    A negative index counts from the end of its axis; then a window that would reach out of the
    operand is moved inside. Raises ShapeError where `update` does not fit in the operand.

    >>> from funcgrad import lax
    >>> lax.dynamic_update_slice(lax.iota("int32", 5), lax.iota("int32", 2), (1,))
    Array([0, 0, 1, 3, 4], dtype=int32)
    """
    aval = aval_of(operand)
    update = _as_dtype(update, aval.dtype)
    starts = _starts("dynamic_update_slice", start_indices, aval.shape, allow_negative_indices)
    return dynamic_update_slice_p.bind(operand, update, *starts)


def _as_dtype(value: Any, dtype: np.dtype) -> Any:
    """A Python scalar in a dtype; anything else as it is."""
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return of_scalar(value, dtype)
    return value


# ---- one axis


def dynamic_slice_in_dim(
    operand: Any,
    start_index: Any,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """`dynamic_slice` along one axis; the others are kept whole.

    >>> from funcgrad import lax
    >>> lax.dynamic_slice_in_dim(lax.iota("int32", 6), 2, 3)
    Array([2, 3, 4], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonical_axis("dynamic_slice_in_dim", axis, len(shape))
    starts: list[Any] = [0] * len(shape)
    starts[axis] = start_index
    sizes = (*shape[:axis], integer("slice_size", slice_size), *shape[axis + 1 :])
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: Any,
    index: Any,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """The elements at one index of an axis, which stays with size 1 where `keepdims` is true.

    >>> from funcgrad import lax
    >>> lax.dynamic_index_in_dim(lax.iota("int32", 6), -2, keepdims=False)
    Array(4, dtype=int32)
    """
    out = dynamic_slice_in_dim(
        operand, index, 1, axis, allow_negative_indices=allow_negative_indices
    )
    return out if keepdims else squeeze(out, (axis,))


def dynamic_update_slice_in_dim(
    operand: Any,
    update: Any,
    start_index: Any,
    axis: int,
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """`dynamic_update_slice` along one axis; `update` has the operand's sizes in the others.

    >>> from funcgrad import lax
    >>> lax.dynamic_update_slice_in_dim(lax.iota("int32", 4), lax.iota("int32", 2), 2, 0)
    Array([0, 1, 0, 1], dtype=int32)
    """
    ndim = aval_of(operand).ndim
    starts: list[Any] = [0] * ndim
    starts[canonical_axis("dynamic_update_slice_in_dim", axis, ndim)] = start_index
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: Any,
    update: Any,
    index: Any,
    axis: int,
    *,
    allow_negative_indices: Any = True,
) -> Any:
    """The operand with the elements at one index of an axis replaced by `update`.

    `update` has the operand's shape without the axis, or with it at size 1.

    >>> from funcgrad import lax
    >>> lax.dynamic_update_index_in_dim(lax.iota("int32", 4), 9, 1, 0)
    Array([0, 9, 2, 3], dtype=int32)
    """
    aval = aval_of(operand)
    axis = canonical_axis("dynamic_update_index_in_dim", axis, aval.ndim)
    update = _as_dtype(update, aval.dtype)
    if aval_of(update).ndim != aval.ndim:
        if aval_of(update).ndim + 1 != aval.ndim:
            raise ShapeError(
                f"dynamic_update_index_in_dim: update {aval_of(update)} must have the operand's "
                f"axes, or all but axis {axis}, of {aval}"
            )
        update = expand_dims(update, (axis,))
    return dynamic_update_slice_in_dim(
        operand, update, index, axis, allow_negative_indices=allow_negative_indices
    )


def slice_in_dim(
    operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0
) -> Any:
    """`slice` along one axis; negative and absent bounds are as in Python's slices.

    >>> from funcgrad import lax
    >>> lax.slice_in_dim(lax.iota("int32", 6), 1, -1, 2)
    Array([1, 3], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonical_axis("slice_in_dim", axis, len(shape))

    def bound(name: str, value: int | None, default: int) -> int:
        value = default if value is None else integer(name, value)
        return value + shape[axis] if value < 0 else value

    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis] = bound("start_index", start_index, 0)
    limits[axis] = bound("limit_index", limit_index, shape[axis])
    strides[axis] = integer("stride", stride)
    return slice(operand, starts, limits, strides)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The elements at one static index of an axis; raises OutOfBoundsError where there is none.

    >>> from funcgrad import lax
    >>> lax.index_in_dim(lax.iota("int32", 6), -1)
    Array([5], dtype=int32)
    """
    aval = aval_of(operand)
    axis = canonical_axis("index_in_dim", axis, aval.ndim)
    size = aval.shape[axis]
    position = integer("index", index)
    if not -size <= position < size:
        raise OutOfBoundsError(
            f"index_in_dim: index {index} is out of bounds for axis {axis} of {aval}"
        )
    position += size * (position < 0)
    out = slice_in_dim(operand, position, position + 1, 1, axis)
    return out if keepdims else squeeze(out, (axis,))


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """The elements at vectors of indices along `axes`, taken together; indices wrap around.

    The result's first axis runs along the vectors, the others are those of `src` not in `axes`.

    >>> from funcgrad import lax
    >>> lax.index_take(lax.iota("int32", 6), [np.array([1, -1])], (0,))
    Array([1, 5], dtype=int32)
    """
    shape = aval_of(src).shape
    axes = canonical_axes("index_take", axes, len(shape))
    idxs = items_of("idxs", idxs)
    if len(idxs) != len(axes):
        raise ShapeError(f"index_take: need indices for each of axes {axes}, got {len(idxs)}")
    dtype = index_dtype([aval_of(i) for i in idxs], [shape[a] for a in axes])
    columns = [
        expand_dims(_modulo(convert_element_type(i, dtype), shape[a]), (1,))
        for i, a in zip(idxs, axes, strict=True)
    ]
    order = sorted(range(len(axes)), key=lambda k: axes[k])
    numbers = GatherDimensionNumbers(
        offset_dims=tuple(range(1, len(shape) - len(axes) + 1)),
        collapsed_slice_dims=tuple(axes[k] for k in order),
        start_index_map=axes,
    )
    sizes = [1 if i in axes else n for i, n in enumerate(shape)]
    return gather(src, concatenate(columns, 1), numbers, sizes, mode="promise_in_bounds")


def _modulo(index: Any, size: int) -> Any:
    dtype = aval_of(index).dtype
    rest = rem(index, np.asarray(size, dtype))
    return wrapped(rest, size, dtype)
