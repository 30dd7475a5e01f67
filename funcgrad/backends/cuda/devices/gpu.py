"""A GPU as programs use it: its driver, its memory, NVIDIA's libraries if they are there."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Protocol
from weakref import WeakSet

from funcgrad.backends.cuda.devices.device import CudaError, Driver, OutOfDeviceMemory
from funcgrad.backends.cuda.devices.pool import Block, Pool
from funcgrad.backends.cuda.libraries import by_cupy, cublaslt, cudnn
from funcgrad.backends.cuda.libraries.convolutions import Convolution, convolution
from funcgrad.backends.cuda.libraries.products import EIGHTS, Product, products
from funcgrad.backends.program import GemmStep, HostStep
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
    cudnn: where cuDNN is; None without it, and convolutions are kernels
    holders: who gives memory up where it is short
    """

    def __init__(
        self, driver: Driver, blas: str | None, arrays: ArrayModule | None = None,
        cudnn: str | None = None,
    ):  # fmt: skip
        self.driver = driver
        self.pool = Pool(driver)
        self.blas = blas
        self.arrays = arrays
        self.cudnn = cudnn
        self.holders: WeakSet[Holder] = WeakSet()

    @cached_property
    def lt(self) -> cublaslt.Lt:
        """The library of products, loaded when it is first wanted."""
        self.driver.enter()
        return cublaslt.Lt(self.blas)

    @cached_property
    def dnn(self) -> cudnn.Dnn:
        """The library of convolutions, loaded when it is first wanted."""
        self.driver.enter()
        return cudnn.Dnn(self.driver.stream, self.cudnn)

    def calls(self, s: GemmStep | HostStep) -> bool:
        """Whether a library is called for a step; else a kernel does it. Products of floats of 8
        bits are there from sm_89 on."""
        if isinstance(s, GemmStep):
            if s.dtype in EIGHTS and int(self.driver.arch[3:]) < _EIGHTS_FROM:
                return False
            return self.blas is not None and bool(products(s))
        made = convolution(s) if self.cudnn is not None else None
        if made is None:
            return False
        self.driver.enter()
        try:
            return self.dnn.takes(made)
        except CudaError:  # it can't start: an older driver, or parts of it that are missing
            self.cudnn = None
            return False

    def bind(self, call: Product | Convolution) -> cublaslt.Call | cudnn.Call:
        """A call's descriptors and algorithm.

        Raises CudaError if the library has none for it.
        """
        return self.lt.bind(call) if isinstance(call, Product) else self.dnn.bind(call)

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
    return Gpu(Driver(number), cublaslt.Lt.found(), by_cupy.found(), cudnn.Dnn.found())
