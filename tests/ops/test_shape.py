"""Structural ops against NumPy, with derivatives, batching and axis mappings."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core import dims as dims_
from funcgrad.core.array import Array
from funcgrad.core.aval import ShapedArray
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops import shape as ops
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, jvp, vjp


def counted(*shape, dtype="float32"):
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


def equal(got, expected):
    got = np.asarray(got)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(expected.dtype), expected)


def edges(x, low, high, value=0):
    """np.pad with negative widths that take away."""
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    out = np.pad(x, widths, constant_values=value)
    cut = [slice(max(-a, 0), out.shape[i] - max(-b, 0))
           for i, (a, b) in enumerate(zip(low, high, strict=True))]  # fmt: skip
    return out[tuple(cut)]


def spread(x, interior, value=0):
    """x with `interior` values between each pair of elements."""
    shape = [n + max(n - 1, 0) * k for n, k in zip(x.shape, interior, strict=True)]
    out = np.full(shape, value, x.dtype)
    out[tuple(slice(None, None, k + 1) for k in interior)] = x
    return out


LINEAR = {
    "reshape": (lambda x: ops.reshape(x, (4, 3, 2)), lambda x: x.reshape(4, 3, 2), (2, 3, 4)),
    "reshape-merge": (lambda x: ops.reshape(x, (2, 12)), lambda x: x.reshape(2, 12), (2, 3, 4)),
    "reshape-inferred": (lambda x: ops.reshape(x, (-1, 2)), lambda x: x.reshape(-1, 2), (2, 3)),
    "reshape-dimensions": (
        lambda x: ops.reshape(x, (6,), (1, 0)), lambda x: x.T.reshape(6), (2, 3)),
    "reshape-scalar": (lambda x: ops.reshape(x, ()), lambda x: x.reshape(()), (1, 1)),
    "reshape-empty": (lambda x: ops.reshape(x, (5, 0)), lambda x: x.reshape(5, 0), (0, 3)),
    "squeeze": (lambda x: ops.squeeze(x, (0, -1)), lambda x: x.squeeze((0, 2)), (1, 3, 1)),
    "expand_dims": (
        lambda x: ops.expand_dims(x, (0, -1)), lambda x: np.expand_dims(x, (0, -1)), (3, 2)),
    "collapse": (lambda x: ops.collapse(x, 1), lambda x: x.reshape(2, 12), (2, 3, 4)),
    "broadcast": (
        lambda x: ops.broadcast(x, (2, 4)), lambda x: np.broadcast_to(x, (2, 4, 3)), (3,)),
    "broadcast_in_dim": (
        lambda x: ops.broadcast_in_dim(x, (3, 2, 4), (0, 2)),
        lambda x: np.broadcast_to(x[:, None], (3, 2, 4)), (3, 1)),
    "transpose": (
        lambda x: ops.transpose(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (2, 3, 4)),
    "rev": (lambda x: ops.rev(x, (0, -1)), lambda x: x[::-1, :, ::-1], (2, 3, 4)),
    "rev-nothing": (lambda x: ops.rev(x, ()), lambda x: x, (2,)),
    "slice": (lambda x: ops.slice(x, (1, 0), (4, 5), (2, 3)), lambda x: x[1:4:2, 0:5:3], (4, 5)),
    "slice-plain": (lambda x: ops.slice(x, (0, 1), (4, 3)), lambda x: x[:, 1:3], (4, 5)),
    "slice-empty": (lambda x: ops.slice(x, (2, 1), (2, 3), (3, 1)), lambda x: x[2:2, 1:3], (4, 5)),
    "slice-scalar": (lambda x: ops.slice(x, (), ()), lambda x: x, ()),
    "pad": (
        lambda x: ops.pad(x, 0.0, [(1, 2, 0), (0, 1, 0)]),
        lambda x: edges(x, (1, 0), (2, 1)), (2, 3)),
    "pad-interior": (
        lambda x: ops.pad(x, 0, [(0, 0, 2), (1, 0, 1)]),
        lambda x: edges(spread(x, (2, 1)), (0, 1), (0, 0)), (3, 2)),
    "pad-negative": (
        lambda x: ops.pad(x, 0, [(-1, 2, 0), (3, -2, 0)]),
        lambda x: edges(x, (-1, 3), (2, -2)), (4, 3)),
    "pad-negative-interior": (
        lambda x: ops.pad(x, 0, [(-2, -3, 2), (-1, -1, 1)]),
        lambda x: edges(spread(x, (2, 1)), (-2, -1), (-3, -1)), (4, 3)),
    "pad-all-away": (
        lambda x: ops.pad(x, 0, [(-3, 0, 0), (-5, 7, 1)]),
        lambda x: np.zeros((0, 7), x.dtype), (3, 3)),
    "pad-empty": (
        lambda x: ops.pad(x, 0, [(1, 1, 3)]), lambda x: np.zeros(2, x.dtype), (0,)),
    "split": (
        lambda x: ops.split(x, (1, 0, 3), 1)[2], lambda x: x[:, 1:], (2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", ml_dtypes.bfloat16])
def test_values(name, dtype):
    fun, reference, shape = LINEAR[name]
    x = counted(*shape, dtype=dtype)
    equal(fun(Array(x)), reference(x))


@pytest.mark.parametrize("name", LINEAR)
def test_rules(name, rng):
    fun, _, shape = LINEAR[name]
    check_derivatives(fun, [rng.standard_normal(shape)], rng, order=1)
    check_transpose(fun, [shape], rng)
    check_vmap(fun, [rng.standard_normal(shape)], rng)
    check_dims(fun, [counted(*shape)])


@pytest.mark.parametrize("n", range(6))
@pytest.mark.parametrize("low", range(-4, 4))
@pytest.mark.parametrize("interior", range(3))
def test_pad_everywhere(n, low, interior, rng):
    x = rng.standard_normal(n)
    wide = spread(x, (interior,), 7)
    for high in range(-4, 4):
        config = [(low, high, interior)]
        if len(wide) + low + high < 0:
            with pytest.raises(ShapeError, match="takes more than"):
                ops.pad(x, 7.0, config)
            continue
        # All padding first, so that what is taken away may be padding too.
        around = np.pad(wide, 9, constant_values=7)
        equal(ops.pad(x, 7.0, config), around[9 - low : 9 + len(wide) + high])


CONFIGS = [[(1, 2, 0), (0, 1, 0)], [(-1, 2, 1), (1, -1, 0)], [(0, 0, 0), (0, 0, 0)]]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_pad_with_a_traced_value(config, rng):
    fun = lambda x, v: ops.pad(x, v, config)
    args = [rng.standard_normal((3, 2)), rng.standard_normal(())]
    check_derivatives(fun, args, rng)
    check_transpose(fun, [(3, 2), ()], rng)
    check_vmap(fun, args, rng)
    check_dims(fun, args)


def test_pad_does_not_mix_the_elements_into_the_value_s_derivative():
    ct = Array(np.array([2.0, np.inf]))
    (back,) = vjp(lambda v: ops.pad(np.zeros(1), v, [(1, 0, 0)]), [Array(np.zeros(()))], [ct])
    equal(back, np.array(2.0))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("sizes", [(2,), (2, 3), (0, 2, 1), (0,)])
def test_concatenate(axis, sizes, rng):
    shapes = [(n, 4) if axis == 0 else (4, n) for n in sizes]
    args = [rng.standard_normal(s) for s in shapes]
    fun = lambda *xs: ops.concatenate(xs, axis)
    equal(fun(*args), np.concatenate(args, axis))
    check_derivatives(fun, args, rng, order=1)
    check_transpose(fun, shapes, rng)
    check_vmap(fun, args, rng)
    check_dims(fun, args)


def test_concatenate_where_some_operands_have_no_tangent(rng):
    x = rng.standard_normal(3)
    out = jvp(lambda v: ops.concatenate([x, v], 0), [Array(x)], [Array(x)])
    equal(out[0], np.concatenate([np.zeros(3), x]))


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8", "bfloat16", "int4", "complex64"])
def test_iota(dtype):
    assert ops.iota(dtype, 5).dtype.name == dtype
    np.testing.assert_array_equal(np.asarray(ops.iota(dtype, 5)).astype(complex), range(5))
    expected = np.broadcast_to(np.arange(3)[:, None], (2, 3, 4))
    got = ops.broadcasted_iota(dtype, (2, 3, 4), -2)
    np.testing.assert_array_equal(np.asarray(got).astype(complex), expected)
    assert ops.iota(dtype, 0).shape == (0,)
    check_dims(lambda: ops.broadcasted_iota(dtype, (2, 3), 0), [])


def test_split_gives_every_part(rng):
    x = rng.standard_normal((2, 6))
    parts = ops.split(x, (1, 2, 3), -1)
    for part, expected in zip(parts, np.split(x, [1, 3], 1), strict=True):
        equal(part, expected)


@pytest.mark.parametrize(
    ("old", "new", "mapping"),
    [
        ((2, 3), (2, 3), "a0 a1 -> a0 a1"),
        ((2, 3, 4), (2, 12), "a0 . . -> a0 ."),
        ((2, 3, 4), (6, 4), ". . a1 -> . a1"),
        ((2, 1, 3), (1, 2, 3), "a1 . a2 -> . a1 a2"),
        ((6, 5), (3, 2, 5), ". a2 -> . . a2"),
        ((2, 3), (3, 2), ". . -> . ."),
        ((0, 3), (3, 0), ". . -> . ."),
        ((), (1,), " -> ."),
    ],
)
def test_reshape_names_the_axes_that_stay(old, new, mapping):
    got = ops.reshape_p.dims(ShapedArray(old, "float32"), new_sizes=new)
    assert dims_.parse(got) == dims_.parse(mapping)


def test_weak_types_last():
    weak = Array(np.float32(2), weak_type=True)
    assert ops.reshape(weak, (1,)).weak_type
    assert ops.pad(ops.reshape(weak, (1,)), weak, [(1, 0, 0)]).weak_type
    strong = Array(np.ones(1, np.float32))
    assert not ops.concatenate([ops.reshape(weak, (1,)), strong], 0).weak_type


x23 = Array(counted(2, 3))


@pytest.mark.parametrize(
    ("fun", "error", "words"),
    [
        (lambda: ops.reshape(x23, (4,)), ShapeError, r"reshape: operand f32\[2,3\] has 6 .*\(4,\)"),
        (lambda: ops.reshape(x23, (-1, 4)), ShapeError, "can't infer -1"),
        (lambda: ops.reshape(x23, (-1, -1)), ShapeError, "can't infer -1"),
        (lambda: ops.reshape(x23, (-2, -3)), ShapeError, "reshape"),
        (lambda: ops.reshape(x23, (2.0, 3)), TypeError, "new_sizes must be integers"),
        (lambda: ops.reshape(x23, 6), TypeError, "reshape: new_sizes must be integers, got 6"),
        (lambda: ops.squeeze(x23, (0,)), ShapeError, r"squeeze: axes \(0,\) of f32\[2,3\]"),
        (lambda: ops.expand_dims(x23, (4,)), ShapeError, "expand_dims: axis 4 is out of range"),
        (lambda: ops.expand_dims(x23, (0, 0)), ShapeError, "not distinct"),
        (lambda: ops.collapse(x23, 2, 1), ShapeError, "collapse"),
        (lambda: ops.broadcast_in_dim(x23, (3, 3), (0, 1)), ShapeError, "does not fit"),
        (lambda: ops.broadcast_in_dim(x23, (2, 3), (-2, 1)), ShapeError, "negative"),
        (lambda: ops.transpose(x23, (0, 0)), ShapeError, "no permutation"),
        (lambda: ops.rev(x23, (2,)), ShapeError, "rev: axis 2"),
        (lambda: ops.slice(x23, (0, 0), (3, 3)), ShapeError, r"slice: .*f32\[2,3\].*\(3, 3\)"),
        (lambda: ops.slice(x23, (0,), (2,)), ShapeError, "one entry for each axis"),
        (lambda: ops.slice(x23, (0, 0), (2, 3), (0, 1)), ShapeError, "stride >= 1"),
        (lambda: ops.pad(x23, x23, [(0, 0, 0)] * 2), ShapeError, "must be a scalar"),
        (lambda: ops.pad(x23, np.int32(0), [(0, 0, 0)] * 2), ShapeError, "dtype float32"),
        (lambda: ops.pad(x23, 0, [(0, 0, 0)]), ShapeError, "each axis"),
        (lambda: ops.pad(x23, 0, [(0, 0), (0, 0)]), ShapeError, r"\(low, high, interior\)"),
        (lambda: ops.pad(x23, 0, [(0, 0, -1)] * 2), ShapeError, "interior >= 0"),
        (lambda: ops.concatenate([], 0), ValueError, "at least one"),
        (lambda: ops.concatenate([x23, Array(counted(2, 4))], 0), ShapeError, "all axes but 0"),
        (lambda: ops.concatenate([x23, Array(counted(2, 3, dtype="int8"))], 0), DTypeError, "i8"),
        (lambda: ops.concatenate([x23, x23], 2), ShapeError, "axis 2 is out of range"),
        (lambda: ops.split(x23, (1, 1), 1), ShapeError, r"split: sizes \(1, 1\)"),
        (lambda: ops.iota("bool", 3), DTypeError, "got bool"),
        (lambda: ops.broadcasted_iota("int8", (2,), 1), ShapeError, "iota: axis 1"),
    ],
)  # fmt: skip
def test_errors(fun, error, words):
    with pytest.raises(error, match=words):
        fun()
