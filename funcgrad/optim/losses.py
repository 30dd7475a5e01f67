"""Losses, one number for each prediction or row of logits: take the mean for a batch."""

from __future__ import annotations

from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.errors import DTypeError
from funcgrad.nn import log_sigmoid, log_softmax


def squared_error(predictions: Any, targets: Any = 0.0) -> Any:
    """(predictions - targets)².

    >>> from funcgrad import optim
    >>> print(optim.squared_error(3.0, 1.0))
    4.0
    """
    return fnp.square(fnp.subtract(predictions, targets))


def l2_loss(predictions: Any, targets: Any = 0.0) -> Any:
    """(predictions - targets)²/2, whose derivative is the difference.

    >>> from funcgrad import optim
    >>> print(optim.l2_loss(3.0, 1.0))
    2.0
    """
    return 0.5 * squared_error(predictions, targets)


def huber_loss(predictions: Any, targets: Any = 0.0, delta: float = 1.0) -> Any:
    """e²/2 for an error of size e ≤ delta, delta·(e - delta/2) beyond (Huber, 1964).

    >>> from funcgrad import optim
    >>> print(optim.huber_loss(fnp.array([0.5, 3.0])))
    [0.125 2.5  ]
    """
    size = fnp.abs(fnp.subtract(predictions, targets))
    near = fnp.minimum(size, delta)
    return 0.5 * near * near + delta * (size - near)


def softmax_cross_entropy(logits: Any, labels: Any, axis: int = -1, where: Any = None) -> Any:
    """-Σ labels·log(softmax(logits)) along `axis`, for labels that are probabilities.

    where: a mask of the classes that there are.

    >>> from funcgrad import optim
    >>> print(optim.softmax_cross_entropy(fnp.zeros(2), fnp.array([1.0, 0.0])))
    0.6931472
    """
    log_probabilities = log_softmax(logits, axis=axis, where=where)
    return -fnp.sum(labels * log_probabilities, axis=axis, where=where)


def softmax_cross_entropy_with_integer_labels(
    logits: Any, labels: Any, axis: int = -1, where: Any = None
) -> Any:
    """-log(softmax(logits)) at the class that each integer label names, along `axis`.

    where: a mask of the classes that there are.

    >>> from funcgrad import optim
    >>> print(optim.softmax_cross_entropy_with_integer_labels(fnp.zeros((1, 2)), fnp.array([1])))
    [0.6931472]
    """
    labels = fnp.asarray(labels)
    if not dtypes.is_integer(labels.dtype):
        raise DTypeError(
            "softmax_cross_entropy_with_integer_labels: labels must be integers, got "
            f"{labels.dtype.name}; softmax_cross_entropy takes probabilities"
        )
    log_probabilities = log_softmax(logits, axis=axis, where=where)
    chosen = fnp.take_along_axis(log_probabilities, fnp.expand_dims(labels, axis), axis=axis)
    return -fnp.squeeze(chosen, axis=axis)


def sigmoid_binary_cross_entropy(logits: Any, labels: Any) -> Any:
    """-labels·log σ(logits) - (1 - labels)·log(1 - σ(logits)), elementwise.

    >>> from funcgrad import optim
    >>> print(optim.sigmoid_binary_cross_entropy(0.0, 1.0))
    0.6931472
    """
    logits = fnp.asarray(logits)
    labels = fnp.asarray(labels, logits.dtype)
    return -labels * log_sigmoid(logits) - (1 - labels) * log_sigmoid(-logits)
