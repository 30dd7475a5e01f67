"""Attention as an op: derivatives that compute weights anew, batches, axes that may be cut."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors, nn
from funcgrad.core.aval import ShapedArray
from funcgrad.transforms.attention import attention as at
from funcgrad.transforms.attention import formula, reference
from funcgrad.transforms.attention.operands import Given
from tests.ops.rules import random_like
from tests.test_ops import check_cuts

PARAMS = {"scale": 0.4, "before": None, "after": None}
LONG = at.KEPT + 3
WINDOWS = {"all": None, "causal": (None, 0), "window": (20, 7), "behind": (200, -3)}


def operands(rng, queries=9, keys=LONG, heads=(4, 2), batch=2, features=5):
    n, k = heads
    shapes = [(batch, queries, n, features)] + [(batch, keys, k, features)] * 2
    return [rng.normal(size=s) for s in shapes]


def fused(window):
    before, after = window or (None, None)
    return lambda q, k, v: at.attention(q, k, v, scale=0.4, before=before, after=after)


def composed(window, lengths=()):
    """The formula, with all weights at once."""
    before, after = window or (None, None)
    params = {"scale": 0.4, "before": before, "after": after}

    def run(q, k, v, *pairs):
        given = Given(lengths, *pairs)
        f = formula.Formula(q, k, v, given, **params)
        return f.value(np.result_type(q))[0]

    return run


def loss(f, seed):
    return lambda *xs: fnp.sum(fnp.sin(f(*xs)) * seed)


def names(fun, *args):
    return [e.prim.name for e in fg.make_jaxpr(fun)(*args).jaxpr.eqns]


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients(name, jit, rng):
    xs = operands(rng)
    seed = random_like(rng, xs[0])
    gradients = [
        fg.grad(loss(f(WINDOWS[name]), seed), argnums=(0, 1, 2)) for f in (fused, composed)
    ]
    assert {"attention", "attention_backward"} <= set(names(gradients[0], *xs))
    ours = (fg.jit(gradients[0]) if jit else gradients[0])(*xs)
    for g, w in zip(ours, gradients[1](*xs), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["all", "window"])
def test_second_derivatives(name, rng):
    """Forward over reverse, reverse over reverse, reverse over forward."""
    xs = operands(rng, heads=(2, 1), batch=1)
    seed, directions = random_like(rng, xs[0]), [random_like(rng, x) for x in xs]

    def all_orders(f):
        one = fg.grad(loss(f(WINDOWS[name]), seed), argnums=(0, 1, 2))
        forward = lambda *xs: fg.jvp(loss(f(WINDOWS[name]), seed), xs, tuple(directions))[1]
        product = lambda *xs: sum(fnp.sum(g * d) for g, d in zip(one(*xs), directions, strict=True))
        return [
            *fg.jvp(one, tuple(xs), tuple(directions))[1],
            *fg.grad(product, argnums=(0, 1, 2))(*xs),
            *fg.grad(forward, argnums=(0, 1, 2))(*xs),
        ]

    for g, w in zip(all_orders(fused), all_orders(composed), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10)


def test_gradient_is_linear_in_the_cotangent(rng):
    """The op's backward transposes to its tangent."""
    xs = operands(rng, heads=(2, 2), batch=1)
    _, pull = fg.vjp(fused(None), *xs)
    _, want = fg.vjp(composed(None), *xs)
    ct, given = random_like(rng, xs[0]), tuple(random_like(rng, x) for x in xs)
    (back,), (wanted,) = (fg.linear_transpose(f, ct)(given) for f in (pull, want))
    np.testing.assert_allclose(back, wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("axes", [(0, 0, 0), (1, None, 3), (None, 2, 0)], ids=str)
def test_vmap_of_gradients(axes, rng):
    lanes = [operands(rng, heads=(2, 1), queries=4) for _ in range(3)]
    args = [
        lanes[0][i] if d is None else np.stack([x[i] for x in lanes], d) for i, d in enumerate(axes)
    ]
    gradient = fg.grad(lambda *xs: fnp.sum(fused((None, 0))(*xs) ** 2), argnums=(0, 1, 2))
    got = fg.jit(fg.vmap(gradient, axes))(*args)
    for k in range(3):
        own = [lanes[0][i] if d is None else lanes[k][i] for i, d in enumerate(axes)]
        for g, w in zip(got, gradient(*own), strict=True):
            np.testing.assert_allclose(g[k], w, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("window", "most"), [(None, at.KEPT), ((None, 0), at.KEPT_IN_WINDOWS)], ids=["whole", "causal"]
)
def test_short_sequences_keep_their_weights(window, most, rng):
    for keys in (most, most + 1):
        xs = operands(rng, keys=keys)
        found = names(fg.grad(lambda *xs: fnp.sum(fused(window)(*xs))), *xs)
        anew = {"attention", "attention_backward"} & set(found)
        assert len(anew) == (2 if keys > most else 0)
        assert names(fused(window), *xs) == ["attention"]


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=str)
@pytest.mark.parametrize("after", [None, 0])
@pytest.mark.parametrize("bounded", [False, True])
def test_axes_that_may_be_cut(heads, after, bounded, rng):
    q, k, v = operands(rng, queries=6, keys=8, heads=heads)
    params = {**PARAMS, "after": after}
    lengths = [np.int32([3, 6]), np.int32([8, 5])] if bounded else []
    out, stats = at.attention_p.impl(np, q, k, v, *lengths, **params)
    check_cuts(at.attention_p, params, [q, k, v, *lengths])
    tangents = [random_like(rng, x) for x in (q, k, v)]
    check_cuts(at.attention_tangent_p, params, [q, k, v, out, stats, *tangents, *lengths])
    given = [q, k, v, out, stats, tangents[0], *lengths]
    check_cuts(at.attention_backward_p, {**params, "bias_too": False}, given)
    assert ("t!" in at.attention_p.dims(*avals(q, k, v, *lengths), **params)) == (
        after == 0 or bounded
    )


def avals(*xs):
    return [ShapedArray(x.shape, x.dtype) for x in xs]


def test_reference_in_blocks(monkeypatch, rng):
    q, k, v = operands(rng)
    whole = at.attention_p.impl(np, q, k, v, **{**PARAMS, "after": 50})
    ct = random_like(rng, q)
    params = {**PARAMS, "after": 50, "bias_too": False}
    wanted = at.attention_backward_p.impl(np, q, k, v, *whole, ct, **params)
    monkeypatch.setattr(reference, "MOST_SCORES", 2 * 4 * LONG * 2)
    parts = at.attention_p.impl(np, q, k, v, **{**PARAMS, "after": 50})
    got = at.attention_backward_p.impl(np, q, k, v, *whole, ct, **params)
    for g, w in zip((*parts, *got), (*whole, *wanted), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-13)


def test_unusual_scales(rng):
    """Zero, negative and traced ones scale the queries."""
    q, k, v = operands(rng, heads=(2, 2))
    for scale in (0.0, -0.7):
        got = nn.dot_product_attention(q, k, v, scale=scale)
        wanted = nn.dot_product_attention(q * scale, k, v, scale=1.0)
        np.testing.assert_allclose(got, wanted, rtol=1e-10)
    traced = fg.jit(lambda s: nn.dot_product_attention(q, k, v, scale=s))(-0.7)
    # -0.7 comes as a float32.
    np.testing.assert_allclose(traced, got, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_nothing(sizes):
    t, s = sizes
    q, k = np.ones((1, t, 2, 4), np.float32), np.ones((1, s, 2, 4), np.float32)
    for f in (nn.dot_product_attention, fg.jit(nn.dot_product_attention)):
        out = f(q, k, k)
        assert out.shape == q.shape
        np.testing.assert_array_equal(out, 0)


def test_errors():
    x = np.ones((2, 3, 4, 5), np.float32)
    with pytest.raises(ValueError, match=r"attention: scale must be positive, got -1"):
        at.attention(x, x, x, scale=-1)
    with pytest.raises(errors.ShapeError, match=r"attention: need query .B, T, N, H.*f32\[3,4,5\]"):
        at.attention(x[0], x, x, scale=1)
    with pytest.raises(errors.ShapeError, match=r"sizes of query .* don't fit"):
        at.attention(x, x[:, :, :3], x[:, :, :3], scale=1)
    with pytest.raises(errors.DTypeError, match="floats of one dtype"):
        at.attention(x, x.astype(np.float16), x, scale=1)
    with pytest.raises(errors.ShapeError, match=r"two int32 arrays of shape \(2,\), got i32\[3\]"):
        at.attention(x, x, x, (np.int32([1, 2, 3]),) * 2, scale=1)


PAIRS = {
    "bias": ((1, 4, 9, LONG), None),
    "of heads": ((1, 4, 1, 1), None),
    "of keys": ((2, 1, 1, LONG), (2, 1, 1, LONG)),
    "of queries": ((2, 4, 9, 1), (1, 1, 9, LONG)),
    "all": ((2, 4, 9, LONG), (2, 4, 9, LONG)),
}


def pairs(rng, name):
    """A bias and perhaps a mask, by which the second query sees nothing."""
    bias, mask = PAIRS[name]
    found = [rng.normal(size=bias)]
    if mask:
        found.append(rng.random(mask) > 0.4)
        if mask[2] != 1:
            found[1][:, :, 1] = False
    return found


def with_pairs(f, more):
    return lambda q, k, v, bias: f(q, k, v, bias, *more)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_with_bias_and_mask(name, jit, rng):
    xs, (bias, *more) = operands(rng), pairs(rng, name)
    seed = random_like(rng, xs[0])
    fused_p = lambda q, k, v, *p: at.attention(q, k, v, (), *p, scale=0.4)
    gradients = [
        fg.grad(loss(with_pairs(f, more), seed), argnums=(0, 1, 2, 3))
        for f in (fused_p, composed(None))
    ]
    assert {"attention", "attention_backward"} <= set(names(gradients[0], *xs, bias))
    ours = (fg.jit(gradients[0]) if jit else gradients[0])(*xs, bias)
    for g, w in zip(ours, gradients[1](*xs, bias), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["bias", "of queries"])
def test_second_derivatives_with_bias(name, rng, monkeypatch):
    """A few queries at a time: blocks, and some left over."""
    xs, (bias, *more) = operands(rng), pairs(rng, name)
    args = [*xs, bias]
    seed, directions = random_like(rng, xs[0]), [random_like(rng, x) for x in args]
    fused_p = lambda q, k, v, *p: at.attention(q, k, v, (), *p, scale=0.4)

    def orders(f):
        f = loss(with_pairs(f, more), seed)
        one = fg.grad(f, argnums=(0, 1, 2, 3))
        product = lambda *xs: sum(fnp.sum(g * d) for g, d in zip(one(*xs), directions, strict=True))
        return [
            fg.jvp(f, tuple(args), tuple(directions))[1],
            *fg.jvp(one, tuple(args), tuple(directions))[1],
            *fg.grad(product, argnums=(0, 1, 2, 3))(*args),
        ]

    wanted = orders(composed(None))
    monkeypatch.setattr(formula, "LEAST", 2)
    monkeypatch.setattr(formula, "MOST_WEIGHTS", 1)
    for g, w in zip(orders(fused_p), wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("axes", [(0, 0, 0, None, None), (None, 1, 0, 1, 0), (0, 0, 0, 0, None)])
@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_with_bias_and_mask(axes, batch, rng):
    lanes = []
    for _ in range(3):
        xs = operands(rng, heads=(2, 1), queries=4, batch=batch)
        lanes.append([*xs, rng.normal(size=(1, 2, 4, 1)), rng.random((batch, 1, 1, LONG)) > 0.3])
    args = [
        lanes[0][i] if d is None else np.stack([x[i] for x in lanes], d) for i, d in enumerate(axes)
    ]
    value = lambda q, k, v, b, m: fnp.sum(at.attention(q, k, v, (), b, m, scale=0.4) ** 2)
    gradient = fg.grad(value, argnums=(0, 1, 2, 3))
    got = fg.jit(fg.vmap(gradient, axes))(*args)
    for k in range(3):
        own = [lanes[0][i] if d is None else lanes[k][i] for i, d in enumerate(axes)]
        for g, w in zip(got, gradient(*own), strict=True):
            np.testing.assert_allclose(g[k], w, rtol=1e-10, atol=1e-11)


def test_bias_and_mask_that_do_not_fit():
    x = np.ones((2, 3, 4, 5), np.float32)
    with pytest.raises(errors.ShapeError, match=r"bias must broadcast to \(2, 4, 3, 3\)"):
        at.attention(x, x, x, bias=np.ones((2, 2, 3, 3), np.float32), scale=1)
    with pytest.raises(errors.DTypeError, match="bias must be of float32, got f64"):
        at.attention(x, x, x, bias=np.ones((1, 1, 3, 3)), scale=1)


@pytest.mark.parametrize("size", [2**31 - 1, 2**63, -(2**31), -(2**70)])
@pytest.mark.parametrize("side", ["before", "after"])
def test_windows_beyond_all_places(side, size):
    """Of any size: they show all keys or none, with jit as without."""
    q = np.ones((1, 5, 2, 4), np.float32)
    wanted = q if size > 0 else 0 * q
    f = lambda x: at.attention(x, x, x, scale=0.4, **{side: size})
    np.testing.assert_allclose(f(q), wanted, rtol=1e-6)
    np.testing.assert_allclose(fg.jit(f)(q), wanted, rtol=1e-6)


@pytest.mark.parametrize("weights", [1, 1 << 20], ids=["blocks", "whole"])
@pytest.mark.parametrize("name", WINDOWS)
def test_backward_of_a_part_of_the_keys(name, weights, rng, monkeypatch):
    """The results that backward is given may be those of more keys than it sees: the formula
    means what the op does."""
    monkeypatch.setattr(formula, "MOST_WEIGHTS", weights)
    before, after = WINDOWS[name] or (None, None)
    params = {"scale": 0.4, "before": before, "after": after}
    q, k, v = operands(rng, queries=70, keys=40)
    ct, bias = random_like(rng, q), rng.normal(size=(2, 4, 70, 20))
    out, stats = at.attention_p.impl(np, q, k, v, **{**params, "before": None, "after": None})
    given = q, k[:, :20], v[:, :20], out, stats, ct, bias
    wanted = at.attention_backward_p.impl(np, *given, bias_too=True, **params)
    got = at.attention_backward_p.formula(*given, bias_too=True, **params)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-12)
