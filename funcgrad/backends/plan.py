"""Planning memory: every tensor of a drafted program gets an address.

Results are written where they are wanted: in the program's outputs, a loop's carried values, rows
of stacked results. A tensor may take the place of one that dies in the same step (an update of an
array in place, an elementwise result over its operand), of a donated input too. All other memory
comes from one arena, in which what is dead makes room (best fit, aligned as the target says).
"""

from __future__ import annotations

from collections.abc import Sequence

from funcgrad.backends.drafts.drafter import Drafter
from funcgrad.backends.drafts.tensors import Block, Draft, Tensor
from funcgrad.backends.measure import measure
from funcgrad.backends.program import (
    AttentionStep,
    CopyStep,
    GemmStep,
    LoopStep,
    Program,
    Ref,
    Step,
)
from funcgrad.backends.target import Target
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr
from funcgrad.core.record import Record
from funcgrad.core.source import Source


def plan(jaxpr: Jaxpr, donated: Sequence[bool], name: str, target: Target) -> Program:
    """The program as steps on memory, ready to be emitted.

    >>> import funcgrad as fg
    >>> closed = fg.make_jaxpr(lambda x: x * 2 + 1)(1.0)
    >>> plan(closed.jaxpr, [False], "f", Target("any")).arena_bytes
    0
    """
    drafter, real = Drafter(target), target.prepare(jaxpr)
    ins = [Tensor(v.aval.strong(), Ref("input", i)) for i, v in enumerate(real.ins)]
    outs = [Tensor(v.aval.strong(), Ref("output", i)) for i, v in enumerate(real.outs)]
    block = drafter.block(real, ins, outs)
    planner = _Planner(target.alignment)
    given = [t for t, d in zip(ins, donated, strict=True) if d]
    steps = planner.block(block, given, top=True)
    avals = tuple(v.aval.strong() for v in jaxpr.ins), tuple(v.aval.strong() for v in jaxpr.outs)
    cost = measure(steps)
    return Program(name, *avals, steps, planner.arena.high, tuple(drafter.constants),
                   planner.aliases, cost.flops, cost.moved, tuple(drafter.comms),
                   cost.traffic, planner.peak(), tuple(planner.beside))  # fmt: skip


class Arena:
    """Memory by offset: the free pieces below the highest byte ever used."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.high = 0
        self.free: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """The offset of a piece: of the free ones the smallest that is large enough."""
        size = -(-nbytes // self.alignment) * self.alignment
        fits = [(n, at) for at, n in self.free if n >= size]
        if not fits:
            return self._grow(size)
        n, at = min(fits)
        self.free.remove((at, n))
        if n > size:
            self.free.append((at + size, n - size))
        return at

    def _grow(self, size: int) -> int:
        at = self.high
        for start, n in self.free:
            if start + n == self.high:
                self.free.remove((start, n))
                at = start
                break
        self.high = at + size
        return at

    def give(self, at: int, nbytes: int) -> None:
        """Take a piece back, joined with free neighbours."""
        size = -(-nbytes // self.alignment) * self.alignment
        for start, n in list(self.free):
            if start + n == at or at + size == start:
                self.free.remove((start, n))
                at, size = min(at, start), size + n
        self.free.append((at, size))


class _Slot(Record, frozen=False, eq=False):
    """A piece of memory and the tensor that lives in it."""

    ref: Ref
    nbytes: int
    owner: Tensor | None
    in_arena: bool


class _Planner:
    def __init__(self, alignment: int) -> None:
        self.arena = Arena(alignment)
        self.aliases: dict[int, int] = {}
        self.beside: list[tuple[Step, Source | None]] = []
        # Who came into memory of the arena, and (None) who left it, in order.
        self._events: list[tuple[_Slot, Tensor | None]] = []
        self._used = self._most = self._fullest = 0

    def enter(self, slot: _Slot, t: Tensor, fresh: bool) -> None:
        """A tensor lives in a slot of the arena, in new memory or that of another."""
        self._events.append((slot, t))
        self._used += slot.nbytes if fresh else 0
        if self._used > self._most:
            self._most, self._fullest = self._used, len(self._events)

    def leave(self, slot: _Slot) -> None:
        """A slot of the arena is free."""
        self._events.append((slot, None))
        self._used -= slot.nbytes

    def peak(self) -> tuple[tuple[ShapedArray, Source | None], ...]:
        """What lives when the arena is fullest, largest first."""
        live: dict[_Slot, Tensor] = {}
        for slot, t in self._events[: self._fullest]:
            if t is None:
                live.pop(slot, None)
            else:
                live[slot] = t
        largest = sorted(live.values(), key=lambda t: -t.aval.nbytes)
        return tuple([(t.aval, t.source) for t in largest if t.aval.nbytes])

    def block(self, block: Block, given: Sequence[Tensor], top: bool = False) -> tuple[Step, ...]:
        """The steps of a block. `given` are tensors from outside that it may overwrite once it
        doesn't need them any more: donated inputs, a loop's carried values."""
        return _BlockPlanner(self, block, given, top).run()


class _BlockPlanner:
    def __init__(self, planner: _Planner, block: Block, given: Sequence[Tensor], top: bool):
        self.planner = planner
        self.arena = planner.arena
        self.drafts = block.drafts
        self.results = block.results
        self.top = top
        self.slots = {t: _Slot(t.place, t.aval.nbytes, t, False) for t in given}
        self.carried = {dest: self.slots[dest] for _, dest in block.results if dest in self.slots}
        # Donated inputs may take the place of results, which then have no memory of their own.
        self.takes_over = top and bool(given)
        # Tensors that live in a result's memory until it is written over them.
        self.under_results: dict[Tensor, Tensor] = {}
        self.last: dict[Tensor, int] = {}
        for i, d in enumerate(self.drafts):
            for t in d.reads:
                self.last[t.whole] = i
        self.end = len(self.drafts)
        self.wanted: dict[Tensor, Tensor] = {}
        for value, dest in self.results:
            self.last[value.whole] = self.end
            self.wanted.setdefault(value, dest)

    def run(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for i, draft in enumerate(self.drafts):
            self.now = i
            taken: set[Tensor] = set()
            for t in dict.fromkeys(w.whole for w in draft.writes):
                if t.ref is None:
                    self.place(t, draft, taken)
            steps += self.built(draft)
            for t in {t.whole for t in (*draft.reads, *draft.writes)}:
                if self.last.get(t, -1) <= i:
                    self.release(t)
        steps += self.copies()
        for t in list(self.slots):
            self.release(t)
        return tuple(steps)

    def built(self, draft: Draft) -> list[Step]:
        """The steps of a draft, its starting copies first."""
        copies = [CopyStep(r.place, w.place, w.aval.nbytes) for w, r in draft.starts
                  if w.place != r.place and w.aval.nbytes]  # fmt: skip
        inner = []
        for b in draft.blocks:
            # Values that are read and replaced in each turn: the block may reuse their memory.
            carried = {w for w, _ in draft.starts} & {dest for _, dest in b.results}
            inner.append(self.planner.block(b, list(carried)))
        made = draft.make(inner)
        source = next((t.source for t in draft.writes if t.source is not None), None)
        for step in made:
            banded = isinstance(step, LoopStep) and step.band
            if banded or isinstance(step, GemmStep | AttentionStep):
                self.planner.beside.append((step, source))
        return [*copies, *made]

    # ---- placing

    def place(self, t: Tensor, draft: Draft, taken: set[Tensor]) -> None:
        """Give a tensor that a draft writes its address."""
        slot = self.chosen(t, draft, taken)
        fresh = slot is None
        if slot is None:
            ref = Ref("arena", 0, self.arena.take(t.aval.nbytes) if t.aval.nbytes else 0)
            slot = _Slot(ref, t.aval.nbytes, t, True)
        slot.owner = t
        t.ref = slot.ref
        self.slots[t] = slot
        if slot.in_arena:
            self.planner.enter(slot, t, fresh)

    def chosen(self, t: Tensor, draft: Draft, taken: set[Tensor]) -> _Slot | None:
        """Memory that a tensor can share or is wanted in; None for new memory."""
        dest = self.wanted.get(t)
        dying = [r for w, r in (*draft.starts, *draft.in_place)
                 if w is t and r not in taken and self.under_results.get(r, t) is t
                 and self.dies(r, draft)]  # fmt: skip
        if dest in self.carried:
            slot = self.carried[dest]
            if slot.owner is None or slot.owner in dying:
                taken.add(slot.owner)  # type: ignore[arg-type]
                return slot
            return None
        if dest is not None:
            return self.for_result(t, dest, dying, taken)
        for r in dying:
            if self.slots[r].nbytes == t.aval.nbytes:
                taken.add(r)
                return self.slots[r]
        return None if dying else self.under(t)

    def dies(self, r: Tensor, draft: Draft) -> bool:
        """Whether a draft is the last to read a tensor whose memory is ours, and reads it once."""
        slot = self.slots.get(r)
        if slot is None or slot.owner is not r or self.last.get(r) != self.now:
            return False
        return sum(x.whole is r for x in draft.reads) == 1

    def for_result(self, t: Tensor, dest: Tensor, dying: list[Tensor], taken: set[Tensor]) -> _Slot:
        """Memory for a result: its own, or at the top that of a donated input of its type."""
        if self.top:
            dead = [x for x, s in self.slots.items() if s.owner is None]
            for r in (*dying, *dead):
                slot = self.slots[r]
                i = slot.ref.number
                free = slot.ref.space == "input" and i not in self.planner.aliases.values()
                if free and self.type_of(slot) == (dest.aval.shape, dest.aval.dtype):
                    taken.add(r)
                    self.planner.aliases[dest.place.number] = i
                    return slot
        return _Slot(dest.place, t.aval.nbytes, t, False)

    def under(self, t: Tensor) -> _Slot | None:
        """The memory of a result that will be written over a tensor, element by element, or that
        begins as it is."""
        i = self.last.get(t, self.end)
        if self.takes_over or i >= self.end:
            return None
        draft = self.drafts[i]
        if sum(x.whole is t for x in draft.reads) != 1:
            return None
        for w, r in (*draft.in_place, *draft.starts):
            dest = self.wanted.get(w)
            if r is not t or dest is None or dest in self.carried or w.base is not None:
                continue
            if dest.aval.nbytes == t.aval.nbytes and w not in self.under_results.values():
                self.under_results[t] = w
                return _Slot(dest.place, t.aval.nbytes, t, False)
        return None

    def type_of(self, slot: _Slot) -> tuple:
        """Shape and dtype of the donated input that a slot is."""
        given = next(t for t, s in self.slots.items() if s is slot)
        return given.aval.shape, given.aval.dtype

    def release(self, t: Tensor) -> None:
        """A tensor is dead: its memory is free if it still lives there."""
        slot = self.slots.get(t)
        if slot is None or slot.owner is not t:
            return
        slot.owner = None
        if slot.in_arena:
            if slot.nbytes:
                self.arena.give(slot.ref.offset, slot.nbytes)
            self.planner.leave(slot)
            del self.slots[t]

    # ---- results

    def copies(self) -> list[Step]:
        """Copies of results that were not written where they are wanted."""
        missing = []
        for value, dest in self.results:
            if not dest.aval.nbytes or value.place == dest.place or self.is_alias(value, dest):
                continue
            missing.append((value.place, dest.place, dest.aval.nbytes))
        targets = {to for _, to, _ in missing}
        first, second = [], []
        for source, to, n in missing:
            # What another copy will overwrite is brought to safety first.
            if source in targets:
                safe = Ref("arena", 0, self.arena.take(n))
                first.append(CopyStep(source, safe, n))
                second.append(CopyStep(safe, to, n))
                self.hold(safe, n)
            else:
                second.append(CopyStep(source, to, n))
        return [*first, *second]

    def hold(self, ref: Ref, n: int) -> None:
        """Keep a piece of the arena until the block is done."""
        keeper = Tensor(self.results[0][1].aval, ref)
        self.slots[keeper] = _Slot(ref, n, keeper, True)

    def is_alias(self, value: Tensor, dest: Tensor) -> bool:
        """Whether a result is a donated input, as it was given or taken over."""
        if not self.top or value.place.space != "input":
            return False
        i, o = value.place.number, dest.place.number
        if self.planner.aliases.get(o) == i:
            return True
        slot = self.slots.get(value)
        if slot is None or slot.owner is not value or i in self.planner.aliases.values():
            return False
        if self.type_of(slot) != (dest.aval.shape, dest.aval.dtype):
            return False
        self.planner.aliases[o] = i
        return True
