"""The CUDA driver's library by ctypes: a device's context, memory, modules and launches.

No more than libcuda is needed: the driver assembles PTX itself. Each call's status is read, and an
error is raised by its name. What fails asynchronously is told by `synchronize`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

import numpy as np

from funcgrad.errors import FuncgradError

LIBRARY = "libcuda.so.1"
LEAST_DRIVER = 12000  # takes PTX 8.0, as CUDA 12.0 does
_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute: the compute capability's


class CudaError(FuncgradError, RuntimeError):
    """What a GPU, its driver, or the lack of one makes impossible.

    >>> raise CudaError("jit: no GPU")
    Traceback (most recent call last):
      ...
    funcgrad.backends.cuda.device.CudaError: jit: no GPU
    """


class Driver:
    """One device, by its primary context, which other libraries share."""

    def __init__(self, number: int = 0, library: str = LIBRARY):
        self.lib = _library(library)
        self.number = number
        self._context = c_void_p()
        handle, version, major, minor = c_int(), c_int(), c_int(), c_int()
        self.call("cuDriverGetVersion", byref(version))
        if version.value < LEAST_DRIVER:
            raise CudaError(
                f"the NVIDIA driver is for CUDA {_version(version.value)}; "
                f"{_version(LEAST_DRIVER)} or newer is needed"
            )
        self.call("cuDeviceGet", byref(handle), c_int(number))
        for value, which in ((major, _MAJOR), (minor, _MINOR)):
            self.call("cuDeviceGetAttribute", byref(value), c_int(which), handle)
        self.arch = f"sm_{major.value}{minor.value}"
        self.call("cuDevicePrimaryCtxRetain", byref(self._context), handle)
        self.enter()

    def enter(self) -> None:
        """Let the calling thread use this device."""
        self.call("cuCtxSetCurrent", self._context)

    def call(self, name: str, *args: object) -> None:
        """Call a function of the driver.

        Raises CudaError with the error's name if it fails.
        """
        status = getattr(self.lib, name)(*args)
        if status:
            text = c_char_p()
            self.lib.cuGetErrorName(c_int(status), byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else status}")

    # ---- memory

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, to be freed by `free`."""
        pointer = c_void_p()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(max(nbytes, 1)))
        return int(pointer.value or 0)

    def free(self, address: int) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", c_void_p(address))

    def put(self, address: int, array: np.ndarray) -> None:
        """Copy a contiguous array's bytes to the device."""
        if array.nbytes:
            source = c_void_p(array.ctypes.data)
            self.call("cuMemcpyHtoD_v2", c_void_p(address), source, c_size_t(array.nbytes))

    def get(self, array: np.ndarray, address: int) -> None:
        """Copy bytes of the device, when what was launched is done, to a contiguous array."""
        if array.nbytes:
            to = c_void_p(array.ctypes.data)
            self.call("cuMemcpyDtoH_v2", to, c_void_p(address), c_size_t(array.nbytes))

    # ---- kernels

    def load(self, ptx: str) -> int:
        """A module of some PTX, which the driver assembles; freed by `unload`."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), ptx.encode() + b"\0")
        return int(module.value or 0)

    def unload(self, module: int) -> None:
        """Forget a module."""
        self.call("cuModuleUnload", c_void_p(module))

    def function(self, module: int, name: str) -> int:
        """A module's kernel."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), c_void_p(module), name.encode())
        return int(function.value or 0)

    def launch(self, function: int, grid: int, block: int, addresses: Sequence[int]) -> None:
        """Start a kernel whose parameters are pointers; its shared memory is its own."""
        values = (c_void_p * max(len(addresses), 1))(*addresses)
        start = ctypes.addressof(values)
        slots = (c_void_p * len(values))(*(start + 8 * i for i in range(len(values))))
        one = c_uint(1)
        self.call(
            "cuLaunchKernel", c_void_p(function), c_uint(grid), one, one, c_uint(block), one, one,
            c_uint(0), c_void_p(), slots, c_void_p(),
        )  # fmt: skip

    def synchronize(self) -> None:
        """Wait for all that was started; errors of kernels are told here."""
        self.call("cuCtxSynchronize")


def missing(library: str = LIBRARY) -> str | None:
    """What there is not that a GPU's programs need; None if all is there.

    >>> missing("libnothing.so")
    'no NVIDIA driver (libnothing.so) on this machine'
    """
    try:
        found = _count(library)
    except CudaError as error:
        return str(error)
    return None if found else "the NVIDIA driver finds no GPU"


def count(library: str = LIBRARY) -> int:
    """How many GPUs there are; 0 without a driver.

    >>> count("libnothing.so")
    0
    """
    return 0 if missing(library) else _count(library)


def _count(library: str) -> int:
    n = c_int()
    status = _library(library).cuDeviceGetCount(byref(n))
    return 0 if status else n.value


def _library(name: str) -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL(name)
    except OSError:
        raise CudaError(f"no NVIDIA driver ({name}) on this machine") from None
    if status := lib.cuInit(c_uint(0)):
        raise CudaError(f"the NVIDIA driver ({name}) can't start: cuInit gave error {status}")
    return lib


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
