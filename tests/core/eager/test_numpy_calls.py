"""Programs as lists of NumPy calls: the values, dtypes and bits of evaluating them op by op."""

import itertools
import weakref
from dataclasses import replace

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core import ir
from funcgrad.core.aval import ShapedArray
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.ops.elementwise.arithmetic import mul, neg
from funcgrad.ops.families import add

FUNCTIONS = {
    "scalars of literals": lambda x: (x * 2.0 + 1.0, 3.0),
    "parameters": lambda x: (fnp.sum(x, axis=0), fnp.transpose(x)),
    "three operands": lambda x: (fnp.where(x > 0, x, 0.0), fnp.clip(x, -1, 1)),
    "two with parameters": lambda x: (x @ x.T,),
    "no operands": lambda x: (lax.iota("int32", 3), x),
    "no operands beside one and two": lambda x: (-x * lax.iota(x.dtype, x.shape[1]),),
    "several results": lambda x: tuple(lax.top_k(x, 2)),
    "narrow floats": lambda x: (x.astype("bfloat16") * 2, fnp.sum(x.astype("float16"))),
    "inputs twice": lambda x: (x, x),
}


def test_a_literal_that_is_read_twice():
    x = ir.Var(ShapedArray((2,), "float32"))
    two = ir.Literal(np.float32(2).reshape(()), ShapedArray((), "float32"))
    y, z = ir.Var(x.aval), ir.Var(x.aval)
    eqns = [ir.Eqn(mul, [x, two], [y], {}), ir.Eqn(add, [two, y], [z], {})]
    (out,) = numpy_calls(ir.Jaxpr([x], eqns, [z]))(np.ones(2, np.float32))
    np.testing.assert_array_equal(out, [4.0, 4.0])


def test_large_values_are_freed_after_their_last_use():
    def watch(xp, x):
        alive.append([r() is not None for r in made])
        made.append(weakref.ref(out := xp.negative(x)))
        return out

    made, alive = [], []
    watched = replace(neg, impl=watch)
    values = [ir.Var(ShapedArray((1 << 16,), "float32")) for _ in range(5)]
    eqns = [ir.Eqn(watched, [a], [b], {}) for a, b in itertools.pairwise(values)]
    numpy_calls(ir.Jaxpr(values[:1], eqns, values[-1:]))(np.ones(1 << 16, np.float32))
    assert alive[-1] == [False, False, True]


@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("shape", [(3, 4), (1, 2)])
def test_the_same_as_op_by_op(fun, shape):
    x = fnp.array(np.random.default_rng(0).standard_normal(shape), "float32")
    jaxpr = fg.make_jaxpr(fun)(x).jaxpr
    run = numpy_calls(jaxpr)
    for _ in range(2):
        for got, want in zip(run(np.asarray(x)), eval_jaxpr(jaxpr, x), strict=True):
            assert type(got) is np.ndarray
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_floating_point_errors_are_the_callers_to_silence():
    run = numpy_calls(fg.make_jaxpr(lambda x: 1 / x)(1.0).jaxpr)
    with np.errstate(all="raise"):
        before = errors()
        quiet()
        (out,) = run(np.zeros((), np.float32))
        loud(before)
        assert np.geterr()["divide"] == "raise"
    assert np.isinf(out)
