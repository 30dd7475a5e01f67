"""All pairs of transformations, and the triples that programs are made of.

Each transformation turns a function of a vector to a vector, and its derivative's definition, into
another such pair; so every composition has a value and a slope to be held to.
"""

import functools
import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import typecheck

X = np.array([0.4, -0.7, 1.1], np.float64)
EYE = np.eye(3)

# ---- functions of a vector to a vector, and their Jacobians on numpy

W = np.array([[0.5, -0.2, 0.1], [0.3, 0.8, -0.4], [-0.6, 0.2, 0.7]])


def layer(x):
    return fnp.tanh(fnp.asarray(W) @ x) * x


def layer_jacobian(x):
    t = np.tanh(W @ x)
    return np.diag(t) + (x * (1 - t**2))[:, None] * W


def pointwise(x):
    return fnp.where(x > 0, fnp.sin(x) * x, x**2)


def pointwise_jacobian(x):
    return np.diag(np.where(x > 0, np.cos(x) * x + np.sin(x), 2 * x))


FUNCTIONS = {
    "layer": (layer, lambda x: np.tanh(W @ x) * x, layer_jacobian),
    "pointwise": (pointwise, lambda x: np.where(x > 0, np.sin(x) * x, x**2), pointwise_jacobian),
}

# ---- transformations that leave values and derivatives as they are


def custom_vjp(f):
    g = fg.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (fg.vjp(f, x)[1](ct)[0],))
    return g


def custom_jvp(f):
    g = fg.custom_jvp(f)
    g.defjvp(lambda primals, tangents: fg.jvp(f, primals, tangents))
    return g


def through_vmap(f):
    return lambda x: fg.vmap(f)(fnp.stack([x, 2.0 * x]))[0]


def mapped_with_a_name(f):
    def lane(x, k):
        return f(x) + lax.psum(k * 0.0, "lanes") * x

    return lambda x: fg.vmap(lane, (None, 0), axis_name="lanes")(x, fnp.arange(2.0))[1]


def through_grad(f):
    """f by way of a gradient: that of ct ↦ ct·f(x) is f(x)."""
    return lambda x: fg.grad(lambda ct: fnp.sum(ct * f(x)))(fnp.ones_like(x))


def through_jvp(f):
    return lambda x: fg.jvp(f, (x,), (fnp.ones_like(x),))[0]


def through_linearize(f):
    return lambda x: fg.linearize(f, x)[0]


def through_jacfwd(f):
    return lambda x: fnp.sum(fg.jacfwd(lambda s: fnp.diag(s) @ f(x))(fnp.ones_like(x)), 1)


def through_jacrev(f):
    return lambda x: fnp.sum(fg.jacrev(lambda s: s * f(x))(fnp.ones_like(x)), 1)


def through_hessian(f):
    return lambda x: fnp.diag(fg.hessian(lambda s: fnp.sum(s**2 * f(x)) / 2)(fnp.ones_like(x)))


def scan_body(f):
    return lambda x: lax.scan(lambda c, v: (c, f(v)), 0.0, fnp.stack([x, x]))[1][1]


def scan_carry(f):
    return lambda x: lax.scan(lambda c, k: (f(x) * k, None), x, fnp.asarray([3.0, 1.0]))[0]


def cond_branch(f):
    return lambda x: lax.cond(x[0] > 0, f, fnp.exp, x)


def switch_branch(f):
    return lambda x: lax.switch(fnp.argmax(x), [fnp.sin, fnp.exp, f], x)


def bounded_while(f):
    def run(x):
        out = lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x), max_steps=2)
        return out[1]

    return run


def through_map(f):
    return lambda x: lax.map(f, fnp.stack([x, x]), batch_size=1)[0]


def disabled(f):
    def run(x):
        with fg.disable_jit():
            return f(x)

    return run


def converted(f):
    def run(x):
        g, captured = fg.closure_convert(lambda k: f(x) * k, x[0])
        return g(fnp.ones_like(x[0]), *captured)

    return run


TRANSFORMS = {
    "jit": fg.jit,
    "vmap": through_vmap,
    "axis_name": mapped_with_a_name,
    "grad": through_grad,
    "jvp": through_jvp,
    "linearize": through_linearize,
    "jacfwd": through_jacfwd,
    "jacrev": through_jacrev,
    "hessian": through_hessian,
    "checkpoint": fg.checkpoint,
    "policy": fg.checkpoint(policy=fg.checkpoint_policies.dots_saveable),
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
    "scan body": scan_body,
    "scan carry": scan_carry,
    "cond": cond_branch,
    "switch": switch_branch,
    "while": bounded_while,
    "map": through_map,
    "disable_jit": disabled,
    "closure_convert": converted,
}


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def check(g, value, jacobian):
    """The value of g, and its derivatives in both modes."""
    close(g(X), value(X))
    ct = np.array([1.0, -2.0, 0.5])
    close(fg.grad(lambda x: fnp.sum(g(x) * ct))(X), ct @ jacobian(X))
    close(fg.jvp(g, (X,), (ct,))[1], jacobian(X) @ ct)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("outer", TRANSFORMS)
@pytest.mark.parametrize("inner", TRANSFORMS)
def test_pairs(inner, outer):
    with fg.default_dtype("float64"):
        for f, value, jacobian in FUNCTIONS.values():
            check(TRANSFORMS[outer](TRANSFORMS[inner](f)), value, jacobian)


# Outermost first, as one writes them.
TRIPLES = [
    "jit scan body checkpoint",
    "jit scan carry checkpoint",
    "vmap custom_vjp jit",
    "vmap jit custom_jvp",
    "jit vmap hessian",
    "scan body cond custom_vjp",
    "scan carry cond jit",
    "checkpoint scan body custom_vjp",
    "policy scan body jit",
    "while cond checkpoint",
    "map checkpoint custom_jvp",
    "jit grad jit",
    "grad jit grad",
    "vmap vmap vmap",
    "axis_name scan body jit",
    "axis_name checkpoint custom_vjp",
    "hessian scan body cond",
    "jacrev jacfwd jit",
    "jit linearize checkpoint",
    "disable_jit jit scan body",
    "switch map vmap",
]


def parts(text):
    """The transformations that a text of names lists."""
    names, words = [], text.split()
    while words:
        n = 2 if " ".join(words[:2]) in TRANSFORMS else 1
        names.append(" ".join(words[:n]))
        words = words[n:]
    return names


@pytest.mark.sampled(2)
@pytest.mark.parametrize("triple", TRIPLES)
def test_triples(triple):
    f, value, jacobian = FUNCTIONS["layer"]
    with fg.default_dtype("float64"):
        g = functools.reduce(lambda h, name: TRANSFORMS[name](h), reversed(parts(triple)), f)
        check(g, value, jacobian)
        close(fg.jit(g)(X), value(X))
        ct = np.array([1.0, -2.0, 0.5])
        loss = lambda x: fnp.sum(g(x) * ct)
        compiled = fg.jit(fg.value_and_grad(loss))(X)
        close(compiled[0], value(X) @ ct)
        close(compiled[1], ct @ jacobian(X))
        reference = fg.jit(fg.grad(loss), backend="numpy")(X)
        close(reference, compiled[1])
        lanes = fg.vmap(fg.grad(loss))(np.stack([X, X * [1, 1, 1.5]]))
        close(lanes[1], ct @ jacobian(X * [1, 1, 1.5]))


SECOND = ["jit", "vmap", "checkpoint", "custom_vjp", "custom_jvp", "scan body", "cond", "map"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("pair", [*itertools.product(SECOND, SECOND)], ids=" ".join)
def test_second_order(pair):
    outer, inner = pair
    with fg.default_dtype("float64"):
        g = TRANSFORMS[outer](TRANSFORMS[inner](pointwise))
        want = np.diag(np.where(X > 0, 2 * np.cos(X) - np.sin(X) * X, 2.0))
        close(fg.hessian(lambda x: fnp.sum(g(x)))(X), want)
        close(fg.jit(fg.jacrev(fg.grad(lambda x: fnp.sum(g(x)))))(X), want)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_programs_typecheck(name):
    with fg.default_dtype("float64"):
        g = TRANSFORMS[name](layer)
        for h in (g, fg.grad(lambda x: fnp.sum(g(x))), fg.vmap(fg.jacfwd(g))):
            x = X[None] if h.__name__.startswith("vmap") else X
            typecheck(fg.make_jaxpr(h)(x).jaxpr)


def test_training_step_as_a_user_writes_it():
    """jit of value_and_grad of a scan of checkpointed layers over a vmapped batch."""

    def model(params, x):
        def block(h, w):
            return h + fnp.tanh(w @ h), None

        h, _ = lax.scan(fg.checkpoint(block), x, params["blocks"])
        return params["out"] @ h

    def loss(params, xs, ys):
        return fnp.mean((fg.vmap(model, (None, 0))(params, xs) - ys) ** 2)

    @functools.partial(fg.jit, donate_argnums=0)
    def step(params, xs, ys):
        value, grads = fg.value_and_grad(loss)(params, xs, ys)
        return {k: params[k] - 0.1 * grads[k] for k in params}, value

    rng = np.random.default_rng(0)
    params = {
        "blocks": fnp.asarray(rng.normal(size=(4, 3, 3)) * 0.3),
        "out": fnp.ones(3, "float64"),
    }
    xs = rng.normal(size=(16, 3))
    ys = np.sin(xs.sum(1))
    with fg.disable_jit():
        eager_params, eager_value = step(params, xs, ys)
    losses = []
    for _ in range(30):
        params, value = step(params, xs, ys)
        losses.append(float(value))
        if len(losses) == 1:
            close(value, eager_value)
            close(params["blocks"], eager_params["blocks"])
    assert losses[-1] < 0.5 * losses[0]
    assert step.cache_info().currsize == 1
