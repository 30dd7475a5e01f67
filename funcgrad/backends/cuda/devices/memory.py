"""Arrays on a GPU: memory of its pool, given back as its last reference goes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from funcgrad.backends.cuda.devices.device import CudaError, Event, count, missing
from funcgrad.backends.cuda.devices.gpu import Gpu, gpu
from funcgrad.backends.cuda.devices.interchange import CUDA, capsule, imported
from funcgrad.backends.cuda.devices.pool import Block, Foreign
from funcgrad.backends.late import Late
from funcgrad.core.buffers import Memory, register_memory
from funcgrad.core.primitive import Primitive
from funcgrad.core.sharding import Device
from funcgrad.core.types import Params, Result

if TYPE_CHECKING:
    from funcgrad.backends.cuda.eager import Operations

eager = Late("funcgrad.backends.cuda.eager")

_NAMED = re.compile(r"(?:cuda|gpu)(?::(\d+))?")


class DeviceBuffer:
    """Contiguous memory of a device, that knows its shape and dtype.

    block: the memory, which another buffer may share to which this one was donated
    ready: from when on it holds its values; None: when all is done that was started
    """

    def __init__(
        self, gpu: Gpu, block: Block | Foreign, shape: tuple[int, ...], dtype: np.dtype,
        ready: Event | None = None,
    ):  # fmt: skip
        self.gpu = gpu
        self.block = block
        self.shape, self.dtype = shape, dtype
        self.ready = ready

    @classmethod
    def of(cls, gpu: Gpu, value: np.ndarray) -> DeviceBuffer:
        """A copy of an array of the host, made beside what the device does.

        Raises OutOfDeviceMemory if there is no room.
        """
        block = gpu.take(value.nbytes)
        gpu.driver.upload(block.address, np.ascontiguousarray(value), block.free)
        return cls(gpu, block, value.shape, value.dtype)

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.block.address

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

    def __deepcopy__(self, memo: dict) -> DeviceBuffer:
        made = DeviceBuffer(self.gpu, self.gpu.take(self.nbytes), self.shape, self.dtype)
        self.gpu.driver.enter()
        self.gpu.driver.copy(made.address, self.address, self.nbytes)
        return made

    def copied_to(self, there: Gpu) -> DeviceBuffer:
        """A copy on another GPU, which doesn't go by way of the host where they reach each other.

        Raises CudaError, which names both, if it can't be made.
        """
        here = self.gpu.driver
        try:
            here.enter()
            ready = self.ready or here.record()
            there.driver.enter()
            block = there.take(self.nbytes)
            there.driver.copy_from(
                block.address, here, self.address, self.nbytes, block.free, ready
            )
        except CudaError as error:
            what = f"{self.dtype.name}[{','.join(map(str, self.shape))}]"
            raise type(error)(
                f"device_put: a copy of {what} from cuda:{here.number} to "
                f"cuda:{there.driver.number}: {error}"
            ) from None
        return DeviceBuffer(there, block, self.shape, self.dtype)

    def get(self) -> np.ndarray:
        """A copy on the host."""
        found = np.empty(self.shape, self.dtype)
        self.gpu.driver.enter()
        self.gpu.driver.get(found, self.address, self.ready)
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.gpu.driver.number

    def __dlpack__(self, *, stream: int | None = None, **how: object) -> object:
        """The memory as DLPack's capsule, ready for a stream of the receiver's (-1: as it is)."""
        if how.get("copy"):
            raise BufferError("DLPack: no copies are made: copy the array first")
        if stream != -1:  # all else than an event would wait for
            self.gpu.driver.enter()
            self.gpu.driver.synchronize()
        self._others()
        return capsule(self, self.gpu.driver.number)

    def _others(self) -> None:
        """Others may write to the memory from now on: who reads it waits for all of the stream, not
        for the program that made it alone."""
        self.ready = None

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The memory, as other libraries of this process take it, in version 3."""
        self._others()
        dtype = np.dtype(f"V{self.itemsize}") if self.dtype.kind == "V" else self.dtype
        return {
            "shape": self.shape, "typestr": dtype.str, "data": (self.address, False),
            "version": 3, "strides": None, "stream": self.gpu.driver.stream.value or 1,
        }  # fmt: skip


class CudaMemory(Memory):
    """The memory of this machine's GPUs.

    find: gives one, by its number, when it is first wanted
    """

    kind, buffer, backends, dlpack = "cuda", DeviceBuffer, ("cuda",), CUDA

    def __init__(self, find: Callable[[int], Gpu] = gpu):
        self.find = find
        self._operations: dict[Gpu, Operations] = {}

    def device(self, buffer: DeviceBuffer) -> Device:
        return Device(buffer.gpu.driver.number, kind="cuda")

    def put(self, value: np.ndarray | DeviceBuffer, device: Device) -> DeviceBuffer:
        there = self.find(device.id)
        if isinstance(value, DeviceBuffer):
            return deepcopy(value) if value.gpu is there else value.copied_to(there)
        there.driver.enter()
        return DeviceBuffer.of(there, value)

    def shared(self, value: Any) -> DeviceBuffer:
        _, number = value.__dlpack_device__()
        here = self.find(number)
        here.driver.enter()
        found = imported(value.__dlpack__(stream=here.driver.stream.value))
        block = Foreign(here.driver, found.address, found.give_back)
        return DeviceBuffer(here, block, found.shape, found.dtype)

    def run(
        self, prim: Primitive, values: Sequence[DeviceBuffer], params: Params, here: DeviceBuffer
    ) -> Result:
        if here.gpu not in self._operations:
            self._operations[here.gpu] = eager.Operations(here.gpu)
        return self._operations[here.gpu].run(prim, values, params)

    def wait(self, buffer: DeviceBuffer) -> None:
        buffer.gpu.driver.enter()
        buffer.gpu.driver.synchronize()


def devices(process: int = 0) -> tuple[Device, ...]:
    """This machine's GPUs, on which arrays can be from now on.

    >>> len(devices()) == count()
    True
    """
    found = tuple(Device(i, process, "cuda") for i in range(count()))
    if found:
        register()
    return found


def memory_summary(number: int = 0) -> str:
    """What the memory of a GPU is taken for: a line a number.

    Raises CudaError, which says what is missing, if there is none.

    >>> print(memory_summary())  # doctest: +SKIP
    in use          12,582,912 bytes
    kept             2,097,152
    peak            14,680,064
    """
    if lacks := missing():
        raise CudaError(f"memory_summary: {lacks}")
    sizes = gpu(number).pool.summary()
    return "\n".join(
        f"{name:<10} {n:>15,}{' bytes' * (name == 'in use')}" for name, n in sizes.items()
    )


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


def register() -> None:
    """Let arrays be on this machine's GPUs."""
    with suppress(ValueError):  # it is there
        register_memory(CudaMemory())
