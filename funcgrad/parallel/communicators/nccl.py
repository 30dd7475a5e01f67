"""Communicators over NVIDIA's NCCL: a rank a GPU, exchanges on the device's own memory.

The library is called by address, by compiled programs as by the methods here. Ranks find each other
by an identifier that the first one makes (`unique_id`) and the others get by MPI or a file. Sums
are not in the order of ranks: bits may differ from those of the host's communicators, but are the
same on all ranks.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_char, c_char_p, c_int, c_void_p
from functools import cache
from pathlib import Path
from weakref import finalize

import numpy as np

from funcgrad import dtypes
from funcgrad.backends.cuda.device_program import CudaBackend
from funcgrad.backends.cuda.devices.device import CudaError, count
from funcgrad.backends.cuda.devices.gpu import Gpu
from funcgrad.backends.cuda.devices.gpu import gpu as find_gpu
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.rewrites.exchanges import DESCRIPTOR, DTYPES, KINDS, OPS
from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators.communicator import Communicator, Pairs
from funcgrad.parallel.communicators.nccl_native import CONTEXT, FUNCTIONS, UNKNOWN, module_text

NAME = "libnccl.so.2"
ID_BYTES = 128
# ncclDataType_t; complex numbers are two of their parts, and a bool is a byte.
_TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "complex64": 7, "complex128": 8,
}  # fmt: skip
_OPS = {"sum": 0, "max": 2, "min": 3}  # ncclRedOp_t


class _Id(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", c_char * ID_BYTES),)


class Nccl:
    """The library.

    Raises CudaError if it isn't here.

    >>> Nccl("libnothing.so")
    Traceback (most recent call last):
      ...
    funcgrad.backends.cuda.devices.device.CudaError: no NCCL (libnothing.so) on this machine: pip \
install nvidia-nccl-cu13
    """

    def __init__(self, library: str | None = None):
        name = library or _found()
        try:
            self.lib = ctypes.CDLL(name)
        except OSError:
            raise CudaError(
                f"no NCCL ({name}) on this machine: pip install nvidia-nccl-cu13"
            ) from None
        self.lib.ncclGetErrorString.restype = c_char_p

    def call(self, name: str, *args: object) -> None:
        """Call a function of the library.

        Raises CudaError with the library's words if it fails.
        """
        if status := getattr(self.lib, name)(*args):
            raise CudaError(f"{name}: {self.words(status)}")

    def words(self, status: int) -> str:
        """What a status means."""
        return (self.lib.ncclGetErrorString(c_int(status)) or b"").decode() or f"status {status}"

    def address_of(self, name: str) -> int:
        """Where a function is."""
        return int(ctypes.cast(getattr(self.lib, name), c_void_p).value or 0)

    def unique_id(self) -> bytes:
        """A new identifier, by which ranks find each other."""
        made = _Id()
        self.call("ncclGetUniqueId", byref(made))
        return bytes(made)


class Context:
    """What native exchanges know of a communicator, for one user of a stream."""

    def __init__(self, known: Mapping[str, int]):
        self._words = (ctypes.c_int64 * len(CONTEXT))(*(known[name] for name in CONTEXT))

    @property
    def address(self) -> int:
        """Where it is."""
        return ctypes.addressof(self._words)

    def use(self, stream: c_void_p) -> None:
        """Let exchanges go to a stream."""
        self._words[CONTEXT.index("stream")] = stream.value or 0


class NcclCommunicator(Communicator[DeviceBuffer]):
    """Ranks that each have a GPU.

    All ranks make it together. Raises CudaError if the library can't join them.
    """

    buffer = DeviceBuffer

    def __init__(self, nccl: Nccl, gpu: Gpu, rank: int, size: int, identifier: bytes):
        self.nccl, self.gpu, self.rank, self.size = nccl, gpu, rank, size
        self.handle = c_void_p()
        self._status = 0
        gpu.driver.enter()
        name = _Id.from_buffer_copy(identifier)
        nccl.call("ncclCommInitRank", byref(self.handle), c_int(size), name, c_int(rank))
        finalize(self, nccl.lib.ncclCommDestroy, self.handle).atexit = False
        kinds = [_TYPES.get(d.name, -1) for d in DTYPES]
        self._tables = [
            (c_int * len(DTYPES))(*kinds),
            (c_int * len(DTYPES))(*(1 + dtypes.is_complex(d) for d in DTYPES)),
            (c_int * len(OPS))(*(_OPS[op] for op in OPS)),
        ]
        self._functions = {kind: _code().address(f"fg_nccl_{kind}") for kind in KINDS}
        types, parts, ops = map(ctypes.addressof, self._tables)
        self._known = {
            **self._functions, "rank": rank, "size": size, "comm": self.handle.value or 0,
            "stream": gpu.driver.stream.value or 0, "types": types, "parts": parts, "ops": ops,
            **{name: nccl.address_of(name) for name in FUNCTIONS},
            "fill": gpu.driver.address_of("cuMemsetD8Async"),
        }  # fmt: skip
        self._own = self.context()

    def context(self) -> Context:
        """A native context for a program: its exchanges go to the device's stream, until it uses
        another. The communicator is to live as long."""
        return Context(self._known)

    @property
    def address(self) -> int:
        return self._own.address

    def failure(self, what: str) -> BaseException:
        status = self._status
        reason = "NCCL has no such sum" if status == UNKNOWN else self.nccl.words(status >> 8)
        return CollectiveError(f"{what} failed on rank {self.rank}: {reason}")

    def failed(self, status: int) -> None:
        """Let `failure` tell of a status that a native exchange gave."""
        self._status = status

    def all_reduce(self, x: DeviceBuffer, op: str = "sum") -> DeviceBuffer:
        return self._exchange("all_reduce", x, x.shape, x.size, op)

    def all_gather(self, x: DeviceBuffer) -> DeviceBuffer:
        return self._exchange("all_gather", x, (self.size, *x.shape), x.size)

    def reduce_scatter(self, x: DeviceBuffer, op: str = "sum") -> DeviceBuffer:
        self.check_rows("reduce_scatter", x)
        return self._exchange("reduce_scatter", x, x.shape[1:], x.size // self.size, op)

    def all_to_all(self, x: DeviceBuffer) -> DeviceBuffer:
        self.check_rows("all_to_all", x)
        return self._exchange("all_to_all", x, x.shape, x.size // self.size)

    def permute(self, x: DeviceBuffer, perm: Pairs) -> DeviceBuffer:
        to, source = dict(perm), {b: a for a, b in perm}
        words = [w for i in range(self.size) for w in (to.get(i, -1), source.get(i, -1))]
        table = (ctypes.c_int64 * len(words))(*words)
        return self._exchange("permute", x, x.shape, x.size, perm=ctypes.addressof(table))

    def barrier(self) -> None:
        self.all_reduce(DeviceBuffer.of(self.gpu, np.zeros(1, np.int32)))
        self.gpu.driver.synchronize()

    def _exchange(
        self, kind: str, x: DeviceBuffer, shape: Sequence[int], count: int, op: str = "sum",
        perm: int = 0,
    ) -> DeviceBuffer:  # fmt: skip
        self.gpu.driver.enter()
        nbytes = int(np.prod(shape)) * x.itemsize
        out = DeviceBuffer(self.gpu, self.gpu.take(nbytes), tuple(shape), x.dtype)
        known = {
            "kind": KINDS.index(kind), "op": OPS.index(op), "dtype": DTYPES.index(x.dtype),
            "width": x.itemsize, "count": count, "source": x.address, "to": out.address,
            "perm": perm,
        }  # fmt: skip
        words = (ctypes.c_int64 * len(DESCRIPTOR))(*(known[name] for name in DESCRIPTOR))
        run = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(self._functions[kind])
        if status := run(self.address, ctypes.addressof(words)):
            self.failed(status)
            raise self.failure(f"{kind} of {x.dtype.name}{list(x.shape)}")
        return out


def over(host: Communicator[np.ndarray], gpu: Gpu, nccl: Nccl | None = None) -> NcclCommunicator:
    """The communicator of the same ranks that exchanges what is on their GPUs.

    host: by which the identifier goes to all ranks: MPI's, say

    Raises CudaError if there is no NCCL, or it can't join them.
    """
    nccl = nccl or Nccl()
    own = nccl.unique_id() if host.rank == 0 else bytes(ID_BYTES)
    first = host.all_gather(np.frombuffer(own, np.uint8))[0]
    return NcclCommunicator(nccl, gpu, host.rank, host.size, first.tobytes())


def on_own_gpu(
    host: Callable[[tuple], Communicator[np.ndarray]], axes: tuple,
    find: Callable[[int], Gpu] = find_gpu, nccl: Nccl | None = None,
) -> tuple[CudaBackend, Callable[[tuple], Communicator]]:  # fmt: skip
    """The backend of a rank's own GPU, and its communicators, by names of axes.

    They are as of `over`, but the host's where two of their ranks share a GPU, which NCCL can't
    join: so ranks of a GPU meet by MPI, and GPUs by NCCL, if a mesh has an axis for each.

    host: the host's communicators; axes: names of all axes. Ranks of one machine take its GPUs in
    turn. All ranks call this together, and ask for the same communicators in the same order.

    Raises CudaError if there is no GPU, or no NCCL.
    """
    name = hashlib.sha256(socket.gethostname().encode()).digest()
    everyone = host(axes)
    names = everyone.all_gather(np.frombuffer(name, np.uint8))
    before = sum(x.tobytes() == name for x in names[: everyone.rank])
    number = before % max(count(), 1)
    own = find(number)
    place = np.frombuffer(name + number.to_bytes(4, "little"), np.uint8)
    library, made = nccl or Nccl(), {}

    def lookup(axes: tuple) -> Communicator:
        if axes not in made:
            joined = host(axes)
            places = {x.tobytes() for x in joined.all_gather(place)}
            made[axes] = over(joined, own, library) if len(places) == joined.size else joined
        return made[axes]

    return CudaBackend(lambda: own), lookup


def identifier_by_file(path: str | Path, make: bytes | None, seconds: float = 60) -> bytes:
    """An identifier that one rank writes to a file which the others read.

    make: what the first rank writes; None for those who read

    Raises CollectiveError if there is none after so many seconds.
    """
    path = Path(path)
    if make is not None:
        whole = path.with_name(f"{path.name}.{os.getpid()}")
        whole.write_bytes(make)
        whole.replace(path)
        return make
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise CollectiveError(f"no rank has written NCCL's identifier to {path}")
        time.sleep(0.01)
    return path.read_bytes()


@cache
def _code():
    return engine().compile(module_text(), level=2)


def _found() -> str:
    for root in sys.path:
        for path in sorted(Path(root, "nvidia").glob(f"**/{NAME}")):
            return str(path)
    return NAME
