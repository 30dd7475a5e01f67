"""Small models for tests of partitioning: an MLP, a transformer's block, loops over them."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

LAYERS, WIDTH, BATCH = 3, 16, 64


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype("float32")


# ---- an MLP of square layers, trained with momentum


def mlp_loss(ws, x, y):
    for w in ws:
        x = fnp.tanh(x @ w)
    return fnp.mean((x - y) ** 2)


def mlp_args(width=WIDTH, batch=BATCH, layers=LAYERS):
    """Weights, momenta, a batch."""
    ws = [normal(width, width, seed=i) for i in range(layers)]
    return [
        *ws,
        *map(np.zeros_like, ws),
        normal(batch, width, seed=8),
        normal(batch, width, seed=9),
    ]


def mlp_step(keep=lambda w: w, layers=LAYERS):
    """A step of training; `keep` is applied to the new weights."""

    def step(*flat):
        ws, ms, (x, y) = flat[:layers], flat[layers : 2 * layers], flat[2 * layers :]
        gs = fg.grad(lambda ws: mlp_loss(ws, x, y))(list(ws))
        ms = [0.9 * m + g for m, g in zip(ms, gs, strict=True)]
        return [*(keep(w - 0.1 * m) for w, m in zip(ws, ms, strict=True)), *ms]

    return step


def accumulated(ws, xs, ys, keep=lambda g: g):
    """Weights after the gradients of several microbatches, summed in a loop; `keep` is applied to
    each gradient."""

    def add(total, xy):
        gs = fg.grad(lambda ws: mlp_loss(ws, *xy))(list(ws))
        return [t + keep(g) for t, g in zip(total, gs, strict=True)], None

    total, _ = lax.scan(add, [fnp.zeros(w.shape) for w in ws], (xs, ys))
    return [w - 0.1 * g / xs.shape[0] for w, g in zip(ws, total, strict=True)]


def tied_step(w, x, y):
    """One weight used twice."""
    loss = lambda w: fnp.mean((fnp.tanh(fnp.tanh(x @ w) @ w) - y) ** 2)
    return [w - fg.grad(loss)(w)]


def stacked_step(ws, x, y):
    """Layers in a loop over their stacked weights."""

    def loss(ws):
        h, _ = lax.scan(lambda h, w: (fnp.tanh(h @ w), None), x, ws)
        return fnp.mean((h - y) ** 2)

    return [ws - fg.grad(loss)(ws)]


# ---- a transformer's block


def norm(x, gain):
    x = x - fnp.mean(x, -1, keepdims=True)
    return x / fnp.sqrt(fnp.mean(x**2, -1, keepdims=True) + 1e-5) * gain


def block(params, x, heads=4, cut=lambda x: x):
    """Attention and an MLP, each with a norm before and a sum after; `cut` is applied to what the
    block adds to."""
    gain1, wq, wk, wv, wo, gain2, w1, w2 = params
    batch, length, width = x.shape
    h = norm(x, gain1)
    q, k, v = ((h @ w).reshape(batch, length, heads, width // heads) for w in (wq, wk, wv))
    scores = fnp.einsum("bshe,bthe->bhst", q, k) * (width // heads) ** -0.5
    mixed = fnp.einsum("bhst,bthe->bshe", fg.nn.softmax(scores, -1), v)
    x = cut(x + mixed.reshape(batch, length, width) @ wo)
    h = norm(x, gain2)
    return cut(x + fg.nn.gelu(h @ w1) @ w2)


def block_args(batch, length, width):
    """Parameters, an input and a target."""
    ones = np.ones(width, "float32")
    ws = [normal(width, width, seed=i) for i in range(4)]
    up, down = normal(width, 4 * width, seed=5), normal(4 * width, width, seed=6)
    x, y = (normal(batch, length, width, seed=i) for i in (7, 8))
    return [ones, *ws, ones, up, down, x, y]


def block_step(cut=lambda x: x):
    """The parameters after a step, and the gradient of the input."""

    def step(*flat):
        params, (x, y) = list(flat[:8]), flat[8:]
        loss = lambda p, x: fnp.mean((block(p, x, cut=cut) - y) ** 2)
        gs, gx = fg.grad(loss, (0, 1))(params, x)
        return [*(p - 0.1 * g for p, g in zip(params, gs, strict=True)), gx]

    return step
