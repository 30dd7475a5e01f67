"""Training steps of multilayer perceptrons; optimizers that the other models use too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, integers, mapped, normal
from benchmarks.cases.reductions import cross_entropy
from benchmarks.libraries import training


def cases(full: bool) -> Iterator[Case]:
    """SGD on little data, Adam on more."""
    case = partial(Case, "training", torch_long=True, state=True, tolerance=1e-3)
    widths, batch = ((784, 512, 512, 10), 128) if full else ((6, 8, 8, 4), 5)
    yield case(
        "MLP 784-512-512-10, batch 128, SGD",
        mlp_inputs(widths, batch),
        step(mlp_loss, partial(sgd, rate=0.1)),
        torch_make=training(torch_mlp_loss, "SGD", lr=0.1),
        flops=6.0 * batch * sum(a * b for a, b in itertools.pairwise(widths)),
    )
    widths, batch = ((1024, 2048, 2048, 1024), 256) if full else ((5, 7, 7, 5), 3)
    yield case(
        "MLP 1024-2048-2048-1024, batch 256, Adam",
        mlp_inputs(widths, batch, moments=2),
        step(mlp_loss, partial(adam, rate=1e-3)),
        torch_make=training(torch_mlp_loss, "Adam", lr=1e-3, fused=True),
        flops=6.0 * batch * sum(a * b for a, b in itertools.pairwise(widths)),
    )
    widths, batch = ((16, 32, 32, 1), 32) if full else ((2, 3, 3, 1), 4)
    yield case(
        "MLP 16-32-32-1, batch 32, Adam",
        mlp_inputs(widths, batch, moments=2),
        step(mlp_loss, partial(adam, rate=1e-3)),
        torch_make=training(torch_mlp_loss, "Adam", lr=1e-3, fused=True),
    )


def mlp_inputs(widths: Sequence[int], batch: int, moments: int = 0):
    """A state (parameters, moments, count) and a batch."""

    def params(rng):
        return [
            {"w": normal(a, b)(rng) / np.float32(np.sqrt(a)), "b": np.zeros(b, np.float32)}
            for a, b in itertools.pairwise(widths)
        ]

    return draw(
        lambda rng: state_of(params(rng), moments),
        normal(batch, widths[0]),
        integers(0, widths[-1], batch),
    )


def state_of(params, moments: int):
    """Parameters, so many trees of zeros, and the number of steps done."""
    zeros = [mapped(np.zeros_like, params) for _ in range(moments)]
    return (params, *zeros, np.zeros((), np.float32))


def mlp_loss(lib, params, x, labels):
    """Cross entropy of a perceptron with relu."""
    for layer in params[:-1]:
        x = lib.nn.relu(x @ layer["w"] + layer["b"])
    return cross_entropy(lib, x @ params[-1]["w"] + params[-1]["b"], labels)


def torch_mlp_loss(t, params, x, labels):
    """The same."""
    for layer in params[:-1]:
        x = t.relu(x @ layer["w"] + layer["b"])
    return t.nn.functional.cross_entropy(x @ params[-1]["w"] + params[-1]["b"], labels)


def step(loss, update):
    """A case's `work`: one step of an optimizer; the state is (parameters, moments…, count)."""

    def work(lib, state, *batch):
        value, grads = lib.value_and_grad(lambda params: loss(lib, params, *batch))(state[0])
        return update(lib, state, grads), value

    return work


def sgd(lib, state, grads, rate):
    """The next state by gradient descent."""
    params, count = state
    return lib.tree.map(lambda p, g: p - rate * g, params, grads), count + 1


def momentum(lib, state, grads, rate):
    """The next state by gradient descent with momentum 0.9."""
    params, m, count = state
    m = lib.tree.map(lambda m, g: 0.9 * m + g, m, grads)
    return lib.tree.map(lambda p, m: p - rate * m, params, m), m, count + 1


def adam(lib, state, grads, rate):
    """The next state by Adam."""
    params, m, v, count = state
    count = count + 1
    first, second = 1 - 0.9**count, 1 - 0.999**count
    m = lib.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = lib.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    params = lib.tree.map(
        lambda p, m, v: p - rate * (m / first) / (lib.np.sqrt(v / second) + 1e-8), params, m, v
    )
    return params, m, v, count
