"""funcgrad.scipy.linalg.functions against SciPy: values, derivatives, batches, edges."""

import numpy as np
import pytest
import scipy.linalg

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ShapeError
from funcgrad.scipy import linalg
from tests.ops.rules import check_derivatives, check_vmap
from tests.scipy.linalg.test_condensed import KINDS, WIDE, draw, near
from tests.scipy.linalg.test_factorizations import positive


@pytest.mark.sampled(2)
@KINDS
@pytest.mark.parametrize("size", [0.01, 1.0, 8.0])
def test_expm(kind, size, rng):
    a = draw(rng, (5, 5), kind)
    a = (a * (size / np.linalg.norm(a, 1))).astype(kind)
    ours, theirs = linalg.expm(a), scipy.linalg.expm(a)
    assert ours.dtype == kind
    near(ours / np.abs(theirs).max(), theirs / np.abs(theirs).max(), kind)
    upper = np.triu(a)
    near(linalg.expm(upper, upper_triangular=True), scipy.linalg.expm(upper), kind)
    near(fg.jit(linalg.expm)(a), ours, kind)
    # Each matrix of a batch is squared as often as it needs.
    stack = np.stack([a, a / 64, a * 2])
    near(linalg.expm(stack)[1], scipy.linalg.expm(a / 64), kind)


@WIDE
@pytest.mark.parametrize("size", [0.1, 20.0])
def test_expm_derivatives(kind, size, rng):
    a = draw(rng, (3, 3), kind)
    a = a * (size / np.linalg.norm(a, 1)) - size / 2 * np.eye(3)
    check_derivatives(linalg.expm, [a], rng, tol=1e-4)
    check_vmap(linalg.expm, [a], rng)
    e = draw(rng, (3, 3), kind)
    for x, y in zip(linalg.expm_frechet(a, e), scipy.linalg.expm_frechet(a, e), strict=True):
        near(x, y)
    near(linalg.expm_frechet(a, e, compute_expm=False), scipy.linalg.expm_frechet(a, e)[1])


def test_expm_at_the_edges():
    assert np.isnan(np.asarray(linalg.expm(np.full((2, 2), 1e6), max_squarings=3))).all()
    near(linalg.expm(np.zeros((3, 3))), np.eye(3))
    assert linalg.expm(np.zeros((0, 0))).shape == (0, 0)
    assert linalg.expm(fnp.array([[1, 0], [0, 1]])).dtype == np.float32


@WIDE
def test_sqrtm(kind, rng):
    for a in (draw(rng, (6, 6), kind), positive(rng, 4, kind)):
        root = np.asarray(linalg.sqrtm(a))
        assert root.dtype == np.complex128
        near(root @ root, a)
    near(root, scipy.linalg.sqrtm(a))
    check_derivatives(linalg.sqrtm, [positive(rng, 3, kind)], rng, tol=1e-4)
    check_vmap(linalg.sqrtm, [positive(rng, 3, kind)], rng)


def test_sqrtm_of_singular_matrices():
    for line in ([1.0, 0, 0], [0, 0, 9.0, 0, 0, 4.0]):
        near(linalg.sqrtm(np.diag(line)), np.diag(np.sqrt(line)))
    assert not np.isfinite(np.asarray(linalg.sqrtm(np.eye(2, k=1)))).all()


@WIDE
def test_funm(kind, rng):
    a = draw(rng, (5, 5), kind)
    power = lambda x: x**-2.718
    ours, error = linalg.funm(a, power, disp=False)
    near(ours, scipy.linalg.funm(a, power))
    assert 0 < float(error) < 1e-10
    near(linalg.funm(a, fnp.exp), scipy.linalg.expm(a))
    check_derivatives(lambda a: linalg.funm(a, fnp.sin), [a[:3, :3]], rng, tol=1e-4)


def test_errors():
    a = np.zeros((3, 2))
    for fun in (linalg.expm, linalg.sqrtm, lambda a: linalg.funm(a, fnp.exp),
                lambda a: linalg.expm_frechet(a, a)):  # fmt: skip
        with pytest.raises(ShapeError, match="square"):
            fun(a)
    with pytest.raises(ShapeError, match="same shape"):
        linalg.expm_frechet(np.eye(2), np.eye(3))
    with pytest.raises(ValueError, match="Unknown method"):
        linalg.expm_frechet(np.eye(2), np.eye(2), method="x")
    with pytest.raises(NotImplementedError, match="block"):
        linalg.sqrtm(np.eye(2), blocksize=2)
