"""Integrals of samples and functions against SciPy; derivatives; errors."""

import numpy as np
import pytest
from scipy import integrate as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import integrate


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("axis", [0, -1])
def test_samples(n, axis, rng):
    y = rng.standard_normal((n, n))
    x = np.sort(rng.standard_normal(n))
    for name in ("simpson", "trapezoid", "cumulative_trapezoid"):
        ours, theirs = getattr(integrate, name), getattr(sp, name)
        for how in ({"dx": 0.3}, {"x": x}):
            want = theirs(y, axis=axis, **how)
            np.testing.assert_allclose(ours(y, axis=axis, **how), want, atol=1e-10)
    found = integrate.cumulative_trapezoid(y, x, axis=axis, initial=0)
    np.testing.assert_allclose(found, sp.cumulative_trapezoid(y, x, axis=axis, initial=0))
    if n in (2, 3, 5, 9):
        np.testing.assert_allclose(integrate.romb(y, 0.5, axis), sp.romb(y, 0.5, axis), atol=1e-12)


def test_the_formula_is_exact_for_polynomials():
    points, kronrod, gauss = (
        getattr(integrate.quadrature, name) for name in ("PLACES", "KRONROD", "GAUSS")
    )
    for k in range(23):
        want = 0 if k % 2 else 2 / (k + 1)
        np.testing.assert_allclose(np.sum(kronrod * points**k), want, atol=1e-15)
        if k < 14:
            np.testing.assert_allclose(np.sum(gauss * points**k), want, atol=1e-15)


@pytest.mark.parametrize(
    ("f", "a", "b"),
    [
        (lambda x: fnp.exp(-x) * fnp.sin(5 * x), 0.0, 4.0),
        (lambda x: fnp.abs(x - 0.3), -1.0, 1.0),
        (lambda x: fnp.sqrt(x), 0.0, 1.0),
        (lambda x: fnp.exp(-x * x), -np.inf, np.inf),
        (lambda x: 1 / (1 + x * x), 1.0, np.inf),
        (lambda x: 1 / (1 + x * x), -np.inf, 1.0),
        (lambda x: fnp.exp(-x), np.inf, 0.0),
        (lambda x: x**3, 2.0, -1.0),
    ],
)
def test_quad(f, a, b):
    want, _ = sp.quad(lambda x: float(f(np.float64(x))), a, b)
    with fg.default_dtype("float64"):
        value, error = fg.jit(lambda: integrate.quad(f, a, b))()
    np.testing.assert_allclose(value, want, atol=1e-8)
    assert abs(float(value) - want) <= float(error) + 1e-10


def test_derivatives_of_quad():
    with fg.default_dtype("float64"):

        @fg.jit
        def f(p, b):
            return integrate.quad(lambda x, p: x**p, 0.0, b, (p,))[0]

        np.testing.assert_allclose(fg.grad(f, (0, 1))(2.0, 1.0), [-1 / 9, 1.0], rtol=1e-7)
        np.testing.assert_allclose(fg.grad(fg.grad(f))(2.0, 1.0), 2 / 27, rtol=1e-6)
        many = fg.vmap(f, (0, None))(np.array([1.0, 2.0, 3.0]), 1.0)
        np.testing.assert_allclose(many, [1 / 2, 1 / 3, 1 / 4], rtol=1e-9)


def test_fixed_quad():
    with fg.default_dtype("float64"):
        found = integrate.fixed_quad(lambda x: x**9 + 1, 0.0, 2.0)[0]
    np.testing.assert_allclose(found, sp.fixed_quad(lambda x: x**9 + 1, 0.0, 2.0)[0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda y: integrate.simpson(y, fnp.ones(3)), "x must have a place for each"),
        (lambda y: integrate.simpson(y, axis=1), "axis 1 is out of range"),
        (lambda y: integrate.romb(y), "one more than a power of 2, got 4"),
        (lambda y: integrate.fixed_quad(fnp.sin, 0, 1, n=0), "n must be positive"),
        (lambda y: integrate.quad(fnp.sin, 0, 1, limit=0), "limit must be positive"),
        (lambda y: integrate.quad(fnp.sin, y, 1), "a and b must be numbers"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(fnp.ones(4))
