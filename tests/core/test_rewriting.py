"""Rewriting programs: everywhere, by rules, and equation by equation."""

import numpy as np

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.rewriting import Writer, everywhere, makers, uses
from funcgrad.ops.elementwise.arithmetic import mul

x = np.arange(4, dtype="float32")


def program(f, *args):
    """The program of a function that captures nothing."""
    closed = fg.make_jaxpr(f)(*args)
    assert not closed.consts
    return closed.jaxpr


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


def test_everywhere_reaches_programs_in_programs():
    seen = []

    def note(jaxpr):
        seen.append(names(jaxpr))
        return jaxpr

    inner = lambda i, v: lax.cond(v[0] > 0, lambda v: v + 1, lambda v: v * 2, v)
    jaxpr = program(lambda v: lax.fori_loop(0, 3, inner, v), x)
    everywhere(jaxpr, note)
    assert any("cond" in found for found in seen)
    assert ["add"] in seen
    assert seen[-1] == names(jaxpr)


def test_everywhere_rewrites_a_program_once():
    seen = []
    f = fg.jit(lambda v: v + 1)
    everywhere(program(lambda v: f(f(f(v))), x), lambda j: seen.append(names(j)) or j)
    assert seen == [["add"], ["jit"] * 3]


def test_makers_and_uses():
    jaxpr = program(lambda v: [(v + 1) * (v + 1), v], x)
    made, used = makers(jaxpr), uses(jaxpr)
    assert made == {e.outs[0]: i for i, e in enumerate(jaxpr.eqns)}
    assert used[jaxpr.eqns[0].outs[0]] == [2]
    assert used[jaxpr.ins[0]] == [0, 1, len(jaxpr.eqns)]


def test_writer():
    """Each addition becomes a product with 3; what follows reads that."""

    class Triples(Writer):
        def equation(self, eqn, ins):
            if eqn.prim.name == "add":
                self.define(eqn, [mul(self.value(ins[0]), np.float32(3))])
            else:
                self.keep(eqn, ins)

    jaxpr = program(lambda v: [(v + 1) - v, v * 2], x)
    found = Triples().write(jaxpr)
    typecheck(found)
    np.testing.assert_array_equal(interpret(found, np, x), [3 * x - x, 2 * x])
