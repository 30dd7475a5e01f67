"""Programs by JAX's names: an interpreter as its documentation writes it, and small helpers."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ConcretizationTypeError, IRError
from funcgrad.extend import core

X = fnp.arange(3.0)


def inverse(fun):
    """JAX's example of an interpreter: "Writing custom Jaxpr interpreters in JAX"."""
    registry = {
        core.primitives.exp_p: fnp.log,
        core.primitives.tanh_p: fnp.arctanh,
    }

    def inverse_jaxpr(jaxpr, consts, *args):
        env = {}

        def read(var):
            return var.val if type(var) is core.Literal else env[var]

        env.update(zip(jaxpr.outvars, args, strict=True))
        env.update(zip(jaxpr.constvars, consts, strict=True))
        for eqn in jaxpr.eqns[::-1]:
            (inval,) = map(read, eqn.outvars)
            env[eqn.invars[0]] = registry[eqn.primitive](inval)
        return [read(v) for v in jaxpr.invars]

    def wrapped(*args):
        closed = fg.make_jaxpr(fun)(*args)
        return inverse_jaxpr(closed.jaxpr, closed.literals, *args)[0]

    return wrapped


def test_an_interpreter():
    f = inverse(lambda x: fnp.exp(fnp.tanh(x)))
    np.testing.assert_allclose(f(fnp.exp(fnp.tanh(0.5))), 0.5, rtol=1e-5)
    np.testing.assert_allclose(fg.jit(fg.vmap(f))(fnp.exp(fnp.tanh(X))), X, rtol=1e-5)


def test_programs_as_functions():
    scale = fnp.arange(3.0) + 1
    closed = fg.make_jaxpr(lambda x: (x * scale, fg.jit(fnp.sin)(x)))(X)
    assert isinstance(closed, core.ClosedJaxpr)
    assert isinstance(closed.jaxpr, core.Jaxpr)
    assert isinstance(closed.eqns[0], core.JaxprEqn)
    assert isinstance(closed.jaxpr.invars[0], core.Var)
    product, sine = core.jaxpr_as_fun(closed)(X)
    np.testing.assert_array_equal(product, X * scale)
    np.testing.assert_array_equal(sine, fnp.sin(X))
    core.check_jaxpr(closed.jaxpr)
    (inner,) = core.subjaxprs(closed.jaxpr)
    assert [e.primitive for e in inner.eqns] == [core.primitives.sin_p]
    assert list(core.jaxprs_in_params(closed.eqns[1].params)) == [inner]
    with pytest.raises(TypeError, match="jaxpr_as_fun: need a ClosedJaxpr"):
        core.jaxpr_as_fun(inner)


def test_programs_that_are_written():
    x, y = core.Var(fg.typeof(X)), core.Var(fg.typeof(X))
    eqn = core.new_jaxpr_eqn([x], [y], core.primitives.neg_p, {})
    jaxpr = core.Jaxpr([x], [eqn], [y])
    core.check_jaxpr(jaxpr)
    (out,) = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(X)
    np.testing.assert_array_equal(out, -X)
    with pytest.raises(IRError, match="unbound variable"):
        core.check_jaxpr(core.Jaxpr([], [eqn], [y]))
    with pytest.raises(ValueError, match="effects must be empty"):
        core.new_jaxpr_eqn([x], [y], core.primitives.neg_p, {}, frozenset({1}))


def test_primitives_have_jax_names():
    p = core.primitives
    jaxpr = fg.make_jaxpr(lambda x, n: (fnp.max(x), ~n, fnp.all(x > 0)))(X, 3)
    assert {e.primitive for e in jaxpr.eqns} >= {p.reduce_max_p, p.not_p, p.gt_p, p.reduce_and_p}
    for name in ("scan_p", "while_p", "cond_p", "dot_general_p", "remat_p", "psum_p", "lu_p"):
        assert isinstance(getattr(p, name), core.Primitive)
    assert p.scan_p.multiple_results
    assert not p.sin_p.multiple_results
    with pytest.raises(AttributeError, match="no attribute 'after_all_p'"):
        p.after_all_p  # noqa: B018


def test_types():
    aval = fg.typeof(fnp.ones((2, 3)))
    assert core.mapped_aval(2, 0, aval) == fg.typeof(X)
    assert core.unmapped_aval(4, 2, aval).shape == (2, 3, 4)
    assert core.mapped_aval(2, None, aval) is aval is core.unmapped_aval(2, None, aval)
    with pytest.raises(ValueError, match="mapped_aval: f32.2,3. has no axis 1 of size 2"):
        core.mapped_aval(2, 1, aval)
    with pytest.raises(ValueError, match="unmapped_aval: f32.2,3. can't get an axis 3"):
        core.unmapped_aval(2, 3, aval)
    assert core.primal_dtype_to_tangent_dtype("int8") == fg.float0
    assert core.valid_jaxtype(1.0)
    assert not core.valid_jaxtype("a")
    assert {np.ndarray, np.float32, type(X)} <= core.array_types


def test_known_values_and_transformations():
    assert core.concrete_or_error(None, X) is not None
    with pytest.raises(ConcretizationTypeError, match="a value is needed.*the size"):
        fg.jit(lambda n: core.concrete_or_error(int, n, "It is the size."))(3)
    before = core.get_opaque_trace_state(convention="mine")
    found = []
    fg.jit(lambda x: found.append(core.get_opaque_trace_state()) or x)(1.0)
    assert found[0] != before
    assert before == core.get_opaque_trace_state()
    assert hash(before) == hash(core.get_opaque_trace_state())
