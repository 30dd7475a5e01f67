"""Meshes, specs and shardings as data."""

import copy
import pickle

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.sharding import (
    AbstractMesh,
    Device,
    Mesh,
    NamedSharding,
    P,
    PartitionSpec,
    SingleDeviceSharding,
    local_index,
)
from funcgrad.errors import ShardingError

MESH = fg.make_mesh((2, 4), ("x", "y"))


def test_mesh_knows_its_axes():
    assert MESH.shape == {"x": 2, "y": 4}
    assert MESH.size == 8
    assert MESH.extent(("x", "y")) == 8
    assert MESH.extent(()) == 1
    assert not MESH.is_abstract
    device, place = list(MESH.coordinates())[5]
    assert device.id == 5
    assert place == {"x": 1, "y": 1}


def test_meshes_are_equal_by_value():
    again = fg.make_mesh((2, 4), ("x", "y"))
    assert again == MESH
    assert hash(again) == hash(MESH)
    assert again != fg.make_mesh((4, 2), ("x", "y"))
    assert AbstractMesh((2, 4), ("x", "y")) != MESH
    assert copy.deepcopy(MESH) is MESH


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mesh(np.array([Device(0)]), ("a", "b")), "1 axes of devices have 2 names"),
        (lambda: AbstractMesh((2, 2), ("a", "a")), "must differ"),
        (lambda: AbstractMesh((0,), ("a",)), "at least 1"),
        (lambda: NamedSharding(MESH, P("z")), "names 'z', no axis of Mesh"),
        (lambda: NamedSharding(MESH, P("x", "x")), "twice"),
        (lambda: NamedSharding(MESH, P("x", ("y", "x"))), "twice"),
        (lambda: list(AbstractMesh(2, "a").coordinates()), "has no devices"),
    ],
)
def test_what_does_not_fit_is_named(make, words):
    with pytest.raises(ShardingError, match=words):
        make()


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="mesh must be a Mesh"):
        NamedSharding("x", P())
    with pytest.raises(TypeError, match="spec must be a PartitionSpec"):
        NamedSharding(MESH, ("x",))
    with pytest.raises(TypeError, match="each entry is a mesh axis's name"):
        P(3)


def test_specs():
    assert P is PartitionSpec
    assert P("x", None, ("x",), []).entries == ("x", None, "x", None)
    assert P("x").cuts(3) == (("x",), (), ())
    assert P(("x", "y"), None).axes() == ("x", "y")
    assert PartitionSpec.of((("x",), (), ())) == P("x")
    assert hash(P("x")) == hash(P("x"))
    assert P("x") != P(None, "x")
    assert P("x", None) == P("x")
    assert hash(P("x", None)) == hash(P("x"))
    assert fg.tree.leaves({"a": P("x", "y")}) == [P("x", "y")]
    assert repr(P("x", None, ("x", "y"))) == "P('x', None, ('x', 'y'))"


def test_shards_of_a_shape():
    sharding = NamedSharding(MESH, P("y", "x"))
    assert sharding.shard_shape((8, 6)) == (2, 3)
    where = sharding.devices_indices_map((8, 6))
    assert where[Device(5)] == (slice(2, 4), slice(3, 6))
    assert NamedSharding(MESH, P()).is_fully_replicated
    assert not sharding.is_fully_replicated
    assert len(sharding.device_set) == 8


def test_two_mesh_axes_on_one_array_axis_go_row_major():
    got = [
        local_index(MESH.shape, (("y", "x"),), (16,), place)[0].start
        for _, place in MESH.coordinates()
    ]
    assert got == [0, 4, 8, 12, 2, 6, 10, 14]


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(ShardingError, match=r"axis 1 of the array, of size 6, .* 'y' \(4\)"):
        NamedSharding(MESH, P("x", "y")).shard_shape((4, 6))
    with pytest.raises(ShardingError, match="has 1 axes, fewer than"):
        NamedSharding(MESH, P("x", "y")).shard_shape((4,))
    with pytest.raises(ShardingError, match="more than the 1 axes"):
        P("x", "y").cuts(1)


def test_a_single_device():
    whole = fg.numpy.ones(3).sharding
    assert whole == SingleDeviceSharding()
    assert whole.is_fully_replicated
    assert whole.shard_shape((3,)) == (3,)
    (shard,) = fg.numpy.ones(3).addressable_shards
    assert shard.index == (slice(0, 3),)
    assert shard.replica_id == 0


def test_axes_have_types():
    explicit = fg.AxisType.Explicit
    mixed = fg.make_mesh((2, 4), ("x", "y"), (explicit, fg.AxisType.Auto))
    assert mixed.axis_types == (explicit, fg.sharding.AxisType.Auto)
    assert (mixed.explicit_axes, mixed.auto_axes, mixed.manual_axes) == (("x",), ("y",), ())
    assert repr(mixed) == "Mesh('x': 2, 'y': 4, axis_types=(Explicit, Auto))"
    assert mixed != MESH
    assert MESH.axis_types == (fg.AxisType.Auto,) * 2
    assert fg.make_mesh((2,), "x", explicit).explicit_axes == ("x",)
    with fg.set_mesh(mixed):
        assert fg.sharding.get_abstract_mesh() == AbstractMesh((2, 4), ("x", "y"), mixed.axis_types)
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_axis_types_must_fit():
    with pytest.raises(ShardingError, match=r"1 axes, \('x',\), have 2 axis_types"):
        fg.make_mesh((2,), ("x",), (fg.AxisType.Auto,) * 2)
    with pytest.raises(TypeError, match=r"axis_types must be AxisTypes, got \('explicit',\)"):
        fg.make_mesh((2,), ("x",), ("explicit",))
    with pytest.raises(TypeError, match="axis_types must be AxisTypes, got 3"):
        fg.make_mesh((2,), ("x",), 3)


def test_devices_of_shardings():
    x = fg.numpy.ones((4, 2))
    assert x.sharding.num_devices == 1
    assert x.sharding.devices_indices_map((4, 2)) == {x.device: (slice(0, 4), slice(0, 2))}
    np.testing.assert_array_equal(x.addressable_data(0), x)
    with pytest.raises(IndexError):
        x.addressable_data(1)
    cut = fg.device_put(x, NamedSharding(fg.make_mesh((2,), "data"), P("data")))
    assert cut.sharding.num_devices == 2
    assert cut.addressable_data(1).shape == (2, 2)
    assert fg.ShapeDtypeStruct.like(cut).sharding == cut.sharding
    assert fg.ShapeDtypeStruct.like(x) == fg.ShapeDtypeStruct((4, 2), "float32")
    assert fg.ShapeDtypeStruct.like(fg.numpy.asarray(1.0)).weak_type
