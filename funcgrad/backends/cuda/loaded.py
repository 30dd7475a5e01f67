"""A program loaded on a GPU: kernels, libraries' calls, constants, the function that starts it.

Native code goes through the steps. Python takes part where a step has no code for a GPU: CuPy runs
it, if it is there; else its operands are copied to the host, where its rule `impl` runs, and its
results are copied back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from functools import cached_property, partial
from typing import Any
from weakref import finalize, ref

import numpy as np

from funcgrad.backends.cuda import host
from funcgrad.backends.cuda.cubins import Functions
from funcgrad.backends.cuda.devices.device import CudaError, Driver, Event
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.libraries import by_cupy, cudnn
from funcgrad.backends.cuda.libraries.convolutions import Convolution
from funcgrad.backends.cuda.libraries.products import Product
from funcgrad.backends.cuda.modules import Kernels
from funcgrad.backends.cuda.times import Mark, Times
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.program import ExchangeStep, Program
from funcgrad.backends.rewrites import exchanges

_CALL_BACK = ctypes.CFUNCTYPE(c_int, ctypes.c_int64, ctypes.POINTER(c_uint64))
_MARK = ctypes.CFUNCTYPE(c_int, ctypes.c_int64, c_void_p)
_RUN = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p)
RAISED = 1  # what Python's part gives when it raised an exception


class Loaded:
    """A program on a device.

    work: the bytes of memory that kernels and libraries work in
    kept: the memory of its constants
    error: what a step on the host raised
    """

    def __init__(
        self, program: Program, kernels: Kernels, gpu: Gpu, comms: Sequence[Any] = ()
    ):  # fmt: skip
        gpu.driver.enter()
        self.gpu = gpu
        self.comms = comms
        self.name = program.name
        self.functions = Functions(kernels.launches, gpu.driver)
        launches = {id(x.kernel): x for x in kernels.launches}
        native = frozenset(i for i, c in enumerate(comms) if c.buffer is not np.ndarray)
        self._write = partial(host.Host, program, launches, native)
        self.host = self._write()
        self.calls = [gpu.bind(call) for call in self.host.calls]
        convolves = any(isinstance(call, Convolution) for call in self.host.calls)
        self._dnn = cudnn.Handle(gpu.dnn) if convolves else None
        self.kept = [gpu.take(x.nbytes) for x in program.constants]
        for block, value in zip(self.kept, program.constants, strict=True):
            gpu.driver.put(block.address, np.ascontiguousarray(value))
        most = max((call.workspace for call in self.calls), default=0)
        self.work = max([most, *(launch.workspace for launch in kernels.launches)])
        self._code = _Code(self.host)
        self.error: BaseException | None = None
        self._marks: list[Mark] = []
        me = ref(self)  # which native code doesn't keep alive
        self._called = _CALL_BACK(
            lambda number, addresses: _called(me(), number, addresses, Loaded.step)
        )
        self._marked = _MARK(lambda number, stream: _called(me(), number, stream, Loaded.mark))
        self._flag = _Flag(gpu)
        self._events = [Event(gpu.driver) for _ in range(self.host.events)]
        # Native contexts of communicators, whose stream is the call's.
        self._contexts = {i: comms[i].context() for i in native}
        self._table = self._filled(most)

    @cached_property
    def _timed(self) -> _Code:
        """The function that tells Python of its steps."""
        return _Code(self._write(timed=True))

    @property
    def waits(self) -> bool:
        """Whether it waits for the device while it runs."""
        return self.host.waits

    def run(
        self, addresses: Sequence[int], streams: Sequence[c_void_p] = (), times: Times | None = None
    ) -> None:
        """Start the program on memory for inputs, outputs, the arena and work, in the device's
        streams, of kernels and of what is beside them, if not in others. For one thread at a time.

        times: what notes its steps' times, if somebody does

        Raises what a step on the host raises, and CudaError if a call fails.
        """
        driver = self.gpu.driver
        main, beside = streams or (driver.stream, driver.beside)
        places = self.host.places
        outer = iter(addresses)
        bases = (c_uint64 * (len(places) + 1))()
        for i, (space, number) in enumerate(places):
            bases[i] = self.kept[number].address if space == "constant" else next(outer)
        bases[len(places)] = next(outer)
        self._table[host.STREAM], self._table[host.BESIDE] = main.value or 0, beside.value or 0
        for context in self._contexts.values():
            context.use(beside if self.host.streams.exchanges else main)
        driver.started.append(self.name)
        code = self._timed if times else self._code
        with self._dnn.on(main) if self._dnn else nullcontext(0) as handle:
            self._table[host.HANDLE] = handle
            failed = code.start(ctypes.addressof(bases), ctypes.addressof(self._table))
        (error, self.error), (marks, self._marks) = (self.error, None), (self._marks, [])
        if (error is not None or failed) and self._events and not streams:
            # Memory that is given back may be in use by what is beside.
            driver.lib.cuEventRecord(self._events[0].handle, beside)
            driver.lib.cuStreamWaitEvent(main, self._events[0].handle, 0)
        if error is not None:
            raise error
        if failed:
            raise self._failure(code, failed)
        if times:  # last, as it may wait for the device, and must not hide an error of the program
            times.add(self.name, marks)

    def _failure(self, code: _Code, failed: int) -> Exception:
        """The error of what native code gave: which call failed, and its status."""
        function, name = code.host.names[failed >> 32]
        what, status = f"{self.name}: {name}", failed & 0xFFFFFFFF
        if function >= host.EXCHANGE:
            comm = self.comms[function - host.EXCHANGE]
            comm.failed(status)
            return comm.failure(what)
        if function in (host.PRODUCT, host.SET):
            return CudaError(f"{what}: {self.gpu.lt.status(status)}")
        if function in host.CONVOLVE.values():
            return CudaError(f"{what}: {self.gpu.dnn.status(status)}")
        return self.gpu.driver.error(what, status)

    def _filled(self, work: int) -> ctypes.Array:
        """The host function's table. work: the bytes that libraries work in"""
        driver, words = self.gpu.driver, [0] * host.FIRST
        names = {
            host.LAUNCH: "cuLaunchKernel", host.COPY: "cuMemcpyDtoDAsync_v2",
            host.TO_HOST: "cuMemcpyDtoHAsync_v2", host.WAIT: "cuStreamSynchronize",
            host.SET_WORD: "cuMemsetD32Async", host.RECORD: "cuEventRecord",
            host.AWAIT: "cuStreamWaitEvent",
        }  # fmt: skip
        for at, name in names.items():
            words[at] = driver.address_of(name)
        if any(isinstance(call, Product) for call in self.host.calls):
            words[host.PRODUCT] = self.gpu.lt.address_of("cublasLtMatmul")
            words[host.SET] = self.gpu.lt.address_of("cublasLtMatmulDescSetAttribute")
        for kind in {c.kind for c in self.host.calls if isinstance(c, Convolution)}:
            name = f"cudnnConvolution{cudnn.NAMES[kind]}"
            words[host.CONVOLVE[kind]] = self.gpu.dnn.address_of(name)
        words[host.CALL_BACK] = ctypes.cast(self._called, c_void_p).value or 0
        words[host.MARK] = ctypes.cast(self._marked, c_void_p).value or 0
        words[host.FLAG] = self._flag.place.value or 0
        words[host.WORK_BYTES] = work
        words += [self.functions.handles[name] for name in self.host.kernels]
        for i, comm in enumerate(self.comms):
            context = self._contexts.get(i)
            words += [comm.rank, 0 if context is None else context.address]
        words += [event.handle.value or 0 for event in self._events]
        words += [word for call in self.calls for word in call.words]
        return (c_uint64 * len(words))(*words)

    # ---- Python's part

    def mark(self, number: int, stream: int | None) -> None:
        """Note when a stream comes to a step, or is done with it."""
        event = Event(self.gpu.driver, timed=True)
        event.record(c_void_p(stream))
        beside = stream == self._table[host.BESIDE]
        self._marks.append(Mark(self._timed.host.marked[number], event, beside))

    def step(self, number: int, addresses: Sequence[int]) -> None:
        """Run a step on the host, whose arrays are at these addresses."""
        s, driver, ins = self.host.called[number], self.gpu.driver, []
        if isinstance(s, ExchangeStep):
            self._exchange(s, addresses)
            return
        if self.gpu.arrays is not None and by_cupy.takes(s):
            by_cupy.run(self.gpu.arrays, driver.number, s, addresses)
            return
        for i, view in enumerate(s.ins):
            ins.append(np.empty(view.aval.shape, view.aval.dtype))
            driver.get(ins[-1], addresses[i])
        found = s.prim.impl(np, *ins, **s.params)
        results = found if s.prim.multiple else [found]
        for i, (view, value) in enumerate(zip(s.outs, results, strict=True), len(ins)):
            held = np.asarray(value).astype(view.aval.dtype)
            driver.put(addresses[i], np.ascontiguousarray(held))

    def _exchange(self, s: ExchangeStep, addresses: Sequence[int]) -> None:
        before, _ = s.blocks
        source = np.empty(before * s.count, s.dtype)
        self.gpu.driver.get(source, addresses[0])
        if s.kind in ("reduce_scatter", "all_to_all"):
            source = source.reshape(before, s.count)
        out = exchanges.exchange_arrays(self.comms[s.comm], s.kind, s.op, s.perm, source)
        self.gpu.driver.put(addresses[1], np.ascontiguousarray(out))


class _Code:
    """A host function, compiled."""

    def __init__(self, made: host.Host):
        self.host = made
        self.library = engine().compile(made.text, 0, links={})
        self.start = _RUN(self.library.address(host.NAME))


def _called(
    loaded: Loaded | None, number: int, what: Any, does: Callable[[Loaded, int, Any], None]
) -> int:
    if loaded is None:
        return RAISED
    try:
        does(loaded, number, what)
    except BaseException as error:  # which can't pass native code
        loaded.error = error
        return RAISED
    return 0


class _Flag:
    """Eight bytes of the host's memory that the device may write to."""

    def __init__(self, gpu: Gpu):
        self.place = c_void_p()
        gpu.driver.call("cuMemAllocHost_v2", byref(self.place), c_size_t(8))
        finalize(self, _free, gpu.driver, self.place).atexit = False


def _free(driver: Driver, place: c_void_p) -> None:
    with driver.inside():
        driver.call("cuMemFreeHost", place)
