"""Filters against SciPy: modes, origins, dtypes, axes, transforms, errors."""

import numpy as np
import pytest
from scipy import ndimage as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import ndimage

MODES = ["reflect", "constant", "nearest", "mirror", "wrap"]


@pytest.mark.parametrize("name", ["correlate1d", "convolve1d"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "origin"), [(1, 0), (3, 0), (4, 0), (4, -1), (5, 2), (5, -2)])
def test_along_an_axis(name, mode, size, origin, rng):
    x, w = rng.standard_normal((4, 6)), rng.standard_normal(size)
    for axis in (0, -1):
        want = getattr(sp, name)(x, w, axis, mode=mode, cval=1.5, origin=origin)
        found = getattr(ndimage, name)(x, w, axis, mode, 1.5, origin)
        np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.parametrize("name", ["correlate", "convolve"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 4), (2, 1, 3)])
def test_over_all_axes(name, mode, shape, rng):
    x, w = rng.standard_normal((5, 4, 6)[: len(shape)]), rng.standard_normal(shape)
    for origin in (0, -1 if min(shape) > 1 else 0):
        want = getattr(sp, name)(x, w, mode=mode, cval=0.5, origin=origin)
        found = getattr(ndimage, name)(x, w, mode, 0.5, origin)
        np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_gaussian(mode, order, rng):
    x = rng.standard_normal((5, 20))
    want = sp.gaussian_filter1d(x, 1.3, order=order, mode=mode)
    np.testing.assert_allclose(ndimage.gaussian_filter1d(x, 1.3, -1, order, mode), want, atol=1e-12)
    want = sp.gaussian_filter(x, (0.7, 2.0), (0, order), mode=mode, radius=(2, 4))
    found = ndimage.gaussian_filter(x, (0.7, 2.0), (0, order), mode, radius=(2, 4))
    np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 2, 3, (4, 1)])
def test_uniform(mode, size, rng):
    x = rng.standard_normal((5, 6))
    want = sp.uniform_filter(x, size, mode=mode)
    np.testing.assert_allclose(ndimage.uniform_filter(x, size, mode), want, atol=1e-12)
    want = sp.uniform_filter1d(x, 3, 0, mode=mode, origin=1)
    np.testing.assert_allclose(ndimage.uniform_filter1d(x, 3, 0, mode, origin=1), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "complex64"])
def test_dtypes_stay(dtype, rng):
    x = rng.integers(0, 50, (4, 5)).astype(dtype)
    for name, argument in [
        ("gaussian_filter", 1.0),
        ("correlate1d", np.array([1.0, 2.0, 0.5])),
        ("convolve", np.ones((2, 2))),
    ]:
        out, want = getattr(ndimage, name)(x, argument), getattr(sp, name)(x, argument)
        assert out.dtype == want.dtype == dtype
        near = 1 if np.issubdtype(out.dtype, np.integer) else 1e-4  # sums are truncated
        np.testing.assert_allclose(np.asarray(out, complex), want.astype(complex), atol=near)


def test_axes_and_one_element(rng):
    x = rng.standard_normal((3, 1, 6))
    for mode in MODES:
        want = sp.gaussian_filter(x, 0.8, mode=mode, axes=(1, 2))
        found = ndimage.gaussian_filter(x, 0.8, mode=mode, axes=(1, 2))
        np.testing.assert_allclose(found, want, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_transforms(mode, rng):
    x, w = rng.standard_normal((3, 7)), rng.standard_normal(4)

    def f(x, w):
        return ndimage.correlate1d(x, w, mode=mode)

    want = f(x, w)
    np.testing.assert_allclose(fg.jit(f)(x, w), want, atol=1e-12)
    np.testing.assert_allclose(fg.vmap(f, (0, None))(x, w), want, atol=1e-12)
    by_w = fg.jacfwd(f, 1)(x, w)  # linear in each
    np.testing.assert_allclose(by_w @ w, want, atol=1e-12)
    by_x = fg.jacrev(f)(x[0], w)
    np.testing.assert_allclose(by_x @ x[0], want[0], atol=1e-12)


def test_sigma_differentiates_where_the_radius_is_given(rng):
    x = rng.standard_normal(12)

    @fg.jit
    def f(sigma):
        return fnp.sum(ndimage.gaussian_filter1d(x, sigma, radius=4) ** 2)

    at = np.float64(1.2)
    slope = (float(f(at + 1e-6)) - float(f(at - 1e-6))) / 2e-6
    np.testing.assert_allclose(fg.grad(f)(at), slope, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ndimage.correlate1d(x, x[None]), "correlate1d: weights must be a vector"),
        (lambda x: ndimage.correlate1d(x, x[:3], origin=2), "origin 2 is outside of 3 weights"),
        (lambda x: ndimage.correlate1d(x, x[:3], mode="odd"), "mode must be one of"),
        (lambda x: ndimage.correlate1d(x, x[:3], axis=1), "axis 1 is out of range"),
        (lambda x: ndimage.convolve(x, fnp.ones((2, 2))), "weights must have an axis for each"),
        (lambda x: ndimage.gaussian_filter(x, 1.0, -1), "order must be non-negative"),
        (lambda x: ndimage.gaussian_filter(x, (1.0, 2.0)), "must be one, or one for each"),
        (lambda x: ndimage.uniform_filter(x, 0), "size must be positive, got 0"),
    ],
)
def test_errors_say_what_was_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call(fnp.arange(5.0))
