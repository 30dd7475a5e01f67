"""Gradients of 3×3 kernels by tiles where channels come last, against sums of products."""

import numpy as np
import pytest

from funcgrad.backends.llvm.runtime.pool import set_num_threads
from funcgrad.backends.program import GemmAxes, GemmStep, Ref
from funcgrad.core.record import replace
from tests.backends.llvm.gemm.winograd.test_first import (
    check_places,
    execute,
    images,
    threads,
    windows_of,
)
from tests.backends.llvm.gemm.winograd.test_kernel_first import SIZES, results, sums
from tests.backends.llvm.gemm.winograd.test_last import step_of as forward_step

__all__ = ["threads"]
# Also one of several parts, and one whose points are spread over tasks.
MORE = [*SIZES, (5, 20, 33, 31, 34, (1, 1, 1, 1)), (9, 72, 130, 15, 16, (1, 1, 1, 1))]


def gradient_step(shape, dtype, framed=True, turned=False):
    """The product of windows and of what comes back to their results: the images are a, the kernel
    is HWIO; or, turned, they are b, and it is OHWI."""
    n, channels, features, height, width, _ = shape
    line = (width + 2) * channels
    size, across = channels * features, width * features
    k = ((n, (height + 2) * line, height * across), (height, line, across))
    k = (*k, (width, channels, features))
    k = k[1:] if n == 1 else k
    taps = ((3, line, 0, 3 * size), (3, channels, 0, size))
    m, c, frame = (channels, features), (features, 1), forward_step(shape, dtype, framed).frame
    if turned:
        k = tuple((count, y, x) for count, x, y in k)
        taps = ((3, 0, line, 3 * channels), (3, 0, channels, channels))
        m, c = (features, channels), (9 * channels, 1)
        frame = None if frame is None else replace(frame, operand=1)
    steps, ref = (1, (height + 2) * line, line, channels), Ref("arena")
    of = windows_of(shape, int(turned), steps, (0,), True)
    return GemmStep(np.dtype(dtype), np.dtype(dtype), *m, n * height * width, ref, ref, ref,
                    (0, 0), (0, 0), c, taps, GemmAxes(((m[0], 1),), ((m[1], 1),), k),
                    frame, False, *of)  # fmt: skip


def run(step, shape, y, x, cpu="host"):
    """What generated code makes of the gradient of results and of images without zeros, which have
    their features first, as it has."""
    _, channels, features, _, _, (top, bottom, left, right) = shape
    turned = step.batch[0][1] == 0
    if step.frame is None:
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    x, y = (a.transpose(0, 2, 3, 1).copy() for a in (x, y))
    out = np.full((features, 3, 3, channels) if turned else (3, 3, channels, features), 7, x.dtype)
    operands = {"a": y, "b": x} if turned else {"a": x, "b": y}
    execute(step, "winograd_kernel_last", operands, out, cpu)
    return out.transpose((0, 3, 1, 2) if turned else (3, 2, 0, 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", MORE, ids=str)
def test_results(shape, dtype, cpu):
    (x, _), y = images(shape, dtype), results(shape, dtype)
    exact, tolerance = sums(shape, y, x), 2e-6 if dtype == "float32" else 6e-15
    for framed, turned in ((True, False), (False, True), (True, True)):
        got = run(gradient_step(shape, dtype, framed, turned), shape, y, x, cpu)
        np.testing.assert_allclose(got, exact, rtol=0, atol=tolerance * np.abs(exact).max())


def test_threads_give_the_same_bits(threads):
    for shape in MORE[-2:]:
        (x, _), y = images(shape, "float32"), results(shape, "float32")
        step = gradient_step(shape, "float32")
        set_num_threads(threads)
        got = run(step, shape, y, x)
        set_num_threads(1)
        np.testing.assert_array_equal(got, run(step, shape, y, x))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("cpu", ["host", "x86-64"])
@pytest.mark.parametrize("shape", [SIZES[1], SIZES[2], SIZES[4]], ids=str)
def test_infinities_and_nans_stay_what_and_where_they_are(shape, cpu, turned):
    """An element of the first line meets only some of a kernel's elements."""
    (x, _), y = images(shape, "float32"), results(shape, "float32")
    x[0, 3, 0, 0], x[-1, 5, -1, -1], y[0, 2, 0, 0], y[-1, 4, 3, 3] = np.inf, np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = sums(shape, y, x)
    got = run(gradient_step(shape, "float32", turned=turned), shape, y, x, cpu)
    check_places(got, exact, 1e-3)
