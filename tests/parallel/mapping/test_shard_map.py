"""shard_map: what it means, its checks and errors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShardingError
from funcgrad.parallel import NamedSharding, P, device_put, shard_map, with_sharding_constraint
from tests.parallel.shard_map_helpers import (
    GRID,
    LINE,
    PARAMS,
    B,
    W,
    X,
    close,
    layer,
    mapped,
    plain_loss,
)  # fmt: skip

# ---- what it means


@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_each_device_sees_its_part(jit):
    shapes = []

    def f(x):
        shapes.append(x.shape)
        return x * lax.axis_index("i")

    g = mapped(f, LINE, P("i"), P("i"))
    got = (fg.jit(g) if jit else g)(X)
    assert shapes == [(2, 4)]
    close(got, X * np.repeat(np.arange(4), 2)[:, None])
    assert got.sharding == NamedSharding(LINE, P("i"))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (P(), (8, 4)), (P("i"), (4, 4)), (P("j"), (4, 4)), (P(None, "i"), (8, 2)),
        (P("i", "j"), (4, 2)), (P("j", "i"), (4, 2)), (P(("i", "j")), (2, 4)),
        (P(("j", "i")), (2, 4)), (P(None, ("i", "j")), (8, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_specs_cut_and_join(spec, shape):
    def f(x):
        assert x.shape == shape
        return x + 1

    close(mapped(f, GRID, spec, spec)(X), X + 1)
    close(fg.jit(mapped(f, GRID, spec, spec))(X), X + 1)


def test_what_is_whole_is_put_side_by_side():
    f = mapped(lambda x: x, LINE, P(), P("i"))
    close(f(X), np.concatenate([X] * 4))
    close(fg.grad(lambda x: fnp.sum(f(x) * 3))(X), np.full_like(X, 12))
    g = mapped(lambda x: x, GRID, P("j"), P(("i", "j")))
    close(g(X), np.concatenate([X] * 2))
    close(fg.grad(lambda x: fnp.sum(g(x) * 3))(X), np.full_like(X, 6))


def test_pytrees_prefixes_and_decorator():
    @shard_map(mesh=LINE, in_specs=(P(), [P("i"), P()]), out_specs={"y": P("i"), "n": P()})
    def f(params, data):
        x, k = data
        return {"y": x @ params["w"] + params["b"], "n": k}

    out = f({"w": W, "b": B}, [X, 3.0])
    close(out["y"], X @ W + B)
    close(out["n"], 3.0)
    assert f.__name__ == "shard_map(f)"


def test_traced_once_for_each_type():
    traces = []

    def f(x):
        traces.append(x.dtype)
        return lax.psum(x, "i")

    g = mapped(f, LINE, P("i"), P())
    for _ in range(3):
        g(X)
    assert len(traces) == 1
    g(X.astype("float64"))
    assert len(traces) == 2


def test_mesh_of_the_arguments():
    x = device_put(X, NamedSharding(LINE, P("i")))
    f = shard_map(lambda x: lax.psum(x, "i"), in_specs=P("i"), out_specs=P())
    close(f(x), X.reshape(4, 2, 4).sum(0))
    with pytest.raises(ShardingError, match=r"shard_map of <lambda>: mesh= is needed.*no mesh"):
        f(X)


def test_captured_values_are_whole():
    scale = fnp.array([1.0, 2.0, 3.0, 4.0])

    def loss(s, x):
        f = mapped(lambda x: lax.psum(fnp.sum(x * s * scale, axis=0), "i"), LINE, P("i"), P())
        return fnp.sum(f(x) ** 2)

    def plain(s, x):
        return fnp.sum(fnp.sum(x * s * scale, axis=0) ** 2)

    close(loss(2.0, X), plain(2.0, X))
    close(fg.grad(loss)(2.0, X), plain_gradient := fg.grad(plain)(2.0, X))
    close(fg.jit(fg.grad(loss))(2.0, X), plain_gradient)


def test_some_axes_alone():
    def f(x):
        assert x.shape == (4, 4)
        return lax.psum(fnp.sin(x), "i")

    g = mapped(f, GRID, P("i"), P(), axis_names={"i"})
    want = np.sin(X).reshape(2, 4, 4).sum(0)
    close(g(X), want)
    x = device_put(X, NamedSharding(GRID, P("i", "j")))
    close(fg.jit(g)(x), want)
    close(fg.jit(fg.grad(lambda x: fnp.sum(g(x) ** 2)))(x), 2 * np.tile(want, (2, 1)) * np.cos(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cut", [P("i"), P(None, "i"), P(("j", "i")), P("j", "i")], ids=str)
@pytest.mark.parametrize("names", [{"i"}, {"i", "j"}], ids=["i", "i, j"])
def test_operands_cut_over_axes_that_no_spec_names(cut, names):
    def f(w, x):
        return lax.psum(fnp.sum(fnp.tanh(x @ w), 0), "i")

    def plain(w, x):
        return fnp.sum(fnp.tanh(x @ w), 0)

    square = X[:4]
    g = mapped(f, GRID, (P(), P("i")), P(), axis_names=names)
    w, x = (device_put(v, NamedSharding(GRID, cut)) for v in (square, X))
    want, slope = plain(square, X), fg.jacrev(plain)(square, X)
    for args in ((w, X), (square, x), (w, x)):
        close(g(*args), want)
        close(fg.jit(g)(*args), want)
        close(fg.jit(fg.jacrev(g))(*args), slope)


def test_within_another_one():
    inner = shard_map(lambda x: lax.psum(x, "j"), mesh=GRID, in_specs=P("j"), out_specs=P())

    def outer(x):
        return lax.psum(inner(x * x), "i")

    f = mapped(outer, GRID, P("i"), P(), axis_names={"i"})
    want = (X * X).reshape(4, 2, 4).sum(0)
    close(f(X), want)
    close(fg.grad(lambda x: fnp.sum(f(x)))(X), 2 * X)
    close(fg.jit(f)(X), want)


# ---- vmap


def test_vmap_around():
    f = mapped(lambda x, s: lax.psum(x * s, "i"), LINE, (P("i"), P()), P())
    xs, s = np.stack([X, 2 * X, -X]), np.arange(3, dtype=np.float32)
    want = np.stack([(x * k).reshape(4, 2, 4).sum(0) for x, k in zip(xs, s, strict=True)])
    for wrap in (lambda f: f, fg.jit):
        close(wrap(fg.vmap(f))(xs, s), want)
        close(wrap(fg.vmap(f, in_axes=(None, 0)))(X, s), want[:1] * 0 + np.multiply.outer(
            s, X.reshape(4, 2, 4).sum(0)))  # fmt: skip
        close(wrap(fg.vmap(f, in_axes=(1, None), out_axes=1))(xs.swapaxes(0, 1), 1.0),
              xs.reshape(3, 4, 2, 4).sum(1).swapaxes(0, 1))  # fmt: skip
    each = fg.vmap(fg.grad(lambda s, x: fnp.sum(f(x, s))), in_axes=(0, None))(s, X)
    close(each, np.full(3, X.sum()), 1e-4)
    # An axis of vmap that has the name of a mesh axis is another axis.
    close(fg.vmap(f, axis_name="i")(xs, s), want)


def test_vmap_over_lanes_that_are_cut():
    def f(w, x):
        assert x.shape == (4,)
        return lax.psum(fnp.sum(x * w), "j")

    g = mapped(f, GRID, (P(), P()), P())
    rows = fg.vmap(g, in_axes=(None, 0), spmd_axis_name="i")
    close(rows(2.0, X), 4 * X.sum(1))
    close(fg.jit(rows)(2.0, X), 4 * X.sum(1))
    close(fg.grad(lambda w: fnp.sum(rows(w, X) ** 2))(2.0), np.sum(2 * 4 * X.sum(1) * 2 * X.sum(1)))
    program = fg.make_jaxpr(rows)(2.0, X).jaxpr
    (eqn,) = (e for e in program.eqns if e.prim.name == "shard_map")
    assert eqn.params["in_cuts"] == ((), (("i",), ()))
    assert eqn.params["out_cuts"] == ((("i",),),)
    with pytest.raises(ShardingError, match="3 lanes can't be cut into 2 equal parts"):
        rows(2.0, X[:3])
    h = mapped(lambda x: x, GRID, P("i"), P("i"))
    with pytest.raises(ShardingError, match="spmd_axis_name=.*a spec inside names the same"):
        fg.vmap(h, spmd_axis_name="i")(X)


def test_vmap_over_lanes_that_are_cut_of_constrained_values():
    f = lambda x: with_sharding_constraint(x, NamedSharding(GRID, P("j")))
    jaxpr = fg.make_jaxpr(fg.vmap(f, in_axes=1, out_axes=1, spmd_axis_name="i"))(X).jaxpr
    assert jaxpr.eqns[-1].params["sharding"].spec == P("j", "i")


def test_vmap_inside():
    f = mapped(lambda x: fg.vmap(lambda v: lax.psum(v, "i"))(x), LINE, P("i"), P())
    close(f(X), X.reshape(4, 2, 4).sum(0))
    both = lambda v: lax.psum(v, ("i", "k")) + lax.axis_index("k")
    g = mapped(lambda x: fg.vmap(both, axis_name="k")(x), LINE, P("i"), P())
    close(g(X), X.sum(0) + np.arange(2)[:, None])
    h = mapped(
        lambda w, x: fg.vmap(fg.grad(lambda w, r: fnp.sum(w * r * r)), (None, 0))(w, x),
        LINE, (P(), P("i")), P(),
    )  # fmt: skip
    # A gradient for each row of a part; rows of equal place are summed over devices.
    close(h(3.0, X), (X * X).sum(1).reshape(4, 2).sum(0))


# ---- without the check


def test_unchecked_results_are_believed():
    def equal(x):
        return lax.all_gather(x, "i", tiled=True)

    with pytest.raises(ShardingError, match="varies over the mesh axis 'i'"):
        mapped(equal, LINE, P("i"), P())(X)
    f = mapped(equal, LINE, P("i"), P(), check_vma=False)
    close(f(X), X)
    close(fg.grad(lambda x: fnp.sum(f(x) ** 2))(X), 2 * X)
    loss = mapped(layer(lambda v: lax.pmean(v, "i")), LINE, (P(), P("i")), P(), check_vma=False)
    close(fg.jit(fg.grad(loss))(PARAMS, X), fg.grad(plain_loss)(PARAMS, X))


def test_unchecked_gradients_inside_are_each_devices_own():
    g = mapped(fg.grad(lambda w, x: fnp.sum(w * x)), LINE, (P(), P("i")), P(), check_vma=False)
    close(g(2.0, X), X[:2].sum())
    summed = mapped(
        lambda w, x: lax.psum(fg.grad(lambda w: fnp.sum(w * x))(w), "i"),
        LINE, (P(), P("i")), P(), check_vma=False,
    )  # fmt: skip
    close(summed(2.0, X), X.sum())


# ---- programs as text


def test_programs_show_body_mesh_and_cuts():
    text = str(fg.make_jaxpr(mapped(lambda w, x: lax.psum(w * x, "i"), LINE, (P(), P("i")), P()))(
        2.0, X))  # fmt: skip
    for words in ("shard_map[mesh=Mesh('i': 4)", "manual=('i',)", "pvary[axis_name=('i',)] a",
                  "psum_invariant[axis_name=('i',)]", "b:f32[2,4]"):  # fmt: skip
        assert words in text


# ---- errors


def raises(match, f, in_specs, out_specs, *args, mesh=LINE, error=ShardingError, **options):
    with pytest.raises(error, match=match):
        mapped(f, mesh, in_specs, out_specs, **options)(*args)


def same(x):
    return x


def loss(params, x):
    return fnp.sum(params["w"]) + fnp.sum(x)


def test_errors_name_argument_axis_and_sizes():
    raises(
        r"shard_map of loss: axis 0 of argument params\['w'\], of size 6, can't be cut into 4 "
        r"equal parts over the mesh axis 'i' \(4\): shape \(6, 3\), P\('i'\)",
        loss, (P("i"), P()), P(), {"w": np.ones((6, 3))}, X,
    )  # fmt: skip
    raises(r"argument x of shape \(8, 4\) has 2 axes, but its spec P\('i', None, None\) has 3",
           same, P("i", None, None), P(), X)  # fmt: skip
    raises(r"the spec P\('k'\) of argument x names 'k', which is no axis of it: Mesh\('i': 4\)",
           same, P("k"), P(), X)  # fmt: skip
    raises("names 'j', which is not among axis_names", same, P("j"), P(), X, mesh=GRID,
           axis_names={"i"})  # fmt: skip
    raises("names a mesh axis twice", same, P("i", "i"), P(), X)
    raises("in_specs has 1 entries, but the function was called with 2", loss, (P(),), P(), {}, X)
    raises("the spec of argument x must be a PartitionSpec", same, None, P(), X, error=TypeError)
    raises("the spec of the result must be a PartitionSpec", same, P(), None, X, error=TypeError)
    raises(r"the result\['a'\] of shape \(\) has 0 axes, but its spec P\('i'\)",
           lambda x: {"a": fnp.sum(x)}, P("i"), P("i"), X)  # fmt: skip
    inner = shard_map(same, mesh=GRID, in_specs=P(), out_specs=P(), axis_names={"i"})
    raises("the mesh axis 'i' is that of a shard_map around it; axis_names may be of 'j'",
           inner, P(), P(), X, mesh=GRID, axis_names={"i"})  # fmt: skip
    raises("axis_names must be axes of", same, P(), P(), X, axis_names={"z"})
    with pytest.raises(TypeError, match="mesh must be a Mesh, got 3"):
        shard_map(same, mesh=3, in_specs=P(), out_specs=P())
    with pytest.raises(TypeError, match="first argument must be a function"):
        shard_map(3, mesh=LINE, in_specs=P(), out_specs=P())
    raises("argument x must be an array or a number", same, P(), P(), "text", error=TypeError)
    raises("no axis is named 'z'", lambda x: lax.psum(x, "z"), P("i"), P(), X, error=NameError)


def test_results_that_vary_need_a_spec_that_says_so():
    raises(
        r"shard_map of <lambda>: the result\['y'\], f32\[4\] on each device, varies over the mesh "
        r"axis 'j', but its out_spec P\(\) says it is the same along it. Make it so \(psum or "
        r"pmean over 'j'\), or name the axis in out_specs",
        lambda x: {"y": lax.psum(fnp.sum(x, 0), "i")}, P(("i", "j")), P(), X, mesh=GRID,
    )  # fmt: skip
    raises("varies over the mesh axis 'i' and 'j'", same, P("i", "j"), P(), X, mesh=GRID)
    raises("varies over the mesh axis 'i'", lambda x: x * lax.axis_index("i"), P(), P(), X)
    raises("varies over the mesh axis 'i'", lambda x: lax.pvary(x, "i"), P(), P(), X)


def test_specs_of_arguments_follow_from_explicit_axes():
    mesh = fg.make_mesh((4,), "i", fg.AxisType.Explicit)
    x = fg.device_put(fnp.arange(8.0), fg.NamedSharding(mesh, P("i")))
    parts = shard_map(lambda x, y: fnp.full((1,), fnp.sum(x) + y.size), mesh=mesh, out_specs=P("i"))
    wanted = [1.0 + 2, 5 + 2, 9 + 2, 13 + 2]
    np.testing.assert_array_equal(parts(x, fnp.ones(2)), wanted)
    np.testing.assert_array_equal(
        parts(fg.reshard(x, fg.NamedSharding(mesh, P())), fnp.ones(2)), [30.0] * 4
    )
    with fg.set_mesh(mesh):
        np.testing.assert_array_equal(fg.jit(lambda x: parts(x * 2, x))(x), [4.0, 12, 20, 28])
    with pytest.raises(ShardingError, match="in_specs= is needed.*Explicit.*'i'"):
        shard_map(fnp.sin, mesh=fg.make_mesh((4,), "i"), out_specs=P("i"))(x)
