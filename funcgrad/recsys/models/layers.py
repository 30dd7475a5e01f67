"""What the models are made of: tables to begin with, perceptrons, bags side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import nn, random
from funcgrad.errors import ArgumentError, ShapeError


def init_tables(key: Any, tables: Mapping[str, tuple[int, int]], dtype: Any = "float32") -> dict:
    """Tables (rows, dim) by name, uniform within ±1/√rows as DLRM's are.

    >>> from funcgrad.recsys import models
    >>> models.init_tables(random.key(0), {"ad": (100, 8)})["ad"].shape
    (100, 8)
    """
    found = {}
    for k, (name, (rows, dim)) in zip(random.split(key, len(tables)), tables.items(), strict=True):
        bound = 1 / math.sqrt(rows)
        found[name] = random.uniform(k, (rows, dim), minval=-bound, maxval=bound).astype(dtype)
    return found


def mlp_init(key: Any, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Layers from sizes[0] inputs to sizes[-1] outputs: weights of variance 2 / (inputs + outputs).

    >>> from funcgrad.recsys import models
    >>> [layer["w"].shape for layer in models.mlp_init(random.key(0), [3, 5, 1])]
    [(3, 5), (5, 1)]
    """
    layers = []
    for k, n, m in zip(random.split(key, len(sizes) - 1), sizes, sizes[1:], strict=False):
        layers.append({"w": math.sqrt(2 / (n + m)) * random.normal(k, (n, m)), "b": fnp.zeros(m)})
    return layers


def mlp(layers: Sequence[Mapping[str, Any]], x: Any, last: bool = False) -> Any:
    """A perceptron with ReLU between its layers, and with `last` behind them, too.

    >>> from funcgrad.recsys import models
    >>> models.mlp(models.mlp_init(random.key(0), [3, 5, 1]), fnp.ones((2, 3))).shape
    (2, 1)
    """
    for i, layer in enumerate(layers):
        x = x @ layer["w"] + layer["b"]
        if last or i < len(layers) - 1:
            x = nn.relu(x)
    return x


def stacked(name: str, bags: Mapping[str, Any], keys: Sequence[str], dim: int) -> Any:
    """(batch, features, dim): the bags of the features that a config names, in its order."""
    for key in keys:
        if key not in bags:
            raise ArgumentError(f"{name}: there is no feature {key!r} among {sorted(bags)}")
        if bags[key].ndim != 2 or bags[key].shape[1] != dim:
            raise ShapeError(
                f"{name}: feature {key!r} must be (batch, {dim}), got {bags[key].shape}"
            )
    return fnp.stack([bags[key] for key in keys], axis=1)


def check_dense(name: str, x: Any, width: int) -> None:
    """Dense features are (batch, width)."""
    if x.ndim != 2 or x.shape[1] != width:
        raise ShapeError(f"{name}: dense features must be (batch, {width}), got {x.shape}")
