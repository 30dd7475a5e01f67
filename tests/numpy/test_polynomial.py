"""Polynomials and convolutions against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ConcretizationError, ShapeError
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["int32", "float64", "complex128"])
def test_convolutions(mode, dtype, rng):
    for n, m in ((5, 3), (3, 5), (4, 4), (6, 2), (1, 1), (2, 7)):
        a, v = ((rng.standard_normal(k) * 5).astype(dtype) for k in (n, m))
        if dtype == "complex128":
            a, v = a + 1j * a[::-1], v - 2j * v
        for name in ("convolve", "correlate"):
            f, g = getattr(fnp, name), getattr(np, name)
            same_as_numpy(
                lambda a, v, f=f: f(a, v, mode), lambda a, v, g=g: g(a, v, mode), a, v, **TIGHT
            )


def test_transforms_of_convolutions(rng):
    a, v = rng.standard_normal((2, 5)), rng.standard_normal((2, 3))
    for f in (fnp.convolve, fnp.correlate):
        check_grad(f, a[0], v[0])
        check_grad(f, v[0], a[0])
        same_batched(f, a, v)
    out = fnp.convolve(np.int8([100]), np.int8([100]), preferred_element_type=np.int32)
    same(out, np.int32([10000]))


P, Q = np.array([0.0, 1.0, -2.0, 3.0]), np.array([2.0, 5.0])


def test_arithmetic():
    for name in ("polyadd", "polysub"):
        for pair in ((P, Q), (Q, P), (P, np.float64(2))):
            same_as_numpy(getattr(fnp, name), getattr(np, name), *pair)
    same(fnp.polymul(P, Q), np.convolve(P, Q))
    same(fnp.polymul(P, Q, trim_leading_zeros=True), np.polymul(P, Q))
    same(fnp.polymul(P, np.zeros(2), trim_leading_zeros=True), np.polymul(P, np.zeros(2)))


@pytest.mark.parametrize(("u", "v"), [(P[1:], Q), (Q, P[1:]), (P[1:], P[1:]), (P, np.ones(1))])
def test_polydiv(u, v):
    quotient, rest = np.polydiv(u, v)
    ours = jit(fnp.polydiv, backend="numpy")(u, v)
    same(ours[0], quotient, **TIGHT)
    same(ours[1], np.concatenate([np.zeros(u.size - rest.size), rest]), **TIGHT)
    same(fnp.polydiv(u, v, trim_leading_zeros=True)[1], rest, **TIGHT)


@pytest.mark.parametrize("m", [0, 1, 2, 5])
def test_derivatives_and_integrals(m):
    same_as_numpy(lambda p: fnp.polyder(p, m), lambda p: np.polyder(p, m), P)
    same_as_numpy(lambda p: fnp.polyint(p, m), lambda p: np.polyint(p, m), P)
    same(fnp.polyint(P, m, k=7.0), np.polyint(P, m, k=7.0))
    constants = list(range(1, m + 1))
    same(fnp.polyint(P, m, k=constants), np.polyint(P, m, k=constants))
    same(fnp.polyder(np.array([1, 2, 3])), [2, 2], dtype=False)
    for dtype in ("int8", "uint8", "int16", "bool"):
        p = np.full(300, np.iinfo(dtype).max if dtype != "bool" else 1, dtype)
        for f in (fnp.polyder, jit(fnp.polyder)):
            same(f(p), np.polyder(p), dtype=False)


@pytest.mark.parametrize("unroll", [2, 16])
def test_polyval(unroll, rng):
    p, x = rng.standard_normal(7), rng.standard_normal((2, 3))
    f = lambda p, x: fnp.polyval(p, x, unroll=unroll)
    same_as_numpy(f, np.polyval, p, x)
    check_grad(f, p, x)
    same_batched(lambda x: f(p, x), x)
    same(fnp.polyval(p[:0], x), np.zeros((2, 3)))
    assert fnp.polyval(np.int32([1, 2]), 3).dtype == np.int32
    several = rng.standard_normal((7, 2, 1))
    each = lambda p, x: np.stack([np.polyval(p[:, i, 0], x[i]) for i in range(2)])
    same_as_numpy(f, each, several, x)
    check_grad(f, several, x)


ROOTS = [
    [1.0, -6.0, 11.0, -6.0],
    [0.0, 0.0, 1.0, -3.0, 2.0],
    [1.0, 0.0, 1.0, 0.0, 0.0],
    [2.0],
    [0.0, 0.0],
    [1.0, 2.0],
]


@pytest.mark.parametrize("p", ROOTS, ids=str)
def test_roots(p):
    p = np.array(p)
    expected = np.sort_complex(np.roots(p))
    same(np.sort_complex(fnp.roots(p)), expected, **TIGHT)
    out = np.asarray(jit(lambda p: fnp.roots(p, strip_zeros=False), backend="numpy")(p))
    assert out.shape == (len(p) - 1,)
    same(np.sort_complex(out[~np.isnan(out)]), expected, **TIGHT)


def test_derivative_of_roots(rng):
    check_grad(lambda p: fnp.sum(fnp.roots(p) ** 2), np.array([1.0, -6.0, 11.0, -6.5]))
    with pytest.raises(ConcretizationError, match=r"roots.*`p`.*strip_zeros=False"):
        jit(fnp.roots, backend="numpy")(P)


def test_poly(rng):
    z = np.array([1.0, -2.0, 0.5])
    same_as_numpy(fnp.poly, np.poly, z, **TIGHT)
    a = rng.standard_normal((3, 3))
    same(np.real(fnp.poly(a)), np.poly(a), **TIGHT)
    same(fnp.poly(np.zeros(0)), [1.0])
    check_grad(fnp.poly, z)


@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("n", [None, 0, 1, 5])
def test_vander(n, increasing):
    for x in (np.array([0.0, 2.0, -1.0]), np.array([1, 2, 3])):
        same_as_numpy(
            lambda x: fnp.vander(x, n, increasing), lambda x: np.vander(x, n, increasing), x
        )
    check_grad(lambda x: fnp.vander(x, 4), np.array([0.0, 2.0, -1.0]))


def test_polyfit(rng):
    x, y = np.linspace(-1, 2, 9), rng.standard_normal((9, 2))
    w = rng.uniform(0.5, 2, 9)
    same_as_numpy(
        lambda x, y: fnp.polyfit(x, y, 3), lambda x, y: np.polyfit(x, y, 3), x, y, **TIGHT
    )
    for options in ({}, {"w": w}):
        ours, theirs = (module.polyfit(x, y[:, 0], 2, full=True, **options) for module in (fnp, np))
        same(ours, theirs, dtype=False, **TIGHT)
        for cov in (True, "unscaled"):
            ours, theirs = (
                module.polyfit(x, y[:, 0], 2, cov=cov, **options) for module in (fnp, np)
            )
            same(ours, theirs, **TIGHT)
    same(fnp.polyfit(x, y, 2, cov=True), np.polyfit(x, y, 2, cov=True), **TIGHT)
    check_grad(lambda x, y: fnp.polyfit(x, y, 2), x, y[:, 0])


ERRORS = [
    (lambda: fnp.convolve(P, np.zeros(0)), ShapeError, "not empty"),
    (lambda: fnp.convolve(P, P, "all"), ValueError, "mode must be"),
    (lambda: fnp.convolve([1, 2], P), TypeError, "is a list"),
    (lambda: fnp.polyval(np.ones((2, 2)), np.ones(3)), ShapeError, "polyval: .*broadcast"),
    (lambda: fnp.polyder(P, -1), ValueError, "m must not be negative"),
    (lambda: fnp.polyint(P, 2, k=[1, 2, 3]), ShapeError, "one constant or 2"),
    (lambda: fnp.poly(np.ones((2, 3))), ShapeError, "a vector of roots or a square matrix"),
    (lambda: fnp.vander(np.ones((2, 2))), ShapeError, "x must be a vector"),
    (lambda: fnp.polyfit(P, Q, 1), ShapeError, "as many rows of y"),
    (lambda: fnp.polyfit(P, P, -1), ValueError, "deg must not be negative"),
    (lambda: fnp.polyfit(Q, Q, 1, cov=True), ValueError, "more than 2 points"),
    (lambda: fnp.polyfit(P, P, 1, w=Q), ShapeError, "must have the shape of x"),
    (
        lambda: jit(lambda p: fnp.polymul(p, p, trim_leading_zeros=True), backend="numpy")(P),
        ConcretizationError,
        "trim_leading_zeros=False",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
