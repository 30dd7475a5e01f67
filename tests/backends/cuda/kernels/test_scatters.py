"""Many scattered updates: in the updates' order, row by row, whatever the threads' order is."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.program import HostStep, walk
from tests.backends.cuda.simulated import numbers, planned


def hosts(program):
    return [s.prim.name for s in walk(program.program.steps) if isinstance(s, HostStep)]


@pytest.mark.parametrize("how", ["add", "multiply"])
@pytest.mark.parametrize("fresh", [False, True])
def test_rows(how, fresh):
    def f(x, i, u):
        return getattr((fnp.zeros_like(x) if fresh else x).at[i], how)(u)

    x, u = numbers(50, 24), numbers(400, 24)
    i = (np.arange(400, dtype=np.int32) * 7919 % 61).astype(np.int32)  # some are out of range
    programs = [planned(f, x, i, u, seed=seed) for seed in (None, 1)]
    assert not hosts(programs[0])
    first, second = (p([x, i, u])[0] for p in programs)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, fg.jit(f)(x, i, u), rtol=1e-6)


def test_the_gradient_of_an_embedding():
    def loss(table, i):
        return (table[i] ** 2).sum()

    table, i = numbers(30, 16).astype("float16"), np.arange(300, dtype=np.int32) % 17
    program = planned(fg.grad(loss), table, i)
    assert not hosts(program)
    got = program([table, i])[0].astype("float32")
    want = np.asarray(fg.jit(fg.grad(loss))(table, i)).astype("float32")
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-3)


def test_many_elements_that_are_no_rows_are_the_hosts():
    program = planned(lambda x, i, u: x.at[i].add(u), numbers(9), np.zeros(300, int), numbers(300))
    assert hosts(program) == ["scatter_add"]
