"""Sorts, searches, and sums along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import Case, draw, integers, normal


def cases(full: bool) -> Iterator[Case]:
    """Arguments of equal keys differ between algorithms, so the keys are different."""
    case = partial(Case, "sorting")
    n = (1 << 20) if full else 50
    one = draw(normal(n))
    yield from _sorts(case, full, n, one)
    yield from _running(case, full, one)


def _sorts(case: Callable[..., Case], full: bool, n: int, one: Any) -> Iterator[Case]:
    distinct = draw(lambda rng: rng.permutation(n).astype(np.float32))
    matrix = draw(normal(1000, 1000) if full else normal(5, 8))
    yield case(
        "sort, 1M",
        one,
        lambda lib, x: lib.np.sort(x),
        torch=lambda t, x: t.sort(x).values,
        numpy=True,
    )
    yield case(
        "sort, 1M int32",
        draw(integers(-(1 << 31), (1 << 31) - 1, n)),
        lambda lib, x: lib.np.sort(x),
        torch=lambda t, x: t.sort(x).values,
        numpy=True,
    )
    yield case(
        "argsort, 1M",
        distinct,
        lambda lib, x: lib.np.argsort(x),
        torch=lambda t, x: t.argsort(x),
        numpy=True,
    )
    yield case(
        "sort rows, 1000×1000",
        matrix,
        lambda lib, x: lib.np.sort(x, axis=1),
        torch=lambda t, x: t.sort(x, 1).values,
        numpy=True,
    )
    yield case(
        "sort columns, 1000×1000",
        matrix,
        lambda lib, x: lib.np.sort(x, axis=0),
        torch=lambda t, x: t.sort(x, 0).values,
        numpy=True,
    )
    yield case(
        "top 8 of rows, 1000×1000",
        matrix,
        lambda lib, x: lib.lax.top_k(x, 8 if full else 3),
        torch=lambda t, x: t.topk(x, 8 if full else 3),
    )
    yield case(
        "median, 1M",
        one,
        lambda lib, x: lib.np.median(x),
        torch=lambda t, x: t.quantile(x, 0.5),
        numpy=True,
    )
    yield case(
        "searchsorted, 1M in 1M",
        draw(lambda rng: np.sort(normal(n)(rng)), normal(n)),
        lambda lib, x, y: lib.np.searchsorted(x, y),
        torch=lambda t, x, y: t.searchsorted(x, y),
        numpy=True,
    )


def _running(case: Callable[..., Case], full: bool, one: Any) -> Iterator[Case]:
    sums = partial(case, tolerance=1e-3, numpy=True)
    yield sums(
        "cumsum, 1M", one, lambda lib, x: lib.np.cumsum(x), torch=lambda t, x: t.cumsum(x, 0)
    )
    big = draw(normal(4096, 4096) if full else normal(5, 8))
    yield sums(
        "cumsum of rows, 4096²",
        big,
        lambda lib, x: lib.np.cumsum(x, axis=1),
        torch=lambda t, x: t.cumsum(x, 1),
    )
    yield sums(
        "cumsum of columns, 4096²",
        big,
        lambda lib, x: lib.np.cumsum(x, axis=0),
        torch=lambda t, x: t.cumsum(x, 0),
    )
    yield case(
        "cumulative maximum, 1M",
        one,
        lambda lib, x: lib.lax.cummax(x),
        torch=lambda t, x: t.cummax(x, 0).values,
        numpy=lambda x: np.maximum.accumulate(x),
    )
