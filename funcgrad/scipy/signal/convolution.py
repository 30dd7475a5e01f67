"""Convolutions and correlations of arrays of any number of axes, direct or by Fourier transforms.

A correlation is the convolution with the second operand reversed and conjugated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.numpy._util import as_array, promote_inexact
from funcgrad.ops.arguments import canonical_axes

_PADS = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


def _operands(name: str, in1: Any, in2: Any, mode: Any) -> tuple[Any, Any]:
    x, y = as_array(name, in1, "in1"), as_array(name, in2, "in2")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"{name}: mode must be one of ['full', 'same', 'valid'], got {mode!r}")
    if x.ndim != y.ndim:
        raise ShapeError(
            f"{name}: in1 and in2 must have the same number of dimensions, got {x.aval} and "
            f"{y.aval}"
        )
    x, y = promote_inexact(name, x, y)
    return x, y


def _valid(name: str, x: Any, y: Any, axes: Sequence[int]) -> bool:
    """Whether y fits into x at all places, after checking that either fits into the other."""
    pairs = [(x.shape[i], y.shape[i]) for i in axes]
    if all(m >= n for m, n in pairs):
        return True
    if all(m <= n for m, n in pairs):
        return False
    raise ShapeError(
        f"{name}: for mode valid one input must be smaller than the other in every dimension, got "
        f"{x.aval} and {y.aval}"
    )


def _middle(full: Any, shape: Sequence[int]) -> Any:
    starts = [(m - n) // 2 for m, n in zip(full.shape, shape, strict=True)]
    return full[tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))]


def _direct(name: str, x: Any, y: Any, mode: str, precision: Any) -> Any:
    if not x.size or not y.size:
        raise ShapeError(
            f"{name}: zero-size arrays not supported in convolutions, got shapes {x.shape} and "
            f"{y.shape}"
        )
    axes = range(x.ndim)
    if not x.ndim:
        return x * y
    same = x.shape
    if mode == "valid":
        x, y = (x, y) if _valid(name, x, y, axes) else (y, x)
    elif math.prod(x.shape) < math.prod(y.shape):
        x, y = y, x
    if mode == "full":
        pads = [(n - 1, n - 1) for n in y.shape]
    elif mode == "valid":
        pads = [(0, 0)] * x.ndim
    else:  # the middle of the full result, of in1's shape
        pads = []
        for m, n, size in zip(x.shape, y.shape, same, strict=True):
            start = (m + n - 1 - size) // 2
            pads.append((n - 1 - start, size + start - m))
    strides = (1,) * x.ndim
    kernel = fnp.flip(y)[None, None]
    out = lax.conv_general_dilated(x[None, None], kernel, strides, pads, precision=precision)
    return out[0, 0]


def _fast_length(n: int) -> int:
    """The smallest length from n on without prime factors but 2, 3 and 5."""
    best = 1 << (n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            length = three << max((-(-n // three) - 1).bit_length(), 0)
            best = min(best, length)
            three *= 3
        five *= 5
    return best


def fftconvolve(
    in1: Any, in2: Any, mode: str = "full", axes: Sequence[int] | int | None = None
) -> Any:
    """The convolution of two arrays over axes (all by default) by Fourier transforms.

    Modes are those of `convolve`. The other axes must be equal, or 1.

    >>> from funcgrad.scipy import signal
    >>> signal.fftconvolve(fnp.array([1.0, 2.0, 3.0]), fnp.array([1.0, 1.0])).round(3)
    Array([1., 3., 5., 3.], dtype=float32)
    """
    return _by_transforms("fftconvolve", *_operands("fftconvolve", in1, in2, mode), mode, axes)


def _by_transforms(name: str, x: Any, y: Any, mode: str, axes: Any) -> Any:
    if axes is None:
        axes = range(x.ndim)
    elif isinstance(axes, int):
        axes = (axes,)
    places = canonical_axes(name, axes, x.ndim)
    for i in range(x.ndim):
        if i not in places and x.shape[i] != y.shape[i] and 1 not in (x.shape[i], y.shape[i]):
            raise ShapeError(
                f"{name}: mapped axes must have same shape; got {x.aval} and {y.aval} with axes "
                f"{places}"
            )
    rest = fnp.broadcast_shapes(*(tuple(1 if i in places else n for i, n in enumerate(a.shape))
                                  for a in (x, y)))  # fmt: skip
    if mode == "valid" and not _valid(name, x, y, places):
        x, y = y, x
    full = [m + n - 1 if i in places else r
            for i, (m, n, r) in enumerate(zip(x.shape, y.shape, rest, strict=True))]  # fmt: skip
    wanted = {
        "full": full,
        "same": [x.shape[i] if i in places else r for i, r in enumerate(rest)],
        "valid": [x.shape[i] - y.shape[i] + 1 if i in places else r for i, r in enumerate(rest)],
    }[mode]
    if 0 in x.shape or 0 in y.shape:
        return fnp.zeros([max(n, 0) for n in wanted], x.dtype)
    if not places:
        return x * y
    narrow = x.dtype if x.dtype.itemsize < 4 else None
    if narrow is not None:
        x, y = x.astype(np.float32), y.astype(np.float32)
    sizes = [_fast_length(full[i]) for i in places]
    if dtypes.is_complex(x.dtype):
        product = fnp.fft.fftn(x, sizes, places) * fnp.fft.fftn(y, sizes, places)
        out = fnp.fft.ifftn(product, sizes, places)
    else:
        product = fnp.fft.rfftn(x, sizes, places) * fnp.fft.rfftn(y, sizes, places)
        out = fnp.fft.irfftn(product, sizes, places)
    out = _middle(out[tuple(map(slice, full))], wanted)
    return out if narrow is None else out.astype(narrow)


def _by_method(name: str, x: Any, y: Any, mode: str, method: Any, precision: Any) -> Any:
    if method == "fft":
        return _by_transforms(name, x, y, mode, None)
    if method not in ("auto", "direct"):
        raise ArgumentError(f"{name}: got method={method!r}; expected 'auto', 'fft', or 'direct'")
    return _direct(name, x, y, mode, precision)


def convolve(
    in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None
) -> Any:
    """The convolution Σⱼ in1[j] in2[k - j] of two arrays of as many axes.

    mode: "full", all places where they meet; "same", the middle of that, of in1's shape; "valid",
    where one lies inside of the other. method: "direct" ("auto") or "fft".

    >>> from funcgrad.scipy import signal
    >>> signal.convolve(fnp.array([1.0, 2.0, 3.0]), fnp.array([1.0, 1.0]), mode="valid")
    Array([3., 5.], dtype=float32)
    """
    x, y = _operands("convolve", in1, in2, mode)
    return _by_method("convolve", x, y, mode, method, precision)


def _reversed(y: Any) -> Any:
    return fnp.flip(fnp.conj(y)) if dtypes.is_complex(y.dtype) else fnp.flip(y)


def correlate(
    in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None
) -> Any:
    """The correlation Σⱼ in1[j + k] conj(in2[j]) of two arrays of as many axes; see `convolve`.

    >>> from funcgrad.scipy import signal
    >>> signal.correlate(fnp.array([1.0, 2.0, 3.0]), fnp.array([0.0, 1.0]))
    Array([1., 2., 3., 0.], dtype=float32)
    """
    x, y = _operands("correlate", in1, in2, mode)
    return _by_method("correlate", x, _reversed(y), mode, method, precision)


def _of_planes(
    name: str, in1: Any, in2: Any, mode: Any, boundary: Any, fillvalue: Any, precision: Any
) -> Any:
    x, y = _operands(name, in1, in2, mode)
    if x.ndim != 2:
        raise ShapeError(f"{name}: only supports 2-dimensional inputs, got {x.aval}, {y.aval}")
    if boundary not in _PADS:
        raise ArgumentError(f"{name}: boundary must be fill, wrap or symm, got {boundary!r}")
    correlates = name == "correlate2d"
    if correlates and mode == "valid" and not _valid(name, x, y, (0, 1)):
        # SciPy conjugates whichever is the smaller one.
        return _direct(name, fnp.conj(x), fnp.flip(y), mode, precision)
    y = _reversed(y) if correlates else y
    if mode == "valid":
        return _direct(name, x, y, mode, precision)
    extra = {"constant_values": fillvalue} if boundary == "fill" else {}
    around = [(n - 1, n - 1) for n in y.shape]
    full = _direct(name, fnp.pad(x, around, _PADS[boundary], **extra), y, "valid", precision)
    if mode == "full":
        return full
    starts = [n // 2 if correlates else (n - 1) // 2 for n in y.shape]
    return full[tuple(slice(s, s + n) for s, n in zip(starts, x.shape, strict=True))]


def convolve2d(
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: Any = None,
) -> Any:
    """The convolution of two matrices; outside of in1 there is `fillvalue` (boundary "fill"), in1
    again ("wrap") or its mirror image ("symm"). See `convolve` for modes.

    >>> from funcgrad.scipy import signal
    >>> signal.convolve2d(fnp.eye(2), fnp.ones((1, 2)))
    Array([[1., 1., 0.],
           [0., 1., 1.]], dtype=float32)
    """
    return _of_planes("convolve2d", in1, in2, mode, boundary, fillvalue, precision)


def correlate2d(
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: Any = None,
) -> Any:
    """The correlation of two matrices; see `convolve2d` and `correlate`.

    >>> from funcgrad.scipy import signal
    >>> signal.correlate2d(fnp.eye(2), fnp.array([[1.0, 2.0]]))
    Array([[2., 1., 0.],
           [0., 2., 1.]], dtype=float32)
    """
    return _of_planes("correlate2d", in1, in2, mode, boundary, fillvalue, precision)
