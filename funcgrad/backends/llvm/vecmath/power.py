"""Powers and roots: power, cbrt, rsqrt, hypot.

power is exp2(y·log2|x|) with the logarithm and the product in more precision than the result: in
double for float, in pairs of doubles for double. The special cases of IEEE 754 `pow` are selects
around it.
"""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.exp import EXP2, scale, zero_below
from funcgrad.backends.llvm.vecmath.ir import (
    LAYOUT,
    Num,
    at_most,
    copysign,
    fabs,
    fast_two_sum,
    fma,
    horner,
    nearest,
    poly,
    rint,
    sqrt,
    two_product,
    where,
)
from funcgrad.backends.llvm.vecmath.log import split

INF, NAN = float("inf"), float("nan")

# log2((1+s)/(1-s))/s in z = s² ≤ 0.04: degree 5, relative error 2^-42.4, for float results.
LOG2_32 = (
    2.885390081777428,
    0.9617966948203024,
    0.5770777567801871,
    0.412226079235586,
    0.31928804500303026,
    0.29079805199318504,
)

# log2((1+s)/(1-s)) = C1·s + C3·s³ + s⁵·Q(s²), C1 and C3 in two parts, |s| ≤ 3 - 2√2: degree 6,
# relative error 2^-66 of the logarithm, for double results.
LOG2_C1 = (2.8853900817779268, 4.0710547481862066e-17)
LOG2_C3 = (0.9617966939259756, 5.0577616648125907e-17)
LOG2_Q = (
    0.577078016355618,
    0.4121985830919395,
    0.3205989022737674,
    0.2623077010962896,
    0.22198399962219875,
    0.1912551058490839,
    0.19038604322580469,
)

# Of float(high word of r) = CBRT_GUESS - float(high word of a)/3: the r of least error.
CBRT_GUESS = 1430186400.0


def _exp2_of_product32(a: Num, y: Num) -> Num:
    """exp2(y·log2(a)) for float a ≥ 0, a = 1 with infinite y apart."""
    e, f = split(a)
    d = f.widen()
    s = d / (d + 2.0)
    k = (e.to_float() * 2.0 ** -LAYOUT[32].mantissa).widen()
    log2 = fma(s, horner(s * s, LOG2_32), k)
    log2 = where(a < INF, where(a > 0.0, log2, -INF), a.widen())
    p = log2 * y.widen()
    most = at_most(p, 130.0)
    k, n = nearest(most, 1.0, 2 * LAYOUT[32].bias)
    return zero_below(p, -152.0, scale(poly((most - k).narrow(), EXP2[32]), n.narrow()))


def _scaled(s: tuple[Num, Num], c: tuple[float, float]) -> tuple[Num, Num]:
    """The product of a number and a constant, each in two parts."""
    p, error = two_product(s[0], c[0])
    return p, fma(s[0], c[1], fma(s[1], c[0], error))


def _log2_pair(a: Num) -> tuple[Num, Num]:
    """log2 of a positive finite double, in two parts, with a relative error of about 2^-64."""
    e, f = split(a)
    k = (e >> LAYOUT[64].mantissa).to_float()
    m = f + 1.0  # exact: split subtracted it
    d = m + 1.0
    inverse = 1.0 / d
    hi = f * inverse
    s = hi, fma(-hi, m - (d - 1.0), fma(-hi, d, f)) * inverse  # s = f/(m + 1)
    z, z_low = two_product(hi, hi)
    z_low = fma(hi + hi, s[1], z_low)
    cube, cube_low = two_product(z, hi)
    cube_low = fma(z, s[1], fma(z_low, hi, cube_low))
    first = _scaled(s, LOG2_C1)
    third = _scaled((cube, cube_low), LOG2_C3)
    t, t_error = fast_two_sum(k, first[0])
    u, u_error = fast_two_sum(t, third[0])
    small = fma(cube * z, horner(z, LOG2_Q), third[1] + first[1])
    return fast_two_sum(u, (t_error + u_error) + small)


def _exp2_of_product64(a: Num, y: Num) -> Num:
    """exp2(y·log2(a)) for double a ≥ 0, a = 1 with infinite y apart."""
    hi, lo = _log2_pair(a)
    hi = where(a < INF, where(a > 0.0, hi, -INF), a)
    p, error = two_product(hi, y)
    tail = fma(lo, y, error)
    most = at_most(p, 1030.0)
    k, n = nearest(most, 1.0, 2 * LAYOUT[64].bias)
    r = (most - k) + where(fabs(p) < 1030.0, tail, 0.0)
    return zero_below(p, -1080.0, scale(poly(r, EXP2[64]), n))


def power(x: Num, y: Num) -> Num:
    """xʸ as C has it: NaN for finite x < 0 where y is no integer."""
    a, b = fabs(x), fabs(y)
    r = (_exp2_of_product32 if x.width == 32 else _exp2_of_product64)(a, y)
    integer = rint(y).eq(y)
    half = y * 0.5
    odd = integer & rint(half).ne(half)
    sign = x.bits() & where(odd, x.bits().const(1 << (x.width - 1)), 0)
    r = (r.bits() ^ sign).bits()
    undefined = (x < 0.0) & (a < INF) & ~integer
    r = where(undefined, NAN, r)
    one = y.eq(0.0) | x.eq(1.0) | (a.eq(1.0) & b.eq(INF))
    return where(one, 1.0, r)


def rsqrt(x: Num) -> Num:
    """1/√x."""
    return 1.0 / sqrt(x)


def hypot(x: Num, y: Num) -> Num:
    """√(x² + y²), which overflows only where the result does."""
    a, b = fabs(x), fabs(y)
    if x.width == 32:
        wa, wb = a.widen(), b.widen()
        r = sqrt(fma(wa, wa, wb * wb)).narrow()
    else:
        less = a < b
        n, d = where(less, a, b), where(less, b, a)
        u = where(n.eq(d), 1.0, n / d)
        r = d * sqrt(fma(u, u, 1.0))
    return where(a.eq(INF), INF, where(b.eq(INF), INF, r))


def cbrt(x: Num) -> Num:
    """a·r² with r = a^(-1/3), from a guess by arithmetic on the exponent and two quartic steps."""
    if x.width == 32:
        return cbrt(x.widen()).narrow()
    a = fabs(x)
    tiny = a < LAYOUT[64].min_normal
    a = where(tiny, a * 2.0**54, a)
    # the high word, as a number, is about 2^20·(log2(a) + 1023)
    guess = (a.bits() >> 32).narrow().to_float() * (-1.0 / 3.0) + CBRT_GUESS
    r = (guess.to_int().widen() << 32).bits()
    for _ in range(2):
        e = fma(-(a * r), r * r, 1.0)
        r = fma(r * e, fma(e, fma(e, 14 / 81, 2 / 9), 1 / 3), r)
    y = (a * r) * r
    square, error = two_product(y, y)
    y = fma(fma(-square, y, a) - error * y, r * r * (1.0 / 3.0), y)
    y = where(tiny, y * 2.0**-18, y)
    return where((a > 0.0) & (a < INF), copysign(y, x), x)
