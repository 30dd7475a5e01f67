"""Counts, histograms, covariance and correlation against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import ConcretizationError, DTypeError, ShapeError
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched


def run(f, *args):
    return jit(f, backend="numpy")(*args)


# ---- counts

I = np.array([1, 3, 1, 0])  # noqa: E741


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_bincount(dtype):
    x, w = I.astype(dtype), np.array([0.5, 1.0, 2.0, 3.0])
    same(fnp.bincount(x), np.bincount(x), dtype=False)
    same(fnp.bincount(x, w), np.bincount(x, w))
    same(fnp.bincount(x, minlength=6), np.bincount(x, minlength=6), dtype=False)
    same(fnp.bincount(x[:0]), np.bincount(x[:0]), dtype=False)
    for length in (2, 4, 7):
        out = run(lambda x, w, n=length: fnp.bincount(x, w, length=n), x, w)
        same(out, np.bincount(x, w, 7)[:length])


def test_transforms_of_bincount():
    check_grad(lambda w: fnp.bincount(I, w), np.array([0.5, 1.0, 2.0, 3.0]))
    same_batched(lambda x: fnp.bincount(x, length=4), np.array([[1, 2, 2], [0, 3, 9]]))
    same(run(lambda x: fnp.bincount(x, length=2), np.array([-1, 1])), [1, 1], dtype=False)


# ---- histograms

X = np.array([0.0, 1.0, 1.5, 3.0, 4.0, 4.0])
BINS = [{}, {"bins": 4}, {"bins": np.array([0.0, 1.0, 4.0])}, {"bins": 3, "range": (1, 3)}]


@pytest.mark.parametrize("options", BINS, ids=str)
@pytest.mark.parametrize("density", [False, True])
def test_histogram(options, density):
    for weights in (None, X + 1):
        same_as_numpy(
            lambda x, w=weights: fnp.histogram(x, **options, weights=w, density=density),
            lambda x, w=weights: np.histogram(x, **options, weights=w, density=density),
            X,
            dtype=False,
        )
    same(fnp.histogram_bin_edges(X, **options), np.histogram_bin_edges(X, **options))


def test_special_histograms():
    for x in (np.zeros(0), np.full(3, 2.0), np.array([3])):
        same(fnp.histogram(x), np.histogram(x), dtype=False)
    same(fnp.histogram_bin_edges(X, "auto"), np.histogram_bin_edges(X, "auto"))
    assert fnp.histogram(np.float16(X))[0].dtype == np.float32
    assert fnp.histogram(np.int32([1, 2]))[0].dtype == np.float32
    same_batched(lambda x: fnp.histogram(x, bins=3), X.reshape(2, 3))
    check_grad(lambda w: fnp.histogram(X, bins=3, weights=w, density=True)[0], X + 1)


@pytest.mark.parametrize("density", [False, True])
def test_histograms_of_points(density, rng):
    x, y, z = rng.standard_normal((3, 50))
    pair = [4, np.array([-1.0, 0.0, 2.0])]
    for bins in (10, pair, np.array([-1.0, 0.0, 0.5, 2.0])):
        same(
            fnp.histogram2d(x, y, bins, density=density),
            np.histogram2d(x, y, bins, density=density),
            dtype=False,
        )
    sample, w = np.stack([x, y, z], 1), rng.uniform(size=50)
    ranges = [(-1, 1), None, (-2, 2)]
    options = {"bins": (2, 3, 4), "range": ranges, "density": density, "weights": w}
    expected = np.histogramdd(sample, **options)
    same(fnp.histogramdd(sample, **options), expected)
    same(fnp.histogramdd([x, y, z], **options), expected)
    same(run(lambda s: fnp.histogramdd(s, **options), sample), expected)


# ---- covariance

COV = [
    {},
    {"rowvar": False},
    {"bias": True},
    {"ddof": 0},
    {"fweights": np.array([1, 2, 1, 3])},
    {"aweights": np.array([0.1, 0.2, 1.0, 2.0])},
    {"aweights": np.array([0.1, 0.2, 1.0, 2.0]), "fweights": np.array([1, 2, 1, 3]), "ddof": 2},
]


@pytest.mark.parametrize("options", COV, ids=str)
def test_cov(options, rng):
    m = rng.standard_normal((3, 4))
    if not options.get("rowvar", True):
        m = m.T
    same_as_numpy(lambda m: fnp.cov(m, **options), lambda m: np.cov(m, **options), m)
    same(fnp.cov(m, m, **options), np.cov(m, m, **options))
    check_grad(lambda m: fnp.cov(m, **options), m)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int32"])
def test_cov_of_vectors_and_dtypes(dtype, rng):
    x, y = (rng.standard_normal((2, 5)) * 9).astype(dtype)
    if dtype == "complex128":
        x = x + 1j * y[::-1]
    for f, g in ((fnp.cov, np.cov), (fnp.corrcoef, np.corrcoef)):
        tolerance = {"rtol": 1e-5, "atol": 1e-5, "dtype": False}
        same(f(x), g(x), **tolerance)
        same(f(x, y), g(x, y), **tolerance)
        same(
            f(np.stack([x, y], 1), rowvar=False), g(np.stack([x, y], 1), rowvar=False), **tolerance
        )
    assert fnp.cov(x, dtype="float64" if dtype != "complex128" else dtype).dtype in (x.dtype, float)


def test_transforms_of_corrcoef(rng):
    x = rng.standard_normal((2, 3, 6))
    same_as_numpy(fnp.corrcoef, np.corrcoef, x[0])
    check_grad(lambda x: fnp.corrcoef(x)[0, 1:], x[0])
    same_batched(fnp.corrcoef, x)


ERRORS = [
    (lambda: fnp.bincount(np.array([-1])), ValueError, "must not be negative"),
    (lambda: fnp.bincount(X), DTypeError, "x must be integers"),
    (lambda: fnp.bincount(np.array([[1]])), ShapeError, "x must be a vector"),
    (lambda: fnp.bincount(I, X), ShapeError, "must have the shape of x"),
    (lambda: run(fnp.bincount, I), ConcretizationError, r"bincount.*`x`.*length=n"),
    (lambda: fnp.histogram([1, 2]), TypeError, "histogram: a is a list"),
    (lambda: fnp.histogram(X, bins=0), ValueError, "bins must be positive"),
    (lambda: fnp.histogram(X, weights=X[:2]), ShapeError, "as many elements"),
    (lambda: run(lambda x: fnp.histogram(x, "auto"), X), ConcretizationError, "as an integer"),
    (lambda: fnp.histogramdd(X), ShapeError, "sample must be"),
    (lambda: fnp.histogramdd([X, X], bins=[1]), ValueError, "must be for 2 axes"),
    (lambda: fnp.cov(np.ones((2, 2, 2))), ShapeError, "at most two axes"),
    (lambda: fnp.cov(X, fweights=X), DTypeError, "fweights must be integers"),
    (lambda: fnp.cov(X, aweights=X[:2]), ShapeError, "one for each of 6 observations"),
    (lambda: fnp.histogram(fnp.array([1j])), DTypeError, "histogram.*: need real numbers"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
