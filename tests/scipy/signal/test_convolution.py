"""Convolutions against SciPy: modes, methods, boundaries, axes, dtypes, derivatives, errors."""

import itertools

import numpy as np
import pytest
from scipy import signal as sp

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.scipy import signal

SHAPES = {1: [(1,), (2,), (5,), (10,)], 2: [(1, 1), (2, 3), (3, 4), (4, 4)],
          3: [(2, 2, 2), (3, 3, 2), (5, 5, 2)]}  # fmt: skip
PAIRS = [p for shapes in SHAPES.values() for p in itertools.product(shapes, shapes)]
MODES = ["full", "same", "valid"]


def draw(rng, shape, dtype):
    x = rng.integers(-9, 9, shape).astype(dtype)
    return x + 1j * rng.integers(-9, 9, shape).astype(dtype) if x.dtype.kind == "c" else x


def fits(mode, *shapes):
    a, b = shapes
    some = list(zip(a, b, strict=True))
    return mode != "valid" or all(m >= n for m, n in some) or all(m <= n for m, n in some)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["direct", "fft"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_values_are_scipys(name, mode, method, dtype, rng):
    for shapes in PAIRS:
        x, y = (draw(rng, shape, dtype) for shape in shapes)
        if not fits(mode, *shapes):
            with pytest.raises(ValueError, match="one input must be smaller"):
                getattr(signal, name)(x, y, mode, method)
            continue
        want = getattr(sp, name)(x, y, mode, method)
        found = getattr(signal, name)(x, y, mode, method)
        np.testing.assert_allclose(found, want, atol=1e-9, err_msg=f"{shapes}")


@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("boundary", "fill"), [("fill", 0), ("fill", 1.5), ("wrap", 0), ("symm", 0)]
)
def test_planes(name, mode, boundary, fill, rng):
    for shapes in itertools.product(SHAPES[2], SHAPES[2]):
        x, y = (draw(rng, shape, "complex128") for shape in shapes)
        if fits(mode, *shapes):
            want = getattr(sp, name)(x, y, mode, boundary, fill)
            found = getattr(signal, name)(x, y, mode, boundary, fill)
            np.testing.assert_allclose(found, want, atol=1e-9, err_msg=f"{shapes}")


@pytest.mark.parametrize("mode", MODES)
def test_axes_of_transforms(mode, rng):
    x, y = rng.standard_normal((4, 7, 3)), rng.standard_normal((4, 5, 1))
    for axes in (1, (1,), (1, 2), (-2,)):
        want = sp.fftconvolve(x, y, mode, axes)
        np.testing.assert_allclose(signal.fftconvolve(x, y, mode, axes), want, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "complex64"])
@pytest.mark.parametrize("method", ["direct", "fft"])
def test_dtypes(dtype, method, rng):
    x, y = draw(rng, 6, dtype), draw(rng, 3, dtype)
    out = signal.convolve(x, y, method=method)
    assert out.dtype == ("float32" if dtype == "int32" else dtype)
    np.testing.assert_allclose(out, np.convolve(x, y), atol=2)


@pytest.mark.parametrize("method", ["direct", "fft"])
@pytest.mark.parametrize("mode", MODES)
def test_transforms(method, mode, rng):
    x, y = rng.standard_normal((3, 6)), rng.standard_normal(4)

    def f(x, y):
        return signal.correlate(x, y, mode, method)

    want = np.stack([sp.correlate(row, y, mode) for row in x])
    np.testing.assert_allclose(fg.jit(fg.vmap(f, (0, None)))(x, y), want, atol=1e-12)
    np.testing.assert_allclose(fg.jacrev(f)(x[0], y) @ x[0], want[0], atol=1e-12)
    np.testing.assert_allclose(fg.jacfwd(f, 1)(x[0], y) @ y, want[0], atol=1e-12)
    second = fg.hessian(lambda x, y: fnp.sum(f(x, y) ** 2), 1)(x[0], y)
    j = fg.jacfwd(f, 1)(x[0], y)
    np.testing.assert_allclose(second, 2 * j.T @ j, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: signal.convolve(x, x[None]), ValueError, "same number of dimensions"),
        (lambda x: signal.convolve(x, x, "all"), ValueError, "mode must be one of"),
        (lambda x: signal.convolve(x, x, "full", "slow"), ValueError, "got method='slow'"),
        (lambda x: signal.correlate(x, x[:0]), ValueError, "zero-size arrays not supported"),
        (lambda x: signal.convolve2d(x, x), ValueError, "only supports 2-dimensional inputs"),
        (
            lambda x: signal.convolve2d(x[None], x[None], boundary="odd"),
            ValueError,
            "boundary must",
        ),
        (
            lambda x: signal.fftconvolve(fnp.ones((2, 3)), fnp.ones((3, 3)), axes=1),
            ValueError,
            "mapped axes must have same shape",
        ),
        (lambda x: signal.convolve([1.0], x), TypeError, "convolve: in1 is a list"),
    ],
)
def test_errors_say_what_was_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(fnp.arange(4.0))
