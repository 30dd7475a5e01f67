"""Triangular solves, Cholesky and LU: what they factor, in which dtypes, and their derivatives."""

import itertools

import numpy as np
import pytest
import scipy.linalg

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise.arithmetic import conj
from funcgrad.ops.families import add
from funcgrad.ops.linalg.matrices import adjoint, eye_like, matmul
from funcgrad.ops.linalg.triangular import (
    cholesky,
    lu,
    lu_pivots_to_permutation,
    solve,
    triangular_solve,
)
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap

DTYPES = ["float32", "float64", "complex64", "complex128"]
dtypes_ = pytest.mark.parametrize("dtype", DTYPES)
FLAGS = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
flags = pytest.mark.parametrize(
    "kw",
    [dict(zip(FLAGS, f, strict=True)) for f in itertools.product((False, True), repeat=5)],
    ids=lambda kw: "".join(str(int(v)) for v in kw.values()),
)


def draw(rng, shape, dtype):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def tolerance(dtype):
    return 1e-3 if np.dtype(dtype).itemsize // (1 + (np.dtype(dtype).kind == "c")) == 4 else 1e-9


def triangular(rng, n, dtype, lead=()):
    """Well conditioned in both triangles, with numbers where nothing is read too."""
    return draw(rng, (*lead, n, n), dtype) / n + 2 * np.eye(n, dtype=dtype)


@flags
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_triangular_solve(kw, dtype, rng):
    for n, m, lead in [(5, 3, ()), (70, 2, ()), (3, 2, (2, 2)), (0, 3, ()), (4, 0, ())]:
        a = triangular(rng, n, dtype, lead)
        b = draw(rng, (*lead, n, m) if kw["left_side"] else (*lead, m, n), dtype)
        x = np.asarray(triangular_solve(Array(a), Array(b), **kw))
        t = np.tril(a) if kw["lower"] else np.triu(a)
        if kw["unit_diagonal"]:
            t = t - t * np.eye(n, dtype=dtype) + np.eye(n, dtype=dtype)
        t = t.conj() if kw["conjugate_a"] else t
        t = np.swapaxes(t, -1, -2) if kw["transpose_a"] else t
        assert x.dtype == dtype
        np.testing.assert_allclose(
            t @ x if kw["left_side"] else x @ t, b, rtol=tolerance(dtype), atol=tolerance(dtype)
        )


@flags
def test_triangular_solve_rules(kw, rng):
    fun = lambda a, b: triangular_solve(a, b, **kw)
    dtype = "complex128" if kw["conjugate_a"] else "float64"
    args = [triangular(rng, 3, dtype), draw(rng, (3, 2) if kw["left_side"] else (2, 3), dtype)]
    check_derivatives(fun, args, rng)
    check_vmap(fun, args, rng)
    check_dims(fun, args)


def test_triangular_solve_transposes_and_takes_vectors(rng):
    a = triangular(rng, 4, "float64", (2,))
    for left in (False, True):
        fun = lambda b: triangular_solve(Array(a), b, left_side=left, lower=True)
        check_transpose(fun, [(2, 4)], rng)
        b = rng.standard_normal((2, 4))
        matrix = fun(Array(b[..., None] if left else b[:, None]))
        np.testing.assert_array_equal(np.asarray(fun(Array(b))), np.asarray(matrix).reshape(2, 4))


@dtypes_
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 0), (0, 3, 3), (40, 40)])
def test_cholesky(dtype, shape, rng):
    b = draw(rng, shape, dtype)
    a = b @ np.swapaxes(b.conj(), -1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)
    low = cholesky(Array(a))
    assert low.dtype == dtype
    np.testing.assert_allclose(np.asarray(low), np.linalg.cholesky(a), rtol=1e-3, atol=1e-4)
    garbage = np.triu(np.full(shape, 7.0), 1)
    triangle = cholesky(Array(np.tril(a) + garbage.astype(dtype)), symmetrize_input=False)
    np.testing.assert_allclose(np.asarray(triangle), np.asarray(low), rtol=1e-3, atol=1e-4)


def test_cholesky_of_an_indefinite_matrix_is_nan():
    a = np.stack([np.eye(2), -np.eye(2), np.full((2, 2), np.nan)])
    got = np.asarray(cholesky(Array(a)))
    np.testing.assert_array_equal(got[0], np.eye(2))
    nan = np.tril(np.full((2, 2), np.nan))
    np.testing.assert_array_equal(got[1:], [nan, nan])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_cholesky_rules(dtype, rng):
    a = draw(rng, (3, 3), dtype)
    positive = lambda a: add(matmul(a, adjoint(a)), eye_like(a))
    check_derivatives(lambda a: cholesky(positive(a)), [a], rng, tol=1e-4)
    check_derivatives(
        lambda a: cholesky(positive(a), symmetrize_input=False), [a], rng, order=1, tol=1e-4
    )
    check_vmap(lambda a: cholesky(positive(a)), [a], rng)
    check_dims(lambda a: cholesky(positive(a)), [a])


@dtypes_
@pytest.mark.parametrize(
    "shape", [(4, 4), (5, 3), (3, 5), (2, 3, 3), (2, 1, 4, 3), (0, 0), (0, 3), (3, 0), (80, 70)]
)
def test_lu(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    factors, pivots, order = (np.asarray(v) for v in lu(Array(a)))
    m, n = shape[-2:]
    k = min(m, n)
    assert (factors.dtype, pivots.dtype, order.dtype) == (np.dtype(dtype), np.int32, np.int32)
    assert (pivots.shape, order.shape) == ((*shape[:-2], k), shape[:-1])
    low = np.tril(factors[..., :k], -1) + np.eye(m, k, dtype=dtype)
    product = low @ np.triu(factors[..., :k, :])
    permuted = np.take_along_axis(a, order[..., None].astype(int), -2)
    np.testing.assert_allclose(product, permuted, rtol=tolerance(dtype), atol=tolerance(dtype))
    if m:
        assert np.abs(low).max(initial=1) <= np.sqrt(2) + 1e-6
    again = np.asarray(lu_pivots_to_permutation(Array(pivots), m))
    np.testing.assert_array_equal(again, order)
    if shape == (4, 4):
        expected, expected_pivots = scipy.linalg.lu_factor(a)
        np.testing.assert_allclose(factors, expected, rtol=1e-4)
        np.testing.assert_array_equal(pivots, expected_pivots)


def test_lu_of_a_singular_matrix_is_finite():
    factors, _, _ = lu(np.zeros((3, 3), np.float32))
    np.testing.assert_array_equal(np.asarray(factors), np.zeros((3, 3)))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (1, 3), (3, 1), (2, 3, 3)])
def test_lu_rules(shape, rng):
    fun = lambda a: lu(a)
    a = rng.standard_normal(shape)
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)
    check_dims(fun, [a])
    check_derivatives(fun, [draw(rng, shape, "complex128")], rng, order=1, tol=1e-4)


def test_permutation_rules(rng):
    pivots = np.array([[2, 3, 2], [0, 1, 3]], np.int32)
    fun = lambda p: lu_pivots_to_permutation(p, 5)
    check_vmap(fun, [pivots], rng)
    check_dims(fun, [pivots])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_solve(dtype, rng):
    a, b = draw(rng, (2, 4, 4), dtype), draw(rng, (2, 4, 3), dtype)
    np.testing.assert_allclose(np.asarray(solve(a, b)), np.linalg.solve(a, b))
    check_derivatives(solve, [a[0], b[0]], rng, tol=1e-4)
    check_vmap(solve, [a, b], rng)
    check_derivatives(lambda a, b: conj(solve(a, b)), [a[0], b[0]], rng, order=1, tol=1e-4)


def test_errors():
    a = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"cholesky: need square matrices .*, got f32\[2,3\]"):
        cholesky(a)
    with pytest.raises(DTypeError, match="lu.*: need float32, float64.*got i32"):
        lu(a.astype(np.int32))
    with pytest.raises(ShapeError, match=r"lu: need matrices .*got f32\[3\]"):
        lu(a[0])
    with pytest.raises(ShapeError, match=r"triangular_solve: b must have .* 2 rows"):
        triangular_solve(a[:, :2], a[:1], left_side=True)
    with pytest.raises(DTypeError, match="triangular_solve: operands must have one dtype"):
        triangular_solve(a[:, :2], a.astype(np.float64), left_side=True)
    with pytest.raises(DTypeError, match="need pivots .* of int32"):
        lu_pivots_to_permutation(a, 3)
    with pytest.raises(ShapeError, match="permutation_size 1 is less than"):
        lu_pivots_to_permutation(a.astype(np.int32), 1)
