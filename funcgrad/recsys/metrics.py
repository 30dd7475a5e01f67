"""Metrics of recommenders, batch by batch: AUC, normalized entropy, NDCG and recall at k.

A metric is three functions, and its state a tree of sums. So states of several devices, or of parts
of a data set, are added up: `lax.psum(state, axes)`, `tree.map(fnp.add, a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.ops.indexing.segment import segment_sum


class Metric(NamedTuple):
    """init() gives a state, update(state, predictions, labels, weights=None) one with a batch more,
    value(state) the metric of all batches; NaN where it has none.

    >>> from funcgrad import recsys
    >>> metric = recsys.normalized_entropy()
    >>> print(metric.value(metric.update(metric.init(), fnp.zeros(2), fnp.array([0, 1]))))
    1.0
    """

    init: Callable[[], Any]
    update: Callable[..., Any]
    value: Callable[[Any], Any]


class Histograms(NamedTuple):
    """Weights of positive and negative examples by their score's bin, both (bins,)."""

    positive: Any
    negative: Any


class Sums(NamedTuple):
    """A sum over examples, and the sum of their weights."""

    total: Any
    weight: Any


class EntropySums(NamedTuple):
    """Sums over examples of the cross entropy, of labels, and of weights."""

    loss: Any
    positive: Any
    weight: Any


def streaming_auc(bins: int = 16384) -> Metric:
    """The area under the ROC curve, of logits (n,) and labels (n,) of 0 and 1.

    Probabilities are put into bins; those of one bin count as equal. So it is off by at most half
    of the chance that a positive and a negative example meet in one.

    >>> from funcgrad import recsys
    >>> auc = recsys.streaming_auc()
    >>> logits, labels = fnp.array([-1.0, 0.0, 1.0, 2.0]), fnp.array([0, 1, 0, 1])
    >>> print(auc.value(auc.update(auc.init(), logits, labels)))
    0.75
    """

    def init() -> Histograms:
        return Histograms(fnp.zeros(bins), fnp.zeros(bins))

    def update(state: Histograms, logits: Any, labels: Any, weights: Any = None) -> Histograms:
        logits, labels, weights = _examples("recsys.streaming_auc", logits, labels, weights)
        place = (nn.sigmoid(logits) * bins).astype(fnp.int32)
        place = fnp.clip(place, 0, bins - 1)
        positive = segment_sum(weights * labels, place, bins)
        negative = segment_sum(weights * (1 - labels), place, bins)
        return Histograms(state.positive + positive, state.negative + negative)

    def value(state: Histograms) -> Any:
        below = fnp.cumsum(state.negative) - state.negative
        pairs = fnp.sum(state.positive * (below + state.negative / 2))
        return pairs / (fnp.sum(state.positive) * fnp.sum(state.negative))

    if bins < 1:
        raise ArgumentError(f"recsys.streaming_auc: bins must be 1 or more, got {bins}")
    return Metric(init, update, value)


def normalized_entropy() -> Metric:
    """The mean cross entropy of logits (n,), over that of always predicting the mean label.

    Below 1 a model knows more than how many labels are 1 (He et al., 2014).

    >>> from funcgrad import recsys
    >>> ne = recsys.normalized_entropy()
    >>> state = ne.update(ne.init(), fnp.array([-9.0, 9.0]), fnp.array([0, 1]))
    >>> bool(ne.value(state) < 0.001)
    True
    """

    def init() -> EntropySums:
        return EntropySums(fnp.zeros(()), fnp.zeros(()), fnp.zeros(()))

    def update(state: EntropySums, logits: Any, labels: Any, weights: Any = None) -> EntropySums:
        logits, labels, weights = _examples("recsys.normalized_entropy", logits, labels, weights)
        loss = fnp.logaddexp(0.0, logits) - labels * logits
        return EntropySums(
            state.loss + fnp.sum(weights * loss),
            state.positive + fnp.sum(weights * labels),
            state.weight + fnp.sum(weights),
        )

    def value(state: EntropySums) -> Any:
        p = state.positive / state.weight
        entropy = -(p * fnp.log(p) + (1 - p) * fnp.log1p(-p))
        return state.loss / state.weight / entropy

    return Metric(init, update, value)


def recall_at(k: int) -> Metric:
    """Of the relevant items of each query, the share among its k best scores, on average.

    scores and labels (1 for relevant items) are (queries, items); weights are of queries. Queries
    without relevant items don't count.

    >>> from funcgrad import recsys
    >>> recall = recsys.recall_at(1)
    >>> state = recall.update(recall.init(), fnp.array([[3.0, 1.0, 2.0]]), fnp.array([[1, 0, 1]]))
    >>> print(recall.value(state))
    0.5
    """

    def quality(hits: Any, labels: Any) -> Any:
        return fnp.sum(hits, axis=1) / fnp.sum(labels, axis=1)

    return _ranked(f"recsys.recall_at({k})", k, quality)


def ndcg_at(k: int) -> Metric:
    """The normalized discounted cumulative gain of the k best scores, on average over queries.

    A gain of label g at rank r counts g / log₂(r + 1), r from 1; the sum is divided by that of the
    best order (Järvelin and Kekäläinen, 2002). Shapes as those of `recall_at`.

    >>> from funcgrad import recsys
    >>> ndcg = recsys.ndcg_at(2)
    >>> state = ndcg.update(ndcg.init(), fnp.array([[3.0, 1.0, 2.0]]), fnp.array([[0, 0, 1]]))
    >>> print(f"{ndcg.value(state):.4f}")
    0.6309
    """

    def quality(hits: Any, labels: Any) -> Any:
        n = hits.shape[1]
        discounts = 1 / fnp.log2(fnp.arange(n, dtype=fnp.float32) + 2)
        best = lax.top_k(labels, n)[0]
        return fnp.sum(hits * discounts, axis=1) / fnp.sum(best * discounts, axis=1)

    return _ranked(f"recsys.ndcg_at({k})", k, quality)


def _ranked(name: str, k: int, quality: Callable[[Any, Any], Any]) -> Metric:
    """The mean over queries of what the labels of the k best scores are worth."""
    if k < 1:
        raise ArgumentError(f"{name}: k must be 1 or more")

    def init() -> Sums:
        return Sums(fnp.zeros(()), fnp.zeros(()))

    def update(state: Sums, scores: Any, labels: Any, weights: Any = None) -> Sums:
        scores, labels = fnp.asarray(scores), fnp.asarray(labels)
        if scores.ndim != 2 or scores.shape != labels.shape:
            raise ShapeError(
                f"{name}: need scores and labels (queries, items), got {aval_of(scores)} and "
                f"{aval_of(labels)}"
            )
        labels = labels.astype(fnp.float32)
        best = lax.top_k(scores, min(k, scores.shape[1]))[1]
        hits = fnp.take_along_axis(labels, best, axis=1)
        some = fnp.sum(labels, axis=1) > 0
        worth = fnp.where(some, quality(hits, fnp.where(some[:, None], labels, 1)), 0)
        share = some.astype(fnp.float32)
        share = share if weights is None else share * fnp.asarray(weights)
        return Sums(state.total + fnp.sum(share * worth), state.weight + fnp.sum(share))

    def value(state: Sums) -> Any:
        return state.total / state.weight

    return Metric(init, update, value)


def _examples(name: str, logits: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Scores, labels and weights of examples, as floats."""
    logits, labels = fnp.asarray(logits), fnp.asarray(labels)
    weights = fnp.ones(logits.shape) if weights is None else fnp.asarray(weights)
    if logits.ndim != 1 or not logits.shape == labels.shape == weights.shape:
        raise ShapeError(
            f"{name}: need logits, labels and weights (n,), got {aval_of(logits)}, "
            f"{aval_of(labels)} and {aval_of(weights)}"
        )
    return logits.astype(fnp.float32), labels.astype(fnp.float32), weights.astype(fnp.float32)
