"""Which values inside and outside of programs in equations are one."""

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.sharding import P
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.meshes import make_mesh
from funcgrad.parallel.partitioner.nested import OUTSIDE, Slot, bodies, ties
from tests.parallel.partitioned import traced

x, xs = np.ones(4, "float32"), np.ones((3, 4), "float32")


def equation(name, fun, *args):
    jaxpr, _ = traced(lambda *a: [*fun(*a)], args)
    return next(e for e in jaxpr.eqns if e.prim.name == name)


def places(tie):
    return [s.body for s in tie]


def test_ties_of_a_scan():
    eqn = equation("scan", lambda c, w, v: lax.scan(lambda c, v: (c * w, v + c), c, v), x, x, xs)
    const, carry, scanned, stacked = ties(eqn)
    assert len(bodies(eqn)) == 1
    assert places(const) == [OUTSIDE, 0]
    assert places(carry) == [OUTSIDE, 0, 0, OUTSIDE]
    assert [s.lead for s in scanned] == [1, 0]
    assert [s.lead for s in stacked] == [0, 1]
    assert carry[0].atom is eqn.ins[1]
    assert carry[3].atom is eqn.outs[0]


def test_ties_of_a_while():
    fun = lambda c, w: [lax.while_loop(lambda c: fnp.sum(c) < w[0], lambda c: c + w, c)]
    eqn = equation("while", fun, x, x)
    *consts, carry = ties(eqn)
    assert [places(t) for t in consts] == [[OUTSIDE, 0], [OUTSIDE, 1]]
    assert places(carry) == [OUTSIDE, 1, 1, OUTSIDE, 0]


def test_ties_of_branches():
    fun = lambda a, b: [lax.cond(a[0] > 0, lambda a, b: a + b, lambda a, b: a * b, a, b)]
    first, second, out = ties(equation("cond", fun, x, x))
    assert places(first) == places(second) == [OUTSIDE, 0, 1]
    assert places(out) == [0, 1, OUTSIDE]


def test_manual_axes_come_first():
    mesh = make_mesh((2, 2), ("data", "tp"))
    half = shard_map(lambda v: v * 2, mesh=mesh, in_specs=P("data"), out_specs=P("data"),
                     axis_names=("data",))  # fmt: skip
    given, result = ties(equation("shard_map", lambda v: [half(v)], x))
    assert given[0].outward((("tp",),)) == (("data", "tp"),)
    assert given[0].inward((("data", "tp"),)) == (("tp",),)
    assert given[0].inward((("tp", "data"),)) == ((),)
    assert places(result) == [0, OUTSIDE]


def test_leading_axes_are_whole():
    slot = Slot(OUTSIDE, None, lead=1)
    assert slot.outward((("x",),)) == ((), ("x",))
    assert slot.inward((("y",), ("x",))) == (("x",),)
