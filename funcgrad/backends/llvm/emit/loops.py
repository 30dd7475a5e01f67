"""Loops inside a kernel's body: those of a size that is known, and those that test a condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from funcgrad.backends.late import late
from funcgrad.backends.llvm.emit import ops
from funcgrad.backends.llvm.emit.edges import run_parts
from funcgrad.backends.llvm.emit.schedule import MASKED_BITS, SHORT, cost
from funcgrad.backends.llvm.emit.stream import run_streamed
from funcgrad.backends.llvm.emit.text import STAYS, value_type
from funcgrad.backends.loops.ir import MATH, Carry, Load, Loop, Op, Stmt, Store, While, walk

if TYPE_CHECKING:
    from funcgrad.backends.llvm.emit.emitter import Emitter

ahead, stage, emit_sums = late("funcgrad.backends.llvm.emit", "ahead", "stage", "sums")

# How long turns take, as estimated, before a loop asks for signals; how long a loop of known size
# does, to ask at all. (The turns of such loops wait for each other: they take ten times as long.)
ASK_NS, LONG_NS = 10_000, 100_000_000
_RARE = '!{!"branch_weights", i32 1, i32 65535}'
# What a call for signals reads and writes is no array of the kernel.
_POLLS = "nounwind memory(argmem: readwrite, inaccessiblemem: readwrite)"


def write_loop(e: Emitter, s: Loop) -> None:
    """A loop, and what it carries out; long sums in blocks."""
    start, stop = e.turns(s)
    long = is_long(s)
    if not s.size:
        e.env.update({c.out: e.read(c.start) for c in s.carries})
        return
    pair = s.parallel and s not in e.ranges and len(s.body) == 1
    if pair and isinstance(s.body[0], Loop) and stage.turned(e, s, s.body[0]):
        return

    def turn(i: str, *carried: str) -> list[str]:
        e.env[s.axis] = i
        e.env.update(zip((c.inside for c in s.carries), carried, strict=True))
        at = None if s.parallel else ahead.inner_loop(s)
        if at is not None:
            inner: Any = s.body[at]
            around, inside = s.body[:at], inner.body
            plain = not inner.carries and inner not in e.ranges
            ahead.prefetch_rows(
                e, s.axis, i, s.size, inner.axis, inner.size, around, inside, True, plain
            )
        e.body(s.body)
        if long:
            ask(e, cost(s.body))
        return [e.read(c.next) for c in s.carries]

    types = [value_type(c.inside.dtype) for c in s.carries]
    starts = [e.read(c.start) for c in s.carries]
    # Unrolled whole, a row would leave the points outside to be vectorized, with gathers.
    innermost = s.size >= 2 * SHORT and not any(isinstance(b, Loop | While) for b in s.body)
    hints = _in_masked_vectors(e, s) or ([STAYS] if innermost else [])

    def run(start: str, stop: str, starts: Sequence[str]) -> list[str]:
        return e.loop(start, stop, turn, types, starts, s.parallel, hints)

    if emit_sums.sum_blocks(s, e.vector_bits):
        outs = _blocks(e, s, (start, stop), types, starts, run)
    elif s.parallel and not s.carries:
        parts, outs = e.edges.parts(s.body, s.axis, s.size), []
        plain = partial(run, starts=[])
        rows = partial(run_streamed, e, s.body, s.axis, turn, plain)
        if s.axis in e.soon:
            ahead.in_pieces(e, s, partial(run_parts, e, parts, run=rows))
        else:
            run_parts(e, parts, start, stop, rows)
    else:
        outs = run(start, stop, starts)
    e.env.update(zip((c.out for c in s.carries), outs, strict=True))


def _in_masked_vectors(e: Emitter, s: Loop) -> list[str]:
    """Hints for one of several passes over a short row that leaves lanes of its last vector empty:
    they are masked, where LLVM would unroll the row, to elements one by one.

    None that demands vectors: LLVM tells the standard error of each loop where it can't obey."""
    passes = [b for b in e.kernel.body if isinstance(b, Loop)]
    widths = {b.buffer.dtype.itemsize for b in s.body if isinstance(b, Load | Store)}
    straight = not any(isinstance(b, Loop | While) for b in s.body)
    # Of loops in other loops, LLVM makes vectors of the turns around them.
    alone = straight and s not in e.ranges and any(s is b for b in passes)
    if e.vector_bits < MASKED_BITS or len(passes) < 2 or not alone:
        return []
    if len(widths) != 1 or min(widths) < 4:
        return []
    lanes = e.vector_bits // 8 // widths.pop()
    quarter, math = lanes // 4, any(isinstance(b, Op) and b.name in MATH for b in s.body)
    # Of two vectors, the elements that are left over must take long.
    long = math and lanes < s.size < 2 * lanes and s.size % (2 * quarter) >= quarter
    few = 2 if math else SHORT
    if not ((few < s.size < lanes and s.size % quarter) or long):
        return []
    return [
        '!{!"llvm.loop.vectorize.predicate.enable", i1 true}',
        '!{!"llvm.loop.interleave.count", i32 1}',
        STAYS,
    ]


def _blocks(
    e: Emitter, s: Loop, bounds: tuple[str, str], types: list[str], starts: list[str], run: Callable
) -> list[str]:
    """Long sums, block by block."""

    def outer(count: str, turn: Callable[..., list[str]], zeros: Sequence[str]) -> list[str]:
        return e.loop("0", count, turn, types, zeros, parallel=False, hints=[STAYS])

    def add(c: Carry, x: str, y: str) -> str:
        kind = c.inside.dtype
        return ops.apply(e.f, "add", kind, [kind, kind], [x, y])

    most = e.ranges[s].size if s in e.ranges else s.size
    blocks = emit_sums.sum_blocks(s, e.vector_bits)
    sums = emit_sums.in_blocks(e.f, s, bounds, blocks, most, run, outer, add)
    return [add(c, x, y) for c, x, y in zip(s.carries, starts, sums, strict=True)]


def ask(e: Emitter, nanoseconds: float) -> None:
    """At the end of a turn of a loop, which may take so long: ask for signals now and then."""
    f, place = e.f, "%spent"
    if not e.asks:
        e.asks = True
        e.module.declare("fg_poll", "i32", ["ptr"], _POLLS)
        f.entry += [f"  {place} = alloca i64", f"  store i64 0, ptr {place}"]
    before = f.let(f"load i64, ptr {place}")
    spent = f.let(f"add i64 {before}, {max(1, round(nanoseconds * 1000))}")
    f.do(f"store i64 {spent}, ptr {place}")
    due = f.let(f"icmp ugt i64 {spent}, {ASK_NS * 1000}")
    asked, after = f.name("ask"), f.name("after")
    f.do(f"br i1 {due}, label %{asked}, label %{after}, !prof {e.module.node(_RARE)}")
    f.start(asked)
    f.do(f"store i64 0, ptr {place}")
    stop = f.let(f"icmp ne i32 {f.call('fg_poll', 'i32', ['ptr'], ['%words'])}, 0")
    f.do(f"br i1 {stop}, label %stopped, label %{after}")
    f.start(after)


def is_long(s: Stmt) -> bool:
    """Whether a loop whose turns follow each other may run for long."""
    if isinstance(s, While):
        return True
    if not isinstance(s, Loop) or s.parallel or all(c.combine for c in s.carries):
        return False
    return s.size * max(1.0, cost(s.body)) > LONG_NS or any(map(is_long, walk(s.body)))


def write_while(e: Emitter, s: While) -> None:
    """A loop whose test is computed before each turn, and what it carries out."""
    f = e.f
    head, turn, after = f.name("while"), f.name("turn"), f.name("done")
    starts, before = [e.read(c.start) for c in s.carries], f.block
    f.do(f"br label %{head}")
    f.start(head)
    place = len(f.lines)
    inside = ["%" + f.name("c") for _ in s.carries]
    f.lines += [""] * len(inside)
    for c, name in zip(s.carries, inside, strict=True):
        e.env[c.inside] = e.env[c.out] = name
    e.body(s.test)
    f.do(f"br i1 {e.read(s.condition)}, label %{turn}, label %{after}")
    f.start(turn)
    ahead.prefetch_turns(e, s)
    e.body(s.body)
    ask(e, cost((*s.test, *s.body)))
    latch = f.block
    for k, (c, name, first) in enumerate(zip(s.carries, inside, starts, strict=True)):
        kind, later = value_type(c.inside.dtype), e.read(c.next)
        f.lines[place + k] = f"  {name} = phi {kind} [{first}, %{before}], [{later}, %{latch}]"
    f.do(f"br label %{head}")
    f.start(after)
