"""The error functions: erf, erfc, erf_inv.

erfc(x) = exp(-x²)·w·S(w) for x ≥ 0, with w = c/(c + x) and a polynomial S. The rounding error of x²
is carried into the exponential, so that the relative accuracy holds until the result underflows.
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.exp import EXP, exp, reduce, scale, zero_below
from funcgrad.backends.llvm.vecmath.ir import (
    LAYOUT,
    Num,
    at_most,
    copysign,
    fabs,
    fma,
    horner,
    poly,
    sqrt,
    two_product,
    where,
)
from funcgrad.backends.llvm.vecmath.log import INF, log

# erf(x)/x = P(x²)/Q(x²) for |x| ≤ 3.925: degrees 6 and 5, relative error 2^-27.7.
ERF_P = (
    1.1362108,
    0.18642646,
    0.05462595,
    0.0038661272,
    0.00037958217,
    4.6469168e-06,
    -1.2921682e-08,
)
ERF_Q = (1.0069406, 0.5008631, 0.11467082, 0.015539591, 0.0013110115, 6.2884574e-05)
# erf(x)/x in z = x² on [0, 1]: degree 12, relative error 2^-56.
ERF64 = (
    1.1283791670955126,
    -0.37612638903183593,
    0.11283791670950175,
    -0.026866170644414197,
    0.0052239776195820995,
    -0.0008548326724678052,
    0.00012055322914597986,
    -1.4925418783178908e-05,
    1.6458424866986537e-06,
    -1.6325181825513775e-07,
    1.450279082141984e-08,
    -1.0805223664143399e-09,
    5.053669676823136e-11,
)
# erfc(x)·exp(x²)/w in v = w - 9/16: degree 9 for x ≤ 10.2 and c = 3, relative error 2^-24.7;
# degree 22 for x ≤ 27.3 and c = 4, 2^-56.9.
ERFC_SHIFT = {32: 3.0, 64: 4.0}
ERFC_LIMIT = {32: 10.2, 64: 27.3}
ERFC_CENTRE = 0.5625
ERFC = {
    32: (
        0.39809665,
        0.69764733,
        0.9578321,
        0.9982591,
        0.7243827,
        0.26534247,
        -0.088475265,
        -0.14431843,
        -0.0044518155,
        0.0520767,
    ),
    64: (
        0.3078220955665328,
        0.5990076675876481,
        1.0107421500723885,
        1.4733766496526608,
        1.837672494545618,
        1.9249846801171553,
        1.6343937744630868,
        1.0406173723101033,
        0.3872988806655554,
        -0.056040962194946184,
        -0.17674024690508985,
        -0.08013985855521813,
        0.032839624307177344,
        0.048924339912979134,
        0.0025701447475776195,
        -0.022647780943900117,
        -0.006670899902328737,
        0.010391781450462267,
        0.004939512555262417,
        -0.004831807738515153,
        -0.0028830826242914635,
        0.001678594068236079,
        0.0011367413740088496,
    ),
}

# erf_inv(x)/x for w = -log(1 - x²), as polynomials in w - c below a bound and in √w - t above it:
# (bound, c, t); degree 8 both, relative error 2^-23.3 for w ≤ 16.7; degree 9, 2^-23 for w ≤ 37.5.
ERF_INV = {32: (5.0, 2.5, 3.0), 64: (6.25, 3.0, 4.0)}
ERF_INV_CENTRE = {
    32: (
        1.5014094,
        0.24664071,
        -0.004177694,
        -0.001253694,
        0.00021859707,
        -4.400537e-06,
        -3.5281469e-06,
        3.4404187e-07,
        2.8503733e-08,
    ),
    64: (
        1.6235421268133516,
        0.24163041592350692,
        -0.005738763274600747,
        -0.0008362466381915779,
        0.00019559001378110786,
        -1.267345114580083e-05,
        -1.9072843657742716e-06,
        4.414711245894008e-07,
        -3.0387154110134675e-09,
        -5.0599647074674745e-09,
    ),
}
ERF_INV_TAIL = {
    32: (
        2.832977,
        1.0016751,
        0.0094360495,
        -0.007632216,
        0.0057596955,
        -0.0036442664,
        0.0012993653,
        7.4064366e-05,
        -0.00016076451,
    ),
    64: (
        3.839783741139517,
        1.0094959090750057,
        0.0012613502588594225,
        -0.0008852425421681636,
        0.00031789588741091917,
        -8.951809409355656e-05,
        5.3822117451961786e-05,
        -5.230712684707644e-05,
        2.450820546351432e-05,
        -4.0437921301567995e-06,
    ),
}
HALF_SQRT_PI = 0.886226925452758


def _erfc_positive(a: Num) -> Num:
    """erfc(a) for a ≥ 0."""
    c = ERFC_SHIFT[a.width]
    square, error = two_product(a, a)
    r, n = reduce(-square, 2 * LAYOUT[a.width].bias)
    w = c / (a + c)
    s = poly(w - ERFC_CENTRE, ERFC[a.width]) * w
    y = scale(poly(r - error, EXP[a.width]) * s, n)
    return zero_below(-a, -ERFC_LIMIT[a.width], y)


def erfc(x: Num) -> Num:
    """1 - erf(x), to relative accuracy where it is small."""
    y = _erfc_positive(fabs(x))
    y = where(x < 0.0, 2.0 - y, y)
    if x.width == 32:
        return y
    return where(fabs(x) < 0.5, 1.0 - x * poly(x * x, ERF64), y)


def erf(x: Num) -> Num:
    """2/√π · ∫₀ˣ exp(-t²) dt."""
    a = fabs(x)
    if x.width == 32:
        y = at_most(a, 3.925)
        z = y * y
        return copysign(at_most(y * horner(z, ERF_P) / horner(z, ERF_Q), 1.0), x)
    return where(a < 1.0, x * poly(x * x, ERF64), copysign(1.0 - _erfc_positive(a), x))


def erf_inv(x: Num) -> Num:
    """x·P(w), in double refined by a step (Giles, Approximating the erfinv function, 2010)."""
    a = fabs(x)
    w = -log(fma(-a, a, 1.0))
    bound, c, t = ERF_INV[x.width]
    tail = poly(sqrt(w) - t, ERF_INV_TAIL[x.width])
    y = a * where(w < bound, poly(w - c, ERF_INV_CENTRE[x.width]), tail)
    if x.width == 64:
        # the residual of whichever of erf and erfc is small, and Halley's step
        residual = where(a < 0.5, erf(y) - a, (1.0 - a) - erfc(y))
        step = residual * exp(y * y) * HALF_SQRT_PI
        y = y - step / fma(y, step, 1.0)
    return copysign(where(a.eq(1.0), INF, y), x)
