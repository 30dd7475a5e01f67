"""Grids, crops and patches of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.errors import ExportError
from funcgrad.export.onnx.read.graph import Node, integers


def _affine_grid(node: Node, theta: Any, size: Any) -> Any:
    n, _, *space = integers(size, "size")
    corners = node.get("align_corners", 0)
    axes = []
    for m in space:
        at = np.arange(m)
        axes.append(2 * at / max(m - 1, 1) - 1 if corners else (2 * at + 1) / m - 1)
    grid = np.meshgrid(*axes, indexing="ij")[::-1]
    flat = np.stack([*grid, np.ones(space)], -1).astype(theta.dtype).reshape(-1, len(space) + 1)
    out = fnp.matmul(flat, fnp.swapaxes(theta, -1, -2))
    return fnp.reshape(out, (n, *space, len(space)))


def _grid_sample(node: Node, x: Any, grid: Any) -> Any:
    mode, border = node.get("mode", "linear"), node.get("padding_mode", "zeros")
    if mode in ("cubic", "bicubic"):
        raise ExportError("from_onnx: a GridSample of mode cubic isn't read")
    corners, space = node.get("align_corners", 0), x.shape[2:]
    places = []
    for k, n in enumerate(space):
        at = grid[..., len(space) - 1 - k]  # the grid's last axis has x first
        at = (at + 1) / 2 * (n - 1) if corners else ((at + 1) * n - 1) / 2
        if border == "border":
            at = fnp.clip(at, 0, n - 1)
        elif border == "reflection":
            at = _reflected(at, n, corners)
        places.append(at)
    if mode == "nearest":
        return _picked(x, [fnp.round(at) for at in places]).astype(x.dtype)
    total: Any = 0
    lows = [fnp.floor(at) for at in places]
    for high in itertools.product((0, 1), repeat=len(space)):
        weight: Any = 1
        for at, low, h in zip(places, lows, high, strict=True):
            weight = weight * ((at - low) if h else (1 - at + low))
        chosen = [low + h for low, h in zip(lows, high, strict=True)]
        total = total + _picked(x, chosen) * fnp.expand_dims(weight, 1)
    return total.astype(x.dtype)


def _reflected(at: Any, n: int, corners: int) -> Any:
    low, high = (0, n - 1) if corners else (-0.5, n - 0.5)
    width = high - low
    if not width:
        return at * 0
    far = fnp.mod(fnp.abs(at - low), 2 * width)
    return fnp.clip(low + fnp.where(far > width, 2 * width - far, far), 0, n - 1)


def _picked(x: Any, places: Sequence[Any]) -> Any:
    """Elements (n, c, …) of images at whole places (n, …) an axis; 0 outside."""
    inside: Any = True
    flat: Any = 0
    for at, m in zip(places, x.shape[2:], strict=True):
        inside = inside & (at >= 0) & (at <= m - 1)
        flat = flat * m + fnp.clip(at, 0, m - 1).astype(np.int32)
    n, c = x.shape[:2]
    found = fnp.take_along_axis(
        fnp.reshape(x, (n, c, -1)), fnp.reshape(flat, (n, 1, -1)), axis=2
    )  # fmt: skip
    found = fnp.reshape(found, (n, c, *flat.shape[1:]))
    return fnp.where(fnp.expand_dims(inside, 1), found, 0)


def _center(node: Node, x: Any, shape: Any) -> Any:
    wanted = integers(shape, "shape")
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    for axis, m in zip(axes, wanted, strict=True):
        n = x.shape[axis]
        if m < n:
            start = (n - m) // 2
            x = x[(slice(None),) * axis + (slice(start, start + m),)]
        elif m > n:
            low = (m - n) // 2
            x = fnp.pad(x, [(low, m - n - low) if a == axis else (0, 0) for a in range(x.ndim)])
    return x


def _from_columns(node: Node, x: Any, image: Any, block: Any) -> Any:
    """Col2Im: patches added where they came from."""
    size, kernel = integers(image, "image_shape"), integers(block, "block_shape")
    rank = len(size)
    holes, strides = (node.get(name) or [1] * rank for name in ("dilations", "strides"))
    pads = node.get("pads") or [0] * 2 * rank
    n, _, count = x.shape
    wide = [s + pads[i] + pads[rank + i] for i, s in enumerate(size)]
    steps = [
        (w - (k - 1) * d - 1) // s + 1
        for w, k, d, s in zip(wide, kernel, holes, strides, strict=True)
    ]
    if math.prod(steps) != count:
        raise ExportError(f"from_onnx: {node} has {count} patches, its shapes say {steps}")
    parts = fnp.reshape(x, (n, -1, *kernel, *steps))
    total = fnp.zeros((n, parts.shape[1], *wide), x.dtype)
    for at in np.ndindex(*kernel):
        cut = tuple(
            slice(o * d, o * d + (m - 1) * s + 1, s)
            for o, d, m, s in zip(at, holes, steps, strides, strict=True)
        )
        total = total.at[(slice(None), slice(None), *cut)].add(
            parts[(slice(None), slice(None), *at)]
        )
    inner = tuple(slice(pads[i], pads[i] + s) for i, s in enumerate(size))
    return total[(slice(None), slice(None), *inner)]


def _unpool(node: Node, x: Any, places: Any, shape: Any = None) -> Any:
    """MaxUnpool: elements at their places in the tensor that was pooled, zeros elsewhere."""
    rank = x.ndim - 2
    kernel = node.get("kernel_shape")
    strides, pads = node.get("strides") or [1] * rank, node.get("pads") or [0] * 2 * rank
    own = [
        (n - 1) * s - pads[i] - pads[rank + i] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    whole = (*x.shape[:2], *own)
    flat = fnp.zeros(math.prod(whole), x.dtype).at[fnp.reshape(places, -1)].set(x.reshape(-1))
    out = fnp.reshape(flat, whole)
    if shape is None:
        return out
    wanted = integers(shape, "output_shape")
    return fnp.pad(out, [(0, m - n) for n, m in zip(whole, wanted, strict=True)])


RULES: dict[str, Callable] = {
    "AffineGrid": _affine_grid, "CenterCropPad": _center, "Col2Im": _from_columns,
    "GridSample": _grid_sample, "MaxUnpool": _unpool,
}  # fmt: skip
