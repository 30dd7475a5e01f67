"""Primitives of programs on their way to loops, which no transformation meets.

They are the backends' own, and known by their names where the modules that define them are loaded
late; of all other ops tables have the primitives themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.views import Place
from funcgrad.ops.contract import dot_general_p

_NONE = NoRule("it is made when a program is lowered, after all transformations")


class Lowered(Primitive):
    """A primitive without rules for transformations."""


def lowered(
    name: str, abstract: Callable[..., Any], impl: Callable[..., Any], **more: Any
) -> Primitive:
    """A primitive without rules for transformations.

    >>> lowered("same", lambda x: x, lambda xp, x: x).name
    'same'
    """
    return Lowered(
        name=name, abstract=abstract, impl=impl, jvp=_NONE, transpose=_NONE, batch=_NONE,
        dims=_NONE, **more,
    )  # fmt: skip


def key_of(prim: Primitive) -> Primitive | str:
    """What stands for an op in tables: itself, or the name of one that is `lowered`, or attention,
    whose module is loaded late, too."""
    return prim.name if type(prim) is Lowered or prim.strided else prim


# ---- products

# Operands that a matrix product reads as they are, and in which type it sums their products; the
# sums of int8 are exact up to so many.
NARROW_SUMS = {
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.float32),
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.int8): np.dtype(np.int32),
}


def _product_impl(xp, lhs, rhs, *, dimension_numbers, permutation, pairs, rounded, **params):
    wide = None if rounded else NARROW_SUMS.get(lhs.dtype)
    if pairs:
        kind = dtypes.to_complex(lhs.dtype)
        lhs, rhs = (xp.ascontiguousarray(x).view(kind)[..., 0] for x in (lhs, rhs))
    product = dot_general_p.impl(
        xp, lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=wide
    )
    if pairs:
        product = xp.ascontiguousarray(product[..., None]).view(dtypes.real_part(kind))
    return xp.transpose(product, permutation)


def _product_abstract(lhs, rhs, *, dimension_numbers, permutation, pairs, rounded, **params):
    wide = None if rounded else NARROW_SUMS.get(lhs.dtype)
    if pairs:
        lhs, rhs = (x.update(shape=x.shape[:-1]) for x in (lhs, rhs))
    out = dot_general_p.abstract(
        lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=wide
    )
    shape = (*out.shape, 2) if pairs else out.shape
    return out.update(shape=tuple(shape[i] for i in permutation))


# A matrix product of float32, float64, or operands of `NARROW_SUMS` into the type of their sums,
# and a permutation of its axes. gathers: whether it reads operands in place whose rows or columns
# don't lie at equal distances. exact: whether all products are to be formed, none by tiles. pairs:
# whether the last axes, which dimension_numbers doesn't count, are pairs for complex numbers.
# convolution: the `program.Convolution` that it is, or None. windows: whether lhs has its windows,
# as of `windows_p`. rounded: whether sums of bfloat16 are rounded to it. tf32, if it is there:
# whether operands may be rounded to TensorFloat-32.
product_p = lowered("product", _product_abstract, _product_impl)


# ---- windows


def _windows_abstract(x: ShapedArray, *, shape: tuple[int, ...], **params: Any) -> ShapedArray:
    return x.update(shape=shape)


def _windows_impl(
    xp: Any, x: Any, *, shape: tuple[int, ...], spec: Any, groups: Any, **params: Any
) -> Any:
    raise NotImplementedError("windows are always lowered to loops")


# Axes: group, batch, positions, window, feature of the group. `groups` are (of features, of batch).
patches_p = lowered("patches", _windows_abstract, _windows_impl)


def _windows_view(x, *, shape, spec, groups, strides, starts, dilation):
    rank = len(strides)
    phases = len(shape) - 3 - 2 * rank
    features, batches = groups
    inside = []
    for i, (start, move, step) in enumerate(zip(starts, strides, dilation, strict=True)):
        terms = (move, 2 + phases + i), (step, 2 + phases + rank + i)
        inside.append(Place(start, (*terms, (1, 2 + i)) if phases else terms))
    batch = Place(0, ((1, 1), *((shape[1], 0),) * (batches > 1)))
    feature = Place(0, ((1, len(shape) - 1), *((shape[-1], 0),) * (features > 1)))
    return [batch, feature, *inside]


# Axes: group, batch, positions, window, feature of the group, of an operand with the axes batch,
# feature, spatial. Window k of position p begins at starts + p·strides + k·dilation, inside. If it
# is so for the first of several phases, axes of these follow the batch: each begins one further.
windows_p = lowered("windows", _windows_abstract, _windows_impl, view=_windows_view)
