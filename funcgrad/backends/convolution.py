"""Convolutions as matrix products: each window of the operand is a row.

Large ones read the windows in place: `windows` is a view of the operand (padded, if it must be; by
the product itself if `roots` finds that it can), and holes in the operand are left out: the outputs
that meet the same elements of the kernel are a convolution without holes. For small ones `patches`
computes any element of a window. Windows of 3×3 neighbours are multiplied by `tiles`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.backends.builder import add_indices, scale_index
from funcgrad.backends.loops import Const, Index, Operand
from funcgrad.backends.lower_shape import inside_or
from funcgrad.backends.lowered import lowered
from funcgrad.backends.pull import Indices, Pull
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p


def _abstract(x: ShapedArray, *, shape: tuple[int, ...], **params: Any) -> ShapedArray:
    return x.update(shape=shape)


def _impl(xp: Any, x: Any, *, shape: tuple[int, ...], spec: Any, groups: Any, **params: Any) -> Any:
    raise NotImplementedError("windows are always lowered to loops")


# Axes: group, batch, positions, window, feature of the group. `groups` are (of features, of batch).
patches_p = lowered("patches", _abstract, _impl)


def patches_rule(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    """The element of a window: its operand's, or 0 in padding and holes."""
    b, (x,), p = pull.builder, eqn.ins, eqn.params
    rank = len(p["strides"])
    group, batch, feature = at[0], at[1], at[-1]
    positions, window = at[2 : 2 + rank], at[2 + rank : 2 + 2 * rank]
    features, batches = p["groups"]
    source: list[Index] = [Index(0)] * (rank + 2)
    n, c = eqn.outs[0].aval.shape[1], eqn.outs[0].aval.shape[-1]
    batch_axis, feature_axis, *axes = p["spec"]
    source[batch_axis] = add_indices(batch, scale_index(group, n if batches > 1 else 0))
    source[feature_axis] = add_indices(feature, scale_index(group, c if features > 1 else 0))
    conditions: list[Operand | None] = []
    for i, axis in enumerate(axes):
        place = add_indices(
            scale_index(positions[i], p["strides"][i], -p["padding"][i][0]),
            scale_index(window[i], p["dilation"][i]),
        )
        if p["holes"][i] != 1:
            place, rest = b.divide(place, p["holes"][i])
            conditions.append(b.compare("less", rest, 1))
        conditions += [b.compare("greater_equal", place, 0),
                       b.compare("less", place, x.aval.shape[axis])]  # fmt: skip
        source[axis] = place
    zero = Const(np.zeros((), x.aval.dtype), x.aval.dtype)
    return inside_or(pull, b.all_of(conditions), x, source, zero)


def convolution(flat: Any, eqn: Eqn, ins: list[Atom], dot: Any) -> Atom:
    """A convolution written as patches and a product, by a normalizer's methods."""
    (x, w), p, out = ins, eqn.params, eqn.outs[0].aval
    spec = p["dimension_numbers"]
    groups = p["feature_group_count"], p["batch_group_count"]
    g = groups[0] * groups[1]
    o, i, *kernel = (w.aval.shape[a] for a in spec.rhs_spec)
    n, spatial = out.shape[spec.out_spec[0]], [out.shape[a] for a in spec.out_spec[2:]]
    rank = len(kernel)
    shape = (g, n, *spatial, *kernel, i)
    windows = flat.add(
        patches_p, [x], ShapedArray(shape, x.aval.dtype), shape=shape, spec=tuple(spec.lhs_spec),
        groups=groups, strides=tuple(p["window_strides"]), padding=tuple(p["padding"]),
        holes=tuple(p["lhs_dilation"]), dilation=tuple(p["rhs_dilation"]),
    )  # fmt: skip
    # Output features, by group; then window, feature: the contracted axes.
    w = flat.transpose(w, [spec.rhs_spec[0], *spec.rhs_spec[2:], spec.rhs_spec[1]])
    w = flat.reshape(w, (g, o // g, *kernel, i))
    contract = tuple(range(2 + rank, 3 + 2 * rank)), tuple(range(2, 3 + rank))
    product = Eqn(
        eqn.prim,
        [windows, w],
        [type(eqn.outs[0])(ShapedArray((g, n, *spatial, o // g), out.dtype))],
        {"dimension_numbers": (contract, ((0,), (0,))), "preferred_element_type": out.dtype},
    )
    y = dot(flat, product, [windows, w])
    y = flat.transpose(y, [*range(1, rank + 2), 0, rank + 2])
    y = flat.reshape(y, (n, *spatial, o))
    order = (spec.out_spec[0], *spec.out_spec[2:], spec.out_spec[1])
    return flat.transpose(y, [order.index(a) for a in range(rank + 2)])


# ---- windows read in place

# More outputs that meet different elements of the kernel aren't told apart; products of fewer
# multiplications aren't worth it.
MAX_PHASES, LEAST_WORK, MAX_RANK = 16, 1 << 14, 5
LEAST_MET, MOST_MET = 16, 64

# Axes: group, batch, positions, window, feature of the group, of an operand with the axes batch,
# feature, spatial. Window k of position p begins at starts + p·strides + k·dilation, inside.
windows_p = lowered("windows", _abstract, _impl)


def windows_rule(pull: Pull, eqn: Eqn, at: Indices) -> Operand:
    """The element of a window."""
    (x,), p, shape = eqn.ins, eqn.params, eqn.outs[0].aval.shape
    rank = len(p["strides"])
    features, batches = p["groups"]
    batch = add_indices(at[1], scale_index(at[0], shape[1] if batches > 1 else 0))
    feature = add_indices(at[-1], scale_index(at[0], shape[-1] if features > 1 else 0))
    places = [
        add_indices(scale_index(at[2 + i], s, start), scale_index(at[2 + rank + i], d))
        for i, (s, start, d) in enumerate(
            zip(p["strides"], p["starts"], p["dilation"], strict=True)
        )
    ]
    return pull.read(x, [batch, feature, *places])


class _Phase(NamedTuple):
    """Along an axis, the outputs phase, phase + step, … : the elements first, first + stride, … of
    the kernel meet the operand's start + output·move + element·dilation."""

    start: int
    move: int
    first: int
    stride: int
    dilation: int
    taps: int


def _phases(
    size: int, kernel: int, stride: int, low: int, hole: int, dilation: int
) -> list[_Phase]:
    """The phases of an axis: outputs of a phase meet the same elements of the kernel."""
    common, every = math.gcd(stride, hole), hole // math.gcd(dilation, hole)
    out = []
    for phase in range(min(hole // common, size)):
        at = phase * stride - low
        met = [j for j in range(min(kernel, every)) if (at + j * dilation) % hole == 0]
        first = met[0] if met else kernel
        taps = len(range(first, kernel, every))
        start = (at + first * dilation) // hole
        out.append(_Phase(start, stride // common, first, every, dilation * every // hole, taps))
    return out


def gathered_convolution(
    flat: Any, eqn: Eqn, ins: list[Atom], dtypes: tuple[np.dtype, np.dtype], product: Callable
) -> Atom | None:
    """A convolution as products of windows that are read in place, by a normalizer's methods.

    dtypes: of the operands of products, and of their results
    product: makes the equation of a product of windows and kernel, from its result's shape and
        dimension_numbers
    None if the products are too small, or too many.
    """
    p, out, (dtype, sums) = eqn.params, eqn.outs[0].aval, dtypes
    spec, groups = p["dimension_numbers"], (p["feature_group_count"], p["batch_group_count"])
    g = groups[0] * groups[1]
    o, i, *kernel = (ins[1].aval.shape[a] for a in spec.rhs_spec)
    n, _, *spatial = (out.shape[a] for a in spec.out_spec)
    low = [pair[0] for pair in p["padding"]]
    axes = [
        _phases(*sizes)
        for sizes in zip(spatial, kernel, p["window_strides"], low, p["lhs_dilation"],
                         p["rhs_dilation"], strict=True)
    ]  # fmt: skip
    count = math.prod(map(len, axes))
    work = n * math.prod(spatial) * (o // g) * i * math.prod(kernel) // count
    narrow = min(o // g, n * math.prod(spatial)) < 2 or len(kernel) > MAX_RANK
    if narrow or work < LEAST_WORK or count > MAX_PHASES or i * math.prod(kernel) < 2:
        return None
    steps = [-(-size // len(phases)) for size, phases in zip(spatial, axes, strict=True)]
    x, before = _padded(flat, flat.convert(ins[0], dtype), spec.lhs_spec, axes, steps)
    w = flat.transpose(flat.convert(ins[1], dtype), spec.rhs_spec)
    pieces = []
    # In the order of the result's axes, in which `_interleaved` takes them.
    turns = sorted(range(len(kernel)), key=lambda k: spec.out_spec[2 + k])
    for turn in itertools.product(*(axes[k] for k in turns)):
        phases = [turn[turns.index(k)] for k in range(len(kernel))]
        taps = [q.taps for q in phases]
        if not all(taps):
            pieces.append(flat.broadcast(_zero(sums), tuple(_by_axis(spec, n, o, steps)), ()))
            continue
        windows = flat.add(
            windows_p, [x], ShapedArray(shape := (g, n, *steps, *taps, i), dtype), shape=shape,
            spec=None, groups=groups, strides=tuple(q.move for q in phases),
            starts=tuple(q.start + b for q, b in zip(phases, before, strict=True)),
            dilation=tuple(q.dilation for q in phases),
        )  # fmt: skip
        part = flat.reshape(_taps(flat, w, phases), (g, o // g, i, *taps))
        numbers = _numbers(len(kernel), spec.lhs_spec[1] < spec.lhs_spec[-1])
        made = product(windows, part, (g, n, *steps, o // g), numbers)
        order = _by_axis(spec, [1], [0, len(kernel) + 2], [[2 + k] for k in range(len(kernel))])
        made = flat.transpose(made, list(itertools.chain(*order)))
        pieces.append(flat.reshape(made, tuple(_by_axis(spec, n, o, steps))))
    if count == 1:
        return pieces[0]
    return _interleaved(flat, pieces, _by_axis(spec, 1, 1, [len(a) for a in axes]), out.shape)


def stays_narrow(eqn: Eqn, avals: Sequence[ShapedArray]) -> bool:
    """Whether products take less time on operands of bfloat16 as they are, whose windows are packed
    in pairs, than on windows of float32 read in place: where features come before places, and what
    is packed meets enough features of the result; more where the kernel is larger than the result,
    as in the gradient of a kernel, whose windows are packed in shorter pieces."""
    p, out = eqn.params, eqn.outs[0].aval.shape
    spec, kernel = p["dimension_numbers"], avals[1].shape
    groups = p["feature_group_count"] * p["batch_group_count"]
    if groups > 1 or spec.lhs_spec[1] > spec.lhs_spec[-1]:
        return False
    features, images = kernel[spec.rhs_spec[0]], out[spec.out_spec[0]]
    taps, places = (
        math.prod(shape[a] for a in axes[2:])
        for shape, axes in ((kernel, spec.rhs_spec), (out, spec.out_spec))
    )
    if taps <= places:
        return features >= LEAST_MET
    return features >= MOST_MET and images >= LEAST_MET


def _zero(dtype: np.dtype) -> Literal:
    return Literal(np.zeros((), dtype), ShapedArray((), dtype))


def _by_axis(spec: Any, batch: Any, feature: Any, spatial: Sequence[Any]) -> list[Any]:
    """What belongs to the axes of a result, in their order."""
    found = dict(zip(spec.out_spec, (batch, feature, *spatial), strict=True))
    return [found[a] for a in range(len(found))]


def _numbers(rank: int, features_first: bool) -> Any:
    """Which axes of windows and of a kernel (group, output, input, taps) are contracted. Those
    that are near in memory come last."""
    window, taps = list(range(2 + rank, 2 + 2 * rank)), list(range(3, 3 + rank))
    feature = [2 + 2 * rank]
    if features_first:
        contract = (*feature, *window), (2, *taps)
    else:
        contract = (*window, *feature), (*taps, 2)
    return (contract, ((0,), (0,)))


def _padded(
    flat: Any, x: Atom, spec: Sequence[int], axes: list[list[_Phase]], steps: list[int]
) -> tuple[Atom, list[int]]:
    """An operand with the zeros that windows reach, its axes batch, feature, spatial; and how many
    there are in front."""
    config, before = [(0, 0, 0)] * len(spec), []
    for axis, phases, count in zip(spec[2:], axes, steps, strict=True):
        met = [q for q in phases if q.taps]
        first = min((q.start for q in met), default=0)
        last = max(
            (q.start + (count - 1) * q.move + (q.taps - 1) * q.dilation for q in met), default=0
        )
        low, high = max(0, -first), max(0, last + 1 - x.aval.shape[axis])
        config[axis] = (low, high, 0)
        before.append(low)
    key = (x, tuple(config))
    if any(map(any, config)) and key not in flat.padded:
        shape = tuple(a + n + b for (a, b, _), n in zip(config, x.aval.shape, strict=True))
        aval = ShapedArray(shape, x.aval.dtype)
        flat.padded[key] = flat.add(
            pad_p, [x, _zero(x.aval.dtype)], aval, padding_config=tuple(config)
        )
    return flat.transpose(flat.padded.get(key, x), spec), before


def _taps(flat: Any, w: Atom, phases: Sequence[_Phase]) -> Atom:
    """The elements of a kernel that phases meet."""
    shape = w.aval.shape
    if all(q.taps == n for q, n in zip(phases, shape[2:], strict=True)):
        return w
    return flat.add(
        slice_p,
        [w],
        ShapedArray((*shape[:2], *(q.taps for q in phases)), w.aval.dtype),
        start_indices=(0, 0, *(q.first for q in phases)),
        limit_indices=shape,
        strides=(1, 1, *(q.stride for q in phases)),
    )


def _interleaved(flat: Any, pieces: list[Atom], counts: list[int], shape: tuple[int, ...]) -> Atom:
    """Pieces that hold every count-th element along each axis, as one array of a shape."""
    part = pieces[0].aval
    rows = [flat.reshape(piece, (1, *part.shape)) for piece in pieces]
    joined = flat.add(
        concatenate_p, rows, ShapedArray((len(rows), *part.shape), part.dtype), dimension=0
    )
    rank = len(shape)
    apart = flat.reshape(joined, (*counts, *part.shape))
    apart = flat.transpose(apart, [a for k in range(rank) for a in (rank + k, k)])
    whole = tuple(n * c for n, c in zip(part.shape, counts, strict=True))
    y = flat.reshape(apart, whole)
    if whole == shape:
        return y
    return flat.add(slice_p, [y], ShapedArray(shape, part.dtype), start_indices=(0,) * rank,
                    limit_indices=shape, strides=None)  # fmt: skip
