"""A model whose layers are stages, on one device and in a pipeline."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, tree
from funcgrad.parallel import make_mesh, pipeline_value_and_grad

WIDTH, BATCH, WORDS = 6, 8, 5


def layer(p, h):
    return h + fnp.tanh(fnp.tanh(h @ p["w"] + p["b"]) @ p["w"].T)


def in_a_row(p, x, stage=layer):
    return lax.scan(lambda h, w: (stage(w, h), None), x, p)[0]


def squares(y, targets):
    return fnp.mean((y - targets) ** 2)


def embed(shared, ids):
    return shared["words"][ids]


def head(shared, h):
    return h @ shared["words"].T + shared["bias"]


def entropy(logits, targets):
    picked = fnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1)
    return -fnp.mean(picked)


def params(stages, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(stages, WIDTH, WIDTH)) / 3
    return {"w": w.astype(np.float32), "b": rng.normal(size=(stages, WIDTH)).astype(np.float32)}


def batch(seed=1):
    return np.random.default_rng(seed).normal(size=(2, BATCH, WIDTH)).astype(np.float32)


def shared(seed=2):
    rng = np.random.default_rng(seed)
    words = (rng.normal(size=(WORDS, WIDTH)) / 2).astype(np.float32)
    return {"words": words, "bias": rng.normal(size=WORDS).astype(np.float32)}


def texts(seed=3):
    return np.random.default_rng(seed).integers(0, WORDS, (2, BATCH, 2)).astype(np.int32)


def language_loss(model, ids, targets):
    own, common = model
    return entropy(head(common, in_a_row(own, embed(common, ids))), targets)


def close(got, want, tol=2e-5):
    tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=tol, atol=tol), got, want)


def check(stages, ranks, microbatches, schedule, stage=layer):
    """A loss and its gradient in a pipeline are those on one device."""
    mesh = make_mesh(ranks, "pp")
    x, targets = batch()
    f = pipeline_value_and_grad(
        stage, squares, mesh=mesh, microbatches=microbatches, schedule=schedule
    )
    p = params(stages)
    got = fg.jit(f)(p, x, targets)
    close(got, fg.value_and_grad(lambda p: squares(in_a_row(p, x), targets))(p))
