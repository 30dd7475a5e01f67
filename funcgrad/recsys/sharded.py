"""Tables on many devices: putting them there, and lookups by exchanges of ids and of rows.

Inside of `shard_map` each device has its part of the batch and its blocks of the pools. Ids go to
the devices that have their rows (all-to-all); there they are looked up and pooled for all devices;
the results come back: by all-to-all from tables on one device, by reduce-scatter where a table's
rows are cut, as each device then has a part of each sum. Derivatives are those of the collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core import context
from funcgrad.core.sharding import Mesh, NamedSharding, P
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel.arrays import make_array_from_callback, reshard
from funcgrad.recsys.exchange import Ids, entries_of, exchanged, room_of
from funcgrad.recsys.jagged import JaggedTensor, capacity_of
from funcgrad.recsys.keyed import KeyedJaggedTensor
from funcgrad.recsys.layouts import Layout, Pool
from funcgrad.recsys.lookups import Tapped, pooled
from funcgrad.recsys.tables import as_table


@tree.register_pytree_node_class
class ShardedTables:
    """Tables on a mesh: the pools' arrays by name, tables that are whole, and their layout.

    A tree of arrays, so that optimizers, donation and checkpoints take it as they do other tables.
    In `shard_map` `embedding_bag` and `embedding` take it in place of tables by name.
    """

    pools: dict[str, Any]
    whole: dict[str, Any]
    layout: Layout

    def __init__(self, pools: dict[str, Any], whole: dict[str, Any], layout: Layout):
        self.pools, self.whole, self.layout = pools, whole, layout

    def tree_flatten(self) -> tuple:
        """For `tree`: both dictionaries."""
        return (self.pools, self.whole), self.layout

    def tree_flatten_with_keys(self) -> tuple:
        """For `tree`: both dictionaries with their names."""
        keys = map(tree.GetAttrKey, ("pools", "whole"))
        return list(zip(keys, (self.pools, self.whole), strict=True)), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, children: Iterable) -> ShardedTables:
        """For `tree`."""
        pools, whole = children
        return cls(pools, whole, layout)

    def __repr__(self) -> str:
        return f"ShardedTables({', '.join(k for k, _ in self.layout.tables)})"


# ---- onto a mesh and back


def shard_tables(tables: Mapping[str, Any], layout: Layout) -> ShardedTables:
    """Tables by name, cut and put as a layout says.

    Under a launcher each rank makes its own part, of tables that all of them have.

    >>> from funcgrad import recsys
    >>> tables = {"ad": fnp.arange(10.0).reshape(5, 2)}
    >>> layout = recsys.layout(tables, recsys.row_wise(), fg.make_mesh(4, "device"))
    >>> recsys.shard_tables(tables, layout).pools["row_2_float32"].sharding.spec
    P('device')
    """
    for name, spec in layout.tables:
        shape = getattr(tables.get(name), "shape", None)
        if shape != (spec.rows, spec.dim):
            raise ShardingError(
                f"recsys.shard_tables: the layout has a table {name!r} of {(spec.rows, spec.dim)}, "
                f"got {shape}"
            )
    arrays = {k: np.asarray(tables[k]) for k, _ in layout.tables}
    cut = NamedSharding(layout.world, P(layout.world.axis_names))

    def block(pool: Pool, index: tuple[slice, ...]) -> np.ndarray:
        found = np.zeros((pool.rows, pool.width), pool.dtype)
        device = layout.member((index[0].start or 0) // pool.rows)
        for shard, rows, at in layout.pieces(pool, device):
            columns = slice(shard.column, shard.column + shard.width)
            found[at] = arrays[shard.table][rows, columns]
        return found

    pools = {}
    for name, pool in layout.pools:
        shape = (pool.rows * layout.world.size, pool.width)
        pools[name] = make_array_from_callback(shape, cut, partial(block, pool))
    replicas = NamedSharding(layout.world, P())
    whole = {
        name: make_array_from_callback(arrays[name].shape, replicas, arrays[name].__getitem__)
        for name, spec in layout.tables
        if spec.sharding.kind == "data_parallel"
    }
    return ShardedTables(pools, whole, layout)


def gather_tables(tables: ShardedTables) -> dict[str, np.ndarray]:
    """Whole tables by name, on the host; of arrays (rows,) of optimizers' states, too. Of replicas
    it is the last one.

    Of column blocks' row-wise states, which differ, there is one column for each.

    >>> from funcgrad import recsys
    >>> tables = {"ad": np.arange(10.0, dtype="float32").reshape(5, 2)}
    >>> layout = recsys.layout(tables, recsys.column_wise(), fg.make_mesh(2, "device"))
    >>> np.array_equal(
    ...     recsys.gather_tables(recsys.shard_tables(tables, layout))["ad"], tables["ad"]
    ... )
    True
    """
    layout = tables.layout
    everywhere = NamedSharding(layout.world, P())
    found = {k: np.asarray(reshard(x, everywhere)) for k, x in tables.whole.items()}
    columns: dict[str, dict[int, np.ndarray]] = {}
    for name, pool in layout.pools:
        array = np.asarray(reshard(tables.pools[name], everywhere))
        for device in range(layout.world.size):
            block = array[device * pool.rows : (device + 1) * pool.rows]
            for shard, rows, at in layout.pieces(pool, layout.member(device)):
                parts = columns.setdefault(shard.table, {})
                if shard.column not in parts:
                    parts[shard.column] = np.zeros((shard.rows, *array.shape[1:]), array.dtype)
                parts[shard.column][rows] = block[at]
    for name, parts in columns.items():
        blocks = [parts[c] for c in sorted(parts)]
        join = np.concatenate if blocks[0].ndim == 2 else np.stack
        found[name] = blocks[0] if len(blocks) == 1 else join(blocks, 1)
    return {k: found[k] for k, _ in layout.tables}


def partition_specs(x: Any) -> Any:
    """The `PartitionSpec` of each leaf of a tree with sharded tables in it, as an argument or a
    result of `shard_map`: pools are cut, all else is whole.

    >>> from funcgrad import recsys
    >>> layout = recsys.layout({"ad": (4, 2)}, recsys.row_wise(), fg.make_mesh(2, "device"))
    >>> tables = recsys.shard_tables({"ad": fnp.ones((4, 2))}, layout)
    >>> tree.leaves(recsys.partition_specs({"tables": tables, "bias": fnp.ones(2)}))
    [P(), P('device')]
    """

    def spec(x: Any) -> Any:
        if not isinstance(x, ShardedTables):
            return P()
        cut = P(x.layout.world.axis_names)
        return ShardedTables(
            tree.map(lambda _: cut, x.pools), tree.map(lambda _: P(), x.whole), x.layout
        )

    return tree.map(spec, x, is_leaf=lambda x: isinstance(x, ShardedTables))


def put(x: Any, mesh: Mesh) -> Any:
    """A tree with sharded tables in it (an optimizer's state) onto the mesh, as
    `partition_specs` says.

    >>> from funcgrad import recsys
    >>> recsys.put({"step": fnp.zeros(())}, fg.make_mesh(2, "device"))["step"].sharding.spec
    P()
    """

    def moved(x: Any, spec: P) -> Any:
        x = np.asarray(x)
        return make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    return tree.map(moved, x, partition_specs(x))


def split_batch(
    features: KeyedJaggedTensor, devices: int, capacity: int | Mapping[str, int] | None = None
) -> KeyedJaggedTensor:
    """A batch in equal parts for devices, on the host: each array has a leading axis of that size.

    capacity: the room for each feature's values in a part, one number or by name; by default as
    many as the whole batch has. In `shard_map` each device has a leading axis of size 1:
    `tree.map(lambda x: x[0], features)`.

    >>> from funcgrad import recsys
    >>> f = recsys.KeyedJaggedTensor.from_lists({"ad": [[1], [2, 3]]})
    >>> recsys.split_batch(f, 2, capacity=2).values
    Array([[1, 0],
           [2, 3]], dtype=int32)
    """
    where = "recsys.split_batch"
    batch = features.batch
    if batch % devices or any(n != batch for n in features.batches):
        raise ArgumentError(
            f"{where}: batches of {features.batches} can't be shared among {devices} devices"
        )
    given = capacity if isinstance(capacity, Mapping) else dict.fromkeys(features.keys, capacity)
    parts, rooms = [], []
    for key, x in features.features().items():
        lengths = np.asarray(x.lengths).reshape(devices, batch // devices)
        ends = np.cumsum(lengths.sum(1))
        counts = lengths.sum(1)
        room = given.get(key)
        room = x.capacity if room is None else int(room)
        capacity_of(f"{where}: feature {key!r}: a part", int(counts.max(initial=0)), room)
        column = np.arange(room)
        place = np.where(column < counts[:, None], (ends - counts)[:, None] + column, x.capacity)
        moved = [
            None if v is None else np.append(np.asarray(v), np.zeros(1, v.dtype))[place]
            for v in (x.values, x.weights)
        ]
        parts.append((moved[0], lengths, moved[1]))
        rooms.append(room)
    joined = [
        None if part[0] is None else fnp.asarray(np.concatenate(part, axis=1))
        for part in zip(*parts, strict=True)
    ]
    static = (features.keys, tuple(rooms), (batch // devices,) * len(rooms))
    return KeyedJaggedTensor.tree_unflatten(static, joined)


def average_replicas(x: Any, step: Any = 0, every: int = 1) -> Any:
    """Sharded tables, and those in an optimizer's state, averaged over replicas, inside of
    `shard_map`; where `every` divides step + 1, else as they are.

    The loss is the mean over all devices. Each replica takes the step of its own part of the batch:
    with plain gradient descent and every = 1 that is the same as to average gradients.

    >>> from funcgrad import recsys
    >>> mesh = fg.make_mesh((1, 2), ("device", "replica"))
    >>> layout = recsys.layout({"ad": (2, 1)}, recsys.row_wise(), mesh, replica="replica")
    >>> tables = recsys.shard_tables({"ad": np.ones((2, 1), "float32")}, layout)
    >>> specs = recsys.partition_specs(tables)
    >>> f = fg.shard_map(
    ...     lambda t: recsys.average_replicas(tree.map(lambda x: x * lax.axis_index("replica"), t)),
    ...     mesh=mesh,
    ...     in_specs=(specs,),
    ...     out_specs=specs,
    ... )
    >>> recsys.gather_tables(f(tables))["ad"].tolist()
    [[0.5], [0.5]]
    """
    if every < 1:
        raise ArgumentError(f"recsys.average_replicas: every must be 1 or more, got {every}")

    def mean(x: Any) -> Any:
        if not isinstance(x, ShardedTables) or x.layout.replica is None:
            return x
        axis = x.layout.replica
        pools = {k: lax.pvary(lax.pmean(v, axis), axis) for k, v in x.pools.items()}
        return ShardedTables(pools, x.whole, x.layout)

    def averaged(x: Any) -> Any:
        return tree.map(mean, x, is_leaf=lambda x: isinstance(x, ShardedTables))

    if every == 1:
        return averaged(x)
    return lax.cond((step + 1) % every == 0, averaged, lambda x: x, x)


def check_exchange(
    layout: Layout, features: KeyedJaggedTensor, table_of: Mapping[str, str] | None = None
) -> None:
    """Raise ArgumentError, with feature and devices, for a batch whose ids don't find room.

    features: a whole batch in parts, as `split_batch` gives it, on the host. Where a layout has no
    `room`, there is room for all. In a compiled program the bags of such ids are NaN.

    >>> from funcgrad import recsys
    >>> mesh = fg.make_mesh(2, "device")
    >>> layout = recsys.layout({"ad": (8, 2)}, recsys.row_wise(), mesh, room=1.0)
    >>> f = recsys.KeyedJaggedTensor.from_lists({"ad": [[0, 1, 2], [7, 0, 5]]})
    >>> recsys.check_exchange(layout, recsys.split_batch(f, 2, capacity=4))
    Traceback (most recent call last):
    funcgrad.errors.ArgumentError: ...: feature 'ad': device 0 has 3 ids for device 0, but room for
    2 (of 4 values, room=1.0)
    """
    where, table_of = "recsys.check_exchange", table_of or {}
    parts = features.values.shape[0]
    for _, pool in layout.pools:
        if pool.exchange == "table":
            continue
        for entry in entries_of(pool, {k: table_of.get(k, k) for k in features.keys}):
            for device in range(parts):
                x = tree.map(lambda v, i=device: v[i], features)[entry.key]
                ids = np.asarray(x.values)[: int(np.asarray(x.lengths).sum())]
                ids = ids[(ids >= 0) & (ids < entry.shard.rows)]
                room = room_of(layout, pool, x.capacity)
                counts = np.bincount(ids // entry.shard.block, minlength=1)
                if counts.max(initial=0) > room:
                    raise ArgumentError(
                        f"{where}: feature {entry.key!r}: device {device} has {counts.max()} ids "
                        f"for device {int(counts.argmax())}, but room for {room} (of {x.capacity} "
                        f"values, room={layout.room})"
                    )


# ---- lookups


def sharded_lookup(
    tables: ShardedTables, features: Mapping[str, tuple[str, JaggedTensor]], pooling: bool
) -> dict[str, Any]:
    """Sums of rows by feature, (batch, dim); or without pooling the rows, (capacity, dim).

    features: (table's name, ids) by name. Means are made of sums by the caller.
    """
    layout = tables.layout
    _check_inside(layout)
    ids = {k: _ids(x, layout.spec(t).rows, pooling) for k, (t, x) in features.items()}
    columns: dict[str, dict[int, Any]] = {k: {} for k in features}
    for key, (name, _) in features.items():
        if name in tables.whole:
            columns[key][0] = _whole(tables.whole[name], ids[key], layout)
    for name, pool in layout.pools:
        entries = entries_of(pool, {k: t for k, (t, _) in features.items()})
        if entries:
            found = exchanged(tables.pools[name], pool, layout, entries, ids)
            for entry, x in zip(entries, found, strict=True):
                columns[entry.key][entry.shard.column] = x
    return {
        k: fnp.concatenate([parts[c] for c in sorted(parts)], axis=1) if len(parts) > 1
        else next(iter(parts.values()))
        for k, parts in columns.items()
    }  # fmt: skip


def _check_inside(layout: Layout) -> None:
    missing = [a for a in layout.world.axis_names if a not in context.current().axes]
    if missing:
        raise ShardingError(
            f"recsys: sharded tables are looked up inside of shard_map over "
            f"{layout.world.axis_names}, but "
            f"{missing[0]!r} is no axis here; see funcgrad.shard_map"
        )


def _ids(x: JaggedTensor, rows: int, pooling: bool) -> Ids:
    bags = x.segments()
    valid = (x.values >= 0) & (x.values < rows)
    ids = fnp.where(valid, x.values, fnp.asarray(-1, x.values.dtype))
    if pooling:
        return Ids(ids, bags, x.lengths, x.weights, x.batch)
    place = fnp.arange(x.capacity, dtype=bags.dtype)
    used = bags < x.batch
    own = fnp.where(used, place, fnp.asarray(x.capacity, bags.dtype))
    return Ids(ids, own, used.astype("int32"), None, x.capacity)


def _whole(table: Any, x: Ids, layout: Layout) -> Any:
    plain = table if isinstance(table, Tapped) else as_table("recsys: a table", table)
    ends = fnp.cumsum(x.lengths, dtype="int32")
    bounds = ends - x.lengths.astype("int32"), ends
    return pooled(plain, x.ids, bounds, x.weights, layout.world.axis_names)
