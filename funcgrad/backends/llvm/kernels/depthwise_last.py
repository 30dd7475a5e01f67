"""Convolutions of single channels that come last, and the gradients of their kernels, as loops.

Vectors are of channels. Along a line, some pixels are taken at a time, of which all elements of
the kernel are read once, and what several of their windows reach is. Where a window reaches beyond
the image, in pixels at the edges and lines of the kernel, it reads zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.llvm.kernels.depthwise import (
    LANES,
    LEAST_WORK,
    MAX_TERMS,
    ImageAxis,
    channels_op,
    image_axis,
    read_element,
    write_element,
)
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.rewrites.phases import convolution_of
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn
from funcgrad.ops.base import sum_p

PIXELS = 4  # taken at a time, at least
TERMS = 8  # products with each, made at a time: of more, registers don't hold what they read
LEAST_PARTS = 16  # of sums over images

# The kernel has the axes window, 1, channels; its gradient, of which there are parts to be added,
# part, window, channels.
channels_last_p = channels_op("channels_last")


def channels_last_convolution(flat: Any, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A convolution as loops over channels, by a normalizer's methods; None if it mixes channels,
    they don't come last or fill vectors, or it is too small.

    dtype: in which it multiplies and adds
    """
    p, out, (x, w) = eqn.params, eqn.outs[0].aval, ins
    spec, groups = p["dimension_numbers"], p["feature_group_count"]
    o, i, *window = (w.aval.shape[a] for a in spec.rhs_spec)
    last, rank, over = len(out.shape) - 1, len(window), p["batch_group_count"] > 1
    positions = [out.shape[a] for a in spec.out_spec[2:]]
    if over:
        groups, terms = p["batch_group_count"], math.prod(positions)
        fits = out.shape[spec.out_spec[0]] == 1 and spec.lhs_spec[0] == spec.rhs_spec[0] == last
        fits = fits and set(p["lhs_dilation"]) <= {1}
    else:
        terms = math.prod(window)
        fits = i == 1 and spec.lhs_spec[1] == spec.out_spec[1] == last
    work = out.size * i * math.prod(window)
    fits = fits and rank > 0 and groups == o and o % LANES == 0
    if not fits or terms > MAX_TERMS or work < LEAST_WORK:
        return None
    images = i if over else out.shape[spec.out_spec[0]]
    of = convolution_of(eqn, ins)
    first = image_axis(of, 0, over).positions
    blocks = _blocks(images, first, 1 if rank > 1 else LANES) if over or rank == 1 else 1
    if not over:
        w = flat.transpose(w, [*spec.rhs_spec[2:], spec.rhs_spec[1], spec.rhs_spec[0]])
        result = ShapedArray(out.shape, out.dtype)
        return flat.add(channels_last_p, [x, w], result, out=result, over=over, dtype=dtype,
                        blocks=blocks, spec=spec, convolution=of)  # fmt: skip
    result = ShapedArray((images * blocks, *positions, o), dtype)
    parts = flat.add(channels_last_p, [x, w], result, out=result, over=over, dtype=dtype,
                     blocks=blocks, spec=spec, convolution=of)  # fmt: skip
    total = flat.reshape(flat.reduce(sum_p, parts, [0]), (*positions, o, 1))
    order = dict(zip(spec.out_spec, (rank + 1, rank, *range(rank)), strict=True))
    return flat.convert(flat.transpose(total, [order[a] for a in range(rank + 2)]), out.dtype)


def _blocks(images: int, positions: int, least: int) -> int:
    """In how many parts, of so many positions at least, images are cut along an axis."""
    found = [n for n in range(1, positions + 1) if not positions % n and positions // n >= least]
    return next((n for n in found if images * n >= LEAST_PARTS), max(found, default=1))


class _Windows:
    """How pixels of images, in lines, and elements of windows meet."""

    def __init__(self, k: SpecialKernel, eqn: Eqn):
        self.k, self.b, p = k, k.builder, eqn.params
        self.spec, self.dtype, self.over = p["spec"], p["dtype"], p["over"]
        (self.x, self.w), of = eqn.ins, p["convolution"]
        self.channels = eqn.outs[0].aval.shape[-1]
        self.axes = [image_axis(of, a, self.over) for a in range(len(of.taps))]
        self.zero = Const(np.zeros((), self.dtype), self.dtype)
        # Pixels that are taken together; those that meet other elements of the kernel take turns.
        last = self.axes[-1]
        every = last.hole // math.gcd(last.stride, last.hole)
        self.together = -(-PIXELS // every) * every

    def met(self, axis: ImageAxis, at: Index, tap: int) -> tuple[Index, list[Operand]] | None:
        """Where along an axis an element of the window at a position is, and the conditions under
        which it is one of the image; None if it never is."""
        b, place = self.b, scale_index(at, axis.stride, tap * axis.step - axis.low)
        found = []
        if axis.hole != 1:
            place, rest = b.divide(place, axis.hole)
            found.append(b.compare("less", rest, 1))
        found += [b.compare("greater_equal", place, 0), b.compare("less", place, axis.size)]
        conditions = [c for c in found if c is not None]
        if any(type(c) is Const and not c.value for c in conditions):
            return None
        return place, conditions

    def lines(self, at: Sequence[Index]) -> list[tuple[tuple[int, ...], list[Index], Any]]:
        """The lines of windows at a position along all axes but the last: which, where they lie
        in the image, and the condition that they do."""
        b, axes, found = self.b, self.axes[:-1], []
        for taps in itertools.product(*(range(a.window) for a in axes)):
            ways = [self.met(*x) for x in zip(axes, at, taps, strict=True)]
            places = [way[0] for way in ways if way is not None]
            if len(places) == len(axes):
                guard = b.all_of(c for way in ways if way is not None for c in way[1])
                found.append((taps, places, guard))
        return found

    def element(
        self, image: Index, line: Sequence[Index], place: Index, guard: Any, channel: Index
    ) -> Operand:
        """An element of the image, or 0 where the guard doesn't hold."""
        pair = (channel, image) if self.over else (image, channel)
        with self.b.guarded(guard):
            x = read_element(self.k, self.x, self.spec.lhs_spec, (*pair, *line, place))
        return self.b.convert(x, self.dtype)

    def terms(self, lines: Sequence) -> list[list]:
        """The lines' elements of windows, in parts of as many as registers serve."""
        pairs = list(itertools.product(lines, range(self.axes[-1].window)))
        size = -(-len(pairs) // max(1, -(-len(pairs) // TERMS)))
        return [pairs[i : i + size] for i in range(0, len(pairs), max(1, size))]

    def vectors(self, body: Callable[[Index], None]) -> None:
        """body(channel) of all channels."""
        self.b.loop(self.channels, lambda i: body(Index(0, ((1, i),))), parallel=True)

    def along(self, body: Callable[[list[Index]], None], block: Index, blocks: int) -> None:
        """body(pixels) of all pixels of a line, or of one of its blocks, some at a time."""
        axis, count = self.axes[-1], self.together
        low, high = 0, axis.positions // blocks
        if blocks == 1:
            # Where windows lie inside the image.
            low = min(max(0, -(-axis.low // axis.stride)), axis.positions)
            reach = (axis.size - 1) * axis.hole + axis.low - (axis.window - 1) * axis.step
            high = min(max(reach // axis.stride + 1, low), axis.positions)
        turns, size = (high - low) // count, axis.positions // blocks
        start, ends = scale_index(block, size), low + turns * count

        def some(number: int, first: int, step: int, pixels: int) -> None:
            def turn(at: Sequence[Index]) -> None:
                here = [scale_index(at[0], step, first + j) for j in range(pixels)]
                body([add_indices(start, i) for i in here])

            if number:
                self.b.nest([number], turn)

        some(low, 0, 1, 1)
        some(turns, low, count, count)
        some(size - ends, ends, 1, 1)


def write(k: SpecialKernel, eqn: Eqn) -> Written:
    """The kernel of a convolution of single channels, or of its kernel's gradient."""
    return (_over_images if eqn.params["over"] else _over_windows)(k, eqn)


def _over_windows(k: SpecialKernel, eqn: Eqn) -> Written:
    """Each output is the sum over its window."""
    b, windows, write = k.builder, _Windows(k, eqn), write_element(k, eqn)
    last = windows.axes[-1]
    image = k.outer(eqn.outs[0].aval.shape[windows.spec.out_spec[0]])
    at = [k.outer(a.positions) for a in windows.axes[:-1]]
    block = k.outer(blocks := eqn.params["blocks"])
    parts = windows.terms(windows.lines(at)) or [[]]
    sums = k.params.local(windows.dtype, windows.together * windows.channels)

    def results(pixels: list[Index]) -> None:
        for part in parts:
            windows.vectors(partial(some, pixels, part))

    def some(pixels: list[Index], part: list, channel: Index) -> None:
        kept = [scale_index(channel, 1, j * windows.channels) for j in range(len(pixels))]
        totals: list[Operand | None] = [None] * len(pixels)
        if part is not parts[0]:
            totals = [b.load(sums, place) for place in kept]
        for (taps, line, inside), tap in part:
            number = [*map(Index, (*taps, tap, 0))]
            weight = b.convert(k.element(windows.w, [*number, channel]), windows.dtype)
            for j, pixel in enumerate(pixels):
                found = windows.met(last, pixel, tap)
                if found is not None:
                    guard = b.all_of([inside, *found[1]])
                    x = windows.element(image, line, found[0], guard, channel)
                    totals[j] = _added(b, windows.dtype, totals[j], x, weight)
        for pixel, place, total in zip(pixels, kept, totals, strict=True):
            value = windows.zero if total is None else total
            if part is parts[-1]:
                write([image, channel, *at, pixel], value)
            else:
                b.store(sums, place, value)

    windows.along(results, block, blocks)
    return k.done(eqn)


def _over_images(k: SpecialKernel, eqn: Eqn) -> Written:
    """Each element of a kernel's gradient is a sum over images and positions; of each part of
    these."""
    b, windows, blocks = k.builder, _Windows(k, eqn), eqn.params["blocks"]
    last, channels, dtype = windows.axes[-1], windows.channels, windows.dtype
    number = math.prod(a.window for a in windows.axes)
    image = k.outer(eqn.outs[0].aval.shape[0] // blocks)
    block = k.outer(blocks)
    sums = k.params.local(dtype, number * channels)

    def each(body: Callable[[Index], None]) -> None:
        b.loop(sums.size, lambda i: body(Index(0, ((1, i),))), parallel=True)

    each(lambda i: b.store(sums, i, windows.zero))
    sizes = [a.positions for a in windows.axes[:-1]]
    sizes[:1] = [n // blocks for n in sizes[:1]]

    def position(inner: Sequence[Index]) -> None:
        at = list(inner)
        at[:1] = [add_indices(scale_index(block, sizes[0]), i) for i in at[:1]]
        lines = windows.lines(at)

        def products(pixels: list[Index]) -> None:
            for part in windows.terms(lines):
                windows.vectors(partial(some, pixels, part))

        def some(pixels: list[Index], part: list, channel: Index) -> None:
            seeds = [
                b.convert(
                    read_element(k, windows.w, windows.spec.rhs_spec, (channel, image, *at, pixel)),
                    dtype,
                )
                for pixel in pixels
            ]
            for (taps, line, inside), tap in part:
                total: Operand | None = None
                for pixel, seed in zip(pixels, seeds, strict=True):
                    found = windows.met(last, pixel, tap)
                    if found is not None:
                        guard = b.all_of([inside, *found[1]])
                        x = windows.element(image, line, found[0], guard, channel)
                        total = _added(b, dtype, total, x, seed)
                if total is not None:
                    taken = b.flatten([*map(Index, (*taps, tap))], [a.window for a in windows.axes])
                    place = add_indices(scale_index(taken, channels), channel)
                    b.store(sums, place, b.op("add", dtype, b.load(sums, place), total))

        windows.along(products, *((ZERO, 1) if sizes else (block, blocks)))

    b.nest(sizes, position)
    out = k.params.write(eqn.outs[0])
    part = add_indices(scale_index(image, blocks), block)
    each(lambda i: b.store(out, add_indices(scale_index(part, sums.size), i), b.load(sums, i)))
    return k.done(eqn)


def _added(b: Builder, dtype: np.dtype, total: Operand | None, x: Operand, y: Operand) -> Operand:
    """total + x·y."""
    term = b.op("multiply", dtype, x, y)
    return term if total is None else b.op("add", dtype, total, term)
