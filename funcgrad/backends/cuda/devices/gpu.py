"""A GPU as programs use it: its driver, its memory, its cuBLASLt if there is one."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Protocol
from weakref import WeakSet

from funcgrad.backends.cuda.devices.device import Driver, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.pool import Block, Pool
from funcgrad.backends.cuda.libraries import by_cupy, cublaslt
from funcgrad.backends.cuda.libraries.products import EIGHTS, products
from funcgrad.backends.program import GemmStep
from funcgrad.core.types import ArrayModule

_EIGHTS_FROM = 89  # the architecture


class Holder(Protocol):
    """Who keeps memory only to be quicker."""

    def clear(self) -> None:
        """Give it up."""


class Gpu:
    """One device.

    blas: where cuBLASLt is; None without it, and products are kernels
    arrays: CuPy, which runs what has no kernel; None without it, and that is the host's
    holders: who gives memory up where it is short
    """

    def __init__(self, driver: Driver, blas: str | None, arrays: ArrayModule | None = None):
        self.driver = driver
        self.pool = Pool(driver)
        self.blas = blas
        self.arrays = arrays
        self.holders: WeakSet[Holder] = WeakSet()

    @cached_property
    def lt(self) -> cublaslt.Lt:
        """The library of products, loaded when it is first wanted."""
        self.driver.enter()
        return cublaslt.Lt(self.blas)

    def calls(self, s: GemmStep) -> bool:
        """Whether the library computes a product here; else a kernel does. It has those of 8 bits
        from sm_89 on."""
        if self.blas is None or (s.dtype in EIGHTS and int(self.driver.arch[3:]) < _EIGHTS_FROM):
            return False
        return bool(products(s))

    def take(self, nbytes: int) -> Block:
        """Memory of the device.

        Raises OutOfDeviceMemory if there is no room, even without what is kept to be quicker.
        """
        try:
            return self.pool.take(nbytes)
        except OutOfDeviceMemory:
            for holder in list(self.holders):
                holder.clear()
        return self.pool.take(nbytes)


@cache
def gpu(number: int = 0) -> Gpu:
    """A GPU of this machine, which arrays and programs share.

    Raises CudaError, which says what is missing, if there is none.
    """
    return Gpu(Driver(number), cublaslt.found(), by_cupy.found())
