"""The generic native function that runs any compiled program on lists of numpy arrays.

Reading an array's address in Python costs more than small programs do. So native code gets the
lists themselves: it takes each array's data pointer where CPython and NumPy keep it (both layouts
are part of their stable ABIs), checks that the array is contiguous, aligned and of the expected
dtype object, and calls the program. What doesn't pass is converted and called again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.core.process import fork
from funcgrad.errors import CompileError

# Sizes of CPython's object head (it is longer in free-threaded builds), and of what follows.
_HEAD = object.__basicsize__
_C_CONTIGUOUS, _ALIGNED = 0x1, 0x100
# How a program ends if not well: a step in Python failed; an array isn't as native code needs it;
# no memory. The n-th exchange failed: EXCHANGE + n.
FAILED, ODD, EXHAUSTED, EXCHANGE = 1, 2, 3, 16

# spec: numbers of inputs and outputs, the program, constants, callback, the arena's size, contexts
# of communicators, what takes and gives memory, then the dtype objects.
_RUN = f"""
@fg_ndarray = global ptr null

define i32 @fg_run(ptr %values, ptr %results, ptr %spec) {{
entry:
  %n_in = load i64, ptr %spec
  %n_out.at = getelementptr i64, ptr %spec, i64 1
  %n_out = load i64, ptr %n_out.at
  %program.at = getelementptr i64, ptr %spec, i64 2
  %program = load ptr, ptr %program.at
  %constants.at = getelementptr i64, ptr %spec, i64 3
  %constants = load ptr, ptr %constants.at
  %callback.at = getelementptr i64, ptr %spec, i64 4
  %callback = load ptr, ptr %callback.at
  %bytes.at = getelementptr i64, ptr %spec, i64 5
  %bytes = load i64, ptr %bytes.at
  %comms.at = getelementptr i64, ptr %spec, i64 6
  %comms = load ptr, ptr %comms.at
  %take.at = getelementptr i64, ptr %spec, i64 7
  %take = load ptr, ptr %take.at
  %give.at = getelementptr i64, ptr %spec, i64 8
  %give = load ptr, ptr %give.at
  %dtypes = getelementptr i64, ptr %spec, i64 9
  %given.at = getelementptr i8, ptr %values, i64 {_HEAD}
  %given = load i64, ptr %given.at
  %right = icmp eq i64 %given, %n_in
  br i1 %right, label %begin, label %odd
begin:
  %ndarray = load ptr, ptr @fg_ndarray
  %ins = alloca ptr, i64 %n_in
  %outs = alloca ptr, i64 %n_out
  %values.at = getelementptr i8, ptr %values, i64 {_HEAD + 8}
  %items = load ptr, ptr %values.at
  %results.at = getelementptr i8, ptr %results, i64 {_HEAD + 8}
  %made = load ptr, ptr %results.at
  br label %in.test
in.test:
  %i = phi i64 [0, %begin], [%i.next, %in.good]
  %in.more = icmp slt i64 %i, %n_in
  br i1 %in.more, label %in, label %out.test
in:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %type.at = getelementptr i8, ptr %item, i64 {_HEAD - 8}
  %type = load ptr, ptr %type.at
  %array = icmp eq ptr %type, %ndarray
  br i1 %array, label %in.array, label %odd
in.array:
  %flags.at = getelementptr i8, ptr %item, i64 {_HEAD + 48}
  %flags = load i32, ptr %flags.at
  %known = and i32 %flags, {_C_CONTIGUOUS | _ALIGNED}
  %plain = icmp eq i32 %known, {_C_CONTIGUOUS | _ALIGNED}
  %dtype.at = getelementptr i8, ptr %item, i64 {_HEAD + 40}
  %dtype = load ptr, ptr %dtype.at
  %want.at = getelementptr ptr, ptr %dtypes, i64 %i
  %want = load ptr, ptr %want.at
  %same = icmp eq ptr %dtype, %want
  %good = and i1 %plain, %same
  br i1 %good, label %in.good, label %odd
in.good:
  %data.at = getelementptr i8, ptr %item, i64 {_HEAD}
  %data = load ptr, ptr %data.at
  %in.at = getelementptr ptr, ptr %ins, i64 %i
  store ptr %data, ptr %in.at
  %i.next = add i64 %i, 1
  br label %in.test
out.test:
  %o = phi i64 [0, %in.test], [%o.next, %out]
  %out.more = icmp slt i64 %o, %n_out
  br i1 %out.more, label %out, label %call
out:
  %result.at = getelementptr ptr, ptr %made, i64 %o
  %result = load ptr, ptr %result.at
  %memory.at = getelementptr i8, ptr %result, i64 {_HEAD}
  %memory = load ptr, ptr %memory.at
  %out.at = getelementptr ptr, ptr %outs, i64 %o
  store ptr %memory, ptr %out.at
  %o.next = add i64 %o, 1
  br label %out.test
call:
  %temporary = icmp ne i64 %bytes, 0
  br i1 %temporary, label %large, label %plain_call
plain_call:
  %status = call i32 %program(ptr %ins, ptr %outs, ptr null, ptr %constants, ptr %callback,
    ptr %comms)
  ret i32 %status
large:
  %arena = call ptr %take(ptr null, i64 %bytes)
  %none = icmp eq ptr %arena, null
  br i1 %none, label %exhausted, label %arena_call
arena_call:
  %status2 = call i32 %program(ptr %ins, ptr %outs, ptr %arena, ptr %constants, ptr %callback,
    ptr %comms)
  call void %give(ptr null, ptr %arena, i64 0)
  ret i32 %status2
exhausted:
  ret i32 {EXHAUSTED}
odd:
  ret i32 {ODD}
}}
"""

_lock = fork.lock()
_run: Callable[..., int] | None = None


def native_run() -> Callable[..., int]:
    """The generic native function, compiled and checked at first use."""
    global _run
    with _lock:
        if _run is None:
            probe = np.arange(3)
            at = id(probe) + _HEAD
            data = ctypes.c_void_p.from_address(at).value
            flags = ctypes.c_int32.from_address(at + 48).value
            dtype = ctypes.c_void_p.from_address(at + 40).value
            if (data, flags, dtype) != (probe.ctypes.data, probe.flags.num, id(probe.dtype)):
                raise CompileError("this NumPy keeps its arrays in a layout that is not known")
            kind = ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
            )
            library = engine().compile(_RUN, level=0)
            ctypes.c_void_p.from_address(library.address("fg_ndarray")).value = id(np.ndarray)
            _run = kind(library.address("fg_run"))
        return _run
