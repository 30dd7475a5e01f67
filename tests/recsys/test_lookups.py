"""Gradients of rows that were read: those of dense ones, without an array of a table's shape."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys, tree
from funcgrad.core.ir import sub_jaxprs
from funcgrad.errors import ArgumentError, DifferentiationError, DTypeError
from funcgrad.recsys import IndexedRows
from tests.recsys.jagged_samples import features

SIZES = {"ad": 7, "page": 11, "seen": 7}
SHARED = {"seen": "ad"}


def setting(rng, weighted=False):
    tables = {
        "ad": fnp.asarray(rng.normal(size=(7, 3)), "float32"),
        "page": fnp.asarray(rng.normal(size=(11, 2)), "float32"),
        "unused": fnp.ones((5, 2)),
    }
    kjt, _, _ = features(rng, SIZES, weighted=weighted)
    return tables, kjt, fnp.asarray(rng.normal(size=(8, 4)), "float32")


def loss_of(tables, w, kjt):
    """Bags by sum and mean, sequences and single rows, of which some share a table."""
    bags = recsys.embedding_bag(tables, kjt, {"ad": "sum", "page": "mean", "seen": "sum"},
                                table_of=SHARED)  # fmt: skip
    h = fnp.tanh(fnp.concatenate(list(bags.values()), axis=1) @ w)
    sequence = recsys.embedding(tables["page"], kjt["page"])
    rows = recsys.embedding(tables["ad"], fnp.array([[1, 2], [2, 2]]))
    return fnp.sum(h**2) + fnp.sum(fnp.sin(sequence.to_dense(4))) + fnp.sum(rows**3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_of_dense_tables(rng, weighted, compiled):
    tables, kjt, w = setting(rng, weighted)
    f = recsys.value_and_sparse_grad(loss_of, 1)
    value, (sparse, dense) = (fg.jit(f) if compiled else f)(tables, w, kjt)
    want, grads = fg.value_and_grad(loss_of, (0, 1))(tables, w, kjt)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(dense, grads[1], rtol=1e-4, atol=1e-5)
    for k, g in sparse.items():
        assert isinstance(g, IndexedRows)
        for one in (g, g.summed(), fg.jit(IndexedRows.summed)(g)):
            np.testing.assert_allclose(one.to_dense(), grads[0][k], rtol=1e-4, atol=1e-5)
        distinct = np.asarray(g.summed().indices)
        assert len(set(distinct.tolist())) == len(distinct) <= max(tables[k].shape[0], 1)
    assert sparse["unused"].indices.shape == (0,)


def test_finite_differences(rng):
    tables, kjt, w = setting(rng)
    tables = {k: t.astype("float64") for k, t in tables.items()}
    grads = recsys.value_and_sparse_grad(loss_of)(tables, w.astype("float64"), kjt)[1]
    for k, i, j in [("ad", 2, 1), ("page", int(kjt["page"].values[0]), 0)]:
        moved = [
            loss_of({**tables, k: tables[k].at[i, j].add(d)}, w.astype("float64"), kjt)
            for d in (1e-5, -1e-5)
        ]
        want = (moved[0] - moved[1]) / 2e-5
        np.testing.assert_allclose(grads[k].to_dense()[i, j], want, rtol=1e-4)


def test_weights_and_auxiliary_values(rng):
    tables, kjt, _ = setting(rng, weighted=True)

    def loss(tables, weights):
        x = recsys.JaggedTensor(kjt["ad"].values, kjt["ad"].lengths, weights)
        bags = recsys.embedding_bag(tables["ad"], x)
        return fnp.sum(bags**2), bags

    given = kjt["ad"].weights
    (value, aux), (sparse, dense) = recsys.value_and_sparse_grad(loss, (1,), has_aux=True)(
        tables, given
    )
    (want, bags), grads = fg.value_and_grad(loss, (0, 1), has_aux=True)(tables, given)
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(aux, bags, rtol=1e-5)
    np.testing.assert_allclose(dense[0], grads[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sparse["ad"].to_dense(), grads[0]["ad"], rtol=1e-4, atol=1e-5)


def shapes(jaxpr):
    """Of all that a program computes, without what it writes into its arguments."""
    for eqn in jaxpr.eqns:
        for inner in sub_jaxprs(eqn):
            yield from shapes(inner)
        yield from (v.aval.shape for v in eqn.outs)


def test_no_dense_gradient_is_made(rng):
    tables, kjt, w = setting(rng)
    tables["ad"] = fnp.ones((1000, 3))
    f = recsys.value_and_sparse_grad(loss_of, 1)
    program = fg.make_jaxpr(f)(tables, w, kjt).jaxpr
    assert (1000, 3) not in set(shapes(program))
    dense = fg.make_jaxpr(fg.grad(loss_of))(tables, w, kjt).jaxpr
    assert (1000, 3) in set(shapes(dense))


def test_rows_that_are_summed_are_not_made(rng):
    """Rows of a batch, too, only once: those that an optimizer wants."""
    kjt = recsys.KeyedJaggedTensor.from_lists({"ad": [[1, 2], [2, 5, 2], [], [7]]}, capacity=50)
    loss = lambda tables, kjt: fnp.sum(recsys.embedding_bag(tables, kjt)["ad"] ** 2)

    def summed(tables, kjt):
        g = recsys.value_and_sparse_grad(loss)(tables, kjt)[1]["ad"].summed()
        return g.indices, g.rows

    table = fnp.asarray(rng.normal(size=(100, 3)), "float32")
    text = fg.jit(summed).lower({"ad": table}, kjt).as_text("loops")
    assert text.count("-> output1:f32[50,3]") == 1
    assert "f32[150]" not in text
    indices, rows = fg.jit(summed)({"ad": table}, kjt)
    want = fg.grad(loss)({"ad": table}, kjt)["ad"]
    assert indices[:5].tolist() == [1, 2, 5, 7, 104]
    np.testing.assert_allclose(rows[:4], np.asarray(want)[[1, 2, 5, 7]], rtol=1e-5)


def test_all_tables_are_read_in_one_step_and_their_gradients_summed_in_one(rng):
    tables, kjt, w = setting(rng)

    def summed(tables, kjt):
        bags = lambda tables: recsys.embedding_bag(tables, kjt, table_of=SHARED)
        loss = lambda t: fnp.sum(fnp.tanh(fnp.concatenate(list(bags(t).values()), 1) @ w))
        _, grads = recsys.value_and_sparse_grad(loss)(tables)
        return {k: (g.summed().indices, g.summed().rows) for k, g in grads.items()}

    text = fg.jit(summed).lower(tables, kjt).as_text("loops")
    assert text.count("host csr_matmuls") == 2


def test_narrow_tables_have_wide_gradients(rng):
    tables, kjt, w = setting(rng)
    tables = {k: t.astype("bfloat16") for k, t in tables.items()}
    _, grads = fg.jit(recsys.value_and_sparse_grad(loss_of))(tables, w, kjt)
    wide = {k: t.astype("float32") for k, t in tables.items()}
    want = fg.grad(loss_of)(wide, w, kjt)
    assert grads["ad"].rows.dtype == "float32"
    np.testing.assert_allclose(grads["ad"].to_dense(), want["ad"], rtol=1e-4, atol=1e-5)


def test_indices_outside_are_left_out():
    g = IndexedRows([5, -1, 1, 1, -9], np.ones((5, 2), "float32"), 4)
    np.testing.assert_array_equal(g.to_dense()[:, 0], [0, 2, 0, 0])
    s = g.summed()
    assert s.shape == (4, 2)
    assert s.indices.tolist() == [1, 5, 6, 7]
    np.testing.assert_array_equal(s.to_dense(), g.to_dense())
    assert s.summed() is s
    # What rows are made of is no part of the tree.
    lines = recsys.rows.Lines(fnp.array([0, 0, 1]), None, fnp.array([[2.0], [3.0]]))
    made = IndexedRows([4, 0, 4], [[2.0], [2.0], [3.0]], 5, lines=lines)
    for g in (made, tree.map(lambda x: x, made), IndexedRows.concat([made, made], (5, 1))):
        np.testing.assert_array_equal(g.summed().to_dense(), g.to_dense())


def test_refused(rng):
    tables, kjt, w = setting(rng)
    f = recsys.value_and_sparse_grad
    with pytest.raises(ArgumentError, match="argument 0 is the tables"):
        f(loss_of, (0, 1))
    with pytest.raises(DTypeError, match="value_and_sparse_grad: a table must be of floats"):
        f(loss_of)({"ad": np.ones((2, 2), int)}, w, kjt)
    with pytest.raises(DifferentiationError, match="a QuantizedTable can't be trained"):
        f(loss_of)({"ad": recsys.quantize_rows(tables["ad"])}, w, kjt)
    with pytest.raises(TypeError):
        f(lambda t, w: fnp.sum(t["ad"] @ w))(tables, w)
    with pytest.raises(ArgumentError, match="need indices"):
        IndexedRows([1], np.ones(3), 4)
    with pytest.raises(DTypeError, match="indices must be integers"):
        IndexedRows([1.0], np.ones((1, 3)), 4)
