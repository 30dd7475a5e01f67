"""The Python array API standard, 2025.12 (data-apis.org/array-api): which namespace an array's
functions are in, and what that says of itself. The functions are `funcgrad.numpy`'s own.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from funcgrad.core import backend
from funcgrad.core.array import Array
from funcgrad.core.aval import scalar_dtype
from funcgrad.core.sharding import Device
from funcgrad.numpy._util import default_float, default_int, placed
from funcgrad.numpy.types import isdtype

__array_api_version__ = "2025.12"
_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", __array_api_version__)
_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


class NamespaceInfo:
    """What `funcgrad.numpy` can do, for code that is written for any array library."""

    def capabilities(self) -> dict[str, Any]:
        """What may depend on data, and how many axes an array has at most.

        Boolean masks and functions whose shapes depend on data are there outside of `jit`.

        >>> fnp.__array_namespace_info__().capabilities()["max dimensions"]
        64
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """The device of arrays that nobody puts anywhere.

        >>> fnp.__array_namespace_info__().default_device()
        Device(id=0, process_index=0, kind='virtual')
        """
        return Array(np.zeros(())).device

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, np.dtype]:
        """The dtypes of Python's numbers, as `fg.default_dtype` sets them, and of indices.

        >>> fnp.__array_namespace_info__().default_dtypes()["real floating"]
        dtype('float32')
        """
        return {
            "real floating": default_float(),
            "complex floating": scalar_dtype(1j),
            "integral": default_int(),
            "indexing": np.dtype(np.int32),
        }

    def dtypes(
        self, *, device: Device | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype]:
        """The standard's dtypes by name: all, or those of a kind as `fnp.isdtype` has it.

        >>> list(fnp.__array_namespace_info__().dtypes(kind="real floating"))
        ['float32', 'float64']
        """
        known = {name: np.dtype(name) for name in _NAMES}
        return {name: d for name, d in known.items() if kind is None or isdtype(d, kind)}

    def devices(self) -> tuple[Device, ...]:
        """The devices that arrays can be put on, as `fg.devices` has them.

        >>> len(fnp.__array_namespace_info__().devices())
        1
        """
        return tuple(backend.door("devices").devices())


def __array_namespace_info__() -> NamespaceInfo:
    """What this namespace can do: `capabilities`, `devices`, `dtypes` and the default ones.

    >>> fnp.__array_namespace_info__().capabilities()["boolean indexing"]
    True
    """
    return NamespaceInfo()


def namespace_of(self: Any, *, api_version: str | None = None) -> ModuleType:
    """The module with the array API's functions of an array: `funcgrad.numpy`.

    Raises ValueError for a version of the standard that it doesn't implement.

    >>> fnp.ones(3).__array_namespace__() is fnp
    True
    """
    if api_version not in (None, *_VERSIONS):
        raise ValueError(
            f"__array_namespace__: api_version {api_version!r} is not one of those there are: "
            f"{', '.join(_VERSIONS)}"
        )
    return sys.modules["funcgrad.numpy"]


def to_device(self: Any, device: Any, /, *, stream: Any = None) -> Any:
    """The array on a device or cut by a sharding, as `fg.device_put` does it.

    stream: of the array API; work on a device is ordered already, so it may only be None

    >>> x = fnp.ones(3)
    >>> x.to_device(x.device)
    Array([1., 1., 1.], dtype=float32)
    """
    if stream is not None:
        raise ValueError(f"to_device: stream must be None, got {stream!r}")
    return placed(self, device)
