"""Running sums and extremes: a thread a line, the CPU's bits, no kernel for a few long lines."""

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


def test_a_few_long_lines_are_no_kernels():
    assert not planned(lambda x: lax.cumsum(x, axis=0), numbers(5000)).kernels.launches
    assert planned(lambda x: lax.cumsum(x, axis=0), numbers(5000, 128)).kernels.launches
