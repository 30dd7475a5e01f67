"""Functions in which mesh axes are of another type."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import AxisType, P
from funcgrad.errors import ShardingError
from funcgrad.sharding import auto_axes, explicit_axes

VALUES = np.arange(64, dtype="float32").reshape(8, 8) / 64
AUTO = fg.make_mesh((4, 2), ("x", "y"))
EXPLICIT = fg.make_mesh((4, 2), ("x", "y"), AxisType.Explicit)


@pytest.mark.parametrize("around", [fg.jit, lambda f: f])
def test_the_compiler_decides_in_auto_axes(around):
    seen = []

    @auto_axes(out_sharding=(P("x"), P()))
    def f(a):
        seen.append(fg.sharding.get_mesh().auto_axes)
        b = fg.parallel.with_sharding_constraint(a @ a.T, P("y"))
        return b, a.sum()

    with fg.set_mesh(EXPLICIT):
        a = fg.reshard(VALUES, P("x"))
        b, total = around(lambda a: f(a * 2))(a)
        assert (fg.typeof(b).sharding.spec, b.sharding.mesh) == (P("x"), EXPLICIT)
        assert fg.typeof(total).sharding.spec == P()
    assert seen == [("x", "y")]
    np.testing.assert_allclose(b, VALUES @ VALUES.T * 4, rtol=1e-5)
    np.testing.assert_allclose(total, VALUES.sum() * 2, rtol=1e-5)


@pytest.mark.parametrize("around", [fg.jit, lambda f: f])
def test_types_say_it_in_explicit_axes(around):
    seen = []

    def f(a, b):
        seen.append((repr(fg.typeof(a)), repr(fg.typeof(b.T)), repr(fg.typeof(a @ b))))
        return a @ b

    with fg.set_mesh(AUTO):
        g = explicit_axes(f, in_sharding=(P("x"), P(None, "y")))
        out = around(lambda a: g(a, a + 1))(VALUES)
        assert (out.sharding.spec, out.sharding.mesh) == (P("x", "y"), AUTO)
    assert seen == [("f32[8@x,8]", "f32[8@y,8]", "f32[8@x,8@y]")]
    np.testing.assert_allclose(out, VALUES @ (VALUES + 1), rtol=1e-5)


def test_gradients():
    def loss(a):
        b = auto_axes(lambda a: fg.numpy.sin(a.T @ a), out_sharding=P("y"))(a)
        return (b * b).sum()

    with fg.set_mesh(EXPLICIT):
        got = fg.jit(fg.grad(loss))(fg.reshard(VALUES, P("x")))
        assert got.sharding.spec == P("x")
    want = fg.grad(lambda a: (fg.numpy.sin(a.T @ a) ** 2).sum())(VALUES)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_some_axes():
    seen = []

    def note(a):
        seen.append(fg.sharding.get_mesh().axis_types)
        return a

    with fg.set_mesh(EXPLICIT):
        auto_axes(note, axes="x", out_sharding=P("x"))(VALUES)
    with fg.set_mesh(AUTO):
        explicit_axes(note, axes=("y",), in_sharding=P("y"))(VALUES)
    assert seen == [(AxisType.Auto, AxisType.Explicit)] * 2


def test_what_is_missing_is_said():
    with pytest.raises(TypeError, match="auto_axes: out_sharding is missing"):
        auto_axes(lambda a: a)
    with pytest.raises(TypeError, match="explicit_axes: in_sharding is missing"):
        explicit_axes(lambda a: a)
    with fg.set_mesh(AUTO), pytest.raises(ShardingError, match=r"axes \['z'\] are none of Mesh"):
        auto_axes(lambda a: a, axes="z", out_sharding=P())(VALUES)
    with pytest.raises(ShardingError, match="explicit_axes: it needs a mesh of devices"):
        explicit_axes(lambda a: a, in_sharding=P())(VALUES)
