"""Ops on blocks: what beside operands changes where an op sees a part of its arrays.

Most ops work on blocks as they are. The table `RULES` holds the others: parameters that are shapes,
counts that begin at the block's offset, indices into an axis of which a device holds a block (each
device looks up what it has, and the sum over devices is the result).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dims import Dims
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.ops.arithmetic import sub
from funcgrad.ops.base import broadcast_p, full, zeros
from funcgrad.ops.collective import psum_p
from funcgrad.ops.compare import bitwise_and, eq, ge, lt
from funcgrad.ops.convert import clamp, convert_element_type, select_n
from funcgrad.ops.families import add
from funcgrad.ops.gather import scatter_windows
from funcgrad.ops.reduce import reduce_and
from funcgrad.ops.shape import broadcasted_iota
from funcgrad.ops.windows import GatherScatterMode, Windows
from funcgrad.parallel.reshard import Sizes, offset

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """An equation at which a device's blocks meet its op.

    ins: the types of the whole operands
    out_shapes: the shapes of the results' blocks
    assigned: the mesh axes of each factor that is cut
    """

    prim: Primitive
    params: Mapping[str, Any]
    ins: tuple[ShapedArray, ...]
    out_shapes: tuple[Shape, ...]
    assigned: Mapping[str, tuple[str, ...]]
    sizes: Sizes

    def bind(self, *values: Any, **changes: Any) -> Any:
        """The op on blocks, some parameters changed."""
        return self.prim.bind(*values, **{**self.params, **changes})

    def offset(self, factor: str, block: int) -> Any:
        """Where a device's block begins along a factor."""
        return offset(self.assigned[factor], block)


@dataclass(frozen=True)
class Rule:
    """How an op works on blocks.

    emit(site, *blocks) → the op's result on blocks
    dims: an axis mapping in place of the op's own, for what `emit` makes possible
    partial: operands of which contracted factors need but one device's value (a sum's first term)
    """

    emit: Callable[..., Any]
    dims: Callable[..., Dims | str] | None = None
    partial: tuple[int, ...] = ()


def emit(site: Site, values: Sequence[Any]) -> list:
    """An op's results on a device's blocks."""
    rule = RULES.get(site.prim.name)
    out = rule.emit(site, *values) if rule else site.bind(*values)
    return list(out) if site.prim.multiple else [out]


# ---- parameters that are shapes


def _slice(site: Site, x: Any) -> Any:
    limits = zip(site.params["limit_indices"], aval_of(x).shape, strict=True)
    return site.bind(x, limit_indices=tuple(min(pair) for pair in limits))


def _reshape_dims(x: ShapedArray, *, new_sizes: Shape) -> Dims:
    """Axes that split or merge share a factor by their leading parts: what one block holds is
    contiguous in both."""
    ins, outs = ["."] * x.ndim, ["."] * len(new_sizes)
    for k, (own, new) in enumerate(_groups(x.shape, new_sizes)):
        ins[own] = outs[new] = f"a{k}"
    return Dims((tuple(ins),), (tuple(outs),), frozenset())


def _groups(old: Shape, new: Shape) -> list[tuple[int, int]]:
    """For each least run of axes that merge into, or split from, a run of others, the first axis
    on either side that is longer than 1."""
    if not math.prod(old):
        return []
    found = []
    own = [i for i, n in enumerate(old) if n != 1]
    other = [i for i, n in enumerate(new) if n != 1]
    while own:
        i, j = own.pop(0), other.pop(0)
        found.append((i, j))
        left, right = old[i], new[j]
        while left != right:
            if left < right:
                left *= old[own.pop(0)]
            else:
                right *= new[other.pop(0)]
    return found


# ---- counts


def _iota_dims(*, dtype: Any, shape: Shape, dimension: int) -> str:
    return f" -> {' '.join(dims_.letters(len(shape)))}"


def _iota(site: Site) -> Any:
    (shape,), dimension = site.out_shapes, site.params["dimension"]
    factor = dims_.letters(len(shape))[dimension]
    if factor not in site.assigned:
        return site.bind(shape=shape)
    dtype = site.params["dtype"]
    # Counted as integers: a narrow float can't be added to without rounding once more.
    counted = dtype if dtypes.is_integer(dtype) and dtype.itemsize == 8 else np.dtype(np.int32)
    start = convert_element_type(site.offset(factor, shape[dimension]), counted)
    counts = site.bind(shape=shape, dtype=counted)
    return convert_element_type(add(counts, full(shape, start)), dtype)


# ---- lookups: index vectors into an axis of which each device holds a block


def _row(axis: int) -> str:
    """The factor of an operand axis that index vectors point into."""
    return f"row{axis}"


def _pointed_at(windows: Windows, indices: ShapedArray) -> list[int]:
    """The operand axes of which windows take one element each, wherever an index points."""
    if indices.dtype == np.uint64:
        return []
    return [d for d in windows.mapped if d in windows.numbers[1] and d not in windows.batching]


def _gather_dims(
    x: ShapedArray, indices: ShapedArray, *, dimension_numbers: Any, slice_sizes: Shape, **rest: Any
) -> Dims:
    w = Windows(x.shape, indices.shape[:-1], dimension_numbers, slice_sizes)
    operand, vectors, gathered = w.axis_names()
    if x.dtype != dtypes.BOOL:
        for d in _pointed_at(w, indices):
            operand[d] = _row(d)
    return Dims((tuple(operand), (*vectors, ".")), (tuple(gathered),), frozenset())


def _gather(site: Site, x: Any, indices: Any) -> Any:
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


def _scatter_dims(
    x: ShapedArray, indices: ShapedArray, updates: ShapedArray, *, dimension_numbers: Any,
    **rest: Any,
) -> Dims:  # fmt: skip
    return _scattering(x, indices, updates, dimension_numbers, adds=False)


def _scatter_add_dims(
    x: ShapedArray, indices: ShapedArray, updates: ShapedArray, *, dimension_numbers: Any,
    **rest: Any,
) -> Dims:  # fmt: skip
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


def _scatter(site: Site, x: Any, indices: Any, updates: Any) -> Any:
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


# ---- collectives of a shard_map over manual axes; the mesh's other axes may cut their operands


def _same_dims(x: ShapedArray, **params: Any) -> str:
    return dims_.pointwise(x)


def _exchange_dims(x: ShapedArray, *, split: int, concat: int, **params: Any) -> str:
    names = " ".join(
        "." if i in (split, concat) else a for i, a in enumerate(dims_.letters(x.ndim))
    )
    return f"{names} -> {names}"


def _gathering_dims(x: ShapedArray, *, axis: int, tiled: bool, **params: Any) -> str:
    names = dims_.letters(x.ndim)
    rest = [*names[:axis], ".", *names[axis + tiled :]]
    names[axis : axis + tiled] = ["."] * tiled
    return f"{' '.join(names)} -> {' '.join(rest)}"


def _scattering_dims(x: ShapedArray, *, axis: int, tiled: bool, **params: Any) -> str:
    names = dims_.letters(x.ndim)
    names[axis] = "."
    rest = names if tiled else names[:axis] + names[axis + 1 :]
    return f"{' '.join(names)} -> {' '.join(rest)}"


def _sum(site: Site, x: Any) -> Any:
    return psum_p.bind(x, axis_name=site.params["axis_name"])


def _as_is(site: Site, *values: Any) -> Any:
    return site.bind(*values)


_COLLECTIVES = {
    **{n: Rule(_as_is, _same_dims) for n in ("psum", "pmax", "pmin", "ppermute")},
    "all_to_all": Rule(_as_is, _exchange_dims),
    "all_gather": Rule(_as_is, _gathering_dims),
    "psum_scatter": Rule(_as_is, _scattering_dims),
    "axis_index": Rule(_as_is, lambda **params: " -> "),
    # Marks for derivatives, which have been taken.
    "psum_invariant": Rule(_sum, _same_dims),
    "pvary": Rule(lambda site, x: x, _same_dims),
    "assume_invariant": Rule(lambda site, x: x, _same_dims),
}

RULES: dict[str, Rule] = {
    **_COLLECTIVES,
    "broadcast_in_dim": Rule(lambda site, x: site.bind(x, shape=site.out_shapes[0])),
    "reshape": Rule(lambda site, x: site.bind(x, new_sizes=site.out_shapes[0]), _reshape_dims),
    "iota": Rule(_iota, _iota_dims),
    "slice": Rule(_slice),
    "dynamic_slice": Rule(lambda site, *xs: site.bind(*xs, slice_sizes=site.out_shapes[0])),
    "gather": Rule(_gather, _gather_dims),
    "scatter_add": Rule(_scatter, _scatter_add_dims, partial=(0,)),
    **{n: Rule(_scatter, _scatter_dims) for n in ("scatter", "scatter_mul", "scatter_min",
                                                   "scatter_max")},
}  # fmt: skip
