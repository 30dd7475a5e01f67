"""Convolutions, pooling and their gradients on a GPU's threads, beside the CPU's."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.kernels.windows import MOST_TAPS
from funcgrad.backends.program import HostStep, walk
from tests.backends.cuda.simulated import numbers, planned

CONVOLUTIONS = {
    "channels first": {"window_strides": (1, 1), "padding": "SAME"},
    "strides": {"window_strides": (2, 1), "padding": [(1, 2), (0, 1)], "rhs_dilation": (1, 2)},
    "holes": {"window_strides": (1, 2), "padding": [(2, -1), (1, 1)], "lhs_dilation": (2, 3)},
    "groups": {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2},
}


def host_steps(program):
    return [s.prim.name for s in walk(program.program.steps) if isinstance(s, HostStep)]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients(name):
    how = CONVOLUTIONS[name]
    x, w = numbers(2, 4, 7, 6), numbers(6, 4 // how.get("feature_group_count", 1), 3, 2)

    def f(x, w):
        y = lax.conv_general_dilated(x, w, **how)
        return [
            y,
            *fg.grad(lambda *a: (lax.conv_general_dilated(*a, **how) ** 2).sum(), (0, 1))(x, w),
        ]

    program = planned(f, x, w)
    assert not host_steps(program)
    for got, want in zip(program([x, w]), fg.jit(f)(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_channels_last_in_bfloat16():
    x, w = (fnp.asarray(numbers(*s)).astype("bfloat16") for s in ((2, 5, 5, 3), (3, 3, 3, 4)))

    def f(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    program = planned(f, x, w)
    assert program.program.flops >= 2 * (2 * 5 * 5 * 4) * (3 * 3 * 3)
    got = program([np.asarray(x), np.asarray(w)])[0].astype("float32")
    np.testing.assert_allclose(
        got, np.asarray(fg.jit(f)(x, w)).astype("float32"), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("compute", [lax.max, lax.min, lax.add])
def test_pooling_and_its_gradients(compute):
    init = {lax.max: -np.inf, lax.min: np.inf, lax.add: 0.0}[compute]

    def pool(x):
        return lax.reduce_window(x, init, compute, (1, 3, 2), (1, 2, 2), "SAME")

    def f(x, t):
        return pool(x), fg.grad(lambda x: (pool(x) ** 2).sum())(x), fg.jvp(pool, (x,), (t,))[1]

    x = np.round(numbers(3, 8, 6))  # which has equal ones
    x[0, 1, 1] = np.nan
    program = planned(f, x, numbers(3, 8, 6) + 1)
    assert not host_steps(program)
    args = [x, numbers(3, 8, 6) + 1]
    for got, want in zip(program(args), fg.jit(f)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_wide_windows_are_the_hosts():
    def f(x):
        return fg.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (9,), (1,), "SAME").sum())(
            x
        )

    assert not host_steps(planned(f, numbers(40)))
    assert MOST_TAPS < 81

    def g(x):
        return fg.grad(
            lambda x: lax.reduce_window(x, -np.inf, lax.max, (9, 9), (1, 1), "SAME").sum()
        )(x)

    assert host_steps(planned(g, numbers(20, 20))) == ["select_and_scatter_add"]
