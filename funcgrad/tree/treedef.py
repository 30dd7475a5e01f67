"""The structure of a tree, and the walk that finds it.

A structure met before is found again, so that equal trees mostly share one `PyTreeDef`: then
equality is identity, the hash is known, and a cache lookup by structure costs next to nothing.
"""

import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from funcgrad.errors import TreeError
from funcgrad.tree.differences import Side, at, child_keys, raise_difference, same_data
from funcgrad.tree.keypath import KeyPath
from funcgrad.tree.kinds import (
    DICT,
    KINDS,
    LIST,
    NONE,
    TUPLE,
    Kind,
    UnsortableKeys,
    kind_of,
    leaf_types,
    remember,
    table,
)

IsLeaf = Callable[[Any], bool] | None
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str})


class PyTreeDef:
    """The structure of a tree: its nodes, with a place for each leaf.

    Immutable, comparable, and hashable where the metadata of its nodes is.

    >>> tree.structure({"b": [1, 2], "a": None})
    PyTreeDef({'a': None, 'b': [*, *]})
    """

    __slots__ = (
        "__weakref__",
        "_arity",
        "_build",
        "_data",
        "_hash",
        "_kind",
        "_num_leaves",
        "_num_nodes",
        "_plain",
    )

    def __init__(self, kind: Kind | None, data: Any, arity: "int | tuple[PyTreeDef, ...]"):
        self._kind = kind
        self._data = data
        self._arity = arity  # the children, or their number where all of them are leaves
        self._hash: int | None = None
        self._plain = _is_plain(data)  # holds no object that a user might want to see freed
        self._build: Callable[[Iterator], Any]
        if kind is None:
            self._num_leaves = self._num_nodes = 1
            self._build = next
        elif isinstance(arity, int):
            self._num_leaves, self._num_nodes = arity, arity + 1
            self._build = _leaves_builder(kind, data, arity)
        else:
            self._num_leaves = sum([child._num_leaves for child in arity])
            self._num_nodes = sum([child._num_nodes for child in arity]) + 1
            self._plain = self._plain and all(child._plain for child in arity)
            self._build = _node_builder(kind.unflatten, data, [child._build for child in arity])

    @property
    def num_leaves(self) -> int:
        """The number of leaves.

        >>> tree.structure({"a": [1, 2], "b": None}).num_leaves
        2
        """
        return self._num_leaves

    @property
    def num_nodes(self) -> int:
        """The number of nodes, leaves included.

        >>> tree.structure({"a": [1, 2], "b": None}).num_nodes
        5
        """
        return self._num_nodes

    def children(self) -> "list[PyTreeDef]":
        """The structures of the node's children; a leaf has none.

        >>> tree.structure({"a": [1, 2], "b": None}).children()
        [PyTreeDef([*, *]), PyTreeDef(None)]
        """
        return [LEAF] * self._arity if isinstance(self._arity, int) else [*self._arity]

    def node_data(self) -> tuple[type, Any] | None:
        """The class of the node and its metadata; None for a leaf.

        >>> tree.structure({"a": [1, 2], "b": None}).node_data()
        (<class 'dict'>, ('a', 'b'))
        """
        return None if self._kind is None else (self._kind.cls, self._data)

    def paths(self) -> list[KeyPath]:
        """The key path of each leaf, in order: what `flatten_with_path` gives for a tree.

        >>> [tree.keystr(path) for path in tree.structure({"a": [1, 2], "b": None}).paths()]
        ["['a'][0]", "['a'][1]"]
        """
        if self._kind is None:
            return [()]
        pairs = zip(child_keys(self), self.children(), strict=True)
        return [(key, *path) for key, child in pairs for path in child.paths()]

    def unflatten(self, leaves: Iterable) -> Any:
        """The tree of this structure with the given leaves; the inverse of `flatten`.

        Raises TreeError for another number of leaves.

        >>> tree.structure([0, (0, 0)]).unflatten("abc")
        ['a', ('b', 'c')]
        """
        if not isinstance(leaves, (list, tuple)):
            leaves = list(leaves)
        if len(leaves) != self._num_leaves:
            raise TreeError(
                f"tree.unflatten: {self} has {self._num_leaves} leaves, {len(leaves)} were given"
            )
        return self._build(iter(leaves))

    def flatten_up_to(self, tree: Any) -> list:
        """The subtrees of `tree` at the places of this structure's leaves.

        Raises TreeError, with the path, where `tree` lacks a node of this structure.

        >>> tree.structure([0, 0]).flatten_up_to([{"a": 1}, 2])
        [{'a': 1}, 2]
        """
        return flatten_up_to(self, tree, Side("the prefix", self), "the tree")

    def compose(self, inner: "PyTreeDef") -> "PyTreeDef":
        """This structure with another one at the place of each leaf.

        >>> tree.structure([0, 0]).compose(tree.structure((0, None)))
        PyTreeDef([(*, None), (*, None)])
        """
        if self._kind is None:
            return inner
        if inner._kind is None or not self._num_leaves:
            return self
        children = tuple(child.compose(inner) for child in self.children())
        return _find(self._kind, self._data, children)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PyTreeDef):
            return NotImplemented
        if self._kind is not other._kind or self._num_leaves != other._num_leaves:
            return False
        if self._kind is None:
            return True
        return same_data(self._kind, self._data, other._data) and self._arity == other._arity

    def __hash__(self) -> int:
        if self._hash is None:
            try:
                data_hash = hash(self._data)
            except TypeError as e:
                label = self._kind.label if self._kind else "leaf"
                raise TypeError(
                    f"tree: the metadata of a {label} node must be hashable here ({e}): an array "
                    "belongs in a child (a data field), where it is a leaf"
                ) from None
            self._hash = hash((self._kind, data_hash, self._arity))
        return self._hash

    def __repr__(self) -> str:
        return f"PyTreeDef({_show(self)})"

    def __reduce__(self) -> tuple:
        cls = None if self._kind is None else self._kind.cls
        return _unpickled, (cls, self._data, self._arity)


def _is_plain(data: Any) -> bool:
    if type(data) is tuple:
        return all(_is_plain(x) for x in data)
    return type(data) in _PLAIN_TYPES


def _leaves_builder(kind: Kind, data: Any, n: int) -> Callable[[Iterator], Any]:
    # The most frequent nodes without a call for each.
    if kind is DICT:
        return lambda leaves: dict(zip(data, leaves, strict=False))
    if kind is LIST:
        return lambda leaves: list(islice(leaves, n))
    if kind is TUPLE:
        return lambda leaves: tuple(islice(leaves, n))
    unflatten = kind.unflatten
    return lambda leaves: unflatten(data, tuple(islice(leaves, n)))


def _node_builder(unflatten: Callable, data: Any, builds: list) -> Callable[[Iterator], Any]:
    return lambda leaves: unflatten(data, tuple([build(leaves) for build in builds]))


LEAF = PyTreeDef(None, None, 0)


def _unpickled(cls: type | None, data: Any, arity: int | tuple[PyTreeDef, ...]) -> PyTreeDef:
    if cls is None:
        return LEAF
    kind = kind_of(cls)
    if kind is None:
        raise TreeError(f"PyTreeDef: {cls.__name__} is not registered as a pytree node here")
    return _find(kind, data, arity)


def _show(treedef: PyTreeDef) -> str:
    kind, data = treedef._kind, treedef._data
    if kind is None:
        return "*"
    if kind is NONE:
        return "None"
    children = [_show(child) for child in treedef.children()]
    inside = ", ".join(children)
    if kind is TUPLE:
        return f"({inside},)" if len(children) == 1 else f"({inside})"
    if kind is LIST:
        return f"[{inside}]"
    if kind is DICT:
        entries = zip(data, children, strict=True)
        return "{" + ", ".join(f"{key!r}: {child}" for key, child in entries) + "}"
    inner = kind.cls.__name__ if kind.label == "namedtuple" else data
    return f"CustomNode({kind.label}[{inner}], [{inside}])"


# Plain structures are kept for later (up to the bound of `remember`). Others, whose metadata may be
# a closure and all that it captured, live only as long as someone uses them.
_plain = table()
_others: weakref.WeakValueDictionary[tuple, PyTreeDef] = weakref.WeakValueDictionary()


def _find(kind: Kind, data: Any, arity: int | tuple[PyTreeDef, ...]) -> PyTreeDef:
    """The structure with this node on top: one met before, if it holds the very same objects.

    Equal objects are not enough: metadata 1.0 equals 1, and unflatten gives back what it was given.
    Children are known by their ids, which stay theirs as long as the structure found holds them.
    """
    key = (kind, data, arity if isinstance(arity, int) else tuple(map(id, arity)))
    try:
        found = _plain.get(key) or _others.get(key)
    except TypeError:  # unhashable metadata
        return PyTreeDef(kind, data, arity)
    if found is not None and (found._data is data or _same_items(found._data, data)):
        return found
    made = PyTreeDef(kind, data, arity)
    if made._plain:
        remember(_plain, key, made, 1 if isinstance(arity, int) else len(arity))
    else:
        _others[key] = made
    return made


def _same_items(a: Any, b: Any) -> bool:
    both = type(a) is tuple and type(b) is tuple
    return both and len(a) == len(b) and all(map(operator.is_, a, b))


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list, PyTreeDef]:
    """The leaves of a tree, in order (dicts by sorted key), and its structure.

    `is_leaf(subtree)` may stop the descent early. Raises TreeError, with the path, where the keys
    of a dict can't be sorted, and RecursionError where it is nested too deep.

    >>> tree.flatten({"b": (1, 2), "a": 3})
    ([3, 1, 2], PyTreeDef({'a': *, 'b': (*, *)}))
    """
    if type(tree) in leaf_types:
        return [tree], LEAF
    found: list = []
    try:
        return found, _flatten(tree, found, is_leaf)
    except UnsortableKeys:
        for _ in walk_with_path(tree, (), is_leaf and (lambda path, x: is_leaf(x))):
            pass  # until it raises, since it knows the path
        raise
    except RecursionError:
        raise RecursionError(
            f"tree.flatten: this {type(tree).__name__} is nested deeper than Python's stack goes "
            f"(sys.getrecursionlimit() is {sys.getrecursionlimit()}, two for a level), or holds "
            "itself; put what it holds into one list"
        ) from None


def structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree.

    >>> tree.structure([1, None])
    PyTreeDef([*, None])
    """
    return flatten(tree, is_leaf)[1]


def _flatten(tree: Any, leaves: list, is_leaf: IsLeaf) -> PyTreeDef:
    cls = type(tree)
    kind = KINDS.get(cls)
    if kind is None and (cls in leaf_types or (kind := kind_of(cls)) is None):
        leaves.append(tree)
        return LEAF
    if is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return LEAF
    if kind is TUPLE:
        children, data = tree, None
    else:
        children, data = kind.flatten(tree)
        children = tuple(children)
    # Where all children are leaves, no Python runs for each of them.
    if leaf_types.issuperset(map(type, children)):
        leaves.extend(children)
        if data is None or kind is DICT:
            found = _plain.get((kind, data, len(children)))
            if found is not None and found._data is data:
                return found
        return _find(kind, data, len(children))
    arity = tuple([_flatten(child, leaves, is_leaf) for child in children])
    only_leaves = arity[-1] is LEAF and all(child is LEAF for child in arity)
    return _find(kind, data, len(arity) if only_leaves else arity)


def walk_with_path(
    tree: Any, path: KeyPath = (), is_leaf: Callable[[KeyPath, Any], bool] | None = None
) -> Iterator[tuple[KeyPath, Any]]:
    """The pairs of key path and leaf of a tree, in order; is_leaf(path, node) may end it above."""
    kind = kind_of(type(tree))
    if kind is None or (is_leaf is not None and is_leaf(path, tree)):
        yield path, tree
        return
    try:
        children, data = kind.flatten(tree)
    except UnsortableKeys:
        types = ", ".join(sorted({type(key).__name__ for key in tree}))
        raise TreeError(
            f"tree: the keys of the dict {at(path)} can't be sorted: '<' not supported between "
            f"them, as their types are {types}"
        ) from None
    if kind.keyed_children is not None:
        pairs = kind.keyed_children(tree)
    else:
        children = tuple(children)
        pairs = zip(kind.keys(data, len(children)), children, strict=True)
    for key, child in pairs:
        yield from walk_with_path(child, (*path, key), is_leaf)


def flatten_up_to(treedef: PyTreeDef, tree: Any, side: Side, name: str, where: str = "") -> list:
    """As the method of `PyTreeDef`, where the error names the two sides and the operation."""
    subtrees: list = []
    if not _flatten_up_to(treedef, tree, subtrees):
        flat, other = flatten(tree)
        raise_difference(side, Side(name, other, flat), prefix=True, where=where)
    return subtrees


def _flatten_up_to(treedef: PyTreeDef, tree: Any, subtrees: list) -> bool:
    """Collects the subtrees; False where the tree lacks a node that the structure has."""
    kind, arity = treedef._kind, treedef._arity
    if kind is None:
        subtrees.append(tree)
        return True
    if type(tree) is not kind.cls:
        return False
    try:
        children, data = kind.flatten(tree)
    except UnsortableKeys:
        return False
    children = tuple(children)
    if not (data is treedef._data or same_data(kind, data, treedef._data)):
        return False
    if isinstance(arity, int):
        subtrees.extend(children)
        return len(children) == arity
    return len(children) == len(arity) and all(
        _flatten_up_to(*pair, subtrees) for pair in zip(arity, children, strict=True)
    )
