"""Parameters of operations as JSON, and back: data of known kinds, and nothing that could run.

Booleans, integers, texts and None stand for themselves and a list for a tuple; all else is an
object of one entry whose key says what it is, `{"dtype": "float32"}`. Floats are their bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import Constant
from funcgrad.core.ir import Jaxpr
from funcgrad.core.primitive import Primitive
from funcgrad.core.shapes import SymbolicSize
from funcgrad.core.sharding import Mesh, NamedSharding, PartitionSpec
from funcgrad.errors import FormatError
from funcgrad.export.program.vocabulary import op_name, op_named
from funcgrad.ops.convolution.conv import ConvDimensionNumbers
from funcgrad.ops.elementwise.rounding import RoundingMethod
from funcgrad.ops.fft import FftType
from funcgrad.ops.indexing.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)

Json = Any

_RECORDS = {c.__name__: c for c in (ConvDimensionNumbers, GatherDimensionNumbers,
                                    ScatterDimensionNumbers)}  # fmt: skip
_ENUMS = {c.__name__: c for c in (FftType, GatherScatterMode, RoundingMethod)}
_DTYPES = {d.name: d for d in dtypes.ALL} | {"float0": dtypes.float0}
_DOUBLE = struct.Struct(">d")
MOST_AXES = 64


class Unknown(Exception):
    """A value that has no form in files; whoever knows the equation says so to the user."""


class Tables(Protocol):
    """What values refer to by number: programs, meshes and arrays of the same file."""

    def program(self, jaxpr: Jaxpr) -> int:
        """The number of a program."""

    def mesh(self, mesh: Mesh) -> int:
        """The number of a mesh."""

    def weight(self, array: Any) -> str:
        """The name of an array."""


class Held(Protocol):
    """What stands under the numbers of a file's values."""

    def program(self, number: Json) -> Jaxpr:
        """The program of a number."""

    def mesh(self, number: Json) -> Mesh:
        """The mesh of a number."""

    def weight(self, name: Json) -> Constant:
        """The array of a name."""

    def value(self, found: Json) -> Any:
        """A parameter."""


# ---- types and numbers


def type_to_json(aval: ShapedArray) -> list:
    """A type: its dtype, "~" in front if it is weak, and the sizes of its axes.

    >>> type_to_json(ShapedArray((2, 3), "float32"))
    ['float32', 2, 3]
    """
    name = "float0" if aval.dtype == dtypes.float0 else aval.dtype.name
    sizes = [{"dim": repr(n)} if isinstance(n, SymbolicSize) else int(n) for n in aval.shape]
    return ["~" + name if aval.weak_type else name, *sizes]


def type_from_json(found: Json) -> ShapedArray:
    """The type that JSON says; FormatError where it says none."""
    ok = isinstance(found, list) and 1 <= len(found) <= MOST_AXES and isinstance(found[0], str)
    if ok and all(type(n) is int and 0 <= n < 1 << 62 for n in found[1:]):
        dtype = _DTYPES.get(found[0].removeprefix("~"))
        if dtype is not None:
            return ShapedArray(tuple(found[1:]), dtype, found[0].startswith("~"))
    raise FormatError(f"{short(found)} is no type")


def short(found: Json) -> str:
    """What was found, for a message."""
    text = repr(found)
    return text if len(text) <= 80 else text[:77] + "…"


def bits_of(x: float) -> str:
    """A float as its bits.

    >>> bits_of(1.0)
    '3ff0000000000000'
    """
    return _DOUBLE.pack(x).hex()


def _from_bits(found: Json) -> float:
    if not (isinstance(found, str) and len(found) == 16):
        raise FormatError(f"{short(found)} are no bits of a float")
    return _DOUBLE.unpack(bytes.fromhex(found))[0]


def scalar_to_json(x: np.ndarray) -> str:
    """The bytes of a 0-d array, little-endian, as hex digits."""
    return np.asarray(x).tobytes().hex()


def scalar_from_json(found: Json, dtype: np.dtype) -> np.ndarray:
    """The 0-d array of these bytes."""
    if not (isinstance(found, str) and len(found) == 2 * dtype.itemsize):
        raise FormatError(f"{short(found)} is no {dtype.name}")
    value = np.frombuffer(bytes.fromhex(found), dtype)[0]
    if dtype == dtypes.BOOL and found not in ("00", "01"):
        raise FormatError(f"{short(found)} is no bool")
    return np.array(value, dtype)


# ---- values


def to_json(x: Any, tables: Tables) -> Json:
    """A parameter as JSON; Unknown where it has no form."""
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is tuple:
        return [to_json(y, tables) for y in x]
    for kind, write in _WRITERS:
        if isinstance(x, kind):
            return write(x, tables)
    raise Unknown


def _record(x: Any, tables: Tables) -> Json:
    return {"record": [type(x).__name__, *(to_json(y, tables) for y in x)]}


def _enum(x: Enum, tables: Tables) -> Json:
    if type(x).__name__ not in _ENUMS:
        raise Unknown
    return {"enum": [type(x).__name__, x.name]}


def _sharding(x: NamedSharding, tables: Tables) -> Json:
    entries = [list(e) if isinstance(e, tuple) else e for e in x.spec.entries]
    return {"sharding": [tables.mesh(x.mesh), entries, x.regather]}


_WRITERS: tuple[tuple[Any, Callable[[Any, Tables], Json]], ...] = (
    (Enum, _enum),
    (tuple(_RECORDS.values()), _record),
    (np.generic, lambda x, t: {"scalar": [x.dtype.name, scalar_to_json(np.asarray(x))]}),
    (float, lambda x, t: {"float": bits_of(x)}),
    (complex, lambda x, t: {"complex": [bits_of(x.real), bits_of(x.imag)]}),
    (np.dtype, lambda x, t: {"dtype": type_to_json(ShapedArray((), x))[0]}),
    (list, lambda x, t: {"list": [to_json(y, t) for y in x]}),
    (frozenset, lambda x, t: {"set": [to_json(y, t) for y in sorted(x)]}),
    (ShapedArray, lambda x, t: {"type": type_to_json(x)}),
    (Primitive, lambda x, t: {"primitive": op_name(x)}),
    (Jaxpr, lambda x, t: {"program": t.program(x)}),
    (Mesh, lambda x, t: {"mesh": t.mesh(x)}),
    (NamedSharding, _sharding),
    (Constant, lambda x, t: {"weight": t.weight(x.array)}),
)


def from_json(found: Json, held: Held) -> Any:
    """The parameter that JSON says; FormatError where it says none."""
    if found is None or type(found) in (bool, int, str):
        return found
    if type(found) is list:
        return tuple([from_json(x, held) for x in found])
    if type(found) is dict and len(found) == 1:
        ((kind, inner),) = found.items()
        read = _READERS.get(kind)
        if read is not None:
            return read(inner, held)
    raise FormatError(f"{short(found)} is no parameter of an operation")


def _items(found: Json, n: int | None = None) -> list:
    if type(found) is not list or (n is not None and len(found) != n):
        raise FormatError(f"{short(found)} should be a list" + (f" of {n}" if n else ""))
    return found


def _read_record(found: Json, held: Held) -> Any:
    name, *fields = _items(found) or [None]
    kind = _RECORDS.get(name) if isinstance(name, str) else None
    if kind is None or len(fields) != len(kind._fields):
        raise FormatError(f"{short(found)} is no record")
    return kind(*(from_json(x, held) for x in fields))


def _read_enum(found: Json, held: Held) -> Enum:
    kind, name = _items(found, 2)
    if kind not in _ENUMS or name not in _ENUMS[kind].__members__:
        raise FormatError(f"{short(found)} is no setting")
    return _ENUMS[kind][name]


def dtype_named(found: Json) -> np.dtype:
    """The dtype of a name."""
    if not isinstance(found, str) or found not in _DTYPES:
        raise FormatError(f"{short(found)} is no dtype")
    return _DTYPES[found]


def _read_scalar(found: Json, held: Held) -> Any:
    name, bits = _items(found, 2)
    return scalar_from_json(bits, dtype_named(name))[()]


def _read_sharding(found: Json, held: Held) -> NamedSharding:
    mesh, entries, regather = _items(found, 3)
    spec = PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in _items(entries)))
    return NamedSharding(held.mesh(mesh), spec, regather is True)


_READERS: dict[str, Callable[[Json, Held], Any]] = {
    "record": _read_record,
    "enum": _read_enum,
    "scalar": _read_scalar,
    "float": lambda x, h: _from_bits(x),
    "complex": lambda x, h: complex(*map(_from_bits, _items(x, 2))),
    "dtype": lambda x, h: dtype_named(x),
    "list": lambda x, h: [from_json(y, h) for y in _items(x)],
    "set": lambda x, h: frozenset(from_json(y, h) for y in _items(x)),
    "type": lambda x, h: type_from_json(x),
    "primitive": lambda x, h: op_named(x if isinstance(x, str) else "")[0],
    "program": lambda x, h: h.program(x),
    "mesh": lambda x, h: h.mesh(x),
    "sharding": _read_sharding,
    "weight": lambda x, h: h.weight(x),
}
