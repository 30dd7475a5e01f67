"""Arguments whose values a function needs, because they say how many elements its result has."""

from __future__ import annotations

from typing import Any

import numpy as np
from funcgrad.core.trace import Tracer
from funcgrad.errors import ConcretizationError
from funcgrad.ops.index_plan import known


def is_known(x: Any) -> bool:
    """Whether the value of an array is known now, so that shapes may depend on it."""
    return not isinstance(x, Tracer) or x.concrete() is not None


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


def size_hint(name: str) -> str:
    """What to do about a result whose length depends on values.

    >>> size_hint("nonzero")
    'Give the length of the result: nonzero(..., size=n) pads or cuts to n elements.'
    """
    return f"Give the length of the result: {name}(..., size=n) pads or cuts to n elements."
