"""Kernels of ops that run through memory in an order of their own: updates in place, and running
sums.

An update writes into the memory of its first operand, which was copied there if it is still needed.
Windows of a scatter may meet, so that they are written one after the other; columns of windows, and
batches, are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from funcgrad.backends.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.kernels import Written, column_block
from funcgrad.backends.loops import Buffer, Const, Index, Operand, Value
from funcgrad.backends.lower_index import window_starts
from funcgrad.backends.scalars import HALVES
from funcgrad.backends.special import SpecialKernel
from funcgrad.core.ir import Eqn
from funcgrad.ops.gather import scatter_windows
from funcgrad.ops.reduce import highest, lowest
from funcgrad.ops.windows import GatherScatterMode

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
_COMBINE = {
    "scatter_add": "add", "scatter_mul": "multiply", "scatter_min": "minimum",
    "scatter_max": "maximum",
}  # fmt: skip
_RUNNING = {
    "cumsum": "add", "cumprod": "multiply", "cummax": "maximum", "cummin": "minimum",
    "cumlogsumexp": "logaddexp",
}  # fmt: skip
# How many rows have their running sums side by side, unless they are SHORT.
ABREAST, SHORT = 4, 256


def _dynamic_update_slice(k: SpecialKernel, eqn: Eqn) -> Written:
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


def _scatter(k: SpecialKernel, eqn: Eqn) -> Written:
    b, p = k.builder, eqn.params
    x, indices, updates = eqn.ins
    w = scatter_windows(x.aval, indices.aval, updates.aval, p["dimension_numbers"])
    out = k.params.write(eqn.outs[0], "inout")
    alone = set(w.batching.values()) if not p["unique_indices"] else set(range(len(w.counts)))
    vector: list[Index | None] = [
        k.outer(n) if i in alone else None for i, n in enumerate(w.counts)
    ]
    sizes = [w.sizes[d] for d in w.inner]
    # Columns of the windows are independent; the last window axis is cut into tasks.
    others = math.prod(a.size for a in k.axes)
    block = column_block(sizes[-1], others) if sizes and sizes[-1] else 1
    column = k.outer(sizes[-1] // block) if sizes and sizes[-1] else ZERO
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

        b.nest([*sizes[:-1], block] if sizes else [], write_element, parallel=True)

    b.nest(serial, write_window)
    return k.done(eqn)


def _combine(k: SpecialKernel, eqn: Eqn, out: Buffer, place: Index, value: Operand) -> None:
    """Store an update, combined with what is there."""
    b, op, dtype = k.builder, _COMBINE.get(eqn.prim.name), out.dtype
    if op is not None:
        wide = FLOAT32 if dtype in HALVES else dtype
        if dtype == BOOL:
            op = {"minimum": "bitwise_and", "maximum": "bitwise_or"}.get(op, op)
        both = [b.convert(v, wide) for v in (b.load(out, place), value)]
        value = b.convert(b.op(op, wide, *both), dtype)
    b.store(out, place, value)


# ---- running sums


def _running(k: SpecialKernel, eqn: Eqn) -> Written:
    b, (x,) = k.builder, eqn.ins
    axis, shape = eqn.params["axis"], x.aval.shape
    n, reverse = shape[axis], eqn.params["reverse"]
    dtype = FLOAT32 if x.aval.dtype in HALVES else x.aval.dtype
    op = _RUNNING[eqn.prim.name]
    start = {"add": 0, "multiply": 1, "maximum": lowest(dtype), "minimum": highest(dtype),
             "logaddexp": -np.inf}[op]  # fmt: skip
    initial = Const(start, dtype)
    out = k.params.write(eqn.outs[0])

    # Rows, the axis, and everything after it.
    columns = math.prod(shape[axis + 1 :])
    cut = (*shape[:axis], n, columns)

    def step(i: Value, column: Index, row: Sequence[Index]) -> tuple[Operand, Index]:
        turn = Index(0, ((1, i),))
        turn = scale_index(turn, -1, n - 1) if reverse else turn
        place = b.flatten([*row, turn, column], cut)
        return b.convert(k.pull.read_flat(x, place), dtype), place

    if columns == 1:
        # An extremum of floats, with NaN, takes many cycles, one of integers a cycle.
        ordered = op in ("maximum", "minimum") and dtype.kind == "f"
        kind = np.dtype(f"i{dtype.itemsize}") if ordered else dtype
        if ordered:
            initial = Const((lowest if op == "maximum" else highest)(kind), kind)
        # Each turn waits for the one before: rows side by side don't wait for each other.
        together = ABREAST if axis and shape[axis - 1] % ABREAST == 0 and n >= SHORT else 1
        rows = [k.outer(m) for m in (*shape[: axis - 1], shape[axis - 1] // together) if axis]
        others = [rows] if together == 1 else [
            [*rows[:-1], scale_index(rows[-1], together, i)] for i in range(together)
        ]  # fmt: skip

        def turn(i: Value, *totals: Value) -> list[Operand]:
            steps = [step(i, ZERO, row) for row in others]
            values = [_to_ordered(b, v, kind, op) if ordered else v for v, _ in steps]
            so_far = [b.op(op, kind, t, v) for t, v in zip(totals, values, strict=True)]
            for value, (_, place) in zip(so_far, steps, strict=True):
                value = b.op("bitcast", dtype, _flipped(b, value)) if ordered else value
                b.store(out, place, b.convert(value, out.dtype))
            return so_far

        b.loop(n, turn, [initial] * together)
        return k.done(eqn)
    rows = [k.outer(m) for m in shape[:axis]]
    block = column_block(columns, math.prod(shape[:axis]))
    first = scale_index(k.outer(columns // block), block)
    totals = k.params.local(dtype, block)

    def line(i: Value) -> None:
        def column(c: Value) -> None:
            here = Index(0, ((1, c),))
            value, place = step(i, add_indices(first, here), rows)
            value = b.op(op, dtype, b.load(totals, here), value)
            b.store(totals, here, value)
            b.store(out, place, b.convert(value, out.dtype))

        b.loop(block, column, parallel=True)

    b.loop(block, lambda c: b.store(totals, Index(0, ((1, c),)), initial), parallel=True)
    b.loop(n, line)
    return k.done(eqn)


def _flipped(b: Builder, bits: Operand) -> Operand:
    """The bits of floats as integers in the floats' order, and back: all but the sign turn over
    in negative ones."""
    kind = bits.dtype
    sign = b.op("right_shift", kind, bits, Const(8 * kind.itemsize - 1, kind))
    mask = b.op("bitwise_and", kind, sign, Const(highest(kind), kind))
    return b.op("bitwise_xor", kind, bits, mask)


def _to_ordered(b: Builder, value: Operand, kind: np.dtype, op: str) -> Operand:
    """A float as an integer of its rank; NaN is the extreme one, whose bits are NaN again."""
    rank = _flipped(b, b.op("bitcast", kind, value))
    extreme = Const((highest if op == "maximum" else lowest)(kind), kind)
    return b.op("where", kind, b.op("isnan", BOOL, value), extreme, rank)


WRITERS = {
    "dynamic_update_slice": _dynamic_update_slice,
    **dict.fromkeys(["scatter", *_COMBINE], _scatter),
    **dict.fromkeys(_RUNNING, _running),
}
