"""Which products go by tiles."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.gemm.steps import takes_frame
from funcgrad.backends.llvm.rewrites.tiles import (
    BYTES_LAST,
    IMAGES,
    IMAGES_LAST,
    KERNEL_LAST,
    PANEL,
    PHASES,
    one_phase,
    phases_pay,
    tiles_of,
    tiles_pay,
)
from funcgrad.backends.program import Frame, GemmAxes, GemmStep, walk
from funcgrad.core.record import replace
from funcgrad.lax import conv_general_dilated
from tests.backends.llvm.gemm.winograd.test_first import SHAPES, step_of
from tests.backends.llvm.gemm.winograd.test_kernel_first import gradient_step as kernel_step
from tests.backends.llvm.gemm.winograd.test_kernel_last import gradient_step
from tests.backends.llvm.gemm.winograd.test_last import step_of as last_step
from tests.backends.llvm.gemm.winograd.test_phases import SHAPES as DOUBLED
from tests.backends.llvm.gemm.winograd.test_phases import doubling_step


def other(step, **changed):
    """Of other places, or of another convolution."""
    names = ("steps", "rows", "results")
    places = {name: changed.pop(name) for name in names if name in changed}
    return {
        "windows": replace(step.windows, **places),
        "convolution": replace(step.convolution, **changed),
    }


# Of no form, wherever they lie.
OTHERS = (
    {"strides": (1, 2)}, {"strides": (2, 2)}, {"dilation": (2, 1)}, {"groups": (2, 1)},
    {"groups": (1, 2)}, {"strides": (1, 1, 1), "dilation": (1, 1, 1)},
)  # fmt: skip


def test_which_products_go_this_way():
    """Windows of 3×3 neighbours, all with one kernel, of so many channels and features that the
    transforms pay."""
    step, half = step_of(SHAPES[0], "float32"), np.dtype("float16")
    assert tiles_of(step) == (IMAGES, 2)
    image, channel, line, _ = step.windows.steps
    for changed in (
        {"dtype": half, "out": half},
        {"exact": True},
        {"windows": None},
        {"convolution": None},
        {"c_strides": (1024, 2)},
        *(other(step, **fields) for fields in OTHERS),
        other(step, steps=(image, channel, line, 2)),
        other(step, taps=(5, 3)),
        other(step, taps=(5, 5)),
        other(step, channels=4),
        other(step, places=(1, 1024)),
        other(step, last=True),
        other(step, rows=(2, 1)),
        other(step, rows=(0, 1, 2)),
        other(step, phases=(2, 2)),
        {"frame": replace(step.frame, operand=0)},
        {"frame": Frame(1, 0, 128 * 34, ((32, 1, 1),))},
        {"frame": Frame(1, 0, 64, ((64, 2, 2), (32, 1, 1)))},
        {"frame": Frame(1, 0, 256, ((15, 1, 1), (32, 1, 1)))},
        {"frame": replace(step.frame, start=1)},
        {"frame": replace(step.frame, start=34)},
    ):  # fmt: skip
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_few_channels_and_features():
    """As they were measured: few features or few channels pay, a few do not."""
    of_results = {(32, 8): True, (8, 32): True, (16, 8): True, (12, 12): True, (64, 4): False,
                  (4, 64): False, (8, 8): False, (3, 64): False}  # fmt: skip
    # Panels of channels that are mostly empty take longer than sums of products do.
    of_kernels = {(32, 8): True, (24, 24): True, (48, 8): True, (16, 16): False, (16, 32): False,
                  (8, 64): False, (12, 12): False}  # fmt: skip
    last = {(32, 8): True, (16, 8): True, (12, 12): True, (16, 16): True, (3, 64): False}
    for panel, wanted in ((0, of_results), (PANEL, of_kernels), (1, last)):
        assert {key: tiles_pay(16, (32, 32), *key, panel) for key in wanted} == wanted
        assert not tiles_pay(16, (32, 32), 0, 64, panel)
        assert not tiles_pay(16, (32, 32), 64, 0, panel)


def test_which_products_with_channels_last_go_this_way():
    step, side = last_step(SHAPES[0], "float32"), last_step(SHAPES[0], "float32", side=1)
    assert tiles_of(step) == (IMAGES_LAST, 1)
    assert tiles_of(side) == (IMAGES_LAST, 2)
    image, _, line, pixel = step.windows.steps
    for changed in (
        {"c_strides": (1, 65536)},
        {"batch": ((2, 0, 0, 64),)},
        *(other(step, **fields) for fields in OTHERS),
        other(step, steps=(image, 2, line, pixel)),
        other(step, taps=(5, 3)),
        other(step, channels=4),
        other(step, last=False),
        other(step, rows=(0,)),
        other(step, rows=(0, 2, 1)),
        {"frame": replace(step.frame, operand=1)},
        {"frame": replace(step.frame, start=1)},
        {"frame": replace(step.frame, start=64)},
        {"frame": Frame(0, 0, 64, ((32, 2, 2), (2048, 64, 64)))},
        {"frame": Frame(0, 0, 4, ((15, 1, 1), (2048, 64, 64)))},
        {"frame": Frame(0, 0, 32, ((32, 1, 1), (2048, 32, 96)))},
    ):  # fmt: skip
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_which_products_of_bytes_go_this_way():
    step = last_step(SHAPES[0], "int8")
    assert tiles_of(step) == (0, 0)
    step = replace(step, out=np.dtype("int32"))
    assert tiles_of(step) == (BYTES_LAST, 1)
    image, _, line, pixel = step.windows.steps
    for changed in (
        {"exact": True},
        {"c_strides": (1, 65536)},
        *(other(step, **fields) for fields in OTHERS),
        other(step, steps=(image, 2, line, pixel)),
        other(step, channels=48),
        other(step, channels=3648),
        other(step, features=2),
        other(step, taps=(5, 3)),
        {"frame": replace(step.frame, start=1)},
    ):
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_which_gradients_with_channels_last_go_this_way():
    step = gradient_step(SHAPES[0], "float32")
    assert tiles_of(step) == (KERNEL_LAST, 1)
    assert tiles_of(gradient_step(SHAPES[0], "float32", turned=True)) == (KERNEL_LAST, 2)
    (_, channel, line, pixel), (m,), (n,) = step.windows.steps, step.axes.m, step.axes.n
    for changed in (
        {"c_strides": (1, 64)},
        {"axes": GemmAxes((m,), ((64, 2),), step.axes.k)},
        {"axes": GemmAxes((m, m), (n,), step.axes.k)},
        *(other(step, **fields) for fields in OTHERS),
        other(step, steps=(2, channel, line, pixel)),
        other(step, places=(3, 5)),
        other(step, taps=(1, 1024)),
        other(step, images=4, features=4),
        other(step, last=True),
        other(step, rows=(0, 1, 2)),
        {"frame": replace(step.frame, operand=1)},
        {"frame": replace(step.frame, start=1)},
    ):
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_which_products_of_phases_go_this_way():
    step = doubling_step(DOUBLED[0], "float32")
    lines, columns, _, batch = step.batch
    assert tiles_of(step) == (PHASES, 1)
    assert tiles_of(doubling_step(DOUBLED[0], "float32", side=2)) == (PHASES, 2)
    # Whichever axis has the rows, and in any order.
    turned = replace(step, m=16, c_strides=(64, 1024), axes=replace(step.axes, m=((16, 18),)),
                     batch=(batch, columns, (16, 1, 0, 2), lines))  # fmt: skip
    assert one_phase(turned) == one_phase(step)
    assert tiles_of(replace(step, batch=step.batch[:3])) == (PHASES, 1)
    image, apart, *_ = step.windows.results
    for changed in (
        {"dtype": np.dtype("float16"), "out": np.dtype("float16")},
        {"exact": True},
        other(step, results=(image, apart, 2, 2 * apart, 1)),
        other(step, results=(image, apart, 1, apart, 2)),
        other(step, results=(image, 31, 1, 62, 2)),
        *(other(step, **fields) for fields in OTHERS),
        other(step, steps=(*step.windows.steps[:3], 2)),
        other(step, taps=(3, 2)),
        other(step, channels=1),
        other(step, phases=()),
        {"frame": replace(step.frame, operand=1)},
        {"frame": replace(step.frame, start=1)},
    ):
        assert tiles_of(replace(step, **changed)) == (0, 0), changed
        assert one_phase(replace(step, **changed)) is None


def test_few_channels_features_and_places_of_phases():
    """As they were measured: transforming the kernel takes as long as some places save."""
    assert all(phases_pay(16, (32, 32), *key) for key in ((64, 3), (8, 8), (2, 64), (4, 4)))
    assert not phases_pay(16, (32, 32), 1, 64)
    assert not phases_pay(16, (1, 32), 64, 64)
    images = {1: False, 2: False, 8: True}
    assert {n: phases_pay(n, (4, 4), 512, 256) for n in images} == images


def test_all_ways_by_tiles_take_frames():
    for step in (
        step_of(SHAPES[0], "float32"),
        kernel_step(SHAPES[0], "float32"),
        last_step(SHAPES[0], "float32"),
        gradient_step(SHAPES[0], "float32"),
        doubling_step(DOUBLED[0], "float32"),
    ):
        assert step.frame is not None
        assert takes_frame(step)


@pytest.mark.parametrize(
    ("case", "kw"),
    [
        ("tiles", {}),
        ("exact", {"precision": "highest"}),
        ("strided", {"window_strides": (2, 2)}),
        ("features first", {"dimension_numbers": ("NCHW", "HWIO", "NHWC")}),
    ],
)
def test_images_of_bytes(case, kw):
    """Windows of neighbours are multiplied by tiles, with the zeros around them nowhere written;
    sums are exact, however they are made."""
    rng = np.random.default_rng(0)
    kw = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **kw}
    lhs = (2, 64, 16, 16) if case == "features first" else (2, 16, 16, 64)
    x, w = (rng.integers(-128, 128, size, np.int8) for size in (lhs, (3, 3, 64, 32)))

    def conv(x, w, dtype="int32"):
        return [conv_general_dilated(x, w, padding="SAME", preferred_element_type=dtype, **kw)]

    run = fg.jit(conv)
    steps = list(walk(run.lower(x, w)._executable().program.steps))
    forms = [tiles_of(s)[0] for s in steps if isinstance(s, GemmStep)]
    assert forms == [BYTES_LAST * (case == "tiles")]
    if case == "tiles":
        assert len(steps) == 1
    wanted = conv(x.astype("float64"), w.astype("float64"), None)
    np.testing.assert_array_equal(run(x, w)[0], wanted[0])


def test_images_of_bytes_as_views():
    """Features that don't follow each other in memory are gathered."""
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2, 64, 16, 16), np.int8)
    w = rng.integers(-128, 128, (3, 3, 64, 32), np.int8)

    def conv(x, w, dtype="int32"):
        x = x.transpose(0, 2, 3, 1)
        numbers = ("NHWC", "HWIO", "NHWC")
        return conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers,
                                    preferred_element_type=dtype)  # fmt: skip

    wanted = conv(x.astype("float64"), w.astype("float64"), None)
    np.testing.assert_array_equal(fg.jit(conv)(x, w), wanted)
