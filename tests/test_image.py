"""Resampled images: what other libraries give, exactness, shapes, dtypes, gradients, errors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import image

SMOOTH = ["linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area"]
# A row of six pixels, (64, 32, 32, 64, 50, 100), to 4 and to 9 pixels: JAX's values in float64.
ROW = [64.0, 32.0, 32.0, 64.0, 50.0, 100.0]
TABLE = {
    ("nearest", False, 4): [64.0, 32.0, 64.0, 100.0],
    ("nearest", False, 9): [64.0, 32.0, 32.0, 32.0, 64.0, 64.0, 50.0, 100.0, 100.0],
    ("linear", False, 4): [56.0, 32.0, 60.5, 87.5],
    ("linear", False, 9): [64.0, 48.0, 32.0, 32.0, 48.0, 61.666667, 52.333333, 75.0, 100.0],
    ("linear", True, 4): [52.0, 35.555556, 55.777778, 81.25],
    ("linear", True, 9): [64.0, 48.0, 32.0, 32.0, 48.0, 61.666667, 52.333333, 75.0, 100.0],
    ("cubic", False, 4): [57.927007, 29.0, 62.234375, 90.20438],
    ("cubic", False, 9): [
        66.105263,
        48.941176,
        29.777778,
        29.777778,
        48.875,
        63.587963,
        49.162037,
        75.647059,
        103.28947,
    ],
    ("cubic", True, 4): [52.711974, 32.82389, 55.941807, 82.346278],
    ("cubic", True, 9): [
        66.105263,
        48.941176,
        29.777778,
        29.777778,
        48.875,
        63.587963,
        49.162037,
        75.647059,
        103.28947,
    ],
    ("cubic-pytorch", False, 4): [56.75, 27.5, 62.445312, 88.179688],
    ("cubic-pytorch", False, 9): [
        66.777778,
        48.0,
        28.666667,
        28.666667,
        49.3125,
        63.900463,
        48.224537,
        73.6875,
        104.34028,
    ],
    ("cubic-pytorch", True, 4): [52.711974, 32.82389, 55.941807, 82.346278],
    ("cubic-pytorch", True, 9): [
        66.105263,
        48.941176,
        29.777778,
        29.777778,
        48.875,
        63.587963,
        49.162037,
        75.647059,
        103.28947,
    ],
    ("lanczos3", False, 4): [58.111088, 26.057475, 61.037286, 89.480833],
    ("lanczos3", False, 9): [
        66.947273,
        50.308068,
        27.215579,
        27.708143,
        51.565217,
        62.680796,
        47.747021,
        75.398533,
        105.00422,
    ],
    ("lanczos3", True, 4): [52.545345, 32.835479, 55.174707, 82.310323],
    ("lanczos3", True, 9): [
        66.947273,
        50.308068,
        27.215579,
        27.708143,
        51.565217,
        62.680796,
        47.747021,
        75.398533,
        105.00422,
    ],
    ("lanczos5", False, 4): [58.989844, 22.282724, 58.944604, 88.54214],
    ("lanczos5", False, 9): [
        66.534203,
        52.039287,
        25.326481,
        24.99605,
        55.676705,
        61.184963,
        46.723159,
        74.886194,
        106.23727,
    ],
    ("lanczos5", True, 4): [51.521326, 33.433445, 55.20821, 81.421955],
    ("lanczos5", True, 9): [
        66.534203,
        52.039287,
        25.326481,
        24.99605,
        55.676705,
        61.184963,
        46.723159,
        74.886194,
        106.23727,
    ],
    ("area", False, 4): [53.333333, 32.0, 59.333333, 83.333333],
    ("area", False, 9): [64.0, 48.0, 32.0, 32.0, 48.0, 64.0, 50.0, 75.0, 100.0],
    ("area", True, 4): [53.333333, 32.0, 59.333333, 83.333333],
    ("area", True, 9): [64.0, 48.0, 32.0, 32.0, 48.0, 64.0, 50.0, 75.0, 100.0],
}


@pytest.mark.parametrize(("method", "antialias", "n"), sorted(TABLE))
def test_values_are_jaxs(method, antialias, n):
    out = image.resize(np.array(ROW), (n,), method, antialias)
    np.testing.assert_allclose(out, TABLE[method, antialias, n], rtol=2e-6)


def test_bicubic_of_pytorch():
    x = fnp.arange(10.0).reshape(2, 5) / 9
    out = image.resize(x, (4, 10), "bicubic-pytorch", antialias=False)
    row = [-0.0703, -0.0373, 0.0156, 0.0855, 0.1306, 0.1966, 0.2418, 0.3116, 0.3646, 0.3976]
    np.testing.assert_allclose(out[0], row, atol=1e-4)
    np.testing.assert_allclose(out[:, 0], [-0.0703, 0.1141, 0.4180, 0.6024], atol=1e-4)


@pytest.mark.parametrize("method", [*SMOOTH, "nearest"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (7, 4), (2, 9), (1, 1), (8, 3), (0, 4), (3, 0)])
def test_constant_images_stay_so(method, antialias, shape):
    out = image.resize(np.full((3, 4), 5.0, "float32"), shape, method, antialias)
    np.testing.assert_allclose(out, np.full(shape, 5.0), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16", "float64", "complex64"])
def test_dtypes(dtype):
    x = np.ones((4, 4), dtype)
    kept = dtype in ("float16", "float64", "complex64")
    assert image.resize(x, (2, 2), "nearest").dtype == dtype
    assert image.resize(x, (2, 2), "linear").dtype == (dtype if kept else "float32")


def test_nearest_takes_the_pixel_under_each_centre():
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(image.resize(x, (6, 2), "nearest"), x.repeat(2, 0)[:, [1, 3]])


def test_downscaling_by_area_averages_blocks(rng):
    x = rng.standard_normal((4, 6))
    means = x.reshape(2, 2, 3, 2).mean((1, 3))
    np.testing.assert_allclose(image.resize(x, (2, 3), "area"), means, rtol=1e-12)


@pytest.mark.parametrize("method", SMOOTH)
def test_translation_by_whole_pixels(method):
    x = np.arange(1.0, 6)
    scale, shift = np.ones(1), np.full(1, 2.0)
    out = image.scale_and_translate(x, (5,), (0,), scale, shift, method, antialias=True)
    np.testing.assert_allclose(out, [0, 0, 1, 2, 3], atol=1e-6)
    batch = image.scale_and_translate(x[None], (1, 5), (-1,), scale, shift, method)
    np.testing.assert_allclose(batch[0], out)


@pytest.mark.parametrize("method", SMOOTH)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("n", [3, 8])
def test_transforms(method, antialias, n, rng):
    def f(x):
        return image.resize(x, (n,), method, antialias)

    x = rng.standard_normal((2, 5))
    m = np.asarray(fg.jacrev(f)(x[0]))
    np.testing.assert_allclose(fg.jit(f)(x[0]), m @ x[0], atol=1e-12)
    np.testing.assert_allclose(fg.vmap(f)(x), x @ m.T, atol=1e-12)
    np.testing.assert_allclose(image.resize(x, (2, n), method, antialias), x @ m.T, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["linear", "cubic", "lanczos3"])
@pytest.mark.parametrize("antialias", [False, True])
def test_gradients_of_scale_and_translation(method, antialias, rng):
    x = rng.standard_normal((6, 5))
    at = np.array([0.83, 1.31]), np.array([0.21, -0.13])

    @fg.jit
    def f(scale, shift):
        out = image.scale_and_translate(x, (4, 6), (0, 1), scale, shift, method, antialias)
        return fnp.sum(fnp.sin(out))

    for argnum in (0, 1):
        grad = np.asarray(fg.grad(f, argnum)(*at))
        for i in range(2):
            step = np.eye(2)[i] * 1e-6
            ends = [
                [a + (s * step if k == argnum else 0) for k, a in enumerate(at)] for s in (1, -1)
            ]
            slope = (float(f(*ends[0])) - float(f(*ends[1]))) / 2e-6
            np.testing.assert_allclose(grad[i], slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: image.resize(x, (2,), "linear"), ValueError, "resize: shape must have length"),
        (lambda x: image.resize(x, (2, -2), "linear"), ValueError, "negative size"),
        (lambda x: image.resize(x, (2.5, 2), "linear"), TypeError, "shape must be integers"),
        (lambda x: image.resize(x, (2, 2), "sinc"), ValueError, 'Unknown resize method "sinc"'),
        (lambda x: image.resize(x, (2, 2), 7), TypeError, "method must be a ResizeMethod"),
        (lambda x: image.resize([1.0], (2,), "linear"), TypeError, "resize: image is a list"),
        (lambda x: image.resize(x[:0], (2, 3), "linear"), ValueError, "without pixels"),
        (
            lambda x: image.scale_and_translate(x, (2, 2), (0,), 1.0, 0.0, "linear"),
            ValueError,
            "scale must be a vector",
        ),
        (
            lambda x: image.scale_and_translate(x, (2, 2), (0,), x[0], x[0], "nearest"),
            ValueError,
            "nearest isn't supported",
        ),
    ],
)
def test_errors_say_what_was_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(fnp.ones((3, 3)))
