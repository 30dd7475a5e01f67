"""Fourier transforms against numpy.fft, their transposes, and batching."""

import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.fft import FftType, fft
from tests.ops.rules import check_derivatives, check_dims, check_vmap

CASES = [((5,), 1), ((4,), 1), ((1,), 1), ((2,), 1), ((2, 3), 1), ((3, 4), 2), ((2, 3, 4), 3),
         ((2, 2, 3, 5), 3), ((0, 4), 1)]  # fmt: skip
cases = pytest.mark.parametrize(("shape", "rank"), CASES)
kinds = pytest.mark.parametrize("kind", FftType, ids=lambda k: k.name)


def operand(rng, kind, shape, dtype="float64"):
    """An operand of the transform whose unabridged shape is `shape`."""
    if kind is FftType.IRFFT:
        shape = (*shape[:-1], shape[-1] // 2 + 1)
    x = rng.standard_normal(shape)
    if kind is not FftType.RFFT:
        x = x + 1j * rng.standard_normal(shape)
    single = np.dtype(dtype).itemsize == 4
    return x.astype(x.dtype if not single else {"f": "float32", "c": "complex64"}[x.dtype.kind])


@kinds
@cases
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(kind, shape, rank, dtype, rng):
    x = operand(rng, kind, shape, dtype)
    lengths, axes = shape[-rank:], tuple(range(-rank, 0))
    got = fft(Array(x), kind, lengths)
    expected = getattr(np.fft, f"{kind.name.lower()}n")(x, s=lengths, axes=axes)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-5)


@kinds
@cases
def test_rules(kind, shape, rank, rng):
    fun = lambda x: fft(x, kind, shape[-rank:])
    x = operand(rng, kind, shape)
    check_derivatives(fun, [x], rng)
    check_vmap(fun, [x], rng)
    check_dims(fun, [x])


def test_operands_are_converted(rng):
    x = rng.integers(0, 9, 4)
    got = fft(x.astype(np.int32), "fft", [4])
    assert got.dtype == np.complex64
    np.testing.assert_allclose(np.asarray(got), np.fft.fft(x), rtol=1e-6)
    assert fft(x.astype(np.float16), "rfft", [4]).dtype == np.complex64
    assert fft(x.astype(np.float64), "ifft", [4]).dtype == np.complex128


def test_errors():
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="fft_type must be one of FFT, IFFT, RFFT, IRFFT, got 'D'"):
        fft(x, "D", (4,))
    with pytest.raises(ShapeError, match=r"rfft: with fft_lengths \(5,\) the last axes must .*f32"):
        fft(x, "RFFT", (5,))
    with pytest.raises(ShapeError, match=r"irfft: .* sizes \(3,\), got c64\[2,4\]"):
        fft(x, "IRFFT", (4,))
    with pytest.raises(ShapeError, match="fft_lengths must have a positive length"):
        fft(x, "FFT", (1, 2, 4))
    with pytest.raises(ShapeError, match="fft_lengths must have a positive length"):
        fft(x[:, :0], "FFT", (0,))
    with pytest.raises(DTypeError, match="rfft.*: need float32 or float64, got c64"):
        fft(x.astype(np.complex64), "RFFT", (4,))
