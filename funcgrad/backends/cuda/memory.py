"""Arrays on a GPU: memory of the driver's, freed as its last reference goes.

There are no eager functions on them yet: they go into programs, and come out of them.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from weakref import finalize

import numpy as np

from funcgrad.backends.cuda.device import CudaError, Driver, count, missing
from funcgrad.core.buffers import Memory, register_memory
from funcgrad.core.sharding import Device

_NAMED = re.compile(r"(?:cuda|gpu)(?::(\d+))?")


class DeviceBuffer:
    """Contiguous memory of a device, that knows its shape and dtype."""

    def __init__(self, driver: Driver, value: np.ndarray):
        self.driver = driver
        self.shape, self.dtype = value.shape, value.dtype
        self.address = driver.allocate(value.nbytes)
        finalize(self, driver.free, self.address).atexit = False
        driver.put(self.address, np.ascontiguousarray(value))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.itemsize

    def get(self) -> np.ndarray:
        """A copy on the host."""
        found = np.empty(self.shape, self.dtype)
        self.driver.enter()
        self.driver.get(found, self.address)
        return found


class CudaMemory(Memory):
    """The memory of this machine's first GPU."""

    kind, buffer, backends = "cuda", DeviceBuffer, ("cuda",)

    def __init__(self) -> None:
        self.driver: Driver | None = None

    def device(self, buffer: DeviceBuffer) -> Device:
        return Device(buffer.driver.number, kind="cuda")

    def put(self, value: np.ndarray | DeviceBuffer, device: Device) -> DeviceBuffer:
        if device.id:
            raise CudaError(f"device_put: {device}: programs run on the first GPU alone so far")
        if self.driver is None:
            self.driver = Driver()
        self.driver.enter()
        held = value.get() if isinstance(value, DeviceBuffer) else value
        return DeviceBuffer(self.driver, held)

    def wait(self, buffer: DeviceBuffer) -> None:
        buffer.driver.synchronize()


def devices(process: int = 0) -> tuple[Device, ...]:
    """This machine's GPUs, on which arrays can be from now on.

    >>> len(devices()) == count()
    True
    """
    found = tuple(Device(i, process, "cuda") for i in range(count()))
    if found:
        _register()
    return found


def device_named(what: str, name: str) -> Device:
    """The device that a text names: "cpu", "cuda", "cuda:0".

    Raises CudaError, which says what is missing, if there is no such GPU, and ValueError for
    another text.

    >>> device_named("device_put", "cpu")
    Device(id=0, process_index=0, kind='virtual')
    """
    named = _NAMED.fullmatch(name)
    if name == "cpu":
        return Device(0)
    if named is None:
        raise ValueError(f"{what}: a device is 'cpu', 'cuda' or 'cuda:0', got {name!r}")
    if lacks := missing():
        raise CudaError(f"{what}: {name!r}: {lacks}")
    number, found = int(named[1] or 0), devices()
    if number >= len(found):
        raise CudaError(f"{what}: {name!r}: there are {len(found)} GPUs")
    return found[number]


def _register() -> None:
    with suppress(ValueError):  # it is there
        register_memory(CudaMemory())
