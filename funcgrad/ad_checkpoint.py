"""What is kept for the backward pass, by the names of `jax.ad_checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Eqn, Jaxpr, Literal
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.transforms.arguments import FlatFunction, check_leaves, leaf_names, name_of
from funcgrad.transforms.derivatives.checkpoint import (
    checkpoint,
    checkpoint_name,
    checkpoint_policies,
    name_p,
)
from funcgrad.transforms.derivatives.linear import vjp

__all__ = [
    "checkpoint", "checkpoint_name", "checkpoint_policies", "print_saved_residuals",
    "saved_residuals",
]  # fmt: skip


def saved_residuals(f: Callable, *args: Any, **kwargs: Any) -> list[tuple[ShapedArray, str]]:
    """What the backward pass of `f` at some arguments keeps: types, and where each comes from.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> fg.ad_checkpoint.saved_residuals(lambda x: fnp.sin(x) * 2.0, fnp.ones(3))
    [(f32[3], 'the result of cos, from <doctest ...[1]>:1')]
    """
    check_leaves("saved_residuals", f, args, kwargs)
    leaves, in_tree = tree.flatten((args, kwargs))

    def residuals(*leaves: Any) -> list:
        def flat(*leaves: Any) -> list:
            return FlatFunction("saved_residuals", f, in_tree)(*leaves)

        return tree.leaves(vjp(flat, *leaves)[1])

    names = leaf_names(f, args, kwargs)
    what = f"the residuals of {name_of(f)}"
    jaxpr, captured = stage(residuals, [aval_of(x) for x in leaves], what, names)
    return _described(jaxpr, len(captured), names)


def _described(jaxpr: Jaxpr, captured: int, names: list[str]) -> list[tuple[ShapedArray, str]]:
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outs}
    places = {var: i - captured for i, var in enumerate(jaxpr.ins)}
    found = []
    for atom in dict.fromkeys(jaxpr.outs):
        if isinstance(atom, Literal):
            text = "a number"
        elif atom in places:
            place = places[atom]
            text = f"the argument {names[place]}" if place >= 0 else "a captured array"
        else:
            text = _origin(made_by[atom])
        found.append((atom.aval, text))
    return found


def _origin(eqn: Eqn) -> str:
    what = f"named {eqn.params['name']!r}" if eqn.prim is name_p else f"the result of {eqn.prim}"
    return what if eqn.source is None else f"{what}, from {eqn.source.file}:{eqn.source.line}"


def print_saved_residuals(f: Callable, *args: Any, **kwargs: Any) -> None:
    """Print what `saved_residuals` finds, a line each.

    >>> import funcgrad as fg
    >>> fg.ad_checkpoint.print_saved_residuals(lambda x, y: x * y, 2.0, 3.0)
    f32[] the argument y
    f32[] the argument x
    """
    for aval, text in saved_residuals(f, *args, **kwargs):
        print(aval, text)
