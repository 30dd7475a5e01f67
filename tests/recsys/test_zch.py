"""Rows for raw ids against dictionaries: nobody's row is another's, and the best stay."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import recsys, tree
from funcgrad.errors import ArgumentError, DTypeError, ShardingError
from funcgrad.recsys import ZCHConfig
from funcgrad.recsys.zch import NONE, _bucket


class Oracle:
    """The same by dictionaries: for each bucket, id → [row, count, last]."""

    def __init__(self, cfg):
        self.cfg, self.step = cfg, 0
        self.buckets = [{} for _ in range(cfg.buckets)]

    def bucket(self, i):
        return int(_bucket(np.asarray([i], "int64"), self.cfg)[0])

    def worth(self, entry):
        age = np.float32(self.step - entry[2] + 1)
        if self.cfg.policy == "lru":
            return -(age ** np.float32(self.cfg.decay))
        if self.cfg.policy == "lfu":
            return entry[1]
        return np.float32(entry[1]) / age ** np.float32(self.cfg.decay)

    def update(self, ids):
        started = []
        counts = dict(zip(*np.unique(ids, return_counts=True), strict=True))
        of = {i: self.bucket(i) for i in counts}
        for b, live in enumerate(self.buckets):
            new = {}
            for i, n in ((i, n) for i, n in counts.items() if of[i] == b):
                if i in live:
                    live[i][1] += n
                    live[i][2] = self.step
                elif n >= self.cfg.admit:
                    new[i] = [None, n, self.step]
            every = {**live, **new}
            best = sorted(every, key=lambda i: (-self.worth(every[i]), i in new, i))
            kept = {i: every[i] for i in best[: self.cfg.per_bucket - 1]}
            first = b * self.cfg.per_bucket
            taken = {e[0] for i, e in kept.items() if i not in new}
            free = [r for r in range(first, first + self.cfg.per_bucket - 1) if r not in taken]
            for i, e in kept.items():
                if i in new:
                    e[0] = free.pop(0)
                    started.append(e[0])
            self.buckets[b] = kept
        self.step += 1
        return sorted(started)

    def row(self, i):
        b = self.bucket(i)
        return self.buckets[b].get(i, [(b + 1) * self.cfg.per_bucket - 1])[0]


def drawn(rng, n=60):
    """Raw ids of a Zipf law, negative ones too."""
    return (rng.zipf(1.3, n) * 7919 * (1 << 20)).astype("int64") * rng.choice([-1, 1], n)


@pytest.mark.parametrize(
    ("policy", "buckets", "admit"), [("lfu", 1, 1), ("lru", 4, 1), ("distance_lfu", 4, 2)]
)
def test_as_dictionaries(rng, policy, buckets, admit):
    cfg = ZCHConfig(rows=48, buckets=buckets, policy=policy, decay=0.7, admit=admit)
    state, oracle = recsys.zch_init(cfg), Oracle(cfg)
    update = fg.jit(recsys.zch_update, static_argnums=2)
    rows_of = fg.jit(recsys.zch_rows, static_argnums=2)
    for _ in range(8):
        ids = drawn(rng)
        state, started = update(state, ids, cfg)
        want = oracle.update(ids.tolist())
        assert [r for r in started.tolist() if r < cfg.rows] == want
        assert rows_of(state, ids, cfg).tolist() == [oracle.row(i) for i in ids.tolist()]
    live = np.asarray(state.ids) != NONE
    assert live.sum() == sum(map(len, oracle.buckets))
    assert len(set(np.asarray(state.rows)[live].tolist())) == live.sum()


def test_many_ids_never_share_a_row(rng):
    cfg = ZCHConfig(rows=768 * 16)
    state = recsys.zch_init(cfg)
    update = fg.jit(recsys.zch_update, static_argnums=2)
    for _ in range(3):
        ids = rng.zipf(1.1, 20_000).astype("int64")
        before = dict(zip(np.asarray(state.ids).tolist(), np.asarray(state.rows).tolist(),
                          strict=True))  # fmt: skip
        state, started = update(state, ids, cfg)
        live = np.asarray(state.ids) != NONE
        rows = np.asarray(state.rows)[live]
        assert len(set(rows.tolist())) == live.sum() > 2000
        now = dict(zip(np.asarray(state.ids)[live].tolist(), rows.tolist(), strict=True))
        fresh = set(started.tolist())
        assert all(now[i] == before[i] for i in now if i in before)
        assert all(now[i] in fresh for i in now if i not in before)


def test_padding_does_not_count():
    cfg = ZCHConfig(rows=8, buckets=2)
    state, _ = recsys.zch_update(recsys.zch_init(cfg), [1, 2, 3], cfg, used=[True, False, True])
    assert sorted(i for i in state.ids.tolist() if i != NONE) == [1, 3]
    again, rows = recsys.zch_update(state, np.zeros(0, "int64"), cfg)
    assert rows.shape == (0,)
    assert again.step == 2


def test_cut_anew_every_id_keeps_its_row(rng):
    cfg = ZCHConfig(rows=64, buckets=8)
    ids = drawn(rng)
    state, _ = recsys.zch_update(recsys.zch_init(cfg), ids, cfg)
    table = rng.normal(size=(64, 4)).astype("float32")
    rows = recsys.zch_rows(state, ids, cfg)
    moved = state
    for devices in (4, 2, 8, 4):
        mesh = fg.make_mesh(devices, "device")
        recsys.zch_check(cfg, mesh)
        moved = recsys.zch_put(moved, mesh)
        held = fg.device_put(table, fg.NamedSharding(mesh, fg.P("device")))
        assert moved.ids.sharding.mesh.size == devices
        for shard, part in zip(moved.rows.addressable_shards, held.addressable_shards, strict=True):
            there, own = np.asarray(shard.data), shard.index[0]
            assert ((own.start or 0) <= there).all()
            assert part.index[0] == own
        np.testing.assert_array_equal(recsys.zch_rows(moved, ids, cfg), rows)
    for a, b in zip(tree.leaves(moved), tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ShardingError, match="8 buckets can't be shared among 3 devices"):
        recsys.zch_check(cfg, fg.make_mesh(3, "device"))


def test_refused():
    with pytest.raises(ArgumentError, match="10 rows can't be shared among 4 buckets"):
        ZCHConfig(rows=10, buckets=4)
    with pytest.raises(ArgumentError, match="4 rows can't be shared among 4 buckets"):
        ZCHConfig(rows=4, buckets=4)
    with pytest.raises(ArgumentError, match="policy must be one of"):
        ZCHConfig(rows=8, buckets=4, policy="fifo")
    cfg = ZCHConfig(rows=8, buckets=4)
    with pytest.raises(DTypeError, match="zch_rows: ids must be integers"):
        recsys.zch_rows(recsys.zch_init(cfg), [1.5], cfg)
