"""Which classes are nodes of trees, and how each is taken apart and put together."""

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from funcgrad.tree.keypath import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey


class Kind:
    """How the instances of one class are taken apart and put together.

    `flatten(x)` gives the children and the metadata, `unflatten(metadata, children)` the object.
    `keys(metadata, n)` names the children; where only an object can tell, `keyed_children(x)` gives
    pairs of key and child.
    """

    __slots__ = ("cls", "flatten", "keyed_children", "keys", "label", "unflatten")

    def __init__(
        self,
        cls: type,
        flatten: Callable[[Any], tuple[Iterable, Any]],
        unflatten: Callable[[Any, tuple], Any],
        keys: Callable[[Any, int], Sequence] | None = None,
        keyed_children: Callable[[Any], Iterable] | None = None,
        label: str = "",
    ):
        if not isinstance(cls, type):
            raise TypeError(f"tree: only a class can be registered as a pytree node, not {cls!r}")
        self.cls = cls
        self.flatten = flatten
        self.unflatten = unflatten
        self.keys = keys or flat_keys
        self.keyed_children = keyed_children
        self.label = label or cls.__name__


def flat_keys(data: Any, n: int) -> Sequence:
    """The keys of children that have no names."""
    return [FlattenedIndexKey(i) for i in range(n)]


def _sequence_keys(data: Any, n: int) -> Sequence:
    return [SequenceKey(i) for i in range(n)]


class UnsortableKeys(Exception):
    """Keys of a dict that have no order; who knows the path raises TreeError instead."""


# Tables of what was met once are emptied when they have grown large, so that a program whose trees
# change at each step does not fill the memory.
_MAX_REMEMBERED = 1 << 19
_tables: list[dict] = []
_remembered = 0


def table() -> dict:
    """A new table for `remember`."""
    _tables.append({})
    return _tables[-1]


def remember(table: dict, key: Any, value: Any, size: int) -> None:
    """Sets `table[key] = value`, and empties all tables first where that would be too much."""
    global _remembered
    _remembered += size + 8
    if _remembered > _MAX_REMEMBERED:
        for each in _tables:
            each.clear()
        _remembered = size + 8
    table[key] = value


_STRINGS = frozenset({str})
_sorted_keys_of = table()


def _sorted_keys(tree: dict) -> tuple:
    """The keys in order; the same tuple each time for the same strings."""
    keys = tuple(tree)
    if not _STRINGS.issuperset(map(type, keys)):  # 1 equals True, but is another key to give back
        try:
            return tuple(sorted(keys))
        except TypeError:
            raise UnsortableKeys from None
    found = _sorted_keys_of.get(keys)
    if found is None:
        found = tuple(sorted(keys))
        remember(_sorted_keys_of, keys, found, len(keys))
    return found


def _flatten_dict(tree: dict) -> tuple[Iterable, tuple]:
    keys = _sorted_keys(tree)
    return map(tree.__getitem__, keys), keys


def _flatten_defaultdict(tree: collections.defaultdict) -> tuple[Iterable, tuple]:
    keys = _sorted_keys(tree)
    return map(tree.__getitem__, keys), (tree.default_factory, keys)


NONE = Kind(type(None), lambda x: ((), None), lambda data, xs: None)
TUPLE = Kind(tuple, lambda x: (x, None), lambda data, xs: xs, _sequence_keys)
LIST = Kind(list, lambda x: (x, None), lambda data, xs: list(xs), _sequence_keys)
DICT = Kind(
    dict,
    _flatten_dict,
    lambda keys, xs: dict(zip(keys, xs, strict=True)),
    lambda keys, n: [*map(DictKey, keys)],
)
ORDERED_DICT = Kind(
    collections.OrderedDict,
    lambda x: (x.values(), tuple(x)),
    lambda keys, xs: collections.OrderedDict(zip(keys, xs, strict=True)),
    lambda keys, n: [*map(DictKey, keys)],
)
DEFAULT_DICT = Kind(
    collections.defaultdict,
    _flatten_defaultdict,
    lambda data, xs: collections.defaultdict(data[0], zip(data[1], xs, strict=True)),
    lambda data, n: [*map(DictKey, data[1])],
)

KINDS: dict[type, Kind] = {
    kind.cls: kind for kind in (NONE, TUPLE, LIST, DICT, ORDERED_DICT, DEFAULT_DICT)
}
leaf_types: set[type] = set()  # the classes met so far that are no nodes
_named_tuples: set[type] = set()  # became nodes when met; may still be registered by their author


def kind_of(cls: type) -> Kind | None:
    """The kind of node that instances of `cls` are; None for a leaf."""
    kind = KINDS.get(cls)
    if kind is not None or cls in leaf_types:
        return kind
    if not (issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make")):
        leaf_types.add(cls)
        return None
    make, keys = cls._make, tuple(map(GetAttrKey, cls._fields))
    kind = Kind(
        cls,
        lambda x: (x, None),
        lambda data, xs: make(xs),
        lambda data, n: keys,
        label="namedtuple",
    )
    _named_tuples.add(cls)
    KINDS[cls] = kind
    return kind


def add_kind(kind: Kind) -> None:
    """Makes the instances of `kind.cls` nodes."""
    cls = kind.cls
    if cls in KINDS and cls not in _named_tuples:
        raise ValueError(f"tree: {cls.__name__} is already registered as a pytree node")
    _named_tuples.discard(cls)
    leaf_types.discard(cls)
    KINDS[cls] = kind
