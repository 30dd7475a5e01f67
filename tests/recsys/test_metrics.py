"""Metrics against loops, in batches as at once, compiled and added up over devices."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, recsys, tree
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.parallel import P, make_mesh, shard_map


def auc_by_pairs(scores, labels, weights):
    total = won = 0.0
    for i in np.flatnonzero(labels):
        for j in np.flatnonzero(1 - labels):
            w = weights[i] * weights[j]
            total += w
            won += w * (0.5 if scores[i] == scores[j] else scores[i] > scores[j])
    return won / total


def entropy_by_sums(logits, labels, weights):
    p = 1 / (1 + np.exp(-logits.astype("float64")))
    loss = -np.average(labels * np.log(p) + (1 - labels) * np.log(1 - p), weights=weights)
    mean = np.average(labels, weights=weights)
    return loss / -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))


def in_parts(metric, *arrays, parts=3):
    state = metric.init()
    update = fg.jit(metric.update)
    for part in zip(*(np.array_split(a, parts) for a in arrays), strict=True):
        state = update(state, *part)
    return float(metric.value(state))


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_and_entropy(rng, weighted):
    logits = rng.normal(size=60).astype("float32").round(1)
    labels = (rng.random(60) < 0.3 + 0.3 * (logits > 0)).astype("int32")
    weights = rng.random(60).astype("float32") if weighted else np.ones(60, "float32")
    cases = [
        (recsys.streaming_auc(), auc_by_pairs(logits, labels, weights)),
        (recsys.normalized_entropy(), entropy_by_sums(logits, labels, weights)),
    ]
    for metric, want in cases:
        got = in_parts(metric, logits, labels, *([weights] if weighted else []))
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_auc_of_extreme_logits():
    metric = recsys.streaming_auc(8)
    state = metric.update(metric.init(), fnp.array([-99.0, 99.0]), fnp.array([0, 1]))
    assert metric.value(state) == 1
    assert np.isnan(metric.value(metric.init()))


def ranked_by_loops(scores, labels, k, kind):
    found = []
    for s, y in zip(scores, labels, strict=True):
        if not y.any():
            continue
        best = np.argsort(-s, kind="stable")[:k]
        if kind == "recall":
            found.append(y[best].sum() / y.sum())
        else:
            gain = lambda order: sum(y[i] / np.log2(r + 2) for r, i in enumerate(order))
            found.append(gain(best) / gain(np.argsort(-y, kind="stable")[:k]))
    return np.mean(found)


@pytest.mark.parametrize("k", [1, 3, 99])
def test_ranking(rng, k):
    scores = rng.normal(size=(9, 7)).astype("float32")
    labels = (rng.random((9, 7)) < 0.3).astype("float32")
    labels[0] = 0
    for metric, kind in ((recsys.recall_at(k), "recall"), (recsys.ndcg_at(k), "ndcg")):
        want = ranked_by_loops(scores, labels, k, kind)
        np.testing.assert_allclose(in_parts(metric, scores, labels), want, rtol=1e-5)
    graded = labels * rng.integers(1, 4, labels.shape)
    want = ranked_by_loops(scores, graded, k, "ndcg")
    np.testing.assert_allclose(in_parts(recsys.ndcg_at(k), scores, graded), want, rtol=1e-5)


def test_added_up_over_devices(rng):
    logits, labels = rng.normal(size=40).astype("float32"), rng.integers(0, 2, 40)
    metric = recsys.streaming_auc()
    one = metric.update(metric.init(), logits, labels)
    mapped = shard_map(
        lambda x, y: lax.psum(metric.update(metric.init(), x, y), "data"),
        mesh=make_mesh(4, "data"), in_specs=(P("data"), P("data")), out_specs=P(),
    )  # fmt: skip
    both = zip(tree.leaves(mapped(logits, labels)), tree.leaves(one), strict=True)
    assert all(np.array_equal(np.asarray(a), b) for a, b in both)


def test_refused():
    auc = recsys.streaming_auc()
    with pytest.raises(ShapeError, match="streaming_auc: need logits, labels and weights"):
        auc.update(auc.init(), fnp.ones(3), fnp.ones(2))
    with pytest.raises(ArgumentError, match="bins must be 1 or more"):
        recsys.streaming_auc(0)
    with pytest.raises(ArgumentError, match="recall_at\\(0\\): k must be"):
        recsys.recall_at(0)
    recall = recsys.recall_at(2)
    with pytest.raises(ShapeError, match="scores and labels \\(queries, items\\)"):
        recall.update(recall.init(), fnp.ones(3), fnp.ones(3))
