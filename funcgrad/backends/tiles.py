"""Which convolutions are multiplied by tiles: Winograd's F(2×2, 3×3) for windows of 3×3.

A tile, 2×2 results, takes 16 multiplications a channel and feature instead of 36, and additions for
what it reaches and for its results, which pay if there are enough features and channels.
"""

from __future__ import annotations

import math

from funcgrad.backends.program import Frame, GemmStep

TAPS, POINTS = 3, 16
LEAST_WORK = 1 << 19  # multiplications of sums of products
MOST_KERNEL = 1 << 23  # elements of the transformed kernel
# What transforming 16 tiles takes for a channel and for a feature, beside 16 multiplications for
# both: vectors are as many as tiles.
INPUT_COST, OUTPUT_COST = 7.0, 6.0
GAIN = 1.1


def windows_side(s: GemmStep) -> int:
    """Which operand of a product has windows that are multiplied by tiles: 1: a, 2: b, 0: none.

    >>> import numpy as np
    >>> from funcgrad.backends.program import GemmAxes, Ref
    >>> f32, ref, rows = np.dtype("float32"), Ref("arena"), (1024, 1)
    >>> axes = GemmAxes(((64, 576),), ((32, 34), (32, 1)), ((64, 9, 1156), (3, 3, 34), (3, 1, 1)))
    >>> sizes = (64, 1024, 576, ref, ref, ref, rows, rows, rows, ((32, 0, 73984, 65536),))
    >>> windows_side(GemmStep(f32, f32, *sizes, axes))
    2
    """
    axes, frame = s.axes, s.frame
    if axes is None or s.dtype.name not in ("float32", "float64") or s.out != s.dtype:
        return 0
    for side, (rows, cols, c) in enumerate(
        ((axes.m, axes.n, s.c_strides[0]), (axes.n, axes.m, s.c_strides[1]))
    ):
        fits = len(rows) == 2 and len(cols) == 1 and len(axes.k) == 3 and c == 1
        if not fits or [span[0] for span in axes.k[1:]] != [TAPS, TAPS]:
            continue
        (height, line), (width, step) = rows
        channels, plane = axes.k[0][0], axes.k[0][1 + side]
        steps = [span[1 + side] for span in axes.k[1:]]
        moves = [plane, *(span[1 + side] for span in s.batch)]
        one_kernel = not any(span[2 - side] for span in s.batch)
        if steps != [line, 1] or step != 1 or not one_kernel:
            continue
        if frame is not None and not _is_around(frame, side, line, moves):
            continue
        images = math.prod(span[0] for span in s.batch)
        if tiles_pay(images, (height, width), channels, cols[0][0]):
            return side + 1
    return 0


def _is_around(frame: Frame, side: int, line: int, moves: list[int]) -> bool:
    """Whether a frame is that of the windows' planes, which lie as given by their distances."""
    if frame.operand != side or len(frame.axes) != 2:
        return False
    height, width = (sum(axis) for axis in frame.axes)
    whole = height * width
    return line == width and not any(move < 0 or move % whole for move in moves)


def tiles_pay(images: int, size: tuple[int, int], channels: int, features: int) -> bool:
    """Whether tiles take less time than sums of products do, for results of a size.

    >>> tiles_pay(32, (32, 32), 64, 64), tiles_pay(32, (32, 32), 3, 64)
    (True, False)
    """
    positions, tiles = size[0] * size[1], -(-size[0] // 2) * -(-size[1] // 2)
    direct = 9.0 * channels * features * positions
    ours = POINTS * channels * features + INPUT_COST * POINTS * channels
    ours = (ours + OUTPUT_COST * POINTS * features) * tiles
    small = POINTS * channels * features <= MOST_KERNEL
    return small and images * direct >= LEAST_WORK and direct >= GAIN * ours
