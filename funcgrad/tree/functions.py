"""What one does with trees: map, fold, transpose, broadcast, compare.

In this module `map` and `all` are those of trees; the built-in ones go by `builtins`.
"""

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

from funcgrad.errors import TreeError
from funcgrad.tree.differences import Side, at, child_keys, contrast, raise_difference, same_node
from funcgrad.tree.keypath import KeyPath
from funcgrad.tree.kinds import kind_of
from funcgrad.tree.treedef import (
    IsLeaf,
    PyTreeDef,
    flatten,
    flatten_up_to,
    structure,
    walk_with_path,
)

_ABSENT = object()


def unflatten(treedef: PyTreeDef, leaves: Iterable) -> Any:
    """The tree of structure `treedef` with the given leaves; the inverse of `flatten`.

    Raises TreeError for another number of leaves than the structure has.

    >>> tree.unflatten(tree.structure({"a": 0, "b": [0]}), ["x", "y"])
    {'a': 'x', 'b': ['y']}
    """
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list:
    """The leaves of a tree, in order.

    >>> tree.leaves({"b": (1, 2), "a": 3, "c": None})
    [3, 1, 2]
    """
    return flatten(tree, is_leaf)[0]


def flatten_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """As `flatten`, with each leaf in a pair behind its key path.

    `is_leaf_takes_path`: whether it is is_leaf(path, node), as in the other functions of paths.

    >>> pairs, treedef = tree.flatten_with_path({"a": [1, 2]})
    >>> [(keystr(path), leaf) for path, leaf in pairs]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    if is_leaf is None:
        return [*walk_with_path(tree)], structure(tree)
    decided: list[bool] = []

    def ends(path: KeyPath, node: Any) -> bool:
        decided.append(bool(is_leaf(path, node) if is_leaf_takes_path else is_leaf(node)))
        return decided[-1]

    pairs = [*walk_with_path(tree, (), ends)]
    # The structure's nodes are met in the same order.
    again = iter(decided)
    return pairs, structure(tree, lambda node: kind_of(type(node)) is not None and next(again))


def leaves_with_path(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The pairs of key path and leaf of a tree.

    >>> tree.leaves_with_path((5,))
    [((SequenceKey(idx=0),), 5)]
    """
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of `f(leaf, *what the trees of rest have there)`.

    The trees of `rest` have the structure of `tree`, or whole subtrees where it has leaves;
    otherwise TreeError names the path at which they differ.

    >>> tree.map(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
    {'a': 11, 'b': (22,)}
    """
    flat, treedef = flatten(tree, is_leaf)
    if not rest:
        return treedef.unflatten([f(leaf) for leaf in flat])
    return treedef.unflatten(
        [f(*xs) for xs in zip(flat, *_columns("tree.map: ", flat, treedef, rest), strict=True)]
    )


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[..., bool] | None = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """As `map`, of `f(path, leaf, …)`.

    >>> tree.map_with_path(lambda path, x: keystr(path) + f"={x}", {"a": [1, 2]})
    {'a': ["['a'][0]=1", "['a'][1]=2"]}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = _columns("tree.map_with_path: ", [leaf for _, leaf in pairs], treedef, rest)
    return treedef.unflatten([f(*pair, *xs) for pair, *xs in zip(pairs, *columns, strict=True)])


def _columns(where: str, flat: list, treedef: PyTreeDef, rest: tuple) -> list[list]:
    first = Side("the first tree", treedef, flat)
    return [
        flatten_up_to(treedef, x, first, f"rest[{i}]" if len(rest) > 1 else "the second", where)
        for i, x in enumerate(rest)
    ]


def reduce(
    f: Callable[[Any, Any], Any], tree: Any, initializer: Any = _ABSENT, is_leaf: IsLeaf = None
) -> Any:
    """`f(f(f(initializer, leaf0), leaf1), …)`; without an initializer it starts at the first leaf.

    Raises TypeError for a tree without leaves and without an initializer.

    >>> tree.reduce(lambda x, y: x + y, {"a": 1, "b": [2, 3]})
    6
    """
    start = () if initializer is _ABSENT else (initializer,)
    return functools.reduce(f, leaves(tree, is_leaf), *start)


def reduce_associative(
    operation: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _ABSENT,
    is_leaf: IsLeaf = None,
) -> Any:  # fmt: skip
    """The leaves combined by an associative operation, pairs first: ⌈log₂ n⌉ operations deep.

    identity: the value of a tree without leaves, which is a TypeError otherwise.

    >>> tree.reduce_associative(lambda x, y: x + y, [1, (2, 3), [4, 5, 6]])
    21
    """
    values = leaves(tree, is_leaf)
    if not values:
        if identity is _ABSENT:
            raise TypeError("tree.reduce_associative: a tree without leaves needs identity=")
        return identity
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        rest = values[-1:] if len(values) % 2 else []
        values = [*(operation(x, y) for x, y in pairs), *rest]
    return values[0]


def all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true.

    >>> tree.all([True, {"a": False}])
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: PyTreeDef, inner: PyTreeDef | None, tree: Any) -> Any:
    """Turns an `outer` of `inner`s inside out, into an `inner` of `outer`s.

    `inner=None` takes the structure of the first one. Raises TreeError where `tree` is no such.

    >>> tree.transpose(tree.structure([0, 0]), tree.structure((0, 0, 0)), [(1, 2, 3), (4, 5, 6)])
    ([1, 4], [2, 5], [3, 6])
    """
    where = "tree.transpose: "
    subtrees = flatten_up_to(outer, tree, Side("the outer structure", outer), "the tree", where)
    if inner is None:
        if not subtrees:
            raise TreeError(f"{where}the outer structure has no leaves, so `inner` is needed")
        inner = structure(subtrees[0])
    rows = []
    for i, subtree in enumerate(subtrees):
        row, treedef = flatten(subtree)
        if treedef != inner:
            name = f"the subtree {at(outer.paths()[i])}"
            wanted = Side("the inner structure", inner)
            raise_difference(wanted, Side(name, treedef, row), where=where)
        rows.append(row)
    columns = [[row[i] for row in rows] for i in range(inner.num_leaves)]
    return inner.unflatten([outer.unflatten(column) for column in columns])


def broadcast(prefix: Any, full: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of the structure of `full` whose every leaf is that of `prefix` above it.

    Raises TreeError, with the path, where `prefix` is no prefix of `full`.

    >>> tree.broadcast((1, 2), ({"a": 0, "b": 0}, 0))
    ({'a': 1, 'b': 1}, 2)
    """
    flat, treedef = flatten(prefix, is_leaf)
    side = Side("the prefix", treedef, flat)
    subtrees = flatten_up_to(treedef, full, side, "the full tree", "tree.broadcast: ")
    counts = [structure(subtree, is_leaf).num_leaves for subtree in subtrees]
    spread = [leaf for leaf, n in zip(flat, counts, strict=True) for _ in range(n)]
    return structure(full, is_leaf).unflatten(spread)


def flatten_axes(name: str, treedef: PyTreeDef, axes: Any) -> list:
    """One entry of `axes` (a tree prefix such as `in_axes`, None being an entry) for each leaf.

    Raises TreeError, which speaks of `name`, where `axes` is no prefix of `treedef`.

    >>> tree.flatten_axes("in_axes", tree.structure(({"a": 0, "b": 0}, 0)), (None, 1))
    [None, None, 1]
    """
    entries: list = []

    def fill(treedef: PyTreeDef, axes: Any, path: KeyPath) -> None:
        if axes is None or kind_of(type(axes)) is None:
            entries.extend([axes] * treedef.num_leaves)
            return
        below, node = flatten(axes, is_leaf=lambda x: x is not axes)
        if not same_node(node, treedef):
            here = contrast(Side(name, node), Side("the tree", treedef))
            raise TreeError(
                f"{name} must be a prefix of the tree it describes, but {at(path)} {here}"
            )
        for key, child, entry in zip(child_keys(treedef), treedef.children(), below, strict=True):
            fill(child, entry, (*path, key))

    fill(treedef, axes, ())
    return entries


def check_same_structure(
    a: Any, b: Any, *, what_a: str = "the first tree", what_b: str = "the second"
) -> None:
    """Raises TreeError unless `a` and `b`, trees or their `PyTreeDef`s, have one structure.

    The message names the first path at which they differ and what each has there.

    >>> tree.check_same_structure({"w": 1}, {"w": None}, what_a="params", what_b="the gradient")
    Traceback (most recent call last):
    funcgrad.errors.TreeError: the trees differ at ['w']: params has a leaf of type int, \
the gradient has None; None is a node without leaves, not a leaf
    """
    side_a, side_b = _side(what_a, a), _side(what_b, b)
    if side_a.treedef != side_b.treedef:
        raise_difference(side_a, side_b)


def _side(name: str, tree: Any) -> Side:
    if isinstance(tree, PyTreeDef):
        return Side(name, tree)
    flat, treedef = flatten(tree)
    return Side(name, treedef, flat)
