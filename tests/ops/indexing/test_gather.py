"""Gather against its definition in loops, with derivatives and batching."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core import dims as dims_
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.indexing.gather import gather, gather_p
from funcgrad.ops.indexing.windows import GatherDimensionNumbers, GatherScatterMode, batched_numbers
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap
from tests.ops.window_cases import gather_loop, make_case

CASES = [make_case(seed) for seed in range(60)]


def same(got, expected):
    got = np.asarray(got)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(complex), expected.astype(complex))


def taken(case, indices, **options):
    return lambda x: gather(x, indices, case.numbers, case.sizes, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case, rng):
    x = rng.standard_normal(case.shape)
    for spread in (0, 2):
        indices = case.indices(rng, spread)
        for mode, fill in (("fill", np.nan), ("clip", None), ("fill", -7.0)):
            expected = gather_loop(case, x, indices, mode, fill if fill else 0)
            given = None if fill is None or np.isnan(fill) else fill
            same(taken(case, indices, mode=mode, fill_value=given)(x), expected)
    inside = case.indices(rng)
    same(taken(case, inside, mode="promise_in_bounds")(x), gather_loop(case, x, inside, "clip", 0))


@pytest.mark.parametrize("case", CASES[:30], ids=str)
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_rules(case, mode, rng):
    x, indices = rng.standard_normal(case.shape), case.indices(rng, 1)
    fun = taken(case, indices, mode=mode, fill_value=0)
    check_derivatives(fun, [x], rng, order=1)
    check_transpose(fun, [x.shape], rng)
    check_dims(fun, [x])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_batching(case, mode, rng):
    fun = lambda x, i: gather(x, i, case.numbers, case.sizes, mode=mode, fill_value=3)
    check_vmap(fun, [rng.standard_normal(case.shape), case.indices(rng, 1)], rng)


def test_derivatives_to_order_two(rng):
    numbers = GatherDimensionNumbers((1,), (0,), (0,))
    at = np.array([[2], [0], [2], [9]])
    take = lambda x, i: gather(x, i, numbers, (1, 4), fill_value=2)
    fun = lambda x: mul(take(x, at), take(x, at[::-1]))
    check_derivatives(fun, [rng.standard_normal((3, 4))], rng)


ROW = GatherDimensionNumbers((1,), (0,), (0,))
ELEMENT = GatherDimensionNumbers((), (0,), (0,))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("int8", -128), ("uint8", 255), ("int32", -(2**31)), ("bool", True), ("float32", np.nan),
        ("complex64", np.nan), (ml_dtypes.bfloat16, np.nan), (ml_dtypes.int4, -8),
    ],
)  # fmt: skip
def test_what_is_filled_in(dtype, fill):
    x = np.ones(3, dtype)
    got = np.asarray(gather(x, np.array([[5], [1]]), ELEMENT, (1,)))
    same(got, np.array([fill, 1]).astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", ml_dtypes.int4])
def test_indices_of_any_integer_type(dtype):
    x = np.arange(4.0)
    same(gather(x, np.array([[3], [1]]).astype(dtype), ELEMENT, (1,)), x[[3, 1]])


def test_a_huge_unsigned_index_is_out_of_bounds():
    at = np.array([[2**64 - 1], [1]], np.uint64)
    same(gather(np.arange(4.0), at, ELEMENT, (1,)), np.array([np.nan, 1]))
    same(gather(np.arange(4.0), at, ELEMENT, (1,), mode="clip"), np.array([3.0, 1]))


def test_empty():
    x = np.zeros((3, 4))
    assert gather(x, np.zeros((0, 1), int), ROW, (1, 4)).shape == (0, 4)
    assert gather(np.zeros((3, 0)), np.zeros((2, 1), int), ROW, (1, 0)).shape == (2, 0)
    none = GatherDimensionNumbers((), (), ())
    assert gather(np.float32(3), np.zeros((2, 0), int), none, ()).shape == (2,)
    check_vmap(lambda x: gather(x, np.zeros((0, 1), int), ROW, (1, 4)), [x], None, size=1)


def test_weakness_is_the_operand_s():
    x = Array(np.arange(3.0, dtype="f"), weak_type=True)
    assert gather(x, np.array([[1]]), ELEMENT, (1,)).weak_type


def test_rows_follow_the_axis_of_their_indices():
    avals = [Array(np.zeros((9, 4))).aval, Array(np.zeros((5, 7, 1), int)).aval]
    numbers = GatherDimensionNumbers((2,), (0,), (0,))
    mapping = gather_p.dims(*avals, dimension_numbers=numbers, slice_sizes=(1, 4))
    assert dims_.parse(mapping) == dims_.parse(". b, c d . -> c d b")


def test_numbers_of_a_batch():
    numbers = GatherDimensionNumbers((1,), (0,), (0,))
    assert batched_numbers(numbers, True, False) == ((0, 2), (1,), (1,), (), ())
    assert batched_numbers(numbers, False, True) == ((2,), (0,), (0,), (), ())
    assert batched_numbers(numbers, True, True) == ((2,), (1,), (1,), (0,), (0,))


@pytest.mark.parametrize(
    ("mode", "parsed"),
    [(None, "FILL_OR_DROP"), ("fill", "FILL_OR_DROP"), ("drop", "FILL_OR_DROP"), ("clip", "CLIP"),
     ("promise_in_bounds", "PROMISE_IN_BOUNDS"), (GatherScatterMode.CLIP, "CLIP")],
)  # fmt: skip
def test_names_of_modes(mode, parsed):
    assert GatherScatterMode.from_any(mode) is GatherScatterMode[parsed]


x34 = np.zeros((3, 4))
at = np.zeros((2, 1), int)
N = GatherDimensionNumbers


@pytest.mark.parametrize(
    ("indices", "numbers", "sizes", "words"),
    [
        (at, ROW, (1,), r"one slice size for every input dimension: len\(slice_sizes\)=1, rank 2"),
        (at, ROW, (1, 5), r"index 1 in gather op is out of range: 5 .*; got operand f64\[3,4\]"),
        (at, ROW, (2, 4), "only collapse slice dims with bound 1, but bound is 2 for index 0"),
        (at, N((0, 1), (0,), (0,)), (1, 4), "All components of the offset index"),
        (at, N((2,), (0,), (0,)), (1, 4), "Offset dimension 0 in gather op is out of bounds"),
        (at, N((1, 0), (), (0,)), (1, 4), "offset_dims in gather op must be sorted"),
        (at, N((1, 1), (), (0,)), (1, 4), "offset_dims in gather op must not repeat"),
        (at, N((1,), (0, 0), (0,)), (1, 4), "collapsed_slice_dims in gather op must not repeat"),
        (at, N((1,), (7,), (0,)), (1, 4), r"Invalid collapsed_slice_dims .*is \[0, 2\)"),
        (at, N((1,), (0,), (0, 1)), (1, 4), "Gather op has 2 elements in start_index_map"),
        (at, N((1,), (0,), (2,)), (1, 4), r"domain is \[0, 2\), which lacks 0->2"),
        (at, N((1,), (0,), (0,), (0,), (0,)), (1, 4), "must be disjoint"),
        (at, N((1,), (), (1,), (0,), ()), (1, 4), "equal numbers of operand_batching_dims"),
        (at, N((1,), (), (1,), (0,), (0,)), (1, 4), r"same shape, which are \(3,\) and \(2,\)"),
        (at, N((1,), (), (1,), (0,), (1,)), (1, 4), "cannot have the index vector dimension"),
        (at[:, [0, 0]], N((1,), (0,), (0, 0)), (1, 4), "start_index_map .* must not repeat"),
        (np.array(0), ROW, (1, 4), "last axis"),
    ],
)
def test_shape_errors(indices, numbers, sizes, words):
    with pytest.raises(ShapeError, match=f"^gather: .*{words}"):
        gather(x34, indices, numbers, sizes)


def test_other_errors():
    with pytest.raises(DTypeError, match=r"gather: indices must be integers, got f64\[2,1\]"):
        gather(x34, at.astype(float), ROW, (1, 4))
    with pytest.raises(ValueError, match="mode must be 'clip', .* got 'wrap'"):
        gather(x34, at, ROW, (1, 4), mode="wrap")
    with pytest.raises(TypeError, match="slice_sizes must be integers"):
        gather(x34, at, ROW, (1, 4.5))
