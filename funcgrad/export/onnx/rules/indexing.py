"""Windows at computed positions: gathers, scatters, dynamic slices and updates.

Runtimes refuse indices out of range, so all are moved inside before; what a mode fills or drops is
chosen afterwards, or scattered to a row that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.dims import Dim, product
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import I8
from funcgrad.export.onnx.rules.structure import counted, joined
from funcgrad.ops.indexing.gather import default_fill, gather_p, scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p, scatter_p
from funcgrad.ops.indexing.windows import GatherScatterMode, Windows, inner_axes
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p

Ins = Sequence[Tensor]
FILL_OR_DROP, CLIP = GatherScatterMode.FILL_OR_DROP, GatherScatterMode.CLIP


def _scalar(g: Graph, n: int) -> Tensor:
    if isinstance(n, Dim):
        return g.root.reshape(g.root.size(n), ())
    return g.constant(int(n), I8)


def _long(g: Graph, x: Tensor) -> Tensor:
    """Indices as int64; what is beyond it is as far out as can be."""
    if x.dtype == np.dtype("u8"):
        x = g.elementwise("Min", x, g.constant(2**63 - 1, x.dtype))
    return g.cast(x, I8)


def _within(g: Graph, x: Tensor, most: Tensor) -> Tensor:
    return g.elementwise("Min", g.elementwise("Max", x, g.constant(0, I8)), most)


def _starts(g: Graph, w: Windows, indices: Tensor) -> tuple[dict[int, Tensor], Tensor | None]:
    """Where windows start in each axis in which they differ, moved inside, as arrays of the counts'
    rank; and which did not need to be moved (None: all)."""
    starts: dict[int, Tensor] = {}
    valid: Tensor | None = None
    last = indices.rank - 1
    wide = _long(g, indices)
    for k, axis in enumerate(w.mapped):
        wanted = g.reshape(g.slice(wide, last, k, k + 1), w.counts)
        starts[axis] = _within(g, wanted, _scalar(g, w.shape[axis] - w.sizes[axis]))
        ok = g.compare("Equal", starts[axis], wanted)
        valid = ok if valid is None else g.elementwise("And", valid, ok)
    for axis, of in w.batching.items():
        line = counted(g, w.counts[of], I8)
        starts[axis] = g.broadcast(line, w.counts, (of,))
    return starts, valid


def _flat(
    g: Graph, w: Windows, starts: dict[int, Tensor], wide: Sequence[int]
) -> tuple[Tensor, tuple[int, ...]]:
    """Positions of the windows' elements among those of the moved axes, in row-major order; along
    axes in `wide` windows have more than one."""
    moved = sorted(starts)
    shape = w.counts + tuple(w.sizes[d] for d in wide)
    total: Tensor | None = None
    stride: int = 1
    for d in reversed(moved):
        start = starts[d] if starts[d].small is None else starts[d].small
        assert start is not None
        at = g.reshape(start, start.shape + (1,) * len(wide))
        if d in wide:
            line = counted(g, w.sizes[d], I8)
            thin = [1] * len(shape)
            thin[len(w.counts) + list(wide).index(d)] = w.sizes[d]
            at = g.elementwise("Add", at, g.reshape(line, tuple(thin)))
        term = at if _is_one(stride) else g.elementwise("Mul", at, _scalar(g, stride))
        total = term if total is None else g.elementwise("Add", total, term)
        stride = stride * w.shape[d]
    assert total is not None
    return g.broadcast_small(total, shape), shape


def _is_one(n: int) -> bool:
    return int(n) == 1 and not isinstance(n, Dim)


def gather(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Windows of an array, one for each index vector."""
    (x, indices), p = ins, eqn.params
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    w = Windows(x.shape, indices.shape[:-1], numbers, sizes)
    shape = eqn.outs[0].aval.shape
    mode = p["mode"]
    nominal = eqn.outs[0].aval.dtype
    value = default_fill(nominal) if p["fill_value"] is None else p["fill_value"]
    fill = g.constant(np.asarray(value, nominal).astype(x.dtype))
    if 0 in map(int, shape):
        return [g.full(shape, 0, x.dtype)]
    if 0 in map(int, x.shape):
        return [g.broadcast(fill, shape, ())]
    starts, valid = _starts(g, w, indices)
    out, kept = _gathered(g, x, w, starts)
    if mode is FILL_OR_DROP and valid is not None:
        ok = g.reshape(valid, w.counts + (1,) * len(kept))
        out = g.where(ok, out, fill)
    n = len(w.counts)
    order = dict(zip(w.outer, range(n), strict=True))
    order |= {o: n + kept.index(d) for o, d in zip(w.offsets, w.inner, strict=True)}
    return [g.transpose(out, [order[i] for i in range(len(order))])]


def _gathered(
    g: Graph, x: Tensor, w: Windows, starts: dict[int, Tensor]
) -> tuple[Tensor, list[int]]:
    """The windows' elements, with the axes of the index vectors in front; and which axes of the
    array follow."""
    moved = sorted(starts)
    still = [d for d in range(x.rank) if d not in starts]
    wide = [d for d in moved if d in w.inner and not _is_one(w.sizes[d])]
    for d in still:
        x = g.slice(x, d, 0, w.sizes[d])
    kept = wide + [d for d in moved if d in w.inner and d not in wide]
    kept += [d for d in still if d in w.inner]
    shape = w.counts + tuple(w.sizes[d] for d in kept)
    if not moved:
        thin = g.reshape(x, (1,) * len(w.counts) + tuple(w.sizes[d] for d in kept))
        return g.broadcast_small(thin, shape), kept
    source = g.transpose(x, [*moved, *still])
    rows = product([x.shape[d] for d in moved])
    source = g.reshape(source, (rows, *(x.shape[d] for d in still)))
    place, places = _flat(g, w, starts, wide)
    out = g.op("Gather", source, place, shape=(*places, *source.shape[1:]), data=[0], axis=0)
    return g.reshape(out, shape), kept


# ---- scatters


def _scatter(reduction: str) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x, indices, updates), p = ins, eqn.params
        if 0 in map(int, (*x.shape, *updates.shape)):
            return [x]
        own = x.dtype
        if own == np.dtype("f2") and reduction != "none":
            # Sums of many are rounded once.
            x, updates = (g.cast(v, np.dtype("f4")) for v in (x, updates))
        return [g.cast(_scattered(g, x, indices, updates, p, reduction), own)]

    return rule


def _scattered(
    g: Graph, x: Tensor, indices: Tensor, updates: Tensor, p: dict, reduction: str
) -> Tensor:
    numbers = p["dimension_numbers"]
    inner = inner_axes(x.rank, numbers)
    sizes = [1] * x.rank
    for o, d in zip(numbers[0], inner, strict=True):
        sizes[d] = updates.shape[o]
    w = Windows(x.shape, indices.shape[:-1], numbers, tuple(sizes))
    if any(int(n) > int(m) for n, m in zip(sizes, x.shape, strict=True)):
        return x
    starts, valid = _starts(g, w, indices)
    for d in range(x.rank):  # a window that isn't all of an axis is at its beginning
        if d not in starts and int(sizes[d]) != int(x.shape[d]):
            starts[d] = g.broadcast(g.constant(0, I8), w.counts, ())
    if not starts:
        starts = {0: g.broadcast(g.constant(0, I8), w.counts, ())}
    moved = sorted(starts)
    still = [d for d in range(x.rank) if d not in starts]
    wide = [d for d in moved if d in inner]
    order = [*moved, *still]
    rows = product([x.shape[d] for d in moved])
    source = g.reshape(g.transpose(x, order), (rows, *(x.shape[d] for d in still)))
    place, places = _flat(g, w, starts, wide)
    drop = p["mode"] is not CLIP and valid is not None
    if drop:
        # What is dropped goes to a row behind the last one.
        assert valid is not None
        ok = g.reshape(valid, w.counts + (1,) * len(wide))
        place = g.where(ok, place, _scalar(g, rows))
        border = g.full((1, *source.shape[1:]), 0, x.dtype)
        source = joined(g, [source, border], 0, (rows + 1, *source.shape[1:]))
    kept = wide + [d for d in still if d in inner]
    updates = g.transpose(updates, [*w.outer, *(numbers[0][inner.index(d)] for d in kept)])
    many = product(places)
    flat = g.reshape(updates, (many, *(x.shape[d] for d in still)))
    # Dropped ones all meet in the row behind the last.
    unique = p["unique_indices"] and not drop
    out = _combined(g, source, place, flat, reduction, unique)
    out = g.slice(out, 0, 0, rows) if drop else out
    out = g.reshape(out, tuple(x.shape[d] for d in order))
    return g.transpose(out, [order.index(d) for d in range(x.rank)])


def _combined(
    g: Graph, x: Tensor, place: Tensor, updates: Tensor, reduction: str, unique: bool
) -> Tensor:
    """Rows of x, at these places, combined with updates."""
    if x.dtype == np.bool_ and reduction != "none":
        raise Untranslatable("a scatter that combines booleans")
    nan: Tensor | None = None
    if reduction in ("max", "min") and x.dtype.kind == "f":
        # Kernels compare, and so may lose NaN: they are put in afterwards.
        bad = g.elementwise("IsNaN", updates, dtype=np.dtype(bool))
        count = g.cast(bad, np.dtype("i4"))
        none = g.full(x.shape, 0, count.dtype)
        nan = _put(g, none, place, count, "add", unique)
        already = g.elementwise("IsNaN", x, dtype=np.dtype(bool))
        nan = g.elementwise("Or", already, g.compare("Greater", nan, g.constant(0, nan.dtype)))
        low = g.constant(-np.inf if reduction == "max" else np.inf, x.dtype)
        updates = g.where(bad, low, updates)
    out = _put(g, x, place, updates, reduction, unique)
    return out if nan is None else g.where(nan, g.constant(np.nan, x.dtype), out)


def _put(
    g: Graph, x: Tensor, place: Tensor, updates: Tensor, reduction: str, unique: bool
) -> Tensor:
    attrs: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
    many = updates.shape[0]
    if unique:
        vectors = g.reshape(place, (many, 1))
        return g.op("ScatterND", x, vectors, updates, shape=x.shape, data=[0, 2], **attrs)
    # Of places that meet, ScatterND's threads would lose some; this one goes through them in order.
    thin = g.reshape(place, (many,) + (1,) * (updates.rank - 1))
    each = g.broadcast_small(thin, updates.shape)
    ins = (x, each, updates)
    return g.op("ScatterElements", *ins, axis=0, shape=x.shape, data=[0, 2], **attrs)


# ---- windows at scalars


def _clipped(
    g: Graph, starts: Ins, shape: Sequence[int], sizes: Sequence[int]
) -> dict[int, Tensor]:
    """For each axis that a window isn't all of, where it starts, as a vector of one."""
    return {
        i: _within(g, g.reshape(_long(g, s), (1,)), g.reshape(_scalar(g, n - m), (1,)))
        for i, (s, n, m) in enumerate(zip(starts, shape, sizes, strict=True))
        if int(n) != int(m)
    }


def dynamic_slice(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A window, moved inside."""
    x, *starts = ins
    sizes = eqn.outs[0].aval.shape
    at = _clipped(g, starts, x.shape, sizes)
    if not at:
        return [x]
    if len(at) == 1:
        first, axes = next(iter(at.values())), g.constant([*at], I8)
    else:
        first, axes = joined(g, list(at.values()), 0, (len(at),)), g.constant([*at], I8)
    stop = g.elementwise("Add", first, g.sizes([sizes[i] for i in at]))
    return [g.op("Slice", x, first, stop, axes, shape=sizes, data=[0])]


def dynamic_update_slice(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """An array with a window replaced, which is moved inside."""
    x, update, *starts = ins
    if 0 in map(int, update.shape):
        return [x]
    at = _clipped(g, starts, x.shape, update.shape)
    return [_updated(g, x, update, list(at.items()))]


def _updated(g: Graph, x: Tensor, update: Tensor, at: list[tuple[int, Tensor]]) -> Tensor:
    """Axis by axis: what is before, the window (updated along the other axes), what is after."""
    if not at:
        return update
    (axis, start), *rest = at
    n, m = x.shape[axis], update.shape[axis]
    stop = g.elementwise("Add", start, g.sizes([m]))
    zero, end, axes = g.constant([0], I8), g.sizes([n]), g.constant([axis], I8)

    def cut(a: Tensor, b: Tensor, size: int) -> Tensor:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return g.op("Slice", x, a, b, axes, shape=shape, data=[0])

    window = _updated(g, cut(start, stop, m), update, rest) if rest else update
    # How much is before and after isn't known, but together with the window it is all.
    parts = [cut(zero, start, n), window, cut(stop, end, n)]
    return joined(g, parts, axis, x.shape)


RULES = {
    gather_p: gather,
    scatter_p: _scatter("none"),
    scatter_add_p: _scatter("add"),
    scatter_mul_p: _scatter("mul"),
    scatter_min_p: _scatter("min"),
    scatter_max_p: _scatter("max"),
    dynamic_slice_p: dynamic_slice,
    dynamic_update_slice_p: dynamic_update_slice,
}
