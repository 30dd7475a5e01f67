"""Convolutions that double images by tiles, against sums of products."""

import numpy as np
import pytest

from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.backends.program import Frame, GemmAxes, GemmStep, Ref
from tests.backends.llvm.gemm.winograd.test_first import check_places, execute, windows_of

# Images, channels, features, height and width of a phase, zeros (above, below, left, right).
SHAPES = [
    (2, 64, 64, 16, 16, (1, 1, 1, 1)),
    (3, 24, 33, 17, 19, (1, 1, 1, 1)),
    (3, 8, 40, 15, 17, (0, 0, 0, 0)),
    (2, 24, 9, 11, 72, (2, 2, 2, 2)),
    (2, 24, 33, 9, 131, (0, 1, 1, 0)),
    (1, 48, 64, 40, 39, (1, 0, 0, 1)),
    (20, 33, 16, 2, 5, (1, 1, 1, 1)),
]


def doubling_step(shape, dtype, side=1, framed=True, flipped=False, wide=0):
    """The product of a convolution: its images are a or, if side is 2, b; its kernel is from the
    first element to the last one, or the other way.

    wide: more elements of the result's lines
    """
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rows, line, out = height + 2, width + 2, 2 * width + wide
    plane, frame, ref = rows * line, None, Ref("arena")
    if framed and any(shape[-1]):
        inner = (rows - top - bottom, top, bottom), (line - left - right, left, right)
        frame = Frame(side - 1, 0, n * channels, inner)
    step = -1 if flipped else 1
    kernel = ((channels, 16, plane), (2, 8 * step, line), (2, 2 * step, 1))
    phases = [(2, 4 * step, line, out), (2, step, 1, 1), (height, 0, line, 2 * out)]
    places, cells = (width, 1), 2 * height * out
    if n > 1:
        phases.append((n, 0, channels * plane, features * cells))
    of_w, strides, sizes = (features, 16 * channels), (cells, 2), (features, width)
    if side == 1:
        kernel, phases = (tuple((s, x, w, *c) for s, w, x, *c in v) for v in (kernel, phases))
        strides, sizes = strides[::-1], sizes[::-1]
    results, kernels = (features * cells, out, 1, 2 * out, 2), (4 * step, step)
    of = windows_of(shape, side - 1, (channels * plane, plane, line, 1), (2,), taps=(2, 2),
                    phases=(2, 2), of_phases=(results, kernels))  # fmt: skip
    sides = ((of_w,), (places,)) if side == 2 else ((places,), (of_w,))
    return GemmStep(np.dtype(dtype), np.dtype(dtype), *sizes, 4 * channels, ref, ref, ref,
                    (0, 0), (0, 0), strides, tuple(phases),
                    GemmAxes(*sides, tuple(kernel)), frame, False, *of)  # fmt: skip


def images(shape, dtype, seed=0):
    """Random images without zeros, and a kernel."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, channels, height + 2 - top - bottom, width + 2 - left - right))
    return x.astype(dtype), rng.standard_normal((features, channels, 4, 4)).astype(dtype)


def run(shape, w, x, cpu="host", **kw):
    """What generated code makes of a kernel and of images without zeros."""
    n, _, features, height, width, (top, bottom, left, right) = shape
    step = doubling_step(shape, w.dtype, **kw)
    if step.frame is None:
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    wide = kw.get("wide", 0)
    out = np.full((n, features, 2 * height, 2 * width + wide), 7, step.dtype)
    start = w.ctypes.data + 15 * w.itemsize * kw.get("flipped", False)
    pair = (x, start) if kw.get("side", 1) == 1 else (start, x)
    execute(step, "winograd_phases", dict(zip("ab", pair, strict=True)), out, cpu)
    assert (out[..., 2 * width :] == 7).all()
    return out[..., : 2 * width]


def sums(shape, w, x, flipped=False):
    """The convolution, in float64."""
    n, _, features, height, width, (top, bottom, left, right) = shape
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    w = (w[:, :, ::-1, ::-1] if flipped else w).astype("f8")
    out = np.zeros((n, features, 2 * height, 2 * width))
    for line, column, i, j in np.ndindex(2, 2, 2, 2):
        y = x[:, :, line + i : line + i + height, column + j : column + j + width]
        part = w[:, :, 2 * i + line, 2 * j + column]
        out[:, :, line::2, column::2] += np.einsum("nchw,kc->nkhw", y, part)
    return out


@pytest.fixture
def threads():
    before = num_threads()
    yield set_num_threads
    set_num_threads(before)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(shape, dtype, cpu):
    x, w = images(shape, dtype)
    tolerance = 2e-6 if dtype == "float32" else 4e-15
    for kw in ({}, {"framed": False, "flipped": True, "side": 2}, {"wide": 3}):
        exact = sums(shape, w, x, kw.get("flipped", False))
        got = run(shape, w, x, cpu, **kw)
        np.testing.assert_allclose(got, exact, rtol=0, atol=tolerance * np.abs(exact).max())


def test_as_exact_as_sums_of_products():
    """A mean error isn't larger than that of the same sums in the same precision."""
    shape = SHAPES[0]
    x, w = images(shape, "float32")
    exact, plain = sums(shape, w, x), np.zeros((2, 64, 32, 32), "float32")
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for channel in range(shape[1]):
        for line, column, i, j in np.ndindex(2, 2, 2, 2):
            window = padded[:, channel, line + i : line + i + 16, column + j : column + j + 16]
            part = w[:, channel, 2 * i + line, 2 * j + column]
            plain[:, :, line::2, column::2] += window[:, None] * part[:, None, None]
    error = [np.sqrt(np.mean((y - exact) ** 2)) for y in (run(shape, w, x), plain)]
    assert error[0] <= error[1]


def test_threads_give_the_same_bits(threads):
    shape = SHAPES[1]
    x, w = images(shape, "float32")
    results = []
    for n in (1, 2, 3):
        threads(n)
        results.append(run(shape, w, x))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
def test_small_integers_are_exact(cpu):
    shape, rng = SHAPES[2], np.random.default_rng(3)
    x, w = (rng.integers(-50, 50, a.shape).astype("float32") for a in images(shape, "float32"))
    np.testing.assert_array_equal(run(shape, w, x, cpu), sums(shape, w, x))


@pytest.mark.parametrize("cpu", ["host", "x86-64"])
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[4], SHAPES[6]], ids=str)
def test_infinities_and_nans_stay_what_and_where_they_are(shape, cpu):
    x, w = images(shape, "float32")
    x[0, 3, 1, 2], x[0, 5, 0, 0], x[-1, 0, -1, -1] = np.inf, -np.inf, np.nan
    w[1, 2, 0, 1], w[3, 1, 3, 3] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        exact = sums(shape, w, x)
    assert not np.isfinite(exact).all()
    check_places(run(shape, w, x, cpu), exact, 1e-4)


def test_sums_that_are_too_large_alone_are_not_lost():
    """A sum of elements that is too large is not one of the sums that are wanted."""
    shape = SHAPES[1]
    x, w = images(shape, "float32")
    x[:, :, 6, 6], x[:, :, 6, 7] = 3e38, 2e38
    w *= np.float32(1e-3)
    exact = sums(shape, w, x)
    got = run(shape, w, x)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got / 3e38, exact / 3e38, rtol=0, atol=1e-7)
