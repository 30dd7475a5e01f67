"""Special functions as ops: error, gamma, beta, zeta and Bessel functions with their derivatives.

What they compute stands in `special_math`; here are types and rules. Floats below 32 bits are
computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

from funcgrad import dtypes
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.ops.elementwise.arithmetic import abs, div, in_float32, mul, neg, sign, square, sub
from funcgrad.ops.elementwise.compare import eq, gt
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.elementwise.transcendental import exp, log, log1p
from funcgrad.ops.families import FLAT, add, elementwise
from funcgrad.ops.special_math import functions as f

SQRT_PI = math.sqrt(math.pi)
NUMERICALLY = "approximate it by a difference quotient, or take lax.stop_gradient of the argument"


def special(name: str, impl: Any, *jvp: Any, doc: str) -> Primitive:
    """A special function of as many real operands as it has derivatives."""
    return elementwise(
        name,
        impl=in_float32(impl),
        jvp=FLAT if jvp == (FLAT,) else jvp,
        accepts=dtypes.is_float,
        need="floating-point numbers",
        doc=doc,
    )


# ---- error functions


def _gauss(x: Any) -> Any:
    """exp(-x²)."""
    return exp(neg(square(x)))


erf: Primitive = special(
    "erf",
    f.erf,
    lambda g, y, x: mul(g, mul(_gauss(x), 2 / SQRT_PI)),
    doc="""Elementwise error function 2/√π ∫₀ˣ exp(-t²) dt.

    >>> from funcgrad import lax
    >>> lax.erf(1.0)
    Array(0.84270..., dtype=float32, weak_type=True)
    """,
)

erfc: Primitive = special(
    "erfc",
    f.erfc,
    lambda g, y, x: mul(g, mul(_gauss(x), -2 / SQRT_PI)),
    doc="""Elementwise complementary error function 1 - erf(x), exact also where it is tiny.

    >>> from funcgrad import lax
    >>> lax.erfc(1.0)
    Array(0.15729..., dtype=float32, weak_type=True)
    """,
)

erf_inv: Primitive = special(
    "erf_inv",
    f.erf_inv,
    lambda g, y, x: mul(g, mul(exp(square(y)), SQRT_PI / 2)),
    doc="""Elementwise inverse of the error function: ±∞ at ±1, NaN beyond.

    >>> from funcgrad import lax
    >>> lax.erf_inv(0.5)
    Array(0.47693..., dtype=float32, weak_type=True)
    """,
)


def _normal(x: Any) -> Any:
    """The density of the standard normal distribution."""
    return mul(exp(mul(square(x), -0.5)), 1 / math.sqrt(2 * math.pi))


ndtr: Primitive = special(
    "ndtr",
    f.ndtr,
    lambda g, y, x: mul(g, _normal(x)),
    doc="""The standard normal distribution function ½ erfc(-x / √2).

    >>> ndtr(0.0)
    Array(0.5, dtype=float32, weak_type=True)
    """,
)

ndtri: Primitive = special(
    "ndtri",
    f.ndtri,
    lambda g, y, x: mul(g, mul(exp(mul(square(y), 0.5)), math.sqrt(2 * math.pi))),
    doc="""The inverse of `ndtr`: the quantile of the standard normal distribution.

    >>> ndtri(0.5)
    Array(0., dtype=float32, weak_type=True)
    """,
)

log_ndtr: Primitive = special(
    "log_ndtr",
    f.log_ndtr,
    # The density over the distribution function, as one exponential: both may underflow.
    lambda g, y, x: mul(g, exp(sub(mul(square(x), -0.5), add(y, 0.5 * math.log(2 * math.pi))))),
    doc="""The logarithm of `ndtr`, also far below zero.

    >>> log_ndtr(-10.0)
    Array(-53.2312..., dtype=float32, weak_type=True)
    """,
)

# ---- gamma functions

lgamma: Primitive = special(
    "lgamma",
    f.lgamma,
    lambda g, y, x: mul(g, digamma(x)),
    doc="""Elementwise log |Γ(x)|.

    >>> from funcgrad import lax
    >>> lax.lgamma(4.0)
    Array(1.79175..., dtype=float32, weak_type=True)
    """,
)

gammasgn: Primitive = special(
    "gammasgn",
    f.gammasgn,
    FLAT,
    doc="""The sign of Γ(x).

    >>> gammasgn(-0.5)
    Array(-1., dtype=float32, weak_type=True)
    """,
)

digamma: Primitive = special(
    "digamma",
    f.digamma,
    lambda g, y, x: mul(g, polygamma(1.0, x)),
    doc="""Elementwise digamma function, the derivative of log Γ(x).

    >>> from funcgrad import lax
    >>> lax.digamma(1.0)
    Array(-0.57721..., dtype=float32, weak_type=True)
    """,
)

polygamma: Primitive = special(
    "polygamma",
    f.polygamma,
    NoRule("its order is a whole number; differentiate in the second argument only"),
    lambda g, y, m, x: mul(g, polygamma(add(m, 1.0), x)),
    doc="""Elementwise polygamma function: the m-th derivative of digamma at x.

    >>> from funcgrad import lax
    >>> lax.polygamma(1.0, 1.0)
    Array(1.64493..., dtype=float32, weak_type=True)
    """,
)

zeta: Primitive = special(
    "zeta",
    f.zeta,
    NoRule(f"no derivative in the exponent is implemented; {NUMERICALLY}"),
    lambda g, y, x, q: neg(mul(g, mul(x, zeta(add(x, 1.0), q)))),
    doc="""Elementwise Hurwitz zeta function Σₖ (q + k)⁻ˣ, k = 0, 1, …, for x > 1.

    >>> from funcgrad import lax
    >>> lax.zeta(2.0, 1.0)
    Array(1.64493..., dtype=float32, weak_type=True)
    """,
)


def _times_log(exponent: Any, log_x: Any) -> Any:
    """exponent · log x, and 0 where the exponent is 0, whatever x."""
    return select(eq(exponent, 0), 0.0, mul(exponent, log_x))


def _gamma_density(a: Any, x: Any) -> Any:
    """x^(a-1) e^-x / Γ(a), the derivative of igamma in x."""
    return exp(sub(sub(_times_log(sub(a, 1.0), log(x)), x), lgamma(a)))


igamma: Primitive = special(
    "igamma",
    f.igamma,
    lambda g, y, a, x: mul(g, igamma_grad_a(a, x)),
    lambda g, y, a, x: mul(g, _gamma_density(a, x)),
    doc="""Elementwise regularized lower incomplete gamma function 1/Γ(a) ∫₀ˣ tᵃ⁻¹ e⁻ᵗ dt.

    >>> from funcgrad import lax
    >>> lax.igamma(1.0, 1.0)
    Array(0.63212..., dtype=float32, weak_type=True)
    """,
)

igammac: Primitive = special(
    "igammac",
    f.igammac,
    lambda g, y, a, x: neg(mul(g, igamma_grad_a(a, x))),
    lambda g, y, a, x: neg(mul(g, _gamma_density(a, x))),
    doc="""Elementwise regularized upper incomplete gamma function, 1 - igamma(a, x).

    >>> from funcgrad import lax
    >>> lax.igammac(1.0, 1.0)
    Array(0.36787..., dtype=float32, weak_type=True)
    """,
)

igamma_grad_a: Primitive = special(
    "igamma_grad_a",
    f.igamma_grad_a,
    NoRule(f"no second derivative of igamma in a is implemented; {NUMERICALLY}"),
    lambda g, y, a, x: mul(g, mul(_gamma_density(a, x), sub(log(x), digamma(a)))),
    doc="""The derivative of igamma(a, x) in a.

    >>> from funcgrad import lax
    >>> lax.igamma_grad_a(1.0, 1.0)
    Array(-0.4317..., dtype=float32, weak_type=True)
    """,
)

random_gamma_grad: Primitive = special(
    "random_gamma_grad",
    f.random_gamma_grad,
    NoRule(f"a sample's second derivative is not implemented; {NUMERICALLY}"),
    NoRule(f"a sample's second derivative is not implemented; {NUMERICALLY}"),
    doc="""How a sample x of the gamma distribution of shape a moves with a.

    This is -(∂igamma/∂a) / (∂igamma/∂x), at a fixed value of igamma(a, x).

    >>> from funcgrad import lax
    >>> lax.random_gamma_grad(1.0, 1.0)
    Array(1.173..., dtype=float32, weak_type=True)
    """,
)

# ---- beta


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """x^(a-1) (1-x)^(b-1) / B(a, b)."""
    left = _times_log(sub(a, 1.0), log(x))
    right = _times_log(sub(b, 1.0), log1p(neg(x)))
    return exp(add(add(left, right), sub(lgamma(add(a, b)), add(lgamma(a), lgamma(b)))))


betainc: Primitive = special(
    "regularized_incomplete_beta",
    f.betainc,
    NoRule(f"no derivative in a is implemented; {NUMERICALLY}"),
    NoRule(f"no derivative in b is implemented; {NUMERICALLY}"),
    lambda g, y, a, b, x: mul(g, _beta_density(a, b, x)),
    doc="""Elementwise regularized incomplete beta function 1/B(a, b) ∫₀ˣ tᵃ⁻¹ (1-t)ᵇ⁻¹ dt.

    >>> from funcgrad import lax
    >>> lax.betainc(1.0, 2.0, 0.5)
    Array(0.75, dtype=float32, weak_type=True)
    """,
)

# ---- Bessel functions

bessel_i0e: Primitive = special(
    "bessel_i0e",
    f.bessel_i0e,
    lambda g, y, x: mul(g, sub(bessel_i1e(x), mul(sign(x), y))),
    doc="""Elementwise e⁻|x| I₀(x), the scaled modified Bessel function of order 0.

    >>> from funcgrad import lax
    >>> lax.bessel_i0e(0.0)
    Array(1., dtype=float32, weak_type=True)
    """,
)


def _i1e_jvp(g: Any, y: Any, x: Any) -> Any:
    # I₁'(x) = I₀(x) - I₁(x)/x, where the quotient tends to ½ at 0.
    nonzero = gt(abs(x), 0.0)
    safe = select(nonzero, x, 1.0)
    quotient = select(nonzero, div(y, safe), 0.5)
    return mul(g, sub(sub(bessel_i0e(x), quotient), mul(sign(x), y)))


bessel_i1e: Primitive = special(
    "bessel_i1e",
    f.bessel_i1e,
    _i1e_jvp,
    doc="""Elementwise e⁻|x| I₁(x), the scaled modified Bessel function of order 1.

    >>> from funcgrad import lax
    >>> lax.bessel_i1e(0.0)
    Array(0., dtype=float32, weak_type=True)
    """,
)
