"""Logarithms of the beta function and of Poisson's and the binomial terms as ops."""

from __future__ import annotations

from typing import Any

from funcgrad.core.primitive import Primitive
from funcgrad.ops.elementwise.arithmetic import div, mul, sub
from funcgrad.ops.elementwise.compare import eq
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.elementwise.special import digamma, special
from funcgrad.ops.elementwise.transcendental import log, log1p
from funcgrad.ops.families import add
from funcgrad.ops.special_math import functions as f


def _quotient(a: Any, x: Any) -> Any:
    """a/x, and 0 where a = 0: the derivative of a log x."""
    return select(eq(a, 0.0), 0.0, div(a, select(eq(a, 0.0), 1.0, x)))


def _psi(a: Any) -> Any:
    return digamma(add(a, 1.0))


log_poisson: Primitive = special(
    "log_poisson",
    f.log_poisson,
    lambda g, y, a, x: mul(g, sub(log(x), _psi(a))),
    lambda g, y, a, x: mul(g, sub(_quotient(a, x), 1.0)),
    doc="""Elementwise log xᵃ e⁻ˣ/Γ(a + 1), of which all digits count also for large a and x.

    >>> log_poisson(2.0, 2.0)
    Array(-1.30685..., dtype=float32, weak_type=True)
    """,
)

log_binomial: Primitive = special(
    "log_binomial",
    f.log_binomial,
    lambda g, y, a, b, x: mul(g, add(log(x), sub(_psi(add(a, b)), _psi(a)))),
    lambda g, y, a, b, x: mul(g, add(log1p(mul(x, -1.0)), sub(_psi(add(a, b)), _psi(b)))),
    lambda g, y, a, b, x: mul(g, sub(_quotient(a, x), _quotient(b, sub(1.0, x)))),
    doc="""Elementwise log xᵃ (1-x)ᵇ Γ(a + b + 1)/(Γ(a + 1) Γ(b + 1)), with all digits.

    >>> log_binomial(1.0, 1.0, 0.5)
    Array(-0.69314..., dtype=float32, weak_type=True)
    """,
)

log_beta: Primitive = special(
    "log_beta",
    f.log_beta,
    lambda g, y, a, b: mul(g, sub(digamma(a), digamma(add(a, b)))),
    lambda g, y, a, b: mul(g, sub(digamma(b), digamma(add(a, b)))),
    doc="""Elementwise log B(a, b) for positive a and b.

    >>> log_beta(1.0, 2.0)
    Array(-0.69314..., dtype=float32, weak_type=True)
    """,
)
