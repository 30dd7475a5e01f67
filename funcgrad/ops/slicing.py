"""Joining and cutting: concatenate, split, slice and pad, which are each other's transposes."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.core.views import Place
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import canonical_axis, integers, items_of
from funcgrad.ops.base import (
    batch_front,
    broadcast_p,
    full,
    instantiate,
    is_linear,
    sum_p,
    zeros,
)
from funcgrad.ops.elementwise.convert import select_n_p


def unary_linear_jvp(prim: Any) -> Any:
    """The jvp of an op that moves the elements of one operand: the tangent moves likewise."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return prim().bind(*primals, **params), prim().bind(*tangents, **params)

    return rule


# ---- concatenate


def _concatenate_abstract(*xs, dimension):
    first = xs[0]
    if not 0 <= dimension < first.ndim:
        raise ShapeError(f"concatenate: dimension {dimension} is no axis of {first}")

    def others(a):
        return a.shape[:dimension] + a.shape[dimension + 1 :]

    listed = ", ".join(map(str, xs))
    if any(a.ndim != first.ndim or others(a) != others(first) for a in xs):
        raise ShapeError(
            f"concatenate: operands must agree in all axes but {dimension}, got {listed}"
        )
    if any(a.dtype != first.dtype for a in xs):
        raise DTypeError(f"concatenate: operands must have one dtype, got {listed}")
    total = sum(a.shape[dimension] for a in xs)
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return first.update(shape=shape, weak_type=all(a.weak_type for a in xs))


def _concatenate_jvp(primals, tangents, *, dimension):
    y = concatenate_p.bind(*primals, dimension=dimension)
    return y, concatenate_p.bind(*map(instantiate, tangents), dimension=dimension)


def _concatenate_transpose(ct, *xs, dimension):
    shape = aval_of(ct).shape
    sizes = [aval_of(x).shape[dimension] for x in xs]
    cts, start = [], 0
    for x, n in zip(xs, sizes, strict=True):
        cts.append(_span(ct, shape, dimension, start, start + n) if is_linear(x) else None)
        start += n
    return cts


def _span(x: Any, shape: tuple[int, ...], axis: int, start: int, stop: int) -> Any:
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    limits = tuple(stop if i == axis else n for i, n in enumerate(shape))
    return slice_p.bind(x, start_indices=starts, limit_indices=limits, strides=None)


def _concatenate_batch(axis, args, dims, *, dimension):
    moved = [batch_front(a, d, axis.size) for a, d in zip(args, dims, strict=True)]
    return concatenate_p.bind(*moved, dimension=dimension + 1), 0


def _concatenate_dims(*xs, dimension):
    names = dims_.letters(xs[0].ndim)
    names[dimension] = "."
    one = " ".join(names)
    return f"{', '.join([one] * len(xs))} -> {one}"


concatenate_p = Primitive(
    name="concatenate",
    abstract=_concatenate_abstract,
    impl=lambda xp, *xs, dimension: xp.concatenate(xs, axis=dimension),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    dims=_concatenate_dims,
    passes=1,
)


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Join arrays of one dtype along an axis; their other sizes must agree.

    >>> from funcgrad import lax
    >>> lax.concatenate([lax.iota("int32", 2), lax.iota("int32", 3)], 0)
    Array([0, 1, 0, 1, 2], dtype=int32)
    """
    operands = items_of("operands", operands)
    if not operands:
        raise ValueError("concatenate: need at least one operand, got none")
    axis = canonical_axis("concatenate", dimension, aval_of(operands[0]).ndim)
    if len(operands) == 1 and hasattr(operands[0], "aval"):
        return operands[0]
    return concatenate_p.bind(*operands, dimension=axis)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list:
    """Cut an array along an axis into consecutive parts of the given sizes.

    Raises ShapeError where the sizes do not add up to the axis.

    >>> from funcgrad import lax
    >>> lax.split(lax.iota("int32", 5), (2, 3))
    [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    aval = aval_of(operand)
    axis = canonical_axis("split", axis, aval.ndim)
    sizes = integers("split", "sizes", sizes)
    if sum(sizes) != aval.shape[axis] or any(n < 0 for n in sizes):
        raise ShapeError(f"split: sizes {sizes} do not add up to axis {axis} of {aval}")
    stops = list(itertools.accumulate(sizes))
    return [
        _span(operand, aval.shape, axis, stop - n, stop)
        for n, stop in zip(sizes, stops, strict=True)
    ]


# ---- slice


def _slice_abstract(x, *, start_indices, limit_indices, strides):
    steps = strides or (1,) * x.ndim
    given = f"start_indices {start_indices}, limit_indices {limit_indices}, strides {strides}"
    if not len(start_indices) == len(limit_indices) == len(steps) == x.ndim:
        raise ShapeError(f"slice: need one entry for each axis of {x}, got {given}")
    for n, start, limit, step in zip(x.shape, start_indices, limit_indices, steps, strict=True):
        if not 0 <= start <= limit <= n or step < 1:
            raise ShapeError(
                f"slice: need 0 <= start <= limit <= size and stride >= 1 in each axis of {x}, "
                f"got {given}"
            )
    sizes = zip(start_indices, limit_indices, steps, strict=True)
    return x.update(shape=tuple(len(range(*s)) for s in sizes))


def _slice_impl(xp, x, *, start_indices, limit_indices, strides):
    steps = strides or (None,) * x.ndim
    return x[tuple(map(builtins.slice, start_indices, limit_indices, steps))]


def _slice_transpose(ct, x, *, start_indices, limit_indices, strides):
    steps = strides or (1,) * len(start_indices)
    config = []
    sizes = zip(x.aval.shape, aval_of(ct).shape, start_indices, steps, strict=True)
    for n, count, start, step in sizes:
        end = start + (count - 1) * step + 1 if count else start
        config.append((start, n - end, step - 1))
    return [pad_p.bind(ct, full((), 0, aval_of(ct).dtype), padding_config=tuple(config))]


def _slice_batch(axis, args, dims, *, start_indices, limit_indices, strides):
    d = dims[0]

    def beside(entries, own):
        return (*entries[:d], own, *entries[d:])

    y = slice_p.bind(
        args[0],
        start_indices=beside(start_indices, 0),
        limit_indices=beside(limit_indices, axis.size),
        strides=strides and beside(strides, 1),
    )
    return y, d


def _slice_dims(x, *, start_indices, limit_indices, strides):
    names = dims_.letters(x.ndim)
    lengths = zip(x.shape, start_indices, limit_indices, strict=True)
    strides = strides or (1,) * x.ndim
    cut = [lo > 0 or hi < n or s > 1 for (n, lo, hi), s in zip(lengths, strides, strict=True)]
    kept = " ".join("." if c else n for c, n in zip(cut, names, strict=True))
    return f"{kept} -> {kept}"


def _slice_view(x, *, start_indices, limit_indices, strides):
    steps = enumerate(zip(start_indices, strides or (1,) * x.ndim, strict=True))
    return [Place(start, ((step, d),)) for d, (start, step) in steps]


slice_p: Primitive = Primitive(
    name="slice",
    abstract=_slice_abstract,
    impl=_slice_impl,
    jvp=unary_linear_jvp(lambda: slice_p),
    transpose=_slice_transpose,
    batch=_slice_batch,
    dims=_slice_dims,
    view=_slice_view,
    linear=True,
)


def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Any:
    """The elements start, start + stride, … below limit along each axis; all bounds static.

    Raises ShapeError unless 0 <= start <= limit <= size and stride >= 1 in every axis.

    >>> from funcgrad import lax
    >>> lax.slice(lax.iota("int32", 10), (2,), (9,), (3,))
    Array([2, 5, 8], dtype=int32)
    """
    steps = integers("slice", "strides", strides) if strides is not None else None
    return slice_p.bind(
        operand,
        start_indices=integers("slice", "start_indices", start_indices),
        limit_indices=integers("slice", "limit_indices", limit_indices),
        strides=None if steps and all(s == 1 for s in steps) else steps or None,
    )


# ---- pad: operand element k of an axis lands at low + k * (interior + 1)


def _pad_abstract(x, value, *, padding_config):
    if value.shape or value.dtype != x.dtype:
        raise ShapeError(f"pad: padding_value must be a scalar of dtype {x.dtype}, got {value}")
    if len(padding_config) != x.ndim or any(c[2] < 0 for c in padding_config):
        raise ShapeError(
            f"pad: padding_config must have (low, high, interior >= 0) for each axis of {x}, "
            f"got {padding_config}"
        )
    shape = tuple(
        low + high + n + max(n - 1, 0) * interior
        for n, (low, high, interior) in zip(x.shape, padding_config, strict=True)
    )
    if any(n < 0 for n in shape):
        raise ShapeError(f"pad: padding_config {padding_config} takes more than {x} has: {shape}")
    return x.update(shape=shape, weak_type=x.weak_type and value.weak_type)


def _pad_impl(xp, x, value, *, padding_config):
    source, target, shape = [], [], []
    for n, (low, high, interior) in zip(x.shape, padding_config, strict=True):
        step = interior + 1
        size = low + high + n + max(n - 1, 0) * interior
        first = max(0, -(low // step))
        last = max(first, min(n, -((low - size) // step)))
        start = low + first * step
        source.append(builtins.slice(first, last))
        target.append(builtins.slice(start, start + (last - first) * step, step))
        shape.append(size)
    out = xp.full(tuple(shape), value, x.dtype)
    out[tuple(target)] = x[tuple(source)]
    return out


def _pad_jvp(primals, tangents, **params):
    return pad_p.bind(*primals, **params), pad_p.bind(*map(instantiate, tangents), **params)


def _pad_mask(x_aval, padding_config):
    """True at the padding, False at the operand's elements."""
    inside = full(x_aval.shape, False, dtypes.BOOL)
    return pad_p.bind(inside, full((), True, dtypes.BOOL), padding_config=padding_config)


def _pad_transpose(ct, x, value, *, padding_config):
    ct_x = ct_value = None
    if is_linear(x):
        undo = tuple((-low, -high, 0) for low, high, _ in padding_config)
        wide = pad_p.bind(ct, full((), 0, aval_of(ct).dtype), padding_config=undo)
        ct_x = slice(
            wide, (0,) * len(undo), aval_of(wide).shape, [c[2] + 1 for c in padding_config]
        )
    if is_linear(value):
        mask = _pad_mask(aval_of(x), padding_config)
        picked = select_n_p.bind(mask, zeros(aval_of(ct)), ct)
        ct_value = sum_p.bind(picked, axes=tuple(range(len(padding_config))))
    return [ct_x, ct_value]


def _pad_batch(axis, args, dims, *, padding_config):
    (x, value), (x_dim, value_dim) = args, dims
    config = ((0, 0, 0), *padding_config)
    wide = batch_front(x, x_dim, axis.size)
    if value_dim is None:
        return pad_p.bind(wide, value, padding_config=config), 0
    padded = pad_p.bind(wide, full((), 0, aval_of(x).dtype), padding_config=config)
    shape = aval_of(padded).shape
    values = broadcast_p.bind(value, shape=shape, broadcast_dimensions=(0,))
    return select_n_p.bind(_pad_mask(aval_of(wide), config), padded, values), 0


def _pad_dims(x, value, *, padding_config):
    names = dims_.letters(x.ndim)
    names = ["." if any(c) else n for n, c in zip(names, padding_config, strict=True)]
    return f"{' '.join(names)},  -> {' '.join(names)}"


pad_p = Primitive(
    name="pad",
    abstract=_pad_abstract,
    impl=_pad_impl,
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    dims=_pad_dims,
    passes=1,
)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """Put a scalar before, after and between elements: (low, high, interior) for each axis.

    Negative low and high take elements away, after `interior` values were put between each pair.
    Raises ShapeError where more is taken than there is.

    >>> from funcgrad import lax
    >>> lax.pad(lax.iota("int32", 3), 9, [(1, -1, 1)])
    Array([9, 0, 9, 1, 9], dtype=int32)
    """
    if isinstance(padding_value, bool | int | float | complex):
        padding_value = full((), padding_value, aval_of(operand).dtype)
    given = items_of("padding_config", padding_config)
    config = tuple(integers("pad", "padding_config", c) for c in given)
    if any(len(c) != 3 for c in config):
        raise ShapeError(f"pad: padding_config needs (low, high, interior) an axis, got {config}")
    return pad_p.bind(operand, padding_value, padding_config=config)
