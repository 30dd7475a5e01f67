"""The Bessel functions as ops, with derivatives in the argument."""

from __future__ import annotations

from typing import Any

from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.ops.elementwise.arithmetic import mul, neg, sign, sub
from funcgrad.ops.elementwise.special import NUMERICALLY, special
from funcgrad.ops.families import add
from funcgrad.ops.special_math import functions as f

NO_ORDER = NoRule(f"no derivative in the order is implemented; {NUMERICALLY}")


def _half_difference(g: Any, below: Any, above: Any) -> Any:
    """(f_{n-1} - f_{n+1})/2, which is the derivative of both kinds."""
    return mul(g, mul(sub(below, above), 0.5))


bessel_j0: Primitive = special(
    "bessel_j0",
    f.bessel_j0,
    lambda g, y, x: neg(mul(g, bessel_j1(x))),
    doc="""Elementwise J₀(x), the Bessel function of the first kind of order 0.

    >>> from funcgrad.scipy import special
    >>> print(special.j0(0.0))
    1.0
    """,
)

bessel_j1: Primitive = special(
    "bessel_j1",
    f.bessel_j1,
    lambda g, y, x: _half_difference(g, bessel_j0(x), bessel_jn(2.0, x)),
    doc="""Elementwise J₁(x), the Bessel function of the first kind of order 1.

    >>> from funcgrad.scipy import special
    >>> print(special.j1(0.0))
    0.0
    """,
)

bessel_y0: Primitive = special(
    "bessel_y0",
    f.bessel_y0,
    lambda g, y, x: neg(mul(g, bessel_y1(x))),
    doc="""Elementwise Y₀(x), the Bessel function of the second kind of order 0.

    It is -inf at 0, and NaN for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.y0(1.0))
    0.08825696
    """,
)

bessel_y1: Primitive = special(
    "bessel_y1",
    f.bessel_y1,
    lambda g, y, x: _half_difference(g, bessel_y0(x), bessel_yn(2.0, x)),
    doc="""Elementwise Y₁(x), the Bessel function of the second kind of order 1.

    It is -inf at 0, and NaN for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.y1(1.0))
    -0.7812128
    """,
)

bessel_jn: Primitive = special(
    "bessel_jn",
    f.bessel_jn,
    NO_ORDER,
    lambda g, y, n, x: _half_difference(g, bessel_jn(sub(n, 1.0), x), bessel_jn(add(n, 1.0), x)),
    doc="""Elementwise Jₙ(x), the Bessel function of the first kind of a real order n.

    It is NaN for orders beyond ±900, and for negative x where the order isn't whole.

    >>> from funcgrad.scipy import special
    >>> print(special.jn(2, 1.0))
    0.11490349
    """,
)

bessel_yn: Primitive = special(
    "bessel_yn",
    f.bessel_yn,
    NO_ORDER,
    lambda g, y, n, x: _half_difference(g, bessel_yn(sub(n, 1.0), x), bessel_yn(add(n, 1.0), x)),
    doc="""Elementwise Yₙ(x), the Bessel function of the second kind of a real order n.

    It is NaN for orders beyond ±900, and for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.yn(2, 1.0))
    -1.6506826
    """,
)


def _ive_jvp(g: Any, y: Any, v: Any, x: Any) -> Any:
    both = add(bessel_ive(sub(v, 1.0), x), bessel_ive(add(v, 1.0), x))
    return mul(g, sub(mul(both, 0.5), mul(sign(x), y)))


bessel_ive: Primitive = special(
    "bessel_ive",
    f.bessel_ive,
    NO_ORDER,
    _ive_jvp,
    doc="""Elementwise e⁻|x| Iᵥ(x), the scaled modified Bessel function of the first kind.

    It is NaN for negative x where the order v isn't whole.

    >>> from funcgrad.scipy import special
    >>> print(special.ive(0.5, 1.0))
    0.344951...
    """,
)


def _kve_jvp(g: Any, y: Any, v: Any, x: Any) -> Any:
    both = add(bessel_kve(sub(v, 1.0), x), bessel_kve(add(v, 1.0), x))
    return mul(g, sub(y, mul(both, 0.5)))


bessel_kve: Primitive = special(
    "bessel_kve",
    f.bessel_kve,
    NO_ORDER,
    _kve_jvp,
    doc="""Elementwise eˣ Kᵥ(x), the scaled modified Bessel function of the second kind.

    The order v is real. It is ∞ at 0, and NaN for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.kve(0.5, 1.0))
    1.253314...
    """,
)
