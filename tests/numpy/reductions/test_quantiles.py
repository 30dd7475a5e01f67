"""Quantiles by every method against NumPy; known and traced q."""

import warnings

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

METHODS = [
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased",
    "normal_unbiased",
]  # fmt: skip
Q = np.array([0, 0.1, 0.25, 0.5, 0.6, 0.75, 1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_methods(method, n, rng):
    x = rng.standard_normal((n, 3))
    same_as_numpy(
        lambda x, q: fnp.quantile(x, q, 0, method=method),
        lambda x, q: np.quantile(x, q, 0, method=method),
        x,
        Q,
    )
    known = jit(lambda x: fnp.quantile(x, Q, 0, method=method), backend="numpy")(x)
    same(known, np.quantile(x, Q, 0, method=method))
    x[0] = np.nan
    same(fnp.quantile(x, Q, 0, method=method), np.full((7, 3), np.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = np.nanquantile(x, Q, 0, method=method)
    same(fnp.nanquantile(x, Q, 0, method=method), expected)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes(axis, keepdims, rng):
    x = rng.standard_normal((3, 4, 5))
    x[0, 0, 0] = np.nan
    for name, q in (("quantile", (0.3,)), ("percentile", (Q * 100,)), ("median", ())):
        for prefix in ("", "nan"):
            same_as_numpy(
                lambda x, n=prefix + name, q=q: getattr(fnp, n)(x, *q, axis, keepdims=keepdims),
                lambda x, n=prefix + name, q=q: getattr(np, n)(x, *q, axis, keepdims=keepdims),
                x,
            )
    same(fnp.quantile(x, Q.reshape(7, 1), 1), np.quantile(x, Q.reshape(7, 1), 1))


def test_dtypes():
    assert fnp.median(np.int64([1, 2])).dtype == np.float32
    assert fnp.quantile(np.float16([1, 2, 3]), 0.5).dtype == np.float16
    assert fnp.quantile(np.float32([1, 2]), np.float64(0.5)).dtype == np.float32
    same(fnp.percentile(np.float32([1, 2, 3]), 50), np.float32(2))
    assert np.isnan(fnp.median(np.zeros(0)))
    assert fnp.median(np.zeros((2, 0)), axis=1).shape == (2,)


# Axes, shapes of weights, and those in the shape of the elements: nanpercentile of NumPy 2.4 takes
# no others.
WEIGHTED = [
    (None, (3, 4, 5), lambda w: w),
    (1, (4,), lambda w: w[:, None]),
    (-1, (3, 4, 5), lambda w: w),
    ((0, 2), (3, 5), lambda w: w[:, None]),
    ((2, 0), (5, 3), lambda w: w.T[:, None]),
]


@pytest.mark.parametrize(("axis", "shape", "widened"), WEIGHTED)
@pytest.mark.parametrize("name", ["quantile", "nanpercentile"])
def test_weights(name, axis, shape, widened, rng):
    x, w = rng.standard_normal((3, 4, 5)), rng.integers(1, 4, shape)
    w.flat[0] = w.ndim == 1  # where few lie in a row, none may have a weight
    if name == "nanpercentile":
        x[rng.random(x.shape) < 0.1] = np.nan
    q = np.array([0, 0.2, 0.5, 1.0]) * (1 if name == "quantile" else 100)
    options = {"axis": axis, "weights": w, "method": "inverted_cdf"}
    whole = np.broadcast_to(widened(w), x.shape)
    want = getattr(np, name)(x, q, **{**options, "weights": whole})
    assert np.array_equal(getattr(fnp, name)(x, q, **options), want)
    jitted = jit(lambda x, q, w: getattr(fnp, name)(x, q, **{**options, "weights": w}))
    assert np.array_equal(jitted(x, q, w), want)


def test_weights_that_are_none():
    x, w = fnp.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 1.0])
    call = lambda w, x=x: fnp.quantile(x, 0.5, weights=w, method="inverted_cdf")
    with pytest.raises(ValueError, match="quantile: weights must be finite and not negative"):
        call(w)
    with pytest.raises(ShapeError, match=r"weights must have the shape \(3,\) of a; got \(2,\)"):
        call(w[:2] ** 2)
    with pytest.raises(ShapeError, match=r"or \(3,\), that of the axes; got \(2,\)"):
        fnp.quantile(x, 0.5, axis=0, weights=w[:2] ** 2, method="inverted_cdf")
    with pytest.raises(NotImplementedError, match="method 'linear' has no weights"):
        fnp.quantile(x, 0.5, weights=w)
    assert np.isnan(jit(call)(w))
    assert np.isnan(call(fnp.zeros(3)))
    assert np.isnan(call(fnp.ones(3), fnp.array([1.0, np.nan, 3.0])))
    assert grad(lambda x: call(fnp.array([1.0, 1, 4]), x))(x).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("dtype", "weights", "middle"),
    [
        ("bfloat16", [256, 1, 256], 2),
        ("float16", [70000, 1, 1], 1),
        ("float16", [1.0, 2, 70000], 3),
    ],
)
def test_weights_of_narrow_elements(dtype, weights, middle):
    x = fnp.array([1, 2, 3], dtype)
    found = fnp.quantile(x, 0.5, weights=fnp.array(weights), method="inverted_cdf")
    assert found.dtype == x.dtype
    assert found == middle


def test_infinities_stay_apart():
    x = np.array([-np.inf, 1.0, 2.0, np.inf])
    same(fnp.quantile(x, np.array([0, 1 / 3, 2 / 3])), [-np.inf, 1.0, 2.0])
    same(fnp.median(np.array([np.inf, np.inf])), np.float64(np.inf))


def test_transforms(rng):
    x = rng.standard_normal((3, 6))
    check_grad(lambda x: fnp.quantile(x, Q, 1), x)
    check_grad(lambda x, q: fnp.quantile(x, q, 1), x, np.array([0.3, 0.77]))
    y = x.copy()
    y[0, 1] = np.nan
    check_grad(lambda v: fnp.nanmedian(fnp.where(np.isnan(y), np.nan, v), 1), x)
    same_batched(lambda x: fnp.median(x), x)
    same_batched(lambda x, q: fnp.nanquantile(x, q), y, np.array([0.1, 0.2, 0.3]))


ERRORS = [
    (lambda: fnp.quantile(Q, 1.5), ValueError, "quantile: q must lie in the range"),
    (lambda: fnp.percentile(Q, 101), ValueError, "percentile: q must lie"),
    (lambda: fnp.quantile(Q, 0.5, method="guess"), ValueError, "method must be one of"),
    (lambda: fnp.median([1, 2]), TypeError, "median: a is a list"),
    (lambda: fnp.quantile(Q, [0.5]), TypeError, "q is a list"),
    (lambda: fnp.median(Q * 1j), DTypeError, "need real numbers"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
