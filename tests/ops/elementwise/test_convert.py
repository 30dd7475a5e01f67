"""Casts, bitcasts, select, clamp, reduce_precision and identities."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.aval import Zero
from funcgrad.errors import DifferentiationError, DTypeError, ShapeError
from funcgrad.ops.elementwise import convert as ops
from funcgrad.transforms.autodiff.jvp import jvp_flat
from tests.ops.rules import (
    check_derivatives,
    check_dims,
    check_transpose,
    check_vmap,
    jvp,
    vjp,
    zero_tangent,
)

X = np.array([0.7, -1.3, 2.1])
C = np.array([1 + 2j, -0.5 + 0.3j, 2 - 1j])

# ---- convert_element_type


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_converts_to_every_other(dtype):
    x = np.array([0, 1, 1, 0]).astype(dtype)
    for new in dtypes.ALL:
        got = ops.convert_element_type(x, new)
        assert got.dtype == new
        assert np.asarray(got).astype(complex).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("new", [d for d in dtypes.ALL if dtypes.is_integer(d)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_saturate_as_integers(dtype, new):
    info = dtypes.iinfo(new)
    low, high = int(info.min), int(info.max)
    x = np.array([np.nan, np.inf, -np.inf, 2.7, -2.7, -0.4]).astype(dtypes.canonical(dtype))
    got = np.asarray(ops.convert_element_type(x, new)).tolist()
    assert got == [0, high, low, 2, -2 if low else 0, 0]
    limits = np.array([float(high), float(high) * 2, float(low) * 2, float(high) / 2])
    got = ops.convert_element_type(limits.astype("float64"), new)
    assert np.asarray(got).tolist() == [high, high, low, int(float(high) / 2)]


def test_conversions():
    assert ops.convert_element_type(0.1, "float64").item() == 0.1
    assert ops.convert_element_type(2**40, "int64").item() == 2**40
    assert ops.convert_element_type(np.complex64(2 - 3j), "int32").item() == 2
    assert ops.convert_element_type(np.complex64(3j), bool).item() is True
    assert ops.convert_element_type(300, "int8").item() == 44
    assert np.isinf(ops.convert_element_type(np.float32(1e10), "float16").item())
    weak = ops.convert_element_type(Array(np.array(1.0, np.float32), True), "float32")
    assert not weak.weak_type
    x = Array(X)
    assert ops.convert_element_type(x, "float64") is x
    with pytest.raises(DTypeError, match="'number' is not a dtype"):
        ops.convert_element_type(x, "number")


@pytest.mark.parametrize(
    ("x", "new"),
    [(X, "complex128"), (C, "float64"), (X, "float64"), (C, "complex128")],
)
def test_conversions_are_linear(x, new, rng):
    fun = lambda x: ops.convert_element_type(x, new)
    check_derivatives(fun, [x], rng)
    check_vmap(fun, [x], rng)
    check_dims(fun, [x])


def test_tangents_convert_with_their_values():
    x = Array(X)
    (t,) = jvp(lambda x: ops.convert_element_type(x, "bfloat16"), [x], [x])
    assert t.dtype == ml_dtypes.bfloat16
    (back,) = vjp(lambda x: ops.convert_element_type(x, "float32"), [x], [np.ones(3, np.float32)])
    assert back.dtype == np.float64
    for new in ("int32", "bool"):
        _, tangents = jvp_flat(lambda x, n=new: [ops.convert_element_type(x, n)], [x], [x])
        assert type(tangents[0]) is Zero
        assert tangents[0].aval.dtype == dtypes.float0


# ---- bitcasts


@pytest.mark.parametrize(
    ("old", "new"),
    [("float32", "uint32"), ("bfloat16", "int16"), ("float64", "int64"), ("int8", "float8_e5m2")],
)
def test_bitcasts_of_one_width(old, new, rng):
    x = rng.integers(1, 100, (2, 3)).astype(dtypes.canonical(old))
    got = ops.bitcast_convert_type(x, new)
    np.testing.assert_array_equal(np.asarray(got), x.view(dtypes.canonical(new)))
    back = ops.bitcast_convert_type(got, old)
    np.testing.assert_array_equal(np.asarray(back), x)
    if dtypes.is_integer(dtypes.canonical(new)):
        check_vmap(lambda x: ops.bitcast_convert_type(x, new), [x], rng)
        check_dims(lambda x: ops.bitcast_convert_type(x, new), [x])


def test_bitcasts_between_widths(rng):
    x = rng.standard_normal((2, 3))
    narrow = ops.bitcast_convert_type(x, "uint16")
    assert narrow.shape == (2, 3, 4)
    np.testing.assert_array_equal(np.asarray(narrow), x.view(np.uint16).reshape(2, 3, 4))
    wide = ops.bitcast_convert_type(narrow, "float64")
    np.testing.assert_array_equal(np.asarray(wide), x)
    assert ops.bitcast_convert_type(np.float32(1), "uint8").shape == (4,)
    for fun, arg in [
        (lambda x: ops.bitcast_convert_type(x, "uint16"), x),
        (lambda x: ops.bitcast_convert_type(x, "int64"), np.asarray(narrow)),
    ]:
        check_vmap(fun, [arg], rng)
        check_dims(fun, [arg])
    _, tangents = jvp_flat(lambda x: [ops.bitcast_convert_type(x, "float32")], [Array(x)], [x])
    assert type(tangents[0]) is Zero


def test_bitcasts_that_are_not_defined():
    for x, new in [(np.True_, "uint8"), (np.complex64(1), "uint32"), (np.int32(1), "bool"),
                   (np.int32(1), "int4")]:  # fmt: skip
        with pytest.raises(DTypeError, match="bitcast_convert_type: no bitcast of"):
            ops.bitcast_convert_type(x, new)
    with pytest.raises(ShapeError, match="needs a last axis of size 2"):
        ops.bitcast_convert_type(np.zeros((2, 3), np.int32), "int64")
    four = ops.bitcast_convert_type(np.array([-1, 3]).astype(ml_dtypes.int4), "uint4")
    assert np.asarray(four).tolist() == [15, 3]
    assert ops.bitcast_convert_type(np.True_, "bool").item() is True


# ---- select_n


def test_select():
    which = np.array([True, False, True])
    got = ops.select_n(which, X, -X)
    np.testing.assert_array_equal(np.asarray(got), np.where(which, -X, X))
    np.testing.assert_array_equal(np.asarray(ops.select(which, X, 0.0)), np.where(which, X, 0))
    assert ops.select_n(True, 1.0, 2.0).item() == 2
    assert ops.select_n(True, 1.0, 2.0).weak_type
    assert ops.select_n(0, X).shape == (3,)
    np.testing.assert_array_equal(np.asarray(ops.select_n(False, X, -X)), X)


def test_select_among_many_holds_the_selector_within_range():
    cases = [np.full(5, float(i)) for i in range(3)]
    got = ops.select_n(np.array([-7, 0, 1, 2, 9], np.int32), *cases)
    assert np.asarray(got).tolist() == [0, 0, 1, 2, 2]


SELECTORS = [
    (np.array([True, False, True]), 2),
    (np.array([2, 0, 1], np.int32), 3),
    (np.array(True), 2),
    (np.array(1, np.int32), 3),
]


@pytest.mark.parametrize(("which", "n"), SELECTORS)
@pytest.mark.parametrize("scalar", [False, True])
def test_select_rules(which, n, scalar, rng):
    cases = [X * (i + 1) for i in range(n)]
    if scalar:
        cases[0] = np.array(0.3)
    check_derivatives(lambda *xs: ops.select_n(which, *xs), cases, rng)
    check_transpose(lambda *xs: ops.select_n(which, *xs), [np.shape(c) for c in cases], rng)
    check_vmap(ops.select_n, [which, *cases], rng)
    check_dims(ops.select_n, [which, *cases])


def test_select_with_one_differentiated_case(rng):
    which = np.array([True, False, True])
    check_derivatives(lambda x: ops.select_n(which, x, 1.0), [X], rng)
    check_derivatives(lambda x: ops.select_n(which, np.zeros(3), x), [X], rng)
    ints = (which, np.arange(3), np.arange(3))
    _, tangent = ops.select_n_p.differentiate(ints, [zero_tangent(i) for i in ints], {})
    assert type(tangent) is Zero


def test_select_errors():
    with pytest.raises(TypeError, match="at least one case"):
        ops.select_n(True)
    with pytest.raises(DTypeError, match=r"selector of 2 cases.*got f64\[3\]"):
        ops.select_n(X, X, X)
    with pytest.raises(DTypeError, match="selector of 3 cases"):
        ops.select_n(True, X, X, X)
    with pytest.raises(DTypeError, match=r"cases must have one dtype, got f64\[3\], f32\[3\]"):
        ops.select_n(True, X, X.astype(np.float32))
    with pytest.raises(ShapeError, match="select_n"):
        ops.select_n(True, X, X[:2])


# ---- clamp


def test_clamp(rng):
    x = np.array([-2.0, -1.0, 0.3, 1.0, 5.0, np.nan])
    got = ops.clamp(-1.0, x, 1.0)
    np.testing.assert_array_equal(np.asarray(got), [-1, -1, 0.3, 1, 1, np.nan])
    assert ops.clamp(0, np.int8(-3), 9).dtype == np.int8
    low, high = X - 0.5, X + 0.4
    inner = np.array([0.8, -3.0, 7.0])
    check_derivatives(ops.clamp, [low, inner, high], rng)
    check_derivatives(ops.clamp, [np.array(-0.5), inner, np.array(1.0)], rng)
    check_vmap(ops.clamp, [np.array(-0.5), inner, high], rng)
    check_dims(ops.clamp, [np.array(-0.5), inner, high])
    (t,) = jvp(lambda x: ops.clamp(-1.0, x, 1.0), [Array(x)], [Array(np.ones(6))])
    assert np.asarray(t).tolist() == [0, 0, 1, 0, 0, 0]
    with pytest.raises(DTypeError, match="clamp.*: need real numbers"):
        ops.clamp(0j, 1j, 2j)


# ---- reduce_precision

FORMATS = [(8, 7, "bfloat16"), (5, 10, "float16"), (5, 2, "float8_e5m2"), (8, 23, "float32")]


@pytest.mark.parametrize(("exponent", "mantissa", "dtype"), FORMATS)
def test_reduce_precision_rounds_as_a_cast(exponent, mantissa, dtype, rng):
    scales = np.exp2(rng.integers(-12, 12, 500).astype(float))
    x = np.concatenate(
        [rng.standard_normal(500) * scales, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e9]]
    )
    # Just below the normal numbers a cast rounds by other steps.
    tiny = float(dtypes.finfo(dtype).smallest_normal)
    x = np.where((np.abs(x) < tiny) & (np.abs(x) > tiny / 2), 0, x).astype(np.float32)
    got = np.asarray(ops.reduce_precision(x, exponent, mantissa))
    expected = x.astype(dtypes.canonical(dtype)).astype(np.float32)
    np.testing.assert_array_equal(got, np.where(np.abs(x) < tiny, np.copysign(0, x), expected))
    assert np.signbit(got).tolist() == np.signbit(expected).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_reduce_precision_of_every_format(dtype):
    x = np.array([1.0, 1.25, 1.75, 3.1, -0.3, np.nan]).astype(dtypes.canonical(dtype))
    got = ops.reduce_precision(x, 5, 1)
    assert got.dtype == x.dtype
    expected = [1.0, 1.0, 2.0, 3.0, -0.25, np.nan]
    np.testing.assert_array_equal(np.asarray(got).astype(float), expected)


def test_reduce_precision_rules(rng):
    x = Array(np.array([1.1, 2.3]))
    (t,) = jvp(lambda x: ops.reduce_precision(x, 8, 2), [x], [x])
    assert np.asarray(t).tolist() == [1.0, 2.5]
    (c,) = vjp(lambda x: ops.reduce_precision(x, 8, 2), [x], [x])
    assert np.asarray(c).tolist() == [1.0, 2.5]
    check_vmap(lambda x: ops.reduce_precision(x, 8, 2), [x], rng)
    with pytest.raises(ValueError, match="exponent_bits ≥ 1"):
        ops.reduce_precision(x, 0, 2)
    with pytest.raises(DTypeError, match="reduce_precision.*: need float16"):
        ops.reduce_precision(1, 5, 2)


# ---- identities


def test_copy_has_memory_of_its_own(rng):
    x = Array(X)
    assert not np.shares_memory(ops.copy(x).value, x.value)
    check_derivatives(ops.copy, [X], rng)
    check_transpose(ops.copy, [(3,)], rng)
    check_vmap(ops.copy, [X], rng)


def test_stop_gradient():
    x = Array(X)
    _, tangents = jvp_flat(lambda x: [ops.stop_gradient(x)], [x], [x])
    assert type(tangents[0]) is Zero
    tree = ops.stop_gradient({"a": x, "b": (np.arange(3), 2.0)})
    np.testing.assert_array_equal(np.asarray(tree["a"]), X)
    assert tree["b"][1].item() == 2
    with pytest.raises(DifferentiationError, match="stop_gradient has no transpose rule"):
        ops.stop_gradient_p.transposed(x, [x], {})


def test_bitcasts_hold_for_every_pair_of_widths():
    names = ["uint8", "uint16", "uint32", "uint64"]
    x = np.arange(16, dtype=np.uint8)
    for a, b in itertools.permutations(names, 2):
        ratio = np.dtype(a).itemsize / np.dtype(b).itemsize
        shaped = x.view(a) if ratio > 1 else x.view(a).reshape(-1, int(1 / ratio))
        assert np.asarray(ops.bitcast_convert_type(shaped, b)).tobytes() == x.tobytes()
