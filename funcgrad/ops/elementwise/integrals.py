"""Logarithms with a guarded zero, the exponential integrals and the dilogarithm as ops."""

from __future__ import annotations

from typing import Any

from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.ops.elementwise.arithmetic import div, mul, neg, sub
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.elementwise.special import special
from funcgrad.ops.elementwise.transcendental import exp, log, log1p
from funcgrad.ops.families import add
from funcgrad.ops.special_math import functions as f

xlogy: Primitive = special(
    "xlogy",
    f.xlogy,
    lambda g, z, x, y: mul(g, log(y)),
    lambda g, z, x, y: mul(g, div(x, y)),
    doc="""Elementwise x·log(y), 0 where x = 0.

    >>> from funcgrad.scipy import special
    >>> print(special.xlogy(0.0, 0.0))
    0.0
    """,
)

xlog1py: Primitive = special(
    "xlog1py",
    f.xlog1py,
    lambda g, z, x, y: mul(g, log1p(y)),
    lambda g, z, x, y: mul(g, div(x, add(y, 1.0))),
    doc="""Elementwise x·log(1 + y), 0 where x = 0.

    >>> from funcgrad.scipy import special
    >>> print(special.xlog1py(0.0, -1.0))
    0.0
    """,
)

entr: Primitive = special(
    "entr",
    f.entr,
    lambda g, y, x: neg(mul(g, add(log(x), 1.0))),
    doc="""Elementwise entropy -x·log(x), 0 at 0, -inf for negative x.

    >>> from funcgrad.scipy import special
    >>> print(special.entr(1.0))
    -0.0
    """,
)

logit: Primitive = special(
    "logit",
    f.logit,
    lambda g, y, x: div(g, mul(x, sub(1.0, x))),
    doc="""Elementwise log(x / (1 - x)), the inverse of the logistic function.

    >>> from funcgrad.scipy import special
    >>> print(special.logit(0.5))
    0.0
    """,
)


def _spence_slope(g: Any, y: Any, x: Any) -> Any:
    # At 1 it is 0/0: what stands there has the limit's value and first derivatives.
    at_one = eq(x, 1.0)
    safe = select(at_one, 2.0, x)
    u = sub(x, 1.0)
    limit = sub(mul(u, sub(0.5, mul(u, 1 / 3))), 1.0)
    return mul(g, select(at_one, limit, div(log(safe), sub(1.0, safe))))


spence: Primitive = special(
    "spence",
    f.spence,
    _spence_slope,
    doc="""Elementwise dilogarithm ∫₁ˣ log(t)/(1 - t) dt for x ≥ 0.

    >>> from funcgrad.scipy import special
    >>> print(special.spence(1.0))
    0.0
    """,
)

exp1: Primitive = special(
    "exp1",
    f.exp1,
    lambda g, y, x: neg(mul(g, div(exp(neg(x)), x))),
    doc="""Elementwise exponential integral E₁(x) = ∫ₓ^∞ e⁻ᵗ/t dt.

    >>> from funcgrad.scipy import special
    >>> print(special.exp1(1.0))
    0.21938394
    """,
)

expi: Primitive = special(
    "expi",
    f.expi,
    lambda g, y, x: mul(g, div(exp(x), x)),
    doc="""Elementwise exponential integral Ei(x), the principal value of ∫₋∞ˣ eᵗ/t dt.

    >>> from funcgrad.scipy import special
    >>> print(special.expi(1.0))
    1.8951179
    """,
)

expn: Primitive = special(
    "expn",
    f.expn,
    NoRule("its order is an integer, in which there is no derivative"),
    lambda g, y, n, x: neg(mul(g, expn(sub(n, 1.0), x))),
    doc="""Elementwise generalized exponential integral Eₙ(x) = ∫₁^∞ e⁻ˣᵗ/tⁿ dt.

    >>> from funcgrad.scipy import special
    >>> print(special.expn(1.0, 1.0))
    0.21938394
    """,
)
