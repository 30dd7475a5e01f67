"""Transposes that wait: what they are under jvp, vmap and grad, inside of a shard_map's body."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core import context
from funcgrad.core.ir import typecheck

X = np.array([0.5, -1.0, 2.0], np.float32)


def f(x):
    return fnp.sum(fnp.sin(x) * x**2)


def waiting(fun):
    """The function traced as in a body: its gradients are ops."""

    def run(*args):
        with context.scoped(axes={"i": 2}, manual=("i",)):
            closed = fg.make_jaxpr(fun)(*args)
        typecheck(closed.jaxpr)
        return closed

    return run


def prims(closed):
    return [e.prim.name for e in closed.eqns]


@pytest.mark.parametrize(
    "derive",
    [
        fg.grad,
        lambda f: lambda x: fg.jvp(fg.grad(f), (x,), (fnp.cos(x),))[1],
        lambda f: fg.jacfwd(fg.grad(f)),
        lambda f: fg.jacrev(f),
        lambda f: lambda x: fg.vmap(fg.grad(f))(fnp.stack([x, 2 * x])),
        lambda f: lambda x: fg.vjp(lambda x: x * x, x)[1](fnp.sin(x))[0],
        lambda f: lambda x: fg.jvp(lambda c: fg.vjp(fnp.sin, x)[1](c)[0], (x,), (2 * x,))[1],
        lambda f: fg.jit(fg.grad(f)),
    ],
    ids=["grad", "jvp", "jacfwd", "jacrev", "vmap", "vjp", "jvp of cotangent", "jit"],
)
def test_waiting_transposes_mean_the_same(derive):
    closed = waiting(derive(f))(X)
    inner = [e for e in closed.eqns if e.prim.name == "jit"]
    names = prims(closed) + [e.prim.name for j in inner for e in j.params["jaxpr"].eqns]
    assert "pullback" in names
    (got,) = closed(X)
    np.testing.assert_allclose(got, derive(f)(X), rtol=1e-5)


def test_elsewhere_nothing_waits():
    assert "pullback" not in prims(fg.make_jaxpr(fg.grad(f))(X))
