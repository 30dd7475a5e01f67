"""Arguments whose values a function needs, because they say how many elements its result has."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core.trace import is_known
from funcgrad.errors import ConcretizationError
from funcgrad.ops import cumulative
from funcgrad.ops import shape as ops
from funcgrad.ops.base import full, position_dtype
from funcgrad.ops.elementwise.convert import convert_element_type, select_n
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.ops.indexing.plan import known


def unknown_error(name: str, argument: str, x: Any, instead: str) -> ConcretizationError:
    """The error for a traced argument that a result's shape depends on.

    `instead` says what makes the shape static.
    """
    return ConcretizationError(
        f"{name}: the shape of the result depends on the value of `{argument}`, but {argument} "
        f"{x.aval} is unknown while the function is traced. {instead} {x.origin()}"
    )


def concrete(name: str, argument: str, x: Any, instead: str) -> np.ndarray:
    """The value of an argument that a result's shape depends on, or the error for unknown ones."""
    value = known(x)
    if value is None:
        raise unknown_error(name, argument, x, instead)
    return value


def first_true(mask: Any, count: int) -> Any:
    """The positions of the first `count` true elements of a vector; where there are less, any."""
    kind = position_dtype(max(mask.shape[0], count))
    place = ops.iota(kind, mask.shape[0])
    rank = cumulative.cumsum(convert_element_type(mask, kind))
    # Element number r (from 1) goes to place r - 1; the others are dropped.
    target = select_n(mask, np.asarray(count, kind), rank - 1)
    return index_update(full((count,), 0, kind), target, place, "set", mode="drop")


def along(x: Any, positions: Any, axis: int = 0) -> Any:
    """The elements at positions of an axis that all lie inside it."""
    mode = None if is_known(positions) else "promise_in_bounds"
    return index(x, (slice(None),) * axis + (positions,), mode=mode)
