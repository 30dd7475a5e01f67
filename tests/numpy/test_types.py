"""Questions about dtypes, shapes and values; constants; printing."""

import math

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import dtypes, lax
from funcgrad.core.settings import default_dtype
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.jit.jit import jit


def test_can_cast():
    assert fnp.can_cast("int8", "int16")
    assert not fnp.can_cast("float32", "int32")
    assert not fnp.can_cast(fnp.zeros(2, "float64"), "float32")
    assert fnp.can_cast("float64", "float32", "same_kind")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("bfloat16", fnp.floating, True), ("bfloat16", fnp.inexact, True), ("int4", int, True),
        ("int4", fnp.signedinteger, True), ("uint4", fnp.unsignedinteger, True),
        ("complex64", fnp.inexact, True), ("complex64", fnp.floating, False),
        ("bool", fnp.number, False), ("bool", bool, True), ("float32", "float32", True),
        ("float32", "float64", False), (fnp.floating, fnp.inexact, True), ("int8", float, False),
        (fnp.float8_e5m2, fnp.floating, True), (np.float32, np.generic, True),
        ("float32", object, False), ("int4", fnp.object_, False), ("int8", fnp.character, False),
    ],
)  # fmt: skip
def test_issubdtype(a, b, expected):
    assert fnp.issubdtype(a, b) is expected


@pytest.mark.parametrize(
    ("dtype", "kind", "expected"),
    [
        ("bool", "bool", True), ("int8", "signed integer", True), ("int8", "integral", True),
        ("uint8", "unsigned integer", True), ("bfloat16", "real floating", True),
        ("complex64", "numeric", True), ("bool", "numeric", False), ("int8", "int8", True),
        ("float32", ("integral", "real floating"), True), ("float32", (np.int8,), False),
    ],
)  # fmt: skip
def test_isdtype(dtype, kind, expected):
    assert fnp.isdtype(dtype, kind) is expected


def test_isdtype_of_no_kind():
    with pytest.raises(DTypeError, match="floating point"):
        fnp.isdtype("int8", "floating point")


def test_result_type():
    assert fnp.result_type("int8", "uint8") == np.int16
    assert fnp.result_type(fnp.zeros(2, "bfloat16"), 1.5) == dtypes.bfloat16
    assert fnp.result_type(np.arange(3), np.float32) == np.float32
    assert fnp.result_type(1, 2.0) == np.float32
    assert fnp.result_type(int, "int8") == np.int8
    assert fnp.promote_types("int32", float) == np.float32
    assert fnp.promote_types("int32", "float16") == np.float16
    with default_dtype("float64"):
        assert fnp.result_type(1.0) == np.float64
    with pytest.raises(TypeError, match="at least one"):
        fnp.result_type()


def test_limits():
    assert fnp.finfo("bfloat16").bits == 16
    assert fnp.finfo(fnp.complex64).dtype == np.float32
    assert int(fnp.iinfo("int4").max) == 7


def test_values():
    assert fnp.iscomplexobj(fnp.zeros(2, "complex64"))
    assert fnp.isrealobj(1.0)
    assert not fnp.isrealobj(1j)
    assert fnp.isscalar(1.0)
    assert fnp.isscalar(fnp.array(1.0))
    assert not fnp.isscalar([1])
    x = fnp.zeros((2, 3))
    assert (fnp.ndim(x), fnp.shape(x), fnp.size(x), fnp.size(x, -1)) == (2, (2, 3), 6, 3)
    assert fnp.shape(1.0) == ()
    assert fnp.iterable([])
    with pytest.raises(TypeError, match="shape: a is a list"):
        fnp.shape([1])


def test_broadcast_shapes():
    assert fnp.broadcast_shapes((2, 1), 3, ()) == (2, 3)
    assert fnp.broadcast_shapes() == ()
    with pytest.raises(ShapeError, match=r"broadcast_shapes: x of shape \(2,\) and y of"):
        fnp.broadcast_shapes((2,), (3,))


def test_constants():
    assert (fnp.pi, fnp.e, fnp.inf) == (math.pi, math.e, math.inf)
    assert math.isnan(fnp.nan)
    assert fnp.euler_gamma == np.euler_gamma
    assert fnp.newaxis is None
    assert fnp.bool is np.bool_


def test_printing():
    x = fnp.array([1.23456, 2.0])
    assert fnp.array_repr(x) == "Array([1.23456, 2.     ], dtype=float32)"
    with fnp.printoptions(precision=2):
        assert fnp.array_str(x) == "[1.23 2.  ]"


X = np.arange(1.0, 6.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda np, x: np.linspace(0, 1, 7, dtype="float64"),
        lambda np, x: np.linspace(0.1, 0.7, 7, endpoint=False, dtype="float64"),
        lambda np, x: np.linspace(0, 2**40 + 4, 5, dtype="int64"),
        lambda np, x: np.logspace(0.1, 1, 5, dtype="float64"),
        lambda np, x: np.geomspace(0.1, 7, 5, dtype="float64"),
        lambda np, x: np.pad(x, 1, constant_values=0.1),
        lambda np, x: np.pad(x, 2, mode="linear_ramp", end_values=0.1),
        lambda np, x: np.quantile(x, 0.1),
        lambda np, x: np.nanquantile(x, 0.1),
        lambda np, x: np.percentile(x, 33),
        lambda np, x: np.gradient(x, 0.1),
        lambda np, x: np.trapezoid(x, dx=0.1),
        lambda np, x: np.interp(x, x[1:3], x[1:3], left=0.1, right=0.2),
        lambda np, x: np.interp(x, x[:3] / 4, x[:3], period=1.1),
        lambda np, x: np.sum(x, initial=0.1),
        lambda np, x: np.max(x, initial=9.1),
        lambda np, x: np.nan_to_num(x / 0 * 0, nan=0.1),
        lambda np, x: np.insert(x, 1, 0.1),
        lambda np, x: np.ediff1d(x, to_end=0.1, to_begin=0.3),
        lambda np, x: np.piecewise(x, [x > 2], [0.1, 0.2]),
        lambda np, x: np.where(x > 2, x, 0.1),
        lambda np, x: np.select([x > 2], [x], 0.1),
        lambda np, x: np.clip(x, 1.1, 2.3),
        lambda np, x: np.full_like(x, 0.1),
        lambda np, x: np.unwrap(x, period=1.3),
        lambda np, x: np.cov(x, x * x, ddof=1),
        lambda np, x: np.append(x, 0.1),
        lambda np, x: np.histogram(x, bins=3, range=(0.1, 3.7))[1],
        lambda np, x: np.stack([x[0], 0.1]),
    ],
)
def test_a_python_float_keeps_its_precision_beside_float64(call):
    got = call(fnp, fnp.asarray(X))
    want = call(np, X)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_types_of_numbers():
    assert [d(1).dtype.name for d in (fnp.int_, fnp.uint, fnp.float_, fnp.complex_)] == [
        "int32", "uint32", "float32", "complex64",
    ]  # fmt: skip


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1,), ()])
def test_sizes(axis):
    shape = (2, 3, 4)
    sizes = shape if axis is None else np.take(shape, axis)
    assert fnp.size(fnp.zeros(shape), axis) == np.prod(sizes)


def test_texts_by_options():
    x = np.array([1e-9, 1.23456, 2.0] * 9)
    a = fnp.array(x)
    for options in ({"precision": 2}, {"max_line_width": 30}, {"suppress_small": True}):
        assert fnp.array_str(a, **options) == np.array_str(x, **options)
        assert fnp.array_repr(a, **options) != fnp.array_repr(a)
    assert fnp.array_repr(a) == repr(a)


def test_lists_are_asked_for_kinds_and_equality():
    assert jit(lambda x: [fnp.iscomplexobj([1.0, x])] and x)(1j) == 1j
    assert fnp.iscomplexobj([1.0, 1j])
    assert not fnp.iscomplexobj([1.0, 2])
    assert fnp.array_equal([1, 2], fnp.array([1, 2]))
    assert not fnp.array_equiv([1, 2], (1, 3))


def test_dtypes_of_types_and_names():
    assert [lax.dtype(x) for x in (float, "int8", np.int64, 1j, fnp.ones(2, "bfloat16"))] == [
        np.dtype(d) for d in (np.float32, np.int8, np.int64, np.complex64, dtypes.bfloat16)
    ]
