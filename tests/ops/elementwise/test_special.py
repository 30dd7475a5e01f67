"""Special functions against SciPy, and their derivatives against finite differences."""

import math

import numpy as np
import pytest
import scipy.special as sp

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DifferentiationError, DTypeError
from funcgrad.ops.elementwise import special as ops
from tests.ops.rules import check_derivatives, check_dims, check_vmap, jvp, vjp

X = np.array([0.3, -0.7, 1.9])
POSITIVE = np.array([0.4, 1.7, 6.2])
UNIT = np.array([0.1, 0.5, 0.8])


def igamma_grad_a(a, x):
    return (sp.gammainc(a + 1e-4, x) - sp.gammainc(a - 1e-4, x)) / 2e-4


def random_gamma_grad(a, x):
    quantiles = sp.gammainc(a, x)
    return (sp.gammaincinv(a + 1e-4, quantiles) - sp.gammaincinv(a - 1e-4, quantiles)) / 2e-4


# op, SciPy's function, operands, the operands with a derivative.
CASES = [
    (ops.erf, sp.erf, (X,), (0,)), (ops.erfc, sp.erfc, (X,), (0,)),
    (ops.erf_inv, sp.erfinv, (UNIT,), (0,)),
    (ops.ndtr, sp.ndtr, (X,), (0,)), (ops.ndtri, sp.ndtri, (UNIT,), (0,)),
    (ops.log_ndtr, sp.log_ndtr, (X,), (0,)),
    (ops.lgamma, sp.gammaln, (X + 0.05,), (0,)), (ops.gammasgn, sp.gammasgn, (X,), (0,)),
    (ops.digamma, sp.digamma, (POSITIVE,), (0,)),
    (ops.polygamma, sp.polygamma, (np.array([1.0, 2.0, 3.0]), POSITIVE), (1,)),
    (ops.zeta, sp.zeta, (POSITIVE + 1.5, POSITIVE[::-1].copy()), (1,)),
    (ops.bessel_i0e, sp.i0e, (X,), (0,)), (ops.bessel_i1e, sp.i1e, (X,), (0,)),
    (ops.igamma, sp.gammainc, (POSITIVE, POSITIVE[::-1].copy()), (0, 1)),
    (ops.igammac, sp.gammaincc, (POSITIVE, POSITIVE[::-1].copy()), (0, 1)),
    (ops.igamma_grad_a, igamma_grad_a, (POSITIVE, POSITIVE[::-1].copy()), (1,)),
    (ops.random_gamma_grad, random_gamma_grad, (POSITIVE, POSITIVE[::-1].copy()), ()),
    (ops.betainc, sp.betainc, (POSITIVE, POSITIVE[::-1].copy(), UNIT), (2,)),
]  # fmt: skip


def name(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize(("op", "reference", "args", "smooth"), CASES, ids=name)
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
def test_values(op, reference, args, smooth, dtype):
    args = [a.astype(dtype) for a in args]
    got = op(*args)
    assert got.dtype == dtype
    exact = reference(*(a.astype(np.float64) for a in args))
    tol = 8 * float(dtypes.finfo(dtype).eps)
    if op in (ops.igamma_grad_a, ops.random_gamma_grad):
        # The reference is a difference quotient.
        tol = max(tol, 1e-6)
    exact = np.asarray(exact).astype(dtype).astype(np.float64)
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), exact, rtol=tol, atol=tol)


@pytest.mark.parametrize(("op", "reference", "args", "smooth"), CASES, ids=name)
def test_rules(op, reference, args, smooth, rng):
    def fun(*varied):
        full = list(args)
        for i, v in zip(smooth, varied, strict=True):
            full[i] = v
        return op(*full)

    if smooth:
        check_derivatives(fun, [args[i] for i in smooth], rng, order=ORDER.get(op.name, 2))
    check_vmap(op, args, rng)
    check_dims(op, args)


# Ops whose derivative has no derivative in all operands.
ORDER = {"igamma": 1, "igammac": 1}


def test_incomplete_functions_have_second_derivatives_in_x(rng):
    a = Array(POSITIVE)
    check_derivatives(lambda x: ops.igamma(a, x), [POSITIVE[::-1].copy()], rng)
    check_derivatives(lambda x: ops.igammac(1.0, x), [POSITIVE], rng)
    assert slope(lambda x: ops.igamma(1.0, x), 0.0) == 1
    assert slope(lambda x: ops.betainc(1.0, 2.0, x), 0.0) == pytest.approx(2)
    assert slope(lambda x: ops.betainc(2.0, 1.0, x), 1.0) == pytest.approx(2)


@pytest.mark.parametrize(("op", "reference", "args", "smooth"), CASES, ids=name)
def test_operands_without_a_derivative_say_so(op, reference, args, smooth):
    for i in set(range(len(args))) - set(smooth):
        primals = [Array(a) for a in args]
        with pytest.raises(DifferentiationError, match=f"{op.name} has no differentiation rule"):
            jvp(lambda x, i=i: op(*primals[:i], x, *primals[i + 1 :]), [primals[i]], [primals[i]])
    with pytest.raises(DTypeError, match=f"{op.name} .*: need floating-point numbers, got i32"):
        op(*(1 for _ in args))


def slope(fun, at):
    return np.asarray(jvp(fun, [Array(np.array(at))], [Array(np.array(1.0))])[0]).item()


def test_derivatives_at_special_points():
    assert slope(ops.erf, 0.0) == pytest.approx(2 / math.sqrt(math.pi))
    assert slope(ops.erf, 40.0) == 0
    # Far in the tail, where the density and the distribution function are both 0.
    assert slope(ops.log_ndtr, -50.0) == pytest.approx(50.02, rel=1e-4)
    assert slope(ops.gammasgn, -0.5) == 0
    assert slope(ops.bessel_i0e, 0.0) == 0
    assert slope(ops.bessel_i1e, 0.0) == 0.5
    assert slope(ops.bessel_i1e, 1e-12) == pytest.approx(0.5)
    assert slope(ops.bessel_i1e, 1e-310) == pytest.approx(0.5)  # its reciprocal overflows


def test_reverse_mode_sums_for_a_scalar_operand():
    m, x = Array(np.array(1.0)), Array(POSITIVE)
    (back,) = vjp(lambda q: ops.zeta(Array(POSITIVE + 1.5), q), [Array(np.array(2.0))],
                  [Array(np.ones(3))])  # fmt: skip
    expected = -np.sum((POSITIVE + 1.5) * sp.zeta(POSITIVE + 2.5, 2.0))
    assert np.asarray(back).item() == pytest.approx(expected)
    assert ops.polygamma(m, x).shape == (3,)
