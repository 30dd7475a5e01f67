"""`odeint` against SciPy and exact solutions; derivatives of both orders and modes; errors."""

import numpy as np
import pytest
from scipy.integrate import odeint as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.experimental.ode import odeint


@pytest.fixture(autouse=True)
def doubles():
    with fg.default_dtype("float64"):
        yield


def pendulum(y, t, m, g):
    return fnp.stack([y[1], -m * y[1] - g * fnp.sin(y[0]) * (1 + 0.1 * t)])


def decay(y, t, a, b):
    return -fnp.sqrt(t) - y + a - fnp.mean((y + b) ** 2)


def swoop(y, t, a, b):
    return y - fnp.sin(t) - fnp.cos(t) * a + b


CASES = {
    "pendulum": (pendulum, [np.pi - 0.1, 0.0], np.linspace(0.0, 1.0, 6), (0.25, 9.8)),
    "decay": (
        decay,
        [0.3, -0.7, 1.1],
        np.linspace(0.1, 0.2, 4),
        ([0.1, 0.2, 0.3], [-0.4, 0.5, 1.0]),
    ),
    "swoop": (swoop, np.linspace(1.1, 10.9, 10), [0.1, 0.2], (0.1, 0.3)),
}
CASES = {k: (f, *(np.asarray(x) for x in (y, t)), tuple(map(np.asarray, args)))
         for k, (f, y, t, args) in CASES.items()}  # fmt: skip


def slopes(f, at, rng, h=1e-5):
    """(the slope of f in a random direction, that direction), by central differences."""
    way = [rng.standard_normal(np.shape(x)) for x in at]
    ends = [[x + s * h * d for x, d in zip(at, way, strict=True)] for s in (1, -1)]
    return (np.asarray(f(*ends[0])) - np.asarray(f(*ends[1]))) / (2 * h), way


@pytest.mark.parametrize("case", CASES)
def test_values_are_scipys(case):
    f, y, t, args = CASES[case]
    want = sp(lambda *a: np.asarray(f(*a)), y, t, args, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(odeint(f, y, t, *args), want, rtol=1e-6, atol=1e-7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_derivatives_of_both_orders(case, rng):
    f, y, t, args = CASES[case]
    weights = rng.standard_normal((len(t), len(y)))

    @fg.jit
    def value(y, t, *args):
        return fnp.sum(odeint(f, y, t, *args, rtol=1e-10, atol=1e-10) * weights)

    every = tuple(range(2 + len(args)))
    gradient = fg.jit(fg.grad(value, every))
    at = (y, t, *args)
    slope, way = slopes(value, at, rng)
    found = sum(np.sum(g * d) for g, d in zip(gradient(*at), way, strict=True))
    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-7)
    along = fg.jit(lambda *at: sum(fnp.sum(g * d) for g, d in zip(gradient(*at), way, strict=True)))
    slope, second = slopes(along, at, rng)
    twice = fg.jit(fg.grad(along, every))(*at)
    found = sum(np.sum(g * d) for g, d in zip(twice, second, strict=True))
    np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_forward_mode_gives_the_same(rng):
    f, y, t, args = CASES["pendulum"]
    solve = fg.jit(lambda y, t, *args: odeint(f, y, t, *args))
    for argnum in range(4):
        forward = fg.jacfwd(solve, argnum)(y, t, *args)
        backward = fg.jacrev(solve, argnum)(y, t, *args)
        np.testing.assert_allclose(forward, backward, atol=2e-5)


def test_pytrees_of_states_and_arguments():
    def f(y, t, p):
        return {"a": -y["a"] * p["rate"], "b": (fnp.ones((2, 1)) * t,)}

    y, t = {"a": 2.0, "b": (np.zeros((2, 1)),)}, np.array([0.0, 1.0, 2.0])
    out = odeint(f, y, t, {"rate": 0.5, "name": 3})
    np.testing.assert_allclose(out["a"], 2 * np.exp(-0.5 * t), rtol=1e-6)
    np.testing.assert_allclose(out["b"][0], np.broadcast_to(t[:, None, None] ** 2 / 2, (3, 2, 1)))
    slope = fg.grad(lambda r: odeint(f, y, t, {"rate": r, "name": 3})["a"][-1])(0.5)
    np.testing.assert_allclose(slope, -4 * np.exp(-1), rtol=1e-6)


def test_complex_states_and_rates():
    def f(y, t, rate):
        return rate * y

    t, rate = np.array([0.0, 0.5]), 0.3 + 2j
    out = odeint(f, 1 + 2j, t, rate)
    assert out.dtype == np.complex128
    np.testing.assert_allclose(out, (1 + 2j) * np.exp(rate * t), rtol=1e-6)
    real = fg.grad(lambda r: odeint(f, 1 + 2j, t, r + 2j)[-1].real)(0.3)
    np.testing.assert_allclose(real, (0.5 * out[-1]).real, rtol=1e-6)


def test_vmap_of_solutions_and_gradients():
    t, rates = np.array([0.0, 1.0, 5.0]), np.array([0.1, 0.5, 3.0])

    def last(rate):
        return odeint(lambda y, t: -rate * y, 1.0, t)[-1]

    values, grads = fg.jit(fg.vmap(fg.value_and_grad(last)))(rates)
    np.testing.assert_allclose(values, np.exp(-5 * rates), atol=1e-6)
    np.testing.assert_allclose(grads, -5 * np.exp(-5 * rates), atol=1e-5)


def test_float32_stays(rng):
    y = fnp.asarray([1.0, 2.0], "float32")
    out = odeint(lambda y, t: -y, y, fnp.asarray([0.0, 1.0], "float32"))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[-1], np.exp(-1) * y, rtol=1e-5)
    assert odeint(lambda y, t: -y, 1, np.array([0.0, 1.0])).dtype == np.float64


def test_longest_step_sees_what_is_short():
    def f(y, t):
        return fnp.where(t <= 2.0, 1.0, fnp.where((t >= 5.0) & (t <= 7.0), -1.0, 0.0))

    ys = odeint(f, 0.0, np.array([0.0, 5.0, 10.0]), hmax=1.0)
    np.testing.assert_allclose(ys, [0, 2, 0], atol=1e-4)


@pytest.mark.parametrize("f", [lambda y, t: y * np.nan, lambda y, t: y * y, lambda y, t: 1e300 * y])
def test_what_has_no_solution_ends(f):
    assert odeint(f, 1.0, np.array([0.0, 2.0])).shape == (2,)


def test_constants_have_finite_gradients():
    t = np.array([0.0, 1.0])
    for mode in (fg.jacfwd, fg.jacrev):
        f = mode(lambda a: odeint(lambda y, t: a, 0.0, t)[-1])
        np.testing.assert_allclose(f(0.0), 1.0)
        np.testing.assert_allclose(f(2.0), 1.0)


def test_disabled_jit():
    with fg.disable_jit():
        out = odeint(lambda y, t: -y, 1.0, np.array([0.0, 0.1]), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(out[-1], np.exp(-0.1), rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda f, t: odeint(f, 1.0, [0, 1]), TypeError, "t must be an array of floats"),
        (lambda f, t: odeint(f, 1.0, np.arange(3)), TypeError, "t must be an array of floats"),
        (lambda f, t: odeint(f, 1.0, t[None]), ValueError, "t must be a vector of times"),
        (lambda f, t: odeint(f, 1.0, t, "a"), TypeError, "must be arrays or scalars, but got 'a'"),
        (lambda f, t: odeint(3, 1.0, t), TypeError, "func must be a function"),
        (lambda f, t: odeint(lambda y, t: (y, y), 1.0, t), TypeError, "structure and shapes of y0"),
        (lambda f, t: odeint(lambda y, t: fnp.ones(2), 1.0, t), ValueError, "shapes of y0"),
    ],
)
def test_errors_say_what_was_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(lambda y, t: -y, np.array([0.0, 1.0]))
