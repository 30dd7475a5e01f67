"""Reductions of windows: axis by axis, of a few shifted slices, as sums and extrema separate.

Pooling ops of runtimes take fewer types, and their maxima lose NaN; slices have neither fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from funcgrad.core.ir import Eqn
from funcgrad.export.onnx import functions
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import F4
from funcgrad.export.onnx.rules.structure import padded, spread
from funcgrad.ops.convolution.padding import dilated
from funcgrad.ops.convolution.pooling import (
    select_and_gather_add_p,
    select_and_scatter_add_p,
    window_max_p,
    window_min_p,
    window_sum_p,
)
from funcgrad.ops.elementwise.compare import ge
from funcgrad.ops.reduce import highest, lowest

Ins = Sequence[Tensor]
MOST_TAPS = 512  # elements of a window whose extremum is looked for one by one


def _config(p: dict) -> list[tuple[int, int, int]]:
    return [(a, b, h - 1) for (a, b), h in zip(p["padding"], p["base_dilation"], strict=True)]


def _reducer(kind: str, identity: Callable[[np.dtype], np.ndarray]) -> Callable:
    def rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
        (x,), p, shape = ins, eqn.params, eqn.outs[0].aval.shape
        own = x.dtype
        value = identity(eqn.outs[0].aval.dtype)
        if 0 in map(int, shape):
            return [g.full(shape, 0, own)]
        x = g.cast(x, F4) if own == np.dtype("f2") else x
        x = padded(g, x, g.constant(value.astype(x.dtype)), _config(p))
        axes = zip(p["window_dimensions"], p["window_strides"], p["window_dilation"], strict=True)
        for axis, (size, step, hole) in enumerate(axes):
            if size > 1 or step > 1:
                x = _along(g, x, kind, axis, size, step, hole, shape[axis])
        return [g.cast(x, own)]

    return rule


def _along(
    g: Graph, x: Tensor, kind: str, axis: int, size: int, step: int, hole: int, n: int
) -> Tensor:
    total: Tensor | None = None
    for k in range(size):
        piece = g.slice(x, axis, k * hole, k * hole + (n - 1) * step + 1, step, n)
        if total is None:
            total = piece
        elif x.dtype == np.bool_:
            total = g.elementwise("Or" if kind == "Max" else "And", total, piece)
        else:
            total = g.elementwise(kind, total, piece)
    assert total is not None
    return total


# ---- where the extrema are


def _taps(p: dict, counts: Sequence[int]) -> list[list[tuple[int, int, int, int]]]:
    """For each element of a window the slices (start, stop, step, count) that take it from all."""
    window = p["window_dimensions"]
    if np.prod(window) > MOST_TAPS:
        raise Untranslatable(f"the positions of extrema in windows of more than {MOST_TAPS}")
    return [
        [
            (o * d, o * d + (n - 1) * s + 1, s, n)
            for o, d, n, s in zip(
                offsets, p["window_dilation"], counts, p["window_strides"], strict=True
            )
        ]
        for offsets in itertools.product(*map(range, window))
    ]


def _tap(g: Graph, x: Tensor, cuts: Sequence[tuple[int, int, int, int]]) -> Tensor:
    for axis, (start, stop, step, n) in enumerate(cuts):
        x = g.slice(x, axis, start, stop, step, n)
    return x


def _chosen(g: Graph, x: Tensor, eqn: Eqn, taps: Sequence[list]) -> Tensor:
    """For each window the number of its extremal element, the first of equal ones; NaN is more."""
    p, nominal = eqn.params, eqn.ins[1].aval.dtype
    upwards = p["select_prim"] is ge
    value = (lowest if upwards else highest)(nominal)
    x = g.cast(x, F4) if x.dtype == np.dtype("f2") else x
    wide = padded(g, x, g.constant(value.astype(x.dtype)), _config(p))
    best = _tap(g, wide, taps[0])
    number = g.full(best.shape, 0, np.dtype("i4"))
    for k, cuts in enumerate(taps[1:], 1):
        candidate = _tap(g, wide, cuts)
        keeps = g.compare("GreaterOrEqual" if upwards else "LessOrEqual", best, candidate)
        better = g.not_(keeps)
        if x.dtype.kind == "f":
            better = g.elementwise("And", better, g.not_(functions.isnan(g, best)))
        best = g.where(better, candidate, best)
        number = g.where(better, g.constant(k, number.dtype), number)
    return number


def gather_add(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """From each window the element of one array where another one has its extremum."""
    moved, x = ins
    shape = eqn.outs[0].aval.shape
    if 0 in map(int, shape):
        return [g.full(shape, 0, moved.dtype)]
    taps = _taps(eqn.params, shape)
    number = _chosen(g, x, eqn, taps)
    wide = padded(g, moved, g.constant(0, moved.dtype), _config(eqn.params))
    out = _tap(g, wide, taps[0])
    for k, cuts in enumerate(taps[1:], 1):
        here = g.compare("Equal", number, g.constant(k, number.dtype))
        out = g.where(here, _tap(g, wide, cuts), out)
    return [out]


def scatter_add(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Each element of one array added where the window of another one has its extremum."""
    source, x = ins
    p = eqn.params
    if 0 in map(int, (*source.shape, *x.shape)):
        return [g.full(x.shape, 0, source.dtype)]
    taps = _taps(p, source.shape)
    number = _chosen(g, x, eqn, taps)
    own = source.dtype
    source = g.cast(source, F4) if own == np.dtype("f2") else source
    sizes = [
        dilated(n, b) + low + high
        for n, (low, high), b in zip(x.shape, p["padding"], p["base_dilation"], strict=True)
    ]
    zero = g.constant(0, source.dtype)
    total: Tensor | None = None
    for k, cuts in enumerate(taps):
        here = g.compare("Equal", number, g.constant(k, number.dtype))
        term = g.where(here, source, zero)
        for axis, (start, stop, step, _) in enumerate(cuts):
            term = spread(g, term, zero, axis, step - 1) if step > 1 else term
            pads = [(0, 0)] * axis + [(start, sizes[axis] - stop)]
            pads += [(0, 0)] * (x.rank - axis - 1)
            shape = (*term.shape[:axis], sizes[axis], *term.shape[axis + 1 :])
            term = g.pad(term, pads, zero, shape)
        total = term if total is None else g.elementwise("Add", total, term)
    assert total is not None
    undo = [(-low, -high, 0) for low, high in p["padding"]]
    total = padded(g, total, zero, undo)
    for axis, b in enumerate(p["base_dilation"]):
        total = g.slice(total, axis, 0, total.shape[axis], b, x.shape[axis])
    return [g.cast(total, own)]


RULES = {
    window_sum_p: _reducer("Add", lambda dtype: np.zeros((), dtype)),
    window_max_p: _reducer("Max", lowest),
    window_min_p: _reducer("Min", highest),
    select_and_gather_add_p: gather_add,
    select_and_scatter_add_p: scatter_add,
}
