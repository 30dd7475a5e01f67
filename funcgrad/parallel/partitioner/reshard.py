"""From one layout of an array to another by the fewest bytes: steps, what they cost, what they do.

A `Layout` says over which mesh axes each array axis is cut, and over which axes the devices' values
are still to be summed. Slices are free; an axis that moves is an all-to-all; a sum that is wanted
cut is a reduce-scatter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from funcgrad.core.aval import ShapedArray
from funcgrad.core.sharding import Cuts, local_shape
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import zeros
from funcgrad.ops.collective.exchanges import all_to_all_p
from funcgrad.ops.collective.reductions import all_gather_p, axis_index, psum_p, psum_scatter_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select_n
from funcgrad.ops.indexing.windows_at import dynamic_slice_p

Sizes = Mapping[str, int]
Kind = Literal["slice", "first", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"]


class Layout(NamedTuple):
    """How devices hold a value: over which mesh axes each array axis is cut, and over which axes
    the devices' values are still to be summed."""

    cuts: Cuts
    partial: frozenset[str] = frozenset()


class Step(NamedTuple):
    """One move of data: over which mesh axes, along which array axis, and for an all-to-all which
    array axis is cut instead. `first`: only the first devices keep the value, the others zeros."""

    kind: Kind
    axes: tuple[str, ...]
    dim: int = 0
    to: int = 0


def whole(ndim: int) -> Layout:
    """The layout of a value that every device holds whole."""
    return Layout(((),) * ndim)


def local_aval(aval: ShapedArray, layout: Layout, sizes: Sizes) -> ShapedArray:
    """The type of a device's part."""
    return aval.update(shape=local_shape(sizes, layout.cuts, aval.shape))


def extent(axes: Sequence[str], sizes: Sizes) -> int:
    """The number of parts that a cut over these axes makes."""
    n = 1
    for a in axes:
        n *= sizes[a]
    return n


def used_axes(cuts: Cuts) -> set[str]:
    """The mesh axes that a value is cut over."""
    return {a for axes in cuts for a in axes}


@lru_cache(maxsize=65536)
def steps(have: Layout, want: Layout) -> tuple[Step, ...]:
    """How to come from one layout to another.

    >>> [s.kind for s in steps(Layout((("x",), ())), Layout(((), ("x",))))]
    ['all_to_all']
    >>> [s.kind for s in steps(Layout(((),), frozenset({"x"})), Layout((("x",),)))]
    ['reduce_scatter']
    """
    cuts = list(have.cuts)
    due = sorted(have.partial - want.partial)
    found: list[Step] = []

    def next_axis(d: int) -> str | None:
        """The mesh axis to cut dimension d over next, if those before it are in place."""
        n = len(cuts[d])
        return want.cuts[d][n] if len(want.cuts[d]) > n and want.cuts[d][:n] == cuts[d] else None

    def movable(d: int, e: int) -> tuple[str, ...]:
        """The last mesh axes of dimension d that dimension e is to be cut over next, as many as can
        go at once."""
        n, own = len(cuts[e]), cuts[d]
        tails = (own[k:] for k in range(len(own)) if want.cuts[d][: k + 1] != own[: k + 1])
        fits = (t for t in tails if want.cuts[e][: n + len(t)] == cuts[e] + t)
        return next(fits, ())

    def cut_further(kind: Kind, may: Any) -> None:
        for d in range(len(cuts)):
            while (a := next_axis(d)) is not None and may(a):
                found.append(Step(kind, (a,), d))
                cuts[d] += (a,)
                if a in due:
                    due.remove(a)

    def free(a: str) -> bool:
        return a not in due and a not in used_axes(tuple(cuts)) and a not in have.partial

    cut_further("slice", free)
    cut_further("reduce_scatter", lambda a: a in due)
    if due:
        found.append(Step("all_reduce", tuple(due)))
        due.clear()
    while True:
        cut_further("slice", lambda a: a not in used_axes(tuple(cuts)))
        wrong = [d for d in range(len(cuts)) if cuts[d] != want.cuts[d][: len(cuts[d])]]
        if not wrong:
            break
        moves = [(d, e) for d in wrong for e in range(len(cuts)) if movable(d, e)]
        if not moves:
            d = wrong[0]
            found.append(Step("all_gather", cuts[d][-1:], d))
            cuts[d] = cuts[d][:-1]
            continue
        d, to = moves[0]
        axes = movable(d, to)
        found.append(Step("all_to_all", axes, d, to))
        cuts[d], cuts[to] = cuts[d][: -len(axes)], cuts[to] + axes
    if masked := tuple(sorted(want.partial - have.partial)):
        found.append(Step("first", masked))
    return tuple(found)


def cost(aval: ShapedArray, have: Layout, want: Layout, sizes: Sizes) -> float:
    """The bytes that each device sends (and gets) on the way from one layout to another.

    >>> cost(ShapedArray((8,), "float32"), Layout((("x",),)), whole(1), {"x": 4})
    24.0
    """
    if have == want:
        return 0.0
    local = aval.nbytes / math.prod(extent(axes, sizes) for axes in have.cuts)
    total = 0.0
    for step in steps(have, want):
        n = extent(step.axes, sizes)
        total += moved(step.kind, local, n)
        local *= {"slice": 1 / n, "reduce_scatter": 1 / n, "all_gather": n}.get(step.kind, 1)
    return total


def moved(kind: str, local: float, n: int) -> float:
    """The bytes that each of n devices sends in a collective on `local` bytes a device."""
    if kind == "all_gather":
        return (n - 1) * local
    if kind in ("reduce_scatter", "all_to_all"):
        return (n - 1) / n * local
    if kind == "all_reduce":
        return 2 * (n - 1) / n * local
    return local if kind == "permute" and n > 1 else 0.0


def apply(x: Any, have: Layout, want: Layout, sizes: Sizes) -> Any:
    """A device's value in another layout: the steps, bound under the current trace."""
    for step in steps(have, want):
        if extent(step.axes, sizes) > 1:
            x = _take(step, x, sizes)
    return x


def _take(step: Step, x: Any, sizes: Sizes) -> Any:
    kind, axes, dim, to = step
    if kind == "slice":
        shape = list(aval_of(x).shape)
        shape[dim] //= extent(axes, sizes)
        starts: list[Any] = [np.int32(0)] * len(shape)
        starts[dim] = offset(axes, shape[dim])
        return dynamic_slice_p.bind(x, *starts, slice_sizes=tuple(shape))
    if kind == "first":
        return masked_but_first(x, axes)
    if kind == "all_reduce":
        return psum_p.bind(x, axis_name=axes)
    if kind == "reduce_scatter":
        return psum_scatter_p.bind(x, axis_name=axes, axis=dim, tiled=True)
    if kind == "all_gather":
        return all_gather_p.bind(x, axis_name=axes, axis=dim, tiled=True)
    return all_to_all_p.bind(x, axis_name=axes, split=to, concat=dim)


def offset(axes: Sequence[str], block: int) -> Any:
    """Where a device's block begins along an axis that is cut over mesh axes: an int32."""
    return mul(axis_index(tuple(axes)), np.int32(block))


def masked_but_first(x: Any, axes: Sequence[str]) -> Any:
    """x on the devices that come first along mesh axes, zeros on the others."""
    aval = aval_of(x)
    is_first = eq(axis_index(tuple(axes)), np.int32(0))
    return select_n(is_first, zeros(aval), x)
