"""Scatters of rows, by an order of their updates: against the operations one by one, which run the
updates in order, and the routine against the step's own meaning."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.rewrites import rows
from funcgrad.backends.llvm.runtime import pool
from tests.backends.checks import check, hosts

WIDTH = rows.LEAST


@pytest.fixture
def small(monkeypatch):
    """Sums into small zeros, too."""
    monkeypatch.setattr(rows, "LARGE", 0)


def update(how, mode="drop"):
    """(x, *indices, updates) -> [x.at[indices].how(updates)]."""
    return lambda x, *rest: [getattr(x.at[tuple(rest[:-1])], how)(rest[-1], mode=mode)]


def sums(shape, mode="drop"):
    """(*indices, updates) -> their sums by rows, from zeros."""
    return lambda *a: [fnp.zeros(shape, a[-1].dtype).at[tuple(a[:-1])].add(a[-1], mode=mode)]


def by_rows(planned):
    return hosts(planned).count("row_order") == 1


def same_natively(f, *args):
    """Compiled, in so many threads, as one by one: the same values, and signs of zeros."""
    (wanted,) = f(*map(fnp.asarray, args))
    for threads in (1, 3):
        pool.set_num_threads(threads)
        (got,) = fg.jit(f)(*args)
        assert got.dtype == wanted.dtype
        got, expected = (np.asarray(v).astype(np.float64) for v in (got, wanted))
        np.testing.assert_array_equal(got, expected)
        nan = np.isnan(got)
        np.testing.assert_array_equal(np.signbit(got) | nan, np.signbit(expected) | nan)


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("how", ["add", "multiply"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats(mode, how, dtype, rng):
    for n, size, width in ((20, 5, WIDTH), (97, 40, WIDTH + 1), ((4, 30), 700, 3 * WIDTH)):
        x = fnp.asarray(rng.standard_normal((size, width), np.float32)).astype(dtype)
        i = rng.integers(-size - 2, size + 3, n).astype(np.int32)
        y = rng.standard_normal((*i.shape, width), np.float32)
        y = fnp.asarray(1 + y / 9 if how == "multiply" else y).astype(dtype)
        assert by_rows(check(update(how, mode), x, i, y))
        same_natively(update(how, mode), x, i, y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bfloat16"])
def test_sums_from_zeros(dtype, rng, small):
    for shape, n in (((30, WIDTH), 40), ((3, 1000), 17), ((7, 5, 3 * WIDTH), 33)):
        f = sums(shape)
        i = rng.integers(-shape[0] - 2, shape[0] + 3, n).astype(np.int32)
        y = fnp.asarray(9 * rng.standard_normal((n, *shape[1:]))).astype(dtype)
        assert by_rows(check(f, i, y, exact=True))
        same_natively(f, i, y)
    pair = rng.integers(-9, 9, (2, 60))
    y = rng.integers(0, 9, (60, WIDTH)).astype(dtype)
    for order in (pair, pair[:, ::-1]):
        assert by_rows(check(sums((7, 6, WIDTH)), *order, y, exact=True))
        same_natively(sums((7, 6, WIDTH)), *order, y)


def test_positions(rng, small):
    """All in one row, none, sorted, the first and the last."""
    y = rng.standard_normal((50, WIDTH), np.float32)
    for i in (np.full(50, 3), np.full(50, 99), np.arange(50) % 20, np.sort(np.arange(50) % 7),
              np.where(np.arange(50) % 2, 0, 19)):  # fmt: skip
        for kind in ("int8", "int32", "int64", "uint32"):
            same_natively(sums((20, WIDTH)), i.astype(kind), y)
    far = (np.arange(50) % 20).astype(np.int64) + (1 << 40) * (np.arange(50) % 3 - 1)
    for mode in ("drop", "clip"):
        assert by_rows(check(sums((20, WIDTH), mode), far, y))
        same_natively(sums((20, WIDTH), mode), far, y)


def test_specials(small):
    y = np.tile(np.array([-0.0, np.nan, np.inf, 1, -np.inf], np.float32), 20 * WIDTH)
    y, i = y.reshape(100, WIDTH), np.arange(100) % 30
    same_natively(sums((30, WIDTH)), i, y)
    x = fnp.asarray(np.full((30, WIDTH), -0.0)).astype("bfloat16")
    same_natively(update("add"), x, i, fnp.asarray(y).astype("bfloat16"))


def test_sums_of_computed_updates(rng, small):
    """The gradient of a bag of rows reads its cotangent where it is, at each of the bag's rows."""
    x, i = rng.standard_normal((300, WIDTH), np.float32), rng.integers(-300, 300, (40, 6))
    seed, weights = rng.standard_normal((40, WIDTH), np.float32), rng.standard_normal((40, 6), "f")

    def gradient(x, i, seed, weights):
        return [fg.grad(lambda x: fnp.sum(fnp.sum(x[i] * weights[..., None], 1) * seed))(x)]

    planned = check(gradient, x, i, seed, weights)
    assert by_rows(planned)
    same_natively(gradient, x, i, seed, weights)


def test_in_a_loop_and_in_place(rng):
    x = fnp.asarray(rng.standard_normal((90, WIDTH))).astype("bfloat16")
    y = fnp.asarray(rng.standard_normal((50, WIDTH))).astype("bfloat16")
    i = rng.integers(0, 90, 50)

    def f(x):
        return lax.fori_loop(0, 3, lambda _, x: x.at[i].add(y), x)

    wanted = x
    for _ in range(3):
        wanted = wanted.at[i].add(y)
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(x)), np.asarray(wanted))
    donated = fg.jit(f, donate_argnums=0)(x.copy())
    np.testing.assert_array_equal(np.asarray(donated), np.asarray(wanted))
    itself = fg.jit(lambda x: x.at[i].add(x[:50] * x[i]))(x)
    np.testing.assert_array_equal(np.asarray(itself), np.asarray(x.at[i].add(x[:50] * x[i])))


def test_others_go_other_ways(rng, small):
    i, narrow = rng.integers(0, 9, 40), "bfloat16"
    y = np.ones((40, WIDTH), np.float32)
    assert by_rows(check(sums((9, WIDTH)), i, y))
    assert not by_rows(check(update("add"), np.ones((9, WIDTH), np.float32), i, y))
    assert not by_rows(check(sums((9, WIDTH - 1)), i, y[:, 1:]))
    assert not by_rows(check(sums((9, WIDTH)), i[:16], y[:16]))
    assert not by_rows(check(sums((4, WIDTH)), i, y))
    assert not by_rows(check(lambda i, y: [fnp.zeros((WIDTH, 9)).at[:, i].add(y)], i, y.T))
    x = fnp.ones((9, WIDTH), narrow)
    assert not by_rows(check(update("set"), x, i, fnp.asarray(y).astype(narrow)))
    assert not by_rows(check(update("max"), x, i, fnp.asarray(y).astype(narrow)))
    unique = lambda x, i, y: [x.at[i].add(y, unique_indices=True)]
    assert not by_rows(check(unique, x, np.arange(9), x))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large(threads, rng):
    """Results that go past the caches, and rows that are asked for ahead."""
    pool.set_num_threads(threads)
    shape = (1 << 14, 192)
    x, i = np.zeros(shape, np.float32), rng.integers(0, shape[0], 9000)
    y = rng.standard_normal((9000, 192), np.float32)
    np.add.at(x, i, y)
    lowered = fg.jit(sums(shape)).lower(i, y)
    assert "prefetch" in lowered.as_text("llvm")
    assert "row_order" in lowered.as_text("loops")
    np.testing.assert_array_equal(np.asarray(fg.jit(sums(shape))(i, y)[0]), x)
