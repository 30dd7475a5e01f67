"""What a call costs beside its work: compiled calls on little data, and eager operations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, leaves, normal
from benchmarks.libraries import gradients


def cases(full: bool) -> Iterator[Case]:
    """Compiled calls, then eager ones."""
    call = partial(Case, "calls")
    small = draw(normal(8))
    yield call("one array", small, lambda lib, x: x + 1, torch=lambda t, x: x + 1, numpy=True)
    yield call("ten arrays", draw(*[normal(8)] * 10), _total, torch=_torch_total, numpy=_np_total)
    yield call("tree of 50 leaves", _tree, _tree_step, torch=_torch_tree, numpy=_np_tree)
    yield call(
        "state of 50 leaves, donated",
        lambda rng: (_tree(rng)[0], np.float32(1)),
        lambda lib, tree, x: (lib.tree.map(lambda leaf: leaf + x, tree), x + 1),
        state=True,
    )

    eager = partial(Case, "eager", jit=False)
    pair = draw(normal(8), normal(8))
    square = draw(normal(64, 64), normal(64, 64))
    yield eager("add", pair, lambda lib, x, y: x + y, torch=lambda t, x, y: x + y, numpy=True)
    yield eager(
        "tanh", small, lambda lib, x: lib.np.tanh(x), torch=lambda t, x: t.tanh(x), numpy=True
    )
    yield eager("sum", small, lambda lib, x: lib.np.sum(x), torch=lambda t, x: t.sum(x), numpy=True)
    yield eager("slice", small, lambda lib, x: x[2:5], torch=lambda t, x: x[2:5], numpy=True)
    yield eager(
        "matmul 64", square, lambda lib, x, y: x @ y, torch=lambda t, x, y: x @ y, numpy=True
    )
    yield eager(
        "add 1M",
        draw(normal(1 << 20 if full else 64), normal(1 << 20 if full else 64)),
        lambda lib, x, y: x + y,
        torch=lambda t, x, y: x + y,
        numpy=True,
    )
    yield eager(
        "grad, three operations",
        draw(lambda rng: np.float32(0.5)),
        lambda lib, x: lib.grad(lambda x: lib.np.sin(x) * x + 1.0)(x),
        torch_make=_torch_scalar_grad,
    )
    yield eager("grad, MLP", _mlp, _mlp_grad, torch_make=gradients(_torch_mlp, 0))
    yield eager(
        "vmap, two operations",
        draw(normal(16, 8), normal(8)),
        lambda lib, xs, y: lib.vmap(lambda x: lib.np.sum(x * y))(xs),
        torch=lambda t, xs, y: t.func.vmap(lambda x: t.sum(x * y))(xs),
    )


def _total(lib, *xs):
    return sum(xs[1:], xs[0])


def _torch_total(t, *xs):
    return sum(xs[1:], xs[0])


def _np_total(*xs):
    return sum(xs[1:], xs[0])


def _tree(rng):
    layers = [{"w": normal(4, 4)(rng), "b": normal(4)(rng)} for _ in range(25)]
    return ({"layers": layers},)


def _tree_step(lib, tree):
    return lib.tree.map(lambda x: x + 1, tree)


def _torch_tree(t, tree):
    return {"layers": [{k: x + 1 for k, x in layer.items()} for layer in tree["layers"]]}


def _np_tree(tree):
    return {"layers": [{k: x + 1 for k, x in layer.items()} for layer in tree["layers"]]}


def _torch_scalar_grad(t, compiled, x):
    x = t.as_tensor(x).requires_grad_()

    def run():
        with t.enable_grad():
            return t.autograd.grad(t.sin(x) * x + 1.0, x)

    return run


def _mlp(rng):
    params = [{"w": normal(16, 16)(rng), "b": normal(16)(rng)} for _ in range(3)]
    return params, normal(8, 16)(rng)


def _mlp_grad(lib, params, x):
    def loss(params):
        h = x
        for layer in params:
            h = lib.np.tanh(h @ layer["w"] + layer["b"])
        return lib.np.mean(h * h)

    value, grads = lib.value_and_grad(loss)(params)
    return value, leaves(grads)


def _torch_mlp(t, params, x):
    for layer in params:
        x = t.tanh(x @ layer["w"] + layer["b"])
    return t.mean(x * x)
