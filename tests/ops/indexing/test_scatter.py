"""Scatters against their definition in loops, with derivatives and batching."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DifferentiationError, DTypeError, ShapeError
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.indexing import scatter as ops
from funcgrad.ops.indexing.windows import ScatterDimensionNumbers
from tests.ops.rules import (
    check_derivatives,
    check_dims,
    check_transpose,
    check_vmap,
    jvp,
    vjp,
)
from tests.ops.window_cases import gathered_shape, make_case, scatter_loop

CASES = [make_case(seed) for seed in range(50)]
OPS = {
    "scatter": (ops.scatter, lambda a, b: b),
    "scatter_add": (ops.scatter_add, np.add),
    "scatter_sub": (ops.scatter_sub, np.subtract),
    "scatter_mul": (ops.scatter_mul, np.multiply),
    "scatter_min": (ops.scatter_min, np.minimum),
    "scatter_max": (ops.scatter_max, np.maximum),
}
ELEMENT = ScatterDimensionNumbers((), (0,), (0,))
ROW = ScatterDimensionNumbers((1,), (0,), (0,))


def same(got, expected):
    got = np.asarray(got)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(complex), expected.astype(complex))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_values(op, case, rng):
    fun, combine = OPS[op]
    # Small integers, so that the order of additions and products makes no difference.
    x = rng.integers(-3, 4, case.shape).astype("float32")
    updates = rng.integers(-3, 4, gathered_shape(case)).astype("float32")
    for spread in (0, 2):
        indices = case.indices(rng, spread)
        for mode in ("drop", "clip"):
            expected = scatter_loop(case, x, indices, updates, mode, combine)
            same(fun(x, indices, updates, case.scatter_numbers, mode=mode), expected)


@pytest.mark.parametrize("case", CASES[:24], ids=str)
@pytest.mark.parametrize("op", ["scatter", "scatter_add", "scatter_sub", "scatter_max"])
@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_rules(op, case, mode, rng):
    indices = case.indices(rng, 1)
    shapes = [case.shape, gathered_shape(case)]
    args = [rng.standard_normal(s) for s in shapes]
    fun = lambda x, u: OPS[op][0](x, indices, u, case.scatter_numbers, mode=mode)
    check_derivatives(fun, args, rng, order=1)
    check_dims(fun, args)
    if op != "scatter_max":
        check_transpose(fun, shapes, rng)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("op", ["scatter", "scatter_add", "scatter_min"])
def test_batching(op, case, rng):
    args = [
        rng.integers(-3, 4, case.shape).astype("float32"),
        case.indices(rng, 1),
        rng.integers(-3, 4, gathered_shape(case)).astype("float32"),
    ]
    for mode in ("drop", "clip"):
        fun = lambda x, i, u: OPS[op][0](x, i, u, case.scatter_numbers, mode=mode)
        check_vmap(fun, args, rng)


@pytest.mark.parametrize("op", OPS)
def test_derivatives_to_order_two(op, rng):
    at = np.array([[2], [0], [9]])
    options = {"unique_indices": True} if op == "scatter_mul" else {}
    fun = lambda x, u: OPS[op][0](mul(x, x), at, mul(u, u), ROW, **options)
    check_derivatives(fun, [rng.standard_normal((4, 2)), rng.standard_normal((3, 2))], rng)


def test_the_last_of_several_updates_stays(rng):
    at, updates = np.array([[1], [1], [0], [1]]), np.arange(4.0) + 5
    x = np.zeros(3)
    same(ops.scatter(x, at, updates, ELEMENT), np.array([7.0, 8, 0]))
    fun = lambda x, u: ops.scatter(x, at, u, ELEMENT)
    ct_x, ct_updates = vjp(fun, [Array(x), Array(updates)], [Array(np.array([1.0, 2, 3]))])
    same(ct_x, np.array([0.0, 0, 3]))
    same(ct_updates, np.array([0.0, 0, 1, 2]))
    check_derivatives(fun, [x, updates], rng)


def test_equal_candidates_of_an_extremum_share_the_derivative():
    at, updates = np.array([[0], [0], [1]]), np.array([2.0, 2, 1])
    fun = lambda x, u: ops.scatter_max(x, at, u, ELEMENT)
    args = [Array(np.array([2.0, 3])), Array(updates)]
    ct_x, ct_updates = vjp(fun, args, [Array(np.array([6.0, 1]))])
    np.testing.assert_allclose(np.asarray(ct_x), [2, 1])
    np.testing.assert_allclose(np.asarray(ct_updates), [2, 2, 0])


def test_products_where_updates_meet_have_the_operand_s_derivative_only(rng):
    at, x = np.array([[1], [1]]), np.array([2.0, 3])
    fun = lambda x: ops.scatter_mul(x, at, np.array([5.0, 7]), ELEMENT)
    check_derivatives(fun, [x], rng)
    updates = Array(np.ones(2))
    with pytest.raises(DifferentiationError, match="pass unique_indices=True"):
        jvp(lambda u: ops.scatter_mul(x, at, u, ELEMENT), [updates], [updates])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_floats_are_rounded_once(dtype):
    n = 3000
    at, ones = np.zeros((n, 1), int), np.ones(n, dtype)
    got = ops.scatter_add(np.zeros(1, dtype), at, ones, ELEMENT)
    assert got.dtype == dtype
    assert float(np.asarray(got)[0]) == float(np.asarray(n, dtype))


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int64", "complex64", ml_dtypes.bfloat16, ml_dtypes.int4]
)
def test_dtypes(dtype):
    x, at = np.arange(3).astype(dtype), np.array([[1], [1], [5]])
    updates = np.array([2, 3, 4]).astype(dtype)
    same(ops.scatter_add(x, at, updates, ELEMENT), np.array([0, 6, 2]).astype(dtype))
    same(ops.scatter_mul(x, at, updates, ELEMENT), np.array([0, 6, 2]).astype(dtype))
    same(ops.scatter(x, at, updates, ELEMENT), np.array([0, 3, 2]).astype(dtype))
    if np.dtype(dtype).kind != "c":
        same(ops.scatter_max(x, at, updates, ELEMENT), np.array([0, 3, 2]).astype(dtype))
        same(ops.scatter_min(x, at, updates, ELEMENT), np.array([0, 1, 2]).astype(dtype))


def test_booleans():
    x, at = np.array([True, False]), np.array([[1], [0]])
    same(ops.scatter(x, at, np.array([True, False]), ELEMENT), np.array([False, True]))
    same(ops.scatter_max(x, at, np.array([True, False]), ELEMENT), np.array([True, True]))
    same(ops.scatter_min(x, at, np.array([True, False]), ELEMENT), np.array([False, False]))


def test_nan_is_an_extremum():
    got = ops.scatter_max(np.zeros(2), np.array([[0]]), np.array([np.nan]), ELEMENT)
    same(got, np.array([np.nan, 0]))


def test_empty(rng):
    x = np.zeros((3, 4))
    same(ops.scatter_add(x, np.zeros((0, 1), int), np.zeros((0, 4)), ROW), x)
    same(ops.scatter(np.zeros((3, 0)), np.zeros((2, 1), int), np.zeros((2, 0)), ROW), x[:, :0])
    none = ScatterDimensionNumbers((), (), ())
    same(ops.scatter(np.array(1.0), np.zeros((2, 0), int), np.array([3.0, 4]), none), np.array(4.0))


def test_the_operand_is_not_written_to():
    x = np.zeros(3)
    for fun, _ in OPS.values():
        fun(x, np.array([[1]]), np.ones(1), ELEMENT)
    same(x, np.zeros(3))


x34 = np.zeros((3, 4), np.float32)
at = np.zeros((2, 1), int)


@pytest.mark.parametrize(
    ("updates", "numbers", "error", "words"),
    [
        ((2, 5), ROW, ShapeError, "Bounds of the window .* axis 1 .* has 5, the operand 4"),
        ((3, 4), ROW, ShapeError, r"same as those of the indices: \(3,\) and \(2,\); got operand"),
        ((2,), ROW, ShapeError, r"Updates tensor must be of rank 2; got 1\."),
        ((2, 4), ELEMENT, ShapeError, "Updates tensor must be of rank 1"),
        ((2,), ELEMENT._replace(inserted_window_dims=()), ShapeError, "window of size 0; .*rank 2"),
    ],
)
def test_shape_errors(updates, numbers, error, words):
    with pytest.raises(error, match=f"scatter_add: .*{words}"):
        ops.scatter_add(x34, at, np.zeros(updates, np.float32), numbers)


def test_dtype_errors():
    with pytest.raises(DTypeError, match=r"scatter: updates must have the operand's dtype"):
        ops.scatter(x34, at, np.zeros((2, 4)), ROW)
    with pytest.raises(DTypeError, match="scatter_add.*: need numbers, got operand bool"):
        ops.scatter_add(x34 > 0, at, np.zeros((2, 4), bool), ROW)
    with pytest.raises(DTypeError, match="scatter_min.*: need real numbers"):
        ops.scatter_min(x34 * 1j, at, np.zeros((2, 4), "complex64"), ROW)
