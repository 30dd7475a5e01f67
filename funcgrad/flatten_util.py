"""Pytrees as vectors: `ravel_pytree`, for optimizers and solvers that know only vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core.context import current
from funcgrad.core.trace import aval_of
from funcgrad.errors import DTypeError, ShapeError

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The leaves of a pytree in one vector, and the function that makes such a pytree of a vector.

    The vector has the dtype that the leaves promote to; what is made of it has theirs again. The
    function raises for vectors of another shape or dtype.

    >>> from funcgrad.flatten_util import ravel_pytree
    >>> flat, unravel = ravel_pytree({"a": fnp.ones((2, 2)), "b": 3})
    >>> flat
    Array([1., 1., 1., 1., 3.], dtype=float32)
    >>> unravel(2 * flat)["b"]
    Array(6, dtype=int32)
    """
    leaves, treedef = tree.flatten(pytree)
    arrays = [fnp.asarray(leaf) for leaf in leaves]
    joint = fnp.result_type(*(x.dtype for x in arrays)) if arrays else current().float_dtype
    parts = [fnp.ravel(x).astype(joint) for x in arrays]
    flat = fnp.concatenate(parts) if parts else fnp.zeros(0, joint)
    ends = [0, *itertools.accumulate(x.size for x in arrays)]
    types = [(x.shape, x.dtype) for x in arrays]

    def unravel(vector: Any) -> Any:
        aval = aval_of(vector)
        if aval.shape != (ends[-1],):
            raise ShapeError(f"unravel: need a vector of shape ({ends[-1]},), got {aval}")
        if aval.dtype != joint:
            raise DTypeError(f"unravel: need a vector of dtype {joint}, got {aval}")
        pieces = [
            fnp.reshape(vector[start:stop], shape).astype(dtype)
            for start, stop, (shape, dtype) in zip(ends, ends[1:], types, strict=False)
        ]
        return treedef.unflatten(pieces)

    return flat, unravel
