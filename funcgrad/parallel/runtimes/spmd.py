"""Programs on meshes: partitioned, compiled by the mesh's runtime, called with sharded arrays.

Everything below `parallel` that meets a sharded array or an annotated program comes here, through
`core.backend.spmd`: `jit` (`executable`), the root trace (`evaluate`), programs called on plain
arrays (`run_global`), and the methods of `ShardedArray`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from funcgrad.core import caches, context
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.backend import DEFAULT, Executable
from funcgrad.core.buffers import Buffer, memory_of, on_host
from funcgrad.core.display.compile_report import CompileStage
from funcgrad.core.evaluation import check_finite, own
from funcgrad.core.ir import Eqn, Jaxpr, Var
from funcgrad.core.places.device_array import device_among, wrap
from funcgrad.core.places.sharded import ShardedArray
from funcgrad.core.places.transfers import crosses
from funcgrad.core.primitive import Primitive, exact_params
from funcgrad.core.sharding import (
    Device,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Shard,
)
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShardingError
from funcgrad.ops.sharding import jaxpr_meshes
from funcgrad.parallel.partitioner.analysis import Analysis, analyse
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.parallel.programs.passes import scheduled
from funcgrad.parallel.programs.program import SpmdProgram
from funcgrad.parallel.runtimes.lockstep import Lockstep
from funcgrad.parallel.runtimes.ranks import Ranks
from funcgrad.parallel.show import sharded_html, sharded_text
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.passes.simplify import simplify

B = TypeVar("B", bound=Buffer)


class Runtime(Protocol[B]):
    """How the devices of a mesh run a program, and what this process keeps of an array: buffers of
    one type, or of a memory that results stay in."""

    @property
    def buffer(self) -> type:
        """The type."""

    @property
    def addressable(self) -> bool:
        """Whether all devices of the mesh are of this process."""

    def compile(
        self, program: SpmdProgram, donated: Sequence[bool], name: str, using: str
    ) -> Executable:
        """Compile a per-device program, to be called with what is kept of its inputs: by the
        backend of the name `using`, or of the devices' memory."""

    def put(self, value: Any, sharding: NamedSharding) -> B:
        """What is kept of an array, on the host or in the devices' memory, whose value this process
        knows."""

    def make(
        self, shape: tuple[int, ...], sharding: NamedSharding, part: Callable[[tuple], np.ndarray]
    ) -> B:
        """What is kept of an array of which `part` gives the piece at an index."""

    def fetch(self, kept: B, sharding: NamedSharding, shape: tuple) -> Buffer:
        """The whole array; an error where this process doesn't hold it."""

    def parts(
        self, kept: B, sharding: NamedSharding, shape: tuple
    ) -> list[tuple[Device, tuple[slice, ...], B]]:
        """Each device of this process with the index and the values of its part."""


_RUNTIMES: dict[str, Callable[[Mesh], Runtime]] = {
    "virtual": lambda mesh: Lockstep(),
    "rank": Ranks,
}


def register_runtime(kind: str, make: Callable[[Mesh], Runtime]) -> None:
    """Make a runtime known: make(mesh) gives that of a mesh whose devices are of a kind.

    Raises ValueError if there is one.

    >>> register_runtime("rank", Ranks)
    Traceback (most recent call last):
      ...
    ValueError: there is a runtime for devices of the kind 'rank' already
    """
    if kind in _RUNTIMES:
        raise ValueError(f"there is a runtime for devices of the kind {kind!r} already")
    _RUNTIMES[kind] = make


def runtime(mesh: Mesh) -> Runtime:
    """The runtime of a mesh's devices."""
    if mesh.devices is None:
        raise ShardingError(
            f"{mesh} has no devices: programs for it can be lowered, not run, and arrays can't be "
            "put on it. make_mesh gives a mesh of virtual devices or of ranks"
        )
    kinds = dict.fromkeys(d.kind for d in mesh.devices.flat)
    if len(kinds) > 1 or not _RUNTIMES.keys() >= kinds.keys():
        raise ShardingError(
            f"{mesh} has devices of the kinds {', '.join(map(repr, kinds))}: a mesh needs one that "
            f"has a runtime, of {', '.join(map(repr, _RUNTIMES))}"
        )
    return _RUNTIMES[next(iter(kinds))](mesh)


# ---- programs


class SpmdExecutable:
    """A program compiled for a mesh; called with arrays, gives sharded arrays.

    partitioned: the per-device program, before its collectives are scheduled
    """

    def __init__(self, partitioned: SpmdProgram, donated: tuple[bool, ...], name: str, using: str):
        self.partitioned = partitioned
        self._donated = donated
        self._name = name
        self._using = using
        mesh = partitioned.mesh
        self._in = [NamedSharding(mesh, PartitionSpec.of(c)) for c in partitioned.in_cuts]
        self._out = [NamedSharding(mesh, PartitionSpec.of(c)) for c in partitioned.out_cuts]
        self._out_avals = partitioned.out_avals

    @cached_property
    def program(self) -> SpmdProgram:
        """The per-device program, as devices that exchange messages run it."""
        return scheduled(self.partitioned)

    @cached_property
    def analysis(self) -> Analysis:
        """What a device keeps, computes and sends."""
        return analyse(self.program, self._donated)

    @cached_property
    def runtime(self) -> Runtime:
        """What runs the program."""
        return runtime(self.partitioned.mesh)

    @cached_property
    def compiled(self) -> Executable:
        """The program as the mesh's runtime compiles it, at first use."""
        with context.scoped(axes={}):
            return self.runtime.compile(self.partitioned, self._donated, self._name, self._using)

    def __call__(self, operands: Sequence[Any], began: list | None = None) -> list[ShardedArray]:
        """Run on arrays: sharded ones cut as the program wants them, or plain ones."""
        device = device_among(self._name, operands)
        mesh = self.partitioned.mesh
        if device is not None and device.kind not in {d.kind for d, _ in mesh.coordinates()}:
            raise ShardingError(
                f"{self._name}: its operands are on different devices, {device} and those of "
                f"{mesh}; bring them there with device_put"
            )
        put = self.runtime.put
        for x in operands if context.current().checks is not None else ():
            if type(x) is Array:
                crosses("device_to_device", x.aval)
        kept = [
            x.buffer if type(x) is ShardedArray else put(x, s)
            for x, s in zip(operands, self._in, strict=True)
        ]
        outs = self.compiled(kept, began)
        if np.ndarray in map(type, operands):
            outs = own(operands, outs)
        kind = self.runtime.buffer
        outs = [v if type(v) is kind or memory_of(v) else np.asarray(v) for v in outs]
        return [
            ShardedArray(v, a, s) for v, a, s in zip(outs, self._out_avals, self._out, strict=True)
        ]

    @property
    def texts(self) -> Sequence[str]:
        """The stages of what the runtime compiled."""
        return self.compiled.texts

    def as_text(self, stage: str) -> str:
        """The per-device program ("jaxpr"), or a stage of what the runtime compiled."""
        return repr(self.program) if stage == "jaxpr" else self.compiled.as_text(stage)

    def cost_analysis(self) -> dict[str, float]:
        """Of each device: floating-point operations ("flops"), "bytes sent", and for each kind of
        collective how many run and the bytes that the device sends in them."""
        found = self.analysis
        costs = {"flops": found.flops, "bytes sent": found.bytes_sent}
        for (kind, axes), (count, nbytes) in sorted(found.collectives.items()):
            where = f"{kind} over {'×'.join(axes)}"
            costs[f"{where}: count"], costs[f"{where}: bytes sent"] = count, nbytes
        return costs

    def compile_stages(self) -> list[CompileStage]:
        """None are known: each of the mesh's runtimes compiles in its own way."""
        return []

    def memory_analysis(self) -> dict[str, int]:
        """Of each device: bytes of its parts of arguments and results, and of temporaries."""
        found = self.analysis
        return {
            "argument_size_in_bytes": found.argument_bytes,
            "output_size_in_bytes": found.result_bytes,
            "temp_size_in_bytes": found.temporary_bytes,
        }


def executable(
    jaxpr: Jaxpr,
    shardings: Sequence[NamedSharding | None],
    donated: Sequence[bool],
    name: str,
    using: str = DEFAULT,
) -> SpmdExecutable:
    """The program compiled for the mesh that its annotations and its inputs name."""
    key = ("spmd", tuple(shardings), tuple(donated), using)

    def compiled() -> SpmdExecutable:
        mesh = the_mesh(f"jit({name})", jaxpr, shardings)
        program = partition(simplify(jaxpr, barriers=True), mesh, tuple(shardings))
        return SpmdExecutable(program, tuple(donated), name, using)

    return jaxpr.derive(key, compiled)


def the_mesh(what: str, jaxpr: Jaxpr, shardings: Iterable[NamedSharding | None]) -> Mesh:
    """The one mesh of a program and its inputs: the context's, where types of axes differ."""
    meshes = {s.mesh for s in shardings if s is not None} | jaxpr_meshes(jaxpr)
    first, outer = next(iter(meshes), None), context.current().mesh
    if first is not None and outer is not None and first.same_grid(outer):
        first = outer
    if first is None or not all(map(first.same_grid, meshes)):
        raise ShardingError(
            f"{what}: its arrays and annotations must be of one mesh, they are of "
            f"{', '.join(map(str, sorted(meshes, key=str))) or 'none'}; "
            "bring them to one with reshard or device_put"
        )
    return first


def sharding_of(x: Any) -> NamedSharding | None:
    """The sharding of an operand that is cut over a mesh."""
    return x.sharding if type(x) is ShardedArray else None


def run_global(jaxpr: Jaxpr, values: Sequence[Any], name: str, using: str = DEFAULT) -> list:
    """An annotated program's results on plain arrays, as plain arrays where this process has all
    of their values."""
    shardings = (None,) * len(values)
    run = executable(jaxpr, shardings, (False,) * len(values), name, using)
    return [x.value if is_readable(x) else x for x in run(values)]


def evaluate(prim: Primitive, args: Sequence[Any], params: dict) -> Any:
    """One operation on operands of which some are sharded, run at once."""
    jaxpr = _jaxpr_of(prim, [aval_of(a) for a in args], params)
    shardings = tuple(map(sharding_of, args))
    # An operation at a time is not worth compiling; programs are.
    using = DEFAULT if prim is jit_p or jaxpr_meshes(jaxpr) else "numpy"
    outs = executable(jaxpr, shardings, (False,) * len(args), prim.name, using)(args)
    if context.watches_values():
        check_finite(prim, list(args), outs)
    return outs if prim.multiple else outs[0]


_single: dict[Any, Jaxpr] = {}
_MAX_SINGLE = 4096
caches.forgotten_by(_single.clear)


def _jaxpr_of(prim: Primitive, avals: list, params: dict) -> Jaxpr:
    """The program of one operation, made once for operands of equal types."""
    key: Any = (prim, tuple(avals), exact_params(params), context.current().static_key())
    try:
        found = _single.get(key)
    except TypeError:
        found, key = None, None
    if found is not None:
        return found
    ins = [Var(a) for a in avals]
    out = prim.abstract(*avals, **params)
    outs = [Var(a) for a in (out if prim.multiple else [out])]
    jaxpr = Jaxpr(ins, [Eqn(prim, ins, outs, params)], outs)
    if key is not None:
        if len(_single) >= _MAX_SINGLE:
            _single.clear()
        _single[key] = jaxpr
    return jaxpr


# ---- arrays


def whole(x: ShardedArray) -> np.ndarray:
    """All of a sharded array's values."""
    return on_host(runtime(x.sharding.mesh).fetch(x.buffer, x.sharding, x.shape))


def is_addressable(x: ShardedArray) -> bool:
    """Whether all devices of the array's mesh are of this process."""
    return runtime(x.sharding.mesh).addressable


def is_readable(x: ShardedArray) -> bool:
    """Whether this process holds all of the array's values."""
    return x.is_fully_replicated or is_addressable(x)


def shards(x: ShardedArray) -> list[Shard]:
    """The parts of a sharded array on this process's devices."""
    seen: dict[tuple, int] = {}
    where = x.sharding.devices_indices_map(x.shape)
    replica = {}
    for device, index in where.items():
        key = tuple((s.start, s.stop) for s in index)
        replica[device] = seen[key] = seen.get(key, -1) + 1
    parts = runtime(x.sharding.mesh).parts(x.buffer, x.sharding, x.shape)
    return [
        Shard(d, index, replica[d], wrap(v, ShapedArray(v.shape, v.dtype, x.weak_type)))
        for d, index, v in parts
    ]


def put(value: Any, sharding: NamedSharding) -> ShardedArray:
    """An array whose value this process knows, cut over a mesh."""
    aval = aval_of(value)
    sharding.cuts(aval.shape, f"device_put: {aval}")
    (kept,) = own([value], [runtime(sharding.mesh).put(value, sharding)])
    return ShardedArray(kept, aval, sharding)


def array_text(x: ShardedArray) -> str:
    """The array's values, where this process holds them, and its sharding."""
    return sharded_text(x, is_readable(x))


def array_html(x: ShardedArray) -> str:
    """A picture of the array on its mesh."""
    return sharded_html(x, is_readable(x))
