"""Grids and flat positions against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ConcretizationError, OutOfBoundsError, ShapeError
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import same, same_as_numpy

A, B, C = np.arange(2.0), np.arange(3.0) * 10, np.arange(4)


@pytest.mark.parametrize("vectors", [(), (A,), (A, B), (A, B, C), (A, np.float64(3))])
@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sparse", [False, True])
def test_meshgrid(vectors, indexing, sparse):
    options = {"indexing": indexing, "sparse": sparse}
    same(fnp.meshgrid(*vectors, **options), np.meshgrid(*vectors, **options))


def test_indices():
    same(fnp.indices((2, 3)), np.indices((2, 3)), dtype=False)
    same(fnp.indices((2, 3), "float32"), np.indices((2, 3), "float32"))
    same(fnp.indices((2, 3), sparse=True), np.indices((2, 3), sparse=True), dtype=False)
    assert fnp.indices((2, 0)).shape == (2, 2, 0)
    assert fnp.indices((2,)).dtype == np.int32


def test_ix_():
    rows, mask = np.array([1, 0]), np.array([True, False, True])
    same(fnp.ix_(rows, mask), np.ix_(rows, mask), dtype=False)


FLAT = [(np.array([0, 5, 23]), (2, 3, 4)), (np.int8([3]), (2, 2)), (np.zeros(0, int), (0, 2))]


@pytest.mark.parametrize(("positions", "shape"), FLAT)
def test_unravel_index(positions, shape):
    same_as_numpy(
        lambda i: fnp.unravel_index(i, shape),
        lambda i: np.unravel_index(i, shape),
        positions,
        dtype=False,
    )


def test_unravel_index_outside():
    same(fnp.unravel_index(np.int32(-1), (2, 3)), (1, 2), dtype=False)
    same(jit(lambda i: fnp.unravel_index(i, (2, 3)), backend="numpy")(9), (1, 2), dtype=False)
    with pytest.raises(OutOfBoundsError, match="unravel_index"):
        fnp.unravel_index(np.int32(6), (2, 3))


@pytest.mark.parametrize("mode", ["wrap", "clip", ("clip", "wrap")])
@pytest.mark.parametrize("order", ["C", "F"])
def test_ravel_multi_index(mode, order):
    at = np.array([[0, 5, -1], [3, -7, 1]])
    same_as_numpy(
        lambda i: fnp.ravel_multi_index((i[0], i[1]), (2, 3), mode, order),
        lambda i: np.ravel_multi_index((i[0], i[1]), (2, 3), mode, order),
        at,
        dtype=False,
    )


ERRORS = [
    (lambda: fnp.meshgrid(np.ones((2, 2))), ShapeError, "need vectors"),
    (lambda: fnp.meshgrid(A, indexing="ji"), ValueError, "'xy' or 'ij'"),
    (lambda: fnp.ix_(np.ones((2, 2))), ShapeError, "need vectors"),
    (lambda: fnp.ravel_multi_index((C, C), (2, 3)), OutOfBoundsError, "ravel_multi_index"),
    (lambda: fnp.ravel_multi_index((C,), (2, 3)), ShapeError, "1 coordinates for the 2 axes"),
    (lambda: fnp.ravel_multi_index((C,), (2,), "bend"), ValueError, "mode must be"),
    (
        lambda: jit(lambda i: fnp.ravel_multi_index((i,), (2,)), backend="numpy")(1),
        ConcretizationError,
        "mode='wrap'",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
