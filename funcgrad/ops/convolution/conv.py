"""Convolution of N spatial axes, with strides, padding, dilation of both sides, and groups.

It is evaluated as a matrix product: a strided view shows every window of the padded operand, and
windows × kernels are contracted (im2col). Both transposes are convolutions again: the operand's of
the dilated cotangent with the flipped kernel, the kernel's of the operand with the cotangent
(Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.sharding import NamedSharding, PartitionSpec
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShapeError
from funcgrad.ops.arguments import integer, integers, items_of
from funcgrad.ops.base import factor, is_linear, move_axis, size_of, zeros
from funcgrad.ops.contract import accumulator, bilinear_jvp, from_accumulator, product_dtype
from funcgrad.ops.convolution.padding import (
    dilated,
    padded,
    pads_of_operand_gradient,
    pads_of_window_gradient,
    padtype_to_pads,
    positions,
)
from funcgrad.ops.precision import is_highest, rounding
from funcgrad.ops.shape import reshape_p, rev_p
from funcgrad.ops.sharding import cut_as_said

# How many elements of windows are written out at a time.
WINDOW_ELEMENTS = 1 << 24
# The arrays of a convolution. Any two make the third, its gradient: by an equation of this kind,
# whose parameter `operands` says which two they are.
ARRAYS = ("images", "kernel", "result")


class ConvDimensionNumbers(NamedTuple):
    """The axes of a convolution: (batch, feature, spatial …) of operand and result, and
    (output feature, input feature, spatial …) of the kernel.

    >>> ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)).lhs_spec
    (0, 3, 1, 2)
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """The axes that strings such as ("NHWC", "HWIO", "NHWC") name; None is N C … and O I ….

    Operand and result name N and C, the kernel I and O; other letters are spatial axes, in the
    order of the kernel's.

    >>> from funcgrad import lax
    >>> lax.conv_dimension_numbers((1, 9, 9, 3), (2, 2, 3, 8), ("NHWC", "HWIO", "NHWC")).rhs_spec
    (3, 2, 0, 1)
    """
    lhs_shape = integers("conv_dimension_numbers", "lhs_shape", lhs_shape)
    rhs_shape = integers("conv_dimension_numbers", "rhs_shape", rhs_shape)
    rank = len(lhs_shape)
    if len(rhs_shape) != rank or rank < 2:
        raise ShapeError(
            f"conv_general_dilated: lhs and rhs must have the same rank of 2 or more, got shapes "
            f"{tuple(lhs_shape)} and {tuple(rhs_shape)}"
        )
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        axes = tuple(range(rank))
        return ConvDimensionNumbers(axes, axes, axes)
    specs = items_of("dimension_numbers", dimension_numbers)
    if len(specs) != 3 or not all(isinstance(s, str) for s in specs):
        raise TypeError(
            "conv_general_dilated: dimension_numbers must be three strings, such as ('NHWC', "
            f"'HWIO', 'NHWC'), or ConvDimensionNumbers; got {dimension_numbers!r}"
        )
    spatial = [c for c in specs[1] if c not in "OI"]
    found = []
    for what, spec, pair in zip(("lhs", "rhs", "out"), specs, ("NC", "OI", "NC"), strict=True):
        if sorted(spec) != sorted([*pair, *spatial]) or len(set(spec)) != rank:
            raise ShapeError(
                f"conv_general_dilated: the {what} dimension_numbers {spec!r} must name each of "
                f"{rank} axes once: {pair[0]}, {pair[1]} and the spatial axes of the kernel "
                f"{''.join(spatial)!r}"
            )
        found.append(tuple(spec.index(c) for c in (*pair, *spatial)))
    return ConvDimensionNumbers(*found)


# ---- rules


def _abstract(lhs, rhs, **params):
    numbers: ConvDimensionNumbers = params["dimension_numbers"]
    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    (n, c, *size), (o, i, *_) = _sizes(lhs, numbers.lhs_spec), _sizes(rhs, numbers.rhs_spec)

    def need(fits: bool, what: str) -> None:
        if not fits:
            raise ShapeError(
                f"conv_general_dilated: {what}; got lhs {lhs}, rhs {rhs}, feature_group_count "
                f"{groups}, batch_group_count {batch_groups} and {numbers}"
            )

    rank = len(size)
    for key in ("window_strides", "padding", "lhs_dilation", "rhs_dilation"):
        need(len(params[key]) == rank, f"{key} {params[key]} needs one entry a spatial axis")
        if key != "padding":
            need(all(v > 0 for v in params[key]), f"{key} {params[key]} must be positive")
    need(groups > 0 and batch_groups > 0, "group counts must be positive")
    need(groups == 1 or batch_groups == 1, "only one of the group counts can exceed 1")
    need(c == i * groups, f"lhs has {c} features, rhs takes {i} in each group")
    need(o % (groups * batch_groups) == 0, f"{o} output features don't divide into the groups")
    need(n % batch_groups == 0, f"a batch of {n} doesn't divide into the groups")
    spatial = _out_spatial(lhs.shape, rhs.shape, params)
    need(all(p >= 0 for p in spatial), f"padding {params['padding']} takes more than there is")
    shape = [0] * lhs.ndim
    for axis, extent in zip(numbers.out_spec, (n // batch_groups, o, *spatial), strict=True):
        shape[axis] = extent
    preferred = params["preferred_element_type"]
    dtype = product_dtype("conv_general_dilated", lhs, rhs, preferred)
    return ShapedArray(tuple(shape), dtype, lhs.weak_type and rhs.weak_type)


def _sizes(x: Any, spec: Sequence[int]) -> tuple[int, ...]:
    return tuple(x.shape[a] for a in spec)


def _out_spatial(lhs_shape: Any, rhs_shape: Any, params: dict) -> list[int]:
    """The number of positions along each spatial axis; negative where padding takes too much."""
    numbers = params["dimension_numbers"]
    out = []
    for a, b, s, (low, high), bd, wd in zip(
        numbers.lhs_spec[2:],
        numbers.rhs_spec[2:],
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        strict=True,
    ):
        size = dilated(lhs_shape[a], bd) + low + high
        out.append(positions(size, dilated(rhs_shape[b], wd), s) if size >= 0 else -1)
    return out


def _impl(xp, lhs, rhs, *, dimension_numbers, **params):
    numbers = dimension_numbers
    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    g = groups * batch_groups
    out_dtype = params["preferred_element_type"] or lhs.dtype
    compute = accumulator(lhs.dtype, rhs.dtype, out_dtype)
    spatial = _out_spatial(lhs.shape, rhs.shape, {"dimension_numbers": numbers, **params})
    # Operand: batch, spatial, feature. Kernel: spatial, input feature, output feature.
    x = xp.transpose(lhs, (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]))
    w = xp.transpose(rhs, (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]))
    *kernel, i, o = w.shape
    pads, holes = ((0, 0), *params["padding"], (0, 0)), (1, *params["lhs_dilation"], 1)
    x = xp.ascontiguousarray(padded(xp, x.astype(compute, copy=False), 0, pads, holes))
    w = w.astype(compute, copy=False).reshape((size_of(kernel) * i, g, o // g))
    w = xp.transpose(w, (1, 0, 2))
    n = lhs.shape[numbers.lhs_spec[0]] // batch_groups
    view = _windows(xp, x, (groups, batch_groups, n, i), kernel, spatial, params)
    row = size_of(spatial) * size_of(kernel) * i * g
    step = max(1, WINDOW_ELEMENTS // max(row, 1))
    parts = [_product(xp, view[:, k : k + step], w) for k in range(0, n, step)]
    if not parts:
        parts = [xp.zeros((g, 0, *spatial, o // g), compute)]
    out = parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=1)
    rank = len(spatial)
    out = xp.transpose(out, (*range(1, rank + 2), 0, rank + 2)).reshape((n, *spatial, o))
    order = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    out = xp.transpose(out, tuple(order.index(a) for a in range(rank + 2)))
    return from_accumulator(out, out_dtype)


def _windows(xp: Any, x: Any, sizes: tuple, kernel: Any, spatial: Any, params: dict) -> Any:
    """A view of x with axes group, batch, positions, window, feature."""
    groups, batch_groups, n, features = sizes
    if not x.size or not size_of(spatial):
        shape = (groups * batch_groups, n, *spatial, *kernel, features)
        return xp.zeros(shape, x.dtype)
    batch_stride, *inner, feature_stride = x.strides
    along = [s * t for s, t in zip(params["window_strides"], inner, strict=True)]
    within = [d * t for d, t in zip(params["rhs_dilation"], inner, strict=True)]
    group_stride = batch_stride * n if batch_groups > 1 else feature_stride * features
    return xp.lib.stride_tricks.as_strided(
        x,
        (groups * batch_groups, n, *spatial, *kernel, features),
        (group_stride, batch_stride, *along, *within, feature_stride),
    )


def _product(xp: Any, view: Any, w: Any) -> Any:
    """Windows × kernels in each group: group, batch, positions, feature."""
    g, depth, o = w.shape
    rank = (view.ndim - 3) // 2
    shape = view.shape[1 : rank + 2]
    return xp.matmul(view.reshape((g, size_of(shape), depth)), w).reshape((g, *shape, o))


def _transpose(ct, lhs, rhs, **params):
    if is_linear(lhs):
        factor("conv_general_dilated", rhs)
    if not aval_of(ct).size:
        # No window fits; a convolution of the gradient might then take off more than there is.
        return [zeros(a.aval) if is_linear(a) else None for a in (lhs, rhs)]
    return [
        _lhs_cotangent(ct, lhs.aval, rhs, **params) if is_linear(lhs) else None,
        _rhs_cotangent(ct, lhs, rhs.aval, **params) if is_linear(rhs) else None,
    ]


def _lhs_cotangent(ct, lhs, rhs, *, dimension_numbers, **params):
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    window = _sizes(aval_of(rhs), rhs_spec[2:])
    pads = _gradient_pads(pads_of_operand_gradient, ct, lhs, window, dimension_numbers, params)
    batch_groups = params["batch_group_count"]
    groups = params["feature_group_count"] * batch_groups
    if groups > 1:
        rhs = _regroup(rhs, rhs_spec[0], rhs_spec[1], groups)
    flipped = rev_p.bind(rhs, dimensions=tuple(rhs_spec[2:]))
    swapped = (rhs_spec[1], rhs_spec[0], *rhs_spec[2:])
    out = conv_general_dilated_p.bind(
        ct,
        flipped,
        window_strides=params["lhs_dilation"],
        padding=pads,
        lhs_dilation=params["window_strides"],
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=ConvDimensionNumbers(out_spec, swapped, lhs_spec),
        feature_group_count=groups,
        batch_group_count=1,
        preferred_element_type=_keep_dtype(ct, rhs, lhs),
        exact=params["exact"],
        operands=(third(params["operands"]), params["operands"][1]),
        **_rounding(params),
    )
    if batch_groups > 1:
        out = _regroup(out, lhs_spec[1], lhs_spec[0], batch_groups)
    return out


def _rhs_cotangent(ct, lhs, rhs, *, dimension_numbers, **params):
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    window = _sizes(rhs, rhs_spec[2:])
    pads = _gradient_pads(
        pads_of_window_gradient, ct, aval_of(lhs), window, dimension_numbers, params
    )

    def swapped(spec: Sequence[int]) -> tuple[int, ...]:
        return (spec[1], spec[0], *spec[2:])

    return conv_general_dilated_p.bind(
        lhs,
        ct,
        window_strides=params["rhs_dilation"],
        padding=pads,
        lhs_dilation=params["lhs_dilation"],
        rhs_dilation=params["window_strides"],
        dimension_numbers=ConvDimensionNumbers(
            swapped(lhs_spec), swapped(out_spec), swapped(rhs_spec)
        ),
        feature_group_count=params["batch_group_count"],
        batch_group_count=params["feature_group_count"],
        preferred_element_type=_keep_dtype(lhs, ct, rhs),
        exact=params["exact"],
        operands=(params["operands"][0], third(params["operands"])),
        **_rounding(params),
    )


def _rounding(params: dict[str, Any]) -> dict[str, Any]:
    """What a convolution's gradients have of its `precision`: see `ops.precision.rounding`."""
    return {key: params[key] for key in ("precision",) if key in params}


def third(operands: Sequence[str]) -> str:
    """Which of a convolution's arrays two others make.

    >>> third(("images", "kernel")), third(("images", "result"))
    ('result', 'kernel')
    """
    return next(x for x in ARRAYS if x not in operands)


def _gradient_pads(rule: Any, ct: Any, lhs: Any, window: Any, numbers: Any, params: dict) -> Any:
    return rule(
        _sizes(lhs, numbers.lhs_spec[2:]),
        window,
        params["window_strides"],
        _sizes(aval_of(ct), numbers.out_spec[2:]),
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
    )


def _keep_dtype(a: Any, b: Any, operand: ShapedArray) -> np.dtype | None:
    """The preferred_element_type under which a cotangent has its operand's dtype."""
    same = aval_of(a).dtype == aval_of(b).dtype == operand.dtype
    return None if same else operand.dtype


def _regroup(x: Any, source: int, destination: int, groups: int) -> Any:
    """x with its groups, the outer part of axis `source`, made the outer part of another axis."""
    shape = list(aval_of(x).shape)
    shape[source] //= groups
    split = (*shape[:source], groups, *shape[source:])
    x = move_axis(reshape_p.bind(x, new_sizes=split), source, destination)
    shape[destination] *= groups
    return reshape_p.bind(x, new_sizes=tuple(shape))


def _fold(x: Any, dim: int, axis: int, groups: int = 1) -> Any:
    """x with its batch axis `dim` put into `axis` (of x without it), inside of its groups."""
    x = move_axis(x, dim, 0)
    size, *shape = aval_of(x).shape
    split = (size, *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    x = move_axis(reshape_p.bind(x, new_sizes=split), 0, axis + 1)
    shape[axis] *= size
    return reshape_p.bind(x, new_sizes=tuple(shape))


def _unfold(x: Any, axis: int, size: int, groups: int = 1) -> Any:
    """What `_fold` put together, taken apart: the batch axis comes first."""
    shape = list(aval_of(x).shape)
    shape[axis] //= size
    split = (*shape[:axis], groups, size, shape[axis] // groups, *shape[axis + 1 :])
    x = move_axis(reshape_p.bind(x, new_sizes=split), axis + 1, 0)
    return reshape_p.bind(x, new_sizes=(size, *shape))


def _batch(axis, args, dims, **params):
    (lhs, rhs), (ld, rd) = args, dims
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    batch_groups = params["batch_group_count"]
    groups = params["feature_group_count"] * batch_groups
    out_axis, out_groups = out_spec[1], 1
    if ld is not None and rd is not None:
        # Each lane becomes a group, outside of the groups there are.
        by_batch = batch_groups > 1
        lhs = _fold(lhs, ld, lhs_spec[0] if by_batch else lhs_spec[1])
        rhs = _fold(rhs, rd, rhs_spec[0])
        key = "batch_group_count" if by_batch else "feature_group_count"
        params[key] *= axis.size
    elif ld is not None:
        lhs = _fold(lhs, ld, lhs_spec[0], batch_groups)
        out_axis = out_spec[0]
    else:
        rhs = _fold(rhs, rd, rhs_spec[0], groups)
        out_groups = groups
    out = conv_general_dilated_p.bind(lhs, rhs, **params)
    return _unfold(out, out_axis, axis.size, out_groups), 0


def _dims(lhs, rhs, *, dimension_numbers, **params):
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    left, right, out = ["."] * lhs.ndim, ["."] * rhs.ndim, ["."] * lhs.ndim
    for k, (a, b) in enumerate(zip(lhs_spec[2:], rhs_spec[2:], strict=True)):
        left[a], right[b] = f"s{k}!", f"k{k}!"
    if params["batch_group_count"] == 1:
        left[lhs_spec[0]] = out[out_spec[0]] = "n"
    if params["feature_group_count"] == 1:
        left[lhs_spec[1]] = right[rhs_spec[1]] = "c"
        if params["batch_group_count"] == 1:
            right[rhs_spec[0]] = out[out_spec[1]] = "o"
    return f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}"


conv_general_dilated_p: Primitive = Primitive(
    name="conv_general_dilated",
    abstract=_abstract,
    impl=_impl,
    jvp=bilinear_jvp(lambda: conv_general_dilated_p),
    transpose=_transpose,
    batch=_batch,
    dims=_dims,
    contraction=True,
)

# ---- public functions


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> Any:
    """Slide the kernel `rhs` over `lhs` by `window_strides`; products are summed at each position.

    `dimension_numbers` names the axes (see `conv_dimension_numbers`); `padding` is "VALID",
    "SAME", "SAME_LOWER" or pairs (low, high), which may be negative. `lhs_dilation` puts holes
    between the operand's elements, `rhs_dilation` between the kernel's. `feature_group_count`
    cuts the features, `batch_group_count` the batch, into groups that meet their own part of the
    output features. The kernel isn't flipped. Compiled code may form sums of fewer
    products, which are as exact (see `lax.Precision`), unless `precision` is "highest". It leaves
    out products with holes of `lhs_dilation`, and with padding where images are of one place or
    most of the kernel meets nothing else, so what isn't finite in the kernel may not reach
    results there that it reaches without `jit`. `out_sharding` is how the result is to be cut over
    a mesh. Raises ShapeError where sizes don't fit, DTypeError
    where dtypes differ, ValueError for an unknown precision.

    >>> from funcgrad import lax
    >>> image, kernel = lax.full((1, 1, 3, 3), 1.0), lax.full((1, 1, 2, 2), 1.0)
    >>> lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    Array([[[[4., 4., 2.],
             [4., 4., 2.],
             [2., 2., 1.]]]], dtype=float32, weak_type=True)
    """
    a, b = aval_of(lhs), aval_of(rhs)
    numbers = conv_dimension_numbers(a.shape, b.shape, dimension_numbers)
    strides, holes, dilation = _steps(a, window_strides, lhs_dilation, rhs_dilation)
    if isinstance(padding, str) and any(d != 1 for d in holes):
        raise ValueError(
            f"{_NAME}: padding {padding!r} is not defined with lhs_dilation {holes}; give "
            "pairs (low, high), or use conv_transpose"
        )
    kernel = _sizes(b, numbers.rhs_spec[2:])
    reach = [dilated(k, d) for k, d in zip(kernel, dilation, strict=True)]
    preferred = preferred_element_type
    out = conv_general_dilated_p.bind(
        lhs,
        rhs,
        window_strides=strides,
        padding=padtype_to_pads(_sizes(a, numbers.lhs_spec[2:]), reach, strides, padding),
        lhs_dilation=holes,
        rhs_dilation=dilation,
        dimension_numbers=numbers,
        feature_group_count=integer("feature_group_count", feature_group_count),
        batch_group_count=integer("batch_group_count", batch_group_count),
        preferred_element_type=None if preferred is None else dtypes.canonical(preferred),
        exact=is_highest(_NAME, precision),
        operands=ARRAYS[:2],
        **rounding(_NAME, precision),
    )
    return cut_as_said(out, out_sharding)


_NAME = "conv_general_dilated"


def _steps(
    image: ShapedArray, strides: Sequence[int], holes: Sequence[int] | None,
    dilation: Sequence[int] | None,
) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    """Strides of windows, and how far apart elements of images and of kernels are, along each axis
    of an image."""
    ones = (1,) * (image.ndim - 2)
    found = {
        "window_strides": integers(_NAME, "window_strides", strides),
        "lhs_dilation": integers(_NAME, "lhs_dilation", ones if holes is None else holes),
        "rhs_dilation": integers(_NAME, "rhs_dilation", ones if dilation is None else dilation),
    }
    for key in ("window_strides", "rhs_dilation"):
        if len(found[key]) != len(ones):
            raise ShapeError(
                f"{_NAME}: {key} {found[key]} needs one entry for each spatial axis of {image}"
            )
    return tuple(found.values())
