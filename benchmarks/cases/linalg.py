"""Decompositions and solves: batches of small matrices, and a larger one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """What has free signs is compared by what has none."""
    case = partial(_case, full)
    yield case("cholesky, 1024 of 16×16", (1024, 16), lambda np, a: np.linalg.cholesky(a))
    yield case("solve, 1024 of 8×8", (1024, 8), lambda np, a: np.linalg.solve(a, a[:, :, :1] + 1))
    yield case("inverse, 10000 of 4×4", (10000, 4), lambda np, a: np.linalg.inv(a))
    yield case("determinant, 10000 of 4×4", (10000, 4), lambda np, a: np.linalg.det(a))
    yield case("QR, 256 of 32×32", (256, 32), lambda np, a: abs(np.linalg.qr(a)[1]))
    yield case(
        "eigenvalues, symmetric, 256 of 32×32", (256, 32), lambda np, a: np.linalg.eigvalsh(a)
    )
    yield case("singular values, 256 of 32×32", (256, 32), lambda np, a: np.linalg.svd(a)[1])
    yield case("cholesky, 512×512", (1, 512), lambda np, a: np.linalg.cholesky(a))
    yield case("solve, 512×512", (1, 512), lambda np, a: np.linalg.solve(a, a[:, :, :8] + 1))
    yield case(
        "eigenvectors, symmetric, 256×256",
        (1, 256),
        lambda np, a: abs(np.linalg.eigh(a)[1][0, :, -1]),
    )
    n = 512 if full else 7
    yield Case(
        "linalg",
        "gradient of the log of the determinant, 512×512",
        draw(partial(_positive, 1, n)),
        lambda lib, a: lib.grad(lambda a: lib.np.linalg.slogdet(a)[1])(a[0]),
        torch=lambda t, a: t.func.grad(lambda a: t.linalg.slogdet(a)[1])(a[0]),
        tolerance=1e-3,
    )


def _case(full: bool, name: str, shape: tuple[int, int], work: Callable) -> Case:
    batch, n = shape if full else (min(shape[0], 3), min(shape[1], 5))
    return Case(
        "linalg",
        name,
        draw(partial(_positive, batch, n)),
        lambda lib, a: work(lib.np, a),
        torch=lambda t, a: work(t, a),
        numpy=True,
        tolerance=1e-3,
    )


def _positive(batch: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Symmetric positive definite matrices with eigenvalues apart."""
    a = normal(batch, n, n)(rng).astype(np.float64)
    a = a @ a.transpose(0, 2, 1) / n + np.diag(np.linspace(1, 2, n))
    return a.astype(np.float32)
