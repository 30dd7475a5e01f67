"""Eager calls by native code, of the same operation on operands that mean something else."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.llvm import eager_calls
from funcgrad.core import context, eager
from funcgrad.core.array import Array

pytestmark = pytest.mark.skipif(not eager.activate(), reason="another Python or NumPy")


def by_python(function, *args):
    """A call in a context of its own, of which no native code knows."""
    with context.scoped(float_dtype=context.current().float_dtype):
        return function(*args)


def often(function, *args):
    """The last result of so many calls that native code does them."""
    for _ in range(eager_calls.LEARNED_AFTER + 1):
        function(*args)
    return function(*args)


def same(got, want):
    assert got.aval == want.aval
    assert got.weak_type is want.weak_type
    assert got.tobytes() == want.tobytes()


def test_one_array_given_twice_and_then_two():
    mask, x, y = fnp.array([True, False, True]), fnp.array([1.0, 2, 3]), fnp.array([4.0, 5, 6])
    often(fnp.where, mask, x, x)
    same(fnp.where(mask, x, y), by_python(fnp.where, mask, x, y))


def test_arrays_whose_values_are_shapes_and_axes():
    x = fnp.array(np.arange(6.0, dtype="float32").reshape(2, 3))
    calls = [(fnp.reshape, [3, 2], [1, 6]), (fnp.expand_dims, 0, 2), (fnp.moveaxis, 0, 1)]
    for function, first, then in calls:
        more = (0,) if function is fnp.moveaxis else ()
        often(function, x, fnp.array(first), *more)
        same(function(x, fnp.array(then), *more), by_python(function, x, then, *more))


def test_weak_types_that_end_beside_the_operation():
    for x in (fnp.add(1, 2), fnp.add(1.0, 2.0)):
        assert x.weak_type
        for function in (fnp.sum, fnp.prod, fnp.max, fnp.mean, fnp.all):
            same(often(function, x), by_python(function, x))


def test_an_array_that_was_never_made():
    x = fnp.ones(3)
    often(fnp.add, x, x)
    for call in (lambda y: fnp.add(x, y), lambda y: fnp.add(y, x)):
        with pytest.raises(AttributeError):
            call(Array.__new__(Array))
