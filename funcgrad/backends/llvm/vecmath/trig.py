"""sin, cos, tan over every finite argument.

Usual arguments lose a multiple of π/2, given in three parts, by fma (after Cody & Waite, 1980). Far
ones are reduced in turns: x·1/(2π) modulo 1. A large x is scaled down to an integer x·2^-S, and
1/(2π) is replaced by the fraction of 2^S/(2π), as whole turns do not matter; fma splits the
products exactly (after Payne & Hanek, 1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.vecmath.ir import (
    F64,
    LAYOUT,
    Num,
    fabs,
    fma,
    horner,
    lookup,
    nearest,
    rint,
    two_product,
    two_sum,
    where,
)
from funcgrad.backends.llvm.vecmath.rare import replace_beyond

# 1/(2π) to 1216 binary places.
TURN_PLACES = 1216
TURN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF1586DC91B8E909374B801924BBA827464873F877AC72C4A69CFBA208D7D4BAED1213A671C09AD17DF904E64758E60D4CE7D272117E2EF7E4A0EC7FE25FFF7816603FBCBC462D6829B47DB4D9FB3C9F2C26DD3D18FD9A797FA8B5D49EEB1FAF97C5ECF41CE7DE294A4BA9AFED7EC47E357421580CC11BF1EDAEA  # noqa: E501
HALF_PI = (1.5707963267948966, 6.123233995736766e-17)

# Where the usual reduction ends, and π/2 in three parts. The first multiple's difference from x is
# exact; the bounds keep what the rounding of x·2/π adds to |r| ≤ π/4 below 2^-8.
NEAR = {32: 2.0**16, 64: 2.0**30}
HALF_PI_PARTS = {
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}

# (sin(r) - r)/r³ in z = r² for |r| ≤ π/4: degree 2, error 2^-27.9 of sin; degree 5, 2^-57.9.
SIN = {
    32: (-0.16666655, 0.008332188, -0.00019518095),
    64: (
        -0.1666666666666663,
        0.00833333333332184,
        -0.00019841269829358544,
        2.755731353852453e-06,
        -2.505073439140999e-08,
        1.589543343672803e-10,
    ),
}
# (cos(r) - 1 + z/2)/z² in z = r² for |r| ≤ π/4: degree 2, error 2^-33; degree 5, 2^-63.9.
COS = {
    32: (0.041666646, -0.001388731, 2.4432327e-05),
    64: (
        0.041666666666666595,
        -0.0013888888888873325,
        2.4801587288983675e-05,
        -2.755731421007253e-07,
        2.0875704270569477e-09,
        -1.1358683307114652e-11,
    ),
}


def _turn_parts(shift: int, count: int) -> list[float]:
    """The fraction of 2^shift/(2π) as a sum of `count` doubles."""
    one = 1 << TURN_PLACES
    rest, parts = (TURN << shift) % one, []
    for _ in range(count):
        parts.append(rest / one)
        numerator, denominator = parts[-1].as_integer_ratio()
        rest -= numerator * one // denominator
    return parts


def _quarter_turns(s: Num, rest: Num | None = None) -> tuple[Num, Num, Num]:
    """Of s + rest turns: the quadrant (in low bits), the remainder in radians, and its error."""
    magic = LAYOUT[64].magic
    t = fma(s, 4.0, magic)
    g = fma(s, 4.0, -(t - magic))
    if rest is None:
        return t.bits(), g * HALF_PI[0], g
    r, error = two_product(g, HALF_PI[0])
    return t.bits(), r, fma(g, HALF_PI[1], fma(rest, 4 * HALF_PI[0], error))


def _far32(x: Num) -> tuple[Num, Num]:
    """The quadrant of |x| and the remainder r, |r| ≤ π/4, for float x."""
    a = fabs(x)
    parts = _turn_parts(0, 2)
    scale, c1, c2 = a.const(1.0), *(Num(x.b, ir.Constant(F64, c)) for c in parts)
    for threshold in (51, 77, 103):  # above each, x·2^-shift is an integer, below 2^49
        shift, large = threshold - 23, a >= 2.0**threshold
        parts = _turn_parts(shift, 2)
        scale = where(large, 2.0**-shift, scale)
        c1, c2 = where(large, parts[0], c1), where(large, parts[1], c2)
    y = (a * scale).widen()
    p, error = two_product(y, c1)
    s = (p - rint(p)) + fma(y, c2, error)
    quadrant, r, _ = _quarter_turns(s)
    return quadrant.narrow(), r.narrow()


def _far64(x: Num) -> tuple[Num, Num, Num]:
    """The quadrant of |x|, the remainder r and a correction to it, for double x."""
    a = fabs(x)
    group = ((a.bits() >> 52) - (LAYOUT[64].bias + 52)) >> 4
    group = where(group < 0, group.const(0), group)
    y = a * ((LAYOUT[64].bias - (group << 4)) << 52).bits()  # an integer below 2^68, or x
    rows = [_turn_parts(16 * j, 4) for j in range(61)]
    c1, c2, c3, c4 = (
        lookup(group & 63, f"fg.turn.{i}", [r[i] for r in rows] + [0.0] * 3) for i in range(4)
    )
    p1, e1 = two_product(y, c1)
    p2, e2 = two_product(y, c2)
    p3, e3 = two_product(y, c3)
    u, v = two_sum(e1, p2)
    s, low = two_sum(p1 - rint(p1), u - rint(u))
    w, rest = two_sum(e2, p3)
    w, rest2 = two_sum(v, w)
    s, low2 = two_sum(s, w)
    return _quarter_turns(s, (low + low2) + ((rest + rest2) + fma(y, c4, e3)))


def _near32(x: Num) -> tuple[Num, Num]:
    """`_far32` for |x| up to the bound."""
    k, quadrant = nearest(fabs(x), 2 / math.pi)
    r = fabs(x)
    for part in HALF_PI_PARTS[32]:
        r = fma(k, -part, r)
    return quadrant, r


def _near64(x: Num) -> tuple[Num, Num, Num]:
    """`_far64` for |x| up to the bound."""
    k, quadrant = nearest(fabs(x), 2 / math.pi)
    first, second, third = HALF_PI_PARTS[64]
    whole = fma(k, -first, fabs(x))
    p, error = two_product(k, second)
    r = whole - p
    return quadrant, r, fma(k, -third, ((whole - r) - p) - error)


def _sin_cos(x: Num, near: bool) -> tuple[Num, Num, Num]:
    """The quadrant of |x|, and sine and cosine of the remainder."""
    if x.width == 32:
        quadrant, r = _near32(x) if near else _far32(x)
        z = r * r
        sin = fma(r * z, horner(z, SIN[32]), r)
        return quadrant, sin, horner(z, (1.0, -0.5, *COS[32]))
    quadrant, r, low = _near64(x) if near else _far64(x)
    z = r * r
    half = z * 0.5
    one = 1.0 - half
    sin = r + fma(r * z, horner(z, SIN[64]), fma(-half, low, low))
    cos = one + fma(z * z, horner(z, COS[64]), ((1.0 - one) - half) - r * low)
    return quadrant, sin, cos


def _flip(y: Num, condition_bits: Num) -> Num:
    """`y` with its sign changed where the top bit of `condition_bits` is set."""
    return (y.bits() ^ (condition_bits & (1 << (y.width - 1)))).bits()


def _sin(x: Num, near: bool) -> Num:
    q, s, c = _sin_cos(x, near)
    y = where((q & 1).eq(0), s, c)
    return _flip(y, x.bits() ^ (q << (x.width - 2)))


def _cos(x: Num, near: bool) -> Num:
    q, s, c = _sin_cos(x, near)
    y = where((q & 1).eq(0), c, s)
    return _flip(y, (q + 1) << (x.width - 2))


def _tan(x: Num, near: bool) -> Num:
    q, s, c = _sin_cos(x, near)
    even = (q & 1).eq(0)
    y = where(even, s, c) / where(even, c, s)
    return _flip(y, x.bits() ^ (q << (x.width - 1)))


def _everywhere(name: str, way: Callable[[Num, bool], Num]) -> Callable[[Num], Num]:
    def function(x: Num) -> Num:
        """The function of any x: the near way, and the far one where x is beyond the bound."""
        return replace_beyond(name, NEAR[x.width], x, way(x, True), lambda x: way(x, False))

    return function


sin = _everywhere("sin", _sin)
cos = _everywhere("cos", _cos)
tan = _everywhere("tan", _tan)
