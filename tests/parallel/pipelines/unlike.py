"""A model whose stages have nothing in common: an embedding, a layer beside a skip, a head."""

import numpy as np

import funcgrad.numpy as fnp
from tests.parallel.pipelines.models import entropy, texts

WORDS, WIDTH = 5, 6
IDS, TARGETS = texts()


def embed(p, ids):
    return p["words"][ids]


def widened(p, h):
    """What the last stage takes again goes with the activations."""
    return fnp.tanh(h @ p["w"] + p["b"]), h


def head(p, h):
    (w,) = p
    y, skip = h
    return fnp.concatenate([y, skip], -1) @ w


def begin(p, ids):
    return widened(p[1], embed(p[0], ids))


def params(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (rng.normal(size=shape) / 2).astype(np.float32)
    return [
        {"words": draw(WORDS, WIDTH)},
        {"w": draw(WIDTH, 4), "b": draw(4)},
        (draw(4 + WIDTH, WORDS),),
    ]


def loss_alone(p, ids=IDS, targets=TARGETS):
    return entropy(head(p[2], widened(p[1], embed(p[0], ids))), targets)


def loss_in_two(p):
    return entropy(head(p[1], begin(p[0], IDS)), TARGETS)
