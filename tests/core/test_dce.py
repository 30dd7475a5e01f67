"""Dead code elimination: programs of what is used, also within loops, branches and calls."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.aval import ShapedArray
from funcgrad.core.dce import dce_jaxpr
from funcgrad.core.ir import Jaxpr, typecheck
from funcgrad.core.staging import stage_closed

X = np.array([0.5, -1.0, 2.0], np.float32)


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


F3 = ShapedArray((3,), "float32")


def test_dce_of_results_and_inputs():
    jaxpr = stage_closed(lambda x, y, z: [fnp.sin(x) * y, fnp.cos(y), z], [F3] * 3)
    slim, used = dce_jaxpr(jaxpr, [True, False, False])
    typecheck(slim)
    assert (names(slim), used, len(slim.outs)) == (["sin", "mul"], [True, True, False], 1)
    slim, used = dce_jaxpr(jaxpr, [False, True, False], keep_ins=[True, False, False])
    assert (names(slim), used) == (["cos"], [True, True, False])
    slim, used = dce_jaxpr(jaxpr, [False] * 3)
    assert (slim.eqns, used) == ((), [False] * 3)
    slim, used = dce_jaxpr(jaxpr, [False, False, True], keep_ins=True)
    assert used == [True] * 3


@pytest.mark.parametrize(
    "wrap",
    [
        fg.jit,
        fg.checkpoint,
        lambda f: lambda x, y: lax.cond(True, f, f, x, y),
        lambda f: (
            lambda x, y: tuple(
                v[0] for v in lax.scan(lambda c, s: (c, f(*s)), 0.0, (x[None], y[None]))[1]
            )
        ),
        lambda f: lambda x, y: lax.scan(lambda c, _: (f(*c), None), (x, y), length=1)[0],
    ],
    ids=["jit", "checkpoint", "cond", "scan", "scan carry"],
)
def test_dce_looks_into_programs(wrap):
    f = wrap(lambda x, y: (fnp.sin(x), fnp.cos(y)))
    jaxpr = fg.make_jaxpr(f)(X, X).jaxpr
    slim, used = dce_jaxpr(jaxpr, [True, False])
    typecheck(slim)
    assert used == [True, False]
    assert "cos" not in repr(slim)
    assert "sin" in repr(slim)


def test_dce_of_a_carry_that_feeds_itself_only():
    f = lambda x: lax.scan(lambda c, v: ((c[0] + v, c[1] * v, c[0]), c[1]), (0.0, 1.0, 0.0), x)
    jaxpr = fg.make_jaxpr(lambda x: f(x)[0][0])(X).jaxpr
    slim, _ = dce_jaxpr(jaxpr, [True])
    (scan,) = [e for e in slim.eqns if e.prim.name == "scan"]
    assert names(scan.params["jaxpr"]) == ["add"]
    # c[2] needs c[0] of the step before.
    slim, _ = dce_jaxpr(fg.make_jaxpr(lambda x: f(x)[0][2])(X).jaxpr, [True])
    (scan,) = [e for e in slim.eqns if e.prim.name == "scan"]
    assert scan.params["n_carry"] == 2
    typecheck(slim)


def test_dce_keeps_effects_in_programs():
    def f(x):
        fg.jit(lambda v: (fg.debug.print("{}", v), fnp.sin(v))[1])(x)
        return x

    slim, _ = dce_jaxpr(fg.make_jaxpr(f)(X).jaxpr, [True])
    assert names(slim) == ["jit"]
    assert "debug_callback" in repr(slim)
    assert isinstance(slim, Jaxpr)
