"""Operators that read or write at computed places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import numpy as fnp
from funcgrad.export.onnx.read.graph import Node, known


def _from_start(indices: Any, n: int) -> Any:
    """Indices that count from the end, from the start."""
    return fnp.where(indices < 0, indices + n, indices)


def _gather(node: Node, x: Any, indices: Any) -> Any:
    axis = node.get("axis", 0)
    return fnp.take(x, _from_start(indices, x.shape[axis]), axis=axis, mode="clip")


def _gather_elements(node: Node, x: Any, indices: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    at = _grid(indices, axis, x.shape[axis])
    return x[at]


def _grid(indices: Any, axis: int, n: int) -> tuple:
    """For each element of `indices` its place, but along an axis, where it says the place."""
    at = [
        fnp.reshape(fnp.arange(m), [-1 if i == d else 1 for i in range(indices.ndim)])
        for d, m in enumerate(indices.shape)
    ]
    at[axis] = _from_start(indices, n)
    return tuple(at)


def _vectors(x: Any, indices: Any, batch: int) -> tuple:
    """Index arrays of index vectors along the last axis, after so many axes that go along."""
    k = indices.shape[-1]
    at: list[Any] = [
        fnp.reshape(fnp.arange(n), [-1 if i == d else 1 for i in range(indices.ndim - 1)])
        for d, n in enumerate(x.shape[:batch])
    ]
    at += [_from_start(indices[..., i], x.shape[batch + i]) for i in range(k)]
    return tuple(at)


def _gather_nd(node: Node, x: Any, indices: Any) -> Any:
    return x[_vectors(x, indices, node.get("batch_dims", 0))]


def _scattered(x: Any, at: tuple, updates: Any, how: str) -> Any:
    place = fnp.asarray(x).at[at]
    change = {"none": place.set, "add": place.add, "mul": place.multiply, "max": place.max,
              "min": place.min}[how]  # fmt: skip
    return change(updates)


def _scatter_nd(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    return _scattered(x, _vectors(x, indices, 0), updates, node.get("reduction", "none"))


def _scatter_elements(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    axis = node.get("axis", 0) % x.ndim
    at = _grid(indices, axis, x.shape[axis])
    return _scattered(x, at, updates, node.get("reduction", "none"))


def _tensor_scatter(node: Node, cache: Any, update: Any, starts: Any = None) -> Any:
    axis = node.get("axis", -2) % cache.ndim
    n, m = cache.shape[axis], update.shape[axis]
    first = fnp.zeros(cache.shape[0], np.int64) if starts is None else fnp.asarray(starts)
    steps = first[:, None] + fnp.arange(m)[None, :]
    steps = steps % n if node.get("mode", "linear") == "circular" else steps
    y, u = fnp.moveaxis(fnp.asarray(cache), axis, 1), fnp.moveaxis(fnp.asarray(update), axis, 1)
    y = y.at[fnp.arange(cache.shape[0])[:, None], steps].set(u)
    return fnp.moveaxis(y, 1, axis)


def _nonzero(node: Node, x: Any) -> Any:
    return np.stack(np.nonzero(known(x, "which elements aren't zero"))).astype(np.int64)


def _compress(node: Node, x: Any, condition: Any) -> Any:
    mask = known(condition, "which elements are kept")
    return fnp.compress(mask, x, axis=node.get("axis"))


def _unique(node: Node, x: Any) -> Any:
    axis = node.get("axis")
    values, first, inverse, counts = np.unique(
        known(x, "which elements are equal"), True, True, True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return [values, *(v.astype(np.int64) for v in (first, inverse, counts))]


RULES: dict[str, Callable] = {
    "Compress": _compress, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "NonZero": _nonzero, "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd, "TensorScatter": _tensor_scatter, "Unique": _unique,
}  # fmt: skip
