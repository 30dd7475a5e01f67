"""Random dimension numbers, and what gather and scatter mean, element by element."""

import itertools
from typing import NamedTuple

import numpy as np

from funcgrad.ops.indexing.windows import GatherDimensionNumbers, ScatterDimensionNumbers


class Case(NamedTuple):
    """A gather: operand and indices shapes, dimension numbers, window sizes."""

    shape: tuple
    counts: tuple
    numbers: GatherDimensionNumbers
    sizes: tuple

    @property
    def scatter_numbers(self):
        return ScatterDimensionNumbers(*self.numbers)

    def indices(self, rng, spread=0, dtype=np.int32):
        """Random index vectors, of which some reach out of the operand by up to `spread`."""
        columns = [
            rng.integers(-spread, self.shape[d] - self.sizes[d] + spread + 1, self.counts)
            for d in self.numbers.start_index_map
        ]
        shape = (*self.counts, len(columns))
        return np.stack(columns, -1).astype(dtype) if columns else np.zeros(shape, dtype)


def make_case(seed):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(2, 5, rank))
    axes = [int(a) for a in rng.permutation(rank)]
    n_batching = int(rng.integers(0, min(2, rank) + 1)) if seed % 2 else 0
    batching, rest = sorted(axes[:n_batching]), axes[n_batching:]
    n_mapped = int(rng.integers(min(int(seed % 5 > 0), len(rest)), len(rest) + 1))
    mapped = tuple(rest[:n_mapped])
    collapsed = tuple(sorted(a for a in rest if rng.random() < 0.5))
    extra = [int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3)))]
    counts = [*(shape[a] for a in batching), *extra]
    order = [int(i) for i in rng.permutation(len(counts))]
    batching_of = tuple(order.index(k) for k in range(n_batching))
    counts = tuple(counts[i] for i in order)
    least = int(seed % 10 > 0)
    sizes = tuple(
        1 if a in batching or a in collapsed else int(rng.integers(least, n + 1))
        for a, n in enumerate(shape)
    )
    n_windows = rank - len(batching) - len(collapsed)
    places = rng.permutation(len(counts) + n_windows)[:n_windows]
    offsets = tuple(sorted(int(p) for p in places))
    numbers = GatherDimensionNumbers(offsets, collapsed, mapped, tuple(batching), batching_of)
    return Case(shape, counts, numbers, sizes)


def cells(case, indices, clip=False):
    """(place in the gathered array, place in the operand, the window is inside) of each element."""
    offsets, collapsed, mapped, batching, batching_of = case.numbers
    inner = [d for d in range(len(case.shape)) if d not in collapsed + batching]
    rank = len(case.counts) + len(offsets)
    outer = [i for i in range(rank) if i not in offsets]
    for vector in np.ndindex(*case.counts):
        start = dict.fromkeys(range(len(case.shape)), 0)
        if indices is not None:
            start |= {d: int(indices[vector][k]) for k, d in enumerate(mapped)}
        limits = {d: case.shape[d] - case.sizes[d] for d in mapped}
        inside = all(0 <= start[d] <= n for d, n in limits.items())
        if clip:
            start |= {d: min(max(start[d], 0), n) for d, n in limits.items()}
        start |= {d: vector[i] for d, i in zip(batching, batching_of, strict=True)}
        for window in itertools.product(*(range(case.sizes[d]) for d in inner)):
            at = dict(start)
            place = [0] * rank
            for d, o, w in zip(inner, offsets, window, strict=True):
                at[d] += w
                place[o] = w
            for o, v in zip(outer, vector, strict=True):
                place[o] = v
            yield tuple(place), tuple(at[d] for d in range(len(case.shape))), inside


def gathered_shape(case):
    offsets, collapsed, _, batching, _ = case.numbers
    windows = [n for d, n in enumerate(case.sizes) if d not in collapsed + batching]
    shape = list(case.counts)
    for o, n in zip(offsets, windows, strict=True):
        shape.insert(o, n)
    return tuple(shape)


def gather_loop(case, x, indices, mode, fill):
    out = np.full(gathered_shape(case), fill, x.dtype)
    for place, at, inside in cells(case, indices, clip=mode == "clip"):
        if inside or mode == "clip":
            out[place] = x[at]
    return out


def scatter_loop(case, x, indices, updates, mode, combine):
    out, offsets = x.copy(), case.numbers[0]  # the updates' axes within a window

    def order(cell):
        """Where windows meet, the one of the later vector of indices is combined last."""
        place = enumerate(cell[0])
        return sorted(((i in offsets, i), n) for i, n in place)

    places = sorted(cells(case, indices, clip=mode == "clip"), key=order)
    for place, at, inside in places:
        if inside or mode == "clip":
            out[at] = combine(out[at], updates[place])
    return out
