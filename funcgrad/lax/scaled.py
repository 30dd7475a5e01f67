"""Products of narrow numbers, blocks of which share a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.contract import canonical_numbers, dot_general

_USUAL = {2: (((1,), (0,)), ((), ())), 3: (((2,), (1,)), ((0,), (0,)))}


def scaled_dot(
    lhs: Any,
    rhs: Any,
    *,
    lhs_scale: Any = None,
    rhs_scale: Any = None,
    dimension_numbers: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`dot_general` of lhs·lhs_scale and rhs·rhs_scale, where scales are of blocks.

    lhs_scale, rhs_scale: arrays of the operands' shapes, but for contracted axes, whose sizes
    divide the operands'; None: 1
    dimension_numbers: by default those of matrices, or of batches of such
    preferred_element_type: the result's dtype, bfloat16 by default; sums are formed in float32, or
    in a wider one
    Operands in float8 whose scales are of whole rows are multiplied as they are, and the sums by
    the scales; others are multiplied by theirs first.

    >>> from funcgrad import lax
    >>> x, scale = fnp.ones((1, 4)), fnp.array([[1.0, 10.0]])
    >>> lax.scaled_dot(x, x.T, lhs_scale=scale, preferred_element_type="float32")
    Array([[22.]], dtype=float32)
    """
    ndims = aval_of(lhs).ndim, aval_of(rhs).ndim
    if dimension_numbers is None:
        if ndims not in ((2, 2), (3, 3)):
            raise ArgumentError(
                "scaled_dot: dimension_numbers must be given for operands that aren't two matrices "
                f"or two batches of such, got {aval_of(lhs)} and {aval_of(rhs)}"
            )
        dimension_numbers = _USUAL[ndims[0]]
    numbers = canonical_numbers("scaled_dot", dimension_numbers, *ndims)
    preferred = dtypes.bfloat16 if preferred_element_type is None else preferred_element_type
    out = dtypes.canonical(preferred)
    sums = np.promote_types(np.float32, out) if out.itemsize >= 4 else np.dtype(np.float32)
    sides = [
        (fnp.asarray(x), None if scale is None else _checked(name, x, scale, contracted, sums))
        for name, x, scale, contracted in zip(
            ("lhs", "rhs"), (lhs, rhs), (lhs_scale, rhs_scale), numbers[0], strict=True
        )
    ]
    if all(_has_rows(*side, axes) for side, axes in zip(sides, numbers[0], strict=True)):
        (x, _), (y, _) = sides
        made = dot_general(x, y, numbers, preferred_element_type=sums)
        factors = [
            _beside(scale, i, numbers, made.ndim)
            for i, (_, scale) in enumerate(sides)
            if scale is not None
        ]
        if len(factors) == 2:  # the smaller one first: by the larger alone sums may overflow
            factors = [fnp.minimum(*factors), fnp.maximum(*factors)]
        for factor in factors:
            made = made * factor
        return made.astype(out)
    left, right = (x.astype(sums) if s is None else _scaled(x.astype(sums), s) for x, s in sides)
    return dot_general(left, right, numbers).astype(out)


def _has_rows(x: Any, scale: Any, contracted: Sequence[int]) -> bool:
    """Whether an operand is float8, and has no more than a scale for each row."""
    return x.dtype in dtypes.FLOAT8 and (
        scale is None or all(scale.shape[i] == 1 for i in contracted)
    )


def _beside(scale: Any, side: int, numbers: Any, ndim: int) -> Any:
    """Scales of an operand's rows, as a factor of the result."""
    contracted, batch = numbers[0][side], numbers[1][side]
    free = [i for i in range(scale.ndim) if i not in (*contracted, *batch)]
    scale = fnp.transpose(scale, (*batch, *free, *contracted))
    sizes, rest = scale.shape[: len(batch)], scale.shape[len(batch) : len(batch) + len(free)]
    ones = (1,) * (ndim - len(sizes) - len(rest))
    return scale.reshape((*sizes, *ones, *rest) if side else (*sizes, *rest, *ones))


def _checked(
    name: str, x: Any, scale: Any, contracted: Sequence[int], dtype: np.dtype
) -> Any:  # fmt: skip
    """Scales, whose shape fits an operand."""
    scale = fnp.asarray(scale, dtype)
    fits = scale.ndim == x.ndim and all(
        n == m if i not in contracted else m and n % m == 0
        for i, (n, m) in enumerate(zip(x.shape, scale.shape, strict=False))
    )
    if not fits:
        raise ShapeError(
            f"scaled_dot: {name}_scale must have the shape of {name} {aval_of(x)}, but sizes that "
            f"divide those of contracted axes {tuple(contracted)}; got {aval_of(scale)}"
        )
    return scale


def _scaled(x: Any, scale: Any) -> Any:
    """An operand times the scales of its blocks."""
    blocks = [k for n, m in zip(x.shape, scale.shape, strict=True) for k in (m, n // max(m, 1))]
    each = [k for m in scale.shape for k in (m, 1)]
    return (x.reshape(blocks) * scale.reshape(each)).reshape(x.shape)
