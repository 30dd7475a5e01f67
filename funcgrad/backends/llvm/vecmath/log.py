"""The logarithm family: log, log2, log10, log1p, arcsinh, arccosh, arctanh.

x = 2^k·m by integer arithmetic on the bits, with m around 1; log x = k·ln 2 + log m. With
f = m - 1, log(1 + f) is f plus a correction, so that results near x = 1 keep their accuracy.
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.ir import (
    LAYOUT,
    Num,
    copysign,
    fabs,
    fma,
    horner,
    poly,
    sqrt,
    where,
)

LN2 = 0.6931471805599453
INF, NAN = float("inf"), float("nan")

# (log(1+f) - f)/f² on [√½ - 1, √2 - 1]: degree 7, relative error 2^-24.9 of log(1+f).
LOG = (
    -0.5,
    0.3333391,
    -0.25001335,
    0.19963102,
    -0.16577649,
    0.1491448,
    -0.14266959,
    0.087005384,
)
# (2·atanh(s) - 2s)/s³ in z = s², |s| ≤ 3 - 2√2: degree 6, relative error 2^-59.5 of 2·atanh(s).
ATANH = (
    0.6666666666666734,
    0.3999999999941704,
    0.2857142874189364,
    0.22222198621569306,
    0.18183561905864035,
    0.1531411046629262,
    0.14795367496066109,
)
# The mantissa is taken from [√½, √2).
BOUND_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}

# Below these log(1 + x) rounds to x.
LOG1P_TINY = {32: 2.0**-25, 64: 2.0**-54}

# Constants in two parts; the first of log10(2) has trailing zeros, so that k times it is exact.
LOG10_2 = {
    32: (0.30103302001953125, -3.024355464731343e-06),
    64: (0.30102999566395283, 2.8363394551044964e-14),
}
LOG2E = {
    32: (1.4426950216293335, 1.925963033500011e-08),
    64: (1.4426950408889634, 2.0355273740931033e-17),
}
LOG10E = {
    32: (0.4342944920063019, -1.0103049952192578e-08),
    64: (0.4342944819032518, 1.098319650216765e-17),
}


def _correction(f: Num) -> tuple[Num, Num]:
    """a and b with log(1+f) = f + a·b, for 1+f in the reduced interval."""
    if f.width == 32:
        return f * f, poly(f, LOG)
    s = f / (f + 2.0)  # log(1+f) = 2s + s³P = f - s·(f - s²P)
    z = s * s
    return -s, fma(-z, horner(z, ATANH), f)


def split(x: Num) -> tuple[Num, Num]:
    """k·2^mantissa, an integer, and f of x = 2^k·(1 + f), for positive finite x."""
    lay = LAYOUT[x.width]
    tiny = x < lay.min_normal
    i = where(tiny, x * 2.0**lay.mantissa, x).bits()
    e = (i - BOUND_BITS[x.width]) & lay.exponent_mask
    f = (i - e).bits() - 1.0
    return where(tiny, e - (lay.mantissa << lay.mantissa), e), f


def _split_plus_one(x: Num) -> tuple[Num, Num]:
    """-k·2^mantissa and f of 1 + x = 2^k·(1 + f), for x > -1; f is rounded once."""
    lay = LAYOUT[x.width]
    quarter = fma(x, 0.25, 0.25).bits()  # (1+x)/4, so that 4·2^-k below is a normal number
    two = 2 << lay.mantissa
    e = (BOUND_BITS[x.width] - two + ~lay.exponent_mask - quarter) & lay.exponent_mask
    inverse = (e + (lay.one + two)).bits() * 0.25
    return e, fma(x, inverse, -(1.0 - inverse))  # the signs keep a zero's sign


def _with_limits(x: Num, zero: float, y: Num) -> Num:
    """`y` inside the domain x - zero > 0; -inf at its edge, NaN below, inf and NaN as they came."""
    y = where(x < INF, y, x)
    edge = where(x.eq(zero), x.const(-INF), x.const(NAN))
    return where(x > zero, y, edge)


def _log(e: Num, f: Num, sign: float) -> Num:
    """sign·k·ln 2 + log(1+f), where e is k·2^mantissa."""
    a, b = _correction(f)
    return fma(e.to_float(), sign * LN2 * 2.0 ** -LAYOUT[f.width].mantissa, fma(a, b, f))


def log(x: Num) -> Num:
    """The natural logarithm."""
    return _with_limits(x, 0.0, _log(*split(x), 1.0))


def log1p(x: Num) -> Num:
    """log(1 + x), to relative accuracy where x is small."""
    # Products of numbers so small would underflow, which is slow on some processors.
    tiny = fabs(x) < LOG1P_TINY[x.width]
    y = _log(*_split_plus_one(where(tiny, 0.0, x)), -1.0)
    return _with_limits(x, -1.0, where(tiny, x, y))


def _log_in_base(x: Num, base: tuple[float, float], unit: tuple[float, float]) -> Num:
    """k·unit + log(1+f)·base, both constants in two parts."""
    e, f = split(x)
    a, b = _correction(f)
    k = (e >> LAYOUT[x.width].mantissa).to_float()
    small = fma(a * b, base[0], f * base[1])
    if unit[1]:
        small = fma(k, unit[1], small)
    return _with_limits(x, 0.0, fma(k, unit[0], fma(f, base[0], small)))


def log2(x: Num) -> Num:
    """The logarithm to base 2."""
    return _log_in_base(x, LOG2E[x.width], (1.0, 0.0))


def log10(x: Num) -> Num:
    """The logarithm to base 10."""
    return _log_in_base(x, LOG10E[x.width], LOG10_2[x.width])


def arcsinh(x: Num) -> Num:
    """log1p(|x| + x²/(√(x² + 1) + 1)) with the sign of x."""
    if x.width == 32:
        return arcsinh(x.widen()).narrow()
    a = fabs(x)
    t = fma(a, a / (sqrt(fma(a, a, 1.0)) + 1.0), a)  # e^arcsinh(a) - 1
    large = a > 2.0**60
    y = log1p(where(large, a, t)) + where(large, a.const(LN2), 0.0)
    return copysign(y, x)


def arccosh(x: Num) -> Num:
    """log1p(d + √(d·(d + 2))) with d = x - 1; NaN for x < 1."""
    if x.width == 32:
        return arccosh(x.widen()).narrow()
    d = x - 1.0
    large = x > 2.0**60
    t = where(large, x, d + sqrt(d * (d + 2.0)))
    y = log1p(t) + where(large, x.const(LN2), 0.0)
    return where(x >= 1.0, y, NAN)


def arctanh(x: Num) -> Num:
    """log1p(2|x|/(1 - |x|))/2 with the sign of x."""
    a = fabs(x)
    return copysign(log1p((a + a) / (1.0 - a)) * 0.5, x)
