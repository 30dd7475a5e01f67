"""Products that sum over axes: matmul, dot, tensordot and their kin, all by `lax.dot_general`.

Operands promote to one dtype. `preferred_element_type` is the dtype in which sums are formed and
given; `precision` has no effect, since products are always exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    broadcast_shapes,
    canonical_axes,
    canonical_axis,
    dtype_or,
    integer,
    no_out,
    promote,
)
from funcgrad.numpy.creation.diagonals import diagonal
from funcgrad.numpy.elementwise.arithmetic import multiply, subtract
from funcgrad.numpy.elementwise.functions import conjugate
from funcgrad.numpy.reductions.reductions import sum as sum_over
from funcgrad.ops.base import full, move_axis, transpose_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.precision import rounding
from funcgrad.ops.shape import concatenate, expand_dims, reshape, squeeze
from funcgrad.ops.sharding import cut_as_said
from funcgrad.transforms.recorded import recorded

_Axes = Sequence[int]
_MATRICES = ((1,), (0,)), ((), ())


def _contract(
    a: Any, b: Any, contracting: tuple[_Axes, _Axes], batch: tuple[_Axes, _Axes], dtype: Any,
    precision: Any,
) -> Any:  # fmt: skip
    preferred = None if dtype is None else dtype_or(dtype, a.dtype)
    return dot_general_p.bind(
        a,
        b,
        dimension_numbers=(tuple(map(tuple, contracting)), tuple(map(tuple, batch))),
        preferred_element_type=preferred,
        **rounding("matmul", precision),
    )


# ---- matrix products


@recorded
def matmul(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The matrix product over the last two axes; leading axes broadcast. The operator @.

    Vectors are a row on the left and a column on the right, and that axis is not in the result.
    `out_sharding` is how the result is to be cut over a mesh. Raises ShapeError for scalars and
    where the contracted axes differ in size.

    >>> fnp.matmul(fnp.array([[1, 2], [3, 4]]), fnp.array([1, 1]))
    Array([3, 7], dtype=int32)
    """
    a, b = promote("matmul", a, b)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"matmul: need arrays of one or more axes, got a {a.aval} and b {b.aval}; multiply "
            "by scalars with *"
        )
    if a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]:
        preferred = preferred_element_type
        preferred = None if preferred is None else dtype_or(preferred, a.dtype)
        out = dot_general_p.bind(
            a, b, dimension_numbers=_MATRICES, preferred_element_type=preferred,
            **rounding("matmul", precision),
        )  # fmt: skip
        return cut_as_said(out, out_sharding)
    row, column = a.ndim == 1, b.ndim == 1
    inner = a.shape[-1], b.shape[0 if column else -2]
    if inner[0] != inner[1]:
        raise ShapeError(
            f"matmul: the last axis of a {a.aval} has size {inner[0]}, but the "
            f"{'only' if column else 'next to last'} axis of b {b.aval} has size {inner[1]}"
        )
    lead_a, lead_b = a.shape[: -1 if row else -2], b.shape[: -1 if column else -2]
    broadcast_shapes("matmul", lead_a, lead_b)
    out = _batched_product(a, b, lead_a, lead_b, preferred_element_type, precision)
    return cut_as_said(out, out_sharding)


def _batched_product(
    a: Any, b: Any, lead_a: tuple, lead_b: tuple, dtype: Any, precision: Any
) -> Any:
    """A matrix product whose leading axes broadcast without being repeated in memory.

    An axis that one operand lacks, or has in size 1, is a free axis of the other; a permutation
    brings the result's axes into order.
    """
    n = max(len(lead_a), len(lead_b))
    sizes_a, sizes_b = (1,) * (n - len(lead_a)) + lead_a, (1,) * (n - len(lead_b)) + lead_b
    both = [i for i in range(n) if sizes_a[i] == sizes_b[i]]
    only_a = [i for i in range(n) if i not in both and sizes_b[i] == 1]
    only_b = [i for i in range(n) if i not in both and i not in only_a]
    rows, columns = a.shape[len(lead_a) : -1], b.shape[len(lead_b) + 1 :]
    in_a, in_b = sorted(both + only_a), sorted(both + only_b)
    a = reshape(a, (*(sizes_a[i] for i in in_a), *rows, a.shape[-1]))
    b = reshape(b, (*(sizes_b[i] for i in in_b), a.shape[-1], *columns))
    batch = [in_a.index(i) for i in both], [in_b.index(i) for i in both]
    out = _contract(a, b, ((a.ndim - 1,), (len(in_b),)), batch, dtype, precision)
    matrix = ["row"] * len(rows), ["column"] * len(columns)
    made = [*both, *only_a, *matrix[0], *only_b, *matrix[1]]
    wanted = [*range(n), *matrix[0], *matrix[1]]
    if made == wanted:
        return out
    return transpose_p.bind(out, permutation=tuple(made.index(m) for m in wanted))


def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sum of conj(x1) · x2 over an axis of both; all other axes broadcast.

    >>> fnp.vecdot(fnp.array([[1, 2], [3, 4]]), fnp.array([1, 10]))
    Array([21, 43], dtype=int32)
    """
    x1, x2 = promote("vecdot", x1, x2)
    x1 = move_axis(x1, canonical_axis("vecdot", axis, x1.ndim), x1.ndim - 1)
    x2 = move_axis(x2, canonical_axis("vecdot", axis, x2.ndim), x2.ndim - 1)
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"vecdot: axis {axis} of x1 {x1.aval} and x2 {x2.aval} differ in size")
    row, column = expand_dims(conjugate(x1), (-2,)), expand_dims(x2, (-1,))
    out = matmul(row, column, precision=precision, preferred_element_type=preferred_element_type)
    return squeeze(out, (-2, -1))


def matvec(x1: Any, x2: Any, /) -> Any:
    """The products of matrices (the last two axes of x1) with vectors (the last axis of x2).

    >>> fnp.matvec(fnp.array([[1, 2], [3, 4]]), fnp.array([[1, 1], [0, 1]]))
    Array([[3, 7],
           [2, 4]], dtype=int32)
    """
    x1, x2 = promote("matvec", x1, x2)
    return squeeze(matmul(x1, expand_dims(x2, (-1,))), (-1,))


def vecmat(x1: Any, x2: Any, /) -> Any:
    """The products of conjugated vectors (the last axis of x1) with matrices (the last two of x2).

    >>> fnp.vecmat(fnp.array([[1, 1], [0, 1]]), fnp.array([[1, 2], [3, 4]]))
    Array([[4, 6],
           [3, 4]], dtype=int32)
    """
    x1, x2 = promote("vecmat", x1, x2)
    return squeeze(matmul(expand_dims(conjugate(x1), (-2,)), x2), (-2,))


# ---- products over chosen axes


def dot(
    a: Any,
    b: Any,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product of vectors, matrices, or arrays: over the last axis of a and the one before
    the last of b (the last if b is a vector). Scalars multiply. `out_sharding` is how the result
    is to be cut over a mesh.

    >>> fnp.dot(fnp.array([1, 2]), fnp.array([3, 4]))
    Array(11, dtype=int32)
    """
    a, b = promote("dot", a, b)
    if not a.ndim or not b.ndim:
        return cut_as_said(multiply(a, b), out_sharding)
    over = a.ndim - 1, max(0, b.ndim - 2)
    _check_pairs("dot", a, b, over[:1], over[1:])
    out = _contract(a, b, (over[:1], over[1:]), ((), ()), preferred_element_type, precision)
    return cut_as_said(out, out_sharding)


def _check_pairs(name: str, a: Any, b: Any, in_a: _Axes, in_b: _Axes) -> None:
    for i, j in zip(in_a, in_b, strict=True):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"{name}: axis {i} of a {a.aval} has size {a.shape[i]}, but axis {j} of b {b.aval} "
                f"has size {b.shape[j]}"
            )


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of conj(a) · b over all elements.

    >>> fnp.vdot(fnp.array([1, 2j]), fnp.array([1, 2j]))
    Array(5.+0.j, dtype=complex64)
    """
    a, b = promote("vdot", a, b)
    a, b = reshape(conjugate(a), (-1,)), reshape(b, (-1,))
    return dot(a, b, precision=precision, preferred_element_type=preferred_element_type)


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of products over the last axes of a and b. Scalars multiply.

    >>> fnp.inner(fnp.array([[1, 2], [3, 4]]), fnp.array([1, 1]))
    Array([3, 7], dtype=int32)
    """
    a, b = promote("inner", a, b)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    return tensordot(
        a, b, ((-1,), (-1,)), precision=precision, preferred_element_type=preferred_element_type
    )


def outer(a: Any, b: Any, out: None = None) -> Any:
    """The products of all elements of a with all of b, as a matrix.

    >>> fnp.outer(fnp.array([1, 2]), fnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    no_out("outer", out)
    a, b = promote("outer", a, b)
    return multiply(reshape(a, (-1, 1)), reshape(b, (1, -1)))


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The sum of products over paired axes; the result has the other axes of a, then those of b.

    `axes` is (axes of a, axes of b), or a number n: the last n of a with the first n of b.
    `out_sharding` is how the result is to be cut over a mesh.

    >>> fnp.tensordot(fnp.ones((2, 3, 4)), fnp.ones((3, 4, 5))).shape
    (2, 5)
    """
    a, b = promote("tensordot", a, b)
    if isinstance(axes, tuple | list):
        if len(axes) != 2:
            raise ValueError(f"tensordot: axes must be (axes of a, axes of b), got {axes}")
        pair = [(v,) if isinstance(v, int | np.integer) else tuple(v) for v in axes]
    else:
        n = integer("axes", axes)
        if n > min(a.ndim, b.ndim):
            raise ShapeError(f"tensordot: axes={n} is more than a {a.aval} or b {b.aval} have")
        pair = [tuple(range(a.ndim - n, a.ndim)), tuple(range(n))]
    if len(pair[0]) != len(pair[1]):
        raise ShapeError(f"tensordot: axes of a {pair[0]} and of b {pair[1]} go in pairs")
    in_a = canonical_axes("tensordot", pair[0], a.ndim)
    in_b = canonical_axes("tensordot", pair[1], b.ndim)
    _check_pairs("tensordot", a, b, in_a, in_b)
    out = _contract(a, b, (in_a, in_b), ((), ()), preferred_element_type, precision)
    return cut_as_said(out, out_sharding)


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: each element of a times all of b, in blocks.

    >>> fnp.kron(fnp.array([1, 10]), fnp.array([1, 2]))
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    a, b = promote("kron", a, b)
    n = max(a.ndim, b.ndim)
    sizes_a, sizes_b = (1,) * (n - a.ndim) + a.shape, (1,) * (n - b.ndim) + b.shape
    wide_a = reshape(a, tuple(s for size in sizes_a for s in (size, 1)))
    wide_b = reshape(b, tuple(s for size in sizes_b for s in (1, size)))
    out = multiply(wide_a, wide_b)
    return reshape(out, tuple(x * y for x, y in zip(sizes_a, sizes_b, strict=True)))


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """The cross product of vectors of 3 (or 2) components along an axis; other axes broadcast.

    Two vectors of 2 components give the third component alone. `axis` stands for all three axes.

    >>> fnp.cross(fnp.array([1, 0, 0]), fnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = promote("cross", a, b)
    a = move_axis(a, canonical_axis("cross", axisa, a.ndim), a.ndim - 1)
    b = move_axis(b, canonical_axis("cross", axisb, b.ndim), b.ndim - 1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ShapeError(
            f"cross: vectors must have 2 or 3 components, got a {a.aval} and b {b.aval} with these "
            "along the last axis"
        )

    def part(x: Any, i: int) -> Any:
        return x[..., i]

    def minor(i: int, j: int) -> Any:
        return subtract(multiply(part(a, i), part(b, j)), multiply(part(a, j), part(b, i)))

    if a.shape[-1] == b.shape[-1] == 2:
        return minor(0, 1)
    a, b = (_three_components(x) for x in (a, b))
    out = [expand_dims(minor(i, j), (-1,)) for i, j in ((1, 2), (2, 0), (0, 1))]
    joined = concatenate(out, out[0].ndim - 1)
    return move_axis(joined, joined.ndim - 1, canonical_axis("cross", axisc, joined.ndim))


def _three_components(x: Any) -> Any:
    if x.shape[-1] == 3:
        return x
    return concatenate([x, full((*x.shape[:-1], 1), 0, x.dtype)], x.ndim - 1)


def trace(
    a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None
) -> Any:
    """The sum over a diagonal of two axes, which the result lacks.

    >>> fnp.trace(fnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    no_out("trace", out)
    return sum_over(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)
