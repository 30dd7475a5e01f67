"""Dynamic slices and their sugar against NumPy, with derivatives and batching."""

import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, OutOfBoundsError, ShapeError
from funcgrad.ops.indexing import windows_at as ops
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap

STARTS = [(0, 0), (1, 2), (3, 4), (9, 9), (-1, -2), (-9, 1), (2, -5)]


def window(shape, starts, sizes):
    """NumPy's slices for JAX's rule: wrap negative indices once, then move the window inside."""
    starts = [s + n if s < 0 else s for s, n in zip(starts, shape, strict=True)]
    starts = [min(max(s, 0), n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + m) for s, m in zip(starts, sizes, strict=True))


def scalars(starts, dtype="int32"):
    return [Array(np.array(s).astype(dtype)) for s in starts]


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("sizes", [(2, 3), (4, 5), (1, 1), (0, 2)])
@pytest.mark.parametrize("kind", ["ints", "int32", "int64", "int8", "vector"])
def test_dynamic_slice_and_update(starts, sizes, kind, rng):
    x = rng.standard_normal((4, 5))
    at = window(x.shape, starts, sizes)
    if kind == "ints":
        given = starts
    else:
        given = np.array(starts) if kind == "vector" else scalars(starts, kind)
    np.testing.assert_array_equal(np.asarray(ops.dynamic_slice(x, given, sizes)), x[at])
    update = rng.standard_normal(sizes)
    expected = x.copy()
    expected[at] = update
    np.testing.assert_array_equal(np.asarray(ops.dynamic_update_slice(x, update, given)), expected)


def test_traced_indices_wrap_as_known_ones(rng):
    x = rng.standard_normal((4, 5))
    fun = lambda x, i, j: ops.dynamic_slice(x, (i, j), (2, 3))
    for starts in STARTS:
        check_vmap(fun, [x, *(np.array(s) for s in starts)], rng)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "uint64", "int64"])
def test_indices_of_any_integer_type(dtype, rng):
    x = rng.standard_normal(300)
    index = np.array(200 if dtype != "int8" else 100).astype(dtype)
    fun = lambda i: ops.dynamic_slice_in_dim(x, i, 2)
    np.testing.assert_array_equal(np.asarray(fun(Array(index))), x[int(index) :][:2])
    check_vmap(fun, [index], rng)


def test_static_and_traced_indices_go_together(rng):
    fun = lambda x, i: ops.dynamic_slice(x, (-1, i), (1, 3))
    x = rng.standard_normal((4, 5))
    for dtype in ("int32", "int64", "uint8"):
        check_vmap(fun, [x, np.array(1, dtype)], rng)
    np.testing.assert_array_equal(np.asarray(fun(x, np.array(1))), x[3:, 1:4])


@pytest.mark.parametrize("starts", [(1, 2), (9, -1)])
def test_rules(starts, rng):
    i, j = map(np.array, starts)
    x, update = rng.standard_normal((4, 5)), rng.standard_normal((2, 3))
    take = lambda x: ops.dynamic_slice(x, (i, j), (2, 3))
    put = lambda x, u: ops.dynamic_update_slice(x, u, (i, j))
    check_derivatives(take, [x], rng)
    check_transpose(take, [x.shape], rng)
    check_derivatives(put, [x, update], rng)
    check_transpose(put, [x.shape, update.shape], rng)
    check_vmap(lambda x, i, j: ops.dynamic_slice(x, (i, j), (2, 3)), [x, i, j], rng)
    check_vmap(lambda x, u, i: ops.dynamic_update_slice(x, u, (i, j)), [x, update, i], rng)
    check_dims(take, [x])
    check_dims(put, [x, update])


def test_scalars_and_empty_arrays():
    assert ops.dynamic_slice(np.float32(3), (), ()).shape == ()
    assert float(ops.dynamic_update_slice(np.float32(3), np.float32(4), ())) == 4
    assert ops.dynamic_slice(np.zeros((0, 3)), (0, 1), (0, 2)).shape == (0, 2)
    assert ops.dynamic_update_slice(np.zeros((0, 3)), np.zeros((0, 2)), (0, 1)).shape == (0, 3)


def test_one_axis(rng):
    x = rng.standard_normal((4, 5))
    same = lambda got, expected: np.testing.assert_array_equal(np.asarray(got), expected)
    same(ops.dynamic_index_in_dim(x, 2), x[2:3])
    same(ops.dynamic_index_in_dim(x, -1, 1, keepdims=False), x[:, -1])
    same(ops.dynamic_slice_in_dim(x, 1, 3, axis=-1), x[:, 1:4])
    for row in (x[0] + 9, x[:1] + 9):
        got = np.asarray(ops.dynamic_update_index_in_dim(x, row, 2, 0))
        same(got[2], x[0] + 9)
        same(np.delete(got, 2, 0), np.delete(x, 2, 0))
    same(np.asarray(ops.dynamic_update_slice_in_dim(x, x[:, :2], 3, 1))[:, 3:], x[:, :2])
    same(ops.slice_in_dim(x, 1, -1, 2, axis=1), x[:, 1:-1:2])
    same(ops.slice_in_dim(x, None, None), x)
    same(ops.index_in_dim(x, -1), x[-1:])
    same(ops.index_in_dim(x, 2, 1, keepdims=False), x[:, 2])
    same(ops.dynamic_update_index_in_dim(np.zeros(2), 1, 1, 0), [0, 1])


def test_index_take(rng):
    x = rng.standard_normal((4, 5, 3))
    i, j = np.array([0, -1, 6]), np.array([4, 2, -7])
    got = np.asarray(ops.index_take(x, [i, j], (0, 2)))
    np.testing.assert_array_equal(got, x[i % 4, :, j % 3])
    got = np.asarray(ops.index_take(x, [i, j], (2, 0)))
    np.testing.assert_array_equal(got, x[j % 4, :, i % 3])
    check_derivatives(lambda x: ops.index_take(x, [i], (1,)), [x], rng)


def test_programs_hold_the_primitive_once():
    jaxpr, _ = stage(
        lambda x, i: [ops.dynamic_slice(x, (i, 0), (1, 3))],
        [aval_of(np.zeros((4, 3), "f")), aval_of(np.int32(0))],
    )
    assert [e.prim.name for e in jaxpr.eqns] == ["lt", "add", "select_n", "dynamic_slice"]


x23 = Array(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("fun", "error", "words"),
    [
        (lambda: ops.dynamic_slice(x23, (0,), (1, 1)), ShapeError, "each of the operand's 2 axes"),
        (lambda: ops.dynamic_slice(x23, (0, 0), (3, 1)), ShapeError, r"\(3, 1\) do not fit"),
        (lambda: ops.dynamic_slice(x23, (0, 0), (1,)), ShapeError, "slice_sizes"),
        (lambda: ops.dynamic_slice(x23, (0, 0.5), (1, 1)), DTypeError, "integer scalars"),
        (lambda: ops.dynamic_slice(x23, np.zeros((1, 2), int), (1, 1)), ShapeError, "vector"),
        (lambda: ops.dynamic_update_slice(x23, x23, (0,)), ShapeError, "start index"),
        (lambda: ops.dynamic_update_slice(x23, np.zeros((3, 3), "f"), (0, 0)), ShapeError, "fit"),
        (lambda: ops.dynamic_update_slice(x23, np.zeros((1, 1)), (0, 0)), DTypeError, "f64"),
        (lambda: ops.dynamic_update_index_in_dim(x23, 1.0, 0, 0), ShapeError, "all but axis 0"),
        (lambda: ops.index_in_dim(x23, 2), OutOfBoundsError, "index 2 .* axis 0"),
        (lambda: ops.index_in_dim(x23, -4, 1), OutOfBoundsError, "index -4 .* axis 1"),
    ],
)
def test_errors(fun, error, words):
    with pytest.raises(error, match=words):
        fun()


@pytest.mark.parametrize("start", [-9, -2, 0, 3, 9])
def test_negative_indices_that_are_before_the_start(start):
    x = np.arange(6)
    want = x[min(max(start, 0), 4) :][:2]
    for given in (start, np.int32(start)):
        got = ops.dynamic_slice(x, (given,), (2,), allow_negative_indices=False)
        np.testing.assert_array_equal(got, want)
        got = ops.dynamic_slice(x, (given,), (2,), allow_negative_indices=(False,))
        np.testing.assert_array_equal(got, want)
        new = ops.dynamic_update_slice_in_dim(x, want + 9, given, 0, allow_negative_indices=False)
        np.testing.assert_array_equal(new, np.where(np.isin(x, want), x + 9, x))
    one = ops.dynamic_index_in_dim(x, np.int32(start), keepdims=False, allow_negative_indices=False)
    assert int(one) == min(max(start, 0), 5)
    with pytest.raises(ShapeError, match="allow_negative_indices must be"):
        ops.dynamic_slice(x, (0,), (2,), allow_negative_indices=(True, False))
