"""The logarithm family: log, log2, log10, log1p, arcsinh, arccosh, arctanh.

x = 2^k·m by integer arithmetic on the bits, with m around 1; log x = k·ln 2 + log m. With f = m - 1, log(1 + f) is
returned as f plus a correction, so that results near x = 1 keep their relative accuracy.
"""

from __future__ import annotations

from .vecmath_ir import LAYOUT, LN2, Num, copysign, fma, horner, poly, where

INF, NAN = float("inf"), float("nan")

# (log(1+f) - f)/f² on [-1/3, 1/3]: degree 8, relative error 2^-27.7 of log(1+f).
LOG = (
    -0.5,
    0.33333215,
    -0.24999806,
    0.20010427,
    -0.16680196,
    0.14005734,
    -0.12187481,
    0.13984594,
    -0.12880029,
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
# The mantissa is taken from [bound, 2·bound).
BOUND_BITS = {32: 0x3F2AAAAB, 64: 0x3FE6A09E667F3BCD}  # 2/3, √½

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


def _log1p_reduced(f: Num) -> Num:
    """log(1+f) - f for 1+f in the reduced interval."""
    if f.width == 32:
        return (f * f) * poly(f, LOG)
    # log(1+f) = 2s + s³P = f - s·(f - s²P): exact in its leading term
    s = f / (f + 2.0)
    z = s * s
    return -s * fma(-z, horner(z, ATANH), f)


def _split(x: Num) -> tuple[Num, Num]:
    """k and f of x = 2^k·(1 + f), for positive finite x, subnormals included."""
    lay = LAYOUT[x.width]
    tiny = x < lay.min_normal
    i = where(tiny, x * 2.0**lay.mantissa, x).bits()
    e = (i - BOUND_BITS[x.width]) & lay.exponent_mask
    f = (i - e).bits() - 1.0
    k = (e >> lay.mantissa).to_float()
    return where(tiny, k - float(lay.mantissa), k), f


def _with_limits(x: Num, zero: float, y: Num) -> Num:
    """`y` inside the domain x - zero > 0; -inf at its edge, NaN below, inf and NaN as they came."""
    y = where(x < INF, y, x)
    edge = where(x.eq(zero), x.const(-INF), x.const(NAN))
    return where(x > zero, y, edge)


def log(x: Num) -> Num:
    k, f = _split(x)
    hi, lo = LN2[x.width]
    y = fma(k, hi, f + fma(k, lo, _log1p_reduced(f)))
    return _with_limits(x, 0.0, y)


def _log_in_base(x: Num, base: tuple[float, float], unit: tuple[float, float]) -> Num:
    """k·unit + log(1+f)·base, both constants in two parts."""
    k, f = _split(x)
    small = fma(_log1p_reduced(f), base[0], f * base[1])
    if unit[1]:
        small = fma(k, unit[1], small)
    y = fma(k, unit[0], fma(f, base[0], small))
    return _with_limits(x, 0.0, y)


def log2(x: Num) -> Num:
    return _log_in_base(x, LOG2E[x.width], (1.0, 0.0))


def log10(x: Num) -> Num:
    return _log_in_base(x, LOG10E[x.width], LOG10_2[x.width])


def log1p(x: Num) -> Num:
    k, f = _split_plus_one(x)
    hi, lo = LN2[x.width]
    y = fma(k, hi, f + fma(k, lo, _log1p_reduced(f)))
    return copysign(_with_limits(x, -1.0, y), x)


def _split_plus_one(x: Num) -> tuple[Num, Num]:
    """k and f of 1 + x = 2^k·(1 + f): f = x·2^-k + (2^-k - 1) is rounded once, however small x is."""
    lay = LAYOUT[x.width]
    two = 2 << lay.mantissa
    quarter = fma(x, 0.25, 0.25).bits()  # (1+x)/4, so that 4·2^-k below is a normal number
    e = (quarter - (BOUND_BITS[x.width] - two)) & lay.exponent_mask
    inverse = ((lay.one + two) - e).bits() * 0.25
    return (e >> lay.mantissa).to_float(), fma(x, inverse, inverse - 1.0)
