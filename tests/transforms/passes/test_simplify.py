"""Simplification: programs get smaller and mean the same."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret, typecheck
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.transforms.passes.simplify import inline_calls, simplify

X = np.array([0.5, -1.0, 2.0], np.float32)


def simplified(f, *args):
    """The simplified program of f, checked to mean the same."""
    closed = fg.make_jaxpr(f)(*args)
    slim = simplify(closed.jaxpr)
    typecheck(slim)
    values = [*map(np.asarray, closed.consts), *(np.asarray(a) for a in args)]
    for a, b in zip(
        interpret(closed.jaxpr, np, *values), interpret(slim, np, *values), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    return slim


def names(jaxpr):
    return [e.prim.name for e in jaxpr.eqns]


def test_golden():
    @fg.jit
    def inner(x):
        return fnp.sin(x) * 1.0

    def f(x, unused):
        y = inner(x) + inner(x)
        z = fnp.cos(x)
        return fnp.transpose(fnp.transpose(y)), x * 1.0, fnp.sin(x) + (z - z) * 0.0

    assert repr(simplify(fg.make_jaxpr(f)(X, X).jaxpr)) == (
        "{ lambda ; a:f32[3] b:f32[3] . let\n"
        "    c:f32[3] = sin a\n"
        "    d:f32[3] = add c c\n"
        "    e:f32[3] = cos a\n"
        "    f:f32[3] = sub e e\n"
        "    g:f32[3] = mul f 0.0:f32[]\n"
        "    h:f32[3] = add c g\n"
        "  in (d, a, h) }"
    )


def test_a_program_is_simplified_once():
    jaxpr = fg.make_jaxpr(lambda x: x * 1.0)(X).jaxpr
    assert simplify(jaxpr) is simplify(jaxpr)


def test_calls_are_inlined_each_with_its_own_variables():
    g = fg.jit(lambda x: fnp.sin(x))
    slim = simplified(lambda x: g(x) + g(g(x)), X)
    assert names(slim) == ["sin", "sin", "add"]
    jaxpr = fg.make_jaxpr(lambda x: (g(x), g(x)))(X).jaxpr
    typecheck(inline_calls(jaxpr))
    assert names(inline_calls(jaxpr)) == ["sin", "sin"]


def test_all_kinds_of_calls_are_inlined():
    c = fg.custom_jvp(lambda x: x * 2.0)
    c.defjvps(lambda t, out, x: t)
    v = fg.custom_vjp(lambda x: x + 3.0)
    v.defvjp(lambda x: (x, None), lambda _, g: (g,))
    f = lambda x: fg.checkpoint(lambda y: fg.checkpoint_name(v(c(fg.jit(fnp.sin)(y))), "n"))(x)
    assert names(simplified(f, X)) == ["sin", "mul", "add"]


@pytest.mark.parametrize(
    ("f", "left"),
    [
        (lambda x: x * 1.0, []),
        (lambda x: 1.0 * x, []),
        (lambda x: x / 1.0, []),
        (lambda x: fnp.negative(-x), []),
        (lambda x: lax.convert_element_type(x, "float32"), []),
        (lambda x: lax.reshape(x, (3,)), []),
        (lambda x: fnp.sum(x, axis=()), []),
        (lambda x: x + np.float32(-0.0), []),
        (lambda x: x.astype("int32") + 0, ["convert_element_type"]),
        (lambda x: x + 0.0, ["add"]),
        (lambda x: 1.0 / x, ["div"]),
        (lambda x: x * 0.0, ["mul"]),
        (lambda x: x - x, ["sub"]),
        (lambda x: fnp.ones(3) * x, []),
        (lambda x: x / fnp.ones(3), []),
        (lambda x: fnp.ones((2, 3)) * x, ["broadcast_in_dim"]),
    ],
)
def test_operations_that_do_nothing(f, left):
    assert names(simplified(f, X)) == left


@pytest.mark.parametrize("add", [0.0, np.float32(-0.0), np.float32(0.0)])
def test_signed_zeros_keep_their_meaning(add):
    x = np.array([-0.0, 0.0, np.nan, np.inf], np.float32)
    slim = simplify(fg.make_jaxpr(lambda v: v + add)(x).jaxpr)
    (got,) = interpret(slim, np, x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x + np.float32(add)))
    z = np.array([complex(-0.0, -0.0)], np.complex64)
    slim = simplify(fg.make_jaxpr(lambda v: v + np.complex64(complex(-0.0, 0.0)))(z).jaxpr)
    assert not np.signbit(interpret(slim, np, z)[0].imag)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_complex_products_with_one_keep_their_meaning(shape):
    z = np.array([complex(-0.0, -0.0), complex(np.inf, 0.0), complex(1.0, -0.0)], np.complex64)
    with np.errstate(invalid="ignore"):
        one = lambda: fnp.ones(shape, np.complex64)
        for f in (lambda z: z * one(), lambda z: z / one(), lambda z: z * 1.0):
            (got,) = interpret(simplify(fg.make_jaxpr(f)(z).jaxpr), np, z)
            assert got.tobytes() == np.asarray(f(z)).tobytes()


def test_transposes_are_merged():
    t = np.arange(24.0).reshape(2, 3, 4)
    merged = simplified(lambda x: fnp.transpose(fnp.transpose(x, (1, 2, 0)), (1, 2, 0)), t)
    assert names(merged) == ["transpose"]
    assert merged.eqns[0].params["permutation"] == (2, 0, 1)
    cancelled = simplified(lambda x: fnp.transpose(fnp.transpose(x, (1, 2, 0)), (2, 0, 1)), t)
    assert names(cancelled) == []


def test_equal_equations_are_computed_once():
    f = lambda x: fnp.sum(fnp.sin(x)) + fnp.sum(fnp.sin(x)) + fnp.max(fnp.sin(x))
    assert names(simplified(f, X)) == ["sin", "reduce_sum", "add", "reduce_max", "add"]
    differ = lambda x: (fnp.sum(x[None], 0), fnp.sum(x[None], 1), x * 2.0, x * 3.0)
    slim = simplified(differ, X)
    assert names(slim).count("reduce_sum") == 2
    assert names(slim).count("mul") == 2


def test_negative_zero_and_zero_are_different_constants():
    assert names(simplified(lambda x: (x * 0.0, x * -0.0), X)) == ["mul", "mul"]


def test_parameters_that_are_equal_and_mean_different_things():
    def impl(xp, x, by):
        return x + xp.float32(xp.copysign(1, by[0]) + isinstance(by[0], float))

    rule = NoRule("shifted")
    shifted = Primitive(
        name="shifted", abstract=lambda x, by: x, impl=impl, jvp=rule, transpose=rule, batch=rule,
        dims=rule,
    )  # fmt: skip
    by = [(0.0,), (-0.0,), (0,), (False,), (0.0,)]
    slim = simplified(lambda x: [shifted(x, by=b) for b in by], X)
    assert names(slim).count("shifted") == 4
    assert slim.outs[0] is slim.outs[-1]


def test_loops_and_branches_are_simplified_inside():
    def body(c, x):
        return c + fg.jit(fnp.sin)(x) * 1.0, fnp.sin(x)

    slim = simplified(lambda x: lax.scan(body, np.float32(0), x), X)
    assert names(slim.eqns[-1].params["jaxpr"]) == ["sin", "add"]
    slim = simplified(
        lambda x: lax.cond(x > 0, lambda v: v * 1.0, lambda v: fnp.negative(-v), x), X[0]
    )
    assert [names(b) for b in slim.eqns[-1].params["branches"]] == [[], []]
    slim = simplified(lambda x: lax.while_loop(lambda v: v < 3, lambda v: (v + 1.0) / 1.0, x), X[0])
    assert names(slim.eqns[-1].params["body_jaxpr"]) == ["add"]


def test_effects_stay_and_keep_their_order():
    def f(x):
        fg.debug.callback(lambda v: None, x)
        fg.debug.callback(lambda v: None, x)
        fg.jit(lambda v: fg.debug.print("{}", v))(x)
        return x

    assert names(simplify(fg.make_jaxpr(f)(X).jaxpr)) == ["debug_callback"] * 3


def test_scopes_and_lines_stay():
    @fg.jit
    def inner(x):
        with fg.named_scope("in"):
            return fnp.sin(x)

    def f(x):
        with fg.named_scope("out"):
            return inner(x)

    (eqn,) = simplify(fg.make_jaxpr(f)(X).jaxpr).eqns
    assert eqn.scopes[-1] == "in"
    assert "out" in eqn.scopes
    assert eqn.source.text == "return fnp.sin(x)"


def test_names_of_inputs_stay():
    assert simplify(fg.make_jaxpr(lambda a, b: a * 1.0)(X, X).jaxpr).names == ("a", "b")
