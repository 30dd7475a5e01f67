"""Compiled programs as Python callables: one native call that takes lists of numpy arrays.

Reading an array's address in Python costs more than small programs do. So a generic native function
gets the lists themselves: it takes each array's data pointer where CPython and NumPy keep it (both
layouts are part of their stable ABIs), checks that the array is contiguous, aligned and of the
expected dtype object, and calls the program. What doesn't pass is converted and called again.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from funcgrad.backends.llvm import direct
from funcgrad.backends.llvm.emit_kernels import KernelCache
from funcgrad.backends.llvm.engine import Engine, Library, engine
from funcgrad.backends.llvm.host import (
    EXCHANGE,
    emit_host,
    exchange_steps,
    host_steps,
    install_product,
    product_kind,
    written_inputs,
)
from funcgrad.backends.llvm.host_run import run_host_step
from funcgrad.backends.llvm.memory import bind, large_arrays
from funcgrad.backends.program import (
    CopyStep,
    GemmStep,
    KernelStep,
    LoopStep,
    Program,
    View,
    WhileStep,
    program_text,
    walk,
)
from funcgrad.core import context
from funcgrad.core.backend import Call, MemoryAnalysis
from funcgrad.core.compile_report import CompileStage
from funcgrad.core.large import LARGE
from funcgrad.errors import CompileError

# Sizes of CPython's object head (it is longer in free-threaded builds), and of what follows.
_HEAD = object.__basicsize__
_C_CONTIGUOUS, _ALIGNED = 0x1, 0x100
_FAILED, _ODD, _EXHAUSTED = 1, 2, 3
_SHORT = 20_000  # operations and bytes, in some microseconds

# spec: numbers of inputs and outputs, the program, constants, callback, the arena's size, contexts
# of communicators, then the dtype objects.
_RUN = f"""
@fg_ndarray = global ptr null

declare ptr @fg_memory_take(ptr, i64)
declare void @fg_memory_give(ptr, ptr, i64)

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
  %dtypes = getelementptr i64, ptr %spec, i64 7
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
  %arena = call ptr @fg_memory_take(ptr null, i64 %bytes)
  %none = icmp eq ptr %arena, null
  br i1 %none, label %exhausted, label %arena_call
arena_call:
  %status2 = call i32 %program(ptr %ins, ptr %outs, ptr %arena, ptr %constants, ptr %callback,
    ptr %comms)
  call void @fg_memory_give(ptr null, ptr %arena, i64 0)
  ret i32 %status2
exhausted:
  ret i32 {_EXHAUSTED}
odd:
  ret i32 {_ODD}
}}
"""

empty = np.empty
_lock = threading.Lock()
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
            bind(engine())
            kind = ctypes.CFUNCTYPE(
                ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
            )
            library = engine().compile(_RUN, level=0)
            ctypes.c_void_p.from_address(library.address("fg_ndarray")).value = id(np.ndarray)
            _run = kind(library.address("fg_run"))
        return _run


_cache: KernelCache | None = None


def kernel_cache() -> KernelCache:
    """The compiled kernels of this processor."""
    global _cache
    with _lock:
        if _cache is None:
            _cache = KernelCache(engine())
        return _cache


class Executable:
    """A planned program in machine code; calls may overlap in time, unless it exchanges data with
    other devices. Then it runs after `bind`."""

    def __init__(self, program: Program, planned: float = 0.0):
        self.program = program
        times = [time.perf_counter() - planned, time.perf_counter()]
        cache, run = kernel_cache(), native_run()
        times.append(time.perf_counter())
        products = dict.fromkeys(
            product_kind(s) for s in walk(program.steps) if isinstance(s, GemmStep)
        )
        natives, kernels = cache.compile(
            program.kernels(), [partial(install_product, p) for p in products]
        )
        times.append(time.perf_counter())
        self._library = _compile_host(cache.engine, program, natives, kernels)
        times.append(time.perf_counter())
        self._kernels = list(dict.fromkeys(kernels.values()))
        self._times, self._products = times, products
        self._steps = host_steps(program.steps)
        self._errors: dict[int, BaseException] = {}
        self._callback = _CALLBACK(self._call_back) if self._steps else None
        self._constants = [np.require(c, requirements=("C", "A")) for c in program.constants]
        self._dtypes = [a.dtype for a in program.ins]
        self._outs = [(a.shape, a.dtype) for a in program.outs]
        self._large = any(a.nbytes >= LARGE for a in program.outs)
        written = written_inputs(program.steps) | set(program.aliases.values())
        results = {i: o for o, i in program.aliases.items()}
        self._written = [(i, results.get(i)) for i in sorted(written)]
        self._run = self._unbound if program.comms else run
        self._communicators: Callable[[tuple], Any] | None = None
        self._comms: list[Any] = []
        self._set_spec()

    def bind(self, communicators: Callable[[tuple], Any]) -> Executable:
        """The program whose collectives go through these communicators: communicators(axis names)
        gives the one over named axes. Each is asked for once, in an order that is the same on all
        ranks. Raises ValueError if one has another size than the program was compiled for."""
        bound = copy.copy(self)
        bound._communicators = communicators
        bound._comms = [communicators(c.axes) for c in self.program.comms]
        for need, comm in zip(self.program.comms, bound._comms, strict=True):
            if comm.size != need.size:
                raise ValueError(
                    f"{self.program.name} was compiled for {need.size} devices over {need.axes}, "
                    f"its communicator has {comm.size}"
                )
        bound._errors = {}
        bound._callback = _CALLBACK(bound._call_back) if bound._steps else None
        bound._run = native_run()
        bound._set_spec()
        return bound

    def _unbound(self, values: list, results: list, spec: int) -> int:
        axes = ", ".join(str(c.axes) for c in self.program.comms)
        raise CompileError(
            f"{self.program.name} exchanges data over the axes {axes}: bind communicators to it "
            "before it is called (Executable.bind)"
        )

    def _set_spec(self) -> None:
        self._spec = self._make_spec()
        self._spec_address = ctypes.addressof(self._spec)

    def _make_spec(self) -> Any:
        program = self._library.address("fg_program")
        pointers = [c.ctypes.data for c in self._constants]
        self._constant_table = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        callback = ctypes.cast(self._callback, ctypes.c_void_p).value if self._callback else 0
        words = [len(self._dtypes), len(self._outs), program]
        words += [ctypes.addressof(self._constant_table), callback or 0]
        contexts = [c.address for c in self._comms]
        self._contexts = (ctypes.c_void_p * max(1, len(contexts)))(*contexts)
        words += [self.program.arena_bytes, ctypes.addressof(self._contexts)]
        words += [id(d) for d in self._dtypes]
        return (ctypes.c_int64 * len(words))(*words)

    def direct(self, call: Call) -> direct.Entry | None:
        """An entry of `direct.caller`: calls like this one; None if they can't do without Python,
        NotImplemented if they can't yet.

        Other threads may use Python while the program runs, unless it is over before they could.
        """
        p = self.program
        short = p.flops + p.bytes_moved < _SHORT and all(
            isinstance(s, KernelStep | CopyStep) for s in p.steps
        )
        return direct.entry(self, call, release=not short)

    def __call__(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Run the program on arrays of its inputs' types."""
        if type(values) is not list:
            values = list(values)
        results = large_arrays(self._outs) if self._large else [empty(*s) for s in self._outs]
        if self._written:
            values = self._donated(values, results)
        status = self._run(values, results, self._spec_address)
        if status == _ODD:
            values = self._plain(values)
            status = self._run(values, results, self._spec_address)
        if status:
            self._fail(status)
        return results

    def _donated(self, values: list, results: list) -> list:
        """Donated arrays that the program writes to: themselves where nobody else holds them, else
        copies; those that become results are put among them."""
        values = list(values)
        for i, out in self._written:
            x, aval = values[i], self.program.ins[i]
            # Beside this list there are `x`, the caller's list, and the Array that was donated.
            mine = type(x) is np.ndarray and _references(values, i) <= _LISTED + 3
            if not (mine and x.flags.carray and x.flags.owndata and x.dtype is aval.dtype):
                copy = results[out] if out is not None else empty(aval.shape, aval.dtype)
                copy[...] = x
                x = copy
            values[i] = x
            if out is not None:
                results[out] = x
        return values

    def _plain(self, values: list) -> list:
        """The same arrays as the native code needs them: contiguous, aligned, in native order."""
        if len(values) != len(self._dtypes):
            raise TypeError(
                f"{self.program.name} takes {len(self._dtypes)} arrays, got {len(values)}"
            )
        out = []
        for v, aval in zip(values, self.program.ins, strict=True):
            x = np.require(v, aval.dtype, ("C", "A"))
            if x.shape != aval.shape:
                raise TypeError(f"{self.program.name} takes {aval}, got shape {x.shape}")
            if type(x) is not np.ndarray or x.dtype is not aval.dtype:
                # Equal dtypes need not be one object.
                x = np.asarray(x).view(np.ndarray).view(aval.dtype)
            out.append(x)
        return out

    # ---- steps in Python

    def _call_back(self, number: int, pointers: Any) -> int:
        try:
            step = self._steps[number]
            views = [
                _view(v, pointers[i], i >= len(step.ins))
                for i, v in enumerate((*step.ins, *step.outs))
            ]
            ins, outs = views[: len(step.ins)], views[len(step.ins) :]
            if self._communicators is None:
                run_host_step(step, ins, outs)
            else:
                with context.scoped(communicators=self._communicators):
                    run_host_step(step, ins, outs)
        except BaseException as error:
            self._errors[threading.get_ident()] = error
            return _FAILED
        return 0

    def _fail(self, status: int) -> None:
        error = self._errors.pop(threading.get_ident(), None)
        if status >= EXCHANGE:
            step = exchange_steps(self.program.steps)[status - EXCHANGE]
            axes, n = self.program.comms[step.comm].axes, max(step.blocks) * step.count
            what = f"{step.kind} of {step.dtype.name}[{n}] over {axes} in {self.program.name}"
            raise self._comms[step.comm].failure(what)
        if status == _EXHAUSTED:
            need = self.program.arena_bytes
            raise MemoryError(f"no room for the {need} temporary bytes of {self.program.name}")
        if error is None:
            raise CompileError(f"the compiled {self.program.name} ended with status {status}")
        raise error

    # ---- inspection

    def as_text(self, stage: str) -> str:
        """The planned program ("loops"), its optimized LLVM IR ("llvm"), its assembly ("asm")."""
        libraries: list[Library] = [self._library, *self._kernels]
        if stage == "loops":
            return program_text(self.program)
        if stage == "llvm":
            return "\n".join(x.llvm_text for x in libraries)
        if stage == "asm":
            return "\n".join(x.asm() for x in libraries)
        raise ValueError(f'no stage {stage!r}: there are "jaxpr", "loops", "llvm" and "asm"')

    def compile_stages(self) -> list[CompileStage]:
        """Planning, code that all programs share, kernels and products, the host function."""
        t, p = self._times, self.program
        counts = collections.Counter(
            "held already" if x.made < t[2] else "found on disk" if x.from_disk else "compiled"
            for x in self._kernels
        )
        modules = ", ".join(f"{n} {how}" for how, n in sorted(counts.items())) or "none"
        ways = ", ".join(" ".join(filter(None, (d, way))) for d, _, way in self._products)
        found = "found on disk" if self._library.from_disk else "compiled"
        what = (
            f"{len(p.steps)} steps, {len(p.kernels())} kernels",
            "what all programs share",
            f"modules: {modules}" + (f"; products: {ways}" if ways else ""),
            f"{found}, {len(self._library.object_code)} bytes",
        )
        names = ("plan", "runtime", "kernels", "program")
        spans = [b - a for a, b in itertools.pairwise(t)]
        return [CompileStage(*s) for s in zip(names, spans, what, strict=True)]

    def cost_analysis(self) -> dict[str, float]:
        """Floating-point operations and bytes moved by one call; with collectives also the bytes of
        all ("collective bytes"), and of each kind its number and bytes ("all_reduce bytes")."""
        p = self.program
        moved = {"flops": p.flops, "bytes accessed": p.bytes_moved}
        if p.traffic:
            moved["collective bytes"] = sum(n for k, n in p.traffic.items() if k.endswith("bytes"))
        return moved | p.traffic

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes of arguments, results, what they share, constants and temporaries, and which these
        are when they are most."""
        p = self.program
        sizes = {
            "argument_size_in_bytes": sum(a.nbytes for a in p.ins),
            "output_size_in_bytes": sum(a.nbytes for a in p.outs),
            "alias_size_in_bytes": sum(p.outs[o].nbytes for o in p.aliases),
            "constant_size_in_bytes": sum(c.nbytes for c in p.constants),
            "temp_size_in_bytes": p.arena_bytes,
        }
        return MemoryAnalysis(sizes, p.peak)

    def __repr__(self) -> str:
        return f"Executable({self.program.name})"


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))


def _references(values: list, i: int) -> int:
    """The reference count of a list's element, and what reading it adds."""
    return sys.getrefcount(values[i])


_LISTED = _references([np.empty(0)], 0)


def _compile_host(
    target: Engine, program: Program, natives: Any, kernels: Mapping[str, Library]
) -> Library:
    # Without loops it runs once a call: calls of kernels, whose time is theirs.
    repeats = any(isinstance(s, LoopStep | WhileStep) for s in walk(program.steps))
    text = emit_host(program, natives, "fg_program")
    return target.compile(text, level=int(repeats), links=kernels)


def _view(view: View, address: int, writable: bool) -> np.ndarray:
    """The array at an address."""
    aval = view.aval
    if not aval.size:
        return np.empty(aval.shape, aval.dtype)
    memory = (ctypes.c_char * aval.nbytes).from_address(address)
    array = np.ndarray(aval.shape, aval.dtype, memoryview(memory))
    array.flags.writeable = writable
    return array
