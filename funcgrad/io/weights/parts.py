"""Arrays of files as arrays that are cut over devices: a process reads its own parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel.arrays import make_array_from_callback
from funcgrad.sharding import NamedSharding

# How an array of this name and type is cut; None: not at all.
Shardings = Callable[[str, ShapeDtypeStruct], NamedSharding | None]


class Blocks(NamedTuple):
    """Floats that lie in blocks along the last axis: what is asked for of them is computed then.

    raw: the bytes, (…, blocks, bytes of one); meaning: these as floats
    """

    shape: tuple[int, ...]
    raw: np.ndarray
    meaning: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype = np.dtype("float32")

    def part(self, index: tuple[slice, ...]) -> np.ndarray:
        """Some of it, by a slice an axis."""
        *_, blocks, width = self.raw.shape
        start, stop, _ = index[-1].indices(self.shape[-1])
        numbers = max(self.shape[-1] // max(blocks, 1), 1)  # of a block
        first = start // numbers
        rows = self.raw[index[:-1]][..., first : -(-stop // numbers), :]
        found = self.meaning(rows.reshape(rows.size // width, width)).astype(self.dtype)
        found = found.reshape(*rows.shape[:-2], rows.shape[-2] * numbers)
        return found[..., start - first * numbers : stop - first * numbers]

    def whole(self) -> np.ndarray:
        """All of it."""
        return self.part((slice(None),) * len(self.shape))


def placed(
    arrays: Mapping[str, np.ndarray | Blocks], shardings: Shardings | None
) -> dict[str, Any]:
    """Arrays as shardings say, whole ones where these give None (or there are none)."""
    if shardings is not None and not callable(shardings):
        raise ArgumentError(
            "shardings must be a function of an array's name and type, got "
            f"{type(shardings).__name__}"
        )
    return {name: _placed(name, x, shardings) for name, x in arrays.items()}


def _placed(name: str, x: np.ndarray | Blocks, shardings: Shardings | None) -> Any:
    how = None if shardings is None else shardings(name, ShapeDtypeStruct(x.shape, x.dtype))
    if how is None:
        return x.whole() if isinstance(x, Blocks) else x
    if not isinstance(how, NamedSharding):
        raise ArgumentError(f"shardings of {name} must be a NamedSharding or None, got {how!r}")
    read = x.part if isinstance(x, Blocks) else x.__getitem__
    try:
        return make_array_from_callback(x.shape, how, lambda index: np.array(read(index)), x.dtype)
    except ShardingError as error:
        raise ShardingError(f"shardings of {name}: {error}") from None
