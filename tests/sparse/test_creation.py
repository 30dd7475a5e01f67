"""Sparse arrays made anew."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import random, sparse
from funcgrad.errors import ArgumentError, ShapeError
from tests.sparse.samples import assert_same, full


@pytest.mark.parametrize("form", ["bcoo", "bcsr"])
def test_diagonals(form):
    for n, m in ((3, 3), (2, 4), (4, 2), (0, 3), (1, 1)):
        for k in range(-4, 5):
            got = sparse.eye(n, m, k, sparse_format=form)
            assert_same(got, np.eye(n, m, k))
            assert got.nse == np.trace(np.eye(n, m), k) or k
    assert sparse.eye(3, dtype="int8", index_dtype="int16").indices.dtype == np.int16
    assert_same(sparse.eye(3, n_batch=1), np.eye(3))
    assert_same(sparse.eye(3, n_dense=1), np.eye(3))


def test_empty():
    for form in ("bcoo", "bcsr"):
        m = sparse.empty((2, 3), sparse_format=form, nse=4)
        assert (m.shape, m.nse, m.dtype) == ((2, 3), 4, np.float32)
        assert_same(m, np.zeros((2, 3)))
        assert_same(m @ np.ones(3, "f"), np.zeros(2))
    assert_same(sparse.empty((2, 3, 4), n_batch=1, n_dense=1), np.zeros((2, 3, 4)))
    with pytest.raises(ShapeError, match="don't fit the shape"):
        sparse.empty((2,), n_batch=2)
    with pytest.raises(ArgumentError, match="sparse_format must be one of"):
        sparse.empty((2, 2), sparse_format="csc")


def test_random():
    key = random.key(3)
    m = sparse.random_bcoo(key, (20, 30), nse=0.1)
    assert m.nse == np.count_nonzero(full(m)) == 60
    assert m.sum_duplicates().nse == 60
    assert_same(m, sparse.random_bcoo(key, (20, 30), nse=0.1))
    batched = sparse.random_bcoo(key, (2, 4, 5, 3), nse=6, n_batch=1, n_dense=1)
    assert (batched.nse, batched.shape) == (6, (2, 4, 5, 3))
    assert len(np.unique(np.asarray(batched.indices), axis=0)) == 2
    normal = fg.jit(lambda key: sparse.random_bcoo(key, (9, 9), generator=random.normal))(key)
    assert (full(normal) < 0).any()
    many = sparse.random_bcoo(key, (2, 2), nse=9, unique_indices=False)
    assert many.nse == 9
    with pytest.raises(ArgumentError, match="9 different places of only 4"):
        sparse.random_bcoo(key, (2, 2), nse=9)
    with pytest.raises(ArgumentError, match="a share below 1 or a whole number"):
        sparse.random_bcoo(key, (2, 2), nse=1.5)
    with pytest.raises(ShapeError, match="don't fit the shape"):
        sparse.random_bcoo(key, (2, 2), n_dense=3)
