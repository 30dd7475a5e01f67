"""Attention against loops over heads and queries."""

import numpy as np
import pytest
from scipy import special

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, nn

B, T, S, N, K, H = 2, 4, 6, 4, 2, 3


def loops(q, k, v, bias=None, allowed=None, scale=None, queries=None):
    """A head and a query at a time; `allowed` and `bias` are (B, N, T, S)."""
    out = np.zeros_like(q)
    b, t, n, h = q.shape
    group = n // k.shape[2]
    for i, j, head in np.ndindex(b, t, n):
        logits = k[i, :, head // group] @ q[i, j, head] * (h**-0.5 if scale is None else scale)
        logits = logits if bias is None else logits + bias[i, head, j]
        keep = np.ones(len(logits), bool) if allowed is None else allowed[i, head, j]
        values = v[i, :, head // group]
        if queries is None or j < queries[i]:
            own = special.softmax(logits[keep]) @ values[keep] if keep.any() else values.mean(0)
            out[i, j, head] = own
    return out


def inputs(rng, t=T, s=S, k=K):
    return (rng.normal(size=shape) for shape in ((B, t, N, H), (B, s, k, H), (B, s, k, H)))


def window(left, right, t=T, s=S):
    offset = np.arange(s)[None] - np.arange(t)[:, None]
    return (offset >= -left) & (offset <= right)


MASK = np.random.default_rng(0).random((B, N, T, S)) > 0.4
MASK[0, :, 1] = False
BIAS = np.random.default_rng(1).normal(size=(B, N, T, S))
INSIDE = (np.arange(T) < np.array([[2], [4]]))[:, None, :, None] & (
    np.arange(S) < np.array([[3], [0]])
)[:, None, None, :]

# name: (arguments of ours, arguments of the loops)
CASES = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "causal": ({"is_causal": True}, {"allowed": window(S, 0)}),
    "mask": ({"mask": MASK}, {"allowed": MASK}),
    "mask_of_all_heads": ({"mask": MASK[:, :1]}, {"allowed": MASK[:, :1]}),
    "causal_mask": ({"mask": MASK, "is_causal": True}, {"allowed": MASK & window(S, 0)}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "bias_of_all": ({"bias": BIAS[:1, :1]}, {"bias": BIAS[:1, :1]}),
    "window": ({"local_window_size": 1}, {"allowed": window(1, 1)}),
    "windows": ({"local_window_size": (2, 0)}, {"allowed": window(2, 0)}),
    "lengths": (
        {"query_seq_lengths": np.array([2, 4]), "key_value_seq_lengths": np.array([3, 0])},
        {"allowed": INSIDE, "queries": [2, 4]},
    ),
    "everything": (
        {"bias": BIAS, "mask": MASK, "is_causal": True, "local_window_size": 2, "scale": 2.0},
        {"bias": BIAS, "allowed": MASK & window(2, 0), "scale": 2.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_values(name, jit, rng):
    q, k, v = inputs(rng)
    ours, theirs = CASES[name]
    whole = {
        a: np.broadcast_to(x, (B, N, T, S)) for a, x in theirs.items() if a in ("bias", "allowed")
    }
    f = lambda *qkv: nn.dot_product_attention(*qkv, **ours)
    got = (fg.jit(f) if jit else f)(q, k, v)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, loops(q, k, v, **(theirs | whole)), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["plain", "causal", "mask", "lengths", "everything"])
def test_derivatives(name, rng):
    qkv = tuple(fnp.array(x) for x in inputs(rng))
    weights = rng.normal(size=(B, T, N, H))
    f = lambda *qkv: fnp.sum(weights * nn.dot_product_attention(*qkv, **CASES[name][0]))
    gradients = fg.jit(fg.grad(f, (0, 1, 2)))(*qkv)
    along = tuple(rng.normal(size=x.shape) for x in qkv)
    h = 1e-5
    ends = [f(*(x + s * h * d for x, d in zip(qkv, along, strict=True))) for s in (1, -1)]
    wanted = float(ends[0] - ends[1]) / (2 * h)
    got = sum(float(fnp.sum(g * d)) for g, d in zip(gradients, along, strict=True))
    assert got == pytest.approx(wanted, rel=1e-6)
    assert float(fg.jvp(f, qkv, along)[1]) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("t", "s", "k"), [(7, 3, 2), (3, 3, 1), (1, 5, 4)])
def test_shapes_and_groups(t, s, k, rng):
    q, key, v = inputs(rng, t, s, k)
    np.testing.assert_allclose(nn.dot_product_attention(q, key, v), loops(q, key, v), rtol=1e-11)
    causal = np.broadcast_to(window(t, 0, t, s), (B, N, t, s))
    got = nn.dot_product_attention(q, key, v, is_causal=True)
    np.testing.assert_allclose(got, loops(q, key, v, allowed=causal), rtol=1e-11)
    single = nn.dot_product_attention(q[0], key[0], v[0])
    np.testing.assert_allclose(single, loops(q, key, v)[0], rtol=1e-11)


@pytest.mark.parametrize(("dtype", "room"), [("float16", 4e-3), ("bfloat16", 3e-2)])
def test_narrow_floats(dtype, room, rng):
    q, k, v = (fnp.array(x).astype(dtype) for x in inputs(rng))
    got = nn.dot_product_attention(q, k, v, bias=fnp.array(BIAS), mask=MASK)
    assert got.dtype == q.dtype
    exact = (np.asarray(x, float) for x in (q, k, v))
    wanted = loops(*exact, bias=BIAS, allowed=MASK)
    np.testing.assert_allclose(np.asarray(got, float), wanted, atol=room, rtol=room)
    large = nn.dot_product_attention(q * 120, k * 120, v)
    assert np.isfinite(np.asarray(large, float)).all()


def test_vmap_is_a_batch(rng):
    q, k, v = inputs(rng)
    one = lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(fg.vmap(one)(q, k, v), one(q, k, v), rtol=1e-11)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(4, 3), (4, 3), (4, 3)], r"got query \(1, 4, 3\)"),
        ([(1, 4, 4, 3), (1, 4, 3, 3), (1, 4, 3, 3)], "key heads divide the query heads"),
        ([(1, 4, 4, 3), (1, 4, 4, 3), (1, 5, 4, 3)], "one shape"),
        ([(1, 4, 4, 3), (2, 4, 4, 3), (2, 4, 4, 3)], r"key \(2, 4, 4, 3\)"),
        ([(1, 4, 4, 3), (1, 4, 4, 5), (1, 4, 4, 5)], "must agree"),
    ],
)
def test_bad_shapes(shapes, words):
    with pytest.raises(errors.ShapeError, match=words):
        nn.dot_product_attention(*(fnp.ones(s) for s in shapes))


def test_a_mask_is_of_bools():
    x = fnp.ones((1, 2, 1, 3))
    with pytest.raises(errors.DTypeError, match="mask must be of bools, got float32.*as bias"):
        nn.dot_product_attention(x, x, x, mask=fnp.zeros((2, 2)))


@pytest.mark.parametrize("size", [-1, (1, -2), (1, 2, 3), 1.5, "all"])
def test_a_window_is_a_number_of_keys_or_two(size):
    x = fnp.ones((1, 2, 1, 3))
    with pytest.raises(ValueError, match="local_window_size must be a number of keys"):
        nn.dot_product_attention(x, x, x, local_window_size=size)


def test_lengths_are_one_integer_a_sequence():
    x = fnp.ones((2, 4, 1, 3))
    with pytest.raises(
        errors.ShapeError, match=r"query_seq_lengths must be of shape \(2,\).*\(3,\)"
    ):
        nn.dot_product_attention(x, x, x, query_seq_lengths=fnp.array([1, 2, 3]))
    with pytest.raises(errors.DTypeError, match="key_value_seq_lengths must be integers"):
        nn.dot_product_attention(x, x, x, key_value_seq_lengths=fnp.ones(2))


@pytest.mark.parametrize("t", [5, 40])
def test_nan_of_hidden_keys_stays_there(t, rng):
    q, k, v = (rng.normal(size=(1, t, 2, 8)).astype("f4") for _ in "qkv")
    mask = np.ones((1, 1, 1, t), bool)
    mask[..., 3] = False
    value = lambda k: nn.dot_product_attention(q, k, v, mask=mask)
    wanted = value(k)
    k[0, 3] = np.nan
    for f in (value, fg.jit(value)):
        np.testing.assert_allclose(f(k), wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-50])
def test_scales_that_are_not_positive_or_nothing_in_float32(scale, rng):
    q, k, v = (rng.normal(size=(1, 70, 2, 8)).astype("f4") for _ in "qkv")

    def value(*xs):
        return nn.dot_product_attention(*xs, scale=scale, is_causal=True)

    def gradients(*xs):
        return fg.grad(lambda *xs: fnp.sum(value(*xs) ** 2), argnums=(0, 1, 2))(*xs)

    allowed = np.broadcast_to(window(70, 0, 70, 70), (1, 2, 70, 70))
    wanted = loops(q, k, v, allowed=allowed, scale=scale)
    for f in (value, fg.jit(value)):
        np.testing.assert_allclose(f(q, k, v), wanted, rtol=1e-4, atol=1e-5)
    for got, other in zip(fg.jit(gradients)(q, k, v), gradients(q, k, v), strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-4, atol=1e-5)


def test_rows_without_keys_are_means_that_have_gradients(rng):
    q, k, v = (rng.normal(size=(1, 40, 1, 8)) for _ in "qkv")
    mask = np.zeros((40, 40), bool)
    gradient = fg.jit(fg.grad(lambda v: fnp.sum(nn.dot_product_attention(q, k, v, mask=mask))))
    np.testing.assert_allclose(gradient(v), np.ones_like(v), rtol=1e-10)


def test_bias_and_mask_that_do_not_fit():
    x = fnp.ones((2, 4, 1, 3))
    with pytest.raises(errors.ShapeError, match=r"bias must be broadcastable to .* \(2, 1, 4, 4\)"):
        nn.dot_product_attention(x, x, x, bias=fnp.zeros((3, 1, 4, 4)))
    with pytest.raises(errors.DTypeError, match="bias must be of real numbers, got complex64"):
        nn.dot_product_attention(x, x, x, bias=fnp.zeros((4, 4), "complex64"))


def test_implementations_of_jax():
    x = fnp.ones((1, 2, 1, 4))
    assert nn.dot_product_attention(x, x, x, implementation="xla").shape == x.shape
    with pytest.raises(ValueError, match="implementation must be None or 'xla', got 'cudnn'"):
        nn.dot_product_attention(x, x, x, implementation="cudnn")
