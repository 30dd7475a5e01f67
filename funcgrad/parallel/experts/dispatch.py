"""Tokens into bins of one size, an expert's or a device's each, and back.

A bin takes its tokens in their order; what has no place in it is dropped, and places without a
token hold zeros. Shapes are static, so bins can be sent to devices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp


class Bins(NamedTuple):
    """Where choices go. choice: int32 (bins, size), the one in each place; there: bool (bins,
    size), whether there is one; place: int32 (choices,), the place of each; kept: bool (choices,),
    whether it has one; counts: int32 (bins,), how many wanted to be in each."""

    choice: Any
    there: Any
    place: Any
    kept: Any
    counts: Any


def bins_of(key: Any, order: Any, bins: int, size: int) -> Bins:
    """Choices in bins: `key` (choices,) says which one, `order` (choices,) puts them in order.

    >>> from funcgrad.parallel.experts.dispatch import bins_of
    >>> key = fnp.array([1, 0, 1, 1])
    >>> found = bins_of(key, fnp.argsort(key), 2, 2)
    >>> found.kept.tolist(), found.counts.tolist()
    ([True, True, True, False], [1, 3])
    """
    counts = fnp.bincount(key, length=bins).astype(np.int32)
    starts = fnp.cumsum(counts) - counts
    places = fnp.arange(size, dtype=np.int32)
    there = places < counts[:, None]
    at = fnp.where(there, starts[:, None] + places, 0)
    position = fnp.argsort(order).astype(np.int32) - starts[key]
    kept = position < size
    place = fnp.where(kept, key * size + position, 0).astype(np.int32)
    return Bins(order[at], there, place, kept, counts)


def filled(bins: Bins, x: Any, top_k: int) -> Any:
    """The tokens x (T, D) of which each makes `top_k` choices, in their places (bins, size, D)."""
    return fnp.where(bins.there[..., None], x[bins.choice // top_k], 0)


def emptied(bins: Bins, y: Any, gates: Any) -> Any:
    """What came back in all places (bins, size, D), summed by gates (T, k) for each token, as
    float32 (T, D)."""
    rows = y.reshape(-1, y.shape[-1])[bins.place].astype(np.float32)
    weights = fnp.where(bins.kept.reshape(gates.shape), gates, 0)
    return fnp.einsum("tk,tkd->td", weights, rows.reshape(*gates.shape, -1))
