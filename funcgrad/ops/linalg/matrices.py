"""Matrix algebra that the derivatives of decompositions are written in.

Matrices are the last two axes; all leading axes are batch. A decomposition is a primitive of one
such operand: `decomposition` makes it from its impl and its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.base import broadcast_p, full, move_axis, position_dtype, sum_p, transpose_p
from funcgrad.ops.contract import batch_matmul
from funcgrad.ops.elementwise.arithmetic import conj, mul, real
from funcgrad.ops.elementwise.compare import eq, ge, le
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import NOT_LINEAR, add
from funcgrad.ops.shape import broadcasted_iota

matmul = batch_matmul


def swapped(x: Any) -> Any:
    """The transposed matrices."""
    rank = aval_of(x).ndim
    return transpose_p.bind(x, permutation=(*range(rank - 2), rank - 1, rank - 2))


def adjoint(x: Any) -> Any:
    """The conjugate-transposed matrices."""
    return swapped(conj(x)) if dtypes.is_complex(aval_of(x).dtype) else swapped(x)


def places(shape: Sequence[int], k: int = 0) -> tuple[Any, Any]:
    """The rows and columns of the elements of matrices, which agree on the k-th diagonal."""
    dtype = position_dtype(sum(shape[-2:]))
    rows, columns = (broadcasted_iota(dtype, shape, axis) for axis in (-2, -1))
    return (add(rows, max(-shape[-2], min(k, shape[-1]))) if k else rows), columns


def _where(mask: Any, x: Any) -> Any:
    return select(mask, x, full((), 0, aval_of(x).dtype))


def tril(x: Any, k: int = 0) -> Any:
    """The matrices' lower triangles, up to the k-th diagonal above the main one."""
    return _where(ge(*places(aval_of(x).shape, k)), x)


def triu(x: Any, k: int = 0) -> Any:
    """The matrices' upper triangles, from the k-th diagonal above the main one."""
    return _where(le(*places(aval_of(x).shape, k)), x)


def eye_mask(x: Any) -> Any:
    """True on the diagonals of matrices shaped as x."""
    return eq(*places(aval_of(x).shape))


def eye_like(x: Any) -> Any:
    """Identity matrices of the shape and dtype of x."""
    return convert_element_type(eye_mask(x), aval_of(x).dtype)


def diagonal(x: Any) -> Any:
    """The diagonals of square matrices."""
    return sum_p.bind(_where(eye_mask(x), x), axes=(aval_of(x).ndim - 1,))


def as_rows(v: Any, n: int) -> Any:
    """Vectors repeated as the n rows of matrices: m[..., i, j] = v[..., j]."""
    shape = aval_of(v).shape
    rank = len(shape)
    dims = (*range(rank - 1), rank)
    return broadcast_p.bind(v, shape=(*shape[:-1], n, shape[-1]), broadcast_dimensions=dims)


def as_columns(v: Any, n: int) -> Any:
    """Vectors repeated as the n columns of matrices: m[..., i, j] = v[..., i]."""
    shape = aval_of(v).shape
    return broadcast_p.bind(v, shape=(*shape, n), broadcast_dimensions=tuple(range(len(shape))))


def hermitian_part(x: Any) -> Any:
    """(x + xᴴ) / 2."""
    return mul(add(x, adjoint(x)), 0.5)


def from_triangle(x: Any, lower: bool) -> Any:
    """Hermitian matrices from one triangle of x; the other isn't read."""
    part = tril(x, -1) if lower else triu(x, 1)
    on_diagonal = _where(eye_mask(x), x)
    if dtypes.is_complex(aval_of(x).dtype):
        on_diagonal = convert_element_type(real(on_diagonal), aval_of(x).dtype)
    return add(add(part, adjoint(part)), on_diagonal)


def check_matrices(name: str, x: ShapedArray, square: bool = False) -> None:
    """Raise unless x holds (square) matrices of a dtype that linear algebra is defined for."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ShapeError(f"{name}: need {'square ' if square else ''}matrices (…, m, n), got {x}")
    if x.dtype.itemsize < 4 or not dtypes.is_inexact(x.dtype):
        raise DTypeError(
            f"{name}: need float32, float64, complex64 or complex128, got {x}; convert with "
            ".astype(...)"
        )


def of_finite(impl: Callable) -> Callable:
    """A decomposition that gives NaN for matrices with NaN or infinities, where NumPy's raises."""

    def run(xp: Any, x: Any, **params: Any) -> list[Any]:
        if xp is np and np.isfinite(x.sum()):
            return impl(xp, x, **params)  # the most frequent case, told at once
        finite = xp.isfinite(x)
        if "lower" in params:  # what lies in the other triangle isn't read
            below = xp.tri(x.shape[-1], k=-1, dtype=bool)
            finite |= below.T if params["lower"] else below
        bad = ~finite.all((-2, -1))
        if not bad.any():
            return impl(xp, x, **params)
        outs = impl(xp, xp.where(bad[..., None, None], xp.zeros((), x.dtype), x), **params)
        for out in outs:
            out[bad] = np.nan
        return outs

    return run


def decomposition(
    name: str,
    abstract: Callable,
    impl: Callable,
    jvp: Callable | NoRule,
    kinds: Callable[..., tuple[str, ...]],
    dce: Callable | None = None,
) -> Primitive:
    """A primitive of one batch of matrices with several results.

    `kinds` gives the axes of each result behind the batch: "m n" names those of the operand, "."
    is one made anew.
    """

    def batch(axis, args, dims, **params):
        outs = made.bind(move_axis(args[0], dims[0], 0), **params)
        return outs, [0] * len(outs)

    def dims(x, **params):
        lead = " ".join(f"b{i}" for i in range(x.ndim - 2))
        outs = [f"{lead} {kind}" for kind in kinds(**params)]
        return f"{lead} m! n! -> {', '.join(outs)}"

    made: Primitive = Primitive(
        name=name,
        abstract=abstract,
        impl=impl,
        jvp=jvp,
        transpose=NOT_LINEAR,
        batch=batch,
        dims=dims,
        dce=dce,
        multiple=True,
    )
    return made
