"""A library of NVIDIA's by ctypes: where it is, calls whose status is read, and what it made."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_void_p
from pathlib import Path
from weakref import finalize

from funcgrad.backends.cuda.devices.device import CudaError


class Library:
    """A library, and its handle for the device whose context is current.

    title, wheel: what it is called, and what has it; files: its names, the best one first
    create, destroy, tells: its functions that make a handle, end it, and name a status

    Raises CudaError if there is no library.
    """

    title: str
    wheel: str
    files: tuple[str, ...]
    create: str
    destroy: str
    tells: str

    def __init__(self, path: str | None = None):
        name = path or self.found() or self.files[0]
        try:
            self.lib = ctypes.CDLL(name)
        except OSError:
            raise CudaError(
                f"no {self.title} ({name}) on this machine: pip install {self.wheel}"
            ) from None
        getattr(self.lib, self.tells).restype = c_char_p
        self.handle = self.new_handle()

    def new_handle(self) -> c_void_p:
        """A handle, which ends with the library."""
        handle = c_void_p()
        self.call(self.create, byref(handle))
        finalize(self, getattr(self.lib, self.destroy), handle).atexit = False
        return handle

    def call(self, name: str, *args: object) -> None:
        """Call a function of the library.

        Raises CudaError with the status's name if it fails.
        """
        if status := getattr(self.lib, name)(*args):
            raise CudaError(f"{name}: {self.status(status)}")

    def address_of(self, name: str) -> int:
        """Where a function of the library is, for native code."""
        return int(ctypes.cast(getattr(self.lib, name), c_void_p).value or 0)

    def status(self, number: int) -> str:
        """A status's name."""
        text = getattr(self.lib, self.tells)(c_int(number))
        return text.decode() if text else f"status {number}"

    @classmethod
    def found(cls) -> str | None:
        """Where the library is: in a wheel of NVIDIA's, or where the system has it; None if
        nowhere."""
        for root in sys.path:
            for name in cls.files:
                for path in sorted(Path(root, "nvidia").glob(f"**/{name}")):
                    return str(path)
        for name in cls.files:
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
            return name
        return None


class Owned:
    """A descriptor, destroyed with its last reference.

    kind: what its functions are called after, such as "cudnnCreate", "cudnnDestroy"
    """

    def __init__(self, library: Library, create: str, destroy: str, *args: object):
        self.handle = c_void_p()
        library.call(create, byref(self.handle), *args)
        # The library outlives what it made.
        finalize(self, _destroy, library, destroy, self.handle).atexit = False

    @property
    def word(self) -> int:
        """Its address, for native code."""
        return int(self.handle.value or 0)


def _destroy(library: Library, name: str, handle: c_void_p) -> None:
    getattr(library.lib, name)(handle)
