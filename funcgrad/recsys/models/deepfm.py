"""DeepFM: a factorization machine and a perceptron over the same rows.

Guo et al., "DeepFM: a factorization-machine based neural network for CTR prediction", 2017. The
first column of each table is the linear term of its ids, the others are the factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import random
from funcgrad.recsys.models.layers import check_dense, mlp, mlp_init, stacked


@dataclass(frozen=True)
class DeepFMConfig:
    """features: the names of those with tables, of `columns` columns; dense: how many numbers there
    are beside; factors: of an id; hidden: sizes of the perceptron.

    >>> from funcgrad.recsys import models
    >>> models.DeepFMConfig(("user", "ad"), factors=8).columns
    9
    """

    features: tuple[str, ...]
    dense: int = 13
    factors: int = 16
    hidden: tuple[int, ...] = (64, 32)

    @property
    def columns(self) -> int:
        """How many columns the tables have."""
        return 1 + self.factors


def deepfm_init(key: Any, cfg: DeepFMConfig) -> dict[str, Any]:
    """The dense parameters.

    >>> from funcgrad.recsys import models
    >>> sorted(models.deepfm_init(random.key(0), models.DeepFMConfig(("ad",))))
    ['bias', 'deep', 'factors', 'linear']
    """
    first, second = random.split(key)
    inputs = (len(cfg.features) + cfg.dense) * cfg.factors
    return {
        "bias": fnp.zeros(()),
        "linear": fnp.zeros(cfg.dense),
        "factors": 0.01 * random.normal(first, (cfg.dense, cfg.factors)),
        "deep": mlp_init(second, [inputs, *cfg.hidden, 1]),
    }


def deepfm(
    params: Mapping[str, Any], bags: Mapping[str, Any], dense: Any, cfg: DeepFMConfig
) -> Any:
    """(batch,) logits, of bags (batch, cfg.columns) by feature and dense features.

    All pairs' products of factors are ½ (|Σ v|² - Σ |v|²), v being a feature's factors times its
    value.

    >>> from funcgrad.recsys import models
    >>> cfg = models.DeepFMConfig(("ad",), dense=3, factors=4)
    >>> params = models.deepfm_init(random.key(0), cfg)
    >>> models.deepfm(params, {"ad": fnp.ones((5, 5))}, fnp.ones((5, 3)), cfg).shape
    (5,)
    """
    check_dense("recsys.models.deepfm", dense, cfg.dense)
    rows = stacked("recsys.models.deepfm", bags, cfg.features, cfg.columns)
    v = fnp.concatenate([rows[..., 1:], dense[..., None] * params["factors"]], axis=1)
    linear = fnp.sum(rows[..., 0], axis=1) + dense @ params["linear"] + params["bias"]
    pairs = fnp.sum(fnp.sum(v, axis=1) ** 2 - fnp.sum(v**2, axis=1), axis=1) / 2
    return linear + pairs + mlp(params["deep"], v.reshape(v.shape[0], -1))[:, 0]
