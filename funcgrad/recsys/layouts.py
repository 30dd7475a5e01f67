"""Where the rows of tables lie: a sharding for each table, and the arrays that hold them.

Each device of a mesh has one block of rows for each width of rows and way to exchange them, a
*pool*; the blocks of all devices are one array, cut along its rows. A table is one or several
shards (a part of its columns; on one device, or its rows over all or over those of a node), each at
its place in a pool. So tables of any size lie on any device, and one exchange serves all of a pool.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from funcgrad import dtypes
from funcgrad.core.sharding import AbstractMesh, Mesh
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.recsys.tables import BITS, QuantizedTable, row_bytes

KINDS = {
    "data_parallel": "whole", "table_wise": "table", "column_wise": "table",
    "table_column_wise": "table", "row_wise": "row", "table_row_wise": "node", "grid": "node",
}  # fmt: skip
WIRES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
OF_NODES = ("table_row_wise", "table_column_wise", "grid")


@dataclass(frozen=True)
class TableSharding:
    """How a table is cut. kind: one of `KINDS`; places: the devices or nodes of its column blocks,
    or None to have them chosen; columns: how many column blocks there are.

    >>> from funcgrad import recsys
    >>> recsys.TableSharding("column_wise", (0, 3), 2)
    TableSharding(kind='column_wise', places=(0, 3), columns=2)
    """

    kind: str
    places: tuple[int, ...] | None = None
    columns: int = 1


def data_parallel() -> TableSharding:
    """A table that each device has whole; its gradients are summed over all devices.

    >>> from funcgrad import recsys
    >>> recsys.data_parallel().kind
    'data_parallel'
    """
    return TableSharding("data_parallel")


def table_wise(device: int | None = None) -> TableSharding:
    """A table that lies on one device.

    >>> from funcgrad import recsys
    >>> recsys.table_wise(3).places
    (3,)
    """
    return TableSharding("table_wise", None if device is None else (device,))


def column_wise(columns: int = 2, devices: Sequence[int] | None = None) -> TableSharding:
    """A table cut into blocks of columns, each of which lies on one device.

    >>> from funcgrad import recsys
    >>> recsys.column_wise(devices=[0, 2]).columns
    2
    """
    return _columns("column_wise", columns, devices)


def row_wise() -> TableSharding:
    """A table cut into blocks of ⌈rows / devices⌉ rows over all devices; the last may have fewer.

    >>> from funcgrad import recsys
    >>> recsys.row_wise().kind
    'row_wise'
    """
    return TableSharding("row_wise")


def table_row_wise(node: int | None = None) -> TableSharding:
    """A table on one node, its rows cut over the node's devices.

    >>> from funcgrad import recsys
    >>> recsys.table_row_wise(1).places
    (1,)
    """
    return TableSharding("table_row_wise", None if node is None else (node,))


def table_column_wise(columns: int = 2, devices: Sequence[int] | None = None) -> TableSharding:
    """A table on one node, its columns cut over devices of the node.

    >>> from funcgrad import recsys
    >>> recsys.table_column_wise(devices=[2, 3]).places
    (2, 3)
    """
    return _columns("table_column_wise", columns, devices)


def grid(columns: int = 2, nodes: Sequence[int] | None = None) -> TableSharding:
    """A table whose columns are cut over nodes, and its rows over the devices of each node.

    >>> from funcgrad import recsys
    >>> recsys.grid(nodes=[0, 1]).places
    (0, 1)
    """
    return _columns("grid", columns, nodes)


def _columns(kind: str, columns: int, places: Sequence[int] | None) -> TableSharding:
    if places is None:
        return TableSharding(kind, None, columns)
    return TableSharding(kind, tuple(places), len(places))


class Shard(NamedTuple):
    """A part of a table: all rows of some columns. place: its device (node; -1 for all devices);
    offset: where its rows begin in each block; block: how many rows of it a device has."""

    table: str
    rows: int
    column: int
    width: int
    place: int
    offset: int
    block: int


class Pool(NamedTuple):
    """Shards of one width that are exchanged alike. dtype: its name, "int8" or "int4" for a
    QuantizedTable; rows: of the block that each device has."""

    exchange: str
    width: int
    dtype: str
    rows: int
    shards: tuple[Shard, ...]


class Spec(NamedTuple):
    """A table's shape and dtype, and how it is cut."""

    rows: int
    dim: int
    dtype: str
    sharding: TableSharding


@dataclass(frozen=True)
class Layout:
    """Where all tables lie on a mesh. Made by `layout`; hashable, and the same on all processes.

    mesh: the devices that share a set of tables; tables: (name, `Spec`) of each; pools: (name,
    `Pool`) of each array of rows; world: all devices, in several such groups where one of their
    axes, `replica`, counts these. room, wire: see `layout`.
    """

    mesh: Mesh
    tables: tuple[tuple[str, Spec], ...]
    pools: tuple[tuple[str, Pool], ...]
    world: Mesh
    replica: str | None = None
    room: float | None = None
    wire: str | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh's axes: that of devices, or of nodes and of the devices of each."""
        return self.mesh.axis_names

    @property
    def replicas(self) -> int:
        """How many groups of devices have all tables."""
        return self.world.size // self.mesh.size

    def member(self, device: int) -> int:
        """Which one of its group a device of the world is.

        >>> from funcgrad import recsys
        >>> mesh = fg.make_mesh((2, 2), ("device", "replica"))
        >>> layout = recsys.layout({"ad": (3, 4)}, recsys.row_wise(), mesh, replica="replica")
        >>> [layout.member(i) for i in range(4)]
        [0, 0, 1, 1]
        """
        place = np.unravel_index(device, self.world.axis_sizes)
        own = [i for a, i in zip(self.world.axis_names, place, strict=True) if a != self.replica]
        return int(np.ravel_multi_index(own, self.mesh.axis_sizes))

    def spec(self, table: str) -> Spec:
        """A table's shape, dtype and sharding; ArgumentError where there is none of that name."""
        found = dict(self.tables)
        if table not in found:
            raise ArgumentError(f"recsys: there is no table {table!r} among {sorted(found)}")
        return found[table]

    def pieces(self, pool: Pool, device: int) -> Iterator[tuple[Shard, slice, slice]]:
        """What a device's block has: (shard, rows of the table, rows of the block)."""
        local = self.mesh.axis_sizes[-1]
        for shard in pool.shards:
            if pool.exchange == "table":
                part = 0 if shard.place == device else None
            elif pool.exchange == "row":
                part = device
            else:
                part = device % local if shard.place == device // local else None
            if part is not None:
                start = min(part * shard.block, shard.rows)
                stop = min(start + shard.block, shard.rows)
                if stop > start:
                    at = slice(shard.offset, shard.offset + stop - start)
                    yield shard, slice(start, stop), at

    def bytes_per_device(self) -> list[int]:
        """Of tables, on each device; without padding.

        >>> from funcgrad import recsys
        >>> mesh = fg.make_mesh(2, "device")
        >>> recsys.layout({"ad": (3, 4)}, {"ad": recsys.row_wise()}, mesh).bytes_per_device()
        [32, 16]
        """
        return [sum(n for _, n in self._parts(device)) for device in range(self.mesh.size)]

    def _repr_html_(self) -> str:
        """A column for each of the first devices, with the bytes of each table's part."""
        devices = range(min(self.mesh.size, 32))
        most = max(1, *self.bytes_per_device())
        names, boxes = [k for k, _ in self.tables], []
        for device in devices:
            y, x = 170.0, 40 * device
            for name, nbytes in self._parts(device):
                height = 150 * nbytes / most
                y -= height
                hue = 360 * names.index(name) // len(names)
                boxes.append(
                    f'<rect x="{x}" y="{y:.1f}" width="34" height="{height:.1f}" stroke="white" '
                    f'fill="hsl({hue},50%,60%)"><title>{html.escape(name)}: {nbytes} bytes</title>'
                    "</rect>"
                )
            boxes.append(f'<text x="{x + 12}" y="186" font-size="11">{device}</text>')
        key = ", ".join(
            f'<span style="color:hsl({360 * i // len(names)},50%,45%)">{html.escape(k)}</span> '
            f"({s.sharding.kind})"
            for i, (k, s) in enumerate(self.tables)
        )
        return (
            f"<div>{key}<br>"
            f'<svg width="{40 * len(devices)}" height="190">{"".join(boxes)}</svg></div>'
        )

    def _parts(self, device: int) -> Iterator[tuple[str, int]]:
        """(table, bytes) of what a device has, whole tables first."""
        for name, s in self.tables:
            if s.sharding.kind == "data_parallel":
                yield name, s.rows * int(row_bytes(s.dtype, s.dim))
        for _, pool in self.pools:
            for shard, rows, _ in self.pieces(pool, device):
                size = int(row_bytes(pool.dtype, pool.width))
                yield shard.table, (rows.stop - rows.start) * size


def layout(
    tables: Mapping[str, Any],
    shardings: Mapping[str, TableSharding] | TableSharding,
    mesh: Mesh,
    replica: str | None = None,
    *,
    room: float | None = None,
    wire: str | None = None,
) -> Layout:
    """Places for tables on a mesh of one axis (devices) or two (nodes, devices of each).

    replica: a further axis of the mesh, along which all tables are repeated; each copy is trained
    on its part of the batch, and now and then they are averaged (`average_replicas`).
    room: of a table whose rows are cut, each device is sent at most so many times its even share of
    a feature's ids (see `check_exchange`); None: there is room for all. wire: the dtype that sums
    and their cotangents have on their way between devices: "bfloat16", "float16", or one of 8 bits,
    "float8_e4m3fn" or "float8_e5m2"; None: their own.

    tables: arrays, QuantizedTables, or shapes (rows, dim), by name; shardings: by name, or one for
    all. Where a sharding doesn't say on which device, it is the one with the fewest bytes so far,
    large tables first. Raises ShardingError with the table's name for a sharding that doesn't fit.

    >>> from funcgrad import recsys
    >>> mesh = fg.make_mesh((2, 2), ("node", "device"))
    >>> shapes = {"user": (1000, 16), "ad": (10, 16)}
    >>> cuts = {"user": recsys.grid(), "ad": recsys.data_parallel()}
    >>> recsys.layout(shapes, cuts, mesh).bytes_per_device()
    [16640, 16640, 16640, 16640]
    """
    world = mesh
    if room is not None and not room > 0:
        raise ShardingError(f"recsys.layout: room must be more than 0, got {room}")
    if wire is not None and wire not in WIRES:
        raise ShardingError(f"recsys.layout: wire must be one of {WIRES}, got {wire!r}")
    if replica is not None:
        mesh = _without(mesh, replica)
    if len(mesh.axis_names) > 2:
        raise ShardingError(f"recsys.layout: the mesh must have one axis or two, got {mesh}")
    names = sorted(tables)
    if isinstance(shardings, TableSharding):
        shardings = dict.fromkeys(names, shardings)
    if set(shardings) != set(names):
        raise ShardingError(
            f"recsys.layout: shardings are for {sorted(shardings)}, the tables are {names}"
        )
    specs = {k: _spec(k, tables[k], shardings[k], mesh) for k in names}
    loads = [0] * mesh.size
    for name in sorted(names, key=lambda k: -specs[k].rows * specs[k].dim):
        specs[name] = _placed(name, specs[name], mesh, loads)
    return Layout(mesh, tuple(specs.items()), _pools(specs, mesh), world, replica, room, wire)


def _without(mesh: Mesh, replica: str) -> Mesh:
    """One group of a mesh's devices, by its axes alone."""
    sizes = {a: n for a, n in mesh.shape.items() if a != replica}
    if len(sizes) == len(mesh.axis_names) or not sizes:
        raise ShardingError(
            f"recsys.layout: replica must be one of several axes of {mesh}, got {replica!r}"
        )
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


def _spec(name: str, table: Any, sharding: TableSharding, mesh: Mesh) -> Spec:
    """What is known of a table; its sharding is checked."""
    shape = tuple(getattr(table, "shape", table))
    if len(shape) != 2 or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ShardingError(f"recsys.layout: table {name!r} must be (rows, dim), got {shape}")
    if not isinstance(sharding, TableSharding) or sharding.kind not in KINDS:
        raise ShardingError(f"recsys.layout: table {name!r} has the sharding {sharding!r}")
    if sharding.kind in OF_NODES and len(mesh.axis_names) != 2:
        raise ShardingError(
            f"recsys.layout: table {name!r}: {sharding.kind} needs a mesh of nodes and devices, "
            f"got {mesh}"
        )
    count = mesh.axis_sizes[0] if KINDS[sharding.kind] == "node" else mesh.size
    for place in sharding.places or ():
        if not 0 <= place < count:
            what = "nodes" if KINDS[sharding.kind] == "node" else "devices"
            raise ShardingError(
                f"recsys.layout: table {name!r} is put on {place}, but there are {count} {what}"
            )
    local = mesh.axis_sizes[-1]
    if (
        sharding.kind == "table_column_wise"
        and len({p // local for p in sharding.places or ()}) > 1
    ):
        raise ShardingError(
            f"recsys.layout: table {name!r}: devices {sharding.places} are not of one node"
        )
    dtype = dtype_of(table)
    if not 1 <= sharding.columns <= -(-shape[1] // _together(dtype)):
        bits = f" of {BITS[dtype]} bits" if dtype in BITS else ""
        raise ShardingError(
            f"recsys.layout: table {name!r} has {shape[1]} columns{bits}, which can't be cut into "
            f"{sharding.columns} blocks"
        )
    return Spec(*shape, dtype, sharding)


def dtype_of(table: Any) -> str:
    """The name of a table's dtype; "int8" or "int4" for a QuantizedTable."""
    if isinstance(table, QuantizedTable):
        return f"int{table.bits}"
    return dtypes.canonical(getattr(table, "dtype", "float32")).name


def _together(dtype: str) -> int:
    """How many columns share a byte, and stay together."""
    return 8 // BITS.get(dtype, 8)


def _edges(spec: Spec) -> list[int]:
    """Where blocks of columns begin, and the last one ends."""
    unit, blocks = _together(spec.dtype), spec.sharding.columns
    whole = -(-spec.dim // unit)
    return [min(whole * i // blocks * unit, spec.dim) for i in range(blocks + 1)]


def _placed(name: str, spec: Spec, mesh: Mesh, loads: list[int]) -> Spec:
    """A sharding with all of its places, those not given being where the least lies."""
    kind, places = spec.sharding.kind, spec.sharding.places
    local = mesh.axis_sizes[-1]
    nodes = [range(i, i + local) for i in range(0, mesh.size, local)]
    size = spec.rows * int(row_bytes(spec.dtype, spec.dim))
    if kind in ("data_parallel", "row_wise"):
        for d in range(mesh.size):
            loads[d] += size if kind == "data_parallel" else size // mesh.size
        return spec
    if KINDS[kind] == "node":
        options: list[Sequence[int]] = list(nodes)
    elif kind == "table_column_wise" and places is None:
        options = [[d] for d in min(nodes, key=lambda node: sum(loads[d] for d in node))]
    else:
        options = [[d] for d in range(mesh.size)]
    chosen = []
    for block in range(spec.sharding.columns):
        if places is not None:
            at = places[block]
            devices = options[at]
        else:
            free = [o for o in options if options.index(o) not in chosen] or options
            devices = min(free, key=lambda o: sum(loads[d] for d in o))
            at = options.index(devices)
        chosen.append(at)
        for d in devices:
            loads[d] += size // spec.sharding.columns // len(devices)
    if KINDS[kind] == "table":
        chosen = [options[i][0] for i in chosen] if places is None else list(places)
    return spec._replace(sharding=TableSharding(kind, tuple(chosen), len(chosen)))


def _pools(specs: Mapping[str, Spec], mesh: Mesh) -> tuple[tuple[str, Pool], ...]:
    """The pools of all shards; in each block a shard begins where the one before it ends."""
    found: dict[tuple, list[Shard]] = {}
    heights: dict[tuple, dict[int, int]] = {}
    for name, spec in specs.items():
        exchange = KINDS[spec.sharding.kind]
        if exchange == "whole":
            continue
        among = {"table": 1, "row": mesh.size, "node": mesh.axis_sizes[-1]}[exchange]
        block = math.ceil(spec.rows / among)
        edges, places = _edges(spec), spec.sharding.places or (-1,)
        for place, a, b in zip(places, edges, edges[1:], strict=False):
            key = (exchange, b - a, spec.dtype)
            height = heights.setdefault(key, {})
            offset = height.get(place, 0)
            height[place] = offset + block
            shard = Shard(name, spec.rows, a, b - a, place, offset, block)
            found.setdefault(key, []).append(shard)
    return tuple(
        (
            f"{exchange}_{width}_{dtype}",
            Pool(
                exchange, width, dtype, max(heights[exchange, width, dtype].values()), tuple(shards)
            ),
        )
        for (exchange, width, dtype), shards in sorted(found.items())
    )
