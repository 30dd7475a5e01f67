"""Matrix products: square, odd, tall, transposed, batched, thin; with and without an epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import ml_dtypes
import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """All of them in float32 unless the name says otherwise."""
    for n in (512, 1024, 2048):
        yield _product(str(n), *(n, n, n) if full else (n // 64,) * 3)
    yield _product("odd, 1001×999×1003", *(1001, 999, 1003) if full else (7, 5, 9))
    yield _product("odd, 257", *(257, 257, 257) if full else (5, 5, 5))
    yield _product("tall, 16384×256×256", *(16384, 256, 256) if full else (40, 8, 8))
    yield _product("narrow, 4096×4096×16", *(4096, 4096, 16) if full else (20, 20, 3))
    yield _product("outer, 2048×16×2048", *(2048, 16, 2048) if full else (20, 3, 20))
    yield _product("long, 64×16384×64", *(64, 16384, 64) if full else (4, 50, 4))
    n = 1024 if full else 12
    yield _product("1024, A transposed", n, n, n, lambda a, b: a.T @ b)
    yield _product("1024, B transposed", n, n, n, lambda a, b: a @ b.T)
    yield _product("1024, float64", n, n, n, dtype=np.float64, x64=True)
    yield _product("1024, bfloat16", n, n, n, dtype=ml_dtypes.bfloat16, tolerance=2e-2, numpy=False)
    for batch, n in ((4096, 16), (1024, 32), (64, 128)):
        size = (batch, n) if full else (3, n // 8)
        yield _batched(f"batch of {batch}, {n}", *size)
    n = 4096 if full else 30
    yield _vector("matrix and vector, 4096", (n, n), (n,))
    yield _vector("vector and matrix, 4096", (n,), (n, n))
    rows, inner, width = (1024, 1024, 4096) if full else (6, 8, 12)
    yield Case(
        "gemm",
        "bias and gelu, 1024×1024×4096",
        draw(normal(rows, inner), normal(inner, width), normal(width)),
        lambda lib, x, w, b: lib.nn.gelu(x @ w + b),
        torch=lambda t, x, w, b: t.nn.functional.gelu(x @ w + b, approximate="tanh"),
        flops=2.0 * rows * inner * width,
    )
    b, t, h, d = (8, 256, 8, 64) if full else (2, 4, 2, 3)
    yield Case(
        "gemm",
        "einsum bthd,bshd->bhts",
        draw(normal(b, t, h, d), normal(b, t, h, d)),
        lambda lib, q, k: lib.np.einsum("bthd,bshd->bhts", q, k),
        torch=lambda t, q, k: t.einsum("bthd,bshd->bhts", q, k),
        numpy=True,
        flops=2.0 * b * h * t * t * d,
    )


def _product(name, m, k, n, work=lambda a, b: a @ b, dtype=np.float32, numpy=True, **more) -> Case:
    shapes = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    return Case(
        "gemm",
        name,
        draw(*shapes),
        lambda lib, a, b: work(a, b),
        torch=lambda t, a, b: work(a, b),
        numpy=numpy,
        flops=2.0 * m * k * n,
        **more,
    )


def _batched(name, batch, n) -> Case:
    make = partial(_vector, flops=2.0 * batch * n**3)
    return make(name, (batch, n, n), (batch, n, n))


def _vector(name, left, right, flops=None) -> Case:
    return Case(
        "gemm",
        name,
        draw(normal(*left), normal(*right)),
        lambda lib, a, b: a @ b,
        torch=lambda t, a, b: a @ b,
        numpy=True,
        flops=flops or 2.0 * np.prod(left) * np.prod(right) / min(left),
    )
