"""DLRM: dense features through a perceptron, ids through tables, interactions, a perceptron.

Version 1 takes dot products of all pairs (Naumov et al., "Deep learning recommendation model for
personalization and recommendation systems", 2019). Version 2 takes low-rank cross layers (Wang et
al., "DCN V2", 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import random
from funcgrad.errors import ArgumentError
from funcgrad.recsys.models.layers import check_dense, mlp, mlp_init, stacked


@dataclass(frozen=True)
class DLRMConfig:
    """features: the names of those with tables; dense: how many numbers there are beside; dim: of
    the tables; bottom, top: hidden sizes of the perceptrons; cross_layers: how many, 0 for dot
    products; cross_rank: of their matrices.

    >>> from funcgrad.recsys import models
    >>> models.DLRMConfig(("user", "ad"), dense=3).interactions
    19
    """

    features: tuple[str, ...]
    dense: int = 13
    dim: int = 16
    bottom: tuple[int, ...] = (64, 32)
    top: tuple[int, ...] = (64, 32)
    cross_layers: int = 0
    cross_rank: int = 16

    @property
    def interactions(self) -> int:
        """How many inputs the upper perceptron has."""
        n = len(self.features) + 1
        return n * self.dim if self.cross_layers else self.dim + n * (n - 1) // 2


def dlrm_init(key: Any, cfg: DLRMConfig) -> dict[str, Any]:
    """The dense parameters.

    >>> from funcgrad.recsys import models
    >>> sorted(models.dlrm_init(random.key(0), models.DLRMConfig(("ad",))))
    ['bottom', 'cross', 'top']
    """
    if not cfg.features:
        raise ArgumentError("recsys.models.dlrm_init: the config has no features")
    first, second, third = random.split(key, 3)
    width = cfg.interactions
    cross = [
        {
            "down": random.normal(a, (width, cfg.cross_rank)) / np.sqrt(width),
            "up": random.normal(b, (cfg.cross_rank, width)) / np.sqrt(cfg.cross_rank),
            "bias": fnp.zeros(width),
        }
        for a, b in (random.split(k) for k in random.split(third, max(cfg.cross_layers, 1)))
    ]
    return {
        "bottom": mlp_init(first, [cfg.dense, *cfg.bottom, cfg.dim]),
        "cross": cross[: cfg.cross_layers],
        "top": mlp_init(second, [width, *cfg.top, 1]),
    }


def dlrm(params: Mapping[str, Any], bags: Mapping[str, Any], dense: Any, cfg: DLRMConfig) -> Any:
    """(batch,) logits, of bags (batch, dim) by feature and dense features (batch, cfg.dense).

    >>> from funcgrad.recsys import models
    >>> cfg = models.DLRMConfig(("user", "ad"), dense=3, dim=8)
    >>> params = models.dlrm_init(random.key(0), cfg)
    >>> bags = {"user": fnp.ones((5, 8)), "ad": fnp.ones((5, 8))}
    >>> models.dlrm(params, bags, fnp.ones((5, 3)), cfg).shape
    (5,)
    """
    check_dense("recsys.models.dlrm", dense, cfg.dense)
    x = mlp(params["bottom"], dense, last=True)
    rows = stacked("recsys.models.dlrm", bags, cfg.features, cfg.dim)
    together = fnp.concatenate([x[:, None], rows], axis=1)
    if cfg.cross_layers:
        first = together.reshape(together.shape[0], cfg.interactions)
        mixed = first
        for p in params["cross"]:
            mixed = first * (mixed @ p["down"] @ p["up"] + p["bias"]) + mixed
    else:
        products = together @ fnp.swapaxes(together, 1, 2)
        i, j = np.tril_indices(together.shape[1], -1)
        mixed = fnp.concatenate([x, products[:, i, j]], axis=1)
    return mlp(params["top"], mixed)[:, 0]
