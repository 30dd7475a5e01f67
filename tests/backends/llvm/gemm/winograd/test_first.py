"""Products of 3×3 windows by tiles, against sums of products."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.steps import product_call, product_kind
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.backends.program import Convolution, Frame, GemmAxes, GemmStep, Ref, Windows
from tests.backends.llvm.gemm.test_functions import engine_for

# Images, channels, features, height and width of results, zeros (above, below, left, right).
SHAPES = [
    (2, 64, 64, 32, 32, (1, 1, 1, 1)),
    (3, 24, 33, 17, 19, (1, 1, 1, 1)),
    (3, 24, 40, 15, 17, (0, 0, 0, 0)),
    (2, 24, 33, 11, 72, (2, 2, 2, 2)),
    (2, 24, 33, 9, 131, (0, 1, 1, 0)),
    (1, 48, 64, 40, 39, (1, 0, 0, 1)),
    (9, 64, 60, 8, 7, (1, 1, 1, 1)),
    (40, 33, 16, 2, 2, (1, 1, 1, 1)),
]


def windows_of(shape, operand, steps, rows, gradient=False, of_phases=(), **fields):
    """A convolution, or of the kernel's gradient, and the windows of its images."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    size, sums = (height + 2 - top - bottom, width + 2 - left - right), (channels, n)
    given = {"taps": (3, 3), "places": (height, width)}
    if gradient:
        sums, given = sums[::-1], {"taps": given["places"], "places": given["taps"]}
    of = Convolution(sums[1], sums[0], features, size, strides=(1, 1), dilation=(1, 1),
                     padding=((top, bottom), (left, right)), **given | fields)  # fmt: skip
    return of, Windows(operand, steps, rows, *of_phases)


def step_of(shape, dtype, framed=True, flipped=False):
    """The product of a convolution: its kernel is a, its images are b; and which parts of them."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rows, line = height + 2, width + 2
    plane = rows * line
    frame = None
    if framed and any(shape[-1]):
        inner = (rows - top - bottom, top, bottom), (line - left - right, left, right)
        frame = Frame(1, 0, n * channels, inner)
    taps = ((3, -3, line), (3, -1, 1)) if flipped else ((3, 3, line), (3, 1, 1))
    axes = GemmAxes(
        ((features, 9 * channels),), ((height, line), (width, 1)), ((channels, 9, plane), *taps)
    )
    size, ref = height * width, Ref("arena")
    batch = ((n, 0, channels * plane, features * size),) if n > 1 else ()
    return GemmStep(np.dtype(dtype), np.dtype(dtype), features, size, 9 * channels, ref, ref, ref,
                    (0, 0), (0, 0), (size, 1), batch, axes, frame, False,
                    *windows_of(shape, 1, (channels * plane, plane, line, 1), (1, 2)))  # fmt: skip


def execute(step, way, operands, out, cpu):
    """Write a product that goes a way, as generated code does it, to an array."""
    call, kinds = product_call(step), (step.dtype.name, step.out.name)
    assert product_kind(step) == (*kinds, way)
    words, kept = (ctypes.c_int64 * len(call.words))(*call.words), []
    for name, x in (*operands.items(), ("c", out)):
        words[call.places[name]] = x if isinstance(x, int) else x.ctypes.data
    for name, table in call.tables.items():
        kept.append((ctypes.c_int64 * len(table))(*table))
        words[call.places[name]] = ctypes.addressof(kept[-1])
    function = functions.install(*kinds, engine_for(cpu), way)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(ctypes.addressof(words))


def run(step, shape, w, x, cpu="host"):
    """What generated code makes of a kernel and of images without zeros."""
    n, _, features, height, width, (top, bottom, left, right) = shape
    if step.frame is None:
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    flipped = step.axes.k[1][1] < 0
    out = np.full((n, features, height, width), 7, step.dtype)
    start = w.ctypes.data + 8 * w.itemsize * flipped
    execute(step, "winograd", {"a": start, "b": x}, out, cpu)
    return out


def images(shape, dtype, seed=0):
    """Random images and a kernel."""
    n, channels, features, height, width, (top, bottom, left, right) = shape
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, channels, height + 2 - top - bottom, width + 2 - left - right))
    return x.astype(dtype), rng.standard_normal((features, channels, 3, 3)).astype(dtype)


def sums(shape, w, x, flipped=False):
    """The convolution, in float64."""
    height, width, (top, bottom, left, right) = shape[3:]
    x = np.pad(x.astype("f8"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    w = w[:, :, ::-1, ::-1] if flipped else w
    places = [(i, j, x[:, :, i : i + height, j : j + width]) for i, j in np.ndindex(3, 3)]
    return sum(np.einsum("nchw,kc->nkhw", y, w[..., i, j].astype("f8")) for i, j, y in places)


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(shape, dtype, cpu):
    x, w = images(shape, dtype)
    tolerance = 2e-6 if dtype == "float32" else 4e-15
    for framed, flipped in ((True, False), (False, True)):
        step = step_of(shape, dtype, framed, flipped)
        exact = sums(shape, w, x, flipped)
        got = run(step, shape, w, x, cpu)
        np.testing.assert_allclose(got, exact, rtol=0, atol=tolerance * np.abs(exact).max())


def check_error(got, shape, w, x):
    """A mean error isn't larger than that of the same sums in the same precision."""
    exact, padded = sums(shape, w, x), np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    plain = np.zeros(exact.shape, "float32")
    for channel in range(shape[1]):
        for i, j in np.ndindex(3, 3):
            window = padded[:, channel, i : i + 32, j : j + 32]
            plain += window[:, None] * w[:, channel, i, j][:, None, None]
    error = [np.sqrt(np.mean((y - exact) ** 2)) for y in (got, plain)]
    assert error[0] <= error[1]


def check_small_integers(convolve, shape):
    """Sums of small integers are exact."""
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-50, 50, a.shape).astype("float32") for a in images(shape, "float32"))
    np.testing.assert_array_equal(convolve(w, x), sums(shape, w, x))


def check_infinities(convolve, shape):
    """Infinities and NaN stay what and where they are."""
    x, w = images(shape, "float32")
    x[0, 3, 2, 2], x[0, 5, 4, 0], x[-1, 0, -1, -1] = np.inf, -np.inf, np.nan
    w[1, 2, 0, 1] = np.inf
    with np.errstate(invalid="ignore"):
        exact = sums(shape, w, x)
    assert not np.isfinite(exact).all()
    check_places(convolve(w, x), exact, 1e-4)


def check_places(got, exact, tolerance):
    """The same infinities and NaN at the same places, and the same numbers elsewhere."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(exact))
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=tolerance)


def test_as_exact_as_sums_of_products():
    shape = SHAPES[0]
    x, w = images(shape, "float32")
    check_error(run(step_of(shape, "float32"), shape, w, x), shape, w, x)


def test_threads_give_the_same_bits(threads):
    shape = SHAPES[1]
    x, w = images(shape, "float32")
    got = run(step_of(shape, "float32"), shape, w, x)
    set_num_threads(1)
    np.testing.assert_array_equal(got, run(step_of(shape, "float32"), shape, w, x))


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


def test_large_elements_stay_away_from_others():
    """A result has nothing of what is outside of its window; and a sum of elements that is too
    large is not one of the sums that are wanted."""
    shape = SHAPES[2]
    x, w = images(shape, "float32")
    x[:, :, 6, 6] = 2e38
    w[:, :, 0, 0], w[:, 1:] = 0, np.float32(1e-3) * w[:, 1:]
    x[0, 0, 7, 7], w[:, 0] = 3e38, 1e-2
    exact = sums(shape, w, x)
    got = run(step_of(shape, "float32"), shape, w, x)
    assert np.isfinite(got).all()
    far = np.abs(exact) < 1e3
    assert far.mean() > 0.9
    np.testing.assert_allclose(got[far], exact[far], rtol=0, atol=1e-5)
    scale = np.abs(x).max()
    np.testing.assert_allclose(got / scale, exact / scale, rtol=0, atol=1e-5)
