"""Kernels of ops that run through memory in an order of their own: updates in place, and running
sums.

An update writes into the memory of its first operand, which was copied there if it is still needed.
Windows of a scatter may meet, so that they are written one after the other; columns of windows that
all start at one place, and batches, are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from funcgrad.ops.windows import GatherScatterMode, Windows

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
ABREAST, SHORT = 4, 32


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
    # Where all windows start at one place, an axis' elements are independent.
    apart = [p["unique_indices"] or d not in w.mapped or w.sizes[d] == w.shape[d] for d in w.inner]
    lines = [k.outer(n) for n in sizes] if _is_across(w) and all(apart) else []
    # The last window axis is cut into tasks.
    others = math.prod(a.size for a in k.axes)
    block, column = sizes[-1] if sizes else 1, ZERO
    if sizes and sizes[-1] and apart[-1] and not lines:
        block = column_block(sizes[-1], others)
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
    b, op, dtype = k.builder, _COMBINE.get(eqn.prim.name), out.dtype
    if op is not None:
        wide = FLOAT32 if dtype in HALVES else dtype
        if dtype == BOOL:
            op = {"minimum": "bitwise_and", "maximum": "bitwise_or"}.get(op, op)
        both = [b.convert(v, wide) for v in (b.load(out, place), value)]
        value = b.convert(b.op(op, wide, *both), dtype)
    b.store(out, place, value)


# ---- rows by an order of the updates


def _rows(k: SpecialKernel, eqn: Eqn) -> Written:
    """Row by row: in place, those that have updates; else all of them, from zeros."""
    b, depth, how = k.builder, eqn.params["depth"], eqn.params["how"]
    *start, order, updates = eqn.ins
    shape, dtype = eqn.outs[0].aval.shape, eqn.outs[0].aval.dtype
    out = k.params.write(eqn.outs[0], "inout" if start else "out")
    rows, inner = math.prod(shape[:depth]), shape[depth:]
    counts = updates.aval.shape[: updates.aval.ndim - len(inner)]
    n, row = math.prod(counts), k.outer(rows)
    block = column_block(inner[-1], rows)
    first = scale_index(k.outer(inner[-1] // block), block)
    sizes = (*inner[:-1], block)
    wide = FLOAT32 if dtype in HALVES else dtype
    sums = k.params.local(wide, math.prod(sizes))
    begin, end = (k.pull.start(order, [add_indices(row, Index(i))], n) for i in (0, 1))
    last = b.integer(end)

    def there(at: Operand) -> Operand:
        return b.op("less", BOOL, at, last)

    def columns(write: Callable[[Index, list[Index], Index], None]) -> None:
        """write(place in the sums, indices in a row, place in the result) for each column."""

        def column(at: Sequence[Index]) -> None:
            inside = [*at[:-1], add_indices(first, at[-1])]
            flat = add_indices(scale_index(row, math.prod(inner)), b.flatten(inside, inner))
            write(b.flatten(at, sizes), inside, flat)

        b.nest(sizes, column, parallel=True)

    def begin_row(place: Index, inside: list[Index], flat: Index) -> None:
        b.store(sums, place, b.convert(b.load(out, flat), wide) if start else Const(0, wide))

    def combine(at: Value) -> list[Operand]:
        number = k.pull.start(order, [Index(rows + 2, ((1, at),))], n - 1)
        source = b.unflatten(number, counts)

        def one(place: Index, inside: list[Index], flat: Index) -> None:
            value = b.convert(k.pull.read(updates, [*source, *inside]), wide)
            b.store(sums, place, b.op(how, wide, b.load(sums, place), value))

        columns(one)
        return [b.op("add", at.dtype, at, Const(1, at.dtype))]

    def finish_row(place: Index, inside: list[Index], flat: Index) -> None:
        b.store(out, flat, b.convert(b.load(sums, place), dtype))

    def write_row(at: Operand) -> list[Operand]:
        columns(begin_row)
        b.while_(there, combine, [at])
        columns(finish_row)
        return [last]

    if start:
        b.while_(there, write_row, [b.integer(begin)])
    else:
        write_row(b.integer(begin))
    return k.done(eqn)


# ---- running sums


def _running(k: SpecialKernel, eqn: Eqn) -> Written:
    running = _Running(k, eqn)
    if running.columns == 1:
        running.along()
    else:
        running.across()
    return k.done(eqn)


class _Running:
    """What sums, products or extremes so far along an axis are written with: the axes before it,
    the axis, and everything after it as columns."""

    def __init__(self, k: SpecialKernel, eqn: Eqn):
        (self.x, *self.before), self.k = eqn.ins, k
        axis, shape = eqn.params["axis"], self.x.aval.shape
        self.lead, self.n, self.columns = shape[:axis], shape[axis], math.prod(shape[axis + 1 :])
        self.reverse = eqn.params["reverse"]
        self.dtype = FLOAT32 if self.x.aval.dtype in HALVES else self.x.aval.dtype
        self.op = eqn.params["how"] if self.before else _RUNNING[eqn.prim.name]
        self.out = k.params.write(eqn.outs[0])

    def step(self, i: Value, column: Index, row: Sequence[Index]) -> tuple[Operand, Index]:
        """The element of turn i, and where it lies."""
        b, turn = self.k.builder, Index(0, ((1, i),))
        turn = scale_index(turn, -1, self.n - 1) if self.reverse else turn
        place = b.flatten([*row, turn, column], (*self.lead, self.n, self.columns))
        return b.convert(self.k.pull.read_flat(self.x, place), self.dtype), place

    def store(self, place: Index, value: Operand) -> None:
        b = self.k.builder
        b.store(self.out, place, b.convert(value, self.out.dtype))

    def along(self) -> None:
        """Along rows that lie in memory one element after the other."""
        k, b, op, dtype, lead = self.k, self.k.builder, self.op, self.dtype, self.lead
        # An extremum of floats, with NaN, takes many cycles, one of integers a cycle.
        ordered = op in ("maximum", "minimum") and dtype.kind == "f"
        kind = np.dtype(f"i{dtype.itemsize}") if ordered else dtype
        # Each turn waits for the one before: rows side by side don't wait for each other.
        together = ABREAST if lead and lead[-1] % ABREAST == 0 and self.n >= SHORT else 1
        rows = [k.outer(m) for m in (*lead[:-1], lead[-1] // together)] if lead else []
        others = [rows] if together == 1 else [
            [*rows[:-1], scale_index(rows[-1], together, i)] for i in range(together)
        ]  # fmt: skip

        def turn(i: Value, *totals: Value) -> list[Operand]:
            steps = [self.step(i, ZERO, row) for row in others]
            values = [_to_ordered(b, v, kind, op) if ordered else v for v, _ in steps]
            so_far = [b.op(op, kind, t, v) for t, v in zip(totals, values, strict=True)]
            for value, (_, place) in zip(so_far, steps, strict=True):
                self.store(place, b.op("bitcast", dtype, _flipped(b, value)) if ordered else value)
            return so_far

        starts = [
            _to_ordered(b, k.pull.read(x, row), kind, op) if ordered else k.pull.read(x, row)
            for x in self.before for row in others
        ]  # fmt: skip
        b.loop(self.n, turn, starts or [_initial(op, kind)] * together)

    def across(self) -> None:
        """From line to line, blocks of columns abreast."""
        k, b, op, dtype = self.k, self.k.builder, self.op, self.dtype
        rows = [k.outer(m) for m in self.lead]
        block = column_block(self.columns, math.prod(self.lead))
        first = scale_index(k.outer(self.columns // block), block)
        totals = k.params.local(dtype, block)

        def line(i: Value) -> None:
            def column(c: Value) -> None:
                here = Index(0, ((1, c),))
                value, place = self.step(i, add_indices(first, here), rows)
                value = b.op(op, dtype, b.load(totals, here), value)
                b.store(totals, here, value)
                self.store(place, value)

            b.loop(block, column, parallel=True)

        initial = _initial(op, dtype)
        b.loop(block, lambda c: b.store(totals, Index(0, ((1, c),)), initial), parallel=True)
        b.loop(self.n, line)


def _initial(op: str, dtype: np.dtype) -> Const:
    """What changes nothing."""
    start = {"add": 0, "multiply": 1, "maximum": lowest(dtype), "minimum": highest(dtype),
             "logaddexp": -np.inf}[op]  # fmt: skip
    return Const(start, dtype)


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
    **dict.fromkeys(["sum_rows", "update_rows"], _rows),
    **dict.fromkeys([*_RUNNING, "running"], _running),
}
