"""cond and switch: types, gradients, batching, captured values."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.ir import typecheck
from funcgrad.errors import ControlFlowError
from funcgrad.transforms.passes.simplify import simplify

X = np.array([1.0, -2.0, 3.0], np.float32)
WIDE = np.ones((), np.float64)
jits = pytest.mark.parametrize(
    "jit",
    [lambda f: f, fg.jit, *(functools.partial(fg.jit, backend=b) for b in ("numpy", "plain"))],
    ids=["eager", "llvm", "numpy", "plain"],
)  # fmt: skip


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def pick(x):
    return lax.cond(x > 0, lambda v: fnp.sin(v) * v, lambda v: v**2, x)


def pick_by_hand(x):
    return np.sin(x) * x if x > 0 else x**2


@jits
def test_cond(jit):
    for x in X:
        close(jit(pick)(x), pick_by_hand(x))
    close(jit(lambda n: lax.cond(n, lambda: 1.0, lambda: 2.0))(3), 1.0)
    close(jit(lambda n: lax.cond(n, lambda: 1.0, lambda: 2.0))(0.0), 2.0)


@jits
def test_switch_clamps(jit):
    f = jit(lambda i, x: lax.switch(i, [fnp.sin, fnp.cos, fnp.exp], x))
    for i, want in ((-5, np.sin), (0, np.sin), (1, np.cos), (2, np.exp), (9, np.exp)):
        close(f(i, X), want(X))
        close(f(np.int8(i), X), want(X))
    close(jit(lambda i: lax.switch(i, [lambda: 5.0]))(3), 5.0)


@jits
def test_trees_and_captured_values(jit):
    w = fnp.asarray(X)

    def f(p, flag):
        k = p["a"] * 2.0
        return lax.cond(
            flag,
            lambda q, s: {"y": q["a"] * k + w, "n": None, "s": s},
            lambda q, s: {"y": w - q["a"], "n": None, "s": s + 1},
            p, 3,
        )  # fmt: skip

    for flag, y, s in ((True, 2 * X * X + X, 3), (False, X - X, 4)):
        out = jit(f)({"a": X}, flag)
        close(out["y"], y)
        assert (out["n"], int(out["s"])) == (None, s)


def test_only_one_branch_runs():
    seen = []
    shout = lambda name: lambda x: fg.debug.callback(lambda: seen.append(name)) or x
    f = lambda x: lax.cond(x > 0, shout("yes"), shout("no"), x)
    f(1.0), fg.jit(f)(-1.0), fg.grad(f)(1.0), fg.jit(fg.grad(f))(-1.0)
    assert seen == ["yes", "no", "yes", "no"]


def test_weak_types_give_way():
    out = lax.cond(True, lambda x: 0, lambda x: x, np.float32(3))
    assert (out.dtype.name, out.weak_type) == ("float32", False)
    assert lax.cond(False, lambda: 1, lambda: 2.5).dtype == np.float32
    out = fg.jit(lambda p: lax.cond(p, lambda: 1.0, lambda: fnp.ones((), "float64")))(True)
    assert out.dtype == np.float64
    assert lax.cond(True, lambda: 1.0, lambda: 2.0).weak_type


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        fg.jit,
        fg.checkpoint,
        lambda f: lambda x: fnp.sum(fg.vmap(f)(fnp.stack([x, 1.0 * x]))) / 2,
        lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        lambda f: lambda x: lax.cond(True, f, f, x),
    ],
    ids=["plain", "jit", "checkpoint", "vmap", "scan", "cond"],
)
def test_gradients(wrap, order):
    g = fg.grad(wrap(pick))
    slope = lambda x: np.cos(x) * x + np.sin(x) if x > 0 else 2 * x
    if order == 2:
        g = fg.grad(g)
        slope = lambda x: -np.sin(x) * x + 2 * np.cos(x) if x > 0 else 2.0
    for x in X:
        close(g(x), slope(x))
        close(fg.jit(g)(x), slope(x))


def test_gradients_in_captured_values_and_trees():
    def f(w, p, flag):
        return lax.cond(flag, lambda q: q["a"] * w, lambda q: q["b"] + q["a"] ** 3, p)

    g = fg.grad(f, (0, 1))
    close(g(2.0, {"a": 3.0, "b": 4.0}, True), (3.0, {"a": 2.0, "b": 0.0}))
    close(g(2.0, {"a": 3.0, "b": 4.0}, False), (0.0, {"a": 27.0, "b": 1.0}))
    close(fg.jit(g)(2.0, {"a": 3.0, "b": 4.0}, False), (0.0, {"a": 27.0, "b": 1.0}))


def test_jvp_where_one_branch_does_not_vary():
    f = lambda x: lax.cond(x > 0, lambda v: v * 3.0, lambda v: 1.0, x)
    close(fg.jvp(f, (2.0,), (1.0,)), (6.0, 3.0))
    close(fg.jvp(f, (-2.0,), (1.0,)), (1.0, 0.0))
    close(fg.vmap(fg.grad(f))(X), [3, 0, 3])
    jaxpr = fg.make_jaxpr(fg.vmap(fg.grad(f)))(X).jaxpr
    typecheck(jaxpr)


@jits
def test_vmap_of_predicates_selects(jit):
    close(jit(fg.vmap(pick))(X), [pick_by_hand(x) for x in X])
    i = np.array([0, 2, 1, 7])
    xs = np.arange(4.0, dtype="float32")
    f = lambda i, x: lax.switch(i, [lambda v: v, lambda v: v * 10.0, lambda v: v * 100.0], x)
    close(jit(fg.vmap(f))(i, xs), xs * np.array([1, 100, 10, 100]))
    close(jit(fg.vmap(f, (0, None)))(i, 3.0), 3 * np.array([1, 100, 10, 100]))
    close(jit(fg.vmap(lambda p, x: lax.cond(p, lambda: x, lambda: fnp.zeros(3))))(
        X > 0, np.stack([X, X, X])), np.where((X > 0)[:, None], X, 0))  # fmt: skip


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("order", [1, 2])
def test_lanes_get_nothing_from_branches_they_do_not_take(jit, order):
    """Derivatives of what isn't taken would be infinite or NaN there, and 0 times them NaN."""
    branches = (lambda v: v * 0.0 + 3.0, fnp.sqrt, fnp.log, lambda v: 1.0 / v)
    f = lambda i, x: lax.switch(i, branches, x)
    which, xs = np.array([0, 0, 1, 2, 3]), np.array([-1.0, 0.0, 4.0, 2.0, -2.0], "float32")
    d = functools.reduce(lambda g, _: fg.grad(g, 1), range(order), f)
    want = np.array([[0, 0, 0.25, 0.5, -0.25], [0, 0, -1 / 32, -0.25, -0.25]][order - 1], "float32")
    close(jit(fg.vmap(d))(which, xs), want)
    whole = lambda xs: fnp.sum(fg.vmap(f)(which, xs))
    first = fg.grad(whole)
    found = first if order == 1 else lambda xs: fg.jvp(first, (xs,), (fnp.ones(5),))[1]
    close(jit(found)(xs), want)


def test_vmap_of_operands_keeps_the_branch():
    f = fg.vmap(lambda p, x: lax.cond(p, fnp.sin, fnp.cos, x), (None, 0))
    close(f(True, X), np.sin(X))
    assert "cond" in [e.prim.name for e in fg.make_jaxpr(f)(True, X).eqns]
    one_varies = fg.vmap(lambda x: lax.cond(True, lambda: x, lambda: 0.0))
    close(one_varies(X), X)
    close(fg.vmap(fg.vmap(pick))(np.stack([X, -X]))[1], [pick_by_hand(-x) for x in X])


def test_the_gradient_program_keeps_both_branches_apart():
    jaxpr = fg.make_jaxpr(fg.grad(pick))(1.0).jaxpr
    typecheck(jaxpr)
    conds = [e for e in jaxpr.eqns if e.prim.name == "cond"]
    assert len(conds) == 2, "forward and backward"


def test_unused_results_are_not_computed():
    f = lambda x: lax.cond(x > 0, lambda v: (fnp.sin(v), v), lambda v: (fnp.exp(v), v), x)[1]
    assert "sin" in repr(fg.make_jaxpr(f)(1.0))
    slim = repr(simplify(fg.make_jaxpr(f)(1.0).jaxpr))
    assert "sin" not in slim
    assert "exp" not in slim


def test_random_nesting_against_python():
    def nested(x, lib, choose):
        return choose(
            x > 0,
            lambda v: choose(v > 2, lambda u: lib.sin(u) * v, lambda u: u + v, v),
            lambda v: choose(v < -1, lambda u: u * u, lambda u: u - x, v),
            x,
        )

    traced = lambda x: nested(x, fnp, lax.cond)
    plain = lambda x: nested(x, np, lambda p, t, f, *a: t(*a) if p else f(*a))
    for x in (-2.0, -0.5, 1.0, 3.0):
        close(traced(x), plain(x))
        close(fg.jit(traced)(x), plain(x))
        slope = (plain(x + 1e-3) - plain(x - 1e-3)) / 2e-3
        np.testing.assert_allclose(fg.jit(fg.grad(traced))(x), slope, rtol=1e-3)


# ---- branches that are not taken, with derivatives that are infinite there


def _scaled(v, w):
    return fnp.sqrt(fg.jit(lambda a: a * w)(v))


@fg.custom_jvp
def root(v):
    return fnp.sqrt(v)


root.defjvps(lambda t, out, v: t * 0.5 / out)

# Functions of a positive number (and of a shared one), each with an infinite derivative at 0 or
# without a value below it.
SINGULAR = {
    "log": lambda v, w: fnp.log(v),
    "sqrt": lambda v, w: fnp.sqrt(v),
    "quotient": lambda v, w: w / v,
    "divided": lambda v, w: fnp.sqrt(v) / w,
    "power": lambda v, w: v**w,
    "exponent": lambda v, w: fnp.power(w, 1 / v),
    "arccos": lambda v, w: fnp.arccos(1 - v / 8),
    "arccosh": lambda v, w: fnp.arccosh(1 + v) * w,
    "norm": lambda v, w: fnp.sqrt(fnp.sum(fnp.stack([v, w * v]) ** 2)),
    "log of product": lambda v, w: fnp.log(w * v),
    "product of log": lambda v, w: w * fnp.log(v) * w,
    "sum": lambda v, w: fnp.log(w + fnp.sqrt(v)),
    "matrix": lambda v, w: fnp.sum(fnp.log(fnp.full((3, 2), w) @ fnp.stack([v, v * w]))),
    "convolved": lambda v, w: fnp.sum(
        fnp.sqrt(fnp.convolve(fnp.stack([v, 1 / v, v]), fnp.stack([w, w])))
    ),
    "joined": lambda v, w: fnp.prod(fnp.log(1 + fnp.stack([v, w]) / v)),
    "shared alone": lambda v, w: fnp.log(w) * v,
    "inverse": lambda v, w: (
        fnp.linalg.inv(fnp.stack([fnp.stack([v, w]), fnp.stack([-w, v])]))[0, 0] / v
    ),
    "custom rule": lambda v, w: root(v) * root(w * v),
    "program": _scaled,
    "scan": lambda v, w: lax.scan(lambda c, k: (fnp.sqrt(c * k), c), v * w, fnp.stack([w, v]))[0],
    "cond": lambda v, w: lax.cond(v > 1, lambda: fnp.log(v), lambda: w / v),
    "attention": lambda v, w: fnp.log(fg.nn.softmax(fnp.stack([v, w]))[0] / v),
}
LANES = np.array([2.25, 0.0, -1.5, 0.75], np.float64)


def _cond(f, x, w):
    return lax.cond(x > 0, lambda v: f(v, w), lambda v: v * w, x)


def _switch(f, x, w):
    i = fnp.where(x > 1, 2, fnp.where(x > 0, 1, 0))
    return lax.switch(i, [lambda v: v * w, lambda v: f(v, w), lambda v: f(2 * v, w)], x)


def _while(f, x, w):
    step = lambda s: (f(s[0], w), s[1] + 1)
    out, n = lax.while_loop(lambda s: (s[0] > 0) & (s[1] < 1), step, (x, 0), max_steps=3)
    return fnp.where(n == 0, out * w, out)


def _nested(f, x, w):
    return lax.cond(x > 0, lambda v: _cond(f, v, w), lambda v: _cond(f, v - 1, w), x)


CONTROL = {"cond": (_cond, 1), "switch": (_switch, 2), "while": (_while, 1), "nested": (_nested, 1)}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize("name", SINGULAR)
def test_what_a_lane_does_not_take_has_no_derivative(name, control):
    """Derivatives of first and second order are those of what each lane takes, in its operand and
    in what lanes share, whichever way transformations are nested."""
    f, (choose, times) = SINGULAR[name], CONTROL[control]

    def lane(x, w):  # chosen by Python
        x = x - 1 if control == "nested" and x <= 0 else x
        if x <= 0:
            return x * w
        return f(x * times if x > 1 else x, w)

    def total(lanes):
        return lambda x, w: fnp.sum(fg.vmap(lambda v: lanes(v, w))(x) ** 2)

    def by_hand(derivative):
        """What it gives for each lane alone, in x and in w."""
        return [derivative(lambda v, w: lane(v, w) ** 2)(x, W) for x in LANES.tolist()]

    W = 1.25
    both = (0, 1)
    slopes = by_hand(lambda g: fg.grad(g, both))
    want = [s[0] for s in slopes], sum(s[1] for s in slopes)
    assert np.isfinite(want[0]).all()
    loss = total(lambda v, w: choose(f, v, w))
    gradient = fg.grad(loss, both)
    close(gradient(LANES, W), want)
    close(fg.jit(gradient)(LANES, W), want)
    each = fg.vmap(fg.grad(lambda v, w: choose(f, v, w) ** 2, both), (0, None))
    for one in (each, fg.jit(each)):
        dx, dw = one(LANES, W)
        close((dx, fnp.sum(dw)), want)
    curves = by_hand(lambda g: fg.jacfwd(fg.grad(g, both), both))
    second = fnp.diag(fnp.stack([c[0][0] for c in curves])), sum(c[1][1] for c in curves)
    outer, inner = {
        "cond": (fg.jacfwd, fg.jacrev),
        "switch": (fg.jacrev, fg.jacrev),
        "while": (fg.jacrev, fg.jacfwd),
        "nested": (fg.jacfwd, fg.jacfwd),
    }[control]
    found = fg.jit(outer(inner(loss, both), both), backend="numpy")(LANES, W)
    close((found[0][0], found[1][1]), second)
    close(found[0][1], [c[0][1] for c in curves])


def test_lanes_that_exchange_values_all_take_part():
    f = lambda x: lax.cond(x > 0, lambda v: lax.psum(v, "i") ** 2, lambda v: 0.0, x)
    mapped = fg.vmap(f, axis_name="i")
    close(fg.grad(lambda x: fnp.sum(mapped(x)))(X), np.full(3, 2 * 2 * X.sum()))


def test_shared_operands_are_not_copied_for_each_lane():
    w, x = fnp.ones((16, 16)), fnp.ones((32, 16))
    f = lambda w, x: lax.cond(x[0] > 0, lambda v: fnp.tanh(w @ v), lambda v: v, x)
    g = fg.grad(lambda w, x: fnp.sum(fg.vmap(f, (None, 0))(w, x)), (0, 1))
    for eqn in simplify(fg.make_jaxpr(g)(w, x).jaxpr).eqns:
        assert all(v.aval.size <= 32 * 16 for v in eqn.outs)
    # Without a derivative the program is as if there were none.
    forward = fg.vmap(f, (None, 0))
    assert [e.prim.name for e in simplify(fg.make_jaxpr(forward)(w, x).jaxpr).eqns].count(
        "select_n"
    ) == 1


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lax.cond(X > 0, fnp.sin, abs, X), r"predicate must be a scalar, got bool\[3\]"),
        (lambda: lax.cond(1j, fnp.sin, fnp.cos, X), "the predicate must be a boolean or a number"),
        (lambda: lax.cond(True, lambda: X, lambda: X[:2]), r"0 is f32\[3\] from .* and f32\[2\]"),
        (lambda: lax.cond(True, lambda: (1, X), lambda: (1, X > 0)), r"1 is f32\[3\].*bool\[3\]"),
        (lambda: lax.cond(True, lambda: 1.5, lambda: np.int32(1)), r"f32\[\] \(weak\).*i32\[\]"),
        (lambda: lax.cond(True, lambda: (1, 2), lambda: [1, 2]), "must return one structure"),
        (lambda: lax.cond(True, lambda: None, lambda: 1), "must return one structure"),
        (lambda: lax.switch(1.5, [fnp.sin, fnp.cos], X), r"index must be an integer, got f32\[\]"),
        (lambda: lax.switch(1, [], X), "need at least one function"),
        (lambda: lax.switch(X, [fnp.sin, fnp.cos], X), "index must be a scalar"),
        (lambda: lax.switch(0, [lambda: np.float16(1), lambda: 1.0, lambda: WIDE]),
         r"f16\[\] .*f32\[\] \(weak\).*f64\[\]"),
    ],
)  # fmt: skip
def test_errors(call, words):
    with pytest.raises(ControlFlowError, match=words):
        call()


def test_arguments_of_wrong_kinds():
    with pytest.raises(TypeError, match="cond: need two functions after the predicate"):
        lax.cond(True, 1.0, 2.0)
    with pytest.raises(TypeError, match="argument name must be an array"):
        lax.cond(True, lambda name: 1.0, lambda name: 2.0, "x")


@jits
@pytest.mark.parametrize("given", [2.0, {"a": X, "b": 1.0}, None], ids=str)
def test_an_operand_by_its_name(jit, given):
    same = lambda x: x
    changed = lambda x: tree.map(lambda v: v + 1, x)
    for take in (True, False):
        want = same(given) if take else changed(given)
        got = jit(lambda x, t=take: lax.cond(t, same, changed, operand=x))(given)
        tree.map(np.testing.assert_allclose, got, want)
        got = jit(lambda x, t=take: lax.switch(int(t), [changed, same], operand=x))(given)
        tree.map(np.testing.assert_allclose, got, want)
    with pytest.raises(TypeError, match="not both"):
        lax.cond(True, same, same, 1.0, operand=2.0)
