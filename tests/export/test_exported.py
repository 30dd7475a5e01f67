"""Exported functions: what they say of themselves, calls, transformations, files."""

import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn, optim, parallel, random, tree
from funcgrad.errors import ArgumentError, ExportError, FormatError

ROOT = Path(__file__).parents[2]


def loaded(fun, *args, order=2, **options):
    jitted = fun if hasattr(fun, "trace") else fg.jit(fun, **options)
    return export.deserialize(export.export(jitted, rule_order=order)(*args).serialize())


def same(a, b):
    """Equal trees, to the bit."""
    assert tree.structure(a) == tree.structure(b)
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


# ---- a model: what is said of it, calls


def model(params, x, *, scale=1.0):
    h = nn.relu(x @ params["w"] + params["b"])
    return {"mean": fnp.mean(h, axis=1), "all": (h * scale, None)}


PARAMS = {"w": fnp.full((3, 4), 0.5), "b": fnp.arange(4.0)}
X = fnp.linspace(-1, 1, 6).reshape(2, 3)


def test_exported_says_what_it_is():
    f = export.export(fg.jit(model))(PARAMS, X, scale=2.0)
    g = export.deserialize(f.serialize())
    for e in (f, g):
        assert e.fun_name == "model"
        assert list(map(str, e.in_avals)) == ["f32[4]", "f32[3,4]", "f32[2,3]", "f32[]"]
        assert list(map(str, e.out_avals)) == ["f32[2,4]", "f32[2]"]
        assert e.in_tree == tree.structure(((PARAMS, X), {"scale": 2.0}))
        assert e.platforms == ("cpu",)
        assert e.nr_devices == 1
        assert e.has_vjp()
        same(e.call(PARAMS, X, scale=2.0), fg.jit(model)(PARAMS, X, scale=2.0))
    assert f.serialize() == g.serialize()
    assert repr(g) == "Exported(model: (f32[4], f32[3,4], f32[2,3], f32[]) → f32[2,4], f32[2])"
    assert "dot_general" in g.as_text()
    assert "dot_general" in g._repr_html_()


def test_equal_arrays_are_in_the_file_once():
    w = np.ones((64, 64), "float32")
    f = fg.jit(lambda x: fnp.tanh(fnp.tanh(x @ w) @ w) @ w)
    e = export.export(f)(w)
    assert len(e.serialize()) < 1.3 * w.nbytes
    same(export.deserialize(e.serialize()).call(w), f(w))


def test_captured_arrays_go_along():
    g = loaded(lambda x: model(PARAMS, x), X)
    same(g.call(X), fg.jit(lambda x: model(PARAMS, x))(X))
    assert len(g.jaxpr.consts) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (({"w": PARAMS["w"]}, X), r"what model was exported for.*this call"),
        ((PARAMS, X[:1]), r"model was exported for argument x of type f32\[2,3\], got f32\[1,3\]"),
        ((PARAMS | {"b": fnp.arange(4)}, X), r"argument params\['b'\] of type f32\[4\], got i32"),
        ((PARAMS,), "structure|exported for"),
        ((PARAMS, "x"), "model: argument x must be an array or a number, got 'x' of"),
    ],
)
def test_calls_with_other_arguments_name_them(args, words):
    with pytest.raises((ArgumentError, TypeError), match=words):
        loaded(model, PARAMS, X).call(*args)


def test_platforms_of_any_kind():
    x = fg.ShapeDtypeStruct((3,), "float32")
    for given in ({"cuda", "cpu"}, (p for p in ("cpu", "cuda"))):
        made = export.export(fg.jit(lambda x: 2 * x), platforms=given)(x)
        assert tuple(made.platforms) == ("cpu", "cuda")


def test_only_compiled_functions_are_exported():
    with pytest.raises(ArgumentError, match=r"takes a function that jit returned.*fg.jit\(f\)"):
        export.export(model)
    with pytest.raises(ArgumentError, match="platforms must be among"):
        export.export(fg.jit(model), platforms=["tpu"])
    for wrong in (3, "cpu", (), [["cpu"]]):
        with pytest.raises(ArgumentError, match="platforms must be among"):
            export.export(fg.jit(model), platforms=wrong)
    with pytest.raises(ArgumentError, match="rule_order"):
        export.export(fg.jit(model), rule_order=-1)
    with pytest.raises(ArgumentError, match="takes bytes"):
        export.deserialize("text")


def test_static_and_donated_arguments():
    f = fg.jit(lambda n, state, x: state + n * x, static_argnums=0, donate_argnums=1)
    g = loaded(f, 3, fnp.ones(2), fnp.ones(2))
    assert g.donated == (True, False)
    state = fnp.ones(2)
    np.testing.assert_array_equal(g.call(state, fnp.ones(2)), [4, 4])
    np.testing.assert_array_equal(state, [1, 1])  # call donates nothing
    np.testing.assert_array_equal(fg.jit(g.call, donate_argnums=0)(state, fnp.ones(2)), [4, 4])
    assert state.is_deleted()


# ---- transformations after loading


def energy(x):
    def body(carry, y):
        carry = lax.cond(y > 0, lambda c: fnp.sin(c) * y, lambda c: c - y, carry)
        return carry, fg.checkpoint(lambda c: fnp.exp(-c) * c)(carry)

    total, ys = lax.scan(body, 1.0, x)
    looped = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5), (0, total))[1]
    return fnp.sum(ys) * looped + nn.logsumexp(x) + fnp.linalg.norm(nn.gelu(x))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        fg.jit,
        fg.vmap,
        lambda f: fg.jit(fg.vmap(f)),
        lambda f: fg.jacfwd(f),
        lambda f: lambda x: fg.jvp(f, (x,), (x,)),
        lambda f: fg.jit(fg.vmap(fg.jacfwd(f))),
    ],
)
def test_loaded_functions_are_transformed_like_others(transform):
    x = fnp.linspace(-1, 2, 5)
    g = loaded(energy, x)
    given = x
    try:
        want = transform(energy)(given)
    except (ArgumentError, ValueError):
        given = fnp.stack([x, 2 * x])
        want = transform(energy)(given)
    for a, b in zip(tree.leaves(transform(g.call)(given)), tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def smooth(x):
    return fnp.sum(fnp.tanh(x) ** 2) + nn.softplus(x).sum() + fnp.linalg.slogdet(
        fnp.eye(3) + fnp.outer(x, x)
    )[1]  # fmt: skip


@pytest.mark.parametrize("make", [fg.grad, fg.hessian, lambda f: fg.jacrev(fg.grad(f))])
def test_gradients_after_loading(make):
    x = fnp.array([0.3, -0.2, 0.7])
    np.testing.assert_allclose(
        make(loaded(smooth, x).call)(x), make(smooth)(x), rtol=1e-4, atol=1e-5
    )


def test_vjp_is_exported_too():
    f = lambda x, n, y: (x * y * n, n)
    g = export.deserialize(loaded(f, 2.0, 3, 4.0).vjp().serialize())
    x, n, y = g.call(2.0, 3, 4.0, 1.0)
    assert (float(x), n, float(y)) == (12.0, None, 6.0)
    again = g.vjp()
    assert [a.shape for a in again.in_avals] == [()] * 6


# ---- trees, keys, states


class Moments(NamedTuple):
    mean: object
    power: object


class Other(NamedTuple):
    mean: object


class Plain(NamedTuple):
    x: object


export.register_namedtuple_serialization(Moments, serialized_name="test.Moments")


def test_trees_of_all_kinds():
    given = {"a": [1.0, None], 2.5 if False else "b": OrderedDict(z=(2.0,), y=Moments(1.0, {}))}
    g = loaded(lambda t: tree.map(lambda x: x + 1, t), given)
    same(g.call(given), fg.jit(lambda t: tree.map(lambda x: x + 1, t))(given))


def test_other_classes_are_refused_by_name():
    with pytest.raises(ExportError, match=r"the arguments of .* class Plain.*register_namedtuple"):
        export.export(fg.jit(lambda t: t.x))(Plain(1.0))
    with pytest.raises(ArgumentError, match="'test.Moments' is taken by Moments"):
        export.register_namedtuple_serialization(Other, serialized_name="test.Moments")
    with pytest.raises(ArgumentError, match="takes a class of named tuples, got .*dict"):
        export.register_namedtuple_serialization(dict, serialized_name="test.dict")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys(impl):
    key = random.key(3, impl=impl)
    f = lambda key: (random.normal(key, (3,)), random.split(key))
    got, want = loaded(f, key).call(key), f(key)
    assert got[1].impl == impl
    same(got, want)


def test_a_step_of_training():
    optimizer = optim.adam(0.1)

    def step(params, state, x):
        loss, g = fg.value_and_grad(lambda p: fnp.sum(model(p, x)["mean"]))(params)
        updates, state = optimizer.update(g, state, params)
        return optim.apply_updates(params, updates), state, loss

    state = optimizer.init(PARAMS)
    g = loaded(fg.jit(step, donate_argnums=(0, 1)), PARAMS, state, X)
    got = want = (PARAMS, state)
    for _ in range(3):
        got, want = g.call(*got[:2], X), fg.jit(step)(*want[:2], X)
    same(got, want)


# ---- places, shardings


def test_lines_of_the_source_are_kept():
    g = loaded(energy, X[0])
    places = [str(e.source) for e in g.jaxpr.jaxpr.eqns]
    assert all(p.startswith("test_exported.py:") for p in places)
    assert places[0] == "test_exported.py:" + places[0].partition(":")[2]
    with fg.debug_nans(True), pytest.raises(FloatingPointError, match=r"test_exported.py:\d+"):
        loaded(lambda x: fnp.log(x), 1.0).call(-1.0)


def test_shardings_and_mesh_axes_are_kept():
    mesh = parallel.make_mesh((2,), "data")
    cut = parallel.NamedSharding(mesh, parallel.P("data"))
    x = fg.ShapeDtypeStruct((4, 3), "float32", sharding=cut)

    def f(x):
        total = fg.shard_map(
            lambda part: lax.psum(part.sum(0), "data"), mesh=mesh,
            in_specs=parallel.P("data"), out_specs=parallel.P(),
        )(x)  # fmt: skip
        return parallel.with_sharding_constraint(x * total, cut)

    g = loaded(f, x)
    assert g.in_shardings == (cut,)
    assert g.nr_devices == 2
    values = fnp.arange(12.0).reshape(4, 3)
    out = g.call(values)
    np.testing.assert_array_equal(out, values * values.sum(0))
    assert out.sharding.spec == parallel.P("data")


def test_types_of_mesh_axes_are_kept():
    types = (parallel.AxisType.Explicit, parallel.AxisType.Auto)
    mesh = parallel.make_mesh((2, 1), ("data", "model"), types)
    cut = parallel.NamedSharding(mesh, parallel.P("data"))
    g = loaded(lambda x: x * 2, fg.ShapeDtypeStruct((4,), "float32", sharding=cut))
    assert g.in_shardings == (cut,)
    assert g.in_shardings[0].mesh.axis_types == types
    out = g.call(fg.device_put(fnp.ones(4), cut))
    np.testing.assert_array_equal(out, np.full(4, 2, "f4"))


# ---- files


def test_samples_are_checked_where_the_file_is_loaded(tmp_path):
    f = export.export(fg.jit(model))(PARAMS, X)
    f.save(tmp_path / "model.fg", samples=[(PARAMS, X), (PARAMS, -X)])
    g = export.load(tmp_path / "model.fg")
    assert len(g.samples) == 2
    assert g.check_samples() == 0.0
    assert len(export.deserialize(g.serialize()).samples) == 2
    assert not g.samples[0].results[0].flags.writeable
    with pytest.raises(ArgumentError, match="a sample is a tuple"):
        f.serialize(samples=[X])


def test_a_fresh_process_gives_the_same_bits(tmp_path):
    f = export.export(fg.jit(energy))(X[0])
    f.save(tmp_path / "energy.fg", samples=[(X[0],), (2 * X[1],)])
    code = (
        "import sys; from funcgrad import export; print(export.load(sys.argv[1]).check_samples())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "energy.fg")],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert run.stdout == "0.0\n", run.stderr


def test_files_that_are_none_are_named(tmp_path):
    path = tmp_path / "other.fg"
    path.write_bytes(b"PK but not really")
    with pytest.raises(FormatError, match=r"other.fg: this is no funcgrad program"):
        export.load(path)
    with pytest.raises(FileNotFoundError):
        export.load(tmp_path / "absent.fg")
