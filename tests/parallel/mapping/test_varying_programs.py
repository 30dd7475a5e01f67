"""What varies in control flow, checkpoint and custom rules inside of shard_map."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.errors import ShardingError
from funcgrad.parallel import P
from funcgrad.parallel.mapping.varying_programs import collectives
from tests.parallel.shard_map_helpers import (
    LINE,
    PARAMS,
    X,
    check_like_plain,
    close,
    data_parallel,
    layer,
    mapped,
    plain_loss,
    sums,
)  # fmt: skip

# ---- control flow, checkpoint, custom rules


def test_scan_inside():
    def body(reduce):
        def run(w, x):
            def turn(c, row):
                c = fnp.tanh(c * w + row)
                return c, reduce(fnp.sum(c))

            return lax.scan(turn, fnp.zeros(()), fnp.sum(x, axis=0))

        return run

    def run(w, x):
        def turn(c, row):
            c = fnp.tanh(c * w + lax.psum(row, "i"))
            return c, c

        return lax.scan(turn, 0.0, fnp.sum(x, axis=0))

    def plain(w, x):
        def turn(c, row):
            c = fnp.tanh(c * w + row)
            return c, c

        return lax.scan(turn, 0.0, fnp.sum(x, axis=0))

    f = mapped(run, LINE, (P(), P("i")), P())
    check_like_plain(f, plain, 0.5, X)


def test_a_carry_that_starts_equal_and_comes_to_vary():
    def run(w, x):
        def turn(c, _):
            return c + w * fnp.sum(x**2), None

        return lax.psum(lax.scan(turn, 1.0, None, length=3)[0], "i")

    f = mapped(run, LINE, (P(), P("i")), P())
    check_like_plain(f, lambda w, x: 4.0 + 3 * w * fnp.sum(x**2), 0.5, X)
    # The parameter is captured by the loop: its gradient is summed after it, once.
    inside = [
        c
        for e in fg.make_jaxpr(fg.grad(f))(0.5, X).jaxpr.eqns
        if e.prim.name == "shard_map"
        for s in e.params["jaxpr"].eqns
        if s.prim.name == "scan"
        for c in collectives(s.params["jaxpr"])
    ]
    assert inside == []


def test_cond_inside():
    def run(k, x):
        y = lax.cond(k > 0, lambda x: lax.psum(x * k, "i"), lambda x: lax.pmean(-x, "i"), x)
        return y

    plain = lambda k, x: fnp.where(k > 0, fnp.sum(x.reshape(4, 2, 4), 0) * k,
                                   -fnp.mean(x.reshape(4, 2, 4), 0))  # fmt: skip
    f = mapped(run, LINE, (P(), P("i")), P())
    check_like_plain(f, plain, 2.0, X)
    check_like_plain(f, plain, -2.0, X)


def test_devices_on_different_ways():
    def run(w, x):
        y = lax.cond(lax.axis_index("i") % 2 == 0, lambda x: w * x, lambda x: fnp.sin(x), x)
        return lax.psum(fnp.sum(y), "i")

    even = (np.arange(8) // 2 % 2 == 0)[:, None]
    plain = lambda w, x: fnp.sum(fnp.where(even, w * x, fnp.sin(x)))
    f = mapped(run, LINE, (P(), P("i")), P())
    check_like_plain(f, plain, 0.5, X)

    def meet(x):
        return lax.cond(lax.axis_index("i") > 0, lambda x: lax.psum(x, "i"), lambda x: x, x)

    with pytest.raises(ShardingError, match="cond: its predicate varies over the mesh axis 'i'"):
        mapped(meet, LINE, P("i"), P("i"))(X)

    def late(x):
        return lax.while_loop(lambda x: fnp.sum(x) < 10, lambda x: x + lax.psum(x, "i"), x)

    with pytest.raises(ShardingError, match="while_loop: its condition varies.*psum"):
        mapped(late, LINE, P("i"), P("i"))(X)


def test_while_inside():
    def run(x):
        n = lax.while_loop(lambda n: n < 1000, lambda n: n * 2 + lax.psum(1, "i"), 1)
        each = lax.while_loop(
            lambda c: c[0] < lax.axis_index("i"), lambda c: (c[0] + 1, c[1] * 2), (0, x)
        )
        return n, each[1]

    n, y = mapped(run, LINE, P("i"), (P(), P("i")))(X)
    assert int(n) == 1276
    close(y, X * 2.0 ** np.repeat(np.arange(4), 2)[:, None])


def test_checkpoint_inside_and_around():
    for policy in (None, fg.checkpoint_policies.dots_saveable):
        loss = layer(lambda v: lax.pmean(v, "i"))
        f = mapped(fg.checkpoint(loss, policy=policy), LINE, (P(), P("i")), P())
        close(fg.grad(f)(PARAMS, X), fg.grad(plain_loss)(PARAMS, X))
        g = fg.checkpoint(data_parallel, policy=policy)
        close(fg.grad(g)(PARAMS, X), fg.grad(plain_loss)(PARAMS, X))
        assert len(sums(fg.grad(f), PARAMS, X)) <= 4


def test_custom_rules_inside():
    @fg.custom_vjp
    def scaled(w, x):
        return w * x

    scaled.defvjp(lambda w, x: (w * x, (w, x)), lambda r, ct: (fnp.sum(ct * r[1]), ct * r[0]))

    @fg.custom_jvp
    def wave(x):
        return fnp.sin(x)

    wave.defjvp(lambda p, t: (fnp.sin(p[0]), fnp.cos(p[0]) * t[0]))
    f = mapped(lambda w, x: lax.psum(fnp.sum(wave(scaled(w, x))), "i"), LINE, (P(), P("i")), P())
    check_like_plain(f, lambda w, x: fnp.sum(fnp.sin(w * x)), 1.5, X)
    inner = mapped(fg.grad(lambda w, x: fnp.sum(wave(scaled(w, x)))), LINE, (P(), P("i")), P())
    close(inner(1.5, X), np.sum(X * np.cos(1.5 * X)))


def test_linear_solves_inside():
    def run(a, b):
        x = lax.custom_linear_solve(lambda v: v * a, b, lambda mv, b: b / a, symmetric=True)
        return lax.psum(fnp.sum(x), "i")

    f = mapped(run, LINE, (P(), P("i")), P())
    check_like_plain(f, lambda a, b: fnp.sum(b / a), 2.0, X)
    g = mapped(run, LINE, (P("i"), P("i")), P())
    check_like_plain(g, lambda a, b: fnp.sum(b / a), 2 + X, X)
    h = mapped(run, LINE, (P("i"), P()), P())
    check_like_plain(h, lambda a, b: fnp.sum(b / a.reshape(4, 2, 4)), 2 + X, X[:2])
