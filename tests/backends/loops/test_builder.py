"""Writing kernels: where statements land, and how indices stay affine."""

import ml_dtypes
import numpy as np

from funcgrad.backends.loops.builder import ZERO, Builder, index_key
from funcgrad.backends.loops.ir import Buffer, Const, Index, Loop

F32 = np.dtype("float32")


def test_what_does_not_change_in_a_loop_stands_before_it():
    b = Builder()
    x = Buffer("x", F32, 100, "in")
    i = b.axis(4)
    b.loop(5, lambda j: [b.op("add", F32, b.load(x, Index(0, ((1, i),))), Const(1, F32))][:0])
    kinds = [type(s).__name__ for s in b.blocks[0].stmts]
    assert kinds == ["Load", "Op", "Loop"]


def test_equal_ops_are_one_and_constants_fold():
    b = Builder()
    i = b.axis(4)
    assert b.op("add", i.dtype, i, i) is b.op("add", i.dtype, i, i)
    assert b.op("add", F32, Const(1, F32), Const(2, F32)).value == 3


def test_quotients_of_axes_in_their_range():
    b = Builder()
    i, j = b.axis(8), b.axis(16)
    q, r = b.divide(Index(0, ((16, i), (1, j))), 16)
    assert (q.terms, r.terms) == (((1, i),), ((1, j),))
    assert not b.wanted
    assert not b.blocks[0].stmts


def test_an_axis_that_should_be_cut_is_named():
    b = Builder()
    i = b.axis(24)
    b.divide(Index(0, ((1, i),)), 6)
    assert b.wanted == [(i, 6)]


def test_a_quotient_and_its_remainder_join_again():
    b = Builder()
    i = b.axis(24)
    flat = Index(3, ((1, i),))
    at = b.unflatten(flat, (7, 5))
    assert index_key(b.flatten(at, (7, 5))) == index_key(flat)


def test_comparisons_that_always_hold_leave_no_code():
    b = Builder()
    at = Index(2, ((1, b.axis(5)),))
    assert b.compare("less", at, 7) is None
    assert b.compare("greater_equal", at, 2) is None
    assert b.compare("less", at, 6) is not None


def test_loops_over_one_turn_are_left_out():
    b = Builder()
    b.nest([1, 3, 1], lambda at: None, parallel=True)
    (loop,) = b.blocks[0].stmts
    assert isinstance(loop, Loop)
    assert loop.body == ()


def test_what_was_widened_is_not_rounded_again():
    b = Builder()
    half, f64, i64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float64, np.int64))
    x = b.load(Buffer("x", F32, 8, "in"), ZERO)
    y = b.convert(x, half)
    assert b.convert(b.convert(y, F32), half) is y
    # float64 doesn't hold all of int64, nor bfloat16 all of float32.
    i = b.load(Buffer("i", i64, 8, "in"), ZERO)
    assert b.convert(b.convert(i, f64), i64) is not i
    assert b.convert(y, F32) is not x
