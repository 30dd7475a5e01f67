"""Functions of `funcgrad.lax.linalg` that are made of others: products, updates, tridiagonals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.numpy._util import as_array
from funcgrad.numpy.linalg.solvers import matrices
from funcgrad.ops.linalg import decompositions
from funcgrad.scipy.linalg.condensed import schur_vectors
from funcgrad.scipy.linalg.factorizations import polar
from funcgrad.transforms.control.scan import scan
from funcgrad.transforms.derivatives.custom import custom_jvp

# ---- products and updates


def symmetric_product(
    a_matrix: Any,
    c_matrix: Any,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    symmetrize_output: bool = False,
) -> Any:
    """alpha a aᵀ + beta c, for matrices a (…, m, n) and symmetric c (…, m, m).

    `symmetrize_output` has no effect: the result is symmetric.

    >>> a, c = fnp.array([[1.0], [2.0]]), fnp.zeros((2, 2))
    >>> lax.linalg.symmetric_product(a, c)
    Array([[1., 2.],
           [2., 4.]], dtype=float32)
    """
    a, c = (matrices("symmetric_product", x) for x in (a_matrix, c_matrix))
    if c.shape != (*a.shape[:-1], a.shape[-2]):
        raise ShapeError(
            f"symmetric_product: need a (…, m, n) and c (…, m, m), got {a.aval} and {c.aval}"
        )
    alpha = as_array("symmetric_product", alpha, "alpha")
    beta = as_array("symmetric_product", beta, "beta")
    product = a @ fnp.matrix_transpose(a)
    lower = fnp.tril(alpha * product + beta * c)
    return lower + fnp.matrix_transpose(fnp.tril(lower, -1))


def cholesky_update(r_matrix: Any, w_vector: Any) -> Any:
    """The upper triangular Cholesky factor of Rᴴ R + w wᴴ, from R.

    >>> lax.linalg.cholesky_update(fnp.array([[3.0]]), fnp.array([4.0]))
    Array([[5.]], dtype=float32)
    """
    r = matrices("cholesky_update", r_matrix, square=True, argument="r_matrix")
    w = fnp.asarray(w_vector)
    if w.shape != r.shape[:-1] or w.dtype != r.dtype:
        raise ShapeError(
            "cholesky_update: need R (…, n, n) and w (…, n) of one dtype, got "
            f"{r.aval} and {w.aval}"
        )
    rows = fnp.concatenate([r, fnp.conj(w)[..., None, :]], axis=-2)
    _, upper = decompositions.qr(rows, full_matrices=False)
    line = fnp.diagonal(upper, axis1=-2, axis2=-1)
    return fnp.where(fnp.real(line) < 0, -1, 1)[..., None].astype(r.dtype) * upper


def qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The polar decomposition u h = x, the number of iterations (1), and that it has converged.

    Singular values are used, so the keywords have no effect.

    >>> lax.linalg.qdwh(fnp.array([[-2.0]]))[:2]
    (Array([[-1.]], dtype=float32), Array([[2.]], dtype=float32))
    """
    u, h = polar(x)
    return u, h, fnp.asarray(1), fnp.asarray(True)


# ---- schur


def schur(
    x: Any,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable | None = None,
) -> Any:
    """T and Z with x = Z T Zᴴ, Z unitary; T alone (in a list) without `compute_schur_vectors`.

    T is upper triangular for complex matrices; for real ones it is real, with a block of 2 × 2 on
    its diagonal for each pair of complex eigenvalues. Eigenvalues aren't sorted.

    >>> t, z = lax.linalg.schur(fnp.array([[1.0, 2.0], [0.0, 3.0]]))
    >>> t
    Array([[1., 2.],
           [0., 3.]], dtype=float32)
    """
    if sort_eig_vals or select_callable is not None:
        raise NotImplementedError("schur: sorting eigenvalues is not implemented")
    if compute_schur_vectors:
        return list(schur_vectors(x))
    return [schur_vectors(x)[0]]


# ---- tridiagonal systems


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """x with a x = b, for tridiagonal a: below the diagonal dl, on it d, above it du.

    All are (…, n) and b is (…, n, k); dl's first element and du's last aren't used. Elimination
    swaps rows where it must. `perturb_singular` replaces pivots that are almost zero.

    >>> dl, d, du = fnp.array([0.0, 1.0]), fnp.array([2.0, 4.0]), fnp.array([0.0, 0.0])
    >>> lax.linalg.tridiagonal_solve(dl, d, du, fnp.array([[2.0], [9.0]]))
    Array([[1.],
           [2.]], dtype=float32)
    """
    dl, d, du, b = (fnp.asarray(x) for x in (dl, d, du, b))
    avals = f"dl {dl.aval}, d {d.aval}, du {du.aval}, b {b.aval}"
    if not dl.shape == d.shape == du.shape:
        raise ShapeError(
            "tridiagonal_solve requires that all diagonal arguments have the same shape, got "
            f"{avals}"
        )
    if not d.ndim or b.ndim != d.ndim + 1 or b.shape[:-1] != d.shape:
        raise ShapeError(
            "tridiagonal_solve requires that the leading ndim-1 dimensions of b equal the "
            f"dimensions of the diagonal arguments, got {avals}"
        )
    if len({x.dtype for x in (dl, d, du, b)}) > 1 or not dtypes.is_inexact(b.dtype):
        raise DTypeError(f"tridiagonal_solve: need one floating-point dtype, got {avals}")
    return _tridiagonal(bool(perturb_singular), dl, d, du, b)


@partial(custom_jvp, nondiff_argnums=0)
def _tridiagonal(perturb: bool, dl: Any, d: Any, du: Any, b: Any) -> Any:
    if not b.shape[-2]:
        return b
    first = [fnp.moveaxis(x, -1, 0) for x in (dl, d, du)]
    below, line, above = (x[..., None] for x in first)
    right = fnp.moveaxis(b, -2, 0)
    above = above.at[-1].set(0)
    none = fnp.zeros_like(line[0])
    eps = float(dtypes.finfo(b.dtype).eps)
    size = sum(fnp.abs(x) for x in (below.at[0].set(0), line, above))
    least = fnp.maximum(fnp.max(size, axis=0) * eps, float(dtypes.finfo(b.dtype).tiny))

    def eliminate(carry: Any, row: Any) -> Any:
        """One row above and the next: the one with the larger first element stays."""
        here, after, rhs = carry
        low, mid, high, value = row
        swap = fnp.abs(here) < fnp.abs(low)
        pivot, other = fnp.where(swap, low, here), fnp.where(swap, here, low)
        factor = other / fnp.where(pivot == 0, 1, pivot)
        kept = (
            pivot,
            fnp.where(swap, mid, after),
            fnp.where(swap, high, none),
            fnp.where(swap, value, rhs),
        )
        next_here = fnp.where(swap, after - factor * mid, mid - factor * after)
        next_after = fnp.where(swap, -factor * high, high)
        next_rhs = fnp.where(swap, rhs - factor * value, value - factor * rhs)
        return (next_here, next_after, next_rhs), kept

    rows = tuple(x[1:] for x in (below, line, above, right))
    last, kept = scan(eliminate, (line[0], above[0], right[0]), rows)
    tail = (last[0], none, none, last[2])
    kept = tuple(fnp.concatenate([x, y[None]]) for x, y in zip(kept, tail, strict=True))

    def substitute(carry: Any, row: Any) -> Any:
        one, two = carry
        pivot, first, second, value = row
        if perturb:
            pivot = fnp.where(fnp.abs(pivot) < least, least.astype(pivot.dtype), pivot)
        x = (value - first * one - second * two) / pivot
        return (x, one), x

    zero = fnp.zeros_like(right[0])
    _, x = scan(substitute, (zero, zero), kept, reverse=True)
    return fnp.moveaxis(x, 0, -2)


def _shifted(x: Any, by: int) -> Any:
    return fnp.roll(x, by, axis=-1)


@_tridiagonal.defjvp
def _tridiagonal_jvp(perturb: bool, primals: Any, tangents: Any) -> Any:
    dl, d, du, b = primals
    t_dl, t_d, t_du, t_b = tangents
    x = _tridiagonal(perturb, dl, d, du, b)
    n = b.shape[-2]
    low = t_dl.at[..., :1].set(0)[..., None] * fnp.roll(x, 1, axis=-2)
    high = t_du.at[..., n - 1 :].set(0)[..., None] * fnp.roll(x, -1, axis=-2)
    return x, _tridiagonal(perturb, dl, d, du, t_b - t_d[..., None] * x - low - high)


@_tridiagonal.deftranspose
def _tridiagonal_transpose(perturb: bool, primals: Any, ct: Any) -> Any:
    dl, d, du, _ = primals
    return None, None, None, _tridiagonal(perturb, _shifted(du, 1), d, _shifted(dl, -1), ct)
