"""The devices there are, and meshes of them.

In a plain process devices are virtual: as many as are asked for, run in lockstep as one batched
program. Under an MPI launcher each rank is a device, and every rank runs the same program.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.core.buffers import memory_on
from funcgrad.core.settings import Setting
from funcgrad.core.sharding import AxisType, Device, Mesh
from funcgrad.errors import ShardingError

cuda = Late("funcgrad.backends.cuda.devices.memory")

# What launchers tell a process of the job: (its number, the number of processes). Slurm also tells
# processes that it starts without MPI of a step's size.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


def launcher() -> tuple[str, str] | None:
    """The variables by which an MPI launcher told this process its rank and the number of ranks,
    if it started it as one of several."""
    for rank, size in _LAUNCHERS:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(map(str.isdecimal, values)) and int(values[1]) > 1:
            return rank, size
    return None


def launched() -> tuple[int, int] | None:
    """This process's rank and the number of ranks, if an MPI launcher started it as one of
    several."""
    names = launcher()
    return (int(os.environ[names[0]]), int(os.environ[names[1]])) if names else None


def process_index() -> int:
    """This process's rank, 0 where there is one process.

    >>> import funcgrad.parallel as fp
    >>> fp.process_index()
    0
    """
    job = launched()
    return job[0] if job else 0


def process_count() -> int:
    """The number of processes of this job.

    >>> import funcgrad.parallel as fp
    >>> fp.process_count()
    1
    """
    job = launched()
    return job[1] if job else 1


def virtual_devices(n: int) -> tuple[Device, ...]:
    """n virtual devices of this process.

    >>> import funcgrad as fg
    >>> fg.virtual_devices(2)[1]
    Device(id=1, process_index=0, kind='virtual')
    """
    if n < 1:
        raise ValueError(f"virtual_devices: n must be at least 1, got {n}")
    return tuple(Device(i) for i in range(n))


def devices(backend: str | None = None) -> tuple[Device, ...]:
    """The devices of the job: one a rank under an MPI launcher, else one virtual device.

    backend: "cpu", which stands for these; "cuda" or "gpu" for this machine's GPUs, of which there
        are none without a driver
    Raises ValueError for another one.

    >>> import funcgrad as fg
    >>> len(fg.devices())
    1
    """
    if backend in ("cuda", "gpu"):
        return cuda.devices(process_index())
    if backend not in (None, "cpu"):
        raise ValueError(f"devices: backend must be 'cpu', 'cuda' or 'gpu', got {backend!r}")
    job = launched()
    if job is None:
        return virtual_devices(1)
    return tuple(Device(i, i, "rank") for i in range(job[1]))


class default_device(Setting):
    """Where arrays are made of which nothing says where: in a `with` block, in a function that this
    decorates, or, called alone, from then on in the whole process. None: on the host.

    device: a `Device`, its sharding, or a text: "cpu", "cuda", "cuda:1". Functions that make arrays
    put them there, and operations and compiled functions none of whose operands is an array run
    there; results of arrays stay where these are.

    >>> import funcgrad as fg, funcgrad.numpy as fnp
    >>> with fg.default_device("cpu"):
    ...     fnp.zeros(2).device.platform
    'cpu'
    """

    def __init__(self, device: Any):
        if isinstance(device, str):
            device = cuda.device_named("default_device", "cuda" if device == "gpu" else device)
        device = getattr(device, "device", device)
        if device is not None and not isinstance(device, Device):
            raise TypeError(
                f"default_device: device must be a Device, its name or None, got {device!r}"
            )
        away = None if device is None else memory_on(device)
        super().__init__(device=None if away is None else device)


def default_backend() -> str:
    """The kind of processor that arrays are made on: "cpu".

    >>> import funcgrad as fg
    >>> fg.default_backend()
    'cpu'
    """
    return devices()[0].platform


def device_count() -> int:
    """The number of devices of the job.

    >>> import funcgrad as fg
    >>> fg.device_count()
    1
    """
    return len(devices())


def local_devices(process_index: int | None = None) -> tuple[Device, ...]:
    """The devices of a process, by default of this one.

    >>> import funcgrad as fg
    >>> fg.local_devices()
    (Device(id=0, process_index=0, kind='virtual'),)
    """
    job = launched()
    index = (job[0] if job else 0) if process_index is None else process_index
    if index not in process_indices():
        raise ValueError(
            f"local_devices: process_index must be one of 0 … {process_count() - 1}, got {index!r}"
        )
    return tuple(d for d in devices() if d.process_index == index)


def local_device_count() -> int:
    """The number of this process's devices.

    >>> import funcgrad as fg
    >>> fg.local_device_count()
    1
    """
    return len(local_devices())


def process_indices() -> list[int]:
    """The numbers of the job's processes.

    >>> import funcgrad as fg
    >>> fg.process_indices()
    [0]
    """
    return list(range(process_count()))


def print_environment_info(return_string: bool = False) -> str | None:
    """Print what a report of a problem needs: versions, the system and the devices.

    return_string: give the text instead.

    >>> fg.print_environment_info(return_string=True).splitlines()[0]
    'funcgrad: ...'
    """
    versions = "\n".join(f"{name}: {_version(name)}" for name in ("funcgrad", "numpy", "llvmlite"))
    text = (
        f"{versions}\npython: {sys.version}\n"
        f"device info: {default_backend()}, {device_count()} devices, "
        f"{local_device_count()} local\n"
        f"process_count: {process_count()}\nplatform: {platform.uname()}"
    )
    if return_string:
        return text
    print(text)
    return None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def make_mesh(
    axis_shapes: Sequence[int] | int,
    axis_names: Sequence[str] | str,
    axis_types: AxisType | Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """A mesh of named axes over devices, in row-major order.

    axis_shapes: the sizes; one may be -1, for as many as the devices give
    axis_types: an `AxisType` for each axis, or one for all: Auto (the default), where the compiler
        decides how values are cut, or Explicit, where their types say it
    devices: by default the job's ranks under an MPI launcher, else as many virtual devices as the
        mesh needs

    >>> from funcgrad.parallel import make_mesh
    >>> make_mesh((4, 2), ("data", "model")).shape
    {'data': 4, 'model': 2}
    """
    sizes = [axis_shapes] if isinstance(axis_shapes, int) else [int(n) for n in axis_shapes]
    if sizes.count(-1) > 1 or any(n < 1 and n != -1 for n in sizes):
        raise ShardingError(f"make_mesh: sizes must be at least 1 (one may be -1), got {sizes}")
    known = math.prod(n for n in sizes if n != -1)
    if devices is None:
        job = launched()
        count = job[1] if job else known
        kind: Any = "rank" if job else "virtual"
        devices = tuple(Device(i, i if job else 0, kind) for i in range(count))
    if -1 in sizes:
        if len(devices) % known:
            raise ShardingError(
                f"make_mesh: {len(devices)} devices can't fill {sizes}: not a multiple of {known}"
            )
        sizes[sizes.index(-1)] = len(devices) // known
    n = math.prod(sizes)
    if n > len(devices) or (n < len(devices) and devices[0].kind == "rank"):
        raise ShardingError(
            f"make_mesh: a mesh of shape {tuple(sizes)} needs {n} devices, there are "
            f"{len(devices)}; pass devices=virtual_devices({n}) to try it in one process, or "
            f"start {n} ranks: mpiexec -n {n} python …"
        )
    grid = np.empty(n, dtype=object)
    grid[:] = devices[:n]
    return Mesh(grid.reshape(sizes), axis_names, axis_types)
