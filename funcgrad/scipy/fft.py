"""Cosine and sine transforms, types 1 to 4, and the names of `scipy.fft` that NumPy has, too.

Each type is one complex FFT, with a rotation before or after it: type 2 of the samples with even
indices and then, backwards, those with odd ones (Makhoul 1980); type 3 is its transpose; type 1 is
the FFT of the even, or odd, periodic continuation; type 4 one of twice the length. Sine transforms
of types 2 to 4 are cosine transforms of the samples reversed or with alternating signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import ArgumentError, ShapeError, within
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.numpy.fft import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)
from funcgrad.ops.arguments import canonical_axes, integer, integers

__all__ = [
    "dct", "dctn", "dst", "dstn", "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "idct",
    "idctn", "idst", "idstn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2",
    "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

_INVERSE = {1: 1, 2: 3, 3: 2, 4: 4}


def _turn(angles: np.ndarray, x: Any) -> Any:
    """exp(i angle) at each place of x's last axis."""
    return fnp.asarray(np.exp(1j * angles), dtypes.to_complex(x.dtype))


def _signs(n: int, x: Any) -> Any:
    return fnp.asarray((-1.0) ** np.arange(n), x.dtype)


def _scaled_end(x: Any, i: int, factor: float) -> Any:
    return x.at[..., i].multiply(factor)


def _dct1(x: Any) -> Any:
    if x.shape[-1] < 2:
        raise ValueError(within("type 1 needs at least 2 samples"))
    return rfft(fnp.concatenate([x, x[..., -2:0:-1]], -1)).real


def _dct2(x: Any) -> Any:
    n = x.shape[-1]
    v = fnp.concatenate([x[..., ::2], x[..., 1::2][..., ::-1]], -1)
    return 2 * (fft(v) * _turn(-np.pi * np.arange(n) / (2 * n), x)).real


def _dct3(x: Any) -> Any:
    n = x.shape[-1]
    doubled = 2 * x * _turn(np.pi * np.arange(n) / (2 * n), x)
    y = ifft(_scaled_end(doubled, 0, 0.5), norm="forward").real
    places = np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])
    return y[..., np.argsort(places)]


def _dct4(x: Any) -> Any:
    n = x.shape[-1]
    k = np.arange(n)
    turned = fft(x * _turn(-np.pi * k / (2 * n), x), 2 * n)[..., :n]
    return 2 * (turned * _turn(-np.pi * (2 * k + 1) / (4 * n), x)).real


def _dst1(x: Any) -> Any:
    zero = fnp.zeros_like(x[..., :1])
    odd = fnp.concatenate([zero, x, zero, -x[..., ::-1]], -1)
    return -rfft(odd).imag[..., 1 : x.shape[-1] + 1]


_COSINES: dict[int, Callable] = {1: _dct1, 2: _dct2, 3: _dct3, 4: _dct4}
_SINES: dict[int, Callable] = {
    1: _dst1,
    2: lambda x: _dct2(x * _signs(x.shape[-1], x))[..., ::-1],
    3: lambda x: _dct3(x[..., ::-1]) * _signs(x.shape[-1], x),
    4: lambda x: _dct4(x[..., ::-1]) * _signs(x.shape[-1], x),
}


def _one(x: Any, type: int, norm: str | None, sine: bool, orthogonalize: bool) -> Any:
    """A transform along the last axis, with the factor that `norm` says."""
    n = x.shape[-1]
    plain = (_SINES if sine else _COSINES)[type]
    period = 2 * (n + (1 if sine else -1)) if type == 1 else 2 * n
    ends = [] if type == 4 or (type == 1 and sine) else [-1] if sine else [0]
    ends = [0, -1] if type == 1 and not sine else ends
    if orthogonalize and type in (1, 3):
        for i in ends:
            x = _scaled_end(x, i, math.sqrt(2))
    y = plain(x)
    if orthogonalize and type in (1, 2):
        for i in ends:
            y = _scaled_end(y, i, math.sqrt(0.5))
    factor = {"forward": 1.0, "ortho": 0.5}.get(norm or "", 0.0)
    return y * period**-factor if factor else y


def _transform(
    name: str, x: Any, type: Any, s: Any, axes: Any, norm: Any, orthogonalize: Any
) -> Any:
    """A transform over axes; names that begin with "i" are inverses."""
    inverse, sine = name[0] == "i", "dst" in name
    x = as_array(name, x, "x")
    type = integer("type", type)
    if type not in _INVERSE:
        raise ArgumentError(f"{name}: type must be 1, 2, 3 or 4, got {type}")
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueError(f"{name}: norm must be backward, ortho or forward, got {norm!r}")
    lengths = None if s is None else integers(name, "s", s)
    if lengths is not None and len(lengths) > x.ndim:
        raise ShapeError(
            f"{name}: s must have at most x.ndim ({x.ndim}) elements, got {len(lengths)}"
        )
    if axes is None:
        axes = range(x.ndim - (x.ndim if lengths is None else len(lengths)), x.ndim)
    places = canonical_axes(name, axes, x.ndim)
    if lengths is not None and len(lengths) != len(places):
        raise ShapeError(f"{name}: s {lengths} must have a length for each of the axes {places}")
    (x,) = promote_inexact(name, x)
    given = x.dtype
    if given.itemsize < 4:
        x = x.astype(np.float32)
    if dtypes.is_complex(given):
        x = fnp.stack([x.real, x.imag])
        places = tuple(p + 1 for p in places)
    orthogonalize = norm == "ortho" if orthogonalize is None else bool(orthogonalize)
    if inverse:
        type = _INVERSE[type]
        norm = {"ortho": "ortho", "forward": "backward"}.get(norm or "", "forward")
    for place, n in zip(places, lengths or [x.shape[p] for p in places], strict=True):
        x = fnp.moveaxis(_fitted(name, fnp.moveaxis(x, place, -1), n), -1, place)
    for place in places:
        y = _one(fnp.moveaxis(x, place, -1), type, norm, sine, orthogonalize)
        x = fnp.moveaxis(y, -1, place)
    return x[0] + 1j * x[1] if dtypes.is_complex(given) else x.astype(given)


def _fitted(name: str, x: Any, n: int) -> Any:
    """The last axis cut, or filled with zeros, to length n."""
    if n < 1:
        raise ValueError(f"{name}: lengths must be positive, got {n} for x {x.aval}")
    more = n - x.shape[-1]
    return fnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more > 0 else x[..., :n]


def _lengths(n: Any) -> Any:
    return None if n is None else (integer("n", n),)


def dct(
    x: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The discrete cosine transform of type 1, 2, 3 or 4 along an axis, cut or filled to length n.

    Type 2 is y[k] = 2 Σⱼ x[j] cos(π k (2j + 1) / 2n). `norm` is "backward" (None; no factor here,
    1 / 2n on the way back), "forward" (the other way round), or "ortho", which makes it orthogonal
    (with `orthogonalize`, which then is the default). Complex numbers are transformed in parts.

    >>> from funcgrad.scipy import fft
    >>> fft.dct(fnp.array([1.0, 1.0, 1.0, 1.0])).round(4)
    Array([8., 0., 0., 0.], dtype=float32)
    """
    return _transform("dct", x, type, _lengths(n), (axis,), norm, orthogonalize)


def idct(
    x: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dct` with the same type and norm.

    >>> from funcgrad.scipy import fft
    >>> fft.idct(fft.dct(fnp.array([1.0, 2.0, 3.0]))).round(4)
    Array([1., 2., 3.], dtype=float32)
    """
    return _transform("idct", x, type, _lengths(n), (axis,), norm, orthogonalize)


def dst(
    x: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The discrete sine transform of type 1, 2, 3 or 4 along an axis; see `dct`.

    Type 2 is y[k] = 2 Σⱼ x[j] sin(π (k + 1) (2j + 1) / 2n).

    >>> from funcgrad.scipy import fft
    >>> fft.dst(fnp.array([1.0, -1.0, 1.0, -1.0])).round(4)
    Array([0., 0., 0., 8.], dtype=float32)
    """
    return _transform("dst", x, type, _lengths(n), (axis,), norm, orthogonalize)


def idst(
    x: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dst` with the same type and norm.

    >>> from funcgrad.scipy import fft
    >>> fft.idst(fft.dst(fnp.array([1.0, 2.0, 3.0]))).round(4)
    Array([1., 2., 3.], dtype=float32)
    """
    return _transform("idst", x, type, _lengths(n), (axis,), norm, orthogonalize)


def dctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The cosine transform over axes (all, or the last len(s), where None); see `dct`.

    >>> from funcgrad.scipy import fft
    >>> fft.dctn(fnp.ones((2, 2))).round(4)
    Array([[16.,  0.],
           [ 0.,  0.]], dtype=float32)
    """
    return _transform("dctn", x, type, s, axes, norm, orthogonalize)


def idctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dctn`.

    >>> from funcgrad.scipy import fft
    >>> fft.idctn(fft.dctn(fnp.ones((2, 2)))).round(4)
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _transform("idctn", x, type, s, axes, norm, orthogonalize)


def dstn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The sine transform over axes (all, or the last len(s), where None); see `dst`.

    >>> from funcgrad.scipy import fft
    >>> fft.dstn(fnp.ones((2, 2)), axes=(0,)).round(2)
    Array([[2.83, 2.83],
           [0.  , 0.  ]], dtype=float32)
    """
    return _transform("dstn", x, type, s, axes, norm, orthogonalize)


def idstn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
) -> Any:
    """The inverse of `dstn`.

    >>> from funcgrad.scipy import fft
    >>> fft.idstn(fft.dstn(fnp.ones((2, 2)))).round(4)
    Array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _transform("idstn", x, type, s, axes, norm, orthogonalize)
