"""Products of complex numbers, whose vectors have sums for real and for imaginary factors."""

import ctypes
import itertools

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.functions import gemm
from funcgrad.backends.llvm.runtime import pool
from tests.backends.llvm.gemm.test_functions import check, engine_for, laid_out, random

DTYPES = [np.dtype("complex64"), np.dtype("complex128")]
SIZES = [
    (1, 1, 1), (2, 3, 4), (4, 4, 4), (7, 5, 3), (16, 16, 16), (13, 33, 65), (64, 64, 64),
    (1, 300, 200), (300, 1, 200), (3, 500, 64), (500, 5, 64), (1, 1, 1000), (47, 9, 130),
    (90, 110, 100), (130, 97, 391), (257, 70, 40), (29, 1300, 20), (310, 301, 213),
]  # fmt: skip
LAYOUTS = ("plain", "transposed", "strided", "reversed")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_and_layouts(size, dtype):
    """With the same bits on any number of threads; what is between the elements stays."""
    rng = np.random.default_rng(sum(size))
    m, n, k = size
    a, b, before = (random(rng, shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    for i, (la, lb) in enumerate(itertools.product(LAYOUTS, repeat=2)):
        lc, add, results = LAYOUTS[(i + i // 4) % 4], i % 3 == 0, []
        left, right = laid_out(a, la), laid_out(b, lb)
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            c = laid_out(before, lc)
            results.append(gemm(left, right, c, add))
            if lc == "strided":
                frame, between = c.base, np.ones(c.base.shape, bool)
                between[::2, ::3] = False
                assert not frame[between].any()
        check(results[0], a, b, before * add)
        for c in results[1:]:
            np.testing.assert_array_equal(c, results[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 4, 7, 8, 16, 24, 33, 64])
def test_batches(n, threads):
    pool.set_num_threads(threads)
    rng = np.random.default_rng(n)
    a, b = (random(rng, (60, n, n), DTYPES[0]) for _ in "ab")
    check(gemm(a, b), a, b)
    check(gemm(laid_out(a, "transposed"), b[:1]), a, b[:1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "size", [(5, 41, 20001), (64, 64, 4096), (700, 600, 1100), (40, 2300, 900)], ids=str
)
def test_large(size, dtype):
    """Sums that are cut, panels that tasks pack for each other, several blocks."""
    rng = np.random.default_rng(3)
    m, n, k = size
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    for la, lb in (("plain", "plain"), ("transposed", "transposed")):
        results = []
        for threads in (1, 3):
            pool.set_num_threads(threads)
            results.append(gemm(laid_out(a, la), laid_out(b, lb)))
        check(results[0], a, b)
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(6, 6, 6), (1, 40, 70), (40, 1, 70), (100, 110, 120)], ids=str)
def test_nan_and_infinity_stay_where_they_belong(size, dtype):
    m, n, k = size
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    a[m // 2, k // 2], a[0, 0] = 1j * np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = np.full((m, n), k, dtype)
        expected[0] = np.array([complex(np.inf, np.nan)])
        expected[m // 2] = np.nan * 1j
    c = gemm(a, b)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(c), nan)
    np.testing.assert_array_equal(c[~nan], expected[~nan])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty(dtype):
    for m, n, k in itertools.product((0, 1, 20), repeat=3):
        if 0 in (m, n, k):
            a, b, c = np.ones((m, k), dtype), np.ones((k, n), dtype), np.full((m, n), 3j, dtype)
            assert (gemm(a, b, c.copy()) == 0).all()
            assert (gemm(a, b, c.copy(), add=True) == 3j).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "znver4", "sapphirerapids"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_targets(dtype, cpu):
    """Tiles of fewer rows, vectors of one number, without masks or fma; odd addresses."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        functions.install(dtype.name, dtype.name, engine_for(cpu))
    )
    rng = np.random.default_rng(8)
    for m, n, k in [(1, 1, 1), (5, 9, 30), (100, 70, 300), (1, 100, 64), (100, 1, 64),
                    (29, 16, 5000), (310, 197, 213), (80, 900, 13)]:  # fmt: skip
        a, b, c = (
            np.frombuffer(bytearray(x.nbytes + x.itemsize), x.dtype, x.size, x.itemsize // 2)
            for x in (np.empty(size, dtype) for size in (m * k, k * n, m * n))
        )
        a, b, c = a.reshape(m, k), b.reshape(k, n), c.reshape(m, n)
        a[...], b[...] = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
        for turned in (False, True):
            right = laid_out(b, "transposed") if turned else b
            call = functions._words(a, right, c, False)
            function(ctypes.addressof(call))
            check(c, a, b)
