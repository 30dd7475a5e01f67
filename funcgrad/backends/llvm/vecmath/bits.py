"""Functions that are exact: fmod and nextafter."""

from __future__ import annotations

from funcgrad.backends.llvm.vecmath.ir import LAYOUT, Num, copysign, fabs, fma, libm, rint, where

INF, NAN = float("inf"), float("nan")


def _remainder(a: Num, m: Num, inverse: Num) -> Num:
    """a modulo m, in about ±m/2, exactly: integers a < 2^52 and m < 2^24 as doubles."""
    return fma(-rint(a * inverse), m, a)


def fmod(x: Num, y: Num) -> Num:
    """C's remainder of x = m·2^(d+e) by y = n·2^e: (m·(2^d mod n) mod n)·2^e."""
    if x.width == 64:
        return libm("fmod", x, y)
    a, b = fabs(x), fabs(y)
    wa, wb = a.widen(), b.widen()
    mask, one = -1 << 52, LAYOUT[64].one
    ea, eb = wa.bits() & mask, wb.bits() & mask
    m = (wa.bits() - ea + (one + (23 << 52))).bits()  # integers in [2^23, 2^24)
    n = (wb.bits() - eb + (one + (23 << 52))).bits()
    inverse = 1.0 / n
    d = (ea - eb) >> 52
    power = (((d >> 4) << 52) + one).bits()
    for bit in (3, 2, 1, 0):
        doubled = ((((d >> bit) & 1) << 52) + one).bits()
        power = _remainder(power * power * doubled, n, inverse)
    r = _remainder(m * power, n, inverse)
    r = where(r < 0.0, r + n, r) * (eb - (23 << 52)).bits()
    y_is_larger = a < b
    r = where(y_is_larger, x, copysign(r.narrow(), x))
    return where((a < INF) & (b > 0.0), r, NAN)


def nextafter(x: Num, y: Num) -> Num:
    """The float beside x in the direction of y, by a step of its bits as an integer."""
    away = where(x < y, x > 0.0, x < 0.0)
    i = x.bits()
    step = where(away, i + 1, i - 1).bits()
    smallest = copysign(i.const(1).bits(), y)
    moved = where(x.eq(0.0), smallest, step)
    return where(x < y, moved, where(x > y, moved, where(x.eq(y), y, x + y)))
