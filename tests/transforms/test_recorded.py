"""Functions that are recorded: when they are, and that nobody can tell."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.core import context
from funcgrad.core.eager import large
from funcgrad.core.primitive import Primitive
from funcgrad.errors import DonatedBufferError, NonFiniteError
from funcgrad.transforms.recorded import MOST_COMPILED, Recording, recorded

RNG = np.random.default_rng(0)


def counted(fun):
    runs = []

    @recorded
    def call(*args, **kwargs):
        runs.append(args)
        return fun(*args, **kwargs)

    return call, runs


def test_recorded_at_the_second_call():
    fun, runs = counted(lambda x, n: x * n)
    for i in range(4):
        np.testing.assert_array_equal(fun(fnp.full(2, float(i)), 3), [3.0 * i] * 2)
    assert len(runs) == 2


def test_types_and_static_arguments_count():
    fun, runs = counted(lambda x, n, key=None: x * n)
    x = fnp.ones(2)
    calls = [(x, 1), (x, 1.0), (x, True), (x, 0.0), (x, -0.0), (x.astype("float16"), 1), (x[:1], 1)]
    for args in calls:
        want = args[0] * args[1]
        for _ in range(3):
            got = fun(*args)
            assert (got.dtype, got.weak_type, got.shape) == (want.dtype, want.weak_type, want.shape)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
    assert len(runs) == 2 * len(calls)
    fun(x, 1, key=1)
    fun(x, 1, key=2)
    assert len(runs) == 2 * len(calls) + 2


def test_settings_count():
    fun, _ = counted(lambda x: x / 2)
    for _ in range(3):
        assert fun(fnp.array([1])).dtype == "float32"
        with fg.default_dtype("float64"):
            assert fun(fnp.array([1], "int32")).dtype == "float64"


@pytest.mark.parametrize("argument", [[1, 2], fnp.ones(2), np.ones(2), None])
def test_what_is_no_key_is_run(argument):
    fun, runs = counted(lambda x, other=None: x + len(other or "") if other is None else x)
    for _ in range(3):
        fun(fnp.ones(2), other=argument)
    assert len(runs) == (2 if argument is None else 3)


def test_numpy_arrays_are_run():
    fun, runs = counted(lambda x: x + 1)
    x = np.zeros(2, np.float32)
    outs = [fun(x) for _ in range(3)]
    x[:] = 5
    assert len(runs) == 3
    assert all(float(o[0]) == 1.0 for o in outs)


def test_errors_are_as_before():
    for _ in range(3):
        with pytest.raises(fg.errors.ShapeError, match=r"max: axis .* is empty"):
            fnp.max(fnp.zeros((0, 2)), axis=0)
    x = fnp.ones(3)
    for _ in range(3):
        fnp.sum(x)
    x.delete()
    with pytest.raises(DonatedBufferError):
        fnp.sum(x)
    for _ in range(3):
        fnp.mean(fnp.ones(2))
    with fg.debug_nans(), pytest.raises(NonFiniteError):
        fnp.mean(fnp.array([np.inf, -np.inf]))


def test_under_transformations_it_is_traced():
    fun, runs = counted(lambda x: fnp.sin(x) * x)
    x = fnp.arange(3.0)
    want = np.sin(np.arange(3, dtype=np.float32)) * np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(fg.vmap(fun)(x), want, rtol=1e-6)
    np.testing.assert_allclose(fg.jit(fun)(x), want, rtol=1e-6)
    assert len(runs) == 2
    assert "sin" in str(fg.make_jaxpr(fun)(x))


def test_gradients_of_every_order():
    fun, _ = counted(lambda x: fnp.sum(fnp.sin(x) * x))
    x = fnp.arange(3.0)
    want = fg.vjp(fun, x)[1](fnp.float32(1))[0]
    for _ in range(4):
        np.testing.assert_array_equal(fg.grad(fun)(x), want)
        second = fg.grad(lambda x: fnp.sum(fg.grad(fun)(x)))(x)
        np.testing.assert_allclose(second, 2 * np.cos(x) - x * np.sin(x), rtol=1e-5)


def test_numbers_beside_traced_arrays_are_operands():
    context.ROOT.types.clear()
    for i in range(20):
        gradient = fg.grad(lambda x, i=i: fnp.sum((x * float(i) + i) / (i + 1.0) - (i - x)))(
            fnp.ones(2)
        )
        np.testing.assert_allclose(gradient, [i / (i + 1) + 1] * 2, rtol=1e-6)
    assert len(context.ROOT.types) < 60
    x = fnp.ones(2, np.float64)
    for _ in range(3):
        assert float(fg.grad(lambda x: fnp.sum(x * 0.1))(x)[0]) == 0.1


LARGE_FUNCTIONS = {
    "gelu": nn.gelu,
    "softmax": lambda x: nn.softmax(x, axis=0),
    "log_softmax": nn.log_softmax,
    "mean": fnp.mean,
    "std": lambda x: fnp.std(x, axis=1),
    "matmul": lambda x: x @ x.T,
    "power": lambda x: fnp.power(fnp.abs(x), 1.5),
    "attention": lambda x: nn.dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "floor_divide": lambda x: fnp.floor_divide(x, 0.3),
    "remainder": lambda x: fnp.remainder(x, x[::-1]),
    "hypot": lambda x: fnp.hypot(x, x[::-1]),
    "logaddexp": lambda x: fnp.logaddexp(x, 2.0),
    "isclose": lambda x: fnp.isclose(x, x[::-1], atol=0.5),
    "nan_to_num": lambda x: fnp.nan_to_num(fnp.log(x), nan=0.5),
    "norm": lambda x: fnp.linalg.norm(x, axis=1),
    "median": lambda x: fnp.median(x, 0),
    "logsumexp": nn.logsumexp,
    "elu": nn.elu,
    "standardize": nn.standardize,
}


@pytest.fixture
def small_is_large(monkeypatch):
    """In a context where nothing was met before."""
    monkeypatch.setattr(large, "LARGE", 256)
    with context.scoped(axes={}):
        yield


@pytest.mark.sampled(8)
@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("fun", LARGE_FUNCTIONS.values(), ids=LARGE_FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [3, 9, 33])  # smaller than what is large, about it, and larger
def test_each_call_gives_the_same_bits(fun, dtype, size):
    x = fnp.array(RNG.standard_normal((size, 7)), dtype)
    first = fun(x)
    for _ in range(4):
        np.testing.assert_array_equal(fun(x), first)
    rough = {"bfloat16": 2e-2, "float64": 1e-13}.get(dtype, 2e-6)
    want = np.asarray(fg.jit(fun)(x)).astype(float)
    scale = float(np.max(np.abs(want)))
    np.testing.assert_allclose(
        np.asarray(first).astype(float), want, rtol=rough, atol=rough * scale
    )


@pytest.mark.parametrize(
    ("fun", "want"),
    [
        (lambda x: fnp.hypot(x, x), 0.0),
        (lambda x: fnp.linalg.norm(x), 0.0),
        (lambda x: fnp.remainder(x, 2.0), 1.0),
        (lambda x: fnp.floor_divide(x, 2.0), 0.0),
        (lambda x: fnp.logaddexp(x, -np.inf), 1.0),
        (nn.hard_sigmoid, 1 / 6),
    ],
)
def test_rules_of_their_own_hold_at_each_call(fun, want):
    x = fnp.zeros(3)
    for _ in range(5):
        np.testing.assert_allclose(fg.grad(lambda x: fnp.sum(fun(x)))(x), [want] * 3, rtol=1e-6)
        tangent = fg.jvp(lambda x: fnp.sum(fun(x)), (x,), (fnp.ones(3),))[1]
        np.testing.assert_allclose(tangent, 3 * want, rtol=1e-6)


@pytest.mark.parametrize("fun", [fnp.sum, fnp.mean])
def test_a_negative_zero_without_axes_keeps_its_sign(fun):
    x = fnp.array(-0.0)
    results = [*(fun(x) for _ in range(4)), fg.jit(fun)(x), fun(-0.0)]
    assert np.signbit(results).all()
    assert np.signbit(fg.vmap(fun)(fnp.array([-0.0]))).all()


def test_types_count_in_tuples_too():
    fun, _ = counted(lambda x, n, key=None: x * n[0][0])
    x, whole = fnp.ones(2), fnp.array([1, 2])
    for _ in range(3):
        for n in (0.0, -0.0, 1, 1.0, True):
            for operand in (x, whole):
                got, want = fun(operand, ((n,),)), operand * n
                assert (got.dtype, got.tobytes()) == (want.dtype, want.tobytes())
                got = fg.vmap(lambda x, n=n: fun(x, ((n,),)))(operand)
                assert (got.dtype, got.tobytes()) == (want.dtype, want.tobytes())
    for _ in range(3):
        fnp.sum(x, axis=(0,))
    with pytest.raises(TypeError, match="must be integers"):
        fnp.sum(x, axis=(0.0,))
    with pytest.raises(TypeError, match="must be integers"):
        fg.grad(lambda x: fnp.sum(x, axis=(0.0,)))(x)


SCALED = Primitive(
    name="scaled",
    abstract=lambda x, *, by: x,
    impl=lambda xp, x, *, by: (x * (7 if by is True else by)).astype(x.dtype),
    jvp=lambda primals, tangents, *, by: (
        SCALED.bind(*primals, by=by), SCALED.bind(*tangents, by=by)
    ),
    transpose=lambda ct, x, *, by: [SCALED.bind(ct, by=by)],
    batch=lambda axis, args, dims, *, by: (SCALED.bind(*args, by=by), dims[0]),
    dims=None,
)  # fmt: skip


def test_types_of_an_operations_parameters_count():
    x = fnp.ones(2)
    for by in [1, 1.0, True, -0.0, 0.0] * 3:
        want = np.full(2, 7 if by is True else by, np.float32).tobytes()
        assert SCALED.bind(x, by=by).tobytes() == want
        assert fg.vmap(lambda y, by=by: SCALED.bind(y, by=by))(x).tobytes() == want
        assert fg.grad(lambda y, by=by: fnp.sum(SCALED.bind(y, by=by)))(x).tobytes() == want


@pytest.mark.usefixtures("small_is_large")
def test_large_operands_are_recorded_at_the_first_call():
    fun, runs = counted(lambda x: fnp.exp(x) * 2)
    for _ in range(3):
        fun(fnp.ones(64))
    assert len(runs) == 1


@pytest.mark.usefixtures("small_is_large")
def test_what_changes_from_call_to_call_is_not_compiled_each_time():
    x = fnp.array(RNG.standard_normal((33, 7)), "float32")
    found = [nn.elu(x, 1 + i / 64) for i in range(40)]
    kept = context.current().types.items()
    made = [k for k, v in kept if type(v) is Recording and k[0].__name__ == "elu"]
    assert len(made) == MOST_COMPILED
    for i, first in enumerate(found):
        np.testing.assert_array_equal(nn.elu(x, 1 + i / 64), first)
        np.testing.assert_allclose(first, fg.jit(nn.elu)(x, 1 + i / 64), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_is_large")
def test_functions_within_one_that_is_met_first():
    fun, _ = counted(lambda x: nn.softmax(fnp.broadcast_to(x, (40, 9)), axis=0) + fnp.mean(x))
    x = fnp.array(RNG.standard_normal(9), "float32")
    first = fun(x)
    np.testing.assert_array_equal(fun(x), first)
    np.testing.assert_array_equal(fun(x), first)


@pytest.mark.usefixtures("small_is_large")
def test_large_operands_that_are_gone_or_give_what_is_no_number():
    x = fnp.full((9, 9), np.inf)
    assert np.isnan(nn.softmax(x)).all()
    with fg.debug_nans(), pytest.raises(NonFiniteError):
        nn.softmax(x)
    x.delete()
    with pytest.raises(DonatedBufferError):
        nn.softmax(x)
