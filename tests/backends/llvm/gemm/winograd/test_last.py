"""Products of 3×3 windows by tiles where channels come last, against sums of products."""

import numpy as np
import pytest

from funcgrad.backends.llvm.runtime.pool import set_num_threads
from funcgrad.backends.program import Frame, GemmAxes, GemmStep, Ref
from tests.backends.llvm.gemm.winograd.test_first import (
    SHAPES,
    check_error,
    check_infinities,
    check_small_integers,
    execute,
    images,
    sums,
    threads,
    windows_of,
)

__all__ = ["threads"]
MORE = [*SHAPES, (1, 136, 20, 12, 12, (1, 1, 1, 1)), (1, 16, 16, 31, 62, (0, 2, 2, 0))]


def step_of(shape, dtype, framed=True, flipped=False, features_first=False, side=0):
    """The product of a convolution of images, which are a, or b if side is 1."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rows, line = height + 2, (width + 2) * channels
    frame = None
    if framed and any(shape[-1]):
        across = (line - (left + right) * channels, left * channels, right * channels)
        frame = Frame(side, 0, n, ((rows - top - bottom, top, bottom), across))
    places = ((height, line), (width, channels))
    places = ((n, rows * line), *places) if n > 1 else places
    size = channels * features
    if features_first:  # OHWI
        cols, joined = (features, 9 * channels), ((3, line, 3 * channels), (3 * channels, 1, 1))
        apart = ((3, line, -3 * channels), (3, channels, -channels), (channels, 1, 1))
    else:  # HWIO
        cols, joined = (features, 1), ((3, line, 3 * size), (3 * channels, 1, features))
        apart = ((3, line, -3 * size), (3, channels, -size), (channels, 1, features))
    taps = apart if flipped else joined
    m, k, out, ref = n * height * width, 9 * channels, (features, 1), Ref("arena")
    axes, rows = GemmAxes(places, (cols,), taps), rows * line
    of = windows_of(shape, side, (rows, 1, line, channels), (0, 1, 2)[n == 1 :], last=True)
    if side:
        axes = GemmAxes((cols,), places, tuple((count, y, x) for count, x, y in taps))
        return GemmStep(np.dtype(dtype), np.dtype(dtype), features, m, k, ref, ref, ref,
                        (0, 0), (0, 0), out[::-1], (), axes, frame, False, *of)  # fmt: skip
    return GemmStep(np.dtype(dtype), np.dtype(dtype), m, features, k, ref, ref, ref,
                    (0, 0), (0, 0), out, (), axes, frame, False, *of)  # fmt: skip


def run(step, shape, w, x, cpu="host"):
    """What generated code makes of a kernel and images that have their features first, as these
    have."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    side = int(len(step.axes.m) == 1)
    if step.frame is None:
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    x = x.transpose(0, 2, 3, 1).copy()
    first = (step.axes.m if side else step.axes.n)[0][1] > 1
    taps = w.transpose(0, 2, 3, 1).copy() if first else w.transpose(2, 3, 1, 0).copy()
    flipped = step.axes.k[0][2 - side] < 0
    back = 8 * channels * (1 if first else features) * flipped
    out = np.full((n, height, width, features), 7, step.out)
    operands = {"ab"[side]: x, "ba"[side]: taps.ctypes.data + back * w.itemsize}
    execute(
        step, "winograd_last" if step.dtype == step.out else "winograd_bytes", operands, out, cpu
    )
    return out.transpose(0, 3, 1, 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", MORE, ids=str)
def test_results(shape, dtype, cpu):
    x, w = images(shape, dtype)
    tolerance = 2e-6 if dtype == "float32" else 4e-15
    for framed, flipped, first, side in (
        (True, False, False, 0),
        (False, True, False, 0),
        (False, False, True, 1),
        (True, True, True, 1),
    ):
        step = step_of(shape, dtype, framed, flipped, first, side)
        exact = sums(shape, w, x, flipped)
        got = run(step, shape, w, x, cpu)
        np.testing.assert_allclose(got, exact, rtol=0, atol=tolerance * np.abs(exact).max())


def test_as_exact_as_sums_of_products():
    shape = SHAPES[0]
    x, w = images(shape, "float32")
    check_error(run(step_of(shape, "float32"), shape, w, x), shape, w, x)


def test_threads_give_the_same_bits(threads):
    for shape in (SHAPES[0], SHAPES[1]):
        x, w = images(shape, "float32")
        set_num_threads(threads)
        got = run(step_of(shape, "float32"), shape, w, x)
        set_num_threads(1)
        np.testing.assert_array_equal(got, run(step_of(shape, "float32"), shape, w, x))


def test_a_result_depends_on_its_window_alone():
    """The same bits, whatever is elsewhere, and wherever the window is."""
    _, channels, features, height, width, _ = shape = (3, 24, 33, 21, 19, (0, 0, 0, 0))
    x, w = images(shape, "float32")
    got = run(step_of(shape, "float32"), shape, w, x)
    other = images(shape, "float32", seed=1)[0]
    other[1, :, 4:9, 6:12] = x[1, :, 4:9, 6:12]
    near = run(step_of(shape, "float32"), shape, w, other)
    np.testing.assert_array_equal(near[1, :, 4:7, 6:10], got[1, :, 4:7, 6:10])
    cut = (1, channels, features, height - 4, width - 6, (0, 0, 0, 0))
    part = run(step_of(cut, "float32"), cut, w, x[2:, :, 4:, 6:].copy())
    np.testing.assert_array_equal(part[0], got[2, :, 4:, 6:])


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
def test_small_integers_are_exact(cpu):
    shape = SHAPES[2]
    step = step_of(shape, "float32")
    check_small_integers(lambda w, x: run(step, shape, w, x, cpu), shape)


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], SHAPES[6]], ids=str)
def test_infinities_and_nans_stay_what_and_where_they_are(shape, cpu):
    step = step_of(shape, "float32")
    check_infinities(lambda w, x: run(step, shape, w, x, cpu), shape)


def test_sums_of_elements_that_are_too_large_are_not_those_wanted():
    shape = SHAPES[2]
    x, w = images(shape, "float32")
    x[:, :, 6, 6] = 2e38
    w[:, :, 0, 0], w[:, 1:] = 0, np.float32(1e-3) * w[:, 1:]
    x[0, 0, 7, 7], w[:, 0] = 3e38, 1e-2
    exact = sums(shape, w, x)
    got = run(step_of(shape, "float32"), shape, w, x)
    assert np.isfinite(got).all()
    scale = np.abs(x).max()
    np.testing.assert_allclose(got / scale, exact / scale, rtol=0, atol=1e-5)
