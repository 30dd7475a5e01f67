"""Windows by their names: vectors that taper towards both ends, made by NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError
from funcgrad.ops.arguments import integer


def _cosines(*weights: float) -> Callable:
    return lambda t: sum(w * (-1) ** k * np.cos(2 * np.pi * k * t) for k, w in enumerate(weights))


def _tukey(t: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    if alpha <= 0:
        return np.ones_like(t)
    edge = np.minimum(t, 1 - t) * 2 / min(alpha, 1.0)
    return np.where(edge < 1, 0.5 * (1 - np.cos(np.pi * edge)), 1.0)


def _bohman(t: np.ndarray) -> np.ndarray:
    x = np.abs(2 * t - 1)
    return np.maximum((1 - x) * np.cos(np.pi * x) + np.sin(np.pi * x) / np.pi, 0)


def _barthann(t: np.ndarray) -> np.ndarray:
    x = np.abs(t - 0.5)
    return 0.62 - 0.48 * x + 0.38 * np.cos(2 * np.pi * x)


# Of the position, which goes from 0 to 1, and parameters.
_SHAPES: dict[str, Callable] = {
    "barthann": _barthann,
    "bartlett": lambda t: 1 - np.abs(2 * t - 1),
    "blackman": _cosines(0.42, 0.5, 0.08),
    "blackmanharris": _cosines(0.35875, 0.48829, 0.14128, 0.01168),
    "bohman": _bohman,
    "boxcar": np.ones_like,
    "flattop": _cosines(0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
    "general_cosine": lambda t, weights: _cosines(*weights)(t),
    "general_hamming": lambda t, alpha: _cosines(alpha, 1 - alpha)(t),
    "hamming": _cosines(0.54, 0.46),
    "hann": _cosines(0.5, 0.5),
    "kaiser": lambda t, beta: (
        np.i0(beta * np.sqrt(np.maximum(1 - (2 * t - 1) ** 2, 0))) / np.i0(beta)
    ),
    "lanczos": lambda t: np.sinc(2 * t - 1),
    "nuttall": _cosines(0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "tukey": _tukey,
}
# Of the distance from the middle, in elements, the length, and parameters.
_MIDDLE: dict[str, Callable] = {
    "cosine": lambda x, n: np.cos(np.pi * x / n),
    "exponential": lambda x, n, tau=1.0: np.exp(-np.abs(x) / tau),
    "gaussian": lambda x, n, std: np.exp(-0.5 * (x / std) ** 2),
    "general_gaussian": lambda x, n, p, sig: np.exp(-0.5 * np.abs(x / sig) ** (2 * p)),
    "parzen": lambda x, n: np.where(
        np.abs(x) <= (n - 1) / 4,
        1 - 6 * (2 * np.abs(x) / n) ** 2 * (1 - 2 * np.abs(x) / n),
        2 * np.maximum(1 - 2 * np.abs(x) / n, 0) ** 3,
    ),
    "triang": lambda x, n: 1 - np.abs(x) / ((n + n % 2 * 1) / 2),
}
_ALIASES = {
    "rectangular": "boxcar", "ones": "boxcar", "box": "boxcar", "rect": "boxcar", "hanning": "hann",
    "triangle": "triang", "tri": "triang", "black": "blackman", "blk": "blackman",
    "gauss": "gaussian", "flat": "flattop", "bart": "bartlett", "sinc": "lanczos",
}  # fmt: skip


def window_values(window: Any, n: int, periodic: bool = True) -> np.ndarray:
    """A window of n elements in float64, by its name, (name, parameters…), or Kaiser's beta."""
    if isinstance(window, int | float):
        window = ("kaiser", window)
    name, *parameters = window if isinstance(window, tuple) else (window,)
    name = _ALIASES.get(name, name)
    if name not in _SHAPES and name not in _MIDDLE:
        raise ArgumentError(
            f"get_window: window must be one of {', '.join(sorted({*_SHAPES, *_MIDDLE}))}, got "
            f"{window!r}"
        )
    if n <= 1:
        return np.ones(n)
    whole = n + periodic
    place = np.arange(n, dtype=float)
    try:
        if name in _SHAPES:
            return np.asarray(_SHAPES[name](place / (whole - 1), *parameters), float)
        return np.asarray(_MIDDLE[name](place - (whole - 1) / 2, whole, *parameters), float)
    except TypeError as e:
        raise ArgumentError(f"get_window: parameters of {window!r} don't fit: {e}") from e


def get_window(window: Any, Nx: int, fftbins: bool = True) -> Any:
    """A window of Nx elements by its name, or (name, parameters…), as SciPy has them.

    fftbins: periodic, for spectra; else symmetric, for filters.

    >>> from funcgrad.scipy import signal
    >>> signal.get_window("hann", 4)
    Array([0. , 0.5, 1. , 0.5], dtype=float32)
    >>> signal.get_window(("kaiser", 0.0), 3, fftbins=False)
    Array([1., 1., 1.], dtype=float32)
    """
    n = integer("Nx", Nx)
    if n < 1:
        raise ValueError(f"get_window: Nx must be positive, got {n}")
    return fnp.asarray(window_values(window, n, fftbins), current().float_dtype)
