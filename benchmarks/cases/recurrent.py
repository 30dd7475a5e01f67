"""Recurrent networks and recurrences by `scan`: small bodies, run many times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """An LSTM forward and backward, a small cell, a running average, a parallel scan."""
    steps, batch, width = (128, 32, 256) if full else (4, 3, 5)
    inputs = draw(normal(steps, batch, width), *[_weight(width, 4 * width)] * 2, normal(4 * width))
    flops = 2.0 * steps * batch * 8 * width**2
    yield Case(
        "recurrent",
        "LSTM, 128 steps, batch 32, width 256",
        inputs,
        _lstm,
        torch_make=_torch_lstm,
        torch_compiles=False,
        flops=flops,
    )
    yield Case(
        "recurrent",
        "LSTM forward and backward, 128 steps, batch 32, width 256",
        inputs,
        _lstm_grad,
        torch_make=_torch_lstm_grad,
        torch_compiles=False,
        flops=3 * flops,
        tolerance=1e-3,
    )
    steps, width = (1000, 128) if full else (5, 4)
    yield Case(
        "recurrent",
        "cell of width 128, 1000 steps",
        draw(normal(steps, width), _weight(width, width)),
        _cell,
        torch=_torch_cell,
        numpy=_np_cell,
        torch_compiles=False,
        flops=2.0 * steps * width**2,
    )
    series = draw(normal(10000, 64) if full else normal(5, 3))
    yield Case(
        "recurrent",
        "running average of 64 series, 10000 steps",
        series,
        _average,
        torch=_torch_average,
        numpy=_np_average,
        torch_compiles=False,
    )
    pair = draw(
        lambda rng: rng.random((1 << 20 if full else 9,), np.float32),
        normal(1 << 20 if full else 9),
    )
    yield Case("recurrent", "linear recurrence by associative_scan, 1M", pair, _recurrence)


def _weight(rows: int, columns: int):
    return lambda rng: normal(rows, columns)(rng) * np.float32(rows**-0.5)


def _lstm(lib, xs, w, u, b):
    nn, tanh = lib.nn, lib.np.tanh
    width = u.shape[0]

    def cell(carry, x):
        h, c = carry
        i, f, g, o = lib.np.split(x @ w + h @ u + b, 4, axis=-1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * tanh(g)
        h = nn.sigmoid(o) * tanh(c)
        return (h, c), h

    start = lib.np.zeros((xs.shape[1], width), xs.dtype)
    return lib.lax.scan(cell, (start, start), xs)[1]


def _lstm_grad(lib, *inputs):
    def loss(*inputs):
        return lib.np.mean(_lstm(lib, *inputs) ** 2)

    return lib.value_and_grad(loss, argnums=(0, 1, 2, 3))(*inputs)


def _module(t, xs, w, u, b):
    lstm = t.nn.LSTM(w.shape[0], u.shape[0])
    with t.no_grad():
        lstm.weight_ih_l0.copy_(w.T)
        lstm.weight_hh_l0.copy_(u.T)
        lstm.bias_ih_l0.copy_(b)
        lstm.bias_hh_l0.zero_()
    return lstm


def _torch_lstm(t, compiled, xs, *weights):
    lstm = _module(t, xs, *weights)
    return lambda: lstm(xs)[0]


def _torch_lstm_grad(t, compiled, xs, *weights):
    lstm = _module(t, xs, *weights)
    xs = xs.requires_grad_()
    wanted = [xs, lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0]

    def run():
        with t.enable_grad():
            loss = t.mean(lstm(xs)[0] ** 2)
            x, w, u, b = t.autograd.grad(loss, wanted)
        return loss.detach(), x, w.T, u.T, b

    return run


def _cell(lib, xs, w):
    def cell(h, x):
        h = lib.np.tanh(h @ w + x)
        return h, h

    return lib.lax.scan(cell, lib.np.zeros(w.shape[0], xs.dtype), xs)[1]


def _torch_cell(t, xs, w):
    h, hs = t.zeros(w.shape[0]), []
    for x in xs.unbind():
        h = t.tanh(h @ w + x)
        hs.append(h)
    return t.stack(hs)


def _np_cell(xs, w):
    hs, h = np.empty_like(xs), np.zeros(w.shape[0], xs.dtype)
    for i, x in enumerate(xs):
        h = hs[i] = np.tanh(h @ w + x)
    return hs


def _average(lib, xs):
    def body(mean, x):
        mean = 0.9 * mean + 0.1 * x
        return mean, mean

    return lib.lax.scan(body, lib.np.zeros(xs.shape[1], xs.dtype), xs)[1]


def _torch_average(t, xs):
    mean, means = t.zeros(xs.shape[1]), []
    for x in xs.unbind():
        mean = 0.9 * mean + 0.1 * x
        means.append(mean)
    return t.stack(means)


def _np_average(xs):
    means, mean = np.empty_like(xs), np.zeros(xs.shape[1], xs.dtype)
    for i, x in enumerate(xs):
        mean = means[i] = np.float32(0.9) * mean + np.float32(0.1) * x
    return means


def _recurrence(lib, a, b):
    """h ← a·h + b for all steps at once."""
    return lib.lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b))[1]
