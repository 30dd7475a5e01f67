"""Rows for raw ids against dictionaries: nobody's row is another's, and the best stay."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, recsys, tree
from funcgrad.errors import ArgumentError, DTypeError, ShapeError, ShardingError
from funcgrad.io.checkpoints import checkpoint
from funcgrad.parallel import P
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


class Sorted:
    """What an LFU hash keeps and evicts, by NumPy's sorts: ids, counts and buckets of the live."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.ids, self.counts, self.bucket = (np.zeros(0, "int64") for _ in range(3))

    def update(self, ids):
        """How many ids were let out."""
        seen, times = np.unique(ids, return_counts=True)
        known = np.isin(seen, self.ids)
        self.counts[np.searchsorted(self.ids, seen[known])] += times[known]
        new = seen[~known]
        every = np.concatenate([self.ids, new])
        counts = np.concatenate([self.counts, times[~known]])
        bucket = np.concatenate([self.bucket, np.asarray(_bucket(fnp.asarray(new), self.cfg))])
        order = np.lexsort((every, np.arange(len(every)) >= len(self.ids), -counts, bucket))
        place = np.arange(len(order)) - np.searchsorted(bucket[order], bucket[order])
        kept = np.sort(order[place < self.cfg.per_bucket - 1])
        out = len(self.ids) - int((kept < len(self.ids)).sum())
        kept = kept[np.argsort(every[kept])]
        self.ids, self.counts, self.bucket = every[kept], counts[kept], bucket[kept]
        return out


@pytest.mark.parametrize("n", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_ids_never_share_a_row(rng, n):
    """Of a Zipf law, more different ones than there are rows: who stays, and how many go."""
    cfg, evicted = ZCHConfig(rows=768 * (n // 2000)), []
    state, oracle = recsys.zch_init(cfg), Sorted(cfg)
    update = fg.jit(recsys.zch_update, static_argnums=2)
    before = {}
    for _ in range(3):
        ids = rng.zipf(1.05, n).astype("int64")
        state, started = update(state, ids, cfg)
        evicted.append(oracle.update(ids))
        live = np.asarray(state.ids) != NONE
        names, rows = np.asarray(state.ids)[live], np.asarray(state.rows)[live]
        assert len(np.unique(rows)) == live.sum() > cfg.rows // 2
        order = np.argsort(names)
        np.testing.assert_array_equal(names[order], oracle.ids)
        np.testing.assert_array_equal(np.asarray(state.counts)[live][order], oracle.counts)
        stayed = np.isin(names, list(before)) if before else np.zeros(len(names), bool)
        assert len(before) - stayed.sum() == evicted[-1]
        assert rows[stayed].tolist() == [before[i] for i in names[stayed].tolist()]
        fresh = np.asarray(started)
        np.testing.assert_array_equal(fresh[fresh < cfg.rows], np.sort(rows[~stayed]))
        before = dict(zip(names.tolist(), rows.tolist(), strict=True))
    assert evicted[0] == 0 < min(evicted[1:])


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


SIZE, DIM, EACH = 48, 2, 16  # rows, columns, ids of a step
HASH = ZCHConfig(SIZE, buckets=8, policy="distance_lfu")
OPTIMIZER = recsys.rowwise_adagrad(0.1)


def trained(hashed, tables, state, ids, axes=None):
    """A step: new ids are let in, their rows begun anew, and all ids' rows trained."""
    hashed, started = recsys.zch_update(hashed, ids, HASH, axes=axes)
    if axes is None:
        at = {"mode": "drop"}
        tables = {"ad": tables["ad"].at[started].set(0.5, **at)}
        sums = {"ad": state.slots["sum"]["ad"].at[started].set(0.0, **at)}
        state = state._replace(slots={"sum": sums})
    else:
        tables = recsys.begin_rows(tables, "ad", started, 0.5)
        state = recsys.begin_rows(state, "ad", started)
    rows = recsys.zch_rows(hashed, ids, HASH, axes)
    one = recsys.KeyedJaggedTensor.from_features(
        {"ad": recsys.JaggedTensor(rows, fnp.ones(rows.shape, "int32"))}
    )

    def loss(tables):
        each = fnp.sum(fnp.sin(recsys.embedding_bag(tables, one)["ad"]))
        return each if axes is None else lax.psum(each, axes)

    _, grads = recsys.value_and_sparse_grad(loss)(tables)
    updates, state = OPTIMIZER.update(grads, state, tables)
    return hashed, recsys.apply_updates(tables, updates), state, rows


@pytest.mark.parametrize("sizes", [(4, 2), pytest.param((4, 2, 8, 4), marks=pytest.mark.slow)])
def test_training_goes_on_while_devices_come_and_go(rng, tmp_path, sizes):
    """By a checkpoint once: as if nothing had happened."""
    hashed = recsys.zch_init(HASH)
    tables = {"ad": fnp.zeros((SIZE, DIM))}
    whole = hashed, tables, OPTIMIZER.init(tables)
    cut, alone = None, fg.jit(trained)
    for devices in sizes:
        mesh = fg.make_mesh(devices, "device")
        layout = recsys.layout({"ad": (SIZE, DIM)}, recsys.row_wise(), mesh)
        if cut is None:
            cut = (hashed, recsys.shard_tables(whole[1], layout))
            cut = (*cut, recsys.put(OPTIMIZER.init(cut[1]), mesh))
        before = [recsys.gather_tables(x)["ad"] for x in (cut[1], cut[2].slots["sum"])]
        moved = recsys.zch_put(cut[0], mesh), *recsys.reshard_tables(cut[1:], layout)
        if devices == 2:
            checkpoint.save(tmp_path / "job", cut)
            moved = checkpoint.load(tmp_path / "job", moved)
        after = [recsys.gather_tables(x)["ad"] for x in (moved[1], moved[2].slots["sum"])]
        for a, b in zip(before + tree.leaves(cut[0]), after + tree.leaves(moved[0]), strict=True):
            np.testing.assert_array_equal(a, b)
        specs = (recsys.zch_specs("device"), *recsys.partition_specs(moved[1:]))
        step = fg.jit(fg.shard_map(
            partial(trained, axes="device"), mesh=mesh, in_specs=(*specs, P("device")),
            out_specs=(*specs, P("device")),
        ))  # fmt: skip
        cut = moved
        for _ in range(2):
            ids = drawn(rng, EACH)
            *whole, want = alone(*whole, ids)
            *cut, rows = step(*cut, ids)
            np.testing.assert_array_equal(rows, want)
        for a, b in zip(tree.leaves(cut[0]), tree.leaves(whole[0]), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(
            recsys.gather_tables(cut[1])["ad"], whole[1]["ad"], rtol=1e-5, atol=1e-6
        )


def test_refused():
    with pytest.raises(ArgumentError, match="10 rows can't be shared among 4 buckets"):
        ZCHConfig(rows=10, buckets=4)
    with pytest.raises(ArgumentError, match="4 rows can't be shared among 4 buckets"):
        ZCHConfig(rows=4, buckets=4)
    with pytest.raises(ArgumentError, match="policy must be one of"):
        ZCHConfig(rows=8, buckets=4, policy="fifo")
    with pytest.raises(ArgumentError, match="admit must be 1 or more, got 0"):
        ZCHConfig(rows=8, buckets=4, admit=0)
    cfg = ZCHConfig(rows=8, buckets=4)
    other = recsys.zch_init(ZCHConfig(rows=4, buckets=2))
    for f in (recsys.zch_rows, recsys.zch_update):
        with pytest.raises(ShapeError, match="must have the 8 entries of cfg.rows.*got i64.4"):
            f(other, [1], cfg)
    with pytest.raises(DTypeError, match="zch_rows: ids must be integers"):
        recsys.zch_rows(recsys.zch_init(cfg), [1.5], cfg)
