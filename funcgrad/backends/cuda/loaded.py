"""A program loaded on a GPU: kernels, libraries' calls, constants, the function that starts it.

Native code goes through the steps. Python takes part where a step has no code for a GPU: CuPy runs
it, if it is there; else its operands are copied to the host, where its rule `impl` runs, and its
results are copied back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any
from weakref import finalize, ref

import numpy as np

from funcgrad.backends.cuda import host
from funcgrad.backends.cuda.cubins import Functions
from funcgrad.backends.cuda.device import CudaError, Driver
from funcgrad.backends.cuda.gpu import Gpu
from funcgrad.backends.cuda.libraries import by_cupy, cudnn
from funcgrad.backends.cuda.libraries.convolutions import Convolution
from funcgrad.backends.cuda.libraries.products import Product
from funcgrad.backends.cuda.modules import Kernels
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.program import ExchangeStep, HostStep, Program
from funcgrad.backends.rewrites import exchanges

_CALL_BACK = ctypes.CFUNCTYPE(c_int, ctypes.c_int64, ctypes.POINTER(c_uint64))
_RUN = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p)
RAISED = 1  # what Python's part gives when it raised an exception


class Loaded:
    """A program on a device.

    work: the bytes of memory that kernels and libraries work in
    kept: the memory of its constants
    """

    def __init__(
        self, program: Program, kernels: Kernels, gpu: Gpu, comms: Sequence[Any] = ()
    ):  # fmt: skip
        self.gpu = gpu
        self.comms = comms
        self.name = program.name
        self.functions = Functions(kernels.launches, gpu.driver)
        launches = {id(x.kernel): x for x in kernels.launches}
        native = bool(comms) and all(c.buffer is not np.ndarray for c in comms)
        self.host = host.Host(program, launches, native=native)
        self.calls = [gpu.bind(call) for call in self.host.calls]
        self.kept = [gpu.take(x.nbytes) for x in program.constants]
        for block, value in zip(self.kept, program.constants, strict=True):
            gpu.driver.put(block.address, np.ascontiguousarray(value))
        most = max((call.workspace for call in self.calls), default=0)
        self.work = max([most, *(launch.workspace for launch in kernels.launches)])
        self.library = engine().compile(self.host.text, 0, links={})
        self._start = _RUN(self.library.address(host.NAME))
        self._error: BaseException | None = None
        me = ref(self)  # which native code doesn't keep alive
        self._called = _CALL_BACK(lambda number, addresses: _called(me(), number, addresses))
        self._flag = _Flag(gpu)
        self._table = self._filled(most)

    @property
    def waits(self) -> bool:
        """Whether it waits for the device while it runs."""
        return self.host.waits

    def run(self, addresses: Sequence[int], stream: c_void_p | None = None) -> None:
        """Start the program on memory for inputs, outputs, the arena and work, in the device's
        stream if not in another. For one thread at a time.

        Raises what a step on the host raises, and CudaError if a call fails.
        """
        places = self.host.places
        outer = iter(addresses)
        bases = (c_uint64 * (len(places) + 1))()
        for i, (space, number) in enumerate(places):
            bases[i] = self.kept[number].address if space == "constant" else next(outer)
        bases[len(places)] = next(outer)
        self._table[host.STREAM] = (stream or self.gpu.driver.stream).value or 0
        self.gpu.driver.started.append(self.name)
        convolves = any(isinstance(call, Convolution) for call in self.host.calls)
        with self.gpu.dnn.on(stream) if convolves else nullcontext(0) as handle:
            self._table[host.HANDLE] = handle
            failed = self._start(ctypes.addressof(bases), ctypes.addressof(self._table))
        error, self._error = self._error, None
        if error is not None:
            raise error
        if failed:
            function, name = self.host.names[failed >> 32]
            what, status = f"{self.name}: {name}", failed & 0xFFFFFFFF
            if function >= host.EXCHANGE:
                comm = self.comms[function - host.EXCHANGE]
                comm.failed(status)
                raise comm.failure(what)
            if function in (host.PRODUCT, host.SET):
                raise CudaError(f"{what}: {self.gpu.lt.status(status)}")
            if function in host.CONVOLVE.values():
                raise CudaError(f"{what}: {self.gpu.dnn.status(status)}")
            raise self.gpu.driver.error(what, status)

    def _filled(self, work: int) -> ctypes.Array:
        """The host function's table. work: the bytes that libraries work in"""
        driver, words = self.gpu.driver, [0] * host.FIRST
        names = {
            host.LAUNCH: "cuLaunchKernel", host.COPY: "cuMemcpyDtoDAsync_v2",
            host.TO_HOST: "cuMemcpyDtoHAsync_v2", host.WAIT: "cuStreamSynchronize",
            host.SET_WORD: "cuMemsetD32Async",
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
        words[host.FLAG] = self._flag.place.value or 0
        words[host.WORK_BYTES] = work
        words += [self.functions.handles[name] for name in self.host.kernels]
        for comm in self.comms:
            words += [comm.rank, comm.address if self.host.native else 0]
        words += [word for call in self.calls for word in call.words]
        return (c_uint64 * len(words))(*words)

    # ---- Python's part

    def call(self, number: int, addresses: Sequence[int]) -> int:
        """Run a step on the host, whose arrays are at these addresses; whether that failed."""
        try:
            self._step(self.host.called[number], addresses)
        except BaseException as error:  # which can't pass native code
            self._error = error
            return RAISED
        return 0

    def _step(self, s: HostStep | ExchangeStep, addresses: Sequence[int]) -> None:
        driver, ins = self.gpu.driver, []
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


def _called(loaded: Loaded | None, number: int, addresses: Sequence[int]) -> int:
    return RAISED if loaded is None else loaded.call(number, addresses)


class _Flag:
    """Eight bytes of the host's memory that the device may write to."""

    def __init__(self, gpu: Gpu):
        self.place = c_void_p()
        gpu.driver.call("cuMemAllocHost_v2", byref(self.place), c_size_t(8))
        finalize(self, _free, gpu.driver, self.place).atexit = False


def _free(driver: Driver, place: c_void_p) -> None:
    with driver.inside():
        driver.call("cuMemFreeHost", place)
