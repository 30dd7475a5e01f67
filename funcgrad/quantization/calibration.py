"""Calibration: a function is run on example inputs, and what is multiplied with each of its weights
is kept.

Loops are performed turn by turn, so that each weight of a stack has examples of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core.array import raw
from funcgrad.errors import ArgumentError
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.calls import UNROLLED
from funcgrad.transforms.weights.follow import Seen, Watcher
from funcgrad.transforms.weights.leaves import named_leaves, with_leaves
from funcgrad.transforms.weights.products import Product, Rows
from funcgrad.transforms.weights.weight import Cut, Weight

MOST_ROWS = 4096  # of examples that are kept for a weight


@tree.register_dataclass
@dataclass(frozen=True)
class _Placed(Weight):
    """An array, and the place in its stack of each matrix."""

    array: Any
    place: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def dense(self) -> Any:
        return self.array

    def rows(self, use: Rows) -> Any:
        return use.take(self.array)

    def cut(self, axis: int, cut: Cut) -> Weight:
        place = cut(self.place, axis) if axis < self.place.ndim else self.place
        return _Placed(cut(self.array, axis), place)

    def stacked(self) -> bool:
        return self.place.ndim > 0


class Examples:
    """What was multiplied with the weights of a leaf: by place in the stack, a list of (rows, what
    is summed), or of a convolution's images, in float32."""

    def __init__(self) -> None:
        self.found: dict[int, list[np.ndarray]] = {}

    def add(self, places: np.ndarray, x: np.ndarray) -> None:
        """Keep rows, for all of these places."""
        for place in places.ravel():
            self.found.setdefault(int(place), []).append(x)

    def rows(self, place: int) -> np.ndarray:
        """The rows of a place, not too many of them."""
        rows = np.concatenate(self.found[place])
        return rows[:: -(-len(rows) // MOST_ROWS)]


class _Collector(Watcher):
    def __init__(self) -> None:
        self.found: dict[str, Examples] = {}

    def product(self, seen: Seen, use: Product, x: Any) -> None:
        if not isinstance(seen.weight, _Placed) or use.axes("batch"):
            return
        places = np.asarray(raw(seen.weight.place))
        if use.is_convolution:
            images = np.asarray(raw(fnp.asarray(x)), np.float32)
            self.found.setdefault(seen.name, Examples()).add(places, images)
            return
        spelling = use.spelling(fnp.asarray(x))
        parts = sorted(spelling.parts.items(), key=lambda item: (item[0].axis, -item[0].stride))
        summed = [c for _, c in parts if c in spelling.x]
        others = [c for c in spelling.x if c not in summed]
        order = [spelling.x.index(c) for c in (*others, *summed)]
        rows = np.asarray(raw(fnp.asarray(x)), np.float32).reshape(spelling.shape).transpose(order)
        n = int(np.prod([p.size for p, c in spelling.parts.items() if c in summed]))
        self.found.setdefault(seen.name, Examples()).add(places, rows.reshape(-1, n))


def batches(what: str, calibration: Any) -> list[tuple]:
    """The inputs of each call in calibration.

    >>> batches("quantize", [(1.0,), 2.0])
    [(1.0,), (2.0,)]
    """
    if not isinstance(calibration, Iterable) or hasattr(calibration, "shape"):
        raise ArgumentError(
            f"{what}: calibration must be a list of inputs, a tuple of arrays for each call of the "
            f"function, got {type(calibration).__name__}"
        )
    found = [x if isinstance(x, tuple) else (x,) for x in calibration]
    if not found:
        raise ArgumentError(
            f"{what}: calibration is empty; it must have inputs of one call at least"
        )
    return found


def observe(
    f: Callable, params: Any, stacks: Mapping[str, int], calls: Sequence[tuple]
) -> dict[str, Examples]:
    """What f multiplies with leaves of params in these calls; stacks: how many axes of each leaf
    are a stack's."""
    leaves = named_leaves(params)
    placed = {}
    for name, n in stacks.items():
        w = fnp.asarray(leaves[name])
        shape = w.shape[:n]
        place = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
        placed[name] = _Placed(w, fnp.asarray(place))
    collector = _Collector()
    run = with_weights(f, collector, UNROLLED, what="calibration")
    for inputs in calls:
        run(with_leaves(params, placed), *inputs)
    return collector.found
