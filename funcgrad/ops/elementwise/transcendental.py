"""Exponentials, logarithms, powers, trigonometric and hyperbolic functions, and their inverses.

Each is defined for real and complex numbers. Derivatives are written so that they neither overflow
nor cancel where the function itself does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError
from funcgrad.ops.elementwise.arithmetic import abs, div, in_float32, mul, neg, rsqrt, square, sub
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_not, eq, ge
from funcgrad.ops.elementwise.convert import convert_element_type, select
from funcgrad.ops.families import (
    add,
    binary,
    common_shape,
    elementwise,
    scalar_operands,
    spread,
    unary,
)

NEED = "floating-point or complex numbers"


def _function(name: str, impl: Any, jvp: Any, doc: str) -> Primitive:
    return unary(name, impl=impl, jvp=jvp, accepts=dtypes.is_inexact, need=NEED, doc=doc)


# ---- exponentials and logarithms

exp: Primitive = _function(
    "exp",
    lambda xp, x: xp.exp(x),
    lambda g, y, x: mul(g, y),
    """Elementwise eˣ.

    >>> from funcgrad import lax
    >>> lax.exp(1.0)
    Array(2.71828..., dtype=float32, weak_type=True)
    """,
)

exp2: Primitive = _function(
    "exp2",
    lambda xp, x: xp.exp2(x) if x.dtype.kind != "c" else xp.exp(x * math.log(2)),
    lambda g, y, x: mul(g, mul(y, math.log(2))),
    """Elementwise 2ˣ.

    >>> from funcgrad import lax
    >>> lax.exp2(3.0)
    Array(8., dtype=float32, weak_type=True)
    """,
)


def _expm1_impl(xp: Any, x: Any) -> Any:
    if x.dtype.kind != "c":
        return xp.expm1(x)
    # NumPy's gives NaN for most of what isn't finite, where exp has a value.
    return xp.where(xp.isfinite(x), xp.expm1(x), xp.exp(x) - 1)


expm1: Primitive = _function(
    "expm1",
    _expm1_impl,
    lambda g, y, x: mul(g, add(y, 1.0)),
    """Elementwise eˣ - 1, exact also for small x.

    >>> from funcgrad import lax
    >>> lax.expm1(1e-8)
    Array(1.e-08, dtype=float32, weak_type=True)
    """,
)

log: Primitive = _function(
    "log",
    lambda xp, x: xp.log(x),
    lambda g, y, x: div(g, x),
    """Elementwise natural logarithm: NaN for negative real numbers, -inf at 0.

    >>> from funcgrad import lax
    >>> lax.log(1.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

log1p: Primitive = _function(
    "log1p",
    lambda xp, x: xp.log1p(x),
    lambda g, y, x: div(g, add(x, 1.0)),
    """Elementwise log(1 + x), exact also for small x.

    >>> from funcgrad import lax
    >>> lax.log1p(1e-8)
    Array(1.e-08, dtype=float32, weak_type=True)
    """,
)


@in_float32
def _logistic_impl(xp: Any, x: Any) -> Any:
    # The exponential of what is not positive: it can't overflow.
    positive = x.real >= 0
    small = xp.exp(xp.where(positive, -x, x))
    return xp.where(positive, xp.ones_like(x), small) / (1 + small)


logistic: Primitive = _function(
    "logistic",
    _logistic_impl,
    lambda g, y, x: mul(g, mul(y, sub(1.0, y))),
    """Elementwise logistic sigmoid 1 / (1 + e⁻ˣ).

    >>> from funcgrad import lax
    >>> lax.logistic(0.0)
    Array(0.5, dtype=float32, weak_type=True)
    """,
)

# ---- powers


def _pow_abstract(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    if dtypes.BOOL in (x.dtype, y.dtype) or (
        x.dtype != y.dtype
        and not (dtypes.is_inexact(x.dtype) and dtypes.is_integer(y.dtype))
    ):  # fmt: skip
        raise DTypeError(
            "pow: base and exponent must have one dtype, or the base is floating-point or complex "
            f"and the exponent an integer; got {x} and {y}"
        )
    return ShapedArray(common_shape("pow", (x, y)), x.dtype, x.weak_type and y.weak_type)


def _pow_prepare(x: Any, y: Any) -> tuple[Sequence[Any], dict]:
    if isinstance(y, int) and not isinstance(y, bool):
        (x,) = scalar_operands("pow", [x])
        if dtypes.is_inexact(aval_of(x).dtype):
            return [x, *scalar_operands("pow", [y])], {}
    return spread(scalar_operands("pow", [x, y])), {}


def _pow_impl(xp: Any, x: Any, y: Any) -> Any:
    if dtypes.is_integer(x.dtype):
        return _pow_of_integers(xp, x, y)
    y = y.astype(x.dtype)
    if isinstance(y, np.ndarray | np.generic) and x.dtype.kind == "f":
        half = y.item() == 0.5 if y.size == 1 else 0 in y.strides and bool((y == 0.5).any())
        if half:  # for a lone ½ NumPy takes the root, whose values at -0 and -∞ are others
            return np.where((y == 0.5) & (x + x == x), np.abs(x), np.power(x, y))
    return xp.power(x, y)


def _pow_of_integers(xp: Any, x: Any, y: Any) -> Any:
    """By squaring, bit by bit; negative powers, as divisions, are zero but of 1 and -1."""
    result, power = xp.ones_like(x), x
    for i in range(dtypes.iinfo(y.dtype).bits - dtypes.is_signed(y.dtype)):
        result = xp.where((y >> i) & 1 == 1, result * power, result)
        power = power * power
    if not dtypes.is_signed(y.dtype):
        return result
    odd = xp.where(y & 1 == 1, x, 1)
    return xp.where(y >= 0, result, xp.where((x == 1) | (x == -1), odd, 0))


def _pow_base_jvp(g: Any, z: Any, x: Any, y: Any) -> Any:
    """y x^(y - 1), and 0 for y = 0 also where x = 0."""
    dtype = aval_of(x).dtype
    flat = eq(y, 0)
    if dtypes.is_inexact(aval_of(y).dtype):
        # Only x is replaced, where 1/x isn't finite: the slope keeps its derivative in y.
        least = np.asarray(dtypes.finfo(dtype).tiny, dtypes.real_part(dtype))
        x = select(bitwise_and(flat, bitwise_not(ge(abs(x), least))), np.ones((), dtype), x)
    else:
        y = select(flat, np.ones((), aval_of(y).dtype), y)
        g = select(flat, np.zeros((), dtype), g)
    return mul(g, mul(convert_element_type(y, dtype), pow(x, sub(y, 1))))


def _pow_exponent_jvp(g: Any, z: Any, x: Any, y: Any) -> Any:
    """x^y log x, and 0 where x = 0."""
    safe = select(eq(x, 0), np.ones((), aval_of(x).dtype), x)
    return mul(g, mul(z, log(safe)))


pow: Primitive = elementwise(
    "pow",
    impl=_pow_impl,
    jvp=(_pow_base_jvp, _pow_exponent_jvp),
    abstract=_pow_abstract,
    prepare=_pow_prepare,
    doc="""Elementwise xʸ. The exponent has the base's dtype, or integers for an inexact base.

    Derivatives at x = 0 are those of the limit: y = 0 has none in x.

    >>> from funcgrad import lax
    >>> lax.pow(2.0, 0.5)
    Array(1.41421..., dtype=float32, weak_type=True)
    """,
)

# ---- trigonometric functions

sin: Primitive = _function(
    "sin",
    lambda xp, x: xp.sin(x),
    lambda g, y, x: mul(g, cos(x)),
    """Elementwise sine of an angle in radians.

    >>> from funcgrad import lax
    >>> lax.sin(0.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

cos: Primitive = _function(
    "cos",
    lambda xp, x: xp.cos(x),
    lambda g, y, x: neg(mul(g, sin(x))),
    """Elementwise cosine of an angle in radians.

    >>> from funcgrad import lax
    >>> lax.cos(0.0)
    Array(1., dtype=float32, weak_type=True)
    """,
)

tan: Primitive = _function(
    "tan",
    lambda xp, x: xp.tan(x),
    lambda g, y, x: mul(g, add(square(y), 1.0)),
    """Elementwise tangent of an angle in radians.

    >>> from funcgrad import lax
    >>> lax.tan(1.0)
    Array(1.5574..., dtype=float32, weak_type=True)
    """,
)


def _one_minus_square(x: Any) -> Any:
    return mul(sub(1.0, x), add(x, 1.0))


asin: Primitive = _function(
    "asin",
    lambda xp, x: xp.arcsin(x),
    lambda g, y, x: mul(g, rsqrt(_one_minus_square(x))),
    """Elementwise arc sine, within [-π/2, π/2]; NaN for real |x| > 1.

    >>> from funcgrad import lax
    >>> lax.asin(1.0)
    Array(1.57079..., dtype=float32, weak_type=True)
    """,
)

acos: Primitive = _function(
    "acos",
    lambda xp, x: xp.arccos(x),
    lambda g, y, x: neg(mul(g, rsqrt(_one_minus_square(x)))),
    """Elementwise arc cosine, within [0, π]; NaN for real |x| > 1.

    >>> from funcgrad import lax
    >>> lax.acos(1.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

atan: Primitive = _function(
    "atan",
    lambda xp, x: xp.arctan(x),
    lambda g, y, x: div(g, add(square(x), 1.0)),
    """Elementwise arc tangent, within (-π/2, π/2).

    >>> from funcgrad import lax
    >>> lax.atan(1.0)
    Array(0.78539..., dtype=float32, weak_type=True)
    """,
)


def _atan2_impl(xp: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind != "c":
        return xp.arctan2(x, y)
    return -1j * xp.log((y + 1j * x) / xp.sqrt(x * x + y * y))


def _square_norm(x: Any, y: Any) -> Any:
    return add(square(x), square(y))


atan2: Primitive = binary(
    "atan2",
    impl=_atan2_impl,
    jvp=(
        lambda g, z, x, y: mul(g, div(y, _square_norm(x, y))),
        lambda g, z, x, y: neg(mul(g, div(x, _square_norm(x, y)))),
    ),
    accepts=dtypes.is_inexact,
    need=NEED,
    doc="""The angle of the point (y, x): atan(x / y), in the quadrant that both signs tell.

    The derivative does not exist at the origin, and is NaN there.

    >>> from funcgrad import lax
    >>> lax.atan2(1.0, 0.0)
    Array(1.57079..., dtype=float32, weak_type=True)
    """,
)

# ---- hyperbolic functions

sinh: Primitive = _function(
    "sinh",
    lambda xp, x: xp.sinh(x),
    lambda g, y, x: mul(g, cosh(x)),
    """Elementwise hyperbolic sine (eˣ - e⁻ˣ) / 2.

    >>> from funcgrad import lax
    >>> lax.sinh(0.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

cosh: Primitive = _function(
    "cosh",
    lambda xp, x: xp.cosh(x),
    lambda g, y, x: mul(g, sinh(x)),
    """Elementwise hyperbolic cosine (eˣ + e⁻ˣ) / 2.

    >>> from funcgrad import lax
    >>> lax.cosh(0.0)
    Array(1., dtype=float32, weak_type=True)
    """,
)

tanh: Primitive = _function(
    "tanh",
    lambda xp, x: xp.tanh(x),
    lambda g, y, x: mul(g, _one_minus_square(y)),
    """Elementwise hyperbolic tangent sinh x / cosh x.

    >>> from funcgrad import lax
    >>> lax.tanh(0.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

asinh: Primitive = _function(
    "asinh",
    lambda xp, x: xp.arcsinh(x),
    lambda g, y, x: mul(g, rsqrt(add(square(x), 1.0))),
    """Elementwise inverse hyperbolic sine.

    >>> from funcgrad import lax
    >>> lax.asinh(1.0)
    Array(0.88137..., dtype=float32, weak_type=True)
    """,
)

acosh: Primitive = _function(
    "acosh",
    lambda xp, x: xp.arccosh(x),
    # Two roots: one of the product has another branch cut in the complex plane.
    lambda g, y, x: mul(g, mul(rsqrt(sub(x, 1.0)), rsqrt(add(x, 1.0)))),
    """Elementwise inverse hyperbolic cosine; NaN for real x < 1.

    >>> from funcgrad import lax
    >>> lax.acosh(1.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)

atanh: Primitive = _function(
    "atanh",
    lambda xp, x: xp.arctanh(x),
    lambda g, y, x: div(g, _one_minus_square(x)),
    """Elementwise inverse hyperbolic tangent; NaN for real |x| > 1.

    >>> from funcgrad import lax
    >>> lax.atanh(0.5)
    Array(0.5493..., dtype=float32, weak_type=True)
    """,
)
