"""Attention lowered: planned and interpreted, and compiled, against its definition."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.backends.program import AttentionStep, Ref, walk
from funcgrad.transforms.attention.attention import KEPT, attention
from tests.backends.checks import check, floats, hosts

LONG = KEPT + 12
PASSES = ["attention", "attention_backward"]


def steps(planned):
    return [s for s in walk(planned.steps) if isinstance(s, AttentionStep)]


def both(f):
    """The value and the gradients, as a list."""

    def run(*xs):
        value, gradients = fg.value_and_grad(
            lambda *xs: fnp.sum(fnp.cos(f(*xs))), argnums=tuple(range(3))
        )(*xs)
        return [value, *gradients]

    return run


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", [(None, None), (None, 0), (9, 30)], ids=str)
def test_forward_and_backward(window, dtype):
    q, k, v = (floats(2, n, h, 8, seed=i, dtype=dtype)
               for i, (n, h) in enumerate(((40, 4), (LONG, 2), (LONG, 2))))  # fmt: skip
    before, after = window
    f = both(lambda q, k, v: attention(q, k, v, scale=0.3, before=before, after=after))
    planned = check(f, q, k, v)
    assert [s.op for s in steps(planned)] == PASSES
    assert not hosts(planned)
    got = fg.jit(f)(q, k, v)
    for g, w in zip(got, f(q, k, v), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4 if dtype == "float32" else 1e-11, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    q, k, v = (floats(1, n, 2, 16, seed=n).astype(kind) for n in (64, LONG, LONG))
    f = lambda q, k, v: attention(q, k, v, scale=0.25, after=60)
    planned = check(lambda *xs: [f(*xs)], q, k, v)
    assert len(steps(planned)) == 1
    gradients = fg.grad(lambda *xs: fnp.sum(f(*xs).astype("float32")), argnums=(0, 1, 2))
    for g, w in zip(fg.jit(gradients)(q, k, v), gradients(q, k, v), strict=True):
        assert g.dtype == kind
        np.testing.assert_allclose(g.astype("float32"), w.astype("float32"), rtol=3e-2, atol=3e-2)


def test_parts_are_read_where_they_lie():
    """Queries, keys and values as parts of one array, with heads in front: no copies."""
    x = floats(2, 4, 48, 3 * 8)

    def f(x):
        q, k, v = fnp.split(fnp.transpose(x, (0, 2, 1, 3)), 3, axis=-1)
        return [attention(q, k, v, scale=0.3, after=0)]

    planned = check(f, x)
    (step,) = planned.steps
    assert [s.ref.offset for s in step.ins] == [0, 32, 64]
    assert step.ins[0].strides == (4 * 48 * 24, 24, 48 * 24, 1)
    np.testing.assert_allclose(fg.jit(f)(x)[0], f(x)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_parts_are_written_where_they_belong(dtype):
    x = floats(2, LONG, 3 * 2 * 8, dtype=dtype)

    def f(x):
        q, k, v = fnp.split(x.reshape(2, LONG, 6, 8), 3, axis=2)
        return attention(q, k, v, scale=0.3, after=0)

    def gradient(x):
        return [fg.grad(lambda x: fnp.sum(f(x) ** 2))(x)]

    planned = check(gradient, x)
    _, backward = steps(planned)
    size = x.dtype.itemsize
    assert [to.ref for to in backward.outs] == [Ref("output", 0, i * 16 * size) for i in range(3)]
    assert {to.strides for to in backward.outs} == {(LONG * 48, 48, 8, 1)}
    np.testing.assert_allclose(fg.jit(gradient)(x)[0], gradient(x)[0], rtol=2e-4, atol=2e-5)


def test_results_are_written_where_they_belong():
    q, k, v = (floats(2, 40, 4, 8, seed=i) for i in range(3))

    def f(q, k, v):
        return [fnp.concatenate([attention(q, k, v, scale=0.3), v + 1.0], axis=2)]

    (step,) = steps(check(f, q, k, v))
    assert step.outs[0].strides == (40 * 64, 64, 8, 1)
    np.testing.assert_allclose(fg.jit(f)(q, k, v)[0], f(q, k, v)[0], rtol=1e-4, atol=1e-6)

    def features(q, k, v):
        return [fnp.concatenate([attention(q, k, v, scale=0.3), q, k, v, v + 1.0], axis=3)]

    (step,) = steps(check(features, q, k, v))
    assert step.outs[0].strides == (40 * 4 * 40, 4 * 40, 40, 1)

    def shared(q, k, v):
        out = attention(q, k, v, scale=0.3)
        return [fnp.concatenate([out, v + 1.0], axis=2), out * 2.0]

    (step,) = steps(check(shared, q, k, v))
    assert step.outs[0].strides == (40 * 32, 32, 8, 1)


def test_the_gradient_of_a_bias_is_an_array_of_its_own():
    q, k, v = (floats(1, n, 2, 8, seed=n) for n in (40, LONG, LONG))
    bias = floats(1, 4, 40, LONG)

    def f(q, k, v, bias):
        one, two = fnp.split(bias, 2, axis=1)
        return attention(q, k, v, bias=one, scale=0.3), two

    def gradient(*xs):
        def loss(*xs):
            out, two = f(*xs)
            return fnp.sum(out**2) + fnp.sum(two**2)

        return list(fg.grad(loss, argnums=(0, 3))(*xs))

    planned = check(gradient, q, k, v, bias)
    assert [s.op for s in steps(planned)] == PASSES
    for g, w in zip(fg.jit(gradient)(q, k, v, bias), gradient(q, k, v, bias), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5)


def test_lengths_in_memory():
    q, k, v = (floats(3, 33, 2, 8, seed=i) for i in range(3))
    lengths = np.int32([33, 5, 0]), np.int32([2, 33, 9])
    f = lambda q, k, v, a, b: [attention(q, k, v, (a, b), scale=0.3)]
    assert len(steps(check(f, q, k, v, *lengths))) == 1
    np.testing.assert_allclose(fg.jit(f)(q, k, v, *lengths)[0], f(q, k, v, *lengths)[0],
                               rtol=1e-4, atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("sizes", [(4, 300), (300, 4), (1, 1)], ids=str)
def test_few_places_go_by_the_formula(sizes):
    t, s = sizes
    q, k, v = (floats(2, n, 4, 8, seed=i) for i, n in enumerate((t, s, s)))
    planned = check(both(lambda *xs: attention(*xs, scale=0.3, before=2)), q, k, v)
    assert not steps(planned)
    assert not hosts(planned)


def test_in_loops():
    """Addresses that move with a counter; backward, residuals are rows of stacked arrays."""
    q, k = floats(3, 1, 40, 2, 8, dtype="f8"), floats(1, LONG, 2, 8, seed=1, dtype="f8")

    def f(q, k, v):
        def body(carry, x):
            out = attention(x, k, carry, scale=0.3)
            return carry + fnp.tanh(fnp.sum(out)), out

        return fg.lax.scan(body, v, q)[1]

    planned = check(both(f), q, k, k)
    assert {s.op for s in steps(planned)} == set(PASSES)
    for g, w in zip(fg.jit(both(f))(q, k, k), both(f)(q, k, k), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10)


def test_text():
    q = floats(1, 64, 2, 8)
    text = fg.jit(lambda q: attention(q, q, q, scale=1, after=0)).lower(q).as_text("loops")
    assert "attention float32 1x64x64x2/2x8 before None after 0: output0[" in text
    text = fg.jit(fg.grad(lambda q, k: fnp.sum(attention(q, k, k, scale=1))))
    text = text.lower(q, floats(1, LONG, 2, 8)).as_text("loops")
    assert "attention_backward float32" in text


def test_cost():
    q = fg.ShapeDtypeStruct((1, 1024, 8, 64), "float32")

    def flops(causal):
        f = fg.jit(lambda q: nn.dot_product_attention(q, q, q, is_causal=causal))
        return f.lower(q).compile().cost_analysis()["flops"]

    pairs = 8 * 1024**2
    assert flops(False) == pytest.approx(pairs * (4 * 64 + 14))
    assert flops(True) == pytest.approx(flops(False) / 2, rel=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [8192, 32768])
def test_memory_is_linear_in_the_length(length, causal):
    """Forward needs no temporaries; backward no more than a few arrays of the operands' size."""
    shape = fg.ShapeDtypeStruct((1, length, 8, 64), "float32")
    array = length * 8 * 64 * 4
    f = lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=causal)
    forward = fg.jit(f).lower(*[shape] * 3).compile().memory_analysis()
    assert forward["temp_size_in_bytes"] <= 2 * 8 * length * 4 + 64  # two numbers a row
    gradients = fg.grad(lambda *xs: fnp.sum(f(*xs) ** 2), argnums=(0, 1, 2))
    both = fg.jit(gradients).lower(*[shape] * 3).compile().memory_analysis()
    assert both["temp_size_in_bytes"] <= 5 * array


def test_a_long_sequence_runs():
    """Rows against the formula for these rows alone."""
    q, k, v = (floats(1, 8192, 1, 16, seed=i) for i in range(3))
    f = fg.jit(lambda *xs: nn.dot_product_attention(*xs, is_causal=True))
    out = np.asarray(f(q, k, v))
    for t in (0, 1, 4000, 8191):
        scores = k[0, : t + 1, 0] @ q[0, t, 0] / 4
        weights = np.exp(scores - scores.max())
        wanted = weights @ v[0, : t + 1, 0] / weights.sum()
        np.testing.assert_allclose(out[0, t, 0], wanted, rtol=1e-3, atol=1e-5)


PAIRS = {
    "bias": ((1, 4, 40, LONG), None),
    "broadcast": ((1, 1, 40, LONG), (2, 1, 1, LONG)),
    "mask": (None, (2, 4, 40, LONG)),
    "of queries": ((2, 4, 40, 1), (2, 1, 40, LONG)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_bias_and_mask(name, dtype):
    q, k, v = (floats(2, n, h, 8, seed=i, dtype=dtype)
               for i, (n, h) in enumerate(((40, 4), (LONG, 2), (LONG, 2))))  # fmt: skip
    bias, mask = PAIRS[name]
    mask = mask and floats(*mask, seed=9) > 0
    bias = bias and floats(*bias, seed=8, dtype=dtype)
    xs, numbers = [q, k, v], (0, 1, 2)
    if bias is not None:
        xs, numbers = [*xs, bias], (0, 1, 2, 3)

    def f(q, k, v, bias=None):
        loss = lambda *xs: fnp.sum(fnp.cos(attention(*xs[:3], (), *xs[3:], mask=mask, scale=0.3)))
        given = (q, k, v) if bias is None else (q, k, v, bias)
        value, gradients = fg.value_and_grad(loss, argnums=numbers)(*given)
        return [value, *gradients]

    planned = check(f, *xs)
    assert [s.op for s in steps(planned)] == PASSES
    assert set(steps(planned)[1].pairs) == {
        *(["bias", "dbias"] if bias is not None else []), *(["mask"] if mask is not None else [])
    }  # fmt: skip
    assert not hosts(planned)
    for g, w in zip(fg.jit(f)(*xs), f(*xs), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4 if dtype == "float32" else 1e-11, atol=2e-5)


def test_a_broadcast_bias_is_read_where_it_lies():
    q, bias = floats(3, 40, 2, 8), floats(40, 40)

    def f(q, bias):
        return [attention(q, q, q, (), fnp.broadcast_to(bias.T, (3, 2, 40, 40)), scale=0.3)]

    (step,) = check(f, q, bias).steps
    assert step.bias.strides == (0, 0, 1, 40)
    np.testing.assert_allclose(fg.jit(f)(q, bias)[0], f(q, bias)[0], rtol=1e-4, atol=1e-6)
    assert " bias input1[0, 0, 1, 40]" in fg.jit(f).lower(q, bias).as_text("loops")


def test_memory_with_a_mask_is_linear_in_the_length():
    shape = fg.ShapeDtypeStruct((1, 8192, 8, 64), "float32")
    mask = fg.ShapeDtypeStruct((1, 1, 1, 8192), "bool")
    f = lambda m, *xs: fnp.sum(nn.dot_product_attention(*xs, mask=m) ** 2)
    for fun, arrays in ((f, 3), (fg.grad(f, argnums=(1, 2, 3)), 9)):
        size = fg.jit(fun).lower(mask, *[shape] * 3).compile().memory_analysis()
        assert size["temp_size_in_bytes"] <= arrays * 8192 * 8 * 64 * 4


@pytest.mark.parametrize("order", [1, 2])
def test_memory_of_further_derivatives_is_linear_in_the_length(order):
    """Forward mode, and Hessian-vector products: arrays of the operands' size, and a block of
    weights."""
    length, block = 8192, 40 * (1 << 20)
    shape = fg.ShapeDtypeStruct((1, length, 2, 16), "float32")
    f = lambda *xs: fnp.sum(nn.dot_product_attention(*xs, is_causal=True) ** 2)
    f = fg.grad(f, argnums=(0, 1, 2)) if order == 2 else f
    tangent = lambda *xs: fg.jvp(f, xs, xs)[1]
    size = fg.jit(tangent).lower(*[shape] * 3).compile().memory_analysis()["temp_size_in_bytes"]
    assert size <= 60 * length * 2 * 16 * 4 + block
    assert size < 2 * length**2 * 4 / 2
