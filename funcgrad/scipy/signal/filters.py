"""Signals filtered along an axis: trends removed, recursions, polynomials fitted, resampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axis, integer
from funcgrad.scipy.ndimage.filters import convolve1d
from funcgrad.scipy.signal.windows import window_values


def detrend(
    data: Any,
    axis: int = -1,
    type: str = "linear",
    bp: int | Sequence[int] | np.ndarray = 0,
    overwrite_data: None = None,
) -> Any:
    """Data less their mean ("constant") or less the lines that fit them best ("linear").

    bp: where new lines begin. Arrays are never overwritten.

    >>> from funcgrad.scipy import signal
    >>> signal.detrend(fnp.array([1.0, 2.0, 4.0]), type="constant").round(2)
    Array([-1.33, -0.33,  1.67], dtype=float32)
    """
    if overwrite_data:
        raise NotImplementedError("detrend: overwrite_data is not supported: arrays don't change")
    if type not in ("constant", "linear"):
        raise ArgumentError(f"detrend: trend type must be 'linear' or 'constant', got {type!r}")
    data = as_array("detrend", data, "data")
    (x,) = promote_inexact("detrend", data)
    axis = canonical_axis("detrend", axis, x.ndim)
    if type == "constant":
        return x - fnp.mean(x, axis, keepdims=True)
    n = x.shape[axis]
    breaks = np.unique(np.r_[0, bp, n])
    if breaks[0] < 0 or breaks[-1] > n:
        raise ArgumentError(
            f"detrend: breakpoints must be non-negative and less than length of data along given "
            f"axis ({n}), got {bp}"
        )
    x = fnp.moveaxis(x, axis, -1)
    wide = dtypes.real_part(x.dtype)
    wide = np.dtype(np.float32) if wide.itemsize < 4 else wide
    parts = []
    for start, stop in zip(breaks[:-1].tolist(), breaks[1:].tolist(), strict=True):
        count = stop - start
        basis = np.linalg.qr(np.stack([np.ones(count), np.arange(count)], 1))[0]
        basis = fnp.asarray(basis[:, : min(count, 2)], wide).astype(x.dtype)
        part = x[..., start:stop]
        shares = fnp.matmul(part, basis, precision="highest")
        parts.append(part - fnp.matmul(shares, basis.T, precision="highest"))
    return fnp.moveaxis(fnp.concatenate(parts, -1), -1, axis)


def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """The recursion a[0] y[n] = Σ b[k] x[n - k] - Σₖ₌₁ a[k] y[n - k] along an axis.

    zi: the state before the first sample, of max(len(a), len(b)) - 1 elements along the axis; then
    the result is (y, state after the last one). Runs sample by sample, in a `scan`.

    >>> from funcgrad.scipy import signal
    >>> signal.lfilter(fnp.array([0.5]), fnp.array([1.0, -0.5]), fnp.ones(4))
    Array([0.5   , 0.75  , 0.875 , 0.9375], dtype=float32)
    """
    name = "lfilter"
    given = (as_array(name, v, argument) for v, argument in ((b, "b"), (a, "a"), (x, "x")))
    b, a, x = promote_inexact(name, *map(fnp.atleast_1d, given))
    for argument, v in (("b", b), ("a", a)):
        if v.ndim != 1 or not v.size:
            raise ShapeError(f"{name}: {argument} must be a vector, got {v.aval}")
    axis = canonical_axis(name, axis, x.ndim)
    x = fnp.moveaxis(x, axis, 0)
    order = max(a.size, b.size) - 1
    shape = (order, *x.shape[1:])
    if zi is None:
        state = fnp.zeros(shape, x.dtype)
    else:
        state = fnp.moveaxis(as_array(name, zi, "zi"), axis, 0).astype(x.dtype)
        if state.ndim != x.ndim or state.shape[0] != order:
            raise ShapeError(f"{name}: zi must have {order} elements along axis {axis}, got "
                             f"{fnp.shape(zi)} for x {x.aval}")  # fmt: skip
        state = fnp.broadcast_to(state, shape)
    b, a = (fnp.pad(v / a[0], (0, order + 1 - v.size)) for v in (b, a))
    ones = (1,) * (x.ndim - 1)
    later = b[1:].reshape(-1, *ones), a[1:].reshape(-1, *ones)

    def turn(state: Any, u: Any) -> tuple[Any, Any]:
        if not order:
            return state, b[0] * u
        y = state[0] + b[0] * u
        moved = fnp.concatenate([state[1:], fnp.zeros_like(state[:1])])
        return moved + later[0] * u - later[1] * y, y

    state, y = lax.scan(turn, state, x)
    y = fnp.moveaxis(y, 0, axis)
    return y if zi is None else (y, fnp.moveaxis(state, 0, axis))


def savgol_coeffs(
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    pos: int | None = None,
    use: str = "conv",
) -> Any:
    """The weights of a Savitzky–Golay filter: of the polynomial that fits a window best, the
    derivative of order `deriv` at `pos` (the middle).

    >>> from funcgrad.scipy import signal
    >>> signal.savgol_coeffs(3, 1).round(3)
    Array([0.333, 0.333, 0.333], dtype=float32)
    """
    return fnp.asarray(_savgol(window_length, polyorder, deriv, delta, pos, use), fnp.float_)


def _savgol(
    window_length: Any, polyorder: Any, deriv: Any, delta: Any, pos: Any, use: str = "conv"
) -> np.ndarray:
    n, order = integer("window_length", window_length), integer("polyorder", polyorder)
    if not 0 <= order < n:
        raise ArgumentError(f"polyorder must be less than window_length, got {order} and {n}")
    pos = (n - 1) / 2 if pos is None else pos
    if not 0 <= pos < n:
        raise ArgumentError(f"pos must be in the window of {n}, got {pos}")
    if use not in ("conv", "dot"):
        raise ArgumentError(f"use must be conv or dot, got {use!r}")
    x = np.arange(-pos, n - pos)
    if deriv > order:
        return np.zeros(n)
    # Scaled to [-1, 1], where powers are well conditioned.
    scale = max(np.abs(x).max(), 1.0)
    weights = np.linalg.pinv((x / scale)[:, None] ** np.arange(order + 1))[deriv]
    weights = weights * math.factorial(deriv) / (delta * scale) ** deriv
    return weights[::-1] if use == "conv" else weights


def savgol_filter(
    x: Any,
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    axis: int = -1,
    mode: str = "interp",
    cval: Any = 0.0,
) -> Any:
    """A signal smoothed, or differentiated, by polynomials that fit windows of it best.

    mode "interp": the first and last window's polynomials go to the ends; "mirror", "constant",
    "nearest", "wrap": what lies outside, as in `scipy.ndimage.convolve1d`.

    >>> from funcgrad.scipy import signal
    >>> signal.savgol_filter(fnp.arange(5.0) ** 2, 5, 2).round(3)
    Array([ 0.,  1.,  4.,  9., 16.], dtype=float32)
    """
    name = "savgol_filter"
    (x,) = promote_inexact(name, as_array(name, x, "x"))
    axis = canonical_axis(name, axis, x.ndim)
    if mode not in ("interp", "mirror", "constant", "nearest", "wrap"):
        raise ArgumentError(f"{name}: mode must be interp, mirror, constant, nearest or wrap, got "
                            f"{mode!r}")  # fmt: skip
    weights = _savgol(window_length, polyorder, deriv, delta, None)
    n, length = len(weights), x.shape[axis]
    kind = dtypes.real_part(x.dtype)
    if mode != "interp":
        return convolve1d(x, fnp.asarray(weights, kind), axis, mode, cval)
    if n > length:
        raise ArgumentError(f"{name}: window_length {n} must not exceed the {length} elements of x")
    x = fnp.moveaxis(x, axis, -1)
    half = n // 2
    middle = convolve1d(x, fnp.asarray(weights, kind), -1, "constant")[..., half : length - half]
    ends = [
        fnp.asarray(np.stack([_savgol(n, polyorder, deriv, delta, p, "dot") for p in at], 1), kind)
        for at in (range(half), range(n - half, n))
        if half
    ]
    if ends:
        first, last = ends
        middle = fnp.concatenate([x[..., :n] @ first, middle, x[..., length - n :] @ last], -1)
    return fnp.moveaxis(middle, -1, axis)


def resample(x: Any, num: int, t: Any = None, axis: int = 0, window: Any = None) -> Any:
    """A periodic signal at `num` samples in place of n, by its Fourier series.

    window: weights of the frequencies, by name or as an array in the order of `fft.fftfreq`. With
    `t`, the times of the given samples, the result is (samples, their times).

    >>> from funcgrad.scipy import signal
    >>> signal.resample(fnp.array([0.0, 1.0, 0.0, -1.0]), 8).round(2)[:3]
    Array([0.  , 0.71, 1.  ], dtype=float32)
    """
    name = "resample"
    (x,) = promote_inexact(name, as_array(name, x, "x"))
    num, axis = integer("num", num), canonical_axis(name, axis, x.ndim)
    if num < 1:
        raise ArgumentError(f"{name}: num must be positive, got {num}")
    n = x.shape[axis]
    real = not dtypes.is_complex(x.dtype)
    series = fnp.moveaxis(fnp.fft.fft(x, axis=axis), axis, -1)
    if window is not None:
        if isinstance(window, str | tuple):
            weights = fnp.asarray(np.fft.ifftshift(window_values(window, n)), series.dtype)
        else:
            weights = fnp.asarray(window).astype(series.dtype)
        if weights.shape != (n,):
            raise ShapeError(f"{name}: window must have {n} elements, got {weights.aval}")
        series = series * weights
    least = min(n, num)
    low, high = (least + 1) // 2, (least - 1) // 2
    out = fnp.zeros((*series.shape[:-1], num), series.dtype)
    out = out.at[..., :low].set(series[..., :low])
    out = out.at[..., num - high :].set(series[..., n - high :])
    if least % 2 == 0:  # the middle frequency stands for both signs
        half = least // 2
        if num < n:
            out = out.at[..., half].set(series[..., half] + series[..., n - half])
        elif num == n:
            out = out.at[..., half].set(series[..., half])
        else:
            both = series[..., half] / 2
            out = out.at[..., half].set(both).at[..., num - half].set(both)
    y = fnp.fft.ifft(out) * (num / n)
    y = fnp.moveaxis(y.real if real else y, -1, axis)
    if t is None:
        return y
    t = fnp.asarray(t)
    return y, fnp.arange(num) * (t[1] - t[0]) * (n / num) + t[0]


def hilbert(x: Any, N: int | None = None, axis: int = -1) -> Any:
    """The analytic signal: x + i times its Hilbert transform; its absolute value is the envelope.

    >>> from funcgrad.scipy import signal
    >>> fnp.abs(signal.hilbert(fnp.cos(0.5 * fnp.pi * fnp.arange(8.0)))).round(3)[:3]
    Array([1., 1., 1.], dtype=float32)
    """
    (x,) = promote_inexact("hilbert", as_array("hilbert", x, "x"))
    if dtypes.is_complex(x.dtype):
        raise ArgumentError(f"hilbert: x must be real, got {x.aval}")
    axis = canonical_axis("hilbert", axis, x.ndim)
    n = x.shape[axis] if N is None else integer("N", N)
    if n < 1:
        raise ArgumentError(f"hilbert: N must be positive, got {n}")
    weights = np.zeros(n)
    weights[0] = 1
    weights[1 : (n + 1) // 2] = 2
    if n % 2 == 0:
        weights[n // 2] = 1
    series = fnp.fft.fft(fnp.moveaxis(x, axis, -1), n)
    return fnp.moveaxis(fnp.fft.ifft(series * fnp.asarray(weights, x.dtype)), -1, axis)
