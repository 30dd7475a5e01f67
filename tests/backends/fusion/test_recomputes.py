"""Values that are computed again: which ones, and that results stay."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.backends.program import KernelStep
from tests.backends.checks import check, floats, limited, same


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small values are computed again, too."""
    limited(monkeypatch, again_bytes=0)


def results(planned):
    """How many results each kernel has."""
    steps = (s for s in planned.steps if isinstance(s, KernelStep))
    return [sum(b.role == "out" for b in s.kernel.params) for s in steps]


def activation(x, w):
    a = x @ w
    t = fnp.tanh(a)
    return [(a * t) @ w * a * (1 - t * t)]


def normalized(x, w):
    a = x @ w
    unit = (a - fnp.mean(a, 1, keepdims=True)) / 3
    return [(unit + 1) @ w * unit + a]


def with_bias(x, w, bias):
    a = (x @ w).reshape(3, 3, 64)
    t = nn.sigmoid(a + bias)
    ct = (t * a) @ w
    return [ct * t + a]


def chain(x, w):
    a = x @ w
    t = a * 0.5 + a * a
    u = fnp.exp(t) * t - t
    return [(u * a) @ w * u * a]


@pytest.mark.parametrize("f", [activation, normalized, with_bias, chain])
def test_not_kept(f):
    given = floats(9, 64), floats(64, 64, seed=1) / 8, floats(64, seed=2)
    planned = check(f, *given[: 3 if f is with_bias else 2])
    assert max(results(planned)) <= (2 if f is normalized else 1)


def of_another(x, w):
    """What a later reader has no use for isn't kept for it."""
    t = fnp.tanh(x @ w)
    return [(t * 2) @ w * t]


def of_two(x, w):
    t = fnp.tanh(x @ w + x)
    return [(t * 2) @ w * t + x]


def result(x, w):
    a = x @ w
    t = fnp.tanh(a)
    return [(t * a) @ w * t * a, t]


def elsewhere(x, w):
    """A reader that wants other elements than its argument has there."""
    a = x @ w
    t = fnp.tanh(fnp.exp(a))
    return [(t * a) @ w * t[::-1] * a]


def often(x, w):
    a = x @ w
    t = fnp.tanh(a)
    return [((t * a) @ w).reshape(9, 1, 64) * t.reshape(1, 9, 64) * a.reshape(1, 9, 64)]


def dear(x, w):
    a = x @ w
    t = fnp.sin(fnp.exp(fnp.tanh(fnp.cos(a))))
    return [(t * a) @ w * t * a]


@pytest.mark.parametrize("f", [of_another, of_two, result, elsewhere, often, dear])
def test_kept(f):
    assert max(results(check(f, floats(9, 64), floats(64, 64, seed=1) / 8))) == 2


def test_large_ones_alone(monkeypatch):
    monkeypatch.undo()
    given = floats(9, 64), floats(64, 64, seed=1) / 8
    assert max(results(check(activation, *given))) == 2


def test_gradients():
    """The same as without, of a block of a network."""

    def loss(w, x):
        y = nn.gelu((x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5) @ w)
        return fnp.sum((x + y @ w.T) ** 2)

    w, x = floats(64, 128) / 8, floats(70, 64, seed=1)
    got = fg.jit(fg.grad(loss, (0, 1)))(w, x)
    for g, wanted in zip(got, fg.grad(loss, (0, 1))(fnp.asarray(w), fnp.asarray(x)), strict=True):
        same(np.asarray(g) / 100, np.asarray(wanted) / 100)


def test_of_a_long_chain():
    """What is computed again may be a sum's only operand, of a few rows of a large array."""

    def few(x, w):
        t = x[:1]
        for i in range(24):
            t = -t if i % 2 else abs(t)
        made, total = x @ w, fnp.sum(t)
        return [fnp.sum(made) + total, fnp.sum(x * 2, 0), total, fnp.sum(x * x)]

    check(few, floats(32, 512), floats(512, 8, seed=1))
