"""How objects of Python, of NumPy and of ours lie in memory, found out by looking at some."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

from funcgrad.backends.llvm.calls import direct_words as w
from funcgrad.core.array import Array

NEW_FROM_DESCR = 94  # the number of PyArray_NewFromDescr in NumPy's table of C functions
FASTCALL, KEYWORDS, NOARGS, ONE = 0x80, 0x02, 0x04, 0x08  # kinds of CPython's methods
NO_GIL = "t" in getattr(sys, "abiflags", "")  # Python without its global lock
# NumPy's scalars, in whose memory the value follows the object's head.
SCALARS = tuple(
    np.dtype(name).type
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "float32", "float64")
)  # fmt: skip


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def builtin(method: MethodDef, bound: Any) -> Callable[..., Any]:
    """A builtin function of native code, which is given `bound`; `method` is to live for ever."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    function: Callable[..., Any] = new(ctypes.addressof(method), bound, None)
    return function


def array_slots() -> dict[str, int]:
    """Where in an Array's memory its attributes are."""
    array, value, gone, aval = Array(np.zeros(1)), np.zeros(1), "gone", object()
    array._value, array.weak_type, array._gone, array.aval = value, True, gone, aval  # type: ignore
    held = {"value": value, "weak_type": True, "gone": gone, "aval": aval}
    return {name: offset(array, x, Array.__basicsize__) for name, x in held.items()}


def offset(obj: Any, held: Any, size: int) -> int:
    """Where in an object's memory the reference to another is."""
    words = (ctypes.c_void_p * (size // 8)).from_address(id(obj))
    places = [i * 8 for i in range(w.HEAD // 8, size // 8) if words[i] == id(held)]
    (place,) = places
    return place


def check_layouts() -> None:
    """Raise unless NumPy's objects lie in memory as native code reads them."""
    x = np.zeros(1)
    for cls in SCALARS:
        one = cls(1)
        if ctypes.string_at(id(one) + w.HEAD, one.nbytes) != one.tobytes():
            raise ValueError("this NumPy keeps its scalars in a layout that is not known")
    at = id(x) + w.HEAD
    shape = ctypes.c_int64.from_address(ctypes.c_void_p.from_address(at + 16).value or at).value
    found = (
        ctypes.c_void_p.from_address(at).value,
        ctypes.c_int32.from_address(at + 8).value,
        shape,
        ctypes.c_void_p.from_address(at + 40).value,
        ctypes.c_int32.from_address(at + 48).value,
    )
    if found != (x.ctypes.data, x.ndim, x.shape[0], id(x.dtype), x.flags.num):
        raise ValueError("this NumPy keeps its arrays in a layout that is not known")


def numpy_function(number: int) -> int:
    """The address of the function of this number in the table of NumPy's C API."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(umath._ARRAY_API, None)
    return ctypes.c_size_t.from_address(table + number * ctypes.sizeof(ctypes.c_void_p)).value
