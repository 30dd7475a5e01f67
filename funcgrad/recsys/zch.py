"""Zero-collision hashing: rows for raw 64-bit ids, without two live ids at one row.

A state keeps which ids have rows, in buckets: an id's bucket follows from its hash, and each bucket
has its own rows, of which the last one is for all ids that have none. Now and then ids that were
seen are let in, in place of those that are least worth keeping (as TorchRec's managed collision
modules do). The state is a tree of arrays, bucket after bucket: cut over devices, whole buckets
move, and every id keeps its row; in `shard_map` each device looks after its own buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, tree
from funcgrad.core.sharding import Mesh, NamedSharding, P
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, ShardingError
from funcgrad.ops.indexing.segment import segment_sum
from funcgrad.parallel.arrays import device_put

POLICIES = ("lfu", "lru", "distance_lfu")
NONE = (1 << 63) - 1  # stands for no id, behind all others; it is none itself


@dataclass(frozen=True)
class ZCHConfig:
    """rows: of the table, shared by the buckets; policy: which ids stay, by how often they were
    seen ("lfu"), how lately ("lru"), or count / age^decay ("distance_lfu"); admit: how often an id
    must be seen at once to be let in.

    >>> from funcgrad import recsys
    >>> recsys.ZCHConfig(rows=1536).per_bucket
    2
    """

    rows: int
    buckets: int = 768
    policy: str = "lfu"
    decay: float = 1.0
    admit: int = 1

    def __post_init__(self) -> None:
        if self.buckets < 1 or self.rows % self.buckets or self.rows // self.buckets < 2:
            raise ArgumentError(
                f"recsys.ZCHConfig: {self.rows} rows can't be shared among {self.buckets} buckets "
                "of two or more"
            )
        if self.policy not in POLICIES:
            raise ArgumentError(
                f"recsys.ZCHConfig: policy must be one of {POLICIES}, got {self.policy!r}"
            )
        if self.admit < 1:
            raise ArgumentError(f"recsys.ZCHConfig: admit must be 1 or more, got {self.admit}")

    @property
    def per_bucket(self) -> int:
        """How many rows a bucket has."""
        return self.rows // self.buckets


class ZCHState(NamedTuple):
    """For each bucket as many entries as it has rows, by ascending id; `NONE` for free ones.

    ids, rows: raw ids and their rows; counts, last: how often each was seen, and when last; step:
    how many updates there were.
    """

    ids: Any
    rows: Any
    counts: Any
    last: Any
    step: Any


def zch_init(cfg: ZCHConfig) -> ZCHState:
    """A state in which no id has a row of its own.

    >>> from funcgrad import recsys
    >>> recsys.zch_init(recsys.ZCHConfig(rows=4, buckets=2)).rows
    Array([1, 1, 3, 3], dtype=int32)
    """
    last = fnp.arange(cfg.rows, dtype="int32") // cfg.per_bucket * cfg.per_bucket
    zeros = fnp.zeros(cfg.rows, "int32")
    return ZCHState(
        fnp.full(cfg.rows, NONE, "int64"), last + cfg.per_bucket - 1, zeros, zeros,
        fnp.zeros((), "int32"),
    )  # fmt: skip


def zch_rows(
    state: ZCHState, ids: Any, cfg: ZCHConfig, axes: str | Sequence[str] | None = None
) -> Any:
    """The rows (int32) of raw ids; that of a bucket's last row for ids that have none.

    axes: in `shard_map`, the mesh axes over which the state is cut (`zch_specs`): each device gives
    its own ids and gets their rows. All devices' ids are gathered, and rows come back in one
    reduce-scatter.

    >>> from funcgrad import recsys
    >>> cfg = recsys.ZCHConfig(rows=8, buckets=1)
    >>> state, _ = recsys.zch_update(recsys.zch_init(cfg), [10**12, 7], cfg)
    >>> recsys.zch_rows(state, [7, 10**12, 5], cfg)
    Array([0, 1, 7], dtype=int32)
    """
    ids = _raw("recsys.zch_rows", ids)
    if axes is None:
        _check("recsys.zch_rows", state, cfg)
        return _rows(state, ids, _bucket(ids, cfg), cfg, 0)
    own, first = _own("recsys.zch_rows", cfg, axes)
    _check("recsys.zch_rows", state, own)
    every = lax.all_gather(ids.reshape(-1), axes, tiled=True)
    bucket = _bucket(every, cfg) - first
    here = (bucket >= 0) & (bucket < own.buckets)
    rows = _rows(state, every, fnp.where(here, bucket, 0), own, first * own.per_bucket)
    return lax.psum_scatter(fnp.where(here, rows, 0), axes, tiled=True).reshape(ids.shape)


def zch_update(
    state: ZCHState,
    ids: Any,
    cfg: ZCHConfig,
    used: Any = None,
    axes: str | Sequence[str] | None = None,
) -> tuple[ZCHState, Any]:
    """Count ids (n,) that were seen, and let new ones in where they are worth more than others.

    used: (n,), which of the ids count (padding doesn't); axes: see `zch_rows`; the ids of all
    devices count together. Returns the state, and (n,) rows that have another id now, to be begun
    anew, as are sums that an optimizer keeps for them: `table.at[rows].set(…, mode="drop")`, or
    `begin_rows` of tables that are cut. Those behind the last are cfg.rows. With axes they are
    those of a device's own buckets, at most as many as these have.

    >>> from funcgrad import recsys
    >>> cfg = recsys.ZCHConfig(rows=3, buckets=1)
    >>> state, _ = recsys.zch_update(recsys.zch_init(cfg), [5, 5, 6, 6, 6], cfg)
    >>> state, rows = recsys.zch_update(state, [8, 8, 8, 6], cfg)
    >>> state.ids[:2], rows
    (Array([6, 8], dtype=int64), Array([1, 3, 3, 3], dtype=int32))
    """
    ids = _raw("recsys.zch_update", ids).reshape(-1)
    none = fnp.asarray(NONE, "int64")
    if not ids.shape[0]:
        return state._replace(step=state.step + 1), fnp.zeros(0, "int32")
    ids = ids if used is None else fnp.where(fnp.asarray(used).reshape(-1), ids, none)
    if axes is None:
        _check("recsys.zch_update", state, cfg)
        return _updated(state, ids, _bucket, cfg)
    own, first = _own("recsys.zch_update", cfg, axes)
    _check("recsys.zch_update", state, own)
    ids = lax.all_gather(ids, axes, tiled=True)
    bucket = _bucket(ids, cfg) - first
    ids = fnp.where((bucket >= 0) & (bucket < own.buckets), ids, none)

    def bucket_of(ids: Any, own: ZCHConfig) -> Any:
        return fnp.clip(_bucket(ids, cfg) - first, 0, own.buckets - 1)

    start = first * own.per_bucket
    state, started = _updated(state._replace(rows=state.rows - start), ids, bucket_of, own)
    started = fnp.where(started < own.rows, started + start, cfg.rows)
    return state._replace(rows=state.rows + start), started


def _updated(
    state: ZCHState, ids: Any, bucket_of: Callable[[Any, ZCHConfig], Any], cfg: ZCHConfig
) -> tuple[ZCHState, Any]:
    """`zch_update` of all buckets that a state has; ids of `NONE` don't count."""
    n, none = ids.shape[0], fnp.asarray(NONE, "int64")
    seen, inverse = fnp.unique(ids, return_inverse=True, size=n, fill_value=none)
    times = segment_sum(fnp.ones(n, "int32"), inverse, n)
    where = bucket_of(seen, cfg)
    place, found = _search(state, seen, where, cfg)
    at = fnp.where(found, place, cfg.rows)
    counts = state.counts.at[at].add(times, mode="drop")
    last = state.last.at[at].set(state.step, mode="drop")
    # Those that have rows and those that want some, side by side.
    new = (seen != none) & ~found & (times >= cfg.admit)
    bucket = fnp.arange(cfg.rows, dtype="int32") // cfg.per_bucket
    every = _Entries(
        fnp.concatenate([bucket, where]),
        fnp.concatenate([state.ids, fnp.where(new, seen, none)]),
        fnp.concatenate([state.rows, fnp.full(n, -1, "int32")]),
        fnp.concatenate([counts, times]),
        fnp.concatenate([last, fnp.full(n, state.step, "int32")]),
    )
    kept = _kept(every, state.step, cfg)
    rows, started = _with_rows(kept, cfg)
    ids, rows, counts, last = _in_order(kept._replace(rows=rows), cfg)
    return ZCHState(ids, rows, counts, last, state.step + 1), started[:n]


def zch_put(state: ZCHState, mesh: Mesh) -> ZCHState:
    """A state cut over all devices of a mesh, whole buckets on each; from another mesh, too.

    The table is cut likewise, along its rows. Raises ShardingError where the devices don't divide
    the entries; `zch_check` says whether they divide the buckets.

    >>> from funcgrad import recsys
    >>> state = recsys.zch_init(recsys.ZCHConfig(rows=8, buckets=4))
    >>> recsys.zch_put(state, fg.make_mesh(2, "device")).ids.sharding.spec
    P('device')
    """
    cut = NamedSharding(mesh, P(mesh.axis_names))
    whole = NamedSharding(mesh, P())
    return tree.map(lambda x: device_put(x, cut if x.ndim else whole), state)


def zch_specs(axes: str | Sequence[str]) -> ZCHState:
    """The `PartitionSpec`s of a state that is cut over mesh axes, for `shard_map`.

    >>> from funcgrad import recsys
    >>> recsys.zch_specs("device").ids, recsys.zch_specs("device").step
    (P('device'), P())
    """
    cut = P(axes) if isinstance(axes, str) else P(tuple(axes))
    return ZCHState(cut, cut, cut, cut, P())


def zch_check(cfg: ZCHConfig, mesh: Mesh) -> None:
    """Raises ShardingError where a mesh's devices can't have equally many whole buckets.

    >>> from funcgrad import recsys
    >>> recsys.zch_check(recsys.ZCHConfig(rows=1536), fg.make_mesh(4, "device"))
    """
    _share("recsys.zch_check", cfg, mesh.size)


def _share(name: str, cfg: ZCHConfig, devices: int) -> ZCHConfig:
    """What each of some devices has of the rows and buckets."""
    if cfg.buckets % devices:
        raise ShardingError(
            f"{name}: {cfg.buckets} buckets can't be shared among {devices} devices"
        )
    return replace(cfg, rows=cfg.rows // devices, buckets=cfg.buckets // devices)


def _own(name: str, cfg: ZCHConfig, axes: str | Sequence[str]) -> tuple[ZCHConfig, Any]:
    """A device's share of the rows and buckets, and its first bucket."""
    own = _share(name, cfg, lax.axis_size(axes))
    return own, lax.axis_index(axes).astype("int32") * own.buckets


def _check(name: str, state: ZCHState, own: ZCHConfig) -> None:
    """Raise where a state isn't one of a device's share of the rows."""
    if aval_of(state.ids).shape != (own.rows,):
        raise ShapeError(
            f"{name}: the state must have the {own.rows} entries of cfg.rows, on each device its "
            f"share, got {aval_of(state.ids)}"
        )


# ---- the parts of an update


class _Entries(NamedTuple):
    """Ids that have or want rows: `NONE` for those that are out; rows of -1 are wanted."""

    bucket: Any
    ids: Any
    rows: Any
    counts: Any
    last: Any


def _raw(name: str, ids: Any) -> Any:
    ids = fnp.asarray(ids if hasattr(ids, "dtype") else np.asarray(ids))
    if not dtypes.is_integer(ids.dtype):
        raise DTypeError(f"{name}: ids must be integers, got {aval_of(ids)}")
    return ids.astype("int64")


def _bucket(ids: Any, cfg: ZCHConfig) -> Any:
    """By splitmix64's finalizer (Steele et al., 2014), which mixes all bits of an id."""
    x = lax.bitcast_convert_type(ids, "uint64")
    x = (x ^ (x >> fnp.uint64(30))) * fnp.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> fnp.uint64(27))) * fnp.uint64(0x94D049BB133111EB)
    x = x ^ (x >> fnp.uint64(31))
    return (x % fnp.uint64(cfg.buckets)).astype("int32")


def _rows(state: ZCHState, ids: Any, bucket: Any, cfg: ZCHConfig, first: Any) -> Any:
    """The row of each id, whose bucket is known; first: the row of the first bucket's."""
    place, found = _search(state, ids, bucket, cfg)
    spare = (bucket + 1) * cfg.per_bucket - 1 + first
    return fnp.where(found, state.rows[place], spare)


def _search(state: ZCHState, ids: Any, bucket: Any, cfg: ZCHConfig) -> tuple[Any, Any]:
    """The entry of each id, and whether it is there: bisection in its bucket."""
    low = bucket * cfg.per_bucket
    end = low + cfg.per_bucket - 1
    size = 1 << max(cfg.per_bucket - 1, 1).bit_length()
    for _ in range(int(math.log2(size))):
        size //= 2
        middle = low + size
        inside = middle <= end
        value = state.ids.at[middle].get(mode="fill", fill_value=NONE)
        low = fnp.where(inside & (value <= ids), middle, low)
    return low, (state.ids[low] == ids) & (ids != NONE)


def _worth(e: _Entries, now: Any, cfg: ZCHConfig) -> Any:
    age = (now - e.last + 1).astype("float32")
    if cfg.policy == "lru":
        return -(age**cfg.decay)
    counts = e.counts.astype("float32")
    return counts if cfg.policy == "lfu" else counts / age**cfg.decay


def _starts(bucket: Any, cfg: ZCHConfig) -> Any:
    """Of entries in the order of their buckets, how many are before each in its own."""
    first = fnp.searchsorted(bucket, fnp.arange(cfg.buckets, dtype="int32"))
    return fnp.arange(bucket.shape[0], dtype="int32") - first.astype("int32")[bucket]


def _kept(e: _Entries, now: Any, cfg: ZCHConfig) -> _Entries:
    """The best of each bucket, by their worth; the others become `NONE`. Of equals, those that
    have rows, then those of smaller ids."""
    none = fnp.asarray(NONE, "int64")
    out = (e.ids == none).astype("int32")
    wants = (e.rows < 0).astype("int32")
    keys = (e.bucket, out, -_worth(e, now, cfg), wants, e.ids)
    bucket, _, _, _, ids, rows, counts, last = lax.sort(
        (*keys, e.rows, e.counts, e.last), num_keys=5
    )
    stays = _starts(bucket, cfg) < cfg.per_bucket - 1
    return _Entries(bucket, fnp.where(stays, ids, none), rows, counts, last)


def _with_rows(e: _Entries, cfg: ZCHConfig) -> tuple[Any, Any]:
    """Rows for those that want some: the free ones of their bucket; and these rows first, cfg.rows
    behind them."""
    live = e.ids != NONE
    wants = live & (e.rows < 0)
    spare = fnp.arange(1, cfg.rows + 1, dtype="int32") % cfg.per_bucket == 0
    taken = spare.at[fnp.where(live & ~wants, e.rows, cfg.rows)].set(True, mode="drop")
    # Number r of the free rows of a bucket stands at place r of it.
    own = fnp.arange(cfg.rows, dtype="int32") // cfg.per_bucket
    number = fnp.cumsum((~taken).reshape(cfg.buckets, -1), axis=1, dtype="int32").reshape(-1) - 1
    place = fnp.where(taken, cfg.rows, own * cfg.per_bucket + number)
    row = fnp.arange(cfg.rows, dtype="int32")
    free = fnp.zeros(cfg.rows, "int32").at[place].set(row, mode="drop")
    before = fnp.cumsum(wants, dtype="int32") - wants
    first = fnp.searchsorted(e.bucket, fnp.arange(cfg.buckets, dtype="int32"))
    ours = before - before[first][e.bucket]
    given = free.at[e.bucket * cfg.per_bucket + ours].get(mode="clip")
    started = fnp.sort(fnp.where(wants, given, cfg.rows))
    return fnp.where(wants, given, e.rows), started


def _in_order(e: _Entries, cfg: ZCHConfig) -> tuple:
    """Entries by bucket and id, as many of each bucket as it has rows."""
    bucket, ids, rows, counts, last = lax.sort((*e,), num_keys=2)
    place = _starts(bucket, cfg)
    at = fnp.where(place < cfg.per_bucket, bucket * cfg.per_bucket + place, cfg.rows)
    live = ids != NONE
    spare = (bucket + 1) * cfg.per_bucket - 1
    values = (ids, fnp.where(live, rows, spare), counts * live, last * live)
    return tuple(fnp.zeros(cfg.rows, v.dtype).at[at].set(v, mode="drop") for v in values)
