"""Rows that a later turn reads are asked for in time, where processors don't see them coming.

Where an index that is read from memory says which row comes next, or which element of a row, each
row would begin with waiting for memory; and so would short rows far apart. So each turn of the loop
around computes where a turn some bytes of rows later will read, and prefetches that. Rows that take
several passes are asked for while the second pass over a block of rows before them goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.backends.llvm.emit.schedule import coefficient
from funcgrad.backends.llvm.emit.text import STAYS
from funcgrad.backends.loops.ir import (
    Buffer,
    Const,
    Index,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Value,
    While,
    reads,
    walk,
)

LINE = 64
# Bytes of rows that are on their way, and of a row of which any elements are read.
AHEAD, MOST_ROW = 8192, 16_384
# Bytes of a row that are asked for at most, and from which on one at a known place is: shorter ones
# are mostly of small arrays.
LONG_ROW, SHORT_ROW = 4096, 512
# Of a longer row, as many are asked for at a time: more would fill the processor's queue of lines
# that are on their way, and what is computed next would wait for them.
PIECE = 512


def prefetch_rows(
    e: Any, axis: Value, turn: str, size: int, inner: Value, length: int,
    around: Sequence[Stmt], inside: Sequence[Stmt], serial: bool, plain: bool = False,
    step: int = 1,
) -> None:  # fmt: skip
    """In a turn of a loop along `axis`, before the loop along `inner`: prefetch for a later turn.

    e: the emitter. around, inside: the statements around and inside the inner loop
    serial: whether the turns run in order, in one task
    plain: whether the inner loop could prefetch (`in_pieces`), where rows are at known places
    step: how much further the next turn is
    """
    wanted: list[tuple[Load | Store, int, list[Stmt]]] = []
    made = {s.out: s for s in (*around, *inside) if isinstance(s, Op | Load)}
    for s in inside:
        if isinstance(s, Load | Store) and not any(_same(s, t) for t, _, _ in wanted):
            nbytes, needed = _row(s, axis, inner, length, made, serial)
            if nbytes:
                wanted.append((s, nbytes, needed))
    # Where a block of points is in hand, its values are read from arrays at first use.
    if not wanted or type(e.env) is not dict:
        return
    later = step * max(1, AHEAD // sum(n for _, n, _ in wanted))
    outer = _goes_on(e, axis, size, wanted)
    last = str(size - 1)
    if outer is None:
        later = min(size - 1, later)
    else:
        left = e.f.let(f"sub nuw nsw i64 {e.sizes[outer]}, {e.env[outer]}")
        last = e.f.let(f"sub nuw nsw i64 {e.f.let(f'mul nuw nsw i64 {left}, {size}')}, 1")
    now, e.env = e.env, dict(e.env)
    moved = e.f.let(f"add nuw nsw i64 {turn}, {later}")
    e.env[axis] = e.f.intrinsic("smin", "i64", moved, last)
    e.env[inner] = "0"
    numbers = {id(t) for _, _, needed in wanted for t in needed}
    e.body([t for t in (*around, *inside) if id(t) in numbers])
    for s, nbytes, _ in wanted:
        index = Index(s.index.const, tuple(t for t in s.index.terms if t[1] in e.env))
        place = e.address(s.buffer, index)
        if plain and not numbers and nbytes % PIECE == 0:
            e.soon.setdefault(inner, []).append((place, nbytes))
        else:
            _lines(e, place, nbytes, isinstance(s, Store))
    e.env = now


def in_pieces(e: Any, s: Loop, run: Callable[[str, str], Any]) -> None:
    """A loop over a row, run(start, stop), with rows that are to be prefetched meanwhile."""
    soon = e.soon.pop(s.axis)
    pieces = math.gcd(s.size, *(nbytes // PIECE for _, nbytes in soon))
    size = s.size // pieces

    def turn(i: str) -> None:
        for place, nbytes in soon:
            at = e.f.let(f"mul nuw nsw i64 {i}, {nbytes // pieces}")
            _lines(e, e.f.let(f"getelementptr i8, ptr {place}, i64 {at}"), nbytes // pieces, False)
        low = e.f.let(f"mul nuw nsw i64 {i}, {size}")
        run(low, e.f.let(f"add nuw nsw i64 {low}, {size}"))

    e.loop("0", str(pieces), turn, parallel=False, hints=[STAYS])


def prefetch_turns(e: Any, s: While) -> None:
    """The same in a turn of a loop that counts up from some number, for rows that a later turn
    will read, or who goes on counting where this loop ends."""
    at = inner_loop(s)
    if at is None or len(s.carries) != 1:
        return
    inner: Any = s.body[at]
    axis, around = s.carries[0].inside, s.body[:at]
    steps = [t for t in s.body if isinstance(t, Op) and t.out is s.carries[0].next]
    if not steps or steps[0].name != "add" or steps[0].args[0] is not axis:
        return
    by = steps[0].args[1]
    numbers = [t for t in around if isinstance(t, Load) and coefficient(t.index, axis)]
    if not isinstance(by, Const) or by.value < 1 or not numbers:
        return
    if any(t.index.terms != ((1, axis),) for t in numbers):
        return
    size = min(t.buffer.size - t.index.const for t in numbers)
    prefetch_rows(e, axis, e.env[axis], size, inner.axis, inner.size, around, inner.body, True,
                  step=int(by.value))  # fmt: skip


def prefetch_block(e: Any, axis: Value, most: int, j: str) -> None:
    """In a pass over row number j of a block of rows along `axis`, at most so many: prefetch what
    the passes over the next block read first."""
    loops = {s.axis: s for s in walk(e.kernel.body) if isinstance(s, Loop)}
    outer = {a.value for a in e.kernel.axes}
    low, _ = e.bounds[axis]
    asked: set[Buffer] = set()
    for s in walk(e.kernel.body):
        if not isinstance(s, Load) or s.buffer.role != "in" or s.buffer in asked:
            continue
        inner = [v for _, v in s.index.terms if v not in outer]
        if len(inner) != 1 or inner[0] not in loops or coefficient(s.index, inner[0]) != 1:
            continue
        if coefficient(s.index, axis):
            asked.add(s.buffer)
            now = e.env
            later = e.f.let(f"add nuw nsw i64 {e.f.let(f'add nuw nsw i64 {low}, {j}')}, {most}")
            row = e.f.intrinsic("smin", "i64", later, str(e.sizes[axis] - 1))
            e.env = {**now.shared, axis: row, inner[0]: "0"}
            nbytes = loops[inner[0]].size * s.buffer.dtype.itemsize
            _lines(e, e.address(s.buffer, s.index), nbytes, False)
            e.env = now


def _goes_on(
    e: Any, axis: Value, size: int, wanted: Sequence[tuple[Load | Store, int, list[Stmt]]]
) -> Value | None:
    """The axis of a loop around whose next turn goes on where turns along `axis` end, in all that
    says where rows are."""
    found: set[Value] = set()
    for s, _, needed in wanted:
        loads = [t for t in needed if isinstance(t, Load)]
        if not loads or coefficient(s.index, axis):
            return None
        for t in loads:
            step = size * coefficient(t.index, axis)
            around = {v for c, v in t.index.terms if c == step and v in e.sizes and v is not axis}
            others = any(v is not axis and v not in around for _, v in t.index.terms)
            if not around or others or any(coefficient(s.index, v) for v in around):
                return None
            found |= around
    ops = (t for _, _, needed in wanted for t in needed if isinstance(t, Op))
    (outer,) = found if len(found) == 1 else (None,)
    return None if any(a is axis or a is outer for t in ops for a in t.args) else outer


def _same(s: Load | Store, t: Load | Store) -> bool:
    """Whether two accesses are to the same rows, but for a few elements."""
    terms = [{v: c for c, v in x.index.terms} for x in (s, t)]
    near = abs(s.index.const - t.index.const) * s.buffer.dtype.itemsize < LINE
    return s.buffer is t.buffer and terms[0] == terms[1] and near


def _row(
    s: Load | Store, axis: Value, inner: Value, length: int, made: dict[Value, Op | Load],
    serial: bool,
) -> tuple[int, list[Stmt]]:  # fmt: skip
    """The bytes of the row that an access is to, and what computes its place; 0 if it is none."""
    width = s.buffer.dtype.itemsize
    gathered = [v for _, v in s.index.terms if v in made]
    if s.buffer.role == "scratch":
        return 0, []
    in_order = coefficient(s.index, inner) == 1
    if not gathered:
        # The next turn of a loop that isn't serial may be another task's.
        moves = serial and in_order and coefficient(s.index, axis) and isinstance(s, Load)
        short = SHORT_ROW <= length * width <= LONG_ROW
        return (length * width if moves and short else 0), []
    if in_order:
        needed = _needed(gathered, axis, inner, made)
        return (min(length * width, LONG_ROW), needed) if needed else (0, [])
    # Any element of a row that is known: all of it, if about each line is read.
    row = coefficient(s.index, axis) * width
    read = LINE < row <= MOST_ROW and length * LINE >= row and not coefficient(s.index, inner)
    return (row if read else 0), []


def _needed(
    values: Sequence[Value], axis: Value, inner: Value, made: dict[Value, Op | Load]
) -> list[Stmt]:
    """The statements that compute values from what changes with `axis`; [] if others are in it."""
    found: dict[Value, Stmt] = {}
    todo, moves = list(values), False
    while todo:
        v = todo.pop()
        moves |= v is axis
        if v is inner:
            return []
        s = made.get(v)
        if s is None or v in found:
            continue
        found[v] = s
        if not isinstance(s, Op) and (s.guard is not None or s.buffer.role != "in"):
            return []
        todo += [a for a in reads(s) if isinstance(a, Value)]
    return list(found.values()) if moves else []


def _lines(e: Any, place: str, nbytes: int, write: bool) -> None:
    """Prefetch so many bytes, which may begin anywhere in a line."""
    types = ["ptr", "i32", "i32", "i32"]
    e.module.declare("llvm.prefetch.p0", "void", types)

    def ask(offset: str) -> None:
        line = e.f.let(f"getelementptr i8, ptr {place}, i64 {offset}")
        e.f.call("llvm.prefetch.p0", "void", types, [line, str(int(write)), "2", "1"])

    def turn(i: str) -> None:
        ask(e.f.let(f"mul nuw nsw i64 {i}, {LINE}"))

    ask(str(nbytes - 1))
    e.loop("0", str(-(-nbytes // LINE)), turn, parallel=False)


def inner_loop(s: Loop | While) -> int | None:
    """Where in a loop's body its only loop stands, if that is a parallel one."""
    found = [i for i, b in enumerate(s.body) if isinstance(b, Loop)]
    if len(found) != 1:
        return None
    inner = s.body[found[0]]
    return found[0] if isinstance(inner, Loop) and inner.parallel and inner.size else None
