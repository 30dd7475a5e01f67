"""Cumulative ops against NumPy, and their derivatives at zeros and ties."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.cumulative import (
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    recurrence,
)
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, jvp

NUMPY = {
    cumsum: lambda x, axis: np.cumsum(x, axis, dtype=x.dtype),
    cumprod: lambda x, axis: np.cumprod(x, axis, dtype=x.dtype),
    cummax: np.maximum.accumulate,
    cummin: np.minimum.accumulate,
    cumlogsumexp: np.logaddexp.accumulate,
}
every = pytest.mark.parametrize("op", NUMPY, ids=lambda op: op.__name__)


@every
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_values(op, reverse, dtype, rng):
    if op is cumlogsumexp and np.dtype(dtype).kind != "f":
        return
    for shape, axis in [((5,), 0), ((3, 4, 2), 1), ((3, 0), 1), ((0, 3), -1), ((4, 1), -2)]:
        x = (rng.standard_normal(shape) * 3).astype(dtype)
        flip = (lambda v: np.flip(v, axis)) if reverse else (lambda v: v)
        got = op(Array(x), axis, reverse)
        assert got.dtype == dtype
        np.testing.assert_allclose(np.asarray(got), flip(NUMPY[op](flip(x), axis)), rtol=1e-6)


@every
def test_small_dtypes(op, rng):
    x = rng.standard_normal(6).astype(ml_dtypes.bfloat16)
    got = op(Array(x))
    assert got.dtype == ml_dtypes.bfloat16
    wide = NUMPY[op](x.astype(np.float32), 0).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(got), wide)


def test_int4_wraps():
    got = np.asarray(cumsum(np.full(4, 3, ml_dtypes.int4)))
    assert got.astype(int).tolist() == [3, 6, -7, -4]


def test_extremes():
    x = np.array([1.0, np.nan, 2.0], np.float32)
    np.testing.assert_array_equal(np.asarray(cummax(x)), [1, np.nan, np.nan])
    assert np.asarray(cummin(np.array([True, False, True]))).tolist() == [True, False, False]
    y = np.asarray(cumlogsumexp(np.array([-np.inf, -np.inf, 0.0, 1000.0], np.float32)))
    np.testing.assert_array_equal(y, np.array([-np.inf, -np.inf, 0, 1000], np.float32))


@every
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((5,), 0), ((2, 4), 1), ((3, 2), 0), ((2, 0), 1)])
def test_rules(op, reverse, shape, axis, rng):
    fun = lambda x: op(x, axis, reverse)
    x = rng.standard_normal(shape)
    check_derivatives(fun, [x], rng, tol=1e-4)
    check_vmap(fun, [x], rng)
    check_dims(fun, [x])


def test_cumsum_transpose(rng):
    check_transpose(lambda x: cumsum(x, 1), [(3, 4)], rng)
    check_transpose(lambda x: cumsum(x, 0, True), [(3, 4)], rng)


def test_cumprod_is_differentiable_at_zeros(rng):
    for zeros in ([1], [0, 3], [0, 1, 2, 3, 4]):
        x = rng.standard_normal(5)
        x[zeros] = 0
        check_derivatives(cumprod, [x], rng, tol=1e-4)


def test_ties_share_the_tangent_of_a_cummax():
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0, 4.0])
    g = np.array([1.0, 2.0, 4.0, 8.0, 6.0, 5.0])
    (t,) = jvp(cummax, [Array(x)], [Array(g)])
    np.testing.assert_allclose(np.asarray(t), [1, 2, 3, 3, 4, 5])
    (t,) = jvp(cummin, [Array(-x)], [Array(g)])
    np.testing.assert_allclose(np.asarray(t), [1, 2, 3, 3, 4, 5])


def test_cumlogsumexp_derivative_after_minus_infinity(rng):
    x = np.array([-np.inf, -np.inf, 0.5, -1.0])
    (t,) = jvp(cumlogsumexp, [Array(x)], [Array(np.ones(4))])
    np.testing.assert_allclose(np.asarray(t), [0, 0, 1, 1])


def test_recurrence(rng):
    a, b = rng.standard_normal((2, 3, 7))
    for reverse in (False, True):
        expected, h = np.zeros_like(b), np.zeros(3)
        for k in reversed(range(7)) if reverse else range(7):
            h = expected[:, k] = a[:, k] * h + b[:, k]
        got = recurrence(Array(a), Array(b), 1, reverse)
        np.testing.assert_allclose(np.asarray(got), expected)


def test_errors():
    with pytest.raises(ShapeError, match="cumsum: axis 1 is out of range"):
        cumsum(np.zeros(3), 1)
    with pytest.raises(DTypeError, match=r"cumprod.*: need numbers, got bool\[3\]"):
        cumprod(np.zeros(3, bool))
    with pytest.raises(DTypeError, match="cummax.*: need real numbers, got c64"):
        cummax(np.zeros(3, np.complex64))
    with pytest.raises(DTypeError, match="cumlogsumexp.*: need floating-point numbers, got i32"):
        cumlogsumexp(np.zeros(3, np.int32))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_extrema_compiled_with_nan_and_infinity(dtype, reverse, rng):
    x = (rng.standard_normal((4, 50)) * 9).astype(dtype)
    if x.dtype.kind == "f":
        x[0, [2, 30]], x[1], x[2, 7], x[3, 5] = np.nan, -np.inf, np.inf, -0.0
        x[1, 20] = -np.nan
    for op in (cummax, cummin):
        got = fg.jit(lambda x, op=op: op(x, axis=1, reverse=reverse))(x)
        np.testing.assert_array_equal(got, op(x, axis=1, reverse=reverse))
