"""Decompositions of matrices: Cholesky, QR, singular values, eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from funcgrad.numpy._util import convert
from funcgrad.numpy.elementwise.arithmetic import sign
from funcgrad.numpy.linalg.solvers import adjoint, matrices
from funcgrad.numpy.manipulation.shape import flip
from funcgrad.numpy.manipulation.sorting import argsort
from funcgrad.ops.elementwise.arithmetic import abs as magnitude
from funcgrad.ops.linalg import decompositions as ops
from funcgrad.ops.linalg import triangular
from funcgrad.ops.shape import broadcast_in_dim
from funcgrad.ops.sort import take_along_axis

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "cholesky", "eig", "eigh", "eigvals",
    "eigvalsh", "qr", "svd", "svdvals",
]  # fmt: skip


class EigResult(NamedTuple):
    """Eigenvalues, and eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Ascending real eigenvalues, and orthonormal eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Orthonormal columns Q, and upper triangular R."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """U, the singular values in descending order, and Vᴴ."""

    U: Any
    S: Any
    Vh: Any


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Any:
    """The lower triangular L with L Lᴴ = a (or, if `upper`, U = Lᴴ), a positive definite.

    `symmetrize_input` takes (a + aᴴ) / 2 first; else only the triangle asked for is read. A
    matrix that isn't positive definite gives NaN.

    >>> fnp.linalg.cholesky(fnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    a = matrices("cholesky", a, square=True)
    if upper and not symmetrize_input:
        a = adjoint(a)
    low = triangular.cholesky(a, symmetrize_input=symmetrize_input)
    return adjoint(low) if upper else low


def qr(a: Any, mode: str = "reduced") -> Any:
    """Q with orthonormal columns and upper triangular R with Q R = a.

    For matrices (m, n), mode "reduced" gives Q (m, k) and R (k, n) with k = min(m, n), "complete"
    Q (m, m) and R (m, n), "r" R alone. Tall matrices are differentiable in mode "reduced".

    >>> q, r = fnp.linalg.qr(fnp.array([[0.0, 2.0], [-1.0, 3.0]]))
    >>> fnp.abs(r)
    Array([[1., 3.],
           [0., 2.]], dtype=float32)
    """
    if mode not in ("reduced", "complete", "r"):
        raise ValueError(f"qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    q, r = ops.qr(matrices("qr", a), full_matrices=mode == "complete")
    return r if mode == "r" else QRResult(q, r)


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """U, S and Vᴴ with U diag(S) Vᴴ = a, the singular values S in descending order; or S alone.

    For matrices (m, n), U is (m, m) and Vᴴ (n, n); without `full_matrices` they are (m, k) and
    (k, n) with k = min(m, n), and only then are matrices that aren't square differentiable.
    `hermitian` promises that a is Hermitian, which is faster.

    >>> fnp.linalg.svd(fnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    a = matrices("svd", a, square=hermitian)
    if not hermitian:
        out = ops.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)
        return SVDResult(*out) if compute_uv else out
    v, w = ops.eigh(a)
    size = magnitude(w)
    order = flip(argsort(size, axis=-1), -1)
    s = take_along_axis(size, order, order.ndim - 1)
    if not compute_uv:
        return s
    axes = (*range(a.ndim - 2), a.ndim - 1)
    columns = broadcast_in_dim(order, a.shape, axes)
    v = take_along_axis(v, columns, a.ndim - 1)
    signs = sign(take_along_axis(w, order, order.ndim - 1))
    signs = signs + (signs == 0)
    return SVDResult(v * convert(signs, a.dtype)[..., None, :], s, adjoint(v))


def svdvals(x: Any, /) -> Any:
    """The singular values of matrices, in descending order.

    >>> fnp.linalg.svdvals(fnp.array([[3.0, 0.0], [0.0, 4.0]]))
    Array([4., 3.], dtype=float32)
    """
    return ops.svd(matrices("svdvals", x, argument="x"), compute_uv=False)


def eig(a: Any) -> EigResult:
    """Eigenvalues and eigenvectors (columns of norm 1) of square matrices, all complex.

    >>> fnp.linalg.eig(fnp.array([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    a = matrices("eig", a, square=True)
    return EigResult(*ops.eig(a, compute_left_eigenvectors=False))


def eigvals(a: Any) -> Any:
    """The eigenvalues of square matrices, complex.

    >>> fnp.linalg.eigvals(fnp.array([[2.0, 1.0], [0.0, 3.0]]))
    Array([2.+0.j, 3.+0.j], dtype=complex64)
    """
    a = matrices("eigvals", a, square=True)
    return ops.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def _hermitian(
    compute: Callable, name: str, a: Any, UPLO: str | None, symmetrize_input: bool
) -> Any:
    uplo = "L" if UPLO is None else str(UPLO).upper()
    if uplo not in ("L", "U"):
        raise ValueError(f"{name}: UPLO must be 'L' or 'U', got {UPLO!r}")
    a = matrices(name, a, square=True)
    return compute(a, lower=uplo == "L", symmetrize_input=symmetrize_input)


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Ascending eigenvalues and orthonormal eigenvectors (columns) of Hermitian matrices.

    `symmetrize_input` takes (a + aᴴ) / 2 first; else only the lower ("L") or upper ("U") triangle
    is read. Eigenvectors of equal eigenvalues have no derivative; there it leaves out what is
    arbitrary.

    >>> fnp.linalg.eigh(fnp.array([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    Array([1., 2.], dtype=float32)
    """
    v, w = _hermitian(ops.eigh, "eigh", a, UPLO, symmetrize_input)
    return EighResult(w, v)


def eigvalsh(a: Any, UPLO: str | None = None, *, symmetrize_input: bool = True) -> Any:
    """The ascending eigenvalues of Hermitian matrices; see `eigh`.

    >>> fnp.linalg.eigvalsh(fnp.array([[2.0, 0.0], [0.0, 1.0]]))
    Array([1., 2.], dtype=float32)
    """
    return _hermitian(ops.eigvalsh, "eigvalsh", a, UPLO, symmetrize_input)
