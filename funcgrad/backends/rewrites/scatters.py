"""Scatters of one update into zeros, written as selections.

The gradient of `x[i]` with one index, or with one a row as in `take_along_axis`, is such a scatter:
where an axis' position is the index stands the update, elsewhere zero. A selection fuses with what
reads it; the scatter would write zeros, then the update, and be read again. So is the gradient of
maxima of whole images, where the index is that of the extremum, while that of their sums is the
same everywhere.
"""

from __future__ import annotations

import math

import numpy as np

from funcgrad.backends.loops.scalars import HALVES, LOOP_DTYPES
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.ops.elementwise.compare import eq, ge
from funcgrad.ops.elementwise.convert import select_n_p
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import scatter_add_p
from funcgrad.ops.indexing.scatter import scatter_p
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.reduce import argmax_p, argmin_p
from funcgrad.ops.shape import iota_p

BOOL, INT32, INT64, FLOAT32 = map(np.dtype, ("bool", "int32", "int64", "float32"))
FEW = 16  # updates, of which an element loses little where it is rounded after each


def single_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A "scatter" or "scatter_add" as a selection; None if it isn't one of the module's kind.

    flat: to which equations are added
    """
    operand, indices, updates = ins
    numbers = eqn.params["dimension_numbers"]
    if operand not in flat.zeros or not _is_single(eqn, ins, numbers):
        return None
    shape, (axis,) = operand.aval.shape, numbers.inserted_window_dims
    batch = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    index = _placed(flat, flat.convert(indices, INT64), [batch[i] for i in sorted(batch)], shape)
    windows = iter(_window_axes(len(shape), numbers))
    points = iter(range(indices.aval.ndim - 1))
    axes = [
        next(windows) if i in numbers.update_window_dims else batch.get(next(points))
        for i in range(updates.aval.ndim)
    ]
    value = _placed(flat, updates, [i for i in axes if i is not None], shape)
    if eqn.prim is scatter_add_p:  # which makes 0 of -0
        value = flat.add(add, [operand, value], operand.aval)
    place = flat.add(
        iota_p, [], ShapedArray(shape, INT64), dtype=INT64, shape=shape, dimension=axis
    )
    here = flat.add(eq, [place, index], ShapedArray(shape, BOOL))
    return flat.add(select_n_p, [here, operand, value], operand.aval)


def wide_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> tuple[Eqn, list[Atom]] | None:
    """A "scatter_add" or "scatter_mul" of narrow floats as one of float32, which is to be rounded
    at the end: sums that are rounded after each update stick at 256 (bfloat16) or 2048. None where
    few updates can meet.

    flat: to which equations are added
    """
    operand, indices, updates = ins
    if operand.aval.dtype not in HALVES or eqn.params["unique_indices"]:
        return None
    if eqn.prim is scatter_p or math.prod(indices.aval.shape[:-1]) <= FEW:
        return None
    wide = [flat.convert(operand, FLOAT32), indices, flat.convert(updates, FLOAT32)]
    out = Var(ShapedArray(operand.aval.shape, FLOAT32))
    return Eqn(eqn.prim, wide, [out], eqn.params, eqn.source, eqn.scopes), wide


def window_scatter(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A "select_and_scatter_add" of windows that are whole images as a selection; None of others.

    flat: to which equations are added

    >>> import funcgrad as fg
    >>> def pool(x):
    ...     return fg.lax.reduce_window(x, -fg.numpy.inf, fg.lax.max, (1, 7, 7), (1, 1, 1), "VALID")
    >>> gradient = fg.jit(fg.grad(lambda x: pool(x).sum()))
    >>> "argmax" in str(gradient.lower(fg.numpy.ones((8, 7, 7)))._executable().program)
    True
    """
    (source, x), p = ins, eqn.params
    shape, dtype = x.aval.shape, source.aval.dtype
    window = [n for n, count in zip(shape, source.aval.shape, strict=True) if n != count]
    axes = [i for i, count in enumerate(source.aval.shape) if shape[i] != count]
    plain = {*p["padding"]} == {(0, 0)} and {*p["base_dilation"], *p["window_dilation"]} == {1}
    wanted = tuple(n if i in axes else 1 for i, n in enumerate(shape))
    if math.prod(window) < flat.limits.window or not plain or p["window_dimensions"] != wanted:
        return None
    if axes != [*range(axes[0], axes[-1] + 1)] or any(source.aval.shape[i] != 1 for i in axes):
        return None
    first, behind = axes[0], axes[-1] + 1
    lined = (*shape[:first], math.prod(window), *shape[behind:])
    points = (*shape[:first], *shape[behind:])
    find = argmax_p if p["select_prim"] is ge else argmin_p
    best = flat.add(find, [flat.reshape(x, lined)], ShapedArray(points, INT32),
                    axes=(first,), index_dtype=INT32)  # fmt: skip
    kept = [i for i in range(len(lined)) if i != first]
    place = flat.add(
        iota_p, [], ShapedArray(lined, INT32), dtype=INT32, shape=lined, dimension=first
    )
    here = flat.add(eq, [place, flat.broadcast(best, lined, kept)], ShapedArray(lined, BOOL))
    none = flat.broadcast(_zero(dtype), lined, ())
    value = flat.broadcast(flat.reshape(source, points), lined, kept)
    value = flat.add(add, [none, value], none.aval)  # which makes 0 of -0
    return flat.reshape(flat.add(select_n_p, [here, none, value], none.aval), shape)


def window_spread(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A "reduce_window_sum" whose windows all meet the only element that there is along their axes,
    as the gradient of sums of whole images does; None of others.

    flat: to which equations are added

    >>> import funcgrad as fg
    >>> def pool(x):
    ...     return fg.lax.reduce_window(x, 0.0, fg.lax.add, (1, 7, 7), (1, 1, 1), "VALID")
    >>> fg.jit(fg.grad(lambda x: pool(x).sum()))(fg.numpy.ones((8, 7, 7))).sum()
    Array(392., dtype=float32)
    """
    (x,), p, shape = ins, eqn.params, eqn.outs[0].aval.shape
    kept = []
    axes = zip(x.aval.shape, shape, p["window_dimensions"], p["window_strides"], p["padding"],
               p["window_dilation"], p["base_dilation"], strict=True)  # fmt: skip
    for d, (n, count, window, stride, (low, high), step, hole) in enumerate(axes):
        if (window, stride, low, high, hole) == (1, 1, 0, 0, 1):
            kept.append(d)
        elif n != 1 or step != 1 or not (count - 1) * stride <= low < window:
            return None
    if len(kept) == len(shape):
        return None
    value = flat.broadcast(flat.reshape(x, tuple(shape[d] for d in kept)), shape, kept)
    none = flat.broadcast(_zero(x.aval.dtype), shape, ())
    return flat.add(add, [none, value], none.aval)  # which makes 0 of -0


def _zero(dtype: np.dtype) -> Literal:
    return Literal(np.zeros((), dtype), ShapedArray((), dtype))


def _placed(flat: Equations, x: Atom, axes: list[int], shape: tuple[int, ...]) -> Atom:
    """Broadcast to a shape of which these are x's axes, but those of size 1 that it has besides."""
    kept = flat.reshape(x, tuple(shape[i] for i in axes))
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    return flat.broadcast(flat.transpose(kept, order), shape, sorted(axes))


def _is_single(eqn: Eqn, ins: list[Atom], numbers: ScatterDimensionNumbers) -> bool:
    """Whether there is one update for each point of the batching axes, of whole axes else."""
    operand, indices, updates = (a.aval for a in ins)
    if operand.dtype not in LOOP_DTYPES or operand.dtype == BOOL or not updates.size:
        return False
    if indices.dtype not in LOOP_DTYPES or indices.dtype == np.dtype(np.uint64):
        return False
    if GatherScatterMode.from_any(eqn.params["mode"]) is GatherScatterMode.CLIP:
        return False
    points = [indices.shape[i] for i in numbers.scatter_indices_batching_dims]
    if math.prod(indices.shape[:-1]) != math.prod(points):
        return False
    axes = numbers.inserted_window_dims
    if len(axes) != 1 or axes != tuple(numbers.scatter_dims_to_operand_dims):
        return False
    windows = [updates.shape[i] for i in numbers.update_window_dims]
    return windows == [operand.shape[i] for i in _window_axes(operand.ndim, numbers)]


def _window_axes(ndim: int, numbers: ScatterDimensionNumbers) -> list[int]:
    without = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    return [i for i in range(ndim) if i not in without]
