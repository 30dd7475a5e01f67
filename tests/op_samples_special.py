"""Rows of the special functions, whose meaning is SciPy's."""

import numpy as np
import scipy.special as sp

from funcgrad.ops.elementwise import bessel
from funcgrad.ops.elementwise import binomial as b
from funcgrad.ops.elementwise import integrals as i
from funcgrad.ops.elementwise import special as s
from tests.op_samples_base import FLOATS, SIGNED, UNIT, Arg, Domain, Row, case

STEP = 1e-4
ORDER = Domain(1, 4, whole=True)
SHAPE, POINT = Domain(0.4, 6), Domain(0.3, 7)


def igamma_grad_a(a, x):
    """Of fourth order in the step."""
    near = sp.gammainc(a + STEP, x) - sp.gammainc(a - STEP, x)
    far = sp.gammainc(a + 2 * STEP, x) - sp.gammainc(a - 2 * STEP, x)
    return (8 * near - far) / (12 * STEP)


def random_gamma_grad(a, x):
    density = np.exp((a - 1) * np.log(x) - x - sp.gammaln(a))
    return -igamma_grad_a(a, x) / density


def log_binomial(a, b, x):
    return sp.xlogy(a, x) + sp.xlog1py(b, -x) - sp.betaln(a + 1, b + 1) - np.log(a + b + 1)


def row(prim, oracle, *domains, **rest):
    """A special function of as many operands as there are domains."""
    shapes = [[(5,)] * len(domains), [()] * len(domains), [(0, 2)] * len(domains)]
    if len(domains) > 1:
        shapes += [[() if i == j else (2, 3) for j in range(len(domains))] for i in (0, 1)]
    else:
        shapes.append([(3, 7)])
    tests = ["eager grad vmap jit dims", "eager jit", "eager jit", "jit vmap dims", "jit dims"]
    cases = tuple(
        case(*map(Arg, of_args, domains), tests=t)
        for of_args, t in zip(shapes, tests, strict=False)
    )
    rest.setdefault("ulps", 32)
    rest.setdefault("jit_ulps", 64)
    return Row(prim=prim, oracle=oracle, dtypes=FLOATS, cases=cases, **rest)


NO_ORDER = {0: "order"}
SPECIAL = [
    row(s.erf, sp.erf, SIGNED), row(s.erfc, sp.erfc, SIGNED),
    row(s.erf_inv, sp.erfinv, Domain(-0.9, 0.9)),
    row(s.ndtr, sp.ndtr, SIGNED), row(s.ndtri, sp.ndtri, UNIT, atol=8),
    row(s.log_ndtr, sp.log_ndtr, Domain(-8, 3)),
    row(s.lgamma, sp.gammaln, Domain(0.1, 9), atol=8, jit_atol=8),
    row(s.gammasgn, sp.gammasgn, Domain(-3, 3)),
    row(s.digamma, sp.digamma, Domain(0.2, 8), atol=8, jit_atol=8),
    row(s.polygamma, sp.polygamma, ORDER, Domain(0.5, 6), no_derivative={0: "whole number"}),
    row(s.zeta, sp.zeta, Domain(1.6, 6), Domain(0.5, 5), no_derivative={0: "exponent"}),
    row(s.igamma, sp.gammainc, SHAPE, POINT, order=1, gradient_tol=1e-4),
    row(s.igammac, sp.gammaincc, SHAPE, POINT, order=1, gradient_tol=1e-4),
    row(s.igamma_grad_a, igamma_grad_a, SHAPE, POINT, order=1, ulps=64, atol=1e5,
        no_derivative={0: "second derivative"}, jit_atol=16),
    row(s.random_gamma_grad, random_gamma_grad, SHAPE, POINT, ulps=1e7, atol=1e5,
        no_derivative={0: "second derivative", 1: "second derivative"}, jit_atol=16),
    row(s.betainc, sp.betainc, SHAPE, SHAPE, UNIT, ulps=64, jit_atol=4,
        no_derivative={0: "in a", 1: "in b"}),
    row(b.log_poisson, lambda a, x: sp.xlogy(a, x) - x - sp.gammaln(a + 1), SHAPE, POINT,
        atol=64, jit_atol=64),
    row(b.log_binomial, log_binomial, SHAPE, SHAPE, UNIT, atol=64, jit_atol=64),
    row(b.log_beta, sp.betaln, SHAPE, SHAPE, atol=64, jit_atol=64),
    row(s.bessel_i0e, sp.i0e, SIGNED), row(s.bessel_i1e, sp.i1e, SIGNED),
    row(bessel.bessel_j0, sp.j0, SIGNED, atol=8), row(bessel.bessel_j1, sp.j1, SIGNED, atol=8),
    row(bessel.bessel_y0, sp.y0, POINT, atol=8), row(bessel.bessel_y1, sp.y1, POINT, atol=8),
    row(bessel.bessel_jn, sp.jv, SHAPE, POINT, atol=8, no_derivative=NO_ORDER),
    row(bessel.bessel_yn, sp.yv, SHAPE, POINT, atol=64, no_derivative=NO_ORDER),
    row(bessel.bessel_kve, sp.kve, SHAPE, POINT, atol=8, no_derivative=NO_ORDER),
    row(bessel.bessel_ive, sp.ive, SHAPE, POINT, atol=8, no_derivative=NO_ORDER),
    row(i.xlogy, sp.xlogy, SIGNED, Domain(0.2, 4), atol=8, jit_atol=8),
    row(i.xlog1py, sp.xlog1py, SIGNED, Domain(-0.8, 4), atol=8, jit_atol=8),
    row(i.entr, sp.entr, Domain(0.1, 4), atol=8, jit_atol=8, signed_zeros=False),
    row(i.logit, sp.logit, UNIT, atol=8, jit_atol=8),
    row(i.spence, sp.spence, Domain(0.1, 5), atol=8, jit_atol=8),
    row(i.exp1, sp.exp1, Domain(0.1, 6)), row(i.expi, sp.expi, Domain(0.8, 6), jit_atol=8),
    row(i.expn, sp.expn, ORDER, Domain(0.2, 5), no_derivative=NO_ORDER),
]  # fmt: skip
