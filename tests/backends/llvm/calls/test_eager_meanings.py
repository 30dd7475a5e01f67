"""Eager calls by native code, of the same operation on operands that mean something else."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.llvm.calls import eager as eager_calls
from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.eager import functions
from funcgrad.errors import FuncgradError

pytestmark = pytest.mark.skipif(not functions.activate(), reason="another Python or NumPy")


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


@pytest.mark.parametrize("function", [fnp.add, fnp.maximum, fnp.less, fnp.power])
def test_numpys_arrays_and_numbers_count_as_ours(function):
    x, n = fnp.array([np.nan, -0.0, 3.5], "float32"), fnp.array([-2, 0, 3])
    others = [np.arange(3).astype(d) for d in ("f4", "f8", "i4", "i8", "f2", "?", ">f4")]
    others += [np.float32(2), np.int32(3), np.int8(3), np.bool_(True)]
    others += [np.ones((2, 1), "f4"), np.arange(6, dtype="f4")[::2], np.array(2.5)]
    for other in others:
        for a in (x, n):
            for _ in range(3):
                pairs = [
                    (function(a, other), function(a, fnp.asarray(other))),
                    (function(other, a), function(fnp.asarray(other), a)),
                ]
                for got, want in pairs:
                    same(got, want)
    for wrong in (np.array(["text"]), np.ones(4, "f4"), np.array(object())):
        with pytest.raises((TypeError, FuncgradError)):
            function(x, wrong)


def test_numbers_made_anew_fill_no_table():
    x = fnp.arange(3.0)
    before = sum(len(b) for t in eager_calls._tables for b in t.buckets if b)
    for i in range(3 * eager_calls.LEARNED_AFTER):
        fnp.where(x > 0, x, np.float32(i))
        fnp.clip(x, 0.25 * i, 0.5 * i)
    after = sum(len(b) for t in eager_calls._tables for b in t.buckets if b)
    assert after <= before + 4  # of the operations on x alone


def test_what_can_change_is_read_at_each_call():
    x, mask = fnp.ones(3), np.array([True, False, True])
    for i in range(2 * eager_calls.LEARNED_AFTER + 2):
        mask[1] = i % 2
        np.testing.assert_array_equal(fnp.where(mask, x, 0.0), mask)
    shape = [3, 1]
    for i in range(2 * eager_calls.LEARNED_AFTER + 2):
        shape[:] = [3, 1] if i % 2 else [1, 3]
        assert fnp.reshape(x, shape).shape == tuple(shape)
    other = np.ones(3, np.float32)
    for i in range(2 * eager_calls.LEARNED_AFTER + 2):
        other[:] = i
        np.testing.assert_array_equal(x + other, 1 + other)
