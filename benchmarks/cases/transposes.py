"""Transposes and other moves of memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """Permutations of axes, alone and with arithmetic; pads, concatenations, rolls."""
    case = partial(Case, "transposes", tolerance=0)
    square = normal(4096, 4096) if full else normal(13, 11)
    yield _permute("4096×4096", (1, 0), square)
    heads = normal(8, 1024, 16, 64) if full else normal(2, 5, 3, 4)
    yield _permute("8×1024×16×64 by (0, 2, 1, 3)", (0, 2, 1, 3), heads)
    yield _permute("256×256×256 by (2, 1, 0)", (2, 1, 0), normal(*[256 if full else 6] * 3))
    yield _permute("1M×3", (1, 0), normal(1 << 20 if full else 50, 3))
    yield _permute(
        "NCHW 32×64×56×56 to NHWC",
        (0, 2, 3, 1),
        normal(32, 64, 56, 56) if full else normal(2, 3, 4, 5),
    )
    pair = draw(square, normal(4096, 4096) if full else normal(11, 13))
    yield case(
        "a + b.T, 4096²", pair, lambda lib, a, b: a + b.T, torch=lambda t, a, b: a + b.T, numpy=True
    )
    yield case(
        "concatenate and reverse, 4096×1024",
        draw(*[normal(*((4096, 1024) if full else (4, 6)))] * 2),
        lambda lib, a, b: lib.np.concatenate([a, b], axis=1)[::-1],
        torch=lambda t, a, b: t.flip(t.cat([a, b], 1), (0,)),
        numpy=lambda a, b: np.concatenate([a, b], axis=1)[::-1].copy(),
    )
    yield case(
        "pad, 32×64×56×56",
        draw(normal(32, 64, 56, 56) if full else normal(2, 3, 4, 5)),
        lambda lib, x: lib.np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
        torch=lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1)),
        numpy=True,
    )


def _permute(name: str, axes: tuple[int, ...], x) -> Case:
    return Case(
        "transposes",
        name,
        draw(x),
        lambda lib, x: lib.np.transpose(x, axes),
        torch=lambda t, x: x.permute(axes).contiguous(),
        numpy=lambda x: np.ascontiguousarray(x.transpose(axes)),
        tolerance=0,
    )
