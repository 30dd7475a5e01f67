"""Whether the dimension numbers of a gather or scatter fit its operands: one check for each thing
that they must be, in the words of XLA's and JAX's rules (XLA's operation semantics, "Gather" and
"Scatter"), so that what is searched for is found.
"""

from __future__ import annotations

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.record import Record
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.indexing.windows import (
    Axes,
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
    inner_axes,
)


class _Checks(Record):
    """What the checks of one call share; `name` is the op's as it was called, `got` says with what
    it was, and `op` is "gather" or "scatter"."""

    name: str
    op: str
    got: str

    def need(self, fits: bool, what: str) -> None:
        if not fits:
            raise ShapeError(f"{self.name}: {what}; got {self.got}")

    def distinct(self, field: str, axes: Axes, rank: int, ascending: bool = True) -> None:
        """Axes of an array of that rank, none twice, and in order."""
        if ascending:
            self.need(list(axes) == sorted(axes), f"{field} in {self.op} op must be sorted")
        self.need(
            all(0 <= a < rank for a in axes),
            f"Invalid {field} set in {self.op} op; valid range is [0, {rank})",
        )
        self.need(len({*axes}) == len(axes), f"{field} in {self.op} op must not repeat")

    def disjoint(self, a: str, b: str, axes: Axes, others: Axes) -> None:
        self.need(not {*axes} & {*others}, f"{a} and {b} in {self.op} op must be disjoint")


def check_gather(
    x: ShapedArray, indices: ShapedArray, numbers: GatherDimensionNumbers, sizes: Axes
) -> None:
    """Raise unless dimension numbers and window sizes fit the operand and the indices."""
    _check_indices("gather", indices)
    got = f"operand {x}, indices {indices}, window sizes {sizes} and {numbers}"
    checks = _Checks("gather", "gather", got)
    offsets, collapsed, _, batching, _ = numbers
    rank = len(offsets) + indices.ndim - 1
    checks.need(list(offsets) == sorted(offsets), "offset_dims in gather op must be sorted")
    checks.need(len({*offsets}) == len(offsets), "offset_dims in gather op must not repeat")
    for i, axis in enumerate(offsets):
        checks.need(
            0 <= axis < rank,
            f"Offset dimension {i} in gather op is out of bounds: {axis} is not in [0, {rank})",
        )
    _check_numbers(checks, x, indices, numbers)
    checks.need(
        len(sizes) == x.ndim,
        "Gather op must have one slice size for every input dimension: "
        f"len(slice_sizes)={len(sizes)}, rank {x.ndim}",
    )
    checks.need(
        len(sizes) == len(offsets) + len(collapsed) + len(batching),
        "All components of the offset index in a gather op must either be a offset dimension or "
        "explicitly collapsed/batching",
    )
    for i, (size, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        checks.need(
            i in batching or 0 <= size <= whole,
            f"Slice size at index {i} in gather op is out of range: {size} is not within "
            f"[0, {whole}], what the operand has",
        )
    for kind, axes in ("collapse slice dims with bound 1", collapsed), (
        "have operand batching dims with bound 0/1", batching
    ):  # fmt: skip
        for i, axis in enumerate(axes):
            checks.need(
                sizes[axis] == 1,
                f"Gather op can only {kind}, but bound is {sizes[axis]} for index {axis} at "
                f"position {i}.",
            )


def check_scatter(
    name: str,
    x: ShapedArray,
    indices: ShapedArray,
    updates: ShapedArray,
    numbers: ScatterDimensionNumbers,
) -> None:
    """Raise unless dimension numbers and updates fit the operand and the indices."""
    _check_indices(name, indices)
    got = f"operand {x}, indices {indices}, updates {updates} and {numbers}"
    checks = _Checks(name, "scatter", got)
    windows, inserted, _, batching, _ = numbers
    rank = len(windows) + indices.ndim - 1
    checks.need(updates.ndim == rank, f"Updates tensor must be of rank {rank}; got {updates.ndim}.")
    checks.distinct("update_window_dims", windows, rank)
    _check_numbers(checks, x, indices, numbers)
    size = len(windows) + len(inserted) + len(batching)
    checks.need(
        size == x.ndim,
        f"Scatter op has window of size {size}; doesn't match operand of rank {x.ndim}.",
    )
    for axis, of in zip(windows, inner_axes(x.ndim, numbers), strict=True):
        checks.need(
            updates.shape[axis] <= x.shape[of],
            "Bounds of the window dimensions of updates must not exceed those of the operand: "
            f"axis {axis} of the updates has {updates.shape[axis]}, the operand {x.shape[of]}",
        )
    for axis in inserted:
        checks.need(x.shape[axis] > 0, f"the operand has nothing to put at in its axis {axis}")
    outer = [n for i, n in enumerate(updates.shape) if i not in windows]
    checks.need(
        outer == [*indices.shape[:-1]],
        "Bounds of the scatter dimensions of updates must be the same as those of the indices: "
        f"{(*outer,)} and {indices.shape[:-1]}",
    )


def _check_indices(name: str, indices: ShapedArray) -> None:
    if not dtypes.is_integer(indices.dtype):
        raise DTypeError(f"{name}: indices must be integers, got {indices}")
    if not indices.ndim:
        raise ShapeError(
            f"{name}: indices need a last axis that holds the index vectors, got {indices}"
        )


def _check_numbers(
    checks: _Checks,
    x: ShapedArray,
    indices: ShapedArray,
    numbers: GatherDimensionNumbers | ScatterDimensionNumbers,
) -> None:
    """All but the axes of windows: what maps the index vectors, is left out, or goes along."""
    _, absent_name, map_name, batching_name, of_name = numbers._fields
    _, absent, mapped, batching, of = numbers
    op, last = checks.op.capitalize(), indices.ndim - 1
    checks.distinct(absent_name, absent, x.ndim)
    checks.distinct(batching_name, batching, x.ndim)
    checks.disjoint(absent_name, batching_name, absent, batching)
    checks.disjoint(map_name, batching_name, mapped, batching)
    checks.distinct(of_name, of, indices.ndim, ascending=False)
    checks.need(
        last not in of, f"{op} op cannot have the index vector dimension as a batching dimension"
    )
    checks.need(
        len(batching) == len(of), f"{op} op requires equal numbers of {batching_name} and {of_name}"
    )
    sizes, along = [x.shape[i] for i in batching], [indices.shape[i] for i in of]
    checks.need(
        sizes == along,
        f"{op} op requires operand batching dimensions and indices batching dimensions to have "
        f"the same shape, which are {(*sizes,)} and {(*along,)}",
    )
    checks.need(
        len(mapped) == indices.shape[-1],
        f"{op} op has {len(mapped)} elements in {map_name} and the bound of dimension "
        f"index_vector_dim={last} of indices is {indices.shape[-1]}. These two numbers must be "
        "equal.",
    )
    outside = [f"{i}->{axis}" for i, axis in enumerate(mapped) if not 0 <= axis < x.ndim]
    what = " mapping" if checks.op == "scatter" else ""
    checks.need(
        not outside,
        f"Invalid {map_name}{what}; domain is [0, {x.ndim}), which lacks {', '.join(outside)}",
    )
    checks.need(len({*mapped}) == len(mapped), f"{map_name} in {checks.op} op must not repeat")
