"""Which convolutions are multiplied by tiles: Winograd's F(2×2, 3×3) for windows of 3×3.

A tile, 2×2 results, takes 16 multiplications a channel and feature instead of 36, and additions for
what it reaches and for its results, which pay if there are enough features and channels.
Of convolutions that double an image, by a kernel of 4×4, each result has a window of 2×2: those in
even or odd lines and columns, the 4 phases, take 9 of the 16 points each, which are 36 for 64.
Of int8, both operands are whole numbers that int16 holds, and sums are exact in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from funcgrad.core.record import replace

if TYPE_CHECKING:
    from funcgrad.backends.program import Convolution, Frame, GemmAxes, GemmStep, Windows

IMAGES, KERNEL, IMAGES_LAST, KERNEL_LAST, PHASES, BYTES_LAST = 1, 2, 3, 4, 5, 6
TAPS, POINTS = 3, 16
PHASE_COUNT, PHASE_TAPS, PHASE_POINTS = 4, 2, 9
TILED = (("float32", "float32"), ("float64", "float64"), ("int8", "int32"))
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
# The same of int8, beside multiplications of pairs; what channels are a multiple of, and how many
# there are at most: 4 times their sums are within int32.
BYTES_INPUT, BYTES_OUTPUT, BYTES_KERNEL = 5.0, 9.0, 600.0
CHANNELS, MOST_CHANNELS = 32, 3616
# What joining the results of phases takes for a place and a feature, if each is a product.
JOIN_COST = 300.0


def tiles_of(s: GemmStep) -> tuple[int, int]:
    """The form that a product by tiles has, and which operand has the windows: 1: a, 2: b.

    IMAGES: of windows and a kernel; KERNEL: of windows and the gradient of their results, with
    features before places in both. IMAGES_LAST, KERNEL_LAST: the same with features after
    places. BYTES_LAST: IMAGES_LAST of int8. PHASES: of images and a kernel for 4 phases, as
    `one_phase` knows. 0, 0 for other products, and where tiles don't pay.

    >>> import numpy as np
    >>> from funcgrad.backends.program import Convolution, GemmAxes, GemmStep, Ref, Windows
    >>> f32, ref, rows, ones = np.dtype("float32"), Ref("arena"), (1024, 1), (1, 1)
    >>> axes = GemmAxes(((64, 576),), ((32, 34), (32, 1)), ((64, 9, 1156), (3, 3, 34), (3, 1, 1)))
    >>> of = Convolution(32, 64, 64, (34, 34), (3, 3), (32, 32), ones, ((0, 0),) * 2, ones)
    >>> windows = Windows(1, (73984, 1156, 34, 1), (1, 2))
    >>> sizes = (64, 1024, 576, ref, ref, ref, rows, rows, rows, ((32, 0, 73984, 65536),))
    >>> tiles_of(GemmStep(f32, f32, *sizes, axes, convolution=of, windows=windows))
    (1, 2)
    """
    of, w, axes = s.convolution, s.windows, s.axes
    if of is None or w is None or axes is None or s.exact:
        return 0, 0
    if (s.dtype.name, s.out.name) not in TILED:
        return 0, 0
    whole = s.dtype.name == "int8"
    fits = (form for form in forms_of(of, w.steps, whole) if _serves(s, axes, of, w, form))
    form = next(fits, 0)
    return form, (w.operand + 1) * bool(form)


def forms_of(c: Convolution, steps: Sequence[int], int8: bool = False) -> list[int]:
    """The forms that pay for windows of an operand with such `program.Windows.steps`.

    >>> from funcgrad.backends.program import Convolution
    >>> ones, none = (1, 1), ((0, 0),) * 2
    >>> of = Convolution(32, 64, 64, (34, 34), (3, 3), (32, 32), ones, none, ones)
    >>> forms_of(of, (73984, 1156, 34, 1)), forms_of(of, (73984, 1, 2176, 64))
    ([1], [3])
    """
    if not c.strides == c.dilation == c.groups == (1, 1):
        return []
    image, channel, _, pixel = steps
    if int8:
        fits = not c.phases and c.taps == (TAPS, TAPS) and channel == 1
        return [BYTES_LAST] * (fits and bytes_pay(*sizes_of(c, BYTES_LAST)))
    if c.phases:
        pays = c.taps == (PHASE_TAPS,) * 2 and phases_pay(*sizes_of(c, PHASES))
        return [PHASES] * (pays and pixel == 1)
    first, window = pixel == 1, (TAPS, TAPS)
    forms = [IMAGES if first else IMAGES_LAST] * (c.taps == window and 1 in (pixel, channel))
    forms += [KERNEL if first else KERNEL_LAST] * (c.places == window and 1 in (pixel, image))
    panels = {KERNEL: PANEL, KERNEL_LAST: 1}
    return [form for form in forms if tiles_pay(*sizes_of(c, form), panels.get(form, 0))]


def sizes_of(c: Convolution, form: int) -> tuple[int, tuple[int, int], int, int]:
    """Images, the size of a result, channels and features of the convolution whose windows, or
    whose kernel's gradient, a product of a form computes.

    >>> from funcgrad.backends.program import Convolution
    >>> ones, none = (1, 1), ((0, 0),) * 2
    >>> sizes_of(Convolution(16, 8, 4, (6, 6), (4, 4), (3, 3), ones, none, ones), KERNEL)
    (8, (4, 4), 16, 4)
    """
    if form in (KERNEL, KERNEL_LAST):
        return c.channels, (c.taps[0], c.taps[1]), c.images, c.features
    return c.images, (c.places[0], c.places[1]), c.channels, c.features


def _serves(s: GemmStep, axes: GemmAxes, c: Convolution, w: Windows, form: int) -> bool:
    """Whether a product's result, and its other operand, lie as a form needs it, and the axes that
    its windows are summed over are in its order; and a frame is that of the images."""
    if form == PHASES:
        return _phase_of(s, axes, c, w) is not None
    side, (image, channel, line, pixel) = w.operand, w.steps
    _, size, channels, _ = sizes_of(c, form)
    moves, near = [image, channel], (1, 1)
    if form == IMAGES:
        serves = w.rows == (1, 2) and s.c_strides[side] == 1 and not c.last
    elif form in (IMAGES_LAST, BYTES_LAST):
        serves = w.rows[-2:] == (1, 2) and s.c_strides[1 - side] == 1 and not s.batch and c.last
        moves, near = [image], (pixel, channels)
    else:
        serves = not c.last or c.channels == 1
        if form == KERNEL:
            serves = serves and w.rows == (0, 1, 2) and axes.k[-1][2 - side] == 1 and not s.batch
        else:
            units = [*(n for _, n in (*axes.m, *axes.n)), s.c_strides[1]]
            serves = serves and w.rows == (0,) and units == [1, 1, 1]
            moves, near = [channel], (pixel, channels)
    return serves and _is_around(s.frame, side, size, line, moves, near)


def one_phase(s: GemmStep) -> GemmStep | None:
    """Of a product whose form is PHASES, that of one phase, with images as its batch. The kernel's
    strides, as its axes are elsewhere, are those from phase to phase of lines and of columns; the
    result's from place to place is that of its lines, in which places of all phases are.
    """
    of, w, axes = s.convolution, s.windows, s.axes
    if of is None or w is None or axes is None or tiles_of(s)[0] != PHASES:
        return None
    return _phase_of(s, axes, of, w)


def _phase_of(s: GemmStep, axes: GemmAxes, c: Convolution, w: Windows) -> GemmStep | None:
    """`one_phase` of a product for phases, if its result is lines in which they alternate."""
    side, (image, channel, line, _), (height, width) = w.operand, w.steps, c.places
    (of_image, apart, *near), kernels = w.results, (w.kernels[0], w.kernels[1])
    if near != [1, 2 * apart, 2] or apart < 2 * width:
        return None
    if not _is_around(s.frame, side, (height, width), line, [channel, image]):
        return None
    moves = (0, image, of_image) if side else (image, 0, of_image)
    batch = ((c.images, *moves),) if c.images > 1 else ()
    all_places = (height, line), (width, 1)
    if side:
        return replace(s, n=height * width, axes=replace(axes, n=all_places), batch=batch,
                       a_strides=kernels, c_strides=(s.c_strides[0], apart))  # fmt: skip
    return replace(s, m=height * width, axes=replace(axes, m=all_places), batch=batch,
                   b_strides=kernels, c_strides=(apart, s.c_strides[1]))  # fmt: skip


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
    images: int, size: tuple[int, int], channels: int, features: int, panel: int = 0,
    costs: tuple[float, float, float] = (INPUT_COST, OUTPUT_COST, KERNEL_COST),
) -> bool:  # fmt: skip
    """Whether tiles take less time than sums of products do, for results of a size.

    panel: 0, or, of a kernel's gradient, how many channels are multiplied at a time
    costs: what transforming takes, as INPUT_COST, OUTPUT_COST and KERNEL_COST say it

    >>> tiles_pay(32, (32, 32), 64, 64), tiles_pay(32, (32, 32), 3, 64)
    (True, False)
    >>> tiles_pay(1, (14, 14), 256, 256), tiles_pay(1, (7, 7), 512, 512)
    (True, False)
    >>> tiles_pay(32, (32, 32), 16, 16, 1), tiles_pay(32, (32, 32), 16, 16, 32)
    (True, False)
    """
    positions, tiles, (of_input, of_output, of_kernel) = size[0] * size[1], _tiles(size), costs
    direct = 9.0 * channels * features * positions
    products = float(POINTS * channels * features)
    if panel:
        products = (1 + PART_COST) * POINTS * -(-channels // panel) * panel * features
    ours = products + of_input * POINTS * channels + of_output * POINTS * features
    ours *= images * tiles * (OF_KERNEL if panel else 1.0)
    ours += 0.0 if panel else of_kernel * channels * features
    direct *= images
    small = min(size) > 1 and POINTS * channels * features <= MOST_KERNEL
    return small and direct >= LEAST_WORK and direct >= ours


def bytes_pay(images: int, size: tuple[int, int], channels: int, features: int) -> bool:
    """Whether tiles take less time for images and a kernel of int8, whose channels come last.

    >>> bytes_pay(32, (32, 32), 64, 64), bytes_pay(32, (32, 32), 48, 64)
    (True, False)
    """
    fits = channels % CHANNELS == 0 and channels <= MOST_CHANNELS
    costs = BYTES_INPUT, BYTES_OUTPUT, BYTES_KERNEL
    return fits and tiles_pay(images, size, channels, features, costs=costs)


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
