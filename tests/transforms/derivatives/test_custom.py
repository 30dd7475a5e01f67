"""custom_jvp, custom_vjp and closure_convert, alone and under all other transformations."""

import copy
import functools
import pickle

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import dtypes, lax, nn, tree
from funcgrad.core.trace import Tracer
from funcgrad.errors import CustomRuleError, DifferentiationError

X = np.array([0.1, 0.5, -0.3], np.float32)


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


# Two functions whose rules are ten times the truth, so that a test sees who differentiated.


@fg.custom_jvp
def jsin(x):
    return fnp.sin(x)


@jsin.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return jsin(x), 10.0 * fnp.cos(x) * t


@fg.custom_vjp
def vsin(x):
    return fnp.sin(x)


vsin.defvjp(lambda x: (vsin(x), x), lambda x, g: (10.0 * fnp.cos(x) * g,))

both = pytest.mark.parametrize("f", [jsin, vsin], ids=["jvp", "vjp"])

WRAPPERS = {
    "plain": lambda f: f,
    "jit": fg.jit,
    "vmap": fg.vmap,
    "checkpoint": fg.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, v: (c, f(v)), 0.0, x)[1],
    "scan carry": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "map": lambda f: lambda x: lax.map(f, x),
    "cond": lambda f: lambda x: lax.cond(True, f, lambda v: v, x),
    "switch": lambda f: lambda x: lax.switch(1, [fnp.cos, f, fnp.exp], x),
    "fori": lambda f: lambda x: lax.fori_loop(0, 1, lambda i, v: f(v), x),
    "bounded while": lambda f: (
        lambda x: lax.while_loop(
            lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x), max_steps=2
        )[1]
    ),
    "closed over": lambda f: lambda x: (lambda y: f(y) * 1.0)(x + 0.0),
}


@both
@pytest.mark.parametrize("inner", WRAPPERS)
def test_the_rule_holds_under_one_transformation(f, inner):
    g = WRAPPERS[inner](f)
    close(g(X), np.sin(X))
    want = 10 * np.cos(X)
    loss = lambda x: fnp.sum(g(x))
    close(fg.grad(loss)(X), want)
    close(fg.jit(fg.grad(loss))(X), want)
    close(fg.grad(fg.jit(loss))(X), want)
    close(fg.grad(fg.checkpoint(loss))(X), want)
    close(fg.vjp(g, X)[1](np.ones_like(X))[0], want)
    close(fg.vmap(fg.grad(loss))(np.stack([X, 2 * X]))[1], 10 * np.cos(2 * X))


@both
@pytest.mark.parametrize("outer", ["jit", "vmap", "checkpoint", "scan", "cond"])
@pytest.mark.parametrize("inner", ["jit", "vmap", "checkpoint", "scan", "cond", "fori"])
def test_the_rule_holds_under_two_transformations(f, inner, outer):
    loops = ("vmap", "scan")
    g = WRAPPERS[inner](f)
    x = X[:, None] if inner in loops and outer in loops else X
    h = WRAPPERS[outer](g)
    close(h(x), np.sin(x))
    close(fg.grad(lambda x: fnp.sum(h(x)))(x), 10 * np.cos(x))
    close(fg.jit(fg.grad(lambda x: fnp.sum(h(x))))(x), 10 * np.cos(x))


@both
@pytest.mark.parametrize("inner", WRAPPERS)
def test_second_order_differentiates_the_rule(f, inner):
    g = WRAPPERS[inner](f)
    grad = fg.grad(lambda x: fnp.sum(g(x)))
    want = -10 * np.sin(X)
    close(fg.grad(lambda x: fnp.sum(grad(x)))(X), want)
    close(fg.jvp(grad, (X,), (np.ones_like(X),))[1], want)
    close(fg.hessian(lambda x: fnp.sum(g(x)))(X), np.diag(want))
    close(fg.jit(fg.hessian(lambda x: fnp.sum(g(x))))(X), np.diag(want))


def test_forward_mode():
    close(fg.jvp(jsin, (X,), (X,))[1], 10 * np.cos(X) * X)
    # Of a function with a vjp rule, forward mode differentiates the function itself.
    close(fg.jvp(vsin, (X,), (X,))[1], np.cos(X) * X)
    close(fg.jacfwd(vsin)(X), np.diag(np.cos(X)))
    close(fg.jit(lambda x: fg.jvp(vsin, (x,), (x,))[1])(X), np.cos(X) * X)
    close(fg.vmap(lambda x: fg.jvp(fg.jit(vsin), (x,), (1.0,))[1])(X), np.cos(X))
    close(fg.linearize(jsin, X)[1](X), 10 * np.cos(X) * X)


# ---- custom_jvp


def test_defjvps():
    @fg.custom_jvp
    def f(x, y, z):
        return x * y + z

    f.defjvps(lambda t, out, x, y, z: t * 2.0, None, lambda t, out, x, y, z: t * out)
    close(fg.jvp(f, (2.0, 3.0, 4.0), (1.0, 1.0, 1.0)), (10.0, 12.0))
    close(fg.grad(f, (0, 1, 2))(2.0, 3.0, 4.0), (2.0, 0.0, 10.0))
    g = fg.custom_jvp(lambda x: x * x)
    g.defjvps(None)
    close(fg.grad(g)(3.0), 0.0)


def test_jvp_of_trees_and_keywords():
    @fg.custom_jvp
    def f(p, scale=2.0):
        return {"y": p["a"] * scale, "n": 3}, p["b"]

    @f.defjvp
    def _(primals, tangents):
        p, scale = primals
        dp, dscale = tangents
        out = f(p, scale)
        n = np.zeros((), dtypes.float0)
        return out, ({"y": dp["a"] * scale + dscale * 0.0, "n": n}, dp["b"] * 5.0)

    (out, b), (dout, db) = fg.jvp(lambda p: f(p, scale=3.0), ({"a": 1.0, "b": 2.0},),
                                  ({"a": 1.0, "b": 1.0},))  # fmt: skip
    close((out["y"], b, dout["y"], db), (3.0, 2.0, 3.0, 5.0))
    assert dout["n"].dtype == dtypes.float0
    close(fg.grad(lambda p: f(scale=3.0, p=p)[1])({"a": 1.0, "b": 2.0})["b"], 5.0)
    close(f({"a": 1.0, "b": 2.0})[0]["y"], 2.0)


def test_jvp_nondiff_argnums():
    @functools.partial(fg.custom_jvp, nondiff_argnums=(0, 2))
    def f(g, x, name, y):
        return g(x) * y

    @f.defjvp
    def _(g, name, primals, tangents):
        assert name == "n"
        (x, y), (dx, dy) = primals, tangents
        return f(g, x, name, y), dx * 100.0 + dy

    close(fg.grad(f, (1, 3))(fnp.sin, 1.0, "n", 2.0), (100.0, 1.0))
    close(fg.jit(lambda x: fg.grad(f, 1)(fnp.sin, x, "n", 2.0))(1.0), 100.0)


def test_jvp_symbolic_zeros():
    seen = []

    @fg.custom_jvp
    def f(x, y):
        return x * y

    def rule(primals, tangents):
        x, y = primals
        dx, dy = tangents
        seen.append([type(t).__name__ for t in tangents])
        zero = type(dy).__name__ == "SymbolicZero"
        return f(x, y), dx * y if zero else dx * y + x * dy

    f.defjvp(rule, symbolic_zeros=True)
    close(fg.grad(lambda x: f(x, 3.0))(2.0), 3.0)
    assert seen[0][1] == "SymbolicZero" != seen[0][0]
    close(fg.grad(f, (0, 1))(2.0, 3.0), (3.0, 2.0))
    close(fg.vmap(fg.grad(f))(X, X), X)
    close(fg.jit(fg.grad(f))(2.0, 3.0), 3.0)


def test_jvp_with_integer_arguments():
    @fg.custom_jvp
    def f(x, n):
        return x**2 * n

    @f.defjvp
    def _(primals, tangents):
        assert tangents[1].dtype == dtypes.float0
        return f(*primals), tangents[0] * 7.0

    close(fg.grad(f)(2.0, 3), 7.0)
    close(fg.jit(fg.grad(f))(2.0, 3), 7.0)


def test_rules_may_use_python_control_flow_on_known_values():
    @fg.custom_jvp
    def f(x):
        return x if x > 0 else -x

    f.defjvps(lambda t, out, x: t * (1.0 if x > 0 else -1.0))
    close(fg.grad(f)(-2.0), -1.0)
    close(fg.grad(f)(2.0), 1.0)


# ---- custom_vjp


def test_vjp_of_trees_none_and_nothing():
    @fg.custom_vjp
    def f(p, x, unused):
        return p["w"] * x + p["b"]

    def bwd(residuals, g):
        w, x = residuals
        return {"w": g * x, "b": None}, 3.0 * g * w, None

    f.defvjp(lambda p, x, unused: (f(p, x, unused), (p["w"], x)), bwd)
    p = {"w": 2.0, "b": 1.0}
    dp, dx, du = fg.grad(f, (0, 1, 2))(p, 5.0, (X, {"k": 1.0}))
    close((dp["w"], dp["b"], dx), (5.0, 0.0, 6.0))
    close(du, (np.zeros(3), {"k": 0.0}))
    close(fg.jit(fg.grad(f))(p, 5.0, ()), {"w": 5.0, "b": 0.0})


def test_vjp_of_several_results():
    @fg.custom_vjp
    def f(x):
        return {"s": fnp.sin(x), "c": fnp.cos(x), "n": 1}

    def bwd(x, g):
        assert g["n"].dtype == dtypes.float0
        return (g["s"] * 100.0 + g["c"] * 1000.0,)

    f.defvjp(lambda x: (f(x), x), bwd)
    close(fg.grad(lambda x: f(x)["s"])(1.0), 100.0)
    close(fg.grad(lambda x: f(x)["c"] + f(x)["s"])(1.0), 1100.0)
    close(fg.vmap(fg.grad(lambda x: f(x)["c"]))(X), np.full(3, 1000.0))


def test_vjp_nondiff_argnums_and_keywords():
    @functools.partial(fg.custom_vjp, nondiff_argnums=(1,))
    def f(x, mode, y=2.0):
        return x * y if mode == "mul" else x + y

    f.defvjp(
        lambda x, mode, y: (f(x, mode, y), y),
        lambda mode, y, g: (g * (10.0 if mode == "mul" else 20.0), g * y),
    )
    close(fg.grad(f)(3.0, "mul"), 10.0)
    close(fg.grad(f)(3.0, mode="add", y=5.0), 20.0)
    close(fg.grad(f, (0, 2))(3.0, "mul", 4.0), (10.0, 4.0))
    close(fg.jit(fg.grad(lambda x: f(x, "add")))(3.0), 20.0)


def test_vjp_symbolic_zeros():
    seen = {}

    @fg.custom_vjp
    def f(x, y):
        return x * y, x + y

    def fwd(x, y):
        seen["perturbed"] = (x.perturbed, y.perturbed)
        return f(x.value, y.value), (x.value, y.value)

    def bwd(residuals, g):
        seen["zeros"] = [type(c).__name__ == "SymbolicZero" for c in g]
        x, y = residuals
        return g[0] * y, g[0] * x

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    close(fg.grad(lambda x: f(x, 3.0)[0])(2.0), 3.0)
    assert seen == {"perturbed": (True, False), "zeros": [False, True]}
    close(fg.grad(lambda x, y: f(x, y)[0], (0, 1))(2.0, 3.0), (3.0, 2.0))
    assert seen["perturbed"] == (True, True)


def test_vjp_residuals_may_be_any_tree():
    @fg.custom_vjp
    def f(x):
        return x * 1.0

    f.defvjp(lambda x: (f(x), {"n": 2, "x": (x, None), "i": fnp.arange(3)}),
             lambda r, g: (g * r["n"] * r["x"][0] + fnp.sum(r["i"]),))  # fmt: skip
    for g in (fg.grad(f), fg.jit(fg.grad(f)), fg.grad(fg.jit(f)), fg.grad(fg.checkpoint(f))):
        close(g(5.0), 13.0)
    close(fg.vmap(fg.grad(f))(X), 2 * X + 3)


def test_vjp_under_vmap_of_some_arguments():
    @fg.custom_vjp
    def f(w, x):
        return fnp.dot(w, x)

    f.defvjp(lambda w, x: (f(w, x), (w, x)), lambda r, g: (g * r[1], 10.0 * g * r[0]))
    batch = np.stack([X, 2 * X])
    loss = lambda w, xs: fnp.sum(fg.vmap(f, (None, 0))(w, xs))
    close(fg.grad(loss, (0, 1))(X, batch), (3 * X, 10 * np.stack([X, X])))
    close(fg.jit(fg.grad(loss, (0, 1)))(X, batch), (3 * X, 10 * np.stack([X, X])))
    moved = lambda w, xs: fnp.sum(fg.vmap(f, (1, None))(w, xs))
    close(fg.grad(moved)(batch.T, X), np.stack([X, X], 1))
    nested = lambda w, xs: fnp.sum(fg.vmap(lambda a: fg.vmap(f, (None, 0))(a, xs))(w))
    close(fg.grad(nested, 1)(batch, batch), 10 * np.stack([3 * X, 3 * X]))


def test_vjp_that_forbids_forward_mode():
    f = fg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: (f(x), None), lambda _, g: (g,), jvp=False)
    close(fg.grad(f)(1.0), 1.0)
    close(fg.jit(fg.grad(fg.checkpoint(f)))(1.0), 1.0)
    with pytest.raises(DifferentiationError, match="forward-mode.*forbids a jvp.*reverse mode"):
        fg.jvp(f, (1.0,), (1.0,))


def test_functions_that_cannot_be_differentiated_but_have_a_rule():
    @fg.custom_vjp
    def rounded(x):
        return fnp.round(x)

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (g,))
    host = fg.custom_vjp(lambda x: fg.pure_callback(np.sin, fg.ShapeDtypeStruct((), "float32"), x))
    host.defvjp(lambda x: (host(x), x), lambda x, g: (g * fnp.cos(x),))
    loop = fg.custom_vjp(lambda x: lax.while_loop(lambda v: v < 5, lambda v: v * 2, x))
    loop.defvjp(lambda x: (loop(x), None), lambda _, g: (g * 4.0,))
    for f, want in ((rounded, 1.0), (host, np.cos(1.5)), (loop, 4.0)):
        close(fg.grad(f)(1.5), want)
        close(fg.jit(fg.grad(fg.jit(f)))(1.5), want)
        close(fg.grad(fg.checkpoint(f))(1.5), want)
        close(fg.vmap(fg.grad(f))(np.full(2, 1.5, "float32")), np.full(2, want))


def test_straight_through_inside_a_scan_of_a_model():
    @fg.custom_vjp
    def sign(x):
        return fnp.sign(x)

    sign.defvjp(lambda x: (sign(x), x), lambda x, g: (g * (fnp.abs(x) < 1),))

    def loss(w, xs):
        def body(h, x):
            h = sign(h @ w + x)
            return h, fnp.sum(h)

        return fnp.sum(lax.scan(fg.checkpoint(body), X, xs)[1])

    w, xs = np.eye(3, dtype="float32") * 0.1, np.stack([X, -X, X])

    def by_hand(w, xs):
        h, total, steps = X, 0.0, []
        for x in xs:
            z = h @ w + x
            steps.append((h, z))
            h = np.sign(z)
            total += h.sum()
        g, dw = np.zeros(3), np.zeros((3, 3))
        for h, z in reversed(steps):
            dz = (g + 1) * (np.abs(z) < 1)
            dw += np.outer(h, dz)
            g = w @ dz
        return total, dw

    close(fg.value_and_grad(loss)(w, xs), by_hand(w, xs))
    close(fg.jit(fg.value_and_grad(loss))(w, xs), by_hand(w, xs))


# ---- captured values, calls, methods


def test_captured_arrays():
    w = fnp.asarray(X)

    @fg.custom_vjp
    def f(x):
        return x * w

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g * w * 10.0,))
    for g in (fg.grad(lambda x: fnp.sum(f(x))), fg.jit(fg.grad(lambda x: fnp.sum(f(x)))),
              fg.grad(fg.jit(lambda x: fnp.sum(f(x))))):  # fmt: skip
        close(g(X), 10 * X)


@pytest.mark.parametrize("kind", [fg.custom_jvp, fg.custom_vjp])
def test_captured_differentiated_values_are_refused(kind):
    def outer(w):
        f = kind(lambda x: x * w)
        if kind is fg.custom_jvp:
            f.defjvps(lambda t, out, x: t)
        else:
            f.defvjp(lambda x: (x * w, None), lambda _, g: (g,))
        return f(w)

    with pytest.raises(DifferentiationError, match="clos.*over.*closure_convert"):
        fg.grad(outer)(2.0)


def test_closure_convert():
    def outer(w, x):
        f, captured = fg.closure_convert(lambda v, p: {"y": w * v + p["k"]}, x, {"k": 1.0})
        assert len(captured) == isinstance(w, Tracer), "a number is a literal"
        return f(x * 2, {"k": 3.0}, *captured)["y"]

    close(outer(2.0, 3.0), 15.0)
    close(fg.grad(outer, (0, 1))(2.0, 3.0), (6.0, 4.0))
    f, captured = fg.closure_convert(lambda v: v * 2.0, 1.0)
    assert captured == []
    assert f.__name__.startswith("closure_convert")
    f, _ = fg.closure_convert(lambda v: v * v, np.float64(2))
    assert f(3.0).dtype == np.float64
    with pytest.raises(TypeError, match=r"argument leaf 0 must be f64\[\] .*got f32\[3\]"):
        f(X)


def test_methods():
    class Layer:
        def __init__(self, scale):
            self.scale = scale

        @functools.partial(fg.custom_vjp, nondiff_argnums=(0,))
        def apply(self, x):
            return x * self.scale

        def apply_fwd(self, x):
            return self.apply(x), None

        def apply_bwd(self, residuals, g):
            return (g * self.scale * 10.0,)

        apply.defvjp(apply_fwd, apply_bwd)

    close(fg.grad(Layer(3.0).apply)(1.0), 30.0)


def test_keyword_only_arguments():
    @fg.custom_jvp
    def f(x, *, k=2.0):
        return x * k

    f.defjvps(lambda t, out, x: t)
    close(f(1.0), 2.0)
    close(fg.grad(f)(1.0), 1.0)
    with pytest.raises(TypeError, match=r"custom_jvp function f takes no keyword-only.*\['k'\]"):
        f(1.0, k=3.0)


def test_names_and_docstrings():
    assert jsin.__name__ == "jsin"
    named = fg.custom_vjp(functools.partial(fnp.sum, axis=0))
    assert named.__name__ == "sum"
    text = repr(fg.make_jaxpr(jsin)(1.0))
    assert "custom_jvp_call[" in text
    assert "call=jsin" in text


def test_without_differentiation_only_the_function_runs():
    calls = []
    f = fg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: calls.append("fwd") or (x, None), lambda r, g: calls.append("bwd") or (g,))
    close((f(1.0), fg.jit(f)(1.0), fg.vmap(f)(X)), (2.0, 2.0, 2 * X))
    assert calls == []
    fg.grad(f)(1.0)
    assert calls == ["fwd", "bwd"]


# ---- wrong rules


def vjp_with(fwd, bwd):
    f = fg.custom_vjp(lambda x, y: x * y)
    f.__name__ = f._fun.__name__ = "mine"
    f.defvjp(fwd, bwd)
    return f


@pytest.mark.parametrize(
    ("fwd", "bwd", "words"),
    [
        (lambda x, y: x, None, r"forward rule of mine must return a pair \(result, residuals\)"),
        (
            None,
            lambda r, g: g,
            "rule of mine must return a tuple of 2 cotangents.*one array f32",
        ),
        (None, lambda r, g: (g,), "must return a tuple of 2 cotangents.*got 1 entries"),
        (None, lambda r, g: ((g, g), g), r"cotangent of argument 0 must have the structure"),
        (None, lambda r, g: (g, fnp.ones(2)), r"cotangent 1 must be f32\[\], got f32\[2\]"),
        (None, lambda r, g: (g.astype("float16"), g), r"cotangent 0 must be f32\[\], got f16"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit, fg.checkpoint], ids=["", "jit", "ckpt"])
def test_wrong_vjp_rules(fwd, bwd, words, wrap):
    f = vjp_with(fwd or (lambda x, y: (x * y, None)), bwd)
    with pytest.raises(CustomRuleError, match=words):
        fg.grad(wrap(f), (0, 1))(1.0, 2.0)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda p, t: p[0], r"jvp rule of mine must return a pair \(result, tangent\)"),
        (lambda p, t: (p[0], (t[0],)), "tangent with the structure of the result"),
        (lambda p, t: (p[0], fnp.ones(2)), r"tangent 0 must be f32\[\], got f32\[2\]"),
        (lambda p, t: (p[0], 1), r"tangent 0 must be f32\[\], got i32\[\]"),
    ],
)
def test_wrong_jvp_rules(rule, words):
    f = fg.custom_jvp(lambda x: x * 2.0)
    f._fun.__name__ = "mine"
    f.defjvp(rule)
    with pytest.raises(CustomRuleError, match=words):
        fg.jvp(f, (1.0,), (1.0,))


def test_missing_rules():
    with pytest.raises(CustomRuleError, match=r"has no rule yet: give one with @.*\.defjvp"):
        fg.custom_jvp(lambda x: x)(1.0)
    with pytest.raises(CustomRuleError, match=r"has no rules yet.*\.defvjp\(fwd, bwd\)"):
        fg.custom_vjp(lambda x: x)(1.0)
    with pytest.raises(TypeError, match="custom_vjp: need a function, got 3"):
        fg.custom_vjp(3)


def test_pickled_and_copied_by_name():
    for function in (nn.relu, fnp.add, fnp.less):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(fg.custom_jvp(lambda x: x))


def test_a_rule_of_another_kind_is_no_attribute():
    with pytest.raises(AttributeError, match="'custom_jvp' object has no attribute 'defvjp'"):
        fg.custom_jvp(fnp.sin).defvjp(None, None)
