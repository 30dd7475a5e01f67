"""LU decompositions of complex matrices as generated code, against those that run on NumPy."""

import ctypes

import numpy as np
import pytest

from funcgrad import lax
from funcgrad.backends.llvm.matrix.functions import install
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool
from tests.backends.llvm.matrix.test_functions import run

TOLERANCE = {"complex64": 1e-3, "complex128": 1e-11}
dtypes = pytest.mark.parametrize("dtype", ["complex64", "complex128"])


def numbers(rng, shape, dtype):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def on_numpy(a):
    return [np.asarray(x) for x in lax.linalg.lu(np.asarray(a))]


@pytest.mark.sampled(3)
@dtypes
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (5, 3), (3, 5), (32, 32), (33, 33), (100, 70), (70, 100), (3, 40, 40), (2, 3, 4, 4)],
)
def test_lu(shape, dtype, rng):
    pool.set_num_threads(1 + shape[-1] % 3)
    a = numbers(rng, shape, dtype)
    factors, pivots, order = run(lax.linalg.lu, a)
    wanted = on_numpy(a)
    np.testing.assert_array_equal(pivots, wanted[1])
    np.testing.assert_array_equal(order, wanted[2])
    np.testing.assert_allclose(factors, wanted[0], rtol=0, atol=TOLERANCE[dtype])
    assert factors.dtype == dtype


@dtypes
def test_lu_of_what_has_no_inverse(dtype, rng):
    a = numbers(rng, (64, 64), dtype)
    a[:, 20] = 0
    bad = a.copy()
    bad[40, 7] = np.nan
    for x in (a * 0, a, bad):
        got, wanted = run(lax.linalg.lu, x), on_numpy(x)
        assert (np.isnan(got[0]) == np.isnan(wanted[0])).all()
        np.testing.assert_array_equal(got[1][:8], wanted[1][:8])
        np.testing.assert_array_equal(np.sort(got[2]), np.arange(64))


@dtypes
def test_divisors_far_from_one(dtype):
    """Whose squares overflow or are 0, whose reciprocals do, or that have one part."""
    scale, least = np.finfo(dtype).max / 8, 64 * np.finfo(dtype).smallest_subnormal
    pivots = scale * (1 + 1j), 1j * scale, (1 - 1j) / scale, -1j / scale, (1 - 1j) * least, least
    for pivot in pivots:
        a = np.array([[pivot, 1], [pivot * (0.25 + 0.5j), 3]], dtype)
        for factors, _, order in (run(lax.linalg.lu, a), on_numpy(a)):
            np.testing.assert_array_equal(order, [0, 1])
            np.testing.assert_allclose(factors[1, 0], 0.25 + 0.5j, rtol=1e-5)


@dtypes
def test_results_do_not_depend_on_threads(dtype, rng):
    a = numbers(rng, (150, 150), dtype)
    found = []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        found.append(run(lax.linalg.lu, a))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_processor(dtype, rng):
    """The same code for a processor with nothing but the oldest registers."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        install("lu_parts", dtype, target=engine(Target.host().generic()))
    )
    n = 70
    re, im = rng.standard_normal((2, n, n)).astype(dtype)
    out, pivots, order = np.empty((2, n, n), dtype), np.empty(n, np.int32), np.empty(n, np.int32)
    call = [1, n, n, *(x.ctypes.data for x in (re, im, *out, pivots, order))]
    function((ctypes.c_int64 * len(call))(*call))
    factors = out[0] + 1j * out[1]
    product = (np.tril(factors, -1) + np.eye(n)) @ np.triu(factors)
    np.testing.assert_allclose(product, (re + 1j * im)[order], rtol=0, atol=1e-3)
