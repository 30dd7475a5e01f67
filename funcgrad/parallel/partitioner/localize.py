"""Ops on blocks: what beside operands changes where an op sees a part of its arrays.

Most ops work on blocks as they are, or with the parameters that their rule `blocks` gives. The
table `RULES` holds the others: axes that are cut in more ways than an op's `dims` say, counts that
begin at the block's offset, lookups (`lookups`), collectives inside of shard_map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dims import Dims
from funcgrad.core.primitive import Primitive
from funcgrad.ops.base import full
from funcgrad.ops.collective.exchanges import all_to_all_p, ppermute_p
from funcgrad.ops.collective.reductions import (
    all_gather_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    psum_p,
    psum_scatter_p,
)
from funcgrad.ops.collective.varying import assume_invariant_p, psum_invariant_p, pvary_p
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import gather_p, scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p, scatter_p
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p
from funcgrad.ops.shape import iota_p, reshape_p
from funcgrad.ops.slicing import pad_p, slice_p
from funcgrad.parallel.partitioner import attend, lookups, shift
from funcgrad.parallel.partitioner.site import Shape, Site
from funcgrad.transforms.attention.attention import (
    attention_backward_p,
    attention_p,
    attention_tangent_p,
)


@dataclass(frozen=True)
class Rule:
    """How an op works on blocks.

    emit(site, *blocks) → the op's result on blocks
    dims: an axis mapping in place of the op's own, for what `emit` makes possible
    partial: operands of which contracted factors need but one device's value (a sum's first term)
    instead: factors to cut in place of whole ones that operands are cut in, and of followed ones,
        so that the work stays shared
    follows: factors that may be cut where another one is, over the same mesh axes, which share the
        work once
    sends(types of operands, parameters, assignment, sizes) → the bytes that the op itself sends
    """

    emit: Callable[..., Any]
    dims: Callable[..., Dims | str] | None = None
    partial: tuple[int, ...] = ()
    instead: tuple[str, ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict)
    sends: Callable[..., float] | None = None


def emit(site: Site, values: Sequence[Any]) -> list:
    """An op's results on a device's blocks."""
    rule = RULES.get(site.prim)
    out = (rule.emit if rule else _as_is)(site, *values)
    return list(out) if site.prim.multiple else [out]


# ---- parameters that are shapes


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


def _pad_dims(x: ShapedArray, value: ShapedArray, *, padding_config: Any) -> Dims:
    """An axis may be cut on which the same surrounds each of its elements."""
    names = tuple(
        f if min(low, high) >= 0 and low + high == inner else "."
        for f, (low, high, inner) in zip(dims_.letters(x.ndim), padding_config, strict=True)
    )
    return Dims((names, ()), (names,), frozenset())


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
    blocks = site.prim.blocks
    return site.bind(*values, **(blocks(site.out_shapes, **site.params) if blocks else {}))


_COLLECTIVES = {
    **dict.fromkeys((psum_p, pmax_p, pmin_p, ppermute_p), Rule(_as_is, _same_dims)),
    all_to_all_p: Rule(_as_is, _exchange_dims),
    all_gather_p: Rule(_as_is, _gathering_dims),
    psum_scatter_p: Rule(_as_is, _scattering_dims),
    axis_index_p: Rule(_as_is, lambda **params: " -> "),
    # Marks for derivatives, which have been taken.
    psum_invariant_p: Rule(_sum, _same_dims),
    **dict.fromkeys((pvary_p, assume_invariant_p), Rule(lambda site, x: x, _same_dims)),
}

# Heads (or texts) where texts are cut: each device then has whole texts of its heads.
_INSTEAD = ("n", "b")

RULES: dict[Primitive, Rule] = {
    **_COLLECTIVES,
    reshape_p: Rule(_as_is, _reshape_dims),
    attention_p: Rule(
        attend.attend, attend.dims, instead=_INSTEAD, follows={"s": "t"}, sends=attend.sends
    ),
    attention_tangent_p: Rule(_as_is, instead=_INSTEAD),
    attention_backward_p: Rule(
        attend.attend_backward,
        attend.backward_dims,
        instead=_INSTEAD,
        follows={"s": "t"},
        sends=attend.backward_sends,
    ),
    iota_p: Rule(_iota, _iota_dims),
    pad_p: Rule(_as_is, _pad_dims),
    shift.shift_p: Rule(shift.shift_block),
    slice_p: Rule(lookups.slice_block, lookups.slice_dims),
    dynamic_slice_p: Rule(lookups.read, lookups.read_dims),
    dynamic_update_slice_p: Rule(lookups.write, lookups.write_dims),
    gather_p: Rule(lookups.gather, lookups.gather_dims),
    scatter_add_p: Rule(lookups.scatter, lookups.scatter_add_dims, partial=(0,)),
    **dict.fromkeys(
        (scatter_p, scatter_mul_p, scatter_min_p, scatter_max_p),
        Rule(lookups.scatter, lookups.scatter_dims),
    ),
}
