"""Classes of named values that cost nothing to define.

A dataclass writes its methods as text and compiles them at each import: half a millisecond a class,
so that a process which compiles one small function would wait longer for the compiler's classes
than for its work. The methods of a `Record` are the same for all classes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, dataclass_transform

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Record")
_put = object.__setattr__


class _Fresh:
    """A default that is made anew for each object."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], object]):
        self.make = make


def fresh(*, factory: Callable[[], _T]) -> _T:
    """The default of a field that each object has of its own: what `factory()` gives.

    >>> class Line(Record):
    ...     words: list = fresh(factory=list)
    >>> Line().words is Line().words
    False
    """
    return _Fresh(factory)  # type: ignore[return-value]


@dataclass_transform(frozen_default=True, field_specifiers=(fresh,))
class _RecordType(type):
    """Makes slots of a class's annotations, after those of its base."""

    def __new__(
        mcs, name: str, bases: tuple, space: dict, frozen: bool = True, eq: bool = True
    ) -> type:
        own = tuple(space.get("__annotations__", ())) if bases else ()
        fields, defaults = own, {f: space.pop(f) for f in own if f in space}
        if bases and bases[0]._fields:
            fields, defaults = bases[0]._fields + own, bases[0]._defaults | defaults
        space |= {"__slots__": own, "__match_args__": fields}
        space |= {"_fields": fields, "_defaults": defaults, "_values": attrgetter(*fields or "_")}
        if not frozen:
            space |= {"__setattr__": _put, "__delattr__": object.__delattr__}
        if not eq:
            space |= {"__eq__": object.__eq__, "__hash__": object.__hash__}
        elif not frozen:
            space["__hash__"] = None
        return super().__new__(mcs, name, bases, space)


class Record(metaclass=_RecordType):
    """A base of classes whose annotated names are fields, as a dataclass with slots has them.

    Objects can't be changed (AttributeError), are equal if they are of one class and all their
    fields are, and have a hash. Those of `class X(Record, frozen=False)` can be changed; with
    `eq=False` each is equal only to itself. Raises TypeError if fields are missing, or given that
    aren't there.

    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1), replace(Point(1), y=2)
    (Point(x=1, y=0), True, Point(x=1, y=2))
    """

    _fields: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]
    _values: ClassVar[attrgetter]

    def __init__(self, *args: Any, **kwargs: Any):
        fields = self._fields
        if kwargs or len(args) != len(fields):
            args = _all_values(type(self), args, kwargs)
        for field, value in zip(fields, args, strict=True):
            _put(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} can't be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} can't be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values(self) == other._values(other)

    def __hash__(self) -> int:
        return hash(self._values(self))

    def __reduce__(self) -> tuple:
        # Copies are made of values: fields of what can't be changed can't be set afterwards.
        return type(self), tuple([getattr(self, f) for f in self._fields])

    def __repr__(self) -> str:
        values = [f"{f}={getattr(self, f)!r}" for f in self._fields]
        return f"{type(self).__qualname__}({', '.join(values)})"


def _all_values(cls: type[Record], args: tuple, kwargs: dict[str, object]) -> tuple:
    """The values of all fields, of which some are given by name or have defaults."""
    values = list(args)
    for field in cls._fields[len(args) :]:
        if field in kwargs:
            values.append(kwargs.pop(field))
        elif field in cls._defaults:
            value = cls._defaults[field]
            values.append(value.make() if type(value) is _Fresh else value)
        else:
            raise TypeError(f"{cls.__name__}: no value for {field!r}")
    if kwargs or len(args) > len(cls._fields):
        surplus = ", ".join(kwargs) or f"{len(args)} values"
        raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}, got {surplus}")
    return tuple(values)


def replace(record: _R, **changes: Any) -> _R:
    """A record with some fields changed.

    Raises TypeError for a field that it doesn't have.

    >>> class Size(Record):
    ...     m: int
    ...     n: int
    >>> replace(Size(2, 3), n=4)
    Size(m=2, n=4)
    """
    values = {f: getattr(record, f) for f in record._fields}
    return type(record)(**values | changes)
