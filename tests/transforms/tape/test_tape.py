"""Gradients at the root: on a tape, with rules that are found ready from the third call on."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core import context
from funcgrad.core.eager import large
from funcgrad.errors import (
    DifferentiationError,
    DonatedBufferError,
    LeakedTracerError,
    NonFiniteError,
)
from funcgrad.transforms.recorded import at_root
from funcgrad.transforms.tape.tape import TapeTracer, linear_rule, linearize_at_root

RNG = np.random.default_rng(0)


def normal(*shape):
    return fnp.array(RNG.standard_normal(shape).astype(np.float32))


@fg.custom_vjp
def clipped(x):
    return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, ct: (fnp.clip(ct * x, -1, 1),))

FUNCTIONS = {
    "one value, read often": lambda x: fnp.sum(x * x + fnp.sin(x) + x + x * x * x),
    "broadcasts": lambda x: fnp.mean((x - fnp.mean(x, axis=-1, keepdims=True)) ** 2),
    "matrices": lambda x: fnp.sum(fnp.tanh(x @ x.T) @ x),
    "indices": lambda x: fnp.sum(x[1:, ::2] * x[0, 0]) + fnp.max(x),
    "several results": lambda x: fnp.sum(fnp.split(x, 2, axis=1)[0] ** 3) + fnp.sort(x)[0, 0],
    "custom rules": lambda x: fnp.sum(nn.softmax(nn.relu(x)) ** 2) + fnp.sum(clipped(x)),
    "a program": lambda x: fnp.sum(fg.jit(lambda y: fnp.sin(y) * y)(x)),
    "a loop": lambda x: fnp.sum(lax.scan(lambda c, y: (c * y, c + y), x[0], x)[1]),
    "a branch": lambda x: lax.cond(x[0, 0] > 0, fnp.sum, lambda x: fnp.sum(x * x), x),
    "checkpoint": lambda x: fnp.sum(fg.checkpoint(lambda y: fnp.sin(fnp.sin(y)))(x)),
    "no derivative": lambda x: fnp.sum(fnp.floor(x)) + fnp.sum(lax.stop_gradient(x)),
    "nothing": lambda x: fnp.float32(1.0),
    "the value itself": lambda x: x[0, 0],
    "a gradient": lambda x: fnp.sum(fg.grad(lambda y: fnp.sum(fnp.sin(y) * y))(x) ** 2),
    "a map": lambda x: fnp.sum(fg.vmap(lambda y: fnp.dot(y, y))(x)),
    "low precision": lambda x: fnp.sum(x.astype("bfloat16") ** 2).astype("float32"),
}


@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_call_gives_the_bits_of_the_transposed_linear_program(fun):
    x = normal(4, 6)
    value, pull = fg.vjp(fun, x)
    (want,) = pull(fnp.ones((), value.dtype))
    context.ROOT.types.clear()
    for _ in range(4):
        got, gradient = fg.value_and_grad(fun)(x)
        assert got.dtype == value.dtype
        np.testing.assert_array_equal(got, value)
        assert gradient.dtype == want.dtype
        np.testing.assert_array_equal(gradient, want)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
def test_shapes_and_dtypes(shape, dtype):
    x = fnp.full(shape, 0.5, dtype)
    fun = lambda x: fnp.sum(fnp.abs(fnp.sin(x) * x)).real
    for _ in range(3):
        gradient = fg.grad(fun)(x)
        assert gradient.shape == shape
        assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient, fg.vjp(fun, x)[1](fnp.ones((), fun(x).dtype))[0])


def test_non_finite_values_pass_silently():
    x = fnp.array([0.0, np.inf, np.nan, -1.0])
    with np.errstate(all="raise"):
        for _ in range(3):
            gradient = fg.grad(lambda x: fnp.sum(fnp.log(x) * x + x))(x)
    np.testing.assert_array_equal(np.isfinite(gradient), [False] * 4)


def test_large_arrays():
    x = normal(300, 300)
    fun = lambda x: fnp.sum(x * x + x * 2.0 + fnp.tanh(x))
    first = fg.grad(fun)(x)
    np.testing.assert_allclose(first, fg.vjp(fun, x)[1](fnp.float32(1))[0], rtol=2e-6, atol=1e-6)
    for _ in range(3):
        np.testing.assert_array_equal(fg.grad(fun)(x), first)


def test_python_runs_each_time_and_sees_values():
    seen = []

    def fun(x):
        seen.append(float(x))
        return x * x if x > 0 else -x

    assert [float(fg.grad(fun)(v)) for v in (1.0, -1.0, 2.0, 3.0)] == [2.0, -1.0, 4.0, 6.0]
    assert seen == [1.0, -1.0, 2.0, 3.0]


def test_weak_types_and_integers():
    for _ in range(3):
        gradient = fg.grad(lambda x: x * 3)(2.0)
        assert gradient.weak_type
        assert not fg.grad(lambda x: x * 3)(fnp.float32(2)).weak_type
        one, none = fg.grad(lambda x, n: x * n, (0, 1), allow_int=True)(2.0, 3)
        assert float(one) == 3.0
        assert none.dtype == fg.dtypes.float0


def test_aux_is_without_tracers():
    for _ in range(3):
        gradient, aux = fg.grad(lambda x: (fnp.sum(x * x), (x * 2, "text")), has_aux=True)(
            fnp.ones(2)
        )
        assert isinstance(aux[0], fg.Array)
        np.testing.assert_array_equal(aux[0], gradient)


def test_numpy_arguments_are_not_shared():
    x = np.ones(3, np.float32)
    for _ in range(3):
        _, aux = fg.grad(lambda x: (fnp.sum(x * x), fnp.reshape(x, (1, 3))), has_aux=True)(x)
        assert not np.shares_memory(np.asarray(aux), x)


def test_numpy_constants_are_taken_as_they_are_when_read():
    c = np.ones(3, np.float32)

    def fun(x):
        y = x * c
        c[:] = 5.0
        return fnp.sum(y)

    for _ in range(3):
        c[:] = 2.0
        np.testing.assert_array_equal(fg.grad(fun)(fnp.ones(3)), [2.0, 2.0, 2.0])


def test_numpy_constants_are_operands_of_rules():
    for c in (np.arange(6, dtype=np.float32), np.arange(12.0, dtype=np.float32)[::2]):
        context.ROOT.types.clear()
        for k in (1.0, 2.0, 3.0):
            gradient = fg.grad(lambda x, c=c, k=k: fnp.sum(lax.mul(x, c * np.float32(k))))
            np.testing.assert_array_equal(gradient(fnp.ones(6)), c * k)
        assert [type(v).__name__ for k, v in context.ROOT.types.items() if k[1] is lax.mul] == [
            "LinearRule"
        ]


def test_a_tracer_that_leaks_is_told():
    held = []
    for _ in range(3):
        fg.grad(lambda x: held.append(x) or x * x)(1.0)
        with pytest.raises(LeakedTracerError, match="a differentiated function"):
            held[-1] + 1
        with pytest.raises(LeakedTracerError):
            fg.grad(lambda x: x * held[-1])(1.0)


def test_a_tracer_that_leaked_has_no_gradient():
    leaked = []
    fg.grad(lambda x: leaked.append(x * 2) or x * x)(fnp.float32(1))
    for fun in (lambda x: x * x, lambda x: fnp.sum(fnp.sin(x))):
        with pytest.raises(LeakedTracerError, match="leaked"):
            fg.grad(fun)(leaked[0])


def test_an_inner_gradient_sees_the_outer_values():
    fun = fg.grad(lambda x: x * fg.grad(lambda y: x * y * y)(x))
    assert [float(fun(2.0)) for _ in range(3)] == [24.0, 24.0, 24.0]


def test_an_error_is_the_same_each_time():
    def fun(x):
        return fnp.sum(lax.while_loop(lambda c: fnp.sum(c) < 9, lambda c: c + c, x))

    messages = set()
    for _ in range(3):
        with pytest.raises(DifferentiationError) as error:
            fg.grad(fun)(fnp.ones(3))
        messages.add(str(error.value).splitlines()[0])
    assert len(messages) == 1


def test_deleted_arrays():
    c = fnp.ones(3)
    fun = fg.grad(lambda x: fnp.sum(x * c))
    for _ in range(3):
        fun(fnp.ones(3))
    c.delete()
    with pytest.raises(DonatedBufferError):
        fun(fnp.ones(3))


def test_parameters_that_never_come_again_are_not_kept_as_rules():
    x = normal(64)
    context.ROOT.types.clear()
    fg.grad(lambda x: fnp.sum(fnp.stack([x[i : i + 2] for i in range(60)])))(x)
    kinds = [type(v).__name__ for k, v in context.ROOT.types.items() if k[0] == "linear"]
    assert kinds
    assert kinds.count("LinearRule") <= 1


def test_what_was_computed_is_freed_while_the_tape_runs_back():
    alive = []

    @fg.custom_vjp
    def watched(x):
        return x

    def backward(_, ct):
        gc.collect()
        alive.append(held() is not None)
        return (ct,)

    watched.defvjp(lambda x: (x, None), backward)

    def fun(x):
        nonlocal held
        big = fnp.sin(watched(x))
        held = weakref.ref(big.primal._value)
        return fnp.sum(fnp.tanh(big) * big)

    held = None
    for _ in range(3):
        fg.grad(fun)(fnp.ones(2))
    assert alive[-1] is False


def test_only_at_the_root():
    states = []

    def fun(x):
        states.append((at_root(), type(x) is TapeTracer))
        return x * x

    fg.grad(fun)(1.0)
    fg.jit(fg.grad(fun))(1.0)
    with fg.debug_nans():
        fg.grad(fun)(1.0)
    assert states == [(False, True), (False, False), (False, False)]
    assert at_root()


def test_several_results_and_zeros():
    outs, pull = linearize_at_root(lambda x, y: [x * y, x, y * 0 + 1], [2.0, 3.0])
    assert [float(o) for o in outs] == [6.0, 2.0, 1.0]
    assert [float(c) for c in pull([fnp.float32(1), fnp.float32(10), fnp.float32(5)])] == [
        13.0,
        2.0,
    ]


def test_rules_say_what_they_keep():
    x = fnp.ones(2)
    product = fg.make_jaxpr(lambda x, y: x * y)(x, x).jaxpr
    assert [v.aval for v in linear_rule(product, [True, True]).backward.ins] == [x.aval] * 3
    rule = linear_rule(fg.make_jaxpr(lambda x, y: x + y)(x, x).jaxpr, [True, True])
    assert len(rule.backward.ins) == 1
    assert rule.positions == [0, 1]


@pytest.fixture
def small_is_large(monkeypatch):
    """In a context where nothing was met before."""
    monkeypatch.setattr(large, "LARGE", 64)
    with context.scoped(axes={}):
        context.ROOT.types.clear()
        yield
        context.ROOT.types.clear()


def attended(x):
    q, k, v = fnp.split(fnp.concatenate([x, x * 2, fnp.sin(x)], axis=1)[:, None], 3, axis=2)
    return fnp.sum(nn.dot_product_attention(q, k, v, is_causal=True) ** 2)


LARGE_FUNCTIONS = FUNCTIONS | {
    "a layer": lambda x: fnp.sum(nn.gelu(x @ x.T + 1) @ x),
    "norms": lambda x: fnp.sum(
        (x - fnp.mean(x, axis=1, keepdims=True)) / fnp.sqrt(fnp.var(x, axis=1, keepdims=True) + 1)
    ) + fnp.sum(nn.softmax(x) * nn.log_softmax(x, axis=0)),
    "attention": attended,
    "labels": lambda x: -fnp.mean(
        fnp.take_along_axis(nn.log_softmax(x), fnp.zeros((x.shape[0], 1), "int32"), axis=-1)
    ),
    "rows": lambda x: fnp.sum(x[fnp.array([0, 2, 0])] ** 2),
    "many rows": lambda x: fnp.sum(x[:1][fnp.zeros((20, 3), "int32")] ** 2),
    "an outer product": lambda x: fnp.sum((x[:, :1] @ x[:1]) ** 2),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("fun", LARGE_FUNCTIONS.values(), ids=LARGE_FUNCTIONS)
@pytest.mark.parametrize("shape", [(4, 6), (33, 10)])
def test_gradients_of_large_operands(fun, shape):
    x = normal(*shape)
    value, gradient = fg.value_and_grad(fun)(x)
    for _ in range(3):
        again = fg.value_and_grad(fun)(x)
        np.testing.assert_array_equal(again[0], value)
        np.testing.assert_array_equal(again[1], gradient)
    wanted = fg.jit(fg.value_and_grad(fun))(x)
    for got, want in zip((value, gradient), wanted, strict=True):
        scale = float(np.max(np.abs(np.asarray(want)), initial=1e-6))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * scale)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("name", ["a layer", "norms", "attention", "rows"])
def test_second_derivatives_of_large_operands(name):
    second = fg.grad(lambda x: fnp.sum(fg.grad(LARGE_FUNCTIONS[name])(x) ** 2))
    x = normal(6, 4)
    first, *more = (np.asarray(second(x)) for _ in range(3))
    for again in more:
        np.testing.assert_array_equal(again, first)
    want = np.asarray(fg.jit(second)(x))
    np.testing.assert_allclose(first, want, rtol=2e-4, atol=2e-5 * np.max(np.abs(want)))


@pytest.mark.usefixtures("small_is_large")
def test_threads_and_caches_that_are_cleared_give_the_same_bits():
    x = normal(40, 30)
    gradient = fg.grad(LARGE_FUNCTIONS["a layer"])
    want = np.asarray(gradient(x))
    context.ROOT.types.clear()
    with ThreadPoolExecutor(3) as pool:
        for got in pool.map(gradient, [x] * 9):
            np.testing.assert_array_equal(got, want)
    fg.clear_caches()
    np.testing.assert_array_equal(gradient(x), want)


@pytest.mark.usefixtures("small_is_large")
def test_large_operands_with_nan_or_deleted():
    x = fnp.zeros((20, 20))
    with fg.debug_nans(), pytest.raises(NonFiniteError):
        fg.grad(lambda x: fnp.sum(nn.softmax(x / 0)))(x)
    c = normal(20, 20)
    fun = fg.grad(lambda x: fnp.sum(nn.gelu(x) @ c))
    fun(x)
    c.delete()
    with pytest.raises(DonatedBufferError):
        fun(x)
