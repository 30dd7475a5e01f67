"""Programs on a GPU: kernels by the driver's library, everything else on the host so far.

A program's memory exists twice. Launches work on the device's; a step of the host (a product, a
sort, a branch's flag) on the other, and what is newer is copied when the other side is wanted. That
is right, and slow: libraries on the device's own memory come next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import finalize

import numpy as np

from funcgrad.backends.cuda.device import CudaError, Driver, missing
from funcgrad.backends.cuda.executable import SimulatedProgram
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.cuda.memory import DeviceBuffer
from funcgrad.backends.cuda.modules import Kernels, Launch
from funcgrad.backends.cuda.nvptx import ptx
from funcgrad.backends.plain.interpret import Machine, run
from funcgrad.backends.plan import plan
from funcgrad.backends.program import KernelStep, Program, Ref
from funcgrad.core.ir import Jaxpr
from funcgrad.transforms.passes.simplify import simplify

Key = tuple[str, int]  # a space of refs, and a number


class Loaded:
    """Kernels as a module of a device."""

    def __init__(self, kernels: Kernels, driver: Driver):
        self.driver = driver
        self.launches: dict[int, tuple[Launch, int]] = {}
        if kernels.launches:
            module = driver.load(ptx(kernels.device_text, driver.arch))
            finalize(self, driver.unload, module).atexit = False
            for launch in kernels.launches:
                function = driver.function(module, launch.name)
                self.launches[id(launch.kernel)] = launch, function


class OnDevice(Machine):
    """Runs a program's kernels on a device, and its other steps on the host."""

    def __init__(
        self, loaded: Loaded, program: Program, ins: list[np.ndarray], outs: list[np.ndarray]
    ):
        super().__init__(program, ins, outs)
        self.loaded, self.driver = loaded, loaded.driver
        self.addresses: dict[Key, int] = {}
        self.arrays: dict[Key, np.ndarray] = {}
        self.same: dict[Key, Key] = {}  # donated inputs and the results that take their place
        for space in ("input", "output", "constant", "arena"):
            for number, array in enumerate(self.spaces[space]):
                i = program.aliases.get(number) if space == "output" else None
                if i is None:
                    self.arrays[space, number] = array
                else:
                    self.same[space, number] = "input", i
        self.work: list[int] = []
        self.newer = "host"

    def memory(self, ref: Ref, nbytes: int) -> np.ndarray:
        self.on_host()
        return super().memory(ref, nbytes)

    def strided(self, ref: Ref, dtype: np.dtype, shape: tuple, strides: tuple) -> np.ndarray:
        self.on_host()
        return super().strided(ref, dtype, shape, strides)

    def gemm(self, s: Any) -> None:
        self.on_host()
        super().gemm(s)

    def kernel(self, s: KernelStep) -> None:
        found = self.loaded.launches.get(id(s.kernel))
        if found is None:  # which has no points
            return
        launch, function = found
        self.on_device()
        buffers = [self.address(ref) for ref in s.args]
        if launch.workspace:
            self.work.append(self.driver.allocate(launch.workspace))
            buffers.append(self.work[-1])
        self.driver.launch(function, launch.plan.grid, launch.plan.block, buffers)

    def address(self, ref: Ref) -> int:
        """Where a ref is on the device."""
        at = ref.offset + sum(self.counters[n] * s for n, s in ref.strides)
        key: Key = ref.space, ref.number
        return self.addresses[self.same.get(key, key)] + at

    def on_device(self) -> None:
        """Let the device's memory be what is true."""
        if self.newer == "host":
            for key, array in self.arrays.items():
                if key not in self.addresses:
                    self.addresses[key] = self.driver.allocate(array.nbytes)
                self.driver.put(self.addresses[key], array)
            self.newer = "device"

    def on_host(self) -> None:
        """Let the host's memory be what is true."""
        if self.newer == "device":
            self.driver.synchronize()
            for key, array in self.arrays.items():
                self.driver.get(array, self.addresses[key])
            self.newer = "host"

    def free(self) -> None:
        """Give the device's memory back."""
        for address in (*self.addresses.values(), *self.work):
            self.driver.free(address)


class DeviceProgram(SimulatedProgram):
    """A program that runs on a GPU. Results of NumPy's arrays are NumPy's, all others stay there;
    inside, both go by the host so far."""

    def __init__(
        self, program: Program, driver: Driver,
        communicators: Callable[[tuple], Any] | None = None,
    ):  # fmt: skip
        super().__init__(program, communicators)
        self.driver = driver
        self.loaded = Loaded(self.kernels, driver)

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list[Any]:
        if began is not None:
            began.append(self)
        self.driver.enter()
        near = [v.get() if type(v) is DeviceBuffer else v for v in values]
        results = self.on_host(near)
        if any(type(v) is DeviceBuffer for v in values):
            return [DeviceBuffer(self.driver, y) for y in results]
        return results

    def on_host(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of arrays of the host."""
        machines: list[OnDevice] = []

        def machine(*args: Any) -> OnDevice:
            machines.append(OnDevice(self.loaded, *args))
            return machines[-1]

        try:
            with np.errstate(all="ignore"):
                results = run(self.program, values, self.communicators, machine)
            machines[0].on_host()
            return results
        finally:
            for used in machines:
                used.free()

    def bind(self, communicators: Callable[[tuple], Any]) -> DeviceProgram:
        return DeviceProgram(self.program, self.driver, communicators)


class CudaBackend:
    """Compiles programs for a GPU and runs them there."""

    name = "cuda"

    def __init__(self, driver: Callable[[], Driver] = Driver):
        self._make = driver
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        """The device.

        Raises CudaError, which says what is missing, if there is none.
        """
        if self._driver is None:
            lacks = missing() if self._make is Driver else None
            if lacks:
                raise CudaError(f"backend 'cuda': {lacks}")
            self._driver = self._make()
        return self._driver

    def compile(self, jaxpr: Jaxpr, donated: Sequence[bool], name: str) -> DeviceProgram:
        """The program for a GPU."""
        return DeviceProgram(plan(simplify(jaxpr), donated, name, CUDA), self.driver)

    def caller(self, entries: Sequence[Any]) -> Callable[[tuple, dict], Any]:
        """There are no fast calls."""
        return lambda args, kwargs: NotImplemented


BACKEND = CudaBackend()
