"""Arithmetic against NumPy in every dtype, and its rules against finite differences."""

import fractions
import math

import ml_dtypes
import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.elementwise import arithmetic as ops
from funcgrad.ops.elementwise.convert import clamp
from funcgrad.ops.elementwise.rounding import RoundingMethod, round
from funcgrad.transforms.jit.make_jaxpr import make_jaxpr
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, jvp, vjp

NUMBERS = [d for d in dtypes.ALL if d != dtypes.BOOL]
INTEGERS = [d for d in NUMBERS if dtypes.is_integer(d)]
WIDE = {"i": np.int64, "c": np.complex128}
C = np.array([1 + 2j, -0.5 + 0.3j, 2 - 1j])
X, Y = np.array([0.7, -1.3, 2.1]), np.array([1.9, 0.4, -0.8])
POSITIVE = np.array([0.3, 1.0, 4.2])

# op, samples: derivatives to order 2, batching and axis mappings are checked on each.
SMOOTH = [
    (ops.neg, (X,)), (ops.neg, (C,)),
    (ops.sub, (X, Y)), (ops.mul, (X, Y)), (ops.mul, (C, C[::-1])),
    (ops.div, (X, Y)), (ops.div, (C, C[::-1])), (ops.rem, (np.array([5.3, -7.1, 4.4]), Y)),
    (ops.abs, (X,)), (ops.abs, (C,)), (ops.sign, (X,)), (ops.sign, (C,)),
    (ops.max, (X, Y)), (ops.min, (X, Y)),
    (lambda x: ops.integer_pow(x, 3), (X,)), (lambda x: ops.integer_pow(x, -2), (C,)),
    (lambda x: ops.integer_pow(x, 1), (X,)), (lambda x: ops.integer_pow(x, 0), (X,)),
    (ops.reciprocal, (X,)), (ops.square, (X,)), (ops.square, (C,)),
    (ops.sqrt, (POSITIVE,)), (ops.sqrt, (C,)), (ops.rsqrt, (POSITIVE,)), (ops.rsqrt, (C,)),
    (ops.cbrt, (X,)),
    (ops.real, (C,)), (ops.imag, (C,)), (ops.conj, (C,)), (ops.conj, (X,)),
    (ops.complex, (X, Y)),
]  # fmt: skip


def name(value):
    return getattr(value, "name", None)


@pytest.mark.parametrize(("op", "args"), SMOOTH, ids=name)
def test_rules(op, args, rng):
    check_derivatives(op, args, rng)
    check_vmap(op, args, rng)
    check_dims(op, args)


@pytest.mark.parametrize("op", [ops.mul, ops.div, ops.sub, ops.max, ops.complex], ids=name)
def test_a_scalar_goes_with_any_shape(op, rng):
    scalar = np.array(1.7)
    for args in ((scalar, X), (X, scalar), (scalar, np.array(0.6))):
        check_derivatives(op, args, rng)
        check_vmap(op, args, rng)
        check_dims(op, args)


@pytest.mark.parametrize(
    ("fun", "shapes"),
    [
        (ops.neg, [(3,)]),
        (ops.sub, [(3,), (3,)]),
        (ops.sub, [(), (3,)]),
        (lambda x: ops.mul(x, np.array([2.0, 3.0, 4.0])), [(3,)]),
        (lambda x: ops.mul(np.array([2.0, 3.0, 4.0]), x), [()]),
        (lambda x: ops.div(x, np.array([2.0, 3.0, 4.0])), [()]),
        (lambda x, y: ops.imag(ops.conj(ops.complex(x, y))), [(3,), (3,)]),
        (lambda x: ops.real(ops.conj(x)), [(3,)]),
    ],
)
def test_transposes(fun, shapes, rng):
    check_transpose(fun, shapes, rng)


def samples(rng, dtype, n=2):
    if dtypes.is_integer(dtype):
        info = dtypes.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        return [rng.integers(low, high, 40, endpoint=True, dtype=np.int64 if low else np.uint64)
                .astype(dtype) for _ in range(n)]  # fmt: skip
    xs = [rng.standard_normal(40) * 3 for _ in range(n)]
    if dtypes.is_complex(dtype):
        xs = [x + 1j * rng.standard_normal(40) for x in xs]
    return [x.astype(dtype) for x in xs]


def compare(got, expected, dtype):
    assert got.dtype == dtype
    got = np.asarray(got)
    if dtypes.is_integer(dtype):
        np.testing.assert_array_equal(got, expected.astype(dtype))
        return
    wide = WIDE.get(dtype.kind, np.float64)
    tol = float(dtypes.finfo(dtype).eps) * 2
    np.testing.assert_allclose(got.astype(wide), expected.astype(dtype).astype(wide), tol)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("op", "reference"),
    [(ops.sub, np.subtract), (ops.mul, np.multiply), (ops.max, np.maximum), (ops.min, np.minimum)],
    ids=name,
)
def test_two_operands_as_numpy(op, reference, dtype, rng):
    x, y = samples(rng, dtype)
    wide = np.int64 if dtypes.is_integer(dtype) else WIDE.get(dtype.kind, np.float64)
    if dtype.itemsize == 8:
        wide = dtype
    compare(op(x, y), reference(x.astype(wide), y.astype(wide)), dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize(
    ("op", "reference"),
    [(ops.neg, np.negative), (ops.square, np.square), (ops.sign, np.sign)],
    ids=name,
)
def test_one_operand_as_numpy(op, reference, dtype, rng):
    (x,) = samples(rng, dtype, 1)
    wide = np.int64 if dtypes.is_integer(dtype) else WIDE.get(dtype.kind, np.float64)
    if dtype.itemsize == 8:
        wide = dtype
    compare(op(x), reference(x.astype(wide)), dtype)


@pytest.mark.parametrize("dtype", [d for d in NUMBERS if dtypes.is_inexact(d)], ids=str)
@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (ops.sqrt, np.sqrt),
        (ops.rsqrt, lambda x: 1 / np.sqrt(x)),
        (lambda x: ops.integer_pow(x, 5), lambda x: x**5),
        (lambda x: ops.integer_pow(x, -3), lambda x: x**-3),
    ],
)
def test_roots_and_powers_are_rounded_once(op, reference, dtype, rng):
    x = np.abs(samples(rng, dtype, 1)[0].astype(WIDE.get(dtype.kind, np.float64)))
    x = np.minimum(x, 2.0).astype(dtype) + dtype.type(0.5)
    wide = x.astype(WIDE.get(dtype.kind, np.float64))
    got = op(x)
    if dtype.itemsize <= 2:
        assert got.dtype == dtype
        expected = reference(x.astype(np.float32)).astype(dtype)
        np.testing.assert_array_equal(np.asarray(got).view(f"u{dtype.itemsize}"),
                                      expected.view(f"u{dtype.itemsize}"))  # fmt: skip
    else:
        compare(got, reference(wide), dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_divide_towards_zero(dtype, rng):
    info = dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    x, y = samples(rng, dtype)
    y[:8] = np.array([0, 0, 1, 1, 3, 3, high, high]).astype(dtype)
    x[:8] = np.array([low, high] * 4).astype(dtype)
    if low:
        y[8:10] = np.array([-1, -1]).astype(dtype)
        x[8:10] = np.array([low, high]).astype(dtype)
    q, r = np.asarray(ops.div(x, y)), np.asarray(ops.rem(x, y))
    for a, b, got_q, got_r in zip(x.tolist(), y.tolist(), q.tolist(), r.tolist(), strict=True):
        a, b, got_q, got_r = int(a), int(b), int(got_q), int(got_r)
        if b == 0:
            assert (got_q, got_r) == ((-1 if low else high), a)
            continue
        exact = math.trunc(fractions.Fraction(a, b))
        assert got_r == a - exact * b
        assert (got_q - exact) % (high - low + 1) == 0
        assert low <= got_q <= high


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_mulhi(dtype, rng):
    x, y = samples(rng, dtype)
    info = dtypes.iinfo(dtype)
    exact = [(int(a) * int(b)) >> info.bits for a, b in zip(x, y, strict=True)]
    assert [int(v) for v in np.asarray(ops.mulhi(x, y))] == exact


def test_float_remainder_has_the_sign_of_the_dividend():
    got = ops.rem(np.array([7.0, -7.0, 7.0, 5.0, np.inf]), np.array([3.0, 3.0, -3.0, np.inf, 2.0]))
    np.testing.assert_array_equal(np.asarray(got), [1, -1, 1, 5, np.nan])


def test_remainder_counts_whole_divisors_in_its_derivative():
    x, y = np.array([7.0, -7.0, 1e15]), np.array([2.0, 2.0, 3.0])
    (got,) = jvp(lambda y: ops.rem(x, y), [Array(y)], [Array(np.ones(3))])
    np.testing.assert_array_equal(np.asarray(got), [-3, 3, -333333333333333])


def test_nan_passes_through_max_and_min():
    x, y = np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])
    assert np.isnan(np.asarray(ops.max(x, y))).all()
    assert np.isnan(np.asarray(ops.min(x, y))).all()
    np.testing.assert_array_equal(np.asarray(ops.max(np.array([True, False]), False)), [1, 0])


@pytest.mark.parametrize("op", [ops.max, ops.min], ids=name)
def test_equal_operands_share_the_derivative(op):
    x = np.array([1.0, 2.0])
    left, right = vjp(op, [Array(x), Array(x)], [Array(np.ones(2))])
    assert np.asarray(left).tolist() == np.asarray(right).tolist() == [0.5, 0.5]


def slope(op, at, dtype=np.float64):
    (t,) = jvp(op, [Array(np.asarray(at, dtype))], [Array(np.ones((), dtype))])
    return np.asarray(t).item()


def test_derivatives_at_special_points():
    assert slope(ops.abs, 0.0) == 0
    assert slope(ops.abs, 0j, complex) == 0
    assert slope(ops.sqrt, 0.0) == math.inf
    assert slope(ops.cbrt, 0.0) == math.inf
    assert slope(ops.rsqrt, 0.0) == -math.inf
    assert slope(lambda x: ops.integer_pow(x, 2), 0.0) == 0
    assert slope(lambda x: ops.integer_pow(x, 0), 0.0) == 0
    assert slope(ops.sign, 0.0) == 0
    assert slope(ops.sign, 0j, complex) == 0


def test_sign_keeps_signed_zeros_and_nan():
    got = np.asarray(ops.sign(np.array([-0.0, 0.0, np.nan, -2.0, np.inf])))
    np.testing.assert_array_equal(got, [0, 0, np.nan, -1, 1])
    assert np.signbit(got[:2]).tolist() == [True, False]


def test_complex_numbers_with_infinite_parts():
    z = np.asarray(ops.complex(np.array([1.0, 2.0]), np.array([np.inf, np.nan])))
    assert z.dtype == np.complex128
    np.testing.assert_array_equal(z.real, [1, 2])
    np.testing.assert_array_equal(z.imag, [np.inf, np.nan])
    assert ops.complex(np.float32(1), np.zeros(3, np.float32)).shape == (3,)
    assert ops.conj(np.float32(2)).dtype == np.complex64
    assert ops.abs(np.complex64(3 + 4j)).dtype == np.float32


def test_integer_powers_wrap():
    assert ops.integer_pow(np.int8(3), 5).item() == 3**5 - 256
    assert ops.integer_pow(np.int32(0), 0).item() == 1
    with pytest.raises(DTypeError, match="integers have no negative powers"):
        ops.integer_pow(np.int32(2), -1)
    with pytest.raises(TypeError):
        ops.integer_pow(2.0, 0.5)


def test_types():
    weak = ops.mul(2.0, 3.0)
    with pytest.raises(DTypeError, match="mul: .*one dtype, got the numbers 2.0, 3"):
        ops.mul(2.0, 3)
    assert weak.weak_type
    assert weak.dtype == np.float32
    strong = ops.mul(np.ones(2, ml_dtypes.bfloat16), 2.0)
    assert not strong.weak_type
    assert strong.dtype == ml_dtypes.bfloat16
    with pytest.raises(DTypeError, match="sub.*: need numbers, got bool"):
        ops.sub(True, False)
    with pytest.raises(DTypeError, match="mul: operands must have one dtype, got f64.*f32"):
        ops.mul(np.ones(2), np.ones(2, np.float32))
    with pytest.raises(ShapeError, match="mul: operands must have one shape"):
        ops.mul(np.ones(2), np.ones((1, 2)))
    with pytest.raises(DTypeError, match="sqrt.*: need floating-point or complex"):
        ops.sqrt(2)
    with pytest.raises(DTypeError, match="real.*: need complex"):
        ops.real(2.0)
    with pytest.raises(TypeError, match="neg: argument 0 must be an array"):
        ops.neg([1.0])
    for count in (0, 1, 3):
        with pytest.raises(TypeError, match=f"sub: needs 2 operands, got {count}"):
            make_jaxpr(ops.sub)(*[1.0] * count)
    with pytest.raises(TypeError, match="clamp: needs 3 operands, got 2"):
        clamp(1.0, 2.0)


def test_remainder_of_a_dtype_without_order_is_an_error():
    with pytest.raises(DTypeError, match="rem.*: need real numbers"):
        ops.rem(1j, 2j)


def test_round_is_used_as_remainder_needs_it():
    assert round(np.float64(2.5), RoundingMethod.TO_NEAREST_EVEN).item() == 2
