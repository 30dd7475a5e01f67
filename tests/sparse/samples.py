"""Sparse arrays of all kinds beside the dense ones that they stand for."""

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import sparse


def dense(rng, shape=(5, 6), share=0.4, dtype="float32"):
    """An array of which about this share isn't zero."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    if np.dtype(dtype).kind in "iu":
        x = np.round(3 * np.abs(x))
    return (x * (rng.random(shape) < share)).astype(dtype)


def awkward(x, rng):
    """A matrix with duplicates, padding in the midst, zeros stored, and no order of indices."""
    rows, columns = np.nonzero(x)
    data = x[rows, columns]
    halves = np.concatenate([data - 1, np.ones_like(data), np.zeros(2), np.full(3, np.nan)])
    at = np.concatenate([np.stack([rows, columns], 1)] * 2)
    outside = [[x.shape[0], 0], [0, x.shape[1] + 7], [x.shape[0] + 1, x.shape[1]]]
    at = np.concatenate([at, [[0, 0], [1, 1]], outside])
    order = rng.permutation(len(at))
    parts = fnp.array(halves[order].astype(x.dtype)), fnp.array(at[order].astype(np.int32))
    return sparse.BCOO(parts, shape=x.shape)


def padded(x):
    """A matrix row by row with padding behind the last row."""
    return sparse.BCSR.fromdense(x, nse=np.count_nonzero(x) + 3)


def matrices(x, rng):
    """A matrix in both formats, plain and awkward."""
    return {
        "bcoo": sparse.BCOO.fromdense(x),
        "bcsr": sparse.BCSR.fromdense(x),
        "awkward": awkward(x, rng),
        "padded": padded(x),
    }


def full(x):
    """A sparse or dense array as one of NumPy's."""
    return np.asarray(x.todense() if isinstance(x, sparse.JAXSparse) else x)


def assert_same(got, want, tol=1e-5):
    """The same elements, however they are stored."""
    np.testing.assert_allclose(full(got), full(want), rtol=tol, atol=tol)
