"""Sorts by a network: the host's order in all orders of threads, in shared memory and beyond."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.kernels.sorts import MOST
from tests.backends.cuda.simulated import numbers, planned


def rough(*shape):
    """Numbers with equal ones, NaN, and zeros of both signs among them."""
    x = np.round(3 * numbers(*shape))
    x.flat[::7] = -0.0
    x.flat[3::50] = np.nan
    return x


@pytest.mark.parametrize("n", [1, 2, 37, 700])
def test_stable_in_all_orders_of_threads(n):
    def f(x):
        return fnp.argsort(x, axis=0), lax.top_k(x.T, min(n, 5))

    x = rough(n, 3)
    want = np.argsort(x, axis=0, kind="stable")
    for seed in (None, 1, 2):
        order, values, places = planned(f, x, seed=seed)([x])
        np.testing.assert_array_equal(order, want)
        np.testing.assert_array_equal(values, np.take_along_axis(x.T, places.astype(int), 1))
        first = [sorted(range(n), key=lambda i: (not np.isnan(c[i]), -c[i], i))[:5] for c in x.T]
        np.testing.assert_array_equal(places, first)


def test_long_lines_use_memory_for_work():
    x = rough(2, 6000)
    program = planned(lambda x: fnp.sort(x, axis=1), x)
    (launch,) = program.kernels.launches
    assert launch.workspace
    np.testing.assert_array_equal(program([x])[0], np.sort(x, axis=1))


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "bool", "float64"])
def test_several_keys(dtype):
    a, b = (np.round(2 * numbers(50, 4)).astype(dtype) for _ in range(2))
    b = b[::-1].copy()
    c = np.arange(200, dtype=np.int32).reshape(50, 4)

    def f(a, b, c):
        return lax.sort((a, b, c), dimension=0, num_keys=2)

    got = planned(f, a, b, c)([a, b, c])
    for j in range(4):
        order = np.lexsort((b[:, j], a[:, j]))
        for y, x in zip(got, (a, b, c), strict=True):
            np.testing.assert_array_equal(y[:, j], x[order, j])


def test_very_long_lines_are_the_hosts():
    assert not planned(lambda x: fnp.sort(x), np.zeros(MOST + 1, np.float32)).kernels.launches
