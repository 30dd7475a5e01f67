"""Static arguments of ops: sequences of integers and axes, checked in the user's terms."""

from __future__ import annotations

import operator
from typing import Any

from funcgrad.errors import ShapeError, within


def integers(name: str, argument: str, values: Any) -> tuple[int, ...]:
    """A static sequence of integers as a tuple of ints, or an error naming the argument."""
    try:
        return tuple(map(operator.index, values))
    except TypeError as e:
        if hasattr(values, "aval") or any(hasattr(v, "aval") for v in _iterable(values)):
            raise
        raise TypeError(within(f"{name}: {argument} must be integers, got {values!r}")) from e


def sizes_of(name: str, argument: str, values: Any) -> tuple[int, ...]:
    """One integer or a sequence of them, as a tuple."""
    if type(values) is int:
        return (values,)
    one = isinstance(values, int) or getattr(values, "ndim", None) == 0
    return integers(name, argument, (values,) if one else values)


def shape_of(name: str, shape: Any, argument: str = "shape") -> tuple[int, ...]:
    """A shape given as an integer or a sequence of them, as a tuple of sizes."""
    sizes = sizes_of(name, argument, shape)
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{name}: {argument} {sizes} has a negative size")
    return sizes


def _iterable(values: Any) -> Any:
    return values if isinstance(values, list | tuple) else ()


def canonical_axis(name: str, axis: Any, ndim: int) -> int:
    """A non-negative axis, or an error naming the op."""
    try:
        axis = operator.index(axis)
    except TypeError as e:
        if hasattr(axis, "aval"):
            raise
        raise TypeError(within(f"{name}: axis must be an integer, got {axis!r}")) from e
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis {axis} is out of range for an operand of {ndim} axes")
    return axis + ndim if axis < 0 else axis


def canonical_axes(name: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """Distinct non-negative axes, in the given order."""
    axes = tuple(canonical_axis(name, a, ndim) for a in integers(name, "dimensions", axes))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: axes {axes} are not distinct")
    return axes
