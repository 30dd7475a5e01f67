"""Updates added in parts, against NumPy: positions out of bounds, several axes, other dtypes."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends import partial_sums
from funcgrad.backends.llvm import pool
from tests.backends.checks import check, kernels


@pytest.fixture(autouse=True)
def restore_threads():
    before = pool.num_threads()
    yield
    pool.set_num_threads(before)


def adds(mode):
    return lambda x, *rest: [x.at[tuple(rest[:-1])].add(rest[-1], mode=mode)]


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16"])
def test_planned(mode, dtype, rng, monkeypatch):
    monkeypatch.setattr(partial_sums, "MANY", 64)
    x = rng.integers(0, 9, 5).astype(dtype)
    for n in (96, 97, (4, 30)):
        i = rng.integers(-7, 8, n).astype(np.int32)
        y = rng.integers(0, 9, n).astype(dtype)
        planned = check(adds(mode), x, i, y, exact=True)
        cut = dtype != "float16" and n != 97
        assert (kernels(planned) > 2) == cut
    x, i, j = rng.integers(0, 9, (2, 3)).astype(dtype), *rng.integers(0, 3, (2, 96))
    check(adds(mode), x, i, j, np.arange(96).astype(dtype), exact=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_updates(threads, rng):
    pool.set_num_threads(threads)
    x, y = rng.standard_normal(1000), rng.standard_normal(1 << 17)
    for i in (rng.integers(0, 1000, 1 << 17), np.sort(rng.integers(0, 1000, 1 << 17))):
        wanted = x.copy()
        np.add.at(wanted, i, y)
        np.testing.assert_allclose(np.asarray(fg.jit(adds("drop"))(x, i, y)[0]), wanted, 1e-10)
        g = fg.jit(fg.grad(lambda x, i=i: fg.numpy.sum(x[i] * y)))(x)
        np.testing.assert_allclose(np.asarray(g), wanted - x, rtol=1e-9, atol=1e-10)


def test_two_updates_to_each_element(rng):
    n, m = 1 << 16, 1 << 15
    x, i, y = rng.standard_normal(m), rng.integers(0, m, n), rng.standard_normal(n)
    planned = check(adds("drop"), x, i, y)
    assert kernels(planned) > 2
    wanted = x.copy()
    np.add.at(wanted, i, y)
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        got = np.asarray(fg.jit(adds("drop"))(x, i, y)[0])
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    assert kernels(check(adds("drop"), np.zeros(n), i, y)) == 2  # fewer
