"""Gathers, scatters, embedding bags, segments: memory read and written out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, integers, normal
from benchmarks.libraries import gradients


def cases(full: bool) -> Iterator[Case]:
    """PyTorch gets its indices as int64, the others as int32."""
    case = partial(Case, "indexing", torch_long=True)
    n = (1 << 20) if full else 40
    rows = (50000, 256, 8192) if full else (9, 4, 12)
    yield from _gathers(case, full, n, rows)
    yield from _scatters(case, full, n, rows)
    yield from _bags(case, full, rows)


def _gathers(
    case: Callable[..., Case], full: bool, n: int, table: tuple[int, int, int]
) -> Iterator[Case]:
    elements = draw(normal(n), integers(0, n, n))
    yield case(
        "gather elements, 1M of 1M",
        elements,
        lambda lib, x, i: x[i],
        torch=lambda t, x, i: x[i],
        numpy=True,
    )
    rows, width, count = table
    yield case(
        "gather rows, 8192 of 50000×256",
        draw(normal(rows, width), integers(0, rows, count)),
        lambda lib, x, i: x[i],
        torch=lambda t, x, i: x[i],
        numpy=True,
        reads=4.0 * count * (width + 1),
    )
    size = (4096, 1024) if full else (4, 6)
    yield case(
        "take along rows, 4096×1024",
        draw(normal(*size), integers(0, size[1], *size)),
        lambda lib, x, i: lib.np.take_along_axis(x, i, axis=1),
        torch=lambda t, x, i: t.gather(x, 1, i),
        numpy=True,
    )
    yield case(
        "one-hot, 8192×1000",
        draw(integers(0, 1000 if full else 5, 8192 if full else 6)),
        lambda lib, i: lib.nn.one_hot(i, 1000 if full else 5),
        torch=lambda t, i: t.nn.functional.one_hot(i, 1000 if full else 5).float(),
    )


def _scatters(
    case: Callable[..., Case], full: bool, n: int, table: tuple[int, int, int]
) -> Iterator[Case]:
    rows, width, count = table
    yield case(
        "scatter-add elements, 1M into 1M",
        draw(*_scatter(n, n)),
        _add,
        torch=_torch_add,
        numpy=_np_add,
        tolerance=1e-3,
    )
    yield case(
        "scatter-add elements, 1M into 1000",
        draw(*_scatter(1000 if full else 7, n)),
        _add,
        torch=_torch_add,
        numpy=_np_add,
        tolerance=1e-3,
    )
    yield case(
        "scatter-add rows, 8192 into 50000×256",
        draw(normal(rows, width), integers(0, rows, count), normal(count, width)),
        _add,
        torch=_torch_add,
        numpy=_np_add,
    )
    yield case(
        "scatter rows, 8192 into 50000×256",
        draw(
            normal(rows, width),
            lambda rng: rng.permutation(rows)[:count].astype(np.int32),
            lambda rng: normal(min(count, rows), width)(rng),
        ),
        lambda lib, x, i, y: x.at[i].set(y),
        torch=lambda t, x, i, y: t.index_copy(x, 0, i, y),
        numpy=_np_set,
    )

    def labels(rng):
        return np.sort(rng.integers(0, count, n, np.int32))

    yield case(
        "sum of sorted segments, 1M into 8192",
        draw(lambda rng: np.zeros(count, np.float32), labels, normal(n)),
        _add,
        torch=_torch_add,
        numpy=_np_add,
        tolerance=1e-3,
    )


def _bags(case: Callable[..., Case], full: bool, table: tuple[int, int, int]) -> Iterator[Case]:
    rows, width, _ = table
    bag = integers(0, rows, *((2048, 20) if full else (3, 4)))
    yield case(
        "embedding bag, 2048×20 of 50000×256",
        draw(normal(rows, width), bag),
        lambda lib, x, i: lib.np.sum(x[i], axis=1),
        torch=lambda t, x, i: t.nn.functional.embedding_bag(i, x, mode="sum"),
        numpy=True,
        reads=4.0 * (2048 * 20 * (width + 1) if full else 1),
    )
    yield case(
        "embedding bag forward and backward, 2048×20 of 50000×256",
        draw(normal(rows, width), bag, normal(2048 if full else 3, width)),
        _bag_grad,
        torch_make=gradients(_torch_bag_loss, 0),
    )


def _scatter(into: int, n: int):
    return normal(into), integers(0, into, n), normal(n)


def _add(lib, x, i, y):
    return x.at[i].add(y)


def _torch_add(t, x, i, y):
    return t.index_add(x, 0, i, y)


def _np_add(x, i, y):
    x = x.copy()
    np.add.at(x, i, y)
    return x


def _np_set(x, i, y):
    x = x.copy()
    x[i] = y
    return x


def _bag_grad(lib, x, i, seed):
    return lib.value_and_grad(lambda x: lib.np.sum(lib.np.sum(x[i], axis=1) * seed))(x)


def _torch_bag_loss(t, x, i, seed):
    return t.sum(t.nn.functional.embedding_bag(i, x, mode="sum") * seed)
