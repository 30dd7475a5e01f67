"""Sorting against NumPy, with NaN, ties, several keys, and the derivatives along a permutation."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.sort import (
    approx_max_k,
    approx_min_k,
    argsort,
    sort,
    sort_key_val,
    take_along_axis,
    top_k,
)
from tests.ops.rules import check_derivatives, check_dims, check_vmap, vjp

SHAPES = [((5,), 0), ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((2, 0), 1), ((0, 3), 1)]
shapes = pytest.mark.parametrize(("shape", "axis"), SHAPES)


@shapes
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "complex64", "bfloat16"])
def test_sort(shape, axis, dtype, rng):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = rng.integers(0, 9, shape).astype(dtype)
    got = sort(Array(x), axis)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), np.sort(x, axis))


def test_nan_comes_last_and_zeros_are_equal():
    x = np.array([np.nan, np.inf, 0.0, -0.0, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(np.asarray(sort(x)), np.sort(x))
    assert np.asarray(argsort(x)).tolist() == [4, 2, 3, 1, 0, 5]


@shapes
def test_several_keys(shape, axis, rng):
    a, b = rng.integers(0, 3, (2, *shape))
    c = rng.standard_normal(shape)
    one = sort((a, c), axis)
    two = sort([a, b, c], axis, num_keys=2)
    assert type(one) is type(two) is tuple
    order = np.argsort(a, axis, kind="stable")
    np.testing.assert_array_equal(np.asarray(one[1]), np.take_along_axis(c, order, axis))
    order = np.lexsort((b, a), axis)
    for got, x in zip(two, (a, b, c), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.take_along_axis(x, order, axis))


@shapes
def test_argsort_is_stable_both_ways(shape, axis, rng):
    x = rng.integers(0, 3, shape)
    np.testing.assert_array_equal(np.asarray(argsort(x, axis)), np.argsort(x, axis, kind="stable"))
    np.testing.assert_array_equal(
        np.asarray(argsort(x, axis, descending=True)), np.argsort(-x, axis, kind="stable")
    )


@shapes
def test_rules(shape, axis, rng):
    x = rng.permutation(np.arange(np.prod(shape))).reshape(shape) / 7
    y = rng.standard_normal(shape)
    for fun, args in (
        (lambda x: sort(x, axis), [x]),
        (lambda x, y: sort((x, y), axis), [x, y]),
        (lambda y: sort((Array(x), y), axis), [y]),
        (lambda x, y: sort_key_val(x, y, axis)[1], [x, y]),
    ):
        check_derivatives(fun, args, rng)
        check_vmap(fun, args, rng)
        check_dims(fun, args)


def test_sort_with_integer_keys_moves_gradients(rng):
    keys, x = np.array([3, 1, 2], np.int32), rng.standard_normal(3)
    ct = vjp(lambda x: sort_key_val(keys, x)[1], [Array(x)], [Array(np.array([1.0, 2.0, 3.0]))])
    assert np.asarray(ct[0]).tolist() == [3, 1, 2]


@pytest.mark.parametrize("k", [0, 1, 3, 6])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_top_k(k, dtype, rng):
    x = rng.integers(0, 4, (3, 6)).astype(dtype)
    values, order = top_k(Array(x), k)
    expected = np.argsort(-x.astype(int), axis=-1, kind="stable")[:, :k]
    assert values.dtype == dtype
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.asarray(order), expected)
    np.testing.assert_array_equal(np.asarray(values), np.take_along_axis(x, expected, -1))


def test_top_k_takes_nan_first():
    values, order = top_k(np.array([1.0, np.nan, np.inf, 2.0], np.float32), 3)
    np.testing.assert_array_equal(np.asarray(values), [np.nan, np.inf, 2])
    assert np.asarray(order).tolist() == [1, 2, 3]


def test_top_k_rules(rng):
    x = rng.permutation(np.arange(12.0)).reshape(3, 4)
    fun = lambda x: top_k(x, 2)
    check_derivatives(fun, [x], rng)
    check_vmap(fun, [x], rng)
    check_dims(fun, [x])


def test_take_along_axis(rng):
    x = rng.standard_normal((3, 4, 2))
    order = rng.integers(0, 4, (3, 5, 2)).astype(np.int32)
    fun = lambda x: take_along_axis(x, Array(order), 1)
    np.testing.assert_array_equal(np.asarray(fun(Array(x))), np.take_along_axis(x, order, 1))
    check_derivatives(fun, [x], rng)
    check_vmap(lambda x, i: take_along_axis(x, i, 1), [x, order], rng)


def test_errors():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match="sort: axis 2 is out of range"):
        sort(x, 2)
    with pytest.raises(ShapeError, match="sort: operands must have one shape"):
        sort((x, x[0]))
    with pytest.raises(ShapeError, match="num_keys must be from 1 to 2, got 3"):
        sort((x, x), num_keys=3)
    with pytest.raises(TypeError, match="sort: need at least one operand"):
        sort(())
    with pytest.raises(ShapeError, match=r"top_k: k = 4 must be .* last axis of f32\[2,3\]"):
        top_k(x, 4)
    with pytest.raises(DTypeError, match="top_k.*: need real numbers"):
        top_k(x.astype(np.complex64), 1)


EDGES = {
    "f": [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40],
    "i": [-(2**31), -1, 0, 1, 2**31 - 1],
    "u": [0, 1, 2**16, 2**31, 2**32 - 1],
}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
@pytest.mark.parametrize("dimension", [0, 1])
def test_long_axes_sort_as_numpy_does_with_ties(dtype, dimension):
    dtype = np.dtype(dtype)
    x = np.random.default_rng(0).choice(np.array(EDGES[dtype.kind]).astype(dtype), (700, 600))
    places = np.broadcast_to(np.arange(x.shape[1], dtype=np.int32), x.shape)
    order = np.argsort(x, axis=dimension, kind="stable")
    outs = sort((x, places), dimension)
    for out, operand in zip(outs, (x, places), strict=True):
        wanted = np.take_along_axis(operand, order, dimension)
        assert np.asarray(out).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.float16, np.int8, np.bool_])
@pytest.mark.parametrize("k", [0, 1, 7, 40])
def test_top_k_takes_the_first_of_equals(dtype, k):
    dtype = np.dtype(dtype)
    edges = EDGES.get(dtype.kind, [0, 1])
    x = np.random.default_rng(0).choice(np.array(edges).astype(dtype), (30, 40))
    order = 39 - np.argsort(x[:, ::-1], axis=-1, kind="stable")[:, ::-1][:, :k]
    values, places = top_k(x, k)
    np.testing.assert_array_equal(places, order)
    assert np.asarray(values).tobytes() == np.take_along_axis(x, order, -1).tobytes()


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_the_greatest_and_least_along_an_axis(axis, rng):
    x = rng.permutation(24).reshape(2, 3, 4).astype(float)
    k = min(2, x.shape[axis])
    greatest, least = -np.sort(-x, axis), np.sort(x, axis)
    first = np.s_[:k]
    for f, want in ((top_k, greatest), (approx_max_k, greatest), (approx_min_k, least)):
        option = {"axis" if f is top_k else "reduction_dimension": axis}
        values, places = f(x, k, **option)
        np.testing.assert_array_equal(
            values, np.moveaxis(np.moveaxis(want, axis, 0)[first], 0, axis)
        )
        np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(places), axis), values)
        check_derivatives(lambda x: f(x, k, **option)[0], [x], rng, order=1)
        check_vmap(lambda x: f(x, k, **option)[0], [x], rng)
