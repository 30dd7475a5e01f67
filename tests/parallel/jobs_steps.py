"""What tests of steps run on ranks, and on virtual devices: groups that train by themselves, with
accumulated and clipped gradients, a mean of the parameters that follows them."""

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, tree
from funcgrad.parallel import accumulate_gradients, local_steps, make_mesh

STEPS, NORM, DECAY = 2, 0.5, 0.25
RNG = np.random.default_rng(5)
W = {"a": (RNG.normal(size=(6, 4)) / 2).astype(np.float32), "b": np.zeros(4, np.float32)}
BATCHES = [RNG.normal(size=(3, 16, n)).astype(np.float32) for n in (6, 4)]
INNER, OUTER = optim.adam(0.01), optim.sgd(0.7, momentum=0.9, nesterov=True)


def loss(w, x, y):
    return fnp.mean((fnp.tanh(x @ w["a"] + w["b"]) - y) ** 2)


def step(w, state, rows):
    value, grads = accumulate_gradients(fg.value_and_grad(loss), 2)(w, *rows)
    grads, _ = optim.clip_by_global_norm(NORM).update(grads, optim.EmptyState())
    updates, state = INNER.update(grads, state, w)
    return optim.apply_updates(w, updates), state, value


def trained(mesh):
    """Losses, parameters, and their mean over time, on a mesh whose first axis counts groups."""
    local = local_steps(step, OUTER, mesh=mesh, axis="group")

    @fg.jit
    def turn(state, mean):
        state, losses = local.update(state, BATCHES)
        return state, optim.incremental_update(state.params, mean, DECAY), losses

    state, mean, found = local.init(W, INNER.init(W)), W, []
    for _ in range(STEPS):
        state, mean, losses = turn(state, mean)
        found.append(np.asarray(losses))
    return tree.map(np.asarray, (found, state.params, mean))


def on_ranks():
    """`trained` on four ranks: two groups of two."""
    return trained(make_mesh((2, 2), ("group", "data")))


def by_hand(groups=2):
    """The same, group after group."""
    w, mean, outer = W, W, OUTER.init(W)
    inner, losses = [INNER.init(W)] * groups, []
    for _ in range(STEPS):
        ends, each = [], []
        for g in range(groups):
            here, found = w, []
            for i in range(3):
                rows = [np.split(b[i], groups)[g] for b in BATCHES]
                here, inner[g], value = step(here, inner[g], rows)
                found.append(value)
            ends.append(here)
            each.append(found)
        back = tree.map(lambda a, *b: a - sum(b) / groups, w, *ends)
        updates, outer = OUTER.update(back, outer, w)
        w = optim.apply_updates(w, updates)
        mean = tree.map(lambda new, old: DECAY * new + (1 - DECAY) * old, w, mean)
        losses.append(np.mean(each, 0))
    return losses, w, mean
