"""Memory of compiled programs: large results and arenas come from blocks that are kept.

Most of the time of a large elementwise op goes to page faults on its fresh result. So NumPy gets
the memory of large results from a native allocator (NumPy's own protocol, NEP 49) that keeps the
blocks of dead arrays, most recent first, and asks for huge pages. Arenas are kept the same way.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

from funcgrad.backends.llvm.engine import Engine, engine

LARGE = 1 << 17
HUGE_PAGE = 1 << 21
SLOTS = 64
_MADV_HUGEPAGE = 14

# A block is a header of 64 bytes, which holds its size, and the data. The table lists idle blocks,
# the most recently freed last; a block serves requests of half its size or more.
_IR = f"""
@fg_memory_lock = global i32 0, align 64
@count = internal global i64 0
@idle = internal global i64 0
@fg_memory_limit = global i64 0
@table = internal global [{SLOTS} x ptr] zeroinitializer

declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare {{i64, i1}} @llvm.umul.with.overflow.i64(i64, i64)

define internal void @acquire() {{
entry:
  br label %try
try:
  %old = atomicrmw xchg ptr @fg_memory_lock, i32 1 acquire
  %free = icmp eq i32 %old, 0
  br i1 %free, label %done, label %try
done:
  ret void
}}

; Takes entry i out of the table, whose lock is held.
define internal ptr @remove(i64 %i) {{
entry:
  %slot = getelementptr ptr, ptr @table, i64 %i
  %block = load ptr, ptr %slot
  %size = load i64, ptr %block
  %idle = load i64, ptr @idle
  %less = sub i64 %idle, %size
  store i64 %less, ptr @idle
  %count = load i64, ptr @count
  %left = sub i64 %count, 1
  store i64 %left, ptr @count
  %behind = sub i64 %left, %i
  %bytes = mul i64 %behind, 8
  %next = getelementptr ptr, ptr %slot, i64 1
  call void @llvm.memmove.p0.p0.i64(ptr %slot, ptr %next, i64 %bytes, i1 false)
  ret ptr %block
}}

define internal ptr @find(i64 %size) {{
entry:
  %most = mul i64 %size, 2
  call void @acquire()
  %count = load i64, ptr @count
  br label %look
look:
  %above = phi i64 [%count, %entry], [%i, %next]
  %some = icmp sgt i64 %above, 0
  br i1 %some, label %test, label %none
test:
  %i = sub i64 %above, 1
  %slot = getelementptr ptr, ptr @table, i64 %i
  %block = load ptr, ptr %slot
  %has = load i64, ptr %block
  %enough = icmp uge i64 %has, %size
  %modest = icmp ule i64 %has, %most
  %fits = and i1 %enough, %modest
  br i1 %fits, label %take, label %next
next:
  br label %look
take:
  %found = call ptr @remove(i64 %i)
  br label %none
none:
  %result = phi ptr [null, %look], [%found, %take]
  store atomic i32 0, ptr @fg_memory_lock release, align 4
  ret ptr %result
}}

define ptr @fg_memory_take(ptr %ctx, i64 %size) {{
entry:
  %box = alloca ptr
  %old = call ptr @find(i64 %size)
  %reuse = icmp ne ptr %old, null
  br i1 %reuse, label %good, label %fresh
fresh:
  %total = add i64 %size, 64
  %huge = icmp uge i64 %size, {2 * HUGE_PAGE}
  %align = select i1 %huge, i64 {HUGE_PAGE}, i64 64
  %error = call i32 @posix_memalign(ptr %box, i64 %align, i64 %total)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %none, label %made
made:
  %new = load ptr, ptr %box
  br i1 %huge, label %advise, label %label
advise:
  %ignored = call i32 @madvise(ptr %new, i64 %total, i32 {_MADV_HUGEPAGE})
  br label %label
label:
  store i64 %size, ptr %new
  br label %good
good:
  %block = phi ptr [%old, %entry], [%new, %label]
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
none:
  ret ptr null
}}

define void @fg_memory_give(ptr %ctx, ptr %data, i64 %ignored) {{
entry:
  %null = icmp eq ptr %data, null
  br i1 %null, label %out, label %begin
begin:
  %block = getelementptr i8, ptr %data, i64 -64
  %size = load i64, ptr %block
  br label %again
again:
  call void @acquire()
  %limit = load i64, ptr @fg_memory_limit
  %count = load i64, ptr @count
  %idle = load i64, ptr @idle
  %sum = add i64 %idle, %size
  %over = icmp ugt i64 %sum, %limit
  %full = icmp eq i64 %count, {SLOTS}
  %much = or i1 %over, %full
  %empty = icmp eq i64 %count, 0
  br i1 %much, label %crowded, label %keep
crowded:
  br i1 %empty, label %refuse, label %evict
refuse:
  store atomic i32 0, ptr @fg_memory_lock release, align 4
  call void @free(ptr %block)
  br label %out
evict:
  %oldest = call ptr @remove(i64 0)
  store atomic i32 0, ptr @fg_memory_lock release, align 4
  call void @free(ptr %oldest)
  br label %again
keep:
  %slot = getelementptr ptr, ptr @table, i64 %count
  store ptr %block, ptr %slot
  %more = add i64 %count, 1
  store i64 %more, ptr @count
  store i64 %sum, ptr @idle
  store atomic i32 0, ptr @fg_memory_lock release, align 4
  br label %out
out:
  ret void
}}

define ptr @fg_memory_zeros(ptr %ctx, i64 %n, i64 %width) {{
entry:
  %pair = call {{i64, i1}} @llvm.umul.with.overflow.i64(i64 %n, i64 %width)
  %size = extractvalue {{i64, i1}} %pair, 0
  %wraps = extractvalue {{i64, i1}} %pair, 1
  br i1 %wraps, label %none, label %take
take:
  %data = call ptr @fg_memory_take(ptr %ctx, i64 %size)
  %failed = icmp eq ptr %data, null
  br i1 %failed, label %none, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %size, i1 false)
  ret ptr %data
none:
  ret ptr null
}}

define ptr @fg_memory_resize(ptr %ctx, ptr %data, i64 %size) {{
entry:
  %new = call ptr @fg_memory_take(ptr %ctx, i64 %size)
  %failed = icmp eq ptr %new, null
  %first = icmp eq ptr %data, null
  %nothing = or i1 %failed, %first
  br i1 %nothing, label %out, label %copy
copy:
  %block = getelementptr i8, ptr %data, i64 -64
  %had = load i64, ptr %block
  %both = call i64 @llvm.umin.i64(i64 %had, i64 %size)
  call void @llvm.memcpy.p0.p0.i64(ptr %new, ptr %data, i64 %both, i1 false)
  call void @fg_memory_give(ptr %ctx, ptr %data, i64 0)
  br label %out
out:
  ret ptr %new
}}
"""

_SET_HANDLER = 304  # the number of PyDataMem_SetHandler in NumPy's table of C functions


class _Handler(ctypes.Structure):
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


class _Allocator:
    """The native allocator, and how NumPy is told to use it."""

    def __init__(self) -> None:
        library = engine().compile(_IR, level=0)
        names = ("take", "zeros", "resize", "give")
        functions = [library.address(f"fg_memory_{n}") for n in names]
        self._handler = _Handler(b"funcgrad", 1, None, *functions)
        self.limit = ctypes.c_int64.from_address(library.address("fg_memory_limit"))
        self.limit.value = _memory_bytes() // 16
        self.lock = ctypes.c_int32.from_address(library.address("fg_memory_lock"))
        self.take, self.give = functions[0], functions[3]
        address = ctypes.c_void_p
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [address, ctypes.c_char_p, address]
        # NumPy reads the capsule whenever an array dies: it lives as long as the process.
        self.capsule = capsule(ctypes.addressof(self._handler), b"mem_handler", None)
        self.set_handler = self._numpy_setter()
        kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
        self.use: Callable[[Any], Any] = kind(self.set_handler)

    @staticmethod
    def _numpy_setter() -> int:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        table = pointer(umath._ARRAY_API, None)
        word = ctypes.sizeof(ctypes.c_void_p)
        return ctypes.c_size_t.from_address(table + _SET_HANDLER * word).value


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 33


_lock = threading.Lock()
_allocator: _Allocator | None = None


def allocator() -> _Allocator:
    """The one allocator, made at first use."""
    global _allocator
    with _lock:
        if _allocator is None:
            _allocator = _Allocator()
        return _allocator


def large_arrays(specs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
    """Uninitialized arrays of these shapes and dtypes in memory that is kept after their death.

    >>> large_arrays([((2, 3), np.dtype("int8"))])[0].shape
    (2, 3)
    """
    a = _allocator or allocator()
    before = a.use(a.capsule)
    try:
        return [np.empty(shape, dtype) for shape, dtype in specs]
    finally:
        a.use(before)


def bind(target: Engine) -> None:
    """Let modules that *target* compiles call fg_memory_take and fg_memory_give.

    >>> bind(engine())
    """
    a = _allocator or allocator()
    target.bind("fg_memory_take", a.take)
    target.bind("fg_memory_give", a.give)


def _after_fork() -> None:
    """Another thread may have held the lock when the process forked."""
    global _lock
    _lock = threading.Lock()
    if _allocator is not None:
        _allocator.lock.value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
