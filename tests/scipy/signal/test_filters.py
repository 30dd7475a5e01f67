"""Filters along an axis against SciPy: trends, recursions, polynomials, resampling, errors."""

import numpy as np
import pytest
from scipy import signal as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import signal


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("bp", [0, [0, 2], [1, 2]])
@pytest.mark.parametrize("type", ["constant", "linear"])
def test_detrend(shape, axis, bp, type, rng):
    x = rng.standard_normal(shape)
    want = sp.detrend(x, axis, type, bp if type == "linear" else 0)
    np.testing.assert_allclose(signal.detrend(x, axis, type, bp), want, atol=1e-12)
    assert signal.detrend(x.astype("float32"), axis).dtype == np.float32
    assert signal.detrend(np.arange(4)).dtype == np.float32


@pytest.mark.parametrize(("p", "q"), [(1, 1), (3, 1), (1, 3), (4, 2), (3, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_lfilter(p, q, axis, rng):
    b, a, x = rng.standard_normal(p), rng.standard_normal(q) * 0.3, rng.standard_normal((6, 7))
    a[0] = 2.0
    np.testing.assert_allclose(signal.lfilter(b, a, x, axis), sp.lfilter(b, a, x, axis), atol=1e-12)
    shape = list(x.shape)
    shape[axis] = max(p, q) - 1
    zi = rng.standard_normal(shape)
    for found, want in zip(
        signal.lfilter(b, a, x, axis, zi), sp.lfilter(b, a, x, axis, zi), strict=True
    ):
        np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.parametrize("mode", ["interp", "mirror", "constant", "nearest", "wrap"])
@pytest.mark.parametrize(
    ("n", "order", "deriv"), [(5, 2, 0), (7, 3, 1), (4, 1, 0), (1, 0, 0), (5, 1, 2)]
)
def test_savgol(mode, n, order, deriv, rng):
    x = rng.standard_normal((3, 12))
    want = sp.savgol_filter(x, n, order, deriv, 0.5, -1, mode)
    np.testing.assert_allclose(
        signal.savgol_filter(x, n, order, deriv, 0.5, -1, mode), want, atol=1e-9
    )
    with fg.default_dtype("float64"):
        found = signal.savgol_coeffs(n, order, deriv)
    np.testing.assert_allclose(found, sp.savgol_coeffs(n, order, deriv), atol=1e-12)


@pytest.mark.parametrize("n", [6, 7])
@pytest.mark.parametrize("num", [1, 3, 4, 6, 7, 9, 12])
@pytest.mark.parametrize("window", [None, "hamming"])
def test_resample(n, num, window, rng):
    x = rng.standard_normal((n, 3))
    want = sp.resample(x, num, window=window)
    np.testing.assert_allclose(signal.resample(x, num, window=window), want, atol=1e-12)
    z = x[:, 0] + 1j * x[:, 1]
    np.testing.assert_allclose(signal.resample(z, num), sp.resample(z, num), atol=1e-12)
    found, want = (
        signal.resample(x, num, np.arange(n) * 0.5),
        sp.resample(x, num, np.arange(n) * 0.5),
    )
    np.testing.assert_allclose(found[1], want[1], rtol=1e-6)


@pytest.mark.parametrize("n", [1, 5, 6])
def test_hilbert(n, rng):
    x = rng.standard_normal((2, 6))
    np.testing.assert_allclose(signal.hilbert(x, n), sp.hilbert(x, n), atol=1e-12)


def test_transforms(rng):
    b, a, x = np.array([0.3, 0.2]), np.array([1.0, -0.4, 0.1]), rng.standard_normal((3, 9))
    want = sp.lfilter(b, a, x)
    np.testing.assert_allclose(fg.jit(signal.lfilter)(b, a, x), want, atol=1e-12)
    np.testing.assert_allclose(fg.vmap(lambda x: signal.lfilter(b, a, x))(x), want, atol=1e-12)
    by_b = fg.jacrev(signal.lfilter)(b, a, x[0])
    np.testing.assert_allclose(by_b @ b, want[0], atol=1e-12)
    h = 1e-6 * rng.standard_normal(3)
    slope = (sp.lfilter(b, a + h, x[0]) - sp.lfilter(b, a - h, x[0])) / 2
    np.testing.assert_allclose(fg.jacfwd(signal.lfilter, 1)(b, a, x[0]) @ h, slope, rtol=1e-5)
    for f in (
        signal.detrend,
        lambda x: signal.savgol_filter(x, 5, 2),
        lambda x: signal.resample(x, 5),
    ):
        np.testing.assert_allclose(fg.jacrev(f)(x[0]) @ x[0], f(x[0]), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: signal.detrend(x, type="cubic"), ValueError, "must be 'linear' or 'constant'"),
        (lambda x: signal.detrend(x, bp=[0, 20]), ValueError, "breakpoints must be non-negative"),
        (lambda x: signal.detrend(x, overwrite_data=True), NotImplementedError, "overwrite_data"),
        (lambda x: signal.lfilter(x[None], x, x), ValueError, "b must be a vector"),
        (lambda x: signal.lfilter(x, x, x, zi=x), ValueError, "zi must have 7 elements"),
        (lambda x: signal.savgol_filter(x, 3, 3), ValueError, "must be less than window_length"),
        (lambda x: signal.savgol_filter(x, 9, 3), ValueError, "must not exceed the 8 elements"),
        (lambda x: signal.savgol_filter(x, 3, 1, mode="odd"), ValueError, "mode must be interp"),
        (lambda x: signal.resample(x, 0), ValueError, "num must be positive"),
        (lambda x: signal.hilbert(x * 1j), TypeError, "x must be real"),
    ],
)
def test_errors_say_what_was_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(fnp.arange(8.0))
