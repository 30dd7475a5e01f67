"""Roots and least squares: SciPy's, derivatives, pytrees, what has no root, errors."""

import numpy as np
import pytest
from scipy import optimize as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import optimize

X = np.linspace(0, 3, 15)


def curve(np):
    return lambda p, x=X: p[0] * np.exp(-p[1] * x) + p[2]


def rosenbrock(np):
    return lambda x: np.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_are_scipys(dtype, rng):
    y = (curve(np)([3.0, 1.3, 0.5]) + 0.05 * rng.standard_normal(15)).astype(dtype)
    x = X.astype(dtype)
    f = lambda p: curve(fnp)(p, x) - y
    found = fg.jit(lambda p: optimize.least_squares(f, p))(np.ones(3, dtype))
    want = sp.least_squares(lambda p: curve(np)(p) - y, np.ones(3))
    near = 2e-3 if dtype == "float32" else 1e-6
    assert found.x.dtype == dtype
    np.testing.assert_allclose(found.x, want.x, rtol=near)
    np.testing.assert_allclose(found.cost, want.cost, rtol=near)
    assert bool(found.success)


def test_valleys_and_roots_are_found():
    found = optimize.least_squares(rosenbrock(fnp), np.array([-1.2, 1.0]))
    np.testing.assert_allclose(found.x, [1, 1], atol=1e-8)
    found = optimize.root(rosenbrock(fnp), np.array([-1.2, 1.0]))
    np.testing.assert_allclose(found.x, [1, 1], atol=1e-12)
    assert bool(found.success)


def test_derivatives_are_implicit(rng):
    y = curve(np)([3.0, 1.3, 0.5]) + 0.05 * rng.standard_normal(15)

    @fg.jit
    def fit(y):
        return optimize.least_squares(lambda p: curve(fnp)(p) - y, np.ones(3), xtol=1e-12).x

    h = 1e-5 * rng.standard_normal(15)
    slope = (np.asarray(fit(y + h)) - np.asarray(fit(y - h))) / 2
    np.testing.assert_allclose(fg.jacrev(fit)(y) @ h, slope, rtol=1e-4, atol=1e-10)
    np.testing.assert_allclose(fg.jacfwd(fit)(y) @ h, slope, rtol=1e-4, atol=1e-10)
    cube = fg.jit(lambda a: optimize.root(lambda x, a: x**3 - a, np.ones(1), (a,)).x[0])
    np.testing.assert_allclose(fg.grad(cube)(np.float64(8.0)), 1 / 12, rtol=1e-9)
    np.testing.assert_allclose(fg.grad(fg.grad(cube))(np.float64(8.0)), -2 / 288, rtol=1e-7)
    np.testing.assert_allclose(fg.vmap(cube)(np.array([1.0, 8.0, 27.0])), [1, 2, 3], rtol=1e-9)


def test_pytrees():
    f = lambda p: {"a": p["a"] - 2, "b": p["b"] ** 2 - np.array([1.0, 4.0])}
    found = optimize.root(f, {"a": 0.5, "b": np.ones(2)})
    np.testing.assert_allclose(found.x["b"], [1, 2], rtol=1e-6)
    np.testing.assert_allclose(found.x["a"], 2, rtol=1e-6)


@pytest.mark.parametrize("f", [lambda x: x**2 + 1, lambda x: x * np.nan, lambda x: 0 * x + 1])
def test_what_has_no_root_ends_and_is_told(f):
    found = optimize.root(f, np.full(2, 0.7))
    assert not bool(found.success)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: optimize.root(lambda x: x[:1], x), "fun must give as many numbers"),
        (lambda x: optimize.root(lambda x: x, x, method="hybr"), "method must be lm"),
        (lambda x: optimize.root(lambda x: x, x, options={"a": 1}), "options must be of maxiter"),
        (lambda x: optimize.least_squares(lambda x: x, x, 3), "args must be a tuple"),
        (lambda x: optimize.least_squares(lambda x: x, x[:0]), "x0 has no elements"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(np.ones(2))
