"""Key paths: where in a tree a leaf is, step by step, and how that is written."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

KeyPath = tuple[Any, ...]


class _Key:
    """A step of a path: equal to those of its class with the same value, and unchangeable.

    Written out, as dataclasses would make each `import funcgrad` slower (`core.record`).
    """

    __slots__: tuple[str, ...] = ()
    __match_args__: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        # With the base's: a class of an own slot, or of none, is compared by all that it holds.
        own = cls.__dict__.get("__slots__", ())
        names = (own,) if isinstance(own, str) else tuple(own)
        cls.__match_args__ = cls.__match_args__ + names  # type: ignore[misc]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} can't be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} can't be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._held() == other._held()

    def __hash__(self) -> int:
        return hash((type(self), self._held()))

    def __reduce__(self) -> tuple:
        return type(self), self._held()

    def __repr__(self) -> str:
        names = self.__match_args__
        held = ", ".join(f"{n}={x!r}" for n, x in zip(names, self._held(), strict=True))
        return f"{type(self).__name__}({held})"

    def _held(self) -> tuple:
        return tuple(getattr(self, name) for name in self.__match_args__)


class DictKey(_Key):
    """The step of a path into the entry `key` of a dict; prints as `['key']`."""

    __slots__ = ("key",)
    key: Hashable

    def __init__(self, key: Hashable):
        object.__setattr__(self, "key", key)

    def __str__(self) -> str:
        return f"[{self.key!r}]"


class SequenceKey(_Key):
    """The step of a path into the element `idx` of a tuple or list; prints as `[idx]`."""

    __slots__ = ("idx",)
    idx: int

    def __init__(self, idx: int):
        object.__setattr__(self, "idx", idx)

    def __str__(self) -> str:
        return f"[{self.idx}]"


class GetAttrKey(_Key):
    """The step of a path into the attribute `name` of an object; prints as `.name`."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str):
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        return f".{self.name}"


class FlattenedIndexKey(_Key):
    """The step of a path into the child number `key` of a node registered without keys."""

    __slots__ = ("key",)
    key: int

    def __init__(self, key: int):
        object.__setattr__(self, "key", key)

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
