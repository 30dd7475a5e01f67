"""Dense arrays and SciPy's there and back, duplicates, order, and kinds of axes."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import sparse
from funcgrad.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    SparseEfficiencyError,
)
from funcgrad.test_util import check_grads
from tests.sparse.samples import assert_same, awkward, dense, full, matrices

LAYOUTS = [(b, d) for b, d in itertools.product(range(4), repeat=2) if b + d <= 3]


@pytest.mark.parametrize(("n_batch", "n_dense"), LAYOUTS)
def test_dense_arrays_there_and_back(n_batch, n_dense, rng):
    x = dense(rng, (2, 3, 4))
    m = sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)
    assert (m.n_batch, m.n_dense, m.shape) == (n_batch, n_dense, x.shape)
    assert_same(m, x)
    assert_same(sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense, nse=m.nse + 2), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 2), (1,)])
def test_small_arrays(shape):
    for x in (np.zeros(shape, "f"), np.ones(shape, "f")):
        assert_same(sparse.BCOO.fromdense(x), x)


def test_dense_arrays_in_jit(rng):
    x = fnp.array(dense(rng))
    assert_same(fg.jit(lambda x: sparse.BCOO.fromdense(x, nse=30))(x), x)
    assert_same(fg.jit(lambda x: sparse.BCSR.fromdense(x, nse=30))(x), x)
    filled = fnp.array(rng.standard_normal((5, 6)) + 5)  # where nothing comes or goes
    check_grads(lambda x: sparse.BCOO.fromdense(x, nse=30).data, (filled,), order=2)
    with pytest.raises(ConcretizationError, match="nse must be given"):
        fg.jit(sparse.BCOO.fromdense)(x)


def test_bad_arguments_of_fromdense():
    with pytest.raises(ArgumentError, match="nse is 2, but 4 elements are not zero"):
        sparse.BCOO.fromdense(fnp.ones(4), nse=2)
    with pytest.raises(ShapeError, match="at most the array's 2 axes"):
        sparse.BCOO.fromdense(fnp.ones((2, 2)), n_batch=2, n_dense=1)
    with pytest.raises(DTypeError, match="index_dtype must be one of integers"):
        sparse.BCOO.fromdense(fnp.ones(4), index_dtype="float32")
    with pytest.raises(ShapeError, match="need two axes beside n_batch"):
        sparse.BCSR.fromdense(fnp.ones(4))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "uint32"])
def test_dtypes_of_indices(kind, rng):
    x = dense(rng, (5, 100))
    for make in (sparse.BCOO, sparse.BCSR):
        m = make.fromdense(x, index_dtype=kind)
        assert m.indices.dtype == kind
        assert_same(m, x)
        assert_same(m @ fnp.ones(100), x.sum(1), 1e-4)
        assert_same(m.transpose(), x.T)


def test_duplicates_and_order(rng):
    x = dense(rng)
    m = awkward(x, rng)
    plain = sparse.BCOO.fromdense(x)
    assert_same(m, x)
    assert_same(m.sort_indices(), x)
    assert m.sort_indices().indices_sorted
    once = m.sum_duplicates()
    assert once.nse == plain.nse
    np.testing.assert_array_equal(once.indices, plain.indices)
    assert_same(once, x)
    kept = m.sum_duplicates(remove_zeros=False)
    assert kept.nse == plain.nse + sum(x[i, i] == 0 for i in (0, 1))
    assert_same(m.sum_duplicates(nse=40), x)
    assert_same(fg.jit(lambda m: m.sum_duplicates(nse=40))(m), x)
    with pytest.raises(ArgumentError, match="nse is 1, but there are"):
        m.sum_duplicates(nse=1)
    with pytest.raises(ConcretizationError, match="nse must be given"):
        fg.jit(lambda m: m.sum_duplicates())(m)
    for b in (sparse.BCSR.from_bcoo(m), sparse.BCSR.fromdense(x)):
        assert_same(b.sum_duplicates(), x)
        assert_same(b.to_bcoo(), x)


def test_duplicates_of_batches(rng):
    x = dense(rng, (3, 4, 5))
    m = sparse.BCOO.fromdense(x, n_batch=1)
    twice = sparse.bcoo_concatenate([m, m], dimension=1)
    assert_same((m + m).sum_duplicates(), 2 * x)
    assert_same(twice, np.concatenate([x, x], 1))
    assert (m - m).sum_duplicates().nse == 0


@pytest.mark.parametrize(("n_batch", "n_dense"), LAYOUTS)
@pytest.mark.parametrize(("to_batch", "to_dense"), LAYOUTS)
def test_kinds_of_axes(n_batch, n_dense, to_batch, to_dense, rng):
    x = dense(rng, (2, 3, 2))
    m = sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)
    if to_batch > n_batch or to_dense > n_dense:
        with pytest.raises(SparseEfficiencyError, match="times as much"):
            m.update_layout(n_batch=to_batch, n_dense=to_dense)
    out = m.update_layout(n_batch=to_batch, n_dense=to_dense, on_inefficient=None)
    assert (out.n_batch, out.n_dense) == (to_batch, to_dense)
    assert_same(out, x)


def test_warning_and_bad_layouts():
    m = sparse.eye(2)
    with pytest.warns(sparse.SparseEfficiencyWarning, match="2 times as much"):
        m.update_layout(n_batch=1, on_inefficient="warn")
    with pytest.raises(ArgumentError, match='"error", "warn" or None'):
        m.update_layout(n_batch=1, on_inefficient="no")
    with pytest.raises(ArgumentError, match="need a BCOO"):
        sparse.bcoo_update_layout(fnp.ones(3), n_batch=0)


def test_extract(rng):
    x, y = dense(rng), fnp.array(rng.standard_normal((5, 6)), "float32")
    for m in matrices(x, rng).values():
        if isinstance(m, sparse.BCOO):
            there = full(sparse.BCOO.of(fnp.ones_like(m.data), m.indices, m.sparse_shape)) != 0
            assert_same(sparse.bcoo_extract(m, y), np.where(there, y, 0))
        else:
            got = sparse.bcsr_extract(m.indices, m.indptr, y)
            assert_same(got[: np.count_nonzero(x)], np.asarray(y)[x != 0])
    with pytest.raises(ShapeError, match="shapes differ"):
        sparse.bcoo_extract(sparse.eye(2), fnp.ones(3))


def test_scipy_there_and_back(rng):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = dense(rng)
    for of in (scipy_sparse.coo_array, scipy_sparse.csc_matrix, scipy_sparse.csr_array):
        for make in (sparse.BCOO, sparse.BCSR):
            m = make.from_scipy_sparse(of(x))
            assert_same(m, x)
            np.testing.assert_array_equal(m.to_scipy_sparse().toarray(), x)
    for m in matrices(x, rng).values():
        np.testing.assert_allclose(m.to_scipy_sparse().toarray(), x, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"need a matrix of scipy.sparse"):
        sparse.BCSR.from_scipy_sparse(x)
    with pytest.raises(ArgumentError, match="no batch or dense axes"):
        sparse.BCOO.from_scipy_sparse(scipy_sparse.coo_array(x), n_batch=1)
    with pytest.raises(ShapeError, match="need two axes, both sparse"):
        sparse.BCOO.fromdense(x, n_batch=1).to_scipy_sparse()
    with pytest.raises(ArgumentError, match="convert that with from_scipy_sparse"):
        sparse.eye(5) @ scipy_sparse.csr_array(x)
