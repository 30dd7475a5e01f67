"""Bins: who is in them, in which order, and who comes back."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.parallel.experts.dispatch import bins_of, emptied, filled


@pytest.mark.parametrize("size", [1, 3, 20])
def test_tokens_there_and_back(size, rng):
    tokens, k, n = 9, 2, 4
    key = rng.integers(0, n, size=tokens * k).astype("int32")
    x = rng.normal(size=(tokens, 5)).astype("float32")
    order = fnp.argsort(key, stable=True).astype("int32")
    bins = bins_of(fnp.asarray(key), order, n, size)
    rows = np.asarray(filled(bins, fnp.asarray(x), k))
    kept = np.zeros(tokens * k, bool)
    for b in range(n):
        own = np.flatnonzero(key == b)
        kept[own[:size]] = True
        np.testing.assert_array_equal(rows[b, : len(own)], x[own[:size] // k])
        assert not np.any(rows[b, len(own) :])
    np.testing.assert_array_equal(bins.kept, kept)
    np.testing.assert_array_equal(bins.counts, np.bincount(key, minlength=n))
    gates = rng.random((tokens, k)).astype("float32")
    wanted = x * np.sum(gates * kept.reshape(tokens, k), 1, keepdims=True)
    np.testing.assert_allclose(emptied(bins, fnp.asarray(rows), gates), wanted, rtol=1e-5)
