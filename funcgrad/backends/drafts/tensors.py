"""Values in memory before anything has an address, and drafts of the steps that compute them.

A `Draft` says what a step reads and writes; `plan` places its `Tensor`s, then `make` builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from funcgrad.backends.loops.ir import Kernel
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


class Draft(Record, frozen=False, eq=False):
    """A step to be: `make(steps of the inner blocks)` builds it when all tensors have addresses.

    in_place: pairs (written, read) that may share memory
    starts: pairs (written, read): the written tensor begins as a copy of the other, or in its place
    product, kernel: what the step is, if it is a matrix product (at no addresses) or a kernel
    operands: the tensors at the addresses of either; of a product it begins `offsets` bytes further
    """

    reads: list[Tensor]
    writes: list[Tensor]
    make: Callable[[list[tuple[Step, ...]]], list[Step]]
    in_place: list[tuple[Tensor, Tensor]] = fresh(factory=list)
    starts: list[tuple[Tensor, Tensor]] = fresh(factory=list)
    blocks: list[Block] = fresh(factory=list)
    product: GemmStep | None = None
    kernel: Kernel | None = None
    operands: Sequence[Tensor] = ()
    offsets: Sequence[int] = ()


class Block(Record, frozen=False, eq=False):
    """Drafts in order. results: pairs (value, destination): where values are to be at the end."""

    drafts: list[Draft]
    results: list[tuple[Tensor, Tensor]]


def moved(ref: Ref, offset: int) -> Ref:
    """An address some bytes further."""
    return Ref(ref.space, ref.number, ref.offset + offset, ref.strides)
