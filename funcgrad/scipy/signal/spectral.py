"""Spectra of segments: short-time Fourier transforms and their inverse, estimates of power.

A signal is cut into segments that overlap; of each a trend is removed, it is multiplied by a window
and transformed. Estimates average the segments' squares (Welch 1967).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axis, integer
from funcgrad.scipy.signal.filters import detrend as remove_trend
from funcgrad.scipy.signal.windows import window_values

_BOUNDARIES = {"even": {"mode": "reflect"}, "odd": {"mode": "reflect", "reflect_type": "odd"},
               "constant": {"mode": "edge"}, "zeros": {"mode": "constant"}}  # fmt: skip


def _window(name: str, window: Any, nperseg: Any, length: int, dtype: Any) -> tuple[Any, int]:
    """A window as an array, and its length: that of the signal where neither says one."""
    if nperseg is not None:
        nperseg = integer("nperseg", nperseg)
        if nperseg < 1:
            raise ArgumentError(f"{name}: nperseg must be a positive integer, got {nperseg}")
    if isinstance(window, str | tuple):
        n = length if nperseg is None else nperseg
        if n > length:
            warnings.warn(
                f"nperseg = {n} is greater than input length  = {length}, using nperseg = {length}",
                stacklevel=4,
            )
            n = length
        return fnp.asarray(window_values(window, n), dtypes.real_part(dtype)), n
    win = fnp.asarray(window)
    if win.ndim != 1:
        raise ShapeError(f"{name}: window must be 1-D, got {win.aval}")
    if win.shape[0] > length:
        raise ShapeError(f"{name}: window {win.aval} is longer than the signal of {length}")
    if nperseg not in (None, win.shape[0]):
        raise ArgumentError(
            f"{name}: value specified for nperseg ({nperseg}) is different from length of window "
            f"{win.aval}"
        )
    return win, win.shape[0]


def _trend_remover(name: str, detrend: Any, axis: int) -> Callable:
    if isinstance(detrend, str):
        return lambda x: remove_trend(x, axis=-1, type=detrend)
    if callable(detrend):
        return lambda x: fnp.moveaxis(detrend(fnp.moveaxis(x, -1, axis)), axis, -1)
    if not detrend:
        return lambda x: x
    raise ArgumentError(f"{name}: unsupported detrend type: {detrend!r}")


def _frames(x: Any, n: int, step: int) -> Any:
    """(…, time) as (…, frames, n)."""
    starts = np.arange(0, x.shape[-1] - n + 1, step)
    return x[..., starts[:, None] + np.arange(n)]


def _lengthened(x: Any, n: int) -> Any:
    return fnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n)]) if n else x


def _signals(name: str, x: Any, y: Any, axis: Any) -> tuple[list[Any], tuple[int, ...], int]:
    """x, or x and y, of one floating or complex dtype; their shape without the axis; the axis."""
    given = [("x", x), *([] if y is None else [("y", y)])]
    signals = [as_array(name, value, which) for which, value in given]
    axis = canonical_axis(name, axis, signals[0].ndim)
    if signals[0].ndim != signals[-1].ndim:
        raise ShapeError(f"{name}: x and y must have the same rank, got {signals[0].aval} and "
                         f"{signals[1].aval}")  # fmt: skip
    signals = promote_inexact(name, *signals)
    try:
        outer = fnp.broadcast_shapes(*[s.shape[:axis] + s.shape[axis + 1 :] for s in signals])
    except ValueError as e:
        raise ShapeError(f"{name}: x and y cannot be broadcast together: {e}") from e
    return signals, outer, axis


def _extended(
    name: str, signals: list[Any], n: int, step: int, boundary: Any, padded: bool
) -> list[Any]:
    """Signals along their last axes, of one length, with boundaries, and in whole segments."""
    longest = max(s.shape[-1] for s in signals)
    signals = [_lengthened(s, longest - s.shape[-1]) for s in signals]
    if boundary is not None:
        how: Any = _BOUNDARIES[boundary]
        ends = [(0, 0)] * (signals[0].ndim - 1) + [(n // 2, n // 2)]
        if boundary in ("even", "odd") and n // 2 > longest - 1:
            raise ArgumentError(f"{name}: half a segment ({n // 2}) is no shorter than the signal")
        signals = [fnp.pad(s, ends, **how) for s in signals]
    if padded:
        more = (-(signals[0].shape[-1] - n) % step) % n
        signals = [_lengthened(s, more) for s in signals]
    return signals


def _spectra(
    name: str, x: Any, y: Any, fs: Any, window: Any, nperseg: Any, noverlap: Any, nfft: Any,
    detrend: Any, return_onesided: bool, scaling: str, axis: Any, mode: str = "psd",
    boundary: Any = None, padded: bool = False,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Frequencies, times, and spectra with the times last and the frequencies along `axis`."""
    if boundary is not None and boundary not in _BOUNDARIES:
        raise ArgumentError(
            f"{name}: unknown boundary option {boundary!r}, must be one of: {[*_BOUNDARIES, None]}"
        )
    if scaling not in ("density", "spectrum"):
        raise ArgumentError(f"{name}: unknown scaling: {scaling!r}; it is density or spectrum")
    signals, outer, axis = _signals(name, x, y, axis)
    pair = len(signals) == 2
    real = dtypes.real_part(signals[0].dtype)
    win, n = _window(name, window, nperseg, signals[0].shape[axis], signals[0].dtype)
    overlap = n // 2 if noverlap is None else integer("noverlap", noverlap)
    size = n if nfft is None else integer("nfft", nfft)
    if not all(s.size for s in signals):
        last = min(s.shape[axis] for s in signals)
        empty = fnp.zeros((*outer[:axis], last, *outer[axis:]), real)
        return empty, empty, empty.astype(dtypes.to_complex(real))
    if size < n:
        raise ArgumentError(
            f"{name}: nfft must be greater than or equal to nperseg, got {size}, {n}"
        )
    if not overlap < n:
        raise ArgumentError(f"{name}: noverlap must be less than nperseg, got {overlap}, {n}")
    step = n - overlap
    signals = [fnp.moveaxis(s, axis, -1) for s in signals]
    signals = _extended(name, signals, n, step, boundary, padded)
    twosided = not return_onesided
    if return_onesided and any(dtypes.is_complex(s.dtype) for s in signals):
        twosided = True
        warnings.warn("Input data is complex, switching to return_onesided=False", stacklevel=3)
    remove = _trend_remover(name, detrend, axis)
    kind = fnp.fft.fft if twosided else fnp.fft.rfft
    wide = fnp.float32 if real.itemsize < 4 else real
    win = win.astype(fnp.promote_types(win.dtype, wide))
    found = [kind(win * remove(_frames(s, n, step)), size) for s in signals]
    scale = 1 / (fs * fnp.sum(win * win)) if scaling == "density" else 1 / fnp.sum(win) ** 2
    out = found[0] if mode == "stft" else fnp.conj(found[0]) * found[-1]
    out = out * (fnp.sqrt(scale) if mode == "stft" else scale)
    if mode == "psd" and not twosided:
        out = out.at[..., 1 : None if size % 2 else -1].multiply(2)
    freqs = fnp.fft.fftfreq if twosided else fnp.fft.rfftfreq
    time = np.arange(n / 2, signals[0].shape[-1] - n / 2 + 1, step) - (n / 2 if boundary else 0)
    out = out.astype(dtypes.to_complex(real))
    out = out.real if mode == "psd" and not pair else out
    time = fnp.asarray(time, real) / fs
    return freqs(size, 1 / fs, dtype=real), time, fnp.moveaxis(out, -1, axis)


def stft(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Any, Any, Any]:
    """Short-time Fourier transform: frequencies, times, and the spectra of segments, times last.

    fs: samples per unit of time. window: a name, (name, parameters…) or an array (`get_window`).
    nperseg, noverlap, nfft: lengths of segments, of what neighbours share (half), and of
    transforms. detrend: "constant", "linear", a function or False. boundary: what is put before and
    after the signal: "even", "odd", "constant", "zeros" or None. padded: zeros fill the last one.

    >>> from funcgrad.scipy import signal
    >>> f, t, z = signal.stft(fnp.sin(0.5 * fnp.pi * fnp.arange(32.0)), nperseg=8)
    >>> f[fnp.argmax(fnp.abs(z[:, 4]))], t.shape, z.shape
    (Array(0.25, dtype=float32), (9,), (5, 9))
    """
    return _spectra("stft", x, None, fs, window, nperseg, noverlap, nfft, detrend,
                    return_onesided, "spectrum", axis, "stft", boundary, padded)  # fmt: skip


def csd(
    x: Any,
    y: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """Frequencies, and the cross power spectral density of two signals by Welch's method.

    scaling: "density", power per frequency, or "spectrum". average: the "mean" of the segments or
    their "median". nperseg is by default the whole signal, as in JAX. See `stft`.

    >>> from funcgrad.scipy import signal
    >>> x = fnp.sin(0.5 * fnp.pi * fnp.arange(32.0))
    >>> f, p = signal.csd(x, x, nperseg=8)
    >>> f[fnp.argmax(fnp.abs(p))]
    Array(0.25, dtype=float32)
    """
    return _power("csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided,
                  scaling, axis, average)  # fmt: skip


def _power(name: str, x: Any, y: Any, *args: Any) -> tuple[Any, Any]:
    *how, average = args
    freqs, _, power = _spectra(name, x, y, *how)
    if power.ndim < 2 or not power.size:
        return freqs, power
    count = power.shape[-1]
    if average not in ("mean", "median"):
        raise ArgumentError(f'{name}: average must be "median" or "mean", got {average!r}')
    if count == 1:
        return freqs, power[..., 0]
    if average == "mean":
        return freqs, fnp.mean(power, -1)
    evens = np.arange(2.0, count, 2)
    bias = float(1 + np.sum(1 / (evens + 1) - 1 / evens))
    if dtypes.is_complex(power.dtype):
        return freqs, (fnp.median(power.real, -1) + 1j * fnp.median(power.imag, -1)) / bias
    return freqs, fnp.median(power, -1) / bias


def welch(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Any, Any]:
    """Frequencies, and the power spectral density of a signal by Welch's method; see `csd`.

    >>> from funcgrad.scipy import signal
    >>> f, p = signal.welch(fnp.sin(0.5 * fnp.pi * fnp.arange(32.0)), nperseg=8)
    >>> f[fnp.argmax(p)]
    Array(0.25, dtype=float32)
    """
    return _power("welch", x, None, fs, window, nperseg, noverlap, nfft, detrend,
                  return_onesided, scaling, axis, average)  # fmt: skip


def periodogram(
    x: Any,
    fs: Any = 1.0,
    window: Any = "boxcar",
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
) -> tuple[Any, Any]:
    """Frequencies, and the power spectral density of a whole signal; see `welch`.

    >>> from funcgrad.scipy import signal
    >>> f, p = signal.periodogram(fnp.sin(0.5 * fnp.pi * fnp.arange(8.0)))
    >>> p.round(3)
    Array([0., 0., 4., 0., 0.], dtype=float32)
    """
    x = as_array("periodogram", x, "x")
    axis = canonical_axis("periodogram", axis, x.ndim)
    n = x.shape[axis]
    if nfft is not None and integer("nfft", nfft) < n:
        n = operator.index(nfft)
        x = x[(slice(None),) * axis + (slice(n),)]
    nperseg = n if isinstance(window, str | tuple) and n else None
    return _power("periodogram", x, None, fs, window, nperseg, 0, nfft, detrend, return_onesided,
                  scaling, axis, "mean")  # fmt: skip


def coherence(
    x: Any,
    y: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    axis: int = -1,
) -> tuple[Any, Any]:
    """Frequencies, and |Pxy|² / (Pxx Pyy), from 0 to 1, of the densities of `csd`.

    >>> from funcgrad.scipy import signal
    >>> f, c = signal.coherence(fnp.arange(8.0) % 3, fnp.arange(8.0) % 3, nperseg=4)
    >>> c.round(3)
    Array([1., 1., 1.], dtype=float32)
    """
    how = (fs, window, nperseg, noverlap, nfft, detrend, True, "density", axis, "mean")
    f, pxx = _power("coherence", x, None, *how)
    _, pyy = _power("coherence", y, None, *how)
    _, pxy = _power("coherence", x, y, *how)
    return f, (pxy.real**2 + pxy.imag**2) / pxx / pyy


def _overlapped(x: Any, step: int) -> Any:
    """(…, frames, n), each frame `step` after the one before it, added to (…, time)."""
    *lead, frames, n = x.shape
    parts = -(-n // step)
    x = _lengthened(x, parts * step - n).reshape(*lead, frames, parts, step)
    total: Any = 0
    for i in range(parts):
        ends = [(0, 0)] * len(lead) + [(i, parts - 1 - i), (0, 0)]
        total = total + fnp.pad(x[..., i, :], ends)
    return total.reshape(*lead, -1)[..., : step * (frames - 1) + n]


def istft(
    Zxx: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Any, Any]:
    """The inverse of `stft`: times and the signal, from segments that are windowed and added.

    >>> from funcgrad.scipy import signal
    >>> x = fnp.arange(16.0)
    >>> fnp.allclose(signal.istft(signal.stft(x, nperseg=8)[2], nperseg=8)[1], x, atol=1e-4)
    Array(True, dtype=bool)
    """
    name = "istft"
    z = as_array(name, Zxx, "Zxx")
    if z.ndim < 2:
        raise ShapeError(f"{name}: Zxx must be at least 2d, got {z.aval}")
    freqs, times = (canonical_axis(name, a, z.ndim) for a in (freq_axis, time_axis))
    if freqs == times:
        raise ArgumentError(f"{name}: must specify differing time and frequency axes")
    z = z.astype(dtypes.to_complex(promote_inexact(name, z)[0].dtype))
    whole = 2 * (z.shape[freqs] - 1) if input_onesided else z.shape[freqs]
    n = integer("nperseg", nperseg or whole)
    if n < 1:
        raise ArgumentError(f"{name}: nperseg must be a positive integer, got {n}")
    if nfft is None:
        size = whole + 1 if input_onesided and n == whole + 1 else whole
    else:
        size = integer("nfft", nfft)
    if size < n:
        raise ArgumentError(f"{name}: FFT length ({size}) must be longer than nperseg ({n})")
    overlap = integer("noverlap", noverlap or n // 2)
    if overlap >= n:
        raise ArgumentError(f"{name}: noverlap must be less than nperseg, got {overlap}, {n}")
    z = fnp.moveaxis(z, (times, freqs), (-2, -1))
    back = (fnp.fft.irfft if input_onesided else fnp.fft.ifft)(z, size)[..., :n]
    real = dtypes.real_part(back.dtype)
    if isinstance(window, str | tuple):
        win = fnp.asarray(window_values(window, n), real)
    else:
        win = fnp.asarray(window).astype(real)
        if win.shape != (n,):
            raise ShapeError(f"{name}: window must be 1-D and have length of {n}, got {win.aval}")
    x = _overlapped(back * (win * fnp.sum(win)), n - overlap)
    norm = _overlapped(fnp.broadcast_to(win * win, (back.shape[-2], n)), n - overlap)
    if boundary and n > 1:
        x, norm = x[..., n // 2 : -(n // 2)], norm[..., n // 2 : -(n // 2)]
    x = x / fnp.where(norm > 1e-10, norm, 1)
    x = fnp.moveaxis(x, -1, times - (freqs < times)) if x.ndim > 1 else x
    return fnp.arange(x.shape[0], dtype=real) / fs, x
