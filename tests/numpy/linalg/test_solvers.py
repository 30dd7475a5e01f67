"""Determinants, solutions, least squares and powers against NumPy; derivatives, also singular."""

import itertools

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def matrix(rng, n, dtype=float, *lead):
    x = rng.standard_normal((*lead, n, n)) + 2 * np.eye(n)
    return x + 1j * rng.standard_normal((*lead, n, n)) if dtype is complex else x


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_of_square_matrices(n, dtype, rng):
    a = matrix(rng, n, dtype, 2)
    for name in ("det", "inv", "slogdet"):
        f, g = getattr(fnp.linalg, name), getattr(np.linalg, name)
        same_as_numpy(lambda a, f=f: tuple_of(f(a)), lambda a, g=g: tuple_of(g(a)), a, **TIGHT)
        check_grad(lambda a, f=f: tuple_of(f(a)), a[0])
        same_batched(lambda a, f=f: tuple_of(f(a)), a)


def tuple_of(out):
    return tuple(out) if isinstance(out, tuple) else out


def test_empty_and_integer_matrices():
    same(fnp.linalg.det(np.zeros((2, 0, 0))), np.linalg.det(np.zeros((2, 0, 0))))
    a = np.array([[1, 2], [3, 4]])
    for name in ("det", "inv"):
        same(getattr(fnp.linalg, name)(a), getattr(np.linalg, name)(a).astype(np.float32))


SHAPES = [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (3, 2)), ((3, 3), (2, 3, 4)),
          ((2, 1, 3, 3), (4, 3, 1)), ((2, 3, 3), (3,))]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_solve(left, right, rng):
    a, b = matrix(rng, 3, float, *left[:-2]), rng.standard_normal(right)
    same_as_numpy(fnp.linalg.solve, np.linalg.solve, a, b, **TIGHT)
    check_grad(fnp.linalg.solve, a, b)


def test_second_derivatives_and_vmap_of_solve(rng):
    a, b = matrix(rng, 3, complex), rng.standard_normal(3) + 0j
    check_grad(fnp.linalg.solve, a, b)
    x, y = matrix(rng, 3), rng.standard_normal(3)
    f = lambda a, b: fnp.sum(fnp.linalg.solve(a, b) ** 2)
    check_grad(lambda a, b: grad(f, argnums=(0, 1))(a, b), x, y)
    stack = np.stack([x, x.T])
    same_batched(lambda a: grad(f)(a, Array(y)), stack)
    same(vmap(fnp.linalg.solve, in_axes=(None, 0))(x, stack), np.linalg.solve(x, stack), **TIGHT)


def adjugate(a):
    n = len(a)
    minors = [np.delete(np.delete(a, i, 0), j, 1) for i, j in itertools.product(range(n), range(n))]
    signs = [(-1) ** (i + j) for i, j in itertools.product(range(n), range(n))]
    return (np.array([np.linalg.det(m) for m in minors]) * signs).reshape(n, n).T


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_derivative_of_det_is_the_adjugate(n, lost):
    whole = np.array([[(i * j + i + 2 * j) % 7 for j in range(n)] for i in range(n)], float)
    a = whole.copy()
    for k in range(lost):
        # Elimination of these rows is exact, so the determinant is exactly zero.
        a[k + 1 if lost < n else k] = 2 * a[0]
    same(grad(fnp.linalg.det)(a), adjugate(a).T, rtol=1e-8, atol=1e-8)


def test_second_derivatives_of_determinants(rng):
    for n in (2, 3, 4):
        for f in (fnp.linalg.det, lambda a: fnp.linalg.slogdet(a)[1]):
            check_grad(grad(f), matrix(rng, n))


def test_slogdet_of_a_singular_matrix():
    sign, logabs = fnp.linalg.slogdet(np.zeros((3, 3)))
    assert (float(sign), float(logabs)) == (0.0, -np.inf)


@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("columns", [(), (2,)])
def test_lstsq(m, n, columns, rng):
    a, b = rng.standard_normal((m, n)), rng.standard_normal((m, *columns))
    x, residuals, rank, s = fnp.linalg.lstsq(a, b, numpy_resid=True)
    same((x, residuals, s), [np.linalg.lstsq(a, b)[i] for i in (0, 1, 3)], **TIGHT)
    assert int(rank) == min(m, n)
    gap = (b - a @ np.asarray(x)).reshape(m, -1)
    same(fnp.linalg.lstsq(a, b)[1], np.sum(gap**2, 0), **TIGHT)
    check_grad(lambda a, b: fnp.linalg.lstsq(a, b)[0], a, b)


def test_lstsq_of_low_rank(rng):
    a, b = np.outer(np.arange(4.0), np.arange(1.0, 4.0)), rng.standard_normal(4)
    x, _, rank, _ = fnp.linalg.lstsq(a, b)
    same(x, np.linalg.lstsq(a, b)[0], **TIGHT)
    assert int(rank) == 1


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3), (2, 4, 3), (0, 3)])
@pytest.mark.parametrize("dtype", [float, complex])
def test_pinv(shape, dtype, rng):
    a = rng.standard_normal(shape).astype(dtype)
    if dtype is complex:
        a = a + 1j * rng.standard_normal(shape)
    same_as_numpy(fnp.linalg.pinv, np.linalg.pinv, a, **TIGHT)
    if a.size:
        check_grad(fnp.linalg.pinv, a)
    if a.ndim == 3:
        same_batched(fnp.linalg.pinv, a)


def test_pinv_of_equal_singular_values():
    same(grad(lambda a: fnp.sum(fnp.linalg.pinv(a)))(np.eye(3)), -np.ones((3, 3)), **TIGHT)
    a = np.diag([1.0, 0.5, 1e-3])
    same(fnp.linalg.pinv(a, rtol=1e-2), np.linalg.pinv(a, rtol=1e-2), **TIGHT)


def test_matrix_rank(rng):
    a = np.stack([np.eye(3), np.diag([1.0, 0, 0]), np.zeros((3, 3))])
    same_as_numpy(fnp.linalg.matrix_rank, np.linalg.matrix_rank, a, dtype=False)
    same(fnp.linalg.matrix_rank(np.diag([1.0, 0.1]), tol=0.5), 1, dtype=False)
    same(fnp.linalg.matrix_rank(np.diag([9.0, 1.0]), rtol=0.5), 1, dtype=False)
    same(fnp.linalg.matrix_rank(np.zeros(3)), 0, dtype=False)


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 5])
def test_matrix_power(n, rng):
    a = matrix(rng, 3, float, 2)
    same_as_numpy(
        lambda a: fnp.linalg.matrix_power(a, n), lambda a: np.linalg.matrix_power(a, n), a, **TIGHT
    )
    check_grad(lambda a: fnp.linalg.matrix_power(a, n), a[0])


def test_multi_dot(rng):
    shapes = [(2, 3), (3, 4), (4, 5), (5, 2)]
    parts = [rng.standard_normal(s) for s in shapes]
    same(fnp.linalg.multi_dot(parts), np.linalg.multi_dot(parts), **TIGHT)
    same(fnp.linalg.multi_dot(parts[:2]), np.linalg.multi_dot(parts[:2]), **TIGHT)
    ends = [parts[0][0], *parts[1:3], parts[3][:, 0]]
    same(fnp.linalg.multi_dot(ends), np.linalg.multi_dot(ends), **TIGHT)


def test_tensors(rng):
    a = rng.standard_normal((2, 3, 3, 2))
    same(fnp.linalg.tensorinv(a), np.linalg.tensorinv(a), **TIGHT)
    b = rng.standard_normal((2, 3))
    same(fnp.linalg.tensorsolve(a, b), np.linalg.tensorsolve(a, b), **TIGHT)
    c = rng.standard_normal((2, 6, 3))
    same(
        fnp.linalg.tensorsolve(c, np.ones(6), axes=(0,)),
        np.linalg.tensorsolve(c, np.ones(6), axes=(0,)),
        **TIGHT,
    )


X = np.ones((2, 3))
ERRORS = [
    (lambda: fnp.linalg.inv(X), ShapeError, "inv: need square matrices"),
    (lambda: fnp.linalg.inv(X[0]), ShapeError, "inv"),
    (lambda: fnp.linalg.inv(np.eye(2, dtype=np.float16)), DTypeError, "need float32"),
    (lambda: fnp.linalg.inv([[1.0]]), TypeError, "inv: a is a list"),
    (lambda: fnp.linalg.solve(np.eye(2), np.ones(3)), ShapeError, "as many rows as"),
    (lambda: fnp.linalg.solve(np.eye(2), [1.0, 2.0]), TypeError, "b is a list"),
    (lambda: fnp.linalg.lstsq(X, np.ones(3)), ShapeError, "as many rows"),
    (lambda: fnp.linalg.matrix_power(X, 2), ShapeError, "square"),
    (lambda: fnp.linalg.multi_dot([X]), ShapeError, "two or more"),
    (lambda: fnp.linalg.multi_dot([X, X[0], X]), ShapeError, "multi_dot"),
    (lambda: fnp.linalg.tensorinv(X), ShapeError, "ind must be from 1 to 1"),
    (lambda: fnp.linalg.tensorinv(X, 1), ShapeError, "different numbers"),
    (lambda: fnp.linalg.tensorsolve(X, np.ones(3)), ShapeError, "maps to no b"),
    (lambda: fnp.linalg.pinv(X, 1e-3, rcond=1e-3), ValueError, "not both"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_ranks_of_hermitian_matrices(rng):
    v = rng.standard_normal((5, 2)) + 1j * rng.standard_normal((5, 2))
    m = np.stack([v @ v.conj().T, np.eye(5)])
    for run in (fnp.linalg.matrix_rank, jit(fnp.linalg.matrix_rank)):
        assert run(m).tolist() == [2, 5]
    f = lambda m: fnp.linalg.matrix_rank(m, hermitian=True)
    assert f(m).tolist() == jit(f)(m).tolist() == [2, 5]
