"""Triangular systems and factors of matrices, one row or column a turn of a loop.

The algorithms are those of LAPACK without blocks (Golub and Van Loan, "Matrix Computations", 2013,
3.1, 3.4, 4.2, 5.2), so that pivots and signs are the ones that other backends give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.primitive import Primitive
from funcgrad.ops.linalg.decompositions import qr_p
from funcgrad.ops.linalg.triangular import (
    cholesky_p,
    lu_p,
    lu_pivots_to_permutation_p,
    triangular_solve_p,
)


def row_of(x: Any, i: Any) -> Any:
    """Row i of matrices (…, m, n), as (…, n)."""
    return lax.dynamic_index_in_dim(x, i, x.ndim - 2, keepdims=False)


def column_of(x: Any, j: Any) -> Any:
    """Column j of matrices (…, m, n), as (…, m)."""
    return lax.dynamic_index_in_dim(x, j, x.ndim - 1, keepdims=False)


def element_of(x: Any, i: Any) -> Any:
    """Element i of vectors (…, n), as (…, 1)."""
    return lax.dynamic_slice_in_dim(x, i, 1, x.ndim - 1)


def transposed(x: Any) -> Any:
    """Matrices with rows as columns."""
    return fnp.swapaxes(x, -1, -2)


def turns(n: int, body: Callable, start: Any) -> Any:
    """`lax.fori_loop` from 0 to n; of none, no turn is traced, as it would index nothing."""
    return lax.fori_loop(0, n, body, start) if n else start


def triangular_solve(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:  # fmt: skip
    """x with op(a) x = b, or x op(a) = b: substitution, a row of x a turn."""
    if not left_side:
        b, transpose_a = transposed(b), not transpose_a
    if transpose_a:
        a, lower = transposed(a), not lower
    n = a.shape[-1]
    rows = fnp.arange(n)[:, None]
    others = fnp.tril(a, -1) if lower else fnp.triu(a, 1)

    def turn(t: Any, x: Any) -> Any:
        i = t if lower else n - 1 - t
        found = row_of(b, i)[..., None, :] - row_of(others, i)[..., None, :] @ x
        if not unit_diagonal:
            found = found / element_of(row_of(a, i), i)[..., None, :]
        return fnp.where(rows == i, found, x)

    x = turns(n, turn, fnp.zeros_like(b))
    return x if left_side else transposed(x)


def cholesky(x: Any) -> Any:
    """L with L Lᵀ = x, a column a turn; NaN where x isn't positive definite."""
    n = x.shape[-1]
    places = fnp.arange(n)

    def turn(j: Any, low: Any) -> Any:
        rest = column_of(x, j) - (low @ row_of(low, j)[..., None])[..., 0]
        pivot = element_of(rest, j)
        root = fnp.sqrt(fnp.where(pivot > 0, pivot, np.nan))
        column = fnp.where(places == j, root, rest / root)
        column = fnp.where(places >= j, column, 0)
        return fnp.where(places == j, column[..., None], low)

    low = turns(n, turn, fnp.zeros_like(x))
    known = fnp.all(~fnp.isnan(low), axis=(-2, -1), keepdims=True)
    return fnp.where(known, low, fnp.tril(fnp.full_like(low, np.nan)))


def lu(x: Any) -> list[Any]:
    """L and U in one matrix, the pivots, and the order of rows; a column a turn."""
    *lead, m, n = x.shape
    k = min(m, n)
    rows, columns = fnp.arange(m), fnp.arange(n)

    def turn(j: Any, state: Any) -> Any:
        a, pivots, order = state
        size = fnp.abs(column_of(a, j))
        best = fnp.argmax(fnp.where(rows >= j, size, -1), axis=-1).astype("int32")[..., None]
        source = fnp.where(rows == j, best, fnp.where(rows == best, j, rows))
        a = fnp.take_along_axis(a, source[..., None], axis=-2)
        order = fnp.take_along_axis(order, source, axis=-1)
        column = column_of(a, j)
        divisor = element_of(column, j)
        factors = fnp.where(rows > j, column / fnp.where(divisor == 0, 1, divisor), 0)
        right = fnp.where(columns > j, row_of(a, j), 0)
        a = a - factors[..., None] * right[..., None, :]
        a = fnp.where((columns == j) & (rows > j)[:, None], factors[..., None], a)
        return a, fnp.where(fnp.arange(k) == j, best, pivots), order

    order = fnp.broadcast_to(rows, (*lead, m))
    return list(turns(k, turn, (x, fnp.zeros((*lead, k), "int32"), order)))


def permutation(pivots: Any, *, permutation_size: int) -> Any:
    """The order of rows after swaps in turn."""
    *lead, k = pivots.shape
    places = fnp.arange(permutation_size)

    def turn(j: Any, order: Any) -> Any:
        other = element_of(pivots, j)
        source = fnp.where(places == j, other, fnp.where(places == other, j, places))
        return fnp.take_along_axis(order, source, axis=-1)

    order = fnp.broadcast_to(places, (*lead, permutation_size))
    return turns(k, turn, order)


def qr(x: Any, *, full_matrices: bool) -> list[Any]:
    """Q and R by Householder's reflections, one a column, which then make Q from the last on."""
    *lead, m, n = x.shape
    k = min(m, n)
    rows, places = fnp.arange(m), fnp.arange(k)

    def reflect(j: Any, state: Any) -> Any:
        r, vs, taus = state
        column = column_of(r, j)
        top = element_of(column, j)
        # A column that is done stays, with its sign.
        below = fnp.max(fnp.where(rows > j, fnp.abs(column), 0), axis=-1, keepdims=True)
        size = fnp.maximum(below, fnp.abs(top))
        part = fnp.where(rows >= j, column / fnp.where(size == 0, 1, size), 0)
        norm = size * fnp.sqrt(fnp.sum(part * part, axis=-1, keepdims=True))
        new = fnp.where(below == 0, top, -fnp.where(top < 0, -norm, norm))
        tau = fnp.where(below == 0, 0, (new - top) / fnp.where(new == 0, 1, new))
        v = fnp.where(rows > j, column / fnp.where(below == 0, 1, top - new), 0)
        v = fnp.where(rows == j, 1, v)[..., None]
        r = r - tau[..., None] * v * (transposed(v) @ r)
        done = fnp.where(rows == j, new, 0)[..., None]
        r = fnp.where((fnp.arange(n) == j) & (rows >= j)[:, None], done, r)
        return r, fnp.where(places == j, v, vs), fnp.where(places == j, tau, taus)

    start = (x, fnp.zeros((*lead, m, k), x.dtype), fnp.zeros((*lead, k), x.dtype))
    r, vs, taus = turns(k, reflect, start)

    def spread(t: Any, q: Any) -> Any:
        j = k - 1 - t
        v = column_of(vs, j)[..., None]
        return q - element_of(taus, j)[..., None] * v * (transposed(v) @ q)

    width = m if full_matrices else k
    eye = fnp.broadcast_to(fnp.eye(m, width, dtype=x.dtype), (*lead, m, width))
    return [turns(k, spread, eye), r[..., :width, :]]


FORMULAS: dict[Primitive, Callable] = {
    triangular_solve_p: triangular_solve,
    cholesky_p: cholesky,
    lu_p: lu,
    lu_pivots_to_permutation_p: permutation,
    qr_p: qr,
}
