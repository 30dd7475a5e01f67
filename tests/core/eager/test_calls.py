"""Programs on large operands are compiled, by types alone; the others are NumPy's calls."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.eager import large
from funcgrad.core.eager.calls import calls, is_large, pays
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.transforms.passes.simplify import simplify

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 64)


def normal(*shape, dtype="float32"):
    return fnp.array(RNG.standard_normal(shape), dtype)


def jaxpr_of(fun, *args):
    return simplify(fg.make_jaxpr(fun)(*args).jaxpr)


PAYS = {
    "two passes": (lambda x: fnp.exp(x) + 1, True),
    "one pass": (lambda x: x + 1, False),
    "a broadcast and a pass": (lambda x: x + x[0], True),
    "a broadcast alone": (lambda x: fnp.broadcast_to(x * 2, (3, 6, 5)), False),
    "a view and a pass": (lambda x: x.T * 2, False),
    "a product": (lambda x: x @ x.T, True),
    "a gather": (lambda x: x[fnp.array([1, 0])], True),
    "a step in Python": (lambda x: fnp.sort(x) * 2 + 1, False),
    "complex numbers": (lambda x: (x * 2 + 1j) * 2, False),
    "a sum": (lambda x: fnp.sum(x, axis=0), True),
    "small values": (lambda x: x[0] * 2 + 1, False),
    "attention": (lambda x: nn.dot_product_attention(*[x[:, :, None]] * 3), True),
    "a callback": (lambda x: fg.pure_callback(np.sin, x, x) * 2 + 1, False),
}


@pytest.mark.parametrize(("fun", "expected"), PAYS.values(), ids=PAYS)
def test_what_pays(fun, expected):
    assert pays(jaxpr_of(fun, normal(6, 5))) is expected
    assert is_large([np.zeros(16, np.float32)])
    assert not is_large([np.zeros(15, np.float32), np.zeros(0)])


FUNCTIONS = {
    "elementwise": lambda x: fnp.tanh(x * 2 + 1),
    "sums": lambda x: fnp.sum(fnp.exp(x), axis=0) + fnp.max(x * 2, initial=1),
    "a product": lambda x: x @ (x * 2).T,
    "a literal": lambda x: (fnp.exp(x) * 2, 3.0, 3.0),
    "inputs and results twice": lambda x: (x, y := fnp.exp(x) * 2, x, y),
    "choices": lambda x: fnp.where(x > 0, x, fnp.abs(x) / 3),
    "pieces": lambda x: fnp.concatenate([x[:1] * 2, fnp.flip(x[1:]), x]),
    "indices": lambda x: fnp.zeros_like(x).at[:, fnp.array([0, 0])].add(x[:, :2]),
    "softmax": lambda x: nn.softmax(x),
    "norm": lambda x: nn.log_softmax(x, axis=0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_compiled_programs_give_what_numpy_does(fun, dtype):
    for shape in [(4, 33), (0, 2), (7, 2)]:
        x = fnp.array(np.asarray(normal(*shape)) * 3, dtype)
        closed = fg.make_jaxpr(fun)(x)
        jaxpr, values = simplify(closed.jaxpr), list(map(np.asarray, (*closed.consts, x)))
        got, want = calls(jaxpr, True)(*values), numpy_calls(jaxpr)(*values)
        rough = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-13}.get(dtype, 2e-6)
        for a, b in zip(got, want, strict=True):
            assert (type(a), a.dtype, a.shape) == (type(b), b.dtype, b.shape)
            scale = np.max(np.abs(b.astype(float)), initial=1)
            np.testing.assert_allclose(
                a.astype(float), b.astype(float), rtol=rough, atol=rough * scale
            )


def test_not_a_number_and_infinities():
    jaxpr = jaxpr_of(lambda x: (fnp.exp(x) * x, fnp.max(x * 2), fnp.sum(x / 0)), normal(9, 9))
    for value in (np.nan, np.inf, -np.inf):
        x = np.ones((9, 9), np.float32)
        x[4, 4] = value
        with np.errstate(all="raise"):
            got = calls(jaxpr, True)(x)
        with np.errstate(all="ignore"):
            want = numpy_calls(jaxpr)(x)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_results_that_are_inputs_are_not_copied_nor_read():
    x, y = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)[:, ::-1]
    run = calls(jaxpr_of(lambda x, y: (y, fnp.exp(x) * 2, x), x, y), True)
    given, made, same = run(x, y)
    assert given is y
    assert same is x
    np.testing.assert_allclose(made, np.exp(x) * 2, rtol=1e-6)


def test_operands_in_any_order_of_memory():
    run = calls(jaxpr_of(lambda x: fnp.exp(x) * 2 + x, normal(6, 5)), True)
    for x in (np.asarray(normal(5, 6)).T, np.asarray(normal(12, 10))[::2, ::-2],
              np.broadcast_to(np.float32(2), (6, 5))):  # fmt: skip
        # Where the terms cancel, what they are rounded by stays.
        np.testing.assert_allclose(run(x)[0], np.exp(x) * 2 + x, rtol=1e-6, atol=1e-6)


def test_only_where_asked():
    jaxpr = jaxpr_of(lambda x: lax.exp(x) * 2, normal(8, 8))
    x = np.asarray(normal(8, 8))
    np.testing.assert_array_equal(calls(jaxpr)(x)[0], np.exp(x) * 2)
