"""Rewriting programs: everywhere, and piece by piece."""

import numpy as np

from funcgrad import lax
from funcgrad.core.ir import Jaxpr, interpret, typecheck
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.parallel.programs.rewriting import Writer, everywhere, makers, uses
from tests.parallel.partitioned import traced

x = np.arange(4, dtype="float32")


def test_everywhere_reaches_programs_in_programs():
    seen = []

    def note(jaxpr):
        seen.append([e.prim.name for e in jaxpr.eqns])
        return jaxpr

    inner = lambda i, v: lax.cond(v[0] > 0, lambda v: v + 1, lambda v: v * 2, v)
    jaxpr, _ = traced(lambda v: [lax.fori_loop(0, 3, inner, v)], [x])
    everywhere(jaxpr, note)
    assert any("cond" in names for names in seen)
    assert any(names == ["add"] for names in seen)
    assert seen[-1] == [e.prim.name for e in jaxpr.eqns]


def test_makers_and_uses():
    jaxpr, _ = traced(lambda v: [(v + 1) * (v + 1), v], [x])
    made, used = makers(jaxpr), uses(jaxpr)
    assert made == {e.outs[0]: i for i, e in enumerate(jaxpr.eqns)}
    assert used[jaxpr.eqns[0].outs[0]] == [1, 1]
    assert used[jaxpr.ins[0]] == [0, len(jaxpr.eqns)]


def test_writer():
    """Each addition becomes a product with 3; what follows reads that."""
    jaxpr, _ = traced(lambda v: [(v + 1) - v, v * 2], [x])
    writer = Writer(jaxpr)
    for eqn in jaxpr.eqns:
        if eqn.prim.name != "add":
            writer.copy(eqn)
            continue
        with writer.trace.active():
            writer.define(eqn.outs[0], mul(writer.value(eqn.ins[0]), np.float32(3)))
    found = writer.finish()
    typecheck(found)
    assert isinstance(found, Jaxpr)
    np.testing.assert_array_equal(interpret(found, np, x), [3 * x - x, 2 * x])
