"""funcgrad.scipy.linalg.factorizations against SciPy: values, derivatives to second order."""

import numpy as np
import pytest
import scipy.linalg

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.scipy import linalg
from tests.ops.rules import check_derivatives, check_vmap
from tests.scipy.linalg.test_condensed import KINDS, WIDE, dagger, draw, near

SHAPES = pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (1, 1)])


def positive(rng, n, kind):
    x = draw(rng, (n, n), kind)
    return x @ dagger(x) + np.eye(n, dtype=kind)


@KINDS
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(kind, lower, rng):
    a = positive(rng, 4, kind)
    found = linalg.cholesky(a, lower=lower)
    assert found.dtype == kind
    near(found, scipy.linalg.cholesky(a, lower=lower), kind)
    # Only one triangle is read.
    near(linalg.cholesky(np.tril(a) if lower else np.triu(a), lower=lower), found, kind)
    assert linalg.cho_factor(a, lower)[1] is lower
    if found.dtype.itemsize > 8 or kind == "float64":
        check_derivatives(lambda a: linalg.cholesky(a, lower=lower), [a], rng)


@KINDS
@SHAPES
def test_lu(kind, shape, rng):
    a = draw(rng, shape, kind)
    for permute in (False, True):
        theirs = scipy.linalg.lu(a, permute_l=permute)
        for x, y in zip(linalg.lu(a, permute_l=permute), theirs, strict=True):
            near(x, y, kind)
    stack = np.stack([a, 2 * a])
    p, low, up = (np.asarray(x) for x in linalg.lu(stack))
    near(p @ low @ up, stack, kind)
    if shape[0] == shape[1]:
        for x, y in zip(linalg.lu_factor(a), scipy.linalg.lu_factor(a), strict=True):
            near(x, y, kind)
    if kind[-2:] != "32" and kind != "complex64":
        check_derivatives(lambda a: linalg.lu(a)[1:], [a], rng)


@KINDS
@SHAPES
@pytest.mark.parametrize("pivoting", [True, False])
def test_qr(kind, shape, pivoting, rng):
    a = draw(rng, shape, kind)
    for mode in ("full", "economic", "r"):
        ours = linalg.qr(a, mode=mode, pivoting=pivoting)
        theirs = scipy.linalg.qr(a, mode=mode, pivoting=pivoting)
        for x, y in zip(ours, theirs, strict=True):
            near(x, y, kind)
    if kind in ("float64", "complex128"):
        fun = lambda a: linalg.qr(a, mode="economic", pivoting=pivoting)[:2]
        check_derivatives(fun, [a], rng, tol=1e-4)
        check_vmap(fun, [a], rng)


@WIDE
@SHAPES
@pytest.mark.parametrize("mode", ["left", "right"])
def test_qr_multiply(kind, shape, mode, rng):
    a = draw(rng, shape, kind)
    k, m = min(shape), shape[0]
    for c in (draw(rng, (k, 2) if mode == "left" else (2, m), kind),
              draw(rng, (k if mode == "left" else m,), kind)):  # fmt: skip
        for options in ({}, {"pivoting": True}):
            ours = linalg.qr_multiply(a, c, mode, **options)
            theirs = scipy.linalg.qr_multiply(a, c, mode, **options)
            for x, y in zip(ours, theirs, strict=True):
                near(x, y)


def test_svd(rng):
    a = draw(rng, (4, 3), "float64")
    u, s, vh = linalg.svd(a, full_matrices=False)
    near((u * s) @ vh, a)
    near(linalg.svd(a, compute_uv=False), scipy.linalg.svd(a, compute_uv=False))


@WIDE
@pytest.mark.parametrize("type_", [1, 2, 3])
@pytest.mark.parametrize("lower", [True, False])
def test_eigh_of_two_matrices(kind, type_, lower, rng):
    a, b = positive(rng, 4, kind), positive(rng, 4, kind)
    w, v = linalg.eigh(a, b, lower=lower, type=type_)
    near(w, scipy.linalg.eigh(a, b, eigvals_only=True, type=type_))
    near(linalg.eigh(a, b, eigvals_only=True, type=type_), w)
    v = np.asarray(v)
    sides = {1: (a @ v, b @ v), 2: (a @ b @ v, v), 3: (b @ a @ v, v)}[type_]
    near(sides[0], sides[1] * np.asarray(w))
    fun = lambda a, b: linalg.eigh(a, b, eigvals_only=True, type=type_)
    check_derivatives(fun, [a, b], rng, tol=1e-4, order=1)


@pytest.mark.parametrize("kind", ["float32", "float64", "complex128"])
def test_eigh_tridiagonal(kind, rng):
    d, e = draw(rng, (6,), "float64").astype(kind), draw(rng, (5,), kind)
    a = np.diag(d) + np.diag(e, -1) + np.diag(np.conj(e), 1)
    w, v = linalg.eigh_tridiagonal(d, e)
    near(w, np.linalg.eigvalsh(a), kind)
    near(a @ np.asarray(v), np.asarray(v) * np.asarray(w), kind)
    some = linalg.eigh_tridiagonal(d, e, eigvals_only=True, select="i", select_range=(1, 3))
    near(some, w[1:4], kind)
    bounds = float(w[1]) + 1e-3, float(w[4]) + 1e-3
    some = linalg.eigh_tridiagonal(d, e, eigvals_only=True, select="v", select_range=bounds)
    near(some, w[2:5], kind)
    if kind == "float64":
        fun = lambda d, e: linalg.eigh_tridiagonal(d, e, eigvals_only=True)
        check_derivatives(fun, [d, e], rng, tol=1e-4)


@pytest.mark.sampled(3)
@WIDE
@SHAPES
@pytest.mark.parametrize("side", ["left", "right"])
def test_polar(kind, shape, side, rng):
    a = draw(rng, shape, kind)
    for x, y in zip(linalg.polar(a, side), scipy.linalg.polar(a, side), strict=True):
        near(x, y)
    fun = lambda a: linalg.polar(a, side)
    # Where p is singular, it has no second derivative.
    check_derivatives(fun, [a], rng, tol=1e-4)
    check_vmap(fun, [a], rng)


def test_polar_of_equal_singular_values():
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    check_derivatives(linalg.polar, [3 * turn], np.random.default_rng(0), tol=1e-4, order=1)


def test_errors():
    a = np.eye(3, dtype=np.float32)
    d = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="QR decomposition mode 'raw'"):
        linalg.qr(a, mode="raw")
    with pytest.raises(ValueError, match="'right' or 'left'"):
        linalg.qr_multiply(a, a, "up")
    with pytest.raises(ArgumentError, match="qr_multiply: c must have 3 columns"):
        linalg.qr_multiply(a, a[:, :2])
    with pytest.raises(ValueError, match="side"):
        linalg.polar(a, "up")
    with pytest.raises(ValueError, match="method"):
        linalg.polar(a, method="guess")
    with pytest.raises(ValueError, match="type must be"):
        linalg.eigh(a, type=4)
    with pytest.raises(NotImplementedError, match="eigvals"):
        linalg.eigh(a, eigvals=(0, 1))
    with pytest.raises(TypeError, match="same dtype"):
        linalg.eigh_tridiagonal(d, d[1:].astype(np.float64))
    with pytest.raises(ArgumentError, match=r"need d \(n,\)"):
        linalg.eigh_tridiagonal(d, d)
    for options, text in (({"select": "x"}, "select must"), ({"select": "i"}, "select_range"),
                          ({"select": "i", "select_range": (2, 1)}, "empty")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            linalg.eigh_tridiagonal(d, d[1:], **options)
    picks = lambda d: linalg.eigh_tridiagonal(d, d[1:], select="v", select_range=(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="while tracing"):
        fg.jit(picks)(fnp.asarray(d))
