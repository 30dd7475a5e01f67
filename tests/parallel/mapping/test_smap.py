"""smap: shard_map over one axis of a mesh, by numbers of axes."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import P, lax
from funcgrad.errors import ArgumentError

MESH = fg.make_mesh((2, 2), ("x", "y"))
X = np.arange(32, dtype="float32").reshape(4, 8)


@pytest.fixture(autouse=True)
def mesh():
    with fg.set_mesh(MESH):
        yield


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit])
def test_one_axis_at_a_time(wrap):
    shapes = []

    def inner(x):
        shapes.append(x.shape)
        return x - lax.axis_index("y")

    def outer(x):
        shapes.append(x.shape)
        return fg.smap(inner, in_axes=1, out_axes=1, axis_name="y")(x)

    out = wrap(fg.smap(outer, in_axes=0, out_axes=0, axis_name="x"))(X)
    assert shapes[:2] == [(2, 8), (2, 4)]
    np.testing.assert_array_equal(out, X - np.repeat([0, 1], 4))


def test_trees_and_whole_arguments():
    @fg.smap(in_axes=(None, {"a": 0}), out_axes=(None, 1), axis_name="x")
    def f(w, tree):
        return w * 2, (tree["a"] @ w).T

    w = X[:, :2].T @ X[:, :3]
    doubled, product = f(w, {"a": X[:, :2]})
    np.testing.assert_array_equal(doubled, w * 2)
    np.testing.assert_allclose(product, (X[:, :2] @ w).T, rtol=1e-6)
    assert product.sharding.spec == P(None, "x")


def test_axes_that_types_say():
    explicit = fg.make_mesh((2,), "x", fg.AxisType.Explicit)
    with fg.set_mesh(explicit):
        x = fg.device_put(X, P("x"))
        out = fg.smap(lambda x: fnp.sum(x, 0, keepdims=True), out_axes=0, axis_name="x")(x)
    np.testing.assert_array_equal(out, X.reshape(2, 2, 8).sum(1))


def test_what_is_no_axis():
    with pytest.raises(TypeError, match=r"smap in_axes must be an int from 0 on, None.* got 'x'"):
        fg.smap(lambda x: x, in_axes="x", out_axes=0, axis_name="x")
    with pytest.raises(TypeError, match=r"smap out_axes must be an int from 0 on.* got \(0, -1\)"):
        fg.smap(lambda x: x, in_axes=0, out_axes=(0, -1), axis_name="x")
    with pytest.raises(ArgumentError, match="smap: axis_name must be a name of a mesh axis"):
        fg.smap(lambda x: x, in_axes=0, out_axes=0, axis_name=("x", "y"))
    with pytest.raises(fg.errors.ShardingError, match="smap of <lambda>: in_axes= is needed"):
        fg.smap(lambda x: x, out_axes=0, axis_name="x")(X)


def test_errors_name_what_smap_takes():
    with pytest.raises(TypeError, match="smap: the first argument must be a function, got 3"):
        fg.smap(3, in_axes=0, out_axes=0, axis_name="x")
    with pytest.raises(
        fg.errors.ShardingError, match="smap of <lambda>: axis_name must be an axis"
    ):
        fg.smap(lambda x: x, in_axes=0, out_axes=0, axis_name="nil")(X)
    with fg.set_mesh(None), pytest.raises(fg.errors.ShardingError, match="a mesh is needed"):
        fg.smap(lambda x: x, in_axes=0, out_axes=0, axis_name="x")(X)
