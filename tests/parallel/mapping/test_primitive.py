"""shard_map under transformations: derivatives, and how many sums they take."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import ShardingError
from funcgrad.parallel import P
from tests.parallel.shard_map_helpers import (
    GRID,
    LINE,
    PARAMS,
    X,
    close,
    data_parallel,
    layer,
    mapped,
    plain_loss,
    sums,
)  # fmt: skip

# ---- derivatives


def test_gradients_of_replicated_parameters():
    close(data_parallel(PARAMS, X), plain_loss(PARAMS, X))
    for wrap in (lambda f: f, fg.jit):
        got = wrap(fg.grad(data_parallel, (0, 1)))(PARAMS, X)
        close(got, fg.grad(plain_loss, (0, 1))(PARAMS, X))


def test_gradients_sum_once_a_parameter():
    # The loss, the gradient of w, the gradient of b.
    assert sums(data_parallel, PARAMS, X) == [("psum_invariant", ("i",))]
    assert sums(fg.grad(data_parallel), PARAMS, X) == [("psum_invariant", ("i",))] * 3
    # The parts of x are each device's own.
    assert sums(fg.grad(data_parallel, 1), PARAMS, X) == [("psum_invariant", ("i",))]
    lowered = fg.jit(fg.grad(data_parallel)).lower(PARAMS, X).as_text()
    assert lowered.count("= psum") == 2


def test_a_value_used_twice_is_summed_once():
    f = mapped(lambda w, x: lax.psum(fnp.sum(w * x + fnp.sin(w) * x * w), "i"), LINE,
               (P(), P("i")), P())  # fmt: skip
    plain = lambda w, x: fnp.sum(w * x + fnp.sin(w) * x * w)
    close(fg.grad(f)(2.0, X), fg.grad(plain)(2.0, X))
    assert len(sums(fg.grad(f), 2.0, X)) == 3  # sin(w) is another value than w


def test_forward_mode_and_second_order():
    t = tree.map(lambda p: np.ones_like(p), PARAMS)
    f, g = data_parallel, plain_loss
    close(fg.jvp(lambda p: f(p, X), (PARAMS,), (t,)), fg.jvp(lambda p: g(p, X), (PARAMS,), (t,)))
    close(fg.hessian(f)(PARAMS, X), fg.hessian(g)(PARAMS, X), 1e-4)
    close(fg.jacrev(fg.jacrev(f))(PARAMS, X), fg.hessian(g)(PARAMS, X), 1e-4)

    def norm(f):
        return lambda p: sum(fnp.sum(v**2) for v in tree.leaves(fg.grad(f)(p, X)))

    close(fg.jit(fg.grad(norm(f)))(PARAMS), fg.grad(norm(g))(PARAMS), 1e-4)
    _, f_lin = fg.linearize(lambda p: f(p, X), PARAMS)
    close(f_lin(t), fg.jvp(lambda p: g(p, X), (PARAMS,), (t,))[1])


def test_residuals_that_vary_are_stacked_and_others_are_not():
    jaxpr = fg.make_jaxpr(fg.grad(data_parallel))(PARAMS, X).jaxpr
    forward, backward = (e for e in jaxpr.eqns if e.prim.name == "shard_map")
    # Of the forward pass the gradient takes what tanh and the square need, each device's own.
    kept = [v.aval.shape for v in forward.outs if v in backward.ins]
    assert all(shape[0] == 4 for shape in kept)
    assert all(c[0] == ("i",) for c, v in zip(forward.params["out_cuts"], forward.outs, strict=True)
               if v in backward.ins)  # fmt: skip

    @fg.jit
    def scalars(x):
        f = mapped(lambda x: lax.psum(fnp.exp(fnp.sum(x)), "i"), LINE, P("i"), P())
        return fg.grad(f)(x)

    want = np.exp(X.reshape(4, -1).sum(1)).repeat(8).reshape(8, 4)
    close(scalars(X), want, 1e-4)


def test_gradients_inside():
    def step(params, x):
        return fg.value_and_grad(layer(lambda v: lax.pmean(v, "i")))(params, x)

    f = mapped(step, LINE, (P(), P("i")), P())
    close(f(PARAMS, X), fg.value_and_grad(plain_loss)(PARAMS, X))
    close(fg.jit(f)(PARAMS, X), fg.value_and_grad(plain_loss)(PARAMS, X))
    assert len(sums(f, PARAMS, X)) == 3
    # A loss of each device's own: gradients of what they share are summed, as in JAX.
    local = mapped(fg.grad(lambda w, x: fnp.sum(fnp.sin(x * w))), LINE, (P(), P("i")), P())
    close(local(2.0, X), fg.grad(lambda w: fnp.sum(fnp.sin(X * w)))(2.0))
    mine = mapped(fg.grad(lambda w, x: fnp.sum(fnp.sin(x * w)), 1), LINE, (P(), P("i")), P("i"))
    close(mine(2.0, X), 2 * np.cos(2 * X))


def test_second_order_inside():
    inside = lambda f: mapped(f(layer(lambda v: lax.pmean(v, "i"))), LINE, (P(), P("i")), P())
    close(inside(fg.hessian)(PARAMS, X), fg.hessian(plain_loss)(PARAMS, X), 1e-4)
    close(inside(lambda f: fg.jacrev(fg.jacrev(f)))(PARAMS, X),
          fg.hessian(plain_loss)(PARAMS, X), 1e-4)  # fmt: skip
    close(inside(lambda f: fg.jacrev(fg.jacfwd(f)))(PARAMS, X),
          fg.hessian(plain_loss)(PARAMS, X), 1e-4)  # fmt: skip

    def outside(f):
        return fg.grad(lambda p: sum(fnp.sum(v**2) for v in tree.leaves(f(p, X))))(PARAMS)

    close(outside(inside(fg.grad)), outside(fg.grad(plain_loss)), 1e-4)


def test_gradients_inside_of_a_loop_inside():
    def train(loss):
        def run(params, x):
            def turn(p, _):
                value, g = fg.value_and_grad(loss)(p, x)
                return tree.map(lambda a, b: a - 0.1 * b, p, g), value

            return lax.scan(turn, params, None, length=3)

        return run

    f = mapped(train(layer(lambda v: lax.pmean(v, "i"))), LINE, (P(), P("i")), P())
    close(f(PARAMS, X), train(plain_loss)(PARAMS, X), 1e-4)
    last = lambda f: lambda p: f(p, X)[1][-1]
    close(fg.grad(last(f))(PARAMS), fg.grad(last(train(plain_loss)))(PARAMS), 1e-4)


def test_vjp_inside():
    def f(w, x):
        y, pull = fg.vjp(lambda w: fnp.sin(w * x), w)
        (g,) = pull(fnp.ones_like(y))
        return y, g

    y, g = mapped(f, LINE, (P(), P("i")), (P("i"), P()))(2.0, X)
    close(y, np.sin(2 * X))
    close(g, np.sum(X * np.cos(2 * X)))

    def wrong(w, x):
        _, pull = fg.vjp(lambda w: w * 2, w)
        return pull(fnp.sum(x))

    with pytest.raises(ShardingError, match="cotangent varies over the mesh axis 'i'"):
        mapped(wrong, LINE, (P(), P("i")), P())(2.0, X)


def test_tensor_parallel():
    def block(w1, w2, x):
        h = fnp.tanh(x @ w1)
        return lax.psum(h @ w2, "j")

    f = mapped(block, GRID, (P(None, "j"), P("j"), P("i")), P("i"))
    w1 = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    w2 = np.linspace(1, -1, 30, dtype=np.float32).reshape(6, 5)
    plain = lambda w1, w2, x: fnp.tanh(x @ w1) @ w2
    close(f(w1, w2, X), plain(w1, w2, X))
    total = lambda f: lambda *a: fnp.sum(f(*a) ** 2)
    close(fg.grad(total(f), (0, 1, 2))(w1, w2, X), fg.grad(total(plain), (0, 1, 2))(w1, w2, X))
    # Weights are cut over j, so their gradients are summed over i alone; x's over j.
    found = sums(fg.grad(total(f), (0, 1, 2)), w1, w2, X)
    assert found == [("psum_invariant", ("i",))] * 2 + [("psum_invariant", ("j",))] * 2
