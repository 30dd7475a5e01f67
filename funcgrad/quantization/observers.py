"""Observers: the range of numbers that a product gets, from those of calibration.

An observer is a frozen dataclass whose `range` maps a list of arrays, one a call, to (low, high).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from funcgrad.errors import ArgumentError


@dataclass(frozen=True)
class Observer:
    """The base of observers."""

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        """The range for the numbers that were seen, call by call."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(Observer):
    """The least and the greatest number."""

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        return float(min(x.min() for x in seen)), float(max(x.max() for x in seen))


@dataclass(frozen=True)
class EMA(Observer):
    """Averages of each call's least and greatest number, later calls weighing `rate` more."""

    rate: float = 0.01

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        low, high = float(seen[0].min()), float(seen[0].max())
        for x in seen[1:]:
            low += self.rate * (float(x.min()) - low)
            high += self.rate * (float(x.max()) - high)
        return low, high


@dataclass(frozen=True)
class Percentile(Observer):
    """The range of so many percent of the numbers, as many left out at either end."""

    percent: float = 99.99

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise ArgumentError(f"Percentile: percent must be in (0, 100], got {self.percent}")

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        rest = (100 - self.percent) / 2
        every = np.concatenate([x.ravel() for x in seen])
        low, high = np.percentile(every, [rest, 100 - rest])
        return float(low), float(high)


@dataclass(frozen=True)
class Histogram(Observer):
    """The part of [min, max] whose 8-bit codes have the least squared error, of a histogram."""

    bins: int = 2048

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        counts, edges = _histogram(seen, self.bins)
        centers = (edges[1:] + edges[:-1]) / 2
        best = (np.inf, edges[0], edges[-1])
        for share in np.linspace(0.2, 1, 81):
            low, high = min(edges[0] * share, 0.0), max(edges[-1] * share, 0.0)
            step = max((high - low) / 255, 1e-30)
            inside = np.clip(centers, low, high)
            rounded = low + np.round((inside - low) / step) * step
            # In a bin that is narrower than a step, errors of rounding are spread evenly.
            spread = step**2 / 12 * (inside == centers)
            error = float(counts @ np.maximum((centers - rounded) ** 2, spread))
            best = min(best, (error, low, high))
        return float(best[1]), float(best[2])


@dataclass(frozen=True)
class Entropy(Observer):
    """The threshold ±t whose 8-bit histogram tells least apart from the whole one, by the
    Kullback–Leibler divergence (Migacz, *8-bit inference with TensorRT*, 2017)."""

    bins: int = 2048
    levels: int = 128

    def range(self, seen: Sequence[np.ndarray]) -> tuple[float, float]:
        sizes = [np.abs(x) for x in seen]
        counts, edges = _histogram([*sizes, np.zeros(1)], self.bins)
        best, threshold = np.inf, edges[-1]
        for i in range(self.levels, self.bins + 1, 8):
            p = counts[:i].astype(np.float64)
            q = _merged(p, self.levels)
            p[-1] += counts[i:].sum()
            used = (p > 0) & (q > 0)
            if p.sum() == 0 or q.sum() == 0:
                continue
            missing = p[~used].sum() / p.sum()
            ps, qs = p[used] / p.sum(), q[used] / q.sum()
            divergence = float((ps * np.log(ps / qs)).sum()) + 10 * missing
            if divergence < best:
                best, threshold = divergence, edges[i]
        low = min(float(x.min()) for x in seen)
        return (-float(threshold) if low < 0 else 0.0), float(threshold)


def _histogram(seen: Sequence[np.ndarray], bins: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = min(float(x.min()) for x in seen), max(float(x.max()) for x in seen)
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # bins need a width
        high = low + max(abs(low), 1.0) * 1e-3
    counts = np.zeros(bins)
    for x in seen:
        found, edges = np.histogram(x.astype(np.float64), bins, (low, high))
        counts += found
    return counts, edges


def _merged(p: np.ndarray, levels: int) -> np.ndarray:
    """The histogram with as many levels, spread again over the bins that aren't empty."""
    q = np.zeros_like(p)
    for piece, out in zip(np.array_split(p, levels), np.array_split(q, levels), strict=True):
        full = piece > 0
        if full.any():
            out[full] = piece.sum() / full.sum()
    return q
