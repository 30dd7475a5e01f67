"""`solve_ivp` against exact solutions: methods, directions, stiffness, derivatives, errors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import integrate

METHODS = {"RK23": 1e-5, "RK45": 1e-7, "Rosenbrock23": 1e-4}


@pytest.fixture(autouse=True)
def doubles():
    with fg.default_dtype("float64"):
        yield


def turning(t, y, rate=1.0):
    return [y[1] * rate, -y[0] * rate]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("method", "near"), METHODS.items())
@pytest.mark.parametrize("end", [2.0, -2.0])
def test_values(method, near, end):
    times = np.linspace(0, end, 5)
    found = integrate.solve_ivp(
        turning, (0.0, end), np.array([0.0, 1.0]), method, times, True, args=(1.5,),
        rtol=1e-8, atol=1e-8,
    )  # fmt: skip
    want = np.stack([np.sin(1.5 * times), np.cos(1.5 * times)])
    np.testing.assert_allclose(found.y, want, atol=near)
    assert bool(found.success)
    assert int(found.status) == 0
    np.testing.assert_allclose(found.sol(times[2]), want[:, 2], atol=near)
    np.testing.assert_allclose(found.sol(times[1:3]), want[:, 1:3], atol=near)


def test_stiff_equations_take_few_steps():
    def stiff(t, y):
        return -1e6 * (y - fnp.cos(t))

    found = integrate.solve_ivp(stiff, (0.0, 2.0), np.ones(1), "Rosenbrock23", rtol=1e-4)
    assert int(found.nsteps) < 500
    np.testing.assert_allclose(found.y[0, -1], np.cos(2.0), atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives(method):
    @fg.jit
    def last(rate, end):
        f = integrate.solve_ivp(
            turning, (0.0, end), np.array([0.0, 1.0]), method, args=(rate,), rtol=1e-9, atol=1e-9
        )
        return f.y[0, -1]

    found = fg.grad(last, (0, 1))(1.5, 2.0)
    np.testing.assert_allclose(found, [2 * np.cos(3.0), 1.5 * np.cos(3.0)], rtol=1e-4)
    many = fg.vmap(last, (0, None))(np.array([0.5, 1.5]), 2.0)
    np.testing.assert_allclose(many, np.sin([1.0, 3.0]), atol=1e-5)


def test_too_many_steps_are_told():
    f = integrate.solve_ivp(turning, (0.0, 50.0), np.array([0.0, 1.0]), max_steps=3)
    assert not bool(f.success)
    assert int(f.status) == -1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "BDF"}, "method must be one of RK23, RK45, Rosenbrock23"),
        ({"t_span": (0.0,)}, "t_span must be two times"),
        ({"args": 3}, "args must be a tuple"),
        ({"t_eval": np.ones((2, 2))}, "t_eval must be a vector"),
        ({"fun": lambda t, y: y[:1]}, "structure and shapes of y0"),
    ],
)
def test_errors_say_what_was_wrong(change, words):
    how = {"fun": turning, "t_span": (0.0, 1.0), "y0": np.ones(2), **change}
    with pytest.raises(ValueError, match=words):
        integrate.solve_ivp(**how)
