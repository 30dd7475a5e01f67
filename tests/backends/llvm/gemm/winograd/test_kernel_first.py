"""Gradients of 3×3 kernels by tiles, against sums of products."""

import numpy as np
import pytest

from funcgrad.backends.llvm.runtime.pool import set_num_threads
from funcgrad.backends.program import GemmAxes
from funcgrad.core.record import replace
from tests.backends.llvm.gemm.winograd.test_first import (
    SHAPES,
    check_places,
    execute,
    images,
    step_of,
    threads,
    windows_of,
)

__all__ = ["threads"]
SIZES = [s for s in SHAPES if s[3] > 2]


def gradient_step(shape, dtype, framed=True, swapped=False):
    """The product of windows and of what comes back to their results; and which operand is which:
    the gradient is a, the images are b, unless they are swapped."""
    n, channels, features, height, width, _ = shape
    forward = step_of(shape, dtype, framed)
    (_, _, plane), line, size = forward.axes.k[0], width + 2, height * width
    taps, rows = ((channels, plane), (3, line), (3, 1)), ((features, size),)
    k = ((n, features * size, channels * plane), (height, width, line), (width, 1, 1))
    k = tuple((i, y, x) if swapped else (i, x, y) for i, x, y in k)
    axes = GemmAxes(taps, rows, k) if swapped else GemmAxes(rows, taps, k)
    frame = forward.frame
    if swapped and frame is not None:
        frame = replace(frame, operand=0)
    c, depth = (9 * channels, 1), n * size
    of, windows = windows_of(
        shape, int(not swapped), (plane, channels * plane, line, 1), (0, 1, 2), True
    )
    m = (9 * channels, features) if swapped else (features, 9 * channels)
    return replace(forward, m=m[0], n=m[1], k=depth, c_strides=c[::-1] if swapped else c, batch=(),
                   axes=axes, frame=frame, convolution=of, windows=windows)  # fmt: skip


def run(step, shape, y, x, cpu="host"):
    """What generated code makes of the gradient of results and of images without zeros."""
    _, channels, features, _, _, (top, bottom, left, right) = shape
    if step.frame is None:
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    out = np.full((features, channels, 3, 3), 7, x.dtype)
    operands = {"a": y, "b": x} if step.axes.n[-1] == (3, 1) else {"a": x, "b": y}
    execute(step, "winograd_kernel", operands, out, cpu)
    return out


def results(shape, dtype):
    n, _, features, height, width, _ = shape
    rng = np.random.default_rng(7)
    return rng.standard_normal((n, features, height, width)).astype(dtype)


def sums(shape, y, x):
    """The gradient, in float64."""
    height, width, (top, bottom, left, right) = shape[3:]
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    out = np.empty((y.shape[1], x.shape[1], 3, 3))
    for i, j in np.ndindex(3, 3):
        window = x[:, :, i : i + height, j : j + width]
        out[:, :, i, j] = np.einsum("nchw,nkhw->kc", window, y.astype("f8"))
    return out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_results(shape, dtype, cpu):
    (x, _), y = images(shape, dtype), results(shape, dtype)
    exact, tolerance = sums(shape, y, x), 2e-6 if dtype == "float32" else 6e-15
    for framed, swapped in ((True, False), (False, True)):
        got = run(gradient_step(shape, dtype, framed, swapped), shape, y, x, cpu)
        np.testing.assert_allclose(got, exact, rtol=0, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize("count", [1, 7, 40])
def test_threads_give_the_same_bits(threads, count):
    """Of one part, which they share, of some and of several."""
    shape = (count, *SIZES[1][1:])
    (x, _), y = images(shape, "float32"), results(shape, "float32")
    step = gradient_step(shape, "float32")
    got = run(step, shape, y, x)
    np.testing.assert_allclose(got, sums(shape, y, x), rtol=0, atol=1e-3)
    set_num_threads(1)
    np.testing.assert_array_equal(got, run(step, shape, y, x))


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
@pytest.mark.parametrize("shape", [SIZES[1], SIZES[2], SIZES[4]], ids=str)
def test_infinities_and_nans_stay_what_and_where_they_are(shape, cpu):
    """An element of the first line meets only some of a kernel's elements."""
    (x, _), y = images(shape, "float32"), results(shape, "float32")
    x[0, 3, 0, 0], x[-1, 5, -1, -1], y[0, 2, 0, 0], y[-1, 4, 3, 3] = np.inf, np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = sums(shape, y, x)
    got = run(gradient_step(shape, "float32"), shape, y, x, cpu)
    check_places(got, exact, 1e-3)
