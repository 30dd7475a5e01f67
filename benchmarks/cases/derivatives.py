"""Derivatives beyond a gradient: Jacobians, Hessians, their products, gradients of each example."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """The PyTorch texts use `torch.func`."""
    width = 64 if full else 4
    net = draw(normal(width), _params((width, 2 * width, width)))
    yield Case(
        "derivatives",
        "jacrev, 64 to 64",
        net,
        _jacobian("jacrev"),
        torch=lambda t, x, params: t.func.jacrev(lambda x: _net(t, params, x))(x),
    )
    yield Case(
        "derivatives",
        "jacfwd, 64 to 64",
        net,
        _jacobian("jacfwd"),
        torch=lambda t, x, params: t.func.jacfwd(lambda x: _net(t, params, x))(x),
    )
    yield Case(
        "derivatives",
        "hessian, 64 inputs",
        net,
        lambda lib, x, params: lib.hessian(lambda x: lib.np.sum(_net(lib.np, params, x)))(x),
        torch=lambda t, x, params: t.func.hessian(lambda x: t.sum(_net(t, params, x)))(x),
        tolerance=1e-3,
    )
    sizes, batch = ((784, 512, 10), 128) if full else ((6, 5, 3), 4)
    batched = draw(_params(sizes), _params(sizes), normal(batch, sizes[0]))
    yield Case(
        "derivatives",
        "Hessian-vector product, MLP 784-512-10, batch 128",
        batched,
        _product,
        torch=_torch_product,
        # Three products of the first layer, eight of the second.
        flops=2.0 * batch * (3 * sizes[0] * sizes[1] + 8 * sizes[1] * sizes[2]),
        tolerance=1e-3,
    )
    examples = draw(_params(sizes), normal(batch, sizes[0]))
    yield Case(
        "derivatives",
        "gradient of each example, MLP 784-512-10, batch 128",
        examples,
        _each,
        torch=_torch_each,
        tolerance=1e-3,
    )
    points = draw(normal(10000 if full else 7))
    yield Case(
        "derivatives",
        "third derivative at 10000 points",
        points,
        _third,
        torch=_torch_third,
        tolerance=1e-3,
    )
    yield Case(
        "derivatives",
        "Jacobian and vector, 1M",
        draw(*[normal(1 << 20 if full else 9)] * 2),
        lambda lib, x, v: lib.jvp(lambda x: _curve(lib.np, x), (x,), (v,)),
        torch=lambda t, x, v: t.func.jvp(lambda x: _curve(t, x), (x,), (v,)),
    )


def _params(sizes):
    def draw_params(rng):
        return [normal(a, b)(rng) * np.float32(a**-0.5) for a, b in itertools.pairwise(sizes)]

    return draw_params


def _net(np, params, x):
    for w in params:
        x = np.tanh(x @ w)
    return x


def _loss(np, params, x):
    return np.mean(_net(np, params, x) ** 2)


def _jacobian(name):
    return lambda lib, x, params: getattr(lib, name)(lambda x: _net(lib.np, params, x))(x)


def _product(lib, params, direction, x):
    gradient = lib.grad(lambda params: _loss(lib.np, params, x))
    return lib.jvp(gradient, (params,), (direction,))[1]


def _torch_product(t, params, direction, x):
    gradient = t.func.grad(lambda params: _loss(t, params, x))
    return t.func.jvp(gradient, (params,), (direction,))[1]


def _each(lib, params, xs):
    return lib.vmap(lib.grad(lambda p, x: _loss(lib.np, p, x)), in_axes=(None, 0))(params, xs)


def _torch_each(t, params, xs):
    return t.func.vmap(t.func.grad(lambda p, x: _loss(t, p, x)), in_dims=(None, 0))(params, xs)


def _curve(np, x):
    return np.sin(x) * np.exp(-0.1 * x * x)


def _third(lib, xs):
    f = lib.grad(lib.grad(lib.grad(lambda x: _curve(lib.np, x))))
    return lib.vmap(f)(xs)


def _torch_third(t, xs):
    grad = t.func.grad
    return t.func.vmap(grad(grad(grad(lambda x: _curve(t, x)))))(xs)
