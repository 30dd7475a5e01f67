"""Arithmetic and functions of complex numbers by their parts.

Signs of zeros and infinities are those of C99's Annex G wherever NumPy keeps to it, and nothing
overflows on the way to a result that doesn't. Not so where a part is infinite and the other one
infinite or NaN: there some functions give NaN for a part that Annex G knows, and `tanh` far from
the imaginary axis 1 for infinite imaginary parts, where it has NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.primitive import Primitive
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.elementwise import arithmetic, compare, convert, transcendental
from funcgrad.ops.elementwise.compare import eq_to
from funcgrad.ops.elementwise.convert import convert_element_type
from funcgrad.ops.families import add


class Parts(NamedTuple):
    """The real and the imaginary part of a complex array."""

    re: Any
    im: Any


# ---- arithmetic


def _mul(x: Parts, y: Parts) -> Parts:
    return Parts(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def _div(x: Parts, y: Parts) -> Parts:
    """By the larger part of the divisor (Smith, "Algorithm 116: complex division", 1962)."""
    turned = abs(y.re) < abs(y.im)
    large, small = fnp.where(turned, y.im, y.re), fnp.where(turned, y.re, y.im)
    first, second = fnp.where(turned, x.im, x.re), fnp.where(turned, x.re, x.im)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    re = (first + second * ratio) * scale
    im = fnp.where(turned, first * ratio - second, second - first * ratio) * scale
    zero, nothing = (y.re == 0) & (y.im == 0), abs(y.re)
    return Parts(fnp.where(zero, x.re / nothing, re), fnp.where(zero, x.im / nothing, im))


def _integer_pow(x: Parts, *, y: int) -> Parts:
    one = Parts(fnp.ones_like(x.re), fnp.zeros_like(x.re))
    n, power = abs(y), None
    while n:
        if n & 1:
            power = x if power is None else _mul(power, x)
        n >>= 1
        x = _mul(x, x) if n else x
    if power is None:
        return one
    return power if y > 0 else _div(one, power)


def _abs(x: Parts) -> Any:
    """√(re² + im²), scaled by a power of 2 where squares would overflow or lose digits."""
    r, scale = _scaled_abs(x)
    infinite = fnp.isinf(x.re) | fnp.isinf(x.im)
    return fnp.where(infinite, np.inf, r / scale)


def _scaled_abs(x: Parts) -> tuple[Any, Any]:
    """The absolute value times a power of 4, and that power."""
    dtype = x.re.dtype
    info = dtypes.finfo(dtype)
    far = int(info.maxexp) // 2
    digits = (int(info.nmant) + 2) // 2 * 2
    up, one, down = (np.asarray(2.0**e, dtype) for e in (far + digits, 0, -far - 2))
    size = fnp.maximum(abs(x.re), abs(x.im))
    most, least = 2.0 ** (far - 2), 2.0 ** (int(info.nmant) + 1 - far)
    scale = fnp.where(size > most, down, fnp.where(size < least, up, one))
    re, im = x.re * scale, x.im * scale
    return fnp.sqrt(re * re + im * im), scale


def _sign(x: Parts) -> Parts:
    # Of an infinite part nothing but its sign is left, and nothing of what stands beside it.
    infinite = fnp.isinf(x.re) | fnp.isinf(x.im)
    x = Parts(*(fnp.where(infinite, fnp.where(fnp.isinf(v), fnp.copysign(1, v), 0), v) for v in x))
    size, scale = _scaled_abs(x)
    size = fnp.where(infinite & (abs(x.re) == abs(x.im)), np.nan, size)
    none = size == 0
    return Parts(*(fnp.where(none, 0, v * scale / fnp.where(none, 1, size)) for v in x))


def _conv(x: Parts, y: Parts, **params: Any) -> Parts:
    wanted = params["preferred_element_type"]
    params["preferred_element_type"] = wanted and dtypes.real_part(wanted)

    def of(a: Any, b: Any) -> Any:
        return conv_general_dilated_p.bind(a, b, **params)

    return Parts(of(x.re, y.re) - of(x.im, y.im), of(x.re, y.im) + of(x.im, y.re))


def _convert(x: Any, *, new_dtype: np.dtype, **_: Any) -> Any:
    if not dtypes.is_complex(new_dtype):
        if new_dtype == np.bool_:
            return (x.re != 0) | (x.im != 0)
        return convert_element_type(x.re, new_dtype)
    part = dtypes.real_part(new_dtype)
    if type(x) is Parts:
        return Parts(*(convert_element_type(v, part) for v in x))
    re = convert_element_type(x, part)
    return Parts(re, fnp.zeros_like(re))


# ---- functions


def _exp(x: Parts) -> Parts:
    # eˣ in two factors, as it may overflow where its product with a small cosine doesn't.
    large = x.re > 80
    root = fnp.exp(fnp.where(large, x.re / 2, x.re))
    rest = fnp.where(large, root, 1)
    re = root * fnp.cos(x.im) * rest
    im = fnp.where(x.im == 0, x.im, root * fnp.sin(x.im) * rest)
    wild = ~fnp.isfinite(x.im)
    re = fnp.where(wild & (x.re == -np.inf), 0, fnp.where(wild & (x.re == np.inf), np.inf, re))
    return Parts(re, fnp.where(wild & (x.re == -np.inf), 0, im))


def _log(x: Parts) -> Parts:
    big, small = fnp.maximum(abs(x.re), abs(x.im)), fnp.minimum(abs(x.re), abs(x.im))
    scaled, scale = _scaled_abs(x)
    size = fnp.log(scaled) - fnp.log(scale)
    near = (big > 0.5) & (big < 2) & (small < 2)
    size = fnp.where(near, fnp.log1p((big - 1) * (big + 1) + small * small) / 2, size)
    infinite = fnp.isinf(x.re) | fnp.isinf(x.im)
    return Parts(fnp.where(infinite, np.inf, size), fnp.arctan2(x.im, x.re))


def _log1p(x: Parts) -> Parts:
    re, im = _log(Parts(x.re + 1, x.im))
    near = (abs(x.re) < 0.5) & (abs(x.im) < 1)
    return Parts(fnp.where(near, fnp.log1p(x.re * (x.re + 2) + x.im * x.im) / 2, re), im)


def _expm1(x: Parts) -> Parts:
    half = fnp.sin(x.im / 2)
    re = fnp.expm1(x.re) * fnp.cos(x.im) - 2 * half * half
    im = fnp.where(x.im == 0, x.im, fnp.exp(x.re) * fnp.sin(x.im))
    power, finite = _exp(x), fnp.isfinite(x.re) & fnp.isfinite(x.im)
    return Parts(fnp.where(finite, re, power.re - 1), fnp.where(finite, im, power.im))


def _sqrt(x: Parts) -> Parts:
    scaled, scale = _scaled_abs(x)
    # (|re| + |x|) / 2, of numbers that the scale keeps in range; it is a power of 4.
    t = fnp.sqrt((abs(x.re) * scale + scaled) / 2) / fnp.sqrt(scale)
    other = fnp.where(t == 0, x.im, x.im / (2 * t))
    right = ~fnp.signbit(x.re) | (x.re != x.re)
    re = fnp.where(right, t, abs(other))
    im = fnp.where(right, other, fnp.copysign(t, x.im))
    endless = fnp.isinf(x.im)
    return Parts(fnp.where(endless, np.inf, re), fnp.where(endless, x.im, im))


def _rsqrt(x: Parts) -> Parts:
    root = _sqrt(x)
    return _div(Parts(fnp.ones_like(root.re), fnp.zeros_like(root.re)), root)


def _times_cosh(f: Any, y: Any, odd: bool = False) -> Any:
    """f·cosh y, or f·sinh y if odd, which is 0 where y is; no sooner infinite than the product."""
    large = abs(y) > 80
    root = fnp.exp(fnp.where(large, abs(y) / 2, 0))
    far = f * (root / 2) * root
    near = fnp.where(large, 0, y)
    if not odd:
        return fnp.where(large, far, f * fnp.cosh(near))
    product = fnp.where(large, far * fnp.copysign(1, y), f * fnp.sinh(near))
    return fnp.where((y == 0) & (f != f), y, product)


def _sinh(x: Parts) -> Parts:
    re, im = _times_cosh(fnp.cos(x.im), x.re, odd=True), _times_cosh(fnp.sin(x.im), x.re)
    return Parts(re, fnp.where(x.im == 0, x.im, im))


def _cosh(x: Parts) -> Parts:
    re, im = _times_cosh(fnp.cos(x.im), x.re), _times_cosh(fnp.sin(x.im), x.re, odd=True)
    zero = fnp.where(fnp.signbit(x.re), -x.im, x.im)
    return Parts(re, fnp.where(x.im == 0, zero, im))


def _tanh(x: Parts) -> Parts:
    """Kahan, "Branch cuts for complex elementary functions", 1987."""
    large = abs(x.re) > 20
    re = fnp.where(large, 0, x.re)
    t, s = fnp.tan(x.im), fnp.sinh(re)
    beta = 1 + t * t
    below = 1 + beta * s * s
    near = Parts(beta * fnp.sqrt(1 + s * s) * s / below, t / below)
    turn = fnp.sin(x.im) * fnp.cos(x.im)
    turn = fnp.where(fnp.isfinite(x.im), turn, fnp.copysign(0, x.im))
    re = fnp.where(x.re == 0, x.re, fnp.where(large, fnp.copysign(1, x.re), near.re))
    im = fnp.where(large, 4 * turn * fnp.exp(-2 * abs(x.re)), near.im)
    return Parts(re, fnp.where(x.im == 0, x.im, im))


def _turned(function: Callable[[Parts], Parts]) -> Callable[[Parts], Parts]:
    """f(x) = -i g(i x) for an odd g: sin from sinh, tan from tanh."""

    def rule(x: Parts) -> Parts:
        y = function(Parts(-x.im, x.re))
        return Parts(y.im, -y.re)

    return rule


def _conj(x: Any) -> Parts:
    return Parts(x.re, -x.im) if type(x) is Parts else Parts(x, -fnp.zeros_like(x))


def _logistic(x: Parts) -> Parts:
    positive = x.re >= 0
    small = _exp(Parts(*(fnp.where(positive, -v, v) for v in x)))
    top = Parts(fnp.where(positive, 1, small.re), fnp.where(positive, 0, small.im))
    return _div(top, Parts(1 + small.re, small.im))


# What an op gives, of its operands as parts (real ones as they are): parts, or a real array.
RULES: dict[Primitive, Callable[..., Any]] = {
    arithmetic.abs: _abs,
    add: lambda x, y: Parts(x.re + y.re, x.im + y.im),
    arithmetic.complex: lambda x, y: Parts(*fnp.broadcast_arrays(x, y)),
    arithmetic.conj: _conj,
    conv_general_dilated_p: _conv,
    convert.convert_element_type_p: _convert,
    transcendental.cos: lambda x: _cosh(Parts(-x.im, x.re)),
    transcendental.cosh: _cosh,
    arithmetic.div: _div,
    compare.eq: lambda x, y: (x.re == y.re) & (x.im == y.im),
    compare.eq_to: lambda x, y: eq_to(x.re, y.re) & eq_to(x.im, y.im),
    transcendental.exp: _exp,
    transcendental.expm1: _expm1,
    arithmetic.imag: lambda x: x.im,
    arithmetic.integer_pow_p: _integer_pow,
    transcendental.log: _log,
    transcendental.log1p: _log1p,
    transcendental.logistic: _logistic,
    arithmetic.mul: _mul,
    compare.ne: lambda x, y: (x.re != y.re) | (x.im != y.im),
    arithmetic.neg: lambda x: Parts(-x.re, -x.im),
    arithmetic.real: lambda x: x.re,
    arithmetic.rsqrt: _rsqrt,
    arithmetic.sign: _sign,
    transcendental.sin: _turned(_sinh),
    transcendental.sinh: _sinh,
    arithmetic.sqrt: _sqrt,
    arithmetic.square: lambda x: _mul(x, x),
    arithmetic.sub: lambda x, y: Parts(x.re - y.re, x.im - y.im),
    transcendental.tan: _turned(_tanh),
    transcendental.tanh: _tanh,
}
