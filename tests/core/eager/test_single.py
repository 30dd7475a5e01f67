"""Functions that are one operation: what is known of a call of them."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core import context
from funcgrad.core.eager.single import _observed, single
from funcgrad.errors import ShapeError
from funcgrad.ops.elementwise import arithmetic, convert

X, M = fnp.ones(3), fnp.array([True, False, True])


def observed(fun, *args, **kwargs):
    return _observed(fun, context.current(), args, kwargs)


def test_one_operation_is_a_recipe():
    recipe = observed(lambda x: arithmetic.neg.bind(x), X)
    assert (recipe.aval, recipe.operands) == (X.aval, [0])
    assert recipe.impl is arithmetic.neg.impl
    recipe = observed(lambda m, x, y=0.0: convert.select(m, x, np.float32(y)), M, X, y=2.0)
    assert recipe.operands[:1] == [0]
    assert {type(o) for o in recipe.operands} == {int, np.ndarray}


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda x: x, (X,)),
        (lambda x: -fnp.exp(x), (X,)),
        (lambda x: (-x, x)[1], (X,)),
        (lambda x, y: x * y, (X, np.ones(3, np.float32))),
        (lambda x, n: fnp.reshape(x, n), (X, [3, 1])),
        (lambda x: -fnp.ones(3), (X,)),
    ],
)
def test_all_else_is_not(fun, args):
    assert observed(fun, *args) is None


def test_one_array_given_twice_is_two_operands():
    recipe = observed(lambda m, x, y: convert.select(m, x, y), M, X, X)
    assert recipe.operands == observed(lambda m, x, y: convert.select(m, x, y), M, X, -X).operands
    assert set(recipe.operands) == {0, 1, 2}


def test_an_array_whose_value_is_looked_at_is_no_operand():
    assert observed(lambda x, n: fnp.reshape(x, (int(n), -1)), X, fnp.array(1)) is None
    assert observed(lambda x, n: fnp.reshape(x, (int(n), -1)), X, n=fnp.array(1)) is None


def test_the_context_is_as_before():
    before = context.current()
    with pytest.raises(ShapeError):
        observed(lambda x: fnp.reshape(x, (7,)), X)
    assert context.current() is before


def test_decorated_functions_keep_their_names():
    @single
    def half(x):
        """Half of x."""
        return x / 2

    assert (half.__name__, half.__doc__) == ("half", "Half of x.")
    np.testing.assert_array_equal(half(X), np.full(3, 0.5))
