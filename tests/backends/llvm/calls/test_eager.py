"""Eager calls by native code do what Python does: bits, types, errors, reference counts."""

import gc
import operator
import sys
import threading
import warnings

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.calls import eager as eager_calls
from funcgrad.core import context
from funcgrad.core.array import Array
from funcgrad.core.eager import functions
from funcgrad.core.eager.functions import EagerFunction, Recipe
from funcgrad.errors import DonatedBufferError, NonFiniteError

pytestmark = pytest.mark.skipif(not functions.activate(), reason="another Python or NumPy")

LEARNED = eager_calls.LEARNED_AFTER + 1  # calls after which the next is native
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_learned():
    """Of types that other tests met: those that left a full table are not learned again."""
    eager_calls._forget()
    context.ROOT.types.clear()


def by_python(function, *args, **kwargs):
    """A call in a context of its own, of which no native code knows, after two that Python learned
    from."""
    with context.scoped(float_dtype=context.current().float_dtype):
        for _ in range(2):
            function(*args, **kwargs)
        return function(*args, **kwargs)


def natively(function, *args, **kwargs):
    """The result of native code, after it has learned of such calls."""
    for _ in range(LEARNED):
        function(*args, **kwargs)
    before = [(f, f.general) for f in functions._functions]
    try:
        for f, _ in before:
            f.general = refuse
        return function(*args, **kwargs)
    finally:
        for f, general in before:
            f.general = general


def refuse(*args, **kwargs):
    raise AssertionError("native code leaves this to Python")


def check(function, *args, **kwargs):
    want = by_python(function, *args, **kwargs)
    got = natively(function, *args, **kwargs)
    check_same(got, want)


def check_same(got, want):
    assert type(got) is type(want) is Array
    a, b = got._value, want._value
    assert type(a) is np.ndarray
    assert a.dtype is b.dtype is got.dtype
    assert a.shape == b.shape
    assert got.weak_type is want.weak_type
    assert got._gone is None
    assert got.aval == want.aval
    assert a.tobytes() == b.tobytes()
    assert a.flags.writeable == b.flags.writeable


def draw(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 4
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    if dtype == "bool":
        x = x > 0
    if dtype.startswith("uint"):
        x = np.abs(x) * 20
    x = np.asarray(x)
    if x.size and dtype.startswith(("float", "bfloat")):
        x.flat[0] = np.nan
        x.flat[-1] = -np.inf
        x.flat[x.size // 2] = -0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fnp.array(x).astype(dtype)


def refused(function, *args):
    """Whether Python refuses such operands."""
    try:
        by_python(function, *args)
    except Exception:
        return True
    return False


BINARY = [fnp.add, fnp.subtract, fnp.multiply, fnp.true_divide, fnp.maximum, fnp.minimum,
          fnp.less, fnp.greater_equal, fnp.equal, fnp.not_equal, fnp.arctan2, fnp.bitwise_and,
          fnp.left_shift, fnp.remainder, fnp.power, fnp.logical_and]  # fmt: skip
# These are one operation only where they needn't broadcast.
SOMETIMES = [fnp.bitwise_and, fnp.left_shift, fnp.logical_and]
SHAPES = [((5,), (5,)), ((), ()), ((2, 3), (2, 3)), ((0, 3), (0, 3)), ((1,), (1,)),
          ((2, 3), (3,)), ((4, 1), (1, 3)), ((2, 3), ()), ((), (4,)), ((1030,), (1030,)),
          ((5000,), (5000,)), ((40000,), (40000,))]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_functions_of_two_arrays(function, dtype):
    for left, right in SHAPES:
        x, y = draw(left, dtype), draw(right, dtype, 1)
        if refused(function, x, y):
            return
        if function in SOMETIMES:
            want = by_python(function, x, y)
            for _ in range(LEARNED + 2):
                check_same(function(x, y), want)
        else:
            check(function, x, y)


UNARY = [fnp.exp, fnp.log, fnp.sqrt, fnp.sin, fnp.tanh, fnp.log1p, fnp.arctan, fnp.cbrt]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_functions_of_one_array(function, dtype):
    for shape in [(5,), (), (2, 3), (0, 3), (1,), (1030,), (5000,), (40000,)]:
        x = draw(shape, dtype)
        if refused(function, x):
            return
        if fnp.isdtype(x.dtype, "integral") or dtype == "bool":
            x = x.astype("float32")
        check(function, x)


REDUCTIONS = [fnp.sum, fnp.mean, fnp.max, fnp.prod, fnp.any, fnp.var]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", REDUCTIONS, ids=lambda f: f.__name__)
def test_reductions(function, dtype):
    for shape in [(5,), (), (7, 9), (1,), (129,), (3, 5, 7), (1030,), (64, 64), (5000,)]:
        x = draw(shape, dtype)
        if refused(function, x):
            return
        check(function, x)
    check(function, draw((4, 5), dtype), axis=0)
    check(function, draw((4, 5), dtype), axis=-1, keepdims=True)
    check(function, draw((4, 5), dtype), (0, 1))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 15, 16, 127, 128, 129, 1000, 2049, 4095, 4097])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "float64", "complex64"])
def test_sums_of_every_length_have_numpys_bits(n, dtype):
    x = fnp.array(np.random.default_rng(n).standard_normal(n) * 100).astype(dtype)
    check(fnp.sum, x)
    if n % 3 == 0:
        check(fnp.sum, fnp.reshape(x, (3, n // 3)))
        check(fnp.sum, fnp.transpose(fnp.reshape(x, (3, n // 3))))


def test_a_sum_of_negative_zeros():
    check(fnp.sum, fnp.array([-0.0, -0.0]))


NUMBERS = [2.0, -0.0, 0.1, float("inf"), float("nan"), 1e300, 1e-300, 0, 3, -1, 7]


@pytest.mark.parametrize(
    "dtype", ["int8", "int32", "int64", "uint8", "uint32", "float32", "float64"]
)
def test_numbers_beside_an_array(dtype):
    x = draw((6,), dtype)
    for number in NUMBERS:
        kinds = "f" if isinstance(number, float) else "fi" if number < 0 else "fiu"
        if dtype[0] not in kinds:
            continue
        for function in (operator.add, operator.mul, operator.lt, operator.sub):
            check(function, x, number)
            check(function, number, x)


def test_numbers_that_a_dtype_cannot_hold():
    small, large, real = draw((3,), "int8"), draw((3,), "uint64"), draw((3,), "float32")
    for x, good, bad in [(small, 5, 1000), (large, 5, -1), (large, 5, 1 << 80)]:
        check(fnp.add, x, good)
        with pytest.raises(Exception) as native:
            fnp.add(x, bad)
        with pytest.raises(Exception) as python:
            by_python(fnp.add, x, bad)
        assert native.type is python.type
        assert str(native.value) == str(python.value)
    for whole in ((1 << 53) + 1, 1 << 70, 16777217, -16777219, 1 << 40):
        check(fnp.add, real, 5)
        check_same(fnp.add(real, whole), by_python(fnp.add, real, whole))
        check_same(fnp.add(real.astype("float64"), whole),
                   by_python(fnp.add, real.astype("float64"), whole))  # fmt: skip


def test_weak_types_are_told_apart():
    weak, strong = fnp.add(1.5, 2.0), fnp.float32(2.0)
    strong = fnp.asarray(strong)
    for x in (weak, strong):
        for y in (weak, strong):
            check(fnp.add, x, y)
            check(fnp.multiply, x, y)
    assert natively(fnp.add, weak, weak).weak_type
    assert not natively(fnp.add, weak, strong).weak_type


def test_views_that_are_not_contiguous():
    x = fnp.array(np.arange(24.0, dtype="float32").reshape(4, 6))
    for a in (x.T, x[::2, ::-1], fnp.broadcast_to(x[0], (4, 6)), x[1:, 1:]):
        check(fnp.add, a, a)
        check(fnp.exp, a)
        check(fnp.sum, a)
    check(fnp.add, x, x)
    a = fnp.array(np.ones((4, 4), "float32"))
    b = fnp.transpose(fnp.array(np.arange(16, dtype="float32").reshape(4, 4)))
    natively(fnp.add, a, a)
    check_same(fnp.add(b, a), by_python(fnp.add, b, a))  # the entry of a + a


def test_memory_that_is_not_aligned():
    data = np.frombuffer(b"\0" + np.arange(8, dtype="float32").tobytes(), np.uint8)[1:]
    x, y = Array(data.view("float32")), fnp.ones(8)
    assert not x._value.flags.aligned
    natively(fnp.add, y, y)
    natively(fnp.sum, y)
    check_same(fnp.add(x, y), by_python(fnp.add, x, y))
    check_same(fnp.sum(x), by_python(fnp.sum, x))


def test_products():
    x, y = draw((4, 5), "float64"), draw((5, 3), "float64")
    check(operator.matmul, x, y)
    check(operator.matmul, x[0], y)
    for dtype in ("float32", "int32", "complex64", "float16"):
        square = draw((4, 4), "int8").astype(dtype)
        check(operator.matmul, square, square)
        check(operator.matmul, square.T, square)
    check(fnp.matmul, x, y, preferred_element_type="float64")


def test_large_results():
    x = fnp.ones((300, 300))
    check(fnp.add, x, x)
    check(fnp.tanh, x)
    check(fnp.sum, x)


def test_deleted_arrays_say_so():
    x, y = fnp.ones(3), fnp.ones(3)
    natively(fnp.add, x, y)
    natively(fnp.sum, x)
    x.delete()
    for call in (lambda: x + y, lambda: y + x, lambda: fnp.sum(x), lambda: fnp.tanh(x)):
        with pytest.raises(DonatedBufferError):
            call()


def test_settings_are_heeded():
    x = fnp.array([-1.0, 1.0])
    check(fnp.log, x)
    with fg.debug_nans(), pytest.raises(NonFiniteError):
        fnp.log(x)
    n = fnp.array([1, 2])
    check(fnp.true_divide, n.astype("float32"), 2)
    for _ in range(2 * LEARNED):
        with fg.default_dtype("float64"):
            assert fnp.true_divide(n, n).dtype == "float64"
            assert fnp.add(x, 1).dtype == "float32"
        assert fnp.true_divide(n, n).dtype == "float32"
    with fg.default_dtype("int64"):
        for _ in range(2 * LEARNED):
            assert fnp.sum(x > 0).dtype == "int64"
    for _ in range(2 * LEARNED):
        assert fnp.sum(x > 0).dtype == "int32"


def test_transformations_see_the_operations():
    x = fnp.arange(4.0)

    def f(x):
        return fnp.sum(fnp.tanh(x * 2.0) + x)

    want = f(x)
    for _ in range(LEARNED):
        f(x)
    np.testing.assert_allclose(fg.jit(f)(x), want, rtol=1e-6)
    np.testing.assert_allclose(fg.grad(f)(x), 2 / np.cosh(2 * np.asarray(x)) ** 2 + 1, rtol=1e-5)
    np.testing.assert_array_equal(fg.vmap(lambda x: x + x)(x), x + x)
    assert "tanh" in str(fg.make_jaxpr(f)(x))
    np.testing.assert_array_equal(f(x), want)


def test_floating_point_errors_stay_silent_and_settings_as_they_are():
    x = fnp.array([0.0, -1.0, 1e30])
    state = np.geterr()
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(LEARNED + 1):
            fnp.log(x)
            x * x
            x / fnp.zeros((2, 3))
        assert set(np.geterr().values()) == {"raise"}
        with pytest.raises(FloatingPointError):
            np.ones(1) / 0
    assert np.geterr() == state


def test_errors_inside_come_through():
    wrong = []

    def impl(xp, x):
        if wrong:
            raise wrong[0]
        return xp.negative(x) + 1

    x = fnp.ones(3)
    swift = EagerFunction(lambda x: Array(-x._value), lambda *_: Recipe(x.aval, (0,), impl))
    natively(swift.call, x)
    state = np.geterr()
    wrong.append(KeyError("found nothing"))
    for _ in range(3):
        with pytest.raises(KeyError, match="found nothing"):
            swift.call(x)
    assert np.geterr() == state
    del wrong[0]
    np.testing.assert_array_equal(swift.call(x), np.zeros(3))
    with pytest.raises(TypeError):
        swift.call(x, x)
    functions._functions.remove(swift)


def test_results_of_another_dtype_are_converted():
    x = fnp.ones(3)
    for impl in (lambda xp, x: x.astype("float64"), lambda xp, x: xp.float32(4.0)):
        scalar = impl(np, x._value).ndim == 0
        aval = x.aval.update(shape=()) if scalar else x.aval
        swift = EagerFunction(lambda x: x, lambda *_, a=aval, i=impl: Recipe(a, (0,), i))
        out = natively(swift.call, x)
        assert out.dtype == "float32"
        assert out.shape == aval.shape
        functions._functions.remove(swift)


def test_no_references_are_lost_or_kept():
    x, y, z = fnp.arange(5.0), fnp.ones(5), fnp.ones((3, 5))
    held = [x, y, z, x._value, y._value, z._value, x.dtype, None, True, False, 2.5, "axis",
            context.ROOT.types]  # fmt: skip

    def run():
        for _ in range(200):
            x + y
            x * 2.5
            x + z
            x.T + y
            fnp.tanh(x)
            fnp.sum(x)
            fnp.sum(z, axis=0)
            fnp.mean(z)
            z @ x
            fnp.max(x)

    run()
    gc.collect()
    objects, before = len(gc.get_objects()), [sys.getrefcount(h) for h in held]
    run()
    gc.collect()
    after = [sys.getrefcount(h) for h in held]
    assert len(gc.get_objects()) - objects < 50
    for a, b in zip(before, after, strict=True):
        assert abs(a - b) < 50


def test_failed_calls_keep_no_references():
    x = fnp.ones(3, "int8")
    check(fnp.add, x, 5)
    before = [sys.getrefcount(h) for h in (x, x._value, x.dtype)]
    for _ in range(100):
        with pytest.raises(OverflowError):
            x + 1000
    after = [sys.getrefcount(h) for h in (x, x._value, x.dtype)]
    assert all(abs(a - b) < 20 for a, b in zip(before, after, strict=True))


def test_more_types_than_a_table_holds():
    arrays = [fnp.arange(float(n)) for n in range(1, 900)]
    for x in arrays:
        for _ in range(LEARNED):
            x + x
    for x in arrays:
        np.testing.assert_array_equal(x + x, 2 * x._value)
    tables = [t for t in eager_calls._tables if any(t.buckets)]
    sizes = [len(b) for t in tables for b in t.buckets if b]
    assert max(sizes) <= eager_calls.MAX_BUCKET


def test_caches_are_cleared():
    x = fnp.ones(7)
    natively(fnp.add, x, x)
    fg.clear_caches()
    assert not any(any(t.buckets) for t in eager_calls._tables)
    check(fnp.add, x, x)


def test_threads():
    failures = []
    arrays = [fnp.arange(float(n)) for n in range(1, 60)]

    def work(k):
        try:
            for _ in range(4):
                for x in arrays[k::2] + arrays:
                    np.testing.assert_array_equal(x + x, 2 * x._value)
                    np.testing.assert_array_equal(fnp.sum(x), x._value.sum())
                    if k == 0 and x is arrays[30]:
                        fg.clear_caches()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_other_arguments_go_to_python():
    x = fnp.ones(3)
    check(fnp.add, x, x)
    for other in (np.ones(3, "float32"), np.float32(1), True, 1j):
        check_same(fnp.add(x, other), by_python(fnp.add, x, other))
        check_same(fnp.add(other, x), fnp.add(fnp.asarray(other), x))
    with pytest.raises(TypeError):
        fnp.add(x)
    with pytest.raises(TypeError):
        fnp.add(x, x, x, x, x, x, x, x, x, x, x, x, x, x)
    with pytest.raises(TypeError):
        x + [1, 2, 3]
    assert x.__add__(object()) is NotImplemented
    with pytest.raises(TypeError, match="unexpected keyword"):
        fnp.sum(x, axes=0)


SINGLE = {
    "negative": fnp.negative, "abs": fnp.abs, "sign": fnp.sign, "square": fnp.square,
    "logical_not": fnp.logical_not, "invert": fnp.invert, "isnan": fnp.isnan,
    "isfinite": fnp.isfinite, "floor": fnp.floor, "fabs": fnp.fabs,
    "logical_or": lambda x: fnp.logical_or(x, x), "bits": lambda x: x & x,
    "left_shift": lambda x: x << x, "where": lambda x: fnp.where(x > 0, x, x),
    "where number": lambda x: fnp.where(x > 0, x, 0), "astype": lambda x: x.astype("float32"),
    "astype int": lambda x: fnp.astype(x, np.int32), "reshape": lambda x: x.reshape(3, 2),
    "ravel": fnp.ravel, "transpose": lambda x: x.T, "moveaxis": lambda x: fnp.moveaxis(x, 0, 1),
    "expand_dims": lambda x: fnp.expand_dims(x, 1),
    "squeeze": lambda x: fnp.squeeze(x[None], axis=0),
    "broadcast_to": lambda x: fnp.broadcast_to(x, (4, 2, 3)), "relu": fg.nn.relu,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SINGLE)
def test_functions_that_are_one_operation(name, dtype):
    function, x = SINGLE[name], draw((2, 3), dtype)
    if refused(function, x):
        return
    want = by_python(function, x)
    for _ in range(LEARNED + 2):
        check_same(function(x), want)


def test_single_operations_are_done_by_native_code():
    x, sizes = draw((2, 300), "float32"), [(300, 2), (600,), (1, 600)]
    for function in (fnp.negative, fnp.isnan, fnp.floor, fnp.transpose, fnp.ravel, fnp.square):
        check(function, x)
    check(fnp.where, x > 0, x, x)
    check(fnp.where, x > 0, x, 0.5)
    check(fnp.astype, x, "float64")
    check(fnp.logical_and, x > 0, x < 1)
    for shape in sizes:
        check(fnp.reshape, x, shape)
        check_same(fnp.reshape(x, (*shape,)), by_python(fnp.reshape, x, shape))
    for n in range(3):
        check(fnp.where, x > 0, x, n)
        check(fnp.expand_dims, x, n)
    with pytest.raises(fg.errors.ShapeError):
        fnp.reshape(x, (300, 3))


def test_static_arguments_are_told_apart():
    x = draw((4, 4), "float64")
    for n in (1, True, 1.0, 2, (1,), (True,)):
        for _ in range(LEARNED):
            got = fnp.where(x > 0, x, n) if type(n) is not tuple else fnp.sum(x, n)
        want = by_python(fnp.where, x > 0, x, n) if type(n) is not tuple else by_python(
            fnp.sum, x, n)  # fmt: skip
        check_same(got, want)
    for axis in (0, 1, None, (0, 1), (1, 0), -1):
        check(fnp.sum, x, axis)
        check(fnp.sum, x, axis=axis)
        check(fnp.sum, x, keepdims=True, axis=axis)
    check(fnp.sum, x, dtype=np.float32)
    check(fnp.sum, x, dtype=np.float64)


def test_code_that_is_not_there(monkeypatch):
    def missing():
        raise LookupError("another Python")

    monkeypatch.setattr(eager_calls, "_method", None)
    monkeypatch.setattr(eager_calls, "_load", missing)
    monkeypatch.setattr(eager_calls, "_failed", False)
    assert not eager_calls.ready(compiling=True)
    assert not functions.activate()
    assert eager_calls._failed


def test_nothing_is_compiled_before_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(eager_calls, "_method", None)
    monkeypatch.setattr(eager_calls, "_key", lambda: "no such code")
    monkeypatch.setattr(eager_calls, "_load", refuse)
    assert not eager_calls.ready(compiling=False)
