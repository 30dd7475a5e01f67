"""The best items for users, found among a part of all items: an inverted file (IVF).

Items lie in lists, each around a center (k-means); a user's items are looked for in the lists whose
centers score best (Jégou et al., "Product quantization for nearest neighbor search", 2011, § V,
with items as they are). With all lists it is the same as `top_items`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, random
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.transforms.jit.jit import jit

NO_ITEM = -1


class ItemIndex(NamedTuple):
    """Items by lists. centers: (lists, width); items: (lists, room, width), each list padded; ids:
    (lists, room) int32 numbers of the items, -1 for padding."""

    centers: Any
    items: Any
    ids: Any


def item_index(key: Any, items: Any, lists: int, steps: int = 10) -> ItemIndex:
    """Items (n, width) in lists, by so many steps of k-means; for `search_items`.

    About √n lists are usual. Made where values are known, not in compiled programs.

    >>> from funcgrad.recsys import models
    >>> index = models.item_index(random.key(0), fnp.eye(4), 2)
    >>> index.centers.shape, sorted(i for i in index.ids.ravel().tolist() if i >= 0)
    ((2, 4), [0, 1, 2, 3])
    """
    name = "recsys.models.item_index"
    items = fnp.asarray(items)
    if items.ndim != 2:
        raise ShapeError(f"{name}: items must be (n, width), got {items.shape}")
    n = items.shape[0]
    if not 1 <= lists <= n or steps < 0:
        raise ArgumentError(
            f"{name}: lists must be 1 to {n} and steps 0 or more, got {lists} and {steps}"
        )
    centers = items[random.choice(key, n, (lists,), replace=False)]
    for _ in range(steps):
        centers = _moved(items, centers)
    nearest = np.asarray(_nearest(items, centers))
    order = np.argsort(nearest, kind="stable")
    counts = np.bincount(nearest, minlength=lists)
    place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.full((lists, int(counts.max())), NO_ITEM, np.int32)
    ids[nearest[order], place] = order
    kept = np.where((ids >= 0)[..., None], np.asarray(items)[ids], 0)
    return ItemIndex(centers, fnp.asarray(kept), fnp.asarray(ids))


@jit
def _nearest(items: Any, centers: Any) -> Any:
    """The center that is nearest to each item."""
    return fnp.argmax(items @ centers.T - fnp.sum(centers**2, axis=1) / 2, axis=1)


@jit
def _moved(items: Any, centers: Any) -> Any:
    """Centers in the middle of what is nearest to them; those that have nothing stay."""
    nearest = _nearest(items, centers)
    counts = fnp.zeros(centers.shape[0]).at[nearest].add(1.0)[:, None]
    wide = fnp.promote_types(items.dtype, "float32")
    sums = fnp.zeros(centers.shape, wide).at[nearest].add(items.astype(wide))
    return fnp.where(counts > 0, sums / fnp.maximum(counts, 1), centers)


def search_items(users: Any, index: ItemIndex, k: int, lists: int = 8) -> tuple[Any, Any]:
    """(users, k) scores and numbers of the best items of some lists for each user, best first.

    lists: in how many a user's items are looked for; where these have fewer than k items, the
    others are -1, with scores of -inf.

    >>> from funcgrad.recsys import models
    >>> index = models.item_index(random.key(0), fnp.eye(4), 2)
    >>> scores, found = models.search_items(fnp.array([[0.1, 3.0, 0.0, 2.0]]), index, 2, lists=2)
    >>> found.tolist()
    [[1, 3]]
    """
    name = "recsys.models.search_items"
    users, (count, room, width) = fnp.asarray(users), index.items.shape
    if users.ndim != 2 or users.shape[1] != width:
        raise ShapeError(f"{name}: users must be (users, {width}), got {users.shape}")
    if not 1 <= lists <= count or not 1 <= k <= lists * room:
        raise ArgumentError(
            f"{name}: lists must be 1 to {count} and k 1 to lists · {room}, got {lists} and {k}"
        )
    near = lax.top_k(users @ index.centers.T, lists)[1]
    dtype = fnp.promote_types(users.dtype, index.items.dtype)
    best = fnp.full((users.shape[0], k), -fnp.inf, dtype)
    found = fnp.full(best.shape, NO_ITEM, "int32")

    def look(carry: tuple, at: Any) -> tuple:
        best, found = carry
        ids = index.ids[at]
        scores = fnp.einsum("uw,urw->ur", users, index.items[at])
        scores = fnp.where(ids >= 0, scores, -fnp.inf)
        every = fnp.concatenate([best, scores], 1), fnp.concatenate([found, ids], 1)
        best, order = lax.top_k(every[0], k)
        return (best, fnp.take_along_axis(every[1], order, axis=1)), None

    return lax.scan(look, (best, found), near.T)[0]
