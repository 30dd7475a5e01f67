"""Ids that find no room on their way, and sums in fewer bits: see test_sharded for the rest."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys, tree
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel import P, shard_map
from funcgrad.parallel.mapping.varying_programs import collectives

LISTS = [[0, 1, 2], [5], [3, 9], [], [9, 0], [4, 4, 4], [1], [2, 7]]
KINDS = {
    "row_wise": ((4,), ("device",)), "table_wise": ((4,), ("device",)),
    "grid": ((2, 2), ("node", "device")),
}  # fmt: skip


def setting(kind, **options):
    mesh = fg.make_mesh(*KINDS[kind])
    whole = {"ad": np.random.default_rng(0).normal(size=(10, 4)).astype("float32")}
    layout = recsys.layout(whole, getattr(recsys, kind)(), mesh, **options)
    features = recsys.KeyedJaggedTensor.from_lists({"ad": LISTS})
    parts = recsys.split_batch(features, 4, capacity=8)
    return layout, recsys.shard_tables(whole, layout), parts, whole["ad"]


def on_devices(f, layout, tables, out):
    return shard_map(
        lambda t, x: f(t, tree.map(lambda v: v[0], x)), mesh=layout.mesh,
        in_specs=(recsys.partition_specs(tables), P(layout.axes)), out_specs=out,
    )  # fmt: skip


def bags(layout, tables):
    return on_devices(lambda t, x: recsys.embedding_bag(t, x)["ad"], layout, tables, P(layout.axes))


@pytest.mark.parametrize("kind", ["row_wise", "grid"])
def test_room_is_enough_or_bags_are_nan(kind):
    want = None
    for room in (None, 1.5, 0.5):
        layout, tables, parts, whole = setting(kind, room=room)
        out = np.asarray(bags(layout, tables)(tables, parts))
        want = np.stack([whole[ids].sum(0) for ids in LISTS])
        lost = np.isnan(out).all(1)
        np.testing.assert_allclose(out[~lost], want[~lost], rtol=1e-5, atol=1e-6)
        try:
            recsys.check_exchange(layout, parts)
            told = False
        except ArgumentError as error:
            told = "feature 'ad': device" in str(error) and f"room={room}" in str(error)
            assert told
        assert lost.any() == told
    assert lost.any()
    assert not lost.all()


def test_less_is_sent():
    shapes = {}
    for room in (None, 1.0):
        layout, tables, parts, _ = setting("row_wise", room=room)
        text = str(fg.make_jaxpr(bags(layout, tables))(tables, parts))
        shapes[room] = [line for line in text.splitlines() if "all_to_all" in line]
    # 2 bags and 8 ids for each device, or 2 bags and an even share of 2.
    assert "int32[4,10]" in shapes[None][0].replace("i32", "int32")
    assert "int32[4,4]" in shapes[1.0][0].replace("i32", "int32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("wire", "digits"), [("bfloat16", 1e-2), ("float8_e4m3fn", 0.1)])
def test_coded_sums(kind, wire, digits):
    found = {}
    for option in (None, wire):
        layout, tables, parts, _ = setting(kind, wire=option)

        def both(t, x, axes=layout.axes):
            loss = lambda t: fnp.sum(recsys.embedding_bag(t, x)["ad"] ** 2)
            grads = recsys.value_and_sparse_grad(loss)(t)[1]
            dense = tree.map(lambda g: g.to_dense(), grads, is_leaf=is_rows)
            return recsys.embedding_bag(t, x)["ad"], next(iter(dense.pools.values()))

        f = on_devices(both, layout, tables, (P(layout.axes), P(layout.axes)))
        found[option] = [np.asarray(x) for x in f(tables, parts)]
        if option:
            program = fg.make_jaxpr(f)(tables, parts).jaxpr
            assert "psum_scatter" not in str(list(collectives(program)))
            assert fg.dtypes.canonical(wire).name in str(program) or "bf16" in str(program)
    for got, want in zip(found[wire], found[None], strict=True):
        assert np.abs(got - want).max() < digits * np.abs(want).max()
        assert np.abs(got - want).max() > 0


def is_rows(x):
    return isinstance(x, recsys.IndexedRows)


def test_refused():
    with pytest.raises(ShardingError, match="wire must be one of .*, got 'int8'"):
        setting("row_wise", wire="int8")
    with pytest.raises(ShardingError, match="room must be more than 0, got -1"):
        setting("row_wise", room=-1)


def test_ids_travel_during_the_step_before():
    layout, tables, _, whole = setting("row_wise")
    specs, cut = recsys.partition_specs(tables), P("device")
    own = lambda x: tree.map(lambda v: v[0], x)

    def body(tables, arrived, batch, following):
        out = recsys.embedding_bag(tables, arrived, "mean")["ad"]
        return tables, recsys.exchange_ids(layout, own(following)), out

    step = fg.jit(shard_map(
        body, mesh=layout.mesh, in_specs=(specs, cut, cut, cut), out_specs=(specs, cut, cut)
    ))  # fmt: skip
    start = fg.jit(shard_map(
        lambda x: recsys.exchange_ids(layout, own(x)), mesh=layout.mesh, in_specs=cut, out_specs=cut
    ))  # fmt: skip
    lists = [LISTS, LISTS[::-1], LISTS[1:] + LISTS[:1]]
    batches = [
        recsys.split_batch(recsys.KeyedJaggedTensor.from_lists({"ad": x}), 4, capacity=8)
        for x in lists
    ]
    found = [np.asarray(out) for _, out in recsys.overlapped(step, start, tables, batches)]
    for out, ids in zip(found, lists, strict=True):
        want = [whole[i].mean(0) if i else np.zeros(4) for i in ids]
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    assert list(recsys.overlapped(step, start, tables, [])) == []
