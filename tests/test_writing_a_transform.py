"""The transforms of docs/writing_a_transform.md inside every construct that holds programs."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret, sub_jaxprs, typecheck
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.rewriting import called_program
from funcgrad.core.staging import stage_closed
from funcgrad.core.trace import aval_of
from funcgrad.parallel import P, make_mesh, shard_map
from tests.test_readme import BLOCK, ROOT

PAGE = {"__name__": "page"}
for _block in BLOCK.finditer((ROOT / "docs" / "writing_a_transform.md").read_text()):
    if _block[1] == "python":
        exec(_block[2], PAGE)
autocast, count = PAGE["autocast"], PAGE["count"]

W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32) * 0.5
X = np.random.default_rng(1).normal(size=(4,)).astype(np.float32)


def product(w, x):
    return w @ x


@fg.custom_jvp
def with_jvp(w, x):
    return w @ x


@with_jvp.defjvp
def _(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return with_jvp(w, x), dw @ x + w @ dx


@fg.custom_vjp
def with_vjp(w, x):
    return w @ x


with_vjp.defvjp(
    lambda w, x: (w @ x, (w, x)),
    lambda r, g: (g[:, None] @ r[1][None], r[0].T @ g),
)


def scanned(w, x):
    h, ys = lax.scan(lambda h, v: (fnp.tanh(w @ h) + v, w @ v), x, fnp.stack([x, 2 * x]))
    return h + ys.sum(0)


def mapped(w, x):
    over = P("rows")
    body = lambda w, x: lax.psum(w @ x, "rows") + x @ x
    f = shard_map(body, mesh=MESH, in_specs=(over, P()), out_specs=P())
    return f(w, x)


def own_op():
    """An op from elsewhere, with a program in a parameter that is no program itself."""

    class Held:
        def __init__(self, jaxpr):
            self.jaxpr = jaxpr

    rule = NoRule("not needed here")
    prim = Primitive(
        name="elsewhere",
        abstract=lambda *avals, held: held.jaxpr.out_avals,
        impl=lambda xp, *args, held: interpret(held.jaxpr, xp, *args),
        jvp=rule,
        transpose=rule,
        batch=rule,
        dims=rule,
        programs=lambda each, *, held: {"held": Held(each(held.jaxpr))},
        multiple=True,
    )

    def f(w, x):
        jaxpr = stage_closed(lambda *args: [product(*args)], [aval_of(w), aval_of(x)])
        return prim.bind(w, x, held=Held(jaxpr))[0]

    return f


MESH = make_mesh((2,), ("rows",))
CONSTRUCTS = {
    "plain": product,
    "jit": fg.jit(product),
    "scan": scanned,
    "fori_loop": lambda w, x: lax.fori_loop(0, 3, lambda i, h: fnp.tanh(w @ h), x),
    "cond": lambda w, x: lax.cond(x[0] > 0, product, lambda w, x: w.T @ x, w, x),
    "switch": lambda w, x: lax.switch(1, [lambda x: x, lambda x: w @ x, lambda x: x + w @ x], x),
    "checkpoint": fg.checkpoint(lambda w, x: fnp.tanh(w @ fnp.tanh(w @ x))),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "shard_map": mapped,
    "vmap": lambda w, x: fg.vmap(product, (None, 0))(w, fnp.stack([x, 2 * x])).sum(0),
    "vmap of custom_vjp": lambda w, x: fg.vmap(with_vjp, (None, 0))(w, fnp.stack([x, x])).sum(0),
    "grad": lambda w, x: fg.grad(lambda x: fnp.sum(fnp.tanh(w @ x)))(x),
    "jvp of custom_vjp": lambda w, x: fg.jvp(lambda x: with_vjp(w, x), (x,), (2 * x,))[1],
    "all in all": lambda w, x: fg.jit(
        lambda w, x: lax.scan(
            lambda h, _: (fg.checkpoint(lambda h: fnp.tanh(with_vjp(w, with_jvp(w, h))))(h), None),
            x, None, length=2,
        )[0]
    )(w, x),
}  # fmt: skip
FORWARD_ONLY = {
    "while_loop": lambda w, x: lax.while_loop(
        lambda h: fnp.sum(w @ h) < 100.0, lambda h: 2 * h + fnp.abs(w @ h), x**2
    ),
    "elsewhere": own_op(),
}
ALL = {**CONSTRUCTS, **FORWARD_ONLY}


def products(jaxpr):
    """The dtypes of the operands of all products in a program."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.prim.name == "dot_general":
            found += [a.aval.dtype.name for a in eqn.ins]
        held = [p.jaxpr for p in eqn.params.values() if hasattr(p, "jaxpr")]
        called = [called_program(eqn)] if eqn.prim.call else sub_jaxprs(eqn)
        for j in (*called, *held):
            found += products(j)
    return found


def checked(f, *args):
    """The results of a function, all of whose products are narrow, by its program."""
    closed = fg.make_jaxpr(f)(*args)
    typecheck(closed.jaxpr)
    assert set(products(closed.jaxpr)) == {"bfloat16"}, closed
    return closed(*args)


def close(got, want):
    for g, w in zip(got, fg.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=0.1, atol=0.1)


def total(f):
    return lambda w, x: fnp.sum(f(w, x) ** 2)


@pytest.mark.parametrize("name", ALL)
def test_products_are_narrow_inside(name):
    f = ALL[name]
    (got,) = checked(autocast(f), W, X)
    close([got], f(W, X))
    assert not np.array_equal(np.asarray(got), np.asarray(f(W, X)))


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_gradients_have_narrow_products_and_wide_results(name):
    f = total(CONSTRUCTS[name])
    want = fg.grad(f, (0, 1))(W, X)
    close(checked(fg.grad(autocast(f), (0, 1)), W, X), want)
    close(checked(autocast(fg.grad(f, (0, 1))), W, X), want)
    close(fg.tree.leaves(fg.jit(fg.grad(autocast(f), (0, 1)))(W, X)), want)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_forward_mode(name):
    f = CONSTRUCTS[name]
    push = lambda g: lambda w, x: fg.jvp(g, (w, x), (0.5 * w, 0.5 * x))
    want = push(f)(W, X)
    close(checked(push(autocast(f)), W, X), want)
    close(checked(autocast(push(f)), W, X), want)


@pytest.mark.parametrize("name", [n for n in CONSTRUCTS if n != "switch"])
def test_over_a_batch(name):
    f = CONSTRUCTS[name]
    xs = np.stack([X, X + 1, -X])
    each = lambda g: fg.vmap(g, (None, 0))
    close(checked(each(autocast(f)), W, xs), each(f)(W, xs))
    close(checked(autocast(each(f)), W, xs), each(f)(W, xs))
    close(checked(each(fg.grad(autocast(total(f)))), W, xs), each(fg.grad(total(f)))(W, xs))


def test_a_cast_twice_is_that_of_the_first():
    once = fg.make_jaxpr(autocast(scanned))(W, X)
    again = fg.make_jaxpr(autocast(autocast(scanned), "float16"))(W, X)
    assert set(products(again.jaxpr)) == {"bfloat16"}
    assert repr(once) == repr(again)


def test_products_are_counted_inside():
    one = 2 * 4 * 4
    want = {
        "scan": 4 * one, "fori_loop": 3 * one, "checkpoint": 2 * one, "switch": one,
        "vmap": 2 * one, "vmap of custom_vjp": 2 * one, "grad": 2 * one, "while_loop": 2 * one,
        "jvp of custom_vjp": 3 * one,
        "shard_map": one // 2 + 2 * 4, "all in all": 4 * one,
    }  # fmt: skip
    for name, f in ALL.items():
        if name != "elsewhere":
            assert count(f, W, X) == want.get(name, one), name


def test_gradients_are_counted():
    f = CONSTRUCTS["checkpoint"].__wrapped__
    one = 2 * 4 * 4
    assert count(fg.grad(total(product), (0, 1)), W, X) == 3 * one
    assert count(fg.grad(total(f), (0, 1)), W, X) == 6 * one
    assert count(fg.grad(total(fg.checkpoint(f)), (0, 1)), W, X) == 8 * one
