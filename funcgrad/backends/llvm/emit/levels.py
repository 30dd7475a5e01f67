"""The loops around a kernel's body, as they are scheduled: levels from the outside to the inside.

A level runs over an axis, over its tiles, or over the turns inside a tile. The part of a range that
a thread takes is of the first levels, as one range, or counted in units of one axis.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from funcgrad.backends.late import late
from funcgrad.backends.llvm.emit.edges import run_parts
from funcgrad.backends.llvm.emit.schedule import Level, is_guarded_row, is_row
from funcgrad.backends.llvm.emit.stream import run_streamed
from funcgrad.backends.llvm.emit.text import STAYS

if TYPE_CHECKING:
    from funcgrad.backends.llvm.emit.emitter import Emitter

ahead, block, pairs, stage = late("funcgrad.backends.llvm.emit", "ahead", "block", "pairs", "stage")

FEW = 4  # elements side by side


def write_levels(e: Emitter, levels: list[Level], lead: int) -> None:
    """Write these levels and the body inside; `lead` of them run over the range [begin, end)."""
    plan = e.plan
    if lead and plan.unit:
        _units(e, levels[0])
    elif lead == 1 and levels[0].part == "all":
        _level(e, levels[0], levels[1:], "%begin", "%end")
    elif lead:
        with_range = levels[:lead]
        e.loop("%begin", "%end", lambda i: _unflatten(e, i, with_range, levels[lead:]))
    elif levels and not (levels[0].axis is plan.block and levels[0].part == "inside"):
        start, stop = "0", str(levels[0].turns)
        if levels[0].part == "inside":
            start, stop = e.bounds[levels[0].axis]
            if levels[1:]:
                stage.stage(e, levels[0], levels[1])
        _level(e, levels[0], levels[1:], start, stop)
    else:
        _body(e)


def _level(e: Emitter, level: Level, rest: list[Level], start: str, stop: str) -> None:
    """One level from start to stop, in parts where edges cut it, the rest inside."""

    def turn(i: str) -> None:
        _enter(e, level, i)
        if len(rest) == 1 and rest[0].part == level.part == "all":
            inner, body = rest[0], e.kernel.body
            ahead.prefetch_rows(
                e, level.axis, i, level.size, inner.axis, inner.size, (), body, False
            )
        write_levels(e, rest, 0)

    # As in `loops`: a short row stays a loop, of elements or of few side by side.
    few = len(rest) == 1 and rest[0].part == "all" and rest[0].size <= FEW
    guarded = not rest and is_guarded_row(level, e.kernel.body, e.vector_bits)
    stays = guarded or ((few or not rest) and is_row(e.plan, level, e.kernel.body))
    parts = e.edges.parts(e.kernel.body if not rest else (), level.axis, level.size)
    hints = [STAYS] if stays or len(parts) > 1 else []
    run = partial(e.loop, body=turn, hints=hints)
    body = () if rest else e.kernel.body
    rows = partial(run_streamed, e, body, level.axis, turn, run)
    run_parts(e, parts, start, stop, rows)


def _enter(e: Emitter, level: Level, i: str) -> None:
    """Turn i of a level has begun: its axis, or the bounds of its axis, are known."""
    if level.part != "tiles":
        e.env[level.axis] = i
        return
    low = e.f.let(f"mul nuw nsw i64 {i}, {level.tile}")
    high = e.f.let(f"add nuw nsw i64 {low}, {level.tile}")
    if level.size % level.tile:
        high = e.f.intrinsic("smin", "i64", high, str(level.size))
    e.bounds[level.axis] = (low, high)


def _unflatten(e: Emitter, i: str, lead: list[Level], rest: list[Level]) -> None:
    """Turn i of a range over several levels, the last of them moving fastest."""
    for level in lead[:0:-1]:
        inner = e.f.let(f"urem i64 {i}, {level.turns}")
        i = e.f.let(f"udiv i64 {i}, {level.turns}")
        _enter(e, level, inner)
    _enter(e, lead[0], i)
    write_levels(e, rest, 0)


def _units(e: Emitter, level: Level) -> None:
    """One axis, its range counted in units: LLVM sees where no rest can remain."""
    step = 2 if pairs.fits(e.kernel, level, e.plan.fixed) else 1
    start = e.f.let(f"mul nuw nsw i64 %begin, {e.plan.unit // step}")
    stop = e.f.let(f"mul nuw nsw i64 %end, {e.plan.unit // step}")
    if level.size % e.plan.unit:
        stop = e.f.intrinsic("smin", "i64", stop, str(level.size // step))
    if step == 1:
        _level(e, level, [], start, stop)
        return

    def pair(i: str) -> None:
        pairs.emit_pairs(e, level.axis, e.f.let(f"mul nuw nsw i64 {i}, 2"))

    e.loop(start, stop, pair)


def _body(e: Emitter) -> None:
    """The body for one point, or for the points of a block."""
    e.outside = len(e.groups)
    if e.plan.block is None:
        e.body(e.kernel.body)
    else:
        write = block.emit_rows if e.plan.rows else block.emit_block
        write(e, e.plan.block, e.plan.levels[-1].turns)
