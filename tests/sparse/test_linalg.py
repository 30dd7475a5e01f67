"""Solutions of sparse equations: direct ones, and iterative ones over sparse matrices."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import sparse
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from funcgrad.scipy.sparse import linalg
from funcgrad.test_util import check_grads
from tests.sparse.samples import assert_same, dense


@pytest.fixture
def equation(rng):
    """A matrix of few elements that has an inverse, and a right side."""
    return dense(rng, (7, 7), dtype="float64") + 4 * np.eye(7), rng.standard_normal(7)


@pytest.mark.parametrize("reorder", [0, 1])
def test_direct(equation, reorder):
    pytest.importorskip("scipy.sparse")
    x, b = equation
    m = sparse.BCSR.fromdense(x, nse=60)

    def solve(data, b):
        return sparse.linalg.spsolve(data, m.indices, m.indptr, b, reorder=reorder)

    assert_same(solve(m.data, b), np.linalg.solve(x, b), 1e-10)
    assert_same(fg.jit(solve)(m.data, fnp.array(b)), np.linalg.solve(x, b), 1e-10)
    both = fg.vmap(solve, (None, 0))(m.data, fnp.stack([fnp.array(b), 2 * b]))
    assert_same(both[1], 2 * np.linalg.solve(x, b), 1e-10)
    check_grads(solve, (m.data, fnp.array(b)), order=2)


def test_complex_and_singular(equation):
    pytest.importorskip("scipy.sparse")
    x, b = equation
    m = sparse.BCSR.fromdense(x * (1 + 0.5j))
    got = sparse.linalg.spsolve(m.data, m.indices, m.indptr, b)
    assert_same(got, np.linalg.solve(x * (1 + 0.5j), b), 1e-10)
    none = sparse.empty((2, 2), sparse_format="bcsr")
    assert np.isnan(sparse.linalg.spsolve(none.data, none.indices, none.indptr, np.ones(2))).all()


def test_bad_equations():
    m = sparse.eye(3, sparse_format="bcsr")
    parts = m.data, m.indices, m.indptr
    with pytest.raises(ShapeError, match="b must be a vector"):
        sparse.linalg.spsolve(*parts, fnp.ones((3, 1)))
    with pytest.raises(ShapeError, match="indptr must have rows"):
        sparse.linalg.spsolve(*parts, fnp.ones(4))
    with pytest.raises(DTypeError, match="need float32, float64 or complex"):
        sparse.linalg.spsolve(m.data.astype("int32"), *parts[1:], fnp.ones(3, "int32"))
    with pytest.raises(ArgumentError, match="reorder must be 0, 1, 2 or 3"):
        sparse.linalg.spsolve(*parts, fnp.ones(3), reorder=7)
    with pytest.raises(OutOfBoundsError, match="must not be negative"):
        sparse.linalg.spsolve(m.data, m.indices - 1, m.indptr, fnp.ones(3))


@pytest.mark.parametrize("make", [sparse.BCOO, sparse.BCSR])
def test_iterative(make, equation):
    x, b = equation
    m, b = make.fromdense(x), fnp.array(b)
    want = np.linalg.solve(x, b)
    for solve in (linalg.gmres, linalg.bicgstab):
        assert_same(solve(m, b, tol=1e-10)[0], want, 1e-8)
    positive = make.fromdense(x @ x.T)
    want = np.linalg.solve(x @ x.T, b)
    solve = lambda m, b: linalg.cg(m, b, tol=1e-12)[0]
    assert_same(fg.jit(solve)(positive, b), want, 1e-8)
    assert_same(linalg.cg(positive, b, tol=1e-12, M=make.fromdense(np.eye(7)))[0], want, 1e-8)
    assert_same(linalg.lsqr(m, b, atol=1e-12, btol=1e-12, iter_lim=200)[0],
                np.linalg.solve(x, b), 1e-6)  # fmt: skip
    gradient = sparse.grad(lambda m: fnp.sum(solve(m, b) ** 2))(positive)
    dense_gradient = fg.grad(lambda x: fnp.sum(solve(x, b) ** 2))(positive.todense())
    assert_same(gradient, np.asarray(dense_gradient) * ((x @ x.T) != 0), 1e-6)
    with pytest.raises(ShapeError, match="must be a square matrix"):
        linalg.cg(make.fromdense(np.ones((2, 3))), fnp.ones(3))
