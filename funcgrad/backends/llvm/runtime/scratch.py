"""Scratch memory for generated code: blocks kept between calls instead of allocated anew.

Large ones lie in huge pages where the system has some: sorts, which write in many places at a
time, take half the time there.

`fg_scratch_take(bytes)` gives a block aligned to 64 bytes, `fg_scratch_give(block)` hands it back;
the process ends if memory is exhausted. Sizes are powers of two, and up to four idle blocks of
each are kept. They change hands by atomic exchanges, so any thread may take and give, nested or
not.
"""

from __future__ import annotations

import ctypes
from functools import partial

from funcgrad.backends.llvm.native.engine import Engine, here

_HUGE_PAGE = 1 << 21
_MADV_HUGEPAGE = 14

_IR = f"""
@slots = internal global [65 x [4 x ptr]] zeroinitializer, align 64

declare i32 @posix_memalign(ptr, i64, i64)
declare i32 @madvise(ptr, i64, i32)
declare void @free(ptr)
declare void @abort()
declare i64 @llvm.ctlz.i64(i64, i1)

; Each block begins with a header of 64 bytes that holds its class, the logarithm of its size.
define ptr @fg_scratch_take(i64 %bytes) nounwind {{
entry:
  %box = alloca ptr
  %above = add i64 %bytes, 4095
  %zeros = call i64 @llvm.ctlz.i64(i64 %above, i1 false)
  %class = sub i64 64, %zeros
  br label %look
look:
  %i = phi i64 [0, %entry], [%next, %skip]
  %slot = getelementptr [4 x ptr], ptr @slots, i64 %class, i64 %i
  %there = load atomic ptr, ptr %slot monotonic, align 8
  %some = icmp ne ptr %there, null
  br i1 %some, label %grab, label %skip
grab:
  %block = atomicrmw xchg ptr %slot, ptr null acquire
  %mine = icmp ne ptr %block, null
  br i1 %mine, label %good, label %skip
good:
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
skip:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %look, label %allocate
allocate:
  %size = shl i64 1, %class
  %total = add i64 %size, 64
  %huge = icmp uge i64 %size, {2 * _HUGE_PAGE}
  %align = select i1 %huge, i64 {_HUGE_PAGE}, i64 64
  %error = call i32 @posix_memalign(ptr %box, i64 %align, i64 %total)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %none, label %fresh
fresh:
  %new = load ptr, ptr %box
  br i1 %huge, label %advise, label %label
advise:
  %ignored = call i32 @madvise(ptr %new, i64 %total, i32 {_MADV_HUGEPAGE})
  br label %label
label:
  store i64 %class, ptr %new
  %newdata = getelementptr i8, ptr %new, i64 64
  ret ptr %newdata
none:
  call void @abort()
  unreachable
}}

define void @fg_scratch_give(ptr %data) nounwind {{
entry:
  %block = getelementptr i8, ptr %data, i64 -64
  %class = load i64, ptr %block
  br label %look
look:
  %i = phi i64 [0, %entry], [%next, %skip]
  %slot = getelementptr [4 x ptr], ptr @slots, i64 %class, i64 %i
  %there = load atomic ptr, ptr %slot monotonic, align 8
  %empty = icmp eq ptr %there, null
  br i1 %empty, label %put, label %skip
put:
  %swap = cmpxchg ptr %slot, ptr null, ptr %block release monotonic
  %done = extractvalue {{ptr, i1}} %swap, 1
  br i1 %done, label %out, label %skip
skip:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %look, label %full
full:
  call void @free(ptr %block)
  br label %out
out:
  ret void
}}

; Frees what is idle: so many bytes.
define i64 @fg_scratch_release() nounwind {{
entry:
  br label %each
each:
  %i = phi i64 [0, %entry], [%next, %skip]
  %freed = phi i64 [0, %entry], [%more_freed, %skip]
  %slot = getelementptr ptr, ptr @slots, i64 %i
  %block = atomicrmw xchg ptr %slot, ptr null acquire
  %none = icmp eq ptr %block, null
  br i1 %none, label %skip, label %drop
drop:
  %class = load i64, ptr %block
  %size = shl i64 1, %class
  call void @free(ptr %block)
  br label %skip
skip:
  %dropped = phi i64 [0, %each], [%size, %drop]
  %more_freed = add i64 %freed, %dropped
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 260
  br i1 %more, label %each, label %done
done:
  ret i64 %more_freed
}}
"""


def bind(target: Engine) -> None:
    """Let modules that *target* compiles call fg_scratch_take and fg_scratch_give.

    >>> bind(here())
    """
    target.provide("fg_scratch_take", take_address)
    target.provide("fg_scratch_give", partial(_address, "fg_scratch_give"))


def take_address() -> int:
    """Address of fg_scratch_take, which is compiled at first use.

    >>> take_address() == take_address()
    True
    """
    return _address("fg_scratch_take")


def release() -> int:
    """Free the blocks that are kept idle, and say how many bytes they had.

    >>> release() >= 0
    True
    """
    return ctypes.CFUNCTYPE(ctypes.c_int64)(_address("fg_scratch_release"))()


def _address(name: str) -> int:
    return here().compile(_IR, level=0).address(name)
