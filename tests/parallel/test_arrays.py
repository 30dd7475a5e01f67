"""Sharded arrays on virtual devices behave as arrays."""

import copy
import pickle

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import DonatedBufferError, NonFiniteError, ShapeError, ShardingError, TreeError
from funcgrad.parallel import (
    NamedSharding,
    P,
    ShardedArray,
    make_array_from_callback,
    reshard,
    with_sharding_constraint,
)

MESH = fg.make_mesh((2, 2), ("x", "y"))
VALUES = np.arange(32, dtype=np.float32).reshape(4, 8)
SPECS = [P(), P("x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]


def cut(*entries):
    return NamedSharding(MESH, P(*entries))


def sharded(spec, values=VALUES):
    return fg.device_put(values, NamedSharding(MESH, spec))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_put_and_read(spec):
    x = sharded(spec)
    assert type(x) is ShardedArray
    assert x.sharding == NamedSharding(MESH, spec)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes) == ((4, 8), np.float32, 2, 32, 128)
    assert len(x) == 4
    np.testing.assert_array_equal(np.asarray(x), VALUES)
    assert x.is_fully_addressable
    covered = np.zeros_like(VALUES)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), VALUES[shard.index])
        covered[shard.index] += shard.replica_id == 0
    assert (covered == 1).all()


@pytest.mark.parametrize("to", SPECS, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_reshard(spec, to):
    y = reshard(sharded(spec), NamedSharding(MESH, to))
    assert y.sharding.spec == to
    np.testing.assert_array_equal(np.asarray(y), VALUES)


def test_put_of_trees_and_prefixes():
    tree = {"a": VALUES, "b": [fnp.ones(2), 3.0]}
    out = fg.device_put(tree, {"a": cut("x"), "b": cut()})
    assert out["a"].sharding.spec == P("x")
    assert out["b"][1].sharding.spec == P()
    assert out["b"][1].weak_type
    assert type(fg.device_put(VALUES)) is fg.Array


def test_numpy_arrays_stay_their_owners():
    values = VALUES.copy()
    x = fg.device_put(values, cut("x"))
    y = fg.jit(lambda v, w: (w, v + w))(x, values)[0]
    z = x + values
    values[:] = -1
    for got in (x, y, z / 2):
        np.testing.assert_array_equal(np.asarray(got), VALUES)


def test_put_elsewhere():
    x = sharded(P("x"))
    other = NamedSharding(fg.make_mesh(4, "z"), P("z"))
    np.testing.assert_array_equal(np.asarray(fg.device_put(x, other)), VALUES)
    assert type(fg.device_put(x, fnp.ones(1).sharding)) is fg.Array


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_operations_run_at_once_and_stay_sharded(spec):
    x = sharded(spec)
    for f in [
        lambda v: v * 2 + 1,
        lambda v: fnp.tanh(v) - v.sum(axis=0),
        lambda v: v @ v.T,
        lambda v: v[1:3, ::2],
        lambda v: v.at[0].set(1.0),
        lambda v: fnp.sort(v, axis=1),
        lambda v: v.reshape(8, 4),
    ]:
        y = f(x)
        assert type(y) is ShardedArray
        np.testing.assert_allclose(np.asarray(y), np.asarray(f(fnp.array(VALUES))), rtol=1e-5)
    assert (x + 1).sharding.spec == spec


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_arrays_of_sharded_ones_stay_sharded(spec):
    x = sharded(spec)
    for y in [fnp.array(x), fnp.asarray(x)]:
        assert type(y) is ShardedArray
        assert y.sharding == x.sharding
        np.testing.assert_array_equal(np.asarray(y), VALUES)
    assert all(type(shard.data) is fg.Array for shard in fnp.array(VALUES).addressable_shards)


def test_beside_plain_operands():
    x = sharded(P("x"))
    np.testing.assert_array_equal(np.asarray(x + VALUES), 2 * VALUES)
    np.testing.assert_array_equal(np.asarray(fnp.array(VALUES) - x), 0 * VALUES)
    np.testing.assert_array_equal(np.asarray(x == VALUES), np.ones((4, 8), bool))


def test_python_reads_values():
    x = sharded(P("x"))
    assert float(x[1, 1]) == 9.0
    assert bool(x[0, 1] > 0)
    assert [float(row.sum()) for row in x] == VALUES.sum(1).tolist()
    assert x.tolist() == VALUES.tolist()
    assert f"{x[0, 1]:.2f}" == "1.00"


@pytest.mark.parametrize("spec", SPECS[:5], ids=str)
def test_transformations_of_sharded_arrays(spec):
    x = sharded(spec)

    def loss(v):
        return fnp.sum(fnp.sin(v) ** 2)

    for f in [fg.grad(loss), fg.jit(fg.grad(loss)), fg.vmap(fnp.cumsum), fg.jit(fg.vmap(loss))]:
        got = f(x)
        np.testing.assert_allclose(np.asarray(got), np.asarray(f(VALUES)), rtol=1e-5, atol=1e-6)
    assert fg.jit(fg.grad(loss))(x).sharding.spec == spec


def test_copies_and_pickles():
    x = sharded(P("x"))
    assert copy.copy(x) is x
    y = copy.deepcopy(x)
    assert y.sharding == x.sharding
    np.testing.assert_array_equal(np.asarray(y), VALUES)
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(x))), VALUES)


def test_donation():
    x = sharded(P("x"))
    step = fg.jit(lambda v: v + 1, donate_argnums=0)
    y = step(x)
    assert y.sharding.spec == P("x")
    np.testing.assert_array_equal(np.asarray(y), VALUES + 1)
    with pytest.raises(DonatedBufferError, match="donated to jit"):
        x + 1
    assert "deleted" in repr(x)


def test_from_callback():
    calls = []

    def part(index):
        calls.append(index)
        return VALUES[index]

    x = make_array_from_callback((4, 8), cut("x"), part)
    assert len(calls) == 2
    np.testing.assert_array_equal(np.asarray(x), VALUES)
    with pytest.raises(ShapeError, match=r"must have shape \(2, 8\), the callback gave \(4, 8\)"):
        make_array_from_callback((4, 8), cut("x"), lambda index: VALUES)


def test_jit_shardings():
    f = fg.jit(lambda p, v: (v @ p["w"], fnp.sum(v)),
               in_shardings=({"w": cut(None, "y")}, cut("x")),
               out_shardings=(cut("x", "y"), None))  # fmt: skip
    w = np.ones((8, 6), np.float32)
    out, total = f({"w": w}, VALUES)
    assert out.sharding.spec == P("x", "y")
    np.testing.assert_allclose(np.asarray(out), VALUES @ w)
    assert float(total) == VALUES.sum()
    assert f.cache_info().misses == 1
    f({"w": fg.device_put(w, cut())}, VALUES)
    assert f.cache_info().misses == 2


def test_compiled_ahead():
    f = fg.jit(lambda v: fnp.sum(v * 2, axis=0))
    struct = fg.ShapeDtypeStruct((4, 8), "float32", sharding=cut("x"))
    compiled = f.lower(struct).compile()
    np.testing.assert_allclose(np.asarray(compiled(sharded(P("x")))), VALUES.sum(0) * 2)
    with pytest.raises(ShardingError, match="argument v with sharding"):
        compiled(sharded(P("y")))
    assert "psum" in f.lower(struct).as_text()
    plain = fg.jit(lambda v: v + 1).lower(VALUES).compile()
    with pytest.raises(ShardingError, match="with sharding None"):
        plain(sharded(P("x")))


def test_nans_are_found():
    x = sharded(P("x"), -VALUES)
    with fg.debug_nans(), pytest.raises(NonFiniteError, match="log produced NaN"):
        fg.jit(lambda v: fnp.sum(fnp.log(v)))(x)


def test_constraints_inside_transformations():
    def f(v):
        return fnp.sum(with_sharding_constraint(v * v, cut("x")))

    np.testing.assert_allclose(np.asarray(fg.grad(f)(VALUES)), 2 * VALUES)
    np.testing.assert_allclose(np.asarray(fg.jit(fg.grad(f))(VALUES)), 2 * VALUES)
    batched = fg.jit(fg.vmap(lambda v: with_sharding_constraint(v * 2, cut("x"))))(VALUES)
    assert batched.sharding.spec == P(None, "x")
    assert type(with_sharding_constraint(VALUES, cut("x"))) is ShardedArray


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: fg.device_put(np.ones(3), cut("x")), ShardingError, "axis 0 of device_put"),
        (lambda: fg.device_put({"w": np.ones(3)}, cut("x")), ShardingError, r"\['w'\]"),
        (lambda: fg.device_put(np.ones(2), P("x")), TypeError, "must be a NamedSharding"),
        (
            lambda: fg.device_put({"a": np.ones(2)}, {"b": cut("x")}),
            TreeError,
            "the shardings of device_put must be a prefix",
        ),
        (
            lambda: fg.jit(lambda p: p, in_shardings=({"w": cut("x")},))({"w": np.ones(3)}),
            ShardingError,
            r"in_shardings.*\[0\]\['w'\], of size 3",
        ),
        (lambda: sharded(P("x")) + fg.device_put(VALUES, NamedSharding(
            fg.make_mesh(2, "z"), P("z"))), ShardingError, "must be of one mesh"),
        (lambda: fg.device_put(np.ones(2), NamedSharding(
            fg.parallel.AbstractMesh(2, "z"), P("z"))), ShardingError, "has no devices"),
    ],
)  # fmt: skip
def test_errors_name_what_does_not_fit(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_shown():
    x = sharded(P("x", "y"))
    assert repr(sharded(P("x"), VALUES[:2, :2])).endswith(
        "dtype=float32, P('x') on Mesh('x': 2, 'y': 2))"
    )
    page = x._repr_html_()
    assert "P(&#x27;x&#x27;, &#x27;y&#x27;)" in page
    assert page.count("grid-area") == 4
