"""Convolutions of single channels, and the gradients of their kernels, as loops over images.

A channel's image is copied, with the zeros around it, into scratch memory that stays in the nearest
caches. Where windows go on by several elements, each remainder has a plane of its own, so that an
element of the window meets a row of a plane: all loops run along rows, in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import Builder, add_indices, scale_index, strides_of
from funcgrad.backends.loops.ir import Buffer, Const, Index, Operand, Value
from funcgrad.backends.lower.primitives import lowered
from funcgrad.backends.program import Convolution
from funcgrad.backends.rewrites.phases import convolution_of
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record

# More products an element aren't written out, fewer multiplications aren't worth a kernel, and more
# channels than MOST that meet in a group are a matrix product's.
MAX_TERMS, LEAST_WORK, MOST = 64, 1 << 14, 8
# Elements of an image's part: it, and what is made of it, stay in the nearest cache; and of images
# taken together, so that sums of vectors aren't taken often.
PART, TOGETHER, TOTALS = 8192, 2048, 9
LANES = 16  # elements that vectors of all targets divide


def _abstract(x: ShapedArray, w: ShapedArray, *, out: ShapedArray, **params: Any) -> ShapedArray:
    return out


def _impl(xp: Any, x: Any, w: Any, **params: Any) -> Any:
    raise NotImplementedError("convolutions of channels are always lowered to loops")


def channels_op(name: str) -> Primitive:
    """An op that is a convolution of single channels.

    Its parameters are the convolution and its axes (`spec`), the type of the result, that of sums,
    and whether these are `over` the batch and all positions (the gradient of a kernel) or over the
    kernel.

    >>> channels_op("channels").name
    'channels'
    """
    return lowered(name, _abstract, _impl)


channels_p = channels_op("channels")


def channel_convolution(flat: Any, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A convolution as loops over channels, by a normalizer's methods; None if it mixes channels,
    their rows aren't contiguous, or it is too small.

    dtype: in which it multiplies and adds
    """
    p, out = eqn.params, eqn.outs[0].aval
    spec, groups, batches = (
        p[k] for k in ("dimension_numbers", "feature_group_count", "batch_group_count")
    )
    w = ins[1].aval
    o, i, *window = (w.shape[a] for a in spec.rhs_spec)
    last, rank = len(out.shape) - 1, len(window)
    positions = [out.shape[a] for a in spec.out_spec[2:]]
    over = batches > 1
    if over:
        # Each group makes the products of few inputs with few outputs.
        sides, terms = (out.shape[spec.out_spec[0]], o // batches), math.prod(positions)
        fits = spec.rhs_spec[-1] == last and set(p["lhs_dilation"]) <= {1}
    else:
        sides, terms = (i, o // groups), i * math.prod(window)
        fits = groups > 1 and spec.out_spec[-1] == last
    fits = fits and min(sides) == 1 and max(sides) <= MOST
    work = out.size * i * math.prod(window)
    in_rows = rank > 0 and spec.lhs_spec[-1] == last
    if not (fits and in_rows) or terms > MAX_TERMS or work < LEAST_WORK:
        return None
    of = convolution_of(eqn, ins)
    images = [image_axis(of, axis, over) for axis in range(rank)]
    if any(not a.planes for a in images) or math.prod(len(a.planes) for a in images) > LANES:
        return None
    result = ShapedArray(out.shape, out.dtype)
    return flat.add(channels_p, ins, result, out=result, over=over, dtype=dtype, spec=spec,
                    convolution=of)  # fmt: skip


class ImageAxis(Record):
    """How windows lie along an axis of an image: element k of that at position p is the padded
    image's p·stride + k·step; `low` is the padding in front, `hole` the distance of the image's
    elements in it."""

    size: int
    low: int
    hole: int
    positions: int
    window: int
    stride: int
    step: int

    @property
    def planes(self) -> list[int]:
        """The remainders by `stride` that elements of windows have."""
        return sorted({k * self.step % self.stride for k in range(self.window)})

    @property
    def reach(self) -> int:
        """How far in a plane the last element of a window is from the first."""
        return (self.window - 1) * self.step // self.stride

    def copied(self, plane: int, length: int) -> tuple[int, int, int, int, int]:
        """What of the image is in a plane: its first place there, the distance to the next one,
        and the same in the image; and how much it is."""
        at, every = plane - self.low, self.hole // math.gcd(self.stride, self.hole)
        move = every * self.stride // self.hole
        met = [v for v in range(every) if (v * self.stride + at) % self.hole == 0]
        if not met:
            return (0, 1, 0, 1, 0)
        place, source = met[0], (met[0] * self.stride + at) // self.hole
        skipped = max(0, -(source // move))
        place, source = place + skipped * every, source + skipped * move
        count = min(-(-(length - place) // every), -(-(self.size - source) // move))
        return (place, every, source, move, max(0, count))


def image_axis(of: Convolution, axis: int, over: bool) -> ImageAxis:
    """How windows lie along an axis of images; over: whether sums are over positions."""
    sizes = of.places, of.taps, of.strides, of.dilation
    if over:
        sizes = of.taps, of.places, of.dilation, of.strides
    hole = of.holes[axis] if of.holes else 1
    return ImageAxis(of.size[axis], of.padding[axis][0], hole, *(s[axis] for s in sizes))


def spans(b: Builder, n: int, body: Callable[[Index], None]) -> None:
    """body(i) for i < n by whole vectors, of which the last may begin inside the one before."""
    size = LANES if n >= LANES else 1 << (n.bit_length() - 1)
    whole = n // size * size

    def run(count: int, start: int) -> None:
        if count == 1:
            body(Index(start))
        else:
            b.loop(count, lambda i: body(Index(start, ((1, i),))), parallel=True)

    run(whole, 0)
    if whole < n:
        run(size, n - size)


class _Planes:
    """The planes of images in scratch memory, `together` of them side by side.

    rows: how many positions along the first axis are taken at a time
    """

    def __init__(self, k: SpecialKernel, eqn: Eqn, images: int, together: int):
        self.k, self.b, self.dtype = k, k.builder, eqn.params["dtype"]
        p, of = eqn.params, eqn.params["convolution"]
        self.spec, self.over = p["spec"], p["over"]
        self.x, self.w = eqn.ins
        self.x_shape, self.w_shape = (a.aval.shape for a in eqn.ins)
        self.axes = [image_axis(of, i, self.over) for i in range(len(of.taps))]
        self.planes = list(itertools.product(*(a.planes for a in self.axes)))
        rest = math.prod(a.positions + a.reach for a in self.axes[1:])
        first = self.axes[0]
        rows = max(1, PART // (rest * len(self.planes) * images) - first.reach)
        self.rows = min(first.positions, rows) if first.hole == 1 else first.positions
        self.parts = -(-first.positions // self.rows)
        self.lengths = [self.rows + first.reach, *(a.positions + a.reach for a in self.axes[1:])]
        self.steps = strides_of(self.lengths)
        size = math.prod(self.lengths)
        self.together = 1
        if together > 1 and self.parts == 1:
            self.together = max(
                d for d in range(1, together + 1)
                if not together % d and (d == 1 or d * size <= TOGETHER)
            )  # fmt: skip
        self.size = size
        self.used = -(-self.together * size // LANES) * LANES
        reach = sum(a.reach * s for a, s in zip(self.axes, self.steps, strict=True))
        self.room = -(-(self.used + reach) // LANES) * LANES
        self.images = images
        self.buffer = k.params.local(self.dtype, self.room * len(self.planes) * images)
        self.zero = Const(np.zeros((), self.dtype), self.dtype)

    def clear(self, buffer: Buffer) -> None:
        """Zeros everywhere."""
        self.b.loop(buffer.size, lambda i: self.b.store(buffer, Index(0, ((1, i),)), self.zero),
                    parallel=True)  # fmt: skip

    def place(self, at: Sequence[Index]) -> Index:
        """Where a position of a plane lies in it."""
        return add_indices(*(scale_index(i, s) for i, s in zip(at, self.steps, strict=True)))

    def element(self, where: Sequence[int]) -> int:
        """Where in the buffer the element of all windows begins that is number `where` of them."""
        steps = [k * a.step for k, a in zip(where, self.axes, strict=True)]
        plane = tuple(s % a.stride for s, a in zip(steps, self.axes, strict=True))
        moved = sum(s // a.stride * n for s, a, n in zip(steps, self.axes, self.steps, strict=True))
        return self.planes.index(plane) * self.images * self.room + moved

    def fill(self, part: Index, source: Callable[[list[Index]], Operand], number: int) -> None:
        """Copy the image of which source(spatial position) reads an element; the planes' other
        elements are zero already."""
        for plane, remainders in enumerate(self.planes):
            start = (plane * self.images + number // self.together) * self.room
            start += number % self.together * self.size
            ways = [
                a.copied(r, n) for a, r, n in zip(self.axes, remainders, self.lengths, strict=True)
            ]
            if self.parts > 1:
                ways[0] = (0, 1, 0, 1, self.lengths[0])
            if 0 not in (way[-1] for way in ways):
                self._copy(ways, start, remainders[0], part, source)

    def _copy(
        self, ways: Sequence, start: int, remainder: int, part: Index, source: Callable
    ) -> None:
        b, first = self.b, self.axes[0]

        def row(at: Sequence[Index]) -> None:
            spans(b, ways[-1][-1], lambda i: one([*at, i]))

        def one(turns: list[Index]) -> None:
            pairs = list(zip(turns, ways, strict=True))
            to = self.place([scale_index(i, way[1], way[0]) for i, way in pairs])
            at = [scale_index(i, way[3], way[2]) for i, way in pairs]
            inside = None
            if self.parts > 1:
                row_number = add_indices(scale_index(part, self.rows), turns[0])
                at[0] = scale_index(row_number, first.stride, remainder - first.low)
                inside = b.all_of([b.compare("greater_equal", at[0], 0),
                                   b.compare("less", at[0], first.size)])  # fmt: skip
            with b.guarded(inside):
                value = b.convert(source(at), self.dtype)
            b.store(self.buffer, scale_index(to, 1, start), value)

        b.nest([way[-1] for way in ways[:-1]], row, parallel=True)

    def image(self, batch: Index, feature: Index) -> Callable[[list[Index]], Operand]:
        """What reads elements of an image."""

        def read(at: list[Index]) -> Operand:
            return read_element(self.k, self.x, self.spec.lhs_spec, (batch, feature, *at))

        return read

    def rows_in(self, part: Index, row: Index) -> tuple[Index, Operand | None]:
        """A position along the first axis, of those of a part, and whether it is one."""
        whole = add_indices(scale_index(part, self.rows), row)
        return whole, self.b.compare("less", whole, self.axes[0].positions)


def read_element(k: SpecialKernel, x: Atom, spec: Sequence[int], at: Sequence[Index]) -> Operand:
    """An element of an operand, by the axes of its spec."""
    placed = dict(zip(spec, at, strict=True))
    return k.element(x, [placed[a] for a in range(len(spec))])


def write_element(k: SpecialKernel, eqn: Eqn) -> Callable[[Sequence[Index], Operand], None]:
    """What stores an element of the result, by the axes of its spec."""
    out, aval = k.params.write(eqn.outs[0]), eqn.outs[0].aval
    spec, b = eqn.params["spec"].out_spec, k.builder

    def write(at: Sequence[Index], value: Operand) -> None:
        placed = dict(zip(spec, at, strict=True))
        flat = b.flatten([placed[a] for a in range(aval.ndim)], aval.shape)
        b.store(out, flat, b.convert(value, aval.dtype))

    return write


def write(k: SpecialKernel, eqn: Eqn) -> Written:
    """The kernel of a convolution of single channels, or of its kernel's gradient."""
    return (_over_images if eqn.params["over"] else _over_windows)(k, eqn)


def _over_windows(k: SpecialKernel, eqn: Eqn) -> Written:
    """Each output is the sum over its window."""
    b, p = k.builder, eqn.params
    groups, spec = p["convolution"].groups[0], p["spec"]
    o, i, *window = (eqn.ins[1].aval.shape[a] for a in spec.rhs_spec)
    batch, group = k.outer(eqn.outs[0].aval.shape[spec.out_spec[0]]), k.outer(groups)
    planes, write = _Planes(k, eqn, i, 1), write_element(k, eqn)
    part, outputs = k.outer(planes.parts), o // groups
    planes.clear(planes.buffer)
    for c in range(i):
        planes.fill(part, planes.image(batch, scale_index(group, i, c)), c)

    def output(number: Index) -> None:
        feature = add_indices(scale_index(group, outputs), number)
        elements = list(itertools.product(range(i), *map(range, window)))
        weights = [
            b.convert(
                read_element(k, planes.w, spec.rhs_spec, [feature, *map(Index, e)]), planes.dtype
            )
            for e in elements
        ]
        starts = [planes.element(e[1:]) + e[0] * planes.room for e in elements]

        def one(at: list[Index]) -> None:
            total: Operand | None = None
            place = planes.place(at)
            for start, weight in zip(starts, weights, strict=True):
                x = b.load(planes.buffer, scale_index(place, 1, start))
                term = b.op("multiply", planes.dtype, x, weight)
                total = term if total is None else b.op("add", planes.dtype, total, term)
            assert total is not None
            whole, inside = planes.rows_in(part, at[0])
            with b.guarded(inside):
                write([batch, feature, whole, *at[1:]], total)

        sizes = [planes.rows, *(a.positions for a in planes.axes[1:])]
        b.nest(sizes[:-1], lambda at: spans(b, sizes[-1], lambda i: one([*at, i])), parallel=True)

    b.nest([outputs], lambda at: output(at[0]))
    return k.done(eqn)


def _over_images(k: SpecialKernel, eqn: Eqn) -> Written:
    """Each element of a kernel's gradient is a sum over images and positions."""
    b, p = k.builder, eqn.params
    groups, spec = p["convolution"].groups[1], p["spec"]
    o, images, *_ = (eqn.ins[1].aval.shape[a] for a in spec.rhs_spec)
    n, _, *window = (eqn.outs[0].aval.shape[a] for a in spec.out_spec)
    group, number, output = k.outer(groups), k.outer(n), k.outer(o // groups)
    planes, write = _Planes(k, eqn, 1, images), write_element(k, eqn)
    fixed = planes.parts == 1
    feature = add_indices(scale_index(group, o // groups), output)
    batch = add_indices(scale_index(group, n), number)
    seeds = k.params.local(planes.dtype, planes.used)
    met = k.params.local(planes.dtype, planes.used)
    for buffer in (planes.buffer, seeds, met):
        planes.clear(buffer)
    elements = list(itertools.product(*map(range, window)))
    sizes, ones = [planes.rows, *(a.positions for a in planes.axes[1:])], Const(1, planes.dtype)

    def each(t: int, body: Callable[[list[Index], Index], None]) -> None:
        """body(position, its place in seeds) for image number t."""

        def one(at: list[Index]) -> None:
            body(at, scale_index(planes.place(at), 1, t * planes.size))

        b.nest(sizes[:-1], lambda at: spans(b, sizes[-1], lambda i: one([*at, i])), parallel=True)

    def copy_seeds(image: Index, part: Index, t: int) -> None:
        def one(at: list[Index], to: Index) -> None:
            whole, inside = planes.rows_in(part, at[0])
            with b.guarded(inside):
                where = [feature, image, whole, *at[1:]]
                value = read_element(k, planes.w, spec.rhs_spec, where)
            b.store(seeds, to, b.convert(value, planes.dtype))
            if not fixed:
                here = [ones, planes.zero]
                b.store(met, to, b.op("where", planes.dtype, inside, *here) if inside else ones)

        each(t, one)

    if fixed:
        for t in range(planes.together):
            each(t, lambda at, to: b.store(met, to, ones))

    def chunk(at: Sequence[Index], *totals: Operand) -> list[Operand]:
        first, part = at
        for t in range(planes.together):
            image = scale_index(first, planes.together, t)
            planes.fill(part, planes.image(batch, image), t)
            copy_seeds(image, part, t)
        sums: list[Operand] = []
        for start in range(0, len(elements), TOTALS):
            some = elements[start : start + TOTALS]
            sums += _products(planes, (seeds, met), some, totals[start : start + TOTALS])
        return sums

    totals = b.nest([images // planes.together, planes.parts], chunk, [planes.zero] * len(elements))
    for element, total in zip(elements, totals, strict=True):
        write([number, feature, *map(Index, element)], total)
    return k.done(eqn)


def _products(
    planes: _Planes, buffers: Sequence[Buffer], elements: Sequence, starts: Sequence[Operand]
) -> Sequence[Operand]:
    """Sums of products of a plane, as elements of windows meet it, with seeds, where these are."""
    b, (seeds, met) = planes.b, buffers
    places = [planes.element(e) for e in elements]

    def turn(i: Value, *totals: Value) -> list[Operand]:
        at = Index(0, ((1, i),))
        seed = b.load(seeds, at)
        known = b.op("greater", np.dtype(bool), b.load(met, at), planes.zero)
        out = []
        for place, total in zip(places, totals, strict=True):
            x = b.load(planes.buffer, Index(place, ((1, i),)))
            term = b.op("multiply", planes.dtype, x, seed)
            # Between rows there are elements of the image that may be infinite.
            term = b.op("where", planes.dtype, known, term, planes.zero)
            out.append(b.op("add", planes.dtype, total, term))
        return out

    return b.loop(planes.used, turn, starts, ["add"] * len(starts), parallel=True)
