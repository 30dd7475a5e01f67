"""Programs: how they print, what typecheck finds, and that both evaluators agree."""

import copy

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import (
    Eqn,
    Jaxpr,
    Literal,
    Var,
    eval_jaxpr,
    interpret,
    literal,
    sub_jaxprs,
    typecheck,
)
from funcgrad.errors import IRError
from funcgrad.ops.base import sum_p
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.families import add
from funcgrad.ops.sort import top_k_p

F3 = ShapedArray((3,), "float32")
F0 = ShapedArray((), "float32")
W = np.arange(3, dtype=np.float32)


# ---- printing


def test_print_of_captured_values_literals_and_pytrees():
    w = fnp.asarray(W)
    closed = fg.make_jaxpr(lambda x, n: {"s": fnp.sum(x * w + 2.0), "n": n})(fnp.ones(3), 1)
    assert repr(closed) == (
        "{ lambda a:f32[3] ; b:f32[3] c:i32[] . let\n"
        "    d:f32[3] = mul b a\n"
        "    e:f32[3] = add d 2.0:f32[]\n"
        "    f:f32[] = reduce_sum[axes=(0,)] e\n"
        "  in (c, f) }"
    )


def test_print_of_scopes_and_branches():
    def f(x):
        with fg.named_scope("outer"):
            return lax.cond(x > 0, lambda v: v * 2, lambda v: 1.0, x)

    assert repr(fg.make_jaxpr(f)(1.0)) == (
        "{ lambda ; a:f32[] . let\n"
        "    b:bool[] = gt a 0.0:f32[]  # outer\n"
        "    c:i32[] = convert_element_type[new_dtype=int32] b  # outer\n"
        "    d:f32[] = cond[branches=({ lambda ; a:f32[] . let\n"
        "        in (1.0:f32[],) }, { lambda ; a:f32[] . let\n"
        "          b:f32[] = mul a 2.0:f32[]  # outer\n"
        "        in (b,) })] c a  # outer\n"
        "  in (d,) }"
    )


def test_print_of_a_nested_call_and_of_nothing():
    closed = fg.make_jaxpr(fg.jit(lambda x: fnp.sin(x), backend="numpy"))(W)
    text = repr(closed)
    assert text.startswith("{ lambda ; a:f32[3] . let\n    b:f32[3] = jit[name=<lambda>")
    assert "jaxpr={ lambda ; a:f32[3] . let\n          b:f32[3] = sin a\n        in (b,) }]" in text
    assert repr(fg.make_jaxpr(lambda: ())()) == "{ lambda ;  . let\n  in () }"


def test_names_go_on_after_z():
    def f(x):
        for _ in range(27):
            x = fnp.sin(x)
        return x

    text = repr(fg.make_jaxpr(f)(1.0))
    assert "    z:f32[] = sin y\n    ba:f32[] = sin z\n    bb:f32[] = sin ba\n" in text


def test_print_of_one_equation():
    closed = fg.make_jaxpr(lambda x: x * 2.0)(W)
    assert repr(closed.eqns[0]) == "a:f32[3] = mul b 2.0:f32[]" or "mul" in repr(closed.eqns[0])
    assert repr(Var(F3)) == "Var(f32[3])"
    assert repr(literal(2)) == "Literal(2:i32[])"


def test_html():
    page = fg.make_jaxpr(lambda x: fnp.sum(x * fnp.asarray(W)))(W)._repr_html_()
    assert "reduce_sum" in page
    assert "f32[3]" in page
    assert "captured" in page


# ---- programs


def program():
    def f(x, i):
        def body(c, v):
            return c * 0.5 + fnp.sin(v), c

        total, parts = lax.scan(body, 0.0, x)
        y = lax.cond(total > 0, lambda t: t * 2.0, lambda t: t - 1.0, total)
        z = lax.while_loop(lambda v: v < 10.0, lambda v: v * 2.0 + 1.0, fnp.abs(y))
        return z, parts, i + 1, fg.jit(lambda v: v**2, backend="numpy")(parts)

    return fg.make_jaxpr(f)(W, 3)


def test_eval_and_interpret_agree():
    closed = program()
    typecheck(closed.jaxpr)
    traced = closed(W, 3)
    plain = interpret(closed.jaxpr, np, *closed.consts, W, np.int32(3))
    assert all(type(x) is Array for x in traced)
    for a, b, aval in zip(traced, plain, closed.out_avals, strict=True):
        assert a.dtype == b.dtype == aval.dtype
        assert a.shape == b.shape == aval.shape
        np.testing.assert_array_equal(a, b)


def test_eval_is_traceable():
    closed = fg.make_jaxpr(lambda x: fnp.sum(x**3))(W)
    g = fg.grad(lambda x: eval_jaxpr(closed.jaxpr, x)[0])(fnp.asarray(W))
    np.testing.assert_allclose(g, 3 * W**2)


def test_eval_needs_as_many_arguments_as_inputs():
    with pytest.raises(ValueError, match="zip"):
        program()(W)


def test_literals_are_scalars_frozen_when_traced():
    given = np.asarray(2.0, np.float32)
    closed = fg.make_jaxpr(lambda x: x * given)(W)
    given[...] = 5.0
    assert isinstance(closed.eqns[0].ins[1], Literal)
    np.testing.assert_array_equal(closed(W)[0], 2 * W)
    assert literal(W) is None
    assert literal(True).aval == ShapedArray((), "bool")


def test_sub_programs_are_found():
    closed = program()
    names = {e.prim.name: len(list(sub_jaxprs(e))) for e in closed.eqns}
    assert (names["scan"], names["cond"], names["while"], names["jit"]) == (1, 2, 2, 1)


def test_effects_are_known_through_nesting():
    def shout(x):
        fg.debug.print("{}", x)
        return x

    assert fg.make_jaxpr(fg.jit(shout))(1.0).jaxpr.has_effects
    assert fg.make_jaxpr(lambda x: lax.cond(True, shout, shout, x))(1.0).jaxpr.has_effects
    assert not program().jaxpr.has_effects


def test_programs_are_shared_not_copied():
    jaxpr = program().jaxpr
    assert copy.deepcopy(jaxpr) is jaxpr
    assert jaxpr.derive("key", lambda: 1) == jaxpr.derive("key", lambda: 2) == 1


# ---- typecheck


def good():
    x, y, out, total = Var(F3), Var(F3), Var(F3), Var(F0)
    return (
        [x, y],
        [Eqn(mul, [x, y], [out], {}), Eqn(sum_p, [out], [total], {"axes": (0,)})],
        [total],
    )


def test_typecheck_accepts_a_good_program():
    typecheck(Jaxpr(*good()))


def test_typecheck_finds_an_input_bound_twice():
    ins, eqns, outs = good()
    with pytest.raises(IRError, match="bound twice"):
        typecheck(Jaxpr([ins[0], *ins], eqns, outs))


def test_typecheck_finds_a_variable_assigned_twice():
    ins, eqns, outs = good()
    with pytest.raises(IRError, match="bound twice"):
        typecheck(Jaxpr(ins, [*eqns, eqns[0]], outs))


def test_typecheck_finds_a_use_before_the_definition():
    ins, eqns, outs = good()
    with pytest.raises(IRError, match="unbound variable .* in .*reduce_sum"):
        typecheck(Jaxpr(ins, eqns[::-1], outs))


def test_typecheck_finds_an_unbound_output():
    ins, eqns, _ = good()
    with pytest.raises(IRError, match="in the outputs"):
        typecheck(Jaxpr(ins, eqns, [Var(F0)]))


def test_typecheck_finds_a_wrong_shape():
    ins, eqns, outs = good()
    wrong = Var(ShapedArray((1,), "float32"))
    with pytest.raises(IRError, match=r"reduce_sum gives \[f32\[\]\], its equation claims"):
        typecheck(Jaxpr(ins, [eqns[0], eqns[1].replace(outs=(wrong,))], [wrong]))
    assert outs[0].aval == F0


def test_typecheck_finds_a_wrong_dtype():
    ins, eqns, _ = good()
    wrong = Var(ShapedArray((), "float64"))
    with pytest.raises(IRError, match="claims"):
        typecheck(Jaxpr(ins, [eqns[0], eqns[1].replace(outs=(wrong,))], [wrong]))


def test_typecheck_finds_too_few_results():
    x, values = Var(F3), Var(ShapedArray((2,), "float32"))
    with pytest.raises(IRError, match="claims"):
        typecheck(Jaxpr([x], [Eqn(top_k_p, [x], [values], {"k": 2})], [values]))


def test_typecheck_finds_operands_that_do_not_fit():
    a, b, out = Var(F3), Var(ShapedArray((4,), "float32")), Var(F3)
    with pytest.raises(TypeError, match="add"):
        typecheck(Jaxpr([a, b], [Eqn(add, [a, b], [out], {})], [out]))


def test_typecheck_looks_into_nested_programs():
    closed = program()
    at = next(i for i, e in enumerate(closed.eqns) if e.prim.name == "scan")
    scan = closed.eqns[at]
    body = scan.params["jaxpr"]
    broken = Jaxpr(body.ins, body.eqns[1:], body.outs)
    eqns = list(closed.eqns)
    eqns[at] = scan.replace(params={**scan.params, "jaxpr": broken})
    with pytest.raises(IRError, match="unbound"):
        typecheck(Jaxpr(closed.jaxpr.ins, eqns, closed.jaxpr.outs))


@pytest.mark.parametrize("name", ["scan", "cond", "while", "jit"])
def test_typecheck_holds_operands_to_the_inputs_of_a_nested_program(name):
    closed = program()
    eqns = []
    for e in closed.eqns:
        if e.prim.name == name:
            extra = Var(ShapedArray((7,), "int8"))
            e = e.replace(ins=(*e.ins[:-1], extra))
            broken = e
        eqns.append(e)
    with pytest.raises(IRError, match=name):
        typecheck(Jaxpr([*closed.jaxpr.ins, extra], eqns, closed.jaxpr.outs))
    assert broken.prim.name == name
