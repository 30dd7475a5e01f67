"""scan, lax.map and associative_scan against loops in Python."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.core.ir import typecheck
from funcgrad.errors import ControlFlowError

X = np.array([0.5, -1.0, 2.0, 0.3], np.float32)
jits = pytest.mark.parametrize(
    "jit",
    [lambda f: f, fg.jit, *(functools.partial(fg.jit, backend=b) for b in ("numpy", "plain"))],
    ids=["eager", "llvm", "numpy", "plain"],
)  # fmt: skip


def close(got, want, **options):
    tree.map(
        functools.partial(np.testing.assert_allclose, **{"rtol": 1e-5, "atol": 1e-6} | options),
        got,
        want,
    )


def python_scan(f, init, xs, length=None, reverse=False):
    """The meaning of scan, traced through as a Python loop."""
    leaves, structure = tree.flatten(xs)
    n = leaves[0].shape[0] if leaves else length
    order = range(n)[::-1] if reverse else range(n)
    carry, ys = init, []
    for i in order:
        carry, y = f(carry, structure.unflatten([x[i] for x in leaves]))
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    return carry, tree.map(lambda *v: fnp.stack(v), *ys)


def body(c, x):
    h = fnp.tanh(c["h"] * x["a"] + x["b"][0])
    return {"h": h, "n": c["n"] + 1}, (h * c["n"], {"sum": fnp.sum(x["b"]) + h})


INIT = {"h": fnp.asarray([0.1, 0.2], "float32"), "n": 0}
XS = {"a": X, "b": np.stack([X, 2 * X], 1)}


@jits
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 3, True])
def test_values(jit, reverse, unroll):
    f = jit(lambda i, xs: lax.scan(body, i, xs, reverse=reverse, unroll=unroll))
    close(f(INIT, XS), python_scan(body, INIT, XS, reverse=reverse))


@jits
def test_length_only_and_empty(jit):
    close(jit(lambda c: lax.scan(lambda c, x: (c * 2.0, x), c, None, length=3))(1.0), (8.0, None))
    carry, ys = jit(lambda c: lax.scan(lambda c, _: (c + 1, c), c, length=4))(0)
    close((carry, ys), (4, np.arange(4)))
    carry, ys = jit(lambda x: lax.scan(lambda c, v: (c + v, (c, v > 0)), 1.0, x))(X[:0])
    assert float(carry) == 1.0
    assert [y.shape for y in ys] == [(0,), (0,)]
    assert ys[1].dtype == np.bool_
    close(jit(lambda c: lax.scan(lambda c, _: (c, None), c, length=0)[0])(X), X)
    close(jit(lambda x: lax.scan(lambda c, v: (None, v), None, x))(X)[1], X)


def test_weak_carries_are_promoted():
    (c, n), _ = lax.scan(lambda c, x: ((c[0] + x, c[1] + 1.0), None), (0, 0), X.astype("float64"))
    assert (c.dtype.name, n.dtype.name) == ("float64", "float32")
    assert (c.weak_type, n.weak_type) == (False, True)
    c, _ = lax.scan(lambda c, x: (c * x, c), 1, X.astype("float16"))
    assert c.dtype == np.float16
    # Through several steps: a becomes b, b becomes c, which is strong.
    start = (1, 2, np.float64(3))
    (a, b, c), _ = lax.scan(lambda c, _: ((c[1], c[2], c[2]), None), start, length=3)
    assert {v.dtype.name for v in (a, b, c)} == {"float64"}
    # A strong carry keeps its dtype where the body's result is weak.
    c, _ = lax.scan(lambda c, _: (1.0, None), np.float16(2), length=2)
    assert c.dtype == np.float16


def loss(run):
    """A function of the initial carry, captured parameters and scanned inputs."""

    def f(init, w, xs):
        def step(c, x):
            h = fnp.sin(c * w + x)
            return h * c, (h, fnp.sum(c) * x)

        c, (hs, parts) = run(step, init, xs)
        return fnp.sum(c) + fnp.sum(hs**2) + fnp.sum(parts)

    return f


ARGS = (np.array([0.3, -0.4], "float32"), np.array([0.5, 1.5], "float32"), X)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_gradients_to_second_order(reverse, jit):
    ours = loss(functools.partial(lax.scan, reverse=reverse))
    plain = loss(functools.partial(python_scan, reverse=reverse))
    argnums = (0, 1, 2)
    close(jit(fg.grad(ours, argnums))(*ARGS), fg.grad(plain, argnums)(*ARGS))
    close(jit(fg.jacfwd(ours, argnums))(*ARGS), fg.grad(plain, argnums)(*ARGS))
    want = fg.hessian(plain, argnums)(*ARGS)
    close(jit(fg.hessian(ours, argnums))(*ARGS), want, atol=1e-5)
    close(jit(fg.jacrev(fg.grad(ours, argnums), argnums))(*ARGS), want, atol=1e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        fg.checkpoint,
        fg.jit,
        lambda f: functools.partial(fg.checkpoint(f)),
        lambda f: lambda *a: lax.cond(True, f, f, *a),
        lambda f: lambda *a: fnp.sum(fg.vmap(f, (None, 0, None))(a[0], fnp.stack([a[1]]), a[2])),
        lambda f: lambda i, w, xs: lax.scan(lambda c, x: (c, f(i, w, x)), 0.0, xs[None])[1][0],
    ],
    ids=["checkpoint", "jit", "partial", "cond", "vmap", "scan"],
)
def test_gradients_inside_others(wrap):
    want = fg.grad(loss(python_scan), (0, 1, 2))(*ARGS)
    close(fg.grad(wrap(loss(lax.scan)), (0, 1, 2))(*ARGS), want)
    close(fg.jit(fg.grad(wrap(loss(lax.scan)), (0, 1, 2)))(*ARGS), want)


def test_gradients_of_integer_and_constant_parts():
    def f(x):
        (c, n, k), ys = lax.scan(
            lambda c, v: ((c[0] * v, c[1] + 1, c[2]), c[1] * v), (x, 0, 5.0), X
        )
        return c + fnp.sum(ys) + n + k

    close(fg.grad(f)(2.0), np.prod(X))
    close(fg.grad(lambda x: lax.scan(lambda c, v: (c, v), 1.0, x)[0])(X), np.zeros(4))
    close(fg.grad(lambda x: lax.scan(lambda c, v: (v, c), 1.0, x)[0])(X), [0, 0, 0, 1])
    # The carry is overwritten: what enters does not matter.
    close(fg.grad(lambda x: lax.scan(lambda c, v: (v, c * 0), x, X)[0])(1.0), 0.0)
    # A tangent enters the carry only after some steps.
    g = lambda x: lax.scan(lambda c, _: ((x, c[0], c[1]), None), (0.0, 0.0, 0.0), length=4)[0][2]
    close(fg.grad(g)(2.0), 1.0)


def test_captured_values_and_tracers():
    w = fnp.asarray([1.0, 2.0])

    def f(a):
        return lax.scan(lambda c, x: (c + a * x * w, c @ w), fnp.zeros(2), X)

    close(f(2.0), python_scan(lambda c, x: (c + 2.0 * x * w, c @ w), fnp.zeros(2), X))
    close(fg.grad(lambda a: fnp.sum(f(a)[0]))(2.0), 3 * X.sum())
    close(fg.vmap(f)(X)[0], np.outer(X, [1, 2]) * X.sum())
    close(fg.jit(fg.vmap(fg.grad(lambda a: fnp.sum(f(a)[0]))))(X), np.full(4, 3 * X.sum()))


def test_vmap_of_parts():
    def f(init, w, xs):
        return lax.scan(lambda c, x: (c * w + x, (c, 1)), init, xs)

    inits, ws = np.array([1.0, 2.0], "float32"), np.array([0.5, -0.5], "float32")
    xss = np.stack([X, 2 * X])
    for axes in [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (None, 0, 0)]:
        args = [v if a == 0 else v[0] for v, a in zip((inits, ws, xss), axes, strict=True)]
        got = fg.vmap(f, axes)(*args)
        for lane in range(2):
            one = f(*(v[lane] if a == 0 else v for v, a in zip(args, axes, strict=True)))
            close(tree.map(lambda g, k=lane: g[k], got), one)
    close(
        fg.vmap(f, (None, None, 1))(1.0, 0.5, xss.T)[0],
        fg.vmap(f, (None, None, 0))(1.0, 0.5, xss)[0],
    )
    close(fg.vmap(lambda x: lax.scan(lambda c, v: (x, v), 0.0, X)[0])(X), X)


def test_nested_loops():
    def outer(c, x):
        inner, ys = lax.scan(lambda d, v: (d * v + c, d), x, X)
        return c + inner, fnp.sum(ys)

    def outer_plain(c, x):
        inner, ys = python_scan(lambda d, v: (d * v + c, d), x, X)
        return c + inner, fnp.sum(ys)

    f = lambda x: lax.scan(outer, x, X * x)
    plain = lambda x: python_scan(outer_plain, x, X * x)
    close(f(0.5), plain(fnp.asarray(0.5)))
    total = lambda g: lambda x: g(x)[0] + fnp.sum(g(x)[1])
    close(fg.grad(total(f))(0.5), fg.grad(total(plain))(0.5))
    close(fg.jit(fg.grad(fg.grad(total(f))))(0.5), fg.grad(fg.grad(total(plain)))(0.5), rtol=1e-4)
    close(fg.jit(fg.vmap(f))(X)[0][1], plain(fnp.asarray(X[1]))[0])


def test_residuals_of_a_linear_part_are_not_stacked():
    """Where the body is linear in the carry, only what it is multiplied with is kept."""
    w = fnp.ones((8, 8))
    f = lambda x: fnp.sum(lax.scan(lambda c, v: (w @ c + v, None), x, fnp.ones((100, 8)))[0])
    jaxpr = fg.make_jaxpr(fg.grad(f))(fnp.ones(8)).jaxpr
    typecheck(jaxpr)
    outs = [v.aval.size for e in jaxpr.eqns if e.prim.name == "scan" for v in e.outs]
    assert max(outs) < 8 * 100


def test_programs_typecheck_after_each_transformation():
    f = loss(lax.scan)
    for g in (f, fg.grad(f, (0, 1, 2)), fg.vmap(fg.grad(f, 1), (0, None, None)), fg.hessian(f)):
        args = (np.stack([ARGS[0]] * 2), *ARGS[1:]) if g.__name__.startswith("vmap") else ARGS
        typecheck(fg.make_jaxpr(g)(*args).jaxpr)


# ---- map


@jits
@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 4, 10])
def test_map(jit, batch_size):
    f = lambda t: {"y": fnp.sum(t[0] * t[1]), "n": t[1] > 0}
    xs = (np.stack([X, -X], 1), X)
    got = jit(lambda v: lax.map(f, v, batch_size=batch_size))(xs)
    close(got, {"y": X * 0, "n": X > 0})
    g = fg.grad(lambda v: fnp.sum(lax.map(lambda x: fnp.sin(x) * x, v, batch_size=batch_size)))
    close(jit(g)(X), np.cos(X) * X + np.sin(X))


def test_map_corner_cases():
    assert lax.map(fnp.sin, X[:0]).shape == (0,)
    assert lax.map(fnp.sin, X[:0], batch_size=2).shape == (0,)
    close(fg.vmap(lambda x: lax.map(lambda v: v * x, X))(X), np.outer(X, X))
    close(lax.map(fnp.sin, X, batch_size=0), np.sin(X))
    with pytest.raises(ValueError, match="batch_size must not be negative"):
        lax.map(fnp.sin, X, batch_size=-1)


# ---- associative_scan


@jits
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_sums(jit, n, reverse):
    x = np.arange(1, n + 1)
    got = jit(lambda v: lax.associative_scan(fnp.add, v, reverse=reverse))(x)
    close(got, np.cumsum(x[::-1])[::-1] if reverse else np.cumsum(x))


def compose(f, g):
    """First x → f[0] x + f[1], then g: associative, not commutative."""
    return f[0] * g[0], f[1] * g[0] + g[1]


@jits
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_keeps_the_order(jit, reverse):
    a, b = X, np.arange(4.0, dtype="float32")
    got = jit(lambda p: lax.associative_scan(compose, p, reverse=reverse))((a, b))
    order = range(4)[::-1] if reverse else range(4)
    want = np.zeros((2, 4))
    total = None
    for i in order:
        total = (a[i], b[i]) if total is None else compose(total, (a[i], b[i]))
        want[:, i] = total
    close(got, (want[0], want[1]))


def test_associative_scan_along_axes_of_trees():
    m = np.arange(12.0).reshape(3, 4)
    largest = functools.partial(tree.map, fnp.maximum)
    close(lax.associative_scan(largest, {"m": m}, axis=1)["m"], np.maximum.accumulate(m, 1))
    close(lax.associative_scan(fnp.multiply, m, axis=-2), np.cumprod(m, 0))
    close(lax.associative_scan(fnp.logical_or, m > 5, axis=0), np.logical_or.accumulate(m > 5, 0))
    mats = np.stack([np.eye(2) * (i + 1) for i in range(5)])
    close(lax.associative_scan(fnp.matmul, mats)[-1], np.eye(2) * 120)
    g = fg.grad(lambda x: lax.associative_scan(fnp.multiply, x)[-1])(X)
    close(g, np.prod(X) / X)
    close(fg.vmap(lambda x: lax.associative_scan(fnp.add, x))(m), np.cumsum(m, 1))
    assert lax.associative_scan(fnp.add, {}) == {}


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lax.scan(lambda c, x: c, 0.0, X), r"must return a pair \(carry, y\)"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0), "without xs, length= must be given"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, X, length=3), "xs has 4, length= has 3"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, {"a": X, "b": X[:2]}),
         r"xs\['a'\] has 4, xs\['b'\] has 2"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, (X, 1.0)), r"xs\[1\] is a scalar"),
        (lambda: lax.scan(lambda c, x: ((c, c), x), 0.0, X), "keep its structure"),
        (lambda: lax.scan(lambda c, x: ({"h": c["h"][:1]}, x), {"h": X}, X),
         r"carry\['h'\] enters as f32\[4\] and leaves as f32\[1\]"),
        (lambda: lax.scan(lambda c, x: (c * 1.5, x), np.int32(1), X),
         r"carry enters as i32\[\] and leaves as f32\[\]"),
        (lambda: lax.scan(lambda c, x: (c * x, x), np.float32(1), X.astype("float64")),
         r"f32\[\] and leaves as f64\[\]"),
        (lambda: lax.scan(lambda c, x: (c + x, x), 0.0, X[:, None]), r"f32\[\] \(weak\).*f32\[1\]"),
        (lambda: lax.associative_scan(fnp.add, (X, X[:2])), "one size along axis 0"),
        (lambda: lax.associative_scan(fnp.add, X, axis=1), "along axis 1"),
        (lambda: lax.map(fnp.sin, None, batch_size=2), "no arrays to map over"),
    ],
)  # fmt: skip
def test_errors(call, words):
    with pytest.raises(ControlFlowError, match=f"(?s){words}"):
        call()


def test_arguments_of_wrong_kinds():
    with pytest.raises(TypeError, match="scan: the first argument must be a function"):
        lax.scan(1.0, X)
    with pytest.raises(TypeError, match="must be an array"):
        lax.scan(lambda c, x: (c, x), "x", X)
    with pytest.raises(TypeError, match="associative_scan: the first argument"):
        lax.associative_scan(None, X)


def test_cotangents_that_no_turn_adds_to_are_not_carried():
    def f(w, x):
        turn = lambda c, _: (c * lax.stop_gradient(w) + x, None)
        return fnp.sum(lax.scan(turn, x, None, length=3)[0])

    w, x = fnp.full(2, 0.5), fnp.ones(2)
    gradients = fg.grad(f, (0, 1))
    loops = [e for e in fg.make_jaxpr(gradients)(w, x).jaxpr.eqns if e.prim.name == "scan"]
    assert loops[-1].params["n_carry"] == 2  # of x, and of the carry
    dw, dx = gradients(w, x)
    assert dw.tolist() == [0, 0]
    assert dx.tolist() == [1.875, 1.875]
