"""Values moved to the extrema of windows of images whose features come last, as loops.

Vectors are of features. A first pass over the windows that reach some lines of an image keeps which
element each selects; a second one writes the lines, of which each element takes what windows that
reach it give it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand, Value
from funcgrad.core.ir import Eqn

BOOL, INT32 = np.dtype(bool), np.dtype(np.int32)
# Fewer features fill no vectors. A task keeps no more choices than stay in a core's cache, and
# images are cut until there are so many tasks, or so few lines in one.
LEAST, KEPT, TASKS, LINES = 4, 1 << 15, 16, 4


class _Axis(NamedTuple):
    """How windows lie along an axis: element k of window p is the image's p·stride + k·step - low.
    A turn takes `stride` neighbours of the image."""

    size: int
    windows: int
    window: int
    stride: int
    low: int
    step: int

    @property
    def turns(self) -> int:
        """How many there are."""
        return -(-self.size // self.stride)

    def reaching(self, phase: int) -> list[tuple[int, int]]:
        """Which element of windows a turn's neighbour is, and by how much these windows' numbers
        are greater than the turn's."""
        out = []
        for tap in range(self.window):
            further, rest = divmod(phase + self.low - tap * self.step, self.stride)
            if not rest:
                out.append((tap, further))
        return out

    def reach(self) -> tuple[int, int]:
        """The least and the greatest such difference."""
        found = [f for phase in range(self.stride) for _, f in self.reaching(phase)] or [0]
        return min(found), max(found)

    def inner_windows(self) -> tuple[int, int]:
        """The windows that lie in the image."""
        last = self.size - 1 - (self.window - 1) * self.step + self.low
        return -(-self.low // self.stride), last // self.stride + 1

    def inner_turns(self) -> tuple[int, int]:
        """The turns whose neighbours are all the image's, and reached by windows alone."""
        first, last = self.reach()
        return -first, min(self.windows - last, self.size // self.stride)


def in_lines(shape: Sequence[int], moving: Sequence[int], most: int) -> bool:
    """Whether windows reach along axes that follow each other, before enough features, of which
    no more elements than `most` lie in a line.

    >>> in_lines((8, 28, 28, 32), [1, 2], 1 << 20), in_lines((8, 32, 28, 28), [2, 3], 1 << 20)
    (True, False)
    """
    together = list(moving) == list(range(moving[0], moving[-1] + 1))
    features = math.prod(shape[moving[-1] + 1 :])
    return together and features >= LEAST and math.prod(shape[moving[0] + 1 :]) <= most


class Lines:
    """The kernel, of images as lines of elements that have features.

    moving: the axes along which windows reach; strides: theirs
    types: in which elements are compared, and added
    least: what is outside of the image; first: which of a window's elements is selected
    """

    def __init__(
        self,
        k: SpecialKernel,
        eqn: Eqn,
        moving: Sequence[int],
        strides: Sequence[int],
        types: tuple[np.dtype, np.dtype],
        least: Const,
        first: Callable[[Sequence[Operand]], Operand],
    ):
        self.k, self.b, self.eqn = k, k.builder, eqn
        (self.x_type, self.sum_type), self.least, self.first = types, least, first
        (counts, shape), p = (a.aval.shape for a in eqn.ins), eqn.params
        self.axes = [
            _Axis(shape[i], counts[i], p["window_dimensions"][i], stride, p["padding"][i][0],
                  p["window_dilation"][i])
            for i, stride in zip(moving, strides, strict=True)
        ]  # fmt: skip
        self.sizes = [a.size for a in self.axes]
        self.counts = [a.windows for a in self.axes]
        self.taps = list(itertools.product(*(range(a.window) for a in self.axes)))
        self.features = math.prod(shape[moving[-1] + 1 :])
        self.images = shape[: moving[0]]
        self.image = [k.outer(n) for n in self.images]
        # A task takes `rows` turns of the first axis, and the windows that reach them.
        axis = self.axes[0]
        self.before, last = axis.reach()
        more = last - self.before
        most = KEPT // (math.prod(self.counts[1:]) * self.features) - more
        self.rows = max(1, min(axis.turns, most))
        while math.prod(self.images) * -(-axis.turns // self.rows) < TASKS and self.rows > LINES:
            self.rows = -(-self.rows // 2)
        self.start = scale_index(k.outer(-(-axis.turns // self.rows)), self.rows)
        self.windows = [self.rows + more, *self.counts[1:]]
        self.chosen = k.params.local(INT32, math.prod(self.windows) * self.features)

    def write(self) -> Written:
        """The finished kernel."""
        out = self.k.params.write(self.eqn.outs[0])
        self._nest(self.windows, self.axes[-1].inner_windows(), self._choose)

        def turn(at: Sequence[Index]) -> None:
            for phases in itertools.product(*(range(a.stride) for a in self.axes)):
                place = [
                    scale_index(i, a.stride, r)
                    for i, a, r in zip(self._whole(at, 0), self.axes, phases, strict=True)
                ]
                if type(inside := self._inside(place, self.sizes)) is not Const:
                    self._each(partial(element, at, phases, place, inside))

        def element(at: Sequence[Index], phases: Any, place: Any, inside: Any, f: Index) -> None:
            total = self.b.convert(self._total(at, phases, f), self.eqn.outs[0].aval.dtype)
            with self.b.guarded(inside):
                self.b.store(out, self._flat(place, self.sizes, f), total)

        turns = [self.rows, *(a.turns for a in self.axes[1:])]
        self._nest(turns, self.axes[-1].inner_turns(), turn)
        return self.k.done(self.eqn)

    def _choose(self, at: Sequence[Index]) -> None:
        """Keep which element of a window is selected, of each feature."""

        def of(feature: Index) -> None:
            values = [self._value(at, tap, feature) for tap in self.taps]
            place = self.b.flatten([*at, feature], (*self.windows, self.features))
            self.b.store(self.chosen, place, self.first(values))

        self._each(of)

    def _value(self, at: Sequence[Index], tap: Sequence[int], feature: Index) -> Operand:
        """An element of a window, as it is compared."""
        place = [
            scale_index(i, a.stride, t * a.step - a.low)
            for i, a, t in zip(self._whole(at, self.before), self.axes, tap, strict=True)
        ]
        inside = self._inside(place, self.sizes)
        if type(inside) is Const:
            return self.least
        with self.b.guarded(inside):
            x = self.k.element_at(self.eqn.ins[1], self._flat(place, self.sizes, feature))
        value = self.b.convert(x, self.x_type)
        if inside is None:
            return value
        return self.b.op("where", self.x_type, inside, value, self.least)

    def _total(self, at: Sequence[Index], phases: Sequence[int], feature: Index) -> Operand:
        """What an element takes of all windows that reach it, in the order of their elements."""
        total: Operand = (zero := Const(0, self.sum_type))
        reaching = [a.reaching(r) for a, r in zip(self.axes, phases, strict=True)]
        for pairs in itertools.product(*reaching):
            number = Const(self.taps.index(tuple(tap for tap, _ in pairs)), INT32)
            moved = [scale_index(i, 1, further) for i, (_, further) in zip(at, pairs, strict=True)]
            place = self._whole(moved, 0)
            inside = self._inside(place, self.counts)
            if type(inside) is Const:
                continue
            kept = [scale_index(moved[0], 1, -self.before), *moved[1:], feature]
            with self.b.guarded(inside):
                chosen = self.b.load(
                    self.chosen, self.b.flatten(kept, (*self.windows, self.features))
                )
                given = self.k.element_at(self.eqn.ins[0], self._flat(place, self.counts, feature))
            here = self.b.op("equal", BOOL, chosen, number)
            given = self.b.convert(given, self.sum_type)
            more = self.b.op("where", self.sum_type, here, given, zero)
            total = self.b.op("add", self.sum_type, total, more)
        return total

    def _whole(self, at: Sequence[Index], plus: int) -> list[Index]:
        """A place of a task's, from its first row on, as one of the image's."""
        return [add_indices(self.start, scale_index(at[0], 1, plus)), *at[1:]]

    def _flat(self, at: Sequence[Index], sizes: Sequence[int], feature: Index) -> Index:
        shape = (*self.images, *sizes, self.features)
        return self.b.flatten([*self.image, *at, feature], shape)

    def _inside(self, at: Sequence[Index], sizes: Sequence[int]) -> Operand | None:
        """The condition for a place to be inside; None if it always is, a constant if never."""
        conditions = []
        for i, size in zip(at, sizes, strict=True):
            conditions += [self.b.compare("greater_equal", i, 0), self.b.compare("less", i, size)]
        never = (c for c in conditions if type(c) is Const)
        return next(never, None) or self.b.all_of(conditions)

    def _each(self, body: Callable[[Index], None]) -> None:
        """body(feature) of all."""

        def turn(i: Value) -> None:
            body(Index(0, ((1, i),)))

        self.b.loop(self.features, turn, parallel=True)

    def _nest(self, sizes: Sequence[int], inner: tuple[int, int], body: Callable) -> None:
        """body(place) of all places, those along the last axis in parts: in the one inside there
        are no conditions for it."""
        *rest, n = sizes
        low = min(max(0, inner[0]), n) if rest else 0
        high = min(max(low, inner[1]), n) if rest else 0

        def line(at: Sequence[Index]) -> None:
            for first, last in ((0, low), (low, high), (high, n)):
                if first < last:
                    self.b.nest([last - first], partial(one, at, first))

        def one(at: Sequence[Index], first: int, i: Sequence[Index]) -> None:
            body([*at, scale_index(i[0], 1, first)])

        self.b.nest(rest, line)
