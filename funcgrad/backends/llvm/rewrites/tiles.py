"""Which convolutions are multiplied by tiles: Winograd's F(2×2, 3×3) for windows of 3×3.

A tile, 2×2 results, takes 16 multiplications a channel and feature instead of 36, and additions for
what it reaches and for its results, which pay if there are enough features and channels.
Of convolutions that double an image, by a kernel of 4×4, each result has a window of 2×2: those in
even or odd lines and columns, the 4 phases, take 9 of the 16 points each, which are 36 for 64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from funcgrad.core.record import replace

if TYPE_CHECKING:
    from funcgrad.backends.program import Frame, GemmAxes, GemmStep

IMAGES, KERNEL, IMAGES_LAST, KERNEL_LAST, PHASES = 1, 2, 3, 4, 5
TAPS, POINTS = 3, 16
PHASE_COUNT, PHASE_TAPS, PHASE_POINTS = 4, 2, 9
LEAST_WORK = 1 << 19  # multiplications of sums of products
MOST_KERNEL = 1 << 23  # elements of the transformed kernel
# What transforming 16 tiles takes for a channel and for a feature, beside 16 multiplications for
# both: vectors are as many as tiles.
INPUT_COST, OUTPUT_COST = 7.0, 5.9
# And what transforming the kernel takes for both, once.
KERNEL_COST = 400.0
# What adding products to sums in memory takes, beside multiplying; how many channels are multiplied
# at a time, if vectors are of tiles. Kernels' gradients as sums of products have few rows, or short
# ones, and take longer than their number says.
PART_COST, PANEL, OF_KERNEL = 0.3, 32, 0.8
# What joining the results of phases takes for a place and a feature, if each is a product.
JOIN_COST = 300.0


def tiles_of(s: GemmStep) -> tuple[int, int]:
    """The form that a product by tiles has, and which operand has the windows: 1: a, 2: b.

    IMAGES: of windows and a kernel; KERNEL: of windows and the gradient of their results, with
    features before places in both. IMAGES_LAST, KERNEL_LAST: the same with features after
    places. PHASES: of images and a kernel for 4 phases, as `one_phase` knows. 0, 0 for other
    products, and where tiles don't pay.

    >>> import numpy as np
    >>> from funcgrad.backends.program import GemmAxes, GemmStep, Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (1024, 1)
    >>> axes = GemmAxes(((64, 576),), ((32, 34), (32, 1)), ((64, 9, 1156), (3, 3, 34), (3, 1, 1)))
    >>> sizes = (64, 1024, 576, ref, ref, ref, rows, rows, rows, ((32, 0, 73984, 65536),))
    >>> tiles_of(GemmStep(f32, f32, *sizes, axes))
    (1, 2)
    """
    if s.axes is None or s.exact or s.dtype.name not in ("float32", "float64") or s.out != s.dtype:
        return 0, 0
    for side in range(2):
        if _is_of_images(s, s.axes, side):
            return IMAGES, side + 1
        if _is_of_kernel(s, s.axes, side):
            return KERNEL, side + 1
        if _is_of_images_last(s, s.axes, side):
            return IMAGES_LAST, side + 1
        if _is_of_kernel_last(s, s.axes, side):
            return KERNEL_LAST, side + 1
        if _phase_of(s, s.axes, side) is not None:
            return PHASES, side + 1
    return 0, 0


def one_phase(s: GemmStep) -> GemmStep | None:
    """Of a product whose form is PHASES, that of one phase, with images as its batch. The kernel's
    strides, as its axes are elsewhere, are those from phase to phase of lines and of columns; the
    result's from place to place is that of its lines, in which places of all phases are.

    Lines and columns of images, and their phases, are axes of the batch or the rows of windows, in
    any order: that of the result's strides tells what is what.
    """
    form, side = tiles_of(s)
    return _phase_of(s, s.axes, side - 1) if form == PHASES and s.axes is not None else None


def _phase_of(s: GemmStep, axes: GemmAxes, side: int) -> GemmStep | None:
    """`one_phase` of a product whose windows are of one side, if it is of that form."""
    windows, features = (axes.n, axes.m) if side else (axes.m, axes.n)
    if len(s.batch) not in (3, 4) or len(windows) != 1 or len(features) != 1 or len(axes.k) != 3:
        return None
    (rows, step), (channels, *_) = windows[0], axes.k[0]
    spans = [(span[3], span[0], span[1 + side], span[2 - side]) for span in s.batch]
    spans = sorted([*spans, (s.c_strides[side], rows, step, 0)])
    places, kernel = [span[2] for span in spans], [span[3] for span in spans]
    (width, height), line, apart = (spans[i][1] for i in (1, 3)), places[2], spans[2][0]
    doubled = [(1, 2), (2, width), (apart, 2), (2 * apart, height)]
    if [span[:2] for span in spans[:4]] != doubled or places[:4] != [1, 1, line, line]:
        return None
    one_kernel = not any((kernel[1], *kernel[3:])) and apart >= 2 * width
    taps = [span[0] for span in axes.k[1:]], _steps(axes.k[1:], side)
    if not one_kernel or taps != ([PHASE_TAPS] * 2, [line, 1]):
        return None
    count, moves = math.prod(span[1] for span in spans[4:]), [axes.k[0][1 + side], *places[4:]]
    around = _is_around(s.frame, side, (height, width), line, moves)
    if not around or not phases_pay(count, (height, width), channels, features[0][0]):
        return None
    batch = tuple((n, *((0, x) if side else (x, 0)), c) for c, n, x, _ in spans[4:])
    phases, all_places = (kernel[2], kernel[0]), ((height, line), (width, 1))
    if side:
        return replace(s, n=height * width, axes=replace(axes, n=all_places), batch=batch,
                       a_strides=phases, c_strides=(s.c_strides[0], apart))  # fmt: skip
    return replace(s, m=height * width, axes=replace(axes, m=all_places), batch=batch,
                   b_strides=phases, c_strides=(apart, s.c_strides[1]))  # fmt: skip


def _is_of_images(s: GemmStep, axes: GemmAxes, side: int) -> bool:
    places, features = (axes.n, axes.m) if side else (axes.m, axes.n)
    if len(places) != 2 or len(features) != 1 or len(axes.k) != 3 or s.c_strides[side] != 1:
        return False
    (height, line), (width, _) = places
    (channels, *_), *taps = axes.k
    if _steps(places, 0) != [line, 1] or not _are_taps(taps, side, line):
        return False
    images = math.prod(span[0] for span in s.batch)
    one_kernel = not any(span[2 - side] for span in s.batch)
    moves = _steps([axes.k[0], *s.batch], side)
    pays = tiles_pay(images, (height, width), channels, features[0][0])
    return pays and one_kernel and _is_around(s.frame, side, (height, width), line, moves)


def _is_of_images_last(s: GemmStep, axes: GemmAxes, side: int) -> bool:
    places, features = (axes.n, axes.m) if side else (axes.m, axes.n)
    if len(places) not in (2, 3) or len(features) != 1 or s.c_strides[1 - side] != 1 or s.batch:
        return False
    *images, (height, line), (width, pixel) = places
    channels, window = s.k // TAPS**2, [(span[0], span[1 + side]) for span in axes.k]
    apart = [(TAPS, line), (TAPS, pixel), (channels, 1)]
    joined = [(TAPS, line), (TAPS * channels, 1)]
    if window != apart and (window != joined or pixel != channels):
        return False
    count = math.prod(span[0] for span in images)
    pays = tiles_pay(count, (height, width), channels, features[0][0])
    moves = _steps(images, 0)
    return pays and _is_around(s.frame, side, (height, width), line, moves, (pixel, channels))


def _is_of_kernel(s: GemmStep, axes: GemmAxes, side: int) -> bool:
    windows, features = (axes.n, axes.m) if side else (axes.m, axes.n)
    if len(windows) != 3 or len(features) != 1 or len(axes.k) not in (2, 3) or s.batch:
        return False
    *images, (height, *lines), (width, *steps) = axes.k
    line, (channels, *_) = lines[side], windows[0]
    if steps != [1, 1] or not _are_taps(windows[1:], 0, line):
        return False
    count = math.prod(span[0] for span in images)
    moves = [windows[0][1], *_steps(images, side)]
    pays = tiles_pay(count, (height, width), channels, features[0][0], PANEL)
    return pays and _is_around(s.frame, side, (height, width), line, moves)


def _is_of_kernel_last(s: GemmStep, axes: GemmAxes, side: int) -> bool:
    if [span[0] for span in s.batch] != [TAPS, TAPS] or len(axes.k) not in (2, 3):
        return False
    if len(axes.m) != 1 or len(axes.n) != 1 or s.c_strides[1] != 1:
        return False
    (m, from_m), (n, from_n) = axes.m[0], axes.n[0]
    (*images, (height, *lines), (width, *pixels)), channels = axes.k, (m, n)[side]
    line, pixel = lines[side], pixels[side]
    fixed = _steps(s.batch, side) == [line, pixel] and not any(_steps(s.batch, 1 - side))
    if not fixed or from_m != 1 or from_n != 1:
        return False
    count, moves = math.prod(span[0] for span in images), _steps(images, side)
    pays = tiles_pay(count, (height, width), channels, (n, m)[side], 1)
    return pays and _is_around(s.frame, side, (height, width), line, moves, (pixel, channels))


def _steps(spans: Sequence[tuple[int, ...]], side: int) -> list[int]:
    """How far axes move in an operand."""
    return [span[1 + side] for span in spans]


def _are_taps(spans: Sequence[tuple[int, ...]], side: int, line: int) -> bool:
    """Whether axes are those of 3×3 neighbours in an operand with such lines."""
    return [span[0] for span in spans] == [TAPS, TAPS] and _steps(spans, side) == [line, 1]


def _is_around(
    frame: Frame | None,
    side: int,
    places: tuple[int, int],
    line: int,
    moves: list[int],
    pixel: tuple[int, int] = (1, 1),
) -> bool:
    """Whether a frame, if there is one, is that of the windows' planes, so far from each other, and
    no window goes on in another plane or line.

    places: how many windows lie in each direction; pixel: elements of one, and how many are read
    """
    if frame is None:
        return True
    if frame.operand != side or len(frame.axes) != 2:
        return False
    height, width = (sum(axis) for axis in frame.axes)
    whole, (step, read) = height * width, pixel
    if step < 1 or any(n % step for n in frame.axes[1]) or frame.start % step + read > step:
        return False
    if line != width or any(move < 0 or move % whole for move in moves):
        return False
    y, x = frame.start % whole // width, frame.start % width // step
    return y + places[0] + TAPS - 1 <= height and x + places[1] + TAPS - 1 <= width // step


def tiles_pay(
    images: int, size: tuple[int, int], channels: int, features: int, panel: int = 0
) -> bool:
    """Whether tiles take less time than sums of products do, for results of a size.

    panel: 0, or, of a kernel's gradient, how many channels are multiplied at a time

    >>> tiles_pay(32, (32, 32), 64, 64), tiles_pay(32, (32, 32), 3, 64)
    (True, False)
    >>> tiles_pay(1, (14, 14), 256, 256), tiles_pay(1, (7, 7), 512, 512)
    (True, False)
    >>> tiles_pay(32, (32, 32), 16, 16, 1), tiles_pay(32, (32, 32), 16, 16, 32)
    (True, False)
    """
    positions, tiles = size[0] * size[1], _tiles(size)
    direct = 9.0 * channels * features * positions
    products = float(POINTS * channels * features)
    if panel:
        products = (1 + PART_COST) * POINTS * -(-channels // panel) * panel * features
    ours = products + INPUT_COST * POINTS * channels + OUTPUT_COST * POINTS * features
    ours *= images * tiles * (OF_KERNEL if panel else 1.0)
    ours += 0.0 if panel else KERNEL_COST * channels * features
    direct *= images
    small = POINTS * channels * features <= MOST_KERNEL
    return small and direct >= LEAST_WORK and direct >= ours


def phases_pay(images: int, size: tuple[int, int], channels: int, features: int) -> bool:
    """Whether tiles take less time than sums of products do, for 4 phases of a size each.

    >>> phases_pay(16, (16, 16), 64, 64), phases_pay(2, (4, 4), 512, 256)
    (True, False)
    """
    places, pairs = images * size[0] * size[1], channels * features
    work, products = (
        PHASE_COUNT * PHASE_TAPS**2 * pairs * places,
        PHASE_COUNT * PHASE_POINTS * pairs,
    )
    if min(channels, *size) < 2 or products > MOST_KERNEL or work < LEAST_WORK:
        return False
    ours = products + INPUT_COST * POINTS * channels
    ours += OUTPUT_COST * PHASE_COUNT * PHASE_POINTS * features
    ours = ours * images * _tiles(size) + KERNEL_COST * pairs
    return work + JOIN_COST * features * places >= ours


def _tiles(size: tuple[int, int]) -> int:
    return -(-size[0] // 2) * -(-size[1] // 2)
