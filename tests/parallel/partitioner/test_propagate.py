"""How cuts spread through programs."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.parallel.partitioner.propagate import merged, propagate
from tests.parallel.partitioned import sharded, traced

MESH = AbstractMesh((2, 2), ("x", "y"))
NONE = ()


def spread(fun, args, *specs):
    """The cuts of a program's inputs and of its results."""
    jaxpr, _ = traced(lambda *xs: list(fun(*xs)), args)
    found = propagate(jaxpr, MESH, sharded(MESH, *specs))
    return [found.cuts[v] for v in jaxpr.ins], [found.cuts[v] for v in jaxpr.outs]


def cut(x, *entries):
    return sharding_constraint_p.bind(x, sharding=NamedSharding(MESH, P(*entries)))


def zeros(*shape):
    return np.zeros(shape, "float32")


def test_forwards():
    _, outs = spread(lambda x, w: [fnp.tanh(x @ w).T], [zeros(8, 4), zeros(4, 2)], P("x"), P())
    assert outs == [(NONE, ("x",))]


def test_backwards():
    ins, _ = spread(lambda x, w: [cut(x @ w, "x", "y")], [zeros(8, 4), zeros(4, 2)], None, None)
    assert ins == [(("x",), NONE), (NONE, ("y",))]


def test_sideways():
    """From one operand to another, through what both are used in."""
    ins, outs = spread(lambda a, b: [fnp.sin(a) + fnp.cos(b)], [zeros(8), zeros(8)], P("x"), None)
    assert ins == [(("x",),), (("x",),)]
    assert outs == [(("x",),)]


def test_what_is_fixed_stays():
    ins, outs = spread(lambda a, b: [a + b], [zeros(8), zeros(8)], P("x"), P("y"))
    assert ins == [(("x",),), (("y",),)]
    assert outs[0] in [(("x",),), (("y",),)]


def test_constraints_end_what_comes_from_both_sides():
    fun = lambda x: [cut(fnp.sin(x), "y"), cut(fnp.cos(x))]
    ins, outs = spread(fun, [zeros(8)], P("x"))
    assert ins == [(("x",),)]
    assert outs == [(("y",),), (NONE,)]


def test_two_axes_of_one_array_axis():
    _, outs = spread(lambda a, b: [a + b], [zeros(8), zeros(8)], P("x"), P(("x", "y")))
    assert outs == [(("x", "y"),)]


def test_sizes_that_do_not_divide_stay_whole():
    _, outs = spread(lambda x: [x.reshape(3, 4)], [zeros(12)], P(("x", "y")))
    assert outs == [(NONE, NONE)]
    _, outs = spread(lambda x: [x.reshape(6, 2)], [zeros(12)], P(("x", "y")))
    assert outs == [(("x",), NONE)]


def test_carries_of_loops():
    body = lambda c, x: (c + x, c.sum())
    fun = lambda c, xs: [*lax.scan(body, c, xs)]
    ins, outs = spread(fun, [zeros(8), zeros(3, 8)], None, P(None, "x"))
    assert ins == [(("x",),), (NONE, ("x",))]
    assert outs == [(("x",),), (NONE,)]
    # From a result back to what the loop starts with.
    ins, _ = spread(lambda c, xs: [cut(fun(c, xs)[0], "y")], [zeros(8), zeros(3, 8)], None, None)
    assert ins == [(("y",),), (NONE, ("y",))]


def test_the_scanned_axis_is_whole():
    fun = lambda xs: [lax.scan(lambda c, x: (c, x * 2), 0.0, xs)[1]]
    _, outs = spread(fun, [zeros(4, 8)], P("x", "y"))
    assert outs == [(NONE, ("y",))]


def test_loops_and_branches():
    def fun(x, y):
        x = lax.fori_loop(0, 3, lambda i, v: fnp.sin(v), x)
        return [lax.cond(x[0] > 0, lambda a, b: a + b, lambda a, b: a - b, x, y)]

    ins, outs = spread(fun, [zeros(8), zeros(8)], P("x"), None)
    assert ins[1] == (("x",),)
    assert outs == [(("x",),)]


def test_regathered_values():
    jaxpr, _ = traced(lambda w, b: [(w * 2).T, w + b], [zeros(8, 4), zeros(8, 4)])
    given = [NamedSharding(MESH, P("x"), regather=True), NamedSharding(MESH, P("x"))]
    found = propagate(jaxpr, MESH, given)
    assert jaxpr.outs[0] in found.regather
    assert jaxpr.outs[1] not in found.regather


@pytest.mark.parametrize(
    ("old", "more", "expected"),
    [
        ((NONE, NONE), (("x",), ("y",)), (("x",), ("y",))),
        ((("x",), NONE), (NONE, ("x",)), (("x",), NONE)),
        ((("x",), NONE), (("x", "y"), NONE), (("x", "y"), NONE)),
        ((("x",), NONE), (("y", "x"), NONE), (("x",), NONE)),
        ((NONE, NONE), (("x",), ("x",)), (("x",), NONE)),
    ],
)
def test_merged(old, more, expected):
    assert merged(old, more) == expected
