"""The mesh of the context: what specs are of that are given without one."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.parallel import with_sharding_constraint

P = fg.P
MESH = fg.make_mesh((2,), "data")
X = np.arange(4.0, dtype=np.float32)


def test_specs_are_of_the_mesh_that_is_set():
    with fg.set_mesh(MESH):
        assert fg.device_put(X, P("data")).sharding == fg.NamedSharding(MESH, P("data"))
        cut = fg.device_put({"a": X, "b": X}, {"a": P("data"), "b": None})
        assert cut["a"].sharding.spec == P("data")
        assert fg.reshard(cut["a"], P()).is_fully_replicated


def test_jit_and_shard_map_read_it():
    double = fg.jit(lambda x: with_sharding_constraint(x * 2.0, P("data")))
    total = fg.shard_map(lambda x: fg.lax.psum(x.sum(), "data"), in_specs=P("data"), out_specs=P())
    with fg.set_mesh(MESH):
        assert double(fnp.array(X)).sharding.spec == P("data")
        assert fg.jit(lambda x: x + 1.0, in_shardings=P("data"))(X).sharding.spec == P("data")
        assert float(total(X)) == 6.0


def test_another_mesh_is_another_program():
    cut = fg.jit(lambda x: with_sharding_constraint(x, fg.P(fg.sharding.get_mesh().axis_names)))
    for name in ("a", "b"):
        with fg.set_mesh(fg.make_mesh((2,), name)):
            for _ in range(3):
                assert cut(X).sharding.spec == P((name,))


def test_where_it_holds():
    assert fg.sharding.get_mesh().axis_names == ()
    other = fg.make_mesh((4,), "model")
    with fg.set_mesh(MESH):
        assert fg.sharding.get_mesh() is MESH
        with fg.set_mesh(other):
            assert fg.sharding.get_abstract_mesh() == fg.sharding.AbstractMesh((4,), ("model",))
        with fg.set_mesh(None):
            assert fg.sharding.get_mesh().axis_names == ()
        assert fg.sharding.get_mesh() is MESH
    fg.set_mesh(MESH)
    try:
        assert fg.sharding.get_mesh() is MESH
    finally:
        fg.set_mesh(None)
    assert fg.set_mesh(MESH)(fg.sharding.get_mesh)() is MESH
    assert fg.sharding.get_mesh().axis_names == ()


def test_bad_meshes_and_specs_without_one():
    with pytest.raises(TypeError, match="set_mesh: mesh must be a Mesh or None, got 'data'"):
        fg.set_mesh("data")
    with pytest.raises(TypeError, match=r"a sharding must be a NamedSharding .* got P\('data'\)"):
        fg.device_put(X, P("data"))
    with fg.set_mesh(MESH), pytest.raises(fg.errors.ShardingError, match="model"):
        fg.device_put(X, P("model"))
