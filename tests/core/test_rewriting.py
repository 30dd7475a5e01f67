"""Rewriting programs: everywhere, by rules, and equation by equation."""

from dataclasses import dataclass

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.rewriting import Boundary, Writer, everywhere, makers, rewrite, runs, uses
from funcgrad.errors import CustomRuleError, LeakedTracerError
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


# ---- rules


@dataclass(frozen=True)
class Scaled:
    """Each sine becomes one of a multiple of its operand."""

    by: float

    def __call__(self, eqn, values):
        return fnp.sin(values[0] * self.by) if eqn.prim.name == "sin" else None


def narrow(eqn, values):
    return eqn.prim.bind(values[0].astype("float16")) if eqn.prim.name == "sin" else None


def test_a_program_that_stays_is_given_back():
    jaxpr = program(lambda v: fg.jit(lambda v: v + 1)(v), x)
    assert rewrite(jaxpr, Scaled(2.0)) is jaxpr


def test_equal_rules_rewrite_a_program_once():
    f = fg.jit(fnp.sin)
    jaxpr = program(lambda v: f(f(v)), x)
    found = rewrite(jaxpr, Scaled(2.0))
    assert rewrite(jaxpr, Scaled(2.0)) is found
    assert rewrite(jaxpr, Scaled(3.0)) is not found
    first, second = (e.params["jaxpr"] for e in found.eqns)
    assert first is second
    np.testing.assert_allclose(interpret(found, np, x)[0], np.sin(2 * np.sin(2 * x)), rtol=1e-6)


def test_rules_depend_on_the_context():
    jaxpr = program(fnp.sin, x)
    rule = lambda eqn, values: values[0] * fnp.arange(2.0, 6.0)
    with fg.default_dtype("float64"):
        wide = rewrite(jaxpr, rule)
    assert any(v.aval.dtype == "float64" for e in wide.eqns for v in e.outs)
    assert not any(v.aval.dtype == "float64" for e in rewrite(jaxpr, rule).eqns for v in e.outs)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: fnp.sin(v) + v,
        lambda v: fg.jit(fnp.sin)(v),
        lambda v: lax.fori_loop(0, 3, lambda i, v: fnp.sin(v), v),
        lambda v: lax.scan(lambda c, r: (fnp.sin(c), fnp.sin(r)), v[0], v),
        lambda v: lax.while_loop(lambda v: fnp.sin(v)[0] > 0.1, fnp.sin, v + 1),
        lambda v: lax.cond(v[0] > 0, fnp.sin, lambda v: v, v),
        lambda v: fg.checkpoint(fnp.sin)(v),
        lambda v: fnp.sin(fnp.sin(v)),
        lambda v: fnp.sin(2.0),
    ],
)
def test_values_have_their_types_where_programs_meet(f):
    jaxpr = program(f, x)
    found = rewrite(jaxpr, narrow)
    typecheck(found)
    assert "f16" in repr(found)
    assert found.in_avals == jaxpr.in_avals
    assert found.names == jaxpr.names
    for a, b in zip(found.out_avals, jaxpr.out_avals, strict=True):
        assert a.matches(b)
    for got, want in zip(interpret(found, np, x), interpret(jaxpr, np, x), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-2)


def test_narrow_values_stay_so_between_rules():
    found = rewrite(program(lambda v: fnp.sin(fnp.sin(v)), x), narrow)
    assert names(found) == ["convert_element_type", "sin", "sin", "convert_element_type"]


def test_sources_and_scopes_stay():
    def f(v):
        with fg.named_scope("outer"):
            return fnp.sin(v) + 1

    found = rewrite(program(f, x), Scaled(2.0))
    assert [e.prim.name for e in found.eqns] == ["mul", "sin", "add"]
    for eqn in found.eqns:
        assert eqn.scopes == ("outer",)
        assert eqn.source.text == "return fnp.sin(v) + 1"


def test_what_rules_capture_is_a_constant_of_the_program():
    table = fnp.arange(4.0)
    found = rewrite(program(fnp.sin, x), lambda eqn, values: values[0] * table)
    typecheck(found)
    assert names(found) == ["constant", "mul"]
    np.testing.assert_array_equal(interpret(found, np, x)[0], x * np.arange(4.0))


def test_numbers_take_the_types_of_results():
    found = rewrite(program(lambda v: fnp.sum(fnp.sin(v)), x), to_number)
    typecheck(found)
    assert interpret(found, np, x)[0] == np.float32(3)


def to_number(eqn, values):
    return 3 if eqn.prim.name == "reduce_sum" else None


def test_ops_of_several_results_and_of_none():
    def rule(eqn, values):
        if eqn.prim.name == "debug_callback":
            return []
        return [values[0], values[0][None]] if eqn.prim.name == "scan" else None

    def f(v):
        fg.debug.print("{}", v)
        return lax.scan(lambda c, r: (c + 1, c), v, None, length=1)[0]

    assert "debug_callback" not in names(found := rewrite(program(f, x), rule))
    assert "scan" not in names(found)


def test_operands_that_no_program_reads_any_longer_are_dropped():
    def rule(eqn, values):
        return values[0] if eqn.prim.name == "mul" else None

    f = lambda v, w: lax.scan(lambda c, r: (c * w + r, None), v, fnp.stack([v, v]))[0]
    found = rewrite(program(f, x, x), rule)
    typecheck(found)
    (scan,) = [e for e in found.eqns if e.prim.name == "scan"]
    assert found.ins[1] not in scan.ins


def test_a_rule_that_gives_another_shape_is_told_the_op():
    with pytest.raises(CustomRuleError, match=r"by wrong: sin gives \[f32\[4\]\], .*f32\[\]"):
        rewrite(program(fnp.sin, x), wrong)
    with pytest.raises(CustomRuleError, match="only dtypes may change"):
        rewrite(program(lambda v: lax.scan(lambda c, r: (c, r), v, None, length=2)[0], x),
                lambda eqn, values: values[:0])  # fmt: skip

    for f, given in ((fnp.sin, [1.0]), (lambda v: lax.sort((v, v)), 1.0)):
        with pytest.raises(CustomRuleError, match="in its place"):
            rewrite(program(f, x), lambda eqn, values, given=given: given)


def wrong(eqn, values):
    return fnp.sum(values[0])


def test_a_rule_without_a_hash_is_refused():
    class Listed:
        __hash__ = None

        def __call__(self, eqn, values):
            return None

    with pytest.raises(CustomRuleError, match="must have a hash.*frozen dataclass"):
        rewrite(program(fnp.sin, x), Listed())


def test_a_rule_may_not_use_what_is_traced_outside():
    def f(v):
        rewrite(program(fnp.sin, x), lambda eqn, values: values[0] * v)
        return v

    with pytest.raises(CustomRuleError, match="traced outside of the program"):
        fg.grad(f)(1.0)


def test_values_of_a_rule_are_dead_after_it():
    held = []

    def rule(eqn, values):
        held.append(values[0])

    rewrite(program(lambda escaped: fnp.sin(escaped), x), rule)
    with pytest.raises(LeakedTracerError, match="rewrite"):
        held[0] + 1


def test_values_at_boundaries_may_be_others():
    """Every float64 as a float32, also in and out of programs, and as it is carried."""

    class Single(Boundary):
        def type(self, aval):
            return aval.update(dtype="float32") if aval.dtype == "float64" else aval

    def rule(eqn, values):
        return None if eqn.params else eqn.prim.bind(*values)

    wide = x.astype("float64")
    f = lambda v: lax.scan(lambda c, r: (c * r, fnp.sin(r)), v[0], v)
    jaxpr = program(f, wide)
    found = rewrite(jaxpr, rule, Single())
    typecheck(found)
    assert "f64" in repr(jaxpr)
    assert "f64" not in repr(found.eqns[-1])
    for got, want in zip(interpret(found, np, x), interpret(jaxpr, np, wide), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_runs():
    f = lambda v: lax.cond(v[0] > 0, lambda v: lax.fori_loop(0, 5, lambda i, v: fnp.sin(v), v),
                           lambda v: fnp.sin(fnp.sin(v)), v)  # fmt: skip
    sines = lambda e: float(e.prim.name == "sin")
    assert sum(n * sines(e) for e, n in runs(program(f, x), sines)) == 5
