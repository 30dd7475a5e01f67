"""Chains of elementwise operations: one pass over memory, if the compiler sees to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import ml_dtypes
import numpy as np

from benchmarks.case import Case, draw, integers, normal


def cases(full: bool) -> Iterator[Case]:
    """Cheap chains, which memory limits, and transcendental ones, which arithmetic limits."""
    case = partial(Case, "elementwise")
    yield from _pairs(case, full)
    yield from _functions(case, (1 << 20) if full else 100)
    yield from _broadcasts(case, full)


def _pairs(case: Callable[..., Case], full: bool) -> Iterator[Case]:
    for name, size in {"1M": 1 << 20, "16M": 1 << 24}.items():
        n = size if full else 100 + len(name)
        pair = draw(normal(n), normal(n))
        yield case(
            f"a*b+a, {name}",
            pair,
            lambda lib, a, b: a * b + a,
            torch=lambda t, a, b: a * b + a,
            numpy=True,
        )
        yield case(
            f"tanh(a)*exp(-b*b)+log1p(|a|), {name}", pair, _chain, torch=_torch_chain, numpy=True
        )
        yield case(
            f"where, clip, {name}",
            pair,
            lambda lib, a, b: lib.np.where(a > b, lib.np.clip(a, -1, 1), b * 0.5),
            torch=lambda t, a, b: t.where(a > b, t.clamp(a, -1, 1), b * 0.5),
            numpy=True,
        )


def _functions(case: Callable[..., Case], n: int) -> Iterator[Case]:
    one = draw(normal(n))
    yield case(
        "exp, 1M", one, lambda lib, a: lib.np.exp(a), torch=lambda t, a: t.exp(a), numpy=True
    )
    yield case(
        "sin, 1M", one, lambda lib, a: lib.np.sin(a), torch=lambda t, a: t.sin(a), numpy=True
    )
    yield case(
        "gelu, 1M",
        one,
        lambda lib, a: lib.nn.gelu(a),
        torch=lambda t, a: t.nn.functional.gelu(a, approximate="tanh"),
    )
    yield case(
        "a**b, 1M",
        draw(lambda rng: rng.random(n, np.float32) + 0.1, normal(n)),
        lambda lib, a, b: a**b,
        torch=lambda t, a, b: a**b,
        numpy=True,
    )
    half = draw(normal(n, dtype=ml_dtypes.bfloat16), normal(n, dtype=ml_dtypes.bfloat16))
    yield case(
        "a*b+a, bfloat16, 1M",
        half,
        lambda lib, a, b: a * b + a,
        torch=lambda t, a, b: a * b + a,
        tolerance=1e-2,
    )
    words = draw(integers(0, 1 << 30, n), integers(1, 1 << 20, n))
    yield case(
        "integer mix, 1M",
        words,
        lambda lib, a, b: (a ^ (a >> 7)) * 5 + (b & 255),
        torch=lambda t, a, b: (a ^ (a >> 7)) * 5 + (b & 255),
        numpy=True,
    )
    yield case(
        "Adam's update, 1M",
        draw(*[normal(n)] * 3, lambda rng: rng.random(n, np.float32)),
        _adam,
        torch=_torch_adam,
        numpy=True,
    )


def _broadcasts(case: Callable[..., Case], full: bool) -> Iterator[Case]:
    rows, width = (4096, 1024) if full else (8, 16)
    yield case(
        "bias and relu, 4096×1024",
        draw(normal(rows, width), normal(width)),
        lambda lib, x, b: lib.np.maximum(x + b, 0),
        torch=lambda t, x, b: t.relu(x + b),
        numpy=True,
    )
    yield case(
        "outer sum of squares, 4096×1024",
        draw(normal(rows), normal(width)),
        lambda lib, x, y: lib.np.sqrt(x[:, None] ** 2 + y[None, :] ** 2),
        torch=lambda t, x, y: t.sqrt(x[:, None] ** 2 + y[None, :] ** 2),
        numpy=True,
    )


def _chain(lib, a, b):
    np = lib.np
    return np.tanh(a) * np.exp(-b * b) + np.log1p(np.abs(a))


def _torch_chain(t, a, b):
    return t.tanh(a) * t.exp(-b * b) + t.log1p(t.abs(a))


def _adam(lib, p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.01 * m / (lib.np.sqrt(v) + 1e-8), m, v


def _torch_adam(t, p, g, m, v):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.01 * m / (t.sqrt(v) + 1e-8), m, v
