"""Which products go by tiles."""

import numpy as np

from funcgrad.backends.llvm.gemm_steps import takes_frame
from funcgrad.backends.program import Frame, GemmAxes
from funcgrad.backends.tiles import (
    IMAGES,
    IMAGES_LAST,
    KERNEL_LAST,
    PANEL,
    tiles_of,
    tiles_pay,
)
from funcgrad.core.record import replace
from tests.backends.llvm.test_gemm_winograd import SHAPES, step_of
from tests.backends.llvm.test_gemm_winograd_kernel import gradient_step as kernel_step
from tests.backends.llvm.test_gemm_winograd_kernel_last import gradient_step
from tests.backends.llvm.test_gemm_winograd_last import step_of as last_step


def test_which_products_go_this_way():
    """Windows of 3×3 neighbours, all with one kernel, of so many channels and features that the
    transforms pay."""
    step, other = step_of(SHAPES[0], "float32"), np.dtype("float16")
    assert tiles_of(step) == (IMAGES, 2)
    (features,), (rows, columns), (channels, taps, inner) = step.axes.m, step.axes.n, step.axes.k
    for changed in (
        {"dtype": other, "out": other},
        {"c_strides": (1024, 2)},
        {"batch": ((2, 9, 64 * 34 * 34, 64 * 1024),)},
        {"axes": GemmAxes((features,), (rows, (32, 2)), step.axes.k)},
        {"axes": GemmAxes((features,), (rows, columns), (channels, taps, (3, 1, 2)))},
        {"axes": GemmAxes((features,), (rows, columns), (channels, (5, 5, 34), inner))},
        {"axes": GemmAxes((features,), (rows, columns), ((4, *channels[1:]), taps, inner))},
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
    places, cols, (lines, pixels) = step.axes.m, step.axes.n, step.axes.k
    for changed in (
        {"c_strides": (1, 65536)},
        {"batch": ((2, 0, 0, 64),)},
        {"axes": GemmAxes((*places[:2], (32, 65)), cols, (lines, pixels))},
        {"axes": GemmAxes(places, cols, (lines, (192, 2, 64)))},
        {"axes": GemmAxes(places, cols, ((5, *lines[1:]), pixels))},
        {"axes": GemmAxes(places, cols, (lines, (192, 1, 64), (3, 0, 0)))},
        {"frame": replace(step.frame, operand=1)},
        {"frame": replace(step.frame, start=1)},
        {"frame": replace(step.frame, start=64)},
        {"frame": Frame(0, 0, 64, ((32, 2, 2), (2048, 64, 64)))},
        {"frame": Frame(0, 0, 4, ((15, 1, 1), (2048, 64, 64)))},
        {"frame": Frame(0, 0, 32, ((32, 1, 1), (2048, 32, 96)))},
    ):  # fmt: skip
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_which_gradients_with_channels_last_go_this_way():
    step = gradient_step(SHAPES[0], "float32")
    assert tiles_of(step) == (KERNEL_LAST, 1)
    assert tiles_of(gradient_step(SHAPES[0], "float32", turned=True)) == (KERNEL_LAST, 2)
    (m,), (n,), (batch, lines, pixels) = step.axes.m, step.axes.n, step.axes.k
    for changed in (
        {"c_strides": (1, 64)},
        {"batch": step.batch[::-1]},
        {"batch": (step.batch[0], (3, 64, 1, 4096))},
        {"batch": step.batch[:1]},
        {"axes": GemmAxes((m,), ((64, 2),), (batch, lines, pixels))},
        {"axes": GemmAxes((m, m), (n,), (batch, lines, pixels))},
        {"axes": GemmAxes((m,), (n,), (batch, lines, (32, 65, 64)))},
        {"axes": GemmAxes((m,), (n,), ((65536, 1, 1),))},
        {"frame": replace(step.frame, operand=1)},
        {"frame": replace(step.frame, start=1)},
    ):
        assert tiles_of(replace(step, **changed)) == (0, 0), changed


def test_all_ways_by_tiles_take_frames():
    for step in (
        step_of(SHAPES[0], "float32"),
        kernel_step(SHAPES[0], "float32"),
        last_step(SHAPES[0], "float32"),
        gradient_step(SHAPES[0], "float32"),
    ):
        assert step.frame is not None
        assert takes_frame(step)
