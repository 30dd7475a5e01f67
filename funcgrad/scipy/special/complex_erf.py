"""The error function and its complement, of real and of complex arguments.

Near 0 it is the power series, elsewhere 1 - exp(-z²) w(iz) with the Faddeeva function w.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.ops.elementwise import special
from funcgrad.scipy._operands import operands
from funcgrad.scipy.special.further import wofz
from funcgrad.transforms.derivatives.custom import custom_jvp

NEAR, TERMS = 1.5, 30


def _upper_tail(z: Any) -> Any:
    """erfc(z) for a real part from 0 on."""
    return fnp.exp(-z * z) * wofz(1j * z)


@custom_jvp
def _erf(z: Any) -> Any:
    near, left = fnp.abs(z) < NEAR, fnp.real(z) < 0
    small = fnp.where(near, z, 0)
    square, series = -small * small, 0.0
    for k in range(TERMS, -1, -1):
        series = series * square + 1 / (math.factorial(k) * (2 * k + 1))
    right = fnp.where(near, 1.0, fnp.where(left, -z, z))
    far = 1 - _upper_tail(right)
    return fnp.where(near, 2 / math.sqrt(math.pi) * small * series, fnp.where(left, -far, far))


@custom_jvp
def _erfc(z: Any) -> Any:
    near, left = fnp.abs(z) < NEAR, fnp.real(z) < 0
    close = fnp.logical_or(left, fnp.logical_and(near, fnp.real(z) < 0.5))
    return fnp.where(close, 1 - _erf(z), _upper_tail(fnp.where(close, 1.0, z)))


_erf.defjvps(lambda t, y, z: t * (2 / math.sqrt(math.pi)) * fnp.exp(-z * z))
_erfc.defjvps(lambda t, y, z: t * (-2 / math.sqrt(math.pi)) * fnp.exp(-z * z))


def _of(name: str, real: Any, of_complex: Any, z: Any) -> Any:
    (z,) = operands(name, (z,))
    if not dtypes.is_complex(z.dtype):
        return real(z)
    return of_complex(z.astype(np.complex128)).astype(z.dtype)


def erf(z: Any) -> Any:
    """The error function 2/√π ∫₀ᶻ exp(-t²) dt, of real or complex arguments.

    >>> from funcgrad.scipy import special
    >>> print(special.erf(1.0))
    0.842700...
    """
    return _of("erf", special.erf, _erf, z)


def erfc(z: Any) -> Any:
    """The complement 1 - erf(z) of the error function, of real or complex arguments.

    >>> from funcgrad.scipy import special
    >>> print(special.erfc(1.0))
    0.157299...
    """
    return _of("erfc", special.erfc, _erfc, z)
