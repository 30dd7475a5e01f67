"""Tables on many devices: putting them there, taking them back, and averages of replicas.

Each device has its blocks of the layout's pools; the blocks of all devices are one array, cut along
its rows, so that optimizers, donation and checkpoints take a tree of such arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.sharding import Mesh, NamedSharding, P
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel.arrays import make_array_from_callback, reshard
from funcgrad.recsys.jagged import capacity_of
from funcgrad.recsys.keyed import KeyedJaggedTensor
from funcgrad.recsys.layouts import Layout, Pool, Shard, dtype_of
from funcgrad.recsys.tables import BITS, QuantizedTable


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
        table = tables.get(name)
        shape = getattr(table, "shape", None)
        if shape != (spec.rows, spec.dim):
            raise ShardingError(
                f"recsys.shard_tables: the layout has a table {name!r} of {(spec.rows, spec.dim)}, "
                f"got {shape}"
            )
        few = isinstance(table, QuantizedTable) or spec.dtype in BITS
        if few and dtype_of(table) != spec.dtype:
            raise ShardingError(
                f"recsys.shard_tables: the layout has a table {name!r} of {spec.dtype}, got one of "
                f"{dtype_of(table)}"
            )
    return _sharded({k: tree.map(np.asarray, tables[k]) for k, _ in layout.tables}, layout)


def reshard_tables(x: Any, layout: Layout) -> Any:
    """A tree with sharded tables in it (tables, an optimizer's state) on the devices of another
    layout, all rows to the bit; arrays that are whole stay so.

    Raises ShardingError for row-wise sums of a table whose columns are cut otherwise: there is one
    for each block of columns.

    >>> from funcgrad import recsys
    >>> tables = {"ad": np.arange(10.0, dtype="float32").reshape(5, 2)}
    >>> two, four = (
    ...     recsys.layout(tables, recsys.row_wise(), fg.make_mesh(n, "device")) for n in (2, 4)
    ... )
    >>> moved = recsys.reshard_tables(recsys.shard_tables(tables, two), four)
    >>> moved.layout is four, recsys.gather_tables(moved)["ad"].tolist() == tables["ad"].tolist()
    (True, True)
    """

    def moved(x: Any) -> Any:
        if not isinstance(x, ShardedTables):
            return put(x, layout.world)
        sums = any(len(a.shape) == 1 for a in tree.leaves(x, is_leaf=_few_bits))
        for name, spec in x.layout.tables if sums else ():
            before, now = spec.sharding, layout.spec(name).sharding
            if before.columns != now.columns:
                raise ShardingError(
                    f"recsys.reshard_tables: table {name!r} has sums for {before.columns} blocks "
                    f"of columns, its new layout {now.columns}"
                )
        return _sharded(gather_tables(x), layout, sums)

    return tree.map(moved, x, is_leaf=lambda x: isinstance(x, ShardedTables))


def _few_bits(x: Any) -> bool:
    return isinstance(x, QuantizedTable)


def begin_rows(x: Any, table: str, rows: Any, value: Any = 0) -> Any:
    """A tree with sharded tables in it, of whose table some rows are begun anew, in `shard_map`.

    rows: (n,) rows of the whole table that this device has (`zch_update` gives them); it passes
    over all others. Of a table that all devices have whole, all must give the same rows. value: a
    number, or for tables (n, dim) rows.

    >>> from funcgrad import recsys
    >>> layout = recsys.layout({"ad": (4, 1)}, recsys.row_wise(), fg.make_mesh(2, "device"))
    >>> tables = recsys.shard_tables({"ad": np.ones((4, 1), "float32")}, layout)
    >>> specs = recsys.partition_specs(tables)
    >>> f = fg.shard_map(
    ...     lambda t: recsys.begin_rows(t, "ad", fnp.array([0, 3])),
    ...     mesh=layout.mesh,
    ...     in_specs=(specs,),
    ...     out_specs=specs,
    ... )
    >>> recsys.gather_tables(f(tables))["ad"].ravel().tolist()
    [0.0, 1.0, 1.0, 0.0]
    """

    rows = fnp.asarray(rows)

    def begun(x: Any) -> Any:
        if not isinstance(x, ShardedTables):
            return x
        spec, pools, whole = x.layout.spec(table), dict(x.pools), dict(x.whole)
        if spec.dtype in BITS:
            raise ArgumentError(
                f"recsys.begin_rows: table {table!r} is of {spec.dtype}, which isn't trained"
            )
        if spec.sharding.kind == "data_parallel":
            whole[table] = whole[table].at[rows].set(value, mode="drop")
        for name, pool in x.layout.pools:
            for shard in (s for s in pool.shards if s.table == table):
                part, there = _part(x.layout, pool, shard)
                local = rows - part * shard.block
                inside = (local >= 0) & (local < shard.block) & (rows < shard.rows) & there
                at = fnp.where(inside, local + shard.offset, pool.rows)
                new = value if fnp.ndim(value) < 2 else value[:, shard.column :][:, : shard.width]
                pools[name] = pools[name].at[at].set(new, mode="drop")
        return ShardedTables(pools, whole, x.layout)

    return tree.map(begun, x, is_leaf=lambda x: isinstance(x, ShardedTables))


def _part(layout: Layout, pool: Pool, shard: Shard) -> tuple[Any, Any]:
    """Which part of a shard's rows a device has, and whether it has one; in `shard_map`."""
    device, local = lax.axis_index(layout.axes), layout.mesh.axis_sizes[-1]
    if pool.exchange == "row":
        return device, True
    if pool.exchange == "table":
        return 0, device == shard.place
    return device % local, device // local == shard.place


def _sharded(arrays: Mapping[str, Any], layout: Layout, sums: bool = False) -> ShardedTables:
    """Whole tables, cut. sums: they are numbers of rows instead, (rows,), or (rows, blocks) where
    there is one for each block of columns."""

    def part(shard: Shard) -> Any:
        table = arrays[shard.table]
        if isinstance(table, QuantizedTable):
            return table.columns(shard.column, shard.width)
        if not sums:
            return table[:, shard.column : shard.column + shard.width]
        spec = layout.spec(shard.table)
        columns = [spec.dim * i // spec.sharding.columns for i in range(spec.sharding.columns)]
        return table if table.ndim == 1 else table[:, columns.index(shard.column)]

    pools = {
        name: tree.map(partial(_pooled, layout, pool), *map(part, pool.shards))
        for name, pool in layout.pools
    }
    replicas = NamedSharding(layout.world, P())
    whole = {
        name: tree.map(
            lambda x: make_array_from_callback(x.shape, replicas, x.__getitem__), arrays[name]
        )
        for name, spec in layout.tables
        if spec.sharding.kind == "data_parallel"
    }
    return ShardedTables(pools, whole, layout)


def _pooled(layout: Layout, pool: Pool, *parts: np.ndarray) -> Any:
    """The blocks of all devices, of what each shard of a pool has."""
    like, numbers = parts[0], {shard: i for i, shard in enumerate(pool.shards)}

    def block(index: tuple[slice, ...]) -> np.ndarray:
        found = np.zeros((pool.rows, *like.shape[1:]), like.dtype)
        device = layout.member((index[0].start or 0) // pool.rows)
        for shard, rows, at in layout.pieces(pool, device):
            found[at] = parts[numbers[shard]][rows]
        return found

    shape = (pool.rows * layout.world.size, *like.shape[1:])
    cut = NamedSharding(layout.world, P(layout.world.axis_names))
    return make_array_from_callback(shape, cut, block)


def gather_tables(tables: ShardedTables) -> dict[str, Any]:
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

    def here(x: Any) -> Any:
        return tree.map(lambda a: np.asarray(reshard(a, everywhere)), x)

    found = {k: here(x) for k, x in tables.whole.items()}
    columns: dict[str, dict[int, Any]] = {}
    for name, pool in layout.pools:
        whole = here(tables.pools[name])
        for shard in pool.shards:
            part = tree.map(partial(_unpooled, layout, pool, shard), whole)
            columns.setdefault(shard.table, {})[shard.column] = part
    for name, parts in columns.items():
        found[name] = _side_by_side([parts[c] for c in sorted(parts)])
    return {k: found[k] for k, _ in layout.tables}


def _unpooled(layout: Layout, pool: Pool, wanted: Shard, array: np.ndarray) -> np.ndarray:
    """The rows of a shard, of the blocks of all devices."""
    found = np.zeros((wanted.rows, *array.shape[1:]), array.dtype)
    for device in range(layout.world.size):
        block = array[device * pool.rows : (device + 1) * pool.rows]
        for shard, rows, at in layout.pieces(pool, layout.member(device)):
            if shard is wanted:
                found[rows] = block[at]
    return found


def _side_by_side(blocks: list) -> Any:
    """A table of its blocks of columns, or a column for each where they are numbers of rows."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if isinstance(first, QuantizedTable):
        values = np.concatenate([b.values for b in blocks], axis=1)
        static = first.bits, sum(b.dim for b in blocks)
        return QuantizedTable.tree_unflatten(static, (values, first.scales))
    return np.concatenate(blocks, 1) if first.ndim == 2 else np.stack(blocks, 1)


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

    Of whole numbers (when rows were last read, of `adam`) all get the largest. The loss is the mean
    over all devices. Each replica takes the step of its own part of the batch: with plain gradient
    descent and every = 1 that is the same as to average gradients.

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

        def same(v: Any) -> Any:
            if _few_bits(v):
                return v
            over = lax.pmean if dtypes.is_float(v.dtype) else lax.pmax
            return lax.pvary(over(v, axis), axis)

        return ShardedTables({k: same(v) for k, v in x.pools.items()}, x.whole, x.layout)

    def averaged(x: Any) -> Any:
        return tree.map(mean, x, is_leaf=lambda x: isinstance(x, ShardedTables))

    if every == 1:
        return averaged(x)
    return lax.cond((step + 1) % every == 0, averaged, lambda x: x, x)
