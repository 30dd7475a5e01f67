"""`custom_gradient` and `fwd_and_bwd`: the same derivatives as the forms that they are made of."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError, CustomRuleError


@fg.custom_gradient
def scaled(x, y):
    s = fnp.sin(x)
    return s * y, lambda g: (7 * g * s, g * y)  # no derivatives, to see whose are taken


def close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-5)


@pytest.mark.parametrize("way", [lambda f: f, fg.jit])
def test_gradients_are_the_functions_own(way):
    x, y = 1.0, 2.0
    close(way(scaled)(x, y), np.sin(x) * y)
    gx, gy = way(fg.grad(scaled, (0, 1)))(x, y)
    close(gx, 7 * np.sin(x))
    close(gy, y)


def test_batches_and_loops():
    x = fnp.arange(3.0)
    close(fg.vmap(fg.grad(scaled), in_axes=(0, None))(x, 2.0), 7 * np.sin(x))
    total = lambda x: fg.lax.scan(lambda c, _: (scaled(c, 1.0), None), x, None, length=2)[0]
    close(fg.grad(total)(1.0), 49 * np.sin(np.sin(1.0)) * np.sin(1.0))


def test_second_order_differentiates_the_pullback():
    half = fg.custom_gradient(lambda x: (x**2, lambda g: g * x))
    close(fg.grad(fg.grad(half))(3.0), 1.0)


def test_pytrees_and_keywords():
    double = fg.custom_gradient(lambda d, by=2: ({"y": d["x"] * by}, lambda g: {"x": 5 * g["y"]}))
    close(double({"x": 3.0}, by=4)["y"], 12.0)
    close(fg.grad(lambda d: double(d)["y"])({"x": 3.0})["x"], 5.0)


@pytest.mark.parametrize(
    ("fun", "words"),
    [
        (lambda x: x, "custom_gradient of <lambda>: the function must return a pair"),
        (lambda x: (x, lambda g: (g, g)), "there are 1 arguments, .* returned 2 cotangents"),
    ],
)
def test_functions_that_are_none(fun, words):
    with pytest.raises(CustomRuleError, match=words):
        fg.grad(fg.custom_gradient(fun))(1.0)
    with pytest.raises(TypeError, match="custom_gradient"):
        fg.custom_gradient(3)


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("argnums", [0, (1,), (0, 1), (-1,)])
def test_two_functions_are_the_vjp(jitted, argnums):
    f = lambda w, x: fnp.tanh(x @ w)
    w, x = fnp.full((3, 2), 0.1), fnp.ones((4, 3))
    fwd, bwd = fg.fwd_and_bwd(f, argnums, jitted=jitted)
    nums = (argnums,) if isinstance(argnums, int) else argnums
    for scale in (1.0, 2.0):
        value, residuals = fwd(w * scale, x)
        cts = bwd(residuals, fnp.ones((4, 2)))
        wanted_value, pull = fg.vjp(f, w * scale, x)
        wanted = pull(fnp.ones((4, 2)))
        close(value, wanted_value)
        assert len(cts) == len(nums)
        for ct, n in zip(cts, nums, strict=True):
            close(ct, wanted[n])
    if jitted:
        assert fwd.cache_info().misses == bwd.cache_info().misses == 1


def test_values_that_are_auxiliary():
    fwd, bwd = fg.fwd_and_bwd(lambda x: (x**2, {"x": x}), 0, has_aux=True)
    value, residuals, aux = fwd(3.0)
    close(value, 9.0)
    close(aux["x"], 3.0)
    close(bwd(residuals, 1.0)[0], 6.0)


@pytest.mark.parametrize("argnums", [2, (0, -3)])
def test_arguments_that_are_not_there(argnums):
    fwd, _ = fg.fwd_and_bwd(lambda x, y: x * y, argnums)
    with pytest.raises(ArgumentError, match="fwd_and_bwd of .*, but there are 2 arguments"):
        fwd(1.0, 2.0)
