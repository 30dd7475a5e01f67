"""Convolutions as matrix products: each window of the operand becomes a row.

The windows are an op of elements of its own, `patches`, so that padding, strides and holes are
index arithmetic; the rest is transposes and one product, batched over groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.backends.builder import add_indices, scale_index
from funcgrad.backends.loops import Const, Index, Operand
from funcgrad.backends.lower_shape import inside_or
from funcgrad.backends.pull import Indices, Pull
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn
from funcgrad.core.primitive import NoRule, Primitive

_LOWERED = NoRule("it is made when a program is lowered, after all transformations")


def _abstract(x: ShapedArray, *, shape: tuple[int, ...], **params: Any) -> ShapedArray:
    return x.update(shape=shape)


def _impl(xp: Any, x: Any, *, shape: tuple[int, ...], spec: Any, groups: Any, **params: Any) -> Any:
    raise NotImplementedError("patches are always lowered to loops")


# Axes: group, batch, positions, window, feature of the group. `groups` are (of features, of batch).
patches_p = Primitive(
    name="patches",
    abstract=_abstract,
    impl=_impl,
    jvp=_LOWERED,
    transpose=_LOWERED,
    batch=_LOWERED,
    dims=_LOWERED,
)


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
