"""Lookups and training of cut tables: as of whole ones, by the collectives they should take."""

from collections import Counter

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import recsys, tree
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel import P, shard_map
from funcgrad.parallel.mapping.varying_programs import collectives
from funcgrad.recsys.layouts import KINDS, OF_NODES
from tests.recsys.sharded_steps import compare

EACH = {"ad": recsys.row_wise(), "page": recsys.data_parallel(), "user": recsys.table_wise()}
NODES = {"ad": recsys.grid(), "page": recsys.table_row_wise(), "user": recsys.table_column_wise()}
CASES = {
    "data parallel": ((4,), recsys.data_parallel(), "lazy_adam", "mean", True),
    "table-wise": ((2,), recsys.table_wise(), "rowwise_adagrad", "sum", False),
    "column-wise": ((4,), recsys.column_wise(), "adagrad", "mean", False),
    "row-wise": ((4,), recsys.row_wise(), "rowwise_adagrad", "mean", True),
    "three kinds": ((4,), EACH, "sgd", "sum", True),
    "table-row-wise": ((2, 2), recsys.table_row_wise(), "rowwise_adagrad", "sum", True),
    "table-column-wise": ((2, 2), recsys.table_column_wise(), "lazy_adam", "sum", False),
    "grid": ((2, 2), recsys.grid(), "adagrad", "mean", True),
    "kinds of nodes": ((2, 4), NODES, "sgd", "mean", False),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_as_on_one_device(case):
    shape, cuts, opt, pooling, weighted = CASES[case]
    names = ("device",) if len(shape) == 1 else ("node", "device")
    compare(shape, names, cuts, opt, pooling, weighted)


SOME = ["sgd", "adagrad", "rowwise_adagrad", "adam", "lazy_adam", "lamb"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2), (2, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opt", SOME)
def test_all_as_on_one_device(kind, shape, opt):
    """Of blocks of columns, where something is kept a row, as of so many tables."""
    if kind in OF_NODES and len(shape) == 1:
        pytest.skip("needs nodes")
    names = ("device",) if len(shape) == 1 else ("node", "device")
    for weighted in (True, False):
        compare(shape, names, getattr(recsys, kind)(), opt, "both", weighted)


@pytest.mark.mpi
def test_on_ranks(ranks):
    for shape, cuts in (((4,), EACH), ((2, 2), NODES)):
        names = ("device",) if len(shape) == 1 else ("node", "device")
        ranks(4).run("tests.recsys.sharded_steps:compare", shape, names, cuts, "adagrad", "mean",
                     True, 3)  # fmt: skip


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("opt", SOME)
def test_all_on_ranks(ranks, opt):
    columns = {**EACH, "page": recsys.column_wise(2)}
    for shape, cuts in (((4,), EACH), ((4,), columns), ((2, 2), NODES)):
        names = ("device",) if len(shape) == 1 else ("node", "device")
        for weighted in (False, True):
            ranks(4).run("tests.recsys.sharded_steps:compare", shape, names, cuts, opt, "both",
                         weighted)  # fmt: skip


def setting(kind, shape, table=(10, 4)):
    mesh = fg.make_mesh(shape, ("device",) if len(shape) == 1 else ("node", "device"))
    rng = np.random.default_rng(0)
    whole = {"ad": rng.normal(size=table).astype("float32")}
    tables = recsys.shard_tables(whole, recsys.layout(whole, getattr(recsys, kind)(), mesh))
    lists = [rng.integers(0, table[0], 3).tolist() for _ in range(8)]
    return tables, recsys.KeyedJaggedTensor.from_lists({"ad": lists}), whole


def mapped(f, tables, out):
    """f(tables, features) on each device's part of a batch."""
    layout = tables.layout
    return shard_map(
        lambda t, x: f(t, tree.map(lambda v: v[0], x)), mesh=layout.mesh,
        in_specs=(recsys.partition_specs(tables), P(layout.axes)), out_specs=out,
    )  # fmt: skip


FORWARD = {
    ("data_parallel", (4,)): [],
    ("table_wise", (4,)): ["all_to_all"] * 2,
    ("column_wise", (4,)): ["all_to_all"] * 2,
    ("row_wise", (4,)): ["all_to_all", "psum_scatter"],
    ("table_row_wise", (2, 2)): ["all_to_all"] * 2 + ["psum_scatter"],
    ("table_column_wise", (2, 2)): ["all_to_all"] * 2,
    ("grid", (2, 2)): ["all_to_all"] * 2 + ["psum_scatter"],
}
BACKWARD = {
    "data_parallel": ["psum"], "table_wise": ["all_to_all"], "column_wise": ["all_to_all"],
    "row_wise": ["all_gather"], "table_row_wise": ["all_to_all", "all_gather"],
    "table_column_wise": ["all_to_all"], "grid": ["all_to_all", "all_gather"],
}  # fmt: skip


def count(f, *args):
    found = [name.split()[0] for name in map(str, map(first_of, sums_of(f, *args)))]
    return Counter(n.replace("_invariant", "") for n in found)


def first_of(entry):
    return entry[0] if isinstance(entry, tuple) else entry


def sums_of(f, *args):
    return list(collectives(fg.make_jaxpr(f)(*args).jaxpr))


@pytest.mark.parametrize(("kind", "shape"), FORWARD, ids=str)
def test_collectives(kind, shape):
    tables, features, _ = setting(kind, shape)
    axes, parts = tables.layout.axes, recsys.split_batch(features, 4)
    forward = mapped(lambda t, x: recsys.embedding_bag(t, x)["ad"], tables, P(axes))
    assert count(forward, tables, parts) == Counter(FORWARD[kind, shape])

    def grads(t, x):
        loss = lambda t: fnp.sum(recsys.embedding_bag(t, x)["ad"] ** 2)
        return tree.map(
            lambda g: fg.lax.pvary(g[None], axes), recsys.value_and_sparse_grad(loss)(t)[1]
        )

    both = count(mapped(grads, tables, P(axes)), tables, parts)
    assert both == Counter(FORWARD[kind, shape] + BACKWARD[kind])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "shape"), FORWARD, ids=str)
def test_rows_one_by_one(kind, shape):
    tables, features, whole = setting(kind, shape)
    axes = tables.layout.axes
    rows = mapped(lambda t, x: recsys.embedding(t, x)["ad"].values[None], tables, P(axes))
    out = np.asarray(rows(tables, recsys.split_batch(features, 4)))
    for i in range(4):
        ids = np.concatenate(features["ad"].to_lists()[2 * i : 2 * i + 2])
        np.testing.assert_allclose(out[i, :6], whole["ad"][ids], rtol=1e-6)
        assert (out[i, 6:] == 0).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("kind", "shape"), FORWARD, ids=str)
def test_tables_of_few_bits(kind, shape, bits):
    """Cut as others are, every byte and scale; two columns of 4 bits stay together."""
    mesh = fg.make_mesh(shape, ("device",) if len(shape) == 1 else ("node", "device"))
    rng = np.random.default_rng(bits)
    whole = {"ad": recsys.quantize_rows(rng.normal(size=(10, 7)).astype("float32"), bits)}
    layout = recsys.layout(whole, getattr(recsys, kind)(), mesh)
    tables = recsys.shard_tables(whole, layout)
    copies = {"data_parallel": 4, "column_wise": 2, "table_column_wise": 2, "grid": 2}
    scales = 4 * 10 * copies.get(kind, 1)
    nbytes = whole["ad"].values.nbytes * (4 if kind == "data_parallel" else 1)
    assert sum(layout.bytes_per_device()) == nbytes + scales
    lists = [rng.integers(0, 10, n).tolist() for n in (3, 0, 1, 2, 4, 3, 1, 2)]
    features = recsys.KeyedJaggedTensor.from_lists({"ad": lists})
    f = mapped(lambda t, x: recsys.embedding_bag(t, x, "mean")["ad"], tables, P(layout.axes))
    got = f(tables, recsys.split_batch(features, 4))
    want = recsys.embedding_bag(whole, features, "mean")["ad"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    back = recsys.gather_tables(recsys.reshard_tables(tables, layout))["ad"]
    assert (back.bits, back.dim) == (bits, 7)
    np.testing.assert_array_equal(back.values, whole["ad"].values)
    np.testing.assert_array_equal(back.scales, whole["ad"].scales)
    with pytest.raises(ArgumentError, match=f"table 'ad' is of int{bits}, which isn't trained"):
        recsys.begin_rows(tables, "ad", [0])


@pytest.mark.parametrize("kind", ["table_wise", "row_wise"])
def test_wide_ids(kind):
    tables, features, whole = setting(kind, (2,))
    wide = recsys.KeyedJaggedTensor.from_lists(
        {"ad": [*features["ad"].to_lists()[:7], [3 + 2**32]]}, dtype="int64"
    )
    bags = mapped(lambda t, x: recsys.embedding_bag(t, x)["ad"], tables, P("device"))
    out = np.asarray(bags(tables, recsys.split_batch(wide, 2)))
    want = [whole["ad"][ids].sum(0) for ids in wide["ad"].to_lists()[:7]]
    np.testing.assert_allclose(out[:7], want, rtol=1e-5)
    assert np.isnan(out[7]).all()


@pytest.mark.parametrize("kind", ["table_wise", "row_wise"])
def test_ids_that_are_no_rows_are_nan(kind):
    tables, _, whole = setting(kind, (2,))
    lists = [[0, 1], [2, 10], [-1], [3]]
    parts = recsys.split_batch(recsys.KeyedJaggedTensor.from_lists({"ad": lists}), 2)
    bags = mapped(lambda t, x: recsys.embedding_bag(t, x)["ad"], tables, P("device"))
    out = np.asarray(bags(tables, parts))
    np.testing.assert_allclose(out[[0, 3]], [whole["ad"][[0, 1]].sum(0), whole["ad"][3]], rtol=1e-5)
    assert np.isnan(out[1:3]).all()


def test_refused():
    tables, features, _ = setting("row_wise", (2,))
    with pytest.raises(ShardingError, match="inside of shard_map over \\('device',\\)"):
        recsys.embedding_bag(tables, features)
    with pytest.raises(ArgumentError, match="need a KeyedJaggedTensor, got JaggedTensor"):
        recsys.embedding(tables, features["ad"])
    with pytest.raises(ArgumentError, match="batches of \\(8,\\) can.t be shared among 3"):
        recsys.split_batch(features, 3)
    with pytest.raises(ArgumentError, match="no table 'x' among"):
        mapped(lambda t, x: recsys.embedding_bag(t, x, table_of={"ad": "x"}), tables, P("device"))(
            tables, recsys.split_batch(features, 2)
        )


def test_tables_and_their_sums_on_other_devices(rng):
    """Of any layout onto any other, to the bit; row-wise sums belong to blocks of columns."""
    shapes = {"ad": (10, 4), "page": (5, 4)}
    tables = {k: rng.normal(size=s).astype("float32") for k, s in shapes.items()}
    mixed = {"ad": recsys.row_wise(), "page": recsys.column_wise(2)}
    first = recsys.layout(shapes, mixed, fg.make_mesh(4, "device"))
    second = recsys.layout(
        shapes, {"ad": recsys.grid(2), "page": recsys.table_wise()},
        fg.make_mesh((2, 2), ("node", "device")),
    )  # fmt: skip
    moved = recsys.reshard_tables(recsys.shard_tables(tables, first), second)
    assert moved.layout is second
    for k, x in recsys.gather_tables(moved).items():
        np.testing.assert_array_equal(x, tables[k])
    sums = recsys.rowwise_adagrad(0.1, initial=0.5).init(recsys.shard_tables(tables, first))
    third = recsys.layout(shapes, mixed, fg.make_mesh(2, "device"))
    found = recsys.gather_tables(recsys.reshard_tables(sums, third).slots["sum"])
    assert found["ad"].tolist() == [0.5] * 10
    assert found["page"].tolist() == [[0.5, 0.5]] * 5
    with pytest.raises(ShardingError, match="'ad' has sums for 1 blocks of columns, its new .* 2"):
        recsys.reshard_tables(sums, second)
