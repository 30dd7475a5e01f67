"""Leaves of parameters as what rules name: products with one are in a scope of its name."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from funcgrad import tree
from funcgrad.core.settings import named_scope
from funcgrad.core.types import Tree, Value
from funcgrad.transforms.precision.policy import LEAF, Policy
from funcgrad.transforms.weights.applied import with_weights
from funcgrad.transforms.weights.leaves import named_leaves, with_leaves
from funcgrad.transforms.weights.products import Product
from funcgrad.transforms.weights.weight import Cut, Dense


class _Named(Dense):
    """An array whose products are in a scope."""

    def __init__(self, array: Value, scope: str):
        super().__init__(array)
        self.scope = scope

    def product(self, use: Product, x: Value) -> Value:
        with named_scope(self.scope):
            return super().product(use, x)

    def cut(self, axis: int, cut: Cut) -> _Named:
        return _Named(cut(self.array, axis), self.scope)


tree.register_pytree_node(
    _Named, lambda w: ((w.array,), w.scope), lambda scope, arrays: _Named(arrays[0], scope)
)


def labelled(fun: Callable, policy: Policy, args: tuple) -> Callable:
    """fun, where a rule names leaves of its first argument: products with these in scopes of their
    names. Otherwise fun itself.

    >>> policy = Policy.of("bfloat16", "float32", {"exp": "float32"})
    >>> labelled(fnp.exp, policy, (1.0,)) is fnp.exp
    True
    """
    leaves = named_leaves(args[0]) if args and policy.rules else {}
    chosen = {n for n in leaves for pattern, _ in policy.rules if fnmatchcase(n, pattern)}
    if not chosen:
        return fun
    inner = with_weights(fun, what="autocast")

    def call(params: Tree, *inputs: Any, **named: Any) -> Tree:
        own = named_leaves(params)
        weights = {n: _Named(own[n], LEAF + n) for n in own if n in chosen}
        return inner(with_leaves(params, weights), *inputs, **named)

    return call
