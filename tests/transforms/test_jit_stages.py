"""disable_jit, and the stages of compilation as users see them."""

import copy
import functools
import pickle

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree

X = np.array([1.0, 2.0, 3.0], np.float32)
backends = pytest.mark.parametrize("backend", ["numpy", "llvm", "plain"])


def same(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)


# ---- disable_jit


def test_disable_jit_runs_in_python():
    seen = []

    @fg.jit
    def f(x):
        seen.append(float(fnp.sum(x)))
        if x[0] > 0:
            x = -x
        y, _ = lax.scan(lambda c, v: (c + float(v), seen.append(float(v))), 0.0, x)
        return lax.cond(y < 0, lambda: seen.append("neg") or y, lambda: y)

    with fg.disable_jit():
        assert float(f(X)) == -6.0
    assert seen == [6.0, -1.0, -2.0, -3.0, "neg"]
    with fg.disable_jit(), fg.disable_jit(False), pytest.raises(TypeError):
        f(X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.scan(lambda c, v: (c * v, c), 1.0, x),
        lambda x: lax.scan(lambda c, v: (c * v, {"c": c, "i": 1}), 1.0, x, reverse=True),
        lambda x: lax.scan(lambda c, v: (c * 2.0, None), x, None, length=3),
        lambda x: lax.scan(lambda c, v: (c, v), 0.0, x[:0]),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + i * x, x),
        lambda x: lax.fori_loop(0, 0, lambda i, c: c + i * x, x),
        lambda x: lax.while_loop(lambda c: fnp.sum(c) < 50, lambda c: c * 2.0, x),
        lambda x: lax.while_loop(lambda c: fnp.sum(c) < 50, lambda c: c * 2.0, x, max_steps=2),
        lambda x: lax.cond(fnp.sum(x) > 3, fnp.sin, fnp.cos, x),
        lambda x: lax.switch(5, [fnp.sin, fnp.cos], x),
        lambda x: lax.map(lambda v: v * 2.0, x),
        lambda x: lax.associative_scan(fnp.add, x),
        lambda x: fg.checkpoint(fnp.sin)(x),
    ],
)
def test_disable_jit_gives_the_same(f):
    want = f(X)
    loss = lambda x: sum(fnp.sum(v) for v in tree.leaves(f(x)) if v.dtype == np.float32)
    slope = fg.grad(loss)(X) if "while_loop" not in f.__code__.co_names else None
    with fg.disable_jit():
        got = f(X)
        same(got, want)
        if slope is not None:
            same(fg.grad(loss)(X), slope)
    assert tree.structure(got) == tree.structure(want)
    assert [g.dtype for g in tree.leaves(got)] == [w.dtype for w in tree.leaves(want)]


def test_disable_jit_under_vmap():
    pick = lambda v: lax.cond(v > 1.5, fnp.sin, lambda u: u * 2, v)
    grow = lambda v: lax.while_loop(lambda u: u < 5, lambda u: u * 2, v)
    choose = lambda v: lax.switch(v.astype(int), [fnp.sin, fnp.cos], v)
    for f in (pick, grow, choose):
        want = [f(x) for x in X]
        with fg.disable_jit():
            same(fg.vmap(f)(X), want)
            same(fg.jit(fg.vmap(f))(X), want)


# ---- stages


@backends
def test_stages(backend):
    f = fg.jit(lambda x, k: {"y": fnp.sin(x) * k}, static_argnums=1, backend=backend)
    struct = fg.ShapeDtypeStruct((3,), "float32")
    traced = f.trace(struct, 2.0)
    assert traced.out_info == {"y": struct}
    assert [e.prim.name for e in traced.jaxpr.eqns] == ["sin", "mul"]
    lowered = traced.lower()
    assert "sin" in lowered.as_text()
    assert "sin" in f.lower(X, 2.0).as_text("jaxpr")
    assert lowered.cost_analysis()["bytes accessed"] > 0
    compiled = lowered.compile()
    same(compiled(X), {"y": np.sin(X) * 2})
    memory = compiled.memory_analysis()
    assert (memory["argument_size_in_bytes"], memory["output_size_in_bytes"]) == (12, 12)
    assert f.eval_shape(struct, 2.0) == {"y": struct}
    assert f.cache_info().misses == 1
    for stage in (traced, lowered, compiled):
        assert "lambda" in repr(stage)
        assert "<table" in stage._repr_html_() or "<pre" in stage._repr_html_()


def test_native_stages_have_text():
    lowered = fg.jit(lambda x: fnp.sum(fnp.exp(x) * 2.0)).lower(X)
    assert lowered.as_text("loops")
    assert "define" in lowered.as_text("llvm")
    assert lowered.compile().as_text("asm")
    with pytest.raises(ValueError, match="'cuda'"):
        lowered.as_text("cuda")


@backends
def test_compiled_stages_check_their_arguments(backend):
    w = fnp.ones(3)
    compiled = fg.jit(lambda p: p["a"] * w, backend=backend).lower({"a": X}).compile()
    same(compiled({"a": X}), X)
    with pytest.raises(TypeError, match=r"compiled <lambda> takes .*f32\[3\].*got.*f32\[2\]"):
        compiled({"a": X[:2]})
    with pytest.raises(TypeError, match=r"f64\[3\]"):
        compiled({"a": X.astype("float64")})
    with pytest.raises((TypeError, ValueError), match="structure|differ"):
        compiled({"b": X})


def test_unknown_backends():
    with pytest.raises(ValueError, match="no backend 'tpu': there are numpy, llvm"):
        fg.jit(lambda x: x, backend="tpu")(X)


def test_the_chosen_backend_holds_under_transformations():
    """The reference stays the reference when differentiated or mapped."""
    f = fg.jit(lambda x: fnp.sum(fnp.sin(x)), backend="numpy")
    closed = fg.make_jaxpr(fg.grad(f))(X)
    assert {e.params["backend"] for e in closed.eqns if e.prim.name == "jit"} == {"numpy"}


def test_compile_report(tmp_path, monkeypatch):
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", str(tmp_path))

    def f(x, w):
        return fnp.tanh(x @ w) * 1.2345

    x, w = fnp.ones((64, 64)), fnp.ones((64, 64))
    compiled = fg.jit(f).lower(x, w).compile()
    report = compiled.compile_report()
    assert [s.name for s in report.stages] == ["trace", "plan", "kernels", "program"]
    assert all(s.seconds >= 0 for s in report.stages)
    assert report.seconds == sum(s.seconds for s in report.stages)
    kernels = report.stages[2].what
    assert "1 compiled; products: float32" in kernels
    again = fg.jit(lambda x, w: f(x, w)).lower(x, w).compile().compile_report()
    assert "found on disk with its program" in again.stages[1].what
    other = fg.jit(lambda x, w: (f(x, w), x @ x)).lower(x, w).compile().compile_report()
    assert "1 held already" in other.stages[2].what
    assert "trace" in compiled._repr_html_()
    by_numpy = fg.jit(f, backend="numpy").lower(x, w).compile().compile_report()
    assert [s.name for s in by_numpy.stages] == ["trace"]


def test_memory_analysis_names_the_lines_of_the_largest_temporaries():
    def loss(w, x):
        h = fnp.tanh(x @ w)
        g = fnp.exp(h @ w)  # one of the peak
        return fnp.sum(g * h)

    lowered = fg.jit(fg.grad(loss)).lower(fnp.ones((40, 40)), fnp.ones((80, 40)))
    memory = lowered.compile().memory_analysis()
    sizes = [n for n, _, _ in memory.peak]
    assert sizes == sorted(sizes, reverse=True)
    assert 3 * 80 * 40 * 4 <= sum(sizes) <= memory["temp_size_in_bytes"]
    assert "one of the peak" in str(memory)
    assert "12,800  f32[80,40]" in str(memory)
    assert dict(memory) == {k: int(v) for k, v in memory.items()}
    assert fg.jit(lambda x: x + 1).lower(1.0).compile().memory_analysis().peak == []


def test_stages_are_copied_as_themselves_and_never_pickled():
    traced = fg.jit(fnp.sin).trace(X)
    lowered = traced.lower()
    for stage in (traced, lowered, lowered.compile()):
        assert copy.copy(stage) is stage
        assert copy.deepcopy([stage])[0] is stage
        want = rf"{type(stage).__name__}\(sin\) can't be pickled.*compile it where it is loaded"
        with pytest.raises(TypeError, match=want):
            pickle.dumps(stage)
    with pytest.raises(TypeError, match=r"a jaxpr can't be pickled.*\(make_jaxpr\)"):
        pickle.dumps(traced.jaxpr)


@fg.jit
def decorated(x):
    return fnp.sin(x) * 2


def scaled(x, k):
    return x * k


def test_compiled_functions_are_pickled_as_their_functions_are():
    want = decorated(X)
    for again in (pickle.loads(pickle.dumps(decorated)), copy.deepcopy(decorated)):
        assert again is decorated
    f = fg.jit(scaled, static_argnames="k", donate_argnums=0)
    for given in (f, f.__wrapped__):
        same(given(fnp.array(X), k=2), X * 2)
    for again in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        assert again is not f
        assert again.cache_info()[:2] == (0, 0)
        x = fnp.array(X)
        same(again(x, k=2), X * 2)
        with pytest.raises(fg.errors.FuncgradError, match="donated"):
            x + 1
    same(decorated(X), want)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(fg.jit(lambda x: x))
    named = functools.partial(scaled, k=2)
    named.__qualname__ = None
    same(pickle.loads(pickle.dumps(fg.jit(named)))(X), X * 2)
