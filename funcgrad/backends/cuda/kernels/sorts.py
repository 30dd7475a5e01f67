"""Kernels of sorts and of the k greatest: a team a line, by Batcher's bitonic network.

A line's keys and their numbers are in shared memory, or where that doesn't suffice in memory for
work. The number decides between equal keys, so that the order is stable, and the network's result
is the only one (Batcher, "Sorting networks and their applications", 1968). Lines longer than `MOST`
would leave a GPU to few teams: they are the host's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.ir import Buffer, Const, Index, Operand, Value
from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.core.ir import Atom, Eqn

BOOL, INT32, FLOAT32 = np.dtype(bool), np.dtype(np.int32), np.dtype(np.float32)
MOST = 1 << 16
Key = Callable[[Index], Operand]


def sort(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "sort"; None for long lines, and dtypes that loops don't have."""
    xs, axis = eqn.ins, eqn.params["dimension"]
    shape = xs[0].aval.shape
    if not _fits(xs, shape, axis):
        return None
    lines = [k.outer(n) for i, n in enumerate(shape) if i != axis]

    def at(place: Index) -> list[Index]:
        return [*lines[:axis], place, *lines[axis:]]

    keys = xs[: eqn.params["num_keys"]]
    line = Line(k, [partial(_element, k, x, at) for x in keys], _kinds(keys), shape[axis])
    numbers = line.sorted()
    outs = [k.params.write(v) for v in eqn.outs]

    def write(place: list[Index]) -> None:
        source = at(line.number(numbers, place[0]))
        flat = k.builder.flatten(at(place[0]), shape)
        for x, out in zip(xs, outs, strict=True):
            k.builder.store(out, flat, k.element(x, source))

    k.builder.nest([shape[axis]], write, parallel=True)
    return k.done(eqn)


def top(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "top_k"; None for long lines, and dtypes that loops don't have."""
    (x,), count, b = eqn.ins, eqn.params["k"], k.builder
    shape = x.aval.shape
    axis = len(shape) - 1
    if not count or not _fits([x], shape, axis):
        return None
    lines = [k.outer(n) for n in shape[:-1]]
    element = partial(_element, k, x, lambda place: [*lines, place])
    line = Line(k, [element], _kinds([x]), shape[axis], descending=True)
    numbers = line.sorted()
    values, places = (k.params.write(v) for v in eqn.outs)

    def write(at: list[Index]) -> None:
        flat = b.flatten([*lines, at[0]], (*shape[:-1], count))
        number = line.number(numbers, at[0])
        b.store(values, flat, element(number))
        b.store(places, flat, b.integer(number, places.dtype))

    b.nest([count], write, parallel=True)
    return k.done(eqn)


def _element(
    k: SpecialKernel, x: Atom, at: Callable[[Index], list[Index]], place: Index
) -> Operand:
    return k.element(x, at(place))


def _kinds(xs: Sequence[Atom]) -> list[np.dtype]:
    return [x.aval.dtype for x in xs]


def _fits(xs: Sequence[Atom], shape: tuple[int, ...], axis: int) -> bool:
    kinds = {x.aval.dtype for x in xs}
    return not kinds - LOOP_DTYPES and shape[axis] <= MOST and math.prod(shape) > 0


class Line:
    """A line that is sorted by its keys, each the function of an element's place.

    held: the keys, in their order when it is sorted
    length: that of the network: a power of two; what is behind the line's end is greatest
    """

    def __init__(
        self, k: SpecialKernel, keys: Sequence[Key], kinds: Sequence[np.dtype], size: int,
        *, descending: bool = False,
    ):  # fmt: skip
        self.k, self.b, self.keys = k, k.builder, keys
        self.descending = descending
        self.size = size
        self.length = 1 << (size - 1).bit_length()
        wide = [FLOAT32 if d in HALVES else d for d in kinds]
        self.held = [k.params.local(d, self.length) for d in wide]

    def number(self, numbers: Buffer, place: Index) -> Index:
        """Which element comes at a place."""
        return self.b.value_index(self.b.load(numbers, place), 0, self.size - 1)

    def sorted(self) -> Buffer:
        """The numbers of the line's elements in their order."""
        b, numbers = self.b, self.k.params.local(INT32, self.length)

        def fill(at: list[Index]) -> None:
            b.store(numbers, at[0], b.integer(at[0], INT32))
            with b.guarded(b.compare("less", at[0], self.size)):
                for key, room in zip(self.keys, self.held, strict=True):
                    b.store(room, at[0], b.convert(key(at[0]), room.dtype))

        b.nest([self.length], fill, parallel=True)
        bits = self.length.bit_length() - 1
        rounds = bits * (bits + 1) // 2

        def turn(_: Value, run: Value, apart: Value) -> list[Operand]:
            def pair(i: Value) -> None:
                self._exchange(numbers, i, run, apart)

            b.loop(self.length // 2, pair, parallel=True)
            one = Const(1, INT32)
            last = b.op("equal", BOOL, apart, one)
            longer, half = (
                b.op("left_shift", INT32, run, one),
                b.op("right_shift", INT32, apart, one),
            )
            return [b.op("where", INT32, last, longer, run),
                    b.op("where", INT32, last, run, half)]  # fmt: skip

        if rounds:
            b.loop(rounds, turn, [Const(2, INT32), Const(1, INT32)])
        return numbers

    def _exchange(self, numbers: Buffer, i: Value, run: Value, apart: Value) -> None:
        """Put two elements of the line, `apart` from each other, in the order of their run."""
        b = self.b
        pair = b.convert(i, INT32)
        low = b.op("bitwise_and", INT32, pair, b.op("subtract", INT32, apart, Const(1, INT32)))
        first = b.op("subtract", INT32, b.op("left_shift", INT32, pair, Const(1, INT32)), low)
        second = b.op("add", INT32, first, apart)
        rises = b.op(
            "equal", BOOL, b.op("bitwise_and", INT32, first, run), Const(0, INT32)
        )  # fmt: skip
        places = [b.value_index(v, 0, self.length - 1) for v in (first, second)]
        rooms = [*self.held, numbers]
        values = [[b.load(room, at) for room in rooms] for at in places]
        swaps = b.op("equal", BOOL, self._less(values[1], values[0]), rises)
        for room, x, y in zip(rooms, *values, strict=True):
            b.store(room, places[0], b.op("where", room.dtype, swaps, y, x))
            b.store(room, places[1], b.op("where", room.dtype, swaps, x, y))

    def _less(self, x: Sequence[Operand], y: Sequence[Operand]) -> Operand:
        """Whether an element comes before another, which is not the same."""
        b = self.b
        before = b.op("less", BOOL, x[-1], y[-1])
        for u, v in reversed(list(zip(x[:-1], y[:-1], strict=True))):
            if self.descending:
                u, v = v, u
            sooner, later = self._key_less(u, v), self._key_less(v, u)
            rest = b.op("bitwise_and", BOOL, before, b.op("invert", BOOL, later))
            before = b.op("bitwise_or", BOOL, sooner, rest)
        if self.size == self.length:
            return before
        ends = [b.op("less", BOOL, v[-1], Const(self.size, INT32)) for v in (x, y)]
        inside = b.op("bitwise_and", BOOL, *ends)
        return b.op("where", BOOL, inside, before, b.op("less", BOOL, x[-1], y[-1]))

    def _key_less(self, u: Operand, v: Operand) -> Operand:
        """Whether a key is less than another: NaN is greatest."""
        b = self.b
        less = b.op("less", BOOL, u, v)
        if u.dtype.kind != "f":
            return less
        known = b.op("bitwise_and", BOOL, b.op("isnan", BOOL, v), b.op("equal", BOOL, u, u))
        return b.op("bitwise_or", BOOL, less, known)
