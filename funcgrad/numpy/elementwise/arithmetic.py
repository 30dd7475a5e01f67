"""Arithmetic of two operands: sums, quotients, powers, extrema, and what stands on them.

Operands promote to one dtype and broadcast to one shape. Quotients and remainders of numbers round
down, as Python's do; derivatives exist wherever the function has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.eager.single import single
from funcgrad.core.primitive import Primitive
from funcgrad.numpy._util import (
    align,
    applied,
    as_array,
    binary,
    documented,
    is_scalar,
    keep_weak,
    need_real,
    numbers,
    promote,
    promote_and_broadcast,
    promote_inexact,
    quick,
)
from funcgrad.ops.elementwise import arithmetic, compare, rounding, transcendental
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add as add_p
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.recorded import recorded

_BOTH = "`x` and `y` promote to one dtype and broadcast to one shape, which the result has."


def _binary(prim: Primitive, name: str, summary: str, example: str) -> Any:
    return documented(binary(name, prim), name, summary, _BOTH, example)


def _numbers(prim: Primitive, on_bool: Primitive, name: str, summary: str, example: str) -> Any:
    """A binary op of numbers that has a meaning for bool as well."""

    def general(x: Any, y: Any) -> Any:
        operands = promote_and_broadcast(name, x, y)
        if operands[0].dtype == dtypes.BOOL:
            return on_bool.bind(*operands)
        return applied(prim, (x, y), operands)

    return documented(quick(name, prim, general), name, summary, _BOTH, example)


# ---- sums and products

add = _numbers(
    add_p,
    compare.bitwise_or,
    "add",
    "Elementwise sum x + y; logical or of bools.",
    """>>> fnp.add(fnp.array([1.0, 2.0]), 1)
    Array([2., 3.], dtype=float32)
    """,
)
multiply = _numbers(
    arithmetic.mul,
    compare.bitwise_and,
    "multiply",
    "Elementwise product x · y; logical and of bools.",
    """>>> fnp.multiply(fnp.array([1.0, 2.0]), 3)
    Array([3., 6.], dtype=float32)
    """,
)
subtract = _binary(
    arithmetic.sub,
    "subtract",
    "Elementwise difference x - y. Raises DTypeError for bool.",
    """>>> fnp.subtract(fnp.array([1.0, 2.0]), 1)
    Array([0., 1.], dtype=float32)
    """,
)


@single
def negative(x: Any, /) -> Any:
    """Elementwise -x, in x's dtype. Raises DTypeError for bool.

    >>> fnp.negative(fnp.array([1, -2]))
    Array([-1,  2], dtype=int32)
    """
    return arithmetic.neg.bind(as_array("negative", x, "x"))


def positive(x: Any, /) -> Any:
    """`x` itself, as an array.

    >>> fnp.positive(fnp.array([1, -2]))
    Array([ 1, -2], dtype=int32)
    """
    return as_array("positive", x, "x")


@single
def absolute(x: Any, /) -> Any:
    """Elementwise |x|: real also for complex numbers, bool as it is. Also named `abs`.

    The derivative at 0 is 0.

    >>> fnp.abs(fnp.array([-1.5, 2.0]))
    Array([1.5, 2. ], dtype=float32)
    """
    x = as_array("abs", x, "x")
    return x if x.dtype == dtypes.BOOL else arithmetic.abs.bind(x)


abs = absolute


@single
def fabs(x: Any, /) -> Any:
    """Elementwise |x| as a float: integers become the default float. Raises for complex numbers.

    >>> fnp.fabs(fnp.array([-1, 2]))
    Array([1., 2.], dtype=float32)
    """
    (x,) = promote_inexact("fabs", x)
    need_real("fabs", x)
    return arithmetic.abs.bind(x)


@single
def sign(x: Any, /) -> Any:
    """Elementwise sign: -1, 0 or 1, in x's dtype; x / |x| for complex numbers, NaN for NaN.

    Raises DTypeError for bool.

    >>> fnp.sign(fnp.array([-3.0, 0.0, 2.0]))
    Array([-1.,  0.,  1.], dtype=float32)
    """
    return arithmetic.sign.bind(as_array("sign", x, "x"))


@single
def square(x: Any, /) -> Any:
    """Elementwise x², in x's dtype; bool becomes the default integer.

    >>> fnp.square(fnp.array([1, 2, 3]))
    Array([1, 4, 9], dtype=int32)
    """
    return arithmetic.square.bind(*numbers(as_array("square", x, "x")))


def reciprocal(x: Any, /) -> Any:
    """Elementwise 1 / x; integers become the default float.

    >>> fnp.reciprocal(fnp.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    return arithmetic.reciprocal(*promote_inexact("reciprocal", x))


# ---- quotients


def _quotient(x: Any, y: Any) -> Any:
    operands = align("divide", promote_inexact("divide", x, y))
    return applied(arithmetic.div, (x, y), operands)


true_divide = documented(
    quick("divide", arithmetic.div, _quotient),
    "true_divide",
    "Elementwise quotient x / y; integers become the default float. Also named `divide`.",
    "`x` and `y` promote to one inexact dtype and broadcast to one shape, which the result has.",
    """>>> fnp.divide(fnp.array([1, 2, 3]), 2)
    Array([0.5, 1. , 1.5], dtype=float32)
    """,
)
divide = true_divide


@custom_jvp
def _float_remainder(x: Any, y: Any) -> Any:
    """x - y · floor(x / y) of floats, with the sign of y, also where it is zero."""
    rest = arithmetic.rem(x, y)
    zero = np.zeros((), rest.dtype)
    nonzero = compare.ne(rest, zero)
    other_sign = compare.ne(compare.lt(rest, zero), compare.lt(y, zero))
    rest = select(compare.bitwise_and(nonzero, other_sign), add_p(rest, y), rest)
    return select(nonzero, rest, select(compare.lt(y, zero), np.negative(zero), zero))


@_float_remainder.defjvp
def _float_remainder_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (tx, ty) = primals, tangents
    return _float_remainder(x, y), arithmetic.sub(tx, arithmetic.mul(ty, _float_quotient(x, y)))


def _float_quotient(x: Any, y: Any) -> Any:
    """floor(x / y) of floats without the division's rounding error: of x - remainder, over y. Of
    operands that are infinite, or where y is 0, it is x / y itself."""
    rest = arithmetic.rem(x, y)
    zero = np.zeros((), rest.dtype)
    quotient = arithmetic.div(arithmetic.sub(x, rest), y)
    other_sign = compare.ne(compare.lt(rest, zero), compare.lt(y, zero))
    down = compare.bitwise_and(compare.ne(rest, zero), other_sign)
    quotient = select(down, arithmetic.sub(quotient, 1), quotient)
    whole = rounding.round(quotient, rounding.RoundingMethod.TO_NEAREST_EVEN)
    plain = arithmetic.div(x, y)
    # A quotient of 0 has the sign of x / y.
    whole = select(compare.eq(whole, zero), arithmetic.mul(plain, 0), whole)
    finite = compare.bitwise_and(rounding.is_finite(x), rounding.is_finite(y))
    return select(compare.bitwise_and(finite, compare.ne(y, zero)), whole, plain)


def _integer_quotient(x: Any, y: Any) -> Any:
    """The floor of the quotient of integers."""
    quotient = arithmetic.div(x, y)
    if not dtypes.is_signed(x.dtype):
        return quotient
    inexact = compare.ne(_integer_rest(x, y), 0)
    negative = compare.ne(compare.lt(x, 0), compare.lt(y, 0))
    return select(compare.bitwise_and(inexact, negative), arithmetic.sub(quotient, 1), quotient)


def _integer_rest(x: Any, y: Any) -> Any:
    """The remainder of the truncated quotient, and 0 for y = 0 as in NumPy."""
    return select(compare.eq(y, 0), 0, arithmetic.rem(x, y))


def _integer_remainder(x: Any, y: Any) -> Any:
    rest = _integer_rest(x, y)
    if not dtypes.is_signed(x.dtype):
        return rest
    other_sign = compare.ne(compare.lt(rest, 0), compare.lt(y, 0))
    return select(compare.bitwise_and(compare.ne(rest, 0), other_sign), add_p(rest, y), rest)


def _divisible(name: str, x: Any, y: Any) -> list[Any]:
    """Operands of a division with remainder: real numbers of one dtype and shape."""
    x, y = numbers(*promote_and_broadcast(name, x, y))
    need_real(name, x)
    return [x, y]


@recorded
def floor_divide(x: Any, y: Any, /) -> Any:
    """Elementwise floor(x / y), as Python's //. Raises DTypeError for complex numbers.

    `x` and `y` promote to one dtype and broadcast to one shape, which the result has; bool becomes
    the default integer. Integers divided by 0 give -1 (the greatest value if unsigned), floats ±inf
    or NaN. Where an operand is infinite it is x / y, as the array API has it: ±inf, ±0 or NaN.

    >>> fnp.floor_divide(fnp.array([7, -7]), 2)
    Array([ 3, -4], dtype=int32)
    """
    x, y = _divisible("floor_divide", x, y)
    out = _float_quotient(x, y) if dtypes.is_float(x.dtype) else _integer_quotient(x, y)
    return keep_weak(out, x, y)


@recorded
def remainder(x: Any, y: Any, /) -> Any:
    """Elementwise x - y · floor(x / y), with the sign of y, as Python's %. Also named `mod`.

    `x` and `y` promote to one dtype and broadcast to one shape, which the result has; bool becomes
    the default integer. Raises DTypeError for complex numbers. Integers modulo 0 give 0, floats
    NaN.

    >>> fnp.remainder(fnp.array([7, -7]), 3)
    Array([1, 2], dtype=int32)
    """
    x, y = _divisible("remainder", x, y)
    out = _float_remainder(x, y) if dtypes.is_float(x.dtype) else _integer_remainder(x, y)
    return keep_weak(out, x, y)


mod = remainder


def divmod(x: Any, y: Any, /) -> tuple[Any, Any]:
    """(floor_divide(x, y), remainder(x, y)).

    >>> fnp.divmod(fnp.array([7, -7]), 3)
    (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    return floor_divide(x, y), remainder(x, y)


@recorded
def fmod(x: Any, y: Any, /) -> Any:
    """Elementwise remainder x - y · trunc(x / y), with the sign of the dividend x, as C's.

    `x` and `y` promote to one dtype and broadcast to one shape, which the result has; bool becomes
    the default integer. Raises DTypeError for complex numbers. Integers modulo 0 give 0, floats
    NaN.

    >>> fnp.fmod(fnp.array([7, -7]), 3)
    Array([ 1, -1], dtype=int32)
    """
    x, y = _divisible("fmod", x, y)
    out = arithmetic.rem(x, y) if dtypes.is_float(x.dtype) else _integer_rest(x, y)
    return keep_weak(out, x, y)


# ---- powers


@recorded
def power(x: Any, y: Any, /) -> Any:
    """Elementwise xʸ. Also named `pow`.

    `x` and `y` promote to one dtype and broadcast to one shape, which the result has; integers stay
    integers. A Python integer `y` is a repeated product; a negative one raises DTypeError for
    integers `x`. Negative integer arrays as exponents give 0, but for powers of 1 and -1.

    >>> fnp.power(fnp.array([1, 2, 3]), 2)
    Array([1, 4, 9], dtype=int32)
    >>> fnp.power(2.0, fnp.array([-1.0, 0.5]))
    Array([0.5      , 1.4142135], dtype=float32)
    """
    if is_scalar(y) and type(y) is not bool:
        base = as_array("power", x, "x")
        whole = int(y) if type(y) is int or (type(y) is float and y == y // 1) else None
        # A floating-point exponent means C's pow, from which products of many differ.
        most = 1024 if type(y) is int else 32
        if whole is not None and -most <= whole <= most:
            if type(y) is int:
                return arithmetic.integer_pow(numbers(base)[0], whole)
            if dtypes.is_inexact(base.dtype):
                return arithmetic.integer_pow(base, whole)
    x, y = promote("power", x, y)
    return transcendental.pow.bind(*align("power", numbers(x, y)))


pow = power


def float_power(x: Any, y: Any, /) -> Any:
    """Elementwise xʸ in an inexact dtype: integers become the default float.

    >>> fnp.float_power(fnp.array([1, 2]), -1)
    Array([1. , 0.5], dtype=float32)
    """
    return transcendental.pow.bind(*align("float_power", promote_inexact("float_power", x, y)))


# ---- extrema

maximum = _binary(
    arithmetic.max,
    "maximum",
    "Elementwise greater of x and y; NaN where either is. Equal ones share the derivative.",
    """>>> fnp.maximum(fnp.array([1.0, 4.0]), 2.0)
    Array([2., 4.], dtype=float32)
    """,
)
minimum = _binary(
    arithmetic.min,
    "minimum",
    "Elementwise lesser of x and y; NaN where either is. Equal ones share the derivative.",
    """>>> fnp.minimum(fnp.array([1.0, 4.0]), 2.0)
    Array([1., 2.], dtype=float32)
    """,
)


def _not_nan(prim: Primitive, name: str, which: str, example: str) -> Any:
    def function(x: Any, y: Any, /) -> Any:
        x, y = promote_and_broadcast(name, x, y)
        if not dtypes.is_inexact(x.dtype):
            return prim.bind(x, y)
        # The other one in place of NaN: then both are it, and each passes half of the derivative.
        return prim.bind(select(compare.ne(x, x), y, x), select(compare.ne(y, y), x, y))

    summary = f"Elementwise {which} of x and y; the other where one is NaN."
    return documented(function, name, summary, _BOTH, example)


fmax = _not_nan(
    arithmetic.max,
    "fmax",
    "greater",
    """>>> fnp.fmax(fnp.array([1.0, fnp.nan]), 2.0)
    Array([2., 2.], dtype=float32)
    """,
)
fmin = _not_nan(
    arithmetic.min,
    "fmin",
    "lesser",
    """>>> fnp.fmin(fnp.array([1.0, fnp.nan]), 2.0)
    Array([1., 2.], dtype=float32)
    """,
)


def clip(arr: Any, /, min: Any = None, max: Any = None) -> Any:
    """Elementwise min(max(arr, min), max): values held between bounds; None is no bound.

    All promote to one dtype and broadcast to one shape. Where `min` > `max`, the result is `max`.
    Raises DTypeError for complex numbers.

    >>> fnp.clip(fnp.array([-1.0, 0.5, 3.0]), 0.0, 1.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    arr = as_array("clip", arr, "arr")
    need_real("clip", arr)
    if min is not None:
        arr = maximum(arr, min)
    return arr if max is None else minimum(arr, max)
