"""Functions with derivative rules of their own, by the names of `jax.custom_derivatives`."""

from __future__ import annotations

from typing import Any

from funcgrad import tree
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import zeros
from funcgrad.transforms.derivatives.custom import (
    CustomVJPPrimal,
    SymbolicZero,
    closure_convert,
    custom_jvp,
    custom_vjp,
)
from funcgrad.transforms.derivatives.forms import custom_gradient

__all__ = [
    "CustomVJPPrimal", "SymbolicZero", "closure_convert", "custom_gradient", "custom_jvp",
    "custom_vjp", "custom_vjp_primal_tree_values", "zero_from_primal",
]  # fmt: skip


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Zero tangents of a value (a pytree): arrays, or `SymbolicZero`s.

    >>> zero_from_primal(2.0)
    Array(0., dtype=float32)
    """
    make = SymbolicZero if symbolic_zeros else zeros
    return tree.map(lambda x: make(aval_of(x).tangent()), val)


def custom_vjp_primal_tree_values(tree_: Any) -> Any:
    """The values of a pytree of `CustomVJPPrimal`s, as forward rules with symbolic zeros get them.

    >>> custom_vjp_primal_tree_values({"x": CustomVJPPrimal(1.0, perturbed=True)})
    {'x': 1.0}
    """
    return tree.map(
        lambda leaf: leaf.value, tree_, is_leaf=lambda leaf: isinstance(leaf, CustomVJPPrimal)
    )
