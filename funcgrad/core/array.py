"""Arrays: immutable values on the host, and what is behind an operand there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from funcgrad.core import context
from funcgrad.core.aval import ShapedArray, scalar_dtype
from funcgrad.core.display.array_html import array_html
from funcgrad.core.methods import ArrayMethods, fact
from funcgrad.core.places.transfers import handed_out
from funcgrad.core.sharding import Device, NamedSharding, Shard, SingleDeviceSharding
from funcgrad.core.trace import Tracer, captured_error, leak_error
from funcgrad.core.types import DTypeLike, PlainArray, Scalar, Value
from funcgrad.errors import DonatedBufferError, asked


class Freed:
    """What a deleted array still knows of itself."""

    __slots__ = ("dtype", "itemsize", "nbytes", "ndim", "shape", "size")

    def __init__(self, value: Value):
        self.shape, self.dtype, self.ndim = value.shape, value.dtype, value.ndim
        self.size, self.nbytes, self.itemsize = value.size, value.nbytes, value.itemsize


class Array(ArrayMethods):
    """An immutable n-dimensional array. Made by `funcgrad.numpy`, not by calling the class.

    >>> import funcgrad.numpy as fnp
    >>> x = fnp.arange(3.0)
    >>> x.at[0].set(5.0) + x
    Array([5., 2., 4.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_gone", "_value", "aval", "weak_type")

    aval: ShapedArray

    def __init__(self, value: PlainArray, weak_type: bool = False, aval: ShapedArray | None = None):
        self._value = value
        self.weak_type = weak_type
        self._gone: str | None = None
        if aval is not None:
            self.aval = aval

    def __getattr__(self, name: str) -> ShapedArray:
        # `aval` is made when it is first asked for; from then on it is found without this.
        if name != "aval":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.aval = ShapedArray(self._value.shape, self._value.dtype, self.weak_type)
        return self.aval

    def _held(self) -> PlainArray:
        if self._gone is not None:
            raise DonatedBufferError(
                f"this array {self.aval} is gone: {self._gone}. Keep the function's result "
                "instead, or don't donate the argument."
            )
        return self._value

    buffer = property(_held, doc="What holds the array in this process; see `core.buffers.Buffer`.")
    value = property(_held, doc="The values in NumPy; they must not be written to.")

    shape = fact("shape", lambda self: self._value.shape)
    dtype = fact("dtype", lambda self: self._value.dtype)
    ndim = fact("ndim", lambda self: self._value.ndim)
    size = fact("size", lambda self: self._value.size)
    nbytes = fact("nbytes", lambda self: self._value.nbytes)
    itemsize = fact("itemsize", lambda self: self._value.itemsize)

    def delete(self, reason: str = "it was deleted by .delete()") -> None:
        """Give the buffer back now; using the array again raises, quoting `reason`."""
        self._gone = reason
        # Shape and dtype stay known for the error message; the memory does not.
        self._value = Freed(self._value)

    def is_deleted(self) -> bool:
        """Whether the buffer was deleted or donated."""
        return self._gone is not None

    def block_until_ready(self) -> Array:
        """Wait for the value; it is always there on CPU."""
        return self

    @property
    def device(self) -> Device:
        """The device that the array is on; of an array cut over several, its sharding."""
        return _HOST

    def devices(self) -> set[Device]:
        """The devices that hold parts of the array."""
        return set(self.sharding.device_set)

    @property
    def sharding(self) -> SingleDeviceSharding | NamedSharding:
        """How the array is cut over devices: not at all."""
        return SingleDeviceSharding(self.device)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all of the array."""
        return True

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process holds: one, the whole."""
        whole = tuple(slice(0, n) for n in self.shape)
        return [Shard(self.device, whole, 0, self)]

    def addressable_data(self, index: int) -> Array:
        """The part on this process's device of that number, as an array of its own.

        >>> fnp.ones(3).addressable_data(0)
        Array([1., 1., 1.], dtype=float32)
        """
        return self.addressable_shards[index].data

    def concrete(self) -> Array:
        """The array itself: its value is known."""
        return self

    def _read(self) -> np.ndarray:
        """The values, for Python or NumPy."""
        if context.current().checks is not None:
            handed_out(self.aval)
        return self.value

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray:
        value = self._read()
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {value.dtype} is no {dtype} without a copy")
            return value.astype(dtype)
        if copy:
            return value.copy()
        view = value.view()
        view.flags.writeable = False
        return view

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        value = self.value
        if (max_version or (0, 0))[0] >= 1:
            value = value.view()
            value.flags.writeable = False
        elif not value.flags.writeable:
            # Before its version 1, DLPack can't say that memory must not be written to.
            value = value.copy()
        return value.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.value.__dlpack_device__()

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __index__(self) -> int:
        return self._read().__index__()

    def __float__(self) -> float:
        return float(self._read())

    def __complex__(self) -> complex:
        return complex(self._read())

    def __iter__(self) -> Iterator[Array]:
        if not self._value.ndim:
            raise TypeError("iteration over a 0-d array")
        return (Array(np.asarray(row), self.weak_type) for row in self.value)

    def __format__(self, spec: str) -> str:
        value = self._read()
        return format(value if value.ndim else value[()], spec)

    def item(self, *args: int) -> Scalar:
        """The element (of a one-element array, or at an index) as a Python scalar."""
        return self._read().item(*args)

    def tolist(self) -> Scalar | list:
        """The elements as nested Python lists."""
        return self._read().tolist()

    def tobytes(self) -> bytes:
        """The elements' bytes in C order."""
        return self._read().tobytes()

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: dict) -> Array:
        return Array(self.value.copy(), self.weak_type)

    def __reduce__(self) -> tuple:
        return Array, (self.value, self.weak_type)

    def __repr__(self) -> str:
        if self._gone is not None:
            return f"Array({ShapedArray(self._value.shape, self._value.dtype)}, deleted)"
        body = np.array2string(self.value, separator=", ", prefix="Array(")
        empty = f", shape={self._value.shape}" if not self._value.size else ""
        weak = ", weak_type=True" if self.weak_type else ""
        return f"Array({body}{empty}, dtype={self._value.dtype.name}{weak})"

    def __str__(self) -> str:
        return str(self._read())

    def _repr_html_(self) -> str:
        return array_html(self.value, self.aval)


_HOST = Device(0)


def raw(value: Value) -> np.ndarray:
    """The numpy array behind a concrete operand: an Array, a numpy array or a Python scalar."""
    kind = type(value)
    if kind is Array:
        return value.value
    if kind is np.ndarray:
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, Array):
        return value.value
    if isinstance(value, Tracer):
        if not value._trace.live:
            raise leak_error(value)
        raise captured_error(value)
    if not isinstance(value, bool | int | float | complex):
        raise TypeError(
            f"{asked(value)}not an array or a scalar, so it has no value: {value!r} of "
            f"{type(value)}"
        )
    return of_scalar(value, scalar_dtype(value))


def of_scalar(value: Scalar, dtype: np.dtype) -> np.ndarray:
    """A Python scalar in a dtype, OverflowError where that can't hold it."""
    try:
        return np.asarray(value, dtype)
    except (OverflowError, TypeError, ValueError) as e:  # ValueError of NaN
        kind = TypeError if isinstance(e, TypeError) else OverflowError
        raise kind(
            f"{asked(value)}{value}, which {dtype} can't hold; give it a wider dtype, as in "
            "fnp.int64(...)"
        ) from e
