"""Activations against their formulas; derivatives to order 2, at corners and far out."""

import numpy as np
import pytest
from scipy import special

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.errors import ShapeError

INF, NAN = np.inf, np.nan
ROOT = np.sqrt(2 / np.pi)


def elu(x, low, scale=1.0):
    return np.where(x > 0, x, low * np.expm1(np.minimum(x, 0) / scale))


# name: (ours, formula, where a derivative of some order jumps)
CASES = {
    "celu": (lambda x: nn.celu(x, 0.7), lambda x: elu(x, 0.7, 0.7), [0]),
    "elu": (lambda x: nn.elu(x, 0.7), lambda x: elu(x, 0.7), [0]),
    "gelu": (nn.gelu, lambda x: 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3))), []),
    "gelu_exact": (lambda x: nn.gelu(x, approximate=False), lambda x: x * special.ndtr(x), []),
    "hard_sigmoid": (nn.hard_sigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1), [-3, 3]),
    "hard_silu": (nn.hard_silu, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), [-3, 3]),
    "hard_swish": (nn.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), [-3, 3]),
    "hard_tanh": (nn.hard_tanh, lambda x: np.clip(x, -1, 1), [-1, 1]),
    "identity": (nn.identity, lambda x: x, []),
    "leaky_relu": (lambda x: nn.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x), [0]),
    "log_sigmoid": (nn.log_sigmoid, special.log_expit, []),
    "mish": (nn.mish, lambda x: x * np.tanh(np.logaddexp(0, x)), []),
    "relu": (nn.relu, lambda x: np.maximum(x, 0), [0]),
    "relu6": (nn.relu6, lambda x: np.clip(x, 0, 6), [0, 6]),
    "selu": (nn.selu, lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772), [0]),
    "sigmoid": (nn.sigmoid, special.expit, []),
    "silu": (nn.silu, lambda x: x * special.expit(x), []),
    "soft_sign": (nn.soft_sign, lambda x: x / (1 + np.abs(x)), [0]),
    "softplus": (nn.softplus, lambda x: np.logaddexp(0, x), []),
    "sparse_plus": (
        nn.sparse_plus, lambda x: np.where(x >= 1, x, np.maximum(x + 1, 0) ** 2 / 4), [-1, 1]
    ),
    "sparse_sigmoid": (nn.sparse_sigmoid, lambda x: np.clip((x + 1) / 2, 0, 1), [-1, 1]),
    "squareplus": (lambda x: nn.squareplus(x, 2.0), lambda x: (x + np.sqrt(x * x + 2)) / 2, []),
    "swish": (nn.swish, lambda x: x * special.expit(x), []),
    "tanh": (nn.tanh, np.tanh, []),
}  # fmt: skip
POINTS = np.array([-40.0, -6, -3, -2, -1, -0.5, -1e-3, 0, 1e-3, 0.5, 1, 2, 3, 6, 7, 40])
LARGE = np.array([-1e4, -800.0, 800.0, 1e4])


def slope(f, x, h=1e-4):
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_values(name, jit):
    ours, formula, _ = CASES[name]
    ours = fg.jit(ours) if jit else ours
    x = np.concatenate([POINTS, LARGE])
    got = ours(x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, formula(x), rtol=1e-12, atol=1e-15)
    assert np.isnan(ours(np.array([NAN]))).all()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("dtype", "room"), [("float16", 3e-3), ("bfloat16", 2e-2), ("float32", 1e-6)]
)
def test_narrow_floats(name, dtype, room):
    ours, formula, _ = CASES[name]
    x = fnp.array(POINTS[1:-1]).astype(dtype)
    wanted = formula(np.asarray(x, float))
    for f in (ours, fg.jit(ours)):
        got = f(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(got, float), wanted, rtol=room, atol=room)


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    ours, _, corners = CASES[name]
    x = np.array([p for p in POINTS if all(abs(p - c) > 0.1 for c in corners)])
    first = fg.vmap(fg.grad(ours))
    second = fg.vmap(fg.grad(fg.grad(ours)))
    forward = fg.vmap(lambda v: fg.jvp(fg.grad(ours), (v,), (fnp.ones_like(v),))[1])
    np.testing.assert_allclose(first(fnp.array(x)), slope(ours, x), atol=1e-7)
    np.testing.assert_allclose(second(fnp.array(x)), slope(first, x), atol=1e-7)
    np.testing.assert_allclose(forward(fnp.array(x)), second(fnp.array(x)), atol=1e-12)
    np.testing.assert_allclose(fg.jit(first)(fnp.array(x)), first(fnp.array(x)), atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_derivatives_are_finite(name, dtype):
    """Also where a branch not taken would overflow."""
    x = fnp.array([-1e4, -800, -100, -6, -3, -1, 0, 1, 3, 6, 100, 800, 1e4]).astype(dtype)
    first = fg.vmap(fg.grad(CASES[name][0]))
    second = fg.vmap(fg.grad(fg.grad(CASES[name][0])))
    for f in (first, second, fg.jit(first)):
        assert np.isfinite(f(x)).all()


@pytest.mark.parametrize(("name", "at", "wanted"), [
    ("relu", 0.0, 0.0), ("relu6", 0.0, 0.0), ("relu6", 6.0, 0.0), ("leaky_relu", 0.0, 1.0),
    ("elu", 0.0, 0.7), ("hard_tanh", 1.0, 1.0), ("soft_sign", 0.0, 1.0),
])  # fmt: skip
def test_derivatives_at_corners(name, at, wanted):
    assert float(fg.grad(CASES[name][0])(at)) == pytest.approx(wanted)


@pytest.mark.parametrize("name", CASES)
def test_integers_become_floats(name):
    ours, formula, _ = CASES[name]
    x = np.array([-3, 0, 2], "int8")
    keeps = name in ("relu", "identity")
    assert ours(x).dtype == (np.int8 if keeps else np.float32)
    np.testing.assert_allclose(ours(x), formula(x.astype(float)), rtol=1e-6, atol=1e-6)
    assert float(ours(2)) == pytest.approx(float(formula(2.0)), rel=1e-6)
    with fg.default_dtype("float64"):
        assert ours(x).dtype == (np.int8 if keeps else np.float64)


def test_log1mexp():
    x = np.array([1e-10, 1e-3, 0.5, np.log(2), 0.7, 3.0, 40.0])
    wanted = np.where(x < 0.69, np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))
    np.testing.assert_allclose(nn.log1mexp(x), wanted, rtol=1e-14)
    np.testing.assert_allclose(fg.vmap(fg.grad(nn.log1mexp))(fnp.array(x)), 1 / np.expm1(x))
    assert float(nn.log1mexp(0.0)) == -INF


@pytest.mark.parametrize("axis", [-1, 0])
def test_glu(axis, rng):
    x = rng.normal(size=(4, 6))
    a, b = np.split(x, 2, axis)
    np.testing.assert_allclose(nn.glu(x, axis), a * special.expit(b), rtol=1e-12)
    with pytest.raises(ValueError, match=r"even size.*\(3, 5\)"):
        nn.glu(np.ones((3, 5)), axis)
    with pytest.raises(ShapeError, match="nn.glu: axis .* is out of range"):
        nn.glu(1.0, axis)


@pytest.mark.parametrize("name", CASES)
def test_python_numbers_stay_weak(name):
    function = CASES[name][0]
    for number in (2.0, 2):
        assert function(number).weak_type
        assert fg.jvp(function, (2.0,), (1.0,))[0].weak_type
    assert not function(np.float32(2)).weak_type
