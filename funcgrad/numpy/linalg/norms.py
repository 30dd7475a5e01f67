"""Norms of vectors and matrices, with derivative zero where the norm is zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import as_array, axes_of, promote_inexact
from funcgrad.numpy.elementwise.functions import imag, real
from funcgrad.numpy.elementwise.logic import isnan
from funcgrad.numpy.linalg.factors import svdvals
from funcgrad.numpy.linalg.solvers import inv, matrices
from funcgrad.numpy.manipulation.indexing import where
from funcgrad.numpy.manipulation.shape import expand_dims, moveaxis
from funcgrad.numpy.reductions.reductions import any as any_of
from funcgrad.numpy.reductions.reductions import keep_axes
from funcgrad.numpy.reductions.reductions import max as greatest
from funcgrad.numpy.reductions.reductions import min as least
from funcgrad.numpy.reductions.reductions import sum as total_of
from funcgrad.ops.base import sum_p
from funcgrad.ops.elementwise.arithmetic import abs as magnitude
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.arithmetic import sqrt as sqrt_p
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select_n_p
from funcgrad.transforms.recorded import recorded

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]


def _inexact(name: str, x: Any) -> Any:
    as_array(name, x, "x")
    return promote_inexact(name, x)[0]


def _root_of_squares(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if dtypes.is_complex(x.dtype):
        square = real(x) * real(x) + imag(x) * imag(x)
    else:
        square = mul.bind(x, x)
    total = sum_p.bind(square, axes=axes)
    # Where all is zero, the root's infinite derivative is kept out: the norm's is zero.
    nothing, one = (np.asarray(n, total.dtype) for n in (0, 1))
    zero = eq.bind(total, nothing)
    root = sqrt_p.bind(select_n_p.bind(zero, total, one))
    out = select_n_p.bind(zero, root, nothing)
    return keep_axes(out, x.shape, axes) if keepdims else out


def _power(x: Any, p: Any) -> Any:
    """x ** p for x >= 0; at 0 the derivative is zero, too, where it would be infinite."""
    zero = x == 0
    return where(zero, 0 if p > 0 else math.inf, where(zero, 1, x) ** p)


def _vector_norm(name: str, x: Any, order: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if order is None or order == 2:
        return _root_of_squares(x, axes, keepdims)
    size = magnitude(x)
    if order == math.inf:
        return greatest(size, **options, initial=0)
    if order == -math.inf:
        return least(size, **options)
    if order == 0:
        return total_of(x != 0, **options, dtype=size.dtype)
    if order == 1:
        return total_of(size, **options)
    if isinstance(order, str):
        raise ValueError(f"{name}: {order!r} is no order of vector norms")
    if isinstance(order, int | float | np.number):
        return _power(total_of(_power(size, order), **options), 1 / order)
    order = as_array(name, order, "ord")
    # An order that is traced can't choose a formula.
    return total_of(size**order, **options) ** (1 / order)


def _matrix_norm(name: str, x: Any, order: Any, axes: tuple[int, int], keepdims: bool) -> Any:
    rows, columns = axes
    if order is None or order == "fro":
        return _root_of_squares(x, axes, keepdims)
    if order in (1, -1, math.inf, -math.inf):
        summed, other = (rows, columns) if order in (1, -1) else (columns, rows)
        sums = total_of(magnitude(x), axis=summed, keepdims=True)
        pick = total_of if order > 0 and not x.shape[other] else greatest if order > 0 else least
        out = pick(sums, axis=other, keepdims=True)
    elif order in (2, -2, "nuc"):
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        if order == "nuc" or (order == 2 and not s.shape[-1]):
            picked = total_of(s, axis=-1)
        else:
            picked = s[..., 0 if order == 2 else -1]
        return expand_dims(picked, tuple(sorted(axes))) if keepdims else picked
    else:
        raise ValueError(
            f"{name}: the order of a matrix norm must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, "
            f"got {order!r}"
        )
    return out if keepdims else out.squeeze(axes)


@recorded
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors (`axis` an integer) or matrices (`axis` a pair of integers).

    Without `axis`, of x as a vector or matrix; without both `axis` and `ord`, the 2-norm of all
    elements. Vector norms: 2, 1, inf, -inf, 0 (the number of nonzero elements), any p; matrix
    norms: "fro", "nuc", 1 and -1 (of sums of columns), inf and -inf (of rows), 2 and -2 (of
    singular values). The derivative where the norm is 0 is 0.

    >>> fnp.linalg.norm(fnp.array([3.0, 4.0]))
    Array(5., dtype=float32)
    """
    x = _inexact("norm", x)
    if axis is None:
        axes = tuple(range(x.ndim))
        if ord is None:
            return _root_of_squares(x, axes, keepdims)
        if x.ndim not in (1, 2):
            raise ShapeError(f"norm: with ord and without axis x must be a vector or a matrix, "
                             f"got {x.aval}")  # fmt: skip
    else:
        axes = axes_of("norm", axis, x.ndim)
    if len(axes) == 1:
        return _vector_norm("norm", x, ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm("norm", x, ord, (axes[0], axes[1]), keepdims)
    raise ShapeError(f"norm: axis must be one or two axes, got {axis}")


@recorded
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm of vectors along one axis, or of all elements of several (all where None).

    See `norm` for `ord`.

    >>> fnp.linalg.vector_norm(fnp.array([3.0, -4.0]), ord=1)
    Array(7., dtype=float32)
    """
    x = _inexact("vector_norm", x)
    return _vector_norm("vector_norm", x, ord, axes_of("vector_norm", axis, x.ndim), keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices that the last two axes hold; see `norm` for `ord`.

    >>> fnp.linalg.matrix_norm(fnp.array([[3.0, 0.0], [0.0, 4.0]]), ord="nuc")
    Array(7., dtype=float32)
    """
    x = _inexact("matrix_norm", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_norm: need matrices (..., m, n), got x {x.aval}")
    return _matrix_norm("matrix_norm", x, ord, (x.ndim - 2, x.ndim - 1), keepdims)


def cond(x: Any, p: Any = None) -> Any:
    """The condition number of matrices: norm(x) · norm(inv(x)) for the order p of the norm.

    With p None or 2 it is the ratio of the largest to the smallest singular value (with -2 the
    inverse of that), for matrices of any shape. It is inf for singular matrices.

    >>> fnp.linalg.cond(fnp.array([[2.0, 0.0], [0.0, 8.0]]))
    Array(4., dtype=float32)
    """
    x = matrices("cond", x, square=p not in (None, 2, -2), argument="x")
    if p in (None, 2, -2):
        s = svdvals(x)
        ratio = s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    else:
        axes = (x.ndim - 2, x.ndim - 1)
        ratio = _matrix_norm("cond", x, p, axes, False) * _matrix_norm(
            "cond", inv(x), p, axes, False
        )
    known_input = ~any_of(isnan(x), axis=(-2, -1))
    return where(isnan(ratio) & known_input, math.inf, ratio)
