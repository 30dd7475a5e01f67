"""Sorting: of several arrays by keys, and the k greatest. NaN counts as greater than all numbers.

The sorted arrays are the operands under a permutation, so tangents follow along that permutation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import canonical_axis, integer
from funcgrad.ops.base import batch_front, broadcast_p, full, move_axis, position_dtype, size_of
from funcgrad.ops.cumulative import widened
from funcgrad.ops.elementwise.arithmetic import neg
from funcgrad.ops.families import NOT_LINEAR
from funcgrad.ops.folds import is_away
from funcgrad.ops.indexing.gather import GatherDimensionNumbers, gather
from funcgrad.ops.shape import broadcasted_iota, rev_p

# Axes from this size on are sorted digit by digit where a stable order is asked for.
_BY_DIGITS = 256


def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """y[..., k, ...] = x[..., indices[..., k, ...], ...], for indices that are within bounds.

    >>> import numpy as np
    >>> take_along_axis(np.float32([[1, 2], [3, 4]]), np.int32([[1, 0], [0, 0]]), 1)
    Array([[2., 1.],
           [3., 3.]], dtype=float32)
    """
    shape = aval_of(indices).shape
    rank = len(shape)
    if not size_of(aval_of(x).shape):
        return full(shape, 0, aval_of(x).dtype)
    others = tuple(i for i in range(rank) if i != axis)
    vectors = broadcast_p.bind(indices, shape=(*shape, 1), broadcast_dimensions=tuple(range(rank)))
    numbers = GatherDimensionNumbers((), (axis,), (axis,), others, others)
    return gather(x, vectors, numbers, (1,) * rank, mode="promise_in_bounds")


# ---- sort


def _sort_abstract(*xs, dimension, is_stable, num_keys):
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"sort: operands must have one shape, got {list(xs)}")
    if not 0 <= dimension < xs[0].ndim:
        raise ShapeError(f"sort: dimension {dimension} is no axis of {xs[0]}")
    if not 1 <= num_keys <= len(xs):
        raise ShapeError(f"sort: num_keys must be from 1 to {len(xs)}, got {num_keys}")
    return list(xs)


def _sort_impl(xp, *xs, dimension, is_stable, num_keys):
    if len(xs) == 1:
        return [xp.sort(_with_one_nan(xp, widened(xs[0])), axis=dimension)]
    keys = [piece for key in xs[:num_keys] for piece in _digits(xp, key, dimension)]
    order = None
    for key in reversed(keys):
        if order is not None:
            key = xp.take_along_axis(key, order, axis=dimension)
        inner = xp.argsort(key, axis=dimension, kind="stable")
        order = inner if order is None else xp.take_along_axis(order, inner, axis=dimension)
    return [xp.take_along_axis(x, order, axis=dimension) for x in xs]


def _with_one_nan(xp: Any, x: Any) -> Any:
    """x with NaN of one sign for CuPy, which sorts the others first."""
    away = is_away(x) and x.dtype.kind == "f"
    return xp.where(x == x, x, np.nan) if away else x


def _key(xp: Any, x: Any) -> Any:
    """x with one NaN and one zero for CuPy, which may tell them apart."""
    away = is_away(x) and x.dtype.kind == "f"
    return xp.where(x == 0, 0, _with_one_nan(xp, x)) if away else x


def _digits(xp: Any, x: Any, dimension: int) -> list:
    """Keys that sort as x does, the first one first. Stable sorts of 16 bits take linear time."""
    x = _key(xp, widened(x))
    if x.shape[dimension] < _BY_DIGITS or x.dtype.kind not in "iuf" or x.dtype.itemsize != 4:
        return [x]
    rank = _rank(xp, x)
    return [(rank >> 16).astype(np.uint16), rank.astype(np.uint16)]


def _rank(xp: Any, x: Any) -> Any:
    """An array of 32 bits as uint32 that sort as its elements do: NaN last, -0.0 equal to 0.0."""
    if x.dtype.kind == "u":
        return x
    top = np.uint32(1 << 31)
    if x.dtype.kind == "i":
        return x.view(np.uint32) ^ top
    # Positive floats sort as their bits do, negative ones the other way round.
    bits = (x + np.float32(0)).view(np.uint32)
    rank = bits ^ xp.where(bits >= top, np.uint32(2**32 - 1), top)
    return xp.where(xp.isnan(x), np.uint32(2**32 - 1), rank)


def _sort_jvp(primals, tangents, *, dimension, is_stable, num_keys):
    shape = aval_of(primals[0]).shape
    places = broadcasted_iota(position_dtype(shape[dimension]), shape, dimension)
    *outs, order = sort_p.bind(
        *primals, places, dimension=dimension, is_stable=is_stable, num_keys=num_keys
    )
    return outs, [
        Zero(aval_of(o).tangent()) if type(g) is Zero else take_along_axis(g, order, dimension)
        for o, g in zip(outs, tangents, strict=True)
    ]


def _sort_batch(axis, args, dims, *, dimension, is_stable, num_keys):
    moved = [batch_front(x, d, axis.size) for x, d in zip(args, dims, strict=True)]
    outs = sort_p.bind(*moved, dimension=dimension + 1, is_stable=is_stable, num_keys=num_keys)
    return outs, [0] * len(outs)


def _sort_dims(*xs, dimension, is_stable, num_keys):
    names = dims_.letters(xs[0].ndim)
    names[dimension] += "!"
    each = ", ".join([" ".join(names)] * len(xs))
    return f"{each} -> {each}"


sort_p: Primitive = Primitive(
    name="sort",
    abstract=_sort_abstract,
    impl=_sort_impl,
    jvp=_sort_jvp,
    transpose=NOT_LINEAR,
    batch=_sort_batch,
    dims=_sort_dims,
    multiple=True,
)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sort an array along an axis, ascending; or several of one shape together, by the first.

    With `num_keys`, later keys decide among equal ones. NaN comes last; -0.0 equals 0.0; complex
    numbers go by real, then imaginary part. A sequence of arrays gives a tuple of arrays.

    >>> from funcgrad import lax
    >>> lax.sort(lax.rev(lax.iota("int32", 4), [0]))
    Array([0, 1, 2, 3], dtype=int32)
    """
    several = isinstance(operand, list | tuple)
    operands = list(operand) if several else [operand]
    if not operands:
        raise TypeError("sort: need at least one operand, got none")
    axis = canonical_axis("sort", dimension, aval_of(operands[0]).ndim)
    outs = sort_p.bind(
        *operands, dimension=axis, is_stable=bool(is_stable), num_keys=integer("num_keys", num_keys)
    )
    return tuple(outs) if several else outs[0]


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> Any:
    """Sort `keys` along an axis, and `values` in the same order.

    >>> from funcgrad import lax
    >>> x = lax.iota("int32", 3)
    >>> lax.sort_key_val(lax.neg(x), x)
    (Array([-2, -1,  0], dtype=int32), Array([2, 1, 0], dtype=int32))
    """
    return sort((keys, values), dimension, is_stable)


def argsort(
    operand: Any, dimension: int = -1, is_stable: bool = True, descending: bool = False
) -> Any:
    """The positions that sort an array along an axis; equal elements keep their order.

    They are int32, or int64 where that doesn't hold them.

    >>> import numpy as np
    >>> argsort(np.float32([2, 0, 1, 2]), descending=True)
    Array([0, 3, 2, 1], dtype=int32)
    """
    aval = aval_of(operand)
    axis = canonical_axis("argsort", dimension, aval.ndim)
    places = broadcasted_iota(position_dtype(aval.shape[axis]), aval.shape, axis)
    if not descending:
        return sort_key_val(operand, places, axis, is_stable)[1]
    # Sorted backwards twice, equal elements are in their order again.
    back = (axis,)
    operand, places = (rev_p.bind(v, dimensions=back) for v in (operand, places))
    return rev_p.bind(sort_key_val(operand, places, axis, is_stable)[1], dimensions=back)


# ---- top_k


def _top_abstract(x, *, k):
    if not x.ndim or not 0 <= k <= x.shape[-1]:
        raise ShapeError(f"top_k: k = {k} must be from 0 to the size of the last axis of {x}")
    if dtypes.is_complex(x.dtype):
        raise DTypeError(f"top_k: need real numbers, got {x}")
    shape = (*x.shape[:-1], k)
    places = position_dtype(x.shape[-1])
    return [x.update(shape=shape), x.update(shape=shape, dtype=places, weak_type=False)]


def _top_impl(xp, x, *, k):
    n = x.shape[-1]
    wide = widened(x)
    if wide.dtype.kind in "biuf" and wide.dtype.itemsize <= 4 and 0 < k < n < 2**32:
        wide = wide.astype(np.int32) if wide.dtype.itemsize < 4 else wide
        # Distinct numbers: who is greater, and among equal ones earlier, is greater.
        places = xp.arange(n, dtype=np.uint64)[::-1]
        both = (_rank(xp, wide).astype(np.uint64) << np.uint64(32)) | places
        both.partition(n - k, axis=-1)
        best = xp.sort(both[..., n - k :], axis=-1)[..., ::-1]
        order = n - 1 - (best & np.uint64(2**32 - 1)).astype(np.int64)
        return [xp.take_along_axis(x, order, axis=-1), order.astype(position_dtype(n))]
    # An ascending stable sort of the reversed axis, read from its end.
    backwards = xp.argsort(_key(xp, wide)[..., ::-1], axis=-1, kind="stable")
    order = x.shape[-1] - 1 - backwards[..., ::-1][..., :k]
    return [xp.take_along_axis(x, order, axis=-1), order.astype(position_dtype(n))]


def _top_jvp(primals, tangents, *, k):
    values, order = top_k_p.bind(*primals, k=k)
    g = take_along_axis(tangents[0], order, len(aval_of(order).shape) - 1)
    return [values, order], [g, Zero(aval_of(order).tangent())]


def _top_batch(axis, args, dims, *, k):
    return top_k_p.bind(move_axis(args[0], dims[0], 0), k=k), [0, 0]


def _top_dims(x, *, k):
    names = dims_.letters(x.ndim)
    out = " ".join([*names[:-1], "."])
    return f"{' '.join(names)}! -> {out}, {out}"


top_k_p: Primitive = Primitive(
    name="top_k",
    abstract=_top_abstract,
    impl=_top_impl,
    jvp=_top_jvp,
    transpose=NOT_LINEAR,
    batch=_top_batch,
    dims=_top_dims,
    multiple=True,
)


def top_k(operand: Any, k: int, *, axis: int = -1) -> list:
    """The k greatest elements along an axis, descending, and their positions.

    These are int32, or int64 where that doesn't hold them. Among equal elements the first comes
    first; NaN counts as greatest. Raises ShapeError where k exceeds the axis.

    >>> from funcgrad import lax
    >>> lax.top_k(lax.iota("float32", 5), 2)
    [Array([4., 3.], dtype=float32), Array([4, 3], dtype=int32)]
    """
    ndim = len(aval_of(operand).shape)
    axis = canonical_axis("top_k", axis, ndim) if ndim else -1
    rows = operand if axis == ndim - 1 else move_axis(operand, axis, ndim - 1)
    found = top_k_p.bind(rows, k=integer("k", k))
    return found if rows is operand else [move_axis(x, ndim - 1, axis) for x in found]


def approx_max_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list:
    """The k greatest elements along an axis, descending, and their positions: here exactly.

    The last three arguments say how much may be missed on other machines.

    >>> from funcgrad import lax
    >>> lax.approx_max_k(lax.iota("float32", 5), 2)
    [Array([4., 3.], dtype=float32), Array([4, 3], dtype=int32)]
    """
    return top_k(operand, k, axis=reduction_dimension)


def approx_min_k(
    operand: Any,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> list:
    """The k least elements along an axis, ascending, and their positions: as `approx_max_k`.

    >>> from funcgrad import lax
    >>> lax.approx_min_k(lax.iota("float32", 5), 2)
    [Array([0., 1.], dtype=float32), Array([0, 1], dtype=int32)]
    """
    least, positions = top_k(neg(operand), k, axis=reduction_dimension)
    return [neg(least), positions]
