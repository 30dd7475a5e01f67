"""Arrays from values and filled arrays: dtypes, shapes, values, errors."""

import array as pyarray

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.array import Array
from funcgrad.core.settings import default_dtype
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ConcretizationError, DTypeError, ShapeError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (1, "int32", True),
        (1.0, "float32", True),
        (1j, "complex64", True),
        (True, "bool", False),
        ([1, 2], "int32", False),
        ([1, 2.5], "float32", False),
        ([True, 2], "int32", False),
        ([1, 2j], "complex64", False),
        ([], "float32", False),
        ([[], []], "float32", False),
        (np.float64(1), "float64", False),
        ([np.float64(1), 2], "float64", False),
        (np.arange(3), "int64", False),
        ([np.float16(1), 2.5], "float16", False),
        (np.array([1], ">f4"), "float32", False),
        (range(3), None, False),
        (pyarray.array("d", [1.0, 2.0]), "float64", False),
        (b"ab", "uint8", False),
    ],
)
def test_array_dtypes(value, dtype, weak):
    if isinstance(value, range):
        value, dtype = list(value), "int32"
    x = fnp.array(value)
    assert (x.dtype, x.weak_type) == (np.dtype(dtype), weak)
    plain = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
    assert x.shape == plain.shape
    np.testing.assert_array_equal(np.asarray(x), plain)


def test_array_of_arrays():
    x = fnp.array([1.0, 2.0])
    same(fnp.array([x, x + 1]), np.float32([[1, 2], [2, 3]]))
    same(fnp.array([x[0], 5]), np.float32([1, 5]))
    same(fnp.array([[x[0], 5], (1, 2)]), np.float32([[1, 5], [1, 2]]))
    assert fnp.array([fnp.ones(2, "float64"), x]).dtype == np.float64


def test_array_of_tracers():
    make = lambda a, b: fnp.array([[a, 2.0], [b, a * b]])
    same(jit(make, backend="numpy")(3.0, 4.0), np.float32([[3, 2], [4, 12]]))
    assert float(grad(lambda a: fnp.sum(fnp.array([a, 2 * a, 1.0])))(3.0)) == 3.0
    check_grad(make, np.float64(1.5), np.float64(2.5))


def test_explicit_dtypes_are_honoured():
    assert fnp.array([1, 2], "float64").dtype == np.float64
    assert fnp.array(0.1, "float64").item() == 0.1
    assert fnp.zeros(2, "int64").dtype == np.int64
    assert fnp.array([1.5, -1.5], int).tolist() == [1, -1]
    assert fnp.array(fnp.ones(2), "bfloat16").dtype == fnp.bfloat16
    assert fnp.array([[0.1]], fnp.bfloat16).dtype == fnp.bfloat16


def test_default_dtype():
    with default_dtype("float64"):
        assert fnp.array([1.0]).dtype == np.float64
        assert fnp.zeros(2).dtype == np.float64
        assert fnp.linspace(0, 1, 3).dtype == np.float64
        assert fnp.arange(3.0).dtype == np.float64
        assert fnp.ones(2, float).dtype == np.float64
    with default_dtype("int64"):
        assert fnp.array([1]).dtype == np.int64
        assert fnp.arange(3).dtype == np.int64


def test_array_copies_what_may_change():
    a = np.ones(2)
    x, y = fnp.array(a), fnp.asarray(a)
    shared = fnp.asarray(a, copy=False)
    a[0] = 5
    assert x[0] == 1
    assert y[0] == 1
    assert shared[0] == 5
    assert fnp.asarray(x) is x
    assert fnp.copy(x) is not x


def test_array_ndmin():
    assert fnp.array([1], ndmin=3).shape == (1, 1, 1)


@pytest.mark.parametrize(
    ("value", "options", "error", "match"),
    [
        ([[1, 2], [3]], {}, ShapeError, r"element 0 has \(2,\) and element 1 has \(1,\)"),
        ([1, [2]], {}, ShapeError, "one shape"),
        ("abc", {}, TypeError, "array: can't make an array"),
        ([None], {}, TypeError, "NoneType"),
        ({1: 2}, {}, TypeError, "dict"),
        ([1, "a"], {}, TypeError, "'a'"),
        (2**40, {}, OverflowError, "int32"),
        ([2**40], {}, OverflowError, "wider dtype"),
        ([1], {"order": "F"}, ValueError, "order"),
        (1, {"dtype": "float7"}, DTypeError, "float7"),
    ],
)
def test_array_errors(value, options, error, match):
    with pytest.raises(error, match=match):
        fnp.array(value, **options)


def test_wide_integers_with_a_dtype():
    assert fnp.array(2**40, "int64").item() == 2**40
    assert fnp.array([2**40], "int64").tolist() == [2**40]


def test_from_dlpack_and_buffers():
    a = np.arange(3.0)
    same(fnp.from_dlpack(a), a)
    same(fnp.from_dlpack(Array(a)), a)
    same(fnp.frombuffer(a.tobytes(), "float64"), a)
    same(fnp.fromstring("1 2.5", "float64", sep=" "), np.array([1, 2.5]))
    with pytest.raises(ValueError, match="fromstring: .* for string 'a' and dtype float32"):
        fnp.fromstring("a", sep=" ")


def test_astype():
    x = np.array([1.7, -1.7, np.nan, 1e20])
    assert fnp.astype(x, "int32").tolist() == [1, -1, 0, 2**31 - 1]
    assert Array(x).astype(bool).tolist() == [True] * 4
    assert fnp.astype(fnp.ones(2), None).dtype == np.float32
    assert fnp.array([1 + 2j]).astype(float).tolist() == [1.0]


# ---- filled arrays


@pytest.mark.parametrize("name", ["zeros", "ones"])
@pytest.mark.parametrize("shape", [3, (2, 3), (), (0, 2), np.int64(2), [2, 1]])
def test_filled(name, shape):
    same(getattr(fnp, name)(shape, "float64"), getattr(np, name)(shape))
    like = np.zeros((2, 2), np.int8)
    same(getattr(fnp, f"{name}_like")(like), getattr(np, f"{name}_like")(like))


@pytest.mark.parametrize("shape", [(), 0, 3, (2, 3), (2, 0), [2, np.int64(3)]])
@pytest.mark.parametrize("dtype", [None, "int8", "bfloat16", "complex64", "bool"])
def test_filled_arrays_are_the_same_in_programs(shape, dtype):
    for make in (fnp.zeros, fnp.ones, lambda s, d: fnp.full(s, -0.0, d)):
        got, want = make(shape, dtype), jit(lambda f=make: f(shape, dtype), backend="numpy")()
        assert got.aval == want.aval
        assert got.tobytes() == want.tobytes()
    with pytest.raises(ShapeError, match="must be a scalar"):
        lax.full((2, 3), np.ones(3))


def test_full():
    same(fnp.full((2, 2), 3, "float64"), np.full((2, 2), 3.0))
    same(fnp.full((2, 3), np.arange(3.0)), np.full((2, 3), np.arange(3.0)))
    same(fnp.full_like(np.int8([1, 2]), 5), np.int8([5, 5]))
    same(fnp.full_like(np.float64([1, 2]), 5, shape=(3,)), np.full(3, 5.0))
    assert fnp.full(2, 1.0).weak_type
    assert float(grad(lambda v: fnp.sum(fnp.full((2, 3), v)))(1.0)) == 6.0


def test_like_a_struct():
    assert fnp.zeros_like(ShapeDtypeStruct((2, 3), "bfloat16")).dtype == fnp.bfloat16


@pytest.mark.parametrize("args", [(3,), (2, 3), (3, 2, 1), (3, 4, -1), (0,)])
@pytest.mark.parametrize("name", ["eye", "tri"])
def test_diagonals(name, args):
    same(getattr(fnp, name)(*args, dtype="float64"), getattr(np, name)(*args))
    assert getattr(fnp, name)(*args).dtype == np.float32


def test_identity():
    same(fnp.identity(2, "int64"), np.identity(2, int))


def test_fromfunction():
    same(fnp.fromfunction(lambda i, j: i * j, (2, 3), dtype="float64"),
         np.fromfunction(lambda i, j: i * j, (2, 3)))  # fmt: skip


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: fnp.zeros((2, -1)), ShapeError, "zeros: shape"),
        (lambda: fnp.ones(1.5), TypeError, "ones: shape"),
        (lambda: fnp.full((2,), fnp.ones(3)), ShapeError, "full: .*"),
        (lambda: jit(lambda n: fnp.zeros(n))(2), TypeError, "integer"),
    ],
)
def test_shapes_that_are_none(make, error, match):
    with pytest.raises(error, match=match):
        make()


# ---- ranges


@pytest.mark.parametrize(
    "args",
    [(5,), (2, 7), (7, 2, -2), (0.0, 1.0, 0.1), (1, 2, 0.25), (5, 5), (5, 2), (-3,), (2.5,),
     (0, 10, 3), (10, 0, -3), (0.5, 3)],
)  # fmt: skip
def test_arange(args):
    same(fnp.arange(*args, dtype="float64"), np.arange(*args, dtype="float64"))
    got, want = fnp.arange(*args), np.arange(*args)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
    assert got.dtype == (np.int32 if want.dtype == np.int64 else np.float32)
    jitted = jit(lambda: fnp.arange(*args), backend="numpy")()
    np.testing.assert_array_equal(np.asarray(jitted), np.asarray(got))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize(
    "args", [(5,), (-5, 5), (5, -5, -2), (5, 5), (-127, 127, 126), (-128, -120)]
)
def test_arange_of_whole_numbers_is_the_same_in_programs(args, dtype):
    with default_dtype(dtype):
        got, want = fnp.arange(*args), jit(lambda: fnp.arange(*args), backend="numpy")()
    assert got.aval == want.aval
    assert got.tolist() == want.tolist() == list(range(*args))


@pytest.mark.parametrize("step", [2, 3, -1])
def test_arange_to_a_stop_by_steps(step):
    got, want = fnp.arange(5, step=step), jit(lambda: fnp.arange(5, step=step), backend="numpy")()
    assert got.aval == want.aval
    assert got.tolist() == want.tolist() == np.arange(5, step=step).tolist()
    assert fnp.arange(5, None, step).tolist() == want.tolist()


def test_arange_dtypes():
    assert fnp.arange(3, dtype="bfloat16").dtype == fnp.bfloat16
    assert fnp.arange(np.int8(3)).dtype == np.int8
    assert fnp.arange(2**40, 2**40 + 2, dtype="int64").tolist() == [2**40, 2**40 + 1]
    assert np.asarray(fnp.arange(300, dtype="bfloat16"))[-1] == np.float32(300)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fnp.arange(0, 1, 0), ValueError, "step must not be 0"),
        (lambda: fnp.arange(2**40, 2**40 + 2), OverflowError, "int64"),
        (lambda: fnp.arange(2, dtype=bool), DTypeError, "need a dtype of numbers"),
        (lambda: fnp.arange(2**31 - 2, 2**31 + 2), OverflowError, "2147483649 does not fit int32"),
        (lambda: fnp.arange(2**40), OverflowError, "1099511627775 does not fit int32"),
        (lambda: fnp.arange(0, -(2**40), -(2**30)), OverflowError, "does not fit int32"),
        (lambda: fnp.arange([1]), TypeError, "stop must be a number"),
        (lambda: fnp.arange([1], 2), TypeError, "start must be a number"),
        (lambda: jit(lambda n: fnp.arange(n))(3), ConcretizationError,
         r"(?s)arange: .*the value of `stop`.*static_argnames=.*argument n"),
        (lambda: jit(lambda n: fnp.arange(0, None, n))(3), ConcretizationError, "of `step`"),
        (lambda: fnp.linspace(0, 1, -1), ValueError, "num"),
    ],
)  # fmt: skip
def test_range_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("num", [0, 1, 2, 5])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(num, endpoint):
    for start, stop in ((0.0, 1.0), (np.array([0.0, 1.0]), np.array([[2.0], [3.0]])), (3.0, -3.0)):
        got, step = fnp.linspace(np.float64(start), stop, num, endpoint, retstep=True)
        want, want_step = np.linspace(start, stop, num, endpoint, retstep=True)
        same([got, step], [want, np.broadcast_to(want_step, want.shape[1:])])
    same(fnp.linspace(np.float64(0), 1, num, endpoint, axis=-1), np.linspace(0, 1, num, endpoint))
    same(
        fnp.linspace(0, 10, num, endpoint, dtype="int64"),
        np.linspace(0, 10, num, endpoint, dtype=int),
    )


@pytest.mark.parametrize("kind", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "ends", [(0, 1), (-3.7, 1e-9), (5, 5), (1e7, -0.1), (0.1, 3e30), (-0.0, 2)]
)
def test_linspace_of_numbers_is_that_of_arrays(ends, kind):
    """Bit by bit, whatever is quicker for Python's numbers."""
    with fg.default_dtype(kind):
        for num in (0, 1, 2, 7, 100):
            for endpoint in (True, False):
                got = fnp.linspace(*ends, num, endpoint)
                want = fnp.linspace(*(fnp.asarray(v, kind) for v in ends), num, endpoint)
                assert got.aval == want.aval
                np.testing.assert_array_equal(got, want)
                assert np.asarray(got).tobytes() == np.asarray(want).tobytes()
    with pytest.raises(fg.errors.ShapeError, match="linspace: axis 3"):
        fnp.linspace(0, 1, 5, axis=3)


def test_linspace_ends_where_it_should():
    assert float(fnp.linspace(0.0, 0.1, 7)[-1]) == np.float32(0.1)
    check_grad(lambda a, b: fnp.linspace(a, b, 5), np.float64(1.0), np.float64(2.0))


def test_logspace_and_geomspace():
    same(fnp.logspace(np.float64(0), 3, 4), np.logspace(0, 3, 4))
    same(fnp.logspace(np.float64(0), 3, 4, base=2.0), np.logspace(0, 3, 4, base=2.0))
    same(fnp.geomspace(np.float64(1), 1000, 4), np.geomspace(1, 1000, 4))
    same(fnp.geomspace(np.float64(-1), -1000, 3, endpoint=False),
         np.geomspace(-1, -1000, 3, endpoint=False))  # fmt: skip


def test_creation_is_the_same_under_jit():
    same_as_numpy(lambda x: fnp.eye(3, dtype="float64") @ x + fnp.zeros_like(x),
                  lambda x: np.eye(3) @ x, np.arange(3.0))  # fmt: skip


@pytest.mark.parametrize("name", ["sin", "add", "sum", "reshape", "array", "asarray", "stack"])
def test_arrays_that_are_more_or_less_than_their_values(name):
    """A mask would be lost, and float0 has no values: both are told."""
    more = {"add": (1,), "reshape": (-1,)}.get(name, ())
    call = lambda x: getattr(fnp, name)([x, x] if name == "stack" else x, *more)
    with pytest.raises(TypeError, match=r"masked array.*filled"):
        call(np.ma.masked_array([1.0, 2.0], [True, False]))
    nothing = np.zeros(2, fg.dtypes.float0)
    if name in ("array", "asarray"):
        assert call(nothing) is nothing
    else:
        with pytest.raises(TypeError, match="float0"):
            call(nothing)


@pytest.mark.parametrize("make", [fnp.zeros, fnp.ones, fnp.empty])
def test_arrays_of_float0(make):
    for out in (make((2, 3), fg.dtypes.float0), make((), fg.dtypes.float0)):
        assert out.dtype == fg.dtypes.float0
        same = fnp.zeros_like(out)
        assert (same.shape, same.dtype) == (out.shape, out.dtype)
    gradient = grad(lambda x: 2.0 * x, allow_int=True)(3)
    assert fnp.zeros((), fg.dtypes.float0) == gradient


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "full_like"])
def test_arrays_like_weak_ones_are_weak(name):
    make = lambda x, **o: getattr(fnp, name)(x, *([2] if name == "full_like" else []), **o)
    for weak in (1.0, 2, fnp.full(3, 1.0)):
        assert make(weak).weak_type
        assert not make(weak, dtype="float32").weak_type
    assert not make(fnp.ones(3)).weak_type
    assert not make(True).weak_type


@pytest.mark.parametrize(
    "given", [(5,), (1, 9, 2), (0.5, 2), (3, 0, -1), (1j,), (1 + 1j, 5 + 9j, 1 + 2j)]
)
def test_complex_ranges(given):
    for kind in ("complex64", "complex128"):
        same(fnp.arange(*given, dtype=kind), np.arange(*given, dtype=kind))
    if any(isinstance(v, complex) for v in given):
        assert fnp.arange(*given).dtype == np.complex64


@pytest.mark.parametrize("k", [2**63, -(2**70), 5, -5, 3, -2])
def test_diagonals_far_outside(k):
    near = max(-5, min(k, 5))
    same_as_numpy(lambda: fnp.eye(2, 3, k, dtype="float32"), lambda: np.eye(2, 3, near, np.float32))
    same_as_numpy(lambda: fnp.tri(2, 3, k, dtype="float32"), lambda: np.tri(2, 3, near, np.float32))
