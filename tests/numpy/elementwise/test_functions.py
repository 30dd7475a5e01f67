"""Functions of one and two numbers against NumPy, for every dtype they take, and their errors."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import dtypes
from funcgrad.core.array import Array
from funcgrad.core.settings import default_dtype
from funcgrad.errors import DTypeError, ShapeError, TypePromotionError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy

NAN, INF = np.nan, np.inf
EDGE = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.7, 1e-4, 1e4, INF, -INF, NAN])
INTS = np.array([0, 1, -1, 2, 3, -7, 100], np.int32)
TOLERANCE = {np.dtype("float32"): 3e-6, np.dtype("float64"): 1e-12, np.dtype("float16"): 2e-3,
             np.dtype("complex64"): 1e-5, np.dtype("complex128"): 1e-12}  # fmt: skip

# ---- one operand

UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "sin", "cos",
    "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
    "arctanh", "degrees", "radians", "deg2rad", "rad2deg", "sinc", "fabs", "sign", "square",
    "reciprocal", "negative", "positive", "absolute", "floor", "ceil", "trunc", "fix", "rint",
    "signbit", "isfinite", "isinf", "isnan", "isposinf", "isneginf", "logical_not",
    "nan_to_num", "spacing", "angle", "real", "imag", "conjugate", "isreal", "iscomplex",
    "modf", "frexp",
]  # fmt: skip
COMPLEX = [
    "exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "arcsin",
    "arctan", "sinh", "cosh", "tanh", "arcsinh", "square", "reciprocal", "negative", "absolute",
    "sign", "isfinite", "isinf", "isnan", "angle", "real", "imag", "conj", "rint", "isreal",
    "iscomplex", "nan_to_num", "logical_not", "sinc",
]  # fmt: skip
INTEGERS = [
    "exp", "sqrt", "log1p", "sin", "square", "negative", "absolute", "sign", "floor", "ceil",
    "trunc", "rint", "bitwise_not", "bitwise_count", "signbit", "logical_not", "isfinite",
    "isnan", "reciprocal",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    x = EDGE.astype(dtype)
    if (name, dtype) == ("spacing", "float16"):
        x = x[x >= 0]  # NumPy's loses the sign here
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    rtol = TOLERANCE[x.dtype]
    run = lambda f: same(f(Array(x)), expected, rtol=rtol, atol=rtol, dtype=dtype != "float16")
    run(getattr(fnp, name))
    run(jit(getattr(fnp, name), backend="numpy"))


@pytest.mark.parametrize("name", COMPLEX)
def test_unary_of_complex_numbers(name):
    x = np.array([1 + 2j, -0.5 + 0.1j, 0.3, -2.5 - 3j, 2.0])
    same_as_numpy(getattr(fnp, name), getattr(np, name), x, rtol=1e-12)


@pytest.mark.parametrize("name", INTEGERS)
def test_unary_of_integers(name):
    x = INTS[:-1] if name == "exp" else INTS
    if name in ("log1p", "sqrt"):
        x = np.abs(x)
    if name == "reciprocal":
        x = x[1:]
        expected = (1 / x).astype(np.float32)
    else:
        expected = getattr(np, name)(x)
    wide = expected.dtype == np.float64
    same(getattr(fnp, name)(Array(x)), expected, rtol=1e-5, dtype=not wide)
    if wide:
        assert getattr(fnp, name)(Array(x)).dtype == np.float32


def test_i0():
    x = np.linspace(-3, 3, 7)
    same(fnp.i0(Array(x)), np.i0(x), rtol=1e-7)


@pytest.mark.parametrize("name", ["exp", "sin", "sqrt", "sinc", "degrees"])
def test_integers_become_the_default_float(name):
    assert getattr(fnp, name)(fnp.array([1, 2])).dtype == np.float32
    with default_dtype("float64"):
        assert getattr(fnp, name)(np.int8([1, 2])).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "base"), [("log2", 2.0), ("log10", 10.0)])
def test_logarithms_of_powers_are_exact(name, base, dtype):
    exponents = np.arange(-20, 20) if base == 2 else np.arange(0, 11)
    powers = (base**exponents).astype(dtype)
    assert np.asarray(getattr(fnp, name)(powers)).tolist() == exponents.tolist()
    slope = grad(getattr(fnp, name))(np.float64(base))
    np.testing.assert_allclose(slope, 1 / (base * np.log(base)))


def test_bfloat16_stays():
    x = fnp.array([1.0, 4.0], "bfloat16")
    assert fnp.sqrt(x).dtype == fnp.bfloat16
    assert np.asarray(fnp.sqrt(x) + 1).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("decimals", [0, 1, 2, -1, -2])
def test_round(decimals):
    x = np.array([0.5, 1.5, 2.675, -1.25, 123.456, -155.0, INF, NAN])
    same_as_numpy(lambda v: fnp.round(v, decimals), lambda v: np.round(v, decimals), x)
    n = np.array([0, 5, 15, 25, -15, 149, 151, -149], np.int64)
    same_as_numpy(lambda v: fnp.round(v, decimals), lambda v: np.round(v, decimals), n)


def test_round_keeps_numbers_that_overflow_when_scaled():
    assert float(fnp.round(np.float32(3e38), 2)) == np.float32(3e38)


@pytest.mark.parametrize("name", ["gcd", "lcm", "bitwise_and", "add", "maximum", "floor_divide"])
def test_integers_of_python_stay_weak(name):
    assert getattr(fnp, name)(4, 6).weak_type
    assert not getattr(fnp, name)(np.int32(4), 6).weak_type


# ---- two operands

BINARY = [
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "maximum",
    "minimum", "fmax", "fmin", "equal", "not_equal", "less", "less_equal", "greater",
    "greater_equal", "logical_and", "logical_or", "logical_xor", "arctan2", "hypot",
    "logaddexp", "logaddexp2", "copysign", "nextafter", "heaviside",
]  # fmt: skip

BINARY_OF_INTEGERS = [
    "add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "maximum", "minimum",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "less", "equal",
    "gcd", "lcm", "power",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    x, y = (v.ravel() for v in np.meshgrid(EDGE.astype(dtype), EDGE.astype(dtype)))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
        if name == "floor_divide":  # of infinite operands as the array API has it
            expected = np.where(np.isinf(x) | np.isinf(y), x / y, expected)
    for f in (getattr(fnp, name), jit(getattr(fnp, name), backend="numpy")):
        same(f(Array(x), Array(y)), expected, rtol=TOLERANCE[x.dtype], atol=1e-6)


def test_quotients_of_infinities_are_the_array_apis():
    x, y = np.array([INF, -INF, 2.0, -2.0, INF]), np.array([2.0, 2.0, -INF, INF, INF])
    got = np.asarray(fnp.floor_divide(x, y))
    np.testing.assert_array_equal(got, [INF, -INF, 0.0, 0.0, np.nan])
    assert np.signbit(got[1:4]).all()


@pytest.mark.parametrize(("name", "ends"), [("floor_divide", ()), ("remainder", (-INF, INF))])
def test_signs_of_zeros_are_pythons(name, ends):
    values = np.array([-6.0, -1.0, -0.0, 0.0, 1.0, 6.0])
    x, y = (v.ravel() for v in np.meshgrid(values, np.array([-3.0, 3.0, *ends])))
    got, want = np.asarray(getattr(fnp, name)(x, y)), getattr(np, name)(x, y)
    assert np.signbit(got).tolist() == np.signbit(want).tolist()


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int64"])
@pytest.mark.parametrize("name", BINARY_OF_INTEGERS)
def test_binary_of_integers(name, dtype):
    info = np.iinfo(dtype)
    x = np.array([0, 1, 5, 7, 12, 100, info.max, info.min], dtype)
    y = np.array([1, 2, 3, 5, 6, 7], dtype)
    x = x[:-1] if name == "lcm" else x
    x, y = (v.ravel() for v in np.meshgrid(x, y))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    for f in (getattr(fnp, name), jit(getattr(fnp, name), backend="numpy")):
        same(f(Array(x), Array(y)), expected)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "divmod"])
def test_division_rounds_down(name):
    x = np.array([7, -7, 7, -7, 6, -6], np.int32)
    y = np.array([2, 2, -2, -2, -3, 3], np.int32)
    same_as_numpy(getattr(fnp, name), getattr(np, name), x, y)


@pytest.mark.parametrize("name", ["add", "multiply", "logical_or", "maximum", "bitwise_xor"])
def test_binary_of_bools(name):
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    same_as_numpy(getattr(fnp, name), getattr(np, name), x, y)


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal", "equal"])
def test_complex_numbers_compare_real_parts_first(name):
    x = np.array([1 + 2j, 1 + 2j, 3 - 1j, 0.0])
    y = np.array([1 + 3j, 1 + 2j, 2 + 5j, 1j])
    same_as_numpy(getattr(fnp, name), getattr(np, name), x, y)


def test_integers_modulo_zero():
    x = np.array([7, -7, 0], np.int32)
    with np.errstate(all="ignore"):
        same_as_numpy(fnp.remainder, np.remainder, x, np.zeros_like(x))
        same_as_numpy(fnp.fmod, np.fmod, x, np.zeros_like(x))
    assert fnp.floor_divide(x, 0).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "left_shift", "power"])
def test_bools_count_as_integers(name):
    x = np.array([True, False])
    expected = getattr(np, name)(x.astype(np.int32), np.ones(2, np.int32))
    same(getattr(fnp, name)(x, np.ones(2, bool)), expected)
    assert fnp.square(x).dtype == np.int32
    assert fnp.bitwise_count(x).tolist() == [1, 0]


def test_numbers_beside_narrow_dtypes():
    for dtype in ("int8", "bfloat16", "float16"):
        x = fnp.array([3, -2, 1], dtype)
        for name in ("floor_divide", "remainder", "logaddexp", "hypot", "maximum", "heaviside"):
            wide = getattr(fnp, name)(2.0 if name == "hypot" else 2, x)
            assert wide.dtype == x.dtype or dtype == "int8"


@pytest.mark.parametrize(
    "name", ["sinc", "hypot", "logaddexp", "remainder", "heaviside", "imag", "zeros_like", "modf"]
)
def test_results_of_python_numbers_stay_weak(name):
    pair = name in ("hypot", "logaddexp", "remainder", "heaviside")
    out = getattr(fnp, name)(*((2.5, 3.5) if pair else (2.5,)))
    assert all(x.weak_type for x in (out if name == "modf" else [out]))


def test_weak_arrays_under_another_default():
    x = fnp.asarray(1.5)
    with default_dtype("float64"):
        assert float(grad(lambda v: fnp.sin(v) * fnp.sqrt(v) + fnp.sinc(v))(x)) < 2


def test_gcd_of_zeros_and_negative_numbers():
    x, y = np.array([0, 0, -12, 12]), np.array([0, 5, 18, -18])
    same_as_numpy(fnp.gcd, np.gcd, x, y)
    with pytest.raises(DTypeError, match="gcd.*: need integers"):
        fnp.gcd(1.5, 2)


# ---- powers


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, 2.0, -1.5, 10])
def test_power_by_a_number(exponent):
    x = np.array([0.5, 1.0, 2.0, 3.5])
    same_as_numpy(lambda v: fnp.power(v, exponent), lambda v: np.power(v, exponent), x)


def test_power_types():
    assert fnp.power(fnp.array([2, 3]), 2).dtype == np.int32
    assert fnp.power(fnp.array([2, 3]), 0.5).dtype == np.float32
    assert fnp.power(fnp.array([True, False]), 2).dtype == np.int32
    assert fnp.power(2, fnp.array([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert fnp.power(np.float32(2), fnp.array([1, 2])).tolist() == [2.0, 4.0]
    assert fnp.float_power(fnp.array([2]), -1).tolist() == [0.5]


def test_negative_power_of_integers():
    with pytest.raises(DTypeError, match="negative powers"):
        fnp.power(fnp.array([1, 2]), -1)


# ---- types, shapes and what is refused


@pytest.mark.parametrize(
    ("x", "y", "dtype", "weak"),
    [
        (fnp.array([1, 2], "int8"), 1, "int8", False),
        (fnp.array([1, 2], "int8"), 1.5, "float32", True),
        (fnp.array([1.0], "bfloat16"), 2.5, "bfloat16", False),
        (fnp.array([1.0], "float64"), 2.5, "float64", False),
        (fnp.array([1.0], "float16"), fnp.array([1], "int32"), "float16", False),
        (fnp.array([1.0], "bfloat16"), np.float32(1), "float32", False),
        (fnp.array([1.0], "float32"), np.array(1.0), "float64", False),
        (np.float64(1), 2.0, "float64", True),
        (np.int64(1), np.float64(1), "float64", True),
        (np.float32(1), np.float64(2), "float32", False),
        (fnp.array([True]), 1, "int32", True),
        (fnp.array([1], "uint8"), fnp.array([1], "int8"), "int16", False),
        (1, 2.0, "float32", True),
        (fnp.array([1.0], "float32"), 1j, "complex64", False),
    ],
)
def test_promotion(x, y, dtype, weak):
    dtype = np.dtype(dtypes.canonical(dtype))
    for out in (fnp.add(x, y), fnp.multiply(y, x)):
        assert (out.dtype, out.weak_type) == (dtype, weak)
    traced = jit(fnp.add, backend="numpy")(x, y)
    assert (traced.dtype, traced.weak_type) == (dtype, weak)


def test_float8_has_no_implicit_promotion():
    with pytest.raises(TypePromotionError, match="float8_e5m2"):
        fnp.add(fnp.ones(2, "float8_e5m2"), fnp.ones(2))


def test_scalars_are_rounded_once():
    x = fnp.array([0.1], "float64")
    assert float(fnp.subtract(x, 0.1)[0]) == 0.0


def test_broadcasting():
    same_as_numpy(fnp.add, np.add, np.ones((3, 1)), np.ones(4))
    same_as_numpy(fnp.add, np.add, np.ones((1,)), np.float64(2))
    same_as_numpy(fnp.hypot, np.hypot, np.ones((2, 1, 3)), np.ones((4, 1)))
    same_as_numpy(fnp.logaddexp, np.logaddexp, np.float64(1), np.ones((4, 1)))


def test_shapes_that_do_not_fit():
    match = r"add: x of shape \(3,\) and y of shape \(2, 4\).*sizes 3 and 4 at axis -1"
    with pytest.raises(ShapeError, match=match):
        fnp.add(fnp.ones(3), fnp.ones((2, 4)))


def test_lists_are_no_operands():
    with pytest.raises(TypeError, match=r"add: y is a list: \[1, 2\].*fnp.array"):
        fnp.add(fnp.ones(2), [1, 2])
    with pytest.raises(TypeError, match=r"exp: x is a list"):
        fnp.exp([1.0])


def test_numbers_that_do_not_fit():
    with pytest.raises(OverflowError, match="add: y is 300, which uint8 can't hold"):
        fnp.add(fnp.array([1], "uint8"), 300)


@pytest.mark.parametrize("name", ["floor", "heaviside", "hypot", "clip", "signbit", "i0"])
def test_complex_numbers_are_refused(name):
    args = (1j, 1.0) if name in ("heaviside", "hypot") else (1j,)
    with pytest.raises(DTypeError, match=f"{name}: need real numbers"):
        getattr(fnp, name)(*args)


# ---- others


def test_clip():
    x = np.array([-2.0, 0.5, 3.0, NAN])
    same_as_numpy(lambda v: fnp.clip(v, 0.0, 1.0), lambda v: np.clip(v, 0.0, 1.0), x)
    same_as_numpy(lambda v: fnp.clip(v, max=1.0), lambda v: np.clip(v, None, 1.0), x)
    same_as_numpy(lambda v: v.clip(-1), lambda v: v.clip(-1), x)


def test_nan_to_num_replacements():
    x = np.array([NAN, INF, -INF, 2.0])
    options = {"nan": 1.0, "posinf": 5.0, "neginf": -5.0}
    same_as_numpy(lambda v: fnp.nan_to_num(v, **options), lambda v: np.nan_to_num(v, **options), x)


def test_isclose():
    x = np.array([1.0, 1.0, INF, INF, NAN, 0.0, 1e-9])
    y = np.array([1.0 + 1e-6, 1.1, INF, -INF, NAN, 1e-9, 2e-9])
    same_as_numpy(fnp.isclose, np.isclose, x, y)
    for nan in (False, True):
        same_as_numpy(lambda a, b, n=nan: fnp.isclose(a, b, equal_nan=n),
                      lambda a, b, n=nan: np.isclose(a, b, equal_nan=n), x, y)  # fmt: skip
    same_as_numpy(fnp.isclose, np.isclose, np.array([10000000, 5]), np.array([10000001, 6]))
    assert bool(fnp.allclose(x[:1], y[:1]))
    assert not bool(fnp.allclose(x[:2], y[:2]))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if dtypes.is_integer(d)], ids=str)
def test_isclose_of_integers_counts_in_whole_numbers(dtype):
    """At both ends of the range: neither the difference nor |b| may wrap."""
    least, most = int(dtypes.iinfo(dtype).min), int(dtypes.iinfo(dtype).max)
    values = sorted({least, least + 1, least // 2, 0, 1, 2, most // 2, most - 1, most})
    a, b = (g.ravel() for g in np.meshgrid(np.array(values, object), np.array(values, object)))
    arrays = a.astype(dtype), b.astype(dtype)
    for rtol, atol in [(1e-5, 1e-8), (0.0, 1.0), (1.0, 0.0), (2.5, 0.0)]:
        far, size = np.abs(a - b).astype(float), np.abs(b).astype(float)
        want = (far <= atol + rtol * size).tolist()
        for isclose in (fnp.isclose, jit(fnp.isclose)):
            assert np.asarray(isclose(*arrays, rtol, atol)).tolist() == want


def test_array_equal():
    x = np.array([1.0, NAN])
    assert not bool(fnp.array_equal(x, x))
    assert bool(fnp.array_equal(x, x, equal_nan=True))
    assert not bool(fnp.array_equal(x, x[:1]))
    assert bool(fnp.array_equiv(np.ones((2, 2)), np.ones(2)))
    assert not bool(fnp.array_equiv(np.ones((2, 2)), np.ones(3)))


# ---- derivatives


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("log2", ([0.5, 2.0],)),
        ("log10", ([0.5, 2.0],)),
        ("sinc", ([-0.7, 0.0, 0.1, 0.3, 2.0],)),
        ("i0", ([-0.7, 0.4, 2.0],)),
        ("degrees", ([0.5],)),
        ("floor_divide", ([7.5, -7.5], [2.0, 2.0])),
        ("remainder", ([7.5, -7.5], [2.0, -2.3])),
        ("fmod", ([7.5, -7.5], [2.0, -2.3])),
        ("hypot", ([3.0, -1.0], [4.0, 1e-3])),
        ("logaddexp", ([1.0, -3.0, 700.0], [1.0, 2.0, -700.0])),
        ("logaddexp2", ([1.0, -3.0], [1.0, 2.0])),
        ("arctan2", ([1.0, -1.0], [2.0, -0.5])),
        ("copysign", ([1.0, -1.0], [2.0, 2.0])),
        ("fmax", ([1.0, 3.0], [2.0, -0.5])),
        ("true_divide", ([1.0, 3.0], [2.0, -0.5])),
        ("power", ([1.0, 3.0], [2.0, -0.5])),
        ("clip", ([-1.0, 0.5, 3.0], [0.0], [1.0])),
        ("nan_to_num", ([1.0, 2.0],)),
        ("round", ([1.2, 2.7],)),
        ("modf", ([1.2, -2.7],)),
        ("ldexp", ([1.2, -2.7],)),
    ],
)
def test_derivatives(name, args):
    function = getattr(fnp, name)
    if name == "ldexp":
        function = lambda x: fnp.ldexp(x, 3)
    check_grad(function, *(np.array(a) for a in args))


EXPONENTS = [0.5, -0.5, 1.5, -1.5, 2.5, 1 / 3, -1 / 3, 0.25, 0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0,
             7.0, 33.0, 100.0, -1000.0, 1e10, 2.0**53, 0.1, 0.01, INF, -INF, NAN]  # fmt: skip
BASES = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.5, -0.5, 2.0, -2.0, 3.7, -3.7, 1e-30, 1e30, 0.999]
# Ways to write x to a power that is known.
POWERS = {
    "x ** y": lambda y: lambda x: x**y,
    "power": lambda y: lambda x: fnp.power(x, y),
    "float_power": lambda y: lambda x: fnp.float_power(x, y),
    "of a 0-d array": lambda y: lambda x: fnp.power(x, np.asarray(y, x.dtype)),
    "of one element": lambda y: lambda x: fnp.power(x, np.full((1,) * x.ndim, y, x.dtype)),
    "of an array": lambda y: lambda x: fnp.power(x, np.full(x.shape, y, x.dtype)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", POWERS)
@pytest.mark.parametrize("y", EXPONENTS)
def test_known_powers_are_those_of_c(y, way, dtype):
    """In value and derivative: of arrays and of single numbers, at once, compiled and mapped."""
    function, x = POWERS[way](y), np.array(BASES, dtype)
    y = float(np.asarray(y, dtype))
    with np.errstate(all="ignore"):
        value = np.power(x.astype(float), np.full(x.shape, y)).astype(dtype)
        less = np.full(x.shape, float(np.asarray(y - 1, dtype)))
        slope = (y * np.power(x.astype(float), less) if y else 0 * value).astype(dtype)
    close = {"rtol": TOLERANCE[x.dtype], "atol": np.finfo(dtype).tiny}
    for f in (function, jit(function), vmap(function)):
        got = np.asarray(f(Array(x)))
        same(got, value, **close)
        zero = value == 0
        assert (np.signbit(got) == np.signbit(value))[zero].all()
    for i in (0, 1, 5, 11):
        same(function(Array(x[i])), value[i], **close)
        same(function(Array(x[i : i + 1])), value[i : i + 1], **close)
    if np.isfinite(y):
        each = vmap(grad(function))
        same(each(x), slope, **close)
        same(jit(each)(x), slope, **close)


PIECEWISE = {
    "modf": lambda x: fnp.modf(x)[0], "modf's whole part": lambda x: fnp.modf(x)[1],
    "frexp": lambda x: fnp.frexp(x)[0], "ldexp": lambda x: fnp.ldexp(*fnp.frexp(x)),
    "copysign": lambda x: fnp.copysign(x, -1.0), "trunc": fnp.trunc, "fix": fnp.fix,
    "remainder": lambda x: fnp.where(x < 0, -fnp.remainder(-x, 1.0), fnp.remainder(x, 1.0)),
    "fmod": lambda x: fnp.fmod(x, 1.0), "nan_to_num": fnp.nan_to_num, "fabs": fnp.fabs,
    "divmod": lambda x: fnp.divmod(fnp.fabs(x), 1.0)[1], "real": fnp.real,
}  # fmt: skip


@pytest.mark.parametrize("name", PIECEWISE)
def test_derivatives_of_piecewise_linear_functions(name):
    """Also at the ends of pieces, away from zero, whose mark may be a sign or bits."""
    function = PIECEWISE[name]
    x = np.array([-4.0, -3.2, -3.0, -1.0, -0.3, -(2.0**-70), 2.0**-900, 1e-5, 0.5, 0.75, 1.0, 2.0,
                  3.0, 3.7])  # fmt: skip
    further = x * (1 + 2**-40)
    want = (np.asarray(function(further)) - np.asarray(function(x))) / (further - x)
    each = vmap(grad(function))
    same(each(x), want, rtol=1e-3)
    same(jit(each)(x), want, rtol=1e-3)


def nth(f, n):
    for _ in range(n):
        f = grad(f)
    return f


@pytest.mark.parametrize(
    ("function", "at", "order", "expected"),
    [
        (fnp.sinc, 0.0, 1, 0.0),
        (fnp.sinc, 0.0, 2, -(np.pi**2) / 3),
        (fnp.sinc, 0.0, 4, np.pi**4 / 5),
        (lambda x: fnp.logaddexp(x, 1.0), 1.0, 1, 0.5),
        (lambda x: fnp.logaddexp(x, 1.0), 1.0, 2, 0.25),
        (lambda x: fnp.logaddexp(x, -INF), -INF, 1, 0.5),
        (lambda x: fnp.logaddexp(x, INF), 1.0, 1, 0.0),
        (lambda x: fnp.hypot(x, 0.0), 0.0, 1, 0.0),
        (lambda x: fnp.remainder(x, 2.0), 4.0, 1, 1.0),
        (lambda x: fnp.fmax(x, NAN), 4.0, 1, 1.0),
        (lambda x: fnp.fmax(NAN, x), 4.0, 1, 1.0),
        (lambda x: fnp.nan_to_num(x), INF, 1, 0.0),
        (lambda x: fnp.power(x, 2), 0.0, 1, 0.0),
        (lambda x: fnp.power(x, 0.0), 0.0, 1, 0.0),
        (fnp.absolute, 0.0, 1, 0.0),
        (lambda y: grad(lambda x: fnp.power(x, y))(np.float64(4)), 0.0, 1, 0.25),
        (lambda y: grad(lambda x: fnp.power(x, y))(np.float64(4)), 0.0, 2, np.log(4) / 2),
        (lambda x: grad(lambda y: fnp.power(x, y))(np.float64(0)), 4.0, 1, 0.25),
        (lambda y: grad(lambda x: fnp.float_power(x, y))(np.float64(0)), 0.0, 0, 0.0),
        (lambda y: grad(grad(lambda x: fnp.power(x, y)))(np.float64(2)), 0.0, 1, -0.25),
    ],
)
def test_derivatives_where_formulas_have_holes(function, at, order, expected):
    f = nth(function, order)
    for got in (f(np.float64(at)), jit(f)(np.float64(at)), vmap(f)(np.full(2, at))[0]):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_sums_of_complex_exponentials(name, rng):
    """Against what they are defined by where that doesn't overflow, and far out; derivatives."""
    f, base = getattr(fnp, name), 2 if name == "logaddexp2" else np.e
    x, y = (rng.standard_normal(6) + 3j * rng.standard_normal(6) for _ in range(2))
    want = np.log(base**x + base**y) / np.log(base)
    same_as_numpy(f, lambda x, y: want, x, y, rtol=1e-11)
    np.testing.assert_allclose(np.real(f(x + 900, y + 900)), want.real + 900, rtol=1e-12)
    check_grad(f, x, y)
    assert f(np.complex64(-INF), np.complex64(1j)) == np.complex64(1j)
    assert f(np.complex64(-INF), np.complex64(-INF)).real == -INF
