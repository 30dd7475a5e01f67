"""QR, SVD and eigenvalues: products give the matrix back, derivatives to order 2, batching."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.array import Array
from funcgrad.errors import DifferentiationError, DTypeError, ShapeError
from funcgrad.ops.elementwise.arithmetic import abs as abs_
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.linalg.choices import EighImplementation, SvdAlgorithm
from funcgrad.ops.linalg.decompositions import eig, eigh, qr, svd
from funcgrad.ops.linalg.matrices import adjoint, matmul
from funcgrad.transforms.passes.simplify import simplify
from tests.ops.rules import check_derivatives, check_dims, check_vmap, jvp

DTYPES = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(3, 3), (5, 3), (3, 5), (2, 4, 3), (0, 3, 2), (1, 1)]
dtypes_ = pytest.mark.parametrize("dtype", DTYPES)
inexact = pytest.mark.parametrize("dtype", ["float64", "complex128"])


def draw(rng, shape, dtype):
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def hermitian(rng, shape, dtype):
    x = draw(rng, shape, dtype)
    return x + np.swapaxes(x.conj(), -1, -2)


def close(got, expected, dtype="float64"):
    single = np.finfo(dtype).bits == 32
    tol = 1e-4 if single else 1e-10
    np.testing.assert_allclose(np.asarray(got), expected, rtol=tol, atol=tol)


def dagger(x):
    return np.swapaxes(x.conj(), -1, -2)


def is_unitary(x, dtype):
    product = dagger(x) @ x
    close(product, np.broadcast_to(np.eye(x.shape[-1]), product.shape), dtype)


@dtypes_
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [False, True])
def test_qr(dtype, shape, full, rng):
    a = draw(rng, shape, dtype)
    q, r = (np.asarray(v) for v in qr(Array(a), full_matrices=full))
    m, n = shape[-2:]
    k = m if full else min(m, n)
    assert q.shape == (*shape[:-1], k)
    assert r.shape == (*shape[:-2], k, n)
    assert q.dtype == r.dtype == dtype
    close(q @ r, a, dtype)
    is_unitary(q, dtype)
    np.testing.assert_array_equal(r, np.triu(r))


@inexact
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2)])
def test_qr_rules(dtype, shape, rng):
    fun = lambda a: qr(a, full_matrices=False)
    a = draw(rng, shape, dtype)
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)
    check_dims(fun, [a])


@dtypes_
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [False, True])
def test_svd(dtype, shape, full, rng):
    a = draw(rng, shape, dtype)
    u, s, vh = (np.asarray(v) for v in svd(Array(a), full_matrices=full))
    k = min(shape[-2:])
    assert u.dtype == vh.dtype == dtype
    assert s.dtype == np.finfo(dtype).dtype
    close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, dtype)
    is_unitary(u, dtype)
    is_unitary(dagger(vh), dtype)
    close(svd(Array(a), compute_uv=False), s, dtype)


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 3, 2)])
def test_svd_rules(shape, rng):
    fun = lambda a: svd(a, full_matrices=False)
    a = draw(rng, shape, "float64")
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)
    check_dims(fun, [a])
    check_derivatives(lambda a: svd(a, compute_uv=False), [a], rng, tol=1e-4)


def weighted(x):
    """x diag(1, 3, 5 …) xᴴ, in which the phases of the columns cancel."""
    shape = np.shape(x)
    weights = np.broadcast_to(1.0 + 2 * np.arange(shape[-1]), shape)
    return matmul(mul(x, weights.astype(x.dtype)), adjoint(x))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_svd_of_complex_matrices(shape, rng):
    """Vectors are unique up to a phase: what doesn't depend on it is compared."""

    def fun(a):
        u, s, vh = svd(a, full_matrices=False)
        return [weighted(u), s, weighted(adjoint(vh)), matmul(u, vh)]

    a = draw(rng, shape, "complex128")
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_derivatives(lambda a: svd(a, compute_uv=False), [a], rng, tol=1e-4)


@dtypes_
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 2, 2), (0, 0), (1, 1)])
@pytest.mark.parametrize("lower", [False, True])
def test_eigh(dtype, shape, lower, rng):
    a = hermitian(rng, shape, dtype)
    v, w = (np.asarray(x) for x in eigh(Array(a), lower=lower))
    assert v.dtype == dtype
    assert w.dtype == np.finfo(dtype).dtype
    close((v * w[..., None, :]) @ dagger(v), a, dtype)
    close(w, np.linalg.eigvalsh(a), dtype)
    cut = np.tril(a) if lower else np.triu(a)
    close(eigh(Array(cut), lower=lower, symmetrize_input=False)[1], w, dtype)


@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2)])
@pytest.mark.parametrize("lower", [False, True])
def test_eigh_rules(shape, lower, rng):
    a = draw(rng, shape, "float64")
    for symmetrize in (False, True):
        fun = lambda a: eigh(a, lower=lower, symmetrize_input=symmetrize)
        check_derivatives(fun, [a], rng, tol=1e-4)
        check_vmap(fun, [a], rng)
        check_dims(fun, [a])


def test_eigh_of_complex_matrices(rng):
    def fun(a):
        v, w = eigh(a)
        return [w, abs_(v), weighted(v)]

    check_derivatives(fun, [draw(rng, (3, 3), "complex128")], rng, tol=1e-4)


def test_equal_values_give_finite_derivatives():
    eye, g = Array(np.eye(3)), Array(np.diag([1.0, 2.0, 3.0]))
    for fun in (eigh, lambda a: svd(a, full_matrices=False)):
        for t in jvp(fun, [eye], [g]):
            assert np.isfinite(np.asarray(t)).all()


@dtypes_
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 2, 2), (1, 1)])
def test_eig(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    w, left, right = (np.asarray(v) for v in eig(Array(a)))
    assert w.dtype == left.dtype == right.dtype == np.result_type(dtype, np.complex64)
    close(a @ right, right * w[..., None, :], dtype)
    close(dagger(left) @ a, w[..., :, None] * dagger(left), dtype)
    for vectors in (left, right):
        close(np.linalg.norm(vectors, axis=-2), np.ones(w.shape), dtype)
    only = eig(Array(a), compute_left_eigenvectors=False, compute_right_eigenvectors=False)
    assert len(only) == 1


@inexact
def test_eig_rules(dtype, rng):
    a = draw(rng, (3, 3), dtype)
    fun = lambda a: eig(a, compute_left_eigenvectors=False)
    check_derivatives(eig, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)
    check_dims(fun, [a])
    check_derivatives(lambda a: fun(a)[0], [a], rng, tol=1e-4)


@inexact
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 2)])
def test_qr_with_pivoting(dtype, shape, rng):
    a = draw(rng, shape, dtype)
    q, r, order = (np.asarray(v) for v in qr(a, pivoting=True, full_matrices=False))
    close(q @ r, np.take_along_axis(a, order[..., None, :].astype(int), -1))
    line = np.abs(np.diagonal(r, axis1=-2, axis2=-1))
    assert (np.diff(line, axis=-1) <= 1e-12).all()
    assert (np.sort(order, axis=-1) == np.arange(shape[-1])).all()
    fun = lambda a: qr(a, pivoting=True, full_matrices=False)[:2]
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)


def test_subsets_and_choices(rng):
    a = draw(rng, (5, 4), np.float64)
    u, s, vh = svd(a, full_matrices=False, subset_by_index=(1, 3), algorithm=SvdAlgorithm.QR)
    whole = svd(a, full_matrices=False)
    close(s, whole[1][1:3])
    close((u * s) @ vh, (whole[0][:, 1:3] * whole[1][1:3]) @ whole[2][1:3])
    close(svd(a, compute_uv=False, subset_by_index=(0, 2)), whole[1][:2])
    symmetric = a.T @ a
    v, w = eigh(symmetric, subset_by_index=(2, 4), implementation=EighImplementation.QR)
    close(symmetric @ np.asarray(v), np.asarray(v) * np.asarray(w))
    with pytest.raises(ValueError, match="svd: subset_by_index needs full_matrices=False"):
        svd(a, subset_by_index=(0, 1))
    with pytest.raises(ValueError, match="eigh: subset_by_index must be 0 <= first"):
        eigh(symmetric, subset_by_index=(3, 9))


def test_errors():
    a = np.zeros((3, 2), np.float32)
    for fun in (eigh, eig):
        with pytest.raises(ShapeError, match=r"need square matrices .*got f32\[3,2\]"):
            fun(a)
    for fun in (qr, svd):
        with pytest.raises(DTypeError, match="need float32, float64.*got f16"):
            fun(a.astype(np.float16))
        with pytest.raises(DifferentiationError, match="use full_matrices=False"):
            jvp(fun, [Array(a)], [Array(a)])


def test_vectors_that_nobody_reads_are_not_computed():
    a = np.float32([[2, 1], [1, 3]])
    for f, param in (
        (lambda a: eigh(a)[1], "compute_vectors"),
        (lambda a: svd(a)[1], "compute_uv"),
    ):
        (eqn,) = (e for e in simplify(fg.make_jaxpr(f)(a).jaxpr).eqns if param in e.params)
        assert eqn.params[param] is False
        assert len(eqn.outs) == 1
        np.testing.assert_allclose(fg.jit(f)(a), f(a), rtol=1e-6)
    both = simplify(fg.make_jaxpr(lambda a: eigh(a)[0])(a).jaxpr)
    assert both.eqns[-1].params["compute_vectors"]
