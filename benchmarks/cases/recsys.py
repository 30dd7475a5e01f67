"""Recommenders: pooled lookups in many tables, and steps that train their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.case import Case
from funcgrad import recsys

DIM, MOST = 64, 20


def cases(full: bool) -> Iterator[Case]:
    """26 tables; rows are few enough for 2 GB, as a step's time doesn't depend on them."""
    tables, rows, batch = (26, 200_000, 2048) if full else (2, 30, 4)

    def inputs(rng: np.random.Generator) -> tuple:
        """Each feature has 1 to 20 ids a bag: as many for each bag in every run."""
        lengths = rng.integers(1, MOST + 1, batch)
        ids = [rng.integers(0, rows, lengths.sum(), np.int32) for _ in range(tables)]
        made = [rng.standard_normal((rows, DIM), np.float32) for _ in range(tables)]
        return made, ids, lengths.astype(np.int32)

    count = batch * (MOST + 1) / 2 * tables
    yield Case(
        "recsys",
        "embedding bags, 26 of 200000×64, batch 2048",
        inputs,
        _lookup,
        torch=_torch_lookup,
        torch_long=True,
        torch_compiles=False,
        reads=count * (DIM * 4 + 4),
        compared=("torch", "funcgrad"),
    )


def _lookup(lib: Any, tables: list, ids: list, lengths: Any) -> list:
    """JAX gathers rows and sums segments."""
    if lib.np.__name__.startswith("funcgrad"):
        return [
            recsys.embedding_bag(t, recsys.JaggedTensor.tree_unflatten(None, (i, lengths, None)))
            for t, i in zip(tables, ids, strict=True)
        ]
    bags = lib.np.repeat(
        lib.np.arange(lengths.shape[0]), lengths, total_repeat_length=ids[0].shape[0]
    )
    zeros = lib.np.zeros((lengths.shape[0], DIM), np.float32)
    return [zeros.at[bags].add(t[i]) for t, i in zip(tables, ids, strict=True)]


def _torch_lookup(t: Any, tables: list, ids: list, lengths: Any) -> list:
    starts = t.cumsum(lengths, 0) - lengths
    return [
        t.nn.functional.embedding_bag(i, x, starts, mode="sum")
        for x, i in zip(tables, ids, strict=True)
    ]
