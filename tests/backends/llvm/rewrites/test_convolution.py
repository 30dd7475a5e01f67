"""Convolutions lowered: planned and interpreted, and compiled, against their definition."""

import math

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.rewrites.tiles import KERNEL_LAST, PHASES, tiles_of
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.program import GemmStep, KernelStep, walk
from funcgrad.ops.convolution.conv import conv_general_dilated
from tests.backends.checks import check, floats, hosts

ONE = (1, 1)
NHWC = ("NHWC", "HWIO", "NHWC")
# lhs, rhs, keywords; large enough that windows are read in place.
CASES = {
    "plain": ((2, 8, 12, 14), (16, 8, 3, 3), {"padding": [ONE, ONE]}),
    "wide": ((1, 3, 9, 70), (5, 3, 2, 3), {}),
    "strided": ((2, 8, 13, 15), (16, 8, 3, 3), {"window_strides": (2, 3), "padding": [ONE, ONE]}),
    "strided, wide": ((3, 8, 7, 71), (16, 8, 3, 3), {"window_strides": (2, 2)}),
    "strided, rows of 12": ((3, 8, 21, 25), (40, 8, 3, 2), {"window_strides": (1, 2)}),
    "strided, rows of 16": ((2, 8, 12, 33), (20, 8, 3, 3), {"window_strides": (2, 2)}),
    "rows of 21": ((3, 8, 9, 23), (40, 8, 2, 3), {}),
    "dilated": ((2, 8, 13, 15), (16, 8, 3, 2),
                {"window_strides": (1, 2), "padding": [(-1, 2), (1, -2)], "rhs_dilation": (2, 1)}),
    "holes": ((2, 8, 7, 6), (16, 8, 3, 2), {"padding": [(-1, 2), (1, 2)], "lhs_dilation": (2, 3)}),
    "holes without elements": ((2, 8, 9, 9), (16, 8, 1, 2),
                               {"lhs_dilation": (3, 2), "padding": [(0, 0), ONE]}),
    "more holes than elements": ((2, 8, 7, 6), (16, 8, 2, 5),
                                 {"padding": [(1, 2), (6, 5)], "lhs_dilation": (5, 7)}),
    "holes as wide as kernels": ((2, 7, 6, 8), (6, 6, 8, 16),
                                 {"dimension_numbers": NHWC, "padding": [(5, 5), (5, 5)],
                                  "lhs_dilation": (6, 6)}),
    "phases together and apart": ((2, 8, 7, 6), (16, 4, 4, 7),
                                  {"padding": [(1, 2), (4, 3)], "lhs_dilation": (2, 4),
                                   "feature_group_count": 2}),
    "holes, axes turned": ((6, 7, 2, 8), (16, 8, 2, 3),
                           {"dimension_numbers": ("WHNC", "OIHW", "WNHC"), "lhs_dilation": (2, 3),
                            "padding": [ONE, (2, 1)]}),
    "all": ((2, 8, 11, 10), (16, 8, 3, 2),
            {"window_strides": (3, 2), "padding": [(4, 2), (1, 3)], "lhs_dilation": (2, 4),
             "rhs_dilation": (2, 3)}),
    "feature groups": ((4, 8, 7, 9), (16, 4, 3, 3), {"feature_group_count": 2}),
    "batch groups": ((4, 8, 7, 9), (16, 8, 3, 3), {"batch_group_count": 2}),
    "depthwise": ((2, 16, 9, 9), (16, 1, 3, 3), {"feature_group_count": 16}),
    "1×1": ((3, 16, 8, 9), (16, 16, 1, 1), {}),
    "1×1 channels last": ((3, 8, 9, 16), (1, 1, 16, 16), {"dimension_numbers": NHWC}),
    "1×1 strided": ((3, 16, 8, 9), (16, 16, 1, 1), {"window_strides": (2, 2)}),
    "channels last": ((2, 9, 8, 8), (3, 3, 8, 16), {"dimension_numbers": NHWC, "padding": "SAME"}),
    "channels last, strided": ((2, 9, 8, 17), (3, 3, 17, 16),
                               {"dimension_numbers": NHWC, "window_strides": (2, 1)}),
    "channels last, few windows": ((2, 4, 5, 64), (3, 3, 64, 128),
                                   {"dimension_numbers": NHWC, "padding": "SAME"}),
    "1d": ((2, 8, 40), (16, 8, 5), {"window_strides": (1,), "padding": "SAME"}),
    "3d": ((2, 6, 5, 6, 5), (8, 6, 3, 2, 3),
           {"window_strides": (1, 2, 1), "padding": "SAME"}),
    "long sums": ((4, 5, 33, 30), (13, 5, 3, 3), {"padding": [(2, 0), (-1, 3)]}),
    "long sums, channels last": ((4, 33, 30, 5), (3, 3, 5, 13), {"dimension_numbers": NHWC}),
    "three features": ((2, 3, 20, 50), (16, 3, 7, 7),
                       {"window_strides": (2, 2), "padding": [(3, 2), (3, 4)]}),
    "few to few features": ((2, 7, 9, 80), (5, 7, 3, 3), {"padding": [ONE, ONE]}),
    "tiles": ((3, 24, 13, 15), (33, 24, 3, 3), {"padding": [ONE, (2, 0)]}),
    "tiles of a larger array": ((2, 24, 19, 40), (20, 24, 3, 3), {"padding": [(-2, 1), (0, -1)]}),
    "tiles, channels last": ((3, 13, 15, 24), (3, 3, 24, 33),
                             {"dimension_numbers": NHWC, "padding": [ONE, (2, 0)]}),
    "tiles of a larger array, channels last": ((2, 19, 40, 24), (20, 3, 3, 24),
                                               {"dimension_numbers": ("NHWC", "OHWI", "NHWC"),
                                                "padding": [(-2, 1), (0, -1)]}),
    "small": ((1, 2, 4, 4), (2, 2, 3, 3), {}),
    "padding only": ((2, 8, 1, 1), (16, 8, 3, 3), {"padding": [(6, 6), (7, 5)]}),
    "kernel too large": ((2, 8, 2, 2), (16, 8, 3, 3), {}),
    "nothing": ((0, 8, 9, 9), (16, 8, 3, 3), {}),
}  # fmt: skip
TILES = ["tiles", "tiles, channels last"]
cases = pytest.mark.parametrize("case", CASES)


def sample(case, dtype="float32"):
    """The operands of a case, and the convolution of them."""
    lhs, rhs, kw = CASES[case]
    kw = {"window_strides": ONE, "padding": "VALID", **kw}
    x, w = floats(*lhs, dtype=dtype), floats(*rhs, seed=1, dtype=dtype) / np.sqrt(rhs[1] * 9)
    return x, w.astype(dtype), lambda x, w: conv_general_dilated(x, w, **kw)


def gradients(conv, x, w):
    """The convolution, and its gradients for some cotangent."""
    y, back = fg.vjp(conv, x, w)
    return [y, *back(y * 0.5)]


@cases
def test_interpreted(case):
    x, w, conv = sample(case)
    assert not hosts(check(lambda x, w: [conv(x, w)], x, w))


@pytest.mark.parametrize("case", ["plain", "strided", "channels last", "1d", "feature groups"])
def test_gradients_interpreted(case):
    x, w, conv = sample(case, "float64")
    assert not hosts(check(lambda x, w: gradients(conv, x, w), x, w))


@pytest.mark.sampled(3)
@cases
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_compiled(case, dtype):
    x, w, conv = sample(case, dtype)
    got = fg.jit(lambda x, w: gradients(conv, x, w))(x, w)
    exact = gradients(conv, x.astype("float64"), w.astype("float64"))
    tolerance = {"bfloat16": 2e-2, "float16": 1e-2, "float32": 2e-5, "float64": 1e-12}[dtype]
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == dtype
        size = max(1.0, float(np.abs(b).max())) if b.size else 1.0
        np.testing.assert_allclose(np.asarray(a, "f8"), b, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", TILES + ["plain", "three features", "long sums", "channels last"])
def test_the_number_of_threads_changes_nothing(case, dtype):
    x, w, conv = sample(case, dtype)
    x = np.concatenate([x] * 40, axis=0)
    f = fg.jit(lambda x, w: gradients(conv, x, w))
    results = []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        results.append([np.asarray(a) for a in f(x, w)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


# Shapes that are packed in each of the ways there are: pixels of a line, of several lines, two
# apart, any; columns along a line; odd numbers of features, images and elements of the kernel.
NARROW = {
    "lines of 32": ((2, 6, 8, 32), (16, 6, 3, 3), {"padding": [ONE, ONE]}),
    "lines of 13": ((3, 5, 9, 13), (19, 5, 3, 3), {"padding": [(1, 0), (0, 2)]}),
    "two apart": ((2, 7, 11, 33), (33, 7, 3, 3), {"window_strides": (2, 2), "padding": [ONE, ONE]}),
    "three apart": ((2, 6, 11, 37), (16, 6, 3, 2), {"window_strides": (3, 3)}),
    "one image": ((1, 8, 14, 18), (20, 8, 3, 3), {"rhs_dilation": (2, 1)}),
    "holes": ((2, 16, 7, 17), (16, 16, 4, 4), {"lhs_dilation": (2, 2), "padding": [ONE, ONE]}),
    "large kernel": ((17, 3, 20, 21), (64, 3, 18, 19), {}),
    "large kernel, two apart": ((17, 3, 40, 41), (65, 3, 18, 19), {"rhs_dilation": (1, 2)}),
    "a line": ((4, 31, 41), (33, 31, 5), {"window_strides": (1,), "padding": [(2, 2)]}),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", NARROW)
def test_bfloat16_is_multiplied_as_it_is(case, threads):
    """Small whole numbers and their sums are exact in float32, and the result's rounding is the
    only one."""
    pool.set_num_threads(threads)
    lhs, rhs, kw = NARROW[case]
    kw = {"window_strides": ONE, "padding": "VALID", **kw}
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype("float32") for shape in (lhs, rhs))
    x[0, 0, 1, ...] = 2
    x.flat[5], x.flat[-7] = np.nan, np.inf

    def conv(x, w):
        return conv_general_dilated(x, w, **kw)

    narrow = [a.astype("bfloat16") for a in (x, w)]
    with np.errstate(invalid="ignore"):
        exact = np.asarray(conv(x, w)).astype("bfloat16")
    f = fg.jit(conv)
    assert "gemm bfloat16 to float32" in f.lower(*narrow).as_text("loops")
    np.testing.assert_array_equal(np.asarray(f(*narrow)).astype("f4"), exact.astype("f4"))


def test_bfloat16_interpreted():
    lhs, rhs, kw = NARROW["two apart"]
    x, w = floats(*lhs, dtype="bfloat16"), floats(*rhs, seed=1, dtype="bfloat16")
    assert not hosts(check(lambda x, w: [conv_general_dilated(x, w, **kw)], x, w))


def steps_of(case):
    x, w, conv = sample(case)
    planned = check(lambda x, w: [conv(x, w)], x, w)
    return planned, [s for s in walk(planned.steps) if isinstance(s, GemmStep | KernelStep)]


def test_windows_are_not_written_out():
    planned, (pad, product) = steps_of("plain")
    assert isinstance(pad, KernelStep)
    assert product.axes is not None
    assert planned.arena_bytes < 2 * 4 * (2 * 8 * 14 * 16)
    assert "gemm float32 16x168x72 batch 2(" in str(planned)


def test_one_by_one_copies_nothing():
    planned, (product,) = steps_of("1×1")
    assert product.batch
    assert planned.arena_bytes == 0


def test_one_by_one_channels_last_is_a_plain_product():
    planned, (product,) = steps_of("1×1 channels last")
    assert product.axes is None
    assert planned.arena_bytes == 0


@pytest.mark.parametrize("window", [1, 3])
def test_more_images_than_places_stay_items(window):
    """What the result holds together is multiplied together: else each place is a product of its
    own, which reads all of the kernel."""
    x, w = floats(60, 8, 7, 7), floats(16, 8, window, window)
    conv = fg.jit(lambda x, w: conv_general_dilated(x, w, (1, 1), "SAME"))
    steps = conv.lower(x, w)._executable().program.steps
    (product,) = (s for s in steps if isinstance(s, GemmStep))
    assert (product.m, product.n, math.prod(b[0] for b in product.batch)) == (16, 49, 60)
    pairs = (fg.jit(lambda x: conv(x, w))(x[i : i + 1])[0] for i in range(60))
    np.testing.assert_allclose(conv(x, w), np.stack([*pairs]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "form"), [(5, 0), (3, KERNEL_LAST)])
def test_gradient_of_a_kernel_whose_features_come_last_is_one_product(size, form):
    """Of all its elements, which lie together, unless tiles multiply those of 3×3."""
    x, g = floats(8, 16, 16, 16), floats(8, 16, 16, 32)
    w = np.zeros((size, size, 16, 32), np.float32)

    def conv(x, w):
        return conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    gradient = fg.jit(lambda x, w, g: fg.vjp(lambda w: conv(x, w), w)[1](g)[0])
    steps = gradient.lower(x, w, g)._executable().program.steps
    (product,) = (s for s in steps if isinstance(s, GemmStep))
    assert tiles_of(product)[0] == form
    assert product.m == (16 if form else size * size * 16)
    half = size // 2
    padded = np.pad(x, ((0, 0), (half, half), (half, half), (0, 0)))
    wanted = [[np.einsum("nhwi,nhwo->io", padded[:, a : a + 16, b : b + 16], g)
               for b in range(size)] for a in range(size)]  # fmt: skip
    np.testing.assert_allclose(gradient(x, w, g), wanted, rtol=1e-4, atol=1e-3)


def test_zeros_between_elements_are_not_multiplied():
    _, steps = steps_of("holes")
    products = [s for s in steps if isinstance(s, GemmStep)]
    # Two of six phases meet no element of the kernel; two pairs of the others the same windows.
    assert len(products) == 2
    x, w, conv = sample("holes")
    full = conv(x, w).size * 8 * 3 * 2
    done = sum(s.m * s.n * s.k * math.prod(b[0] for b in s.batch) for s in products)
    assert done < full / 4


def test_phases_that_meet_the_same_windows_are_one_product():
    planned, steps = steps_of("holes as wide as kernels")
    (product,) = [s for s in steps if isinstance(s, GemmStep)]
    assert (product.m * product.n, product.k) == (2 * 7 * 6 * 36 * 16, 8)
    x, w, conv = sample("holes as wide as kernels")
    assert planned.arena_bytes < 4 * (conv(x, w).size + 3 * w.size + x.size)


# Kernels of 4×4 that double an image, whose 2×2 phases are products by tiles, all in one step.
DOUBLED = {
    "plain": ((3, 24, 7, 9), (20, 24, 4, 4), {}),
    "one image": ((1, 16, 16, 17), (24, 16, 4, 4), {}),
    "images first": ((40, 16, 4, 5), (16, 16, 4, 4), {}),
    "cut": ((3, 24, 13, 12), (20, 24, 4, 4), {"padding": [(-2, 0), (2, -4)]}),
    "wider": ((3, 24, 9, 8), (20, 24, 4, 4), {"padding": [(4, 6), (2, 8)]}),
    "kernel turned": ((3, 24, 7, 9), (4, 4, 24, 20),
                      {"dimension_numbers": ("NCHW", "HWIO", "NCHW")}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", DOUBLED)
def test_phases_of_doubled_images(case, dtype):
    lhs, rhs, kw = DOUBLED[case]
    kw = {"window_strides": ONE, "padding": [(2, 2)] * 2, "lhs_dilation": (2, 2), **kw}
    x, w = floats(*lhs, dtype=dtype), floats(*rhs, seed=1, dtype=dtype)
    w /= math.sqrt(w.size)
    planned = check(lambda x, w: [conv_general_dilated(x, w, **kw)], x, w)
    (product,) = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    assert tiles_of(product)[0] == PHASES
    assert (product.frame is None) == (case == "cut")


@pytest.mark.parametrize(
    ("case", "kw"),
    [
        ("exact", {"precision": "highest"}),
        ("groups", {"feature_group_count": 2}),
        ("odd results", {"padding": [(2, 1), (2, 1)]}),
        ("phases that meet the same windows", {"padding": [ONE, ONE]}),
        ("axes turned", {"dimension_numbers": ("NCHW", "OIHW", "NCWH")}),
        ("strided", {"window_strides": (3, 3)}),
        ("two apart", {"rhs_dilation": (2, 2), "padding": [(3, 3), (3, 3)]}),
    ],
)
def test_others_are_not_taken_for_doubled_images(case, kw):
    x, w = floats(3, 24, 7, 9), floats(20, 24 // kw.get("feature_group_count", 1), 4, 4, seed=1)
    kw = {"window_strides": ONE, "padding": [(2, 2)] * 2, "lhs_dilation": (2, 2), **kw}
    w /= math.sqrt(w.size)
    planned = check(lambda x, w: [conv_general_dilated(x, w, **kw)], x, w)
    products = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    assert products
    assert all(tiles_of(s)[0] == 0 for s in products)


def test_gradient_of_a_strided_convolution_doubles_an_image():
    x, w, g = floats(3, 20, 14, 18), floats(24, 20, 4, 4, seed=1), floats(3, 24, 7, 9, seed=2)

    def gradient(x, w, g):
        def conv(x):
            return conv_general_dilated(x, w, (2, 2), [ONE, ONE])

        return [fg.vjp(conv, x)[1](g)[0]]

    planned = check(gradient, x, w / 16, g)
    (product,) = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    assert tiles_of(product)[0] == PHASES


def test_doubled_images_as_a_piece_of_others():
    """What is written side by side with another array has longer lines."""
    x, w, other = floats(3, 24, 7, 9), floats(20, 24, 4, 4, seed=1), floats(3, 20, 14, 5, seed=2)

    def joined(x, w, other):
        y = conv_general_dilated(x, w / 16, ONE, [(2, 2)] * 2, lhs_dilation=(2, 2))
        return [fg.lax.concatenate([y, other], 3)]

    planned = check(joined, x, w, other)
    (product,) = [s for s in walk(planned.steps) if isinstance(s, GemmStep)]
    assert tiles_of(product)[0] == PHASES


def test_padding_is_shared():
    x, w, _ = sample("plain")

    def both(x, w):
        return [conv_general_dilated(x, v, ONE, [ONE, ONE]) for v in (w, w * 2)]

    planned = check(both, x, w)
    assert str(planned).count("\n  pad") == 1


# What is padded is copied by the product itself, whose windows lie in lines.
FRAMED = {
    "lines of 32": ((3, 6, 8, 32), (16, 6, 3, 3), {"padding": [ONE, ONE]}),
    "lines of 31": ((2, 5, 9, 29), (33, 5, 3, 3), {"padding": [(2, 0), (0, 4)]}),
    "zeros behind": ((2, 5, 1, 17), (16, 5, 2, 2), {"padding": [(0, 3), (0, 16)]}),
    "more zeros than lines": ((2, 3, 2, 16), (20, 3, 3, 3), {"padding": [(9, 7), ONE]}),
    "two apart": ((2, 7, 11, 32), (33, 7, 3, 3), {"window_strides": (2, 2), "padding": [ONE, ONE]}),
    "two apart in odd lines": ((2, 7, 9, 31), (33, 7, 3, 3),
                               {"window_strides": (1, 2), "padding": [ONE, (1, 2)]}),
    "dilated": ((2, 8, 13, 32), (16, 8, 3, 3),
                {"padding": [(2, 2), (3, 3)], "rhs_dilation": (2, 3)}),
    "feature groups": ((4, 8, 7, 32), (32, 4, 3, 3),
                       {"padding": [ONE, ONE], "feature_group_count": 2}),
    "batch groups": ((4, 8, 7, 32), (32, 8, 3, 3), {"padding": [ONE, ONE], "batch_group_count": 2}),
    "one image": ((1, 8, 7, 48), (16, 8, 3, 3), {"padding": [ONE, ONE]}),
    "a line": ((4, 9, 1024), (33, 9, 5), {"window_strides": (1,), "padding": [(2, 2)]}),
    "a line, two apart": ((4, 9, 255), (33, 9, 5), {"window_strides": (2,), "padding": [(3, 2)]}),
    "a channel": ((4, 1, 12, 32), (33, 1, 3, 3), {"padding": [ONE, ONE]}),
    "3d": ((2, 4, 5, 6, 16), (16, 4, 3, 2, 3),
           {"window_strides": (1, 2, 1), "padding": [ONE, (2, 3), ONE]}),
    "4d": ((2, 4, 3, 2, 3, 16), (16, 4, 1, 2, 3, 3),
           {"window_strides": (1,) * 4, "padding": [(0, 0), ONE, ONE, ONE]}),
}  # fmt: skip


@pytest.mark.parametrize("case", FRAMED)
def test_padding_by_the_product(case):
    """Whole numbers, and their sums, are exact."""
    lhs, rhs, kw = FRAMED[case]
    kw = {"window_strides": ONE, **kw}
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype("float64") for shape in (lhs, rhs))

    def conv(x, w):
        return conv_general_dilated(x, w, **kw)

    planned = check(lambda x, w: [conv(x, w)], x, w)
    (step,) = planned.steps
    assert isinstance(step, GemmStep)
    assert step.frame is not None
    assert " in zeros b[" in str(planned)
    assert planned.arena_bytes == 0
    x.flat[5], x.flat[-1], w.flat[7] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = conv(x, w)
    for dtype in ("float32", "float64"):
        f, ins = fg.jit(conv), (x.astype(dtype), w.astype(dtype))
        for threads in (1, 3):
            pool.set_num_threads(threads)
            np.testing.assert_array_equal(f(*ins), exact)


def test_what_is_padded_elsewhere_is_padded_once():
    lhs, rhs, kw = FRAMED["lines of 32"]
    x, w = floats(*lhs), floats(*rhs, seed=1)

    def steps(f):
        planned = check(f, x, w)
        frames = [s.frame for s in walk(planned.steps) if isinstance(s, GemmStep)]
        return str(planned).count("\n  pad"), frames

    def conv(x, w):
        return conv_general_dilated(x, w, ONE, **kw)

    pads, frames = steps(lambda x, w: [conv(x, w), conv(x, -w)])
    assert (pads, frames.count(None)) == (0, 0)

    def shown(x, w):
        padded = fg.numpy.pad(x, [(0, 0), (0, 0), *kw["padding"]])
        return [conv_general_dilated(padded, w, ONE, "VALID"), padded]

    assert steps(shown) == (1, [None])
    assert steps(lambda x, w: [conv(abs(x), w)])[1] == [None]  # computed as it is padded
    pads, frames = steps(lambda x, w: [y := abs(x), conv(y, w)])
    assert (pads, frames[0] is None) == (0, False)


def test_sums_of_padded_arrays_under_loops():
    """What is padded may be a turn's, or donated."""
    x, w = floats(3, 16, 8, 32), floats(16, 16, 3, 3, seed=1) / 12

    def turn(y, v):
        return conv_general_dilated(y, v, ONE, [ONE, ONE]), y.sum()

    def f(x, w):
        return list(fg.lax.scan(turn, x, fg.numpy.stack([w, w * 0.5, w * 2])))

    check(f, x, w)
    for a, b in zip(fg.jit(f)(x, w), f(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


JOINED = {
    # What is padded; the images that the padded array is seen as, from which element on; axes.
    "planes one below the other": ((32, 2, 10, 34), (1, 32, 24, 36), 0, {}),
    "lines that begin in others": ((32, 24, 34), (1, 32, 25, 36), 5, {}),
    "planes, channels last": ((2, 10, 34, 32), (1, 24, 36, 32), 0, {"dimension_numbers": NHWC}),
    "lines, channels last": ((1, 24, 34, 32), (1, 25, 36, 32), 160, {"dimension_numbers": NHWC}),
}


@pytest.mark.parametrize("case", JOINED)
def test_windows_that_reach_over_planes_with_zeros(case):
    """What is padded is one image in another shape, whose windows meet zeros in its midst."""
    inner, shape, start, kw = JOINED[case]
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, inner).astype("float32")
    w = rng.integers(-3, 4, (3, 3, 32, 32) if kw else (32, 32, 3, 3)).astype("float32")
    pads = [(0, 0)] * (len(inner) - (3 if kw else 2)) + [ONE, ONE] + [(0, 0)] * bool(kw)

    def f(x, w):
        rows = fg.numpy.pad(x, pads).reshape(*(() if kw else (32,)), -1)
        rows = rows[..., start : start + np.prod(shape[1:] if kw else shape[2:])]
        return conv_general_dilated(rows.reshape(shape), w, ONE, [(0, 0)] * 2, **kw)

    y, back = fg.vjp(f, x, w)
    compiled = fg.jit(f)
    np.testing.assert_array_equal(compiled(x, w), y)
    for got, exact in zip(fg.vjp(compiled, x, w)[1](y), back(y), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-5)


def test_groups_of_kernels_of_their_own():
    """Windows of what is neither given nor computed by loops, but another's memory reshaped."""
    x, w = floats(2, 3, 34, 6, 10), floats(2, 18, 17, 3, 3, seed=1)

    def conv(x, w):
        return conv_general_dilated(x, w, ONE, "VALID", feature_group_count=2)

    check(lambda x, w: [fg.vmap(conv)(x, w)], x, w)


def lose(how, x):
    """What a net may become, in an array whose axis of features is the second or last one."""
    axis = 1 if x.shape[1] == 16 else 3
    x = np.moveaxis(x, axis, 0)  # writes go to the array itself
    if how == "all NaN":
        x[...] = np.nan
    elif how == "a feature is NaN":
        x[-1] = np.nan
    elif how == "infinities":
        x[...] = np.inf * np.sign(x)
    elif how == "infinite, then NaN":
        x[2], x[-1, 1:3] = np.inf, np.nan
    else:
        x[:, ::2, 5:] = np.nan


LOST = ["all NaN", "a feature is NaN", "infinities", "infinite, then NaN", "places are NaN"]


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_is_lost_by_tiles_is_what_sums_of_products_lose(layout, how):
    last = layout == "NHWC"
    numbers = NHWC if last else ("NCHW", "OIHW", "NCHW")
    x, g = (floats(*((4, 11, 12, 16) if last else (4, 16, 11, 12)), seed=s) for s in range(2))
    w = floats(*((3, 3, 16, 16) if last else (16, 16, 3, 3)), seed=2)

    def gradients(precision):
        def conv(x, w):
            kw = {"dimension_numbers": numbers, "precision": precision}
            return fg.lax.conv_general_dilated(x, w, ONE, "SAME", **kw)

        def fun(x, w, g):
            y, pull = fg.vjp(conv, x, w)
            return [y, *pull(g)]

        return fun

    by_tiles, by_sums = (fg.jit(gradients(p)) for p in (None, "highest"))
    for lost in ((x,), (g,), (x, g)):
        ins = [a.copy() for a in (x, w, g)]
        for a in lost:
            lose(how, ins[0 if a is x else 2])
        wanted = [np.asarray(y) for y in by_sums(*ins)]
        for threads in (1, 3):
            pool.set_num_threads(threads)
            for got, want in zip(by_tiles(*ins), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)
