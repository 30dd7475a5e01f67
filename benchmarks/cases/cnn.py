"""Training steps of a convolutional network with residual blocks, for 32×32 images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.case import Case, draw, integers, normal
from benchmarks.cases.reductions import cross_entropy
from benchmarks.cases.training import momentum, state_of, step
from benchmarks.libraries import training


def cases(full: bool) -> Iterator[Case]:
    """Batch 32, SGD with momentum."""
    yield step_case(full)


def step_case(full: bool, family: str = "cnn", **more) -> Case:
    """The training step."""
    widths, size, batch = ((32, 64, 128), 32, 32) if full else ((2, 3, 4), 8, 2)
    pixels = batch * size * size
    macs = pixels * 9 * 3 * widths[0]
    for i, (a, b) in enumerate(zip((widths[0], *widths), widths, strict=False)):
        macs += pixels / 4**i * 9 * (a * b + b * b)
    return Case(
        family,
        "three residual stages, 32×3×32×32",
        draw(
            lambda rng: state_of(_params(rng, widths), 1),
            normal(batch, 3, size, size),
            integers(0, 10, batch),
        ),
        step(_loss, partial(momentum, rate=0.01)),
        torch_make=training(_torch_loss, "SGD", lr=0.01, momentum=0.9, foreach=True),
        state=True,
        torch_long=True,
        flops=6.0 * macs,
        tolerance=1e-3,
        **more,
    )


def _params(rng, widths):
    def kernel(out, channels):
        return normal(out, channels, 3, 3)(rng) * np.float32(np.sqrt(1 / (9 * channels)))

    stages = [
        {"first": kernel(b, a), "second": kernel(b, b), "bias": np.zeros(b, np.float32)}
        for a, b in zip((widths[0], *widths), widths, strict=False)
    ]
    head = normal(widths[-1], 10)(rng) * np.float32(widths[-1] ** -0.5)
    return {"stem": kernel(widths[0], 3), "stages": stages, "head": head}


def _loss(lib, params, x, labels):
    def conv(x, w, stride=1):
        return lib.lax.conv_general_dilated(x, w, (stride, stride), [(1, 1), (1, 1)])

    x = lib.nn.relu(conv(x, params["stem"]))
    for i, p in enumerate(params["stages"]):
        x = lib.nn.relu(conv(x, p["first"], 2 if i else 1) + p["bias"][:, None, None])
        x = lib.nn.relu(x + conv(x, p["second"]))
    return cross_entropy(lib, lib.np.mean(x, axis=(2, 3)) @ params["head"], labels)


def _torch_loss(t, params, x, labels):
    conv = partial(t.nn.functional.conv2d, padding=1)
    x = t.relu(conv(x, params["stem"]))
    for i, p in enumerate(params["stages"]):
        x = t.relu(conv(x, p["first"], stride=2 if i else 1) + p["bias"][:, None, None])
        x = t.relu(x + conv(x, p["second"]))
    return t.nn.functional.cross_entropy(t.mean(x, (2, 3)) @ params["head"], labels)
