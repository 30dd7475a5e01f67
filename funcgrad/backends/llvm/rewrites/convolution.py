"""Convolutions as matrix products: each window of the operand is a row.

Large ones read the windows in place: `windows` is a view of the operand (padded, if it must be; by
the product itself if `roots` finds that it can), and holes in the operand are left out: the outputs
that meet the same elements of the kernel are a convolution without holes, one product where they
meet the same windows. For small ones `patches` computes any element of a window. Windows of 3×3
neighbours, and those of images that a kernel of 4×4 doubles, are multiplied by `tiles`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes
from funcgrad.backends.late import late
from funcgrad.backends.llvm.rewrites.tiles import PHASE_TAPS, TAPS, bytes_pay, phases_pay
from funcgrad.backends.loops.scalars import LOOP_DTYPES
from funcgrad.backends.lower.primitives import patches_p, windows_p
from funcgrad.backends.program import Convolution
from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.rewrites.phases import Phase, convolution_of, phases_of
from funcgrad.backends.rewrites.products import GEMM_DTYPES, dot, gathered
from funcgrad.backends.rewrites.reductions import FLOAT32
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Literal, Var
from funcgrad.ops.contract import accumulator, dot_general_p
from funcgrad.ops.shape import rev_p
from funcgrad.ops.slicing import concatenate_p, pad_p, slice_p

INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)

depthwise, depthwise_last = late("funcgrad.backends.llvm.kernels", "depthwise", "depthwise_last")
small_images, unmet = late("funcgrad.backends.llvm.rewrites", "small_images", "unmet")


def convolve(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A convolution as loops over images or as products; None if it is empty, or if loops don't
    have its dtypes."""
    avals = [*(x.aval for x in ins), eqn.outs[0].aval]
    if any(a.dtype not in LOOP_DTYPES or not a.size for a in avals):
        return None
    dtype = accumulator(avals[0].dtype, avals[1].dtype, avals[2].dtype)
    if _multiplications(eqn, ins) >= LEAST_WORK:
        eqn, ins = unmet.trimmed(flat, eqn, ins)
    if dtype in GEMM_DTYPES and not dtypes.is_integer(avals[2].dtype):
        for write in (
            depthwise.channel_convolution,
            depthwise_last.channels_last_convolution,
            _single_places,
            _small_images,
            _gathered_convolution,
        ):
            made = write(flat, eqn, ins, dtype)
            if made is not None:
                return made
    made = _bytes_by_tiles(flat, eqn, ins)
    return convolution(flat, eqn, ins, dot) if made is None else made


def _multiplications(eqn: Eqn, ins: list[Atom]) -> int:
    """Those of a convolution. Small ones form all products, also with zeros."""
    w, features = ins[1].aval, eqn.params["dimension_numbers"].rhs_spec[0]
    return eqn.outs[0].aval.size * (w.size // w.shape[features])


def _single_places(flat: Equations, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A convolution of images of one place each as one product."""
    # A product takes no more axes.
    if len(eqn.params["window_strides"]) > MAX_RANK:
        return None
    if _multiplications(eqn, ins) < LEAST_WORK:
        return None
    if any(a.aval.dtype != dtype for a in (*ins, *eqn.outs)):
        return None

    of = convolution_of(eqn, ins)

    def product(x: Atom, w: Atom, shape: tuple[int, ...], numbers: Any) -> Atom | None:
        if x.aval.shape[0] > 1 and w.aval.size > x.aval.shape[1]:
            return gathered(flat, x, w, ShapedArray(shape, dtype), numbers, of)
        params = {"dimension_numbers": numbers, "convolution": of}
        made = Eqn(dot_general_p, [x, w], [Var(ShapedArray(shape, dtype))], params)
        return dot(flat, made, [x, w])

    return unmet.single_places(flat, eqn, ins, product)


def _small_images(flat: Equations, eqn: Eqn, ins: list[Atom], dtype: np.dtype) -> Atom | None:
    """A convolution of many small images as one product, of float32 or float64."""
    if any(a.aval.dtype != dtype for a in (*ins, *eqn.outs)):
        return None
    write = partial(_gathered_convolution, flat, dtype=dtype)
    made = small_images.features_last(flat, eqn, ins, write)
    if made is not None:
        return made
    return small_images.gradient_features_last(flat, eqn, ins, write)


def _gathered_convolution(
    flat: Equations, eqn: Eqn, ins: list[Atom], dtype: np.dtype
) -> Atom | None:
    """A convolution as products of windows that are read in place; None if it is too small.

    Those of bfloat16 are multiplied as they are: processors have instructions for it. Others are
    converted as they are padded.
    """
    avals = [a.aval for a in ins]
    both = all(a.dtype == ml_dtypes.bfloat16 for a in avals) and dtype == FLOAT32
    read = avals[0].dtype if both and stays_narrow(eqn, avals) else dtype

    def product(x: Atom, w: Atom, shape: tuple[int, ...], numbers: Any, of: Convolution) -> Atom:
        out, exact = ShapedArray(shape, dtype), eqn.params["exact"]
        return gathered(flat, x, w, out, numbers, of, exact, windows=True)

    made = gathered_convolution(flat, eqn, ins, (read, dtype), product)
    return None if made is None else flat.convert(made, eqn.outs[0].aval.dtype)


def _bytes_by_tiles(flat: Equations, eqn: Eqn, ins: list[Atom]) -> Atom | None:
    """A convolution of int8 as a product by tiles, if that takes less time than sums of products.
    Both are exact."""
    p, out, kinds = eqn.params, eqn.outs[0].aval, [a.aval.dtype for a in (*ins, *eqn.outs)]
    spec = p["dimension_numbers"]
    if kinds != [INT8, INT8, INT32] or p["exact"] or len(p["padding"]) != 2:
        return None
    features, channels, *taps = (ins[1].aval.shape[a] for a in spec.rhs_spec)
    images, _, *size = (out.shape[a] for a in spec.out_spec)
    plain = {*p["window_strides"], *p["lhs_dilation"], *p["rhs_dilation"]} == {1}
    plain = plain and p["feature_group_count"] * p["batch_group_count"] == 1
    last = spec.lhs_spec[1] == spec.out_spec[1] == 3
    if not (plain and last and taps == [TAPS, TAPS]):
        return None
    if not bytes_pay(images, (size[0], size[1]), channels, features):
        return None

    def product(x: Atom, w: Atom, shape: tuple[int, ...], numbers: Any, of: Convolution) -> Atom:
        return gathered(flat, x, w, ShapedArray(shape, INT32), numbers, of, False, windows=True)

    return gathered_convolution(flat, eqn, ins, (INT8, INT32), product)


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
        {"dimension_numbers": (contract, ((0,), (0,))), "convolution": convolution_of(eqn, ins)},
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


def gathered_convolution(
    flat: Any, eqn: Eqn, ins: list[Atom], dtypes: tuple[np.dtype, np.dtype], product: Callable
) -> Atom | None:
    """A convolution as products of windows that are read in place, by a normalizer's methods.

    dtypes: of the operands of products, and of their results
    product: makes the equation of a product of windows and kernel, from its result's shape,
        dimension_numbers and `Convolution`
    None if the products are too small, or too many.
    """
    p, out, (dtype, sums) = eqn.params, eqn.outs[0].aval, dtypes
    spec, groups = p["dimension_numbers"], (p["feature_group_count"], p["batch_group_count"])
    g = groups[0] * groups[1]
    o, i, *kernel = (ins[1].aval.shape[a] for a in spec.rhs_spec)
    n, _, *spatial = (out.shape[a] for a in spec.out_spec)
    low = [pair[0] for pair in p["padding"]]
    axes = [
        phases_of(*sizes)
        for sizes in zip(spatial, kernel, p["window_strides"], low, p["lhs_dilation"],
                         p["rhs_dilation"], strict=True)
    ]  # fmt: skip
    count, all_phases = math.prod(map(len, axes)), [sum(q.phases for q in axis) for axis in axes]
    work = n * math.prod(spatial) * (o // g) * i * math.prod(kernel) // math.prod(all_phases)
    narrow = min(o // g, n * math.prod(spatial)) < 2 or len(kernel) > MAX_RANK
    if narrow or work < LEAST_WORK or count > MAX_PHASES or i * math.prod(kernel) < 2:
        return None
    steps = [-(-size // phases) for size, phases in zip(spatial, all_phases, strict=True)]
    x, before = _padded(flat, flat.convert(ins[0], dtype), spec.lhs_spec, axes, steps)
    w = flat.transpose(flat.convert(ins[1], dtype), spec.rhs_spec)
    starts = tuple(axis[0].start + b for axis, b in zip(axes, before, strict=True))
    if dtype == sums and _doubles(eqn, ins, axes, steps):
        of = convolution_of(eqn, ins, [axis[0] for axis in axes], (o, *steps), (2, 2))
        return _doubled(flat, x, w, starts, of, product)
    # In the order of the result's axes, in which `_interleaved` takes them.
    turns = sorted(range(len(kernel)), key=lambda k: spec.out_spec[2 + k])

    def piece(phases: list[Phase]) -> Atom:
        """Results of phases: first these, axis by axis as in `turns`, then a result's axes."""
        apart, taps = [phases[k].phases for k in turns], [q.taps for q in phases]
        if not all(taps):
            return flat.broadcast(_zero(sums), (*apart, *_by_axis(spec, n, o, steps)), ())
        windows = flat.add(
            windows_p, [x], ShapedArray(shape := (g, n, *steps, *taps, i), dtype), shape=shape,
            spec=None, groups=groups, strides=tuple(q.move for q in phases),
            starts=tuple(q.start + b for q, b in zip(phases, before, strict=True)),
            dilation=tuple(q.dilation for q in phases),
        )  # fmt: skip
        # Of a window are made `each` results: by features and phases, in the order of the result.
        last = spec.out_spec[1] > spec.out_spec[-1]
        each = (*apart, o // g) if last else (o // g, *apart)
        part = _taps(flat, w, phases, (g, o // g, i), turns, last)
        numbers = _numbers(len(kernel), spec.lhs_spec[1] < spec.lhs_spec[-1])
        of = convolution_of(eqn, ins, phases, (math.prod(each), *steps))
        made = product(windows, part, (g, n, *steps, math.prod(each)), numbers, of)
        rank, counts, feature = len(kernel), [], len(kernel) + 2
        if math.prod(apart) > 1:
            made = flat.reshape(made, (g, n, *steps, *each))
            counts = list(range(rank + 2, 2 * rank + 2) if last else range(rank + 3, 2 * rank + 3))
            feature = 2 * rank + 2 if last else rank + 2
        order = _by_axis(spec, [1], [0, feature], [[2 + k] for k in range(rank)])
        made = flat.transpose(made, [*counts, *itertools.chain(*order)])
        return flat.reshape(made, (*apart, *_by_axis(spec, n, o, steps)))

    joined = _joined(flat, piece, [axes[k] for k in turns], turns)
    return _interleaved(flat, joined, _by_axis(spec, 1, 1, all_phases), out.shape)


def _joined(flat: Any, piece: Callable, axes: list[list[Phase]], turns: list[int]) -> Atom:
    """The pieces of all phases, which their first axes count.

    axes: the phases of the axes that `turns` names
    """

    def along(chosen: tuple[Phase, ...]) -> Atom:
        at = len(chosen)
        if at == len(axes):
            return piece([chosen[turns.index(k)] for k in range(at)])
        rows = [along((*chosen, q)) for q in axes[at]]
        shape = list(rows[0].aval.shape)
        shape[at] = sum(q.phases for q in axes[at])
        if len(rows) == 1:
            return rows[0]
        aval = ShapedArray(tuple(shape), rows[0].aval.dtype)
        return flat.add(concatenate_p, rows, aval, dimension=at)

    return along(())


def _doubles(eqn: Eqn, ins: list[Atom], axes: list[list[Phase]], steps: list[int]) -> bool:
    """Whether a convolution's 2×2 phases, of windows of 2×2 that begin one further each, had better
    be multiplied by tiles, all at once."""
    p, out, order = eqn.params, eqn.outs[0].aval.shape, tuple(range(4))
    spec, groups = p["dimension_numbers"], p["feature_group_count"] * p["batch_group_count"]
    if len(axes) != 2 or p["exact"] or groups > 1 or list(out[2:]) != [2 * n for n in steps]:
        return False
    if tuple(spec.lhs_spec) != order or tuple(spec.out_spec) != order:
        return False
    for phases in axes:
        first = phases[0]
        wanted = [Phase(first.start + i, 1, i, 2, 1, PHASE_TAPS) for i in range(2)]
        if phases != wanted:
            return False
    features, channels = (ins[1].aval.shape[a] for a in spec.rhs_spec[:2])
    return phases_pay(out[0], (steps[0], steps[1]), channels, features)


def _doubled(
    flat: Any, x: Atom, w: Atom, starts: tuple[int, ...], of: Convolution, product: Callable
) -> Atom:
    """A convolution that `_doubles`: a batch of 2×2 products, whose results are interleaved."""
    n, i, o, (height, width) = of.images, of.channels, of.features, of.places
    shape = (1, n, 2, 2, height, width, 2, 2, i)
    windows = flat.add(
        windows_p, [x], ShapedArray(shape, x.aval.dtype), shape=shape, spec=None, groups=(1, 1),
        strides=(1, 1), starts=starts, dilation=(1, 1),
    )  # fmt: skip
    # Tap and phase alternate along each axis of the kernel.
    w = flat.transpose(flat.reshape(w, (o, i, 2, 2, 2, 2)), (3, 5, 0, 1, 2, 4))
    w = flat.reshape(w, (1, 2, 2, o, i, 2, 2))
    numbers = (((8, 6, 7), (4, 5, 6)), ((0, 2, 3), (0, 1, 2)))
    made = product(windows, w, (1, 2, 2, n, height, width, o), numbers, of)
    made = flat.transpose(made, (3, 6, 4, 1, 5, 2, 0))
    return flat.reshape(made, (n, o, 2 * height, 2 * width))


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
    flat: Any, x: Atom, spec: Sequence[int], axes: list[list[Phase]], steps: list[int]
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


def _taps(
    flat: Any,
    w: Atom,
    phases: Sequence[Phase],
    sizes: tuple[int, ...],
    turns: list[int],
    last: bool,
) -> Atom:
    """The elements of a kernel that phases meet: group, output, input, taps. Outputs are features
    and, in the order of `turns`, phases; the features last or first.

    sizes: of the groups, and the features of one
    """
    (g, o, i), rank = sizes, len(phases)
    shape, dtype = w.aval.shape, w.aval.dtype

    def cut(x: Atom, parts: list[tuple[int, int, int]]) -> Atom:
        """The elements range(*part) along each axis."""
        start, stop, step = zip(*parts, strict=True)
        made = tuple(len(range(*part)) for part in parts)
        if made == x.aval.shape:
            return x
        return flat.add(slice_p, [x], ShapedArray(made, dtype), start_indices=start,
                        limit_indices=stop, strides=step)  # fmt: skip

    whole = [(0, n, 1) for n in shape]
    alone = [(q.first, n, q.stride) if q.phases == 1 else (0, n, 1)
             for q, n in zip(phases, shape[2:], strict=True)]  # fmt: skip
    w = cut(w, whole[:2] + alone)
    if all(q.phases == 1 for q in phases):
        return flat.reshape(w, (g, o, i, *(q.taps for q in phases)))
    # Rows of as many elements as phases can have; the first elements of phases lie in the first.
    wide = [1 if q.phases == 1 else q.stride for q in phases]
    rows = [-(-n // step) for n, step in zip(w.aval.shape[2:], wide, strict=True)]
    config = [(0, k * step - n, 0)
              for k, step, n in zip(rows, wide, w.aval.shape[2:], strict=True)]  # fmt: skip
    if any(map(any, config)):
        aval = ShapedArray(
            (*shape[:2], *(n + c[1] for n, c in zip(w.aval.shape[2:], config, strict=True))), dtype
        )
        w = flat.add(
            pad_p, [w, _zero(dtype)], aval, padding_config=((0, 0, 0),) * 2 + tuple(config)
        )
    w = flat.reshape(w, (*shape[:2], *itertools.chain(*zip(rows, wide, strict=True))))
    firsts = [q.first + 1 if q.phases > 1 else 1 for q in phases]
    parts = [((0, q.taps, 1), (first - q.phases, first, 1))
             for q, first in zip(phases, firsts, strict=True)]  # fmt: skip
    w = cut(w, [*whole[:2], *itertools.chain(*parts)])
    w = flat.add(rev_p, [w], w.aval, dimensions=tuple(range(3, 3 + 2 * rank, 2)))
    w = flat.reshape(w, (g, o, i, *w.aval.shape[2:]))
    counts = [4 + 2 * k for k in turns]
    w = flat.transpose(
        w, [0, *([*counts, 1] if last else [1, *counts]), 2, *range(3, 3 + 2 * rank, 2)]
    )
    return flat.reshape(
        w, (g, o * math.prod(q.phases for q in phases), i, *(q.taps for q in phases))
    )


def _interleaved(flat: Any, joined: Atom, counts: list[int], shape: tuple[int, ...]) -> Atom:
    """Pieces that hold every count-th element along each axis, as one array of a shape.

    joined: the pieces, which its first axes count
    """
    if math.prod(counts) == 1:
        return flat.reshape(joined, shape)
    rank, dtype = len(shape), joined.aval.dtype
    part = joined.aval.shape[-rank:]
    apart = flat.reshape(joined, (*counts, *part))
    apart = flat.transpose(apart, [a for k in range(rank) for a in (rank + k, k)])
    whole = tuple(n * c for n, c in zip(part, counts, strict=True))
    y = flat.reshape(apart, whole)
    if whole == shape:
        return y
    return flat.add(slice_p, [y], ShapedArray(shape, dtype), start_indices=(0,) * rank,
                    limit_indices=shape, strides=None)  # fmt: skip
