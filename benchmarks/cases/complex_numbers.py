"""Complex numbers: elementwise chains, functions, sums and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.case import Case, draw


def cases(full: bool) -> Iterator[Case]:
    """All of them in complex64, of two operands."""
    n = (1 << 20) if full else 100
    pair = draw(_normal(n), _normal(n))
    yield _case("a*b+conj(a), 1M", pair, lambda m, a, b: a * b + m.conj(a))
    yield _case("a/b, 1M", pair, lambda m, a, b: a / b)
    yield _case("abs(a*exp(1j*b)), 1M", pair, lambda m, a, b: m.abs(a * m.exp(1j * b)))
    yield _case("sqrt(a)*log(b), 1M", pair, lambda m, a, b: m.sqrt(a) * m.log(b))
    yield _case("sum(a*conj(b)), 1M", pair, lambda m, a, b: (a * m.conj(b)).sum())
    n = 512 if full else 8
    square = draw(_normal(n, n), _normal(n, n))
    yield _case("product, 512", square, lambda m, a, b: a @ b, flops=8.0 * n**3)
    batch, n = (1024, 16) if full else (3, 4)
    yield _case(
        "product, batch of 1024, 16",
        draw(_normal(batch, n, n), _normal(batch, n, n)),
        lambda m, a, b: a @ b,
        flops=8.0 * batch * n**3,
    )


def _normal(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    def make(rng: np.random.Generator) -> np.ndarray:
        parts = rng.standard_normal((2, *shape), np.float32)
        return parts[0] + 1j * parts[1]

    return make


def _case(name: str, make: Any, work: Callable, **more: Any) -> Case:
    """A case whose functions have NumPy's names, which are PyTorch's, too."""
    return Case(
        "complex",
        name,
        make,
        lambda lib, a, b: work(lib.np, a, b),
        torch=lambda t, a, b: work(t, a, b),
        numpy=True,
        **more,
    )
