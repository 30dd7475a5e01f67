"""Values moved to the extrema of windows, as max pooling's gradient does it, as loops.

Each image is copied, with what surrounds it, into scratch memory. A first pass over its windows
finds which element each selects, then element after element of all windows takes what it is given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.llvm.kernels.selections_last import Lines, in_lines
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index, strides_of
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.loops.scalars import HALVES
from funcgrad.core.ir import Eqn
from funcgrad.ops.convolution.padding import dilated
from funcgrad.ops.elementwise.compare import ge
from funcgrad.ops.reduce import highest, lowest

BOOL, INT32, FLOAT32 = np.dtype(bool), np.dtype(np.int32), np.dtype(np.float32)
# Larger windows and images are the host's.
MAX_TAPS, MAX_IMAGE = 64, 1 << 20


class _Images:
    """The axes of an operand along which windows reach, and those that images are counted by."""

    def __init__(self, eqn: Eqn):
        p, (source, x) = eqn.params, (a.aval for a in eqn.ins)
        self.shape, self.counts = x.shape, source.shape
        self.axes = list(
            zip(p["window_dimensions"], p["window_strides"], p["padding"], p["base_dilation"],
                p["window_dilation"], strict=True)
        )  # fmt: skip
        self.moving = [i for i, a in enumerate(self.axes) if a[:4] != (1, 1, (0, 0), 1)]
        self.sizes = [
            dilated(self.shape[i], self.axes[i][3]) + sum(self.axes[i][2]) for i in self.moving
        ]
        self.steps = strides_of(self.sizes)
        self.taps = list(itertools.product(*(range(self.axes[i][0]) for i in self.moving)))

    def of(self, values: Sequence[int]) -> list[int]:
        """What belongs to the axes of windows."""
        return [values[i] for i in self.moving]

    def all(self, image: Sequence[Index], inner: Sequence[Index]) -> list[Index]:
        """An index of all axes, from those of the image and those inside."""
        rest = iter(inner)
        return [next(rest) if i in self.moving else v for i, v in enumerate(image)]

    def element(self, window: Sequence[Index], tap: Sequence[int]) -> Index:
        """Where in the surrounded image an element of a window lies."""
        places = []
        for i, at, k in zip(self.moving, window, tap, strict=True):
            _, stride, _, _, dilation = self.axes[i]
            places.append(scale_index(at, stride, k * dilation))
        return self._flat(places)

    def operand(self, at: Sequence[Index]) -> tuple[Index, list[tuple[Index, int]]]:
        """Where an element of the operand lies in the surrounded image, and places along its axes
        with their sizes, outside of which it was cut off."""
        places = [
            scale_index(a, self.axes[i][3], self.axes[i][2][0])
            for i, a in zip(self.moving, at, strict=True)
        ]
        return self._flat(places), list(zip(places, self.sizes, strict=True))

    def _flat(self, places: Sequence[Index]) -> Index:
        return add_indices(*(scale_index(i, s) for i, s in zip(places, self.steps, strict=True)))

    def groups(self) -> Iterator[list[int]]:
        """Numbers of taps of which no two, of any windows in a line, are the same element."""
        _, stride, _, _, dilation = self.axes[self.moving[-1]]

        def group(k: int) -> tuple:
            *rest, last = self.taps[k]
            return (*rest, last * dilation // stride)

        for _, numbers in itertools.groupby(range(len(self.taps)), group):
            yield list(numbers)


def write(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "select_and_scatter_add"; None if the host is to run it."""
    images, b = _Images(eqn), k.builder
    source, x = eqn.ins
    room = math.prod(images.sizes)
    empty = not math.prod(images.counts) or not math.prod(images.shape)
    if not images.moving or empty or len(images.taps) > MAX_TAPS or room > MAX_IMAGE:
        return None
    x_type, sum_type = (FLOAT32 if a.aval.dtype in HALVES else a.aval.dtype for a in (x, source))
    if BOOL in (x_type, sum_type):
        return None
    greatest = eqn.params["select_prim"] is ge
    least = Const(lowest(x_type) if greatest else highest(x_type), x_type)
    # A window alone may go on by the whole image.
    strides = [images.shape[i] if images.counts[i] == 1 else images.axes[i][1]
               for i in images.moving]  # fmt: skip
    fits = in_lines(images.shape, images.moving, MAX_IMAGE) and math.prod(strides) <= MAX_TAPS
    if fits and set(eqn.params["base_dilation"]) == {1}:
        first = partial(_first, b, greatest=greatest)
        return Lines(k, eqn, images.moving, strides, (x_type, sum_type), least, first).write()
    return _written(k, eqn, images, (x_type, sum_type), least, greatest)


def _written(
    k: SpecialKernel, eqn: Eqn, images: _Images, types: tuple[np.dtype, np.dtype], least: Const,
    greatest: bool,
) -> Written:  # fmt: skip
    """The kernel by way of an image in memory; its elements and sums have these types."""
    b, (source, x), (x_type, sum_type) = k.builder, eqn.ins, types
    room = math.prod(images.sizes)
    out = k.params.write(eqn.outs[0])
    image = [ZERO if i in images.moving else k.outer(n) for i, n in enumerate(images.shape)]
    counts, shape = images.of(images.counts), images.of(images.shape)
    around, sums = k.params.local(x_type, room), k.params.local(sum_type, room)
    chosen = k.params.local(INT32, math.prod(counts))
    zero = Const(0, sum_type)

    def clear(at: Sequence[Index]) -> None:
        b.store(around, at[0], least)
        b.store(sums, at[0], zero)

    def copy(at: Sequence[Index]) -> None:
        place, inside = _inside(k, images, at)
        with b.guarded(inside):
            value = k.element(x, images.all(image, at))
            b.store(around, place, b.convert(value, x_type))

    def choose(at: Sequence[Index]) -> None:
        taps = [b.load(around, images.element(at, tap)) for tap in images.taps]
        b.store(chosen, b.flatten(at, counts), _first(b, taps, greatest))

    def add(at: Sequence[Index], numbers: Sequence[int]) -> None:
        number = b.load(chosen, b.flatten(at, counts))
        value = b.convert(k.element(source, images.all(image, at)), sum_type)
        for t in numbers:
            place = images.element(at, images.taps[t])
            here = b.op("equal", BOOL, number, Const(t, INT32))
            more = b.op("where", sum_type, here, value, zero)
            b.store(sums, place, b.op("add", sum_type, b.load(sums, place), more))

    def write(at: Sequence[Index]) -> None:
        place, inside = _inside(k, images, at)
        with b.guarded(inside):
            total = b.load(sums, place)
        flat = b.flatten(images.all(image, at), images.shape)
        b.store(out, flat, b.convert(total, eqn.outs[0].aval.dtype))

    b.nest([room], clear, parallel=True)
    b.nest(shape, copy, parallel=True)
    b.nest(counts, choose, parallel=True)
    for numbers in images.groups():
        b.nest(counts, lambda at, numbers=numbers: add(at, numbers), parallel=True)
    b.nest(shape, write, parallel=True)
    return k.done(eqn)


def _first(b: Builder, values: Sequence[Operand], greatest: bool) -> Operand:
    """The number of the first NaN among values, else of the first greatest (or least) one."""
    best: Operand = values[0]
    number: Operand = Const(0, INT32)
    for t, other in enumerate(values[1:], 1):
        keeps = b.op("greater_equal" if greatest else "less_equal", BOOL, best, other)
        better = b.op("invert", BOOL, keeps)
        better = b.op("bitwise_and", BOOL, better, b.op("equal", BOOL, best, best))
        best = b.op("where", best.dtype, better, other, best)
        number = b.op("where", INT32, better, Const(t, INT32), number)
    return number


def _inside(k: SpecialKernel, images: _Images, at: Sequence[Index]) -> tuple[Index, Operand | None]:
    """Where an element of the operand lies, and whether it was not cut off."""
    b = k.builder
    place, bounds = images.operand(at)
    conditions = []
    for i, size in bounds:
        conditions += [b.compare("greater_equal", i, 0), b.compare("less", i, size)]
    return place, b.all_of(conditions)
