"""Functions with derivative rules of their own, by the names of `jax.custom_derivatives`."""

from __future__ import annotations

from typing import Any

from funcgrad import tree
from funcgrad.core.aval import Zero as SymbolicZero
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import instantiate
from funcgrad.transforms.derivatives.custom import closure_convert, custom_jvp, custom_vjp
from funcgrad.transforms.derivatives.forms import custom_gradient

__all__ = [
    "SymbolicZero", "closure_convert", "custom_gradient", "custom_jvp", "custom_vjp",
    "zero_from_primal",
]  # fmt: skip


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Zero tangents of a value (a pytree): arrays, or `SymbolicZero`s.

    >>> zero_from_primal(2.0)
    Array(0., dtype=float32)
    """
    zeros = tree.map(lambda x: SymbolicZero(aval_of(x).tangent()), val)
    if symbolic_zeros:
        return zeros
    return tree.map(instantiate, zeros, is_leaf=lambda x: isinstance(x, SymbolicZero))
