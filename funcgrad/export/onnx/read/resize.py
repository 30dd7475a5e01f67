"""Resizing: along each axis, sums of a few elements, whose places and weights are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.graph import Node, integers, known


def _resize(node: Node, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    factors, new = _sizes(node, [x.shape[a] for a in axes], scales, sizes)
    how = node.get("coordinate_transformation_mode", "half_pixel")
    region = [0.0] * len(axes) + [1.0] * len(axes)
    if how == "tf_crop_and_resize":
        region = [float(v) for v in known(roi, "roi")]
    outside: Any = False
    for i, (axis, factor, m) in enumerate(zip(axes, factors, new, strict=True)):
        n = x.shape[axis]
        part = region[i], region[len(axes) + i]
        if how != "tf_crop_and_resize" and factor == 1 and m == n:
            continue
        place = _places(how, n, m, factor, part)
        line = [-1 if k == axis else 1 for k in range(x.ndim)]
        x = _summed(node, x, axis, place, factor)
        if how == "tf_crop_and_resize":
            outside = outside | ((place < 0) | (place > n - 1)).reshape(line)
    if outside is not False:
        x = fnp.where(outside, np.asarray(node.get("extrapolation_value", 0.0), x.dtype), x)
    return x


def _sizes(node: Node, old: Sequence[int], scales: Any, sizes: Any) -> tuple[list, list[int]]:
    """By how much each axis grows, and its size then."""
    if scales is not None and np.size(scales):
        factors = [float(v) for v in known(scales, "scales")]
        return factors, [math.floor(n * f) for n, f in zip(old, factors, strict=True)]
    new = integers(sizes, "sizes")
    factors = [m / n for m, n in zip(new, old, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        one = (min if policy == "not_larger" else max)(factors)
        return [one] * len(old), [int(n * one + 0.5) for n in old]
    return factors, new


def _places(how: str, n: int, m: int, factor: float, region: tuple[float, float]) -> np.ndarray:
    """Where each of m elements lies among n."""
    at, whole = np.arange(m, dtype=np.float64), factor * n
    if how == "asymmetric":
        return at / factor
    if how == "align_corners":
        return at * (n - 1) / (whole - 1) if whole > 1 else 0 * at
    if how == "pytorch_half_pixel" and m <= 1:
        return 0 * at
    if how == "half_pixel_symmetric":
        return n / 2 * (1 - m / whole) + (at + 0.5) / factor - 0.5
    if how == "tf_crop_and_resize":
        start, end = region
        if m == 1:
            return 0 * at + (start + end) * (n - 1) / 2
        return start * (n - 1) + at * (end - start) * (n - 1) / (m - 1)
    return (at + 0.5) / factor - 0.5


def _summed(node: Node, x: Any, axis: int, place: np.ndarray, factor: float) -> Any:
    """x with an axis whose elements lie at these places of the old one."""
    n, mode = x.shape[axis], node.get("mode", "nearest")
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(place - 0.5), "round_prefer_ceil": np.floor(place + 0.5),
            "floor": np.floor(place), "ceil": np.ceil(place),
        }[node.get("nearest_mode", "round_prefer_floor")]  # fmt: skip
        return fnp.take(x, np.clip(rounded, 0, n - 1).astype(np.int64), axis=axis)
    scale = min(factor, 1.0) if node.get("antialias", 0) else 1.0
    reach, weight = (2, _cubic(node)) if mode == "cubic" else (1, _hat)
    first = math.floor(-reach / scale) + 1
    offsets = np.arange(first, 2 - first)
    low = np.floor(place).astype(np.int64)
    taps = low[:, None] + offsets
    weights = weight((taps - place[:, None]) * scale)
    if node.get("exclude_outside", 0):
        weights = np.where((taps >= 0) & (taps < n), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    line = [-1 if i == axis else 1 for i in range(x.ndim)]
    total: Any = 0
    for k in range(len(offsets)):
        some = fnp.take(x, np.clip(taps[:, k], 0, n - 1), axis=axis)
        total = total + some * weights[:, k].reshape(line).astype(np.float32)
    return total.astype(x.dtype)


def _hat(x: np.ndarray) -> np.ndarray:
    return np.clip(1 - np.abs(x), 0, 1)


def _cubic(node: Node) -> Callable[[np.ndarray], np.ndarray]:
    """Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    a = node.get("cubic_coeff_a", -0.75)

    def weight(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return weight


RULES: dict[str, Callable] = {"Resize": _resize}
