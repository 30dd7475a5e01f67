"""A stage's passes as programs: together they are its derivative, and W does what I leaves."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import eval_jaxpr, typecheck
from funcgrad.core.rewriting import runs
from funcgrad.core.trace import aval_of
from funcgrad.parallel.pipelines.derivatives import passes

H = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
W1, W2 = np.random.default_rng(1).normal(size=(2, 4, 4)).astype(np.float32) / 2
MANY = np.random.default_rng(2).normal(size=(2, 3, 4, 4)).astype(np.float32) / 2


def dense(w1, w2, x):
    return [fnp.tanh(fnp.tanh(x @ w1) @ w2)]


def narrow(w1, w2, x):
    return [fnp.tanh(x @ w1.astype("bfloat16").astype("float32")) + w2[0]]


def layers(w1, w2, x):
    step = lambda h, w: (h + fnp.tanh(fnp.tanh(h @ w[0]) @ w[1]), None)
    return [lax.scan(step, x, (w1, w2))[0]]


def attention(w1, w2, x):
    q = fnp.reshape(x @ w1, (1, 5, 1, 4))
    return [x + fnp.reshape(fg.nn.dot_product_attention(q, q, q), (5, 4)) @ w2]


def remat(f):
    return lambda *args: fg.checkpoint(f)(*args)


CASES = {
    "dense": (dense, W1, W2),
    "narrow": (narrow, W1, W2),
    "layers": (layers, *MANY),
    "attention": (attention, W1, W2),
    "checkpoint": (remat(dense), W1, W2),
    "checkpointed layers": (remat(layers), *MANY),
}


@pytest.mark.parametrize("case", CASES)
def test_passes_are_the_derivative(case):
    f, *weights = CASES[case]
    p = passes(f, [aval_of(w) for w in weights], [aval_of(H)], case)
    for program in p[:4]:
        typecheck(program)
    y, *saved = eval_jaxpr(p.forward, *p.fixed, *weights, H)
    np.testing.assert_allclose(y, f(*weights, H)[0], rtol=1e-6, atol=1e-6)
    ct = np.cos(H)
    want = fg.vjp(lambda *a: f(*a)[0], *weights, H)[1](ct)
    before = (*p.fixed, *weights, *saved)
    close = lambda got, want: np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    tuple(map(close, eval_jaxpr(p.backward, *before, ct), want))
    n = p.late.count(False)
    outs = eval_jaxpr(p.inputs_half, *before, ct)
    close(outs[n], want[2])
    soon, late = iter(outs[:n]), iter(eval_jaxpr(p.weights_half, *before, *outs[n + 1 :]))
    for is_late, w in zip(p.late, want[:2], strict=True):
        close(next(late if is_late else soon), w)


def products(program):
    return sum(n for eqn, n in runs(program, lambda e: e.prim.name == "dot_general")
               if eqn.prim.name == "dot_general")  # fmt: skip


@pytest.mark.parametrize("case", ["dense", "layers"])
def test_halves_share_the_work(case):
    """No product is done in both: each half has those of one kind of operand."""
    f, *weights = CASES[case]
    p = passes(f, [aval_of(w) for w in weights], [aval_of(H)], case)
    assert p.late == (True, True)
    assert products(p.inputs_half) == products(p.weights_half) == products(p.forward)
    assert products(p.backward) == 2 * products(p.forward)


def test_what_depends_on_weights_alone_is_not_saved():
    found = passes(narrow, [aval_of(W1), aval_of(W2)], [aval_of(H)], "narrow")
    assert all(a.shape == (5, 4) for a in found.saved)
    # What W doesn't need to wait for comes with I.
    assert found.late == (True, False)


def test_integers_have_no_cotangents():
    f = lambda w, x, i: [x * w, i + 1]
    i = np.arange(4, dtype=np.int32)
    found = passes(f, [aval_of(W1[0])], [aval_of(W2[0]), aval_of(i)], "f")
    assert found.results_vary == (True, False)
    outs = eval_jaxpr(found.forward, W1[0], W2[0], i)
    back = eval_jaxpr(found.backward, W1[0], *outs[2:], np.ones(4, np.float32))
    assert [b.shape for b in back] == [(4,), (4,)]


def test_captured_values():
    scale = fnp.array([1.0, 2.0, 3.0, 4.0])
    found = passes(lambda w, x: [x * w * scale], [aval_of(W1[0])], [aval_of(W2[0])], "f")
    assert len(found.fixed) == 1
    _, *saved = eval_jaxpr(found.forward, *found.fixed, W1[0], W2[0])
    back = eval_jaxpr(found.backward, *found.fixed, W1[0], *saved, np.ones(4, np.float32))
    np.testing.assert_allclose(back[0], W2[0] * [1, 2, 3, 4], rtol=1e-6)
