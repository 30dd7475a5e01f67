"""Which products go by tiles."""

import numpy as np

from funcgrad.backends.llvm.gemm.steps import takes_frame
from funcgrad.backends.llvm.rewrites.tiles import (
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
from funcgrad.backends.program import Frame, GemmAxes
from funcgrad.core.record import replace
from tests.backends.llvm.gemm.winograd.test_first import SHAPES, step_of
from tests.backends.llvm.gemm.winograd.test_kernel_first import gradient_step as kernel_step
from tests.backends.llvm.gemm.winograd.test_kernel_last import gradient_step
from tests.backends.llvm.gemm.winograd.test_last import step_of as last_step
from tests.backends.llvm.gemm.winograd.test_phases import SHAPES as DOUBLED
from tests.backends.llvm.gemm.winograd.test_phases import doubling_step


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


def test_which_products_of_phases_go_this_way():
    step = doubling_step(DOUBLED[0], "float32")
    lines, columns, height, batch = step.batch
    assert tiles_of(step) == (PHASES, 1)
    assert tiles_of(doubling_step(DOUBLED[0], "float32", side=2)) == (PHASES, 2)
    # Whichever axis has the rows, and in any order.
    turned = replace(step, m=16, c_strides=(64, 1024), axes=replace(step.axes, m=((16, 18),)),
                     batch=(batch, columns, (16, 1, 0, 2), lines))  # fmt: skip
    assert one_phase(turned) == one_phase(step)
    assert tiles_of(replace(step, batch=step.batch[:3])) == (PHASES, 1)
    (places,), (features,), (channels, *taps) = step.axes.m, step.axes.n, step.axes.k
    for changed in (
        {"dtype": np.dtype("float16"), "out": np.dtype("float16")},
        {"exact": True},
        {"c_strides": (1, 1024)},
        {"batch": (lines, columns, height, (2, *batch[1:3], 1))},
        {"batch": (lines, columns, height, (2, batch[1], 1, batch[3]))},
        {"batch": (lines, columns, (16, 36, 0, 64), batch)},
        {"batch": (lines, (2, 2, 1, 1), height, batch)},
        {"batch": ((3, 18, 4, 32), columns, height, batch)},
        {"batch": ((2, 18, 4, 31), columns, (16, 18, 0, 62), batch)},
        {"axes": GemmAxes((places,), (features,), (channels, (3, 18, 8), taps[1]))},
        {"axes": GemmAxes((places,), (features,), (channels, taps[0], (2, 2, 2)))},
        {"axes": GemmAxes((places,), (features,), ((1, *channels[1:]), *taps))},
        {"axes": GemmAxes((places,), (features,), tuple(taps))},
        {"axes": GemmAxes((places, places), (features,), (channels, *taps))},
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
