"""Vector quantization against SciPy."""

import numpy as np
import pytest
from scipy.cluster import vq as theirs

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random
from funcgrad.scipy.cluster import vq

RNG = np.random.default_rng(0)
DATA = np.concatenate([RNG.normal(size=(30, 2)), RNG.normal(size=(30, 2)) + 5])


@pytest.mark.parametrize("data", [DATA, DATA[:, 0]])
def test_against_scipy(data):
    book = data[[3, 40, 50]]
    for ours in (vq.vq, fg.jit(vq.vq)):
        code, distance = ours(data, book)
        want, wanted = theirs.vq(data, book)
        np.testing.assert_array_equal(code, want)
        np.testing.assert_allclose(distance, wanted, atol=1e-12)
    np.testing.assert_allclose(vq.whiten(data), theirs.whiten(data))
    codes, labels = vq.kmeans2(data, book)
    want, wanted = theirs.kmeans2(data, book, minit="matrix")
    np.testing.assert_allclose(codes, want)
    np.testing.assert_array_equal(labels, wanted)


def test_drawn_codes_and_derivatives():
    codes, labels = vq.kmeans2(DATA, 2, key=random.key(1))
    assert codes.shape == (2, 2)
    np.testing.assert_array_equal(labels[:30] != labels[30], [True] * 30)
    slope = fg.grad(lambda d: fnp.sum(vq.vq(d, DATA[:3])[1]))(fnp.array(DATA))
    assert np.isfinite(slope).all()
    lonely = vq.kmeans2(DATA, np.array([[0.0, 0.0], [99.0, 99.0]]))[0]
    np.testing.assert_array_equal(lonely[1], 99)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vq.vq(DATA, DATA[0]), r"obs \(60, 2\) and code_book \(2,\)"),
        (lambda: vq.vq(DATA, np.ones((3, 4))), r"of one d, got .* code_book \(3, 4\)"),
        (lambda: vq.vq(DATA, "a"), "vq.vq: code_book"),
        (lambda: vq.vq(DATA, np.ones((0, 2))), "no codes"),
        (lambda: vq.kmeans2(DATA, 2), "with key=, got None"),
        (lambda: vq.kmeans2(DATA, 61, key=random.key(0)), "61 codes"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(fg.errors.FuncgradError, match=message):
        call()
