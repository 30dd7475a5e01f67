"""Small language models for tests of layouts: those of examples/any_mesh.py; a batch."""

import sys
from pathlib import Path

import numpy as np

from funcgrad import random, tree

EXAMPLES = str(Path(__file__).parent.parent.parent / "examples")
sys.path.insert(0, EXAMPLES)
from any_mesh import Config, Model, init_params, specs  # noqa: E402

sys.path.remove(EXAMPLES)
BATCH, LENGTH = 8, 64  # longer than what attention does as plain products

__all__ = ["BATCH", "init", "model", "specs"]


def config(kind):
    return Config(kind, vocabulary=32, layers=2, width=16, context=LENGTH)


def model(kind, mesh=None, sp=False):
    return Model(config(kind), mesh, sp)


def init(kind):
    """Parameters; and a batch of tokens with the next ones."""
    codes = np.random.default_rng(0).integers(0, 32, (BATCH, LENGTH + 1)).astype("int32")
    params = tree.map(np.asarray, init_params(random.key(0), config(kind)))
    return params, codes[:, :-1], codes[:, 1:]
