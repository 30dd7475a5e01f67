"""Discrete Fourier transforms over the last axes: of complex arrays, or from and to real ones.

They are linear, and their matrices symmetric: a transform transposes to itself. The real transforms
keep half of the last axis' spectrum; their transposes account for the half that is left out.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import dims as dims_
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.arguments import integers
from funcgrad.ops.base import full, move_axis, position_dtype, size_of
from funcgrad.ops.elementwise.arithmetic import conj, mul, real, rem
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.shape import broadcasted_iota
from funcgrad.ops.slicing import pad_p


class FftType(enum.Enum):
    """Which transform: FFT and IFFT are complex, RFFT is from real and IRFFT to real numbers.

    >>> FftType.of("rfft")
    <FftType.RFFT: 2>
    """

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3

    @staticmethod
    def of(kind: Any) -> FftType:
        """The transform of a name in upper or lower case."""
        if isinstance(kind, FftType):
            return kind
        try:
            return FftType[kind.upper()]
        except (KeyError, AttributeError):
            names = ", ".join(t.name for t in FftType)
            raise ValueError(f"fft: fft_type must be one of {names}, got {kind!r}") from None

    def __str__(self) -> str:
        return self.name


FFT, IFFT, RFFT, IRFFT = FftType


def _abstract(x, *, fft_type, fft_lengths):
    name, rank = fft_type.name.lower(), len(fft_lengths)
    is_real = fft_type is RFFT
    fits = dtypes.is_float(x.dtype) if is_real else dtypes.is_complex(x.dtype)
    if not fits or x.dtype.itemsize < 4:
        need = "float32 or float64" if is_real else "complex numbers"
        raise DTypeError(f"{name}: need {need}, got {x}; convert with .astype(...)")
    if not 1 <= rank <= x.ndim or any(n < 1 for n in fft_lengths):
        raise ShapeError(
            f"{name}: fft_lengths must have a positive length for each of the last 1 to {x.ndim} "
            f"axes of {x}, got {fft_lengths}"
        )
    half = (*fft_lengths[:-1], fft_lengths[-1] // 2 + 1)
    expected = half if fft_type is IRFFT else fft_lengths
    if x.shape[-rank:] != expected:
        raise ShapeError(
            f"{name}: with fft_lengths {fft_lengths} the last axes must have sizes {expected}, "
            f"got {x}"
        )
    lead = x.shape[:-rank]
    if is_real:
        return ShapedArray((*lead, *half), dtypes.to_complex(x.dtype))
    dtype = dtypes.real_part(x.dtype) if fft_type is IRFFT else x.dtype
    return ShapedArray((*lead, *fft_lengths), dtype)


def _impl(xp, x, *, fft_type, fft_lengths):
    axes = tuple(range(x.ndim - len(fft_lengths), x.ndim))
    transform = getattr(xp.fft, f"{fft_type.name.lower()}n")
    return transform(x, s=fft_lengths, axes=axes)


def _jvp(primals, tangents, **params):
    return fft_p.bind(*primals, **params), fft_p.bind(*tangents, **params)


def _transpose(ct, x, *, fft_type, fft_lengths):
    if fft_type is RFFT:
        return [_from_half_spectrum(ct, fft_lengths)]
    if fft_type is IRFFT:
        return [_to_half_spectrum(ct, fft_lengths)]
    return [fft_p.bind(ct, fft_type=fft_type, fft_lengths=fft_lengths)]


def _from_half_spectrum(ct: Any, lengths: tuple[int, ...]) -> Any:
    """The real part of the transform of ct, whose spectrum is zero where it was cut off."""
    aval = aval_of(ct)
    missing = lengths[-1] - aval.shape[-1]
    config = (*((0, 0, 0) for _ in aval.shape[:-1]), (0, missing, 0))
    wide = pad_p.bind(ct, np.zeros((), aval.dtype), padding_config=config)
    return real(fft_p.bind(wide, fft_type=FFT, fft_lengths=lengths))


def _to_half_spectrum(ct: Any, lengths: tuple[int, ...]) -> Any:
    """Each frequency that stands for its mirror image as well counts twice."""
    spectrum = fft_p.bind(ct, fft_type=RFFT, fft_lengths=lengths)
    aval = aval_of(spectrum)
    count = broadcasted_iota(position_dtype(lengths[-1]), aval.shape, -1)
    own_mirror = eq(rem(mul(count, 2), lengths[-1]), 0)
    once = full((), 1 / size_of(lengths), aval.dtype)
    twice = full((), 2 / size_of(lengths), aval.dtype)
    return conj(mul(spectrum, select(own_mirror, once, twice)))


def _batch(axis, args, dims, **params):
    return fft_p.bind(move_axis(args[0], dims[0], 0), **params), 0


def _dims(x, *, fft_type, fft_lengths):
    names = dims_.letters(x.ndim)
    first = x.ndim - len(fft_lengths)
    ins = [n if i < first else f"{n}!" for i, n in enumerate(names)]
    outs = list(ins)
    if fft_type in (RFFT, IRFFT):
        outs[-1] = "."
    return f"{' '.join(ins)} -> {' '.join(outs)}"


fft_p: Primitive = Primitive(
    name="fft",
    abstract=_abstract,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=_dims,
)


def fft(x: Any, fft_type: Any, fft_lengths: Sequence[int]) -> Any:
    """The discrete Fourier transform over the last len(fft_lengths) axes.

    `fft_type` is an `FftType` or its name: FFT, IFFT (with the factor 1 / n), RFFT (real numbers to
    the first n // 2 + 1 frequencies of the last axis) or IRFFT (back to n real numbers).
    `fft_lengths` are the lengths n of the axes in the (unabridged) transform; numbers of another
    kind are converted, but for RFFT complex ones raise DTypeError.

    >>> import numpy as np
    >>> from funcgrad import lax
    >>> lax.fft(np.float32([1, 0, 0, 0]), "RFFT", (4,))
    Array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    kind = FftType.of(fft_type)
    dtype = aval_of(x).dtype
    wide = dtypes.to_inexact(dtype, np.dtype(np.float32))
    wide = np.dtype(np.float32) if wide.itemsize < 4 else wide
    wide = wide if kind is RFFT else dtypes.to_complex(wide)
    lengths = integers("fft", "fft_lengths", fft_lengths)
    operand = x if wide == dtype else convert_element_type(x, wide)
    return fft_p.bind(operand, fft_type=kind, fft_lengths=lengths)
