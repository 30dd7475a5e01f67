"""Joining, cutting, repeating, inserting and deleting against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import ConcretizationError, ShapeError
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

X = np.arange(12.0).reshape(3, 4)
V = np.arange(4.0)

SEQUENCES = [
    ("concatenate", [X, X], {"axis": 1}),
    ("concatenate", [X, V], {"axis": None}),
    ("concatenate", [V, V.astype(np.float32)], {"dtype": np.float16}),
    ("concat", [V, V[:0]], {}),
    ("stack", [X, X], {"axis": -1}),
    ("stack", [V, np.int32([1, 2, 3, 4])], {}),
    ("vstack", [V, X], {}),
    ("hstack", [X, X[:, :1]], {}),
    ("hstack", [V, V], {}),
    ("dstack", [V, V], {}),
    ("column_stack", [X, np.ones(3)], {}),
]


@pytest.mark.parametrize(("name", "arrays", "kwargs"), SEQUENCES)
def test_joins(name, arrays, kwargs):
    same(getattr(fnp, name)(arrays, **kwargs), getattr(np, name)(arrays, **kwargs))


def test_dtypes_promote_by_our_lattice():
    assert fnp.concatenate([np.int32([1]), np.float32([1])]).dtype == np.float32
    assert fnp.hstack([1, 2.5]).weak_type
    assert fnp.stack(X[:2]).shape == (2, 4)


def test_block():
    a = np.ones((2, 2))
    same(fnp.block([[a, a], [np.zeros((1, 4))]]), np.block([[a, a], [np.zeros((1, 4))]]))
    same(fnp.block([V, V]), np.block([V, V]))
    same(fnp.block(V), V)


CUTS = [
    ("split", 2, 1),
    ("split", [1, 3], 1),
    ("split", [3, 1, -1], -1),
    ("array_split", 3, 1),
    ("array_split", 5, 0),
]


@pytest.mark.parametrize(("name", "where", "axis"), CUTS)
def test_cuts(name, where, axis):
    same(getattr(fnp, name)(X, where, axis), getattr(np, name)(X, where, axis))


def test_splits_by_axis_names():
    y = np.arange(8.0).reshape(2, 2, 2)
    for name in ("hsplit", "vsplit", "dsplit"):
        same(getattr(fnp, name)(y, 2), getattr(np, name)(y, 2))
    same(fnp.hsplit(V, 2), np.hsplit(V, 2))
    same(fnp.unstack(X, axis=1), np.unstack(X, axis=1))


REPEATS = [
    ("tile", (2,)),
    ("tile", ((2, 1, 3),)),
    ("tile", ((),)),
    ("repeat", (3,)),
    ("repeat", (2, 1)),
    ("repeat", ([1, 0, 2, 1], 1)),
    ("repeat", ([2], 0)),
    ("resize", ((2, 7),)),
    ("resize", (0,)),
    ("roll", (2,)),
    ("roll", (-5, 1)),
    ("roll", ((1, 2), (0, 1))),
    ("roll", (1, (0, 1))),
    ("append", (7.0,)),
    ("append", (X, 0)),
]


@pytest.mark.parametrize(("name", "args"), REPEATS)
def test_repetition(name, args):
    same_as_numpy(
        lambda x: getattr(fnp, name)(x, *args), lambda x: getattr(np, name)(x, *args), X, dtype=True
    )


def test_repeat_of_a_traced_number():
    run = jit(
        lambda x, n, total: fnp.repeat(x, n, 0, total_repeat_length=total),
        static_argnums=2,
        backend="numpy",
    )
    n = np.array([2, 0, 3])
    same(run(X, n, 5), np.repeat(X, n, 0))
    same(run(X, n, 3), np.repeat(X, n, 0)[:3])
    same(run(X, n, 6)[5], X[2])
    with pytest.raises(ConcretizationError, match="repeat.*`repeats`.*total_repeat_length"):
        jit(lambda x, n: fnp.repeat(x, n, 0), backend="numpy")(X, n)


def test_roll_by_a_traced_number():
    for k in (-7, 0, 3):
        same_as_numpy(lambda x, k: fnp.roll(x, k, 1), lambda x, k: np.roll(x, k, 1), X, np.int32(k))


@pytest.mark.parametrize("obj", [1, -1, slice(0, 3, 2), [0, 2], [], np.array([True, True, False])])
def test_delete_and_insert(obj):
    same(fnp.delete(X, obj, 0), np.delete(X, obj, 0))
    same(fnp.insert(X, obj, 5.0, 0), np.insert(X, obj, 5.0, 0))
    same(fnp.insert(X, obj, V, 0), np.insert(X, obj, V, 0))


def test_insert_shapes_of_values():
    same(fnp.insert(X, 1, [1, 2, 3], 1), np.insert(X, 1, [1, 2, 3], 1))
    same(fnp.insert(X, [1], [[1], [2], [3]], 1), np.insert(X, [1], [[1], [2], [3]], 1))
    same(fnp.insert(X, [2, 2], [6, 7]), np.insert(X, [2, 2], [6, 7]))


def test_delete_and_insert_at_traced_positions():
    same_as_numpy(lambda x, i: fnp.delete(x, i, 1), lambda x, i: np.delete(x, i, 1), X, np.int32(2))
    at = np.array([2, 0, -1])
    new = np.array([5.0, 6.0, 7.0])
    same_as_numpy(
        lambda x, i, v: fnp.insert(x, i, v, 1), lambda x, i, v: np.insert(x, i, v, 1), X, at, new
    )
    run = jit(lambda x, i: fnp.delete(x, i, 1, assume_unique_indices=True), backend="numpy")
    same(run(X, np.array([2, 0])), np.delete(X, [2, 0], 1))


def test_trim_zeros():
    x = np.array([0, 0, 1, 0, 2, 0])
    for trim in ("fb", "f", "b"):
        same(fnp.trim_zeros(x, trim), np.trim_zeros(x, trim))
    assert fnp.trim_zeros(np.zeros(3)).shape == (0,)


def test_derivatives():
    check_grad(lambda x: fnp.repeat(x, np.array([1, 0, 2]), 0), X)
    check_grad(lambda x, v: fnp.insert(x, [0, 3], v, 1), X, np.array([[1.0, 2.0]] * 3))
    check_grad(lambda x: fnp.block([[x, x], [x * x, x]]), X)


def test_batched(rng):
    x = rng.standard_normal((2, 3, 4))
    same_batched(lambda x: fnp.roll(fnp.tile(x, 2), 3, 1), x)
    same_batched(lambda x, k: fnp.roll(x, k), x, np.array([1, 2]))


ERRORS = [
    (lambda: fnp.concatenate(3), TypeError, "arrays must be a list or tuple"),
    (lambda: fnp.concatenate([]), ValueError, "at least one array"),
    (lambda: fnp.concatenate([X, V]), ShapeError, "agree in all axes"),
    (lambda: fnp.concatenate([1, 2]), ShapeError, "use stack"),
    (lambda: fnp.concatenate([[1, 2], V]), TypeError, r"arrays\[0\] is a list"),
    (lambda: fnp.stack(np.zeros((0, 3))), ValueError, "stack: arrays must hold at least one"),
    (lambda: fnp.stack([X, V]), ShapeError, "stack: arrays must have one shape"),
    (lambda: fnp.split(V, 3), ValueError, "does not divide into 3 equal"),
    (lambda: fnp.repeat(V, [1, 2]), ShapeError, "one for each of 4 elements"),
    (lambda: fnp.repeat(V, -1), ValueError, "must not be negative"),
    (lambda: fnp.repeat(V, 1.5), TypeError, "repeats must be integers"),
    (lambda: fnp.delete(V, 7), IndexError, "delete"),
    (lambda: fnp.insert(V, 7, 1.0), IndexError, "insert"),
    (lambda: fnp.block([[V], V]), ValueError, "one depth"),
    (lambda: fnp.block([]), ValueError, "is empty"),
    (lambda: fnp.roll(V, 1.5), TypeError, "roll: shift must be integers, got f32"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_unknown_values_that_shapes_depend_on():
    for f in (
        lambda x: fnp.delete(Array(X), x > 1),
        lambda x: fnp.trim_zeros(x),
    ):
        with pytest.raises(ConcretizationError, match="is unknown while the function is traced"):
            jit(f, backend="numpy")(V)


@pytest.mark.parametrize("trim", ["fb", "f", "b", "B"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), ()])
def test_trim_zeros_of_matrices(trim, axis):
    inner = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 3, 0], [0, 0, 0, 0]])
    for x in (inner, inner * 0, inner[:0], inner[:3, 1:]):
        got = fnp.trim_zeros(x, trim, axis)
        np.testing.assert_array_equal(np.asarray(got), np.trim_zeros(x, trim, axis))


def test_trim_zeros_knows_two_ends():
    with pytest.raises(ValueError, match="trim_zeros: trim must be made of"):
        fnp.trim_zeros(fnp.ones(3), "x")
