"""dot_general: sums of products over any axes of two arrays, beside batch axes.

Every matrix product, `einsum` and `tensordot` is one such op. It is evaluated as a (batched) matrix
product: axes are brought into the order batch, free, contracted, and merged where that is free.
Small floats are multiplied and accumulated in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import canonical_axes
from funcgrad.ops.base import factor, is_linear, size_of, transpose_p
from funcgrad.ops.families import add
from funcgrad.ops.precision import rounding
from funcgrad.ops.sharding import cut_as_said

# ---- types


def product_dtype(name: str, lhs: ShapedArray, rhs: ShapedArray, preferred: Any) -> np.dtype:
    """The dtype of a sum of products, or an error naming the op and both operands."""
    if preferred is None:
        if lhs.dtype != rhs.dtype:
            raise DTypeError(
                f"{name}: operands must have one dtype, got lhs {lhs} and rhs {rhs}; convert one "
                "with .astype(...), or say preferred_element_type="
            )
        return lhs.dtype
    kinds = {_kind(lhs.dtype), _kind(rhs.dtype)}
    allowed = {"complex"} if "complex" in kinds else {"float"}
    if kinds <= {"integer", "bool"}:
        allowed = {"integer", "float"} | kinds
    if _kind(preferred) not in allowed:
        raise DTypeError(
            f"{name}: preferred_element_type {preferred} can't hold products of lhs {lhs} and "
            f"rhs {rhs}"
        )
    return preferred


def _kind(dtype: np.dtype) -> str:
    if dtype == dtypes.BOOL:
        return "bool"
    if dtypes.is_complex(dtype):
        return "complex"
    return "float" if dtypes.is_float(dtype) else "integer"


def accumulator(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> np.dtype:
    """The dtype in which products of two dtypes are summed for a result of a third.

    Integers of up to two bytes go through float64, which holds their sums exactly and is far
    faster in a matrix product.
    """
    if lhs == rhs == out and (lhs.itemsize >= 4 or lhs == dtypes.BOOL):
        return out
    wide = [d for d in (lhs, rhs, out) if d.itemsize >= 4]
    if all(dtypes.is_integer(d) or d == dtypes.BOOL for d in (lhs, rhs)):
        small = max(lhs.itemsize, rhs.itemsize) <= 2
        return np.dtype(np.float64) if small else np.result_type(lhs, rhs, out)
    return np.result_type(np.float32, *wide)


def from_accumulator(x: Any, dtype: np.dtype) -> Any:
    """Sums of products in the result's dtype; integers wrap around."""
    if x.dtype == dtype:
        return x
    if dtypes.is_integer(dtype):
        return x.astype(np.int64).astype(dtype)
    return x.astype(dtype)


# ---- rules


def _free(ndim: int, *used: Sequence[int]) -> list[int]:
    taken = {i for axes in used for i in axes}
    return [i for i in range(ndim) if i not in taken]


def _abstract(lhs, rhs, *, dimension_numbers, preferred_element_type, precision=None):
    (lc, rc), (lb, rb) = dimension_numbers
    for side, x, contract, batch in (("lhs", lhs, lc, lb), ("rhs", rhs, rc, rb)):
        axes = (*contract, *batch)
        if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
            raise ShapeError(
                f"dot_general: contracting axes {contract} and batch axes {batch} are not distinct "
                f"axes of {side} {x}"
            )
    for what, left, right in (("contracting", lc, rc), ("batch", lb, rb)):
        if [lhs.shape[i] for i in left] != [rhs.shape[i] for i in right]:
            raise ShapeError(
                f"dot_general: {what} axes {left} of lhs {lhs} and {right} of rhs {rhs} must have "
                f"the same sizes"
            )
    shape = [lhs.shape[i] for i in lb]
    shape += [lhs.shape[i] for i in _free(lhs.ndim, lc, lb)]
    shape += [rhs.shape[i] for i in _free(rhs.ndim, rc, rb)]
    dtype = product_dtype("dot_general", lhs, rhs, preferred_element_type)
    return ShapedArray(tuple(shape), dtype, lhs.weak_type and rhs.weak_type)


class _Order(NamedTuple):
    """How a product's operands are brought into the order of a matrix product: batch, free and
    contracted axes on the left, batch, contracted and free ones on the right; None: they are in it.
    """

    left: tuple[int, ...] | None
    right: tuple[int, ...] | None
    n_batch: int
    n_contracted: int


@lru_cache(maxsize=4096)
def _order(l_ndim: int, r_ndim: int, dimension_numbers: Any) -> _Order:
    (lc, rc), (lb, rb) = dimension_numbers
    left, right = (*lb, *_free(l_ndim, lc, lb), *lc), (*rb, *rc, *_free(r_ndim, rc, rb))
    return _Order(_moved(left), _moved(right), len(lb), len(lc))


def _moved(axes: Sequence[int]) -> tuple[int, ...] | None:
    """A permutation of axes, None where it is none."""
    return None if tuple(axes) == tuple(range(len(axes))) else tuple(axes)


def _impl(xp, lhs, rhs, *, dimension_numbers, preferred_element_type, precision=None):
    order = _order(lhs.ndim, rhs.ndim, dimension_numbers)
    out_dtype = preferred_element_type or lhs.dtype
    compute = accumulator(lhs.dtype, rhs.dtype, out_dtype)
    left, right = lhs.astype(compute, copy=False), rhs.astype(compute, copy=False)
    if order.left is not None:
        left = left.transpose(order.left)
    if order.right is not None:
        right = right.transpose(order.right)
    nb, nc = order.n_batch, order.n_contracted
    if nc == 1 and left.ndim == right.ndim == nb + 2:
        return from_accumulator(xp.matmul(left, right), out_dtype)
    batch, rows, columns = left.shape[:nb], left.shape[nb : left.ndim - nc], right.shape[nb + nc :]
    k = size_of(right.shape[nb : nb + nc])
    left, right = left.reshape((*batch, size_of(rows), k)), right.reshape(
        (*batch, k, size_of(columns)))  # fmt: skip
    return from_accumulator(xp.matmul(left, right), out_dtype).reshape((*batch, *rows, *columns))


def bilinear_jvp(prim: Callable[[], Primitive]) -> Callable:
    """The jvp of an op that is linear in each of its two operands: the product rule."""

    def rule(primals, tangents, **params):
        (lhs, rhs), (g_lhs, g_rhs) = primals, tangents
        out = prim().bind(lhs, rhs, **params)
        terms = []
        if type(g_lhs) is not Zero:
            terms.append(prim().bind(g_lhs, rhs, **params))
        if type(g_rhs) is not Zero:
            terms.append(prim().bind(lhs, g_rhs, **params))
        if not terms:
            return out, Zero(aval_of(out).tangent())
        return out, terms[0] if len(terms) == 1 else add.bind(*terms)

    return rule


def _transpose(ct, lhs, rhs, *, dimension_numbers, preferred_element_type, **precision):
    if is_linear(lhs):
        factor("dot_general", rhs)
    ndims = aval_of(lhs).ndim, aval_of(rhs).ndim
    ct_lhs = ct_rhs = None
    if is_linear(lhs):
        ct_lhs = _operand_ct(ct, rhs, lhs.aval, precision, *_ct_axes(0, *ndims, dimension_numbers))
    if is_linear(rhs):
        ct_rhs = _operand_ct(ct, lhs, rhs.aval, precision, *_ct_axes(1, *ndims, dimension_numbers))
    return [ct_lhs, ct_rhs]


@lru_cache(maxsize=4096)
def _ct_axes(side: int, l_ndim: int, r_ndim: int, dimension_numbers: Any) -> tuple[Any, Any]:
    """The cotangent of operand `side` is that of the result times the other operand, over the
    other's free axes: that product's dimension numbers, and how its axes are permuted then."""
    (lc, rc), (lb, rb) = dimension_numbers
    l_free, r_free = _free(l_ndim, lc, lb), _free(r_ndim, rc, rb)
    nb, nl = len(lb), len(l_free)
    ct_batch, ct_left = tuple(range(nb)), tuple(range(nb, nb + nl))
    ct_right = tuple(range(nb + nl, nb + nl + len(r_free)))
    if side == 0:
        ct_contract, other_free, other_contract, other_batch = ct_right, r_free, rc, rb
        own = (*lb, *l_free), lc
    else:
        ct_contract, other_free, other_contract, other_batch = ct_left, l_free, lc, lb
        own = (*rb, *r_free), rc
    # The product's last axes are the contracted ones in the other operand's order.
    by_other = sorted(range(len(other_contract)), key=lambda i: other_contract[i])
    order = (*own[0], *(own[1][i] for i in by_other))
    numbers = ((ct_contract, tuple(other_free)), (ct_batch, tuple(other_batch)))
    return numbers, _moved([order.index(i) for i in range(len(order))])


def _operand_ct(ct, other, aval, precision, dimension_numbers, permutation):
    """ct · other over the other operand's free axes, with axes in the order of the operand."""
    same = aval_of(ct).dtype == aval_of(other).dtype == aval.dtype
    out = dot_general_p.bind(
        ct,
        other,
        dimension_numbers=dimension_numbers,
        preferred_element_type=None if same else aval.dtype,
        **precision,
    )
    return out if permutation is None else transpose_p.bind(out, permutation=permutation)


def _batch(axis, args, dims, *, dimension_numbers, preferred_element_type, **precision):
    (lc, rc), (lb, rb) = dimension_numbers
    ld, rd = dims

    def shift(axes: Sequence[int], dim: int | None) -> tuple[int, ...]:
        return tuple(a if dim is None or a < dim else a + 1 for a in axes)

    lc, lb, rc, rb = shift(lc, ld), shift(lb, ld), shift(rc, rd), shift(rb, rd)
    if ld is not None and rd is not None:
        lb, rb, out_dim = (ld, *lb), (rd, *rb), 0
    elif ld is not None:
        out_dim = len(lb) + _free(aval_of(args[0]).ndim, lc, lb).index(ld)
    else:
        l_free = _free(aval_of(args[0]).ndim, lc, lb)
        out_dim = len(lb) + len(l_free) + _free(aval_of(args[1]).ndim, rc, rb).index(rd)
    out = dot_general_p.bind(
        *args,
        dimension_numbers=((lc, rc), (lb, rb)),
        preferred_element_type=preferred_element_type,
        **precision,
    )
    return out, out_dim


def _dims(lhs, rhs, *, dimension_numbers, preferred_element_type, precision=None):
    (lc, rc), (lb, rb) = dimension_numbers
    left = dims_.letters(lhs.ndim)
    right = dims_.letters(rhs.ndim, start=lhs.ndim)
    for i, j in zip((*lc, *lb), (*rc, *rb), strict=True):
        right[j] = left[i]
    out = [left[i] for i in lb]
    out += [left[i] for i in _free(lhs.ndim, lc, lb)]
    out += [right[i] for i in _free(rhs.ndim, rc, rb)]
    return f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}"


dot_general_p: Primitive = Primitive(
    name="dot_general",
    abstract=_abstract,
    impl=_impl,
    jvp=bilinear_jvp(lambda: dot_general_p),
    transpose=_transpose,
    batch=_batch,
    dims=_dims,
    contraction=True,
    passes=2,
)


def canonical_numbers(name: str, dimension_numbers: Any, l_ndim: int, r_ndim: int) -> Any:
    """Dimension numbers as tuples of axes from 0 on, or an error that names the function.

    >>> canonical_numbers("dot_general", (([-1], [0]), ([], [])), 2, 2)
    (((1,), (0,)), ((), ()))
    """
    try:
        (lc, rc), (lb, rb) = dimension_numbers
    except (TypeError, ValueError) as e:
        raise TypeError(
            f"{name}: dimension_numbers must be ((lhs contracting, rhs contracting), "
            f"(lhs batch, rhs batch)), got {dimension_numbers!r}"
        ) from e
    for what, left, right in (("contracting", lc, rc), ("batch", lb, rb)):
        if len(left) != len(right):
            raise ShapeError(
                f"{name}: lhs has {len(left)} {what} axes {tuple(left)}, rhs has "
                f"{len(right)} {tuple(right)}: they go in pairs"
            )
    return (
        (canonical_axes(name, lc, l_ndim), canonical_axes(name, rc, r_ndim)),
        (canonical_axes(name, lb, l_ndim), canonical_axes(name, rb, r_ndim)),
    )


# ---- public functions


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Sum of products over contracting axes, for each index of the batch axes.

    `dimension_numbers` is ((lhs contracting, rhs contracting), (lhs batch, rhs batch)); the
    result's axes are the batch axes, then the free axes of lhs, then those of rhs. With
    `preferred_element_type` sums are formed and given in that dtype; `precision` is a
    `lax.Precision`: "tensorfloat32" is quicker on a GPU. `out_sharding` is how the result is to be
    cut over a mesh.
    Raises ShapeError where paired axes differ in size, DTypeError where the operands differ in
    dtype, ValueError for an unknown precision.

    >>> from funcgrad import lax
    >>> a, b = lax.reshape(lax.iota("int32", 6), (2, 3)), lax.iota("int32", 3)
    >>> lax.dot_general(a, b, (([1], [0]), ([], [])))
    Array([ 5, 14], dtype=int32)
    """
    ndims = aval_of(lhs).ndim, aval_of(rhs).ndim
    numbers = canonical_numbers("dot_general", dimension_numbers, *ndims)
    preferred = preferred_element_type
    preferred = None if preferred is None else dtypes.canonical(preferred)
    out = dot_general_p.bind(
        lhs, rhs, dimension_numbers=numbers, preferred_element_type=preferred,
        **rounding("dot_general", precision),
    )  # fmt: skip
    return cut_as_said(out, out_sharding)


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Vector and matrix products: the last axis of lhs with the first of rhs, of rank 1 or 2 each.

    With `dimension_numbers` it is `dot_general`, whose options it has. Raises ShapeError for other
    ranks or sizes that differ.

    >>> from funcgrad import lax
    >>> lax.dot(lax.iota("float32", 3), lax.iota("float32", 3))
    Array(5., dtype=float32)
    """
    if dimension_numbers is None:
        a, b = aval_of(lhs), aval_of(rhs)
        if a.ndim not in (1, 2) or b.ndim not in (1, 2) or a.shape[-1] != b.shape[0]:
            raise ShapeError(
                f"dot: need vectors or matrices, the last axis of lhs as long as the first of rhs; "
                f"got lhs {a} and rhs {b}"
            )
        dimension_numbers = (((a.ndim - 1,), (0,)), ((), ()))
    return dot_general(
        lhs,
        rhs,
        dimension_numbers,
        precision,
        preferred_element_type,
        out_sharding=out_sharding,
    )


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Matrix products over the last two axes of arrays whose leading axes agree.

    Raises ShapeError for ranks below 2 or leading axes that differ.

    >>> from funcgrad import lax
    >>> a = lax.reshape(lax.iota("float32", 8), (2, 2, 2))
    >>> lax.batch_matmul(a, a)
    Array([[[ 2.,  3.],
            [ 6., 11.]],
           [[46., 55.],
            [66., 79.]]], dtype=float32)
    """
    a, b = aval_of(lhs), aval_of(rhs)
    if a.ndim < 2 or a.ndim != b.ndim:
        raise ShapeError(f"batch_matmul: need operands of one rank of 2 or more, got {a} and {b}")
    batch = tuple(range(a.ndim - 2))
    return dot_general(lhs, rhs, (((a.ndim - 1,), (b.ndim - 2,)), (batch, batch)), precision)
