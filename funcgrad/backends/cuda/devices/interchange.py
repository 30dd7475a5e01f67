"""Memory of a device for other libraries, without a copy: DLPack's capsules by ctypes.

A capsule holds a DLManagedTensor of dlpack.h, version 0.8 (https://dmlc.github.io/dlpack). Who
takes it renames it and calls its deleter in the end; a capsule that nobody took calls it itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import NamedTuple, Protocol

import numpy as np

from funcgrad.backends.llvm.emit.text import BFLOAT16

CUDA = 2  # kDLCUDA
_NAME, _USED = b"dltensor", b"used_dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4


class Exported(Protocol):
    """What is exported: an array on a device."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def address(self) -> int:
        """Where it begins."""


class _Tensor(ctypes.Structure):
    """DLTensor, and the two fields that make it a DLManagedTensor."""

    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64), ("context", c_void_p),
        ("deleter", c_void_p),
    )  # fmt: skip


_DELETER = ctypes.CFUNCTYPE(None, POINTER(_Tensor))
_DESTRUCTOR = ctypes.CFUNCTYPE(None, c_void_p)
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(
    ("PyCapsule_New", _api)
)  # fmt: skip
_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_char_p)(("PyCapsule_SetName", _api))
_inside = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", _api))
# What is exported, by the address of its tensor, until its deleter is called.
_alive: dict[int, tuple] = {}


@_DELETER
def _delete(tensor: ctypes._Pointer) -> None:
    _alive.pop(ctypes.addressof(tensor.contents), None)


@_DESTRUCTOR
def _unused(capsule: int) -> None:
    if _valid(capsule, _NAME):  # nobody took it
        _alive.pop(_pointer(capsule, _NAME), None)


def capsule(x: Exported, device: int) -> object:
    """An array as DLPack's capsule, which keeps it alive.

    Raises BufferError for dtypes that DLPack doesn't know.
    """
    code = _CODES.get(x.dtype.kind) if x.dtype.isbuiltin == 1 else None
    code = _BFLOAT if x.dtype == BFLOAT16 else code
    if code is None:
        raise BufferError(f"DLPack has no {x.dtype.name}")
    shape = (c_int64 * len(x.shape))(*x.shape)
    tensor = _Tensor(
        x.address, CUDA, device, len(x.shape), code, 8 * x.dtype.itemsize, 1,
        ctypes.cast(shape, POINTER(c_int64)), None, 0, None, ctypes.cast(_delete, c_void_p),
    )  # fmt: skip
    at = ctypes.addressof(tensor)
    _alive[at] = tensor, shape, x
    return _new(at, _NAME, ctypes.cast(_unused, c_void_p))


class Imported(NamedTuple):
    """Another library's array: where it is, and what gives it back."""

    address: int
    device: int
    shape: tuple[int, ...]
    dtype: np.dtype
    give_back: Callable[[], None]


def imported(held: object) -> Imported:
    """The array of a capsule, which is taken: `give_back` is to be called once, in the end.

    Raises BufferError for an array that isn't contiguous in row-major order, or of another dtype.
    """
    at = _inside(held, _NAME)
    tensor = _Tensor.from_address(at)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = _dtype_of(tensor.code, tensor.bits, tensor.lanes)
    if tensor.strides:
        expected = 1
        for i in reversed(range(len(shape))):
            if shape[i] != 1 and 0 not in shape and tensor.strides[i] != expected:
                strides = tuple(tensor.strides[k] for k in range(len(shape)))
                raise BufferError(
                    f"from_dlpack: an array on a GPU must be contiguous in row-major order, got "
                    f"shape {shape} with strides {strides}: copy it first"
                )
            expected *= shape[i]
    _rename(held, _USED)

    def give_back() -> None:
        if tensor.deleter:
            _DELETER(tensor.deleter)(ctypes.pointer(tensor))

    address = (tensor.data or 0) + tensor.byte_offset
    return Imported(address, tensor.device_id, shape, dtype, give_back)


def _dtype_of(code: int, bits: int, lanes: int) -> np.dtype:
    kinds = {number: kind for kind, number in _CODES.items()}
    if lanes == 1 and (code, bits) == (_BFLOAT, 16):
        return np.dtype(BFLOAT16)
    if lanes == 1 and (code, bits) == (_CODES["b"], 8):
        return np.dtype(bool)
    kind = kinds.get(code, "")
    if lanes == 1 and bits % 8 == 0 and bits <= (128 if kind == "c" else 64):
        with suppress(TypeError):  # of no such size
            return np.dtype(f"{kind}{bits // 8}")
    raise BufferError(
        f"from_dlpack: no dtype here has DLPack's code {code} with {bits} bits, {lanes} at a time"
    )
