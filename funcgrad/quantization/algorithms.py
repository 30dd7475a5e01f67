"""Algorithms that choose codes and scales by more than a weight's range, as `algorithm` of a
configuration: f(w, x, axes, config) → the quantized w, where x are examples of what is multiplied.

GPTQ: Frantar et al., 2023. AWQ: Lin et al., 2024. SmoothQuant: Xiao et al., 2023. HQQ: Badri and
Shaji, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.core.array import raw
from funcgrad.errors import ArgumentError
from funcgrad.quantization import formats
from funcgrad.quantization.arrays import IntArray
from funcgrad.quantization.configs import Config, Int8Dynamic, Int8Static, WeightOnly
from funcgrad.quantization.encode import quantize_int


def _rows(w: Any, axes: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """A weight as a matrix (what is summed, results), and the order of axes that gave it."""
    x = np.asarray(raw(fnp.asarray(w))).astype(np.float32)
    summed = [x.ndim + a for a in axes]
    order = [*summed, *(i for i in range(x.ndim) if i not in summed)]
    n = int(np.prod([x.shape[i] for i in summed]))
    return x.transpose(order).reshape(n, -1), order


def _back(rows: np.ndarray, shape: Sequence[int], order: list[int]) -> np.ndarray:
    """A matrix of `_rows` as the weight."""
    return rows.reshape([shape[i] for i in order]).transpose(np.argsort(order))


def _along(factor: np.ndarray, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """A number for each element that is summed, as an array with the weight's axes."""
    sizes = [n if i - len(shape) in axes else 1 for i, n in enumerate(shape)]
    return fnp.asarray(factor.astype(np.float32).reshape(sizes))


def _weight_only(what: str, config: Config) -> WeightOnly:
    if not isinstance(config, WeightOnly):
        raise ArgumentError(
            f"{what} chooses integers of WeightOnly(bits, group), got {type(config).__name__}"
        )
    return config


@dataclass(frozen=True)
class GPTQ:
    """Each row of codes makes up for the rounding of those before, by the inputs' second moments H:
    with U the upper Cholesky factor of H⁻¹, e = (w − ŵ)/Uᵢᵢ and wⱼ −= Uᵢⱼ e. Scales of groups are
    taken of the updated rows. damping: what share of its mean is added to H's diagonal.
    """

    damping: float = 0.01

    def __call__(self, w: Any, x: np.ndarray, axes: tuple[int, ...], config: Config) -> IntArray:
        config = _weight_only("GPTQ", config)
        formats.check_group("GPTQ", w.shape, axes[-1], config.group, 8 // config.bits)
        rows, order = _rows(w, axes)
        k = len(rows)
        x = np.asarray(x, np.float64)
        h = x.T @ x
        h[np.diag_indices(k)] += self.damping * max(float(np.trace(h)) / k, 1e-12)
        inverse = np.linalg.inv(h)
        upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
        symmetric = config.bits == 8 if config.symmetric is None else config.symmetric
        low, high = formats.limits(config.bits, symmetric)
        left = rows.astype(np.float64)
        group = config.group or k
        scales, zeros, found = [], [], np.zeros_like(rows)
        for i in range(k):
            if i % group == 0:
                scale, zero = _range_of(left[i : i + group], config.bits, symmetric)
                scales.append(scale)
                zeros.append(zero)
            q = np.clip(np.round(left[i] / scale) + zero, low, high)
            found[i] = scale * (q - zero)
            error = (left[i] - found[i]) / upper[i, i]
            left[i + 1 :] -= upper[i, i + 1 :, None] * error
        shape = list(w.shape)
        for a in axes[:-1] if not config.group else ():
            shape[a] = 1
        shape[axes[-1]] = w.shape[axes[-1]] // config.group if config.group else 1
        parts = [_back(np.stack(p).astype(np.float32), shape, order) for p in (scales, zeros)]
        back = fnp.asarray(_back(found, w.shape, order))
        points = None if symmetric else fnp.asarray(parts[1]).astype("uint8")
        array = quantize_int(back, config.bits, config.group, axes, symmetric,
                             scale=fnp.asarray(parts[0]), zero=points)  # fmt: skip
        return replace(array, to=np.dtype(w.dtype).name)


def _range_of(rows: np.ndarray, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point for each column."""
    low, high = formats.limits(bits, symmetric)
    if symmetric:
        scale = np.abs(rows).max(0).astype(np.float32) / np.float32(high)
        return np.where(scale > 1e-38, scale, np.float32(1)), np.zeros_like(scale)
    ends = np.minimum(rows.min(0), 0), np.maximum(rows.max(0), 0)
    scale = ((ends[1] - ends[0]) / (high - low)).astype(np.float32)
    scale = np.where(scale > 1e-38, scale, np.float32(1))
    return scale, np.clip(low - np.round(ends[0].astype(np.float32) / scale), low, high)


@dataclass(frozen=True)
class AWQ:
    """The weight is multiplied along what is summed with s = mean|x|^r before it is rounded, and
    divided afterwards; of `grid` powers r the one with the least error of the product."""

    grid: int = 20

    def __call__(self, w: Any, x: np.ndarray, axes: tuple[int, ...], config: Config) -> IntArray:
        config = _weight_only("AWQ", config)
        rows, _ = _rows(w, axes)
        x = np.asarray(x, np.float32)
        size = np.maximum(np.abs(x).mean(0), 1e-8)
        want = x @ rows
        best: tuple[float, Any] = (np.inf, None)
        for i in range(self.grid):
            s = size ** (i / self.grid)
            s = s / np.sqrt(s.max() * s.min())
            factor = _along(s, w.shape, axes)
            array = quantize_int(w * factor, config.bits, config.group, axes, config.symmetric)
            array = replace(array, divide=factor, to=np.dtype(w.dtype).name)
            error = float(((x @ _rows(array.dense(), axes)[0] - want) ** 2).sum())
            if error < best[0]:
                best = error, array
        return best[1]


@dataclass(frozen=True)
class SmoothQuant:
    """What is multiplied is divided along what is summed by s = max|x|^α / max|w|^(1−α), and the
    weight multiplied: outliers of a few inputs go to the weight. For `Int8Dynamic`, `Int8Static`.
    """

    alpha: float = 0.5

    def __call__(self, w: Any, x: np.ndarray, axes: tuple[int, ...], config: Config) -> Any:
        if not isinstance(config, Int8Dynamic | Int8Static):
            raise ArgumentError(
                f"SmoothQuant is for Int8Dynamic and Int8Static, got {type(config).__name__}"
            )
        rows, _ = _rows(w, axes)
        tops = np.abs(np.asarray(x)).max(0), np.abs(rows).max(1)
        s = np.maximum(tops[0], 1e-5) ** self.alpha / np.maximum(tops[1], 1e-5) ** (1 - self.alpha)
        factor = _along(np.maximum(s, 1e-5), w.shape, axes)
        found = config.encode(w * factor, axes)
        assert isinstance(found, IntArray)
        return replace(found, divide=factor)


@dataclass(frozen=True)
class HQQ:
    """Zero points, as floats, for which the error's size to the power p is least: by turns e
    shrinks to shrink(w − ŵ) and z becomes the mean of q − (w − e)/s. Needs no examples' values."""

    p: float = 0.7
    beta: float = 10.0
    steps: int = 20

    def __call__(self, w: Any, x: np.ndarray, axes: tuple[int, ...], config: Config) -> IntArray:
        config = _weight_only("HQQ", config)
        array = quantize_int(w, config.bits, config.group, axes, False)
        axis, group = array.axis, array.group
        values = fnp.asarray(w).astype("float32")
        v, s, z = formats.grouped(values, axis, group, array.scale, array.zero.astype("float32"))
        low, high = formats.limits(config.bits, False)
        mean = (axis,) if group else tuple(axes)
        beta, best = self.beta, (np.inf, z)
        for _ in range(self.steps):
            q = fnp.clip(fnp.round(v / s + z), low, high)
            difference = v - s * (q - z)
            size = fnp.abs(difference)
            error = float(fnp.mean(size**self.p))
            if error < best[0]:
                best = error, z
            shrunk = fnp.maximum(size - fnp.maximum(size, 1e-8) ** (self.p - 1) / beta, 0)
            e = fnp.sign(difference) * shrunk
            z = fnp.mean(q - (v - e) / s, axis=mean, keepdims=True)
            beta *= 1.01
        z = best[1]
        # With a zero point that is no integer, it is added before rounding.
        q = fnp.clip(fnp.round(v / s + z), low, high).astype("uint8")
        q = formats.join_groups(q, axis) if group else q
        z = fnp.squeeze(z, axis) if group else z
        return replace(array, codes=formats.pack(q, config.bits, axis), zero=z)
