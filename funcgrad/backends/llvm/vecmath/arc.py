"""The inverse trigonometric functions: arcsin, arccos, arctan, arctan2.

Odd minimax polynomials on an interval around 0. The identities arctan(x) = π/2 - arctan(1/x) and
arcsin(x) = π/2 - 2·arcsin(√((1-x)/2)) bring the other arguments to it.
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.ir import Num, copysign, fabs, fma, poly, sqrt, where

# (arctan(u) - u)/u³ in z = u² on [0, 1]: degree 8, error 2^-28.5 of arctan; degree 19, 2^-57.3.
ATAN = {
    32: (
        -0.333333,
        0.1999853,
        -0.14264014,
        0.109508604,
        -0.08399203,
        0.05787873,
        -0.031093346,
        0.010866148,
        -0.0017821125,
    ),
    64: (
        -0.3333333333333302,
        0.19999999999944268,
        -0.14285714282181675,
        0.11111110995908832,
        -0.09090906812665642,
        0.07692277677819165,
        -0.06666386806559987,
        0.058804272191223445,
        -0.052530783065543436,
        0.047208494315127504,
        -0.04215367849911121,
        0.03656514353516968,
        -0.02978335206593911,
        0.021838074673802617,
        -0.013763346705652345,
        0.007099985521128468,
        -0.0028355190990207095,
        0.000813964717957847,
        -0.00014841831625624026,
        1.2851805242397334e-05,
    ),
}
# (arcsin(s) - s)/s³ in z = s² on [0, 1/4]: degree 5, error 2^-31.7 of arcsin; degree 12, 2^-59.9.
ASIN = {
    32: (0.1666666, 0.07500522, 0.044513386, 0.031838737, 0.014317883, 0.037689075),
    64: (
        0.1666666666666676,
        0.07499999999970865,
        0.04464285717456202,
        0.030381942709850417,
        0.022372214935178762,
        0.01735161288479889,
        0.013980810740626973,
        0.01139898832107781,
        0.010779845716984324,
        0.0037078827980587554,
        0.02170399711324077,
        -0.020994353450820593,
        0.032625777006103994,
    ),
}
# π/2 in two parts.
HALF_PI = {
    32: (1.5707963705062866, -4.371138828673793e-08),
    64: (1.5707963267948966, 6.123233995736766e-17),
}


def _from_half_pi(r: Num, multiple: int = 1) -> Num:
    """multiple·π/2 - r, where r has the rounding error of one operation."""
    hi, lo = HALF_PI[r.width]
    return (multiple * hi - r) + multiple * lo


def _arctan_unit(u: Num) -> Num:
    """arctan(u) for u in [0, 1]."""
    z = u * u
    return fma(u * z, poly(z, ATAN[u.width]), u)


def arctan(x: Num) -> Num:
    """arctan(x), of |x| > 1 as π/2 - arctan(1/|x|) with the sign of x."""
    a = fabs(x)
    large = a > 1.0
    r = _arctan_unit(where(large, 1.0 / a, a))
    return copysign(where(large, _from_half_pi(r), r), x)


def arctan2(y: Num, x: Num) -> Num:
    """The angle of the point (x, y) in [-π, π], with C's choices at zeros and infinities."""
    a, b = fabs(y), fabs(x)
    steep = a > b
    n, d = where(steep, b, a), where(steep, a, b)
    # n/d, but 0 for 0/0 and 1 for ∞/∞, as atan2 wants
    r = _arctan_unit(where(n.eq(d), where(n.eq(0.0), n, 1.0), n / d))
    r = where(steep, _from_half_pi(r), r)
    left = x.bits() < 0  # also -0
    return copysign(where(left, _from_half_pi(r, 2), r), y)


def _arcsin_parts(x: Num) -> tuple[Num, Num]:
    """|x| > 1/2, and arcsin of |x|, there of √((1-|x|)/2)."""
    a = fabs(x)
    large = a > 0.5
    z = where(large, fma(a, -0.5, 0.5), a * a)
    s = where(large, sqrt(z), a)
    return large, fma(s * z, poly(z, ASIN[x.width]), s)


def arcsin(x: Num) -> Num:
    """arcsin(x); NaN outside of [-1, 1]."""
    large, r = _arcsin_parts(x)
    return copysign(where(large, _from_half_pi(r + r), r), x)


def arccos(x: Num) -> Num:
    """arccos(x); NaN outside of [-1, 1]."""
    large, r = _arcsin_parts(x)
    twice = r + r
    ends = where(x > 0.0, twice, _from_half_pi(twice, 2))
    return where(large, ends, _from_half_pi(copysign(r, x)))
