"""Products of Householder's reflections, as LAPACK stores them: H₁ H₂ … Hₖ = 1 - V T Vᴴ.

T is upper triangular, with T⁻¹ = diag(τ)⁻¹ + the strict upper triangle of VᴴV (Schreiber and Van
Loan, "A storage-efficient WY representation for products of Householder transformations", 1989).
"""

from __future__ import annotations

from typing import Any

from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise.arithmetic import conj, mul, sub
from funcgrad.ops.families import add
from funcgrad.ops.linalg.matrices import (
    adjoint,
    as_columns,
    check_matrices,
    eye_like,
    matmul,
    tril,
    triu,
)
from funcgrad.ops.linalg.triangular import triangular_solve
from funcgrad.ops.slicing import slice_p


def _vectors(name: str, a: Any, taus: Any, tall: bool = False) -> Any:
    """V, a column for each element of `taus`."""
    x, t = aval_of(a), aval_of(taus)
    check_matrices(name, x)
    *lead, m, n = x.shape
    k = t.shape[-1] if t.ndim else 0
    if k > min(m, n) or (tall and m < n) or t.shape != (*lead, k):
        need = "m >= n >= k" if tall else "m, n >= k"
        raise ShapeError(
            f"{name}: need a (…, m, n) and taus (…, k) with {need}, got a {x} and taus {t}"
        )
    if x.dtype != t.dtype:
        raise DTypeError(f"{name}: a and taus must have one dtype, got a {x} and taus {t}")
    columns = slice_p.bind(
        a, start_indices=(0,) * x.ndim, limit_indices=(*lead, m, k), strides=None
    )
    return add(tril(columns, -1), eye_like(columns))


def _reflected(v: Any, taus: Any, c: Any, adjoint_of: bool = False) -> Any:
    """Q c with Q = 1 - V T Vᴴ, or Qᴴ c."""
    k = aval_of(taus).shape[-1]
    if not k:
        return c
    columns = aval_of(c).shape[-1]
    inner = matmul(adjoint(v), c)
    # T is (1 + diag(τ) U)⁻¹ diag(τ), which asks for no τ that isn't zero.
    weighted = mul(as_columns(taus, k), triu(matmul(adjoint(v), v), 1))
    if adjoint_of:
        inner = triangular_solve(
            weighted, inner, left_side=True, transpose_a=True, conjugate_a=True, unit_diagonal=True
        )
        inner = mul(as_columns(_conj(taus), columns), inner)
    else:
        inner = mul(as_columns(taus, columns), inner)
        inner = triangular_solve(weighted, inner, left_side=True, unit_diagonal=True)
    return sub(c, matmul(v, inner))


def _conj(x: Any) -> Any:
    return conj(x) if aval_of(x).dtype.kind == "c" else x


def householder_product(a: Any, taus: Any) -> Any:
    """The first n columns of H₁ H₂ … Hₖ with Hᵢ = 1 - τᵢ vᵢ vᵢᴴ, as LAPACK stores a QR.

    a is (…, m, n) with m ≥ n ≥ k; vᵢ is column i of a below the diagonal, 1 on it, 0 above; taus is
    (…, k). Raises ShapeError for other shapes.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.linalg.householder_product(np.float32([[5], [1]]), np.float32([1]))
    Array([[ 0.],
           [-1.]], dtype=float32)
    """
    return _reflected(_vectors("householder_product", a, taus, tall=True), taus, eye_like(a))


def ormqr(a: Any, taus: Any, c: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """Q c, or c Q without `left`, with Q = H₁ H₂ … Hₖ of all rows of a; Qᴴ if `transpose`.

    a and taus hold the reflections as in `householder_product`; c has the leading axes of a, and as
    many rows (columns without `left`) as a has rows.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> a, taus, c = np.float32([[5], [1]]), np.float32([1]), np.float32([[1], [2]])
    >>> lax.linalg.ormqr(a, taus, c)
    Array([[-2.],
           [-1.]], dtype=float32)
    """
    v = _vectors("ormqr", a, taus)
    x, y = aval_of(a), aval_of(c)
    if y.ndim != x.ndim or y.shape[:-2] != x.shape[:-2]:
        raise ShapeError(f"ormqr: c must have the leading axes of a, got a {x} and c {y}")
    if y.shape[-2 if left else -1] != x.shape[-2]:
        side = "rows" if left else "columns"
        raise ShapeError(f"ormqr: c must have {x.shape[-2]} {side}, got a {x} and c {y}")
    if left:
        return _reflected(v, taus, c, transpose)
    return adjoint(_reflected(v, taus, adjoint(c), not transpose))
