"""Values in memory before anything has an address, and drafts of the steps that compute them.

A `Draft` says what a step reads and writes; `plan` places its `Tensor`s, then `make` builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcgrad.backends.program import GemmStep, Ref, Step
from funcgrad.core.aval import ShapedArray
from funcgrad.core.record import Record, fresh
from funcgrad.core.source import Source


class Tensor(Record, frozen=False, eq=False):
    """A value in memory. `ref` is its address, once it has one.

    base: what this one is a part of; who reads the part reads the base
    source: the user's line that computes it, where it is known
    """

    aval: ShapedArray
    ref: Ref | None = None
    base: Tensor | None = None
    source: Source | None = None

    @property
    def place(self) -> Ref:
        """The address; any will do for what has no elements."""
        if self.ref is None and not self.aval.size:
            return Ref("arena")
        assert self.ref is not None, self.aval
        return self.ref

    @property
    def whole(self) -> Tensor:
        """The tensor that owns the memory."""
        return self if self.base is None else self.base.whole


class Row(Tensor, frozen=False, eq=False):
    """The part of `base` along its first axis that a loop's counter points at: with `every` turns
    of `length` at a time, that of turn `first` among them; with 0 that of turn `first` alone."""

    number: int = 0
    length: int = 0
    reverse: bool = False
    every: int = 1
    first: int = 0

    @property
    def place(self) -> Ref:
        """The address, which moves with the counter."""
        assert self.base is not None
        at, step = self.base.place, self.aval.nbytes
        row = self.length - 1 - self.first if self.reverse else self.first
        move = (-step if self.reverse else step) * self.every
        moves = (*at.strides, (self.number, move)) if move else at.strides
        return Ref(at.space, at.number, at.offset + row * step, moves)


class Part(Tensor, frozen=False, eq=False):
    """What lies in `base` from byte `offset` on."""

    offset: int = 0

    @property
    def place(self) -> Ref:
        """The address in the other tensor."""
        assert self.base is not None
        return moved(self.base.place, self.offset)


class Span(Record):
    """The bytes [low, high) from an array's address that a step's first row touches, and how much
    further those of each next row are."""

    step: int
    low: int
    high: int


class Sliced(Record, eq=False):
    """A step along its rows.

    rows: how many there are
    operands: the arrays, in the order of the step's addresses
    build: for some rows, what makes their step of its addresses
    """

    rows: int
    operands: tuple[tuple[Tensor, Span], ...]
    build: Callable[[int], Callable[[Sequence[Ref]], Step]]


class Draft(Record, frozen=False, eq=False):
    """A step to be: `make(steps of the inner blocks)` builds it when all tensors have addresses.

    in_place: pairs (written, read) that may share memory
    starts: pairs (written, read): the written tensor begins as a copy of the other, or in its place
    product: the step of a matrix product, at no addresses
    sliced: the step along so many rows, if it has them
    """

    reads: list[Tensor]
    writes: list[Tensor]
    make: Callable[[list[tuple[Step, ...]]], list[Step]]
    in_place: list[tuple[Tensor, Tensor]] = fresh(factory=list)
    starts: list[tuple[Tensor, Tensor]] = fresh(factory=list)
    blocks: list[Block] = fresh(factory=list)
    product: GemmStep | None = None
    sliced: Callable[[int], Sliced | None] | None = None


class Block(Record, frozen=False, eq=False):
    """Drafts in order. results: pairs (value, destination): where values are to be at the end."""

    drafts: list[Draft]
    results: list[tuple[Tensor, Tensor]]


def moved(ref: Ref, offset: int) -> Ref:
    """An address some bytes further."""
    return Ref(ref.space, ref.number, ref.offset + offset, ref.strides)
