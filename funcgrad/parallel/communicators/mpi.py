"""Communicators over MPI: shared memory inside a node, MPI between nodes.

A device is a rank. `communicator` joins those that differ only in some axes of a mesh; all ranks
must ask for the same ones in the same order, as making one is a collective, too. Under a launcher
ranks join as they import the package (`start`); elsewhere mpi4py is loaded when first needed.

FUNCGRAD_TRANSPORT=mpi does without shared memory, FUNCGRAD_RANKS_PER_NODE=n takes each n ranks for
a node: so what several machines do runs on one.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import importlib.util
import math
import os
import re
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime import pool, scratch
from funcgrad.backends.rewrites.exchanges import DTYPES, KINDS
from funcgrad.core.process import fork
from funcgrad.errors import CollectiveError
from funcgrad.parallel.communicators import mpi_native, watchdog
from funcgrad.parallel.communicators.communicator import Communicator, SelfCommunicator
from funcgrad.parallel.communicators.flight_recorder import ALL, Records
from funcgrad.parallel.communicators.native import (
    MPI_FAILED,
    RECORD_BYTES,
    NativeCommunicator,
    source_key,
)
from funcgrad.parallel.communicators.shared import (
    SharedCommunicator,
    SharedMemory,
    shared_functions,
)
from funcgrad.parallel.meshes import launched, launcher

# The largest message, and up to which size MPI sums by itself.
CHUNK_BYTES, SMALL_BYTES = 1 << 26, 1 << 14
# Seconds in which a launcher reads what a rank says before it ends all.
PATIENCE = 5.0
# What threads may do with MPI, as mpi4py calls it, in the order of MPI's numbers.
LEVELS = ("single", "funneled", "serialized", "multiple")
_CALLS = ("Allreduce", "Alltoall", "Allgather", "Sendrecv", "Barrier")


@cache
def mpi() -> Any:
    """mpi4py's module MPI, initialized.

    Raises ImportError if mpi4py or an MPI library is missing, RuntimeError if the processes were
    started by the launcher of another MPI.
    """
    os.environ.setdefault("MPIR_CVAR_POLLS_BEFORE_YIELD", "100")
    try:
        with watchdog.starting():
            _initialize()
            module = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"ranks need mpi4py and an MPI library: pip install 'funcgrad[mpi]' ({error})"
        ) from error
    names, size = launcher(), module.COMM_WORLD.Get_size()
    wanted = int(os.environ[names[1]]) if names else 1
    if names and size != wanted:
        library = module.Get_library_version().split("\n")[0][:60]
        raise RuntimeError(
            f"the launcher started {wanted} ranks ({names[1]}), but mpi4py sees {size}: mpiexec "
            f"belongs to another MPI than mpi4py's library ({library}). Start it with that "
            "library's mpiexec, or install mpi4py for the launcher's"
        )
    return module


def _initialize() -> None:
    """Initialize MPI as mpi4py would, but without Python's lock, so that threads go on while the
    other ranks are waited for."""
    settings = importlib.import_module("mpi4py").rc
    found = importlib.util.find_spec("mpi4py.MPI")
    if "mpi4py.MPI" in sys.modules or not settings.initialize or not (found and found.origin):
        return
    library, level = ctypes.CDLL(found.origin), LEVELS.index(settings.thread_level)
    library.MPI_Init_thread(
        None, None, level if settings.threads else 0, ctypes.byref(ctypes.c_int())
    )
    if settings.finalize is not False:
        atexit.register(_finalize, os.getpid())


def _finalize(process: int) -> None:
    module = sys.modules.get("mpi4py.MPI")
    if module and os.getpid() == process and not module.Is_finalized():
        module.Finalize()


def start() -> None:
    """Join the other ranks now, so that none can fail unnoticed. Where MPI isn't there, who needs
    the ranks later learns why."""
    try:
        mpi()
    except (ImportError, RuntimeError):
        return
    world()


def first_of(value: Any) -> Any:
    """What the first rank gives, on all ranks, which call this together.

    >>> first_of(3)
    3
    """
    if launched() is None:
        return value
    with world().records.waiting(ALL, "agreeing on a value"):
        return world().comm.allgather(value)[0]


class MpiCommunicator(NativeCommunicator):
    """Ranks that talk through MPI alone. chunk, small: bytes, see the module's constants."""

    def __init__(self, comm: Any, chunk: int = CHUNK_BYTES, small: int = SMALL_BYTES):
        module = mpi()
        handle = partial(_handle, module)
        # Those that MPI sums as we do, then those whose maximum is ours: no floats, for their NaN.
        sums = [_datatype(module, d) for d in DTYPES]
        maxima = [t if d.kind in "iu" else module.DATATYPE_NULL
                  for t, d in zip(sums, DTYPES, strict=True)]  # fmt: skip
        known = [handle(t) for t in (module.DATATYPE_NULL, *sums, *maxima)]
        types, ops = (ctypes.c_int64 * len(known))(*known), (ctypes.c_int64 * 3)()
        ops[:] = [handle(op) for op in (module.SUM, module.MAX, module.MIN)]
        self._tables = types, ops
        self.ranks = comm
        super().__init__(
            comm.Get_rank(), comm.Get_size(), _functions(),
            comm=handle(comm), byte=handle(module.BYTE), in_place=int(module.IN_PLACE),
            types=ctypes.addressof(types) + 8, ops=ctypes.addressof(ops), chunk=chunk, small=small,
        )  # fmt: skip

    def reason(self, status: int) -> str:
        """Why an exchange failed."""
        if status % 256 == MPI_FAILED:
            return str(mpi().Get_error_string(status // 256))
        return super().reason(status)


def _handle(module: Any, x: Any) -> int:
    return int(module._handleof(x))


def _datatype(module: Any, dtype: np.dtype) -> Any:
    """MPI's dtype that sums as ours, or none."""
    names = {"f": "FLOAT", "d": "DOUBLE", "b": "INT8_T", "h": "INT16_T", "B": "UINT8_T",
             "H": "UINT16_T"}  # fmt: skip
    if dtype.kind in "iu" and dtype.itemsize in (4, 8) and dtype.isbuiltin:
        return getattr(module, f"{'U' if dtype.kind == 'u' else ''}INT{8 * dtype.itemsize}_T")
    found = names.get(dtype.char) if dtype.isbuiltin == 1 else None
    return getattr(module, found) if found else module.DATATYPE_NULL


@cache
def _library() -> Any:
    module = mpi()
    symbols = ctypes.CDLL(module.__file__)
    target = engine()
    for name in _CALLS:
        function = getattr(symbols, f"MPI_{name}")
        target.bind(f"MPI_{name}", ctypes.cast(function, ctypes.c_void_p).value or 0)
    scratch.bind(target)
    facts = module._sizeof(module.Comm), module.PROC_NULL
    key = f"mpi {facts} {source_key(mpi_native)}"
    return target.compile(lambda: mpi_native.mpi_module(target.target, *facts), level=2, key=key)


def _functions() -> list[int]:
    return [_library().address(f"fg_mpi_{k}") for k in (*KINDS, "barrier")]


class NodesCommunicator(MpiCommunicator):
    """Ranks on several nodes, the same number on each, that sum inside their node first."""

    def __init__(self, comm: Any, local: Communicator, across: Communicator, **limits: int):
        super().__init__(comm, **limits)
        self._parts = local, across
        function = _library().address("fg_nodes_all_reduce")
        self.set_words(all_reduce=function, local=local.address, across=across.address)
        self._functions[0] = function


# ---- the job's ranks


class World:
    """The ranks of this job, and the communicators made among them."""

    def __init__(self) -> None:
        module = mpi()
        self.comm = module.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.lock = threading.RLock()
        self.made: dict[Any, Communicator] = {}
        node = self.node_of(self.comm)
        self.local_rank, self.local_size = node.Get_rank(), node.Get_size()
        self.shares = os.environ.get("FUNCGRAD_TRANSPORT", "") != "mpi"
        self.members = node.allgather(self.rank)
        if self.local_rank == 0:
            _remove_names()
        # Compiling is slow the first time: better here than while others wait, and are watched.
        shared_functions()
        _library()
        self.records = self.record_memory(node)
        watchdog.start(self)
        if not os.environ.get("FUNCGRAD_NUM_THREADS"):
            pool.set_num_threads(max(1, pool.num_threads() // self.local_size))

    def node_of(self, comm: Any) -> Any:
        """The ranks of a communicator that are on this rank's node."""
        module = mpi()
        pretended = int(os.environ.get("FUNCGRAD_RANKS_PER_NODE") or 0)
        if pretended:
            world = module.COMM_WORLD.Get_rank()
            return comm.Split(world // pretended, comm.Get_rank())
        return comm.Split_type(module.COMM_TYPE_SHARED, comm.Get_rank())

    def record_memory(self, node: Any) -> Records:
        """The records of this node's ranks, which all of them see if they can share memory."""
        try:
            memory: Any = SharedMemory(_Starter(node), RECORD_BYTES * node.Get_size())
        except OSError:
            self.shares = False
            self.members, self.local_rank = [self.rank], 0
            memory = None
        return Records(memory, self.members, self.local_rank)

    def communicator(
        self, groups: Sequence[tuple[int, int]], label: str = "all ranks"
    ) -> Communicator:
        """The communicator of this rank's group: groups[rank] is the group's number and the place
        in it. Made once; all ranks call this together. `label` says what it joins."""
        key = tuple(groups)
        with self.lock:
            if key not in self.made:
                number = len(self.made)
                with self.records.waiting(number, "making a communicator"):
                    made = self.make(*key[self.rank])
                begun: Callable[[], int] = int
                if isinstance(made, NativeCommunicator):
                    made.set_words(record=self.records.own, number=number)
                    begun = partial(made.word, "sequence")
                self.records.add(label, [c for c, _ in key], begun)
                self.made[key] = made
            return self.made[key]

    def abort(self, status: int = 1) -> None:
        """End all ranks at once."""
        abort(status)

    def make(self, color: int, place: int) -> Communicator:
        """A new communicator of the ranks that give one `color`, in the order of `place`: through
        memory inside a node, where it can be shared, and MPI between nodes. All ranks call it
        together."""
        comm = self.comm.Split(color, place)
        comm.Set_errhandler(mpi().ERRORS_RETURN)
        size = comm.Get_size()
        # All ranks of the job take part in what follows, so none may leave before.
        node = self.node_of(comm)
        counts = comm.allgather((node.Get_size(), node.Get_rank(), min(node.allgather(place))))
        if size == 1:
            return SelfCommunicator()
        if not self.shares or all(n == 1 for n, _, _ in counts):
            return MpiCommunicator(comm)
        if node.Get_size() == size:
            return SharedCommunicator(_Starter(node))
        if len({n for n, _, _ in counts}) > 1:
            return MpiCommunicator(comm)
        across = comm.Split(node.Get_rank(), place)
        across.Set_errhandler(mpi().ERRORS_RETURN)
        local = SharedCommunicator(_Starter(node))
        return NodesCommunicator(comm, local, MpiCommunicator(across))


def _remove_names() -> None:
    """Remove the names of MPICH's shared memory: a killed job would leave them. All ranks of the
    node have opened them when they have exchanged anything."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text()
        for path in set(re.findall(r"/dev/shm/mpich_shm_\w+", maps)):
            Path(path).unlink(missing_ok=True)


def _passed_on() -> None:
    """Wait until the launcher has read what this rank said: what it hasn't, it drops."""
    end = time.monotonic() + PATIENCE
    while any(map(_unread, (1, 2))) and time.monotonic() < end:
        time.sleep(0.002)


def _unread(stream: int) -> int:
    """The bytes in a pipe, by its number; 0 for what is no pipe."""
    count = array.array("i", [0])
    try:
        if stat.S_ISFIFO(os.fstat(stream).st_mode):
            fcntl.ioctl(stream, termios.FIONREAD, count)
    except OSError:  # closed, or a system that doesn't tell
        pass
    return count[0]


class _Starter:
    """An mpi4py communicator as `shared.Starter`."""

    def __init__(self, comm: Any):
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.bcast, self.allgather = comm.bcast, comm.allgather


_world_lock = fork.lock()
_world: World | None = None


def world() -> World:
    """The job's ranks, which join at the first call, all together."""
    global _world
    with _world_lock:
        if _world is None:
            mpi()
            with watchdog.starting():
                _world = World()
        return _world


def abort(status: int = 1) -> None:
    """End all ranks of the job at once, with an exit status other than 0."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        _passed_on()
        _remove_names()
        if mpi.cache_info().currsize:
            mpi().COMM_WORLD.Abort(status)
    finally:
        os._exit(status)


def communicator(mesh_shape: Mapping[str, int], axis_names: Sequence[str]) -> Communicator:
    """The communicator that joins this rank with those that differ from it in these axes of a mesh.

    mesh_shape: name → size of all axes, whose product is the number of ranks; a rank's place is
        its number, row-major. Ranks of the communicator count row-major over `axis_names`.
    All ranks must ask for the same communicators in the same order.

    >>> communicator({"data": 1}, ("data",)).size
    1
    """
    names, sizes = tuple(mesh_shape), tuple(mesh_shape.values())
    axes = tuple(axis_names)
    unknown = [a for a in axes if a not in mesh_shape]
    if unknown or len(set(axes)) < len(axes):
        raise ValueError(f"communicator over {axes}: the mesh has the axes {names}")
    count = math.prod(sizes)
    if count == 1:
        return SelfCommunicator()
    if count != world().size:
        raise CollectiveError(
            f"a mesh of shape {dict(mesh_shape)} needs {count} ranks, the job has {world().size}: "
            f"start it with mpiexec -n {count}"
        )
    groups = groups_of(sizes, [names.index(a) for a in axes])
    return world().communicator(groups, ", ".join(map(str, axes)))


def groups_of(sizes: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """For each rank of a mesh its group along some axes, and its place in it.

    >>> groups_of((2, 2), [1])
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    places = np.indices(sizes).reshape(len(sizes), -1)
    rest = [i for i in range(len(sizes)) if i not in axes]

    def number(chosen: Sequence[int]) -> np.ndarray:
        total = np.zeros(places.shape[1], np.int64)
        for i in chosen:
            total = total * sizes[i] + places[i]
        return total

    return list(zip(number(rest).tolist(), number(axes).tolist(), strict=True))


def communicators(mesh_shape: Mapping[str, int]) -> Callable[[tuple], Communicator]:
    """The function from axis names to communicators that a compiled program is bound to.

    >>> communicators({"data": 1})(("data",)).rank
    0
    """
    return partial(communicator, dict(mesh_shape))
