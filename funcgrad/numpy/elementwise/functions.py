"""Functions of one number: exponentials, logarithms, roots, trigonometric and hyperbolic ones.

Each maps floating-point and complex numbers to their own dtype, integers and bool to the default
float. What is no primitive is composed, so that derivatives of any order exist where the function
has them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core import context
from funcgrad.core.eager.evaluated import evaluated1, recipe1
from funcgrad.core.eager.functions import EagerFunction
from funcgrad.core.primitive import Primitive
from funcgrad.numpy._util import as_array, documented, keep_weak, promote_inexact
from funcgrad.ops.base import full
from funcgrad.ops.elementwise import arithmetic, compare, rounding, transcendental
from funcgrad.ops.elementwise.convert import select, stop_gradient
from funcgrad.ops.families import add

_TYPES = "The result has the shape of `x`, its dtype if that is inexact, else the default float."


def _function(prim: Primitive, name: str, summary: str, example: str) -> Any:
    def by_python(x: Any) -> Any:
        ctx = context.current()
        if ctx.trace is context.ROOT.trace:
            out = evaluated1(prim, x)
        else:
            out = ctx.trace.ready1(ctx, prim, x)
        return prim.bind(*promote_inexact(name, x)) if out is None else out

    swift = EagerFunction(by_python, lambda ctx, args, _: recipe1(prim, ctx, *args))

    def function(x: Any, /) -> Any:
        return swift.call(x)

    return documented(function, name, summary, _TYPES, example)


# ---- exponentials, logarithms, roots

exp = _function(
    transcendental.exp,
    "exp",
    "Elementwise eˣ.",
    """>>> fnp.exp(1.0)
Array(2.718282, dtype=float32, weak_type=True)
""",
)
exp2 = _function(
    transcendental.exp2,
    "exp2",
    "Elementwise 2ˣ.",
    """>>> fnp.exp2(3)
Array(8., dtype=float32, weak_type=True)
""",
)
expm1 = _function(
    transcendental.expm1,
    "expm1",
    "Elementwise eˣ - 1, exact also for small x.",
    """>>> fnp.expm1(1e-8)
    Array(1.e-08, dtype=float32, weak_type=True)
    """,
)
log = _function(
    transcendental.log,
    "log",
    "Elementwise natural logarithm: -inf at 0, NaN for negative real numbers.",
    """>>> fnp.log(fnp.array([1.0, 0.0, -1.0]))
    Array([  0., -inf,  nan], dtype=float32)
    """,
)
log1p = _function(
    transcendental.log1p,
    "log1p",
    "Elementwise log(1 + x), exact also for small x.",
    """>>> fnp.log1p(1e-8)
    Array(1.e-08, dtype=float32, weak_type=True)
    """,
)
sqrt = _function(
    arithmetic.sqrt,
    "sqrt",
    "Elementwise square root, NaN for negative real numbers. The derivative at 0 is infinite.",
    """>>> fnp.sqrt(fnp.array([4, 9]))
    Array([2., 3.], dtype=float32)
    """,
)
cbrt = _function(
    arithmetic.cbrt,
    "cbrt",
    "Elementwise cube root, also of negative numbers. Raises DTypeError for complex ones.",
    """>>> fnp.cbrt(-8.0)
    Array(-2., dtype=float32, weak_type=True)
    """,
)


def log2(x: Any, /) -> Any:
    """Elementwise logarithm to base 2, exact for powers of 2.

    The result has the shape of `x`, and its dtype if that is inexact, else the default float.

    >>> fnp.log2(fnp.array([1.0, 2.0, 8.0]))
    Array([0., 1., 3.], dtype=float32)
    """
    return _to_base("log2", x, 2)


def log10(x: Any, /) -> Any:
    """Elementwise logarithm to base 10, exact for powers of 10.

    The result has the shape of `x`, and its dtype if that is inexact, else the default float.

    >>> fnp.log10(fnp.array([1.0, 10.0, 100.0]))
    Array([0., 1., 2.], dtype=float32)
    """
    return _to_base("log10", x, 10)


def _to_base(name: str, x: Any, base: int) -> Any:
    """log x / log base, where what rounding kept from being an integer is one.

    Otherwise floor(log10(1000)) would be 2. The derivative does not see the correction.
    """
    (x,) = promote_inexact(name, x)
    log_base = math.log(base)
    y = transcendental.log(x)
    if dtypes.is_complex(x.dtype):
        parts = (
            arithmetic.div(part, log_base) for part in (arithmetic.real(y), arithmetic.imag(y))
        )
        return arithmetic.complex(*parts)
    y = arithmetic.div(y, log_base)
    fixed = stop_gradient(y)
    whole = rounding.round(fixed, rounding.RoundingMethod.TO_NEAREST_EVEN)
    miss = arithmetic.sub(whole, fixed)
    slack = arithmetic.mul(arithmetic.abs(whole), 2 * float(dtypes.finfo(x.dtype).eps))
    return add(y, select(compare.le(arithmetic.abs(miss), slack), miss, _constant(x, 0.0)))


# ---- trigonometric functions

sin = _function(
    transcendental.sin,
    "sin",
    "Elementwise sine.",
    """>>> fnp.sin(0.5)
Array(0.47942555, dtype=float32, weak_type=True)
""",
)
cos = _function(
    transcendental.cos,
    "cos",
    "Elementwise cosine.",
    """>>> fnp.cos(0)
Array(1., dtype=float32, weak_type=True)
""",
)
tan = _function(
    transcendental.tan,
    "tan",
    "Elementwise sin x / cos x.",
    """>>> fnp.tan(1.0)
Array(1.5574077, dtype=float32, weak_type=True)
""",
)
arcsin = _function(
    transcendental.asin,
    "arcsin",
    "Elementwise arc sine, within [-π/2, π/2]; NaN for real |x| > 1.",
    """>>> fnp.arcsin(1.0)
    Array(1.5707964, dtype=float32, weak_type=True)
    """,
)
arccos = _function(
    transcendental.acos,
    "arccos",
    "Elementwise arc cosine, within [0, π]; NaN for real |x| > 1.",
    """>>> fnp.arccos(-1.0)
    Array(3.1415927, dtype=float32, weak_type=True)
    """,
)
arctan = _function(
    transcendental.atan,
    "arctan",
    "Elementwise arc tangent, within (-π/2, π/2).",
    """>>> fnp.arctan(1.0)
    Array(0.7853982, dtype=float32, weak_type=True)
    """,
)

# ---- hyperbolic functions

sinh = _function(
    transcendental.sinh,
    "sinh",
    "Elementwise hyperbolic sine (eˣ - e⁻ˣ) / 2.",
    """>>> fnp.sinh(1.0)
    Array(1.1752012, dtype=float32, weak_type=True)
    """,
)
cosh = _function(
    transcendental.cosh,
    "cosh",
    "Elementwise hyperbolic cosine (eˣ + e⁻ˣ) / 2.",
    """>>> fnp.cosh(1.0)
    Array(1.54308..., dtype=float32, weak_type=True)
    """,
)
tanh = _function(
    transcendental.tanh,
    "tanh",
    "Elementwise hyperbolic tangent sinh x / cosh x.",
    """>>> fnp.tanh(1.0)
    Array(0.7615942, dtype=float32, weak_type=True)
    """,
)
arcsinh = _function(
    transcendental.asinh,
    "arcsinh",
    "Elementwise inverse hyperbolic sine.",
    """>>> fnp.arcsinh(1.0)
    Array(0.8813736, dtype=float32, weak_type=True)
    """,
)
arccosh = _function(
    transcendental.acosh,
    "arccosh",
    "Elementwise inverse hyperbolic cosine; NaN for real x < 1.",
    """>>> fnp.arccosh(2.0)
    Array(1.316958, dtype=float32, weak_type=True)
    """,
)
arctanh = _function(
    transcendental.atanh,
    "arctanh",
    "Elementwise inverse hyperbolic tangent; NaN for real |x| > 1.",
    """>>> fnp.arctanh(0.5)
    Array(0.54930615, dtype=float32, weak_type=True)
    """,
)

acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atanh = arctan, arctanh

# ---- angles


def _scaled(name: str, factor: float, summary: str, example: str) -> Any:
    def function(x: Any, /) -> Any:
        return arithmetic.mul(*promote_inexact(name, x), factor)

    return documented(function, name, summary, _TYPES, example)


degrees = _scaled(
    "degrees",
    180 / math.pi,
    "Elementwise angles in degrees, of angles in radians.",
    """>>> fnp.degrees(fnp.pi)
    Array(180., dtype=float32, weak_type=True)
    """,
)
radians = _scaled(
    "radians",
    math.pi / 180,
    "Elementwise angles in radians, of angles in degrees.",
    """>>> fnp.radians(180.0)
    Array(3.1415927, dtype=float32, weak_type=True)
    """,
)
rad2deg, deg2rad = degrees, radians

# ---- others


def sinc(x: Any, /) -> Any:
    """Elementwise sin(πx) / (πx), and 1 at 0, with the right derivatives there.

    The result has the shape of `x`, and its dtype if that is inexact, else the default float.

    >>> fnp.sinc(fnp.array([0.0, 0.5, 1.0]))
    Array([ 1.0000000e+00,  6.3661975e-01, -2.7827534e-08], dtype=float32)
    """
    (x,) = promote_inexact("sinc", x)
    angle = arithmetic.mul(x, math.pi)
    # Near 0 its power series in t = (πx)²: no quotient 0/0 in any derivative.
    near = compare.lt(arithmetic.abs(x), 0.25)
    t = arithmetic.square(angle)
    series: Any = _constant(x, 0.0)
    for k in range(8, -1, -1):
        series = add(arithmetic.mul(series, t), (-1.0) ** k / math.factorial(2 * k + 1))
    far = select(near, _constant(x, 1.0), angle)
    out = select(near, series, arithmetic.div(transcendental.sin(far), far))
    return keep_weak(out, x)


def _constant(x: Any, value: float) -> Any:
    """A scalar of x's dtype."""
    return np.asarray(value, x.dtype)


# ---- complex numbers


def real(val: Any, /) -> Any:
    """The real parts of complex numbers; other arrays as they are.

    >>> fnp.real(fnp.array([1 + 2j, 3.0]))
    Array([1., 3.], dtype=float32)
    """
    x = as_array("real", val, "val")
    return arithmetic.real(x) if dtypes.is_complex(x.dtype) else x


def imag(val: Any, /) -> Any:
    """The imaginary parts of complex numbers; zeros for other arrays, in their dtype.

    >>> fnp.imag(fnp.array([1 + 2j, 3.0]))
    Array([2., 0.], dtype=float32)
    """
    x = as_array("imag", val, "val")
    if dtypes.is_complex(x.dtype):
        return arithmetic.imag(x)
    return keep_weak(full(x.shape, 0, x.dtype), x)


def conjugate(x: Any, /) -> Any:
    """The complex conjugates; real arrays as they are. Also named `conj`.

    >>> fnp.conj(fnp.array([1 + 2j, 3.0]))
    Array([1.-2.j, 3.-0.j], dtype=complex64)
    """
    x = as_array("conjugate", x, "x")
    return arithmetic.conj(x) if dtypes.is_complex(x.dtype) else x


conj = conjugate


def angle(z: Any, deg: bool = False) -> Any:
    """The angles of complex numbers in (-π, π], in radians or, with `deg`, in degrees.

    For real numbers: 0, and π for negative ones.

    >>> fnp.angle(fnp.array([1.0, 1j, -1.0]), deg=True)
    Array([  0.,  90., 180.], dtype=float32)
    """
    (z,) = promote_inexact("angle", z)
    if dtypes.is_complex(z.dtype):
        re, im = arithmetic.real(z), arithmetic.imag(z)
    else:
        re, im = z, _constant(z, 0.0)
    result = transcendental.atan2(im, re)
    return degrees(result) if deg else result
