"""Operations on large arrays that a tape puts off: they are one program, and nobody notices."""

import itertools
import threading
import time

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core import context
from funcgrad.core.eager import large
from funcgrad.transforms.tape import fused
from funcgrad.transforms.tape.fused import Chain, JointRule
from funcgrad.transforms.tape.linear_rule import LinearRule

RNG = np.random.default_rng(0)


def normal(*shape):
    return fnp.array(RNG.standard_normal(shape).astype(np.float32))


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    """In a context where nothing was met before."""
    monkeypatch.setattr(large, "LARGE", 64)
    context.ROOT.types.clear()
    yield
    context.ROOT.types.clear()


def programs():
    """The programs of several operations that were made."""
    return [r for r in context.ROOT.types.values() if type(r) is JointRule]


def agrees(fun, *args, times=3):
    """Gradients and value are those of the compiled function, and the same each time."""
    numbers = tuple(range(len(args)))
    want = fg.jit(fg.value_and_grad(fun, numbers))(*args)
    first = fg.value_and_grad(fun, numbers)(*args)
    for got, wanted in zip(fg.tree.leaves(first), fg.tree.leaves(want), strict=True):
        scale = float(np.max(np.abs(np.asarray(wanted)), initial=1e-6))
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=4e-6 * scale)
    for _ in range(times - 1):
        again = fg.value_and_grad(fun, numbers)(*args)
        for got, wanted in zip(fg.tree.leaves(again), fg.tree.leaves(first), strict=True):
            np.testing.assert_array_equal(got, wanted)


def norm(x, scale, shift):
    mean = fnp.mean(x, axis=-1, keepdims=True)
    variance = fnp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / fnp.sqrt(variance + 1e-5) * scale + shift


def test_a_norm_is_one_program():
    def fun(x, scale, shift, w):
        return fnp.sum(norm(x, scale, shift) @ w)

    agrees(fun, normal(6, 8), normal(8), normal(8), normal(8, 5))
    assert len(programs()) == 1


def test_a_model_of_equal_layers_makes_few_programs():
    def fun(x, w, b):
        for _ in range(5):
            x = x + nn.gelu(norm(x, b, b) @ w + b)
        return fnp.sum(x)

    agrees(fun, normal(8, 8), normal(8, 8), normal(8))
    assert len(programs()) == 3  # the first norm, what is between two products, the end


def test_what_the_caller_holds_is_there_and_takes_cotangents():
    def fun(x, w):
        a = x * 2 + 1
        b = fnp.sin(a)
        c = b * a
        return fnp.sum(c @ w) + fnp.sum((a @ w) ** 2) + fnp.sum(b[0])

    agrees(fun, normal(6, 8), normal(8, 8))


def test_what_is_held_but_leads_nowhere_takes_no_part():
    def fun(x):
        a = x * 0
        b = fnp.log(a)  # whose derivative would be infinite
        c = a + x
        fnp.max(c @ c.T)  # everything so far is computed, since it was held
        return fnp.sum(c @ c.T) + 0 * fnp.sum(lax.stop_gradient(b @ c.T) > 0)

    agrees(fun, normal(6, 8))


@pytest.mark.filterwarnings("error")
def test_values_that_are_not_finite_pass_silently():
    with np.errstate(all="raise"):
        gradient = fg.grad(lambda x: fnp.sum(fnp.sqrt(x * 0 - 1) * x / 0))(normal(6, 8))
    assert np.isnan(gradient).all()


def test_python_sees_values():
    seen = []

    def fun(x):
        y = x * 2
        y = y + 1
        seen.append(float(fnp.sum(y)))
        return fnp.sum(y * y) if y[0, 0] > 0 else fnp.sum(y)

    x = fnp.ones((6, 8))
    np.testing.assert_array_equal(fg.grad(fun)(x), 12 * x)
    np.testing.assert_array_equal(fg.grad(fun)(-x), 2 * x)
    assert seen == [144, -48]


def test_constants_numbers_and_other_dtypes_are_operands():
    c, mask, n = normal(6, 8), fnp.arange(48).reshape(6, 8) % 3 > 0, fnp.arange(8)

    def fun(x):
        y = fnp.where(mask, x * c + c, 0) * n / 7
        return fnp.sum((y.astype("float16") * 2).astype("float32") ** 2)

    agrees(fun, fnp.round(normal(6, 8)))


def test_a_constant_that_is_donated_or_deleted_before_its_time_is_as_it_was():
    donating = fg.jit(lambda c: c * 0, donate_argnums=0)

    def fun(x, end):
        c = fnp.full((6, 8), 3.0)
        y = x * c + x
        end(c)
        return fnp.sum(y * y)

    for end in (donating, lambda c: c.delete()):
        for _ in range(3):
            gradient = fg.grad(lambda x, end=end: fun(x, end))(fnp.ones((6, 8)))
            np.testing.assert_array_equal(gradient, np.full((6, 8), 32))


def test_long_chains_are_cut():
    def fun(x):
        for _ in range(3 * fused.MOST_EQUATIONS):
            x = x * 0.5 + 1
        return fnp.sum(x * x)

    agrees(fun, normal(6, 8))
    assert 1 < len(programs()) <= 8


def test_what_changes_from_call_to_call_is_no_longer_joined():
    x = normal(6, 8)

    def fun(x, order):
        for f in order:
            x = f(x)
        return fnp.sum(x * 2)

    some = [fnp.sin, fnp.cos, fnp.tanh, nn.sigmoid, fnp.abs]
    for _ in range(3 * fused.MOST_PROGRAMS):
        order = [some[i] for i in RNG.integers(0, 5, 6)]
        got = fg.grad(fun)(x, order)
        want = fg.jit(fg.grad(lambda x, order=order: fun(x, order)))(x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(programs()) == fused.MOST_PROGRAMS


def test_nor_is_what_also_ends_in_many_ways():
    some = [fnp.sin, fnp.cos, fnp.tanh, nn.sigmoid, fnp.abs, fnp.square, fnp.exp]
    x, w = normal(6, 8), normal(8, 8)
    for f, g in itertools.product(some, repeat=2):
        got = fg.grad(lambda x, f=f, g=g: fnp.sum(g(f(x)) @ w))(x)
        want = fg.grad(lambda x, f=f, g=g: fnp.sum(fg.jit(lambda x: g(f(x)))(x) @ w))(x)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(programs()) == fused.MOST_OF_A_TYPE


def test_threads_agree_on_what_is_joined(monkeypatch):
    """Also where the other is about to make the last program that may be made."""
    x, first = normal(6, 8), threading.Event()
    make, results = fused._program, []

    def slow(*args):
        if not first.is_set():
            first.set()
            time.sleep(0.2)
        return make(*args)

    fun = fg.grad(lambda x: fnp.sum(fnp.sin(x) * x + fnp.cos(x)))
    monkeypatch.setattr(fused, "_program", slow)
    monkeypatch.setattr(fused, "MOST_PROGRAMS", 1)
    other = threading.Thread(target=lambda: results.append(fun(x)))
    other.start()
    assert first.wait(60)
    kept = []
    monkeypatch.setattr(Chain, "_compute", _watched(Chain._compute, kept))
    got = fun(x)
    other.join()
    np.testing.assert_array_equal(got, results[0])
    assert [type(node[0]) for node in kept] == [JointRule]


def _watched(compute, kept):
    """`compute`, which writes down the nodes that it made."""

    def watched(self, late, tracers, nodes):
        compute(self, late, tracers, nodes)
        kept.extend(node for node in nodes if node is not None)

    return watched


def test_small_operations_are_joined_with_large_ones_from_the_first_time_on():
    def fun(x):
        y = fnp.mean(x, axis=0) * 2  # small from here on
        return fnp.sum(fnp.tanh(fnp.exp(y) * y))

    agrees(fun, normal(100, 3))
    assert len(programs()) == 1


def test_an_error_leaves_what_was_put_off(monkeypatch):
    def fun(x):
        y = x * 2 + 1
        with monkeypatch.context() as patch:
            patch.setattr(Chain, "_compute", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                float(fnp.sum(y))
        return fnp.sum(y * y)

    np.testing.assert_array_equal(fg.grad(fun)(fnp.ones((6, 8))), fnp.full((6, 8), 12))


def test_nothing_is_computed_that_nobody_holds(monkeypatch):
    def fun(x):
        fnp.sin(x) + x
        return x[0, 0]

    monkeypatch.setattr(Chain, "_compute", lambda *args: 1 / 0)
    assert float(fnp.sum(fg.grad(fun)(normal(6, 8)))) == 1


def heads(x, w, n=2):
    b, t, _ = x.shape
    q, k, v = fnp.split((x @ w).reshape(b, t, 3 * n, -1), 3, axis=2)
    return q, k, v, nn.dot_product_attention(q, k, v, is_causal=True)


def test_attention_reads_parts_of_one_array():
    agrees(lambda x, w: fnp.sum(heads(x, w)[-1] ** 2), normal(2, 5, 8), normal(8, 24))
    (whole, _) = programs()
    assert [v.aval.shape for v in whole.pulled((True,))[1].outs] == [(2, 5, 24)]


def test_parts_that_attention_reads_have_other_readers():
    def fun(x, w):
        q, k, v, out = heads(x, w)
        return fnp.sum(out**2) + fnp.sum(q * v) + fnp.sum(k)

    agrees(fun, normal(2, 5, 8), normal(8, 24))


def test_attention_reads_other_parts_each_time():
    x, w = normal(1, 40, 8), normal(8, 24)

    def fun(x, w, start):
        q, k, v, _ = heads(x, w)
        out = nn.dot_product_attention(q[:, start : start + 4], k, v)
        return fnp.sum(out * out)

    for start in range(fused.MOST_PROGRAMS + 4):
        got = fg.grad(fun)(x, w, start)
        np.testing.assert_allclose(got, fg.jit(fg.grad(fun), static_argnums=2)(x, w, start),
                                   rtol=1e-4, atol=1e-4)  # fmt: skip
    assert len(programs()) <= fused.MOST_PROGRAMS + 2


def test_a_rule_is_derived_when_it_is_run_alone():
    product = fg.make_jaxpr(lambda x: x * x + x)(fnp.ones((6, 8))).jaxpr
    rule = LinearRule(product, [True], compiling=True)
    assert rule.starts
    assert not hasattr(rule, "pull")
    np.testing.assert_array_equal(rule.run(np.ones((6, 8), np.float32))[0], np.full((6, 8), 2))
    assert rule.positions == [0]
