"""Losses against their formulas, and their derivatives."""

import numpy as np
import pytest
from scipy import special

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, optim

LOGITS = np.array([[1.0, -2.0, 0.5], [100.0, 0.0, -100.0]])


def test_squares():
    p, t = np.array([1.0, -3.0]), np.array([0.5, 1.0])
    np.testing.assert_allclose(optim.squared_error(p, t), (p - t) ** 2)
    np.testing.assert_allclose(optim.l2_loss(p, t), (p - t) ** 2 / 2)
    np.testing.assert_allclose(fg.grad(lambda x: optim.l2_loss(x, t).sum())(fnp.array(p)), p - t)


def test_huber():
    e = np.array([-3.0, -0.5, 0.0, 0.2, 5.0])
    wanted = np.where(np.abs(e) <= 0.7, e * e / 2, 0.7 * (np.abs(e) - 0.35))
    np.testing.assert_allclose(optim.huber_loss(e, delta=0.7), wanted)
    slope = fg.grad(lambda x: optim.huber_loss(x, delta=0.7).sum())(fnp.array(e))
    np.testing.assert_allclose(slope, np.clip(e, -0.7, 0.7))


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax_cross_entropies(axis):
    logits = LOGITS if axis == -1 else LOGITS.T
    labels = np.array([2, 1])
    hot = np.eye(3)[labels] if axis == -1 else np.eye(3)[labels].T
    wanted = -(hot * special.log_softmax(logits, axis=axis)).sum(axis)
    np.testing.assert_allclose(optim.softmax_cross_entropy(logits, hot, axis), wanted)

    def loss(x):
        return optim.softmax_cross_entropy_with_integer_labels(x, labels, axis)

    np.testing.assert_allclose(loss(logits), wanted)
    slope = fg.grad(lambda x: loss(x).sum())(fnp.array(logits))
    np.testing.assert_allclose(slope, special.softmax(logits, axis=axis) - hot, atol=1e-12)


def test_masked_classes():
    labels, where = np.array([0, 1]), np.array([True, True, False])
    whole = optim.softmax_cross_entropy_with_integer_labels(LOGITS[:, :2], labels)

    def loss(x):
        return optim.softmax_cross_entropy_with_integer_labels(x, labels, where=where)

    np.testing.assert_allclose(loss(LOGITS), whole)
    hot = np.eye(3)[labels]
    np.testing.assert_allclose(optim.softmax_cross_entropy(LOGITS, hot, where=where), whole)
    slope = np.asarray(fg.grad(lambda x: loss(x).sum())(fnp.array(LOGITS)))
    assert np.isfinite(slope).all()
    assert (slope[:, 2] == 0).all()


def test_sigmoid_cross_entropy():
    x, y = np.array([-200.0, -1.0, 0.0, 3.0, 200.0]), np.array([0.0, 1.0, 0.3, 1.0, 1.0])
    wanted = np.logaddexp(0, x) - x * y
    np.testing.assert_allclose(optim.sigmoid_binary_cross_entropy(x, y), wanted, atol=1e-12)
    slope = fg.grad(lambda v: optim.sigmoid_binary_cross_entropy(v, y).sum())(fnp.array(x))
    np.testing.assert_allclose(slope, special.expit(x) - y, atol=1e-12)


def test_labels_must_be_integers():
    with pytest.raises(errors.DTypeError, match="labels must be integers, got float64"):
        optim.softmax_cross_entropy_with_integer_labels(LOGITS, np.array([0.0, 1.0]))
