"""What moves elements, makes arrays, and changes types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.closed import constant_p
from funcgrad.core.ir import Eqn
from funcgrad.export.onnx.bits import bitcast
from funcgrad.export.onnx.dims import Dim
from funcgrad.export.onnx.graph import Graph, Tensor, Untranslatable
from funcgrad.export.onnx.kernels import F8, I8, held
from funcgrad.ops.barrier import barrier_p, name_p
from funcgrad.ops.base import broadcast_p, transpose_p
from funcgrad.ops.elementwise.convert import (
    bitcast_convert_type_p,
    bitcast_regroup_p,
    convert_element_type_p,
    copy,
    select_n_p,
    stop_gradient_p,
)
from funcgrad.ops.shape import iota_p, reshape_p, rev_p
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p

Ins = Sequence[Tensor]


def same(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """What the operands are."""
    return list(ins)


def broadcast(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """An array spread over new axes."""
    axes = eqn.params["broadcast_dimensions"]
    return [g.broadcast(ins[0], eqn.outs[0].aval.shape, axes)]


def reshape(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """The elements in row-major order, with other axes."""
    return [g.reshape(ins[0], eqn.outs[0].aval.shape)]


def transpose(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Axes in another order."""
    return [g.transpose(ins[0], eqn.params["permutation"])]


def slice_(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A part of each axis, every so many elements."""
    (x,), p = ins, eqn.params
    steps = p["strides"] or (1,) * x.rank
    bounds = zip(p["start_indices"], p["limit_indices"], steps, strict=True)
    for axis, (start, stop, step) in enumerate(bounds):
        x = g.slice(x, axis, start, stop, step, eqn.outs[0].aval.shape[axis])
    return [x]


def reverse(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Axes backwards."""
    axes = eqn.params["dimensions"]
    return [flipped(g, ins[0], axes)]


def flipped(g: Graph, x: Tensor, axes: Sequence[int]) -> Tensor:
    """x with axes backwards."""
    if not axes:
        return x
    n = len(axes)
    ends = [[-1] * n, [np.iinfo(np.int64).min] * n, list(axes), [-1] * n]
    return g.op("Slice", x, *(g.constant(e, I8) for e in ends), shape=x.shape, data=[0])


def concatenate(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Arrays one after the other along an axis."""
    return [joined(g, ins, eqn.params["dimension"], eqn.outs[0].aval.shape)]


def joined(g: Graph, parts: Ins, axis: int, shape: Sequence[int]) -> Tensor:
    """Arrays one after the other along an axis."""
    if len(parts) == 1:
        return parts[0]
    return g.op("Concat", *parts, axis=int(axis), shape=tuple(shape))


def pad(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A border, and elements in between."""
    return [padded(g, ins[0], ins[1], eqn.params["padding_config"])]


def padded(g: Graph, x: Tensor, value: Tensor, config: Sequence[Sequence[int]]) -> Tensor:
    """x with (low, high, between) elements of a value at each axis; negative ones are taken off."""
    for axis, (_, _, between) in enumerate(config):
        if between:
            x = spread(g, x, value, axis, between)
    for axis, (low, high, _) in enumerate(config):
        if low < 0 or high < 0:
            n = x.shape[axis]
            # What is taken off may be more than there is, of what is added on the other side.
            start, stop = max(-low, 0), n - max(-high, 0)
            if start > n or stop < start:
                return _far(g, x, value, config)
            x = g.slice(x, axis, start, stop)
    pads = [(max(low, 0), max(high, 0)) for low, high, _ in config]
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, pads, strict=True))
    if 0 in map(int, x.shape):
        return g.broadcast(value, shape, ())
    return g.pad(x, pads, value, shape)


def _far(g: Graph, x: Tensor, value: Tensor, config: Sequence[Sequence[int]]) -> Tensor:
    """An array from which more is taken off at one side than there is: border first, then cut."""
    wide = [(max(a, 0), max(b, 0)) for a, b, _ in config]
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, wide, strict=True))
    x = (
        g.pad(x, wide, value, shape)
        if 0 not in map(int, x.shape)
        else g.broadcast(value, shape, ())
    )
    for axis, (low, high, _) in enumerate(config):
        x = g.slice(x, axis, max(-low, 0), max(x.shape[axis] - max(-high, 0), max(-low, 0)))
    return x


def spread(g: Graph, x: Tensor, value: Tensor, axis: int, between: int) -> Tensor:
    """x with elements of a value between those of an axis."""
    n = x.shape[axis]
    if n == 0:
        return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    thin = g.reshape(x, (*before, n, 1, *after))
    pads = [(0, 0)] * (axis + 1) + [(0, between)] + [(0, 0)] * len(after)
    wide = g.pad(thin, pads, value, (*before, n, 1 + between, *after))
    whole = g.reshape(wide, (*before, n * (1 + between), *after))
    return g.slice(whole, axis, 0, n * (1 + between) - between)


def iota(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Numbers that count along an axis."""
    shape, axis = eqn.outs[0].aval.shape, eqn.params["dimension"]
    return [g.broadcast(counted(g, shape[axis], held(eqn.outs[0].aval.dtype)), shape, (axis,))]


def counted(g: Graph, n: int, dtype: np.dtype) -> Tensor:
    """0, 1, … n - 1."""
    if not isinstance(n, Dim):
        return g.constant(np.arange(n).astype(dtype))
    root = g.root
    stop = root.reshape(root.size(n), ())
    ends = root.constant(0, I8), stop, root.constant(1, I8)
    return g.cast(root.op("Range", *ends, shape=(n,)), dtype)


def constant(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """An array of the program's text."""
    value = np.asarray(eqn.params["value"].array.value)
    return [g.constant(value.astype(held(value.dtype)))]


def select(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """A choice among arrays, by a bool or by a number that is held within range."""
    which, *cases = ins
    if which.dtype == np.bool_:
        return [cases[0] if len(cases) == 1 else g.where(which, cases[1], cases[0])]
    chosen = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        low = g.compare("LessOrEqual", which, g.constant(i, which.dtype))
        chosen = g.where(low, cases[i], chosen)
    return [chosen]


def convert(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Another type: floats go to integers towards zero and within range, NaN to 0."""
    (x,), new = ins, held(eqn.outs[0].aval.dtype)
    return [converted(g, x, new, eqn.params["new_dtype"])]


def converted(g: Graph, x: Tensor, new: np.dtype, nominal: Any = None) -> Tensor:
    """x as another type, as `convert_element_type` does it."""
    if new == np.bool_ and x.dtype != np.bool_:
        return g.not_(g.compare("Equal", x, g.constant(0, x.dtype)))
    if x.dtype.kind != "f" or new.kind not in "iu":
        return g.cast(x, new)
    info = np.iinfo(new) if nominal is None or np.dtype(nominal).kind in "iu" else None
    least, most = (info.min, info.max) if info else _narrow_limits(new)
    wide = g.cast(x, F8) if x.dtype.itemsize == 4 and new.itemsize >= 4 else x
    wide = g.cast(wide, np.dtype("f4")) if wide.dtype.itemsize == 2 else wide
    nan = g.elementwise("IsNaN", wide, dtype=np.dtype(bool))
    # The last float up to the limit: the limit itself rounds up for 64 bits.
    top = wide.dtype.type(most)
    reaches = int(top) > most
    inside = g.elementwise("Max", wide, g.constant(least, wide.dtype))
    below = np.nextafter(top, wide.dtype.type(0)) if reaches else top
    inside = g.elementwise("Min", inside, g.constant(below, wide.dtype))
    found = _to_integer(g, g.where(nan, g.constant(0, wide.dtype), inside), new)
    if reaches:
        over = g.compare("GreaterOrEqual", wide, g.constant(top, wide.dtype))
        found = g.where(over, g.constant(most, new), found)
    return found


def _to_integer(g: Graph, x: Tensor, new: np.dtype) -> Tensor:
    if new != np.dtype("u8"):
        return g.cast(x, new)
    # Runtimes go through int64: what is beyond it is moved down and up again.
    half = g.constant(2.0**63, x.dtype)
    high = g.compare("GreaterOrEqual", x, half)
    low = g.cast(g.cast(g.where(high, g.elementwise("Sub", x, half), x), I8), new)
    return g.where(high, g.elementwise("Add", low, g.constant(1 << 63, new)), low)


def _narrow_limits(new: np.dtype) -> tuple[int, int]:
    return (-8, 7) if new.kind == "i" else (0, 15)


def bitcast_rule(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """The same bits as a type of the same width."""
    (x,), old, new = ins, eqn.ins[0].aval.dtype, eqn.outs[0].aval.dtype
    if held(old) == old and held(new) == new:
        return [bitcast(g, x, new)]
    sixteen = np.dtype("u4")
    if held(old) != old and old.itemsize == 2:  # bfloat16, held in the upper half of a float32
        bits = bitcast(g, x, sixteen)
        by = g.constant(16, sixteen)
        half = g.elementwise("BitShift", bits, by, direction="RIGHT")
        return [bitcast(g, g.cast(half, np.dtype("u2")), new)]
    if held(new) != new and new.itemsize == 2:
        bits = g.cast(bitcast(g, x, np.dtype("u2")), sixteen)
        by = g.constant(16, sixteen)
        shifted = g.elementwise("BitShift", bits, by, direction="LEFT")
        return [bitcast(g, shifted, np.dtype("f4"))]
    raise Untranslatable(f"no bitcast of {old} to {new}")


def regroup(g: Graph, eqn: Eqn, ins: Ins) -> list[Tensor]:
    """Bits as elements of another width, along a last axis."""
    (x,), new = ins, eqn.outs[0].aval.dtype
    old = eqn.ins[0].aval.dtype
    if held(old) != old or held(new) != new:
        raise Untranslatable(f"no bitcast of {old} to {new}")
    few, many = sorted((old.itemsize, new.itemsize))
    wide, narrow = np.dtype("u8"), np.dtype(f"u{few}")
    shifts = g.constant(8 * few * np.arange(many // few), wide)
    if old.itemsize > new.itemsize:
        bits = g.cast(bitcast(g, x, np.dtype(f"u{many}")), wide)
        shape = (*x.shape, many // few)
        bits = g.broadcast(bits, shape, range(x.rank))
        parts = g.elementwise("BitShift", bits, shifts, direction="RIGHT")
        return [bitcast(g, g.cast(parts, narrow), new)]
    bits = g.cast(bitcast(g, x, narrow), wide)
    moved = g.elementwise("BitShift", bits, shifts, direction="LEFT")
    total = g.reduce("ReduceSum", moved, [x.rank - 1])
    return [bitcast(g, g.cast(total, np.dtype(f"u{many}")), new)]


RULES = {
    broadcast_p: broadcast,
    reshape_p: reshape,
    transpose_p: transpose,
    slice_p: slice_,
    rev_p: reverse,
    concatenate_p: concatenate,
    pad_p: pad,
    iota_p: iota,
    constant_p: constant,
    select_n_p: select,
    convert_element_type_p: convert,
    bitcast_convert_type_p: bitcast_rule,
    bitcast_regroup_p: regroup,
    copy: same,
    stop_gradient_p: same,
    sharding_constraint_p: same,
    barrier_p: same,
    name_p: same,
}
