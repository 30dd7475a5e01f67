"""Columns of lists, as Apache Arrow keeps them: values and offsets, without a loop over rows.

Arrow's objects are used by what they offer, so that the package itself is never imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.errors import ArgumentError, DTypeError


def lists_of(where: str, column: Any) -> tuple[np.ndarray, np.ndarray]:
    """(values, lengths) of a column of lists, of single values, or of a pair (values, offsets)."""
    if isinstance(column, tuple):
        return _between(where, *column)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "chunks"):  # a column without chunks stays one
        column = column.chunk(0) if column.num_chunks else column
    if hasattr(column, "value_lengths"):
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        return _numbers(where, column.flatten()), lengths.astype(np.int32)
    values = _numbers(where, column)
    if values.ndim != 1:
        raise ArgumentError(f"{where}: a column of single values must have one axis")
    return values, np.ones(len(values), np.int32)


def _numbers(where: str, values: Any) -> np.ndarray:
    """The values of a column that has no missing ones."""
    if getattr(values, "null_count", 0):
        missing = values.is_null().to_numpy(zero_copy_only=False)
        raise ArgumentError(f"{where}: value {int(np.argmax(missing))} is missing")
    to_numpy = getattr(values, "to_numpy", None)
    found = np.asarray(values) if to_numpy is None else to_numpy(zero_copy_only=False)
    if not np.issubdtype(found.dtype, np.integer):
        raise DTypeError(f"{where}: need integers or lists of them, got {found.dtype}")
    return found


def _between(where: str, values: Any, offsets: Any) -> tuple[np.ndarray, np.ndarray]:
    """A list for each two neighbours of the offsets; they may begin behind the first value."""
    values, offsets = _numbers(where, values), np.asarray(offsets)
    if offsets.ndim != 1 or not offsets.size or not np.issubdtype(offsets.dtype, np.integer):
        raise ArgumentError(f"{where}: offsets must be (rows + 1,) integers, got {offsets!r}")
    lengths = np.diff(offsets)
    if (lengths < 0).any():
        i = int(np.argmax(lengths < 0))
        raise ArgumentError(f"{where}: offsets decrease from {offsets[i]} at {i}")
    if offsets[0] < 0 or offsets[-1] > len(values):
        raise ArgumentError(
            f"{where}: offsets reach from {offsets[0]} to {offsets[-1]}, but there are "
            f"{len(values)} values"
        )
    return values[offsets[0] : offsets[-1]], lengths.astype(np.int32)
