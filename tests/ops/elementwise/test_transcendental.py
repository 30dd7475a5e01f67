"""Transcendental functions against NumPy in every dtype, derivatives to order 2, special points."""

import math

import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError
from funcgrad.ops.elementwise import transcendental as ops
from tests.ops.rules import check_derivatives, check_dims, check_vmap, jvp

FLOATS = [d for d in dtypes.ALL if dtypes.is_inexact(d)]
X = np.array([0.3, -0.7, 0.9])
ABOVE = np.array([1.3, 2.0, 4.5])
C = np.array([0.4 + 0.5j, -0.6 + 1.2j, 1.1 - 0.8j])

# op, NumPy's function, real sample.
UNARY = [
    (ops.exp, np.exp, X), (ops.exp2, lambda x: np.power(2, x), X), (ops.expm1, np.expm1, X),
    (ops.log, np.log, ABOVE), (ops.log1p, np.log1p, X),
    (ops.logistic, lambda x: 1 / (1 + np.exp(-x)), X),
    (ops.sin, np.sin, X), (ops.cos, np.cos, X), (ops.tan, np.tan, X),
    (ops.asin, np.arcsin, X), (ops.acos, np.arccos, X), (ops.atan, np.arctan, X),
    (ops.sinh, np.sinh, X), (ops.cosh, np.cosh, X), (ops.tanh, np.tanh, X),
    (ops.asinh, np.arcsinh, X), (ops.acosh, np.arccosh, ABOVE), (ops.atanh, np.arctanh, X),
]  # fmt: skip


def name(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize(("op", "reference", "x"), UNARY, ids=name)
def test_rules(op, reference, x, rng):
    for sample in (x, C):
        check_derivatives(op, [sample], rng)
        check_vmap(op, [sample], rng)
    check_dims(op, [x])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("op", "reference", "x"), UNARY, ids=name)
def test_values(op, reference, x, dtype, rng):
    wide = np.complex128 if dtypes.is_complex(dtype) else np.float64
    sample = (C if dtypes.is_complex(dtype) else x).astype(dtype)
    got = op(sample)
    assert got.dtype == dtype
    # NumPy's float32 functions are within 4 ulp.
    tol = 4 * float(dtypes.finfo(dtype).eps)
    exact = reference(sample.astype(wide)).astype(dtype).astype(wide)
    np.testing.assert_allclose(np.asarray(got).astype(wide), exact, rtol=tol, atol=tol)


@pytest.mark.parametrize(("op", "reference", "x"), UNARY, ids=name)
def test_integers_have_no_transcendental_functions(op, reference, x):
    with pytest.raises(DTypeError, match=f"{op.name} .*: need floating-point or complex numbers"):
        op(1)


def slope(op, at, dtype=np.float64):
    (t,) = jvp(op, [Array(np.asarray(at, dtype))], [Array(np.ones((), dtype))])
    return np.asarray(t).item()


def test_logistic_is_stable():
    x = np.array([-1000.0, -700.0, 0.0, 700.0, 1000.0, np.inf, -np.inf, np.nan])
    got = np.asarray(ops.logistic(x))
    np.testing.assert_allclose(got, [0, math.exp(-700), 0.5, 1, 1, 1, 0, np.nan], rtol=1e-15)
    z = np.asarray(ops.logistic(np.array([-1000 + 1j, 1000 + 1j])))
    np.testing.assert_array_equal(z, [0, 1])
    assert slope(ops.logistic, -1000.0) == 0
    assert slope(ops.logistic, 1000.0) == 0


def test_derivatives_at_special_points():
    assert slope(ops.log, 0.0) == math.inf
    assert slope(ops.asin, 1.0) == math.inf
    assert slope(ops.acos, 1.0) == -math.inf
    assert slope(ops.acosh, 1.0) == math.inf
    assert slope(ops.atanh, 1.0) == math.inf
    assert slope(ops.tanh, 1000.0) == 0
    assert slope(ops.exp, -math.inf) == 0
    # 1 - x² would cancel where (1 - x)(1 + x) does not.
    near = 1 - 2.0**-40
    assert slope(ops.asin, near) == pytest.approx(1 / math.sqrt(2.0**-40 * (1 + near)), rel=1e-14)


def test_acosh_keeps_to_its_branch(rng):
    z = np.array([-0.5 + 1e-3j, 0.5 - 2j, -3 + 0.5j, 2j])
    check_derivatives(ops.acosh, [z], rng)


@pytest.mark.parametrize(
    ("x", "y"),
    [(X, np.array([0.5, 1.1, -0.4])), (C, C[::-1]), (np.array(0.7), X), (X, np.array(-0.7))],
)
def test_atan2(x, y, rng):
    check_derivatives(ops.atan2, [x, y], rng)
    check_vmap(ops.atan2, [x, y], rng)
    if x.dtype.kind == "f":
        np.testing.assert_array_equal(np.asarray(ops.atan2(x, y)), np.arctan2(x, y))
    else:
        np.testing.assert_allclose(np.tan(np.asarray(ops.atan2(x, y))), x / y, rtol=1e-12)


def test_atan2_tells_quadrants_by_signs():
    got = ops.atan2(np.array([0.0, -0.0, 0.0]), np.array([-1.0, -1.0, 0.0]))
    np.testing.assert_array_equal(np.asarray(got), [np.pi, -np.pi, 0])


# ---- pow

BASE, EXPONENT = np.array([0.5, 1.7, 3.0]), np.array([1.5, -0.5, 2.0])


@pytest.mark.parametrize(
    ("x", "y"),
    [(BASE, EXPONENT), (C, C[::-1]), (BASE, np.array(2.0)), (np.array(1.5), EXPONENT)],
)
def test_pow_rules(x, y, rng):
    check_derivatives(ops.pow, [x, y], rng)
    check_vmap(ops.pow, [x, y], rng)
    check_dims(ops.pow, [x, y])


@pytest.mark.parametrize("exponent", [np.array([3, -2, 0], np.int32), 3, -1, 0])
def test_pow_with_integer_exponents(exponent, rng):
    x = np.array([-1.5, 0.5, 2.0])
    np.testing.assert_allclose(np.asarray(ops.pow(x, exponent)), x**exponent, rtol=1e-15)
    check_derivatives(lambda x: ops.pow(x, exponent), [x], rng)
    check_derivatives(lambda x: ops.pow(x, exponent), [C], rng)


def test_pow_at_zero():
    for exponent, expected in [(0.0, 0), (1.0, 1), (2.0, 0), (0, 0), (1, 1), (2, 0), (0.5, np.inf)]:
        assert slope(lambda x, e=exponent: ops.pow(x, e), 0.0) == expected
    for exponent, expected in [(1.0, 0), (2.0, 2), (2, 2), (3, 0), (0.0, 0)]:
        assert slope(lambda x, e=exponent: slope_of(lambda z: ops.pow(z, e), x), 0.0) == expected
    # In the exponent: 0ʸ is flat for y > 0.
    assert slope(lambda y: ops.pow(np.float64(0), y), 2.0) == 0
    assert math.isnan(slope(lambda y: ops.pow(np.float64(-1), y), 2.0))


def slope_of(op, x):
    return jvp(op, [x], [Array(np.ones(()))])[0]


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if dtypes.is_integer(d)], ids=str)
def test_pow_of_integers(dtype):
    info = dtypes.iinfo(dtype)
    bits, low = info.bits, int(info.min)
    bases = [0, 1, 2, 3, 7] + ([-1, -2, -7] if low else [])
    exponents = [0, 1, 2, 3, 5, 7] + ([-1, -2, -3] if low else [])
    pairs = [(b, e) for b in bases for e in exponents]
    x, y = (np.array(v).astype(dtype) for v in zip(*pairs, strict=True))
    got = np.asarray(ops.pow(x, y))
    assert got.dtype == dtype
    for (b, e), g in zip(pairs, got.tolist(), strict=True):
        exact = b**e if e >= 0 else (b ** (-e % 2 or 2) if b in (1, -1) else 0)
        assert (int(g) - exact) % (1 << bits) == 0, (b, e, g)


def test_pow_types():
    assert ops.pow(2.0, 3).weak_type
    assert ops.pow(2.0, np.arange(3, dtype=np.int32)).dtype == np.float32
    assert ops.pow(2, 3).dtype == np.int32
    assert ops.pow(np.float64(2), 3).dtype == np.float64
    mixed = (np.True_, np.int32(2)), (np.int32(2), np.float32(2)), (np.float32(2), np.float64(2))
    for x, y in mixed:
        with pytest.raises(DTypeError, match="pow: base and exponent must have one dtype"):
            ops.pow(x, np.asarray(y))
