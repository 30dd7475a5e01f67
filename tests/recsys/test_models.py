"""Models against formulas in NumPy, what they must not see, and that they learn."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, random, recsys, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.recsys import models

KEY = random.key(3)


def dense_layers(layers, x, last=False):
    for i, p in enumerate(layers):
        x = x @ np.asarray(p["w"]) + np.asarray(p["b"])
        x = np.maximum(x, 0) if last or i < len(layers) - 1 else x
    return x


def bags_of(rng, keys, dim, batch=5):
    return {k: rng.normal(size=(batch, dim)).astype("float32") for k in keys}


def test_dlrm_is_its_formula(rng):
    cfg = models.DLRMConfig(("a", "b"), dense=3, dim=4, bottom=(5,), top=(6,))
    params, bags = models.dlrm_init(KEY, cfg), bags_of(rng, "ab", 4)
    dense = rng.normal(size=(5, 3)).astype("float32")
    x = dense_layers(params["bottom"], dense, last=True)
    a, b = bags["a"], bags["b"]
    pairs = np.stack([(a * x).sum(1), (b * x).sum(1), (b * a).sum(1)], 1)
    want = dense_layers(params["top"], np.concatenate([x, pairs], 1))[:, 0]
    got = fg.jit(models.dlrm, static_argnums=3)(params, bags, dense, cfg)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_cross_layers_are_their_formula(rng):
    cfg = models.DLRMConfig(("a",), dense=3, dim=4, bottom=(5,), top=(6,), cross_layers=2,
                            cross_rank=3)  # fmt: skip
    params, bags = models.dlrm_init(KEY, cfg), bags_of(rng, "a", 4)
    dense = rng.normal(size=(5, 3)).astype("float32")
    x0 = x = np.concatenate([dense_layers(params["bottom"], dense, last=True), bags["a"]], 1)
    for p in tree.map(np.asarray, params["cross"]):
        x = x0 * (x @ p["down"] @ p["up"] + p["bias"]) + x
    want = dense_layers(params["top"], x)[:, 0]
    np.testing.assert_allclose(models.dlrm(params, bags, dense, cfg), want, rtol=1e-4, atol=1e-5)


def test_deepfm_is_its_formula(rng):
    cfg = models.DeepFMConfig(("a", "b"), dense=2, factors=3, hidden=(4,))
    params, bags = models.deepfm_init(KEY, cfg), bags_of(rng, "ab", 4)
    dense = rng.normal(size=(5, 2)).astype("float32")
    v = [bags["a"][:, 1:], bags["b"][:, 1:]]
    v += [dense[:, [i]] * np.asarray(params["factors"])[i] for i in range(2)]
    pairs = sum((v[i] * v[j]).sum(1) for i in range(4) for j in range(i))
    want = bags["a"][:, 0] + bags["b"][:, 0] + pairs
    want = want + dense_layers(params["deep"], np.concatenate(v, 1))[:, 0]
    np.testing.assert_allclose(models.deepfm(params, bags, dense, cfg), want, rtol=1e-4, atol=1e-5)


def test_in_batch_softmax(rng):
    users, items = (rng.normal(size=(4, 3)).astype("float32") for _ in range(2))
    ids, frequency = np.array([7, 8, 7, 9]), np.log([0.5, 0.1, 0.5, 0.2]).astype("float32")
    scores = users @ items.T / 0.1 - frequency
    losses = []
    for i in range(4):
        others = [j for j in range(4) if j == i or ids[j] != ids[i]]
        losses.append(np.log(np.exp(scores[i, others] - scores[i, i]).sum()))
    got = models.in_batch_softmax(users, items, ids, frequency)
    np.testing.assert_allclose(got, np.mean(losses), rtol=1e-4)


@pytest.mark.parametrize("block", [3, 4, 100])
def test_top_items(rng, block):
    users, items = rng.normal(size=(5, 3)).astype("float32"), rng.normal(size=(10, 3))
    scores, found = models.top_items(users, items.astype("float32"), 4, block)
    want = np.argsort(-(users @ items.T), axis=1)[:, :4]
    np.testing.assert_array_equal(found, want)
    np.testing.assert_allclose(scores, np.take_along_axis(users @ items.T, want, 1), rtol=1e-4)


def test_sampled_softmax(rng):
    users, items, sampled = (rng.normal(size=(n, 3)).astype("float32") for n in (4, 4, 6))
    ids = np.array([7, 8, 7, 9]), np.array([1, 7, 2, 3, 8, 4])
    frequency = [np.log(rng.uniform(0.1, 1, len(i))).astype("float32") for i in ids]
    own = (users * items).sum(1) / 0.1 - frequency[0]
    others = users @ sampled.T / 0.1 - frequency[1]
    losses = []
    for i in range(4):
        kept = [j for j in range(6) if ids[1][j] != ids[0][i]]
        losses.append(np.log1p(np.exp(others[i, kept] - own[i]).sum()))
    got = models.sampled_softmax(users, items, sampled, ids, frequency)
    np.testing.assert_allclose(got, np.mean(losses), rtol=1e-4)
    with pytest.raises(ShapeError, match="sampled \\(n, width\\), got .4, 3., .4, 3. and .6, 2."):
        models.sampled_softmax(users, items, sampled[:, :2])


def test_items_are_searched_in_lists(rng):
    """All lists have the best items; a few of them most, where items lie in clusters."""
    middles = rng.normal(size=(20, 8)) * 3
    items = (middles[rng.integers(0, 20, 500)] + rng.normal(size=(500, 8))).astype("float32")
    users = (middles[:10] + rng.normal(size=(10, 8))).astype("float32")
    index = models.item_index(KEY, items, 20)
    ids = np.asarray(index.ids)
    assert sorted(ids[ids >= 0].tolist()) == list(range(500))
    scores, found = models.search_items(users, index, 5, lists=20)
    best, want = models.top_items(users, items, 5)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_allclose(scores, best, rtol=1e-4)
    narrow = models.search_items(users.astype("bfloat16"), index, 5, lists=20)[0]
    assert narrow.dtype == "float32"
    np.testing.assert_allclose(narrow, scores, rtol=0.05, atol=0.05)
    few = np.asarray(models.search_items(users, index, 5, lists=4)[1])
    assert np.mean([len(set(a) & set(b)) for a, b in zip(few, np.asarray(want), strict=True)]) > 4
    alone = models.item_index(KEY, items[:3], 3)
    scores, found = models.search_items(users[:1], alone, 2, lists=2)
    assert (np.asarray(found) >= 0).all()
    tight = models.ItemIndex(alone.centers, alone.items, fnp.full((3, 1), -1, "int32"))
    scores, found = models.search_items(users[:1], tight, 2, lists=2)
    assert found.tolist() == [[-1, -1]]
    assert (np.asarray(scores) == -np.inf).all()
    for wrong in (lambda: models.item_index(KEY, items, 501),
                  lambda: models.search_items(users, index, 5, lists=21)):  # fmt: skip
        with pytest.raises(ArgumentError, match="lists must be 1 to"):
            wrong()
    with pytest.raises(ShapeError, match="users must be .users, 8."):
        models.search_items(users[:, :3], index, 5)


def test_sequences_see_no_future_and_no_padding(rng):
    cfg = models.SASRecConfig(length=5, dim=8, heads=2, blocks=2)
    params = tree.map(lambda p: p * 5, models.sasrec_init(KEY, cfg))
    table = rng.normal(size=(20, 8)).astype("float32")
    ids = np.array([[0, 0, 3, 4, 5]])
    states = models.sasrec(params, table[ids], ids, cfg)
    later = ids.copy()
    later[0, 4] = 9
    np.testing.assert_allclose(
        models.sasrec(params, table[later], later, cfg)[0, :4], states[0, :4], rtol=1e-5
    )
    other = table.copy()
    other[0] = 100
    np.testing.assert_allclose(
        models.sasrec(params, other[ids], ids, cfg)[0, 2:], states[0, 2:], rtol=1e-5
    )
    assert not np.allclose(models.sasrec(params, table[later], later, cfg)[0, 4], states[0, 4])


def learned(loss, tables, params, steps=60):
    """The first and the last loss of some steps on one batch."""
    sparse, dense = recsys.rowwise_adagrad(0.1), optim.adam(0.01)
    state, moments = sparse.init(tables), dense.init(params)

    @partial(fg.jit, donate_argnums=(0, 1, 2, 3))
    def step(tables, params, state, moments):
        value, (g, h) = recsys.value_and_sparse_grad(loss, 1)(tables, params)
        updates, state = sparse.update(g, state, tables)
        changes, moments = dense.update(h, moments, params)
        tables = recsys.apply_updates(tables, updates)
        return tables, optim.apply_updates(params, changes), state, moments, value

    losses = []
    for _ in range(steps):
        tables, params, state, moments, value = step(tables, params, state, moments)
        losses.append(float(value))
    return losses[0], losses[-1]


def clicks(rng, batch=64):
    kjt = recsys.KeyedJaggedTensor.from_lists(
        {k: [rng.integers(0, 20, rng.integers(0, 4)).tolist() for _ in range(batch)] for k in "ab"}
    )
    return kjt, rng.normal(size=(batch, 3)).astype("float32"), rng.integers(0, 2, batch)


@pytest.mark.parametrize("kind", ["dlrm", "dcn", "deepfm"])
def test_click_models_learn(rng, kind):
    kjt, dense, labels = clicks(rng)
    if kind == "deepfm":
        cfg = models.DeepFMConfig(("a", "b"), dense=3, factors=4)
        params, model, dim = models.deepfm_init(KEY, cfg), models.deepfm, cfg.columns
    else:
        cfg = models.DLRMConfig(("a", "b"), dense=3, dim=8, cross_layers=2 * (kind == "dcn"))
        params, model, dim = models.dlrm_init(KEY, cfg), models.dlrm, 8
    tables = models.init_tables(KEY, {"a": (20, dim), "b": (20, dim)})

    def loss(tables, params):
        logits = model(params, recsys.embedding_bag(tables, kjt), dense, cfg)
        return fnp.mean(optim.sigmoid_binary_cross_entropy(logits, labels))

    first, last = learned(loss, tables, params)
    assert last < 0.4 * first


def test_towers_learn(rng):
    cfg = models.TwoTowerConfig(("user",), ("item",), dim=8)
    pairs = recsys.KeyedJaggedTensor.from_lists(
        {"user": [[i] for i in range(16)], "item": [[(5 * i) % 16] for i in range(16)]}
    )
    tables = models.init_tables(KEY, {"user": (16, 8), "item": (16, 8)})

    def loss(tables, params):
        bags = recsys.embedding_bag(tables, pairs)
        return models.in_batch_softmax(
            models.two_tower(params, bags, cfg, "user"), models.two_tower(params, bags, cfg, "item")
        )

    first, last = learned(loss, tables, models.two_tower_init(KEY, cfg))
    assert last < 0.1 * first


def test_sequences_learn(rng):
    cfg = models.SASRecConfig(length=6, dim=16)
    starts = rng.integers(1, 20, 32)
    ids = (starts[:, None] + np.arange(7)) % 19 + 1
    wrong = rng.integers(1, 20, (32, 6))
    tables = models.init_tables(KEY, {"item": (20, 16)})

    def loss(tables, params):
        rows = recsys.embedding(tables["item"], ids)
        states = models.sasrec(params, rows[:, :-1], ids[:, :-1], cfg)
        negative = recsys.embedding(tables["item"], wrong)
        return models.sasrec_loss(states, rows[:, 1:], negative, ids[:, 1:])

    first, last = learned(loss, tables, models.sasrec_init(KEY, cfg))
    assert last < 0.6 * first


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: models.dlrm_init(KEY, models.DLRMConfig(())), ArgumentError, "has no features"),
        (lambda: models.top_items(np.ones((1, 2)), np.ones((3, 2)), 4), ArgumentError, "1 to 3"),
        (
            lambda: models.in_batch_softmax(np.ones((2, 3)), np.ones((3, 3))),
            ShapeError,
            "users and items",
        ),
        (
            lambda: models.sasrec_init(KEY, models.SASRecConfig(dim=9, heads=2)),
            ShapeError,
            "2 heads can't share 9",
        ),
        (
            lambda: models.sasrec({}, np.ones((1, 3, 4)), np.ones((1, 4)), models.SASRecConfig()),
            ShapeError,
            "need rows",
        ),
    ],
)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_wrong_features_are_named(rng):
    cfg = models.DLRMConfig(("a", "b"), dense=3, dim=4)
    params, dense = models.dlrm_init(KEY, cfg), np.ones((5, 3), "float32")
    with pytest.raises(ArgumentError, match="no feature 'b' among \\['a'\\]"):
        models.dlrm(params, bags_of(rng, "a", 4), dense, cfg)
    with pytest.raises(ShapeError, match="feature 'a' must be \\(batch, 4\\), got \\(5, 3\\)"):
        models.dlrm(params, bags_of(rng, "ab", 3), dense, cfg)
    with pytest.raises(ShapeError, match="dense features must be \\(batch, 3\\)"):
        models.dlrm(params, bags_of(rng, "ab", 4), dense[:, :2], cfg)
    towers = models.TwoTowerConfig(("a",), ("b",), dim=4)
    with pytest.raises(ArgumentError, match='"user" or "item", got \'ad\''):
        models.two_tower({}, bags_of(rng, "a", 4), towers, "ad")
