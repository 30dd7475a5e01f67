"""Sparse arrays moved, summed, reshaped, cut and joined, against NumPy's of dense ones."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import sparse
from funcgrad.errors import ArgumentError, OutOfBoundsError, ShapeError, SparseEfficiencyError
from funcgrad.test_util import check_grads
from tests.sparse.samples import assert_same, awkward, dense, matrices

LAYOUTS = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (3, 0)]


@pytest.fixture(params=LAYOUTS, ids=str)
def pair(request, rng):
    """A dense array and the sparse one, of each layout."""
    n_batch, n_dense = request.param
    x = dense(rng, (2, 3, 4))
    return x, sparse.BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense, nse=25 if not any(
        request.param) else None)  # fmt: skip


def kinds(m):
    return [0] * m.n_batch + [1] * m.n_sparse + [2] * m.n_dense


def test_transpose(pair):
    x, m = pair
    for order in itertools.permutations(range(3)):
        if [kinds(m)[i] for i in order] == kinds(m):
            assert_same(m.transpose(order), x.transpose(order))
        else:
            with pytest.raises(SparseEfficiencyError, match="exchanges batch, sparse or dense"):
                m.transpose(order)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (-1,)])
def test_sums(axes, pair):
    x, m = pair
    assert_same(sparse.bcoo_reduce_sum(m, axes=axes), x.sum(axes))
    assert_same(m.sum(axes), x.sum(axes))
    if len(axes) == 3:
        assert isinstance(m.sum(axes), fg.Array)


def test_sums_leave_padding_out(rng):
    x = dense(rng)
    m = awkward(x, rng)
    for axes in ((0,), (1,), (0, 1)):
        assert_same(fg.jit(lambda m: m.sum(axes))(m), x.sum(axes))
    data = fnp.nan_to_num(m.data)
    check_grads(lambda d: sparse.BCOO.of(d, m.indices, m.sparse_shape).sum() ** 2, (data,), order=2,
                rtol=0.05)  # fmt: skip


def test_broadcast(pair):
    x, m = pair
    for shape, to in (
        ((2, 3, 4), (0, 1, 2)), ((5, 2, 3, 4), (1, 2, 3)), ((2, 3, 4, 2), (0, 1, 2)),
        ((2, 6, 3, 4), (0, 2, 3)),
    ):  # fmt: skip
        got = sparse.bcoo_broadcast_in_dim(m, shape=shape, broadcast_dimensions=to)
        assert_same(got, fg.lax.broadcast_in_dim(fnp.array(x), shape, to))
    thin = sparse.bcoo_slice(m, start_indices=(1, 0, 2), limit_indices=(2, 3, 3))
    got = sparse.bcoo_broadcast_in_dim(thin, shape=(6, 3, 2), broadcast_dimensions=(0, 1, 2))
    assert_same(got, np.broadcast_to(x[1:2, :, 2:3], (6, 3, 2)))
    with pytest.raises(ShapeError, match="doesn't broadcast to"):
        sparse.bcoo_broadcast_in_dim(m, shape=(2, 3, 5), broadcast_dimensions=(0, 1, 2))


def test_reshape(pair):
    x, m = pair
    for shape in [(2, 3, 4), (6, 4), (2, 12), (24,), (1, 2, 3, 2, 2), (4, 6)]:
        ends = itertools.accumulate(shape, initial=1, func=lambda a, b: a * b)
        starts = itertools.accumulate(reversed(shape), initial=1, func=lambda a, b: a * b)
        fits = int(np.prod(x.shape[: m.n_batch])) in ends
        if fits and int(np.prod(x.shape[3 - m.n_dense :])) in starts:
            assert_same(sparse.bcoo_reshape(m, new_sizes=shape), x.reshape(shape))
        else:
            with pytest.raises(ShapeError, match="must each have the same product"):
                sparse.bcoo_reshape(m, new_sizes=shape)
    if not m.n_batch and not m.n_dense:
        assert_same(m.reshape(-1, 4), x.reshape(-1, 4))
        assert_same(sparse.bcoo_reshape(m, new_sizes=(4, 6), dimensions=(2, 1, 0)),
                    x.transpose(2, 1, 0).reshape(4, 6))  # fmt: skip
    with pytest.raises(ShapeError, match="has no shape"):
        m.reshape(5, 5)


def test_reverse(pair):
    x, m = pair
    for axes in ((0,), (1, 2), (0, 1, 2)):
        assert_same(sparse.bcoo_rev(m, axes), np.flip(x, axes))


CUTS = [
    np.s_[1], np.s_[-1], np.s_[:, 1], np.s_[..., 0], np.s_[1, 2, 3], np.s_[:, ::2, 1:],
    np.s_[None, 1, :, None], np.s_[5:, 1:1], np.s_[0:1, ..., -2:],
]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_cut(cut, pair):
    x, m = pair
    assert_same(m[cut], x[cut])
    assert m[cut].shape == x[cut].shape


def test_cut_at_traced_places(pair):
    x, m = pair
    at = fg.jit(lambda m, i: (m[i], m[:, i, 1:3]))(m, 1)
    assert_same(at[0], x[1])
    assert_same(at[1], x[:, 1, 1:3])
    got = sparse.bcoo_dynamic_slice(m, (1, fnp.array(2), 9), (1, 2, 3))
    assert_same(got, x[1:2, 1:3, 1:4])


def test_cut_of_rows(rng):
    x = dense(rng)
    for m in matrices(x, rng).values():
        assert_same(m[2], x[2])
        assert_same(fg.jit(lambda m: m[1:4])(m), x[1:4])
        assert [full.shape for full in m] == [(6,)] * 5


def test_bad_cuts():
    m = sparse.eye(3)
    with pytest.raises(OutOfBoundsError, match="index 3 is out of bounds for an axis of size 3"):
        m[3]
    with pytest.raises(ArgumentError, match="steps of slices must be positive"):
        m[::-1]
    with pytest.raises(ArgumentError, match="an index must be an integer, a slice, None"):
        m[fnp.array([0, 1])]
    with pytest.raises(ShapeError, match="too many indices"):
        m[0, 0, 0]
    with pytest.raises(ShapeError, match="must be within the shape"):
        sparse.bcoo_slice(m, start_indices=(0, 0), limit_indices=(4, 3))
    with pytest.raises(ShapeError, match="need a start and a size for each axis"):
        sparse.bcoo_dynamic_slice(m, (0,), (4, 3))
    with pytest.raises(ShapeError, match="must have size 1"):
        sparse.bcoo_squeeze(m, dimensions=(0,))


def test_join(pair, rng):
    x, m = pair
    for axis in range(3):
        y = np.moveaxis(dense(rng, (3, *np.delete(x.shape, axis))), 0, axis)
        other = sparse.BCOO.fromdense(y, n_batch=m.n_batch, n_dense=m.n_dense)
        got = sparse.bcoo_concatenate([m, other, m], dimension=axis)
        assert_same(got, np.concatenate([x, y, x], axis))
    with pytest.raises(ShapeError, match="must have the same shapes but along axis 0"):
        sparse.bcoo_concatenate([m, m.sum(1)], dimension=0)


def test_join_keeps_padding_apart(rng):
    x = dense(rng)
    m = awkward(x, rng)
    for axis in (0, 1):
        assert_same(sparse.bcoo_concatenate([m, m], dimension=axis), np.concatenate([x, x], axis))
    with pytest.raises(ArgumentError, match="need at least one array"):
        sparse.bcoo_concatenate([], dimension=0)
