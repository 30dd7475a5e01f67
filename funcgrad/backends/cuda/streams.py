"""What a program does beside its kernels: exchanges and large copies, on a stream of their own.

Steps have addresses, so two may run in any order unless one writes what the other touches. A copy
moves up to where its operands are known, and both begin when all before them is done (the stream
*forks*). A step waits only for what it conflicts with; the end of a block, a loop's turn say, for
all. What nothing could run beside stays where it was, as an event costs as much as a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from funcgrad.backends.cuda.libraries.products import Operand, Product, products
from funcgrad.backends.program import (
    CondStep,
    CopyStep,
    ExchangeStep,
    GemmStep,
    HostStep,
    KernelStep,
    LaneStep,
    LoopStep,
    Program,
    Ref,
    Step,
    WhileStep,
    blocks,
    walk,
)

# Bytes from which on a copy is worth two events: about 5 µs of a GPU's memory. Not measured yet.
LEAST_COPY = 1 << 23


class Place(NamedTuple):
    """Bytes of a space that a step reads or writes; `end` None: all from `begin` on."""

    space: str
    number: int
    begin: int
    end: int | None
    written: bool


class Turn(NamedTuple):
    """A step as it is started.

    step: None at the end of a block that waits
    after: the number of the move that is waited for first
    move: its own number, if it runs beside the others; forks: whether it waits for them first
    awaited: whether anyone waits for it
    """

    step: Step | None
    after: int | None = None
    move: int | None = None
    forks: bool = False
    awaited: bool = False


class Streams:
    """Which steps of a program run beside the others.

    most: how many these are, at most
    exchanges: whether exchanges do: all of a program, as those of a communicator are in order
    """

    def __init__(self, program: Program, native: frozenset[int] = frozenset()):
        self.native, self.aliases = native, program.aliases
        self._touched: dict[int, list[Place]] = {}
        inside = list(walk(program.steps))
        self.lengths = {s.number: s.length for s in inside if isinstance(s, LoopStep)}
        self.most = sum(self._may(s) for s in inside)
        self.exchanges = False
        if any(isinstance(s, ExchangeStep) and self._may(s) for s in inside):
            lists = [program.steps, *(b for s in inside for b in blocks(s))]
            self.exchanges = any(map(self._overlaps, lists))

    def turns(self, steps: Sequence[Step]) -> list[Turn]:
        """The steps of a block in the order in which they are started."""
        if not any(map(self._may, steps)):
            return [Turn(s) for s in steps]
        order = self._hoisted(steps)
        turns: list[Turn] = []
        pending: list[tuple[int, list[Place]]] = []  # moves that nobody has waited for
        forks, moves = True, 0
        for i, s in enumerate(order):
            if self._beside(order, i):
                pending.append((moves, self.touched(s)))
                turns.append(Turn(s, move=moves, forks=forks))
                forks, moves = False, moves + 1
                continue
            own = self.touched(s) if pending else []
            met = [n for n, (_, places) in enumerate(pending) if conflict(places, own)]
            after = pending[met[-1]][0] if met else None
            pending = pending[met[-1] + 1 :] if met else pending  # as moves are in order
            turns.append(Turn(s, after))
            forks = True
        if pending:
            turns.append(Turn(None, pending[-1][0]))
        awaited = {t.after for t in turns}
        return [t._replace(awaited=t.move is not None and t.move in awaited) for t in turns]

    def _may(self, s: Step) -> bool:
        if isinstance(s, CopyStep):
            return s.nbytes >= LEAST_COPY and s.source != s.to
        return isinstance(s, ExchangeStep) and s.comm in self.native

    def _beside(self, order: Sequence[Step], i: int) -> bool:
        s = order[i]
        if isinstance(s, ExchangeStep):
            return self.exchanges and self._may(s)
        return self._may(s) and self._has_company(order, i)

    def _has_company(self, order: Sequence[Step], i: int) -> bool:
        """Whether something else is started before what needs the step's results."""
        for s in order[i + 1 :]:
            if conflict(self.touched(order[i]), self.touched(s)):
                return False
            if not self._may(s) and not isinstance(s, LaneStep):
                return True
        return False

    def _overlaps(self, steps: Sequence[Step]) -> bool:
        return any(
            isinstance(s, ExchangeStep) and self._may(s) and self._has_company(steps, i)
            for i, s in enumerate(steps)
        )

    def _hoisted(self, steps: Sequence[Step]) -> list[Step]:
        """The steps with each large copy right behind the last one that it needs."""
        order: list[Step] = []
        for s in steps:
            at = len(order)
            if isinstance(s, CopyStep) and self._may(s):
                while at and not conflict(self.touched(s), self.touched(order[at - 1])):
                    at -= 1
            order.insert(at, s)
        return order

    # ---- what steps touch

    def touched(self, s: Step) -> list[Place]:
        """`places` of a step of the program."""
        if id(s) not in self._touched:
            self._touched[id(s)] = list(self.places(s))
        return self._touched[id(s)]

    def places(self, s: Step) -> Iterator[Place]:
        """The memory that a step, or what is inside of it, reads and writes in all its turns."""
        if isinstance(s, KernelStep):
            for ref, b in zip(s.args, s.kernel.params, strict=True):
                yield self._place(ref, b.size * b.dtype.itemsize, b.role != "in")
        elif isinstance(s, GemmStep):
            yield from self._of_product(s)
        elif isinstance(s, HostStep):
            for views, written in ((s.ins, False), (s.outs, True)):
                yield from (self._place(v.ref, v.aval.nbytes, written) for v in views)
        elif isinstance(s, ExchangeStep):
            for ref, n, written in zip((s.source, s.to), s.blocks, (False, True), strict=True):
                yield self._place(ref, n * s.count * s.dtype.itemsize, written)
        elif isinstance(s, CopyStep):
            yield self._place(s.source, s.nbytes, False)
            yield self._place(s.to, s.nbytes, True)
        elif isinstance(s, LaneStep):
            yield self._place(s.to, 4, True)
        else:
            if isinstance(s, CondStep):
                yield self._place(s.index, 4, False)
            elif isinstance(s, WhileStep):
                yield self._place(s.condition, 1, False)
            for inside in (x for block in blocks(s) for x in block):
                yield from self.places(inside)

    def _of_product(self, s: GemmStep) -> Iterator[Place]:
        found = products(s)
        if not found:  # of which nothing is known but where it begins
            for ref, written in ((s.a, False), (s.b, False), (s.c, True)):
                yield self._place(ref, None, written)
        for p in found or ():
            yield self._place(p.first.ref, _extent(p, p.first, p.m, p.k), False)
            yield self._place(p.second.ref, _extent(p, p.second, p.k, p.n), False)
            yield self._place(p.result.ref, _extent(p, p.result, p.m, p.n), True)
            for ref in p.tail.scales:
                yield self._place(ref, p.compute.itemsize, False)
            if p.tail.bias is not None:
                yield self._place(p.tail.bias, p.m * p.result.dtype.itemsize, False)

    def _place(self, ref: Ref, nbytes: int | None, written: bool) -> Place:
        space, number = ref.space, ref.number
        if space == "output" and number in self.aliases:
            space, number = "input", self.aliases[number]
        moves = [(self.lengths[counter] - 1) * stride for counter, stride in ref.strides]
        begin = ref.offset + sum(n for n in moves if n < 0)
        end = None if nbytes is None else ref.offset + sum(n for n in moves if n > 0) + nbytes
        return Place(space, number, begin if nbytes is not None else 0, end, written)


def conflict(a: Sequence[Place], b: Sequence[Place]) -> bool:
    """Whether one writes what the other reads or writes.

    >>> x, y = Place("arena", 0, 0, 8, True), Place("arena", 0, 4, None, False)
    >>> conflict([x], [y]), conflict([y], [y])
    (True, False)
    """
    return any(
        (x.written or y.written)
        and (x.space, x.number) == (y.space, y.number)
        and (y.end is None or x.begin < y.end)
        and (x.end is None or y.begin < x.end)
        for x in a
        for y in b
    )


def _extent(p: Product, x: Operand, rows: int, columns: int) -> int:
    """The bytes from an operand's first element to its last."""
    if x.turned:
        rows, columns = columns, rows
    elements = (p.count - 1) * x.batch + (columns - 1) * x.leading + rows
    return elements * x.dtype.itemsize
