"""Kernels of windows: convolutions and both of their gradients, and the gradients of max pooling.

A thread takes an element of the result and goes through all that it is made of, in order, so that
no two write to the same place, nothing is atomic, and bits don't vary. A convolution reads its
windows where they are; those of enough features and terms have tiles (`convolution_tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.backends.cuda.kernels import convolution_tiles
from funcgrad.backends.kernels.cluster import Written
from funcgrad.backends.kernels.special import SpecialKernel
from funcgrad.backends.loops.builder import ZERO, Builder, add_indices, scale_index
from funcgrad.backends.loops.ir import Const, Index, Operand
from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.program import HostStep, KernelStep
from funcgrad.backends.target import ANY
from funcgrad.core.ir import Atom, Eqn, Var
from funcgrad.ops.contract import accumulator
from funcgrad.ops.elementwise.compare import ge
from funcgrad.ops.reduce import highest, lowest

BOOL, INT32, FLOAT32 = np.dtype(bool), np.dtype(np.int32), np.dtype(np.float32)
MOST_TAPS = 64  # of a window whose extremum is found for each of its elements


def kernel_step(s: HostStep, made: dict[tuple, Any]) -> KernelStep | HostStep:
    """A convolution as its kernel's step; the host's for dtypes that loops don't have.

    made: what there is of equal steps
    """
    views = (*s.ins, *s.outs)
    key = (s.prim, *(v.aval for v in views), *sorted(s.params.items()))
    if key not in made:
        x, w, y = (Var(v.aval) for v in views)
        eqn = Eqn(s.prim, [x, w], [y], s.params)
        tiles = convolution_tiles.tiled(eqn)
        written = Written(tiles, [x, w, y]) if tiles is not None else (
            convolution(SpecialKernel({}, ANY), eqn)
        )  # fmt: skip
        # Kernels don't have what they don't read.
        numbers = [] if written is None else [[x, w, y].index(v) for v in written.params]
        made[key] = written and (written.kernel, numbers)
    if made[key] is None:
        return s
    kernel, numbers = made[key]
    return KernelStep(kernel, tuple(views[i].ref for i in numbers), s.prim, s.params)


def convolution(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "conv_general_dilated"; None for dtypes that loops don't have."""
    (x, w), p, b = eqn.ins, eqn.params, k.builder
    aval = eqn.outs[0].aval
    kinds = {x.aval.dtype, w.aval.dtype, aval.dtype}
    if kinds - LOOP_DTYPES or BOOL in kinds:
        return None
    sums = aval.dtype
    if sums.kind in "fV":
        sums = accumulator(x.aval.dtype, w.aval.dtype, aval.dtype)
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    o, i, *taps = (w.aval.shape[a] for a in numbers.rhs_spec)
    at = [k.outer(n) for n in aval.shape]
    image, feature, *places = (at[a] for a in numbers.out_spec)
    group, _ = b.divide(feature, o // (groups * p["batch_group_count"]))
    channel = ZERO
    if p["batch_group_count"] > 1:
        image = add_indices(scale_index(group, aval.shape[numbers.out_spec[0]]), image)
    else:
        channel = scale_index(group, i)
    axes = list(
        zip(p["window_strides"], p["rhs_dilation"], p["padding"], p["lhs_dilation"],
            [x.aval.shape[a] for a in numbers.lhs_spec[2:]], strict=True)
    )  # fmt: skip

    def term(inner: list[Index], total: Operand) -> list[Operand]:
        *tap, c = inner
        spots, inside = _in_operand(b, axes, places, tap)
        there = _in_order(numbers.lhs_spec, [image, add_indices(channel, c), *spots])
        here = _in_order(numbers.rhs_spec, [feature, c, *tap])
        with b.guarded(inside):
            left, right = (
                b.convert(k.element(v, found), sums) for v, found in ((x, there), (w, here))
            )
        return [b.op("add", sums, total, b.op("multiply", sums, left, right))]

    total: Sequence[Operand] = [Const(0, sums)]
    if all((*taps, i)):
        total = b.nest([*taps, i], term, total)
    out = k.params.write(eqn.outs[0])
    b.store(out, b.flatten(at, aval.shape), b.convert(total[0], out.dtype))
    return k.done(eqn)


def _in_order(spec: Sequence[int], at: Sequence[Index]) -> list[Index]:
    """Indices of an operand's axes, given those of batch, feature and space."""
    found = [ZERO] * len(spec)
    for axis, index in zip(spec, at, strict=True):
        found[axis] = index
    return found


def _in_operand(
    b: Builder, axes: Sequence[tuple], places: Sequence[Index], tap: Sequence[Index]
) -> tuple[list[Index], Operand | None]:
    """Where an element of a window is in the operand, and whether it is one of its elements.

    axes: strides and dilation of windows, padding, dilation and size of the operand, for each
    """
    spots: list[Index] = []
    conditions: list[Operand | None] = []
    for (stride, dilation, (low, _), hole, size), place, t in zip(axes, places, tap, strict=True):
        at = add_indices(scale_index(place, stride, -low), scale_index(t, dilation))
        if hole > 1:
            at, rest = b.divide(at, hole)
            conditions.append(b.op("equal", BOOL, b.integer(rest), b.integer(ZERO)))
        conditions += [b.compare("greater_equal", at, 0), b.compare("less", at, size)]
        spots.append(at)
    return spots, b.all_of(conditions)


class _Selection:
    """The windows of a "select_and_gather_add" or "select_and_scatter_add"."""

    def __init__(self, k: SpecialKernel, eqn: Eqn, x: Atom, counts: Sequence[int]):
        p, self.k, self.b, self.x = eqn.params, k, k.builder, x
        self.counts = counts
        self.window = p["window_dimensions"]
        self.axes = list(
            zip(p["window_strides"], p["window_dilation"], p["padding"], p["base_dilation"],
                x.aval.shape, strict=True)
        )  # fmt: skip
        dtype = x.aval.dtype
        self.dtype = FLOAT32 if dtype in HALVES else dtype
        self.greatest = p["select_prim"] is ge
        self.around = Const(lowest(dtype) if self.greatest else highest(dtype), self.dtype)

    def value(self, place: Sequence[Index], tap: Sequence[Index], of: Atom, around: Const):
        """An element of a window, or what stands around an array."""
        b = self.b
        at, inside = _in_operand(b, self.axes, place, tap)
        with b.guarded(inside):
            value = b.convert(self.k.element(of, at), around.dtype)
        return value if inside is None else b.op("where", around.dtype, inside, value, around)

    def chosen(self, place: Sequence[Index]) -> Operand:
        """The number of the element that a window selects: the first extremum, or the first NaN."""
        b = self.b
        first = [ZERO] * len(self.window)
        best = self.value(place, first, self.x, self.around)

        def compare(tap: list[Index], best: Operand, number: Operand) -> list[Operand]:
            other = self.value(place, tap, self.x, self.around)
            keeps = b.op("greater_equal" if self.greatest else "less_equal", BOOL, best, other)
            known = b.op("equal", BOOL, best, best)
            better = b.op("bitwise_and", BOOL, b.op("invert", BOOL, keeps), known)
            this = b.integer(b.flatten(tap, self.window), INT32)
            return [b.op("where", self.dtype, better, other, best),
                    b.op("where", INT32, better, this, number)]  # fmt: skip

        return b.nest(list(self.window), compare, [best, Const(0, INT32)])[1]


def _kinds(eqn: Eqn) -> tuple[Atom, Atom] | None:
    """What is moved, and by whose extrema; None if a kernel is nothing for it."""
    moved, x = eqn.ins
    kinds = {moved.aval.dtype, x.aval.dtype}
    taps = math.prod(eqn.params["window_dimensions"])
    fits = taps <= MOST_TAPS and not kinds - LOOP_DTYPES and BOOL not in kinds
    return (moved, x) if fits and x.aval.size else None


def gather(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "select_and_gather_add"; None if the host is to run it."""
    if (kinds := _kinds(eqn)) is None:
        return None
    (moved, x), b, aval = kinds, k.builder, eqn.outs[0].aval
    s = _Selection(k, eqn, x, aval.shape)
    at = [k.outer(n) for n in aval.shape]
    number = b.value_index(s.chosen(at), 0, math.prod(s.window) - 1)
    wide = FLOAT32 if aval.dtype in HALVES else aval.dtype
    value = s.value(at, b.unflatten(number, s.window), moved, Const(0, wide))
    out = k.params.write(eqn.outs[0])
    b.store(out, b.flatten(at, aval.shape), b.convert(value, out.dtype))
    return k.done(eqn)


def scatter(k: SpecialKernel, eqn: Eqn) -> Written | None:
    """The kernel of a "select_and_scatter_add"; None if the host is to run it."""
    if (kinds := _kinds(eqn)) is None:
        return None
    (moved, x), b, aval = kinds, k.builder, eqn.outs[0].aval
    s = _Selection(k, eqn, x, moved.aval.shape)
    sums = FLOAT32 if aval.dtype in HALVES else aval.dtype
    at = [k.outer(n) for n in aval.shape]

    def add(tap: list[Index], total: Operand) -> list[Operand]:
        place, inside = _window_at(b, s, at, tap)
        with b.guarded(inside):
            number = s.chosen(place)
            value = b.convert(k.element(moved, place), sums)
        this = b.integer(b.flatten(tap, s.window), INT32)
        here = b.all_of([b.op("equal", BOOL, number, this), inside])
        assert here is not None
        return [b.op("add", sums, total, b.op("where", sums, here, value, Const(0, sums)))]

    total = b.nest(list(s.window), add, [Const(0, sums)])[0]
    out = k.params.write(eqn.outs[0])
    b.store(out, b.flatten(at, aval.shape), b.convert(total, out.dtype))
    return k.done(eqn)


def _window_at(
    b: Builder, s: _Selection, at: Sequence[Index], tap: Sequence[Index]
) -> tuple[list[Index], Operand | None]:
    """The window whose element of this number an element of the operand is, if there is one."""
    found: list[Index] = []
    conditions: list[Operand | None] = []
    for (stride, dilation, (low, _), hole, _), i, t, count in zip(
        s.axes, at, tap, s.counts, strict=True
    ):
        place = add_indices(scale_index(i, hole, low), scale_index(t, -dilation))
        place, rest = b.divide(place, stride)
        if stride > 1:
            conditions.append(b.op("equal", BOOL, b.integer(rest), b.integer(ZERO)))
        conditions += [b.compare("greater_equal", place, 0), b.compare("less", place, count)]
        found.append(place)
    return found, b.all_of(conditions)
