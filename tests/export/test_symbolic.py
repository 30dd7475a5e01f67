"""Sizes with names: what they say, programs of several sizes as one, and calls that don't fit."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export, lax, nn
from funcgrad.errors import ArgumentError, ExportError
from funcgrad.export.symbolic import parse, solve

F32 = "float32"


def struct(spec, scope=None, **options):
    shape = export.symbolic_shape(spec, scope=scope, **options)
    return fg.ShapeDtypeStruct(shape, F32)


@pytest.mark.parametrize(
    ("text", "shown", "value"),
    [("b", "b", 3), ("2*b+1", "2*b + 1", 7), ("(b+1)*(b-1)", "b*b - 1", 8), ("b-b", "0", 0),
     ("n*b - 3*b", "b*n - 3*b", 6), (" - b + n ", "-b + n", 2)],
)  # fmt: skip
def test_sizes_are_polynomials(text, shown, value):
    dim = parse(text)
    assert (repr(dim), dim.at({"b": 3, "n": 5})) == (shown, value)
    assert parse(repr(dim)) == dim


@pytest.mark.parametrize("text", ["", "b b", "2**b", "b/2", "b.n", "f(b)", "(b", "b)", "+", "1e5"])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(ArgumentError, match="is no size"):
        parse(text)


def test_symbols_follow_from_sizes():
    assert solve([(parse("2*b"), 7)]) == {}
    assert solve([(parse("b*n"), 12), (parse("n - 1"), 2)]) == {"n": 3, "b": 4}
    with pytest.raises(ArgumentError, match="compares two sizes"):
        export.SymbolicScope(["b"])
    for given in ("b >= 2", 3, [3]):
        with pytest.raises(ArgumentError, match="constraints are a sequence of texts, got"):
            export.symbolic_shape("b", constraints=given)
    for spec, scope in ((3, None), ("b", 3)):
        with pytest.raises(ArgumentError, match="symbolic_shape takes sizes as one text"):
            export.symbolic_shape(spec, scope=scope)
    with pytest.raises(ArgumentError, match="'_' needs"):
        export.symbolic_shape("_, b")


def model(params, x):
    h = nn.gelu(x @ params["w"])
    rows = lax.scan(lambda c, row: (c + row.sum(), c), 0.0, h)[1]
    return {"mean": fnp.mean(h), "soft": nn.softmax(h).reshape(-1), "rows": rows,
            "twice": fnp.concatenate([x, x]), "var": fnp.var(x, 0)}  # fmt: skip


PARAMS = {"w": fnp.linspace(-1, 1, 12).reshape(3, 4)}


def same(f, g, *args):
    for a, b in zip(fg.tree.leaves(f(*args)), fg.tree.leaves(g(*args)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def exported():
    x = struct("b, 3", constraints=["b <= 1000"])
    return export.deserialize(export.export(fg.jit(model))(PARAMS, x).serialize())


@pytest.mark.parametrize("b", [1, 2, 7, 1000])
def test_one_file_for_all_sizes(exported, b):
    x = np.random.default_rng(b).normal(size=(b, 3)).astype(F32)
    same(exported.call, fg.jit(model), PARAMS, x)
    assert (
        exported.specialize(b=b).out_avals[0].shape == fg.eval_shape(model, PARAMS, x)["mean"].shape
    )


def test_what_it_says(exported):
    assert str(exported.in_avals[1]) == "f32[b,3]"
    assert sorted(map(str, exported.out_avals)) == ["f32[2*b,3]", "f32[3]", "f32[4*b]", "f32[]",
                                                    "f32[b]"]  # fmt: skip
    assert exported.constraints == ("b <= 1000",)
    assert "f32[2*b,3]" in exported._repr_html_()
    with pytest.raises(ArgumentError, match=r"symbolic sizes: specialize\(b=…\)"):
        _ = exported.jaxpr


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1001, 3), "with the constraint b <= 1000, the arguments have b = 1001"),
        ((2, 4), r"argument x of type f32\[b,3\], got f32\[2,4\] where b = 2"),
        ((3,), r"argument x of type f32\[b,3\], got f32\[3\]"),
        ((0, 3), r"argument x of type f32\[b,3\], got f32\[0,3\]"),
    ],
)
def test_calls_that_do_not_fit_name_the_argument(exported, shape, words):
    with pytest.raises(ArgumentError, match=words):
        exported.call(PARAMS, np.ones(shape, F32))


def test_several_symbols():
    scope = export.SymbolicScope(["n >= 2"])
    f = lambda q, k: nn.softmax(q @ k.T / fnp.sqrt(8.0)) @ k + fnp.sum(q) * k.shape[0]
    e = export.export(fg.jit(f))(struct("m, 8", scope), struct("2*n, 8", scope))
    g = export.deserialize(e.serialize())
    for m, n in ((3, 2), (1, 5), (6, 6)):
        q, k = np.ones((m, 8), F32), np.full((2 * n, 8), 0.5, F32)
        same(g.call, fg.jit(f), q, k)
    with pytest.raises(ArgumentError, match=r"argument k of type f32\[2\*n,8\], got f32\[5,8\]"):
        g.call(q, np.ones((5, 8), F32))
    with pytest.raises(ArgumentError, match="constraint n >= 2, the arguments have"):
        g.call(q, np.ones((2, 8), F32))


def test_gradients_and_samples(tmp_path):
    x = struct("b, 3")
    loss = lambda params, x: model(params, x)["mean"]
    e = export.export(fg.jit(loss))(PARAMS, x)
    given = np.ones((4, 3), F32)
    e.save(tmp_path / "f.fg", samples=[(PARAMS, given), (PARAMS, given[:2])])
    g = export.load(tmp_path / "f.fg")
    assert g.check_samples() == 0
    want = fg.grad(loss)(PARAMS, given)["w"]
    np.testing.assert_allclose(fg.grad(g.call)(PARAMS, given)["w"], want, rtol=1e-6)
    np.testing.assert_allclose(e.vjp().call(PARAMS["w"], given, 1.0)[0], want, rtol=1e-6)


def test_functions_without_one_program_say_where():
    def by_size(x):
        return fnp.sin(x) if x.shape[0] < 20 else fnp.cos(x)

    with pytest.raises(ExportError, match="no one program for all sizes.*traced at"):
        export.export(fg.jit(by_size))(struct("b"))
    scaled = lambda x: x * (1 / x.shape[0])
    with pytest.raises(ExportError, match="in mul at line .*isn't whole"):
        export.export(fg.jit(scaled))(struct("b"))
    with pytest.raises(ExportError, match="captures arrays that depend on the sizes"):
        export.export(fg.jit(lambda x: x + np.arange(x.shape[0], dtype=F32)))(struct("b"))


def test_symbols_that_no_size_says():
    with pytest.raises(ExportError, match="b, n doesn't follow from the sizes"):
        export.export(fg.jit(fnp.sin))(struct("b*n"))
    with pytest.raises(ExportError, match="different scopes"):
        export.export(fg.jit(fnp.add))(struct("b"), struct("b"))
    with pytest.raises(ExportError, match="too few sizes of b meet"):
        export.export(fg.jit(fnp.sin))(struct("b", constraints=["b == 4"]))


def test_specs_for_trees():
    specs = export.symbolic_args_specs(({"w": fnp.ones((3, 4))}, fnp.ones((2, 3))), (None, "b, _"))
    assert specs[0]["w"].shape == (3, 4)
    assert str(specs[1].shape) == "(b, 3)"
    assert export.is_symbolic_dim(specs[1].shape[0])
