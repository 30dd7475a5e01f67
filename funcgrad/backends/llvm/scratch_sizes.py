"""What steps take of scratch memory, beside the arena: bands, tiles, copies with zeros around them,
attention.

The host function asks for bands and copies, products by tiles (`gemm.winograd*`) for what they
transform when they run; sizes here are the same, by plain numbers. Attention has a function that
says what its tasks will ask for. What else products pack is for
a core's caches, and isn't counted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from funcgrad.backends.llvm.attention import functions as attention
from funcgrad.backends.llvm.gemm.kernels import LINES_SOON
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.gemm.steps import takes_frame
from funcgrad.backends.llvm.gemm.winograd import kernel_first as kernel_first
from funcgrad.backends.llvm.gemm.winograd import kernel_last as kernel_last
from funcgrad.backends.llvm.gemm.winograd import last as images_last
from funcgrad.backends.llvm.gemm.winograd import tiles as gemm_tiles
from funcgrad.backends.llvm.gemm.winograd.first import Winograd
from funcgrad.backends.llvm.gemm.winograd.phases import WinogradPhases
from funcgrad.backends.llvm.gemm.winograd.tiles_last import APART
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.llvm.rewrites.tiles import (
    IMAGES,
    IMAGES_LAST,
    KERNEL,
    PHASES,
    POINTS,
    TAPS,
    one_phase,
    tiles_of,
)
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.program import AttentionStep, GemmAxes, GemmStep, LoopStep, Program, Step
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
    form, side = tiles_of(step)
    called = one_phase(step) or step
    if form and called.axes is not None:
        return _Room(called, called.axes, form, side).elements() * step.dtype.itemsize
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


class _Sizes(NamedTuple):
    """Of a convolution whose windows, or gradients, a product multiplies."""

    images: int
    height: int
    width: int
    channels: int
    features: int


def _sizes(s: GemmStep, axes: GemmAxes, form: int, side: int) -> _Sizes:
    windows, others = (axes.n, axes.m) if side == 2 else (axes.m, axes.n)
    features, spans = others[0][0], [n for n, *_ in windows]
    if form in (IMAGES, PHASES):
        images = math.prod(n for n, *_ in s.batch[-2:])
        return _Sizes(images, spans[0], spans[1], axes.k[0][0], features)
    if form == IMAGES_LAST:
        count = math.prod(spans[:-2])
        return _Sizes(count, spans[-2], spans[-1], s.k // TAPS**2, features)
    *images_, height, width = (n for n, *_ in axes.k)
    return _Sizes(math.prod(images_), height, width, spans[0], features)


class _Room:
    """What a product by tiles takes, in elements."""

    def __init__(self, s: GemmStep, axes: GemmAxes, form: int, side: int):
        target = default_target()
        self.sizes, self.form = _sizes(s, axes, form, side), form
        self.way = WinogradPhases if form == PHASES else Winograd
        self.rows_of_c = s.m
        self.tile, self.size = Tile.of(target, FORMATS[s.dtype.name]), s.dtype.itemsize
        share = gemm_tiles.CACHE_SHARE
        self.cache = target.caches.l2 * share[0] // share[1] // self.size
        self.threads = pool.num_threads()
        self.across = -(-self.sizes.width // 2)
        self.total = self.sizes.images * self.across * -(-self.sizes.height // 2)
        # Rows of the kernel of products where channels come last.
        self.rows = 8 if self.tile.rows >= 8 else 6

    def elements(self) -> int:
        """All of it."""
        if self.form in (IMAGES, PHASES):
            return self._images()
        if self.form == KERNEL:
            return self._kernel()
        return self._images_last() if self.form == IMAGES_LAST else self._kernel_last()

    def _images(self) -> int:
        n, tile, products = self.sizes, self.tile, self.way.products
        mine = self._mine(self.total // (self.threads * self.way.share))
        kernel = -(-n.features // tile.rows) * self._panel(tile.rows, n.channels) * products
        own = self._own(mine) * min(self.threads, -(-self.total // mine))
        return kernel + (n.channels + LINES_SOON) * 8 // self.size + own

    def _kernel(self) -> int:
        n, tile = self.sizes, self.tile
        mine = self._mine(8 * tile.lanes)
        least = kernel_first.LEAST_PART
        few = max(k for k in kernel_first.FEW if k == 1 or self.total >= k * least)
        cells = n.features * _up(n.channels, tile.cols) * POINTS
        most = min(kernel_first.MOST_SUMS // cells, kernel_first.MOST_PARTS)
        many = min(self.total // kernel_first.LONG_PART, most)
        parts = max(many // kernel_first.FEW[-1] * kernel_first.FEW[-1], few)
        parts = -(-self.total // _up(-(-self.total // parts), 2 * tile.lanes))
        packed = -(-n.channels // tile.cols) * self._panel(tile.cols, mine)
        points, lines = self._points(mine), self._lines(mine)
        if parts < self.threads:
            rows = -(-(n.channels + n.features) // kernel_first.ROWS)
            shared = max(lines * min(self.threads, rows), packed * min(self.threads, POINTS))
            return parts * cells + points + shared
        return parts * cells + (points + lines + packed) * self.threads

    def _images_last(self) -> int:
        n, tile, rows = self.sizes, self.tile, self.rows
        row = _up(n.channels, tile.lanes) + _up(n.features, tile.lanes)
        mine = min(self.cache // POINTS // row, self.total // (self.threads * 4))
        mine = min(max(mine, images_last.LEAST * rows), images_last.MOST * rows) // rows * rows
        panels = -(-n.features // tile.cols) * self._panel(tile.cols, n.channels)
        own = (mine * row + 2 * APART) * POINTS + _up(n.features, tile.lanes)
        kernel = panels * POINTS + _up(n.channels, tile.lanes)
        return kernel + own * min(self.threads, -(-self.total // mine))

    def _kernel_last(self) -> int:
        n, lanes, side = self.sizes, self.tile.lanes, gemm_tiles.SIDE
        line = kernel_last.LINE // self.size
        rows = [-(-_up(max(_up(x, lanes), _up(x, self.rows)), line) // line)
                for x in (n.channels, n.features)]  # fmt: skip
        row = sum((count + 1 - count % 2) * line for count in rows)
        tall, wide = self.rows_of_c, n.channels + n.features - self.rows_of_c
        cells = _up(tall, self.rows) * _up(wide, lanes) * POINTS
        most = min(max(kernel_last.MOST_SUMS // cells, 1), kernel_last.MOST_PARTS)
        parts = min(max(self.total // kernel_last.LEAST_PART, 1), most)
        apiece = -(-self.total // parts)
        parts = -(-self.total // apiece)
        fits = min(max(self.cache // side // row, kernel_last.LEAST), kernel_last.MOST)
        mine = -(-apiece // -(-apiece // fits))
        tasks = parts * (side if parts < kernel_last.FEW_PARTS else 1)
        own = (mine * row + 2 * APART) * side * min(self.threads, tasks)
        return parts * cells + _up(max(n.channels, n.features), lanes) + own

    def _mine(self, most: int) -> int:
        """Tiles done at a time, where vectors are of tiles."""
        lanes, n = self.tile.lanes, self.sizes
        rows = n.channels * POINTS + n.features * self.way.products
        fits = min(self.cache // rows, most)
        return min(max(fits // (2 * lanes) * (2 * lanes), 2 * lanes), 8 * lanes)

    def _own(self, mine: int) -> int:
        """What a task transforms, where vectors are of tiles."""
        return self._points(mine) + self._lines(mine)

    def _points(self, mine: int) -> int:
        """The points of so many tiles."""
        lanes, n = self.tile.lanes, self.sizes
        room = mine + lanes
        points = (n.channels * room + lanes) * POINTS
        return points + (n.features * room + lanes) * self.way.products

    def _lines(self, mine: int) -> int:
        """The lines of a plane that so many tiles reach, or have results in."""
        return (mine + self.tile.lanes + self.across * 3) * self.way.lines_kept

    def _panel(self, width: int, k: int) -> int:
        return _up(_up(k, self.tile.lanes) * width + self.tile.lanes, 16)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
