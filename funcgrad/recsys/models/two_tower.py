"""Two towers: vectors of users and of items whose products are scores; retrieval of the best.

Items of other examples of a batch serve as negative ones, with scores corrected by how often they
are drawn (Yi et al., "Sampling-bias-corrected neural modeling for large corpus item
recommendations", 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import lax, nn, random
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.recsys.models.layers import mlp, mlp_init, stacked


@dataclass(frozen=True)
class TwoTowerConfig:
    """user, item: the features of each tower, with tables of `dim` columns; hidden: the sizes of
    its perceptron; width: of its vectors; temperature: scores are divided by it.

    >>> from funcgrad.recsys import models
    >>> models.TwoTowerConfig(("user",), ("item",)).width
    32
    """

    user: tuple[str, ...]
    item: tuple[str, ...]
    dim: int = 16
    hidden: tuple[int, ...] = (64,)
    width: int = 32
    temperature: float = 0.1


def two_tower_init(key: Any, cfg: TwoTowerConfig) -> dict[str, Any]:
    """The dense parameters of both towers.

    >>> from funcgrad.recsys import models
    >>> cfg = models.TwoTowerConfig(("user",), ("item",))
    >>> sorted(models.two_tower_init(random.key(0), cfg))
    ['item', 'user']
    """
    first, second = random.split(key)
    return {
        "user": mlp_init(first, [len(cfg.user) * cfg.dim, *cfg.hidden, cfg.width]),
        "item": mlp_init(second, [len(cfg.item) * cfg.dim, *cfg.hidden, cfg.width]),
    }


def two_tower(
    params: Mapping[str, Any], bags: Mapping[str, Any], cfg: TwoTowerConfig, tower: str
) -> Any:
    """(batch, width) vectors of length 1 of one tower, "user" or "item".

    >>> from funcgrad.recsys import models
    >>> cfg = models.TwoTowerConfig(("user",), ("item",), dim=4)
    >>> params = models.two_tower_init(random.key(0), cfg)
    >>> x = models.two_tower(params, {"user": fnp.ones((5, 4))}, cfg, "user")
    >>> x.shape, print(f"{fnp.linalg.norm(x[0]):.4f}")
    1.0000
    ((5, 32), None)
    """
    if tower not in ("user", "item"):
        raise ArgumentError(
            f'recsys.models.two_tower: tower must be "user" or "item", got {tower!r}'
        )
    keys = cfg.user if tower == "user" else cfg.item
    rows = stacked("recsys.models.two_tower", bags, keys, cfg.dim)
    x = mlp(params[tower], rows.reshape(rows.shape[0], -1))
    return x * lax.rsqrt(fnp.sum(x * x, axis=1, keepdims=True) + 1e-12)


def in_batch_softmax(
    users: Any, items: Any, ids: Any = None, log_frequency: Any = None, temperature: float = 0.1
) -> Any:
    """The mean cross entropy of each user's item among all items of the batch.

    users, items: (batch, width) vectors, of pairs; ids: (batch,) of the items, so that one that
    comes twice isn't a negative one of itself; log_frequency: (batch,) of the items, the logarithm
    of how often each is drawn, which is taken from its scores.

    >>> from funcgrad.recsys import models
    >>> x = fnp.eye(2)
    >>> print(f"{models.in_batch_softmax(x, x, temperature=1.0):.4f}")
    0.3133
    """
    if users.ndim != 2 or users.shape != items.shape:
        raise ShapeError(
            "recsys.models.in_batch_softmax: need users and items (batch, width), got "
            f"{users.shape} and {items.shape}"
        )
    scores = users @ items.T / temperature
    if log_frequency is not None:
        scores = scores - log_frequency
    if ids is not None:
        again = (ids[:, None] == ids) & ~fnp.eye(len(ids), dtype=bool)
        scores = fnp.where(again, -fnp.inf, scores)
    return -fnp.mean(fnp.diagonal(nn.log_softmax(scores)))


def sampled_softmax(
    users: Any,
    items: Any,
    sampled: Any,
    ids: Any = None,
    log_frequency: Any = None,
    temperature: float = 0.1,
) -> Any:
    """The mean cross entropy of each user's item among itself and sampled items.

    users, items: (batch, width) vectors, of pairs; sampled: (n, width), of items that were drawn
    for all; ids: those of the pairs' items (batch,) and of the sampled (n,), so that an item isn't
    a negative one of itself; log_frequency: likewise a pair of logarithms of how often an item is
    drawn, which are taken from scores (Bengio and Senécal, 2008).

    >>> from funcgrad.recsys import models
    >>> x, others = fnp.eye(2), fnp.zeros((3, 2))
    >>> print(f"{models.sampled_softmax(x, x, others, temperature=1.0):.4f}")
    0.7437
    """
    name = "recsys.models.sampled_softmax"
    if users.ndim != 2 or users.shape != items.shape or sampled.shape[1:] != users.shape[1:]:
        raise ShapeError(
            f"{name}: need users and items (batch, width) and sampled (n, width), got "
            f"{users.shape}, {items.shape} and {sampled.shape}"
        )
    own = fnp.sum(users * items, axis=1, keepdims=True) / temperature
    others = users @ sampled.T / temperature
    if log_frequency is not None:
        own, others = own - log_frequency[0][:, None], others - log_frequency[1]
    if ids is not None:
        others = fnp.where(ids[0][:, None] == ids[1], -fnp.inf, others)
    return -fnp.mean(nn.log_softmax(fnp.concatenate([own, others], 1))[:, 0])


def top_items(users: Any, items: Any, k: int, block: int = 65536) -> tuple[Any, Any]:
    """(users, k) scores and numbers of the best items for each user, best first.

    users: (users, width), items: (items, width) vectors; block: how many items are scored at once,
    so that memory is for as many scores a user.

    >>> from funcgrad.recsys import models
    >>> scores, found = models.top_items(fnp.array([[1.0, 0.0]]), fnp.eye(2), 1)
    >>> found
    Array([[0]], dtype=int32)
    """
    n = items.shape[0]
    if not 1 <= k <= n:
        raise ArgumentError(f"recsys.models.top_items: k must be 1 to {n}, got {k}")
    best, found = None, None
    for start in range(0, n, block):
        part = items[start : start + block]
        scores, at = lax.top_k(users @ part.T, min(k, part.shape[0]))
        at = at.astype(fnp.int32) + start
        if best is not None:
            scores, at = fnp.concatenate([best, scores], 1), fnp.concatenate([found, at], 1)
            scores, order = lax.top_k(scores, min(k, scores.shape[1]))
            at = fnp.take_along_axis(at, order, axis=1)
        best, found = scores, at
    return best, found
