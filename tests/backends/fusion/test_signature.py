"""Equal clusters share a kernel that was written once; clusters that differ in anything don't."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.backends.drafts import drafter as drafts
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.plan import plan
from funcgrad.backends.program_text import program_text
from funcgrad.transforms.passes.simplify import simplify


def layers(x, ws):
    for w in ws:
        h = (x - fnp.mean(x, axis=-1, keepdims=True)) / (fnp.std(x, axis=-1, keepdims=True) + 1e-5)
        x = x + nn.gelu(h @ w) * nn.softmax(x)
    return fnp.sum(x * x)


def jaxpr_of(f, *args):
    return simplify(fg.make_jaxpr(f)(*args).jaxpr)


X, WS = fnp.ones((8, 16)), [fnp.ones((16, 16))] * 4


def joined(x):
    rows = [fnp.tanh(x), fnp.tanh(x[::-1]), fnp.tanh(x * 2), fnp.tanh(x * 2)[:, 1:], fnp.tanh(x)]
    flat = fnp.concatenate([fnp.tanh(r * 3).ravel() for r in rows])
    return fnp.concatenate(rows, 1), flat, fnp.concatenate(rows[:3], 1), fnp.tanh(rows[0] * 3)


PROGRAMS = {
    "joins": (joined, X),
    "layers": (layers, X, WS),
    "gradient": (fg.grad(layers, argnums=1), X, WS),
    "columns": (lambda x, y: (fnp.sum(x, 0), fnp.sum(y, 0), fnp.sum(x * y, 0)), X, X + 1),
    "scan": (lambda x: lax.scan(lambda c, e: (fnp.tanh(c) + e, fnp.exp(c)), x[0], x), X),
    "iota": (lambda x: x + fnp.arange(16.0) * fnp.arange(16.0), X),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_the_same_without_sharing(name, monkeypatch):
    jaxpr = jaxpr_of(*PROGRAMS[name])
    donated = [False] * len(jaxpr.ins)
    shared = program_text(plan(jaxpr, donated, "p", CPU))
    monkeypatch.setattr(drafts, "signature", lambda *args: None)
    assert program_text(plan(jaxpr, donated, "p", CPU)) == shared


def test_repeated_layers_are_written_once(monkeypatch):
    written = []
    write = drafts.write_cluster
    monkeypatch.setattr(drafts, "write_cluster", lambda *a: written.append(1) or write(*a))

    def count(n):
        written.clear()
        jaxpr = jaxpr_of(layers, X, [WS[0]] * n)
        plan(jaxpr, [False] * len(jaxpr.ins), "p", CPU)
        return len(written)

    assert count(12) == count(6)


@pytest.mark.parametrize(
    ("f", "g"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: x * x, lambda x, y: x * y),
        (lambda x, y: x**2, lambda x, y: x**3),
        (lambda x, y: fnp.maximum(x, 0.0) / y, lambda x, y: fnp.maximum(x, -0.0) / -y),
        (lambda x, y: x + 1.0, lambda x, y: x + 2.0),
        (lambda x, y: x / 0.0, lambda x, y: x / -0.0),
        (lambda x, y: fnp.sum(x, 0), lambda x, y: fnp.sum(x, 1)),
        (lambda x, y: x.T + y, lambda x, y: x + y.T),
        (lambda x, y: x[::-1] * y, lambda x, y: x[:, ::-1] * y),
        (lambda x, y: fnp.argmax(x, 0), lambda x, y: fnp.argmax(x, 1)),
        (lambda x, y: (x + y, fnp.exp(x + y)), lambda x, y: (x + y, fnp.exp(y + y))),
        (lambda x, y: x.astype("int32"), lambda x, y: x.astype("bool")),
        (lambda x, y: fnp.cumsum(x, 0), lambda x, y: fnp.cumsum(x, 1)),
    ],
)
def test_what_differs_is_told_apart(f, g):
    rng = np.random.default_rng(0)
    x, y = (fnp.array(rng.normal(size=(5, 5)), "float32") for _ in range(2))
    got = fg.jit(lambda x, y: (f(x, y), g(x, y), f(y, x), g(y, x)))(x, y)
    want = f(x, y), g(x, y), f(y, x), g(y, x)
    for a, b in zip(fg.tree.leaves(got), fg.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-6)
