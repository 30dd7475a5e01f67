"""Running sums and extremes: a thread a line, the CPU's bits; a block where lines are few."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from tests.backends.cuda.simulated import numbers, planned

OPS = [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lines(axis, reverse):
    def f(x):
        return [op(x, axis=axis, reverse=reverse) for op in OPS]

    x = numbers(3, 7, 5)
    x[1, 2, 3], x[0, 0, 0] = np.nan, -0.0
    program = planned(f, x)
    assert {launch.plan.kind for launch in program.kernels.launches} == {"points"}
    for got, want in zip(program([x]), fg.jit(f)(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_few_long_lines_are_cut(reverse):
    def f(x):
        return [op(x, axis=0, reverse=reverse) for op in (lax.cumsum, lax.cummax)]

    x = numbers(9001, 2)
    programs = [planned(f, x, seed=seed) for seed in (None, 1)]
    assert {launch.plan.kind for launch in programs[0].kernels.launches} == {"rows"}
    first, second = (p([x]) for p in programs)
    for got, again, want in zip(first, second, fg.jit(f)(x), strict=True):
        np.testing.assert_array_equal(got, again)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
