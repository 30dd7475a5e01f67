"""Which queries meet which keys at each turn of a ring, and from where.

At turn j a device has the keys of the device j places before it, round the ring. Where the program
doesn't know which of two cases is a device's own, a piece says both: it takes its operands by a
condition, or isn't there, which costs no work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.types import AxisName
from funcgrad.parallel.attention.blocks import Window


class Choice(NamedTuple):
    """A part of an array: `first`, or `second` where a condition doesn't hold."""

    first: int
    second: int = 0
    condition: Any = None

    def of(self, parts: Sequence[Any]) -> Any:
        """The part that is meant."""
        if self.condition is None or parts[self.first] is parts[self.second]:
            return parts[self.first]
        return fnp.where(self.condition, parts[self.first], parts[self.second])

    def each(self) -> list[tuple[int, Any]]:
        """The parts that may be meant, and when they are."""
        if self.condition is None:
            return [(self.first, True)]
        return [(self.first, self.condition), (self.second, fnp.logical_not(self.condition))]


class Piece(NamedTuple):
    """A part of the queries, a part of the keys, which of them see each other; and whether the
    piece is there at all."""

    queries: Choice = Choice(0)
    keys: Choice = Choice(0)
    window: Window = Window()
    there: Any = True


@dataclass(frozen=True)
class Ring:
    """A ring of devices, and which keys a query sees: those from `before` places before it to
    `after` places after it (None: all). zigzag: device i has the parts i and 2n - 1 - i of 2n.
    gathers: all keys are fetched at once, in place of going round."""

    axis: AxisName
    before: int | None = None
    after: int | None = None
    zigzag: bool = False
    gathers: bool = False

    @property
    def parts(self) -> int:
        """In how many parts a device's sequence is cut."""
        return 2 if self.zigzag else 1

    def turns(self, length: int) -> list[int]:
        """The turns at which some device sees keys, each device having `length` of them."""
        return self.turns_of(lax.axis_size(self.axis), length)

    def turns_of(self, n: int, length: int) -> list[int]:
        """The same on a ring of n devices, wherever it is asked."""
        if self.zigzag:
            return list(range(1, n))
        seen = [self._window(d, length) is not None for d in range(-n, n)]
        return [j for j in range(1, n) if seen[n + j] or seen[j]]

    def pieces(self, turn: Any, length: int) -> list[Piece]:
        """What a device has to do at a turn, the first of which is 0."""
        if self.zigzag:
            return self._zigzag(turn)
        if isinstance(turn, int) and turn == 0:
            return [Piece(window=Window(self.before, self.after))]
        if isinstance(turn, int):
            before = self._window(turn, length)
            after = self._window(turn - lax.axis_size(self.axis), length)
        else:  # in a loop over all turns there are no windows
            before, after = Window(), None if self.after == 0 else Window()
        if before == after and before is not None:
            return [Piece(window=before)]
        earlier = lax.axis_index(self.axis) >= turn
        found = [] if before is None else [Piece(window=before, there=earlier)]
        later = fnp.logical_not(earlier)
        return found + ([] if after is None else [Piece(window=after, there=later)])

    @property
    def alike(self) -> bool:
        """Whether all turns but the first are one program: no window moves with them."""
        return self.before is None and self.after in (None, 0)

    def _window(self, distance: int, length: int) -> Window | None:
        """How queries see the keys of the device `distance` places before theirs; None: not."""
        nearest, farthest = (distance * length + s * (length - 1) for s in (-1, 1))
        before = None if self.before is None else self.before - distance * length
        after = None if self.after is None else self.after + distance * length
        if self.before is not None and nearest > self.before:
            return None
        if self.after is not None and farthest < -self.after:
            return None
        # What bounds no pair of this block is no bound.
        return Window(
            None if before is None or before >= length - 1 else before,
            None if after is None or after >= length - 1 else after,
        )

    def _zigzag(self, turn: Any) -> list[Piece]:
        """Causal: early parts rise and late parts fall with the devices' numbers."""
        early, late = Choice(0), Choice(1)
        if isinstance(turn, int) and turn == 0:
            own = Window(after=0)
            return [Piece(early, early, own), Piece(late, early), Piece(late, late, own)]
        either = Choice(0, 1, lax.axis_index(self.axis) >= turn)
        return [Piece(late, early), Piece(either, either)]
