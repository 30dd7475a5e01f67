"""Leaves of a tree of parameters by their names, and rules that choose some of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from funcgrad import tree
from funcgrad.core.types import Tree
from funcgrad.errors import ArgumentError
from funcgrad.transforms.weights.weight import is_weight


def leaf_name(path: tree.KeyPath) -> str:
    """A leaf's name, for rules and messages: its keys, with dots between.

    >>> leaf_name((tree.DictKey("layers"), tree.SequenceKey(0), tree.DictKey("w")))
    'layers.0.w'
    """
    return tree.keystr(path, simple=True, separator=".") or "params"


def named_leaves(params: Tree) -> dict[str, Tree]:
    """The leaves of a tree of parameters by their names; weights are leaves.

    >>> list(named_leaves({"a": {"w": 1.0}, "b": [2.0]}))
    ['a.w', 'b.0']
    """
    return {leaf_name(p): x for p, x in tree.leaves_with_path(params, is_leaf=is_weight)}


def with_leaves(params: Tree, leaves: Mapping[str, Tree]) -> Tree:
    """The tree with other leaves in place of those of these names."""
    return tree.map_with_path(
        lambda path, x: leaves.get(leaf_name(path), x), params, is_leaf=is_weight
    )


def matching(
    what: str,
    leaves: Iterable[str],
    rules: str | Sequence[str],
    ops: Mapping[str, Collection[str]] | None = None,
) -> dict[str, bool]:
    """The names of leaves in which one of the regular expressions is found, and whether one is: a
    rule that is found in none may be an op's name, whole, and chooses the leaves that go there.
    ops: those by leaf; empty where nobody knows them, None where they don't count.

    >>> matching("lora", ["a.w", "b"], "w$")
    {'a.w': True}
    >>> matching("quantize", ["a.w", "b"], ["w$", "add"], {"a.w": {"dot_general"}, "b": {"add"}})
    {'a.w': True, 'b': False}
    """
    leaves, by_leaf = list(leaves), ops or {}
    chosen: dict[str, bool] = {}
    for rule in (rules,) if isinstance(rules, str) else rules:
        try:
            named = [name for name in leaves if re.search(rule, name)]
            used = [n for n in leaves if any(re.fullmatch(rule, op) for op in by_leaf.get(n, ()))]
        except (re.error, TypeError):
            raise ArgumentError(f"{what}: the rule {rule!r} is no regular expression") from None
        if not named and not used:
            rest = "" if ops is None else "; rules may name ops where there are inputs of a call"
            if ops:
                found = sorted({op for each in ops.values() for op in each})
                rest = f", nor of the ops that these go to, {listed(found)}"
            raise ArgumentError(
                f"{what}: the rule {rule!r} matches none of the parameters {listed(leaves)}{rest}"
            )
        for name in named or used:
            chosen[name] = chosen.get(name, False) or bool(named)
    return {name: chosen[name] for name in leaves if name in chosen}


def listed(names: Iterable[str]) -> str:
    """Names in a message, not too many of them.

    >>> listed(["a", "b"])
    'a, b'
    """
    names = list(names)
    return ", ".join(names[:20]) + (f", … ({len(names)} in all)" if len(names) > 20 else "")
