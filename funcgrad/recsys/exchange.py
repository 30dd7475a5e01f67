"""Ids to the devices that have their rows, and what is read there back, for one pool of rows.

To each device go the ids of which it has the rows, bag by bag, behind how many each bag has of
them: sizes are static, so there is room for so many ids, and the rest is padding. There each bag's
rows are summed, and the sums come back; of a table whose rows are cut a part from each device.
Where ids don't find room, their bag becomes NaN: never a sum of fewer rows (see `check_exchange`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.recsys.layouts import Layout, Pool, Shard
from funcgrad.recsys.lookups import Tapped, pooled
from funcgrad.recsys.tables import as_table
from funcgrad.recsys.wire import coded_all_to_all


class Ids(NamedTuple):
    """A feature's (n,) ids, -1 for those that are no rows; the bag of each, `size` for padding;
    and how many ids each of `size` bags has."""

    ids: Any
    bags: Any
    lengths: Any
    weights: Any
    size: int


class Entry(NamedTuple):
    """A feature that reads a shard. slot: its number among those of the same place."""

    key: str
    shard: Shard
    slot: int


class _Block(NamedTuple):
    """What goes to one device, or to several: (…, room) rows and weights, (…, size) lengths."""

    rows: Any
    lengths: Any
    weights: Any


def entries_of(pool: Pool, tables: Mapping[str, str]) -> list[Entry]:
    """The features that read shards of a pool, one after the other. tables: of each feature."""
    taken: dict[int, int] = {}
    found = []
    for key, table in tables.items():
        for shard in pool.shards:
            if shard.table == table:
                slot = taken.get(shard.place, 0)
                taken[shard.place] = slot + 1
                found.append(Entry(key, shard, slot))
    return found


def room_of(layout: Layout, pool: Pool, capacity: int) -> int:
    """For how many of a feature's ids there is room on their way to one device."""
    if pool.exchange == "table" or layout.room is None:
        return capacity
    among = layout.mesh.size if pool.exchange == "row" else layout.mesh.axis_sizes[-1]
    return min(capacity, math.ceil(layout.room * capacity / among))


class Arrived(NamedTuple):
    """What came to a device for one pool: (devices, n) lengths and ids side by side, weights or
    None; and, of the device's own bags, which are lost, for each entry."""

    ids: Any
    weights: Any
    lost: list[Any]


def send(pool: Pool, layout: Layout, entries: Sequence[Entry], ids: Mapping[str, Ids]) -> Arrived:
    """Ids on their way to the devices that have their rows."""
    rooms, count = _sizes(pool, layout, entries, ids)
    sent, lost = _outgoing(pool, layout, entries, ids, rooms, count)
    came = lax.all_to_all(fnp.concatenate(sent[:2], axis=1), layout.axes, 0, 0, tiled=True)
    weights = sent[2]
    if weights is not None:
        weights = lax.all_to_all(weights, layout.axes, 0, 0, tiled=True)
    return Arrived(came, weights, lost)


def look_up(
    table: Any,
    pool: Pool,
    layout: Layout,
    entries: Sequence[Entry],
    ids: Mapping[str, Ids],
    arrived: Arrived,
) -> list[Any]:
    """(size, width) for each entry: sums of its bags' rows, which are read where ids arrived."""
    devices = layout.mesh.size
    rooms, count = _sizes(pool, layout, entries, ids)
    slots, weights = len(rooms), arrived.weights
    lengths = arrived.ids[:, : slots * count].reshape(devices, slots, count)
    out = pooled(
        table if isinstance(table, Tapped) else as_table("recsys: a pool", table),
        arrived.ids[:, slots * count :].reshape(-1), _bounds(lengths, rooms),
        None if weights is None else weights.reshape(-1), scale=layout.replicas,
    )  # fmt: skip
    back = _returned(out.reshape(devices, slots, count, pool.width), pool, layout)
    found = []
    for e, none in zip(entries, arrived.lost, strict=True):
        x = back[e.slot] if pool.exchange == "row" else back[e.shard.place, e.slot]
        x = x[: ids[e.key].size]
        found.append(fnp.where(none[:, None], fnp.asarray(fnp.nan, x.dtype), x))
    return found


def _sizes(
    pool: Pool, layout: Layout, entries: Sequence[Entry], ids: Mapping[str, Ids]
) -> tuple[list[int], int]:
    """For how many ids there is room in each slot, and for how many bags in all of them."""
    rooms = [0] * (1 + max(e.slot for e in entries))
    for e in entries:
        room = room_of(layout, pool, ids[e.key].ids.shape[0])
        rooms[e.slot] = max(rooms[e.slot], room)
    return rooms, max(ids[e.key].size for e in entries)


def _bounds(lengths: Any, rooms: Sequence[int]) -> tuple[Any, Any]:
    """Where each bag begins and ends among all ids that came, device by device."""
    devices, slots = lengths.shape[:2]
    ends = fnp.cumsum(lengths, axis=2, dtype="int32")
    first = fnp.asarray([sum(rooms[:s]) for s in range(slots)], "int32")[:, None]
    first = first + fnp.arange(devices, dtype="int32")[:, None, None] * sum(rooms)
    return (first + ends - lengths).reshape(-1), (first + ends).reshape(-1)


def _returned(out: Any, pool: Pool, layout: Layout) -> Any:
    """Sums (devices, slots, count, width) on their way back: (slots, count, width), or such ones
    by the device or the node that they come from."""
    axes, wire = layout.axes, layout.wire
    if pool.exchange == "table":
        return coded_all_to_all(out, axes, wire)
    if pool.exchange == "row":
        return _summed(out, axes, 0, wire)
    nodes, local = layout.mesh.axis_sizes
    out = out.reshape(nodes, local, *out.shape[1:])
    return coded_all_to_all(_summed(out, axes[1:], 1, wire), axes[:1], wire)


def _summed(x: Any, axes: tuple[str, ...], axis: int, wire: str | None) -> Any:
    """Reduce-scatter; of what is coded, parts are exchanged and summed in float32."""
    if wire is None:
        return lax.psum_scatter(x, axes, scatter_dimension=axis)
    parts = coded_all_to_all(fnp.moveaxis(x, axis, 0), axes, wire)
    return fnp.sum(parts, axis=0)


def _outgoing(
    pool: Pool,
    layout: Layout,
    entries: Sequence[Entry],
    ids: Mapping[str, Ids],
    rooms: Sequence[int],
    count: int,
) -> tuple[tuple[Any, Any, Any], list[Any]]:
    """(devices, …) lengths, rows, and weights or None; and for each entry, which bags are lost."""
    devices, local = layout.mesh.size, layout.mesh.axis_sizes[-1]
    weighted = any(ids[e.key].weights is not None for e in entries)
    blocks: list[list[_Block | None]] = [[None] * devices for _ in rooms]
    lost = []
    for e in entries:
        x, room = ids[e.key], rooms[e.slot]
        if weighted and x.weights is None:
            x = x._replace(weights=fnp.ones(x.ids.shape, fnp.float32))
        if pool.exchange == "table":
            rows = fnp.where(x.ids < 0, -1, x.ids + e.shard.offset).astype("int32")
            blocks[e.slot][e.shard.place] = _Block(rows, x.lengths.astype("int32"), x.weights)
            lost.append(fnp.zeros(x.size, bool))
            continue
        first, among = (0, devices) if e.shard.place < 0 else (e.shard.place * local, local)
        each, none = _bucketized(x, e.shard, among, min(room, x.ids.shape[0]))
        lost.append(none)
        for i in range(among):
            part = None if each.weights is None else each.weights[i]
            blocks[e.slot][first + i] = _Block(each.rows[i], each.lengths[i], part)
    return _stacked(blocks, rooms, count, weighted), lost


def _bucketized(x: Ids, shard: Shard, among: int, room: int) -> tuple[_Block, Any]:
    """A feature's ids by the device that has their rows; and the bags of which ids are lost."""
    n = x.ids.shape[0]
    there, bags = x.bags < x.size, x.bags.astype("int32")
    good = there & (x.ids >= 0)
    owner = fnp.where(good, x.ids // shard.block, among).astype("int32")
    rows = fnp.where(good, x.ids % shard.block + shard.offset, 0).astype("int32")
    weights = () if x.weights is None else (x.weights,)
    # Bags ascend, and the sort is stable: each device gets bag after bag.
    owner, bags_of, *values = lax.sort((owner, bags, rows, *weights), num_keys=1, is_stable=True)
    first = fnp.searchsorted(owner, fnp.arange(among + 1, dtype="int32")).astype("int32")
    rank = fnp.arange(n, dtype="int32") - first.at[owner].get(mode="clip")
    kept = (owner < among) & (rank < room)
    at = fnp.where(kept, owner * room + rank, among * room)
    moved = [
        fnp.zeros(among * room, v.dtype).at[at].set(v, mode="drop").reshape(among, room)
        for v in values
    ]
    bag = fnp.where(kept, owner * x.size + bags_of, among * x.size)
    lengths = fnp.zeros(among * x.size, "int32").at[bag].add(1, mode="drop")
    lost = fnp.zeros(x.size, "int32").at[fnp.where(there & ~good, bags, x.size)].set(1, mode="drop")
    if room < n:
        over = fnp.where((owner < among) & ~kept, bags_of, x.size)
        lost = lost.at[over].set(1, mode="drop")
    found = _Block(moved[0], lengths.reshape(among, x.size), moved[1] if weights else None)
    return found, lost > 0


def _stacked(
    blocks: Sequence[Sequence[_Block | None]], rooms: Sequence[int], count: int, weighted: bool
) -> tuple[Any, Any, Any]:
    """Blocks by slot and device as arrays (devices, …), slots beside each other, padded with
    zeros."""

    def joined(which: int, sizes: Sequence[int], dtype: Any) -> Any:
        slots = []
        for slot, size in zip(blocks, sizes, strict=True):
            parts = []
            for block in slot:
                x = fnp.zeros(0, dtype) if block is None else block[which].astype(dtype)
                parts.append(fnp.pad(x, (0, size - x.shape[0])) if x.shape[0] < size else x)
            slots.append(fnp.stack(parts))
        return fnp.concatenate(slots, axis=1)

    counts = [count] * len(rooms)
    weights = joined(2, rooms, "float32") if weighted else None
    return joined(1, counts, "int32"), joined(0, rooms, "int32"), weights
