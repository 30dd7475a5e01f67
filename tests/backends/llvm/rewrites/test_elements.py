"""Scatters of many single elements, against NumPy: positions out of bounds, several axes, dtypes,
ranges of threads, and the routine against the step's own meaning."""

import threading

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.rewrites import elements
from funcgrad.backends.llvm.runtime import pool
from tests.backends.checks import check, hosts, kernels

N = 1 << 16


@pytest.fixture
def few(monkeypatch):
    """Scatters of few elements, too."""
    monkeypatch.setattr(elements, "MANY", 64)


def update(how, mode):
    """(x, *indices, updates) -> [x.at[indices].how(updates)]."""
    return lambda x, *rest: [getattr(x.at[tuple(rest[:-1])], how)(rest[-1], mode=mode)]


def steps(planned):
    return hosts(planned).count("scatter_elements")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("how", ["add", "set"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "int16", "uint64"])
def test_planned(mode, how, dtype, rng, few):
    f = update(how, mode)
    for n, size in ((96, 5), (97, 40), ((4, 30), 33), (2200, 100)):
        x, y = rng.integers(0, 9, size).astype(dtype), rng.integers(0, 9, n).astype(dtype)
        i = rng.integers(-size - 2, size + 3, n).astype(np.int32)
        planned = check(f, x, i, y, exact=True)
        assert steps(planned) == 1
        same_natively(f, x, i, y)
    x, i, j = rng.integers(0, 9, (2, 3)).astype(dtype), *rng.integers(-3, 4, (2, 96))
    assert steps(check(f, x, i, j, np.arange(96).astype(dtype), exact=True)) == 1
    same_natively(f, x, i, j, np.arange(96).astype(dtype))


def same_natively(f, *args):
    """Compiled code gives what the operations one by one give, which run the updates in order."""
    (wanted,) = f(*map(fnp.asarray, args))
    for threads in (1, 3):
        pool.set_num_threads(threads)
        (got,) = fg.jit(f)(*args)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_negative_indices_are_the_routines(rng, few):
    """Those into one axis are no kernel of their own; whatever else makes indices is."""
    x, y = np.arange(50, dtype=np.float32), rng.standard_normal(200, np.float32)
    i = rng.integers(-60, 60, 200).astype(np.int32)
    f = update("add", "drop")
    assert not kernels(check(f, x, i, y, exact=True))
    assert not kernels(check(f, x, i.reshape(4, 50), y.reshape(4, 50), exact=True))
    same_natively(f, x, i, y)
    for own in (lambda i: fnp.where(i < 0, i + 7, i), lambda i: fnp.where(i < 0, i, i + 50),
                lambda i: fnp.where(i < 1, i + 50, i)):  # fmt: skip
        planned = check(lambda x, i, y, own=own: f(x, own(i), y), x, i, y, exact=True)
        assert kernels(planned) == 1
        same_natively(lambda x, i, y, own=own: f(x, own(i), y), x, i, y)


@pytest.mark.parametrize("own", [(0, 50), (0, 49), (1, 50)])
def test_indices_of_primitives(own, rng, few):
    """Only what adds the size to those that are less than zero means negative ones."""
    x, y = np.arange(50, dtype=np.float32), rng.standard_normal(200, np.float32)
    i = rng.integers(-60, 60, 200).astype(np.int32)
    numbers = fg.lax.ScatterDimensionNumbers((), (0,), (0,))

    def f(x, i, y):
        low, more = own
        j = fg.lax.select(i < low, i + more, i)
        return [fg.lax.scatter_add(x, j[:, None], y, numbers, mode="drop")]

    planned = check(f, x, i, y, exact=True)
    assert kernels(planned) == (own != (0, 50))
    same_natively(f, x, i, y)


@pytest.mark.parametrize("index", ["int8", "uint8", "int16", "uint32", "int64"])
def test_dtypes_of_indices(index, rng, few):
    x, y = np.zeros(300, np.float32), np.arange(200, dtype=np.float32)
    i = rng.integers(0, 127, 200).astype(index)
    for mode in ("drop", "clip"):
        assert steps(check(update("add", mode), x, i, y, exact=True)) == 1
    wide = i.astype(np.int64) + (1 << 40) * (np.arange(200) % 3 - 1)
    for mode in ("drop", "clip"):
        same_natively(update("add", mode), x, wide, y)
        check(update("set", mode), x, wide, y, exact=True)


def test_narrow_floats_are_added_in_float32(rng, few):
    x, i, y = np.zeros(5, np.float16), rng.integers(0, 5, 96), np.ones(96, np.float16)
    assert steps(check(update("add", "drop"), x, i, y, exact=True)) == 1


def test_others_stay_loops(rng, few):
    i = rng.integers(0, 5, 96)
    for x in (np.zeros((5, 2), np.float32), np.zeros(1000, np.float32)):
        y = np.ones((96, *x.shape[1:]), x.dtype)
        assert not steps(check(update("add", "drop"), x, i, y))
    x = np.zeros(5, np.float32)
    assert not steps(check(update("add", "drop"), x, i[:60], np.ones(60, np.float32)))
    assert not steps(check(update("max", "drop"), x, i, np.ones(96, np.float32)))
    assert not steps(check(update("add", "drop"), x, i.astype(np.uint64), np.ones(96, np.float32)))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [N // 2, N // 16 + 1, 70_001])
def test_updates_keep_their_order(threads, size, rng):
    pool.set_num_threads(threads)
    x, y = rng.standard_normal(size, np.float32), rng.standard_normal(N + 5, np.float32)
    spread = rng.integers(-size, size + 9, N + 5)
    runs = np.repeat(rng.integers(0, size, N // 8 + 1), 8)[: N + 5]
    for i in (spread, np.sort(spread), runs, np.full(N + 5, size - 1), np.full(N + 5, size)):
        j = np.where(i < 0, i + size, i)
        wanted, last = x.copy(), x.copy()
        np.add.at(wanted, j[j < size], y[j < size])
        last[j[j < size]] = y[j < size]
        for how, result in (("add", wanted), ("set", last)):
            (got,) = fg.jit(update(how, "drop"))(x, i, y)
            np.testing.assert_array_equal(np.asarray(got), result)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_updates_to_few_elements(threads, rng):
    pool.set_num_threads(threads)
    x, y = rng.standard_normal(1000), rng.standard_normal(2 * N)
    for i in (rng.integers(0, 1000, 2 * N), np.sort(rng.integers(0, 1000, 2 * N))):
        wanted = x.copy()
        np.add.at(wanted, i, y)
        got = np.asarray(fg.jit(update("add", "drop"))(x, i, y)[0])
        np.testing.assert_allclose(got, wanted, 1e-10)
        pool.set_num_threads(4 - threads)
        again = np.asarray(fg.jit(update("add", "drop"))(x, i, y)[0])
        np.testing.assert_array_equal(again, got)
        g = fg.jit(fg.grad(lambda x, i=i: fnp.sum(x[i] * y)))(x)
        np.testing.assert_allclose(np.asarray(g), wanted - x, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("where", [0, 63, 64, 1999, 2047, 2048, 5000, N // 8 - 1, N - 1])
@pytest.mark.parametrize("place", [-1, -37, -38, 37, 2**31 - 1, -(2**31)])
def test_one_position_that_is_looked_at_twice(where, place, rng):
    """All updates of a chunk but one go to positions that are inside as they are."""
    for n in (N, N + 8 * 61):
        x, y = rng.integers(0, 9, 37).astype("float32"), rng.integers(0, 9, n).astype("float32")
        i = rng.integers(0, 37, n).astype(np.int32)
        i[where] = place
        same_natively(update("add", "drop"), x, i, y)


def test_indices_that_are_written_to_meanwhile():
    """Results are anything then, but nothing else is written."""
    x, y, i = np.zeros(37, np.float32), np.ones(8 * N, np.float32), np.zeros(8 * N, np.int32)
    f, calls = fg.jit(lambda x, i, y: x.at[i].add(y, mode="drop")), range(20)
    np.testing.assert_array_equal(np.asarray(f(x, i, y)).sum(), 8 * N)
    done = threading.Event()

    def write():
        while not done.is_set():
            i[:] = 2**31 - 1
            i[:] = 3

    writer = threading.Thread(target=write)
    writer.start()
    try:
        got = [np.asarray(f(x, i, y)) for _ in calls]
    finally:
        done.set()
        writer.join()
    for g in got:
        assert g[3] <= 8 * N
        assert g.sum() - g[0] == g[3]


def test_specials(few):
    y = np.tile(np.array([-0.0, np.nan, np.inf, 1, -np.inf], np.float32), 40)
    i = np.arange(200) % 90
    for x in (np.full(90, -0.0, np.float32), np.ones(90, np.float32)):
        for how in ("add", "set"):
            same_natively(update(how, "drop"), x, i, y)
    (got,) = fg.jit(update("set", "drop"))(np.ones(100, np.float32), i, np.full(200, -0.0, "f"))
    assert np.signbit(np.asarray(got))[:90].all()


def test_in_a_loop_and_in_place(rng):
    """A carried target is updated turn by turn, and donated ones too."""
    x, i, y = rng.standard_normal(N), rng.integers(0, N, N), rng.standard_normal(N)

    def f(x):
        return fg.lax.fori_loop(0, 3, lambda _, x: x.at[i].add(y), x)

    wanted = x.copy()
    for _ in range(3):
        np.add.at(wanted, i, y)
    np.testing.assert_array_equal(np.asarray(fg.jit(f)(x)), wanted)
    donated = fg.jit(f, donate_argnums=0)(fnp.array(x))
    np.testing.assert_array_equal(np.asarray(donated), wanted)
