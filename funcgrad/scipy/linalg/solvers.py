"""Solutions of linear equations under SciPy's names, and of Sylvester's equation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.numpy.linalg import solvers
from funcgrad.numpy.linalg.solvers import adjoint, matrices
from funcgrad.ops.arguments import integer
from funcgrad.ops.elementwise.convert import stop_gradient
from funcgrad.ops.linalg import triangular
from funcgrad.ops.linalg.condensed import schur_p
from funcgrad.ops.linalg.triangular import triangular_solve
from funcgrad.ops.sort import argsort
from funcgrad.transforms.control.while_loop import fori_loop
from funcgrad.transforms.derivatives.custom import custom_jvp


def _system(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Square matrices and right-hand sides of one dtype and batch; whether b held vectors."""
    as_array(name, a, "a"), as_array(name, b, "b")
    a, b = promote_inexact(name, a, b)
    a = matrices(name, a, square=True)
    n = a.shape[-1]
    vectors = b.ndim == 1 or (a.ndim == b.ndim + 1 and b.shape[-1] == n)
    columns = b[..., None] if vectors else b
    if columns.ndim < 2 or columns.shape[-2] != n:
        raise ShapeError(f"{name}: b must have as many rows as a, got a {a.aval} and b {b.aval}")
    lead = fnp.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    return (
        fnp.broadcast_to(a, (*lead, n, n)),
        fnp.broadcast_to(columns, (*lead, *columns.shape[-2:])),
        vectors,
    )


def _pair(name: str, argument: str, x: Any) -> tuple[Any, Any]:
    if not isinstance(x, tuple | list) or len(x) != 2:
        raise ArgumentError(f"{name}: {argument} must be a pair, got {x!r:.80}")
    return x[0], x[1]


def _as_given(x: Any, vectors: bool) -> Any:
    return x[..., 0] if vectors else x


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Any:
    """x with a x = b for triangular a; aᵀ x = b with `trans` 1 or "T", aᴴ x = b with 2 or "C".

    Only the upper (or `lower`) triangle of a is read. Leading axes broadcast.

    >>> solve_triangular(fnp.array([[2.0, 0.0], [1.0, 4.0]]), fnp.array([2.0, 9.0]), lower=True)
    Array([1., 2.], dtype=float32)
    """
    way = {"N": 0, "T": 1, "C": 2}.get(trans, -1) if isinstance(trans, str) else trans
    if type(way) is not int or way not in (0, 1, 2):
        raise ValueError(within(f"solve_triangular: Invalid 'trans' value {trans}"))
    a, b, vectors = _system("solve_triangular", a, b)
    x = triangular_solve(
        a,
        b,
        left_side=True,
        lower=lower,
        unit_diagonal=unit_diagonal,
        transpose_a=way > 0,
        conjugate_a=way == 2,
    )
    return _as_given(x, vectors)


def solve_banded(
    l_and_u: tuple[int, int],
    ab: Any,
    b: Any,
    overwrite_ab: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """x with a x = b for a matrix a of l diagonals below the main one and u above it.

    `ab[..., u + i - j, j]` is `a[..., i, j]`: a row for each diagonal, the topmost first. The whole
    matrix is made and solved with pivoting, in n² memory.

    >>> ab = fnp.array([[0.0, 1.0, 1.0], [2.0, 3.0, 4.0]])
    >>> solve_banded((0, 1), ab, fnp.array([4.0, 9.0, 12.0]))
    Array([1., 2., 3.], dtype=float32)
    """
    low, up = (
        integer("solve_banded: l_and_u", n) for n in _pair("solve_banded", "l_and_u", l_and_u)
    )
    if low < 0 or up < 0:
        raise ArgumentError(f"solve_banded: l_and_u must be 0 or more, got {l_and_u}")
    ab = matrices("solve_banded", as_array("solve_banded", ab, "ab"))
    rows, n = ab.shape[-2:]
    if rows != low + up + 1:
        raise ShapeError(
            f"solve_banded: ab must have l + u + 1 = {low + up + 1} rows, one a diagonal, "
            f"got {ab.aval}"
        )
    i, j = np.arange(n)[:, None], np.arange(n)
    row = up + i - j
    inside = (row >= 0) & (row < rows)
    a = fnp.where(inside, ab[..., np.where(inside, row, 0), np.broadcast_to(j, (n, n))], 0)
    return solve(a, b)


def cho_solve(
    c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """x with a x = b, from `cho_factor` of a.

    >>> from funcgrad.scipy.linalg import cho_factor
    >>> cho_solve(cho_factor(fnp.array([[4.0, 2.0], [2.0, 5.0]])), fnp.array([8.0, 12.0]))
    Array([1., 2.], dtype=float32)
    """
    c, lower = _pair("cho_solve", "c_and_lower", c_and_lower)
    c, b, vectors = _system("cho_solve", c, b)
    solve = partial(triangular_solve, c, left_side=True, lower=bool(lower))
    back = partial(solve, transpose_a=True, conjugate_a=True)
    first, last = (solve, back) if lower else (back, solve)
    return _as_given(last(first(b)), vectors)


def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: Any,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Any:
    """x with a x = b, from `lu_factor` of a; aᵀ x = b with `trans` 1, aᴴ x = b with 2.

    >>> from funcgrad.scipy.linalg import lu_factor
    >>> lu_solve(lu_factor(fnp.array([[1.0, 2.0], [2.0, 8.0]])), fnp.array([5.0, 18.0]))
    Array([1., 2.], dtype=float32)
    """
    lu, pivots = _pair("lu_solve", "lu_and_piv", lu_and_piv)
    if type(trans) is not int or trans not in (0, 1, 2):
        raise ValueError(within(f"lu_solve: 'trans' value must be 0, 1, or 2, got {trans}"))
    lu, b, vectors = _system("lu_solve", lu, b)
    pivots = as_array("lu_solve", pivots, "piv")
    order = triangular.lu_pivots_to_permutation(pivots.astype("int32"), lu.shape[-1])
    order = fnp.broadcast_to(order, lu.shape[:-1])
    rows = partial(fnp.take_along_axis, axis=-2)
    solve = partial(
        triangular_solve, lu, left_side=True, transpose_a=trans > 0, conjugate_a=trans == 2
    )
    if trans == 0:
        x = solve(solve(rows(b, order[..., None]), lower=True, unit_diagonal=True))
    else:
        x = solve(solve(b), lower=True, unit_diagonal=True)
        x = rows(x, argsort(order)[..., None])
    return _as_given(x, vectors)


_ASSUMED = ("gen", "sym", "her", "pos", "general", "symmetric", "hermitian", "positive definite")


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Any:
    """x with a x = b, for square a; b is a vector or matrices, and leading axes broadcast.

    With `assume_a` "pos" a is Hermitian positive definite, and only its upper (or `lower`) triangle
    is read; other promises ("sym", "her") have no effect.

    >>> solve(fnp.array([[2.0, 0.0], [1.0, 4.0]]), fnp.array([2.0, 9.0]))
    Array([1., 2.], dtype=float32)
    """
    if assume_a not in _ASSUMED:
        raise ValueError(
            within(f"solve: Expected assume_a to be one of {_ASSUMED}; got {assume_a!r}")
        )
    if assume_a not in ("pos", "positive definite"):
        return solvers.solve(a, b)
    a, b, vectors = _system("solve", a, b)
    low = triangular.cholesky(stop_gradient(a if lower else adjoint(a)), symmetrize_input=False)
    strict = fnp.tril(a, -1) if lower else fnp.triu(a, 1)
    line = fnp.where(fnp.eye(a.shape[-1], dtype=bool), fnp.real(a).astype(a.dtype), 0)
    return _as_given(_positive(strict + adjoint(strict) + line, low, b), vectors)


@custom_jvp
def _positive(a: Any, low: Any, b: Any) -> Any:
    return cho_solve((low, True), b)


@_positive.defjvp
def _positive_jvp(primals: Any, tangents: Any) -> Any:
    a, low, b = primals
    da, _, db = tangents
    x = _positive(a, low, b)
    return x, _positive(a, low, db - da @ x)


@_positive.deftranspose
def _positive_transpose(primals: Any, ct: Any) -> Any:
    a, low, _ = primals
    return None, None, _positive(fnp.conj(a), fnp.conj(low), ct)


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverse of square matrices; inf or NaN where they are singular.

    >>> inv(fnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    return solvers.inv(a)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinant of square matrices.

    >>> det(fnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    return solvers.det(a)


# ---- Sylvester's equation


def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Any:
    """X with A X + X B = C. NaN where an eigenvalue of A and one of B have a sum below `tol`.

    `method` "schur" (R. Bartels, G. Stewart, 1972) or "eigen", which has the same result. Leading
    axes broadcast.

    >>> A, B, C = fnp.array([[1.0]]), fnp.array([[2.0]]), fnp.array([[6.0]])
    >>> solve_sylvester(A, B, C)
    Array([[2.]], dtype=float32)
    """
    if method not in ("schur", "eigen"):
        raise ValueError(
            within(
                f"solve_sylvester: Unrecognized method {method}. The two valid methods are "
                '"schur" and "eigen"'
            )
        )
    as_array("solve_sylvester", tol, "tol")
    for name, x in (("A", A), ("B", B), ("C", C)):
        as_array("solve_sylvester", x, name)
    A, B, C = promote_inexact("solve_sylvester", A, B, C)
    A, B, C = (matrices("solve_sylvester", x) for x in (A, B, C))
    m, n = C.shape[-2:]
    if A.shape[-2:] != (m, m) or B.shape[-2:] != (n, n):
        raise ShapeError(
            "solve_sylvester: Incompatible shapes for Sylvester equation: "
            f"A {A.aval}, B {B.aval}, C {C.aval}"
        )
    lead = fnp.broadcast_shapes(A.shape[:-2], B.shape[:-2], C.shape[:-2])
    A, B, C = (fnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (A, B, C))
    kind = dtypes.to_complex(C.dtype)
    left, right = (
        tuple(schur_p.bind(stop_gradient(x).astype(kind), compute_schur_vectors=True))
        for x in (A, B)
    )
    x = _sylvester(A, B, left, right, C)
    values = [fnp.diagonal(t, axis1=-2, axis2=-1) for t, _ in (left, right)]
    sums = fnp.abs(values[0][..., :, None] + values[1][..., None, :])
    bad = fnp.any(sums < tol, axis=(-2, -1))
    return fnp.where(bad[..., None, None], float("nan"), x)


@custom_jvp
def _sylvester(a: Any, b: Any, left: Any, right: Any, c: Any) -> Any:
    (r, u), (s, v) = left, right
    y = _triangular_sylvester(r, s, adjoint(u) @ c.astype(r.dtype) @ v)
    x = u @ y @ adjoint(v)
    return x if dtypes.is_complex(c.dtype) else x.real


@partial(fnp.vectorize, signature="(m,m),(n,n),(m,n)->(m,n)")
def _triangular_sylvester(r: Any, s: Any, f: Any) -> Any:
    """Y with r Y + Y s = f for upper triangular r and s, column by column."""
    eye = fnp.eye(len(r), dtype=r.dtype)

    def column(j: Any, y: Any) -> Any:
        right = f[:, j] - y @ s[:, j]
        found = triangular_solve(r + s[j, j] * eye, right, left_side=True)
        return y.at[:, j].set(found)

    return fori_loop(0, len(s), column, fnp.zeros_like(f))


@_sylvester.defjvp
def _sylvester_jvp(primals: Any, tangents: Any) -> Any:
    a, b, left, right, c = primals
    da, db, _, _, dc = tangents
    x = _sylvester(a, b, left, right, c)
    return x, _sylvester(a, b, left, right, dc - da @ x - x @ db)


@_sylvester.deftranspose
def _sylvester_transpose(primals: Any, ct: Any) -> Any:
    """Aᵀ Y + Y Bᵀ = ct is B Yᵀ + Yᵀ A = ctᵀ."""
    a, b, left, right, _ = primals
    y = _sylvester(b, a, right, left, fnp.matrix_transpose(ct))
    return None, None, None, None, fnp.matrix_transpose(y)
