"""Triangles and diagonals against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ShapeError
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

X = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("k", [-4, -1, 0, 2, 5])
@pytest.mark.parametrize("dtype", [bool, "int32", "float64", "complex64"])
def test_triangles_and_diagonals(k, dtype):
    x = X.astype(dtype)
    for name in ("tril", "triu", "diagonal", "diag"):
        f, g = getattr(fnp, name), getattr(np, name)
        same_as_numpy(lambda x, f=f: f(x, k), lambda x, g=g: g(x, k), x)
    for v in (x[0], x[0, :0], x[0, :1]):
        same_as_numpy(lambda v: fnp.diag(v, k), lambda v: np.diag(v, k), v)
    same(fnp.diagflat(x, k), np.diagflat(x, k))


def test_of_stacks(rng):
    x = rng.standard_normal((2, 3, 4, 5))
    for args in ((0, 0, 1), (1, 1, 3), (-1, -1, 0), (0, 3, 1)):
        same(fnp.diagonal(x, *args), np.diagonal(x, *args))
    same(fnp.triu(x), np.triu(x))
    assert fnp.tril(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("args", [(3,), (3, 1), (3, -1, 5), (4, 0, 2), (0,)])
def test_positions(args):
    same(fnp.tril_indices(*args), np.tril_indices(*args), dtype=False)
    same(fnp.triu_indices(*args), np.triu_indices(*args), dtype=False)
    assert fnp.tril_indices(2)[0].dtype == np.int32


def test_positions_from_arrays():
    same(fnp.tril_indices_from(X, 1), np.tril_indices_from(X, 1), dtype=False)
    same(fnp.triu_indices_from(X, 1), np.triu_indices_from(X, 1), dtype=False)
    same(fnp.diag_indices(3, 3), np.diag_indices(3, 3), dtype=False)
    same(fnp.diag_indices_from(X[:, :3]), np.diag_indices_from(X[:, :3]), dtype=False)
    same(fnp.mask_indices(3, fnp.triu, 1), np.mask_indices(3, np.triu, 1), dtype=False)


@pytest.mark.parametrize("shape", [(3, 3), (7, 3), (2, 5), (3, 3, 3), (0, 2)])
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("value", [7.0, [1.0, 2.0]])
def test_fill_diagonal(shape, wrap, value):
    expected = np.zeros(shape)
    np.fill_diagonal(expected, value, wrap)
    same_as_numpy(
        lambda a: fnp.fill_diagonal(a, np.asarray(value), wrap), lambda a: expected, np.zeros(shape)
    )


def test_transforms(rng):
    x = rng.standard_normal((2, 3, 4))
    for f in (fnp.triu, fnp.diagonal, lambda x: fnp.fill_diagonal(x, x[0, 0] ** 2)):
        check_grad(f, x[0])
        same_batched(f, x)
    check_grad(fnp.diag, x[0, 0])
    same_batched(lambda v: fnp.diag(v, -1), x[0])


ERRORS = [
    (lambda: fnp.tril(np.ones(3)), ShapeError, "tril: need matrices"),
    (lambda: fnp.diag(np.ones((2, 2, 2))), ShapeError, "vector or a matrix"),
    (lambda: fnp.diagonal(np.ones(3)), ShapeError, "at least two axes"),
    (lambda: fnp.diagonal(X, 0, 1, 1), ShapeError, "the same axis"),
    (lambda: fnp.diag_indices_from(X), ShapeError, "axes of one size"),
    (lambda: fnp.fill_diagonal(np.ones((2, 2, 3)), 0), ShapeError, "axes of one size"),
    (lambda: fnp.fill_diagonal(X, 0, inplace=True), ValueError, "immutable"),
    (lambda: fnp.tril_indices_from(np.ones(2)), ShapeError, "must be a matrix"),
    (lambda: fnp.diag([1, 2]), TypeError, "v is a list"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
