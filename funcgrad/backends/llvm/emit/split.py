"""Reductions over many elements and to few results, cut in two so that threads can share them.

`split` turns a kernel whose first loop is such a reduction into two: the first reduces each of some
parts of the loop's turns into an array of partial results, the second combines those and goes on
with the rest of the body, which is split in turn. Parts depend on sizes alone, so that results
don't depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.llvm.emit.schedule import (
    LINE,
    MOST_TASKS,
    SERIAL_NS,
    TASK_NS,
    Piece,
    Range,
    cost,
    schedule,
)
from funcgrad.backends.loops.ir import (
    INDEX,
    Axis,
    Buffer,
    Carry,
    Const,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Value,
    walk,
)

ENOUGH_TASKS = 8
MOST_POINTS = 65_536


def split(kernel: Kernel) -> tuple[list[Piece], list[Buffer]]:
    """The kernels that together do what this one does, in order, and the partial results."""
    pieces: list[Piece] = []
    partials: list[Buffer] = []
    rest = kernel
    while (found := _reduction(rest)) is not None:
        first, rest, made = _split_at(rest, *found)
        pieces.append(first)
        partials += made
    pieces.append(Piece(rest, tuple(range(len(rest.params)))))
    return pieces, partials


def _reduction(kernel: Kernel) -> tuple[list[Stmt], Loop] | None:
    """The first loop whose turns threads should share, and what stands before it."""
    if any(b.role == "scratch" for b in kernel.buffers) or kernel.points > MOST_POINTS:
        return None
    before: list[Stmt] = []
    for s in kernel.body:
        if isinstance(s, Loop):
            if any(isinstance(t, Store) for t in walk(s.body)):
                return None
            if _worth_sharing(kernel, s):
                return before, s
            # What is repeated in each part must be cheap.
            if s.size * cost(s.body) > TASK_NS / 10:
                return None
        elif not isinstance(s, Op | Load):
            return None
        before.append(s)
    return None


def _worth_sharing(kernel: Kernel, loop: Loop) -> bool:
    if kernel.points * loop.size * cost(loop.body) < 2 * SERIAL_NS:
        return False
    if loop.size < 2 * ENOUGH_TASKS or not all(c.combine for c in loop.carries):
        return False
    plan = schedule(kernel)
    return bool(loop.carries) and (plan.turns if plan.lead else 1) < ENOUGH_TASKS


def _part_size(kernel: Kernel, loop: Loop) -> int:
    """Turns of one part."""
    work = kernel.points * loop.size * cost(loop.body)
    parts = max(2, min(MOST_TASKS, int(work / TASK_NS), loop.size // 2))
    size = -(-loop.size // parts)
    return -(-size // LINE) * LINE if size > 4 * LINE else size


def _split_at(
    kernel: Kernel, before: Sequence[Stmt], loop: Loop
) -> tuple[Piece, Kernel, list[Buffer]]:
    size = _part_size(kernel, loop)
    parts, points = -(-loop.size // size), kernel.points
    n = len(kernel.params)
    made = [
        Buffer(f"partial{n + i}", c.inside.dtype, parts * points, "out")
        for i, c in enumerate(loop.carries)
    ]
    place = _point_index(kernel.axes)
    first = _first(kernel, before, loop, size, made, place)
    reads = [Buffer(b.name, b.dtype, b.size, "in") for b in made]
    turn = Value(INDEX)
    body: list[Stmt] = []
    carries = []
    for c, b in zip(loop.carries, reads, strict=True):
        x, new, inside = Value(b.dtype), Value(b.dtype), Value(b.dtype)
        body.append(Load(x, b, Index(place.const, ((points, turn), *place.terms))))
        body.append(Op(new, str(c.combine), (inside, x)))
        carries.append(Carry(inside, c.start, new, c.out, c.combine))
    gather = Loop(turn, parts, tuple(body), tuple(carries), parallel=True)
    after = kernel.body[len(before) + 1 :]
    rest = Kernel(
        kernel.name,
        (*kernel.buffers, *reads),
        kernel.axes,
        (*before, gather, *after),
        kernel.in_place,
    )
    return first, rest, made


def _first(
    kernel: Kernel, before: Sequence[Stmt], loop: Loop, size: int, made: Sequence[Buffer],
    place: Index,
) -> Piece:  # fmt: skip
    """The kernel that reduces parts of the loop's turns."""
    part = Axis(Value(INDEX), -(-loop.size // size))
    points, n = kernel.points, len(kernel.params)
    carries, stores = [], []
    for c, b in zip(loop.carries, made, strict=True):
        out = Value(b.dtype)
        start = Const(identity(str(c.combine), b.dtype), b.dtype)
        carries.append(Carry(c.inside, start, c.next, out, c.combine))
        stores.append(Store(b, Index(place.const, ((points, part.value), *place.terms)), out))
    reduce = Loop(loop.axis, loop.size, loop.body, tuple(carries), loop.parallel)
    body = (*before, reduce, *stores)
    used = {s.buffer for s in walk(body) if isinstance(s, Load)}
    kept = [i for i, b in enumerate(kernel.params) if b in used]
    params = (*(kernel.params[i] for i in kept), *made)
    first = Kernel(f"{kernel.name}_parts", params, (part, *kernel.axes), body)
    numbers = (*kept, *(n + i for i in range(len(made))))
    return Piece(first, numbers, {reduce: Range(part.value, size)})


def _point_index(axes: Sequence[Axis]) -> Index:
    """The number of a point."""
    step, terms = 1, []
    for a in reversed(axes):
        terms.append((step, a.value))
        step *= a.size
    return Index(0, tuple(reversed(terms)))


def identity(combine: str, dtype: np.dtype) -> Any:
    """What changes nothing when combined with.

    >>> int(identity("minimum", np.dtype("int8")))
    127
    """
    is_float = dtype.kind == "f"
    if combine in ("maximum", "minimum"):
        low = combine == "maximum"
        if dtype.kind == "b":
            return not low
        info: Any = None if is_float else np.iinfo(dtype)
        if is_float:
            return dtype.type(-np.inf if low else np.inf)
        return info.min if low else info.max
    if combine == "add":
        # Zero's own negative keeps the sign of sums of negative zeros.
        return dtype.type(-0.0) if is_float else dtype.type(0)
    if combine in ("multiply", "bitwise_and"):
        ones = combine == "bitwise_and" and dtype.kind != "b"
        return ~dtype.type(0) if ones else dtype.type(1)
    return dtype.type(0)
