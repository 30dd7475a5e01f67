"""Buffers: the memory behind arrays, NumPy's or another's, and what is asked of it.

NumPy's arrays are buffers as they are, in the host's memory. A `Memory` tells of those of another
type: on which device they are, whose functions compute with them, which backends take them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import numpy as np

from funcgrad.core.backend import DEFAULT
from funcgrad.core.sharding import HOST_KINDS, Device
from funcgrad.core.types import ArrayModule, Params, PlainArray
from funcgrad.errors import ShardingError

if TYPE_CHECKING:
    from funcgrad.core.primitive import Primitive
    from funcgrad.core.types import Result


class Buffer(Protocol):
    """Memory that holds an array, until nothing refers to it. Nobody writes to it but who made it,
    and programs to which it is donated.

    One that isn't NumPy's also has `get()`, which copies it to a NumPy array, and may have
    `__array_namespace__`, `__deepcopy__` and DLPack's methods. So have CuPy's arrays.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype, as NumPy's or ml_dtypes'."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def size(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""


class Memory:
    """A kind of memory that isn't the host's.

    kind: that of its devices: `Device(0, kind="cuda")`
    buffer: the type of its buffers
    backends: the names of those that compile programs for it, the one first that `jit` takes if it
        names none. Their executables get such buffers, and NumPy's arrays as other operands.
    dlpack: the number that DLPack has for its devices, if others' arrays come from there
    """

    kind: str
    buffer: type
    backends: Sequence[str] = ()
    dlpack: int | None = None

    def device(self, buffer: PlainArray) -> Device:
        """The device that a buffer is on."""
        return Device(0, kind=self.kind)

    def put(self, value: PlainArray, device: Device) -> PlainArray:
        """A copy, on a device of this kind, of a NumPy array or of a buffer of this type."""
        raise NotImplementedError

    def shared(self, value: PlainArray) -> PlainArray:
        """A buffer of another library's array, with DLPack's methods, on a device of this kind: the
        same memory."""
        raise NotImplementedError

    def namespace(self, buffer: PlainArray) -> ArrayModule:
        """The module whose functions compute with a buffer, as `impl` of ops takes it; None if
        there is none."""
        find = getattr(buffer, "__array_namespace__", None)
        return None if find is None else find()

    def run(
        self, prim: Primitive, values: Sequence[PlainArray], params: Params, here: PlainArray
    ) -> Result:
        """What an op makes of buffers on one device, on which the buffer `here` is: what its `impl`
        makes of them. In the block of `current`.

        Raises ShardingError if nothing computes with them.
        """
        xp = self.namespace(here)
        if xp is None:
            raise ShardingError(
                f"{prim.name}: arrays on {self.device(here)} have no functions, so operations on "
                f"them don't run one by one: {type(here)} has no __array_namespace__. Use jit"
            )
        return prim.impl(xp, *values, **params)

    def current(self, device: Device) -> AbstractContextManager:
        """The block in which these functions use a device."""
        return nullcontext()

    def wait(self, buffer: PlainArray) -> None:
        """Wait until a buffer holds its values."""


_by_type: dict[type, Memory] = {}
_by_kind: dict[str, Memory] = {}


def register_memory(memory: Memory) -> None:
    """Let arrays live in a memory.

    Raises ValueError if there is one for its kind of devices, or its type of buffers.

    >>> class Numbers(Memory):
    ...     kind, buffer = "virtual", memoryview
    >>> register_memory(Numbers())
    Traceback (most recent call last):
      ...
    ValueError: there is a memory of 'virtual' devices, or of <class 'memoryview'>, already
    """
    kinds, types = (*HOST_KINDS, *_by_kind), (np.ndarray, *_by_type)
    if memory.kind in kinds or memory.buffer in types:
        raise ValueError(
            f"there is a memory of {memory.kind!r} devices, or of {memory.buffer}, already"
        )
    _by_kind[memory.kind] = _by_type[memory.buffer] = memory


def memory_of(buffer: object) -> Memory | None:
    """The memory that a buffer is in; None for what is on the host, and for all that is no buffer.

    >>> memory_of(np.ones(3)) is None
    True
    """
    return _by_type.get(type(buffer))


def memory_on(device: Device) -> Memory | None:
    """The memory of a device; None if it is the host's.

    >>> memory_on(Device(0)) is None
    True
    """
    if device.kind in HOST_KINDS:
        return None
    try:
        return _by_kind[device.kind]
    except KeyError:
        known = ", ".join(map(repr, (*HOST_KINDS, *_by_kind)))
        raise ShardingError(f"{device}: arrays can be on devices of the kinds {known}") from None


def memory_of_dlpack(number: int) -> Memory | None:
    """The memory of the devices that DLPack has a number for; None if there is none.

    >>> memory_of_dlpack(1) is None
    True
    """
    return next((m for m in _by_kind.values() if m.dlpack == number), None)


def buffer_of(result: PlainArray) -> PlainArray:
    """A result that NumPy or another library gave, as a buffer.

    >>> buffer_of(np.float32(2))
    array(2., dtype=float32)
    """
    return result if type(result) in _by_type else np.asarray(result)


def beside(buffer: PlainArray) -> AbstractContextManager:
    """The block in which functions of a buffer's namespace use its device.

    >>> with beside(np.ones(2)) as nothing:
    ...     print(nothing)
    None
    """
    memory = memory_of(buffer)
    return nullcontext() if memory is None else memory.current(memory.device(buffer))


def on_host(buffer: PlainArray) -> np.ndarray:
    """A buffer's values: itself if it is NumPy's, else a copy.

    >>> on_host(np.ones(2))
    array([1., 1.])
    """
    return np.asarray(buffer if memory_of(buffer) is None else buffer.get())


def compiler(what: str, using: str, device: Device | None) -> str:
    """The backend for a program whose operands are on a device (None: the host): that of the
    device, unless another one that takes its buffers is named.

    >>> compiler("f", "plain", None)
    'plain'
    """
    memory = None if device is None else memory_on(device)
    if memory is None or using in memory.backends:
        return using
    if using == DEFAULT and memory.backends:
        return memory.backends[0]
    those = ", ".join(map(repr, memory.backends)) or "no backend"
    raise ShardingError(
        f"{what}: backend {using!r} takes no arrays on {device}: {those} does. Name another, or "
        "copy the arrays to the host with device_get"
    )
