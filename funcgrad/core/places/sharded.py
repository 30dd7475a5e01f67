"""Arrays that are cut over the devices of a mesh."""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from funcgrad.core import backend
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.buffers import Buffer, memory_of
from funcgrad.core.methods import fact
from funcgrad.core.places.device_array import DeviceArray
from funcgrad.core.sharding import NamedSharding, Shard


class ShardedArray(Array):
    """An immutable array cut over a mesh. Made by `device_put`, `make_array_from_callback`, and by
    computing with such arrays. Its buffer is what the mesh's runtime keeps of it in this process.

    It behaves as an `Array`: operations on it run on all devices and give sharded arrays. Reading
    its values in Python needs all of them in this process (`is_fully_addressable`).

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> mesh = fg.make_mesh((2,), "data")
    >>> x = fg.device_put(fnp.arange(4.0), fg.NamedSharding(mesh, fg.P("data")))
    >>> (x * 2).sharding.spec, [s.data.tolist() for s in x.addressable_shards]
    (P('data'), [[0.0, 1.0], [2.0, 3.0]])
    """

    __slots__ = ("_sharding",)

    def __init__(self, kept: Buffer, aval: ShapedArray, sharding: NamedSharding):
        super().__init__(kept, aval.weak_type, aval)
        self._sharding = sharding

    @property
    def value(self) -> np.ndarray:
        """The whole array in numpy; an error where this process doesn't hold all of it."""
        return backend.spmd().whole(self)

    shape = fact("shape", lambda self: self.aval.shape)
    dtype = fact("dtype", lambda self: self.aval.dtype)
    ndim = fact("ndim", lambda self: len(self.aval.shape))
    size = fact("size", lambda self: self.aval.size)
    nbytes = fact("nbytes", lambda self: self.aval.nbytes)
    itemsize = fact("itemsize", lambda self: self.aval.dtype.itemsize)

    @property
    def device(self) -> NamedSharding:  # type: ignore[override]
        """How the array is cut, which is over several devices."""
        return self._sharding

    @property
    def sharding(self) -> NamedSharding:
        """How the array is cut: a mesh, and a spec over it."""
        return self._sharding

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process holds all of the array."""
        return backend.spmd().is_addressable(self)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self._sharding.is_fully_replicated

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on this process's devices."""
        return backend.spmd().shards(self)

    def block_until_ready(self) -> Array:
        """Wait for this process's part."""
        if (memory := memory_of(self.buffer)) is not None:
            memory.wait(self.buffer)
        return self

    def __deepcopy__(self, memo: dict) -> ShardedArray:
        return ShardedArray(deepcopy(self.buffer, memo), self.aval, self._sharding)

    __iter__, __len__ = DeviceArray.__iter__, DeviceArray.__len__

    def __repr__(self) -> str:
        if self._gone is not None:
            return f"ShardedArray({self.aval}, deleted)"
        return backend.spmd().array_text(self)

    def __str__(self) -> str:
        return str(self.value) if self.is_fully_addressable else repr(self)

    def _repr_html_(self) -> str:
        return backend.spmd().array_html(self)
