"""Arguments of SciPy's functions: arrays of one floating-point dtype that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.aval import promote
from funcgrad.core.context import current
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError


def float_arrays(args: Sequence[Any]) -> list:
    """Arguments as arrays of one floating-point dtype, each of its own shape."""
    arrays = [fnp.asarray(a) for a in args]
    dtype, _ = promote([aval_of(a) for a in arrays])
    if not dtypes.is_inexact(dtype):
        dtype = current().float_dtype
    # From what was given: a Python number has more digits than the default float.
    return [
        a if a.dtype == dtype else fnp.asarray(x, dtype) for a, x in zip(arrays, args, strict=True)
    ]


def operands(function: str, args: Sequence[Any]) -> list:
    """Arguments of a function as arrays of one floating-point dtype and one shape."""
    arrays = float_arrays(args)
    try:
        return _of_one_shape(arrays)
    except ValueError:
        shapes = ", ".join(str(a.shape) for a in arrays)
        raise ShapeError(f"{function}: these shapes don't broadcast: {shapes}") from None


def _of_one_shape(arrays: list) -> list:
    """Scalars stay scalars."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return [fnp.broadcast_to(a, shape) if a.shape not in ((), shape) else a for a in arrays]


def real_array(function: str, name: str, value: Any) -> Any:
    """An argument as a real array, or an error that names it."""
    try:
        array = fnp.asarray(value)
    except (ArgumentError, OverflowError) as e:
        raise ArgumentError(f"{function}: {name}: {e}") from None
    if dtypes.is_complex(array.dtype):
        raise DTypeError(f"{function}: {name} must be real, got {array.dtype}")
    return array


def real_operands(function: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function, by name, as real arrays that broadcast, or an error that says
    which of them is none."""
    for name, value in given.items():
        real_array(function, name, value)
    arrays = float_arrays(list(given.values()))
    try:
        return dict(zip(given, _of_one_shape(arrays), strict=True))
    except ValueError:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in zip(given, arrays, strict=True))
        raise ShapeError(f"{function}: these shapes don't broadcast: {shapes}") from None
