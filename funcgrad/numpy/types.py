"""Constants, the array type, and questions about dtypes, shapes and kinds of values."""

from __future__ import annotations

import builtins
import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from funcgrad import dtypes
from funcgrad.core.aval import ShapedArray, scalar_dtype
from funcgrad.core.aval import promote as promote_avals
from funcgrad.core.methods import ArrayMethods
from funcgrad.core.settings import numpy_rank_promotion
from funcgrad.errors import within
from funcgrad.numpy._util import as_array, axes_of, is_scalar, shape_of
from funcgrad.numpy._util import broadcast_shapes as _broadcast_shapes
from funcgrad.numpy._util import integer as whole

pi, e, euler_gamma, inf, nan = math.pi, math.e, 0.5772156649015329, math.inf, math.nan
newaxis = None

# What arrays and tracers are instances of.
ndarray = ArrayMethods

bool_ = dtypes.bool_
int4, int8, int16, int32, int64 = dtypes.int4, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
uint4, uint8, uint16 = dtypes.uint4, dtypes.uint8, dtypes.uint16
uint32, uint64 = dtypes.uint32, dtypes.uint64
bfloat16, float16 = dtypes.bfloat16, dtypes.float16
float32, float64 = dtypes.float32, dtypes.float64
float8_e4m3b11fnuz = dtypes.float8_e4m3b11fnuz
float8_e3m4, float8_e4m3 = dtypes.float8_e3m4, dtypes.float8_e4m3
float8_e4m3fn, float8_e4m3fnuz = dtypes.float8_e4m3fn, dtypes.float8_e4m3fnuz
float8_e5m2, float8_e5m2fnuz = dtypes.float8_e5m2, dtypes.float8_e5m2fnuz
complex64, complex128 = dtypes.complex64, dtypes.complex128
single, double, csingle, cdouble = float32, float64, complex64, complex128
# Those of Python's numbers by default; `default_dtype` doesn't change them.
int_, uint, float_, complex_ = int32, uint32, float32, complex64
dtype = np.dtype
generic, number, inexact, floating = np.generic, np.number, np.inexact, np.floating
complexfloating, integer = np.complexfloating, np.integer
signedinteger, unsignedinteger = np.signedinteger, np.unsignedinteger
# What no array here is of, for `issubdtype`; and a class of NumPy's warnings.
character, flexible, object_ = np.character, np.flexible, np.object_
ComplexWarning = np.exceptions.ComplexWarning

finfo, iinfo = dtypes.finfo, dtypes.iinfo

# ---- dtypes

issubdtype = dtypes.issubdtype

_KINDS = {
    "bool": (dtypes.BOOL,),
    "signed integer": dtypes.SIGNED,
    "unsigned integer": dtypes.UNSIGNED,
    "integral": dtypes.SIGNED + dtypes.UNSIGNED,
    "real floating": dtypes.FLOATS,
    "complex floating": dtypes.COMPLEX,
    "numeric": tuple(d for d in dtypes.ALL if d != dtypes.BOOL),
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind of the array API ("real floating", "integral", …).

    `kind` may also be a dtype, or a tuple of kinds and dtypes.

    >>> fnp.isdtype("float16", ("real floating", "complex floating"))
    True
    """
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, k) for k in kind)
    found = dtypes.canonical(dtype)
    if isinstance(kind, str) and kind in _KINDS:
        return found in _KINDS[kind]
    return found == dtypes.canonical(kind)


def _type_of(x: Any) -> ShapedArray:
    """The type that an array, a scalar, a dtype or Python's float, int, … has in a promotion."""
    if is_scalar(x):
        return ShapedArray((), scalar_dtype(x), type(x) is not bool)
    if isinstance(x, type) and x in _WEAK:
        return ShapedArray((), scalar_dtype(x(0)), x is not bool)
    aval = getattr(x, "aval", None)
    if aval is not None:
        return aval
    dtype = x.dtype if isinstance(x, np.ndarray | np.generic) else x
    return ShapedArray((), dtypes.canonical(dtype), type(x) in dtypes.NUMBERS)


_WEAK = (bool, int, float, complex)


def result_type(*args: Any) -> np.dtype:
    """The dtype that arrays, scalars and dtypes promote to together.

    >>> fnp.result_type("int8", "uint8"), fnp.result_type(fnp.zeros(2, "bfloat16"), 1.0)
    (dtype('int16'), dtype(bfloat16))
    """
    if not args:
        raise TypeError("result_type: need at least one array or dtype")
    return promote_avals([_type_of(x) for x in args])[0]


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype that two dtypes promote to.

    >>> fnp.promote_types("int32", "float16")
    dtype('float16')
    """
    return result_type(_strong(a), _strong(b))


def _strong(dtype: Any) -> Any:
    return dtype if isinstance(dtype, type) and dtype in _WEAK else dtypes.canonical(dtype)


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether a dtype (or an array's) can be cast to another by the rule `casting`, as in NumPy.

    >>> fnp.can_cast("int32", "float64"), fnp.can_cast("float64", "int32")
    (True, False)
    """
    typed = hasattr(from_, "dtype") and not isinstance(from_, type)
    found = dtypes.canonical(from_.dtype if typed else from_)
    try:
        return bool(np.can_cast(found, dtypes.canonical(to), casting))  # type: ignore[arg-type]
    except (TypeError, ValueError) as e:
        raise type(e)(f"can_cast: {e}") from None


# ---- values


def iscomplexobj(x: Any) -> bool:
    """Whether an array or scalar has a complex dtype.

    >>> fnp.iscomplexobj(1j)
    True
    """
    if isinstance(x, list | tuple):
        return any(map(iscomplexobj, x))
    return dtypes.is_complex(np.dtype(getattr(x, "dtype", None) or np.asarray(x).dtype))


def isrealobj(x: Any) -> bool:
    """Whether an array or scalar has no complex dtype.

    >>> fnp.isrealobj(1j)
    False
    """
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number, or an array of no axes.

    >>> fnp.isscalar(3.0), fnp.isscalar(fnp.zeros(1))
    (True, False)
    """
    return is_scalar(element) or (hasattr(element, "dtype") and np.shape(element) == ())


def ndim(a: Any) -> int:
    """The number of axes.

    >>> fnp.ndim(fnp.zeros((2, 3)))
    2
    """
    return as_array("ndim", a, "a").ndim


def shape(a: Any) -> tuple[int, ...]:
    """The sizes of the axes.

    >>> fnp.shape(fnp.zeros((2, 3)))
    (2, 3)
    """
    return as_array("shape", a, "a").shape


def size(a: Any, axis: Any = None) -> int:
    """The number of elements, or the size of one axis, or the product of several.

    >>> fnp.size(fnp.zeros((2, 3))), fnp.size(fnp.zeros((2, 3)), axis=1)
    (6, 3)
    """
    a = as_array("size", a, "a")
    return math.prod(a.shape[i] for i in axes_of("size", axis, a.ndim))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape to which all shapes (sizes or tuples of them) broadcast. Raises ShapeError if none.

    >>> fnp.broadcast_shapes((2, 1), (3,), 1)
    (2, 3)
    """
    sizes = [shape_of("broadcast_shapes", s) for s in shapes]
    with numpy_rank_promotion("allow"):  # shapes alone promote nothing
        return _broadcast_shapes("broadcast_shapes", *sizes)


def iterable(y: Any) -> bool:
    """Whether a value can be iterated over: arrays of one or more axes can.

    >>> fnp.iterable(fnp.zeros(2)), fnp.iterable(fnp.array(1.0))
    (True, False)
    """
    try:
        iter(y)
    except TypeError:
        return False
    return True


# ---- printing


def array_repr(
    arr: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The text of an array with its dtype, as repr gives it, by NumPy's options.

    >>> fnp.array_repr(fnp.array([1, 2]))
    'Array([1, 2], dtype=int32)'
    """
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return repr(as_array("array_repr", arr, "arr"))


def _options(width: int | None, precision: int | None, suppress: bool | None) -> dict[str, Any]:
    given: dict[str, Any] = {"linewidth": width, "precision": precision}
    found = {name: whole(name, value) for name, value in given.items() if value is not None}
    if any(value < 0 for value in found.values()):
        raise ValueError(within(f"the width and the precision must not be negative, got {found}"))
    return found if suppress is None else found | {"suppress": bool(suppress)}


def array_str(
    a: Any,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The text of an array's elements, as str gives it, by NumPy's options.

    >>> fnp.array_str(fnp.array([1, 2]))
    '[1 2]'
    """
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return str(as_array("array_str", a, "a"))


def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """Set how arrays are printed, by NumPy's options, for all of the program.

    >>> fnp.set_printoptions(precision=8)
    """
    try:
        np.set_printoptions(*args, **kwargs)
    except TypeError as e:
        raise TypeError(f"set_printoptions: {e}") from None


def get_printoptions() -> dict[str, Any]:
    """The options of printing that hold now.

    >>> fnp.get_printoptions()["precision"]
    8
    """
    return dict(np.get_printoptions())


def printoptions(*args: Any, **kwargs: Any) -> AbstractContextManager:
    """Within the block, arrays are printed by these options of NumPy.

    >>> with fnp.printoptions(precision=2):
    ...     print(fnp.array(fnp.pi))
    3.1415927
    """
    return np.printoptions(*args, **kwargs)
