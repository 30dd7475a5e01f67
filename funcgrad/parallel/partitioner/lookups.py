"""Reading and writing by position, where devices hold blocks of the axis that is looked up in.

What is read is on one device: it has the value, the others zeros, and their sum is the result. What
is written, each device writes where it lies in its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dims import Dims
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import broadcast_p, full, zeros
from funcgrad.ops.elementwise.arithmetic import sub
from funcgrad.ops.elementwise.compare import bitwise_and, eq, ge, lt
from funcgrad.ops.elementwise.convert import clamp, convert_element_type, select_n
from funcgrad.ops.indexing.gather import scatter_windows
from funcgrad.ops.indexing.windows import GatherScatterMode, Windows
from funcgrad.ops.indexing.windows_at import dynamic_slice_p
from funcgrad.ops.reduce import reduce_and
from funcgrad.ops.shape import broadcasted_iota
from funcgrad.parallel.partitioner.site import Shape, Site

# ---- windows: a row of an axis that is cut is on one device


def _row(axis: int) -> str:
    """The factor of an operand axis that is looked up in, by an index or a window's start."""
    return f"row{axis}"


def _window_names(
    x: ShapedArray, sizes: Shape, rows: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The factors of an operand and of a window of it: axes it has whole share one; with `rows`, an
    axis of which it takes one element may be cut, too."""
    names, window = dims_.letters(x.ndim), dims_.letters(x.ndim)
    for d, (n, m) in enumerate(zip(x.shape, sizes, strict=True)):
        if n != m:
            names[d] = _row(d) if m == 1 and rows else "."
            window[d] = "."
    return tuple(names), tuple(window)


def _known(starts: Sequence[ShapedArray]) -> bool:
    return not any(s.dtype == np.uint64 for s in starts)


def read_dims(x: ShapedArray, *starts: ShapedArray, slice_sizes: Shape) -> Dims:
    """The factors of `dynamic_slice`."""
    rows = x.dtype != dtypes.BOOL and _known(starts)
    names, window = _window_names(x, slice_sizes, rows)
    return Dims((names, *((),) * len(starts)), (window,), frozenset())


def read(site: Site, x: Any, *starts: Any) -> Any:
    """A window. Of what it takes from cut axes, one device has it, the others have zeros."""
    (shape,) = site.out_shapes
    local, mine = _local_starts(site, aval_of(x).shape, starts)
    out = dynamic_slice_p.bind(x, *local, slice_sizes=shape)
    return out if mine is None else select_n(mine, zeros(aval_of(out)), out)


def write_dims(x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> Dims:
    """The factors of `dynamic_update_slice`."""
    names, window = _window_names(x, update.shape, _known(starts))
    return Dims((names, window, *((),) * len(starts)), (names,), frozenset())


def write(site: Site, x: Any, update: Any, *starts: Any) -> Any:
    """An update of a window, on the device in whose block it lies."""
    local, mine = _local_starts(site, aval_of(x).shape, starts)
    out = site.bind(x, update, *local)
    return out if mine is None else select_n(mine, x, out)


def _local_starts(site: Site, block: Shape, starts: Sequence[Any]) -> tuple[list[Any], Any]:
    """Where a window starts in a device's block, and whether it lies there (None: always)."""
    cut = [d for d in range(len(starts)) if _row(d) in site.assigned]
    if not cut:
        return list(starts), None
    local, mine = [_signed(s) for s in starts], []
    for d in cut:
        dtype = aval_of(local[d]).dtype
        low, high, top = (np.asarray(n, dtype) for n in (0, block[d], site.ins[0].shape[d] - 1))
        inside = clamp(low, local[d], top)
        local[d] = sub(inside, convert_element_type(site.offset(_row(d), block[d]), dtype))
        mine += [ge(local[d], low), lt(local[d], high)]
    return local, reduce(bitwise_and, mine)


def slice_dims(
    x: ShapedArray, *, start_indices: Shape, limit_indices: Shape, strides: Shape | None
) -> Dims:
    """The factors of `slice`; an axis of whose blocks a stride takes as much each may be cut."""
    sizes = tuple(hi - lo for lo, hi in zip(start_indices, limit_indices, strict=True))
    steps = strides or (1,) * x.ndim
    plain = all(k == 1 for k in steps)
    names, window = map(list, _window_names(x, sizes, plain and x.dtype != dtypes.BOOL))
    for d, k in enumerate(steps):
        if k > 1:
            taken = -(-sizes[d] // k)
            even = start_indices[d] < k and taken * k == x.shape[d]
            names[d] = window[d] = dims_.letters(x.ndim)[d] if even else "."
    return Dims((tuple(names),), (tuple(window),), frozenset())


def slice_block(site: Site, x: Any) -> Any:
    """A slice: of blocks, or of a row that one device has."""
    start, limit = site.params["start_indices"], site.params["limit_indices"]
    if any(_row(d) in site.assigned for d in range(len(start))):
        return read(site, x, *(np.int32(i) for i in start))
    local = tuple(map(min, limit, aval_of(x).shape))
    return site.bind(x, limit_indices=local)


# ---- lookups: index vectors into an axis of which each device holds a block


def _pointed_at(windows: Windows, indices: ShapedArray) -> list[int]:
    """The operand axes of which windows take one element each, wherever an index points."""
    if indices.dtype == np.uint64:
        return []
    return [d for d in windows.mapped if d in windows.numbers[1] and d not in windows.batching]


def gather_dims(
    x: ShapedArray, indices: ShapedArray, *, dimension_numbers: Any, slice_sizes: Shape, **rest: Any
) -> Dims:
    """The factors of `gather`."""
    w = Windows(x.shape, indices.shape[:-1], dimension_numbers, slice_sizes)
    operand, vectors, gathered = w.axis_names()
    if x.dtype != dtypes.BOOL:
        for d in _pointed_at(w, indices):
            operand[d] = _row(d)
    return Dims((tuple(operand), (*vectors, ".")), (tuple(gathered),), frozenset())


def gather(site: Site, x: Any, indices: Any) -> Any:
    """Windows at index vectors: each device gives those that start in its block."""
    (shape,) = site.out_shapes
    numbers, mode = site.params["dimension_numbers"], site.params["mode"]
    sizes = tuple(map(min, site.params["slice_sizes"], aval_of(x).shape))
    w = Windows(aval_of(x).shape, aval_of(indices).shape[:-1], numbers, sizes)
    cut = [d for d in w.mapped if _row(d) in site.assigned]
    if not cut:
        return site.bind(x, indices, slice_sizes=sizes)
    fills = mode is GatherScatterMode.FILL_OR_DROP
    local, mine = _local_indices(site, w, indices, cut, outside=-1 if fills else None)
    found = site.bind(x, local, slice_sizes=sizes, indices_are_sorted=False)
    mine = broadcast_p.bind(mine, shape=shape, broadcast_dimensions=w.outer)
    return select_n(mine, zeros(aval_of(found)), found)


def _local_indices(
    site: Site, w: Windows, indices: Any, cut: Sequence[int], outside: int | None
) -> tuple[Any, Any]:
    """Index vectors as they count in a device's block, and which of them point into it. Each vector
    belongs to one device, also if it points outside of the whole axis: there it is `outside`."""
    indices = _signed(indices)
    aval = aval_of(indices)
    whole = site.ins[0].shape
    top = _components([whole[d] - 1 for d in w.mapped], aval)
    zero = zeros(aval)
    inside = clamp(zero, indices, top)
    starts = [site.offset(_row(d), w.shape[d]) if d in cut else 0 for d in w.mapped]
    local = sub(inside, _components(starts, aval))
    blocks = _components([w.shape[d] for d in w.mapped], aval)
    held = bitwise_and(ge(local, zero), lt(local, blocks))
    if outside is not None:
        local = select_n(eq(inside, indices), full(aval.shape, outside, aval.dtype), local)
    if len(cut) < len(w.mapped):
        is_cut = _components([d in cut for d in w.mapped], aval.update(dtype=np.dtype(bool)))
        held = select_n(is_cut, full(aval.shape, True), held)
        local = select_n(is_cut, indices, local)
    return local, reduce_and(held, axes=(aval.ndim - 1,))


def _signed(indices: Any) -> Any:
    dtype = aval_of(indices).dtype
    wide = np.int64 if dtype.itemsize == 8 or dtype == np.uint32 else np.int32
    return convert_element_type(indices, np.dtype(wide))


def _components(values: Sequence[Any], aval: ShapedArray) -> Any:
    """An array of a type whose last axis holds these scalars."""
    out = full(aval.shape, _scalar(values[0], aval.dtype))
    for k, v in enumerate(values[1:], 1):
        here = eq(
            broadcasted_iota("int32", aval.shape, aval.ndim - 1), full(aval.shape, np.int32(k))
        )
        out = select_n(here, out, full(aval.shape, _scalar(v, aval.dtype)))
    return out


def _scalar(value: Any, dtype: np.dtype) -> Any:
    return (
        convert_element_type(value, dtype) if hasattr(value, "aval") else np.asarray(value, dtype)
    )


def scatter_dims(
    x: ShapedArray, indices: ShapedArray, updates: ShapedArray, *, dimension_numbers: Any,
    **rest: Any,
) -> Dims:  # fmt: skip
    """The factors of `scatter`."""
    return _scattering(x, indices, updates, dimension_numbers, adds=False)


def scatter_add_dims(
    x: ShapedArray, indices: ShapedArray, updates: ShapedArray, *, dimension_numbers: Any,
    **rest: Any,
) -> Dims:  # fmt: skip
    """The factors of `scatter_add`."""
    return _scattering(x, indices, updates, dimension_numbers, adds=True)


def _scattering(
    x: ShapedArray, indices: ShapedArray, updates: ShapedArray, numbers: Any, adds: bool
) -> Dims:
    """The factors of a scatter. Updates at different vectors may meet in one element: their axes
    can be cut only where they are added, as parts of one sum."""
    w = scatter_windows(x, indices, updates, numbers)
    operand, vectors, gathered = w.axis_names()
    for d in _pointed_at(w, indices):
        operand[d] = _row(d)
    if not adds:
        free = {v for i, v in enumerate(vectors) if i not in w.batching.values()}
        vectors = ["." if v in free else v for v in vectors]
        gathered = ["." if v in free else v for v in gathered]
    ins = (tuple(operand), (*vectors, "."), tuple(gathered))
    return Dims(ins, (tuple(operand),), frozenset())


def scatter(site: Site, x: Any, indices: Any, updates: Any) -> Any:
    """Updates at index vectors: each device puts those that start in its block."""
    numbers, mode = site.params["dimension_numbers"], site.params["mode"]
    w = scatter_windows(aval_of(x), aval_of(indices), aval_of(updates), numbers)
    cut = [d for d in w.mapped if _row(d) in site.assigned]
    if not cut:
        return site.bind(x, indices, updates)
    indices = _signed(indices)
    aval = aval_of(indices)
    if mode is GatherScatterMode.CLIP:
        top = [site.ins[0].shape[d] - w.sizes[d] for d in w.mapped]
        indices = clamp(zeros(aval), indices, _components(top, aval))
    starts = [site.offset(_row(d), w.shape[d]) if d in cut else 0 for d in w.mapped]
    # What lies in other devices' blocks lies outside of this one, and is dropped.
    local = sub(indices, _components(starts, aval))
    return site.bind(x, local, updates, mode=GatherScatterMode.FILL_OR_DROP)
