"""Signals in time: `funcgrad.scipy.signal`, under SciPy's names.

>>> from funcgrad.scipy import signal
>>> time = fnp.arange(64) / 64.0
>>> tone = fnp.sin(2 * fnp.pi * 16 * time)
>>> frequencies, power = signal.welch(tone, fs=64.0, nperseg=32)
>>> frequencies[fnp.argmax(power)]
Array(16., dtype=float32)

- `convolution`: convolutions and correlations, direct or by Fourier transforms
- `filters`: signals filtered along an axis: trends, recursions, polynomials, resampling
- `spectral`: spectra of segments, and estimates of power
- `windows`: windows by their names
"""

from funcgrad.scipy.signal.convolution import (
    convolve,
    convolve2d,
    correlate,
    correlate2d,
    fftconvolve,
)
from funcgrad.scipy.signal.filters import (
    detrend,
    hilbert,
    lfilter,
    resample,
    savgol_coeffs,
    savgol_filter,
)
from funcgrad.scipy.signal.spectral import coherence, csd, istft, periodogram, stft, welch
from funcgrad.scipy.signal.windows import get_window

__all__ = [
    "coherence", "convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend",
    "fftconvolve", "get_window", "hilbert", "istft", "lfilter", "periodogram", "resample",
    "savgol_coeffs", "savgol_filter", "stft", "welch",
]  # fmt: skip
