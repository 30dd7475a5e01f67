"""Losses over classes, along axis 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import nn
from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.graph import Node


def _negative_log_likelihood(node: Node, x: Any, target: Any, weight: Any = None) -> Any:
    ignored, classes = node.get("ignore_index"), x.shape[1]
    kept = fnp.ones(target.shape, bool) if ignored is None else target != ignored
    safe = fnp.where(kept, target, 0)
    chosen = fnp.take_along_axis(x, fnp.expand_dims(safe, 1), axis=1)
    each = -fnp.squeeze(chosen, 1)
    of = fnp.ones(classes, x.dtype) if weight is None else weight
    share = fnp.where(kept, fnp.take(of, safe, axis=0), np.zeros((), x.dtype))
    loss = each * share
    how = node.get("reduction", "mean")
    if how == "none":
        return loss
    return fnp.sum(loss) if how == "sum" else fnp.sum(loss) / fnp.sum(share)


def _cross_entropy(node: Node, x: Any, target: Any, weight: Any = None) -> Any:
    logs = nn.log_softmax(x, axis=1)
    return [_negative_log_likelihood(node, logs, target, weight), logs]


RULES: dict[str, Callable] = {
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
