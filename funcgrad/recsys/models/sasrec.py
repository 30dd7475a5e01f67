"""SASRec: the next item of a sequence, by causal self-attention over the items before it.

Kang and McAuley, "Self-attentive sequential recommendation", 2018; blocks norm first. Item 0 is
padding, in front of short sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import nn, random
from funcgrad.errors import ShapeError


@dataclass(frozen=True)
class SASRecConfig:
    """length: of sequences; dim: of the items' table; heads, blocks: of attention.

    >>> from funcgrad.recsys import models
    >>> models.SASRecConfig(length=20).dim
    32
    """

    length: int = 50
    dim: int = 32
    heads: int = 2
    blocks: int = 2


def sasrec_init(key: Any, cfg: SASRecConfig) -> dict[str, Any]:
    """The dense parameters.

    >>> from funcgrad.recsys import models
    >>> len(models.sasrec_init(random.key(0), models.SASRecConfig())["blocks"])
    2
    """
    if cfg.dim % cfg.heads:
        raise ShapeError(
            f"recsys.models.sasrec_init: {cfg.heads} heads can't share {cfg.dim} columns"
        )
    keys = iter(random.split(key, 1 + 4 * cfg.blocks))
    d = cfg.dim

    def normal(*shape: int) -> Any:
        return 0.02 * random.normal(next(keys), shape)

    return {
        "positions": normal(cfg.length, d),
        "blocks": [
            {
                "norm1": fnp.ones(d), "qkv": normal(d, 3 * d), "out": normal(d, d),
                "norm2": fnp.ones(d), "up": normal(d, d), "up_bias": fnp.zeros(d),
                "down": normal(d, d), "down_bias": fnp.zeros(d),
            }
            for _ in range(cfg.blocks)
        ],
        "norm": fnp.ones(d),
    }  # fmt: skip


def sasrec(params: Mapping[str, Any], rows: Any, ids: Any, cfg: SASRecConfig) -> Any:
    """(batch, length, dim): for each place what the next item's row should be like.

    rows: (batch, length, dim), those of ids (batch, length); ids of 0 are padding.

    >>> from funcgrad.recsys import models
    >>> cfg = models.SASRecConfig(length=3, dim=4)
    >>> params = models.sasrec_init(random.key(0), cfg)
    >>> models.sasrec(params, fnp.ones((2, 3, 4)), fnp.array([[0, 1, 2], [1, 1, 2]]), cfg).shape
    (2, 3, 4)
    """
    if rows.shape != (*ids.shape, cfg.dim) or ids.shape[1:] != (cfg.length,):
        raise ShapeError(
            f"recsys.models.sasrec: need rows (batch, {cfg.length}, {cfg.dim}) of ids (batch, "
            f"{cfg.length}), got {rows.shape} and {ids.shape}"
        )
    b, t, d = rows.shape
    there = ids != 0
    # A place of padding sees itself, so that its softmax has something to sum.
    seen = there[:, None, None, :] | fnp.eye(t, dtype=bool)
    x = fnp.where(there[..., None], rows * d**0.5 + params["positions"], 0)
    for p in params["blocks"]:
        q, k, v = fnp.split(nn.standardize(x) * p["norm1"] @ p["qkv"], 3, axis=-1)
        split = (b, t, cfg.heads, d // cfg.heads)
        mixed = nn.dot_product_attention(
            q.reshape(split), k.reshape(split), v.reshape(split), mask=seen, is_causal=True
        )
        x = x + mixed.reshape(b, t, d) @ p["out"]
        hidden = nn.relu(nn.standardize(x) * p["norm2"] @ p["up"] + p["up_bias"])
        x = x + hidden @ p["down"] + p["down_bias"]
        x = fnp.where(there[..., None], x, 0)
    return nn.standardize(x) * params["norm"]


def sasrec_loss(states: Any, positive: Any, negative: Any, targets: Any) -> Any:
    """The mean binary cross entropy of the next items and of others, where there is a next item.

    states: what `sasrec` gives; positive, negative: (batch, length, dim) rows of the next items and
    of random ones; targets: (batch, length) the next items, 0 for none.

    >>> from funcgrad.recsys import models
    >>> x = fnp.zeros((1, 2, 4))
    >>> print(f"{models.sasrec_loss(x, x, x, fnp.array([[1, 0]])):.4f}")
    1.3863
    """
    good, bad = fnp.sum(states * positive, axis=-1), fnp.sum(states * negative, axis=-1)
    losses = nn.softplus(-good) + nn.softplus(bad)
    weights = (targets != 0).astype(losses.dtype)
    return fnp.sum(losses * weights) / fnp.maximum(fnp.sum(weights), 1)
