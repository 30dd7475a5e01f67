"""Reductions of rows by the number of their segment: `segment_sum`, `_prod`, `_max`, `_min`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.trace import Tracer, aval_of
from funcgrad.errors import DTypeError, ShapeError, TracerIntegerConversionError
from funcgrad.ops.arguments import integer, shape_of
from funcgrad.ops.base import full
from funcgrad.ops.elementwise.arithmetic import max as maximum
from funcgrad.ops.elementwise.arithmetic import min as minimum
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.families import add
from funcgrad.ops.indexing.scatter import scatter_add, scatter_max, scatter_min, scatter_mul
from funcgrad.ops.indexing.windows import ScatterDimensionNumbers
from funcgrad.ops.indexing.windows_at import slice_in_dim
from funcgrad.ops.reduce import highest, lowest
from funcgrad.ops.shape import reshape

_DOC = """The {what} of the rows of each segment.

    data: an array (n, …) of rows, or one whose leading axes are those of `segment_ids`.
    segment_ids: the segment of each row; rows of numbers outside 0 … num_segments - 1 are left out.
    num_segments: how many there are, 1 + max(segment_ids) by default; under `jit` it must be given.
    A segment without rows has {empty}. indices_are_sorted, unique_indices: promises about the ids.
    bucket_size: so many rows are combined first, then the results: sums keep more digits so.
    mode: "drop", or "clip" and "promise_in_bounds" as in `x.at[...]`.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.ops.segment_{name}(fnp.arange(5), fnp.array([0, 0, 1, 1, 2]))
    Array({shown}, dtype=int32)
    """


def _segment(
    name: str, scatter: Callable, join: Callable, identity: Callable, doc: dict[str, str]
) -> Callable:
    what = f"segment_{name}"

    def segment(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
    ) -> Any:
        rows, ids = aval_of(data), aval_of(segment_ids)
        if not dtypes.is_integer(ids.dtype):
            raise DTypeError(f"{what}: segment_ids must be integers, got {ids}")
        if not ids.ndim or rows.shape[: ids.ndim] != ids.shape:
            raise ShapeError(
                f"{what}: segment_ids {ids} must have the leading axes of data, got {rows}"
            )
        count = _count(what, segment_ids, num_segments)
        rest = rows.shape[ids.ndim :]
        numbers = ScatterDimensionNumbers(tuple(range(1, 1 + len(rest))), (0,), (0,))
        start = full((count, *rest), identity(rows.dtype), rows.dtype)
        if not count:
            return start

        def combined(first: int, last: int) -> Any:
            return scatter(
                start,
                slice_in_dim(reshape(segment_ids, (ids.size, 1)), first, last),
                slice_in_dim(reshape(data, (ids.size, *rest)), first, last),
                numbers,
                indices_are_sorted=indices_are_sorted,
                unique_indices=unique_indices,
                mode="drop" if mode is None else mode,
            )

        if bucket_size is None:
            return combined(0, ids.size)
        step = integer("bucket_size", bucket_size)
        if step < 1:
            raise ValueError(f"{what}: bucket_size must be positive, got {step}")
        ends = range(0, max(ids.size, 1), step)
        return reduce(join, (combined(i, min(i + step, ids.size)) for i in ends))

    segment.__name__ = segment.__qualname__ = what
    segment.__doc__ = _DOC.format(name=name, **doc)
    return segment


def _count(what: str, ids: Any, given: int | None) -> int:
    if given is not None:
        return shape_of(what, given, "num_segments")[0]
    known = ids.concrete() if isinstance(ids, Tracer) else ids
    if known is None:
        raise TracerIntegerConversionError(
            f"{what}: num_segments must be given where segment_ids are traced, as the shape of the "
            "result depends on it"
        )
    known = np.asarray(known)
    return int(known.max()) + 1 if known.size else 0


segment_sum = _segment(
    "sum",
    scatter_add,
    add,
    lambda dtype: np.zeros((), dtype),
    {"what": "sum", "empty": "0", "shown": "[1, 5, 4]"},
)
segment_prod = _segment(
    "prod",
    scatter_mul,
    mul,
    lambda dtype: np.ones((), dtype),
    {"what": "product", "empty": "1", "shown": "[0, 6, 4]"},
)
segment_max = _segment(
    "max",
    scatter_max,
    maximum,
    lowest,
    {"what": "maximum", "empty": "-inf, of integers the least", "shown": "[1, 3, 4]"},
)
segment_min = _segment(
    "min",
    scatter_min,
    minimum,
    highest,
    {"what": "minimum", "empty": "inf, of integers the greatest", "shown": "[0, 2, 4]"},
)
