"""The formats: what they take, what they are as pytrees, and how they are shown."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, sparse, tree
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from tests.sparse.samples import assert_same, dense


def test_facts():
    m = sparse.BCOO.fromdense(fnp.ones((2, 3, 4, 5)), n_batch=1, n_dense=1)
    assert (m.shape, m.ndim, m.size, len(m)) == ((2, 3, 4, 5), 4, 120, 2)
    assert (m.nse, m.n_batch, m.n_sparse, m.n_dense) == (12, 1, 2, 1)
    assert repr(m) == "BCOO(float32[2, 3, 4, 5], nse=12, n_batch=1, n_dense=1)"
    assert repr(sparse.eye(2, sparse_format="bcsr")) == "BCSR(float32[2, 2], nse=2)"
    assert m.block_until_ready() is m
    with pytest.raises(TypeError, match="truth value"):
        bool(m)


def test_they_are_pytrees(rng):
    for make in (sparse.BCOO, sparse.BCSR):
        m = make.fromdense(dense(rng))
        leaves, structure = tree.flatten({"m": m})
        assert_same(structure.unflatten(leaves)["m"], m)
        paths = [tree.keystr(path) for path, _ in tree.leaves_with_path({"m": m})]
        assert paths[:2] == ["['m'].data", "['m'].indices"]
        assert repr(structure.unflatten([None] * len(leaves))["m"]).endswith("(<invalid>)")
        assert_same(fg.jit(lambda m: m)(m), m)
        assert_same(fg.device_put(m, fg.devices()[0]), m)
        assert fg.jit(lambda m: m.data.max())(m) == m.data.max()


def test_batch_axes_are_taken_away(rng):
    x = dense(rng, (3, 4, 5))
    for make in (sparse.BCOO, sparse.BCSR):
        m = make.fromdense(x, n_batch=1)
        seen = []
        fg.vmap(lambda m: seen.append(m.shape) or m.data)(m)
        _, ys = lax.scan(lambda c, m: (c, m @ fnp.ones(5)), 0, m)
        assert seen == [(4, 5)]
        assert_same(ys, x.sum(2))


def test_vmap_over_what_is_no_batch_axis(rng):
    m = sparse.BCOO.fromdense(dense(rng))
    with pytest.raises(ShapeError, match="vmap, scan and others map over batch axes alone"):
        fg.vmap(lambda m: m @ fnp.ones(6))(m)


@pytest.mark.parametrize(
    ("data", "indices", "shape", "error", "words"),
    [
        (np.ones(2), np.ones((2, 1)), (3,), DTypeError, "indices must be integers, got f64"),
        (np.ones(2), np.ones(2, int), (3,), ShapeError, r"indices must be \(\*batch, nse, n_sp"),
        (np.ones(3), np.ones((2, 1), int), (3,), ShapeError, "don't make an array of shape"),
        (np.ones(2), np.ones((2, 1), int), (3, 3), ShapeError, "don't make an array of shape"),
        (np.ones((2, 4)), np.ones((2, 1), int), (3, 5), ShapeError, "don't make an array"),
        (np.ones((2, 2)), np.ones((2, 2, 1), int), (3, 4), ShapeError, "must have the sizes"),
        (np.ones(2), np.array([[0], [-1]]), (3,), OutOfBoundsError, "not be negative, got -1"),
        (np.ones(2), np.ones((2, 1), int), (-3,), ShapeError, "negative size"),
    ],
)
def test_bad_coordinates(data, indices, shape, error, words):
    with pytest.raises(error, match=words):
        sparse.BCOO((data, indices), shape=shape)


def test_bad_rows():
    data, indices = np.ones(2), np.array([0, 1])
    with pytest.raises(ShapeError, match="rows . 1 = 3 elements for the shape"):
        sparse.BCSR((data, indices, np.array([0, 2])), shape=(2, 2))
    for indptr in ([0, 3], [2, 1], [-1, 2]):
        with pytest.raises(OutOfBoundsError, match="ascend from 0 to at most nse = 2"):
            sparse.BCSR((data, indices, np.array(indptr)), shape=(1, 2))
    with pytest.raises(DTypeError, match="indptr must be integers"):
        sparse.BCSR((data, indices, np.array([0.0, 2.0])), shape=(1, 2))
    with pytest.raises(ShapeError, match="don't make an array"):
        sparse.BCSR((data, indices[:1], np.array([0, 2])), shape=(1, 2))
    with pytest.raises(ArgumentError, match="need .data, indices, indptr."):
        sparse.BCSR((data, indices), shape=(1, 2))


def test_negative_indices_are_padding_where_they_are_traced():
    def total(indices):
        return sparse.BCOO((fnp.ones(2), indices), shape=(3,)).todense()

    assert fg.jit(total)(fnp.array([[1], [-1]])).tolist() == [0, 1, 0]


def test_html(rng):
    for m in (sparse.BCOO.fromdense(dense(rng, (300, 20))), sparse.eye(3, sparse_format="bcsr")):
        text = m._repr_html_()
        assert repr(m) in text
        assert f"{m.nse} stored" in text
        assert "<img" in text
    assert "<img" not in sparse.empty((3, 0))._repr_html_()
    assert "<img" in sparse.BCOO.fromdense(np.ones(3))._repr_html_()
    batched = sparse.BCSR.fromdense(np.ones((2, 3, 3)), n_batch=1)
    assert "18 stored, 100 %" in batched._repr_html_()
    shown = []
    fg.jit(lambda m: shown.append(m._repr_html_()) or m.data)(sparse.eye(2))
    assert "Tracer" in shown[0]
