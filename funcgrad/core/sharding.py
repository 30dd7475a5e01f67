"""Meshes, partition specs and shardings: how an array is cut over devices. Plain data.

A `Mesh` names the axes of a grid of devices. A `PartitionSpec` says for each axis of an array over
which mesh axes it is cut; `NamedSharding` is both together. Passes over programs work with `Cuts`,
a spec written out: for each array axis a tuple of mesh axes, the first one varying slowest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import numpy as np

from funcgrad.core.record import Record
from funcgrad.core.types import PlainArray
from funcgrad.errors import ShardingError

Cuts = tuple[tuple[str, ...], ...]
HOST_KINDS = ("virtual", "rank")  # the devices whose arrays are NumPy's
Entry = str | tuple[str, ...] | None


class Device(Record):
    """One device: a lane of this process ("virtual"), a process of an MPI job ("rank"), or one of a
    kind that has a memory of its own (`core.buffers`).

    >>> Device(0)
    Device(id=0, process_index=0, kind='virtual')
    """

    id: int
    process_index: int = 0
    kind: str = "virtual"

    @property
    def platform(self) -> str:
        """What kind of processor it is: "cpu", or its kind."""
        return "cpu" if self.kind in HOST_KINDS else self.kind


class SingleDeviceSharding(Record):
    """The sharding of an array that is on one device alone.

    >>> import funcgrad.numpy as fnp
    >>> fnp.ones(3).sharding
    SingleDeviceSharding(device=Device(id=0, process_index=0, kind='virtual'))
    """

    device: Device = Device(0)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array: yes, the one there is."""
        return True

    @property
    def device_set(self) -> frozenset[Device]:
        """The device alone."""
        return frozenset({self.device})

    @property
    def num_devices(self) -> int:
        """The number of devices: 1."""
        return 1

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape itself."""
        return tuple(shape)

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """That the device holds all of an array of `shape`."""
        return {self.device: tuple(slice(0, n) for n in shape)}


class Shard(Record, eq=False):
    """A device's part of an array: `data`, which stands at `index` in the whole.

    replica_id: 0 for the first device that holds these elements, 1 for the second, …
    """

    device: Device
    index: tuple[slice, ...]
    replica_id: int
    data: PlainArray


class AxisType(Enum):
    """Who decides how arrays are cut over a mesh axis.

    Auto: the compiler. Explicit: the program; types tell (`typeof(x).sharding`), and what they
    leave open is an error. Manual: each device's part is seen by itself, as in `shard_map`.

    >>> list(AxisType)
    [Auto, Explicit, Manual]
    """

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"

    def __repr__(self) -> str:
        return self.name


class Mesh:
    """A grid of devices with named axes. Made by `funcgrad.parallel.make_mesh`.

    devices: an array of `Device`s with an axis for each name. `AbstractMesh` has sizes alone:
    programs for it can be lowered and analysed, not run.
    axis_types: an `AxisType` for each axis, by default Auto

    >>> from funcgrad.parallel import make_mesh
    >>> make_mesh((2, 4), ("data", "model"))
    Mesh('data': 2, 'model': 4)
    """

    __slots__ = ("_hash", "axis_names", "axis_sizes", "axis_types", "devices")

    def __init__(
        self,
        devices: np.ndarray | Sequence,
        axis_names: Sequence[str] | str,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ):
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        self.devices: np.ndarray | None = np.asarray(devices, dtype=object)
        self._set(names, self.devices.shape, axis_types)

    def _set(
        self,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        types: AxisType | Sequence[AxisType] | None,
    ) -> None:
        if len(names) != len(sizes):
            raise ShardingError(f"Mesh: {len(sizes)} axes of devices have {len(names)} names")
        if len(set(names)) != len(names):
            raise ShardingError(f"Mesh: axis names must differ, got {names}")
        if any(n < 1 for n in sizes):
            raise ShardingError(f"Mesh: axes must have sizes of at least 1, got {sizes}")
        self.axis_names = names
        self.axis_sizes = tuple(int(n) for n in sizes)
        self.axis_types = _axis_types(types, names)
        self._hash = hash((names, self.axis_sizes, self.axis_types, self._device_ids()))

    def _device_ids(self) -> tuple:
        return () if self.devices is None else tuple(self.devices.flat)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name.

        >>> AbstractMesh((2, 4), ("data", "model")).shape
        {'data': 2, 'model': 4}
        """
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axis_sizes)

    @property
    def is_abstract(self) -> bool:
        """Whether the mesh has sizes alone."""
        return self.devices is None

    @property
    def explicit_axes(self) -> tuple[str, ...]:
        """The axes of type Explicit.

        >>> types = (AxisType.Explicit, AxisType.Auto)
        >>> AbstractMesh((2, 4), ("data", "model"), types).explicit_axes
        ('data',)
        """
        return self._of_type(AxisType.Explicit)

    @property
    def auto_axes(self) -> tuple[str, ...]:
        """The axes of type Auto."""
        return self._of_type(AxisType.Auto)

    @property
    def manual_axes(self) -> tuple[str, ...]:
        """The axes of type Manual."""
        return self._of_type(AxisType.Manual)

    def _of_type(self, wanted: AxisType) -> tuple[str, ...]:
        pairs = zip(self.axis_names, self.axis_types, strict=True)
        return tuple(name for name, kind in pairs if kind is wanted)

    def same_grid(self, other: Mesh) -> bool:
        """Whether the meshes are equal but for the types of their axes."""
        mine = self.axis_names, self.axis_sizes, self._device_ids()
        return mine == (other.axis_names, other.axis_sizes, other._device_ids())

    def extent(self, axes: Iterable[str]) -> int:
        """The number of parts that a cut over these axes makes.

        >>> AbstractMesh((2, 4), ("data", "model")).extent(["model"])
        4
        """
        shape = self.shape
        return math.prod(shape[a] for a in axes)

    def coordinates(self) -> Iterator[tuple[Device, dict[str, int]]]:
        """Each device with its place along each axis.

        >>> from funcgrad.parallel import make_mesh
        >>> [place for _, place in make_mesh((2,), "data").coordinates()]
        [{'data': 0}, {'data': 1}]
        """
        if self.devices is None:
            raise ShardingError(f"{self} has no devices: it can be lowered for, not run on")
        for place in np.ndindex(*self.axis_sizes):
            device: Device = self.devices[place]  # type: ignore[assignment]
            yield device, dict(zip(self.axis_names, place, strict=True))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Mesh)
            and self._hash == other._hash
            and self.axis_names == other.axis_names
            and self.axis_sizes == other.axis_sizes
            and self.axis_types == other.axis_types
            and self._device_ids() == other._device_ids()
        )

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: dict) -> Mesh:
        return self

    def __repr__(self) -> str:
        parts = [f"{n!r}: {s}" for n, s in self.shape.items()]
        if len(self.auto_axes) < len(self.axis_names):
            parts.append(f"axis_types={self.axis_types}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _axis_types(
    types: AxisType | Sequence[AxisType] | None, names: tuple[str, ...]
) -> tuple[AxisType, ...]:
    """A type for each axis; one alone is that of all."""
    if types is None or isinstance(types, AxisType):
        return (types or AxisType.Auto,) * len(names)
    found = tuple(types) if isinstance(types, Sequence) else ()
    if not (isinstance(types, Sequence) and all(isinstance(t, AxisType) for t in found)):
        raise TypeError(f"Mesh: axis_types must be AxisTypes, got {types!r}")
    if len(found) != len(names):
        raise ShardingError(f"Mesh: {len(names)} axes, {names}, have {len(found)} axis_types")
    return found


class AbstractMesh(Mesh):
    """The sizes and names of a mesh without devices: for lowering and analysis at any scale.

    >>> AbstractMesh((512, 8), ("data", "model")).size
    4096
    """

    __slots__ = ()

    def __init__(
        self,
        axis_sizes: Sequence[int] | int,
        axis_names: Sequence[str] | str,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ):
        sizes = (axis_sizes,) if isinstance(axis_sizes, int) else tuple(axis_sizes)
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        self.devices = None
        self._set(names, sizes, axis_types)


class PartitionSpec:
    """For each axis of an array the mesh axis it is cut over, several of them, or None (whole).
    Axes beyond the last entry are whole. A leaf to the functions of `funcgrad.tree`.

    >>> P("data", None, ("x", "y"))
    P('data', None, ('x', 'y'))
    """

    __slots__ = ("entries",)

    def __init__(self, *entries: Entry | list[str]):
        for e in entries:
            ok = (
                e is None
                or isinstance(e, str)
                or (isinstance(e, tuple | list) and all(isinstance(n, str) for n in e))
            )
            if not ok:
                raise TypeError(
                    f"PartitionSpec: each entry is a mesh axis's name, a tuple of names, or None; "
                    f"got {e!r}"
                )
        self.entries = tuple(_entry(e) for e in entries)

    @staticmethod
    def of(cuts: Cuts) -> PartitionSpec:
        """The spec that is written out as `cuts`.

        >>> PartitionSpec.of((("x", "y"), ()))
        P(('x', 'y'))
        """
        entries = list(cuts)
        while entries and not entries[-1]:
            entries.pop()
        return PartitionSpec(*entries)

    def cuts(self, ndim: int) -> Cuts:
        """The mesh axes of each of `ndim` axes.

        >>> P("x", None).cuts(3)
        (('x',), (), ())
        """
        if len(self.entries) > ndim:
            raise ShardingError(
                f"{self} has {len(self.entries)} entries, more than the {ndim} axes of the array"
            )
        named = tuple(
            () if e is None else (e,) if isinstance(e, str) else tuple(e) for e in self.entries
        )
        return named + ((),) * (ndim - len(named))

    def axes(self) -> tuple[str, ...]:
        """The mesh axes named, in order.

        >>> P("z", None, ("x", "y")).axes()
        ('z', 'x', 'y')
        """
        return tuple(a for axes in self.cuts(len(self.entries)) for a in axes)

    def __iter__(self) -> Iterator:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, i: int) -> Entry:
        return self.entries[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self._trimmed() == other._trimmed()

    def __hash__(self) -> int:
        return hash(self._trimmed())

    def _trimmed(self) -> tuple:
        """The entries up to the last that cuts: what follows says nothing."""
        n = len(self.entries)
        while n and self.entries[n - 1] is None:
            n -= 1
        return self.entries[:n]

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self.entries))})"


P = PartitionSpec


def _entry(e: Entry | list[str]) -> Entry:
    if isinstance(e, tuple | list):
        return None if not e else e[0] if len(e) == 1 else tuple(e)
    return e


class NamedSharding:
    """How an array is cut: a spec over a mesh.

    regather: where a program needs the whole array at several places, gather it for each of them
    and free it after, instead of keeping the gathered array (parameters under FSDP).

    >>> from funcgrad.parallel import make_mesh
    >>> NamedSharding(make_mesh((2,), "data"), P("data")).shard_shape((4, 3))
    (2, 3)
    """

    # Looked up by value at every call of a compiled function, so it knows its hash.
    __slots__ = ("_hash", "mesh", "regather", "spec")

    def __init__(self, mesh: Mesh, spec: PartitionSpec, regather: bool = False):
        if not isinstance(mesh, Mesh):
            raise TypeError(f"NamedSharding: mesh must be a Mesh, got {mesh!r}")
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"NamedSharding: spec must be a PartitionSpec, got {spec!r}")
        named = spec.axes()
        for a in named:
            if a not in mesh.axis_names:
                raise ShardingError(f"NamedSharding: {spec} names {a!r}, no axis of {mesh}")
        if len(set(named)) != len(named):
            raise ShardingError(f"NamedSharding: {spec} names a mesh axis twice")
        self.mesh = mesh
        self.spec = spec
        self.regather = regather
        self._hash = hash((mesh, spec, regather))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, NamedSharding)
            and self._hash == other._hash
            and self.spec == other.spec
            and self.mesh == other.mesh
            and self.regather == other.regather
        )

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: dict) -> NamedSharding:
        return self

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self.mesh.extent(self.spec.axes()) == 1

    @property
    def num_devices(self) -> int:
        """The number of devices of the mesh.

        >>> NamedSharding(AbstractMesh((2, 4), ("x", "y")), P("x")).num_devices
        8
        """
        return self.mesh.size

    @property
    def device_set(self) -> frozenset[Device]:
        """The devices of the mesh."""
        return frozenset(d for d, _ in self.mesh.coordinates())

    def cuts(self, shape: Sequence[int], what: str = "the array") -> Cuts:
        """The mesh axes of each axis, after a check that they divide the shape."""
        cuts = self.spec.cuts(len(shape)) if len(self.spec) <= len(shape) else None
        if cuts is None:
            raise ShardingError(
                f"{what} of shape {tuple(shape)} has {len(shape)} axes, fewer than {self.spec} cuts"
            )
        for i, (n, axes) in enumerate(zip(shape, cuts, strict=True)):
            parts = self.mesh.extent(axes)
            if n % parts:
                over = " × ".join(f"{a!r} ({self.mesh.shape[a]})" for a in axes)
                raise ShardingError(
                    f"axis {i} of {what}, of size {n}, can't be cut into {parts} equal parts over "
                    f"the mesh axes {over}: shape {tuple(shape)}, {self.spec}. Pad it to a "
                    f"multiple of {parts}, cut another axis, or leave it whole"
                )
        return cuts

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each device's part of an array of `shape`.

        >>> NamedSharding(AbstractMesh((2, 4), ("x", "y")), P(("x", "y"))).shard_shape((16, 3))
        (2, 3)
        """
        return local_shape(self.mesh.shape, self.cuts(shape), shape)

    def devices_indices_map(self, shape: Sequence[int]) -> dict[Device, tuple[slice, ...]]:
        """For each device which part of an array of `shape` it holds.

        >>> from funcgrad.parallel import make_mesh
        >>> parts = NamedSharding(make_mesh((2,), "data"), P("data")).devices_indices_map((6,))
        >>> list(parts.values())
        [(slice(0, 3, None),), (slice(3, 6, None),)]
        """
        cuts = self.cuts(shape)
        return {
            device: local_index(self.mesh.shape, cuts, shape, place)
            for device, place in self.mesh.coordinates()
        }

    def __repr__(self) -> str:
        again = ", regather=True" if self.regather else ""
        return f"NamedSharding({self.mesh}, {self.spec}{again})"


def local_shape(sizes: Mapping[str, int], cuts: Cuts, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one part.

    >>> local_shape({"x": 2, "y": 4}, (("x", "y"), ()), (16, 3))
    (2, 3)
    """
    return tuple(
        n // math.prod(sizes[a] for a in axes) for n, axes in zip(shape, cuts, strict=True)
    )


def local_index(
    sizes: Mapping[str, int], cuts: Cuts, shape: Sequence[int], place: Mapping[str, int]
) -> tuple[slice, ...]:
    """Which part of an array the device at a place of the mesh holds.

    >>> local_index({"x": 2}, (("x",), ()), (4, 3), {"x": 1})
    (slice(2, 4, None), slice(0, 3, None))
    """
    index = []
    for n, axes in zip(shape, cuts, strict=True):
        number, parts = 0, 1
        for a in axes:
            number = number * sizes[a] + place[a]
            parts *= sizes[a]
        block = n // parts
        index.append(slice(number * block, (number + 1) * block))
    return tuple(index)
