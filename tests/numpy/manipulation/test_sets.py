"""Sets against NumPy, and with static sizes under jit."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import ConcretizationError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import same, same_as_numpy, same_batched

A, B = np.array([3, 1, 3, 2, 7]), np.array([2, 3, 9, 3])
ALL = {"return_index": True, "return_inverse": True, "return_counts": True}


def run(f, *args):
    return jit(f, backend="numpy")(*args)


@pytest.mark.parametrize(
    "x",
    [
        A,
        np.array([[1.5, np.nan, 1.5], [np.nan, 0.0, -0.0]]),
        np.array([True, False, True]),
        np.array([1j, 1, 1j]),
        np.zeros((0, 2)),
        np.float32(3),
    ],
    ids=str,
)
def test_unique(x):
    same(fnp.unique(x, **ALL), np.unique(x, **ALL), dtype=False)
    same(fnp.unique(x), np.unique(x))
    same(fnp.unique(x, equal_nan=False), np.unique(x, equal_nan=False))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unique_slices(axis):
    x = np.array([[1, 0, 1], [2, 5, 2], [1, 0, 1]])
    same(fnp.unique(x, **ALL, axis=axis), np.unique(x, **ALL, axis=axis), dtype=False)
    assert fnp.unique(np.zeros((3, 0)), axis=0).shape == np.unique(np.zeros((3, 0)), axis=0).shape


@pytest.mark.parametrize("size", [0, 2, 4, 6])
def test_unique_of_a_size(size):
    out = run(lambda x: fnp.unique(x, **ALL, size=size, fill_value=-1), A)
    expected = np.unique(A, **ALL)
    n = min(size, 4)
    for i in (0, 1, 3):
        same(out[i][:n], expected[i][:n], dtype=False)
        assert out[i].shape == (size,)
    same(out[2], expected[2], dtype=False)
    same(out[0][n:], np.full(size - n, -1))
    same(out[3][n:], np.zeros(size - n, int), dtype=False)


def test_missing_values_are_the_first():
    same(run(lambda x: fnp.unique(x, size=6), A), [1, 2, 3, 7, 1, 1])
    x = np.array([[2, 2], [1, 1], [2, 2]])
    same(run(lambda x: fnp.unique(x, axis=0, size=3), x), [[1, 1], [2, 2], [1, 1]])
    same(run(lambda x: fnp.unique(x, size=2, fill_value=5), np.zeros(0)), [5.0, 5.0])
    same_batched(lambda x: fnp.unique(x, size=3, fill_value=0), np.array([[1, 2, 1], [4, 4, 4]]))


def test_unique_by_the_standard():
    x = np.array([2.0, np.nan, 2.0, np.nan])
    for name in ("unique_all", "unique_counts", "unique_inverse", "unique_values"):
        ours, theirs = getattr(fnp, name)(x), getattr(np, name)(x)
        same(
            tuple(ours) if isinstance(ours, tuple) else ours,
            tuple(theirs) if isinstance(theirs, tuple) else theirs,
            dtype=False,
        )
        if isinstance(theirs, tuple):
            assert ours._fields == theirs._fields


def test_derivative_of_unique():
    x = np.array([3.0, 1.0, 3.0])
    same(grad(lambda x: fnp.sum(fnp.unique(x) ** 2))(Array(x)), [6.0, 2.0, 0.0])


@pytest.mark.parametrize("method", ["auto", "compare_all", "binary_search"])
def test_isin(method, rng):
    x, among = rng.integers(0, 30, (5, 6)), rng.integers(0, 30, 20)
    for invert in (False, True):
        same_as_numpy(
            lambda x, t: fnp.isin(x, t, invert=invert, method=method),
            lambda x, t: np.isin(x, t, invert=invert),
            x,
            among,
        )
    same(fnp.isin(x, np.zeros(0, int), method=method), np.zeros(x.shape, bool))
    nan = np.array([np.nan, 1.0])
    same(fnp.isin(nan, nan, method=method), [False, True])


PAIRS = [
    (A, B),
    (A, np.zeros(0, int)),
    (np.zeros(0), np.zeros(0)),
    (A.reshape(1, 5) / 2, B.reshape(2, 2)),
    (np.array([True, False]), np.array([True])),
]


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_two_sets(name, pair):
    expected = getattr(np, name)(*pair)
    f = getattr(fnp, name)
    same(f(*pair), expected, dtype=pair[0].dtype == pair[1].dtype)
    for size in (0, 1, len(expected) + 2):
        out = run(lambda a, b, n=size: f(a, b, size=n, fill_value=0), *pair)
        padded = np.concatenate([expected, np.zeros(size, expected.dtype)])[:size]
        same(out, padded, dtype=False)


def test_positions_of_an_intersection():
    expected = np.intersect1d(A, B, return_indices=True)
    same(fnp.intersect1d(A, B, return_indices=True), expected, dtype=False)
    out = run(lambda a, b: fnp.intersect1d(a, b, return_indices=True, size=3), A, B)
    same([x[:2] for x in out], expected, dtype=False)
    assert [int(x[2]) for x in out[1:]] == [5, 4]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bool"])
def test_a_difference_has_the_first_operands_dtype(dtype):
    a, b = np.array([0, 1, 1], dtype), np.array([0.0, 2.5])
    same(fnp.setdiff1d(a, b), np.array([1], dtype))
    same(run(lambda a, b: fnp.setdiff1d(a, b, size=2), a, b), np.array([1, 0], dtype))


def test_unique_operands_keep_their_order():
    a = np.array([4, 1, 3])
    same(fnp.setdiff1d(a, B, True), np.setdiff1d(a, B, True))


@pytest.mark.parametrize("name", ["unique", "unique_all", "unique_values"])
def test_the_error_without_a_size(name):
    with pytest.raises(ConcretizationError, match=rf"{name}.*fnp\.{name}\(\.\.\., size=n\)"):
        run(getattr(fnp, name), A)
    with pytest.raises(ConcretizationError, match=r"setdiff1d.*`ar2`.*size=n"):
        run(lambda b: fnp.setdiff1d(A, b), B)


def test_errors():
    with pytest.raises(TypeError, match="unique: ar is a list"):
        fnp.unique([1, 2])
    with pytest.raises(ValueError, match="method must be"):
        fnp.isin(A, B, method="guess")
