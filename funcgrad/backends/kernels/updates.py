"""Kernels of updates in place, which run through memory in an order of their own.

An update writes into the memory of its first operand, which was copied there if it is still needed.
Windows of a scatter may meet, so that they are written one after the other; columns of windows that
all start at one place, and batches, are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, add_indices, scale_index
from funcgrad.backends.loops.ir import Buffer, Index, Operand
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.index import window_starts
from funcgrad.core.ir import Eqn
from funcgrad.ops.indexing.gather import scatter_add_p, scatter_windows
from funcgrad.ops.indexing.scatter import scatter_max_p, scatter_min_p, scatter_mul_p
from funcgrad.ops.indexing.windows import GatherScatterMode, Windows

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
_COMBINE = {
    scatter_add_p: "add", scatter_mul_p: "multiply", scatter_min_p: "minimum",
    scatter_max_p: "maximum",
}  # fmt: skip


def dynamic_update_slice(k: SpecialKernel, eqn: Eqn) -> Written:
    """A window of an array written over."""
    b = k.builder
    x, update, *starts = eqn.ins
    out = k.params.write(eqn.outs[0], "inout")
    at = [k.outer(n) for n in update.aval.shape]
    place = [
        add_indices(i, k.pull.start(s, (), n - m))
        for i, s, n, m in zip(at, starts, x.aval.shape, update.aval.shape, strict=True)
    ]
    b.store(out, b.flatten(place, x.aval.shape), k.pull.read(update, at))
    return k.done(eqn)


def scatter(k: SpecialKernel, eqn: Eqn) -> Written:
    """Windows of an array written over, or combined with what is there."""
    b, p = k.builder, eqn.params
    x, indices, updates = eqn.ins
    w = scatter_windows(x.aval, indices.aval, updates.aval, p["dimension_numbers"])
    out = k.params.write(eqn.outs[0], "inout")
    alone = set(w.batching.values()) if not p["unique_indices"] else set(range(len(w.counts)))
    vector: list[Index | None] = [
        k.outer(n) if i in alone else None for i, n in enumerate(w.counts)
    ]
    sizes = [w.sizes[d] for d in w.inner]
    # Where all windows start at one place, an axis' elements are independent.
    apart = [p["unique_indices"] or d not in w.mapped or w.sizes[d] == w.shape[d] for d in w.inner]
    lines = [k.outer(n) for n in sizes] if _is_across(w) and all(apart) else []
    # The last window axis is cut into tasks.
    others = math.prod(a.size for a in k.axes)
    block, column = sizes[-1] if sizes else 1, ZERO
    if sizes and sizes[-1] and apart[-1] and not lines:
        block = k.column_block(sizes[-1], others)
        column = k.outer(sizes[-1] // block)
    serial = [n for i, n in enumerate(w.counts) if i not in alone]
    clip = p["mode"] is GatherScatterMode.CLIP

    def write_window(serial_at: Sequence[Index]) -> None:
        rest = iter(serial_at)
        at = [next(rest) if v is None else v for v in vector]
        starts, valid = window_starts(k.pull, w, indices, at, clip)

        def write_element(inner: Sequence[Index]) -> None:
            inner = list(inner)
            if inner:
                inner[-1] = add_indices(inner[-1], scale_index(column, block))
            place = [starts.get(d, ZERO) for d in range(len(w.shape))]
            source = [ZERO] * updates.aval.ndim
            for o, d, i in zip(w.offsets, w.inner, inner, strict=True):
                place[d], source[o] = add_indices(place[d], i), i
            for o, i in zip(w.outer, at, strict=True):
                source[o] = i
            with b.guarded(valid):
                _combine(k, eqn, out, b.flatten(place, w.shape), k.pull.read(updates, source))

        if lines:
            write_element(lines)
        else:
            b.nest([*sizes[:-1], block] if sizes else [], write_element, parallel=True)

    b.nest(serial, write_window)
    return k.done(eqn)


def _is_across(w: Windows) -> bool:
    """Whether windows are columns, of elements that are far apart: each line then takes its
    elements of all windows, one after the other."""
    last = len(w.shape) - 1
    within = last in w.batching or (last in w.inner and w.sizes[last] != 1)
    return bool(w.inner) and w.shape[last] > 1 and not within


def _combine(k: SpecialKernel, eqn: Eqn, out: Buffer, place: Index, value: Operand) -> None:
    """Store an update, combined with what is there."""
    b, op, dtype = k.builder, _COMBINE.get(eqn.prim), out.dtype
    if op is not None:
        wide = FLOAT32 if dtype in HALVES else dtype
        if dtype == BOOL:
            op = {"minimum": "bitwise_and", "maximum": "bitwise_or"}.get(op, op)
        both = [b.convert(v, wide) for v in (b.load(out, place), value)]
        value = b.convert(b.op(op, wide, *both), dtype)
    b.store(out, place, value)
