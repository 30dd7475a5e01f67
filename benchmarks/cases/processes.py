"""What a new process costs: imports, compilation without and with a disk cache, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, normal
from benchmarks.cases import cnn, gpt
from benchmarks.cases.attention import pair
from benchmarks.libraries import gradients


def cases(full: bool) -> Iterator[Case]:
    """Compilation is timed from the call to its result, in a process that has imported.

    The clock starts at the same place for all: the library is imported, and the inputs are its
    arrays. What a library loads by then is not in it: JAX its compiler, and its first array starts
    the client; funcgrad's compiler is loaded by the call that is timed.
    """
    yield replace(_add(full), family="import", name="import", measure="import")
    for name, case in _compiled(full).items():
        yield replace(case, family="compile", name=f"{name}, cold", measure="cold")
        if "1000" not in name:
            yield replace(case, family="compile", name=f"{name}, cached", measure="cached")
    for name, case in _holding(full).items():
        yield replace(case, family="memory", name=name, measure="memory")


def _compiled(full: bool) -> dict[str, Case]:
    config = gpt.Config(256, 4, 8, 128) if full else gpt.Config(8, 1, 2, 4, 11)
    return {
        "one operation": _add(full),
        "gradient, 10 layers": _deep(10 if full else 2),
        "gradient, 100 layers": _deep(100 if full else 3),
        "gradient, 1000 layers": replace(_deep(1000 if full else 4), torch_compiles=False),
        "GPT step": gpt.step_case("", config, 8 if full else 2),
        "CNN step": cnn.step_case(full),
    }


def _holding(full: bool) -> dict[str, Case]:
    config = gpt.Config(256, 4, 8, 128) if full else gpt.Config(8, 1, 2, 4, 11)
    n = (1 << 24) if full else 100
    chain = Case(
        "",
        "",
        draw(normal(n), normal(n)),
        lambda lib, a, b: lib.np.tanh(a) * lib.np.exp(b) + a,
        torch=lambda t, a, b: t.tanh(a) * t.exp(b) + a,
        numpy=True,
    )
    long = (1, 8192, 4, 64) if full else (1, 9, 2, 4)
    return {
        "one operation": _add(full),
        "elementwise chain, 16M": chain,
        "attention forward and backward, length 8192": list(pair("", long, True))[1],
        "GPT step": gpt.step_case("", config, 8 if full else 2),
        "CNN step": cnn.step_case(full),
    }


def _add(full: bool) -> Case:
    return Case("", "", draw(normal(8)), lambda lib, x: x + 1, torch=lambda t, x: x + 1, numpy=True)


def _deep(layers: int) -> Case:
    """A perceptron of equal layers with the gradient of its parameters."""

    def params(rng):
        return [
            {"w": normal(32, 32)(rng) * np.float32(32**-0.5), "b": np.zeros(32, np.float32)}
            for _ in range(layers)
        ]

    def work(lib, params, x):
        return lib.value_and_grad(partial(_loss, lib.np))(params, x)

    return Case("", "", draw(params, normal(16, 32)), work, torch_make=gradients(_loss, 0))


def _loss(np, params, x):
    for layer in params:
        x = np.tanh(x @ layer["w"] + layer["b"])
    return np.mean(x * x)
