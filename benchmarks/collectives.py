"""Exchanges between ranks, by funcgrad's communicators and by MPI itself.

python -m benchmarks.collectives               # 2 ranks
mpiexec -n 4 python -m benchmarks.collectives  # as many as are started

Both are timed in turns, in bursts that all ranks begin together; the least of the medians counts,
as whatever else runs on the machine only adds to a time. Sizes are those of the whole array.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.backends.rewrites.exchanges import DESCRIPTOR, DTYPES, KINDS
from funcgrad.parallel.communicators import mpi
from funcgrad.parallel.communicators.communicator import Communicator
from funcgrad.parallel.meshes import launched
from funcgrad.parallel.supervise import mpiexec

SIZES = {"4 KB": 1 << 12, "1 MB": 1 << 20, "64 MB": 1 << 26}
SECONDS, ROUNDS, SAMPLES = 0.02, 15, 7


def buffers(kind: str, nbytes: int, ranks: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Source, result and elements of a block, for an array of so many bytes in float32."""
    n = nbytes // 4 // ranks * ranks
    part = n // ranks
    source = np.ones(part if kind == "all_gather" else n, np.float32)
    to = np.zeros(part if kind == "reduce_scatter" else n, np.float32)
    return source, to, n if kind == "all_reduce" else part


def native(comm: Communicator, kind: str, source: np.ndarray, to: np.ndarray, count: int) -> Any:
    """The call that a compiled program makes."""
    words = {
        "kind": KINDS.index(kind), "dtype": DTYPES.index(source.dtype), "width": 4, "count": count,
        "source": source.ctypes.data, "to": to.ctypes.data,
    }  # fmt: skip
    descriptor = (ctypes.c_int64 * len(DESCRIPTOR))(*[words.get(w, 0) for w in DESCRIPTOR])
    address = comm.address + 8 * KINDS.index(kind)
    # As a program calls it, without Python's lock.
    kind_of = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    function = kind_of(ctypes.c_int64.from_address(address).value)
    context, place = comm.address, ctypes.addressof(descriptor)

    def call(keep: Any = (source, to, descriptor)) -> None:
        if function(context, place):
            raise comm.failure(kind)

    return call


def by_mpi(comm: Any, kind: str, source: np.ndarray, to: np.ndarray) -> Callable[[], None]:
    """The call of mpi4py."""
    method = {
        "all_reduce": comm.Allreduce,
        "all_gather": comm.Allgather,
        "reduce_scatter": comm.Reduce_scatter_block,
        "all_to_all": comm.Alltoall,
    }[kind]
    return lambda: method(source, to)


def seconds(run: Callable[[], None], count: int, together: Callable[[], None]) -> float:
    """The median of some bursts."""
    samples = []
    for _ in range(SAMPLES):
        together()
        start = time.perf_counter()
        for _ in range(count):
            run()
        samples.append((time.perf_counter() - start) / count)
    return statistics.median(samples)


def compare(kind: str, nbytes: int) -> tuple[float, float]:
    """Seconds a call of ours and of MPI's."""
    world = mpi.world()
    comm = mpi.communicator({"i": world.size}, ("i",))
    source, to, count = buffers(kind, nbytes, world.size)
    ours, theirs = native(comm, kind, source, to, count), by_mpi(world.comm, kind, source, to)
    for run in (ours, theirs):
        run()
    start = time.perf_counter()
    theirs()
    once = world.comm.bcast(time.perf_counter() - start)
    turns = max(1, min(1000, int(SECONDS / SAMPLES / once)))
    pairs = []
    for _ in range(ROUNDS):
        pairs.append([seconds(f, turns, world.comm.Barrier) for f in (ours, theirs)])
    return min(a for a, _ in pairs), min(b for _, b in pairs)


def main() -> None:
    """Measure all of them and print a table; without a launcher, start 2 ranks."""
    if launched() is None:
        command = [mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.collectives"]
        env = {**os.environ, "MPIR_CVAR_POLLS_BEFORE_YIELD": "100"}
        raise SystemExit(subprocess.call(command, env=env))
    world = mpi.world()
    show = print if world.rank == 0 else (lambda *args, **rest: None)
    show(f"{world.size} ranks, float32; µs a call\n")
    show("| | size | funcgrad | MPI | ratio |\n|---|---|---|---|---|")
    for kind in KINDS[:-1]:
        for name, nbytes in SIZES.items():
            a, b = compare(kind, nbytes)
            show(f"| {kind} | {name} | {a * 1e6:.1f} | {b * 1e6:.1f} | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
