"""Spectra against SciPy: windows, segments, boundaries, trends, scalings, derivatives, errors."""

import numpy as np
import pytest
from scipy import signal as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import signal

SEGMENTS = [
    ((50,), 17, 5, -1), ((2, 13), 7, 0, -1), ((3, 17, 2), 9, 3, 1), ((2, 1, 133, 3), 17, 13, -2),
    ((3, 7), 1, 0, 1),
]  # fmt: skip
WINDOWS = ["boxcar", "triang", "blackman", "hamming", "hann", ("tukey", 0.3)]


def near(found, want, tol=1e-11):
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize(("shape", "n", "overlap", "axis"), SEGMENTS)
@pytest.mark.parametrize("boundary", [None, "even", "odd", "constant", "zeros"])
@pytest.mark.parametrize("detrend", ["constant", "linear", False])
def test_stft(shape, n, overlap, axis, boundary, detrend, rng):
    x = rng.standard_normal(shape)
    lengths = [None, n, 2 * n, n + n // 2]
    for i, window in enumerate(WINDOWS):
        nfft, padded = lengths[i % 4], i % 2 == 0
        how = {"fs": 16.0, "window": window, "nperseg": n, "noverlap": overlap, "nfft": nfft,
               "detrend": detrend, "boundary": boundary, "padded": padded,
               "axis": axis}  # fmt: skip
        near(signal.stft(x, **how), sp.stft(x, **how))


@pytest.mark.parametrize(("shape", "n", "overlap", "axis"), SEGMENTS)
@pytest.mark.parametrize("average", ["mean", "median"])
@pytest.mark.parametrize("onesided", [True, False])
def test_welch(shape, n, overlap, axis, average, onesided, rng):
    x = rng.standard_normal(shape)
    for window, scaling, detrend in zip(
        WINDOWS, ["density", "spectrum"] * 3, ["constant", "linear", False] * 2, strict=True
    ):
        how = {"fs": 3.0, "window": window, "nperseg": n, "noverlap": overlap, "average": average,
               "detrend": detrend, "scaling": scaling, "return_onesided": onesided,
               "axis": axis}  # fmt: skip
        near(signal.welch(x, **how), sp.welch(x, **how))


@pytest.mark.parametrize(
    ("shapes", "n", "axis"),
    [(((50,), (13,)), 17, -1), (((2, 13), (2, 13)), 7, -1), (((3, 17, 2), (3, 12, 2)), 9, 1)],
)
def test_csd_and_coherence(shapes, n, axis, rng):
    x, y = (rng.standard_normal(s) for s in shapes)
    how = {"window": "hann", "nperseg": n, "axis": axis}
    near(signal.csd(x, y, **how), sp.csd(x, y, **how))
    if x.shape == y.shape:
        near(signal.coherence(x, y, **how), sp.coherence(x, y, **how), 1e-9)


@pytest.mark.parametrize("nfft", [None, 8, 12, 15])
def test_periodogram(nfft, rng):
    x = rng.standard_normal((2, 12))
    near(signal.periodogram(x, 2.0, "hann", nfft), sp.periodogram(x, 2.0, "hann", nfft))
    z = x + 1j * rng.standard_normal((2, 12))
    how = {"return_onesided": False, "nfft": nfft}
    near(signal.periodogram(z, **how), sp.periodogram(z, **how))


def test_complex_signals_have_both_sides(rng):
    z = rng.standard_normal(40) + 1j * rng.standard_normal(40)
    with pytest.warns(UserWarning, match="complex, switching to return_onesided=False"):
        found = signal.welch(z, nperseg=10)
    near(found, sp.welch(z, nperseg=10, return_onesided=False))
    with pytest.warns(UserWarning, match="nperseg = 50 is greater"):
        signal.welch(z.real, nperseg=50)


@pytest.mark.parametrize(
    ("shape", "n", "overlap", "time", "freq"),
    [((3, 2, 64, 31), 100, 75, -1, -2), ((17, 8, 5), 13, 7, 0, 1), ((65, 24), 24, 7, -2, -1)],
)
@pytest.mark.parametrize("onesided", [True, False])
@pytest.mark.parametrize("boundary", [True, False])
def test_istft(shape, n, overlap, time, freq, onesided, boundary, rng):
    z = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    n = n if onesided else min(n, shape[freq])
    nfft = None if n <= shape[freq] * (2 if onesided else 1) - 2 * onesided + 1 else n
    how = {"nperseg": n, "noverlap": min(overlap, n - 1), "nfft": nfft,
           "input_onesided": onesided,
           "boundary": boundary, "time_axis": time, "freq_axis": freq,
           "window": "hamming"}  # fmt: skip
    near(signal.istft(z, **how), sp.istft(z, **how), 1e-9)


def test_transforms(rng):
    x = rng.standard_normal((3, 40))

    def power(x):
        return signal.welch(x, nperseg=8)[1]

    want = sp.welch(x, nperseg=8)[1]
    np.testing.assert_allclose(fg.jit(power)(x), want, rtol=1e-10)
    np.testing.assert_allclose(fg.vmap(power)(x), want, rtol=1e-10)
    # power is quadratic: its derivative along x is twice itself
    np.testing.assert_allclose(fg.jacrev(power)(x[0]) @ x[0], 2 * want[0], rtol=1e-9)
    again = fg.jit(lambda x: signal.istft(signal.stft(x, nperseg=8)[2], nperseg=8)[1])
    np.testing.assert_allclose(again(x[0]), x[0], atol=1e-12)
    np.testing.assert_allclose(fg.jacrev(again)(x[0]), np.eye(40), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: signal.stft(x, nperseg=0), "nperseg must be a positive integer"),
        (lambda x: signal.stft(x, nperseg=8, noverlap=8), "noverlap must be less than nperseg"),
        (lambda x: signal.stft(x, nperseg=8, nfft=4), "nfft must be greater than or equal"),
        (lambda x: signal.stft(x, nperseg=8, boundary="mean"), "unknown boundary option 'mean'"),
        (lambda x: signal.stft(x, nperseg=8, window="round"), "window must be one of"),
        (lambda x: signal.welch(x, scaling="power"), "unknown scaling: 'power'"),
        (
            lambda x: signal.welch(x, nperseg=8, average="mode"),
            'average must be "median" or "mean"',
        ),
        (lambda x: signal.welch(x, window=fnp.ones((2, 2))), "window must be 1-D"),
        (
            lambda x: signal.welch(x, window=fnp.ones(4), nperseg=5),
            "different from length of window",
        ),
        (lambda x: signal.csd(x, x[None]), "must have the same rank"),
        (lambda x: signal.istft(x), "must be at least 2d"),
        (
            lambda x: signal.istft(x[None] * x[:, None], freq_axis=-1),
            "differing time and frequency",
        ),
        (lambda x: signal.istft(x[None] * x[:, None], nperseg=64), "must be longer than nperseg"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(fnp.arange(16.0))
