"""Rounding, and the parts of floats: sign, mantissa, exponent, neighbours."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.eager.single import single
from funcgrad.core.primitive import Primitive
from funcgrad.errors import DTypeError
from funcgrad.numpy._util import (
    align,
    as_array,
    as_dtype,
    convert,
    documented,
    integer,
    keep_weak,
    need_real,
    no_out,
    numbers,
    promote_inexact,
)
from funcgrad.numpy.elementwise.logic import isnan, isneginf, isposinf
from funcgrad.ops.elementwise import arithmetic, compare, rounding
from funcgrad.ops.elementwise.convert import bitcast_convert_type, select
from funcgrad.ops.families import add as add_p
from funcgrad.transforms.recorded import recorded

_EVEN = rounding.RoundingMethod.TO_NEAREST_EVEN

# ---- rounding


def _rounding(prim: Primitive, name: str, summary: str, example: str) -> Any:
    @single
    def function(x: Any, /) -> Any:
        x = as_array(name, x, "x")
        need_real(name, x)
        return prim.bind(x) if dtypes.is_float(x.dtype) else x

    note = "Integers and bool stay as they are. The derivative is 0. Raises for complex numbers."
    return documented(function, name, summary, note, example)


floor = _rounding(
    rounding.floor,
    "floor",
    "Elementwise greatest integer ≤ x, in x's dtype.",
    """>>> fnp.floor(fnp.array([1.7, -1.7]))
    Array([ 1., -2.], dtype=float32)
    """,
)
ceil = _rounding(
    rounding.ceil,
    "ceil",
    "Elementwise least integer ≥ x, in x's dtype.",
    """>>> fnp.ceil(fnp.array([1.2, -1.2]))
    Array([ 2., -1.], dtype=float32)
    """,
)


def trunc(x: Any, /) -> Any:
    """Elementwise integer part of x, rounded towards 0, in x's dtype. Also named `fix`.

    Integers and bool stay as they are. The derivative is 0. Raises for complex numbers.

    >>> fnp.trunc(fnp.array([1.7, -1.7]))
    Array([ 1., -1.], dtype=float32)
    """
    x = as_array("trunc", x, "x")
    need_real("trunc", x)
    if not dtypes.is_float(x.dtype):
        return x
    return select(compare.lt(x, 0), rounding.ceil(x), rounding.floor(x))


fix = trunc


def rint(x: Any, /) -> Any:
    """Elementwise nearest integer as a float, halves to the even one; parts of complex numbers.

    Integers become the default float. The derivative is 0.

    >>> fnp.rint(fnp.array([0.5, 1.5, -1.7]))
    Array([ 0.,  2., -2.], dtype=float32)
    """
    (x,) = promote_inexact("rint", x)
    return _by_parts(lambda part: rounding.round(part, _EVEN), x)


def _by_parts(function: Any, x: Any) -> Any:
    if not dtypes.is_complex(x.dtype):
        return function(x)
    return arithmetic.complex(function(arithmetic.real(x)), function(arithmetic.imag(x)))


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Elementwise nearest number with so many decimals, halves to the even one, in a's dtype.

    Negative `decimals` round before the point. Also named `around`. The derivative is 0.

    >>> fnp.round(fnp.array([1.25, 2.5, -1.7]))
    Array([ 1.,  2., -2.], dtype=float32)
    >>> fnp.round(fnp.array([1.234, 56.789]), 1)
    Array([ 1.2, 56.8], dtype=float32)
    """
    no_out("round", out)
    a = as_array("round", a, "a")
    decimals = integer("decimals", decimals)
    if a.dtype == dtypes.BOOL:
        raise DTypeError(f"round: need numbers, got a {a.aval}")
    if dtypes.is_integer(a.dtype):
        return a if decimals >= 0 else _round_integers(a, 10**-decimals)
    if decimals == 0:
        return _by_parts(lambda part: rounding.round(part, _EVEN), a)
    small = a.dtype.itemsize <= 2
    wide = convert(a, np.dtype(np.float32)) if small else a
    scale = np.asarray(10.0 ** builtins.abs(decimals), arithmetic.real(wide).dtype
                       if dtypes.is_complex(wide.dtype) else wide.dtype)  # fmt: skip

    def part(x: Any) -> Any:
        scaled = arithmetic.mul(x, scale) if decimals > 0 else arithmetic.div(x, scale)
        whole = rounding.round(scaled, _EVEN)
        back = arithmetic.div(whole, scale) if decimals > 0 else arithmetic.mul(whole, scale)
        # What overflowed has no decimals to round.
        return select(rounding.is_finite(scaled), back, x)

    return convert(_by_parts(part, wide), a.dtype)


around = round


def _round_integers(a: Any, unit: int) -> Any:
    """Integers to the nearest multiple of a power of ten, halves to the even multiple."""
    if unit > dtypes.iinfo(a.dtype).max:
        return arithmetic.mul(a, 0)
    rest = arithmetic.rem(a, unit)
    if dtypes.is_signed(a.dtype):
        rest = select(compare.lt(rest, 0), add_p(rest, unit), rest)
    low = arithmetic.sub(a, rest)
    odd = compare.ne(arithmetic.rem(arithmetic.div(low, unit), 2), 0)
    half = unit // 2
    up = compare.bitwise_or(
        compare.gt(rest, half), compare.bitwise_and(compare.eq(rest, half), odd)
    )
    return select(up, add_p(low, unit), low)


def modf(x: Any, /, out: None = None) -> tuple[Any, Any]:
    """The fractional and the integral part of x, both with the sign of x.

    >>> fnp.modf(fnp.array([1.5, -2.25]))
    (Array([ 0.5 , -0.25], dtype=float32), Array([ 1., -2.], dtype=float32))
    """
    no_out("modf", out)
    (x,) = promote_inexact("modf", x)
    # Of x without its sign: so zeros get theirs, and the derivative is 1 there, too.
    negative = signbit(x)
    size = select(negative, arithmetic.neg(x), x)
    infinite = compare.eq(size, np.asarray(np.inf, x.dtype))
    rest = select(infinite, np.zeros((), x.dtype), arithmetic.sub(size, trunc(size)))
    return keep_weak(select(negative, arithmetic.neg(rest), rest), x), trunc(x)


# ---- signs and neighbours

_SIGNED: dict[int, np.dtype] = {
    1: np.dtype("int8"),
    2: np.dtype("int16"),
    4: np.dtype("int32"),
    8: np.dtype("int64"),
}


def signbit(x: Any, /) -> Any:
    """Elementwise whether the sign bit is set, as bool: of -0.0 and of negative NaN as well.

    >>> fnp.signbit(fnp.array([-1.0, -0.0, 0.0]))
    Array([ True,  True, False], dtype=bool)
    """
    x = as_array("signbit", x, "x")
    need_real("signbit", x)
    if dtypes.is_float(x.dtype):
        x = bitcast_convert_type(x, _SIGNED[x.dtype.itemsize])
    return compare.lt(x, np.zeros((), x.dtype))


def copysign(x: Any, y: Any, /) -> Any:
    """Elementwise x with the sign of y.

    `x` and `y` promote to one float dtype and broadcast to one shape.

    >>> fnp.copysign(fnp.array([1.0, -2.0]), -0.0)
    Array([-1., -2.], dtype=float32)
    """
    x, y = align("copysign", promote_inexact("copysign", x, y))
    return select(compare.ne(signbit(x), signbit(y)), arithmetic.neg(x), x)


def nextafter(x: Any, y: Any, /) -> Any:
    """Elementwise the float next to x in the direction of y. It has no derivative.

    `x` and `y` promote to one float dtype and broadcast to one shape.

    >>> float(fnp.nextafter(1.0, 2.0)) - 1.0
    1.1920928955078125e-07
    """
    return rounding.nextafter.bind(*align("nextafter", promote_inexact("nextafter", x, y)))


def spacing(x: Any, /) -> Any:
    """Elementwise distance from x to the next float of greater size, with the sign of x.

    >>> fnp.spacing(fnp.array([1.0, -4.0]))
    Array([ 1.1920929e-07, -4.7683716e-07], dtype=float32)
    """
    (x,) = promote_inexact("spacing", x)
    need_real("spacing", x)
    away = copysign(np.asarray(np.inf, x.dtype), x)
    return arithmetic.sub(rounding.nextafter(x, away), x)


# ---- mantissa and exponent


def _layout(dtype: np.dtype) -> tuple[np.dtype, int, int]:
    """The integers of a float's width, its mantissa's bits, its exponent's bias."""
    info = dtypes.finfo(dtype)
    return _SIGNED[dtype.itemsize], int(info.nmant), 1 - int(info.minexp)


def frexp(x: Any, /) -> tuple[Any, Any]:
    """Elementwise (mantissa, exponent) with x = mantissa · 2^exponent and ½ ≤ |mantissa| < 1.

    The exponents are int32; both are 0 for 0, and infinities and NaN are their own mantissa.

    >>> fnp.frexp(fnp.array([1.0, 6.0, 0.0]))
    (Array([0.5 , 0.75, 0.  ], dtype=float32), Array([1, 3, 0], dtype=int32))
    """
    (x,) = promote_inexact("frexp", x)
    need_real("frexp", x)
    if x.dtype.itemsize == 1:  # whose exponents may be too few for what follows
        mantissa, exponent = frexp(convert(x, np.dtype(np.float32)))
        return convert(mantissa, x.dtype), exponent
    integers, nmant, bias = _layout(x.dtype)
    # Subnormal numbers are scaled up first, so that their exponent field counts.
    tiny = compare.lt(arithmetic.abs(x), np.asarray(dtypes.finfo(x.dtype).tiny, x.dtype))
    scaled = select(tiny, arithmetic.mul(x, np.asarray(2.0**nmant, x.dtype)), x)
    bits = bitcast_convert_type(scaled, integers)
    mask = (1 << (8 * x.dtype.itemsize - 1 - nmant)) - 1
    field = compare.bitwise_and(compare.shift_right_logical(bits, nmant), mask)
    exponent = arithmetic.sub(convert(field, np.dtype(np.int32)), bias - 1)
    exponent = select(tiny, arithmetic.sub(exponent, nmant), exponent)
    keep = compare.bitwise_or(compare.eq(x, 0), compare.bitwise_not(rounding.is_finite(x)))
    exponent = select(keep, np.int32(0), exponent)
    return _scaled(x, arithmetic.neg(exponent)), exponent


def ldexp(x: Any, y: Any, /) -> Any:
    """Elementwise x · 2ʸ for integers y, exact where the result is a normal number.

    `x` becomes inexact; both broadcast to one shape.

    >>> fnp.ldexp(fnp.array([1.0, 3.0]), fnp.array([3, -1]))
    Array([8. , 1.5], dtype=float32)
    """
    y = as_array("ldexp", y, "y")
    (y,) = numbers(y)
    if not dtypes.is_integer(y.dtype):
        raise DTypeError(f"ldexp: y must be integers, got {y.aval}")
    (x,) = promote_inexact("ldexp", x)
    if y.dtype.itemsize < 4:
        y = convert(y, np.dtype(np.int32))
    return _scaled(*align("ldexp", [x, y]))


def _scaled(x: Any, y: Any) -> Any:
    """x · 2ʸ."""
    if x.dtype.itemsize == 1:
        return convert(_scaled(convert(x, np.dtype(np.float32)), y), x.dtype)
    # In three steps, since 2ʸ may overflow where the product does not. Beyond the last power that
    # three normal numbers make, all products are 0 or infinite, but of 0 and infinity themselves.
    _, _, bias = _layout(x.dtype)
    most = 3 * (bias - 1)
    least = -most if dtypes.is_signed(y.dtype) else 0
    y = convert(arithmetic.min(arithmetic.max(y, least), most), np.dtype(np.int32))
    for steps in (3, 2, 1):
        step = arithmetic.div(y, steps)
        x, y = arithmetic.mul(x, _power_of_two(step, x.dtype)), arithmetic.sub(y, step)
    return x


def _power_of_two(y: Any, dtype: np.dtype) -> Any:
    """2ʸ exactly, by its bits, for y whose power is a normal number."""
    integers, nmant, bias = _layout(dtype)
    return bitcast_convert_type(compare.shift_left(convert(add_p(y, bias), integers), nmant), dtype)


@recorded
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """x with NaN, +inf and -inf replaced: by `nan`, and by the dtype's extremes if None.

    `copy` has no meaning for arrays that never change. The derivative is 0 where x is replaced.

    >>> fnp.nan_to_num(fnp.array([1.0, fnp.nan, fnp.inf]), posinf=9.0)
    Array([1., 0., 9.], dtype=float32)
    """
    x = as_array("nan_to_num", x, "x")
    if not dtypes.is_inexact(x.dtype):
        return x
    limits = dtypes.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def part(v: Any) -> Any:
        for test, value in ((isnan, nan), (isposinf, high), (isneginf, low)):
            filler = as_dtype("nan_to_num", value, v.dtype)
            v = select(test(v), *align("nan_to_num", [filler, v]))
        return v

    return _by_parts(part, x)
