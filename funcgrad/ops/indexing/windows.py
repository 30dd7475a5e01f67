"""What gather and scatter share: which axes belong together, and where each window's elements lie.

An index vector (along the last axis of the indices) is the position of one window in the operand.
Gathered arrays and updates have the axes of the windows, at `offsets`, among those of the vectors.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core import dims as dims_
from funcgrad.core.record import Record

Axes = tuple[int, ...]


class GatherDimensionNumbers(NamedTuple):
    """Which axes of operand, indices and result of a gather belong together.

    offset_dims: the result's axes that run within a window, ascending
    collapsed_slice_dims: operand axes, of window size 1, that the result lacks
    start_index_map: the operand axis that each component of an index vector is a position in
    operand_batching_dims: operand axes, of window size 1, that go along with an axis of the indices
    start_indices_batching_dims: those axes of the indices, in the same order

    >>> GatherDimensionNumbers((1,), (0,), (0,)).operand_batching_dims
    ()
    """

    offset_dims: Axes
    collapsed_slice_dims: Axes
    start_index_map: Axes
    operand_batching_dims: Axes = ()
    start_indices_batching_dims: Axes = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which axes of operand, indices and updates of a scatter belong together.

    update_window_dims: the updates' axes that run within a window, ascending
    inserted_window_dims: operand axes, of window size 1, that the updates lack
    scatter_dims_to_operand_dims: the operand axis of each component of an index vector
    operand_batching_dims: operand axes, of window size 1, that go along with an axis of the indices
    scatter_indices_batching_dims: those axes of the indices, in the same order

    >>> ScatterDimensionNumbers((), (0,), (0,)).update_window_dims
    ()
    """

    update_window_dims: Axes
    inserted_window_dims: Axes
    scatter_dims_to_operand_dims: Axes
    operand_batching_dims: Axes = ()
    scatter_indices_batching_dims: Axes = ()


Numbers = GatherDimensionNumbers | ScatterDimensionNumbers


class GatherScatterMode(enum.Enum):
    """What becomes of windows that reach out of the operand.

    CLIP: they are moved inside. FILL_OR_DROP: they are gathered as a fill value, and not scattered.
    PROMISE_IN_BOUNDS: there are none; should there be some, gather clips and scatter drops.

    >>> GatherScatterMode.from_any("clip")
    <GatherScatterMode.CLIP: 1>
    """

    CLIP = 1
    FILL_OR_DROP = 2
    PROMISE_IN_BOUNDS = 3

    @staticmethod
    def from_any(mode: Any) -> GatherScatterMode:
        """The mode of a name: "clip", "fill", "drop", "promise_in_bounds"; None fills and drops."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None or mode in ("fill", "drop"):
            return GatherScatterMode.FILL_OR_DROP
        if mode in ("clip", "promise_in_bounds"):
            return GatherScatterMode[mode.upper()]
        raise ValueError(
            f"mode must be 'clip', 'fill', 'drop', 'promise_in_bounds' or None, got {mode!r}"
        )

    def __str__(self) -> str:
        return self.name.lower()


def batched_numbers(numbers: Numbers, operand: bool, indices: bool) -> Any:
    """The dimension numbers where operand or indices (or both) have a batch axis in front."""
    windows, absent, mapped, batching, batching_of = numbers
    both = operand and indices

    def shift(axes: Axes, by: bool, front: bool = False) -> Axes:
        return (0,) * front + tuple(a + by for a in axes)

    return type(numbers)(
        shift(windows, True, front=not indices),
        shift(absent, operand),
        shift(mapped, operand),
        shift(batching, operand, front=both),
        shift(batching_of, indices, front=both),
    )


class Windows(Record):
    """The windows of one gather or scatter: sizes for each operand axis, and index arithmetic.

    `inner` are the operand axes that a gathered array has, at its axes `offsets`; its other axes,
    `outer`, run over the index vectors.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    numbers: Any
    sizes: tuple[int, ...]

    @property
    def offsets(self) -> Axes:
        """The gathered array's axes that run within a window."""
        return self.numbers[0]

    @property
    def mapped(self) -> Axes:
        """The operand axis that each component of an index vector is a position in."""
        return self.numbers[2]

    @property
    def batching(self) -> dict[int, int]:
        """The operand axes that go along with an axis of the indices, each with that axis."""
        return dict(zip(self.numbers[3], self.numbers[4], strict=True))

    @property
    def inner(self) -> Axes:
        """The operand axes that a gathered array has, in order."""
        return inner_axes(len(self.shape), self.numbers)

    @property
    def outer(self) -> Axes:
        """The gathered array's axes that run over the index vectors."""
        rank = len(self.counts) + len(self.offsets)
        return tuple(i for i in range(rank) if i not in self.offsets)

    @property
    def gathered_shape(self) -> tuple[int, ...]:
        """The shape of the gathered array, which also is that of updates."""
        at = dict(zip(self.outer, self.counts, strict=True))
        at |= {o: self.sizes[d] for o, d in zip(self.offsets, self.inner, strict=True)}
        return tuple(at[i] for i in range(len(at)))

    def positions(self, xp: Any, indices: Any) -> tuple[dict[int, Any], Any]:
        """Where windows start in the axes in which they differ, moved inside, [*counts] each;
        and which of them did not need to be moved."""
        starts, valid = {}, xp.ones(self.counts, bool)
        if indices.dtype == np.uint64:
            indices = xp.minimum(indices, np.uint64(2**63 - 1))
        for k, axis in enumerate(self.mapped):
            wanted = indices[..., k].astype(np.int64)
            starts[axis] = xp.clip(wanted, 0, self.shape[axis] - self.sizes[axis])
            valid &= starts[axis] == wanted
        for axis, of in self.batching.items():
            line = [-1 if i == of else 1 for i in range(len(self.counts))]
            starts[axis] = xp.arange(self.counts[of]).reshape(line)
        return starts, valid

    def axis_names(self) -> tuple[list[str], list[str], list[str]]:
        """Factor names of the operand, of the index vectors, and of a gathered array."""
        rank = len(self.shape)
        names = dims_.letters(rank + len(self.counts))
        vectors = names[rank:]
        operand = [
            vectors[self.batching[d]] if d in self.batching
            else names[d] if d not in self.mapped and self.sizes[d] == n
            else "."
            for d, n in enumerate(self.shape)
        ]  # fmt: skip
        at = dict(zip(self.outer, vectors, strict=True))
        at |= {o: operand[d] for o, d in zip(self.offsets, self.inner, strict=True)}
        return operand, vectors, [at[i] for i in range(len(at))]


def inner_axes(rank: int, numbers: Numbers) -> Axes:
    """The operand axes that windows keep: neither collapsed (inserted) nor batching."""
    return tuple(i for i in range(rank) if i not in numbers[1] and i not in numbers[3])
