"""Convolutions as cuDNN takes them: equations in forms that it has, and a step's call as data.

cuDNN has three functions: results, gradients of images ("data"), gradients of kernels ("filter").
The second's equation has holes in its images, the first operand of the third is gathered by the
images' channels (see `ops.convolution`). Kernels have one of two orders in memory, and padding is
the same in front and behind, so `rewrite` turns kernels, and pads or cuts arrays, where they aren't
so. What stays without a form, such as a gradient of grouped images with strides, has own kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from funcgrad.backends.loops.builder import strides_of
from funcgrad.backends.loops.scalars import FLOAT32, HALVES
from funcgrad.backends.program import HostStep, Ref, View
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.core.record import Record
from funcgrad.ops.convolution.conv import (
    ConvDimensionNumbers,
    conv_general_dilated_p,
    third,
)
from funcgrad.ops.convolution.padding import dilated, positions
from funcgrad.ops.shape import pad_p

DTYPES = (FLOAT32, np.dtype(np.float64), *HALVES)
MOST_AXES = 3
ALIGNED = 16  # bytes to which arrays are, at least


class Sized(Record):
    """An array as a descriptor has it: images, channels (or features, channels), places.

    strides: in elements; a kernel's are those of its order in memory
    """

    ref: Ref
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Convolution(Record):
    """A call of cuDNN's.

    kind: "forward" of images and kernel, "data" of kernel and result, "filter" of images and result
    padding, strides, dilation, groups: of the convolution whose result or gradient it is
    flipped: whether kernels are turned around
    last: whether channels are the kernel's last axis in memory, else its second
    tf32: whether float32 operands are rounded to TensorFloat-32
    """

    kind: str
    dtype: np.dtype
    first: Sized
    second: Sized
    result: Sized
    padding: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    flipped: bool
    last: bool
    tf32: bool

    @property
    def key(self) -> tuple:
        """What calls have in common that are the same but for where their operands are."""
        arrays = tuple((x.sizes, x.strides) for x in (self.first, self.second, self.result))
        how = (self.padding, self.strides, self.dilation, self.groups, self.flipped, self.last)
        return (self.kind, self.dtype, *arrays, *how, self.tf32)

    def __str__(self) -> str:
        sizes = ["x".join(map(str, x.sizes)) for x in (self.first, self.second)]
        return f"a convolution ({self.kind}) of {sizes[0]} and {sizes[1]}"


class _Form(Record):
    """A convolution by the arrays of its equation: images, kernel, result.

    kernel: the number of the array that is cuDNN's filter, its features and channels: axes of it
    others: of the other two, in the order of the call, their numbers and first two axes
    """  # the rest is as in `Convolution`

    kind: str
    kernel: tuple[int, int, int]
    others: tuple[tuple[int, int, int], ...]
    padding: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    flipped: bool = False


def _form(shapes: Sequence[tuple[int, ...]], p: dict[str, Any]) -> _Form | None:
    """The form of an equation's parameters; None if cuDNN has none. Its padding may be less than 0,
    or another than what the arrays' sizes ask for."""
    lhs, rhs, out = p["dimension_numbers"]
    groups, batch_groups = p["feature_group_count"], p["batch_group_count"]
    strides, holes, dilation = p["window_strides"], p["lhs_dilation"], p["rhs_dilation"]
    low = tuple(pads[0] for pads in p["padding"])
    whole = max(holes) == 1
    if groups == 1 and (batch_groups > 1 or third(p["operands"]) == "kernel"):
        if whole:
            others = (0, lhs[1], lhs[0]), (1, rhs[1], rhs[0])
            return _Form(
                "filter", (2, out[1], out[0]), others, low, dilation, strides, batch_groups
            )
        if batch_groups > 1 or max(dilation) > 1:
            return None
        # Holes are strides of the convolution that goes the other way, whose images come second.
        others, taps = ((1, rhs[1], rhs[0]), (0, lhs[1], lhs[0])), [shapes[2][a] for a in out[2:]]
        front = _mirrored(taps, strides, low)
        return _Form("filter", (2, *out[:2]), others, front, holes, strides, 1, True)
    if batch_groups > 1:
        return None
    others = (0, lhs[0], lhs[1]), (2, out[0], out[1])
    if whole:
        return _Form("forward", (1, rhs[0], rhs[1]), others, low, strides, dilation, groups)
    if max(strides) > 1 or (groups > 1 and shapes[1][rhs[0]] > groups):
        return None
    front = _mirrored([shapes[1][a] for a in rhs[2:]], dilation, low)
    return _Form("data", (1, rhs[1], rhs[0]), others, front, holes, dilation, groups, True)


def _mirrored(taps: Sequence[int], dilation: Sequence[int], low: Sequence[int]) -> tuple[int, ...]:
    """The padding of what goes the other way."""
    return tuple(dilated(k, d) - 1 - n for k, d, n in zip(taps, dilation, low, strict=True))


def _axes(numbers: ConvDimensionNumbers, array: int) -> tuple[int, ...]:
    return tuple(numbers[array][2:])


def _fits(form: _Form, shapes: Sequence[tuple[int, ...]], numbers: ConvDimensionNumbers) -> bool:
    """Whether padding of the same width in front and behind gives the arrays' sizes."""
    images, places, taps = _places(form, shapes, numbers)
    return min(form.padding) >= 0 and all(
        positions(n + 2 * pad, dilated(k, d), s) == m
        for n, m, k, pad, d, s in zip(
            images, places, taps, form.padding, form.dilation, form.strides, strict=True
        )
    )


def _places(
    form: _Form, shapes: Sequence[tuple[int, ...]], numbers: ConvDimensionNumbers
) -> Iterator[list[int]]:
    """The sizes of images, results and kernels of the convolution whose result or gradient it
    is."""
    arrays = [number for number, *_ in form.others]
    for number in (*(arrays[::-1] if form.kind == "data" else arrays), form.kernel[0]):
        yield [shapes[number][a] for a in _axes(numbers, number)]


# ---- equations


def rewrite(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A convolution, of floats, in a form that cuDNN has; None if it is one, or there is none."""
    avals = [*(x.aval for x in ins), eqn.outs[0].aval]
    if not _may_be(avals):
        return None
    shapes, p = [a.shape for a in avals], eqn.params
    form = _form(shapes, p)
    if form is None:
        return None
    (x, w), out, numbers = ins, eqn.outs[0].aval, p["dimension_numbers"]
    specs, padding, cut = list(numbers), p["padding"], None
    order = _order(form, numbers)
    turned = list(order) != list(range(out.ndim))
    if not _fits(form, shapes, numbers):
        if form.kind == "data":
            padding, out, cut = _uncut(form, x, out, p)
        elif form.flipped:
            return None
        else:
            x, padding = _padded(flat, x, numbers.lhs_spec, padding)
    elif not turned:
        return None
    number = form.kernel[0]
    if turned:
        specs[number] = tuple(order.index(a) for a in specs[number])
        if number == 1:
            w = flat.transpose(w, order)
        else:
            out = ShapedArray(tuple(out.shape[a] for a in order), out.dtype)
    params = p | {"dimension_numbers": ConvDimensionNumbers(*specs), "padding": padding}
    shapes = [x.aval.shape, w.aval.shape, out.shape]
    made = _form(shapes, params)
    if made is None or not _fits(made, shapes, params["dimension_numbers"]):
        return None
    flat.append(Eqn(eqn.prim, [x, w], [y := Var(out)], params, eqn.source, eqn.scopes))
    if cut is not None:
        return _pad(flat, y, cut)
    return flat.transpose(y, [order.index(a) for a in range(out.ndim)]) if number == 2 else y


def _may_be(avals: Sequence[ShapedArray]) -> bool:
    """Whether cuDNN has arrays of these types."""
    kinds = {a.dtype for a in avals}
    axes = avals[0].ndim - 2
    full = all(a.size for a in avals)
    return len(kinds) == 1 and kinds <= {*DTYPES} and 0 < axes <= MOST_AXES and full


def _last(form: _Form, numbers: ConvDimensionNumbers) -> bool:
    """Whether the channels of the images come last."""
    number, _, channels = form.others[0]
    return channels == len(numbers[number]) - 1


def _order(form: _Form, numbers: ConvDimensionNumbers) -> tuple[int, ...]:
    """The kernel's axes in the order that it is to have in memory."""
    number, features, channels = form.kernel
    taps = _axes(numbers, number)
    if form.kind == "data" and form.groups > 1:  # channels are one of each group
        return (channels, features, *taps)
    if _last(form, numbers):
        return features, *taps, channels
    return features, channels, *taps


def _padded(
    flat: Equations, x: Atom, spec: Sequence[int], padding: Sequence[tuple[int, int]]
) -> tuple[Atom, tuple[tuple[int, int], ...]]:
    """Images with what they need more on one side; and what is left on both."""
    both = [max(0, min(pads)) for pads in padding]
    config = [(0, 0)] * x.aval.ndim
    for axis, n, (low, high) in zip(spec[2:], both, padding, strict=True):
        config[axis] = low - n, high - n
    return _pad(flat, x, config), tuple((n, n) for n in both)


def _uncut(
    form: _Form, x: Atom, out: ShapedArray, p: dict[str, Any]
) -> tuple[tuple[tuple[int, int], ...], ShapedArray, list[tuple[int, int]]]:
    """All that holes in images reach: the padding, the type, and by how much the result is less in
    front and behind, as a pad."""
    lhs, _, spec = p["dimension_numbers"]
    shape, config, padding = list(out.shape), [(0, 0)] * out.ndim, []
    for i, (a, axis) in enumerate(zip(lhs[2:], spec[2:], strict=True)):
        low = p["padding"][i][0]
        front = form.padding[i]
        reach = front + low  # of the kernel, but for one
        shape[axis] = dilated(x.aval.shape[a], form.strides[i]) + reach
        config[axis] = -front, out.shape[axis] + front - shape[axis]
        padding.append((reach, reach))
    return tuple(padding), ShapedArray(tuple(shape), out.dtype), config


def _pad(flat: Equations, x: Atom, config: Sequence[tuple[int, int]]) -> Atom:
    """x with zeros around it; fewer than 0 cut it."""
    zero = Literal(np.zeros((), x.aval.dtype), ShapedArray((), x.aval.dtype))
    shape = tuple(n + sum(pads) for n, pads in zip(x.aval.shape, config, strict=True))
    aval = ShapedArray(shape, x.aval.dtype)
    pads = tuple((low, high, 0) for low, high in config)
    return flat.add(pad_p, [x, zero], aval, padding_config=pads)


# ---- steps


def convolution(s: HostStep) -> Convolution | None:
    """The call that a step is; None if it isn't a convolution, or none that cuDNN has."""
    if s.prim is not conv_general_dilated_p:
        return None
    views, p = (*s.ins, *s.outs), s.params
    numbers: ConvDimensionNumbers = p["dimension_numbers"]
    shapes = [v.aval.shape for v in views]
    if not _may_be([v.aval for v in views]) or not all(map(_aligned, views)):
        return None
    form = _form(shapes, p)
    if form is None or not _fits(form, shapes, numbers):
        return None
    if list(_order(form, numbers)) != list(range(len(shapes[0]))):
        return None
    kernel = _sized(views, numbers, form.kernel)
    if form.kind == "data" and form.groups > 1:
        # Each group's features side by side, with one channel.
        features, channels, *taps = kernel.sizes
        kernel = Sized(kernel.ref, (features * channels, 1, *taps), kernel.strides)
    one, other = (_sized(views, numbers, x) for x in form.others)
    arrays = {
        "forward": (one, kernel, other), "data": (kernel, one, other),
        "filter": (one, other, kernel),
    }[form.kind]  # fmt: skip
    padding, strides, dilation = form.padding, form.strides, form.dilation
    if len(padding) == 1:  # axes, of which there are two at least
        arrays = tuple(_with_axis(x) for x in arrays)  # type: ignore[assignment]
        padding, strides, dilation = (0, *padding), (1, *strides), (1, *dilation)
    first, second, result = arrays
    return Convolution(
        form.kind, views[0].aval.dtype, first, second, result, padding, strides, dilation,
        form.groups, form.flipped, _last(form, numbers), "precision" in p,
    )  # fmt: skip


def _aligned(view: View) -> bool:
    return math.gcd(ALIGNED, view.ref.offset, *(n for _, n in view.ref.strides)) == ALIGNED


def _sized(
    views: Sequence[View], numbers: ConvDimensionNumbers, what: tuple[int, int, int]
) -> Sized:
    number, *two = what
    view, axes = views[number], (*two, *_axes(numbers, number))
    strides = strides_of(view.aval.shape)
    sizes = tuple(view.aval.shape[a] for a in axes)
    return Sized(view.ref, sizes, tuple(strides[a] for a in axes))


def _with_axis(x: Sized) -> Sized:
    """An array with an axis of one place more."""
    (n, c, size), (i, j, step) = x.sizes, x.strides
    return Sized(x.ref, (n, c, 1, size), (i, j, size * step, step))
