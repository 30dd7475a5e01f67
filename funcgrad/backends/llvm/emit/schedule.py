"""How a kernel's points are walked: the order of its axes, tiles, blocks, and parts for threads.

The innermost loop should touch memory in order. Where no inner loop of the body does, but an outer
axis would, the body runs for a block of points of that axis at once (`block`): each statement
becomes a loop over the block, as in compilers of data-parallel languages for CPUs (Karrenberg &
Hack, Whole-Function Vectorization, 2011). Work of more than some microseconds is cut into tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from funcgrad.backends.late import Late, late
from funcgrad.backends.llvm.native.caches import FIXED
from funcgrad.backends.loops.ir import (
    MATH,
    Axis,
    Index,
    Kernel,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Value,
    While,
    used_as_scalars,
    walk,
)
from funcgrad.core.record import Record, fresh, replace

emit_block, transpose = late("funcgrad.backends.llvm.emit", "block", "transpose")
vecmath = Late("funcgrad.backends.llvm.vecmath.functions")

SERIAL_NS = 20_000.0
TASK_NS = 10_000.0
# Of kernels that a loop runs again and again: nobody has to be woken for their tasks.
SERIAL_NS_OFTEN, TASK_NS_OFTEN = 8_000.0, 4_000.0
MOST_TASKS = 64
LINE = 64  # points in a row that one task keeps together, so that no two share a cache line
# Rows that go through a pass together: more where a processor sees by itself which come next.
MOST_ROWS, FEWER_ROWS = 8, 3
SHORT = 8  # an innermost loop of fewer turns gains nothing from vectors
MOST_GUARDED = 17  # turns up to which LLVM would unroll a loop of guarded loads
MASKED_BITS = 512  # of vectors, from which on masked loads are cheap


class Level(Record):
    """One loop around the body. part "all": over an axis; "tiles": over tiles of `tile` points;
    "inside": over the points of the tile in hand."""

    axis: Value
    size: int
    part: str = "all"
    tile: int = 0

    @property
    def turns(self) -> int:
        """How often the loop turns, at most."""
        if self.part == "all":
            return self.size
        return self.tile if self.part == "inside" else -(-self.size // self.tile)


class Schedule(Record):
    """levels: the loops around the body, outermost first
    lead: how many of them are flattened into one range that tasks share (0: runs as a whole)
    grain: turns of that range in a task
    unit: points of the one leading axis in a turn (it is then walked in units)
    fixed: axes of one point, and what a coalesced axis stands for in indices
    block: the axis of whose points a block is run together, its levels being the last
    rows: the block is a few rows, taken pass by pass
    """

    levels: tuple[Level, ...]
    lead: int
    grain: int
    unit: int
    fixed: frozenset[Value]
    block: Value | None
    nanoseconds: float
    rows: bool = False

    @property
    def turns(self) -> int:
        """The length of the range that tasks share."""
        if self.unit:
            return -(-self.levels[0].size // self.unit)
        return math.prod(level.turns for level in self.levels[: self.lead])


class Range(Record):
    """A loop runs over part number `axis` of its turns, each part `size` long but the last."""

    axis: Value
    size: int


class Piece(Record):
    """A kernel, and for each of its parameters the number in those of the kernel that it was cut
    from, after which partial results are counted."""

    kernel: Kernel
    params: tuple[int, ...]
    ranges: dict[Loop, Range] = fresh(factory=dict)


def schedule(
    kernel: Kernel, ranges: Mapping[Loop, Range] | None = None, l1: int = FIXED.l1,
    often: bool = False, most_rows: int = MOST_ROWS, vector_bits: int = 128,
) -> Schedule:  # fmt: skip
    """The schedule of a kernel that has points, for a first cache of `l1` bytes.

    often: whether a loop runs it again and again, while threads wait for the next tasks
    most_rows: how many rows go through a pass together, at most
    vector_bits: of the longest vectors
    """
    ranges = ranges or {}
    bounding = {r.axis for r in ranges.values()}
    axes, fixed = coalesce(kernel)
    found = list(accesses(kernel.body))
    total = math.prod(a.size for a in axes) * cost(kernel.body, ranges)
    inner = [a for a in found if a.loop is not None]
    block = None
    if inner and emit_block.can_block(kernel):
        block = _block_axis([a for a in axes if a.value not in bounding], found, vector_bits)
    order = _order(axes, found, block)
    levels = [Level(a.value, a.size) for a in order]
    if block is not None:
        levels = _with_tile(levels, block, _block_size(kernel, l1))
    elif not inner and len(order) > 1:
        levels = _tiled(levels, found, max(b.dtype.itemsize for b in kernel.params))
    rows = 0
    if block is None and inner and levels and emit_block.has_passes(kernel):
        rows = min(_rows_at_once(kernel, l1), most_rows, levels[-1].size)
        if rows > 1 and levels[-1].axis not in bounding:
            block = levels[-1].axis
            levels = _with_tile(levels, block, rows)
    serial, task = (SERIAL_NS_OFTEN, TASK_NS_OFTEN) if often else (SERIAL_NS, TASK_NS)
    parts = min(MOST_TASKS, int(total / task)) if total > serial else 1
    found_schedule = _cut(levels, parts, not inner, fixed, block, total)
    return replace(found_schedule, rows=rows > 1 and block is not None)


def _rows_at_once(kernel: Kernel, l1: int) -> int:
    """How many rows go through each pass together: few enough to stay in half the first cache."""
    longest = max(s.size for s in walk(kernel.body) if isinstance(s, Loop))
    width = max(b.dtype.itemsize for b in kernel.params)
    return max(1, l1 // 2 // max(1, longest * width))


# ---- axes


def coalesce(kernel: Kernel) -> tuple[list[Axis], frozenset[Value]]:
    """The axes that remain when neighbours in memory are walked as one, and those that vanish.

    An axis p vanishes into q where every index counts p as often as q's size times q; q then
    counts the points of both.
    """
    axes = [a for a in kernel.axes if a.size != 1]
    fixed = {a.value for a in kernel.axes if a.size == 1}
    indices = [s.index for s in walk(kernel.body) if isinstance(s, Load | Store)]
    named = used_as_scalars(kernel.body)
    merged = True
    while merged:
        merged = False
        for p in axes:
            q = next((q for q in axes if _joins(p, q, indices, named)), None)
            if q is not None:
                joined = Axis(q.value, p.size * q.size)
                axes = [joined if a is q else a for a in axes if a is not p]
                fixed.add(p.value)
                merged = True
                break
    return axes, frozenset(fixed)


def _joins(p: Axis, q: Axis, indices: Sequence[Index], named: set[Value]) -> bool:
    if p is q or p.value in named or q.value in named:
        return False
    return all(coefficient(i, p.value) == q.size * coefficient(i, q.value) for i in indices)


def coefficient(index: Index, axis: Value) -> int:
    """How far a step along an axis moves an index."""
    return next((c for c, v in index.terms if v is axis), 0)


def _order(axes: Sequence[Axis], found: Sequence[Access], block: Value | None) -> list[Axis]:
    """Outermost first: the axis along which memory is in order last, long strides first."""
    if not axes:
        return []
    inner = any(a.loop is not None for a in found)

    def stride(axis: Axis) -> float:
        steps = [abs(coefficient(a.index, axis.value)) * (2 if a.store else 1) for a in found]
        return sum(steps)

    def badness(axis: Axis) -> float:
        # A short axis is unrolled: what only it moves, as a colour's scale, is in registers.
        alone = {axis.value} if axis.size < SHORT else set()
        moving = [a for a in found if not alone.issuperset(v for _, v in a.index.terms)]
        return sum(_step_cost(a, axis.value, axis.size) for a in moving)

    order = sorted(axes, key=stride, reverse=True)
    if block is not None:
        last = next(a for a in axes if a.value is block)
    elif inner:
        return order
    else:
        last = min(order[::-1], key=badness)
    return [a for a in order if a is not last] + [last]


def is_row(plan: Schedule, level: Level, body: Sequence[Stmt]) -> bool:
    """Whether the innermost level is a row of straight code that indices alone know."""
    straight = not any(isinstance(s, Loop | While) for s in body)
    inside = len(plan.levels) > 1 and level.part == "all" and level.size >= SHORT
    return inside and straight and level.axis not in used_as_scalars(body)


def is_guarded_row(level: Level, body: Sequence[Stmt], vector_bits: int) -> bool:
    """Whether the innermost level is a short row that reads behind guards, of straight code, where
    vectors have masks: LLVM would unroll it first, and then make no vectors of its branches."""
    straight = not any(isinstance(s, Loop | While) for s in body)
    guarded = any(isinstance(s, Load) and isinstance(s.guard, Value) for s in body)
    short = level.part == "all" and SHORT <= level.size <= MOST_GUARDED
    return vector_bits >= MASKED_BITS and straight and guarded and short


def is_harmless(load: Load, plan: Schedule) -> bool:
    """Whether a guarded load may be made where its guard is false: it reads an element of its
    array anyway, the same one in the whole innermost loop."""
    sizes = {level.axis: level.size for level in plan.levels} | dict.fromkeys(plan.fixed, 1)
    if not plan.levels or coefficient(load.index, plan.levels[-1].axis):
        return False
    low = high = load.index.const
    for c, v in load.index.terms:
        if v not in sizes:
            return False
        low, high = low + min(0, c * (sizes[v] - 1)), high + max(0, c * (sizes[v] - 1))
    return low >= 0 and high < load.buffer.size


# ---- accesses


class Access(Record):
    """A load or store, the innermost loop around it (None: the points' own), how often it runs."""

    index: Index
    itemsize: int
    loop: Loop | None
    weight: float
    store: bool


def accesses(body: Sequence[Stmt], loop: Loop | None = None, weight: float = 1) -> Iterator[Access]:
    """All accesses of a body."""
    for s in body:
        if isinstance(s, Load | Store):
            width = s.buffer.dtype.itemsize
            yield Access(s.index, width, loop, weight, isinstance(s, Store))
        elif isinstance(s, Loop):
            yield from accesses(s.body, s, weight * s.size)
        elif isinstance(s, While):
            yield from accesses((*s.test, *s.body), loop, weight * 16)


def _step_cost(a: Access, axis: Value, size: int) -> float:
    """What an access costs when this axis is walked innermost."""
    if size < SHORT:
        return 8 * a.weight
    step = abs(coefficient(a.index, axis))
    if step == 0:
        return a.weight * (8 if a.store else 0)
    if step <= 2:  # pairs are taken apart, and put together, in registers
        return a.weight * (1 if step == 1 else 4 if a.store else 2)
    return a.weight * (16 if a.store else 8)


def _block_axis(axes: Sequence[Axis], found: Sequence[Access], vector_bits: int) -> Value | None:
    """The outer axis that serves the body's loops better than their own axes, if there is one."""
    if not axes:
        return None
    inner = [a for a in found if a.loop is not None]
    # A loop that adds up in registers pays nothing for its results, which run once.
    own = sum(_step_cost(a, a.loop.axis, a.loop.size) for a in inner if a.loop is not None)
    costs = [(sum(_step_cost(a, x.value, x.size) for a in inner), x) for x in axes]
    best, axis = min(costs, key=lambda pair: pair[0])
    return axis.value if best * 2 < own or _of_short_rows(inner, vector_bits) else None


def _of_short_rows(inner: Sequence[Access], vector_bits: int) -> bool:
    """Whether several passes read rows that fill no vector, and write nothing there: elements of as
    many rows as a vector has lanes are then better gathered. LLVM does it itself if vectors are
    shorter."""
    loops = {a.loop for a in inner if a.loop is not None}
    short = all(s.size * a.itemsize * 8 < vector_bits for a in inner for s in [a.loop] if s)
    several = vector_bits >= MASKED_BITS and len(loops) > 1
    return several and short and not any(a.store for a in inner)


def _block_size(kernel: Kernel, l1: int) -> int:
    """Points of a block: its carried values should stay in half the first cache."""
    kept = 8
    for s in walk(kernel.body):
        if isinstance(s, Loop):
            kept += sum(c.inside.dtype.itemsize for c in s.carries)
    return max(LINE, min(1024, l1 // 2 // kept // LINE * LINE))


# ---- tiles and tasks


def _with_tile(levels: list[Level], axis: Value, tile: int) -> list[Level]:
    """The levels with this axis last, in tiles if it is long."""
    rest = [v for v in levels if v.axis is not axis]
    size = next(v.size for v in levels if v.axis is axis)
    tile = min(tile, size)
    return [*rest, Level(axis, size, "tiles", tile), Level(axis, size, "inside", tile)]


def _tiled(levels: list[Level], found: Sequence[Access], width: int) -> list[Level]:
    """Tiles over two axes where one access is in order along one and another along the other."""
    last = levels[-1]
    other = None
    for a in found:
        if abs(coefficient(a.index, last.axis)) > 1:
            other = next((v for v in levels[:-1] if abs(coefficient(a.index, v.axis)) == 1), None)
            if other is not None:
                break
    tile = transpose.tile_size(width)
    if other is None or min(other.size, last.size) < SHORT or other.size * last.size < tile * tile:
        return levels
    rest = [v for v in levels if v is not last and v is not other]
    pair, parts = (other, last), ("tiles", "inside")
    tiles = [Level(v.axis, v.size, part, min(tile, v.size)) for part in parts for v in pair]
    return [*rest, *tiles]


def _cut(
    levels: list[Level], parts: int, flat: bool, fixed: frozenset[Value], block: Value | None,
    total: float,
) -> Schedule:  # fmt: skip
    if parts <= 1 or not levels:
        return Schedule(tuple(levels), 0, 0, 0, fixed, block, total)
    if len(levels) == 1 and flat:
        units = -(-levels[0].size // LINE)
        grain = max(1, -(-units // parts))
        return Schedule(tuple(levels), 1, grain, LINE, fixed, block, total)
    if flat and levels[-1].part == "all" and levels[-1].size >= 2 * LINE:
        outer = math.prod(v.turns for v in levels[:-1])
        if outer < parts:
            want = -(-parts // outer)
            tile = -(-levels[-1].size // want // LINE) * LINE or LINE
            levels = _with_tile(levels, levels[-1].axis, max(LINE, tile))
    turns, lead = 1, 0
    for v in levels:
        if turns >= parts or v.part == "inside":
            break
        turns *= v.turns
        lead += 1
    grain = max(1, -(-turns // parts))
    return Schedule(tuple(levels), lead, grain, 0, fixed, block, total)


# ---- cost

_SLOW = {"floor_divide": 1.0, "remainder": 1.0, "fmod": 1.0, "divide": 0.2, "sqrt": 0.2}


def cost(body: Sequence[Stmt], ranges: Mapping[Loop, Range] | None = None) -> float:
    """Nanoseconds that a body may take for one point, roughly."""
    ranges = ranges or {}
    total = 0.0
    for s in body:
        if isinstance(s, Op):
            total += _op_cost(s)
        elif isinstance(s, Load | Store):
            total += 0.02 * max(2, s.buffer.dtype.itemsize)
        elif isinstance(s, Loop):
            turns = ranges[s].size if s in ranges else s.size
            total += turns * cost(s.body, ranges)
        else:
            total += 16 * cost((*s.test, *s.body))
    return total


def _op_cost(s: Op) -> float:
    wide = s.args[0].dtype.itemsize / 4
    if s.name in MATH or s.name == "power":
        ours = s.name in vecmath.NAMES or s.name == "logaddexp"
        return 0.5 * wide if ours and s.out.dtype.kind == "f" else 10.0
    if s.name in _SLOW:
        slow = s.args[0].dtype.kind == "f" and _SLOW[s.name] >= 1
        return 10.0 if slow else _SLOW[s.name] * wide
    return 0.03 * wide
