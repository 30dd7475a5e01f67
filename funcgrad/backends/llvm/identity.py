"""What a program is, as a digest: programs of equal digests do the same.

It stands for the equations, the types and the values written into them, not for names, lines of
source or objects. Programs that hold what no other process could recognize (a user's function, an
operation that isn't of this package) have none.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from funcgrad.backends.llvm.native.objects import digest
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var
from funcgrad.core.primitive import Primitive
from funcgrad.core.record import Record

_MOST_BYTES = 1 << 16  # of an array among the parameters


class _Unknown(Exception):
    """Something that other processes can't recognize."""


def identity(jaxpr: Jaxpr) -> str | None:
    """A digest of what a program does, the same in all processes; None if it has none.

    >>> import funcgrad as fg
    >>> a, b, c = (fg.make_jaxpr(lambda x, n=n: x + n)(1.0).jaxpr for n in (1, 1, 2))
    >>> identity(a) == identity(b), identity(a) == identity(c)
    (True, False)
    """
    return jaxpr.derive("identity", lambda: _identity(jaxpr))


def _identity(jaxpr: Jaxpr) -> str | None:
    try:
        return digest("\n".join(_Writer().program(jaxpr)))
    except _Unknown:
        return None


class _Writer:
    """Writes a program's lines, its variables by their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[Var, int] = {}

    def program(self, jaxpr: Jaxpr) -> list[str]:
        self.bind(jaxpr.ins)
        lines = [" ".join([_type(v.aval) for v in jaxpr.ins])]
        lines += [self.equation(e) for e in jaxpr.eqns]
        lines.append(" ".join([self.atom(a) for a in jaxpr.outs]))
        return lines

    def bind(self, variables: tuple[Var, ...]) -> None:
        for v in variables:
            self.numbers[v] = len(self.numbers)

    def equation(self, e: Eqn) -> str:
        ins = " ".join([self.atom(a) for a in e.ins])
        name = _primitive(e.prim)
        if e.prim.call:
            inner = e.params["jaxpr"]
            if not isinstance(inner, Jaxpr):  # a program that is only made when it is wanted
                inner = inner([a.aval for a in e.ins])
            params = _text(inner)
        else:
            params = " ".join([f"{k}={_text(v)}" for k, v in e.params.items()])
        self.bind(e.outs)
        return f"{name}[{params}] {ins} {' '.join([_type(v.aval) for v in e.outs])}"

    def atom(self, a: Atom) -> str:
        if isinstance(a, Literal):
            return f"{_type(a.aval)}:{a.value.tobytes().hex()}"
        return str(self.numbers[a])


def _type(a: ShapedArray) -> str:
    return f"{_dtype(a.dtype)}{a.shape}{'w' if a.weak_type else ''}"


@functools.cache
def _dtype(dtype: np.dtype) -> str:
    return f"{dtype.name}{dtype.byteorder}"


# ---- primitives

_names: dict[Primitive, str | None] = {}
_modules = 0


def _primitive(prim: Primitive) -> str:
    """The name of an operation of this package, which no other has."""
    name = _names.get(prim)
    if name is None:
        _find_primitives()
        name = _names.get(prim)
        if name is None:
            raise _Unknown
    return name


_DEFINE = tuple(f"funcgrad.{part}." for part in ("core", "ops", "transforms", "parallel"))


def _find_primitives() -> None:
    """Name the operations that modules of this package define."""
    global _modules
    if len(sys.modules) == _modules:
        return
    _modules = len(sys.modules)
    by_name: dict[str, Primitive] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_DEFINE):
            for value in list(vars(module).values()):
                if type(value) is Primitive:
                    first = by_name.setdefault(value.name, value)
                    _names[value] = value.name if first is value else None
                    if first is not value:
                        _names[first] = None


# ---- parameters


def _text(value: Any) -> str:
    """A parameter such that no other one has the same text."""
    write = _WRITERS.get(type(value))
    return write(value) if write else _other(value)


def _list(values: Any) -> str:
    return f"({','.join([_text(v) for v in values])})"


def _array(x: np.ndarray) -> str:
    if x.nbytes > _MOST_BYTES or x.dtype.hasobject:
        raise _Unknown
    return f"array{_dtype(x.dtype)}{x.shape}{digest(x.tobytes())}"


def _program(jaxpr: Jaxpr) -> str:
    found = identity(jaxpr)
    if found is None:
        raise _Unknown
    return f"program {found}"


_WRITERS: dict[type, Callable[[Any], str]] = {
    type(None): repr, bool: repr, int: repr, float: float.hex, complex: repr, str: repr,
    tuple: _list, list: lambda x: f"list{_list(x)}",
    dict: lambda x: f"dict{sorted(map(_text, x.items()))}",
    frozenset: lambda x: f"set{sorted(map(_text, x))}",
    np.ndarray: _array, Jaxpr: _program, Primitive: _primitive,
    ShapedArray: lambda x: f"type {_type(x)}",
}  # fmt: skip


def _other(value: Any) -> str:
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    if isinstance(value, np.dtype):
        return f"dtype {_dtype(value)}"
    if isinstance(value, np.generic):
        return f"{name}{_array(np.asarray(value))}"
    if not cls.__module__.startswith("funcgrad.") or "<locals>" in name:
        raise _Unknown
    if isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    if isinstance(value, tuple):
        return f"{name}{_list(value)}"
    if is_dataclass(value):
        return f"{name}{_list([getattr(value, f.name) for f in fields(value)])}"
    if isinstance(value, Record):
        return f"{name}{_list([getattr(value, f) for f in value._fields])}"
    raise _Unknown
