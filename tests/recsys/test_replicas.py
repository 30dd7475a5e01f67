"""Copies of sharded tables, trained apart and averaged."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax, recsys, tree
from funcgrad.errors import ArgumentError, ShardingError
from funcgrad.parallel import shard_map
from tests.recsys.sharded_steps import SIZES, replica_steps, tables_of, whole_steps

CUTS = {"ad": recsys.row_wise(), "page": recsys.data_parallel(), "user": recsys.table_wise()}


def copies(tables):
    """The pools of both replicas."""
    layout = tables.layout
    for name, pool in layout.pools:
        blocks = np.asarray(tables.pools[name]).reshape(2, 2, pool.rows, pool.width)
        yield blocks[:, 0], blocks[:, 1]


def test_averaged_each_step_as_gradients_are():
    tables = replica_steps(CUTS, 1, 3)
    want, _ = whole_steps("plain", "sum", False, 4, 3)
    for k, x in recsys.gather_tables(tables).items():
        np.testing.assert_allclose(x, want[k], rtol=1e-3, atol=1e-4, err_msg=k)
    assert all(np.array_equal(a, b) for a, b in copies(tables))


def test_averaged_now_and_then():
    assert not all(np.array_equal(a, b) for a, b in copies(replica_steps(CUTS, 2, 1)))
    assert all(np.array_equal(a, b) for a, b in copies(replica_steps(CUTS, 2, 2)))


def test_sums_of_optimizers_are_averaged():
    """What replicas of an optimizer's state differ in: means, and the latest of step numbers."""
    mesh = fg.make_mesh((2, 2), ("device", "replica"))
    layout = recsys.layout({"ad": (4, 2)}, recsys.row_wise(), mesh, replica="replica")
    tables = recsys.shard_tables({"ad": np.zeros((4, 2), "float32")}, layout)
    state = recsys.put(recsys.adam(0.1).init(tables), layout.world)
    specs = recsys.partition_specs(state)

    def body(state):
        other = 1 + 2 * lax.axis_index("replica").astype("int32")
        return recsys.average_replicas(tree.map(lambda x: x + other.astype(x.dtype), state))

    step = shard_map(body, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=False)
    slots = step(state).slots
    for name, value in (("mu", 2), ("nu", 2), ("last", 3)):
        for a, b in zip(tree.leaves(slots[name]), tree.leaves(state.slots[name]), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b) + value)


def test_put_on_all_replicas():
    mesh = fg.make_mesh((2, 2, 2), ("replica", "node", "device"))
    layout = recsys.layout(SIZES, recsys.grid(), mesh, replica="replica")
    tables = recsys.shard_tables(tables_of(), layout)
    assert layout.replicas == 2
    for k, x in recsys.gather_tables(tables).items():
        np.testing.assert_array_equal(x, tables_of()[k])
    for name, pool in layout.pools:
        both = np.asarray(tables.pools[name]).reshape(2, 4 * pool.rows, pool.width)
        np.testing.assert_array_equal(both[0], both[1])


def test_refused():
    mesh = fg.make_mesh(2, "device")
    for replica in ("device", "x"):
        with pytest.raises(ShardingError, match="replica must be one of several axes"):
            recsys.layout(SIZES, recsys.row_wise(), mesh, replica=replica)
    with pytest.raises(ArgumentError, match="every must be 1 or more"):
        recsys.average_replicas({}, every=0)
