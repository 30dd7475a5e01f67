"""Ranks of an MPI job: each is a device, keeps its parts alone, and runs the per-device program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from funcgrad.backends.late import Late
from funcgrad.core import context
from funcgrad.core.array import raw
from funcgrad.core.backend import Executable
from funcgrad.core.backend import backend as load
from funcgrad.core.buffers import on_host
from funcgrad.core.sharding import Device, Mesh, NamedSharding
from funcgrad.core.types import AxisName
from funcgrad.errors import ShardingError
from funcgrad.parallel.communicators.mail import Offices
from funcgrad.parallel.communicators.mpi import communicators
from funcgrad.parallel.meshes import process_count, process_index
from funcgrad.parallel.programs.mail import sends_mail
from funcgrad.parallel.programs.overlap import joined
from funcgrad.parallel.programs.passes import scheduled
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.parallel.runtimes.agree import check_same_program, program_text
from funcgrad.transforms.passes.simplify import simplify

cuda = Late("funcgrad.backends.cuda.devices.memory")
nccl = Late("funcgrad.parallel.communicators.nccl")
CUDA = "cuda"


@cache
def _on_own_gpu(shape: tuple[tuple[AxisName, int], ...]) -> tuple[Any, Any]:
    """The backend of this rank's GPU, and its communicators, for all programs of meshes alike."""
    cuda.register()
    return nccl.on_own_gpu(communicators(dict(shape)), tuple(name for name, _ in shape))


class _Run:
    """A program that is called with what a rank keeps, on the host or on its GPU.

    gpu: where the program runs, and leaves its results; None: on the host
    offices: of ranks that send each other mail, whose runs are counted
    """

    def __init__(self, compiled: Executable, gpu: Any, offices: Offices | None):
        self.compiled, self.gpu, self.offices = compiled, gpu, offices

    def __call__(self, values: Sequence[Any], began: list | None = None) -> list:
        if self.offices is not None:
            self.offices.begin()
        if self.gpu is not None:
            self.gpu.driver.enter()
        kept = [v if (type(v) is np.ndarray) is (self.gpu is None) else self._brought(v)
                for v in values]  # fmt: skip
        return self.compiled(kept, began)

    def _brought(self, value: Any) -> Any:
        return on_host(value) if self.gpu is None else cuda.DeviceBuffer.of(self.gpu, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)


class Ranks:
    """The runtime of a mesh of ranks; each keeps its own part of an array, in NumPy's memory.

    Programs of the backend "cuda" run on a GPU that is the rank's own, and exchange its memory by
    NCCL, and that of ranks which share a GPU by the host. Their results stay on the GPU, but those
    of programs without arguments, which go to the host.
    """

    buffer, addressable = np.ndarray, False

    def __init__(self, mesh: Mesh):
        order = [device.id for device, _ in mesh.coordinates()]
        if order != list(range(process_count())):
            raise ShardingError(
                f"{mesh}: its devices must be all ranks of the job, in order, got {order} of "
                f"{process_count()} ranks; make_mesh makes such meshes"
            )
        self.device: Device = mesh.devices.flat[process_index()]  # type: ignore[union-attr]

    def compile(
        self, program: SpmdProgram, donated: Sequence[bool], name: str, using: str
    ) -> Executable:
        """The per-device program, joined to the other ranks."""
        # A GPU exchanges beside its kernels: a gather begins while what is before it computes.
        jaxpr = simplify(joined(scheduled(program, overlap=using == CUDA).jaxpr))
        lookup = communicators(program.mesh.shape)
        # Before anything is compiled for long: ranks that differ would wait for each other.
        check_same_program(lookup(program.mesh.axis_names), program_text(jaxpr), name)
        backend: Any = load(using)
        if using == CUDA:
            backend, lookup = _on_own_gpu(tuple(program.mesh.shape.items()))
        with context.scoped(axes=program.mesh.shape):
            compiled = backend.compile(jaxpr, tuple(donated), name)
        offices = Offices(lookup) if sends_mail(jaxpr) else None
        gpu = backend.gpu if using == CUDA else None
        return _Run(compiled.bind(offices or lookup), gpu, offices)

    def put(self, value: Any, sharding: NamedSharding) -> np.ndarray:
        """This rank's part of an array that all ranks know."""
        values = raw(value)
        return np.asarray(values[self._index(sharding, values.shape)], order="C")

    def _index(self, sharding: NamedSharding, shape: tuple) -> tuple[slice, ...]:
        return sharding.devices_indices_map(shape)[self.device]

    def make(
        self, shape: tuple[int, ...], sharding: NamedSharding, part: Callable[[tuple], np.ndarray]
    ) -> np.ndarray:
        """This rank's part of an array of which `part` gives the piece at an index."""
        return np.asarray(part(self._index(sharding, shape)), order="C")

    def fetch(self, kept: np.ndarray, sharding: NamedSharding, shape: tuple) -> np.ndarray:
        """The whole array, where this rank keeps it."""
        if not sharding.is_fully_replicated:
            raise ShardingError(
                f"the values of an array of shape {tuple(shape)}, {sharding.spec} on "
                f"{sharding.mesh}, are spread over {process_count()} processes: this one can't "
                "read them all. Make it whole first, on all processes together: "
                "reshard(x, NamedSharding(mesh, P())); or read x.addressable_shards"
            )
        return kept

    def parts(
        self, kept: np.ndarray, sharding: NamedSharding, shape: tuple
    ) -> list[tuple[Device, tuple[slice, ...], np.ndarray]]:
        """This rank's part."""
        return [(self.device, self._index(sharding, shape), kept)]
