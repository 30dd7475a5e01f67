"""The CUDA driver's library by ctypes: a device's context, streams, memory, modules and launches.

No more than libcuda is needed: the driver assembles PTX itself. Each call's status is read, and an
error is raised by its name. What fails asynchronously is told by whatever waits next, which names
the programs that were started since the last time.

All work is in order of one stream. What two others do is ordered by events: copies from and to the
host, and what a program has beside its kernels.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from weakref import finalize

import numpy as np

from funcgrad.errors import FuncgradError

LIBRARY = "libcuda.so.1"
LEAST_DRIVER = 12000  # takes PTX 8.0, as CUDA 12.0 does
_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute: the compute capability's
_PTX, _ERROR_LOG, _ERROR_SIZE = 1, 5, 6  # of CUjitInputType and CUjit_option
OUT_OF_MEMORY = 2
_NON_BLOCKING = 1  # of CUstream_flags
_UNTIMED = 2  # of CUevent_flags
_PEERS_ALREADY = 704
# After these no call of the process succeeds any more: illegal accesses and instructions, launches
# that failed or took too long, errors of the hardware.
_LOST = {46, 214, 220, 700, 702, 709, *range(714, 721)}


class CudaError(FuncgradError, RuntimeError):
    """What a GPU, its driver, or the lack of one makes impossible.

    >>> raise CudaError("jit: no GPU")
    Traceback (most recent call last):
      ...
    funcgrad.backends.cuda.devices.device.CudaError: jit: no GPU
    """


class OutOfDeviceMemory(CudaError, MemoryError):
    """A GPU's memory doesn't suffice.

    >>> issubclass(OutOfDeviceMemory, MemoryError)
    True
    """


class Event:
    """A point in a stream's work, for which others can wait.

    timed: whether it knows when it was reached
    """

    def __init__(self, driver: Driver, timed: bool = False):
        self.driver = driver
        self.handle = c_void_p()
        kept = driver.events[timed]
        try:
            self.handle = kept.pop()
        except IndexError:
            driver.call("cuEventCreate", byref(self.handle), c_uint(0 if timed else _UNTIMED))
        # Finalizers may run within anything: this one calls nothing.
        finalize(self, kept.append, self.handle).atexit = False

    def record(self, stream: c_void_p) -> None:
        """Let it be all that a stream was given so far."""
        self.driver.call("cuEventRecord", self.handle, stream)

    def wait(self) -> None:
        """Wait until it is reached."""
        self.driver.call("cuEventSynchronize", self.handle)

    def since(self, other: Event) -> float:
        """Milliseconds from another event on; both are timed, and reached."""
        found = c_float()
        self.driver.call("cuEventElapsedTime", byref(found), other.handle, self.handle)
        return found.value


class Driver:
    """One device, by its primary context, which other libraries share.

    stream: of all work; copies: of those from and to the host; beside: of what runs beside kernels
    started: the programs that were started since all was known to be well
    events: those that nobody has any more, by whether they are timed
    """

    def __init__(self, number: int = 0, library: str = LIBRARY):
        self.lib = _library(library)
        self.number = number
        self.started: deque[str] = deque(maxlen=8)
        self.context, self.stream = c_void_p(), c_void_p()
        self.copies, self.beside = c_void_p(), c_void_p()
        self.events: tuple[list[c_void_p], list[c_void_p]] = ([], [])
        self._peers: set[int] = set()
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
        self.version = version.value
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), handle)
        streams = self.stream, self.copies, self.beside
        given = self.lib, self.context, streams, self.events, handle
        finalize(self, _leave, *given).atexit = False
        self.enter()
        # Not one that ignores the default stream, by which other libraries share memory.
        self.call("cuStreamCreate", byref(self.stream), c_uint(0))
        for stream in (self.copies, self.beside):
            self.call("cuStreamCreate", byref(stream), c_uint(_NON_BLOCKING))

    def another_stream(self) -> c_void_p:
        """A stream that waits for no other, to be ended by `end_stream`."""
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(_NON_BLOCKING))
        return stream

    def end_stream(self, stream: c_void_p) -> None:
        """Forget a stream of `another_stream`."""
        self.call("cuStreamDestroy_v2", stream)

    def enter(self) -> None:
        """Let the calling thread use this device."""
        self.call("cuCtxSetCurrent", self.context)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block in which the calling thread uses this device, for what may run within another
        device's work: finalizers."""
        before = c_void_p()
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", byref(before))

    def call(self, name: str, *args: object) -> None:
        """Call a function of the driver.

        Raises CudaError with the error's name if it fails, OutOfDeviceMemory if memory is short.
        """
        if status := getattr(self.lib, name)(*args):
            raise self.error(name, status)

    def error(self, what: str, status: int) -> CudaError:
        """The error of a status that a call gave."""
        text = c_char_p()
        self.lib.cuGetErrorName(c_int(status), byref(text))
        said = f"{what}: {text.value.decode() if text.value else status}"
        if status == OUT_OF_MEMORY:
            return OutOfDeviceMemory(said)
        if status in _LOST:
            since = ", ".join(dict.fromkeys(self.started))
            said += f", of a program since the GPU was waited for ({since})" if since else ""
            said += "; this process can't use the GPU any more"
        return CudaError(said)

    def address_of(self, name: str) -> int:
        """Where a function of the driver is, for native code."""
        return int(ctypes.cast(getattr(self.lib, name), c_void_p).value or 0)

    # ---- order

    def record(self, stream: c_void_p | None = None) -> Event:
        """The event of all that a stream, the device's if not another one, was given so far."""
        made = Event(self)
        made.record(stream or self.stream)
        return made

    def wait(self, stream: c_void_p, event: Event) -> None:
        """Let what a stream is given from now on wait for an event, another device's perhaps."""
        self.call("cuStreamWaitEvent", stream, event.handle, c_uint(0))

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
            # The driver has its own copy of what isn't locked memory when this returns.
            self.call("cuMemcpyHtoDAsync_v2", c_void_p(address), source, c_size_t(array.nbytes),
                      self.stream)  # fmt: skip

    def upload(self, address: int, array: np.ndarray, free: Event | None) -> None:
        """`put` beside what was launched, into memory that is free from an event on (None: when
        all is done that was launched). What is launched from now on waits for it."""
        if array.nbytes:
            self.wait(self.copies, free or self.record())
            self.call("cuMemcpyHtoDAsync_v2", c_void_p(address), c_void_p(array.ctypes.data),
                      c_size_t(array.nbytes), self.copies)  # fmt: skip
            self.wait(self.stream, self.record(self.copies))

    def get(self, array: np.ndarray, address: int, ready: Event | None = None) -> None:
        """Copy bytes of the device, which are there from an event on (None: when all is done that
        was launched), to a contiguous array. What was launched since goes on beside."""
        if not array.nbytes:
            return
        self.wait(self.copies, ready or self.record())
        self.call("cuMemcpyDtoHAsync_v2", c_void_p(array.ctypes.data), c_void_p(address),
                  c_size_t(array.nbytes), self.copies)  # fmt: skip
        self.call("cuStreamSynchronize", self.copies)
        if ready is None:
            self.started.clear()

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy bytes on the device."""
        self.call("cuMemcpyDtoDAsync_v2", c_void_p(to), c_void_p(source), c_size_t(nbytes),
                  self.stream)  # fmt: skip

    def copy_from(
        self, to: int, other: Driver, source: int, nbytes: int, free: Event | None, ready: Event
    ) -> None:
        """Copy bytes of another device, which are there from an event on, into memory that is free
        from an event on. What is launched on both from now on waits for it.

        Where devices don't reach each other's memory, the driver goes by way of the host's.
        """
        if not nbytes:
            return
        self._reach(other)
        self.wait(self.copies, free or self.record())
        self.wait(self.copies, ready)
        self.call("cuMemcpyPeerAsync", c_void_p(to), self.context, c_void_p(source), other.context,
                  c_size_t(nbytes), self.copies)  # fmt: skip
        done = self.record(self.copies)
        self.wait(self.stream, done)
        other.wait(other.stream, done)  # as its memory may be another's next

    def _reach(self, other: Driver) -> None:
        """Let this device use another's memory, if it can."""
        if other.number in self._peers:
            return
        can, here, there = c_int(), c_int(), c_int()
        self.call("cuDeviceGet", byref(here), c_int(self.number))
        self.call("cuDeviceGet", byref(there), c_int(other.number))
        self.call("cuDeviceCanAccessPeer", byref(can), here, there)
        if can.value:
            status = self.lib.cuCtxEnablePeerAccess(other.context, c_uint(0))
            if status not in (0, _PEERS_ALREADY):
                raise self.error("cuCtxEnablePeerAccess", status)
        self._peers.add(other.number)

    # ---- kernels

    def link(self, ptx: str) -> bytes:
        """PTX as a cubin for this device, by the driver's assembler."""
        said = ctypes.create_string_buffer(1 << 13)
        names, values = (c_int * 2)(_ERROR_LOG, _ERROR_SIZE), (c_void_p * 2)()
        values[0], values[1] = ctypes.addressof(said), len(said)
        state, image, size = c_void_p(), c_void_p(), c_size_t()
        text = ptx.encode() + b"\0"
        self.call("cuLinkCreate_v2", c_uint(2), names, values, byref(state))
        try:
            status = self.lib.cuLinkAddData_v2(
                state, c_int(_PTX), text, c_size_t(len(text)), b"kernel", c_uint(0), None, None
            ) or self.lib.cuLinkComplete(state, byref(image), byref(size))
            if status:
                words = said.value.decode(errors="replace").strip()
                raise CudaError(f"{self.error('assembling PTX', status)}: {words[:2000]}")
            return ctypes.string_at(image, size.value)
        finally:
            self.lib.cuLinkDestroy(state)

    def load(self, image: bytes) -> int:
        """A module of a cubin; freed by `unload`."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
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
            c_uint(0), self.stream, slots, c_void_p(),
        )  # fmt: skip

    def synchronize(self) -> None:
        """Wait for all that was started; errors of kernels are told here."""
        self.call("cuStreamSynchronize", self.stream)
        self.started.clear()


def _leave(
    lib: ctypes.CDLL, context: c_void_p, streams: Sequence[c_void_p],
    events: Sequence[list[c_void_p]], device: c_int,
) -> None:  # fmt: skip
    if context:
        lib.cuCtxSetCurrent(context)
        for event in (e for some in events for e in some):
            lib.cuEventDestroy_v2(event)
        for stream in filter(None, streams):
            lib.cuStreamDestroy_v2(stream)
        lib.cuDevicePrimaryCtxRelease_v2(device)


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
