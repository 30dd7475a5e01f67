"""The exponential family: exp, exp2, expm1, logistic, tanh, sinh, cosh.

Cody–Waite reduction x = k·ln 2 + r with |r| ≤ ln 2 / 2, a minimax polynomial in r, and a scaling
by 2^k done by integer arithmetic on exponents. Where results may be subnormal the scaling is two
multiplications by powers of two, of which only the last rounds. (Cody & Waite, Software Manual for
the Elementary Functions, 1980.)
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.ir import (
    LAYOUT,
    LN2_PARTS,
    Num,
    at_least,
    at_most,
    copysign,
    fabs,
    fma,
    horner,
    nearest,
    poly,
    power_of_two,
    where,
)

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
# exp(r) on ±ln2/2: degree 6, relative error 2^-28.2; degree 11, 2^-57.9.
EXP = {
    32: (1.0, 1.0, 0.49999994, 0.16666523, 0.041668292, 0.008368532, 0.00138183),
    64: (
        1.0,
        1.0,
        0.5000000000000011,
        0.16666666666666466,
        0.041666666666528816,
        0.008333333333470172,
        0.001388888894369421,
        0.00019841269546352365,
        2.4801493178419268e-05,
        2.7557558381113086e-06,
        2.7630191940329084e-07,
        2.5007246840932036e-08,
    ),
}
# 2^r on ±1/2: degree 6, relative error 2^-28.3; degree 11, 2^-57.8.
EXP2 = {
    32: (1.0, 0.6931472, 0.24022648, 0.0555036, 0.009618506, 0.0013390806, 0.00015326473),
    64: (
        1.0,
        0.6931471805599453,
        0.24022650695910108,
        0.05550410866482173,
        0.009618129107601606,
        0.0013333558146544787,
        0.0001540353044903303,
        1.5252733635230025e-05,
        1.3215438838098247e-06,
        1.0178159598114872e-07,
        7.073232585635619e-09,
        4.4389211662674814e-10,
    ),
}
# (exp(r) - 1 - r)/r² on ±ln2/2: degree 4, error 2^-26.1 of expm1(r); degree 10, 2^-61.6.
EXPM1 = {
    32: (0.5, 0.1666655, 0.041666858, 0.008365969, 0.0013897857),
    64: (
        0.5,
        0.16666666666666677,
        0.04166666666666669,
        0.008333333333321771,
        0.001388888888888638,
        0.0001984126988535209,
        2.4801587296008936e-05,
        2.755724520651101e-06,
        2.7557314725116216e-07,
        2.5108648180271276e-08,
        2.0898321898341983e-09,
    ),
}
# (sinh(x) - x)/x³ in z = x² on [0, 1]: degree 3, error 2^-31.6 of sinh; degree 7, 2^-63.
SINH = {
    32: (0.16666667, 0.0083333105, 0.00019842896, 2.7822132e-06),
    64: (
        0.16666666666666666,
        0.008333333333333573,
        0.00019841269841061157,
        2.755731931009361e-06,
        2.505208941162096e-08,
        1.6061339368342015e-10,
        7.503248922509797e-13,
        6.4758358778744394e-15,
    ),
}
# Beyond these the result is 0 or infinity, and infinity at the upper one itself.
EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
EXP2_RANGE = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}
EXPM1_TINY = {32: 2.0**-25, 64: 2.0**-54}
EXPM1_RANGE = {32: (-18.0, 89.0), 64: (-38.0, 710.0)}
TANH_LIMIT = {32: 9.1, 64: 20.0}
SINH_LIMIT = {32: 89.7, 64: 711.0}


def reduce(x: Num, offset: int) -> tuple[Num, Num]:
    """r = x - k·ln 2 for the nearest integer k, and an integer with k + offset in its low bits."""
    k, n = nearest(x, LOG2E, offset)
    hi, lo = LN2_PARTS[x.width]
    return fma(k, -lo, fma(k, -hi, x)), n


def scale(p: Num, n: Num) -> Num:
    """p·2^k with one rounding, also to subnormals; n's low bits hold k + 2·bias."""
    lay = LAYOUT[p.width]
    first = (n << (lay.mantissa - 1)) & lay.exponent_mask  # the biased exponent of 2^(k // 2)
    second = (n << lay.mantissa) - first
    return (p * first.bits()) * second.bits()


def zero_below(x: Num, lo: float, y: Num) -> Num:
    """`y`, and 0 where x < lo. AVX-512 leaves out the last product of such elements: processors
    that are slow where a product underflows are as fast there as elsewhere, as among a mask's
    exponentials of -inf."""
    return where(x < lo, y.const(0.0), y)


def exp(x: Num) -> Num:
    """eˣ as exp(r)·2^k."""
    lo, hi = EXP_RANGE[x.width]
    r, n = reduce(at_most(x, hi), 2 * LAYOUT[x.width].bias)
    return zero_below(x, lo, scale(poly(r, EXP[x.width]), n))


def exp2(x: Num) -> Num:
    """2ˣ, of which the integer nearest to x becomes the exponent."""
    lo, hi = EXP2_RANGE[x.width]
    most = at_most(x, hi)
    k, n = nearest(most, 1.0, 2 * LAYOUT[x.width].bias)
    return zero_below(x, lo, scale(poly(most - k, EXP2[x.width]), n))


def _expm1(r: Num) -> Num:
    """exp(r) - 1 for |r| ≤ ln2/2."""
    return fma(r * r, poly(r, EXPM1[r.width]), r)


def expm1(x: Num) -> Num:
    """eˣ - 1, to relative accuracy where x is small."""
    lo, hi = EXPM1_RANGE[x.width]
    r, n = reduce(at_least(at_most(x, hi), lo), LAYOUT[x.width].bias - 1)
    s = power_of_two(n)  # 2^(k-1), which does not overflow before the result does
    h = fma(_expm1(r), s, s - 0.5)
    return where(fabs(x) < EXPM1_TINY[x.width], x, h + h)


def logistic(x: Num) -> Num:
    """1/(1 + e⁻ˣ)."""
    e = exp(-fabs(x))  # never overflows, and keeps the relative accuracy of small results
    return where(x >= 0.0, e.const(1.0), e) / (e + 1.0)


def tanh(x: Num) -> Num:
    """h/(h + 1) with h = (exp(2|x|) - 1)/2, which keeps the relative accuracy of small results."""
    y = at_most(fabs(x), TANH_LIMIT[x.width]) * 2.0
    k, n = nearest(y, LOG2E, LAYOUT[x.width].bias - 1)
    p, s = _expm1(fma(k, -LN2, y)), power_of_two(n)  # one rounded ln 2 does: k matters little
    h = fma(p, s, s - 0.5)
    return copysign(h / (h + 1.0), x)


def _quarter_exp(x: Num) -> Num:
    """exp(|x|)/4, which does not overflow before sinh and cosh do."""
    r, n = reduce(at_most(fabs(x), SINH_LIMIT[x.width]), LAYOUT[x.width].bias - 2)
    return poly(r, EXP[x.width]) * power_of_two(n)


def sinh(x: Num) -> Num:
    """An odd polynomial for |x| < 1, else (e^|x| - e^-|x|)/2 with the sign of x."""
    z = x * x
    small = fma(x * z, horner(z, SINH[x.width]), x)
    h = _quarter_exp(x)
    large = copysign(fma(h, 2.0, -0.125 / h), x)
    return where(fabs(x) < 1.0, small, large)


def cosh(x: Num) -> Num:
    """(eˣ + e⁻ˣ)/2."""
    h = _quarter_exp(x)
    return fma(h, 2.0, 0.125 / h)
