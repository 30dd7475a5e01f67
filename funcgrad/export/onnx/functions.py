"""Functions that ONNX lacks, or lacks for float64, as formulas of ops that it has.

They are named as NumPy's. Float64's inverse tangent starts from float32's and is corrected by the
sine and cosine of it, from which the other inverses follow; what cancels near zero is written with
Kahan's log(1 + x) and exp(x) - 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from funcgrad.export.onnx import bits
from funcgrad.export.onnx.graph import Graph, Tensor
from funcgrad.export.onnx.kernels import BOOL, F4, F8

bitcast = bits.bitcast


def _c(g: Graph, value: Any, like: Tensor) -> Tensor:
    return g.constant(value, like.dtype)


def _of(kind: str) -> Any:
    def function(g: Graph, *args: Any) -> Tensor:
        return g.elementwise(kind, *args)

    function.__doc__ = f"The op {kind}."
    return function


add, sub, mul, div = _of("Add"), _of("Sub"), _of("Mul"), _of("Div")
_exp, _log, _sqrt, _abs = _of("Exp"), _of("Log"), _of("Sqrt"), _of("Abs")


# ---- signs and predicates


def isnan(g: Graph, x: Tensor) -> Tensor:
    """Whether x is not a number."""
    if x.dtype.kind != "f":
        return g.full(x.shape, False, BOOL)
    return g.elementwise("IsNaN", x, dtype=BOOL)


def isinf(g: Graph, x: Tensor) -> Tensor:
    """Whether x is infinite."""
    if x.dtype.kind != "f":
        return g.full(x.shape, False, BOOL)
    return g.elementwise("IsInf", x, dtype=BOOL)


def isfinite(g: Graph, x: Tensor) -> Tensor:
    """Whether x is a finite number."""
    if x.dtype.kind != "f":
        return g.full(x.shape, True, BOOL)
    # x - x is zero for finite numbers alone.
    return g.compare("Equal", sub(g, x, x), _c(g, 0, x))


def signbit(g: Graph, x: Tensor) -> Tensor:
    """Whether x has a minus sign; zeros show theirs in their reciprocals."""
    zero = _c(g, 0, x)
    of_zero = g.compare("Less", div(g, _c(g, 1, x), x), zero)
    return g.elementwise("Or", g.compare("Less", x, zero), of_zero)


def copysign(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """|x| with the sign of y."""
    size = _abs(g, x)
    return g.where(signbit(g, y), g.elementwise("Neg", size), size)


def trunc(g: Graph, x: Tensor) -> Tensor:
    """x towards zero."""
    if x.dtype.kind != "f":
        return x
    negative = g.compare("Less", x, _c(g, 0, x))
    return g.where(negative, g.elementwise("Ceil", x), g.elementwise("Floor", x))


# ---- quotients and powers


def divide(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """x / y."""
    return div(g, x, y)


def floor_divide(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """The greatest whole number up to x / y."""
    if x.dtype.kind == "f":
        return g.elementwise("Floor", div(g, x, y))
    y = nonzero(g, y)
    q = div(g, x, y)
    if x.dtype.kind == "u":
        return q
    zero = _c(g, 0, x)
    inexact = g.not_(g.compare("Equal", mul(g, q, y), x))
    apart = g.elementwise("Xor", g.compare("Less", x, zero), g.compare("Less", y, zero))
    return sub(g, q, g.cast(g.elementwise("And", inexact, apart), x.dtype))


def nonzero(g: Graph, y: Tensor) -> Tensor:
    """A divisor of integers with 1 in place of 0, which traps."""
    if y.constant is not None and np.all(y.constant):
        return y
    return g.where(g.compare("Equal", y, _c(g, 0, y)), _c(g, 1, y), y)


def fmod(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """The remainder with the sign of x."""
    if x.dtype.kind != "f":
        return g.elementwise("Mod", x, nonzero(g, y), fmod=1)
    return g.elementwise("Mod", x, y, fmod=1)


def remainder(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """The remainder with the sign of y."""
    r = fmod(g, x, y)
    zero = _c(g, 0, x)
    apart = g.elementwise("Xor", g.compare("Less", r, zero), g.compare("Less", y, zero))
    some = g.not_(g.compare("Equal", r, zero))
    return g.where(g.elementwise("And", some, apart), add(g, r, y), r)


def power(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """x to the power y."""
    return g.elementwise("Pow", x, y)


def square(g: Graph, x: Tensor) -> Tensor:
    """x·x."""
    return mul(g, x, x)


# ---- exponentials and logarithms


def exp2(g: Graph, x: Tensor) -> Tensor:
    """2 to the power x."""
    return g.elementwise("Pow", _c(g, 2, x), x)


def expm1(g: Graph, x: Tensor) -> Tensor:
    """exp(x) - 1, by Kahan: (u - 1) x / log u where u = exp(x) rounded."""
    one = _c(g, 1, x)
    u = _exp(g, x)
    less = sub(g, u, one)
    near = div(g, mul(g, less, x), _log(g, u))
    # Where u is 1, x itself; where u is tiny or large, the difference.
    big = g.compare("Greater", _abs(g, x), one)
    return g.where(g.compare("Equal", u, one), x, g.where(big, less, near))


def log1p(g: Graph, x: Tensor) -> Tensor:
    """log(1 + x), by Kahan: x log(u) / (u - 1) where u = 1 + x rounded."""
    one = _c(g, 1, x)
    u = add(g, x, one)
    plain = _log(g, u)
    near = div(g, mul(g, plain, x), sub(g, u, one))
    big = g.compare("Greater", _abs(g, x), one)
    return g.where(g.compare("Equal", u, one), x, g.where(big, plain, near))


def log2(g: Graph, x: Tensor) -> Tensor:
    """The logarithm of base 2."""
    return div(g, _log(g, x), _c(g, math.log(2), x))


def log10(g: Graph, x: Tensor) -> Tensor:
    """The logarithm of base 10."""
    return div(g, _log(g, x), _c(g, math.log(10), x))


def logaddexp(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """log(exp(x) + exp(y))."""
    top, apart = g.elementwise("Max", x, y), g.elementwise("Neg", _abs(g, sub(g, x, y)))
    sum_ = add(g, top, log1p(g, _exp(g, apart)))
    return g.where(g.compare("Equal", x, y), add(g, x, _c(g, math.log(2), x)), sum_)


def hypot(g: Graph, x: Tensor, y: Tensor) -> Tensor:
    """The length of (x, y), without overflow in between."""
    a, b = _abs(g, x), _abs(g, y)
    top, low = g.elementwise("Max", a, b), g.elementwise("Min", a, b)
    zero = g.compare("Equal", top, _c(g, 0, x))
    ratio = div(g, low, g.where(zero, _c(g, 1, x), top))
    size = mul(g, top, _sqrt(g, add(g, square(g, ratio), _c(g, 1, x))))
    return g.where(isinf(g, top), top, size)


def cbrt(g: Graph, x: Tensor) -> Tensor:
    """The cube root: by logarithm, and a step of Newton's method."""
    size = _abs(g, x)
    edge = g.elementwise("Or", isinf(g, x), g.compare("Equal", x, _c(g, 0, x)))
    safe = g.where(edge, _c(g, 1, x), size)
    y = _exp(g, div(g, _log(g, safe), _c(g, 3, x)))
    off = div(g, sub(g, y, div(g, safe, square(g, y))), _c(g, 3, x))
    return copysign(g, g.where(edge, size, sub(g, y, off)), x)


# ---- trigonometric functions


def _native(x: Tensor) -> bool:
    return x.dtype != F8


def tan(g: Graph, x: Tensor) -> Tensor:
    """The tangent."""
    if _native(x):
        return g.elementwise("Tan", x)
    return div(g, g.elementwise("Sin", x), g.elementwise("Cos", x))


def arctan(g: Graph, x: Tensor) -> Tensor:
    """The inverse tangent."""
    if _native(x):
        return g.elementwise("Atan", x)
    y = g.cast(g.elementwise("Atan", g.cast(x, F4)), F8)
    sine, cosine = g.elementwise("Sin", y), g.elementwise("Cos", y)
    # tan(a - y) = (x cos y - sin y) / (cos y + x sin y), and is so small that it is its angle.
    up = sub(g, mul(g, x, cosine), sine)
    d = div(g, up, add(g, cosine, mul(g, x, sine)))
    d = sub(g, d, div(g, mul(g, d, square(g, d)), _c(g, 3, x)))
    steep = g.compare("Greater", _abs(g, x), _c(g, 1e30, x))
    return g.where(steep, copysign(g, _c(g, math.pi / 2, x), x), add(g, y, d))


def arctan2(g: Graph, y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y), with NumPy's zeros and infinities."""
    a, b = _abs(g, y), _abs(g, x)
    top, low = g.elementwise("Max", a, b), g.elementwise("Min", a, b)
    zero, both = g.compare("Equal", top, _c(g, 0, x)), isinf(g, low)
    ratio = div(g, g.where(both, _c(g, 1, x), low), g.where(both, _c(g, 1, x), top))
    angle = arctan(g, g.where(zero, _c(g, 0, x), ratio))
    angle = g.where(g.compare("Greater", a, b), sub(g, _c(g, math.pi / 2, x), angle), angle)
    angle = g.where(signbit(g, x), sub(g, _c(g, math.pi, x), angle), angle)
    return copysign(g, angle, y)


def arcsin(g: Graph, x: Tensor) -> Tensor:
    """The inverse sine."""
    if _native(x):
        return g.elementwise("Asin", x)
    one = _c(g, 1, x)
    return arctan(g, div(g, x, _sqrt(g, mul(g, sub(g, one, x), add(g, one, x)))))


def arccos(g: Graph, x: Tensor) -> Tensor:
    """The inverse cosine."""
    if _native(x):
        return g.elementwise("Acos", x)
    one = _c(g, 1, x)
    half = arctan(g, _sqrt(g, div(g, sub(g, one, x), add(g, one, x))))
    return mul(g, _c(g, 2, x), half)


# ---- hyperbolic functions


def sinh(g: Graph, x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    if _native(x):
        return g.elementwise("Sinh", x)
    size = _abs(g, x)
    e, half = expm1(g, size), _c(g, 0.5, x)
    small = mul(g, half, add(g, e, div(g, e, add(g, e, _c(g, 1, x)))))
    root = _exp(g, mul(g, half, size))
    large = g.compare("Greater", size, _c(g, 20, x))
    return copysign(g, g.where(large, mul(g, mul(g, half, root), root), small), x)


def cosh(g: Graph, x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    if _native(x):
        return g.elementwise("Cosh", x)
    size, half = _abs(g, x), _c(g, 0.5, x)
    root = _exp(g, mul(g, half, size))
    rest = mul(g, half, _exp(g, g.elementwise("Neg", size)))
    return add(g, mul(g, mul(g, half, root), root), rest)


def arcsinh(g: Graph, x: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
    if _native(x):
        return g.elementwise("Asinh", x)
    size, one = _abs(g, x), _c(g, 1, x)
    squared = square(g, size)
    small = log1p(g, add(g, size, div(g, squared, add(g, one, _sqrt(g, add(g, squared, one))))))
    large = g.compare("Greater", size, _c(g, 1e9, x))
    return copysign(g, g.where(large, add(g, _log(g, size), _c(g, math.log(2), x)), small), x)


def arccosh(g: Graph, x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine."""
    if _native(x):
        return g.elementwise("Acosh", x)
    t = sub(g, x, _c(g, 1, x))
    small = log1p(g, add(g, t, _sqrt(g, mul(g, t, add(g, t, _c(g, 2, x))))))
    large = g.compare("Greater", x, _c(g, 1e9, x))
    return g.where(large, add(g, _log(g, x), _c(g, math.log(2), x)), small)


def arctanh(g: Graph, x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    if _native(x):
        return g.elementwise("Atanh", x)
    size, one = _abs(g, x), _c(g, 1, x)
    inner = div(g, mul(g, _c(g, 2, x), size), sub(g, one, size))
    return copysign(g, mul(g, _c(g, 0.5, x), log1p(g, inner)), x)


# ---- bits of integers


left_shift, right_shift = bits.left_shift, bits.right_shift
bitwise_count, count_leading_zeros = bits.bitwise_count, bits.count_leading_zeros
nextafter = bits.nextafter
