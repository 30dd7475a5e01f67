"""What steps take of scratch memory, beside the arena: bands, tiles, copies with zeros around them,
attention.

The host function asks for bands and copies, products by tiles (`gemm.winograd*`) for what they
transform when they run; sizes here are the same, by plain numbers. Attention has a function that
says what its tasks will ask for. What else products pack is for
a core's caches, and isn't counted.
"""

from __future__ import annotations

import math

from funcgrad.backends.llvm.attention import functions as attention
from funcgrad.backends.llvm.gemm.kernels import LINES_SOON
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.gemm.steps import takes_frame
from funcgrad.backends.llvm.gemm.winograd import kernel_first as kernel_first
from funcgrad.backends.llvm.gemm.winograd import kernel_last as kernel_last
from funcgrad.backends.llvm.gemm.winograd import last as images_last
from funcgrad.backends.llvm.gemm.winograd import tiles as gemm_tiles
from funcgrad.backends.llvm.gemm.winograd.first import Winograd
from funcgrad.backends.llvm.gemm.winograd.last_bytes import WinogradBytes
from funcgrad.backends.llvm.gemm.winograd.phases import WinogradPhases
from funcgrad.backends.llvm.gemm.winograd.tiles_last import APART
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.llvm.rewrites.tiles import (
    BYTES_LAST,
    IMAGES,
    IMAGES_LAST,
    KERNEL,
    PHASES,
    POINTS,
    one_phase,
    sizes_of,
    tiles_of,
)
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.program import AttentionStep, Convolution, GemmStep, LoopStep, Program, Step
from funcgrad.core.source import Source


def scratch_of(program: Program) -> list[tuple[int, str, Source | None]]:
    """What the steps of a program that take scratch memory take: bytes, what for, and the user's
    line.

    >>> scratch_of(Program("f", (), (), (), 0))
    []
    """
    found = [(scratch_size(step), step, source) for step, source in program.beside]
    return [(size, _described(step), source) for size, step, source in found if size]


def scratch_size(step: Step) -> int:
    """The bytes that a step takes at most while it runs, with as many threads as there are now.

    >>> scratch_size(LoopStep(0, 1, (), parallel=True, band=4096))
    4096
    """
    if isinstance(step, LoopStep):
        return step.band * min(pool.num_threads(), step.length)
    if isinstance(step, AttentionStep):
        return attention.room(step)
    if not isinstance(step, GemmStep):
        return 0
    form, _ = tiles_of(step)
    called = one_phase(step) or step
    if form and called.convolution is not None:
        room = _Room(called, called.convolution, form)
        return room.elements() * room.size
    if step.frame is not None and not takes_frame(step):
        axes = math.prod(sum(axis) for axis in step.frame.axes)
        return step.frame.planes * axes * step.dtype.itemsize
    return 0


def _described(step: Step) -> str:
    """What a step needs scratch memory for."""
    if isinstance(step, AttentionStep):
        return f"tasks of {step.op}"
    if not isinstance(step, GemmStep):
        return "bands of rows"
    size = f"{step.dtype.name} {step.m}x{step.n}x{step.k}"
    return f"tiles of {size}" if tiles_of(step)[0] else f"a copy with zeros, for {size}"


class _Room:
    """What a product by tiles takes, in elements of `size` bytes."""

    def __init__(self, s: GemmStep, of: Convolution, form: int):
        target, self.form = default_target(), form
        self.images, (self.height, self.width), self.channels, self.features = sizes_of(of, form)
        self.way = WinogradPhases if form == PHASES else Winograd
        self.rows_of_c = s.m
        fmt = FORMATS[s.dtype.name]
        self.tile, self.size = Tile.of(target, fmt), fmt.acc_bytes
        share = gemm_tiles.CACHE_SHARE
        self.cache = target.caches.l2 * share[0] // share[1] // self.size
        self.threads = pool.num_threads()
        self.across = -(-self.width // 2)
        self.total = self.images * self.across * -(-self.height // 2)
        # Rows of the kernel of products where channels come last.
        self.rows = 8 if self.tile.rows >= 8 else 6

    def elements(self) -> int:
        """All of it."""
        if self.form in (IMAGES, PHASES):
            return self._images()
        if self.form == KERNEL:
            return self._kernel()
        last = self.form in (IMAGES_LAST, BYTES_LAST)
        return self._images_last() if last else self._kernel_last()

    def _images(self) -> int:
        tile, products = self.tile, self.way.products
        mine = self._mine(self.total // (self.threads * self.way.share))
        kernel = -(-self.features // tile.rows) * self._panel(tile.rows, self.channels) * products
        own = self._own(mine) * min(self.threads, -(-self.total // mine))
        return kernel + (self.channels + LINES_SOON) * 8 // self.size + own

    def _kernel(self) -> int:
        tile = self.tile
        mine = self._mine(8 * tile.lanes)
        least = kernel_first.LEAST_PART
        few = max(k for k in kernel_first.FEW if k == 1 or self.total >= k * least)
        cells = self.features * _up(self.channels, tile.cols) * POINTS
        most = min(kernel_first.MOST_SUMS // cells, kernel_first.MOST_PARTS)
        many = min(self.total // kernel_first.LONG_PART, most)
        parts = max(many // kernel_first.FEW[-1] * kernel_first.FEW[-1], few)
        parts = -(-self.total // _up(-(-self.total // parts), 2 * tile.lanes))
        packed = -(-self.channels // tile.cols) * self._panel(tile.cols, mine)
        points, lines = self._points(mine), self._lines(mine)
        if parts < self.threads:
            rows = -(-(self.channels + self.features) // kernel_first.ROWS)
            shared = max(lines * min(self.threads, rows), packed * min(self.threads, POINTS))
            return parts * cells + points + shared
        return parts * cells + (points + lines + packed) * self.threads

    def _images_last(self) -> int:
        tile, rows = self.tile, self.rows
        depth = self.channels // (WinogradBytes.along if self.form == BYTES_LAST else 1)
        row = _up(depth, tile.lanes) + _up(self.features, tile.lanes)
        mine = min(self.cache // POINTS // row, self.total // (self.threads * 4))
        mine = min(max(mine, images_last.LEAST * rows), images_last.MOST * rows) // rows * rows
        panels = -(-self.features // tile.cols) * self._panel(tile.cols, depth)
        own = (mine * row + 2 * APART) * POINTS + _up(self.features, tile.lanes)
        kernel = panels * POINTS + _up(self.channels, tile.lanes)
        return kernel + own * min(self.threads, -(-self.total // mine))

    def _kernel_last(self) -> int:
        lanes, side = self.tile.lanes, gemm_tiles.SIDE
        line = kernel_last.LINE // self.size
        rows = [-(-_up(max(_up(x, lanes), _up(x, self.rows)), line) // line)
                for x in (self.channels, self.features)]  # fmt: skip
        row = sum((count + 1 - count % 2) * line for count in rows)
        tall, wide = self.rows_of_c, self.channels + self.features - self.rows_of_c
        cells = _up(tall, self.rows) * _up(wide, lanes) * POINTS
        most = min(max(kernel_last.MOST_SUMS // cells, 1), kernel_last.MOST_PARTS)
        parts = min(max(self.total // kernel_last.LEAST_PART, 1), most)
        apiece = -(-self.total // parts)
        parts = -(-self.total // apiece)
        fits = min(max(self.cache // side // row, kernel_last.LEAST), kernel_last.MOST)
        mine = -(-apiece // -(-apiece // fits))
        tasks = parts * (side if parts < kernel_last.FEW_PARTS else 1)
        own = (mine * row + 2 * APART) * side * min(self.threads, tasks)
        return parts * cells + _up(max(self.channels, self.features), lanes) + own

    def _mine(self, most: int) -> int:
        """Tiles done at a time, where vectors are of tiles."""
        lanes = self.tile.lanes
        rows = self.channels * POINTS + self.features * self.way.products
        fits = min(self.cache // rows, most)
        return min(max(fits // (2 * lanes) * (2 * lanes), 2 * lanes), 8 * lanes)

    def _own(self, mine: int) -> int:
        """What a task transforms, where vectors are of tiles."""
        return self._points(mine) + self._lines(mine)

    def _points(self, mine: int) -> int:
        """The points of so many tiles."""
        lanes = self.tile.lanes
        room = mine + lanes
        points = (self.channels * room + lanes) * POINTS
        return points + (self.features * room + lanes) * self.way.products

    def _lines(self, mine: int) -> int:
        """The lines of a plane that so many tiles reach, or have results in."""
        return (mine + self.tile.lanes + self.across * 3) * self.way.lines_kept

    def _panel(self, width: int, k: int) -> int:
        return _up(_up(k, self.tile.lanes) * width + self.tile.lanes, 16)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
