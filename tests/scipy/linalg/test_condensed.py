"""funcgrad.scipy.linalg.condensed against SciPy, with derivatives that no phase touches."""

import numpy as np
import pytest
import scipy.linalg

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShapeError
from funcgrad.scipy import linalg
from tests.ops.rules import check_derivatives, check_vmap

KINDS = pytest.mark.parametrize("kind", ["float32", "float64", "complex64", "complex128"])
WIDE = pytest.mark.parametrize("kind", ["float64", "complex128"])


def draw(rng, shape, kind):
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if kind[0] == "c" else x).astype(kind)


def near(x, y, kind="float64"):
    tol = 1e-10 if np.dtype(kind).itemsize > 8 or kind == "float64" else 2e-4
    np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tol, atol=tol)


def dagger(x):
    return np.swapaxes(np.conj(x), -1, -2)


@KINDS
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (6, 6), (2, 3, 3)])
@pytest.mark.parametrize("output", ["real", "complex"])
def test_schur(shape, kind, output, rng):
    a = draw(rng, shape, kind)
    t, z = (np.asarray(x) for x in linalg.schur(a, output))
    assert t.dtype == z.dtype == (kind if output == "real" else np.result_type(kind, "complex64"))
    near(z @ t @ dagger(z), a, kind)
    near(dagger(z) @ z, np.broadcast_to(np.eye(shape[-1]), shape), kind)
    assert not np.tril(t, -1 if np.iscomplexobj(t) else -2).any()
    for ours, jitted in zip((t, z), fg.jit(linalg.schur, static_argnums=1)(a, output), strict=True):
        near(jitted, ours, kind)


@KINDS
def test_schur_is_scipys(kind, rng):
    a = draw(rng, (12, 12), kind)
    for ours, theirs in zip(linalg.schur(a), scipy.linalg.schur(a), strict=True):
        near(ours, theirs, kind)


def test_defective_matrices_and_those_that_are_not_finite():
    jordan = np.eye(5, k=1) + 3 * np.eye(5)
    t, z = (np.asarray(x) for x in linalg.schur(jordan))
    near(z @ t @ z.T, jordan)
    stack = np.stack([jordan, np.where(jordan == 0, np.nan, jordan)])
    t = np.asarray(linalg.schur(stack)[0])
    assert np.isfinite(t[0]).all()
    assert np.isnan(t[1]).all()


def without_phases(a, output="real"):
    t, z = linalg.schur(a, output)
    weights = fnp.arange(1, len(z) + 1).astype(z.dtype)
    return fnp.diagonal(t), fnp.abs(t), z * weights @ fnp.conj(z).T


def test_real_schur_derivatives(rng):
    # Rotations have pairs of complex eigenvalues, and so blocks.
    for n in (1, 2, 3, 6):
        a = draw(rng, (n, n), "float64") + 2 * np.diag(np.arange(n)) + 3 * np.eye(n, k=1)
        a = a - 3 * np.eye(n, k=-1)
        check_derivatives(without_phases, [a], rng, tol=1e-4)
    check_vmap(without_phases, [a], rng)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_complex_schur_derivatives(n, rng):
    check_derivatives(without_phases, [draw(rng, (n, n), "complex128")], rng, tol=1e-4)
    a = draw(rng, (n, n), "float64")
    check_derivatives(lambda a: without_phases(a, "complex"), [a], rng, tol=1e-4)


def test_equal_eigenvalues_give_finite_derivatives():
    for a in (np.eye(3), np.eye(3) + 0j, np.array([[0.0, 1], [-1, 0]])):
        for t in fg.jvp(linalg.schur, (a,), (np.ones_like(a),))[1]:
            assert np.isfinite(np.asarray(t)).all()


@WIDE
def test_rsf2csf(kind, rng):
    a = draw(rng, (7, 7), kind)
    t, z = linalg.schur(a)
    ours = linalg.rsf2csf(t, z)
    for x, y in zip(ours, scipy.linalg.rsf2csf(np.asarray(t), np.asarray(z)), strict=True):
        near(x, y)
    t, z = (np.asarray(x) for x in linalg.rsf2csf(np.stack([t, t]), z))
    near(z @ t @ dagger(z), np.stack([a, a]))
    fun = lambda a: fnp.diagonal(linalg.rsf2csf(*linalg.schur(a))[0])
    check_derivatives(fun, [a], rng, tol=1e-4)


@KINDS
@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (2, 2), (6, 6), (2, 4, 4)])
def test_hessenberg(shape, kind, rng):
    a = draw(rng, shape, kind)
    h, q = (np.asarray(x) for x in linalg.hessenberg(a, calc_q=True))
    assert h.dtype == q.dtype == kind
    near(q @ h @ dagger(q), a, kind)
    assert not np.tril(h, -2).any()
    near(linalg.hessenberg(a), h, kind)
    if shape in ((1, 1), (6, 6)):
        for x, y in zip((h, q), scipy.linalg.hessenberg(a, calc_q=True), strict=True):
            near(x, y, kind)


@WIDE
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_hessenberg_derivatives(n, kind, rng):
    fun = lambda a: linalg.hessenberg(a, calc_q=True)
    check_derivatives(fun, [draw(rng, (n, n), kind)], rng, tol=1e-4)
    check_vmap(fun, [draw(rng, (n, n), kind)], rng)


def test_errors():
    a = np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="'real' or 'complex'"):
        linalg.schur(a, "both")
    for fun in (linalg.schur, linalg.hessenberg):
        with pytest.raises(ShapeError, match=r"need square matrices .*f32\[3,2\]"):
            fun(a)
    with pytest.raises(ShapeError, match="'T' must be square"):
        linalg.rsf2csf(a, a)
    with pytest.raises(ShapeError, match="shapes must match"):
        linalg.rsf2csf(np.eye(2), np.eye(3))
    with pytest.raises(NotImplementedError, match="sorting"):
        lax.linalg.schur(np.eye(2), sort_eig_vals=True)
    assert len(lax.linalg.schur(np.eye(2), compute_schur_vectors=False)) == 1
