"""Functions of square matrices: exponential, square root, and any function by Schur's form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.numpy.linalg.solvers import adjoint, matrices, solve_matrices
from funcgrad.ops.arguments import check_callable, integer
from funcgrad.ops.linalg.triangular import triangular_solve
from funcgrad.scipy.linalg.condensed import schur
from funcgrad.scipy.linalg.solvers import solve_sylvester
from funcgrad.transforms.control.cond import cond
from funcgrad.transforms.control.while_loop import fori_loop
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.derivatives.linear import jvp

# ---- exponential

# Coefficients of Padé approximants, and norms up to which they are exact to rounding (N. Higham,
# "The scaling and squaring method for the matrix exponential revisited", 2005).
_PADE = {
    7: (17297280.0, 8648640.0, 1995840.0, 277200.0, 25200.0, 1512.0, 56.0, 1.0),
    13: (
        64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
        129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0,
        40840800.0, 960960.0, 16380.0, 182.0, 1.0,
    ),
}  # fmt: skip
_EXACT = {7: 3.925724783138660, 13: 5.371920351148152}


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """The exponential of square matrices, by scaling and squaring. Leading axes are batch.

    Where more than `max_squarings` were needed, the result is NaN. `upper_triangular` promises
    that A is so.

    >>> expm(fnp.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    as_array("expm", A, "A")
    (A,) = promote_inexact("expm", A)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"expm: Expected A to be a (batched) square matrix, got {A.aval}")
    A, most = (
        matrices("expm", A, square=True, argument="A"),
        integer("max_squarings", max_squarings),
    )
    if not A.size:
        return A
    order = 13 if dtypes.real_part(A.dtype) == np.float64 else 7
    norm = fnp.max(fnp.sum(fnp.abs(A), axis=-2), axis=-1)
    squarings = fnp.ceil(fnp.log2(fnp.maximum(norm / _EXACT[order], 1)))
    scale = fnp.exp2(-squarings).astype(A.dtype)
    odd, even = _pade(A * scale[..., None, None], order)
    above, below = even + odd, even - odd
    if upper_triangular:
        start = triangular_solve(below, above, left_side=True)
    else:
        start = solve_matrices(below, above)
    bounds = squarings[..., None, None]

    def square(i: Any, r: Any) -> Any:
        return cond(
            i < fnp.max(squarings), lambda r: fnp.where(i < bounds, r @ r, r), lambda r: r, r
        )

    return fnp.where(bounds > most, float("nan"), fori_loop(0, most, square, start))


def _pade(a: Any, order: int) -> tuple[Any, Any]:
    """The odd and even part of the numerator; the denominator differs in the odd part's sign."""
    c = _PADE[order]
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    eye = fnp.eye(a.shape[-1], dtype=a.dtype)
    odd = c[7] * a6 + c[5] * a4 + c[3] * a2 + c[1] * eye
    even = c[6] * a6 + c[4] * a4 + c[2] * a2 + c[0] * eye
    if order == 13:
        odd = a6 @ (c[13] * a6 + c[11] * a4 + c[9] * a2) + odd
        even = a6 @ (c[12] * a6 + c[10] * a4 + c[8] * a2) + even
    return a @ odd, even


def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """expm(A), and its derivative at A in the direction E; the derivative alone as asked for.

    `method` (None, "SPS" or "blockEnlarge") has no effect: the approximation is differentiated.

    >>> expm_frechet(fnp.array([[0.0]]), fnp.array([[2.0]]))
    (Array([[1.]], dtype=float32), Array([[2.]], dtype=float32))
    """
    as_array("expm_frechet", A, "A"), as_array("expm_frechet", E, "E")
    A, E = promote_inexact("expm_frechet", A, E)
    for name, x in (("A", A), ("E", E)):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ShapeError(
                f"expm_frechet: Expected {name} to be a (batched) square matrix, got {x.aval}"
            )
    if A.shape != E.shape:
        raise ShapeError(
            f"expm_frechet: Expected A and E to be the same shape, got {A.aval} and {E.aval}"
        )
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(within(f"expm_frechet: Unknown method {method!r}"))
    value, change = jvp(expm, (A,), (E,))
    return (value, change) if compute_expm else change


# ---- square root


def sqrtm(A: Any, blocksize: int = 1) -> Any:
    """The principal square root of square matrices, complex. Leading axes are batch.

    >>> sqrtm(fnp.array([[4.0, 0.0], [0.0, 9.0]]))
    Array([[2.+0.j, 0.+0.j],
           [0.+0.j, 3.+0.j]], dtype=complex64)
    """
    if integer("blocksize", blocksize) > 1:
        raise NotImplementedError("sqrtm: the blocked version is not implemented")
    A = matrices("sqrtm", A, square=True, argument="A")
    return _sqrtm(A.astype(dtypes.to_complex(A.dtype)))


@custom_jvp
def _sqrtm(a: Any) -> Any:
    t, z = schur(a, output="complex")
    return z @ _triangular_root(t) @ adjoint(z)


@_sqrtm.defjvp
def _sqrtm_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    root = _sqrtm(a)
    return root, solve_sylvester(root, root, da, tol=0.0)


@partial(fnp.vectorize, signature="(n,n)->(n,n)")
def _triangular_root(t: Any) -> Any:
    """U with U² = t, column by column: above the diagonal (U + u_jj) u = t[:, j]."""
    n, rows = len(t), np.arange(len(t))
    eye = np.eye(n, dtype=bool)
    line = fnp.sqrt(fnp.diagonal(t))

    def column(j: Any, u: Any) -> Any:
        above = rows < j
        sums = fnp.where(above, line + line[j], 1)
        none = sums == 0
        both = above[:, None] & above
        matrix = fnp.where(eye, fnp.where(none, 1, sums), fnp.where(both, u, 0))
        right = fnp.where(above, t[:, j], 0)
        found = triangular_solve(matrix, right, left_side=True)
        # There is no root where something is to be divided by zero.
        found = fnp.where(none & (found != 0), float("inf"), found)
        return u.at[:, j].set(fnp.where(rows == j, line[j], found))

    return fori_loop(0, n, column, fnp.zeros_like(t))


# ---- any function


def funm(A: Any, func: Callable, disp: bool = True) -> Any:
    """A function of numbers, applied to a square matrix: by Schur's form and Parlett's recurrence.

    `func` works elementwise on the complex eigenvalues. Without `disp` the result comes with an
    estimate of its relative error. Equal eigenvalues that aren't on blocks of their own give inf
    or a large error.

    >>> fnp.real(funm(fnp.array([[4.0, 1.0], [0.0, 9.0]]), fnp.sqrt))
    Array([[2. , 0.2],
           [0. , 3. ]], dtype=float32)
    """
    check_callable("func", func)
    A = as_array("funm", A, "A")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"funm: expected square array_like input, got {A.shape}")
    A = matrices("funm", A, square=True, argument="A")
    t, z = schur(A, output="complex")
    n = t.shape[0]
    f = fnp.diag(func(fnp.diagonal(t))).astype(t.dtype)
    gap = _smallest(fnp.abs(t[0, 0]), t)
    for p in range(1, n):
        i, j = np.arange(n - p), np.arange(p, n)
        inside = (np.arange(n) > i[:, None]) & (np.arange(n) < j[:, None])
        rows_t, rows_f = fnp.where(inside, t[i], 0), fnp.where(inside, f[i], 0)
        columns = [fnp.matrix_transpose(x[:, j]) for x in (t, f)]
        s = t[i, j] * (f[j, j] - f[i, i])
        s = s + fnp.sum(rows_t * columns[1] - rows_f * columns[0], axis=-1)
        f = f.at[i, j].set(s / (t[j, j] - t[i, i]))
    result = z @ f @ adjoint(z)
    if disp:
        return result
    eps = float(dtypes.finfo(t.dtype).eps)
    error = fnp.max(fnp.sum(fnp.abs(fnp.triu(f, 1)), axis=0)) * eps / gap
    return result, fnp.minimum(1.0, fnp.maximum(eps, error))


def _smallest(start: Any, t: Any) -> Any:
    """The smallest distance between two eigenvalues, at most `start`; not zero."""
    line = fnp.diagonal(t)
    apart = fnp.where(fnp.eye(len(t), dtype=bool), float("inf"), fnp.abs(line[:, None] - line))
    least = fnp.minimum(start, fnp.min(apart))
    return fnp.where(least == 0, float(dtypes.finfo(t.dtype).eps), least)
