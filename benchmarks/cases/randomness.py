"""Random numbers. funcgrad and JAX draw the same bits; the others have generators of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """Distributions, a dropout mask, a permutation, keys."""
    n = (1 << 20) if full else 50
    yield _random(
        "uniform, 1M",
        lambda lib, key: lib.random.uniform(key, (n,)),
        lambda t: t.rand(n),
        lambda rng: rng.random(n, np.float32),
    )
    yield _random(
        "normal, 1M",
        lambda lib, key: lib.random.normal(key, (n,)),
        lambda t: t.randn(n),
        lambda rng: rng.standard_normal(n, np.float32),
    )
    yield _random(
        "integers, 1M",
        lambda lib, key: lib.random.randint(key, (n,), 0, 1000),
        lambda t: t.randint(0, 1000, (n,), dtype=t.int32),
        lambda rng: rng.integers(0, 1000, n, np.int32),
    )
    yield _random(
        "exponential, 1M",
        lambda lib, key: lib.random.exponential(key, (n,)),
        lambda t: t.empty(n).exponential_(),
        lambda rng: rng.standard_exponential(n, np.float32),
    )
    yield _random(
        "gamma, 100000",
        lambda lib, key: lib.random.gamma(key, 2.0, (n // 10,)),
        None,
        lambda rng: rng.standard_gamma(2.0, n // 10, np.float32),
        tolerance=1e-3,
    )
    yield _random(
        "permutation of 1M",
        lambda lib, key: lib.random.permutation(key, n),
        lambda t: t.randperm(n),
        lambda rng: rng.permutation(n),
    )
    yield _random(
        "1000 keys", lambda lib, key: lib.random.bits(lib.random.split(key, 1000)[7]), None, None
    )
    size = (4096, 1024) if full else (4, 6)
    yield _random(
        "dropout, 4096×1024",
        lambda lib, key, x: lib.np.where(lib.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0),
        lambda t, x: t.nn.functional.dropout(x, 0.1),
        None,
        normal(*size),
    )
    yield _random(
        "categorical, 4096×1024",
        lambda lib, key, x: lib.random.categorical(key, x),
        lambda t, x: t.multinomial(t.softmax(x, -1), 1)[:, 0],
        None,
        normal(*size),
    )


def _random(
    name: str,
    work: Callable,
    torch: Callable | None,
    numpy: Callable | None,
    *more: Any,
    **options: Any,
) -> Case:
    rng = np.random.default_rng(0)
    return Case(
        "randomness",
        name,
        draw(lambda rng: np.uint32(7), *more),
        lambda lib, seed, *xs: work(lib, lib.random.key(seed), *xs),
        torch=None if torch is None else lambda t, seed, *xs: torch(t, *xs),
        numpy=False if numpy is None else lambda seed, *xs: numpy(rng, *xs),
        compared=("jax", "funcgrad"),
        **options,
    )
