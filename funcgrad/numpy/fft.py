"""Discrete Fourier transforms: `funcgrad.numpy.fft`, as `numpy.fft` has it.

A transform of several axes is one operation. float32 gives complex64, float64 complex128.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.numpy._util import (
    as_array,
    as_dtype,
    axes_of,
    canonical_axes,
    convert,
    default_float,
    dtype_or,
    integer,
    integers,
    made_on,
    promote_inexact,
)
from funcgrad.numpy.elementwise.arithmetic import true_divide
from funcgrad.numpy.elementwise.functions import conjugate
from funcgrad.numpy.manipulation.joining import roll
from funcgrad.numpy.manipulation.shape import moveaxis
from funcgrad.ops import fft as ops
from funcgrad.ops.base import full
from funcgrad.ops.fft import FFT, IFFT, IRFFT, RFFT
from funcgrad.ops.shape import pad

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_NORMS = ("backward", "ortho", "forward")


def _transform(name: str, kind: ops.FftType, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    """A transform over axes, the last of which is halved by the real kinds."""
    as_array(name, a, "a")
    (a,) = promote_inexact(name, a)
    if kind is RFFT and dtypes.is_complex(a.dtype):
        raise DTypeError(f"{name}: a must be real, got {a.aval}; take its real part, or use fft")
    if norm not in (None, *_NORMS):
        raise ValueError(f"{name}: norm must be one of {_NORMS}, got {norm!r}")
    lengths = None if s is None else integers(name, "s", s)
    if axes is None:
        axes = range(a.ndim - (a.ndim if lengths is None else len(lengths)), a.ndim)
    places = canonical_axes(name, axes, a.ndim)
    if lengths is not None and len(lengths) != len(places):
        raise ShapeError(f"{name}: s {lengths} must have a length for each of the axes {places}")
    if not places:
        if kind in (RFFT, IRFFT):
            raise ShapeError(f"{name}: need at least one axis")
        return convert(a, dtypes.to_complex(a.dtype))
    last = tuple(range(a.ndim - len(places), a.ndim))
    a = moveaxis(a, places, last)
    sizes = [a.shape[i] for i in last]
    if kind is IRFFT:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if lengths is not None:
        sizes = [n if given == -1 else given for given, n in zip(lengths, sizes, strict=True)]
    if any(n < 1 for n in sizes):
        raise ValueError(f"{name}: lengths must be positive, got {tuple(sizes)} for a {a.aval}")
    out = ops.fft(_fitted(a, sizes, kind), kind, sizes)
    factor = _factor(kind, math.prod(sizes), norm)
    return moveaxis(out if factor == 1 else out * factor, last, places)


def _fitted(a: Any, sizes: Sequence[int], kind: ops.FftType) -> Any:
    """The last axes cut, or filled with zeros, to the lengths that the transform takes."""
    wanted = [*sizes[:-1], sizes[-1] // 2 + 1] if kind is IRFFT else list(sizes)
    lead = a.ndim - len(wanted)
    config = [(0, 0, 0)] * lead
    config += [(0, n - m, 0) for n, m in zip(wanted, a.shape[lead:], strict=True)]
    return pad(a, full((), 0, a.dtype), config) if any(map(any, config)) else a


def _factor(kind: ops.FftType, count: int, norm: str | None) -> float:
    """What the op's result, which has 1 / count on the way back, is multiplied by."""
    power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
    return count ** (power if kind in (IFFT, IRFFT) else -power)


def _one(name: str, kind: ops.FftType, a: Any, n: Any, axis: Any, norm: str | None) -> Any:
    s = None if n is None else (integer("n", n),)
    return _transform(name, kind, a, s, (integer("axis", axis),), norm)


# ---- one axis


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The discrete Fourier transform: X[k] = Σⱼ x[j] exp(-2πi j k / n) along an axis.

    The axis is cut, or filled with zeros, to length n. `norm` says which way the factor 1 / n is
    applied: "backward" (on the way back; also None), "forward", or "ortho" (its root both ways).

    >>> fnp.fft.fft(fnp.array([1.0, 0.0, 0.0, 0.0]))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one("fft", FFT, a, n, axis, norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`.

    >>> fnp.fft.ifft(fnp.array([1.0, 1.0, 1.0, 1.0]))
    Array([1.+0.j, 0.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    return _one("ifft", IFFT, a, n, axis, norm)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first n // 2 + 1 frequencies of the transform of real numbers; see `fft`.

    >>> fnp.fft.rfft(fnp.array([1.0, 0.0, 0.0, 0.0]))
    Array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one("rfft", RFFT, a, n, axis, norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `rfft`: n real numbers, by default 2 (m - 1) of m frequencies.

    >>> fnp.fft.irfft(fnp.array([1.0, 1.0, 1.0]))
    Array([1., 0., 0., 0.], dtype=float32)
    """
    return _one("irfft", IRFFT, a, n, axis, norm)


def _swapped(name: str, norm: str | None) -> str:
    if norm not in (None, *_NORMS):
        raise ValueError(f"{name}: norm must be one of {_NORMS}, got {norm!r}")
    return {"ortho": "ortho", "forward": "backward"}.get(norm or "", "forward")


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real spectrum, of length n, of a signal that is Hermitian and given by its first half.

    >>> fnp.fft.hfft(fnp.array([1.0, 0.0, 0.0]))
    Array([1., 1., 1., 1.], dtype=float32)
    """
    a = conjugate(as_array("hfft", a, "a"))
    return _one("hfft", IRFFT, a, n, axis, _swapped("hfft", norm))


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `hfft`: the first half of the Hermitian signal with a real spectrum.

    >>> fnp.fft.ihfft(fnp.array([1.0, 1.0, 1.0, 1.0])).real
    Array([1., 0., 0.], dtype=float32)
    """
    return conjugate(_one("ihfft", RFFT, a, n, axis, _swapped("ihfft", norm)))


# ---- two axes and more


def fft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Any:
    """The transform over two axes, cut or filled to lengths `s`; see `fft`.

    >>> fnp.fft.fft2(fnp.ones((2, 2)))
    Array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _transform("fft2", FFT, a, s, axes, norm)


def ifft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Any:
    """The inverse of `fft2`.

    >>> fnp.fft.ifft2(fnp.ones((2, 2)))
    Array([[1.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _transform("ifft2", IFFT, a, s, axes, norm)


def rfft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Any:
    """The transform of real numbers over two axes, the last of which is halved; see `rfft`.

    >>> fnp.fft.rfft2(fnp.ones((2, 2)))
    Array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _transform("rfft2", RFFT, a, s, axes, norm)


def irfft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Any:
    """The inverse of `rfft2`; `s` are the lengths of the result.

    >>> fnp.fft.irfft2(fnp.ones((2, 2)))
    Array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    return _transform("irfft2", IRFFT, a, s, axes, norm)


def fftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """The transform over axes (all, or the last len(s), where None); see `fft`.

    >>> fnp.fft.fftn(fnp.ones((2, 2, 2))).real.sum()
    Array(8., dtype=float32)
    """
    return _transform("fftn", FFT, a, s, axes, norm)


def ifftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """The inverse of `fftn`.

    >>> fnp.fft.ifftn(fnp.ones((2, 2)), axes=(0,))
    Array([[1.+0.j, 1.+0.j],
           [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _transform("ifftn", IFFT, a, s, axes, norm)


def rfftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """The transform of real numbers over axes, the last of which is halved; see `rfft`.

    >>> fnp.fft.rfftn(fnp.ones((2, 2, 4))).shape
    (2, 2, 3)
    """
    return _transform("rfftn", RFFT, a, s, axes, norm)


def irfftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Any:
    """The inverse of `rfftn`; `s` are the lengths of the result.

    >>> fnp.fft.irfftn(fnp.ones((2, 2, 3))).shape
    (2, 2, 4)
    """
    return _transform("irfftn", IRFFT, a, s, axes, norm)


# ---- frequencies


def _frequencies(name: str, counts: np.ndarray, n: Any, d: Any, dtype: Any) -> Any:
    kind = dtype_or(dtype, default_float())
    step = as_dtype(name, d, kind, "d")
    return true_divide(Array(counts.astype(kind)), step * n)


def _length(name: str, n: Any) -> int:
    n = integer("n", n)
    if n < 1:
        raise ValueError(f"{name}: n must be positive, got {n}")
    return n


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies, in cycles per unit, of an `fft` of n samples at distance d.

    >>> fnp.fft.fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    n = _length("fftfreq", n)
    counts = np.concatenate([np.arange((n + 1) // 2), np.arange(-(n // 2), 0)])
    return made_on(_frequencies("fftfreq", counts, n, d, dtype), device)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies, in cycles per unit, of an `rfft` of n samples at distance d.

    >>> fnp.fft.rfftfreq(4)
    Array([0.  , 0.25, 0.5 ], dtype=float32)
    """
    n = _length("rfftfreq", n)
    return made_on(_frequencies("rfftfreq", np.arange(n // 2 + 1), n, d, dtype), device)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Move the zero frequency to the middle of axes (all where None).

    >>> fnp.fft.fftshift(fnp.fft.fftfreq(4))
    Array([-0.5 , -0.25,  0.  ,  0.25], dtype=float32)
    """
    x = as_array("fftshift", x, "x")
    places = axes_of("fftshift", axes, x.ndim)
    return roll(x, tuple(x.shape[i] // 2 for i in places), places) if places else x


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`.

    >>> fnp.fft.ifftshift(fnp.array([-1, 0, 1]))
    Array([ 0,  1, -1], dtype=int32)
    """
    x = as_array("ifftshift", x, "x")
    places = axes_of("ifftshift", axes, x.ndim)
    return roll(x, tuple(-(x.shape[i] // 2) for i in places), places) if places else x
