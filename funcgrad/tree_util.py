"""Pytrees by the names of `jax.tree_util`: those of `funcgrad.tree`, and what only it has.

>>> from funcgrad import tree_util
>>> tree_util.tree_map(lambda x: x + 1, {"a": 1})
{'a': 2}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from funcgrad.tree import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyPath,
    Partial,
    PyTreeDef,
    SequenceKey,
    keystr,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_static,
)
from funcgrad.tree import all as tree_all
from funcgrad.tree import broadcast as tree_broadcast
from funcgrad.tree import flatten as tree_flatten
from funcgrad.tree import flatten_with_path as tree_flatten_with_path
from funcgrad.tree import leaves as tree_leaves
from funcgrad.tree import leaves_with_path as tree_leaves_with_path
from funcgrad.tree import map as tree_map
from funcgrad.tree import map_with_path as tree_map_with_path
from funcgrad.tree import reduce as tree_reduce
from funcgrad.tree import reduce_associative as tree_reduce_associative
from funcgrad.tree import structure as tree_structure
from funcgrad.tree import transpose as tree_transpose
from funcgrad.tree import unflatten as tree_unflatten
from funcgrad.tree.kinds import kind_of

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Partial", "PyTreeDef",
    "SequenceKey", "all_leaves", "flatten_one_level", "flatten_one_level_with_keys",
    "is_tree_node", "keystr", "register_dataclass", "register_pytree_node",
    "register_pytree_node_class", "register_pytree_with_keys", "register_pytree_with_keys_class",
    "register_static", "tree_all", "tree_broadcast", "tree_flatten", "tree_flatten_with_path",
    "tree_leaves", "tree_leaves_with_path", "tree_map", "tree_map_with_path", "tree_reduce",
    "tree_reduce_associative", "tree_structure", "tree_transpose", "tree_unflatten",
    "treedef_children", "treedef_is_leaf", "treedef_tuple",
]  # fmt: skip

KeyEntry = Any
_C = TypeVar("_C", bound=type)


def all_leaves(iterable: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether each of some objects is a leaf.

    >>> all_leaves([1, "a"]), all_leaves([1, [2]])
    (True, False)
    """
    return all(treedef_is_leaf(tree_structure(x, is_leaf)) for x in iterable)


def is_tree_node(typ: type) -> bool:
    """Whether the instances of a class are nodes.

    >>> is_tree_node(list), is_tree_node(str)
    (True, False)
    """
    return kind_of(typ) is not None


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Any]:
    """The children of a node, and its metadata. Raises ValueError for a leaf.

    >>> flatten_one_level({"b": [1], "a": 2})
    ([2, [1]], ('a', 'b'))
    """
    children, data = _kind_of_node("flatten_one_level", tree).flatten(tree)
    return list(children), data


def flatten_one_level_with_keys(tree: Any) -> tuple[Iterable[tuple[Any, Any]], Any]:
    """Pairs of key and child of a node, and its metadata. Raises ValueError for a leaf.

    >>> flatten_one_level_with_keys([7])
    ([(SequenceKey(idx=0), 7)], None)
    """
    kind = _kind_of_node("flatten_one_level_with_keys", tree)
    children, data = kind.flatten(tree)
    children = list(children)
    if kind.keyed_children is not None:
        return list(kind.keyed_children(tree)), data
    return list(zip(kind.keys(data, len(children)), children, strict=True)), data


def _kind_of_node(what: str, tree: Any) -> Any:
    kind = kind_of(type(tree))
    if kind is None:
        raise ValueError(
            f"tree_util.{what}: can't tree-flatten type {type(tree).__name__}, which is a leaf; "
            f"got {tree!r}"
        )
    return kind


def register_pytree_with_keys_class(cls: _C) -> _C:
    """Decorates a class whose methods `tree_flatten_with_keys` and `tree_unflatten` make it a node.

    >>> @register_pytree_with_keys_class
    ... class Box:
    ...     def __init__(self, x):
    ...         self.x = x
    ...
    ...     def tree_flatten_with_keys(self):
    ...         return [(GetAttrKey("x"), self.x)], None
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, _, children):
    ...         return cls(*children)
    >>> keystr(tree_leaves_with_path([Box(1)])[0][0])
    '[0].x'
    """
    if not hasattr(cls, "tree_flatten_with_keys"):
        raise TypeError(
            f"tree_util.register_pytree_with_keys_class: {cls.__name__} needs a method "
            "tree_flatten_with_keys"
        )
    return register_pytree_node_class(cls)


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures of a node's children.

    >>> treedef_children(tree_structure([1, (2,)]))
    [PyTreeDef(*), PyTreeDef((*,))]
    """
    return treedef.children()


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether a structure is that of a leaf.

    >>> treedef_is_leaf(tree_structure(1)), treedef_is_leaf(tree_structure(None))
    (True, False)
    """
    return treedef.node_data() is None


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple whose children have some structures.

    >>> treedef_tuple([tree_structure(1), tree_structure([2])])
    PyTreeDef((*, [*]))
    """
    parts = [t.unflatten([0] * t.num_leaves) for t in treedefs]
    return tree_structure(tuple(parts))
