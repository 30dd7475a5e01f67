"""Fourier transforms against NumPy: lengths, axes, norms, dtypes, derivatives."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, ShapeError
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

ONE = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
REAL = ["rfft", "ihfft", "rfft2", "rfftn"]
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def sample(name, shape, rng):
    x = rng.standard_normal(shape)
    return x if name in REAL else x + 1j * rng.standard_normal(shape)


def compare(name, x, **options):
    f, g = getattr(fnp.fft, name), getattr(np.fft, name)
    same_as_numpy(lambda x: f(x, **options), lambda x: g(x, **options), x, **TIGHT)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_one_axis(name, norm, rng):
    x = sample(name, (3, 4, 5), rng)
    for axis in (-1, 0, 1):
        for n in (None, 2, 3, 9):
            compare(name, x, axis=axis, n=n, norm=norm)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize("norm", [None, "ortho"])
def test_several_axes(name, norm, rng):
    x = sample(name + "n", (3, 4, 5), rng)
    for axes in (None, (0,), (1, 0), (-1, 0), (0, 1, 2)):
        compare(f"{name}n", x, axes=axes, norm=norm)
    compare(f"{name}n", x, s=(2, 6), axes=(0, 1), norm=norm)
    compare(f"{name}2", x, norm=norm)
    compare(f"{name}2", x, s=(3, 7), axes=(0, 2), norm=norm)
    ours = getattr(fnp.fft, f"{name}n")(x, s=(4, 6))
    same(ours, getattr(np.fft, f"{name}n")(x, s=(4, 6), axes=(1, 2)), **TIGHT)


def test_many_axes(rng):
    x = rng.standard_normal((2, 3, 2, 3, 2))
    compare("fftn", x)
    compare("rfftn", x)
    same(fnp.fft.fftn(np.float64(3)), np.complex128(3))


def test_dtypes():
    for given, out in (
        ("float32", "complex64"), ("float64", "complex128"), ("int32", "complex64"),
        ("float16", "complex64"), ("complex64", "complex64"),
    ):  # fmt: skip
        assert fnp.fft.fft(np.ones(4, given)).dtype == out
    assert fnp.fft.irfft(np.ones(3, "complex128")).dtype == np.float64
    assert fnp.fft.rfft(np.ones(4, bool)).dtype == np.complex64


@pytest.mark.parametrize("name", [*ONE, "fft2", "rfftn", "irfft2"])
def test_transforms(name, rng):
    x = sample(name, (3, 4), rng)
    f = getattr(fnp.fft, name)
    check_grad(lambda x: f(x, norm="ortho"), x)
    if name in ONE:
        check_grad(lambda x: f(x, 7), x)
    same_batched(f, sample(name, (2, 3, 4), rng))


def test_round_trips(rng):
    x = rng.standard_normal((3, 5))
    same(fnp.fft.irfft(fnp.fft.rfft(x), 5), x, **TIGHT)
    same(fnp.fft.hfft(fnp.fft.ihfft(x), 5), x, **TIGHT)
    same(fnp.fft.irfftn(fnp.fft.rfftn(x), x.shape), x, **TIGHT)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n):
    for name in ("fftfreq", "rfftfreq"):
        f, g = getattr(fnp.fft, name), getattr(np.fft, name)
        same(f(n, 0.5), g(n, 0.5).astype(np.float32))
        same(f(n, 3, dtype="float64"), g(n, 3))
    x = np.arange(n * 6).reshape(n, 3, 2)
    for axes in (None, 0, (0, 2), ()):
        same(fnp.fft.fftshift(x, axes), np.fft.fftshift(x, axes))
        same(fnp.fft.ifftshift(x, axes), np.fft.ifftshift(x, axes))


X = np.ones((2, 3))
ERRORS = [
    (lambda: fnp.fft.fft([1.0, 2.0]), TypeError, "fft: a is a list"),
    (lambda: fnp.fft.rfft(X * 1j), DTypeError, "rfft: a must be real"),
    (lambda: fnp.fft.fft(X, norm="unit"), ValueError, "norm must be one of"),
    (lambda: fnp.fft.hfft(X, norm="unit"), ValueError, "norm must be one of"),
    (lambda: fnp.fft.fft(X, 0), ValueError, "lengths must be positive"),
    (lambda: fnp.fft.fft(X, axis=2), ShapeError, "axis 2 is out of range"),
    (lambda: fnp.fft.fftn(X, s=(1, 2), axes=(0,)), ShapeError, "a length for each"),
    (lambda: fnp.fft.fftn(X, axes=(0, 0)), ShapeError, "not distinct"),
    (lambda: fnp.fft.irfft(X[:, :1]), ValueError, "lengths must be positive"),
    (lambda: fnp.fft.fftfreq(0), ValueError, "n must be positive"),
    (lambda: fnp.fft.rfftn(np.float64(1)), ShapeError, "at least one axis"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
