"""Reductions against NumPy, derivatives at ties and zeros, and reductions by any monoid."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise import arithmetic
from funcgrad.ops.elementwise.arithmetic import mul, sub
from funcgrad.ops.elementwise.compare import bitwise_and, bitwise_or, bitwise_xor, gt
from funcgrad.ops.elementwise.convert import select
from funcgrad.ops.families import add
from funcgrad.ops.reduce import (
    argmax,
    argmin,
    highest,
    lowest,
    reduce,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_xor,
)
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, jvp, vjp

NUMBERS = {
    reduce_sum: lambda x, axes: np.sum(x, axes, dtype=x.dtype),
    reduce_prod: lambda x, axes: np.prod(x, axes, dtype=x.dtype),
    reduce_max: lambda x, axes: np.max(x, axes, initial=lowest(x.dtype)),
    reduce_min: lambda x, axes: np.min(x, axes, initial=highest(x.dtype)),
}
BITS = {
    reduce_and: np.bitwise_and.reduce,
    reduce_or: np.bitwise_or.reduce,
    reduce_xor: np.bitwise_xor.reduce,
}
name = lambda v: getattr(v, "__name__", str(v))
SHAPES = [(), (4,), (2, 3), (2, 0, 3), (3, 1, 2)]


def axes_of(shape):
    return [c for n in range(len(shape) + 1) for c in itertools.combinations(range(len(shape)), n)]


@pytest.mark.parametrize("op", NUMBERS, ids=name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "complex64"])
def test_numbers(op, dtype, rng):
    for shape in SHAPES:
        x = np.asarray(rng.standard_normal(shape) * 4).astype(dtype)
        for axes in axes_of(shape):
            got = op(Array(x), axes)
            assert got.dtype == dtype
            np.testing.assert_allclose(np.asarray(got), NUMBERS[op](x, axes), rtol=1e-5)


@pytest.mark.parametrize("op", BITS, ids=name)
@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_bits(op, dtype, rng):
    for shape in SHAPES:
        x = np.asarray(rng.integers(0, 200, shape) % (2 if dtype == "bool" else 256)).astype(dtype)
        for axes in axes_of(shape):
            got = op(Array(x), axes)
            assert got.dtype == dtype
            np.testing.assert_array_equal(np.asarray(got), BITS[op](x, axes))


def test_small_dtypes(rng):
    x = rng.standard_normal(300).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    assert np.asarray(reduce_max(x, [0])) == wide.max()
    assert np.asarray(reduce_prod(x[:9], [0])) == wide[:9].prod().astype(ml_dtypes.bfloat16)
    assert np.asarray(argmax(x, 0)) == wide.argmax()
    four = np.array([3, -8, 7], ml_dtypes.int4)
    assert int(reduce_min(four, [0])) == -8
    assert int(reduce_max(four[:0], [0])) == -8
    assert int(reduce_xor(four[:1], [0])) == 3
    assert float(reduce_max(np.zeros(0, ml_dtypes.float8_e4m3fn), [0])) == -448


def test_nan_is_kept_and_found_first():
    x = np.array([[1.0, np.nan, 3.0, np.nan], [2.0, 2.0, 5.0, 5.0]], np.float32)
    assert np.isnan(np.asarray(reduce_max(x, [1]))).tolist() == [True, False]
    assert np.isnan(np.asarray(reduce_min(x, [1]))).tolist() == [True, False]
    assert np.asarray(argmax(x, 1)).tolist() == [1, 2]
    assert np.asarray(argmin(x, 1)).tolist() == [1, 0]


@pytest.mark.parametrize("op", [argmax, argmin], ids=name)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_positions(op, dtype, rng):
    x = rng.integers(0, 3, (3, 4, 2)).astype(dtype)
    for axis in (0, 1, -1):
        got = op(Array(x), axis, "uint8")
        assert got.dtype == np.uint8
        np.testing.assert_array_equal(np.asarray(got), getattr(np, op.__name__)(x, axis))
    check_vmap(lambda x: op(x, 1), [x], rng)
    check_dims(lambda x: op(x, 1), [x])


def test_positions_have_no_tangent():
    fun = lambda x: mul(x, x) if int(argmax(x, 0)) == 1 else x
    (t,) = jvp(fun, [Array(np.array([1.0, 2.0]))], [Array(np.ones(2))])
    assert np.asarray(t).tolist() == [2.0, 4.0]


@pytest.mark.parametrize("op", NUMBERS, ids=name)
@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2), (2, 1)])
def test_rules(op, shape, rng):
    x = rng.standard_normal(shape)
    for axes in axes_of(shape)[1:]:
        fun = lambda x: op(x, axes)
        check_derivatives(fun, [x], rng, tol=1e-4)
        check_vmap(fun, [x], rng)
        check_dims(fun, [x])


@pytest.mark.parametrize("op", BITS, ids=name)
def test_rules_of_bits(op, rng):
    x = rng.integers(0, 200, (2, 3, 4))
    for axes in axes_of(x.shape):
        check_vmap(lambda x: op(x, axes), [x], rng)
        check_dims(lambda x: op(x, axes), [x])


def test_sum_transpose(rng):
    check_transpose(lambda x: reduce_sum(x, [0, 2]), [(2, 3, 4)], rng)


def test_ties_share_the_gradient():
    x = Array(np.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]]))
    (ct,) = vjp(lambda x: reduce_max(x, [1]), [x], [Array(np.array([1.0, 1.0]))])
    np.testing.assert_allclose(np.asarray(ct), [[0, 0.5, 0.5, 0], [0.25] * 4])
    (ct,) = vjp(lambda x: reduce_min(x, [0, 1]), [x], [Array(np.float64(1.0))])
    np.testing.assert_allclose(np.asarray(ct), [[0, 0, 0, 1], [0] * 4])


@pytest.mark.parametrize("zeros", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_prod_is_differentiable_at_zeros(zeros, rng):
    x = rng.standard_normal((2, 4))
    x[0, zeros] = 0
    check_derivatives(lambda x: reduce_prod(x, [1]), [x], rng, tol=1e-4)
    check_derivatives(lambda x: reduce_prod(x, [1, 0]), [x], rng, tol=1e-4)


@pytest.mark.parametrize(
    ("op", "function", "init"),
    [
        (add, np.sum, 0),
        (mul, np.prod, 1),
        (arithmetic.max, np.max, -(2**31)),
        (arithmetic.min, np.min, 2**31 - 1),
        (bitwise_and, np.bitwise_and.reduce, -1),
        (bitwise_or, np.bitwise_or.reduce, 0),
        (bitwise_xor, np.bitwise_xor.reduce, 0),
    ],
)
def test_reduce_finds_monoids(op, function, init, rng):
    x = rng.integers(1, 6, (2, 3, 4)).astype(np.int32)
    run = lambda start: lambda x: [reduce(x, start, lambda a, b: op(b, a), (0, 2))]
    np.testing.assert_array_equal(np.asarray(run(init)(x)[0]), function(x, (0, 2)))
    jaxpr, _ = stage(run(init), [aval_of(x)])
    assert [e.prim.name.startswith("reduce_") for e in jaxpr.eqns] == [True]
    with_init = np.asarray(op(Array(function(x, (0, 2)).astype(np.int32)), 3))
    np.testing.assert_array_equal(np.asarray(run(3)(x)[0]), with_init)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8])
def test_reduce_by_an_associative_function_in_order(size, rng):
    """Affine maps x → a x + b under composition: associative, and not commutative."""
    a, b = rng.standard_normal((2, 2, size))
    compose = lambda f, g: (mul(f[0], g[0]), add(mul(f[1], g[0]), g[1]))
    got = reduce((a, b), (np.float64(1.0), np.float64(0.0)), compose, [1])
    slope, offset = np.ones(2), np.zeros(2)
    for k in range(size):
        slope, offset = slope * a[:, k], offset * a[:, k] + b[:, k]
    np.testing.assert_allclose(np.asarray(got[0]), slope)
    np.testing.assert_allclose(np.asarray(got[1]), offset)


def test_reduce_rules(rng):
    greatest_magnitude = lambda a, b: select(gt(mul(a, a), mul(b, b)), a, b)
    fun = lambda x: reduce(x, 0.0, greatest_magnitude, [0])
    x = rng.standard_normal((5, 2))
    np.testing.assert_array_equal(
        np.asarray(fun(x)), np.take_along_axis(x, np.abs(x).argmax(0)[None], 0)[0]
    )
    check_derivatives(fun, [x], rng)
    check_vmap(fun, [x], rng)


def test_errors():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match="reduce_max: axis 2 is out of range"):
        reduce_max(x, [2])
    with pytest.raises(ShapeError, match="reduce_prod: axes .* not distinct"):
        reduce_prod(x, [1, -1])
    with pytest.raises(DTypeError, match=r"reduce_and.*: need integers or bool, got f32\[2,3\]"):
        reduce_and(x, [0])
    with pytest.raises(DTypeError, match="reduce_prod.*: need numbers, got bool"):
        reduce_prod(x.astype(bool), [0])
    with pytest.raises(ShapeError, match=r"argmax: axis 0 of f32\[0,3\] is empty"):
        argmax(x[:0], 0)
    with pytest.raises(DTypeError, match="argmin: index_dtype must be an integer dtype"):
        argmin(x, 0, "float32")
    with pytest.raises(TypeError, match="reduce: init_values must have the structure"):
        reduce((x, x), 0.0, sub, [0])
    with pytest.raises(ShapeError, match="reduce found non-scalar initial value.*float32, not"):
        reduce(x, np.zeros(2, np.float32), sub, [0])
