"""The library's own classes of trees, by the names that files give them.

A name is where the class is found and what it is called: `optim.AdamState`,
`quantization.IntArray`. What is static must be plain: numbers, strings, None, and tuples of them.
Fields of dataclasses are written with their names, so that files from before a field was added take
its default.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from funcgrad.errors import ExportError, FormatError
from funcgrad.export.program.values import short
from funcgrad.random.generators import GENERATORS
from funcgrad.random.keys import Key
from funcgrad.tree.kinds import kind_of

# What names begin with in files, and the modules that have the classes.
_HOMES = {
    "optim": ("funcgrad.optim",),
    "numpy.linalg": ("funcgrad.numpy.linalg.factors", "funcgrad.numpy.linalg.solvers"),
    "numpy": ("funcgrad.numpy.manipulation.sets",),
    "random": ("funcgrad.random",),
    "sparse": ("funcgrad.sparse",),
    "quantization": ("funcgrad.quantization",),
    "adapters": ("funcgrad.adapters",),
    "recsys": ("funcgrad.recsys",),
    "scipy.spatial.transform": ("funcgrad.scipy.spatial.transform",),
}
_PLAIN = (int, float, str, bool, type(None))


def own_name(cls: type) -> str | None:
    """The name of one of the library's own classes, None of any other."""
    for home, modules in _HOMES.items():
        if any(getattr(sys.modules.get(m), cls.__name__, None) is cls for m in modules):
            return f"{home}.{cls.__name__}"
    return None


def own_class(name: str) -> type | None:
    """The class that has the name, None if none has."""
    home, _, attribute = name.rpartition(".")
    for module in _HOMES.get(home, ()):
        cls = getattr(import_module(module), attribute, None)
        if isinstance(cls, type) and kind_of(cls) is not None:
            return cls
    return None


def write_static(cls: type, data: Any) -> bytes:
    """What is static of a node of one of the library's own classes."""
    if _is_named_tuple(cls):
        return b""
    if cls is Key:
        return data.encode()
    if dataclasses.is_dataclass(cls):
        children, static = _fields(cls)
        static_values = dict(zip(static, data, strict=True))
        return _dump(cls, {"children": children, "static": static_values})
    return _dump(cls, data)


def build(cls: type, blob: bytes, children: Sequence) -> Any:
    """The node whose static part `write_static` wrote. Raises FormatError for what it didn't."""
    make: Any = cls
    if _is_named_tuple(cls):
        return make(*children)
    if cls is Key:
        return Key(children[0], _generator(blob))
    data = _tuples(json.loads(blob))
    if dataclasses.is_dataclass(cls):
        return make(**dict(zip(data["children"], children, strict=True)), **data["static"])
    kind = kind_of(cls)
    assert kind is not None, "own_class gives none of other classes"
    return kind.unflatten(data, tuple(children))


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _fields(cls: Any) -> tuple[list[str], list[str]]:
    """The names of a dataclass's children, and of what is static."""
    fields = {f.name: bool(f.metadata.get("static")) for f in dataclasses.fields(cls)}
    return [n for n in fields if not fields[n]], [n for n in fields if fields[n]]


def _dump(cls: type, data: Any) -> bytes:
    if not _is_plain(data):
        raise ExportError(f"export: what is static of {cls.__name__} has no form in files: {data}")
    return json.dumps(data).encode()


def _is_plain(x: Any) -> bool:
    if isinstance(x, dict):
        return all(map(_is_plain, x.values()))
    return type(x) in _PLAIN or (isinstance(x, (tuple, list)) and all(map(_is_plain, x)))


def _tuples(x: Any) -> Any:
    """What JSON made of tuples, and tuples again: nothing that is static is a list."""
    if isinstance(x, dict):
        return {k: _tuples(v) for k, v in x.items()}
    return tuple(map(_tuples, x)) if isinstance(x, list) else x


def _generator(blob: bytes) -> str:
    name = blob.decode()
    if name not in GENERATORS:
        raise FormatError(f"{short(name)} is no generator of random bits")
    return name
