"""Types that say how values are cut over Explicit mesh axes."""

from types import SimpleNamespace

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import AxisType, P, lax, nn
from funcgrad.core.aval import ShapedArray
from funcgrad.errors import ShardingError
from tests.parallel import explicit_programs

MESH = fg.make_mesh(explicit_programs.SHAPE, explicit_programs.NAMES, (AxisType.Explicit,) * 2)
VALUES = np.arange(64, dtype="float32").reshape(8, 8) / 64


@pytest.fixture(autouse=True)
def mesh():
    with fg.set_mesh(MESH):
        yield


def cut(*entries, values=VALUES):
    return fg.reshard(values, P(*entries))


def spec_of(x):
    return fg.typeof(x).sharding.spec


def arrays():
    return {name: cut(*entries) for name, entries in explicit_programs.CUTS.items()}


@pytest.mark.parametrize("name", explicit_programs.PROGRAMS)
def test_results_are_cut_as_jax_cuts_them(name):
    program, wanted = explicit_programs.PROGRAMS[name]
    found = []

    @fg.jit
    def f(arrays):
        out = program(fnp, SimpleNamespace(**arrays))
        found.append(spec_of(out))
        return out

    if wanted is None:
        with pytest.raises(ShardingError, match="open how the result is cut"):
            f.trace(arrays())
    else:
        f.trace(arrays())
        assert found == [P(*wanted)]


def test_compiled_results_are_cut_as_their_types_say():
    def f(a, b):
        return (a @ b).T, a.sum(0), a + b, fnp.arange(8)

    a, b = cut("x"), cut(None, "y")
    outs = fg.jit(f)(a, b)
    specs = [P("y", "x"), P(), P("x", "y"), P()]
    assert [o.sharding.spec for o in outs] == specs == [spec_of(o) for o in outs]
    for out, want in zip(outs, f(VALUES, VALUES), strict=True):
        np.testing.assert_allclose(out, want, rtol=1e-5)


def test_types_of_arrays():
    a = cut("x")
    assert repr(fg.typeof(a)) == "f32[8@x,8]"
    assert repr(fg.typeof(cut(("x", "y")))) == "f32[8@('x', 'y'),8]"
    assert fg.typeof(a).sharding.mesh == MESH
    assert fg.typeof(a) == ShapedArray((8, 8), "float32") == fg.typeof(VALUES)
    assert fg.typeof(a) != fg.typeof(cut(None, "x"))
    assert spec_of(VALUES) == spec_of(1.0) == P()
    with fg.set_mesh(None):
        assert spec_of(a) == P("x")
        assert fg.typeof(VALUES).sharding.mesh.size == 1


def test_auto_axes_are_in_no_type():
    mixed = fg.make_mesh((4, 2), ("x", "y"), (AxisType.Explicit, AxisType.Auto))
    found = []
    with fg.set_mesh(mixed):
        a = cut("x", "y")
        fg.jit(lambda a: found.append(spec_of(a * 2))).trace(a)
        assert [spec_of(a), *found] == [P("x"), P("x")]
    plain = fg.make_mesh((4, 2), ("x", "y"))
    with fg.set_mesh(plain):
        assert spec_of(cut("x", "y")) == P()
        fg.jit(lambda a: found.append(hasattr(fg.typeof(a), "sharding"))).trace(cut("x"))
    assert found[-1] is False


def test_errors_name_types_line_and_way_out():
    with pytest.raises(ShardingError) as e:
        fg.jit(lambda a: a.T @ a)(cut("x"))
    for words in ("dot_general of f32[8,8@x], f32[8@x,8]", "sums over an axis that is cut",
                  "out_sharding= or reshard", "test_explicit.py", "a.T @ a"):  # fmt: skip
        assert words in str(e.value)
    with pytest.raises(ShardingError, match="cut twice over 'x'"):
        fg.jit(lambda a: (a @ a.T, 1)[1])(cut("x"))  # also where no result needs it
    with pytest.raises(ShardingError, match="'z', no axis of"):
        fg.jit(lambda a: fg.reshard(a, P("z")))(cut("x"))


def test_what_is_open_may_be_said():
    @fg.jit
    def f(a):
        b = fg.reshard(a.T @ a, P("x"))
        assert spec_of(b) == P("x")
        return fg.sharding.reshard(b * 2, P(None, "y"))

    out = f(cut("x"))
    assert out.sharding.spec == P(None, "y")
    np.testing.assert_allclose(out, VALUES.T @ VALUES * 2, rtol=1e-5)


def test_programs_are_of_their_shardings():
    found = []
    f = fg.jit(lambda a: found.append(spec_of(a)))
    f(cut("x"))
    f(cut(None, "y"))
    f(VALUES)
    f(1.0)
    f.trace(fg.ShapeDtypeStruct((8, 8), "float32", sharding=fg.NamedSharding(MESH, P("y"))))
    f.trace(fg.ShapeDtypeStruct((8, 8), "float32"))
    assert found == [P("x"), P(None, "y"), P(), P(), P("y")]


def test_gradients_are_cut_as_their_primals():
    def loss(params, x):
        w, v, b = params
        h = fnp.tanh(x @ w + b)
        assert spec_of(h) == P("x", "y")
        return fnp.mean((fg.reshard(h, P("x")) @ v) ** 2)

    params = cut(None, "y"), cut("x"), cut(values=VALUES[0])
    x = cut("x")
    got = fg.jit(fg.grad(loss))(params, x)
    assert [g.sharding.spec for g in got] == [P(None, "y"), P("x"), P()]

    def plain(w, v, b):
        return fnp.mean((fnp.tanh(VALUES @ w + b) @ v) ** 2)

    for g, want in zip(got, fg.grad(plain, (0, 1, 2))(VALUES, VALUES, VALUES[0]), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-6)


def test_inside_of_transformations():
    found = []

    def note(x):
        found.append(getattr(fg.typeof(x), "sharding", None))
        return x * 2

    a = cut("x")
    fg.jit(lambda a: fg.vmap(note, 1, 1)(a)).trace(a)
    fg.jit(lambda a: fg.jvp(note, (a,), (a,))).trace(a)
    fg.jit(lambda a: fg.jit(note)(a.T)).trace(a)
    assert [s.spec for s in found] == [P("x"), P("x"), P(None, "x")]
    fg.jit(lambda a: fg.jit(fg.vmap(fg.jit(note)))(a)).trace(a)
    fg.jit(lambda a: fg.lax.scan(lambda c, r: (c, note(r)), 0.0, a)).trace(a)
    assert found[-2:] == [None, None]  # how lanes and rows are cut isn't known
    np.testing.assert_array_equal(fg.jit(lambda a: fg.vmap(lambda r: r.sum())(a))(a), VALUES.sum(1))


def test_bodies_of_loops_and_branches():
    found = []

    def note(x):
        found.append(spec_of(x))
        return x

    @fg.jit
    def f(a, rows):
        def step(c, row):
            return note(fnp.sin(c)) + a, note(row) * 2

        c, doubled = lax.scan(step, a, rows)
        note(doubled)
        c = lax.while_loop(lambda c: fnp.sum(fg.reshard(note(c), P())) < -5, lambda c: c + 1, c)
        c = lax.cond(fnp.sum(fg.reshard(c, P())) > 0, lambda c: note(c) * 2, lambda c: -c, c)
        return lax.fori_loop(0, 3, lambda i, c: c * 2, note(c)).T

    a, rows = cut("x"), cut(None, "y")
    out = f(a, rows)
    assert set(found[:2]) == {P("x"), P("y")}
    assert found[2:] == [P(None, "y"), P("x"), P("x"), P("x")]
    assert out.sharding.spec == P(None, "x")
    want = np.asarray(VALUES)
    for _ in range(8):
        want = np.sin(want) + VALUES
    np.testing.assert_allclose(out, 16 * want.T, rtol=1e-5)
    loss = lambda a: fnp.sum(fg.reshard(lax.scan(lambda c, _: (c * a, None), a, None, 3)[0], P()))
    grad = fg.jit(fg.grad(loss))(a)
    assert grad.sharding.spec == P("x")
    np.testing.assert_allclose(grad, 4 * VALUES**3, rtol=1e-5)


def test_a_carry_is_cut_as_it_comes():
    with pytest.raises(
        ShardingError, match=r"leaf 0 enters as f32\[8@x,8\] and leaves as f32\[8,8"
    ):
        fg.jit(lambda a: lax.scan(lambda c, _: (c.T, None), a, None, 2))(cut("x"))
    loop = lambda a, n: lax.fori_loop(0, n, lambda i, c: c.T, a)
    for turned in (lambda a: loop(a, 3), lambda a: fg.jit(loop)(a, 3)):  # a scan, a while loop
        with pytest.raises(ShardingError, match="of fori_loop: the carry must .* leaf 0 enters"):
            fg.jit(turned)(cut("x"))
    differ = fg.jit(lambda a: lax.cond(True, lambda a: a, lambda a: a.T, a))
    assert differ(cut("x")).shape == (8, 8)  # where branches differ, the compiler decides


def test_per_device_functions():
    @fg.jit
    def f(a):
        part = fg.shard_map(lambda b: fg.jit(fnp.cumsum)(b[0])[None], in_specs=P("x", None),
                            out_specs=P("x", None))  # fmt: skip
        return part(a) + 1

    assert f(cut("x")).shape == (4, 8)


SAID = {
    "matmul": lambda a, s: fnp.matmul(a.T, a, out_sharding=s),
    "batched matmul": lambda a, s: fnp.matmul(fnp.stack([a.T, a.T]), a, out_sharding=s),
    "dot": lambda a, s: fnp.dot(a.T, a, out_sharding=s),
    "dot of numbers": lambda a, s: fnp.dot(2.0, a, out_sharding=s),
    "tensordot": lambda a, s: fnp.tensordot(a, a, (0, 0), out_sharding=s),
    "einsum": lambda a, s: fnp.einsum("ij,ik->jk", a, a, out_sharding=s),
    "dot_general": lambda a, s: lax.dot_general(a, a, (([0], [0]), ([], [])), out_sharding=s),
    "reshape": lambda a, s: fnp.reshape(a, (4, 16), out_sharding=s),
    "reshape by columns": lambda a, s: fnp.reshape(a, (4, 16), "F", out_sharding=s),
    "lax.reshape": lambda a, s: lax.reshape(a, (2, 32), out_sharding=s),
    "broadcast": lambda a, s: lax.broadcast(a, (2,), out_sharding=s),
    "broadcast_in_dim": lambda a, s: lax.broadcast_in_dim(a, (8, 8), (0, 1), out_sharding=s),
    "zeros": lambda a, s: fnp.zeros((8, 8), out_sharding=s),
    "ones": lambda a, s: fnp.ones((8, 8), out_sharding=s),
    "full": lambda a, s: fnp.full((8, 8), 3, out_sharding=s),
    "empty": lambda a, s: fnp.empty((8, 8), out_sharding=s),
    "lax.full": lambda a, s: lax.full((8, 8), 3, sharding=s),
    "lax.empty": lambda a, s: lax.empty((8, 8), "float32", out_sharding=s),
    "zeros_like": lambda a, s: fnp.zeros_like(a, out_sharding=s),
    "ones_like": lambda a, s: fnp.ones_like(a, out_sharding=s),
    "empty_like": lambda a, s: fnp.empty_like(a, out_sharding=s),
    "full_like": lambda a, s: fnp.full_like(a, 3, out_sharding=s),
    "lax.full_like": lambda a, s: lax.full_like(a, 3, sharding=s),
    "arange": lambda a, s: fnp.arange(8.0, out_sharding=s),
    "array": lambda a, s: fnp.array([1, 2, 3, 4], out_sharding=s),
    "asarray": lambda a, s: fnp.asarray(a, out_sharding=s),
    "ravel": lambda a, s: fnp.ravel(a, out_sharding=s),
    "broadcast_to": lambda a, s: fnp.broadcast_to(a, (2, 8, 8), out_sharding=s),
    "repeat": lambda a, s: fnp.repeat(a, 2, 0, out_sharding=s),
    "bincount": lambda a, s: fnp.bincount(fnp.arange(8), length=8, out_sharding=s),
    "get": lambda a, s: a.at[::2].get(out_sharding=s),
    "lax.dot": lambda a, s: lax.dot(a.T, a, out_sharding=s),
    "broadcasted_iota": lambda a, s: lax.broadcasted_iota("int32", (8, 2), 0, out_sharding=s),
    "reduce": lambda a, s: lax.reduce(a, 0.0, lax.add, [0], s),
    "rng_bit_generator": lambda a, s: lax.rng_bit_generator(
        fnp.arange(4, dtype="uint32"), (8, 2), out_sharding=s
    )[1],
    "percentile": lambda a, s: fnp.percentile(fnp.ones((8, 8)), 50, 0, out_sharding=s),
    "reduce_sum": lambda a, s: lax.reduce_sum(a, [0], out_sharding=s),
    "ragged_dot": lambda a, s: lax.ragged_dot(
        fnp.ones((8, 2)), fnp.ones((2, 2, 2)), fnp.array([5, 3]), out_sharding=s
    ),
    "conv_general_dilated": lambda a, s: lax.conv_general_dilated(
        fnp.ones((4, 1, 8)), fnp.ones((1, 1, 3)), (1,), "SAME", out_sharding=s
    ),
    "initializers": lambda a, s: nn.initializers.ones(None, (8, 8), None, s),
}


@pytest.mark.parametrize("name", SAID)
def test_results_are_cut_as_out_sharding_says(name):
    found = []
    fg.jit(lambda a: found.append(spec_of(SAID[name](a, P("y"))))).trace(cut("x"))
    assert found == [P("y")]


def test_out_sharding_without_jit():
    out = fnp.matmul(VALUES.T, cut("x"), out_sharding=fg.NamedSharding(MESH, P("y", "x")))
    assert spec_of(out) == out.sharding.spec == P("y", "x")
    np.testing.assert_allclose(out, VALUES.T @ VALUES, rtol=1e-5)
    assert spec_of(fnp.zeros((8, 8), out_sharding=P("x"))) == P("x")
    with pytest.raises(ShardingError, match="axis 0 of .* of size 3, can't be cut into 4"):
        fnp.ones((3, 8), out_sharding=P("x"))
    with fg.set_mesh(None), pytest.raises(TypeError, match="a spec with its mesh"):
        fnp.ones((8, 8), out_sharding=P("x"))
