"""Schur's decomposition and Hessenberg form of square matrices, with their derivatives.

Of a = Z T Zᴴ with X = Zᴴ dZ, which is skew-Hermitian, dT = Zᴴ da Z - (X T - T X). As T keeps its
zeros, what is below them determines X, column by column. Diagonal blocks of 2 × 2 keep equal
diagonals, too. Where eigenvalues coincide, or vectors may have any phase, the part is left out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.numpy.linalg.factors import eigvals
from funcgrad.numpy.linalg.solvers import adjoint, matrices
from funcgrad.ops.linalg.condensed import hessenberg_p, schur_p
from funcgrad.ops.linalg.reflections import householder_product
from funcgrad.ops.linalg.triangular import triangular_solve
from funcgrad.transforms.control.while_loop import fori_loop
from funcgrad.transforms.derivatives.custom import custom_jvp

# ---- schur


@custom_jvp
def schur_vectors(a: Any) -> tuple[Any, Any]:
    """T and Z with a = Z T Zᴴ, of square matrices in a dtype of linear algebra."""
    t, z = schur_p.bind(a, compute_schur_vectors=True)
    return t, z


@schur_vectors.defjvp
def _schur_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    t, z = schur_vectors(a)
    if not a.shape[-1]:
        return (t, z), (t, z)
    change = adjoint(z) @ da @ z
    return (t, z), _schur_tangents(t, z, change)


@partial(fnp.vectorize, signature="(n,n),(n,n),(n,n)->(n,n),(n,n)")
def _schur_tangents(t: Any, z: Any, change: Any) -> tuple[Any, Any]:
    n = len(t)
    real = not dtypes.is_complex(t.dtype)
    if not real or n == 1:
        x = _turn(t, change, np.arange(n))
        x = x - adjoint(x)
        return fnp.triu(change - (x @ t - t @ x)), z @ x
    # Blocks by their first row; rows of a column's own block are no unknowns.
    first = fnp.concatenate([fnp.diagonal(t, -1) != 0, fnp.zeros(1, bool)])
    low, high = fnp.where(first, _beside(t, -1), 0), fnp.where(first, _beside(t, 1), 0)
    u = _eigenbasis(first, high, low)
    x = _turn(adjoint(u) @ t @ u, adjoint(u) @ change @ u, np.arange(n) + first)
    x = (u @ x @ adjoint(u)).real
    x = x - x.T
    rest = change - (x @ t - t @ x)
    line = fnp.diagonal(rest)
    gap, both = fnp.roll(line, -1) - line, 2 * (low + high)
    angle = fnp.where(first & (both != 0), gap / fnp.where(both == 0, 1, both), 0)
    block = fnp.diag(angle[:-1], -1)
    block = block - block.T
    rest = rest - (block @ t - t @ block)
    inside = fnp.diag(first[:-1], -1)
    return fnp.where(inside, rest, fnp.triu(rest)), z @ (x + block)


def _beside(t: Any, k: int) -> Any:
    return fnp.concatenate([fnp.diagonal(t, k), fnp.zeros(1, t.dtype)])


def _eigenbasis(first: Any, high: Any, low: Any) -> Any:
    """The unitary matrix of blocks that makes blocks (a b; c a), b c < 0, triangular."""
    turn = fnp.where(first, fnp.sqrt(fnp.where(first, -high * low, 1)), 0)
    size = fnp.sqrt(fnp.where(first, high * high + turn * turn, 1))
    cosine, sine = fnp.where(first, high / size, 1), 1j * turn / size
    second = fnp.concatenate([fnp.zeros(1, bool), first[:-1]])
    line = fnp.where(second, fnp.roll(cosine, 1), cosine) + 0j
    return fnp.diag(line) + fnp.diag(sine[:-1], -1) + fnp.diag(sine[:-1], 1)


def _turn(t: Any, change: Any, last: Any) -> Any:
    """L with rows beyond last[j] in column j such that L T - T L is `change` there, T triangular.

    Column j solves (T[j, j] - T) L[:, j] = change[:, j] - Σ L[:, k] T[k, j] over columns k < j.
    """
    n, rows = len(t), np.arange(len(t))
    eye = np.eye(n, dtype=bool)
    far = float(np.sqrt(dtypes.finfo(t.dtype).max))
    last = fnp.array(last)

    def column(j: Any, found: Any) -> Any:
        unknown = rows > last[j]
        right = fnp.where(unknown, change[:, j] - found @ t[:, j], 0)
        both = unknown[:, None] & unknown
        matrix = fnp.where(both, fnp.where(eye, t[j, j], 0) - t, eye)
        # Equal eigenvalues turn by nothing.
        matrix = fnp.where(eye & (matrix == 0), far, matrix)
        return found.at[:, j].set(triangular_solve(matrix, right, left_side=True))

    return fori_loop(0, n, column, fnp.zeros_like(change))


def schur(a: Any, output: str = "real") -> tuple[Any, Any]:
    """T and Z with a = Z T Zᴴ, Z unitary and T upper triangular.

    With `output` "real" a real matrix has a real T, with a block of 2 × 2 on its diagonal for each
    pair of complex eigenvalues; with "complex" T is triangular. Leading axes are batch.

    >>> t, z = schur(fnp.array([[0.0, 2.0], [-2.0, 0.0]]), output="complex")
    >>> fnp.round(fnp.diagonal(t), 3)
    Array([0.+2.j, 0.-2.j], dtype=complex64)
    """
    if output not in ("real", "complex"):
        raise ValueError(
            within(f"schur: Expected 'output' to be either 'real' or 'complex', got {output!r}")
        )
    a = matrices("schur", a, square=True)
    return schur_vectors(a if output == "real" else a.astype(dtypes.to_complex(a.dtype)))


def rsf2csf(T: Any, Z: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """The complex Schur form of matrices, from their real one: blocks become triangles.

    >>> t, z = schur(fnp.array([[0.0, 2.0], [-2.0, 0.0]]))
    >>> fnp.round(fnp.diagonal(rsf2csf(t, z)[0]).imag, 3)
    Array([ 2., -2.], dtype=float32)
    """
    T, Z = as_array("rsf2csf", T, "T"), as_array("rsf2csf", Z, "Z")
    for name, x in (("T", T), ("Z", Z)):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"rsf2csf: Input '{name}' must be square, got {x.shape}")
    if T.shape[-1] != Z.shape[-1]:
        raise ShapeError(f"rsf2csf: Input array shapes must match: Z: {Z.shape} vs. T: {T.shape}")
    T, Z = promote_inexact("rsf2csf", T, Z)
    kind = dtypes.to_complex(T.dtype)
    return _rsf2csf(T.astype(kind), Z.astype(kind))


@partial(fnp.vectorize, signature="(n,n),(n,n)->(n,n),(n,n)")
def _rsf2csf(t: Any, z: Any) -> tuple[Any, Any]:
    n = len(t)
    if n < 2:
        return t, z
    eps, place = float(dtypes.finfo(t.dtype).eps), np.arange(2)

    def turn(i: Any, both: Any) -> tuple[Any, Any]:
        """Make element (m, m - 1) zero, m from the last row up."""
        t, z = both
        m = n - i
        pair = m - 1 + place
        rows = t[pair]
        a, c, d = rows[0, m - 1], rows[1, m - 1], rows[1, m]
        shift = eigvals(rows[:, pair])[0] - d
        size = fnp.hypot(fnp.abs(shift), fnp.abs(c))
        large = fnp.abs(c) > eps * (fnp.abs(a) + fnp.abs(d))
        cosine = fnp.where(large, shift / fnp.where(large, size, 1), 1)
        sine = fnp.where(large, c / fnp.where(large, size, 1), 0)
        g = fnp.stack([fnp.stack([cosine.conj(), sine]), fnp.stack([-sine, cosine])])
        back = g.conj().T
        after = np.arange(n) >= m - 1
        t = t.at[pair].set(fnp.where(after, g @ rows, rows))
        columns = t[:, pair]
        upper = (np.arange(n) <= m)[:, None]
        t = t.at[:, pair].set(fnp.where(upper, columns @ back, columns))
        return t.at[m, m - 1].set(0), z.at[:, pair].set(z[:, pair] @ back)

    return fori_loop(1, n, turn, (t, z))


# ---- hessenberg


@custom_jvp
def _hessenberg(a: Any) -> tuple[Any, Any]:
    n = a.shape[-1]
    if n < 2:
        return a, fnp.broadcast_to(fnp.eye(n, dtype=a.dtype), a.shape)
    packed, taus = hessenberg_p.bind(a)
    inner = householder_product(packed[..., 1:, :-1], taus)
    wide = fnp.pad(inner, ((0, 0),) * (a.ndim - 2) + ((1, 0), (1, 0)))
    return fnp.triu(packed, -1), wide.at[..., 0, 0].set(1)


@_hessenberg.defjvp
def _hessenberg_jvp(primals: Any, tangents: Any) -> Any:
    (a,), (da,) = primals, tangents
    h, q = _hessenberg(a)
    if a.shape[-1] < 2:
        return (h, q), (da, fnp.zeros_like(q))
    return (h, q), _hessenberg_tangents(h, q, adjoint(q) @ da @ q)


@partial(fnp.vectorize, signature="(n,n),(n,n),(n,n)->(n,n),(n,n)")
def _hessenberg_tangents(h: Any, q: Any, change: Any) -> tuple[Any, Any]:
    """The first column of X is zero, and each gives the next: X H - H X is known below H."""
    n, rows = len(h), np.arange(len(h))

    def column(j: Any, x: Any) -> Any:
        full = x - adjoint(fnp.tril(x, -1))
        right = change[:, j] - full @ h[:, j] + h @ full[:, j]
        step = h[j + 1, j]
        found = right / fnp.where(step == 0, 1, step)
        # The diagonal of X is imaginary; it keeps the elements beside H's diagonal real.
        found = fnp.where(rows == j + 1, found - found.real, found)
        known = (rows > j) & (step != 0)
        return x.at[:, j + 1].set(fnp.where(known, found, 0))

    x = fori_loop(0, n - 1, column, fnp.zeros_like(change))
    x = x - adjoint(fnp.tril(x, -1))
    return fnp.triu(change - (x @ h - h @ x), -1), q @ x


def hessenberg(
    a: Any, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    """H with a = Q H Qᴴ, Q unitary and H zero below the diagonal that is beneath the main one.

    With `calc_q` the result is (H, Q). Leading axes are batch.

    >>> a = fnp.array([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [4.0, 7.0, 8.0]])
    >>> h, q = hessenberg(a, calc_q=True)
    >>> fnp.allclose(q @ h @ q.T, a, atol=1e-5)
    Array(True, dtype=bool)
    """
    h, q = _hessenberg(matrices("hessenberg", a, square=True))
    return (h, q) if calc_q else h
