"""Arrays in a memory that is not the host's, and what is behind operands wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np

from funcgrad.core.array import Array, raw
from funcgrad.core.aval import ShapedArray
from funcgrad.core.buffers import Memory, beside, buffer_of, memory_of, memory_on, on_host
from funcgrad.core.places.transfers import crosses
from funcgrad.core.sharding import Device
from funcgrad.core.types import DTypeLike, PlainArray, Value, Values
from funcgrad.errors import ShardingError


class DeviceArray(Array):
    """An array in a memory that isn't the host's. Made by `device_put`, and by computing with such
    arrays: results stay where their operands are, and reading values in Python copies them. It is
    pickled by its values: what is loaded is on the host.
    """

    __slots__ = ()

    @property
    def value(self) -> np.ndarray:
        """A copy of the values in NumPy."""
        return on_host(self.buffer)

    @property
    def memory(self) -> Memory:
        """The memory that the array is in."""
        return memory_of(self.buffer)  # type: ignore[return-value]

    @property
    def device(self) -> Device:
        """The device that the array is on."""
        return self.memory.device(self.buffer)

    def block_until_ready(self) -> Array:
        """Wait for the value."""
        self.memory.wait(self.buffer)
        return self

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"an array on {self.device} is none of NumPy's without a copy")
        return self._read().astype(dtype or self.dtype, copy=False)

    def __dlpack__(self, **kwargs: Any) -> object:
        return self.buffer.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> object:
        return self.buffer.__cuda_array_interface__

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))  # type: ignore[index]

    def __deepcopy__(self, memo: dict) -> Array:
        return DeviceArray(deepcopy(self.buffer, memo), self.weak_type, self.aval)


def on_device(x: Array, device: Device) -> Array:
    """An array on a device: itself if it is there, else a copy.

    >>> import funcgrad.numpy as fnp
    >>> on_device(fnp.ones(2), Device(0))
    Array([1., 1.], dtype=float32)
    """
    memory = memory_on(device)
    if type(x) is Array if memory is None else type(x) is DeviceArray and x.device == device:
        return x
    crosses("device_to_device", x.aval)
    if memory is None:
        return Array(x.value, x.weak_type)
    held = x.buffer if type(x) is DeviceArray and x.memory is memory else x.value
    return DeviceArray(memory.put(held, device), x.weak_type)


def placed(x: Value, device: Device | None) -> Value:
    """What a program captured, for one that runs on a device: a copy there of what is on the host.

    >>> placed(3, None)
    3
    """
    memory = None if device is None else memory_on(device)
    if memory is None or device is None or type(x) not in (Array, np.ndarray):
        return x
    return DeviceArray(memory.put(settled(x), device), getattr(x, "weak_type", False))


def device_among(what: str, operands: Values) -> Device | None:
    """The device on which an operation of some operands is to run: None where all are on the host.
    What is on the host goes with the others; those on two devices are an error."""
    if DeviceArray not in map(type, operands):
        return None
    found = dict.fromkeys([x.device for x in operands if type(x) is DeviceArray])
    if len(found) > 1:
        raise ShardingError(
            f"{what}: its operands are on different devices, {' and '.join(map(str, found))}; "
            "bring them to one with device_put"
        )
    return next(iter(found))


def is_distributed(value: Value) -> bool:
    """Whether an operand is an array that is cut over a mesh."""
    return isinstance(value, Array) and type(value) not in _WHOLE


_WHOLE = (Array, DeviceArray)


_SETTLED = 1 << 24  # bytes


def settled(value: Value) -> PlainArray:
    """The buffer of an operand, for compiled code, which reads memory in row-major order: an Array
    that is another view (broadcast, transposed) is copied once, not at each call, unless it is very
    large."""
    if type(value) is DeviceArray:
        return value.buffer
    x = raw(value)
    if type(value) is Array and not x.flags.c_contiguous and x.nbytes <= _SETTLED:
        value._value = x = np.ascontiguousarray(x)
    return x


def wrap(value: PlainArray, aval: ShapedArray) -> Array:
    """An Array of what an `impl` returned, in the dtype that the op's type promises."""
    if is_distributed(value):
        return value
    if type(value) is not np.ndarray:
        value = buffer_of(value)
        if type(value) is not np.ndarray:
            if value.dtype != aval.dtype:
                with beside(value):
                    value = value.astype(aval.dtype)
            return DeviceArray(value, aval.weak_type, aval)
    if value.dtype is aval.dtype:
        return Array(value, aval.weak_type, aval)
    return Array(value.astype(aval.dtype, copy=False), aval.weak_type)
