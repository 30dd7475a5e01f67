"""Gather, which reads windows at many positions, and its transpose, scatter_add.

The other scatters are made from the same parts, in `scatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import Linear, ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, within
from funcgrad.ops.arguments import integers, items_of
from funcgrad.ops.base import batch_front, instantiate, is_linear, move_axis, zeros
from funcgrad.ops.folds import merged
from funcgrad.ops.indexing.window_checks import check_gather, check_scatter
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    Windows,
    batched_numbers,
    inner_axes,
)

CLIP, FILL_OR_DROP = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP

# ---- gather


def _gather_abstract(x, indices, *, dimension_numbers, slice_sizes, fill_value, **hints):
    check_gather(x, indices, dimension_numbers, slice_sizes)
    windows = Windows(x.shape, indices.shape[:-1], dimension_numbers, slice_sizes)
    return x.update(shape=windows.gathered_shape)


def default_fill(dtype: np.dtype) -> Any:
    """What a gather fills with where nothing is said: NaN, or an extreme integer, or True."""
    if dtypes.is_inexact(dtype):
        return np.nan
    if dtype == dtypes.BOOL:
        return True
    limits = dtypes.iinfo(dtype)
    return limits.min if dtypes.is_signed(dtype) else limits.max


def _gather_impl(xp, x, indices, *, dimension_numbers, slice_sizes, mode, fill_value, **hints):
    w = Windows(x.shape, indices.shape[:-1], dimension_numbers, slice_sizes)
    starts, valid = w.positions(xp, indices)
    moved = sorted(starts)
    still = [d for d in range(x.ndim) if d not in starts]
    # Axes in which windows differ are indexed by arrays and go first; the others are sliced.
    wide = [d for d in moved if d in w.inner]
    at = []
    for d in moved:
        start = xp.broadcast_to(starts[d], w.counts)
        start = start.reshape(w.counts + (1,) * len(wide))
        if d in wide:
            line = [-1 if d == e else 1 for e in wide]
            start = start + xp.arange(slice_sizes[d]).reshape(line)
        at.append(start)
    source = xp.transpose(x, moved + still)
    source = source[(slice(None),) * len(moved) + tuple(slice(slice_sizes[d]) for d in still)]
    if not at:
        out = xp.broadcast_to(source, w.counts + source.shape)
    elif len(at) == 1 and source.flags.c_contiguous:
        out = xp.take(source, at[0], axis=0)
    else:
        out = xp.asarray(source[tuple(at)])
    # Now the axes are those of the index vectors, then of the windows, moved before still ones.
    kept = wide + [d for d in still if d in w.inner]
    n = len(w.counts)
    out = out.reshape(w.counts + tuple(slice_sizes[d] for d in kept))
    if mode is FILL_OR_DROP and not valid.all():
        fill = xp.asarray(default_fill(x.dtype) if fill_value is None else fill_value, x.dtype)
        out = xp.where(valid.reshape(w.counts + (1,) * len(kept)), out, fill)
    order = dict(zip(w.outer, range(n), strict=True))
    order |= {o: n + kept.index(d) for o, d in zip(w.offsets, w.inner, strict=True)}
    return xp.transpose(out, [order[i] for i in range(len(order))])


def _gather_jvp(primals, tangents, *, fill_value, **params):
    x, indices = primals
    y = gather_p.bind(x, indices, fill_value=fill_value, **params)
    return y, gather_p.bind(tangents[0], indices, fill_value=0, **params)


def _gather_transpose(ct, x, indices, *, dimension_numbers, slice_sizes, mode, fill_value, **hints):
    base = zeros(x.aval.update(dtype=aval_of(ct).dtype))
    numbers = ScatterDimensionNumbers(*dimension_numbers)
    return [scatter_add_p.bind(base, indices, ct, dimension_numbers=numbers, mode=mode, **hints),
            None]  # fmt: skip


def _gather_batch(
    axis, args, dims, *, dimension_numbers, slice_sizes, indices_are_sorted, unique_indices, **rest
):
    (x, indices), (x_dim, indices_dim) = args, dims
    operand, vectors = x_dim is not None, indices_dim is not None
    out = gather_p.bind(
        move_axis(x, x_dim, 0) if operand else x,
        move_axis(indices, indices_dim, 0) if vectors else indices,
        dimension_numbers=batched_numbers(dimension_numbers, operand, vectors),
        slice_sizes=(1 if vectors else axis.size, *slice_sizes) if operand else slice_sizes,
        indices_are_sorted=indices_are_sorted and not vectors,
        unique_indices=unique_indices and operand,
        **rest,
    )
    return out, 0


def _gather_dims(x, indices, *, dimension_numbers, slice_sizes, **rest):
    w = Windows(x.shape, indices.shape[:-1], dimension_numbers, slice_sizes)
    operand, vectors, gathered = w.axis_names()
    return f"{' '.join(operand)}, {' '.join([*vectors, '.'])} -> {' '.join(gathered)}"


gather_p = Primitive(
    name="gather",
    abstract=_gather_abstract,
    impl=_gather_impl,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    dims=_gather_dims,
    passes=2,
)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Any:
    """Windows of `operand`, one for each vector along the last axis of `start_indices`.

    With component k of a vector v, the window starts at v[k] in operand axis
    `dimension_numbers.start_index_map[k]`, at 0 in axes that no component maps to, and has
    `slice_sizes`. The result has the windows' axes (but collapsed ones) at `offset_dims`, and
    the indices' axes (but the last) in order at the others.

    `mode` says what becomes of a window that is not inside the operand: "fill" (and None) puts
    `fill_value` (by default NaN, or the least signed or greatest unsigned integer), "clip" moves
    it inside, "promise_in_bounds" says that there is none. Raises ShapeError where axes or sizes
    don't fit.

    >>> from funcgrad import lax
    >>> numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    >>> where = lax.reshape(lax.iota("int32", 2), (2, 1))
    >>> lax.gather(lax.iota("int32", 6), where, numbers, (1,))
    Array([0, 1], dtype=int32)
    """
    parsed = GatherScatterMode.from_any(mode)
    return gather_p.bind(
        operand,
        start_indices,
        dimension_numbers=axes_as_tuples(GatherDimensionNumbers, dimension_numbers),
        slice_sizes=integers("gather", "slice_sizes", slice_sizes),
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
        mode=parsed,
        fill_value=fill_value if parsed is FILL_OR_DROP else None,
    )


def axes_as_tuples(kind: Any, numbers: Any) -> Any:
    """Dimension numbers whose fields are tuples of ints, so that programs can hold them."""
    given = items_of("dimension_numbers", numbers)
    if len(given) != len(kind._fields):
        raise TypeError(within(f"dimension_numbers must be {kind.__name__}, got {numbers!r}"))
    return kind(*(integers(kind.__name__, f, v) for f, v in zip(kind._fields, given, strict=True)))


# ---- scatters: the parts that they share


def window_sizes(rank: int, updates: tuple[int, ...], numbers: Any) -> tuple[int, ...]:
    """The window size in each operand axis: the updates', and 1 in axes that they lack."""
    inner = inner_axes(rank, numbers)
    at = {d: updates[o] for d, o in zip(inner, numbers[0], strict=False) if o < len(updates)}
    return tuple(at.get(d, 1) for d in range(rank))


def scatter_windows(x: Any, indices: Any, updates: Any, numbers: Any) -> Windows:
    """The windows of a scatter, from the shapes of its operands."""
    sizes = window_sizes(len(x.shape), updates.shape, numbers)
    return Windows(x.shape, indices.shape[:-1], numbers, sizes)


def _scatter_abstract(name: str, need: str, accepts: Callable) -> Callable:
    def rule(x, indices, updates, *, dimension_numbers, **rest):
        if not accepts(x.dtype):
            raise DTypeError(f"{name}: need {need}, got operand {x}")
        if updates.dtype != x.dtype:
            raise DTypeError(f"{name}: updates must have the operand's dtype, got {updates}, {x}")
        check_scatter(name, x, indices, updates, dimension_numbers)
        return x.update(weak_type=x.weak_type and updates.weak_type)

    return rule


def _scatter_impl(combine: Callable) -> Callable:
    def rule(xp, x, indices, updates, *, dimension_numbers, mode, **hints):
        w = scatter_windows(x, indices, updates, dimension_numbers)
        starts, valid = w.positions(xp, indices)
        n = len(w.counts)
        # The place of each update in the flat operand, with axes [vectors..., windows...].
        place = xp.zeros(w.counts + (1,) * len(w.inner), np.int64)
        stride = 1
        for d in reversed(range(x.ndim)):
            if d in starts:
                start = xp.broadcast_to(starts[d], w.counts)
                place = place + stride * start.reshape(w.counts + (1,) * len(w.inner))
            if d in w.inner:
                line = [-1 if d == e else 1 for e in w.inner]
                place = place + stride * xp.arange(w.sizes[d]).reshape((1,) * n + tuple(line))
            stride *= x.shape[d]
        values = xp.transpose(updates, w.outer + w.offsets)
        if mode is not CLIP and not valid.all():
            place, values = place[valid], values[valid]
        out = xp.array(x, order="C")
        return combine(xp, out.reshape(-1), place.ravel(), values.ravel()).reshape(x.shape)

    return rule


def accumulate(ufunc: Callable) -> Callable:
    """Combine updates with an operator; narrow floats are accumulated in float32."""

    def rule(xp, flat, place, values):
        narrow = dtypes.is_float(flat.dtype) and flat.dtype.itemsize < 4
        wide = flat.astype(np.float32) if narrow else flat
        op, values = ufunc(xp), values.astype(wide.dtype)
        if xp is np:
            op.at(wide, place, values)
        else:
            place, values = merged(xp, op, place, values)
            wide[place] = op(wide[place], values)
        return wide.astype(flat.dtype) if narrow else wide

    return rule


def _scatter_batch(prim: Callable[[], Primitive]) -> Callable:
    def rule(axis, args, dims, *, dimension_numbers, indices_are_sorted, **rest):
        (x, indices, updates), (x_dim, indices_dim, updates_dim) = args, dims
        vectors = indices_dim is not None
        out = prim().bind(
            batch_front(x, x_dim, axis.size),
            move_axis(indices, indices_dim, 0) if vectors else indices,
            batch_front(updates, updates_dim, axis.size),
            dimension_numbers=batched_numbers(dimension_numbers, True, vectors),
            indices_are_sorted=indices_are_sorted and not vectors,
            **rest,
        )
        return out, 0

    return rule


def _scatter_dims(x, indices, updates, *, dimension_numbers, **rest):
    w = scatter_windows(x, indices, updates, dimension_numbers)
    operand, vectors, gathered = w.axis_names()
    # Updates at different vectors may meet in one element: such axes can't be cut.
    free = {v for i, v in enumerate(vectors) if i not in w.batching.values()}
    vectors = ["." if v in free else v for v in vectors] + ["."]
    gathered = ["." if v in free else v for v in gathered]
    left = f"{' '.join(operand)}, {' '.join(vectors)}, {' '.join(gathered)}"
    return f"{left} -> {' '.join(operand)}"


def scatter_primitive(
    name: str,
    combine: Callable,
    jvp: Any,
    transpose: Any,
    need: str = "an array",
    accepts: Callable[[np.dtype], bool] = lambda dtype: True,
    **traits: Any,
) -> Primitive:
    """A scatter from how updates are combined with what is there, and its derivatives."""
    made = Primitive(
        name=name,
        abstract=_scatter_abstract(name, need, accepts),
        impl=_scatter_impl(combine),
        jvp=jvp,
        transpose=transpose,
        batch=_scatter_batch(lambda: made),
        dims=_scatter_dims,
        **traits,
    )
    return made


def gather_updates(
    source: Any, indices: Any, updates: ShapedArray, fill: Any = 0, *, dimension_numbers, mode,
    **hints,
) -> Any:  # fmt: skip
    """What stands in an array at the places where a scatter would put each of its updates."""
    rank = len(aval_of(source).shape)
    return gather_p.bind(
        source,
        indices,
        dimension_numbers=GatherDimensionNumbers(*dimension_numbers),
        slice_sizes=window_sizes(rank, updates.shape, dimension_numbers),
        mode=mode,
        fill_value=fill if mode is FILL_OR_DROP else None,
        **hints,
    )


# ---- scatter_add


def is_number(dtype: np.dtype) -> bool:
    """Whether dtype has sums and products.

    >>> is_number(np.dtype(bool))
    False
    """
    return dtype != dtypes.BOOL


def _add_jvp(primals, tangents, **params):
    g, _, g_updates = tangents
    y = scatter_add_p.bind(*primals, **params)
    return y, scatter_add_p.bind(instantiate(g), primals[1], instantiate(g_updates), **params)


def _add_transpose(ct, x, indices, updates, **params):
    ct_updates = None
    if is_linear(updates):
        ct_updates = gather_updates(ct, indices, updates.aval, **params)
    return [ct if type(x) is Linear else None, None, ct_updates]


scatter_add_p = scatter_primitive(
    "scatter_add",
    accumulate(lambda xp: xp.add),
    _add_jvp,
    _add_transpose,
    "numbers",
    is_number,
    passes=2,
)
