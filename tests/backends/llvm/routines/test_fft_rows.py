"""Fourier transforms of rows as generated code, against NumPy's of doubles."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.host_steps import host_steps
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.routines.fft_rows import install
from funcgrad.backends.llvm.runtime import pool
from tests.backends.checks import program

KINDS = ["fft", "ifft", "rfft", "irfft"]
TOLERANCE = {"float32": 5e-7, "float64": 2e-15}
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
kinds = pytest.mark.parametrize("kind", KINDS)


def rows(rng, kind, lead, n, dtype):
    """What a transform of length n takes."""
    x = rng.standard_normal((2, *lead, n // 2 + 1 if kind == "irfft" else n)).astype(dtype)
    if kind == "rfft":
        return x[0]
    return (x[0] + 1j * x[1]).astype(np.result_type(dtype, np.complex64))


def run(kind, x, n=None):
    """The result of a compiled transform of which nothing runs in Python."""

    def transform(x):
        return [getattr(fnp.fft, kind)(x, n)]

    assert not host_steps(program(transform, x)[2].steps)
    return np.asarray(fg.jit(transform)(x)[0])


def wanted(kind, x, n=None):
    return getattr(np.fft, kind)(x.astype(np.result_type(x.dtype, np.float64)), n)


def near(got, exact, dtype):
    assert got.real.dtype == dtype
    np.testing.assert_allclose(got, exact, rtol=0, atol=TOLERANCE[dtype] * abs(exact).max())


@pytest.mark.sampled(3)
@dtypes
@kinds
@pytest.mark.parametrize(
    ("lead", "n"),
    [
        ((4,), 8),
        ((5,), 16),
        ((5, 7), 32),
        ((40,), 64),
        ((33,), 512),
        ((), 8),
        ((3,), 64),
        # Each row alone.
        ((), 1024),
        ((2, 3), 512),
        ((33,), 2048),
        ((), 8192),
        ((2,), 1 << 17),
        # Other radices, odd lengths, and each row alone again.
        ((5,), 12),
        ((19,), 15),
        ((3,), 7 * 11 * 13),
        ((20,), 17 * 31),
        ((33,), 360),
        ((2,), 1000),
        ((), 1155),
        ((5,), 6075),
        ((), 100_000),
        # Large prime factors, in rows and alone.
        ((3,), 37),
        ((40,), 2 * 41),
        ((), 251),
        ((7,), 1009),
        ((2,), 2 * 1009),
        ((), 10_007),
    ],
)
def test_transforms(kind, lead, n, dtype, rng):
    pool.set_num_threads(1 + n % 3)
    x = rows(rng, kind, lead, n, dtype)
    near(run(kind, x, n), wanted(kind, x, n), dtype)


@kinds
@pytest.mark.parametrize("n", [128, 4096, 1 << 16, 3000, 2018])
def test_results_do_not_depend_on_threads_nor_on_other_rows(kind, n, rng):
    x = rows(rng, kind, (70 if n == 128 else 4,), n, "float32")
    found = []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        found.append(run(kind, x))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    part = slice(20, 50) if n == 128 else slice(1, 3)
    np.testing.assert_array_equal(run(kind, x[part]), found[0][part])


@kinds
@pytest.mark.parametrize("n", [64, 2048, 60, 3000, 74, 2018])
def test_what_is_not_finite_stays_in_its_row(kind, n, rng):
    x = rows(rng, kind, (20,), n, "float32")
    clean = run(kind, x)
    x[7, 5], x[12, 6] = np.nan, np.inf
    got = run(kind, x)
    others = [i for i in range(20) if i not in (7, 12)]
    np.testing.assert_array_equal(got[others], clean[others])
    assert np.isnan(got[7]).all()
    assert not np.isfinite(got[12]).any()


@pytest.mark.parametrize("n", [32, 4096, 30, 3000, 2018])
def test_ends_of_a_half_spectrum_are_real(n, rng):
    x = rows(rng, "irfft", (16,), n, "float32")
    y = x.copy()
    y[:, [0, -1]] = y[:, [0, -1]].real
    np.testing.assert_array_equal(run("irfft", x), run("irfft", y))
    half = run("rfft", rows(rng, "rfft", (16,), n, "float32"))
    assert not half[:, [0, -1]].imag.any()


def test_two_axes_and_gradients(rng):
    x = rng.standard_normal((32, 64)).astype(np.float32)
    got = fg.jit(lambda x: fnp.fft.irfft2(fnp.fft.rfft2(x)))(x)
    np.testing.assert_allclose(np.asarray(got), x, atol=1e-5)
    power = fg.jit(fg.grad(lambda x: (fnp.abs(fnp.fft.rfft(x)) ** 2).sum()))(x)
    spectrum = np.fft.rfft(x)
    own = np.pad(spectrum, ((0, 0), (0, 31)))
    exact = 2 * np.fft.fft(own.conj()).real
    np.testing.assert_allclose(np.asarray(power), exact, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("shape", [(40, 4), (40, 3), (0, 64), (0, 37), (1, 65_537)])
def test_tiny_and_huge_prime_lengths_and_no_rows_are_the_hosts(shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    got = fg.jit(fnp.fft.rfft)(x)
    np.testing.assert_allclose(np.asarray(got), np.fft.rfft(x), rtol=1e-4, atol=1e-3)


@pytest.mark.sampled(2)
@dtypes
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", ["FFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize("n", [64, 105, 180, 101, 202])
def test_any_processor(kind, n, alone, dtype, rng):
    """The same code for a processor with nothing but the oldest registers."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        install(kind, n, dtype, alone, engine(Target.host().generic()))
    )
    x = rows(rng, kind.lower(), (9,), n, dtype)
    exact = wanted(kind.lower(), x, n)
    out = np.empty(exact.shape, dtype if kind == "IRFFT" else np.result_type(dtype, "complex64"))
    function((ctypes.c_int64 * 3)(len(x), x.ctypes.data, out.ctypes.data))
    near(out, exact, dtype)
