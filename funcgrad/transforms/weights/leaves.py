"""Leaves of a tree of parameters by their names, and rules that choose some of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

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


def matching(what: str, leaves: Iterable[str], rules: str | Sequence[str]) -> list[str]:
    """The names of leaves in which one of the regular expressions is found.

    >>> matching("lora", ["a.w", "b"], "w$")
    ['a.w']
    """
    leaves = list(leaves)
    chosen: set[str] = set()
    for rule in (rules,) if isinstance(rules, str) else rules:
        try:
            now = [name for name in leaves if re.search(rule, name)]
        except (re.error, TypeError):
            raise ArgumentError(f"{what}: the rule {rule!r} is no regular expression") from None
        if not now:
            raise ArgumentError(
                f"{what}: the rule {rule!r} matches none of the parameters {listed(leaves)}"
            )
        chosen |= set(now)
    return [name for name in leaves if name in chosen]


def listed(names: Iterable[str]) -> str:
    """Names in a message, not too many of them.

    >>> listed(["a", "b"])
    'a, b'
    """
    names = list(names)
    return ", ".join(names[:20]) + (f", … ({len(names)} in all)" if len(names) > 20 else "")
