"""Bessel functions under SciPy's names, of real orders, with derivatives in the argument."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.errors import ArgumentError
from funcgrad.ops.arguments import integer
from funcgrad.ops.elementwise import bessel
from funcgrad.scipy._operands import real_operands


def _of(name: str, op: Any, *args: Any) -> Any:
    """An op of a real argument, or of an order and that."""
    names = ("v", "z") if len(args) == 2 else ("x",)
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


def jv(v: Any, z: Any) -> Any:
    """The Bessel function of the first kind of a real order v up to ±900; `jn` is another name.

    NaN for orders beyond, and for negative z unless the order is whole. Where it oscillates, errors
    are some ulp of √(2/πz).

    >>> from funcgrad.scipy import special
    >>> print(special.jv(0.5, 1.0))
    0.67139...
    """
    return _of("jv", bessel.bessel_jn, v, z)


jn = jv


def yv(v: Any, z: Any) -> Any:
    """The Bessel function of the second kind of a real order v up to ±900; `yn` is another name.

    NaN for orders beyond, and for negative z; infinite at 0, where J of the order -v isn't.

    >>> from funcgrad.scipy import special
    >>> print(special.yv(0.5, 1.0))
    -0.43109...
    """
    return _of("yv", bessel.bessel_yn, v, z)


yn = yv


def kve(v: Any, z: Any) -> Any:
    """eᶻ times the modified Bessel function of the second kind of real order v.

    ∞ at 0, and NaN for negative z.

    >>> from funcgrad.scipy import special
    >>> print(special.kve(0.5, 1.0))
    1.253314...
    """
    return _of("kve", bessel.bessel_kve, v, z)


def kv(v: Any, z: Any) -> Any:
    """The modified Bessel function of the second kind of real order v; `kn` is another name.

    ∞ at 0, and NaN for negative z.

    >>> from funcgrad.scipy import special
    >>> print(special.kv(0.5, 1.0))
    0.461068...
    """
    v, z = real_operands("special.kv", {"v": v, "z": z}).values()
    half = fnp.exp(-0.5 * fnp.where(z < 0, 0.0, z))  # e⁻ᶻ vanishes before the function does
    return half * bessel.bessel_kve(v, z) * half


kn = kv


def k0(x: Any) -> Any:
    """The modified Bessel function of the second kind of order 0: `kv(0, x)`.

    >>> from funcgrad.scipy import special
    >>> print(special.k0(1.0))
    0.42102...
    """
    return kv(0.0, x)


def k1(x: Any) -> Any:
    """The modified Bessel function of the second kind of order 1: `kv(1, x)`.

    >>> from funcgrad.scipy import special
    >>> print(special.k1(1.0))
    0.60190...
    """
    return kv(1.0, x)


def k0e(x: Any) -> Any:
    """eˣ times the modified Bessel function of the second kind of order 0: `kve(0, x)`.

    >>> from funcgrad.scipy import special
    >>> print(special.k0e(1.0))
    1.14446...
    """
    return kve(0.0, x)


def k1e(x: Any) -> Any:
    """eˣ times the modified Bessel function of the second kind of order 1: `kve(1, x)`.

    >>> from funcgrad.scipy import special
    >>> print(special.k1e(1.0))
    1.63615...
    """
    return kve(1.0, x)


def ive(v: Any, z: Any) -> Any:
    """e⁻|z| times the modified Bessel function of the first kind of real order v.

    NaN for negative z, unless the order is whole.

    >>> from funcgrad.scipy import special
    >>> print(special.ive(0.5, 1.0))
    0.344951...
    """
    return _of("ive", bessel.bessel_ive, v, z)


def iv(v: Any, z: Any) -> Any:
    """The modified Bessel function of the first kind of real order v; where it is NaN, see `ive`.

    >>> from funcgrad.scipy import special
    >>> print(special.iv(0.5, 1.0))
    0.937674...
    """
    v, z = real_operands("special.iv", {"v": v, "z": z}).values()
    endless = fnp.isinf(z)
    finite = fnp.where(endless, 0.0, z)
    half = fnp.exp(0.5 * fnp.abs(finite))  # e^|z| itself overflows before the function does
    value = half * bessel.bessel_ive(v, finite) * half
    odd = fnp.abs(fnp.fmod(v, 2.0)) == 1.0
    below = fnp.where(v == fnp.floor(v), fnp.where(odd, -fnp.inf, fnp.inf), fnp.nan)
    far = fnp.where(z > 0, fnp.inf, below)
    return fnp.where(endless, fnp.where(fnp.isnan(v), v, far), value)


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
