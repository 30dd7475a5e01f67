"""Factorizations under SciPy's names: Cholesky, LU, QR, singular values, eigenvalues, polar."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ConcretizationError, DTypeError, ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.numpy.linalg import factors
from funcgrad.numpy.linalg.solvers import adjoint, matrices
from funcgrad.ops.elementwise.convert import stop_gradient
from funcgrad.ops.linalg import decompositions, triangular
from funcgrad.scipy.linalg.solvers import solve_sylvester
from funcgrad.transforms.derivatives.custom import custom_jvp

# ---- cholesky, lu


def cholesky(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    """The upper triangular U with Uᴴ U = a, or L with L Lᴴ = a if `lower`, a positive definite.

    Only that triangle of `a` is read. A matrix that isn't positive definite gives NaN.

    >>> cholesky(fnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 1.],
           [0., 2.]], dtype=float32)
    """
    a = matrices("cholesky", a, square=True)
    if lower:
        return triangular.cholesky(a, symmetrize_input=False)
    return adjoint(triangular.cholesky(adjoint(a), symmetrize_input=False))


def cho_factor(
    a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Any, bool]:
    """What `cho_solve` takes: `cholesky`'s result, and `lower`.

    >>> cho_factor(fnp.array([[4.0]]))
    (Array([[2.]], dtype=float32), False)
    """
    return cholesky(a, lower), lower


def lu(
    a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Any, ...]:
    """(P, L, U) with P L U = a: a permutation, unit lower and upper triangular matrices.

    With `permute_l` (P L, U). Leading axes are batch.

    >>> p, l, u = lu(fnp.array([[1.0, 2.0], [2.0, 8.0]]))
    >>> u
    Array([[ 2.,  8.],
           [ 0., -2.]], dtype=float32)
    """
    a = matrices("lu", a)
    packed, _, order = triangular.lu(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    p = (order[..., None, :] == np.arange(m)[:, None]).astype(dtypes.real_part(a.dtype))
    low = fnp.tril(packed[..., :k], -1) + fnp.eye(m, k, dtype=a.dtype)
    up = fnp.triu(packed[..., :k, :])
    return (p.astype(a.dtype) @ low, up) if permute_l else (p, low, up)


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """What `lu_solve` takes: L and U in one matrix, and the row that each row was swapped with.

    >>> lu_factor(fnp.array([[1.0, 2.0], [2.0, 8.0]]))[1]
    Array([1, 1], dtype=int32)
    """
    return triangular.lu(matrices("lu_factor", a))[:2]


# ---- qr, svd


def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Any, ...]:
    """Q with orthonormal columns and upper triangular R with Q R = a.

    Mode "full" gives all columns, "economic" min(m, n) of them, "r" R alone (in a tuple). With
    `pivoting` the order of columns p comes last: Q R = a[:, p], and R's diagonal descends.

    >>> q, r, p = qr(fnp.array([[0.0, 2.0], [-1.0, 3.0]]), pivoting=True)
    >>> p
    Array([1, 0], dtype=int32)
    """
    if mode not in ("full", "r", "economic"):
        raise ValueError(within(f"qr: Unsupported QR decomposition mode '{mode}'"))
    full = mode != "economic"
    out = decompositions.qr(matrices("qr", a), pivoting=pivoting, full_matrices=full)
    return out[1:] if mode == "r" else out


def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Any, ...]:
    """(c Q, R), or (Q c, R) with mode "left", Q having min(m, n) columns; see `qr`.

    `conjugate` multiplies by the conjugate of Q. With `pivoting` the order of columns comes last.

    >>> cq, r = qr_multiply(fnp.array([[0.0, 2.0], [-1.0, 0.0]]), fnp.array([1.0, 0.0]))
    >>> fnp.abs(cq)
    Array([0., 1.], dtype=float32)
    """
    if mode not in ("left", "right"):
        raise ValueError(within(f"qr_multiply: mode must be 'right' or 'left', got {mode!r}"))
    as_array("qr_multiply", a, "a"), as_array("qr_multiply", c, "c")
    a, c = promote_inexact("qr_multiply", a, c)
    q, r, *order = decompositions.qr(
        matrices("qr_multiply", a), pivoting=pivoting, full_matrices=False
    )
    k = q.shape[-1]
    left, vector = mode == "left", c.ndim == 1
    if not c.ndim:
        raise ShapeError(f"qr_multiply: c must have an axis, got {c.aval}")
    if vector:
        c = c[:, None] if left else c[None, :]
    if c.shape[-2 if left else -1] != q.shape[-1 if left else -2]:
        side = "rows" if left else "columns"
        need = k if left else a.shape[-2]
        raise ShapeError(f"qr_multiply: c must have {need} {side}, got a {a.aval} and c {c.aval}")
    q = fnp.conj(q) if conjugate else q
    product = q @ c if left else c @ q
    return (fnp.ravel(product) if vector else product, r, *order)


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """U, s and Vᴴ with U diag(s) Vᴴ = a, the singular values s in descending order; or s alone.

    >>> svd(fnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    out = factors.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(out) if compute_uv else out


# ---- eigenvalues


def eigh(
    a: Any,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """Ascending eigenvalues, and orthonormal eigenvectors unless `eigvals_only`, of Hermitian a.

    With a positive definite b the values are those of a v = w b v, and vᴴ b v is 1. Types 2
    (a b v = w v) and 3 (b a v = w v) as SciPy has them.

    >>> eigh(fnp.array([[2.0, 0.0], [0.0, 1.0]]), eigvals_only=True)
    Array([1., 2.], dtype=float32)
    """
    if eigvals is not None:
        raise NotImplementedError("eigh: Only the eigvals=None case of eigh is implemented")
    if type not in (1, 2, 3):
        raise ValueError(within(f"eigh: type must be 1, 2 or 3, got {type!r}"))
    as_array("eigh", a, "a")
    if b is None:
        a = matrices("eigh", a, square=True)
        v, w = decompositions.eigh(a, lower=lower)
        return w if eigvals_only else (w, v)
    as_array("eigh", b, "b")
    a, b = promote_inexact("eigh", a, b)
    a, b = matrices("eigh", a, square=True), matrices("eigh", b, square=True, argument="b")
    low = cholesky(b, lower=True)
    a, low = fnp.broadcast_arrays(a, low)
    solve = partial(triangular.triangular_solve, left_side=True, lower=True)
    if type == 1:
        inner = adjoint(solve(low, adjoint(solve(low, a))))
    else:
        inner = adjoint(low) @ a @ low
    v, w = decompositions.eigh(inner, lower=lower)
    if eigvals_only:
        return w
    if type == 3:
        return w, low @ v
    return w, solve(low, v, transpose_a=True, conjugate_a=True)


def eigh_tridiagonal(
    d: Any,
    e: Any,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: Any = None,
) -> Any:
    """Ascending eigenvalues and eigenvectors of the Hermitian matrix with diagonal d and e below.

    `select` takes all ("a"), those with indices from select_range[0] to select_range[1] ("i"), or
    those in the interval (low, high] of values ("v", not while tracing). `tol` and `key` have no
    effect.

    >>> d, e = fnp.array([2.0, 2.0]), fnp.array([1.0])
    >>> fnp.round(eigh_tridiagonal(d, e, eigvals_only=True), 3)
    Array([1., 3.], dtype=float32)
    """
    d, e = as_array("eigh_tridiagonal", d, "d"), as_array("eigh_tridiagonal", e, "e")
    if d.dtype != e.dtype or not dtypes.is_inexact(d.dtype) or d.dtype.itemsize < 4:
        raise DTypeError(
            "eigh_tridiagonal: d and e must have the same dtype, of float32, float64, complex64 or "
            f"complex128, got d {d.aval} and e {e.aval}"
        )
    if d.ndim != 1 or e.shape != (max(0, d.shape[0] - 1),):
        raise ShapeError(f"eigh_tridiagonal: need d (n,) and e (n - 1,), got {d.aval} and {e.aval}")
    if select not in ("a", "i", "v"):
        raise ValueError(within(f"eigh_tridiagonal: select must be a, i or v, got {select!r}"))
    if select != "a" and select_range is None:
        raise ValueError(
            within(f"eigh_tridiagonal: for select='{select}', select_range must be specified")
        )
    if not dtypes.is_complex(d.dtype):
        line = d
    else:
        line = d.real.astype(d.dtype)
    a = fnp.diag(line) + fnp.diag(e, -1)
    v, w = decompositions.eigh_p.bind(a, lower=True, compute_vectors=True)
    if select_range is not None and select != "a":
        low, high = select_range
        if select == "i":
            if low > high or low < 0:
                raise ValueError(within("eigh_tridiagonal: got empty index range in select_range"))
            w, v = w[int(low) : int(high) + 1], v[:, int(low) : int(high) + 1]
        else:
            w, v = _within(w, v, low, high)
    return w if eigvals_only else (w, v)


def _within(w: Any, v: Any, low: Any, high: Any) -> tuple[Any, Any]:
    try:
        values = np.asarray(stop_gradient(w))
    except ConcretizationError:
        raise NotImplementedError(
            "eigh_tridiagonal: with select='v' the number of values isn't known while tracing"
        ) from None
    kept = np.flatnonzero((values > low) & (values <= high))
    return w[kept], v[:, kept]


# ---- polar


@custom_jvp
def _polar(a: Any) -> tuple[Any, Any]:
    u, s, vh = factors.svd(a, full_matrices=False)
    return u @ vh, adjoint(vh) @ (s[..., None].astype(a.dtype) * vh)


@_polar.defjvp
def _polar_jvp(primals: Any, tangents: Any) -> Any:
    """uᴴ du = Ω solves Ω p + p Ω = uᴴ da - daᴴ u; what is outside of u's range is da p⁻¹."""
    (a,), (da,) = primals, tangents
    u, p = _polar(a)
    inner = adjoint(u) @ da
    turn = solve_sylvester(p, p, inner - adjoint(inner))
    du = u @ turn
    if a.shape[-2] > a.shape[-1]:
        outside = da - u @ inner
        du = du + adjoint(fnp.linalg.solve(p, adjoint(outside)))
    dp = inner - turn @ p
    return (u, p), (du, (dp + adjoint(dp)) / 2)


def polar(
    a: Any,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Any, Any]:
    """u with orthonormal columns (or rows), and p positive semidefinite, with u p = a.

    With side "left" p u = a. `method` ("qdwh" or "svd"), `eps` and `max_iterations` have no effect:
    singular values are used.

    >>> u, p = polar(fnp.array([[0.0, 2.0], [-1.0, 0.0]]))
    >>> p
    Array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    if side not in ("left", "right"):
        raise ValueError(
            within(f"polar: The argument `side` must be either 'right' or 'left', got {side!r}")
        )
    if method not in ("qdwh", "svd"):
        raise ValueError(within(f"polar: Unknown polar decomposition method {method}"))
    a = matrices("polar", a)
    wide = a.shape[-2] < a.shape[-1]
    # The unitary factor is the same on both sides; the other one is small where a is tall.
    if wide:
        u, p = _polar(adjoint(a))
        u = adjoint(u)
        return u, p if side == "left" else _hermitian(adjoint(u) @ a)
    u, p = _polar(a)
    return u, p if side == "right" else _hermitian(a @ adjoint(u))


def _hermitian(x: Any) -> Any:
    return (x + adjoint(x)) / 2
