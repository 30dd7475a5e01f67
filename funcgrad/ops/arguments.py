"""Static arguments of ops: sequences of integers and axes, checked in the user's terms."""

from __future__ import annotations

import operator
from typing import Any

from funcgrad.errors import AxisError, ConcretizationError, ShapeError, within

_MOST = (1 << 63) - 1


def integer(argument: str, value: Any) -> int:
    """A static integer, or an error naming the function that was called and the argument."""
    try:
        found = operator.index(value)
    except ConcretizationError:
        raise
    except TypeError as e:
        raise TypeError(within(f"{argument} must be an integer, got {value!r}")) from e
    if abs(found) > _MOST:
        raise OverflowError(within(f"{argument} is {found}, which 64 bits can't hold"))
    return found


def items_of(argument: str, values: Any) -> list:
    """What a sequence holds, or an error naming the function that was called and the argument."""
    try:
        return list(values)
    except ConcretizationError:
        raise
    except TypeError as e:
        raise TypeError(within(f"{argument} must be a sequence, got {values!r}")) from e


def check_callable(argument: str, function: Any) -> None:
    """Raise for what can't be called, naming the function that was called and the argument."""
    if not callable(function):
        raise TypeError(within(f"{argument} must be a function, got {function!r}"))


def integers(name: str, argument: str, values: Any) -> tuple[int, ...]:
    """A static sequence of integers as a tuple of ints, or an error naming the argument."""
    try:
        found = tuple(map(operator.index, values))
    except ConcretizationError:
        raise
    except TypeError as e:
        raise TypeError(within(f"{name}: {argument} must be integers, got {values!r}")) from e
    if max(map(abs, found), default=0) > _MOST:
        raise OverflowError(within(f"{name}: {argument} are {found}, which 64 bits can't hold"))
    return found


def sizes_of(name: str, argument: str, values: Any) -> tuple[int, ...]:
    """One integer or a sequence of them, as a tuple."""
    one = isinstance(values, int) or getattr(values, "ndim", None) == 0
    return integers(name, argument, (values,) if one else values)


def shape_of(name: str, shape: Any, argument: str = "shape") -> tuple[int, ...]:
    """A shape given as an integer or a sequence of them, as a tuple of sizes."""
    sizes = sizes_of(name, argument, shape)
    if min(sizes, default=0) < 0:
        raise ShapeError(f"{name}: {argument} {sizes} has a negative size")
    return sizes


def canonical_axis(name: str, axis: Any, ndim: int) -> int:
    """A non-negative axis, or an error naming the op."""
    try:
        axis = operator.index(axis)
    except ConcretizationError:
        raise
    except TypeError as e:
        raise TypeError(within(f"{name}: axis must be an integer, got {axis!r}")) from e
    if not -ndim <= axis < ndim:
        raise AxisError(f"{name}: axis {axis} is out of range for an operand of {ndim} axes")
    return axis + ndim if axis < 0 else axis


def canonical_axes(name: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """Distinct non-negative axes, in the given order."""
    axes = tuple(canonical_axis(name, a, ndim) for a in integers(name, "dimensions", axes))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: axes {axes} are not distinct")
    return axes
