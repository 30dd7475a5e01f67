"""Lookups in tables on many devices, inside of `shard_map`, by exchanges of ids and of rows.

Ids go to the devices that have their rows (all-to-all); there they are looked up and pooled for all
devices; the results come back: by all-to-all from tables on one device, by reduce-scatter where a
table's rows are cut, as each device then has a part of each sum. Derivatives are those of the
collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core import context
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.recsys.exchange import Arrived, Ids, entries_of, look_up, room_of, send
from funcgrad.recsys.jagged import JaggedTensor
from funcgrad.recsys.keyed import KeyedJaggedTensor
from funcgrad.recsys.layouts import Layout
from funcgrad.recsys.lookups import Tapped, pooled
from funcgrad.recsys.sharded import ShardedTables
from funcgrad.recsys.tables import as_table


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


@tree.register_pytree_node_class
class ArrivedIds:
    """A batch whose ids are where their rows are: what `exchange_ids` gives, and `embedding_bag`
    takes in place of features. A tree of arrays of which each device has its own part."""

    def __init__(self, features: Any, pools: dict[str, Arrived], static: tuple):
        self.features, self.pools, self._static = features, pools, static

    @property
    def named(self) -> dict[str, tuple[str, JaggedTensor]]:
        """(its table's name, its ids) of each feature."""
        tables = dict(self._static)
        return {k: (tables.get(k, k), x) for k, x in self.features.features().items()}

    def tree_flatten(self) -> tuple:
        """For `tree`: the batch, and what came for each pool."""
        return (self.features, self.pools), self._static

    @classmethod
    def tree_unflatten(cls, static: tuple, children: Iterable) -> ArrivedIds:
        """For `tree`."""
        features, pools = children
        return cls(features, pools, static)


def exchange_ids(
    layout: Layout, features: KeyedJaggedTensor, table_of: Mapping[str, str] | None = None
) -> ArrivedIds:
    """The exchange of ids alone, inside of `shard_map`: `embedding_bag(tables, arrived)` does the
    rest. So that a step can look up one batch while the ids of the next one travel (`overlapped`).

    >>> from funcgrad import recsys
    >>> mesh = fg.make_mesh(2, "device")
    >>> layout = recsys.layout({"ad": (4, 1)}, recsys.row_wise(), mesh)
    >>> f = recsys.KeyedJaggedTensor.from_lists({"ad": [[0], [3]]})
    >>> send = lambda f: recsys.exchange_ids(layout, tree.map(lambda x: x[0], f))
    >>> P = fg.P("device")
    >>> arrived = fg.shard_map(send, mesh=mesh, in_specs=P, out_specs=P)(recsys.split_batch(f, 2))
    >>> [x.ids.shape for x in arrived.pools.values()]
    [(4, 3)]
    """
    _check_inside(layout)
    static = tuple((table_of or {}).items())
    named = ArrivedIds(features, {}, static).named
    ids = {k: _ids(x, layout.spec(t).rows, True) for k, (t, x) in named.items()}
    pools = {}
    for name, pool in layout.pools:
        entries = entries_of(pool, {k: t for k, (t, _) in named.items()})
        if entries:
            pools[name] = send(pool, layout, entries, ids)
    return ArrivedIds(features, pools, static)


def overlapped(
    step: Callable[[Any, Any, Any, Any], tuple[Any, Any, Any]],
    start: Callable[[Any], Any],
    state: Any,
    batches: Iterable[Any],
) -> Iterator[tuple[Any, Any]]:
    """(state, result) after each batch, where the ids of a batch travel during the step before.

    step(state, arrived, batch, following) gives (state, arrived ids of the following batch,
    result): one compiled program, in which `exchange_ids` of the following batch and the work on
    this one don't wait for each other; start(batch) gives the arrived ids of the first batch. The
    last batch follows itself, and what arrives then is dropped.

    >>> from funcgrad import recsys
    >>> step = lambda total, arrived, batch, following: (total + arrived, 10 * following, batch)
    >>> list(recsys.overlapped(step, lambda batch: 10 * batch, 0, [1, 2, 3]))
    [(10, 1), (30, 2), (60, 3)]
    """
    source = iter(batches)
    for batch in source:
        arrived = start(batch)
        for following in source:
            state, arrived, result = step(state, arrived, batch, following)
            yield state, result
            batch = following
        state, _, result = step(state, arrived, batch, batch)
        yield state, result


def sharded_lookup(
    tables: ShardedTables,
    features: Mapping[str, tuple[str, JaggedTensor]],
    pooling: bool,
    arrived: Mapping[str, Arrived] | None = None,
) -> dict[str, Any]:
    """Sums of rows by feature, (batch, dim); or without pooling the rows, (capacity, dim).

    features: (table's name, ids) by name; arrived: what came for each pool, where ids were sent
    before. Means are made of sums by the caller.
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
        if not entries:
            continue
        came = send(pool, layout, entries, ids) if arrived is None else arrived[name]
        found = look_up(tables.pools[name], pool, layout, entries, ids, came)
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
