"""Structures of pytrees as JSON, and back, and what registers classes for that.

A file names a class by the name under which it was registered; nothing of a user's is imported to
find it. The library's own classes need no registration.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from funcgrad import tree
from funcgrad.errors import ArgumentError, ExportError, FormatError
from funcgrad.export.program.own_classes import build, own_class, own_name, write_static
from funcgrad.export.program.values import Json, short
from funcgrad.tree import PyTreeDef
from funcgrad.tree.kinds import kind_of

_C = TypeVar("_C", bound=type)

_LEAF = "*"
_KEYS = (str, int, bool, type(None))


class _Registered(NamedTuple):
    """How a class's nodes are written: its metadata as bytes, and a node from metadata and
    children."""

    cls: type
    write: Callable[[Any], bytes]
    build: Callable[[bytes, Sequence], Any]


_registered: dict[str, _Registered] = {}


def register_pytree_node_serialization(
    nodetype: _C,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence], Any] | None = None,
) -> _C:
    """Let files hold nodes of a class that is registered as a pytree node.

    serialized_name: what stands in files; keep it when the class moves
    serialize_auxdata, deserialize_auxdata: the node's metadata as bytes, and back
    from_children: makes the node of metadata and children, by default as `tree.unflatten` does

    Returns the class. Raises ArgumentError for a name that is taken.

    >>> from funcgrad import export
    >>> class Pair:
    ...     def __init__(self, x, y):
    ...         self.x, self.y = x, y
    >>> tree.register_pytree_node(Pair, lambda p: ((p.x, p.y), None), lambda _, xy: Pair(*xy))
    >>> _ = export.register_pytree_node_serialization(
    ...     Pair,
    ...     serialized_name="example.Pair",
    ...     serialize_auxdata=lambda data: b"",
    ...     deserialize_auxdata=lambda blob: None,
    ... )
    >>> swap = fg.jit(lambda p: Pair(p.y, p.x))
    >>> loaded = export.deserialize(export.export(swap)(Pair(1.0, 2.0)).serialize())
    >>> float(loaded.call(Pair(3.0, 4.0)).x)
    4.0
    """

    if not isinstance(nodetype, type):
        raise ArgumentError(f"register_pytree_node_serialization takes a class, got {nodetype!r}")

    def node(blob: bytes, children: Sequence) -> Any:
        data = deserialize_auxdata(blob)
        if from_children is not None:
            return from_children(data, tuple(children))
        return _unflatten(nodetype, data, children)

    _add(serialized_name, _Registered(nodetype, serialize_auxdata, node))
    return nodetype


def register_namedtuple_serialization(nodetype: _C, *, serialized_name: str) -> _C:
    """Let files hold values of a class of named tuples.

    serialized_name: what stands in files; keep it when the class moves

    Returns the class. Raises ArgumentError for a name that is taken.

    >>> from typing import NamedTuple
    >>> from funcgrad import export
    >>> class Moments(NamedTuple):
    ...     mean: object
    ...     power: object
    >>> _ = export.register_namedtuple_serialization(Moments, serialized_name="example.Moments")
    >>> moments = fg.jit(lambda x: Moments(fnp.mean(x), fnp.mean(x * x)))
    >>> blob = export.export(moments)(fnp.ones(3)).serialize()
    >>> float(export.deserialize(blob).call(2 * fnp.ones(3)).power)
    4.0
    """
    if not (isinstance(nodetype, type) and hasattr(nodetype, "_fields")):
        raise ArgumentError(
            f"register_namedtuple_serialization takes a class of named tuples, got {nodetype!r}"
        )
    _add(serialized_name, _named_tuple(nodetype))
    return nodetype


def _named_tuple(cls: type) -> _Registered:
    make: Any = cls
    return _Registered(cls, lambda data: b"", lambda _, xs: make(*xs))


def _add(name: str, entry: _Registered) -> None:
    taken = _registered[name].cls if name in _registered else own_class(name)
    if taken is not None:
        raise ArgumentError(
            f"export: the name {name!r} is taken by {taken.__name__}: choose another "
            f"serialized_name for {entry.cls.__name__}"
        )
    _registered[name] = entry


def _unflatten(cls: type, data: Any, children: Sequence) -> Any:
    """A node as its class's registration makes it."""
    kind = kind_of(cls)
    if kind is None:
        raise FormatError(f"{cls.__name__} is not registered as a pytree node")
    return kind.unflatten(data, tuple(children))


def tree_to_json(treedef: PyTreeDef, what: str) -> Json:
    """A structure as JSON. Raises ExportError for a node that isn't registered; `what` names the
    tree in the message.

    >>> tree_to_json(tree.structure({"a": [1, None]}), "the argument")
    {'dict': [['a', {'list': ['*', None]}]]}
    """
    node = treedef.node_data()
    if node is None:
        return _LEAF
    cls, data = node
    children = [tree_to_json(child, what) for child in treedef.children()]
    if cls is type(None):
        return None
    if cls in (list, tuple):
        return {cls.__name__: children}
    if cls in (dict, collections.OrderedDict) and all(type(k) in _KEYS for k in data):
        pairs = [[k, child] for k, child in zip(data, children, strict=True)]
        return {"dict" if cls is dict else "ordered": pairs}
    for name, entry in _registered.items():
        if entry.cls is cls:
            return {"node": [name, entry.write(data).hex(), children]}
    if (own := own_name(cls)) is not None:
        return {"node": [own, write_static(cls, data).hex(), children]}
    raise ExportError(
        f"export: {what} has a node of class {cls.__name__}, which a file has no name for: give it "
        "one with export.register_pytree_node_serialization or "
        "export.register_namedtuple_serialization, or use a dict"
    )


def tree_from_json(found: Json) -> PyTreeDef:
    """The structure that JSON says; FormatError where it says none."""
    return tree.structure(_build(found))


def _build(found: Json) -> Any:
    """A tree of the structure."""
    if found is None:
        return None
    if found == _LEAF:
        return 0
    if type(found) is dict and len(found) == 1:
        ((kind, inner),) = found.items()
        if type(inner) is list and kind in ("list", "tuple"):
            children = [_build(x) for x in inner]
            return children if kind == "list" else tuple(children)
        if type(inner) is list and kind in ("dict", "ordered"):
            return _build_dict(inner, dict if kind == "dict" else collections.OrderedDict)
        if type(inner) is list and kind == "node" and len(inner) == 3:
            name, blob, children = inner
            return _build_node(name, blob, children)
    raise FormatError(f"{short(found)} is no structure of a tree")


def _build_dict(pairs: list, make: type) -> Any:
    ok = all(type(p) is list and len(p) == 2 and type(p[0]) in _KEYS for p in pairs)
    made = make((k, _build(x)) for k, x in pairs) if ok else None
    if made is None or len(made) != len(pairs):
        raise FormatError(f"{short(pairs)} are no entries of a dict")
    return made


def _build_node(name: Json, blob: Json, children: Json) -> Any:
    if not (isinstance(name, str) and isinstance(blob, str) and type(children) is list):
        raise FormatError(f"{short([name, blob])} is no node of a tree")
    nodes = [_build(x) for x in children]
    if name in _registered:
        return _registered[name].build(bytes.fromhex(blob), nodes)
    cls = own_class(name)
    if cls is None:
        raise FormatError(
            f"the file has a node of the class {name!r}, which isn't known here: import what "
            "defines it and register it with export.register_pytree_node_serialization or "
            "export.register_namedtuple_serialization, then load"
        )
    return build(cls, bytes.fromhex(blob), nodes)
