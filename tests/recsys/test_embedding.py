"""Lookups against Python loops, of every kind of rows, and ids that are none."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys, tree
from funcgrad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from funcgrad.recsys import JaggedTensor, KeyedJaggedTensor
from tests.recsys.jagged_samples import features, pooled

SIZES = {"ad": 7, "page": 11, "user": 3}


def tables_of(rng, dtype="float32", dims=(4, 8, 2)):
    return {
        k: fnp.asarray(rng.normal(size=(n, d)), dtype)
        for (k, n), d in zip(SIZES.items(), dims, strict=True)
    }


@pytest.mark.parametrize("pooling", ["sum", "mean", {"ad": "sum", "page": "mean", "user": "sum"}])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_bags_are_sums_of_rows(rng, pooling, weighted, compiled):
    tables = tables_of(rng)
    kjt, lists, weights = features(rng, SIZES, weighted=weighted)
    bag = lambda t, x: recsys.embedding_bag(t, x, pooling)
    out = (fg.jit(bag) if compiled else bag)(tables, kjt)
    for k, x in lists.items():
        mean = (pooling if isinstance(pooling, str) else pooling[k]) == "mean"
        want = pooled(np.asarray(tables[k]), x, weights and weights[k], mean)
        np.testing.assert_allclose(out[k], want, rtol=2e-5, atol=1e-6, err_msg=k)
        one = recsys.embedding_bag(tables[k], kjt[k], "mean" if mean else "sum")
        np.testing.assert_allclose(one, want, rtol=2e-5, atol=1e-6)


@given(lists=st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), spare=st.integers(0, 2))
def test_random_bags(lists, spare):
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    jt = JaggedTensor.from_lists(lists, capacity=sum(map(len, lists)) + spare)
    want = pooled(table, lists) if lists else np.zeros((0, 3))
    np.testing.assert_allclose(recsys.embedding_bag(table, jt), want)


BAGS = st.lists(st.lists(st.integers(-1, 8), max_size=12), min_size=4, max_size=4)


def compiled_bags():
    """Bags of two tables of 8 rows and what their rows' gradients add up to, as one program."""
    rng = np.random.default_rng(0)
    tables = {k: rng.normal(size=(8, n)).astype("float32") for k, n in (("ad", 3), ("page", 18))}
    weights = {k: rng.normal(size=(4, x.shape[1])).astype("float32") for k, x in tables.items()}

    def loss(tables, kjt):
        bags = recsys.embedding_bag(tables, kjt)
        return sum(fnp.sum(bags[k] * w) for k, w in weights.items()), bags

    def both(kjt):
        (_, bags), grads = recsys.value_and_sparse_grad(loss, has_aux=True)(tables, kjt)
        return bags, {k: g.summed() for k, g in grads.items()}

    return tables, weights, fg.jit(both)


COMPILED = functools.cache(compiled_bags)


@given(ad=BAGS, page=BAGS)
def test_random_bags_compiled(ad, page):
    """Also with ids that are no rows: their bags are NaN, and no row has a gradient of them."""
    tables, weights, both = COMPILED()
    lists = {"ad": ad, "page": page}
    bags, grads = both(recsys.KeyedJaggedTensor.from_lists(lists, capacity=50))
    for k, x in lists.items():
        dense = np.zeros_like(tables[k])
        for b, ids in enumerate(x):
            rows = [i for i in ids if 0 <= i < 8]
            want = tables[k][rows].sum(0) if len(rows) == len(ids) else np.nan
            np.testing.assert_allclose(bags[k][b], want, rtol=1e-5, atol=1e-5)
            np.add.at(dense, rows, weights[k][b])
        np.testing.assert_allclose(grads[k].to_dense(), dense, rtol=1e-5, atol=1e-5)
        indices = np.asarray(grads[k].indices)
        assert indices[indices < 8].tolist() == sorted({i for ids in x for i in ids if 0 <= i < 8})


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8", "int4", "float64"])
def test_rows_of_other_types(rng, kind):
    tables = tables_of(rng, "float64")
    kjt, lists, _ = features(rng, SIZES)
    if kind.startswith("int"):
        kept = {k: recsys.quantize_rows(t, int(kind[3:])) for k, t in tables.items()}
        read = {k: dequantized(t) for k, t in kept.items()}
    else:
        kept = {k: t.astype(kind) for k, t in tables.items()}
        read = {k: np.asarray(t).astype("float64") for k, t in kept.items()}
    out = fg.jit(recsys.embedding_bag)(kept, kjt)
    for k, x in lists.items():
        assert out[k].dtype == ("float64" if kind == "float64" else "float32")
        np.testing.assert_allclose(out[k], pooled(read[k], x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(read[k], tables[k], atol=0.3 if kind == "int4" else 0.02)


def dequantized(table):
    """The rows of a table of few bits, by NumPy."""
    codes = np.asarray(table.values)
    if table.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).astype("int8") - 8
        codes = codes.reshape(len(codes), -1)[:, : table.dim]
    return codes * np.asarray(table.scales)[:, None]


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_rows_are_off_by_half_a_step(rng, bits):
    x = rng.normal(size=(50, 9)).astype("float32")
    x[3] = 0
    q = recsys.quantize_rows(x, bits)
    assert q.shape == (50, 9)
    assert q.values.nbytes == 50 * (9 if bits == 8 else 5)
    read = dequantized(q)
    assert (np.abs(read - x) <= np.asarray(q.scales)[:, None] / 2 + 1e-6).all()
    assert tree.keystr(tree.leaves_with_path(q)[1][0]) == ".scales"
    rows = recsys.embedding(q, np.array([[3, 7], [49, 0]]))
    np.testing.assert_allclose(rows, read[[[3, 7], [49, 0]]], rtol=1e-6)
    assert recsys.quantize_rows(q, bits) is q
    assert recsys.quantize_rows(q, 12 - bits).bits == 12 - bits


def test_features_that_share_a_table(rng):
    table = tables_of(rng)["ad"]
    kjt, lists, _ = features(rng, {"seen": 7, "clicked": 7})
    shared = {"seen": "ad", "clicked": "ad"}
    out = recsys.embedding_bag({"ad": table}, kjt, table_of=shared)
    for k, x in lists.items():
        np.testing.assert_allclose(out[k], pooled(np.asarray(table), x), rtol=1e-5, atol=1e-6)


def test_sequences(rng):
    tables = tables_of(rng)
    kjt, lists, weights = features(rng, SIZES, weighted=True)
    out = fg.jit(recsys.embedding)(tables, kjt)
    for k, x in lists.items():
        flat = [i for bag in x for i in bag]
        rows = np.asarray(out[k].values)
        np.testing.assert_array_equal(rows[: len(flat)], np.asarray(tables[k])[flat])
        assert (rows[len(flat) :] == 0).all()
        assert out[k].lengths.tolist() == [len(bag) for bag in x]
        np.testing.assert_allclose(out[k].weights[: len(flat)], np.concatenate(weights[k]))
    ids = rng.integers(0, 7, (2, 3))
    np.testing.assert_array_equal(
        recsys.embedding(tables["ad"], ids), np.asarray(tables["ad"])[ids]
    )


def test_mapped_and_differentiated(rng):
    tables = tables_of(rng)
    many = [features(rng, {"ad": 7}, batch=3)[0] for _ in range(2)]
    room = max(x.capacities[0] for x in many)
    many = [KeyedJaggedTensor.from_lists({"ad": x["ad"].to_lists()}, capacity=room) for x in many]
    stacked = tree.map(lambda *x: fnp.stack(x), *many)
    out = fg.vmap(recsys.embedding_bag, (None, 0))(tables, stacked)["ad"]
    for got, one in zip(out, many, strict=True):
        np.testing.assert_allclose(got, recsys.embedding_bag(tables, one)["ad"], rtol=1e-6)
    dense = fg.grad(lambda t: fnp.sum(recsys.embedding_bag(t, many[0]["ad"])))(tables["ad"])
    counts = np.bincount(np.concatenate(many[0]["ad"].to_lists()).astype(int), minlength=7)
    np.testing.assert_allclose(dense, np.repeat(counts[:, None], 4, 1))


def test_weights_have_derivatives(rng):
    table = tables_of(rng)["ad"]
    jt = JaggedTensor.from_lists([[1, 2], [3]], [[0.5, 1.0], [2.0]])
    loss = lambda w: fnp.sum(recsys.embedding_bag(table, JaggedTensor(jt.values, jt.lengths, w)))
    np.testing.assert_allclose(
        fg.grad(loss)(jt.weights), np.asarray(table)[[1, 2, 3]].sum(1), rtol=1e-5
    )


def test_ids_that_are_no_rows(rng):
    tables = {"ad": fnp.ones((3, 2))}
    for bad in (3, -1):
        kjt = KeyedJaggedTensor.from_lists({"ad": [[0], [1, bad]]}, capacity=5)
        words = f"feature 'ad': id {bad} at position 2 \\(bag 1\\) is none of 3 rows"
        with pytest.raises(OutOfBoundsError, match=words):
            recsys.embedding_bag(tables, kjt)
        with pytest.raises(OutOfBoundsError, match=f"id {bad} at position 2"):
            recsys.embedding(tables, kjt)
        with pytest.raises(OutOfBoundsError, match="position \\(0, 1\\)"):
            recsys.embedding(tables["ad"], [[0, bad]])
        for table in (tables["ad"], *(recsys.quantize_rows(tables["ad"], b) for b in (8, 4))):
            out = fg.jit(recsys.embedding_bag)({"ad": table}, kjt)["ad"]
            np.testing.assert_allclose(out, [[1, 1], [np.nan] * 2], rtol=1e-6)
        with pytest.raises(OutOfBoundsError, match=words):
            recsys.check_features(kjt, {"ad": 3})
        recsys.check_features(kjt[:1], {"ad": 3})
    with pytest.raises(ArgumentError, match="feature 'ad' needs a table 'x'"):
        recsys.check_features(kjt, {"ad": 3}, {"ad": "x"})
    # Padding may be anything.
    padded = KeyedJaggedTensor(["ad"], [1, -7, 99], [1], capacities=[3])
    np.testing.assert_array_equal(recsys.embedding_bag(tables, padded)["ad"], [[1, 1]])


def test_lengths_that_are_too_long_stay_in_their_block():
    tables = {k: fnp.ones((9, 1)) for k in "ab"}
    bag = fg.jit(
        lambda v, n: recsys.embedding_bag(tables, KeyedJaggedTensor("ab", v, n, capacities=[2, 2]))
    )
    out = bag(np.arange(4), np.array([1, 5, 1, 1]))
    assert out["a"].ravel().tolist() == [1, 1]
    assert out["b"].ravel().tolist() == [1, 1]


TABLES = {"a": np.ones((3, 2), "float32")}
IDS = KeyedJaggedTensor.from_lists({"a": [[1]]})


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: recsys.embedding_bag(TABLES, IDS, "max"), ArgumentError, "pooling of feature 'a'"),
        (lambda: recsys.embedding_bag(TABLES, IDS, {"b": "sum"}), ArgumentError, "'none given'"),
        (lambda: recsys.embedding_bag({}, IDS), ArgumentError, "feature 'a' needs a table 'a'"),
        (lambda: recsys.embedding_bag(TABLES["a"], IDS), ArgumentError, "tables by name"),
        (lambda: recsys.embedding_bag(TABLES, IDS["a"]), ArgumentError, "its table"),
        (lambda: recsys.embedding_bag({"a": np.ones(3)}, IDS), ShapeError, "must be \\(rows, dim"),
        (lambda: recsys.embedding_bag({"a": np.ones((3, 1), int)}, IDS), DTypeError, "of floats"),
        (lambda: recsys.embedding(TABLES["a"], [1.5]), DTypeError, "ids must be integers"),
        (lambda: recsys.quantize_rows(np.ones(3)), ShapeError, "quantize_rows: table"),
        (lambda: recsys.QuantizedTable(np.ones((2, 2), "int8"), [1.0]), ShapeError, "scales"),
        (lambda: recsys.QuantizedTable(np.ones((1, 2)), [1.0]), DTypeError, "must be integers"),
        (lambda: recsys.quantize_rows(np.ones((1, 2)), 3), ArgumentError, "bits must be 8 or 4"),
        (
            lambda: recsys.QuantizedTable(np.ones((1, 2), "int8"), [1.0], 4),
            DTypeError,
            "packed in uint8",
        ),
        (
            lambda: recsys.QuantizedTable(np.ones((1, 2), "uint8"), [1.0], 4, 5),
            ShapeError,
            "5 columns of 4 bits aren't 2 bytes",
        ),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
