"""Bessel functions under SciPy's names, of whole orders, and modified ones of real order."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.ops.arguments import integer
from funcgrad.ops.elementwise import bessel
from funcgrad.scipy._operands import real_operands


def _of(name: str, op: Any, *args: Any) -> Any:
    """An op on real arguments, of which the last one is x."""
    names = ("n", "x") if len(args) == 2 else ("x",)
    return op(*real_operands(f"special.{name}", dict(zip(names, args, strict=True))).values())


def j0(x: Any) -> Any:
    """The Bessel function of the first kind of order 0.

    >>> from funcgrad.scipy import special
    >>> print(special.j0(1.0))
    0.7651977
    """
    return _of("j0", bessel.bessel_j0, x)


def j1(x: Any) -> Any:
    """The Bessel function of the first kind of order 1.

    >>> from funcgrad.scipy import special
    >>> print(special.j1(1.0))
    0.44005057
    """
    return _of("j1", bessel.bessel_j1, x)


def y0(x: Any) -> Any:
    """The Bessel function of the second kind of order 0: -inf at 0, NaN for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.y0(1.0))
    0.08825696
    """
    return _of("y0", bessel.bessel_y0, x)


def y1(x: Any) -> Any:
    """The Bessel function of the second kind of order 1: -inf at 0, NaN for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.y1(1.0))
    -0.7812128
    """
    return _of("y1", bessel.bessel_y1, x)


def jn(n: Any, x: Any) -> Any:
    """The Bessel function of the first kind of a whole order n, which has no derivative in n.

    SciPy's takes any real order; here orders that aren't whole, or beyond ±900, give NaN.

    >>> from funcgrad.scipy import special
    >>> print(special.jn(2, 1.0))
    0.11490349
    """
    return _of("jn", bessel.bessel_jn, n, x)


def yn(n: Any, x: Any) -> Any:
    """The Bessel function of the second kind of a whole order n, which has no derivative in n.

    NaN for negative x, and for orders that aren't whole or beyond ±900.

    >>> from funcgrad.scipy import special
    >>> print(special.yn(2, 1.0))
    -1.6506826
    """
    return _of("yn", bessel.bessel_yn, n, x)


def ive(v: Any, x: Any) -> Any:
    """e⁻|x| times the modified Bessel function of the first kind of real order v.

    NaN for orders of -1 and less, and for negative x, unless the order is whole.

    >>> from funcgrad.scipy import special
    >>> print(special.ive(0.5, 1.0))
    0.344951...
    """
    v, x = real_operands("special.ive", {"v": v, "x": x}).values()
    return bessel.bessel_ive(v, x)


def iv(v: Any, x: Any) -> Any:
    """The modified Bessel function of the first kind of real order v; where it is NaN, see `ive`.

    >>> from funcgrad.scipy import special
    >>> print(special.iv(0.5, 1.0))
    0.937674...
    """
    v, x = real_operands("special.iv", {"v": v, "x": x}).values()
    endless = fnp.isinf(x)
    finite = fnp.where(endless, 0.0, x)
    half = fnp.exp(0.5 * fnp.abs(finite))  # e^|x| itself overflows before the function does
    value = half * bessel.bessel_ive(v, finite) * half
    odd = fnp.abs(fnp.fmod(v, 2.0)) == 1.0
    whole = v == fnp.floor(v)
    far = fnp.where(x > 0, fnp.inf, fnp.where(whole, fnp.where(odd, -fnp.inf, fnp.inf), fnp.nan))
    return fnp.where(endless, fnp.where(fnp.logical_or(v > -1, whole), far, fnp.nan), value)


def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Any:
    """Bessel's J₀(z) … Jᵥ(z) along a new first axis, by recurrence from the order n_iter down.

    >>> from funcgrad.scipy import special
    >>> print(special.bessel_jn(1.0, v=1))
    [0.7651977  0.44005057]
    """
    v, n_iter = integer("special.bessel_jn: v", v), integer("special.bessel_jn: n_iter", n_iter)
    if not 0 <= v < n_iter:
        raise ArgumentError(f"special.bessel_jn: need 0 ≤ v < n_iter, got {v} and {n_iter}")
    (given,) = real_operands("special.bessel_jn", {"z": z}).values()
    z = given.astype(np.float64)
    nonzero = z != 0
    inverse = 2 / fnp.where(nonzero, z, 1.0)
    last, now = fnp.zeros_like(z), fnp.full_like(z, 1e-30)
    norm = fnp.zeros_like(z)
    orders: list[Any] = []
    for k in range(n_iter, 0, -1):
        last, now = now, k * inverse * now - last
        # What grows too much is scaled down, all alike.
        scale = fnp.where(fnp.abs(now) > 1e30, fnp.full_like(z, 1e-40), 1.0)
        last, now, norm = last * scale, now * scale, norm * scale
        orders = [o * scale for o in orders]
        if k - 1 <= v:
            orders.append(now)
        if (k - 1) % 2 == 0:
            norm = norm + (now if k == 1 else 2 * now)
    values = fnp.stack([o / norm for o in reversed(orders)])
    at_zero = fnp.stack([fnp.full_like(z, float(k == 0)) for k in range(v + 1)])
    return fnp.where(nonzero, values, at_zero).astype(given.dtype)
