"""Attention forward and backward as one op: when they are, in which order, and what it gives."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.transforms.attention.attention import KEPT, attention
from tests.backends.checks import check, floats
from tests.backends.lower.test_attention import LONG, PASSES, steps

HEADS = 4


def operands(dtype="float32", heads=HEADS):
    """Of queries, keys, values and a cotangent, for 4 items of a batch."""
    sizes = ((40, 2 * heads), (LONG, heads), (LONG, heads), (40, 2 * heads))
    return [floats(4, n, h, 8, seed=i, dtype=dtype) for i, (n, h) in enumerate(sizes)]


def pulled(q, k, v, ct, **params):
    """The result, and the cotangents of a vjp."""
    out, pull = fg.vjp(lambda *xs: attention(*xs, scale=0.3, **params), q, k, v)
    return [out, *pull(ct)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("window", [(None, None), (None, 0), (9, 30)], ids=str)
def test_a_given_cotangent(window, dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    xs = [x.astype(kind) for x in operands("float64")]
    f = lambda *xs: pulled(*xs, before=window[0], after=window[1])
    assert [s.op for s in steps(check(f, *xs))] == ["attention_joint"]
    tolerance = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 4e-2}[dtype]
    for g, w in zip(fg.jit(f)(*xs), f(*xs), strict=True):
        g, w = (np.asarray(x).astype("f8") for x in (g, w))
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * np.abs(w).max())


def test_what_reads_the_result_comes_after():
    q, k, v, ct = operands()

    def f(q, k, v, ct):
        out, pull = fg.vjp(lambda *xs: attention(*xs, scale=0.3, after=20), q, k, v)
        total = fnp.sum(out * ct)
        return [total, *pull(fnp.tanh(ct)), fnp.cos(out)]

    assert [s.op for s in steps(check(f, q, k, v, ct))] == ["attention_joint"]
    for g, w in zip(fg.jit(f)(q, k, v, ct), f(q, k, v, ct), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5)


def test_layers_that_are_computed_once_more():
    """Of each layer the second forward pass is one with the backward pass, also in a scan."""
    q, ct = (floats(4, LONG, HEADS, 8, seed=i) for i in range(2))
    weights = 0.1 * floats(2, HEADS * 8, HEADS * 8)

    def layer(x, w):
        mixed = attention(fnp.sin(x), x, x, scale=0.3, after=0)
        return x + (mixed.reshape(4, LONG, -1) @ w).reshape(x.shape)

    def one_by_one(x, w):
        for i in range(2):
            x = fg.checkpoint(layer)(x, w[i])
        return fnp.sum(fnp.cos(x) * ct)

    def scanned(x, w):
        body = fg.checkpoint(lambda x, w: (layer(x, w), None))
        return fnp.sum(fnp.cos(fg.lax.scan(body, x, w)[0]) * ct)

    for loss in (one_by_one, scanned):
        gradient = lambda x, w, loss=loss: list(fg.grad(loss, argnums=(0, 1))(x, w))
        found = [s.op for s in steps(check(gradient, q, weights))]
        assert found == sorted(found)
        assert set(found) == {"attention", "attention_joint"}
        for g, w in zip(fg.jit(gradient)(q, weights), gradient(q, weights), strict=True):
            np.testing.assert_allclose(g, w, rtol=5e-4, atol=5e-4)


def test_cotangents_that_depend_on_the_result_come_later():
    q, k, v, ct = operands()

    def f(q, k, v, ct):
        out, pull = fg.vjp(lambda *xs: attention(*xs, scale=0.3), q, k, v)
        return list(pull(ct * out))

    assert [s.op for s in steps(check(f, q, k, v, ct))] == PASSES


@pytest.mark.parametrize("how", ["few heads", "bias", "mask", "statistics", "other keys"])
def test_what_is_not_joined(how):
    q, k, v, ct = operands(heads=1 if how == "few heads" else HEADS)
    bias, mask = floats(1, 1, 40, LONG), floats(1, 1, 40, LONG) > 0

    def f(q, k, v, ct):
        if how == "statistics":
            from funcgrad.transforms.attention.attention import attention_backward_p, attention_p

            params = {"scale": 0.3, "before": None, "after": None}
            out, stats = attention_p.bind(q, k, v, **params)
            cts = attention_backward_p.bind(q, k, v, out, stats, ct, bias_too=False, **params)
            return [*cts, stats]
        if how == "other keys":
            from funcgrad.transforms.attention.attention import attention_backward_p, attention_p

            params = {"scale": 0.3, "before": None, "after": None}
            out, stats = attention_p.bind(q, k, v, **params)
            return attention_backward_p.bind(q, v, k, out, stats, ct, bias_too=False, **params)
        given = {"bias": bias} if how == "bias" else {"mask": mask} if how == "mask" else {}
        return pulled(q, k, v, ct, **given)

    assert [s.op for s in steps(check(f, q, k, v, ct))] == PASSES


def test_lengths():
    q, k, v, ct = operands()
    lengths = np.int32([40, 13, 0, 99]), np.int32([LONG, 3, 50, 0])
    f = lambda *xs: pulled(*xs[:4], lengths=xs[4:])
    assert [s.op for s in steps(check(f, q, k, v, ct, *lengths))] == ["attention_joint"]
    for g, w in zip(fg.jit(f)(q, k, v, ct, *lengths), f(q, k, v, ct, *lengths), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5)
    assert LONG > KEPT
