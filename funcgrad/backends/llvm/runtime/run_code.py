"""The generic native function that runs any compiled program on lists of numpy arrays.

Reading an array's address in Python costs more than small programs do. So native code gets the
lists themselves: it takes each array's data pointer where CPython and NumPy keep it (both layouts
are part of their stable ABIs), checks that the array is contiguous, aligned and of the expected
dtype object, and calls the program. What doesn't pass is converted and called again.

Python is called back by steps that run there, and by long programs, which ask every now and then
whether a signal has come. Its exceptions stay the thread's, to be raised when the call returns.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from funcgrad.backends.llvm.native.engine import Engine, Library, here
from funcgrad.core.process import fork
from funcgrad.errors import CompileError

# Sizes of CPython's object head (it is longer in free-threaded builds), and of what follows.
_HEAD = object.__basicsize__
_C_CONTIGUOUS, _ALIGNED = 0x1, 0x100
# How a program ends if not well: with an exception of Python, which is the thread's now; an array
# isn't as native code needs it; no memory. The n-th exchange failed: EXCHANGE + n.
FAILED, ODD, EXHAUSTED, EXCHANGE = 1, 2, 3, 16
# How long a program runs before it asks for signals, and then between two times.
ASK_SECONDS = 0.2
# The words by which a call of fg_poll knows the one before: when to ask, and whether to stop.
POLL_WORDS, STOP = 2, 1

# spec: numbers of inputs and outputs, the program, constants, callback, the arena's size, contexts
# of communicators, what takes and gives memory, then the dtype objects.
_RUN = f"""
@fg_ndarray = global ptr null
@fg_main_thread = global i64 0

declare i64 @pthread_self()
declare i32 @clock_gettime(i32, ptr)
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_FromVoidPtr(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)

; 1 if a signal's handler has raised an exception: handlers run on the main thread alone.
define i32 @fg_signals() {{
entry:
  %self = call i64 @pthread_self()
  %main = load i64, ptr @fg_main_thread
  %here = icmp eq i64 %self, %main
  br i1 %here, label %ask, label %none
ask:
  %lock = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %lock)
  %some = icmp ne i32 %raised, 0
  %stop = zext i1 %some to i32
  ret i32 %stop
none:
  ret i32 0
}}

; The same, but only every so often. All threads that share the words learn that they are to stop.
define i32 @fg_poll(ptr %words) {{
entry:
  %time = alloca [2 x i64]
  %stop.at = getelementptr i64, ptr %words, i64 {STOP}
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %yes, label %thread
thread:
  %self = call i64 @pthread_self()
  %main = load i64, ptr @fg_main_thread
  %here = icmp eq i64 %self, %main
  br i1 %here, label %look, label %no
look:
  %c = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  %next = load i64, ptr %words
  %later = add i64 %now, {int(ASK_SECONDS * 1e9)}
  %first = icmp eq i64 %next, 0
  br i1 %first, label %begin, label %due
begin:
  store i64 %later, ptr %words
  ret i32 0
due:
  %early = icmp slt i64 %now, %next
  br i1 %early, label %no, label %ask
ask:
  store i64 %later, ptr %words
  %raised = call i32 @fg_signals()
  %some = icmp ne i32 %raised, 0
  br i1 %some, label %tell, label %no
tell:
  store atomic i64 1, ptr %stop.at monotonic, align 8
  br label %yes
yes:
  ret i32 1
no:
  ret i32 0
}}

; Calls a function of Python on two addresses; 0, or FAILED for an exception.
define i32 @fg_call_back(ptr %function, ptr %a, ptr %b) {{
entry:
  %args = alloca [2 x ptr]
  %lock = call i32 @PyGILState_Ensure()
  %first = call ptr @PyLong_FromVoidPtr(ptr %a)
  %second = call ptr @PyLong_FromVoidPtr(ptr %b)
  store ptr %first, ptr %args
  %second.at = getelementptr ptr, ptr %args, i64 1
  store ptr %second, ptr %second.at
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 2, ptr null)
  call void @Py_DecRef(ptr %first)
  call void @Py_DecRef(ptr %second)
  call void @Py_DecRef(ptr %result)
  call void @PyGILState_Release(i32 %lock)
  %none = icmp eq ptr %result, null
  %status = zext i1 %none to i32
  ret i32 %status
}}

; Calls a native function while other threads may use Python.
define i32 @fg_released(ptr %function, ptr %a, ptr %b) {{
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %function(ptr %a, ptr %b)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %status
}}

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
  %thread = call ptr @PyEval_SaveThread()
  %temporary = icmp ne i64 %bytes, 0
  br i1 %temporary, label %large, label %plain_call
plain_call:
  %status = call i32 %program(ptr %ins, ptr %outs, ptr null, ptr %constants, ptr %callback,
    ptr %comms)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %status
large:
  %arena = call ptr %take(ptr null, i64 %bytes)
  %none = icmp eq ptr %arena, null
  br i1 %none, label %exhausted, label %arena_call
arena_call:
  %status2 = call i32 %program(ptr %ins, ptr %outs, ptr %arena, ptr %constants, ptr %callback,
    ptr %comms)
  call void %give(ptr null, ptr %arena, i64 0)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %status2
exhausted:
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 {EXHAUSTED}
odd:
  ret i32 {ODD}
}}
"""

_RUN_KIND = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_RELEASED = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_lock = fork.lock()
_made: Library | None = None
_run: Callable[..., int] | None = None


def native_run() -> Callable[..., int]:
    """The generic native function, compiled and checked at first use; raises what Python raised
    meanwhile."""
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
            library = _library()
            ctypes.c_void_p.from_address(library.address("fg_ndarray")).value = id(np.ndarray)
            _run = _RUN_KIND(library.address("fg_run"))
        return _run


def released(function: int, a: int, b: int) -> int:
    """What the native function at an address gives for two pointers; other threads use Python
    meanwhile. Raises what Python raised in it."""
    return int(_RELEASED(address("fg_released"))(function, a, b))


def bind(target: Engine) -> None:
    """Let modules that *target* compiles call fg_poll, fg_signals and fg_call_back.

    >>> bind(here())
    """
    for name in ("fg_poll", "fg_signals", "fg_call_back"):
        target.provide(name, partial(address, name))


def address(name: str) -> int:
    """The address of one of these functions.

    >>> address("fg_poll") > 0
    True
    """
    with _lock:
        return _library().address(name)


def _library() -> Library:
    global _made
    if _made is None:
        _made = here().compile(_RUN, level=0)
        _set_main_thread()
    return _made


@fork.in_child
def _set_main_thread() -> None:
    if _made is not None:
        place = ctypes.c_int64.from_address(_made.address("fg_main_thread"))
        place.value = threading.main_thread().ident or 0
