"""Programs on a GPU: arguments put there, memory taken, the host function started or replayed.

Where an argument is on the device, results stay there, and the call returns while the device still
works. Arguments of NumPy's alone are copied there, and the results copied back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np

from funcgrad.backends.cuda.device import CudaError, OutOfDeviceMemory, missing
from funcgrad.backends.cuda.executable import SimulatedProgram
from funcgrad.backends.cuda.gpu import Gpu
from funcgrad.backends.cuda.gpu import gpu as find_gpu
from funcgrad.backends.cuda.graphs import Graphs
from funcgrad.backends.cuda.loaded import Loaded
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.cuda.memory import DeviceBuffer
from funcgrad.backends.cuda.pool import Foreign
from funcgrad.backends.plan import plan
from funcgrad.backends.program import Program
from funcgrad.core import context
from funcgrad.core.backend import MemoryAnalysis
from funcgrad.core.ir import Jaxpr
from funcgrad.transforms.passes.simplify import simplify

_LARGEST = 3  # arrays that an error names


class DeviceProgram(SimulatedProgram):
    """A program that runs on a GPU.

    replays: whether graphs are made of it
    """

    def __init__(
        self,
        program: Program,
        gpu: Gpu,
        communicators: Callable[[tuple], Any] | None = None,
        replays: bool = True,
    ):
        super().__init__(program, communicators, is_call=gpu.calls)
        self.gpu, self.replays = gpu, replays
        self._elsewhere: dict[Gpu, DeviceProgram] = {}
        # A product's descriptor, and a graph's memory, are one call's at a time.
        self._lock = threading.RLock()
        if communicators is not None or not self.program.comms:
            _ = self.loaded  # when it is compiled, not at its first call

    @cached_property
    def loaded(self) -> Loaded:
        """The program on the device, loaded when it is first wanted."""
        comms = []
        if self.program.comms and self.communicators is not None:
            comms = [self.communicators(c.axes) for c in self.program.comms]
        return Loaded(self.program, self.kernels, self.gpu, comms)

    @cached_property
    def graphs(self) -> Graphs:
        """The program's graphs."""
        made = Graphs(self.loaded)
        self.gpu.holders.add(made)
        return made

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[Any]:
        if began is not None:
            began.append(self)
        stay = any(type(v) is DeviceBuffer for v in values)
        results = self.on_device(values)
        return results if stay else [y.get() for y in results]

    def on_device(self, values: Sequence[Any]) -> list[DeviceBuffer]:
        """The results, which stay there; the device may still work on them. Buffers are all on one
        GPU, on which the program runs."""
        gpu = next((v.gpu for v in values if type(v) is DeviceBuffer), self.gpu)
        if gpu is not self.gpu:
            return self.on(gpu).on_device(values)
        self.gpu.driver.enter()
        try:
            return self._run(values)
        except OutOfDeviceMemory as error:
            raise OutOfDeviceMemory(self._too_large(str(error))) from None

    def on(self, gpu: Gpu) -> DeviceProgram:
        """The program on another GPU, loaded there when it is first wanted."""
        with self._lock:
            if gpu not in self._elsewhere:
                made = DeviceProgram(self.program, gpu, self.communicators, self.replays)
                self._elsewhere[gpu] = made
            return self._elsewhere[gpu]

    def _run(self, values: Sequence[Any]) -> list[DeviceBuffer]:
        p = self.program
        donated = set(p.aliases.values())
        ins = [self._input(v, i in donated, values) for i, v in enumerate(values)]
        outs = []
        for o, aval in enumerate(p.outs):
            shared = ins[p.aliases[o]].block if o in p.aliases else self.gpu.take(aval.nbytes)
            outs.append(DeviceBuffer(self.gpu, shared, aval.shape, aval.dtype))
        external = [x.address for x in (*ins, *outs)]
        sizes = (p.arena_bytes, self.loaded.work)
        with self._lock, context.scoped(communicators=self.communicators):
            if not (self.replays and self.graphs.run(external, sizes)):
                temporary = [self.gpu.take(n) for n in sizes]
                with np.errstate(all="ignore"):
                    self.loaded.run([*external, *(block.address for block in temporary)])
        return outs

    def _input(self, value: Any, donated: bool, values: Sequence[Any]) -> DeviceBuffer:
        """An argument on the device; a copy if it will be written to, and others have it too."""
        if type(value) is not DeviceBuffer:
            return DeviceBuffer.of(self.gpu, np.asarray(value))
        others = type(value.block) is Foreign or sum(v is value for v in values) > 1
        return deepcopy(value) if donated and others else value

    def _too_large(self, error: str) -> str:
        """What an error says that a program's memory is too much for the device."""
        p, used = self.program, self.gpu.pool.summary()
        inner = MemoryAnalysis({}, p.peak)
        largest = [
            *((a.nbytes, f"argument {i}, {a}") for i, a in enumerate(p.ins)),
            *((a.nbytes, f"result {i}, {a}") for i, a in enumerate(p.outs)),
            *((n, f"{kind} at {place}" if place else kind) for n, kind, place in inner.peak),
        ]
        largest.sort(key=lambda x: -x[0])
        listed = "; ".join(f"{what} ({n:,} bytes)" for n, what in largest[:_LARGEST])
        return (
            f"{p.name}: the GPU's memory doesn't suffice ({error}): temporaries take "
            f"{p.arena_bytes:,} bytes, arrays in use {used['in use']:,}. Largest: {listed}"
        )

    def bind(self, communicators: Callable[[tuple], Any]) -> DeviceProgram:
        return DeviceProgram(self.program, self.gpu, communicators, self.replays)


class CudaBackend:
    """Compiles programs for a GPU and runs them there.

    find: gives the GPU, when it is first wanted
    """

    name = "cuda"

    def __init__(self, find: Callable[[], Gpu] | None = None):
        self._find = find

    @property
    def gpu(self) -> Gpu:
        """The device.

        Raises CudaError, which says what is missing, if there is none.
        """
        if self._find is not None:
            return self._find()
        if lacks := missing():
            raise CudaError(f"backend 'cuda': {lacks}")
        return find_gpu()

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> DeviceProgram:
        """The program for a GPU."""
        return DeviceProgram(plan(simplify(jaxpr), donated, name, CUDA), self.gpu)

    def caller(self, entries: Sequence[Any]) -> Callable[[tuple, dict], Any]:
        """There are no fast calls."""
        return lambda args, kwargs: NotImplemented


BACKEND = CudaBackend()
