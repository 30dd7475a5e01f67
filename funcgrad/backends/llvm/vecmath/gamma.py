"""lgamma and digamma.

Stirling's series at an argument of at least 10, to which the recurrence Γ(x+1) = x·Γ(x) shifts
smaller ones, and the reflection formulas for x < 1/2. Floats are computed in double, so that the
cancellation near zeros costs them nothing; the lgamma of doubles is libm's.
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.ir import (
    Num,
    copysign,
    fabs,
    fma,
    horner,
    libm,
    poly,
    rint,
    where,
)
from funcgrad.backends.llvm.vecmath.log import INF, NAN, log

PI = 3.141592653589793
LOG_SQRT_2PI = 0.9189385332046728
SHIFT = 10

# sin(πf)/f in z = f² on [0, 1/4]: degree 8, relative error 2^-54.5.
SINPI = (
    3.141592653589793,
    -5.16771278004991,
    2.550164039872466,
    -0.5992645291688916,
    0.08214588427391269,
    -0.007370411297468864,
    0.00046621063488956805,
    -2.1687355597422724e-05,
    5.565416500927834e-07,
)
# Stirling: B_2k/(2k(2k-1)) for lgamma, B_2k/(2k) for digamma, k = 1…8.
LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)


def _sinpi(f: Num) -> Num:
    """sin(πf) for |f| ≤ 1/2."""
    return f * poly(f * f, SINPI)


def _reflect(x: Num) -> tuple[Num, Num, Num]:
    """x < 1/2, the argument 1 - x in its place, and the distance f of x to the nearest integer."""
    left = x < 0.5
    return left, where(left, 1.0 - x, x), x - rint(x)


def lgamma(x: Num) -> Num:
    """log|Γ(x)|."""
    return _lgamma(x.widen()).narrow() if x.width == 32 else libm("lgamma", x)


def _lgamma(x: Num) -> Num:
    """log|Γ(x)|, with an absolute error near its zeros."""
    left, y, f = _reflect(x)
    low = y < float(SHIFT)
    product = y
    for i in range(1, SHIFT):
        product = product * (y + float(i))
    product = where(low, product, 1.0)
    z = where(low, y + float(SHIFT), y)
    inverse = 1.0 / z
    series = inverse * horner(inverse * inverse, LGAMMA)
    stirling = fma(z - 0.5, log(z) - 1.0, series + (LOG_SQRT_2PI - 0.5))
    # Γ(x) = Γ(z)/product, or π·product/(sin(πx)·Γ(z))
    rest = log(where(left, (product * PI) / fabs(_sinpi(f)), 1.0 / product))
    value = where(left, rest - stirling, rest + stirling)
    value = where(x.eq(1.0) | x.eq(2.0), 0.0, value)
    return where(fabs(x).eq(INF), INF, value)


def digamma(x: Num) -> Num:
    """Γ'(x)/Γ(x)."""
    if x.width == 32:
        return digamma(x.widen()).narrow()
    left, y, f = _reflect(x)
    low = y < float(SHIFT)
    n, d = y.const(1.0), y  # Σ 1/(y+i) = n/d
    for i in range(1, SHIFT):
        t = y + float(i)
        n, d = fma(n, t, d), d * t
    z = where(low, y + float(SHIFT), y)
    inverse = 1.0 / z
    square = inverse * inverse
    tail = fma(square, horner(square, DIGAMMA), inverse * 0.5)
    value = (log(z) - tail) - where(low, n / d, 0.0)
    cosine = _sinpi(0.5 - fabs(f))
    value = where(left, value - cosine * PI / _sinpi(f), value)
    value = where(f.eq(0.0) & (x < 0.0), NAN, value)
    return where(x.eq(0.0), copysign(x.const(INF), -x), value)
