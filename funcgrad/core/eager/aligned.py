"""Arrays whose memory begins where a line of the caches does.

NumPy's own begins at any multiple of 16 bytes. Then each vector of 64 bytes lies in two lines and
takes two reads, which made products with such a matrix take up to twice their time. So arrays that
compiled code will read get memory from C's `aligned_alloc`, by NumPy's protocol for allocators (NEP
49); all else of it stays NumPy's own.
"""

from __future__ import annotations

import contextvars
import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

LINE = 64
ALIGNED_FROM = 1 << 10  # bytes; smaller arrays are read in no time either way
# Of memory from which on NumPy asks for huge pages, as we must where it isn't NumPy's.
HUGE_FROM, _HUGE_PAGES = 1 << 22, 14
_PAGE = 1 << 12
# PyDataMem_SetHandler and PyDataMem_DefaultHandler in NumPy's table of C functions.
_SET_HANDLER, _DEFAULT_HANDLER = 304, 306
_CAPSULE = b"mem_handler"


class _Record(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class Handler:
    """An allocator as NumPy takes it: arrays have its memory after `begin()`, until `end(token)`,
    in this thread.

    functions: addresses of malloc, calloc, realloc and free, which get `ctx` as first argument
    """

    def __init__(self, functions: list[int], ctx: int | None = None):
        self._record = _Record(b"funcgrad", 1, ctx, *functions)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype = ctypes.py_object
        capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        # NumPy reads these whenever an array dies, be it after this module: they live for ever.
        for held in (self._record, _CAPSULE):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
        self.capsule = capsule(ctypes.addressof(self._record), _CAPSULE, None)
        self.set_handler = _word(_SET_HANDLER)
        self.begin, self.end = self._switches()

    def _switches(self) -> tuple[Callable, Callable]:
        """NumPy's handler is a context variable, which is quicker to set than by NumPy's function;
        it shows itself among the variables that have a value."""
        kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
        use = kind(self.set_handler)

        def found() -> contextvars.ContextVar | None:
            use(self.capsule)
            held = contextvars.copy_context().items()
            return next((v for v, value in held if value is self.capsule), None)

        variable = contextvars.copy_context().run(found)
        if variable is None:
            return partial(use, self.capsule), use
        return partial(variable.set, self.capsule), variable.reset


def _pointer(capsule: object, name: bytes | None) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, name)


def _word(i: int) -> int:
    """An entry of NumPy's table of C functions."""
    return ctypes.c_size_t.from_address(_pointer(umath._ARRAY_API, None) + 8 * i).value


@cache
def handler() -> Handler | None:
    """The allocator of such memory, where the system has one; made at first use."""
    if sys.platform != "linux":
        return None
    default = ctypes.py_object.from_address(_word(_DEFAULT_HANDLER)).value
    own = _Record.from_address(_pointer(default, _CAPSULE))
    # aligned_alloc(64, size): NumPy hands on `ctx` where it takes the alignment.
    aligned = ctypes.cast(ctypes.CDLL(None).aligned_alloc, ctypes.c_void_p).value or 0
    return Handler([aligned, own.calloc, own.realloc, own.free], ctx=LINE)


def arrays(specs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
    """Uninitialized arrays of these shapes and dtypes, aligned where the system can.

    >>> arrays([((9, 64), np.dtype("float32"))])[0].ctypes.data % 64
    0
    """
    memory = handler()
    if memory is None:
        return [np.empty(*spec) for spec in specs]
    token = memory.begin()
    try:
        return [np.empty(*spec) for spec in specs]
    finally:
        memory.end(token)


def copied(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy of an array in a dtype, aligned if that is worth while.

    >>> copied(np.ones((64, 64)), np.dtype("float32")).ctypes.data % 64
    0
    """
    memory = handler() if value.size * dtype.itemsize >= ALIGNED_FROM else None
    if memory is None:
        return np.array(value, dtype)
    value = np.asarray(value)  # for subclasses have functions of NumPy's of their own
    token = memory.begin()
    try:
        out = np.empty_like(value, dtype, subok=False)  # in the order of its axes, as np.array
    finally:
        memory.end(token)
    if out.nbytes >= HUGE_FROM:
        _ask_for_huge_pages(out.ctypes.data, out.nbytes)
    np.copyto(out, value, casting="unsafe")
    return out


def _ask_for_huge_pages(start: int, nbytes: int) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first, end = -(-start // _PAGE) * _PAGE, (start + nbytes) // _PAGE * _PAGE
    advise(first, end - first, _HUGE_PAGES)
