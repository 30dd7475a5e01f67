"""Key paths: where in a tree a leaf is, step by step, and how that is written."""

import dataclasses
from collections.abc import Hashable
from typing import Any

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
