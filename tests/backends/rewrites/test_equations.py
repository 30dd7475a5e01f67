"""The list that rewrites write into: what it leaves out, and what it remembers."""

import numpy as np

from funcgrad.backends.rewrites.equations import Equations
from funcgrad.backends.target import Target
from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Literal, Var
from funcgrad.ops.base import sum_p


def var(*shape, dtype="float32"):
    return Var(ShapedArray(shape, np.dtype(dtype)))


def literal(value, dtype="float32"):
    return Literal(np.asarray(value, dtype), ShapedArray((), np.dtype(dtype)))


def test_what_would_do_nothing_is_not_added():
    x, flat = var(2, 3), Equations(Target("any"))
    assert flat.convert(x, np.dtype("float32")) is x
    assert flat.reshape(x, (2, 3)) is x
    assert flat.transpose(x, (0, 1)) is x
    assert not flat.eqns


def test_a_reshape_is_of_what_was_before():
    x, flat = var(2, 3), Equations(Target("any"))
    flat.reshape(flat.reshape(x, (6,)), (3, 2))
    assert [e.ins[0] for e in flat.eqns] == [x, x]


def test_broadcasts_of_zero_are_known_but_not_those_of_a_negative_one():
    flat = Equations(Target("any"))
    zeros = flat.broadcast(flat.broadcast(literal(0.0), (3,), ()), (2, 3), (1,))
    flat.broadcast(literal(-0.0), (3,), ())
    flat.broadcast(literal(1.0), (3,), ())
    assert zeros in flat.zeros
    assert len(flat.zeros) == 2


def test_results_have_shapes_and_dtypes():
    x, flat = var(2, 3, 4), Equations(Target("any"))
    assert flat.reduce(sum_p, x, (0, 2)).aval == ShapedArray((3,), np.dtype("float32"))
    assert flat.convert(x, np.dtype("int8")).aval.dtype == np.int8
    assert flat.transpose(x, (2, 0, 1)).aval.shape == (4, 2, 3)
    assert flat.empty(ShapedArray((0, 3), np.dtype("float32"))).aval.shape == (0, 3)
