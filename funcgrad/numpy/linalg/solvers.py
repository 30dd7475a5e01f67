"""Determinants, inverses and solutions of linear equations, with their own derivatives.

A solution's derivative is another solution with the same factors: A dx = db - dA x. Singular
matrices give inf or NaN, as nothing is known of values while a program is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.evaluation import EvalTrace
from funcgrad.errors import ShapeError
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    broadcast_shapes,
    broadcast_to,
    canonical_axes,
    convert,
    default_int,
    integer,
    is_scalar,
    promote_inexact,
)
from funcgrad.numpy.contraction import matmul
from funcgrad.numpy.creation.diagonals import diagonal
from funcgrad.numpy.einsum import einsum
from funcgrad.numpy.elementwise.functions import conjugate, imag, log, real
from funcgrad.numpy.manipulation.indexing import where
from funcgrad.numpy.manipulation.joining import arrays_of, concatenate
from funcgrad.numpy.manipulation.shape import expand_dims, matrix_transpose, moveaxis, reshape
from funcgrad.numpy.reductions.reductions import all as all_of
from funcgrad.numpy.reductions.reductions import prod
from funcgrad.numpy.reductions.reductions import sum as total_of
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.arithmetic import abs as magnitude
from funcgrad.ops.elementwise.arithmetic import complex as complex_of
from funcgrad.ops.elementwise.convert import convert_element_type, stop_gradient
from funcgrad.ops.linalg import triangular as ops
from funcgrad.ops.linalg.decompositions import eigvalsh, svd
from funcgrad.ops.linalg.matrices import check_matrices, eye_mask
from funcgrad.ops.shape import iota
from funcgrad.ops.sort import argsort, take_along_axis
from funcgrad.transforms.derivatives.custom import custom_jvp

__all__ = [
    "SlogdetResult", "det", "inv", "lstsq", "matrix_power", "matrix_rank", "multi_dot", "pinv",
    "slogdet", "solve", "tensorinv", "tensorsolve",
]  # fmt: skip


def matrices(name: str, a: Any, square: bool = False, argument: str = "a") -> Any:
    """An argument as (square) matrices of an inexact dtype, or an error naming the function."""
    as_array(name, a, argument)
    (a,) = promote_inexact(name, a)
    a = convert(a, a.dtype)
    check_matrices(name, a.aval, square)
    return a


def adjoint(x: Any) -> Any:
    """The conjugate-transposed matrices."""
    return matrix_transpose(conjugate(x))


def identity_like(x: Any) -> Any:
    """Identity matrices of the shape and dtype of x."""
    return convert_element_type(eye_mask(x), x.dtype)


def _at_once(function: Callable, *arrays: Any) -> Array | None:
    """NumPy's result where arrays are known and nothing is traced, else None.

    LAPACK is far faster than the elimination that is written as operations, which programs need.
    """
    now = context.current()
    if any(type(a) is not Array for a in arrays) or type(now.trace) is not EvalTrace:
        return None
    if now.checks:
        return None
    try:
        with np.errstate(all="ignore"):
            return Array(np.asarray(function(*(a.value for a in arrays))))
    except np.linalg.LinAlgError:
        return None  # What follows gives the inf and NaN of singular matrices.


# ---- solve


def _rows(x: Any, order: Any) -> Any:
    """The rows of matrices in another order."""
    return take_along_axis(x, broadcast_to(expand_dims(order, -1), x.shape), x.ndim - 2)


@partial(custom_jvp, nondiff_argnums=0)
def _solution(transposed: bool, a: Any, factors: Any, order: Any, b: Any) -> Any:
    """x with a x = b (aᵀ x = b if `transposed`), from the LU decomposition of a: L U = a[order]."""
    solve = partial(ops.triangular_solve, factors, left_side=True, transpose_a=transposed)
    if not transposed:
        return solve(solve(_rows(b, order), lower=True, unit_diagonal=True))
    return _rows(solve(solve(b), lower=True, unit_diagonal=True), argsort(order))


@_solution.defjvp
def _solution_jvp(transposed: bool, primals: Any, tangents: Any) -> Any:
    a, factors, order, b = primals
    da, _, _, db = tangents
    x = _solution(transposed, a, factors, order, b)
    change = db - matmul(matrix_transpose(da) if transposed else da, x)
    return x, _solution(transposed, a, factors, order, change)


@_solution.deftranspose
def _solution_transpose(transposed: bool, primals: Any, ct: Any) -> Any:
    a, factors, order, _ = primals
    return None, None, None, _solution(not transposed, a, factors, order, ct)


def solve_matrices(a: Any, b: Any) -> Any:
    """x with a x = b, for square a and matrices b whose leading axes broadcast."""
    done = _at_once(np.linalg.solve, a, b)
    if done is not None:
        return done
    factors, _, order = ops.lu(stop_gradient(a))
    lead = broadcast_shapes("solve", a.shape[:-2], b.shape[:-2])
    a, factors, b = (broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, factors, b))
    order = broadcast_to(order, (*lead, order.shape[-1]))
    return _solution(False, a, factors, order, b)


def solve(a: Any, b: Any) -> Any:
    """x with a x = b, for square matrices a; b is a vector or matrices, and leading axes broadcast.

    Raises ShapeError where the sizes don't fit. A singular a gives inf or NaN.

    >>> fnp.linalg.solve(fnp.array([[2.0, 0.0], [1.0, 4.0]]), fnp.array([2.0, 9.0]))
    Array([1., 2.], dtype=float32)
    """
    as_array("solve", a, "a"), as_array("solve", b, "b")
    a, b = promote_inexact("solve", a, b)
    a, b = matrices("solve", a, square=True), convert(b, b.dtype)
    vector = b.ndim == 1
    if not b.ndim or b.shape[0 if vector else -2] != a.shape[-1]:
        raise ShapeError(f"solve: b {b.aval} must have as many rows as a {a.aval}")
    x = solve_matrices(a, expand_dims(b, -1) if vector else b)
    return x[..., 0] if vector else x


def inv(a: Any) -> Any:
    """The inverse of square matrices; inf or NaN where they are singular.

    >>> fnp.linalg.inv(fnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    a = matrices("inv", a, square=True)
    return solve_matrices(a, identity_like(a))


# ---- determinants


def _parity(pivots: Any, dtype: np.dtype) -> Any:
    """The sign of the permutation of an LU decomposition."""
    swaps = total_of(pivots != iota(np.int32, pivots.shape[-1]), axis=-1)
    return convert(1 - 2 * (swaps % 2), dtype)


def _minor(a: Any, i: int, j: int) -> Any:
    """The products of two elements of the first two rows that a 2 × 2 determinant is made of."""
    return a[..., 0, i] * a[..., 1, j] - a[..., 0, j] * a[..., 1, i]


def det(a: Any) -> Any:
    """The determinant of square matrices. It has a derivative where they are singular, too.

    >>> fnp.linalg.det(fnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    a = matrices("det", a, square=True)
    n = a.shape[-1]
    if n == 0:
        return full(a.shape[:-2], 1, a.dtype)
    if n == 1:
        return a[..., 0, 0]
    if n == 2:
        return _minor(a, 0, 1)
    if n == 3:
        terms = [a[..., 2, k] * _minor(a, i, j) for k, i, j in ((0, 1, 2), (1, 2, 0), (2, 0, 1))]
        return terms[0] + terms[1] + terms[2]
    done = _at_once(np.linalg.det, a)
    return _det(a) if done is None else done


@custom_jvp
def _det(a: Any) -> Any:
    factors, pivots, _ = ops.lu(a)
    return prod(diagonal(factors, 0, -2, -1), axis=-1) * _parity(pivots, a.dtype)


@_det.defjvp
def _det_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    value, adjugate = _adjugate_times(a, da)
    return value, total_of(diagonal(adjugate, 0, -2, -1), axis=-1)


def _adjugate_times(a: Any, b: Any) -> tuple[Any, Any]:
    """det(a) and adj(a) b = det(a) a⁻¹ b, also where a has rank n - 1.

    Then only the last element u of U's diagonal is zero. With the product p of the others, the
    last row of the solution of U z = det(a) y is p y, and u is needed no more. Where the rank is
    still lower the adjugate is zero.
    """
    factors, pivots, order = ops.lu(a)
    line = diagonal(factors, 0, -2, -1)
    others = prod(line[..., :-1], axis=-1) * _parity(pivots, a.dtype)
    value = others * line[..., -1]
    full_rank = all_of(line[..., :-1] != 0, axis=-1)[..., None, None]
    n = a.shape[-1]
    factors = factors.at[..., n - 1, n - 1].set(1)
    # An element that is zero is replaced, so that nothing becomes inf where it isn't used.
    safe = where(full_rank, factors, identity_like(a))
    y = ops.triangular_solve(safe, _rows(b, order), left_side=True, lower=True, unit_diagonal=True)
    rows = [y[..., :-1, :] * value[..., None, None], y[..., -1:, :] * others[..., None, None]]
    z = ops.triangular_solve(safe, concatenate(rows, axis=-2), left_side=True)
    return value, where(full_rank, z, 0)


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its magnitude."""

    sign: Any
    logabsdet: Any


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """Sign (or phase) of the determinant of square matrices, and the logarithm of its magnitude.

    A singular matrix gives 0 and -inf. `method` has no effect.

    >>> fnp.linalg.slogdet(fnp.array([[0.0, 1.0], [1.0, 0.0]])).sign
    Array(-1., dtype=float32)
    """
    return SlogdetResult(*_slogdet(matrices("slogdet", a, square=True)))


@custom_jvp
def _slogdet(a: Any) -> tuple[Any, Any]:
    factors, pivots, _ = ops.lu(a)
    line = diagonal(factors, 0, -2, -1)
    size = magnitude(line)
    zero = full((), 0, size.dtype)
    phase = line / convert(where(size == zero, 1, size), a.dtype)
    return prod(phase, axis=-1) * _parity(pivots, a.dtype), total_of(log(size), axis=-1)


@_slogdet.defjvp
def _slogdet_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    sign, logarithm = _slogdet(a)
    change = total_of(diagonal(solve_matrices(a, da), 0, -2, -1), axis=-1)
    if not dtypes.is_complex(a.dtype):
        return (sign, logarithm), (full(sign.shape, 0, sign.dtype), change)
    turn = complex_of(full(sign.shape, 0, logarithm.dtype), imag(change))
    return (sign, logarithm), (sign * turn, real(change))


# ---- least squares


def _epsilon(a: Any) -> float:
    return float(dtypes.finfo(a.dtype).eps) * max(a.shape[-2:])


def _cutoff(name: str, rtol: Any, a: Any, default: float) -> Any:
    """The relative size below which singular values count as zero."""
    real_dtype = dtypes.real_part(a.dtype)
    given = default if rtol is None else rtol
    given = given if is_scalar(given) else as_array(name, given, "rtol")
    return as_dtype(name, given, real_dtype)


def lstsq(
    a: Any, b: Any, rcond: Any = None, *, numpy_resid: bool = False
) -> tuple[Any, Any, Any, Any]:
    """The x of least norm that minimizes |a x - b|: (x, residuals, rank, singular values of a).

    Singular values below `rcond` times the largest count as zero (by default the dtype's epsilon
    times the larger size of a). The residuals are the squared norms of b - a x for each column of
    b; with `numpy_resid`, and where all is known, empty if a has not full column rank.

    >>> a = fnp.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> x, residuals, rank, s = fnp.linalg.lstsq(a, fnp.array([1.0, 3.0, 5.0]))
    >>> fnp.round(x, 3)
    Array([1., 2.], dtype=float32)
    """
    as_array("lstsq", a, "a"), as_array("lstsq", b, "b")
    a, b = promote_inexact("lstsq", a, b)
    a = matrices("lstsq", a)
    vector = b.ndim == 1
    if a.ndim != 2 or b.ndim not in (1, 2) or b.shape[0] != a.shape[0]:
        raise ShapeError(f"lstsq: need a matrix a and a vector or matrix b of as many rows, got "
                         f"a {a.aval} and b {b.aval}")  # fmt: skip
    columns = expand_dims(b, -1) if vector else b
    u, s, vh = svd(a, full_matrices=False)
    kept = s > _cutoff("lstsq", rcond, a, _epsilon(a)) * s[:1]
    rank = total_of(kept, axis=0, dtype=default_int())
    inverse = where(kept, 1 / where(kept, s, 1), 0)
    x = matmul(adjoint(vh), convert(inverse, a.dtype)[:, None] * matmul(adjoint(u), columns))
    gap = columns - matmul(a, x)
    residuals = total_of(real(gap * conjugate(gap)), axis=0)
    if numpy_resid and (a.shape[0] <= a.shape[1] or int(rank) < a.shape[1]):
        residuals = residuals[:0]
    return (x[:, 0] if vector else x), residuals, rank, s


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Any:
    """The Moore-Penrose pseudoinverse of matrices.

    Singular values below `rtol` (or `rcond`) times the largest count as zero, by default 10 times
    the dtype's epsilon times the larger size. `hermitian` has no effect on the result. The
    derivative is that of matrices of the same rank.

    >>> fnp.linalg.pinv(fnp.array([[2.0], [0.0]]))
    Array([[0.5, 0. ]], dtype=float32)
    """
    if rtol is not None and rcond is not None:
        raise ValueError("pinv: give rtol or rcond, not both")
    a = matrices("pinv", a)
    if not a.size:
        return full((*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
    cutoff = _cutoff("pinv", rcond if rtol is None else rtol, a, 10 * _epsilon(a))
    return _pinv(a, cutoff)


@custom_jvp
def _pinv(a: Any, cutoff: Any) -> Any:
    u, s, vh = svd(a, full_matrices=False)
    kept = s > cutoff[..., None] * s[..., :1]
    inverse = where(kept, 1 / where(kept, s, 1), 0)
    return matmul(adjoint(vh), convert(inverse, a.dtype)[..., None] * adjoint(u))


@_pinv.defjvp
def _pinv_jvp(primals: Any, tangents: Any) -> Any:
    """G. H. Golub, V. Pereyra, "The differentiation of pseudo-inverses", 1973, (4.12)."""
    (a, cutoff), (da, _) = primals, tangents
    p = _pinv(a, cutoff)
    ph, dah = adjoint(p), adjoint(da)
    change = -matmul(p, matmul(da, p))
    # p pᴴ dAᴴ (1 - A p) + (1 - p A) dAᴴ pᴴ p, multiplied out.
    left = matmul(matmul(p, ph), dah)
    right = matmul(dah, matmul(ph, p))
    change = change + left - matmul(matmul(left, a), p)
    return p, change + right - matmul(p, matmul(a, right))


def matrix_rank(M: Any, rtol: Any = None, *, hermitian: bool = False, tol: Any = None) -> Any:
    """The number of singular values above a bound: `tol`, or `rtol` times the largest.

    By default `rtol` is the dtype's epsilon times the larger size of the matrices. A vector has
    rank 1 unless it is zero. With `hermitian` the matrices are taken to be that, which is quicker.

    >>> fnp.linalg.matrix_rank(fnp.array([[1.0, 2.0], [2.0, 4.0]]))
    Array(1, dtype=int32)
    """
    if tol is not None and rtol is not None:
        raise ValueError("matrix_rank: only one of tol or rtol may be specified.")
    M = as_array("matrix_rank", M, "M")
    if M.ndim < 2:
        return convert(~all_of(M == 0), default_int())
    a = matrices("matrix_rank", M, square=hermitian, argument="M")
    s = magnitude(eigvalsh(a)) if hermitian else svd(a, compute_uv=False)
    if tol is not None:
        bound = as_array("matrix_rank", tol, "tol")
    else:
        bound = _cutoff("matrix_rank", rtol, a, _epsilon(a)) * s.max(axis=-1, initial=0)
    return total_of(s > bound[..., None], axis=-1, dtype=default_int())


# ---- products and tensors


def matrix_power(a: Any, n: int) -> Any:
    """Square matrices multiplied by themselves, n times; the inverse's power for negative n.

    >>> fnp.linalg.matrix_power(fnp.array([[1, 1], [0, 1]]), 3)
    Array([[1, 3],
           [0, 1]], dtype=int32)
    """
    a = as_array("matrix_power", a, "a")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"matrix_power: need square matrices, got a {a.aval}")
    n = integer("n", n)
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return identity_like(a)
    result = None
    while n:
        if n % 2:
            result = a if result is None else matmul(result, a)
        n //= 2
        a = matmul(a, a) if n else a
    return result


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of several matrices, in the order that takes the fewest multiplications.

    The first may be a row vector and the last a column vector.

    >>> x = fnp.ones((2, 3))
    >>> fnp.linalg.multi_dot([x, x.T, x]).shape
    (2, 3)
    """
    parts = arrays_of("multi_dot", arrays)
    n = len(parts)
    inner = parts[1:-1] if n > 1 else []
    if n < 2 or any(p.ndim != 2 for p in inner) or any(p.ndim not in (1, 2) for p in parts):
        listed = ", ".join(str(p.aval) for p in parts)
        raise ShapeError(f"multi_dot: need two or more matrices, got {listed}")
    operands: list[Any] = []
    for i, p in enumerate(parts):
        labels = [i, i + 1] if p.ndim == 2 else [1] if i == 0 else [i]
        operands += [p, labels]
    result = ([0] if parts[0].ndim == 2 else []) + ([n] if parts[-1].ndim == 2 else [])
    return einsum(*operands, result, optimize="optimal" if n <= 7 else "greedy")


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse of the linear map from the last axes of `a` to its first `ind` axes.

    >>> fnp.linalg.tensorinv(fnp.eye(24).reshape(6, 4, 8, 3)).shape
    (8, 3, 6, 4)
    """
    a = as_array("tensorinv", a, "a")
    ind = integer("ind", ind)
    if not 0 < ind < a.ndim:
        raise ShapeError(f"tensorinv: ind must be from 1 to {a.ndim - 1}, got {ind}")
    rows, columns = a.shape[:ind], a.shape[ind:]
    if np.prod(rows) != np.prod(columns):
        raise ShapeError(f"tensorinv: the first {ind} and the other axes of {a.aval} hold "
                         "different numbers of elements")  # fmt: skip
    return reshape(inv(reshape(a, (int(np.prod(rows)), -1))), (*columns, *rows))


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """x with tensordot(a, x, x.ndim) = b, after moving `axes` of `a` to its end.

    >>> fnp.linalg.tensorsolve(fnp.eye(6).reshape(6, 2, 3), fnp.ones(6)).shape
    (2, 3)
    """
    a, b = as_array("tensorsolve", a, "a"), as_array("tensorsolve", b, "b")
    if axes is not None:
        axes = canonical_axes("tensorsolve", axes, a.ndim)
        a = moveaxis(a, axes, tuple(range(a.ndim - len(axes), a.ndim)))
    shape = a.shape[b.ndim :]
    if a.shape[: b.ndim] != b.shape or np.prod(shape) != b.size:
        raise ShapeError(f"tensorsolve: a {a.aval} maps to no b {b.aval}")
    return reshape(solve(reshape(a, (b.size, b.size)), reshape(b, (-1,))), shape)
