"""Elements of ops that look at many of their operand's: windows, and positions of extrema."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from funcgrad.backends.loops.builder import Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Load, Loop, Operand, Value, walk
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.backends.lower.pull import Indices, Pull, Rule
from funcgrad.core.ir import Eqn
from funcgrad.core.primitive import Primitive
from funcgrad.ops.base import position_dtype
from funcgrad.ops.convolution.pooling import window_max_p, window_min_p, window_sum_p
from funcgrad.ops.reduce import argmax_p, argmin_p, highest, lowest

BOOL, FLOAT32 = np.dtype(bool), np.dtype(np.float32)
# Reads the operand's element of a turn.
Read = Callable[[Value], Operand]

# ---- pooling

_WINDOWS = {window_sum_p: "add", window_max_p: "maximum", window_min_p: "minimum"}


def _met(p: dict) -> list[int]:
    """How many elements of the operand a window meets at most, along each axis; of dilated windows
    how many it has."""
    axes = zip(p["window_dimensions"], p["base_dilation"], p["window_dilation"], strict=True)
    return [n if step > 1 else -(-n // hole) for n, hole, step in axes]


def _inside(b: Builder, eqn: Eqn, at: Indices, element: Indices) -> tuple[list[Index], list]:
    """Where an element that a window may meet stands in the operand, and the conditions for it to
    be there."""
    p = eqn.params
    source, conditions = [], []
    for d, n in enumerate(eqn.ins[0].aval.shape):
        low, hole, step = (p["padding"][d][0], p["base_dilation"][d], p["window_dilation"][d])
        start = scale_index(at[d], p["window_strides"][d], -low)
        if hole == 1 or step > 1:
            position = add_indices(start, scale_index(element[d], step))
            if hole != 1:
                position, rest = b.divide(position, hole)
                conditions.append(b.compare("less", rest, 1))
        else:
            # The first element that isn't before the window, and those that follow it.
            first, rest = b.divide(scale_index(start, 1, hole - 1), hole)
            position = add_indices(first, element[d])
            ahead = add_indices(scale_index(element[d], hole, hole - 1), scale_index(rest, -1))
            conditions.append(b.compare("less", ahead, p["window_dimensions"][d]))
        conditions += [b.compare("greater_equal", position, 0), b.compare("less", position, n)]
        source.append(position)
    return source, conditions


def _window(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    b, (x,) = pull.builder, eqn.ins
    op = _WINDOWS[eqn.prim]
    dtype = FLOAT32 if x.aval.dtype in HALVES else x.aval.dtype
    start = {"add": 0, "maximum": lowest(dtype), "minimum": highest(dtype)}[op]
    if dtype == BOOL:
        op = {"maximum": "bitwise_or", "minimum": "bitwise_and"}.get(op, op)
    identity = Const(start, dtype)

    def body(element: Indices, total: Value) -> list[Operand]:
        source, conditions = _inside(b, eqn, at, element)
        inside = b.all_of(conditions)
        with b.guarded(inside):
            value = b.convert(pull.read(x, source), dtype)
        if inside is not None:
            value = b.op("where", dtype, inside, value, identity)
        return [b.op(op, dtype, total, value)]

    (total,) = b.nest(_met(eqn.params), body, [identity], [op])
    return b.convert(total, x.aval.dtype)


# ---- positions


def _position(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    b, (x,), limits = pull.builder, eqn.ins, pull.limits
    (axis,) = eqn.params["axes"]
    shape = x.aval.shape
    dtype = FLOAT32 if x.aval.dtype in HALVES else x.aval.dtype
    counter = position_dtype(shape[axis])

    def read(k: Value) -> Operand:
        i = Index(0, ((1, k),))
        return b.convert(pull.read(x, [*at[:axis], i, *at[axis:]]), dtype)

    beside, points = math.prod(shape[axis + 1 :]), math.prod(shape) // max(1, shape[axis])
    found = None
    if beside >= limits.beside and points >= limits.points and dtype != BOOL:
        found = _by_rows(b, eqn, read, dtype, counter)
    if found is None:
        found = _by_reductions(b, eqn, read, dtype, counter)
    return b.convert(found, eqn.outs[0].aval.dtype)


def _by_rows(
    b: Builder, eqn: Eqn, read: Read, dtype: np.dtype, counter: np.dtype
) -> Operand | None:
    """One loop, which vectorizes over points: the extremum so far and its place. None if it goes
    along memory, as what is read is transposed."""
    greatest = eqn.prim is argmax_p
    n = eqn.ins[0].aval.shape[eqn.params["axes"][0]]

    def turn(k: Value, best: Value, place: Value) -> list[Operand]:
        value = read(k)
        better = b.op("greater" if greatest else "less", BOOL, value, best)
        if dtype.kind == "f":
            # The first NaN stays: nothing compares with it.
            known = b.op("equal", BOOL, best, best)
            odd = b.op("bitwise_and", BOOL, b.op("isnan", BOOL, value), known)
            better = b.op("bitwise_or", BOOL, better, odd)
        return [
            b.op("where", dtype, better, value, best),
            b.op("where", counter, better, b.convert(k, counter), place),
        ]

    starts = [Const(lowest(dtype) if greatest else highest(dtype), dtype), Const(0, counter)]
    _, place = b.loop(n, turn, starts)
    made = b.blocks[-1].stmts[-1]
    assert isinstance(made, Loop)
    loads = [s for s in walk(made.body) if isinstance(s, Load)]
    if any(abs(c) == 1 for s in loads for c, v in s.index.terms if v is made.axis):
        b.blocks[-1].stmts.pop()
        return None
    return place


def _by_reductions(b: Builder, eqn: Eqn, read: Read, dtype: np.dtype, counter: np.dtype) -> Operand:
    """Two reductions, which vectorize: the extremum, and the first place where it, or NaN, is."""
    greatest = eqn.prim is argmax_p
    n = eqn.ins[0].aval.shape[eqn.params["axes"][0]]
    combine, start = ("maximum", lowest(dtype)) if greatest else ("minimum", highest(dtype))
    if dtype == BOOL:
        combine = "bitwise_or" if greatest else "bitwise_and"

    def best(k: Value, so_far: Value) -> list[Operand]:
        return [b.op(combine, dtype, so_far, read(k))]

    def first(k: Value, so_far: Value) -> list[Operand]:
        value = read(k)
        hit = b.op("equal", BOOL, value, extremum)
        if dtype.kind == "f":
            hit = b.op("bitwise_or", BOOL, hit, b.op("isnan", BOOL, value))
        place = b.op("where", counter, hit, b.convert(k, counter), Const(n, counter))
        return [b.op("minimum", counter, so_far, place)]

    (extremum,) = b.loop(n, best, [Const(start, dtype)], [combine], parallel=True)
    (position,) = b.loop(n, first, [Const(n, counter)], ["minimum"], parallel=True)
    return position


RULES: dict[Primitive, Rule] = {
    argmax_p: _position,
    argmin_p: _position,
    **dict.fromkeys(_WINDOWS, _window),
}


def cost(eqn: Eqn) -> int:
    """How many scalar ops an element takes."""
    if eqn.prim in _WINDOWS:
        return 64 + 4 * math.prod(eqn.params["window_dimensions"])
    return 64 + 3 * eqn.ins[0].aval.shape[eqn.params["axes"][0]]
