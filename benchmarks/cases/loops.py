"""Simulations: stencils, n-body, and loops whose end the data decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.case import Case, draw, normal


def cases(full: bool) -> Iterator[Case]:
    """Stencils first."""
    steps = 100 if full else 3
    yield _iterated(
        "heat, 512×512, 100 steps", _heat, steps, draw(normal(512, 512) if full else normal(6, 7))
    )
    yield _iterated(
        "wave, 512×512, 100 steps",
        _wave,
        steps,
        draw(*[normal(512, 512) if full else normal(6, 7)] * 2),
    )
    yield _iterated(
        "seven points, 128×128×128, 10 steps",
        _seven_points,
        10 if full else 2,
        draw(normal(*[128 if full else 5] * 3)),
    )
    yield _iterated(
        "game of life, 1024×1024, 20 steps",
        _life,
        20 if full else 2,
        draw(lambda rng: rng.integers(0, 2, (1024, 1024) if full else (6, 7), np.int8)),
    )
    yield Case(
        "loops",
        "one stencil of five points, 4096²",
        draw(normal(4096, 4096) if full else normal(6, 7)),
        lambda lib, x: _laplace(x),
        torch=lambda t, x: _laplace(x),
        numpy=_laplace,
    )
    bodies = 512 if full else 5
    yield _iterated(
        "n-body, 512 bodies, 10 steps",
        _bodies,
        10 if full else 2,
        draw(normal(bodies, 3), normal(bodies, 3)),
        1e-3,
    )
    n = 512 if full else 5
    plane = draw(
        lambda rng: np.tile(np.linspace(-2, 1, n, dtype=np.float32), (n, 1)),
        lambda rng: np.tile(np.linspace(-1, 1, n, dtype=np.float32)[:, None], (1, n)),
        *[lambda rng: np.zeros((n, n), np.float32)] * 2,
        lambda rng: np.zeros((n, n), np.int32),
    )
    # Near the edge of the set, points are chaotic: only how long they stay inside is compared.
    yield _iterated("Mandelbrot, 512×512, 50 iterations", _mandelbrot, 50, plane, 0.1, kept=-1)
    yield Case(
        "loops",
        "scalar while, 100000 iterations",
        draw(lambda rng: np.int32(100000 if full else 10)),
        _scalar_while,
    )


def _iterated(
    name: str, step: Callable, steps: int, inputs: Any, tolerance: float = 1e-4, kept: int = 0
) -> Case:
    """A step on any namespace, so many times: a loop of the program's, or of Python's.

    The results are the state from `kept` on.
    """

    def work(lib, *state):
        return lib.lax.fori_loop(0, steps, lambda i, state: step(lib.np, *state), state)[kept:]

    def looped(body, *state):
        for _ in range(steps):
            state = body(*state)
        return state[kept:]

    def make(t, compiled, *state):
        return partial(looped, compiled(partial(step, t)), *state)

    return Case(
        "loops",
        name,
        inputs,
        work,
        torch_make=make,
        numpy=partial(looped, partial(step, np)),
        tolerance=tolerance,
    )


def _laplace(x):
    return x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1] - 4 * x[1:-1, 1:-1]


def _around(np, x):
    """The five-point Laplacian on a torus."""
    return np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1) - 4 * x


def _heat(np, x):
    return (x + 0.1 * _around(np, x),)


def _wave(np, x, before):
    return 2 * x - before + 0.1 * _around(np, x), x


def _seven_points(np, x):
    total = -6 * x
    for axis in range(3):
        total = total + np.roll(x, 1, axis) + np.roll(x, -1, axis)
    return (x + 0.1 * total,)


def _life(np, x):
    rows = np.roll(x, 1, 0) + x + np.roll(x, -1, 0)
    total = np.roll(rows, 1, 1) + rows + np.roll(rows, -1, 1) - x
    return (np.where((total == 3) | ((total == 2) & (x == 1)), 1, 0 * x),)


def _bodies(np, place, speed):
    apart = place[None, :, :] - place[:, None, :]
    squares = np.sum(apart * apart, 2) + 0.01
    pull = np.sum(apart / (squares * np.sqrt(squares))[:, :, None], 1)
    speed = speed + 1e-4 * pull
    return place + 1e-2 * speed, speed


def _mandelbrot(np, re, im, x, y, count):
    inside = x * x + y * y < 4.0
    x, y = np.where(inside, x * x - y * y + re, x), np.where(inside, 2 * x * y + im, y)
    return re, im, x, y, count + inside


def _scalar_while(lib, n):
    """A linear congruential generator, stopped by its count."""

    def body(state):
        i, x = state
        return i + 1, x * 1103515245 + 12345

    return lib.lax.while_loop(lambda state: state[0] < n, body, (0 * n, n))
