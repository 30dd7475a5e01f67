"""Pytrees: nested containers seen as a list of leaves and a structure that puts them back.

Every transform takes and returns trees; inside, it sees flat lists. `flatten` splits a tree into
leaves and a `PyTreeDef`; `unflatten` joins them. Nodes are tuple, list, dict, OrderedDict,
defaultdict, named tuples, None (a node without leaves), and what the `register_*` functions add;
everything else is a leaf. The idea and the names are those of `jax.tree`.

A structure is remembered and found again, so that equal trees mostly share one `PyTreeDef`, whose
equality is then identity and whose hash is known: a cache lookup by structure costs nothing.
"""

import builtins
import collections
import dataclasses
import functools
import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, NoReturn, TypeVar

from funcgrad.errors import TreeError

_C = TypeVar("_C", bound=type)
_map, _all = builtins.map, builtins.all  # this module's `map` and `all` are those of trees
_ABSENT = object()

IsLeaf = Callable[[Any], bool] | None
KeyPath = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class DictKey:
    """The step of a path into the entry `key` of a dict; prints as `['key']`."""

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """The step of a path into the element `idx` of a tuple or list; prints as `[idx]`."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """The step of a path into the attribute `name` of an object; prints as `.name`."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclasses.dataclass(frozen=True)
class FlattenedIndexKey:
    """The step of a path into the child number `key` of a node registered without keys."""

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def keystr(path: KeyPath, simple: bool = False, separator: str = "") -> str:
    """The text of a key path, as one would write it behind the tree's name.

    >>> path = (DictKey("layers"), SequenceKey(0), GetAttrKey("w"))
    >>> keystr(path), keystr(path, simple=True, separator="/")
    ("['layers'][0].w", 'layers/0/w')
    """
    return separator.join(_simple_key(k) if simple else str(k) for k in path)


def _simple_key(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


# ---- Kinds of nodes ------------------------------------------------------------------------------


class _Kind:
    """How the instances of one class are taken apart and put together."""

    __slots__ = ("cls", "label", "flatten", "unflatten", "keys", "keyed_children")

    def __init__(self, cls, flatten, unflatten, keys=None, keyed_children=None, label=None):
        self.cls: type = cls
        self.label: str = label or cls.__name__
        self.flatten: Callable[[Any], tuple[Iterable, Any]] = flatten
        self.unflatten: Callable[[Any, tuple], Any] = unflatten
        # keys(data, n) needs no object; keyed_children(object) is what a user may give instead.
        self.keys: Callable[[Any, int], Sequence] = keys or _flat_keys
        self.keyed_children: Callable[[Any], Iterable] | None = keyed_children


def _flat_keys(data: Any, n: int) -> Sequence:
    return [FlattenedIndexKey(i) for i in range(n)]


def _sequence_keys(data: Any, n: int) -> Sequence:
    return [SequenceKey(i) for i in range(n)]


class _UnsortableKeys(Exception):
    """Keys of a dict that have no order; `flatten` finds the path and raises TreeError."""


_KEY_TYPES = frozenset({str})
_sorted_keys_of: dict[tuple, tuple] = {}


def _sorted_keys(tree: dict) -> tuple:
    """The keys in order: the same tuple each time where all are strings (so `1` stays not True)."""
    keys = tuple(tree)
    if not _KEY_TYPES.issuperset(_map(type, keys)):
        try:
            return tuple(sorted(keys))
        except TypeError:
            raise _UnsortableKeys from None
    found = _sorted_keys_of.get(keys)
    if found is None:
        found = tuple(sorted(keys))
        _remember(_sorted_keys_of, keys, found, len(keys))
    return found


def _flatten_dict(tree: dict) -> tuple[Iterable, tuple]:
    keys = _sorted_keys(tree)
    return _map(tree.__getitem__, keys), keys


def _flatten_defaultdict(tree: collections.defaultdict) -> tuple[Iterable, tuple]:
    keys = _sorted_keys(tree)
    return _map(tree.__getitem__, keys), (tree.default_factory, keys)


def _builtin_kinds() -> dict[type, _Kind]:
    ordered, default = collections.OrderedDict, collections.defaultdict
    kinds = [
        _Kind(type(None), lambda x: ((), None), lambda data, xs: None),
        _Kind(tuple, lambda x: (x, None), lambda data, xs: xs, _sequence_keys),
        _Kind(list, lambda x: (x, None), lambda data, xs: list(xs), _sequence_keys),
        _Kind(
            dict,
            _flatten_dict,
            lambda keys, xs: dict(zip(keys, xs, strict=True)),
            lambda keys, n: [*_map(DictKey, keys)],
        ),
        _Kind(
            ordered,
            lambda x: (x.values(), tuple(x)),
            lambda keys, xs: ordered(zip(keys, xs, strict=True)),
            lambda keys, n: [*_map(DictKey, keys)],
        ),
        _Kind(
            default,
            _flatten_defaultdict,
            lambda data, xs: default(data[0], zip(data[1], xs, strict=True)),
            lambda data, n: [*_map(DictKey, data[1])],
        ),
    ]
    return {kind.cls: kind for kind in kinds}


_KINDS: dict[type, _Kind] = _builtin_kinds()
_NONE, _TUPLE, _LIST, _DICT = (_KINDS[cls] for cls in (type(None), tuple, list, dict))
_DICTS = tuple(_KINDS[cls] for cls in (dict, collections.OrderedDict, collections.defaultdict))
_leaf_types: set[type] = set()  # the types met so far that are no nodes
_named_tuples: set[type] = set()  # became nodes when met; may still be registered by their author


def _kind_of(cls: type) -> _Kind | None:
    """The kind of node that instances of `cls` are; None for a leaf."""
    kind = _KINDS.get(cls)
    if kind is not None or cls in _leaf_types:
        return kind
    if not (issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make")):
        _leaf_types.add(cls)
        return None
    keys = tuple(_map(GetAttrKey, cls._fields))
    kind = _Kind(
        cls,
        lambda x: (x, None),
        lambda data, xs: cls._make(xs),
        lambda data, n: keys,
        label="namedtuple",
    )
    _named_tuples.add(cls)
    _KINDS[cls] = kind
    return kind


# ---- Structures ----------------------------------------------------------------------------------


class PyTreeDef:
    """The structure of a tree: its nodes, in order, with a place for each leaf.

    Immutable, comparable, and hashable where the metadata of its nodes is.

    >>> structure({"b": [1, 2], "a": None})
    PyTreeDef({'a': None, 'b': [*, *]})
    """

    __slots__ = ("_kind", "_data", "_arity", "_num_leaves", "_num_nodes", "_hash", "_build",
                 "__weakref__")  # fmt: skip

    # `_arity` is the tuple of the children, or their number where all of them are leaves.
    def __init__(self, kind: _Kind | None, data: Any, arity: "int | tuple[PyTreeDef, ...]"):
        self._kind = kind
        self._data = data
        self._arity = arity
        self._hash: int | None = None
        if kind is None:
            self._num_leaves = self._num_nodes = 1
            self._build: Callable[[Iterator], Any] = next
        elif isinstance(arity, int):
            self._num_leaves, self._num_nodes = arity, arity + 1
            self._build = _leaves_builder(kind.unflatten, data, arity)
        else:
            self._num_leaves = sum([child._num_leaves for child in arity])
            self._num_nodes = sum([child._num_nodes for child in arity]) + 1
            self._build = _node_builder(kind.unflatten, data, [child._build for child in arity])

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return self._num_leaves

    @property
    def num_nodes(self) -> int:
        """The number of nodes, leaves included."""
        return self._num_nodes

    def children(self) -> "list[PyTreeDef]":
        """The structures of the node's children; a leaf has none."""
        return [_LEAF] * self._arity if isinstance(self._arity, int) else [*self._arity]

    def node_data(self) -> tuple[type, Any] | None:
        """The class of the node and its metadata; None for a leaf."""
        return None if self._kind is None else (self._kind.cls, self._data)

    def paths(self) -> list[KeyPath]:
        """The key path of each leaf, in order: what `flatten_with_path` gives for a tree."""
        if self._kind is None:
            return [()]
        pairs = zip(_child_keys(self), self.children(), strict=True)
        return [(key, *path) for key, child in pairs for path in child.paths()]

    def unflatten(self, leaves: Iterable) -> Any:
        """The tree of this structure with the given leaves; the inverse of `flatten`.

        >>> structure([0, (0, 0)]).unflatten("abc")
        ['a', ('b', 'c')]
        """
        if not isinstance(leaves, (list, tuple)):
            leaves = list(leaves)
        if len(leaves) != self._num_leaves:
            raise TreeError(
                f"tree.unflatten: {self} has {self._num_leaves} leaves, but {len(leaves)} were given"
            )
        return self._build(iter(leaves))

    def flatten_up_to(self, tree: Any) -> list:
        """The subtrees of `tree` at the places of this structure's leaves.

        >>> structure([0, 0]).flatten_up_to([{"a": 1}, 2])
        [{'a': 1}, 2]
        """
        subtrees: list = []
        if not _flatten_up_to(self, tree, subtrees):
            _raise_difference(self, tree, "the prefix", "the tree", prefix=True)
        return subtrees

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PyTreeDef):
            return NotImplemented
        if self._kind is not other._kind or self._num_leaves != other._num_leaves:
            return False
        return self._data == other._data and self._arity == other._arity

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self._kind, self._data, self._arity))
        return self._hash

    def __repr__(self) -> str:
        return f"PyTreeDef({_show(self)})"

    def __reduce__(self):
        if self._kind is None:
            return structure, (0,)
        return _structure_from, (self._kind.cls, self._data, self._arity)


def _leaves_builder(unflatten: Callable, data: Any, n: int) -> Callable[[Iterator], Any]:
    return lambda leaves: unflatten(data, tuple(islice(leaves, n)))


def _node_builder(unflatten: Callable, data: Any, builds: list) -> Callable[[Iterator], Any]:
    return lambda leaves: unflatten(data, tuple([build(leaves) for build in builds]))


_LEAF = PyTreeDef(None, None, 0)


def _structure_from(cls: type, data: Any, arity: int | tuple[PyTreeDef, ...]) -> PyTreeDef:
    kind = _kind_of(cls)
    if kind is None:
        raise TreeError(f"PyTreeDef: {cls.__name__} is not registered as a pytree node here")
    return _structure_of(kind, data, arity)


# Structures whose metadata is plain stay in `_plain_structures` (up to a bound); others, which may
# hold a closure and all that it captured, live only as long as someone uses them.
_plain_structures: dict[tuple, PyTreeDef] = {}
_other_structures: weakref.WeakValueDictionary[tuple, PyTreeDef] = weakref.WeakValueDictionary()
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str})
_MAX_REMEMBERED = 1 << 19
_remembered = 0


def _remember(table: dict, key: tuple, value: Any, size: int) -> None:
    global _remembered
    _remembered += size + 8
    if _remembered > _MAX_REMEMBERED:
        _plain_structures.clear()
        _sorted_keys_of.clear()
        _remembered = size + 8
    table[key] = value


def _structure_of(kind: _Kind, data: Any, arity: int | tuple[PyTreeDef, ...]) -> PyTreeDef:
    """The structure with this node on top: one met before, if it is the same to the last object."""
    key = (kind, data, arity)
    try:
        found = _plain_structures.get(key) or _other_structures.get(key)
    except TypeError:  # unhashable metadata
        return PyTreeDef(kind, data, arity)
    # Equal is not enough: metadata 1.0 equals 1, yet unflatten must give back what it was given.
    if found is not None and _same(found._data, data) and _same(found._arity, arity):
        return found
    made = PyTreeDef(kind, data, arity)
    if _is_plain(made):
        _remember(_plain_structures, key, made, 1 if isinstance(arity, int) else len(arity))
    else:
        _other_structures[key] = made
    return made


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is tuple and type(b) is tuple and len(a) == len(b):
        return _all(_map(operator.is_, a, b))
    return type(a) is int and type(b) is int and a == b


def _is_plain(treedef: PyTreeDef) -> bool:
    def plain(data: Any) -> bool:
        return type(data) in _PLAIN_TYPES or (type(data) is tuple and _all(_map(plain, data)))

    return plain(treedef._data) and (
        isinstance(treedef._arity, int)
        or _all(
            child is _LEAF
            or _plain_structures.get((child._kind, child._data, child._arity)) is child
            for child in treedef._arity
        )
    )


def _show(treedef: PyTreeDef) -> str:
    kind, data = treedef._kind, treedef._data
    if kind is None:
        return "*"
    children = [*_map(_show, treedef.children())]
    inside = ", ".join(children)
    if kind is _NONE:
        return "None"
    if kind is _TUPLE:
        return f"({inside},)" if len(children) == 1 else f"({inside})"
    if kind is _LIST:
        return f"[{inside}]"
    if kind is _DICT:
        entries = zip(data, children, strict=True)
        return "{" + ", ".join(f"{k!r}: {child}" for k, child in entries) + "}"
    name = kind.cls.__name__ if kind.label == "namedtuple" else data
    return f"CustomNode({kind.label}[{name}], [{inside}])"


# ---- Flattening ----------------------------------------------------------------------------------


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list, PyTreeDef]:
    """The leaves of a tree, in order (dicts by sorted key), and its structure.

    `is_leaf(subtree)` may stop the descent early. Raises TreeError where the keys of a dict can't
    be sorted.

    >>> flatten({"b": (1, 2), "a": 3})
    ([3, 1, 2], PyTreeDef({'a': *, 'b': (*, *)}))
    """
    found: list = []
    try:
        return found, _flatten(tree, found, is_leaf)
    except _UnsortableKeys:
        collections.deque(_with_path(tree, (), is_leaf), maxlen=0)  # raises, with the path
        raise


def _flatten(tree: Any, leaves: list, is_leaf: IsLeaf) -> PyTreeDef:
    cls = type(tree)
    kind = _KINDS.get(cls)
    if kind is None and (cls in _leaf_types or (kind := _kind_of(cls)) is None):
        leaves.append(tree)
        return _LEAF
    if is_leaf is not None and is_leaf(tree):
        leaves.append(tree)
        return _LEAF
    children, data = kind.flatten(tree)
    children = tuple(children)
    if _leaf_types.issuperset(_map(type, children)):
        leaves.extend(children)
        return _structure_of(kind, data, len(children))
    arity = tuple([_flatten(child, leaves, is_leaf) for child in children])
    return _structure_of(kind, data, _normal(arity))


def _normal(arity: tuple[PyTreeDef, ...]) -> int | tuple[PyTreeDef, ...]:
    return len(arity) if _all([child is _LEAF for child in arity]) else arity


def unflatten(treedef: PyTreeDef, leaves: Iterable) -> Any:
    """The tree of structure `treedef` with the given leaves; the inverse of `flatten`.

    >>> unflatten(structure({"a": 0, "b": [0]}), ["x", "y"])
    {'a': 'x', 'b': ['y']}
    """
    return treedef.unflatten(leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list:
    """The leaves of a tree, in order.

    >>> leaves({"b": (1, 2), "a": 3, "c": None})
    [3, 1, 2]
    """
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure of a tree.

    >>> structure([1, None])
    PyTreeDef([*, None])
    """
    return flatten(tree, is_leaf)[1]


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
    except _UnsortableKeys:
        return False
    children = tuple(children)
    if not (_same(data, treedef._data) or data == treedef._data):
        return False
    if isinstance(arity, int):
        subtrees.extend(children)
        return len(children) == arity
    return len(children) == len(arity) and _all(
        [_flatten_up_to(*pair, subtrees) for pair in zip(arity, children, strict=True)]
    )


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """As `flatten`, with each leaf in a pair behind its key path.

    >>> [(keystr(path), leaf) for path, leaf in flatten_with_path({"a": [1, 2]})[0]]
    [("['a'][0]", 1), ("['a'][1]", 2)]
    """
    treedef = structure(tree, is_leaf)
    return [*_with_path(tree, (), is_leaf)], treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """The pairs of key path and leaf of a tree.

    >>> leaves_with_path((5,))
    [((SequenceKey(idx=0),), 5)]
    """
    return flatten_with_path(tree, is_leaf)[0]


def _with_path(tree: Any, path: KeyPath, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, Any]]:
    kind = _kind_of(type(tree))
    if kind is None or (is_leaf is not None and is_leaf(tree)):
        yield path, tree
        return
    try:
        pairs = _keyed_children(kind, tree)
    except _UnsortableKeys:
        types = ", ".join(sorted({type(key).__name__ for key in tree}))
        raise TreeError(
            f"tree: the keys of the dict {_at(path)} can't be sorted: they are of types {types}"
        ) from None
    for key, child in pairs:
        yield from _with_path(child, (*path, key), is_leaf)


def _keyed_children(kind: _Kind, tree: Any) -> Iterable[tuple[Any, Any]]:
    if kind.keyed_children is not None:
        return kind.keyed_children(tree)
    children, data = kind.flatten(tree)
    children = tuple(children)
    return zip(kind.keys(data, len(children)), children, strict=True)


def _child_keys(treedef: PyTreeDef) -> Sequence:
    kind, n = treedef._kind, len(treedef.children())
    assert kind is not None
    if kind.keyed_children is not None:
        # Only an object tells its keys; a constructor that refuses placeholders costs just those.
        try:
            tree = kind.unflatten(treedef._data, (_ABSENT,) * n)
            return [key for key, _ in kind.keyed_children(tree)]
        except Exception:
            return _flat_keys(None, n)
    return kind.keys(treedef._data, n)


# ---- Mapping and folding -------------------------------------------------------------------------


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of `f(leaf, *leaves of the rest at the same place)`.

    The trees of `rest` have the structure of `tree`, or subtrees where it has leaves; otherwise
    TreeError names the path at which they differ.

    >>> map(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
    {'a': 11, 'b': (22,)}
    """
    flat, treedef = flatten(tree, is_leaf)
    if not rest:
        return treedef._build(iter([f(leaf) for leaf in flat]))
    columns = [flat]
    for i, other in enumerate(rest):
        column: list = []
        if not _flatten_up_to(treedef, other, column):
            name = f"rest[{i}]" if len(rest) > 1 else "the second"
            _raise_difference(treedef, other, "the first tree", name, True, "tree.map: ", flat)
        columns.append(column)
    return treedef._build(iter([f(*args) for args in zip(*columns, strict=True)]))


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """As `map`, of `f(path, leaf, …)`.

    >>> map_with_path(lambda path, x: keystr(path) + f"={x}", {"a": [1, 2]})
    {'a': ["['a'][0]=1", "['a'][1]=2"]}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf)
    paths, flat = [path for path, _ in pairs], [leaf for _, leaf in pairs]
    others = [treedef.flatten_up_to(other) for other in rest]
    return treedef.unflatten(_map(f, paths, flat, *others))


def reduce(
    f: Callable[[Any, Any], Any], tree: Any, initializer: Any = _ABSENT, is_leaf: IsLeaf = None
) -> Any:
    """`f(f(f(initializer, leaf0), leaf1), …)`; without an initializer it starts at the first leaf.

    >>> reduce(lambda x, y: x + y, {"a": 1, "b": [2, 3]})
    6
    """
    start = () if initializer is _ABSENT else (initializer,)
    return functools.reduce(f, leaves(tree, is_leaf), *start)


def all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true.

    >>> all([True, {"a": False}])
    False
    """
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: PyTreeDef, inner: PyTreeDef | None, tree: Any) -> Any:
    """Turns an `outer` of `inner`s inside out, into an `inner` of `outer`s.

    `inner=None` takes the structure of the first one. Raises TreeError where `tree` is not such.

    >>> transpose(structure([0, 0]), structure((0, 0, 0)), [(1, 2, 3), (4, 5, 6)])
    ([1, 4], [2, 5], [3, 6])
    """
    subtrees = outer.flatten_up_to(tree)
    if inner is None:
        if not subtrees:
            raise TreeError("tree.transpose: the outer structure has no leaves, so give `inner`")
        inner = structure(subtrees[0])
    rows = []
    for path, subtree in zip(outer.paths(), subtrees, strict=True):
        row, treedef = flatten(subtree)
        if treedef != inner:
            what = f"tree{keystr(path)}"
            _raise_difference(
                inner, subtree, "the inner structure", what, False, "tree.transpose: "
            )
        rows.append(row)
    columns = [[row[i] for row in rows] for i in range(inner.num_leaves)]
    return inner.unflatten([outer.unflatten(column) for column in columns])


def broadcast(prefix: Any, full: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of the structure of `full` whose every leaf is that of `prefix` above it.

    >>> broadcast((1, 2), ({"a": 0, "b": 0}, 0))
    ({'a': 1, 'b': 1}, 2)
    """
    flat, treedef = flatten(prefix, is_leaf)
    counts = [structure(x, is_leaf).num_leaves for x in treedef.flatten_up_to(full)]
    spread = [leaf for leaf, n in zip(flat, counts, strict=True) for _ in range(n)]
    return structure(full, is_leaf).unflatten(spread)


def flatten_axes(name: str, treedef: PyTreeDef, axes: Any) -> list:
    """One entry of `axes` (a tree prefix such as `in_axes`, None being an entry) for each leaf.

    Raises TreeError, which speaks of `name`, where `axes` is no prefix of `treedef`.

    >>> flatten_axes("in_axes", structure(({"a": 0, "b": 0}, 0)), (None, 1))
    [None, None, 1]
    """
    entries: list = []

    def fill(treedef: PyTreeDef, axes: Any, path: KeyPath) -> None:
        kind = None if axes is None else _kind_of(type(axes))
        if kind is None:
            entries.extend([axes] * treedef._num_leaves)
            return
        node = structure(axes, is_leaf=lambda x: x is not axes)
        if not _same_node(node, treedef):
            raise TreeError(
                f"{name} must be a tree prefix of what it describes, but {_at(path)} {name} has "
                + _contrast(node, "what it describes", treedef)
            )
        pairs = zip(_child_keys(treedef), treedef.children(), kind.flatten(axes)[0], strict=True)
        for key, child, child_axes in pairs:
            fill(child, child_axes, (*path, key))

    fill(treedef, axes, ())
    return entries


# ---- Differences, in words -----------------------------------------------------------------------


def check_same_structure(
    a: Any, b: Any, *, what_a: str = "the first tree", what_b: str = "the second"
) -> None:
    """Raises TreeError unless `a` and `b`, trees or their `PyTreeDef`s, have one structure.

    The message names the first path at which they differ and what each has there.

    >>> check_same_structure({"w": 1}, {"w": (1, 2)}, what_a="params", what_b="the gradient")
    Traceback (most recent call last):
    funcgrad.errors.TreeError: trees differ at ['w']: params has a leaf of type int, the gradient \
has a tuple of length 2
    """
    flat, treedef = ([], a) if isinstance(a, PyTreeDef) else flatten(a)
    other = b if isinstance(b, PyTreeDef) else structure(b)
    if treedef != other:
        _raise_difference(treedef, b, what_a, what_b, leaves_a=flat)


def _raise_difference(
    treedef: PyTreeDef,
    tree: Any,
    what_a: str,
    what_b: str,
    prefix: bool = False,
    start: str = "",
    leaves_a: Sequence = (),
) -> NoReturn:
    flat, other = ((), tree) if isinstance(tree, PyTreeDef) else flatten(tree)
    found = _first_difference(treedef, other, prefix)
    assert found is not None
    a = (found.a, *leaves_a[found.leaf_a : found.leaf_a + 1])
    b = (found.b, *flat[found.leaf_b : found.leaf_b + 1])
    path, contrast = _at(found.path), _contrast(*a[:1], what_b, *b[:1], a[1:], b[1:])
    raise TreeError(f"{start}trees differ {path}: {what_a} has {contrast}")


class _Difference(NamedTuple):
    path: KeyPath
    a: PyTreeDef
    b: PyTreeDef
    leaf_a: int  # how many leaves come before it
    leaf_b: int


def _first_difference(a: PyTreeDef, b: PyTreeDef, prefix: bool) -> _Difference | None:
    if a is b or (prefix and a._kind is None):
        return None
    if not _same_node(a, b):
        return _Difference((), a, b, 0, 0)
    leaf_a = leaf_b = 0
    for key, x, y in zip(_child_keys(a), a.children(), b.children(), strict=True):
        found = _first_difference(x, y, prefix)
        if found is not None:
            path = (key, *found.path)
            return _Difference(path, *found[1:3], leaf_a + found.leaf_a, leaf_b + found.leaf_b)
        leaf_a, leaf_b = leaf_a + x._num_leaves, leaf_b + y._num_leaves
    return None


def _same_node(a: PyTreeDef, b: PyTreeDef) -> bool:
    same_kind = a._kind is b._kind and (_same(a._data, b._data) or a._data == b._data)
    return same_kind and len(a.children()) == len(b.children())


def _contrast(
    a: PyTreeDef, what_b: str, b: PyTreeDef, leaf_a: Sequence = (), leaf_b: Sequence = ()
) -> str:
    text = f"{_describe(a, leaf_a)}, {what_b} has {_describe(b, leaf_b)}"
    if a._kind is b._kind and a._kind in _DICTS:
        keys_a, keys_b = _dict_keys(a), _dict_keys(b)
        lacking = [k for k in keys_b if k not in keys_a], [k for k in keys_a if k not in keys_b]
        text += "".join(
            f" ({side} lacks {', '.join(_map(repr, keys))})"
            for side, keys in zip(("the former", "the latter"), lacking, strict=True)
            if keys
        )
    elif _NONE in (a._kind, b._kind) and None in (a._kind, b._kind):
        text += " (None is a node without leaves, no leaf)"
    return text


def _dict_keys(treedef: PyTreeDef) -> tuple:
    return treedef._data[1] if treedef._kind is _DICTS[-1] else treedef._data


def _describe(treedef: PyTreeDef, leaf: Sequence = ()) -> str:
    kind, n = treedef._kind, len(treedef.children())
    if kind is None:
        return f"a leaf of type {type(leaf[0]).__name__}" if leaf else "a leaf"
    if kind is _NONE:
        return "None"
    if kind in (_TUPLE, _LIST):
        return f"a {kind.cls.__name__} of length {n}"
    if kind in _DICTS:
        return f"a {kind.cls.__name__} with keys {[*_dict_keys(treedef)]}"
    data = "" if treedef._data is None else f" and metadata {treedef._data!r}"
    return f"a {kind.cls.__name__} with {n} children{data}"


def _at(path: KeyPath) -> str:
    return f"at {keystr(path)}" if path else "at the root"


# ---- Registration --------------------------------------------------------------------------------


def _register(kind: _Kind) -> None:
    cls = kind.cls
    if not isinstance(cls, type):
        raise TypeError(f"tree: only a class can be registered as a pytree node, not {cls!r}")
    if cls in _KINDS and cls not in _named_tuples:
        raise ValueError(f"tree: {cls.__name__} is already a pytree node")
    _named_tuples.discard(cls)
    _leaf_types.discard(cls)
    _KINDS[cls] = kind


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable, Any]],
    unflatten_func: Callable[[Any, tuple], Any],
) -> None:
    """Makes the instances of a class nodes of trees.

    `flatten_func(x)` gives the children and the metadata (hashable, for use under `jit`);
    `unflatten_func(metadata, children)` gives the object back. It must accept any children: they
    are tracers or placeholders at times. Raises ValueError for a class that is registered already.

    >>> class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    >>> register_pytree_node(Pair, lambda p: ((p.x, p.y), None), lambda _, xy: Pair(*xy))
    >>> leaves([Pair(1, 2), 3])
    [1, 2, 3]
    """
    _register(_Kind(nodetype, flatten_func, unflatten_func))


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, tuple], Any],
    flatten_func: Callable[[Any], tuple[Iterable, Any]] | None = None,
) -> None:
    """As `register_pytree_node`, of a class whose children have names in paths.

    `flatten_with_keys(x)` gives pairs of key and child, and the metadata. `flatten_func` is the
    faster way without the keys, if there is one.

    >>> class Box:
    ...     def __init__(self, x):
    ...         self.x = x
    >>> register_pytree_with_keys(
    ...     Box, lambda b: ([(GetAttrKey("x"), b.x)], None), lambda _, x: Box(*x)
    ... )
    >>> keystr(leaves_with_path([Box(1)])[0][0])
    '[0].x'
    """

    def flatten_without_keys(tree: Any) -> tuple[Iterable, Any]:
        pairs, data = flatten_with_keys(tree)
        return [child for _, child in pairs], data

    def keyed_children(tree: Any) -> Iterable:
        return flatten_with_keys(tree)[0]

    flatten_func = flatten_func or flatten_without_keys
    _register(_Kind(nodetype, flatten_func, unflatten_func, keyed_children=keyed_children))


def register_pytree_node_class(cls: _C) -> _C:
    """Decorates a class whose methods `tree_flatten` and `tree_unflatten` make it a node.

    With a method `tree_flatten_with_keys` too, its children have names in paths.

    >>> @register_pytree_node_class
    ... class Scaled:
    ...     def __init__(self, x, by):
    ...         self.x, self.by = x, by
    ...
    ...     def tree_flatten(self):
    ...         return (self.x,), self.by
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, by, children):
    ...         return cls(*children, by)
    >>> flatten(Scaled(1.5, by=2))
    ([1.5], PyTreeDef(CustomNode(Scaled[2], [*])))
    """
    flatten_func = operator.methodcaller("tree_flatten")
    if hasattr(cls, "tree_flatten_with_keys"):
        with_keys = operator.methodcaller("tree_flatten_with_keys")
        plain = flatten_func if hasattr(cls, "tree_flatten") else None
        register_pytree_with_keys(cls, with_keys, cls.tree_unflatten, plain)
    else:
        register_pytree_node(cls, flatten_func, cls.tree_unflatten)
    return cls


def register_dataclass(
    cls: _C,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
) -> _C:
    """Makes a dataclass a node: its data fields are children, its meta fields are metadata.

    Without the two lists, a field declared with `metadata=dict(static=True)` is a meta field and
    every other field of the constructor a data field. Works as a decorator above `@dataclass`.
    Raises TypeError for a class without fields to go by, ValueError for lists that do not name each
    field of the constructor once.

    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     w: object
    ...     width: int = dataclasses.field(metadata=dict(static=True))
    >>> flatten(Layer(w=1.5, width=3))
    ([1.5], PyTreeDef(CustomNode(Layer[(3,)], [*])))
    """
    data, meta = _field_lists(cls, data_fields, meta_fields)
    names = (*data, *meta)

    def flatten_fields(tree: Any) -> tuple[Iterable, tuple]:
        return [getattr(tree, n) for n in data], tuple([getattr(tree, n) for n in meta])

    def unflatten_fields(values: tuple, children: tuple) -> Any:
        return cls(**dict(zip(names, children + values, strict=True)))

    keys = tuple(_map(GetAttrKey, data))
    _register(_Kind(cls, flatten_fields, unflatten_fields, lambda values, n: keys))
    return cls


def _field_lists(
    cls: type, data: Sequence[str] | None, meta: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    name = getattr(cls, "__name__", repr(cls))
    if (data is None) != (meta is None):
        raise TypeError(
            f"tree.register_dataclass: {name}: give both of data_fields and meta_fields, or neither"
        )
    if not dataclasses.is_dataclass(cls):
        if data is None or meta is None:
            raise TypeError(
                f"tree.register_dataclass: {name} is no dataclass (is @register_dataclass above "
                "@dataclass?), so data_fields and meta_fields are needed"
            )
        return tuple(data), tuple(meta)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if data is None or meta is None:
        static = [n for n, f in fields.items() if f.metadata.get("static", False)]
        return tuple(n for n in fields if n not in static), tuple(static)
    given = [*data, *meta]
    faults = {
        "lacks": [n for n in fields if n not in given],
        "names what is no field of the constructor": [n for n in given if n not in fields],
        "repeats": [n for i, n in enumerate(given) if n in given[:i]],
    }
    for fault, at_fault in faults.items():
        if at_fault:
            raise ValueError(
                f"tree.register_dataclass: {name}: data_fields + meta_fields {fault}: "
                + ", ".join(_map(repr, at_fault))
            )
    return tuple(data), tuple(meta)


class Partial(functools.partial):
    """A `functools.partial` that is a tree: its arguments are children, its function metadata.

    So a function with arrays bound to it passes through `jit` or `vmap`, where a plain function
    could not. A `functools.partial` inside keeps its own arguments to itself.

    >>> half = Partial(pow, 0.5)
    >>> half(2), leaves(half)
    (0.25, [0.5])
    """

    def __new__(cls, func: Callable, /, *args: Any, **keywords: Any) -> "Partial":
        if isinstance(func, functools.partial) and not isinstance(func, Partial):
            func = func.__call__  # functools.partial would take over the arguments of another
        return super().__new__(cls, func, *args, **keywords)


_register(
    _Kind(
        Partial,
        lambda p: ((p.args, p.keywords), p.func),
        lambda func, xs: Partial(func, *xs[0], **xs[1]),
        lambda func, n: (GetAttrKey("args"), GetAttrKey("keywords")),
    )
)
