"""Staging: a Python function becomes a program."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core import context
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Literal, eval_jaxpr, typecheck
from funcgrad.core.staging import JaxprTrace, stage, stage_closed
from funcgrad.errors import LeakedTracerError

F3 = ShapedArray((3,), "float32")


def test_captured_arrays_become_leading_inputs_once():
    w, b = fnp.ones(3), np.ones(3, "float32")
    jaxpr, consts = stage(lambda x: [x * w + b, x - w], [F3])
    typecheck(jaxpr)
    assert len(jaxpr.ins) == 3
    assert consts[0] is w
    np.testing.assert_array_equal(consts[1], b)


def test_captured_numpy_arrays_are_what_they_were():
    b = np.ones(3, "float32")
    _, consts = stage(lambda x: [x * b], [F3])
    b[:] = 7
    np.testing.assert_array_equal(consts[0], [1, 1, 1])


def test_captured_numpy_arrays_of_a_compiled_function_are_what_they_were():
    b = np.ones(3, "float32")
    f = fg.jit(lambda x: x * b, backend="numpy")
    np.testing.assert_array_equal(f(fnp.ones(3)), 1)
    b[:] = 7
    np.testing.assert_array_equal(f(fnp.ones(3)), 1)


def test_scalars_are_literals():
    half, two = fnp.asarray(0.5), np.float32(2)
    jaxpr, consts = stage(lambda x: [x * half, x * two, x * 3.0], [F3])
    assert not consts
    assert [type(e.ins[1]) for e in jaxpr.eqns] == [Literal] * 3
    assert [e.ins[1].aval.weak_type for e in jaxpr.eqns[:2]] == [half.weak_type, False]


def test_operations_on_known_values_are_recorded_too():
    jaxpr, _ = stage(lambda: [fnp.sin(fnp.ones(3))], [])
    assert [e.prim.name for e in jaxpr.eqns][-1] == "sin"


def test_results_may_be_inputs_constants_and_repeats():
    w = fnp.ones(2)
    jaxpr, consts = stage(lambda x, y: [x, x, 1.0, w, y], [F3, F3])
    typecheck(jaxpr)
    assert jaxpr.outs[0] is jaxpr.outs[1] is jaxpr.ins[1]
    assert jaxpr.outs[3] is jaxpr.ins[0]
    assert isinstance(jaxpr.outs[2], Literal)
    assert consts == [w] or consts[0] is w


def test_tracers_of_enclosing_transformations_are_captured():
    def outer(x):
        _, consts = stage(lambda y: [x * y], [F3])
        assert len(consts) == 1
        assert consts[0] is x
        return fnp.sum(x)

    fg.grad(outer)(fnp.ones(3))


def test_names_of_inputs_follow_captured_ones():
    w = fnp.ones(3)
    jaxpr, _ = stage(lambda a, b: [a * w + b], [F3, F3], names=["a", "b"])
    assert jaxpr.names == ("captured", "a", "b")


def test_stage_closed_makes_captured_arrays_constants():
    w = fnp.asarray([1.0, 2.0, 3.0])
    jaxpr = stage_closed(lambda x: [x * w], [F3], "the test")
    typecheck(jaxpr)
    assert [e.prim.name for e in jaxpr.eqns] == ["constant", "mul"]
    np.testing.assert_array_equal(eval_jaxpr(jaxpr, w)[0], [1, 4, 9])


def test_stage_closed_refuses_captured_tracers():
    def f(x):
        with pytest.raises(AssertionError, match="the test captured"):
            stage_closed(lambda y: [x * y], [F3], "the test")
        return fnp.sum(x)

    fg.grad(f)(fnp.ones(3))


def test_the_trace_ends_also_after_an_error():
    held = []

    def fails(x):
        held.append(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stage(fails, [F3])
    assert context.current() is context.ROOT
    with pytest.raises(LeakedTracerError):
        held[0] + 1.0


def test_arguments_behind_a_value():
    trace = JaxprTrace("f", ["a", "b", "c"])
    with trace.active():
        a, b, c = (trace.new_arg(F3) for _ in range(3))
        d = a * b
        e = d + fnp.sin(c)
    assert trace.arguments_behind(d._var) == ["a", "b"]
    assert trace.arguments_behind(e._var) == ["a", "b", "c"]
    assert "arguments a, b of f" in d.origin()


def test_make_jaxpr_with_static_arguments_and_shapes():
    closed, shape = fg.make_jaxpr(lambda n, x: {"y": x * n}, static_argnums=0, return_shape=True)(
        3, fg.ShapeDtypeStruct((2,), "float32")
    )
    assert shape == {"y": fg.ShapeDtypeStruct((2,), "float32")}
    assert len(closed.jaxpr.ins) == 1
    closed = fg.make_jaxpr(lambda x, n: x * n, static_argnums=-1)(1.0, 3)
    assert len(closed.jaxpr.ins) == 1


def test_eval_shape_computes_nothing():
    def f(x, *, y):
        return {"m": x @ y, "n": None, "s": (x.sum(), 1)}

    big = fg.ShapeDtypeStruct((100_000, 100_000), "bfloat16")
    out = fg.eval_shape(f, big, y=big)
    assert out["m"] == big
    assert out["n"] is None
    assert [s.dtype.name for s in out["s"]] == ["bfloat16", "int32"]


def test_keyword_arguments_and_empty_trees():
    closed = fg.make_jaxpr(lambda x, y=None, *, z: (x, y, z))((), z={"a": 1.0})
    assert len(closed.jaxpr.ins) == 1
    assert closed.jaxpr.names == ("z['a']",)
