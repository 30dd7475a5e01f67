"""Functions of two numbers: angles, hypotenuses, sums of exponentials, common divisors.

They are composed so that neither they nor their derivatives overflow, or cancel, where the
function itself does not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.errors import DTypeError
from funcgrad.numpy._util import (
    align,
    broadcast,
    convert,
    keep_weak,
    need_real,
    promote_and_broadcast,
    promote_inexact,
)
from funcgrad.ops.elementwise import arithmetic, compare, rounding, transcendental
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add as add_p
from funcgrad.ops.reduce import reduce_or
from funcgrad.transforms.control.while_loop import while_loop
from funcgrad.transforms.derivatives.custom import custom_jvp
from funcgrad.transforms.recorded import recorded


def _reals(name: str, x: Any, y: Any) -> list[Any]:
    x, y = align(name, promote_inexact(name, x, y))
    need_real(name, x)
    return [x, y]


def arctan2(x: Any, y: Any, /) -> Any:
    """The angle of the point (y, x), in (-π, π]: arctan(x / y) in the quadrant the signs tell.

    `x` and `y` promote to one inexact dtype and broadcast to one shape. The derivative does not
    exist at the origin, and is NaN there.

    >>> fnp.arctan2(1.0, -1.0)
    Array(2.3561945, dtype=float32, weak_type=True)
    """
    return transcendental.atan2.bind(*align("arctan2", promote_inexact("arctan2", x, y)))


atan2 = arctan2


@custom_jvp
def _hypot(x: Any, y: Any) -> Any:
    x, y = arithmetic.abs(x), arithmetic.abs(y)
    large, small = arithmetic.max(x, y), arithmetic.min(x, y)
    inf = np.asarray(np.inf, large.dtype)
    either = compare.bitwise_or(compare.eq(x, inf), compare.eq(y, inf))
    plain = compare.eq(large, 0)
    ratio = arithmetic.div(small, select(plain, np.ones((), large.dtype), large))
    size = arithmetic.mul(large, arithmetic.sqrt(add_p(arithmetic.square(ratio), 1)))
    return select(either, inf, size)


@_hypot.defjvp
def _hypot_jvp(primals: Any, tangents: Any) -> Any:
    size = _hypot(*primals)
    safe = select(compare.eq(size, 0), np.ones((), size.dtype), size)
    along = [arithmetic.mul(t, arithmetic.div(p, safe))
             for p, t in zip(primals, tangents, strict=True)]  # fmt: skip
    return size, add_p(*along)


@recorded
def hypot(x: Any, y: Any, /) -> Any:
    """Elementwise √(x² + y²) without overflow. The derivative at the origin is 0.

    `x` and `y` promote to one float dtype and broadcast to one shape. Infinite where either is,
    even beside NaN. Raises DTypeError for complex numbers.

    >>> fnp.hypot(3.0, 4.0)
    Array(5., dtype=float32, weak_type=True)
    """
    x, y = _reals("hypot", x, y)
    return keep_weak(_hypot(x, y), x, y)


# ---- sums of exponentials


@custom_jvp
def _logaddexp(x: Any, y: Any) -> Any:
    delta = _difference(x, y)
    return add_p(arithmetic.max(x, y), transcendental.log1p(_exp_minus(delta)))


def _exp_minus(delta: Any) -> Any:
    return transcendental.exp(arithmetic.neg(arithmetic.abs(delta)))


def _difference(x: Any, y: Any) -> Any:
    """x - y, and 0 for equal infinities."""
    infinite = compare.bitwise_and(compare.eq(x, y), compare.eq(arithmetic.abs(x), np.inf))
    return arithmetic.sub(select(infinite, np.zeros((), x.dtype), x),
                          select(infinite, np.zeros((), y.dtype), y))  # fmt: skip


@_logaddexp.defjvp
def _logaddexp_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (tx, ty) = primals, tangents
    delta = _difference(x, y)
    share, rest = transcendental.logistic(delta), transcendental.logistic(arithmetic.neg(delta))
    return _logaddexp(x, y), add_p(arithmetic.mul(tx, share), arithmetic.mul(ty, rest))


@custom_jvp
def _complex_logaddexp(x: Any, y: Any) -> Any:
    """Of complex numbers, with the imaginary part in (-π, π]."""
    first = compare.ge(arithmetic.real(x), arithmetic.real(y))
    delta = _difference(select(first, y, x), select(first, x, y))
    out = add_p(select(first, x, y), transcendental.log1p(transcendental.exp(delta)))
    angle = arithmetic.imag(out)
    turns = rounding.ceil(arithmetic.sub(arithmetic.mul(angle, 0.5 / math.pi), 0.5))
    angle = arithmetic.sub(angle, arithmetic.mul(turns, 2 * math.pi))
    return arithmetic.complex(arithmetic.real(out), angle)


@_complex_logaddexp.defjvp
def _complex_logaddexp_jvp(primals: Any, tangents: Any) -> Any:
    out = _complex_logaddexp(*primals)
    shares = [transcendental.exp(_difference(v, out)) for v in primals]
    return out, add_p(*(arithmetic.mul(t, s) for t, s in zip(tangents, shares, strict=True)))


@recorded
def logaddexp(x: Any, y: Any, /) -> Any:
    """Elementwise log(eˣ + eʸ) without overflow; finite derivatives also at infinities.

    `x` and `y` promote to one inexact dtype and broadcast to one shape. Of complex numbers it is
    the logarithm whose imaginary part is in (-π, π].

    >>> fnp.logaddexp(1000.0, 1000.0)
    Array(1000.6932, dtype=float32, weak_type=True)
    """
    x, y = align("logaddexp", promote_inexact("logaddexp", x, y))
    function = _complex_logaddexp if dtypes.is_complex(x.dtype) else _logaddexp
    return keep_weak(function(x, y), x, y)


@recorded
def logaddexp2(x: Any, y: Any, /) -> Any:
    """Elementwise log₂(2ˣ + 2ʸ) without overflow; finite derivatives also at infinities.

    `x` and `y` promote to one inexact dtype and broadcast to one shape. Of complex numbers it is
    as `logaddexp` of what is scaled by log 2.

    >>> fnp.logaddexp2(3.0, 3.0)
    Array(4., dtype=float32, weak_type=True)
    """
    x, y = align("logaddexp2", promote_inexact("logaddexp2", x, y))
    function = _complex_logaddexp if dtypes.is_complex(x.dtype) else _logaddexp
    x, y = _scaled(x, math.log(2)), _scaled(y, math.log(2))
    return keep_weak(_scaled(function(x, y), 1 / math.log(2)), x, y)


def _scaled(x: Any, factor: float) -> Any:
    """x by a real number, each part of a complex one alone: infinite ones stay what they are."""
    if not dtypes.is_complex(x.dtype):
        return arithmetic.mul(x, factor)
    parts = arithmetic.real(x), arithmetic.imag(x)
    return arithmetic.complex(*(arithmetic.mul(p, factor) for p in parts))


def heaviside(x: Any, y: Any, /) -> Any:
    """The step function: 0 for x < 0, 1 for x > 0 and `y` at x = 0; NaN for NaN.

    `x` and `y` promote to one float dtype and broadcast to one shape.

    >>> fnp.heaviside(fnp.array([-1.0, 0.0, 2.0]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    x, y = _reals("heaviside", x, y)
    zero, one = np.zeros((), x.dtype), np.ones((), x.dtype)
    step = select(compare.lt(x, zero), zero, select(compare.gt(x, zero), one, x))
    return keep_weak(select(compare.eq(x, zero), y, step), x, y)


# ---- common divisors


def _integers(name: str, x: Any, y: Any) -> list[Any]:
    x, y = promote_and_broadcast(name, x, y)
    if not dtypes.is_integer(x.dtype):
        raise DTypeError(f"{name}: need integers, got x {x.aval} and y {y.aval}")
    weak = x.weak_type and y.weak_type
    return [*broadcast(name, convert(x, x.dtype), convert(y, y.dtype)), weak]


def gcd(x: Any, y: Any, /) -> Any:
    """Elementwise greatest common divisor, never negative; gcd(0, 0) is 0.

    `x` and `y` are integers that promote to one dtype and broadcast to one shape.

    >>> fnp.gcd(fnp.array([12, 18, 0]), 8)
    Array([4, 2, 8], dtype=int32)
    """
    x, y, weak = _integers("gcd", x, y)

    def step(pair: Any) -> Any:
        a, b = pair
        done = compare.eq(b, 0)
        return select(done, a, b), select(done, b, arithmetic.rem(a, select(done, 1, b)))

    def unfinished(pair: Any) -> Any:
        return reduce_or(compare.ne(pair[1], 0), range(x.ndim))

    size = while_loop(unfinished, step, (x, y))[0]
    size = arithmetic.abs(size) if dtypes.is_signed(size.dtype) else size
    return convert(size, size.dtype, weak)


def lcm(x: Any, y: Any, /) -> Any:
    """Elementwise least common multiple, never negative; 0 where either is 0.

    `x` and `y` are integers that promote to one dtype and broadcast to one shape.

    >>> fnp.lcm(fnp.array([4, 6, 0]), 10)
    Array([20, 30,  0], dtype=int32)
    """
    x, y, weak = _integers("lcm", x, y)
    divisor = gcd(x, y)
    safe = select(compare.eq(divisor, 0), 1, divisor)
    if dtypes.is_signed(x.dtype):
        x, y = arithmetic.abs(x), arithmetic.abs(y)
    return convert(arithmetic.mul(x, arithmetic.div(y, safe)), x.dtype, weak)
