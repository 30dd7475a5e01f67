"""Dtypes and their promotion: JAX's lattice with weak types, as a table of edges.

The lattice's nodes are the numpy dtypes (bfloat16, float8 and int4 through ml_dtypes) and three
weak nodes `i*`, `f*`, `c*` for Python scalars and what is computed from them alone. The promotion
of several types is their least upper bound.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from funcgrad.errors import DTypeError, TypePromotionError

bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
bfloat16 = ml_dtypes.bfloat16
int4, uint4 = ml_dtypes.int4, ml_dtypes.uint4
float8_e4m3fn, float8_e5m2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
float8_e4m3fnuz, float8_e5m2fnuz = ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz
float8_e4m3b11fnuz = ml_dtypes.float8_e4m3b11fnuz
float8_e3m4, float8_e4m3 = ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3

FLOAT8 = tuple(
    np.dtype(t)
    for t in (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e4m3b11fnuz,
              float8_e3m4, float8_e4m3)
)  # fmt: skip
FLOATS = (*FLOAT8, *map(np.dtype, (bfloat16, float16, float32, float64)))
SIGNED = tuple(map(np.dtype, (int4, int8, int16, int32, int64)))
UNSIGNED = tuple(map(np.dtype, (uint4, uint8, uint16, uint32, uint64)))
COMPLEX = tuple(map(np.dtype, (complex64, complex128)))
BOOL = np.dtype(bool)
ALL = (BOOL, *SIGNED, *UNSIGNED, *FLOATS, *COMPLEX)
CANONICAL = frozenset(ALL)
# What NumPy makes of Python's numbers (np.sqrt(2), np.mean([1, 2]), np.prod(x.shape)): scalars that
# keep their dtype when alone, and are weak, as the numbers are.
NUMBERS = frozenset({np.float64, np.int64, np.complex128})

# The dtype of tangents of integers and booleans: there is nothing to differentiate.
float0 = np.dtype([("float0", np.void, 0)])

_SHORT = {BOOL: "bool", float0: "float0", np.dtype(bfloat16): "bf16"}
_SHORT |= {d: f"i{d.name[3:]}" for d in SIGNED} | {d: f"u{d.name[4:]}" for d in UNSIGNED}
_SHORT |= {d: f"f{d.name[5:]}" for d in FLOATS if d != np.dtype(bfloat16)}
_SHORT |= {d: f"c{d.name[7:]}" for d in COMPLEX}
_BY_NAME = {d.name: d for d in ALL}


class Kind(NamedTuple):
    """A weak node of the lattice: a Python scalar's kind, without a width."""

    name: str


WEAK_INT, WEAK_FLOAT, WEAK_COMPLEX = Kind("i*"), Kind("f*"), Kind("c*")


def _edges() -> dict[Any, tuple]:
    d = np.dtype
    up: dict[Any, tuple] = {
        BOOL: (WEAK_INT,),
        WEAK_INT: (d(uint4), d(int4), d(uint8), d(int8)),
        d(uint4): (),
        d(int4): (),
        d(uint8): (d(uint16), d(int16)),
        d(uint16): (d(uint32), d(int32)),
        d(uint32): (d(uint64), d(int64)),
        d(uint64): (WEAK_FLOAT,),
        d(int8): (d(int16),),
        d(int16): (d(int32),),
        d(int32): (d(int64),),
        d(int64): (WEAK_FLOAT,),
        WEAK_FLOAT: (*FLOAT8, d(bfloat16), d(float16), WEAK_COMPLEX),
        d(bfloat16): (d(float32),),
        d(float16): (d(float32),),
        d(float32): (d(float64), d(complex64)),
        d(float64): (d(complex128),),
        WEAK_COMPLEX: (d(complex64),),
        d(complex64): (d(complex128),),
        d(complex128): (),
    }
    return up | dict.fromkeys(FLOAT8, ())


def _upper_bounds() -> dict[Any, frozenset]:
    edges = _edges()
    bounds: dict[Any, frozenset] = {}

    def visit(node):
        if node not in bounds:
            above = [visit(n) for n in edges[node]]
            bounds[node] = frozenset({node}).union(*above)
        return bounds[node]

    for node in edges:
        visit(node)
    return bounds


_BOUNDS = _upper_bounds()


@cache
def join(nodes: frozenset) -> Any:
    """The least upper bound of lattice nodes (dtypes and weak kinds).

    >>> join(frozenset({np.dtype("int32"), WEAK_FLOAT})) == WEAK_FLOAT
    True
    """
    common = frozenset.intersection(*(_BOUNDS[n] for n in nodes))
    least = [n for n in common if common <= _BOUNDS[n]]
    if len(least) != 1:
        names = " and ".join(sorted(n.name for n in nodes))
        raise TypePromotionError(
            f"no implicit promotion of {names}: convert one of them explicitly with .astype(...)"
        )
    return least[0]


def canonical(dtype: Any) -> np.dtype:
    """The numpy dtype that a name, a scalar type or a dtype stands for.

    >>> canonical("bfloat16"), canonical(np.float32)
    (dtype(bfloat16), dtype('float32'))
    """
    if isinstance(dtype, np.dtype) and dtype in CANONICAL:
        return dtype
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as e:
        raise DTypeError(f"{dtype!r} is not a dtype") from e
    if found == float0:
        return float0
    if found not in _SHORT:
        found = found.newbyteorder("=")
    if found not in _SHORT:
        raise DTypeError(f"arrays of dtype {found} are not supported")
    return found


def short_name(dtype: np.dtype) -> str:
    """The name a program prints: f32, i64, bf16, bool.

    >>> short_name(np.dtype("float32"))
    'f32'
    """
    return _SHORT[dtype]


def kind_of(dtype: np.dtype) -> Kind | np.dtype:
    """The weak node of a dtype's kind (bool has none and stands for itself).

    >>> kind_of(np.dtype("int64")).name
    'i*'
    """
    if dtype == BOOL:
        return BOOL
    if is_integer(dtype):
        return WEAK_INT
    return WEAK_COMPLEX if is_complex(dtype) else WEAK_FLOAT


def is_float(dtype: np.dtype) -> bool:
    """Whether dtype is a real floating-point one.

    >>> is_float(np.dtype(bfloat16))
    True
    """
    return dtype in FLOATS


def is_complex(dtype: np.dtype) -> bool:
    """Whether dtype is complex.

    >>> is_complex(np.dtype("complex64"))
    True
    """
    return dtype.kind == "c"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether dtype is floating-point or complex, so that it has derivatives.

    >>> is_inexact(np.dtype("int32"))
    False
    """
    return dtype.kind == "c" or dtype in FLOATS


def is_integer(dtype: np.dtype) -> bool:
    """Whether dtype is a signed or unsigned integer (bool is not).

    >>> is_integer(np.dtype(int4))
    True
    """
    return dtype in SIGNED or dtype in UNSIGNED


def is_signed(dtype: np.dtype) -> bool:
    """Whether dtype is a signed integer.

    >>> is_signed(np.dtype("uint8"))
    False
    """
    return dtype in SIGNED


def to_inexact(dtype: np.dtype, default_float: np.dtype) -> np.dtype:
    """dtype if it has derivatives, else the default float.

    >>> to_inexact(np.dtype("int8"), np.dtype("float32"))
    dtype('float32')
    """
    return dtype if is_inexact(dtype) else default_float


def real_part(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part of a complex dtype; real dtypes are their own.

    >>> real_part(np.dtype("complex64"))
    dtype('float32')
    """
    if not is_complex(dtype):
        return dtype
    return np.dtype(float32 if dtype == np.complex64 else float64)


def to_complex(dtype: np.dtype) -> np.dtype:
    """The complex dtype that holds a float dtype.

    >>> to_complex(np.dtype("float64"))
    dtype('complex128')
    """
    return np.dtype(complex128 if dtype in (np.float64, np.complex128) else complex64)


def finfo(dtype: Any) -> Any:
    """Machine limits of a float dtype, as `numpy.finfo`, for ml_dtypes too.

    >>> finfo("bfloat16").bits
    16
    """
    dtype = real_part(canonical(dtype))
    if not is_float(dtype):
        raise DTypeError(f"finfo: {dtype} is not a floating-point dtype")
    return np.finfo(dtype) if issubclass(dtype.type, np.floating) else ml_dtypes.finfo(dtype)


def iinfo(dtype: Any) -> Any:
    """Machine limits of an integer dtype, as `numpy.iinfo`, for int4 too.

    >>> int(iinfo("int4").max)
    7
    """
    dtype = canonical(dtype)
    if not is_integer(dtype):
        raise DTypeError(f"iinfo: {dtype} is not an integer dtype")
    return np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> np.dtype:
    """The numpy dtype that a name or a type stands for, as `canonical`; JAX's name.

    Without JAX's switch, 64 bits stay 64 bits. allow_extended_dtype: dtypes of keys pass, too.

    >>> canonicalize_dtype("float64")
    dtype('float64')
    """
    if allow_extended_dtype and getattr(dtype, "type", None) is prng_key:
        return dtype
    return canonical(dtype)


def itemsize_bits(dtype: Any) -> int:
    """The bits of an element.

    >>> itemsize_bits("int4"), itemsize_bits("float32")
    (4, 32)
    """
    found = canonical(dtype)
    return 4 if found in (np.dtype(int4), np.dtype(uint4)) else 8 * found.itemsize


def scalar_type_of(x: Any) -> type:
    """The type of Python's numbers that a value's dtype is nearest to.

    >>> scalar_type_of(np.float16(1)), scalar_type_of(True)
    (<class 'float'>, <class 'bool'>)
    """
    if not hasattr(x, "dtype") and not isinstance(x, bool | int | float | complex):
        raise DTypeError(f"scalar_type_of: x must be an array or a number, got {x!r}")
    found = canonical(x.dtype if hasattr(x, "dtype") else type(x))
    if found == BOOL:
        return bool
    return int if is_integer(found) else complex if is_complex(found) else float


class extended(np.generic):
    """The kind of dtypes that NumPy has no name for: those of keys."""


class prng_key(extended):
    """The kind of the dtypes of random keys."""


# What NumPy's abstract types hold, and Python's types stand for, in questions about dtypes.
_ABSTRACT: dict[Any, Any] = {
    np.generic: lambda d: True,
    np.number: lambda d: d != BOOL,
    np.inexact: is_inexact,
    np.floating: is_float,
    np.complexfloating: is_complex,
    np.integer: is_integer,
    np.signedinteger: is_signed,
    np.unsignedinteger: lambda d: d in UNSIGNED,
}
_PYTHON = {bool: np.bool_, int: np.integer, float: np.floating, complex: np.complexfloating}


_NO_ARRAYS = (extended, np.object_, np.character, np.void, np.datetime64, np.timedelta64)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is another one, or of a kind: np.floating, np.integer, `prng_key`, … .

    >>> issubdtype("bfloat16", np.floating), issubdtype("int32", np.floating)
    (True, False)
    """
    if isinstance(arg2, type):
        arg2 = _PYTHON.get(arg2, arg2)
    kind = getattr(arg1, "type", arg1)
    if isinstance(kind, type) and (kind in _ABSTRACT or issubclass(kind, extended)):
        return np.issubdtype(kind, arg2)
    if isinstance(arg2, type) and (arg2 is object or issubclass(arg2, _NO_ARRAYS)):
        return False
    test = _ABSTRACT.get(arg2) if isinstance(arg2, type) else None
    found = canonical(arg1)
    return bool(test(found)) if test else found == canonical(arg2)
