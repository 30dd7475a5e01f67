"""The CUDA driver's library by ctypes: modules, launches, events, memory; errors by their names."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import NamedTuple

import numpy as np

# The CUjit_option numbers of cuda.h.
_WALL_TIME, _INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE, _VERBOSE = 2, 3, 4, 5, 6, 12
_PTX = 1  # CU_JIT_INPUT_PTX
_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS, _SHARED_OPTIN = 75, 76, 16, 97
_REGISTERS, _LOCAL_BYTES = 4, 3  # of a function
_MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaError(RuntimeError):
    """A call of the driver that failed, by its name and the error's."""


class Linked(NamedTuple):
    """A cubin, the milliseconds that linking took, and what the linker says of it."""

    image: bytes
    milliseconds: float
    log: str


class Kernel(NamedTuple):
    """A function on the device: its handle, registers a thread and bytes of local memory."""

    handle: int
    registers: int
    local_bytes: int


class Driver:
    """One device's primary context, which CuPy and PyTorch share, current in this thread."""

    def __init__(self, device: int = 0) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", c_uint(0))
        handle, context, version = c_int(), c_void_p(), c_int()
        self.check("cuDeviceGet", byref(handle), c_int(device))
        self.check("cuDriverGetVersion", byref(version))
        self.check("cuDevicePrimaryCtxRetain", byref(context), handle)
        self.check("cuCtxSetCurrent", context)
        self.device, self.context, self.version = handle.value, context, version.value
        name = ctypes.create_string_buffer(256)
        self.check("cuDeviceGetName", name, c_int(256), handle)
        self.name = name.value.decode()
        self.arch = f"sm_{self.attribute(_COMPUTE_MAJOR)}{self.attribute(_COMPUTE_MINOR)}"
        self.multiprocessors = self.attribute(_MULTIPROCESSORS)
        self.shared_bytes = self.attribute(_SHARED_OPTIN)

    def check(self, name: str, *args: object) -> None:
        """Call a function of the driver; CudaError if it fails."""
        status = getattr(self.lib, name)(*args)
        if status:
            text = c_char_p()
            self.lib.cuGetErrorName(c_int(status), byref(text))
            raise CudaError(f"{name}: {text.value.decode() if text.value else status}")

    def address(self, name: str) -> int:
        """Where a function of the driver lies, for native code that calls it."""
        found = ctypes.cast(getattr(self.lib, name), c_void_p).value
        assert found is not None
        return found

    def attribute(self, which: int) -> int:
        """A number of CUdevice_attribute."""
        value = c_int()
        self.check("cuDeviceGetAttribute", byref(value), c_int(which), c_int(self.device))
        return value.value

    def link(self, ptx: str) -> Linked:
        """PTX as a cubin for this device, by the driver's assembler."""
        info, error = (ctypes.create_string_buffer(1 << 14) for _ in range(2))
        names = (c_int * 6)(_WALL_TIME, _INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE, _VERBOSE)
        values = (c_void_p * 6)(
            None, ctypes.addressof(info), 1 << 14, ctypes.addressof(error), 1 << 14, 1
        )
        state, image, size = c_void_p(), c_void_p(), c_size_t()
        text = ptx.encode() + b"\0"
        start = time.perf_counter()
        self.check("cuLinkCreate_v2", c_uint(6), names, values, byref(state))
        try:
            status = self.lib.cuLinkAddData_v2(
                state, c_int(_PTX), text, c_size_t(len(text)), b"kernel", c_uint(0), None, None
            ) or self.lib.cuLinkComplete(state, byref(image), byref(size))
            if status:
                raise CudaError(f"linking PTX failed ({status}): {error.value.decode()[:2000]}")
            milliseconds = 1e3 * (time.perf_counter() - start)
            return Linked(ctypes.string_at(image, size.value), milliseconds, info.value.decode())
        finally:
            self.lib.cuLinkDestroy(state)

    def load(self, image: bytes) -> int:
        """A cubin or PTX as a module of this context."""
        module = c_void_p()
        self.check("cuModuleLoadData", byref(module), image)
        return int(module.value or 0)

    def kernel(self, module: int, name: str, shared: int = 0) -> Kernel:
        """A module's function by name, allowed some bytes of dynamic shared memory."""
        function, registers, local = c_void_p(), c_int(), c_int()
        self.check("cuModuleGetFunction", byref(function), c_void_p(module), name.encode())
        for value, which in ((registers, _REGISTERS), (local, _LOCAL_BYTES)):
            self.check("cuFuncGetAttribute", byref(value), c_int(which), function)
        if shared:
            self.check("cuFuncSetAttribute", function, c_int(_MAX_SHARED), c_int(shared))
        return Kernel(int(function.value or 0), registers.value, local.value)

    def launch(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        *,
        shared: int = 0,
        stream: int = 0,
    ) -> None:
        """Start a kernel; arguments are ctypes values, as the kernel's parameters are."""
        slots = (c_void_p * max(len(args), 1))(*(ctypes.addressof(a) for a in args))  # type: ignore[arg-type]
        sizes = [c_uint(n) for xs in (grid, block) for n in (*xs, 1, 1)[:3]]
        self.check(
            "cuLaunchKernel", c_void_p(kernel.handle), *sizes,
            c_uint(shared), c_void_p(stream), slots, None,
        )  # fmt: skip

    def allocate(self, nbytes: int) -> c_void_p:
        """Memory of the device, freed when the process ends or by `free`."""
        pointer = c_void_p()
        self.check("cuMemAlloc_v2", byref(pointer), c_size_t(max(nbytes, 1)))
        return pointer

    def free(self, *pointers: c_void_p) -> None:
        """Give memory back."""
        for pointer in pointers:
            self.check("cuMemFree_v2", pointer)

    def put(self, array: np.ndarray) -> c_void_p:
        """A copy of an array in new memory of the device."""
        array = np.ascontiguousarray(array)
        pointer = self.allocate(array.nbytes)
        self.check("cuMemcpyHtoD_v2", pointer, c_void_p(array.ctypes.data), c_size_t(array.nbytes))
        return pointer

    def get(self, pointer: c_void_p, shape: Sequence[int], dtype: object) -> np.ndarray:
        """A copy of the device's memory as an array."""
        array = np.empty(shape, np.dtype(dtype))  # type: ignore[call-overload]
        self.check("cuMemcpyDtoH_v2", c_void_p(array.ctypes.data), pointer, c_size_t(array.nbytes))
        return array

    def fill(self, pointer: c_void_p, nbytes: int, byte: int = 0xFF) -> None:
        """Set each byte: 0xFF is NaN in every float, what nothing wrote shows."""
        self.check("cuMemsetD8_v2", pointer, ctypes.c_ubyte(byte), c_size_t(nbytes))

    def synchronize(self) -> None:
        """Wait for all that was started; errors of kernels are told here."""
        self.check("cuCtxSynchronize")

    def event(self) -> c_void_p:
        """A new event that keeps times."""
        event = c_void_p()
        self.check("cuEventCreate", byref(event), c_uint(0))
        return event

    def microseconds(
        self, run: Callable[[int], None], *, repeats: int = 20, inner: int = 10, stream: int = 0
    ) -> float:
        """The device's time of run(i), the median of `repeats` measurements of `inner` calls each.

        run gets a counter, by which it takes another of several buffers each time.
        """
        start, end, elapsed, turn = self.event(), self.event(), c_float(), 0
        times = []
        for measured in range(repeats + 2):
            self.check("cuEventRecord", start, c_void_p(stream))
            for _ in range(inner):
                run(turn)
                turn += 1
            self.check("cuEventRecord", end, c_void_p(stream))
            self.check("cuEventSynchronize", end)
            self.check("cuEventElapsedTime_v2", byref(elapsed), start, end)
            if measured >= 2:  # the first two warm up
                times.append(1e3 * elapsed.value / inner)
        return statistics.median(times)
