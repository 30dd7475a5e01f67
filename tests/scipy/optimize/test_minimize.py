"""`minimize` on JAX's test functions: minima, dtypes, pytrees, derivatives, transforms, errors."""

import numpy as np
import pytest
from scipy import optimize as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import optimize

METHODS = ["BFGS", "l-bfgs-experimental-do-not-rely-on-this"]


def rosenbrock(np):
    return lambda x: np.sum(100.0 * np.diff(x) ** 2 + (1.0 - x[:-1]) ** 2)


def himmelblau(np):
    return lambda p: (p[0] ** 2 + p[1] - 11.0) ** 2 + (p[0] + p[1] ** 2 - 7.0) ** 2


def matyas(np):
    return lambda p: 0.26 * (p[0] ** 2 + p[1] ** 2) - 0.48 * p[0] * p[1]


def eggholder(np):
    return lambda p: (
        -(p[1] + 47) * np.sin(np.sqrt(np.abs(p[0] / 2 + p[1] + 47)))
        - p[0] * np.sin(np.sqrt(np.abs(p[0] - (p[1] + 47))))
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("make", "x0"),
    [
        (rosenbrock, [0.0, 0.0]),
        (himmelblau, [1.0, 1.0]),
        (matyas, [6.0, 6.0]),
        (eggholder, [100.0, 100.0]),
    ],
)
def test_minima_are_scipys(method, dtype, make, x0):
    x0 = np.array(x0, dtype)
    found = fg.jit(
        lambda x: optimize.minimize(make(fnp), x, method=method, options={"gtol": 1e-6})
    )(x0)
    want = sp.minimize(make(np), x0.astype(float), method="BFGS", options={"gtol": 1e-8})
    assert found.x.dtype == dtype
    if make is eggholder and method != "BFGS":  # of its many minima it may find another
        assert float(found.fun) < eggholder(np)(x0)
        return
    np.testing.assert_allclose(found.x, want.x, atol=1e-3 if dtype == "float32" else 1e-4)
    np.testing.assert_allclose(found.fun, make(np)(np.asarray(found.x)), rtol=1e-5, atol=1e-6)


def test_badly_scaled_functions():
    a = np.eye(2, dtype="float32") * 1e4
    found = optimize.minimize(lambda x: fnp.mean((a @ x) ** 2), fnp.ones(2), method="BFGS")
    np.testing.assert_allclose(found.x, 0, atol=1e-6)

    def zakharov(x):
        s = fnp.sum(0.5 * np.arange(1.0, 7) * x)
        return fnp.sum(x**2) + s**2 + s**4

    x0 = np.array([600.0, 700.0, 200.0, 100.0, 90.0, 1e4])
    assert float(optimize.minimize(zakharov, x0, method="BFGS").fun) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_complex_numbers_and_pytrees(method):
    z = np.array([1.0, 2.0 - 3.0j, 4.0, -5.0j])
    f = lambda v: fnp.real(fnp.vdot(v["z"] - z, v["z"] - z)) + (v["a"] - 2) ** 2
    found = optimize.minimize(f, {"z": np.zeros_like(z), "a": 1.0}, method=method)
    np.testing.assert_allclose(found.x["z"], z, atol=1e-5)
    np.testing.assert_allclose(found.x["a"], 2, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_are_implicit(method):
    def f(x, a):
        return fnp.sum(fnp.cosh(x - a * np.arange(1.0, 4))) + fnp.sum(x) ** 2

    @fg.jit
    def best(a):
        return optimize.minimize(f, np.zeros(3), (a,), method=method, options={"gtol": 1e-10})

    at, h = np.float64(0.7), 1e-5
    slope = (np.asarray(best(at + h).x) - np.asarray(best(at - h).x)) / (2 * h)
    np.testing.assert_allclose(fg.jacrev(lambda a: best(a).x)(at), slope, rtol=1e-4)
    np.testing.assert_allclose(fg.jacfwd(lambda a: best(a).x)(at), slope, rtol=1e-4)
    slope = (float(best(at + h).fun) - float(best(at - h).fun)) / (2 * h)
    np.testing.assert_allclose(fg.grad(lambda a: best(a).fun)(at), slope, rtol=1e-6)
    many = fg.vmap(lambda a: best(a).x)(np.array([0.3, 0.7]))
    np.testing.assert_allclose(many[1], best(at).x, atol=1e-8)


def test_how_it_ended():
    ended = optimize.minimize(rosenbrock(fnp), np.zeros(2), method="BFGS", options={"maxiter": 2})
    assert (int(ended.nit), int(ended.status), bool(ended.success)) == (2, 1, False)
    none = optimize.minimize(lambda x: fnp.sum(x) * np.nan, np.zeros(2), method="BFGS")
    assert not bool(none.success)


def test_line_search(rng):
    f = rosenbrock(fnp)
    x = rng.standard_normal(3)
    g = np.asarray(fg.grad(f)(x))
    found = optimize.line_search(f, x, -g)
    assert not bool(found.failed)
    a = float(found.a_k)
    assert float(f(x - a * g)) <= float(f(x)) - 1e-4 * a * g @ g
    assert abs(np.asarray(found.g_k) @ g) <= 0.9 * g @ g
    assert bool(optimize.line_search(f, x, g).failed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": 45}, "args .* must be a tuple"),
        ({"method": "Newton"}, "Method Newton not recognized"),
        ({"options": {"speed": 1}}, "options must be of maxiter, .* got speed"),
        ({"x0": np.zeros(0)}, "x0 has no elements"),
        ({"fun": lambda x: x}, "fun must give a number"),
    ],
)
def test_errors_say_what_was_wrong(change, words):
    how = {"fun": rosenbrock(fnp), "x0": np.zeros(2), "method": "BFGS", **change}
    with pytest.raises(TypeError, match=words):
        optimize.minimize(**how)
