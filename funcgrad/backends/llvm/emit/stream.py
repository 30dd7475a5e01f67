"""Large results are written past the caches, which couldn't hold them until they are read.

A store to a line that isn't in a cache reads it first; a streaming store, of a whole line, doesn't.
(Where nothing is read meanwhile, processors see that lines are written whole.) LLVM's vectorizer
knows no such stores. So where rows of a result are whole lines, the innermost loop goes line by
line: one that LLVM makes vectors of fills a small array, which stays in registers, and what is in
it is stored. Other memory, and the rest of a row, goes the usual way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.backends.llvm.emit.schedule import coefficient, cost
from funcgrad.backends.llvm.emit.text import STAYS, memory_type
from funcgrad.backends.loops.ir import (
    Buffer,
    Kernel,
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
# Nanoseconds of work for an element, from which on memory isn't what a loop waits for.
MOST_WORK = 0.4
# So often the size from which on results are large is what a kernel reads and writes, where the
# caches would lose much of it (Zen 4: from 2.5 to 3, or from 2 where it reads twice as much).
CROWDED = 2.5

Run = Callable[[str, str], Any]


def streams(kernel: Kernel, least: int) -> set[int]:
    """The ids of the stores that may go past the caches: of each element of a result of at least
    so many bytes (0: there are none), once, in a kernel that reads much, but not the result (or
    nobody knows how much, as its loops end where values say).

    That is more than the caches hold; or it would push scratch out of the first of them.
    """
    written = Counter(s.buffer for s in walk(kernel.body) if isinstance(s, Store))
    read = {s.buffer for s in walk(kernel.body) if isinstance(s, Load)}
    if not least:
        return set()
    unknown = any(isinstance(s, While) for s in walk(kernel.body))
    much = sum(b.size * b.dtype.itemsize for b in read if b.role == "in")
    scratch = any(b.role == "scratch" for b in kernel.buffers)
    crowded = 0.0 if scratch else CROWDED * least

    def large(b: Buffer) -> bool:
        size = b.size * b.dtype.itemsize
        once = b.role == "out" and b not in read and written[b] == 1
        return once and least <= size and (unknown or size <= 2 * much) and size + much >= crowded

    found: set[int] = set()

    def look(body: Sequence[Stmt], axes: tuple[Value, ...]) -> None:
        for s in body:
            if isinstance(s, Loop):
                look(s.body, (*axes, s.axis))
            elif isinstance(s, Store) and s.guard is None and large(s.buffer):
                found.update({id(s)} if all(coefficient(s.index, a) for a in axes) else ())

    look(kernel.body, ())
    return found


def run_streamed(
    e: Any, body: Sequence[Stmt], axis: Value, turn: Callable[[str], Any], run: Run, start: str,
    stop: str,
) -> None:  # fmt: skip
    """Write the turns from start to stop of a loop along an axis: by run(start, stop), or whole
    lines past the caches.

    e: the emitter. turn: writes the body for one point
    """
    stores = _rows(e, body, axis)
    length = int(stop) - int(start) if start.isdecimal() and stop.isdecimal() else None
    count = max((LINE // s.buffer.dtype.itemsize for s in stores), default=0)
    if not stores or (length is not None and length < count):
        run(start, stop)
        return
    f = e.f
    _read_before(e, body, axis)
    e.env[axis] = start
    places = [e.address(s.buffer, s.index) for s in stores]
    arrays = [f.alloca(memory_type(s.buffer.dtype), count) for s in stores]
    whole = _lines(e, stores, places, start, stop, count)
    then, join = f.name("lines"), f.name("join")
    f.do(f"br i1 {f.let(f'icmp sgt i64 {whole}, 0')}, label %{then}, label %{join}")
    f.start(then)

    def line(i: str) -> None:
        done = f.let(f"mul nuw nsw i64 {i}, {count}")
        first = f.let(f"add nuw nsw i64 {done}, {start}")

        def element(k: str) -> None:
            e.redirected = {id(s): (a, k) for s, a in zip(stores, arrays, strict=True)}
            turn(f.let(f"add nuw nsw i64 {first}, {k}"))
            e.redirected = {}

        e.loop("0", str(count), element, hints=[STAYS])
        for s, place, array in zip(stores, places, arrays, strict=True):
            _store(e, s, array, place, done, count)

    e.loop("0", whole, line, parallel=False, hints=[STAYS])
    f.do(f"br label %{join}")
    f.start(join)
    first = f.let(f"add nuw nsw i64 {f.let(f'mul nuw nsw i64 {whole}, {count}')}, {start}")
    then, join = f.name("rest"), f.name("join")
    f.do(f"br i1 {f.let(f'icmp slt i64 {first}, {stop}')}, label %{then}, label %{join}")
    f.start(then)
    run(first, stop)
    f.do(f"br label %{join}")
    f.start(join)
    e.streamed = True


def _rows(e: Any, body: Sequence[Stmt], axis: Value) -> list[Store]:
    """The stores of a loop's body that write rows past the caches; none, if not all rows that a
    store writes lie in lines alike."""
    if any(isinstance(s, Loop | While) for s in body) or cost(body) > MOST_WORK:
        return []
    made = {s.out for s in body if isinstance(s, Op | Load)}
    found = []
    for s in body:
        if isinstance(s, Store) and id(s) in e.streams and coefficient(s.index, axis) == 1:
            others = [c for c, v in s.index.terms if v is not axis]
            aligned = all(c * s.buffer.dtype.itemsize % LINE == 0 for c in (s.index.const, *others))
            if aligned and not any(v in made for _, v in s.index.terms):
                found.append(s)
    return found


def _read_before(e: Any, body: Sequence[Stmt], axis: Value) -> None:
    """Read what both ways need: in a block of points, it is read from its array at first use."""
    made = {s.out for s in body if isinstance(s, Op | Load)} | {axis}
    for v in [v for s in body for v in reads(s)]:
        if isinstance(v, Value) and v not in made:
            e.read(v)


def _lines(
    e: Any, stores: Sequence[Store], places: Sequence[str], start: str, stop: str, count: int
) -> str:
    """How often the loop turns line by line: never where results don't begin with a line, or are
    written over what the kernel reads."""
    f = e.f
    bits = f.let(f"ptrtoint ptr {places[0]} to i64")
    for place in places[1:]:
        bits = f.let(f"or i64 {bits}, {f.let(f'ptrtoint ptr {place} to i64')}")
    fits = f.let(f"icmp eq i64 {f.let(f'and i64 {bits}, {LINE - 1}')}, 0")
    params, written = e.kernel.params, {s.buffer for s in stores}
    for o, i in e.kernel.in_place:
        if params[o] in written:
            pair = e.base[params[o]], e.base[params[i]]
            apart = f.let(f"icmp ne ptr {pair[0]}, {pair[1]}")
            fits = f.let(f"and i1 {fits}, {apart}")
    turns = f.let(f"udiv i64 {f.let(f'sub nuw nsw i64 {stop}, {start}')}, {count}")
    return f.let(f"select i1 {fits}, i64 {turns}, i64 0")


def _store(e: Any, s: Store, array: str, place: str, done: str, count: int) -> None:
    """Store what an array holds `done` elements behind a place."""
    width, kind = s.buffer.dtype.itemsize, memory_type(s.buffer.dtype)
    lanes = min(LINE, e.vector_bits // 8) // width
    vector, align, past = f"<{lanes} x {kind}>", lanes * width, e.module.node("!{i32 1}")
    to = e.f.let(f"getelementptr inbounds {kind}, ptr {place}, i64 {done}")
    for i in range(0, count, lanes):
        source, target = (
            e.f.let(f"getelementptr inbounds {kind}, ptr {p}, i64 {i}") for p in (array, to)
        )
        value = e.f.let(f"load {vector}, ptr {source}, align {align}")
        e.f.do(f"store {vector} {value}, ptr {target}, align {align}, !nontemporal {past}")
