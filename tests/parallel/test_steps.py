"""Steps that send less, and what optimizers compute of gradients that are cut."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import optim, tree
from funcgrad.errors import DTypeError, ShapeError, ShardingError, TreeError
from funcgrad.parallel import (
    NamedSharding,
    P,
    accumulate_gradients,
    device_put,
    fsdp,
    local_steps,
    make_mesh,
    pipeline_value_and_grad,
)
from tests.parallel import jobs_steps
from tests.parallel.pipelines.models import batch, close, in_a_row, layer, params, squares

LINE = make_mesh(4, "data")
RNG = np.random.default_rng(0)
W = {"a": RNG.normal(size=(8, 16)).astype(np.float32), "b": np.zeros(16, np.float32)}
X, Y = RNG.normal(size=(32, 8)).astype(np.float32), RNG.normal(size=(32, 16)).astype(np.float32)


def loss(w, x, y):
    return fnp.mean((fnp.tanh(x @ w["a"] + w["b"]) - y) ** 2)


FULL = fg.value_and_grad(loss)

# ---- accumulation


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_accumulated_gradients_are_the_whole_batchs(microbatches):
    step = accumulate_gradients(FULL, microbatches)
    close(step(W, X, Y), FULL(W, X, Y))
    close(fg.jit(step)(W, X, Y), FULL(W, X, Y))


@pytest.mark.parametrize("cut", ["ddp", "fsdp"])
def test_one_reduction_after_all_microbatches(cut):
    """As many collectives send gradients as for one batch."""
    shardings = fsdp(W, LINE, min_size=1) if cut == "fsdp" else NamedSharding(LINE, P())
    w = device_put(W, shardings)
    x, y = (device_put(v, NamedSharding(LINE, P("data"))) for v in (X, Y))
    whole = NamedSharding(LINE, P())
    outs = (whole, shardings if cut == "fsdp" else whole)
    run = lambda f: fg.jit(f, out_shardings=outs)
    found = run(accumulate_gradients(FULL, 4))
    close(found(w, x, y), FULL(W, X, Y))
    sums = lambda f: {
        k: v for k, v in run(f).lower(w, x, y).device_analysis().counts.items()
        if k in ("all_reduce", "reduce_scatter")
    }  # fmt: skip
    assert sums(accumulate_gradients(FULL, 4)) == sums(FULL) != {}


def test_narrow_sums_are_wide():
    """512 ones in bfloat16 would stop at 256."""
    ones = lambda w, x: fnp.sum(x).astype("bfloat16") * w
    step = accumulate_gradients(ones, 512)
    found = step(fnp.ones((), "bfloat16"), np.ones(512, np.float32))
    assert (found.dtype, float(found)) == ("bfloat16", 1.0)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: accumulate_gradients(3, 2), TypeError, "first argument must be a function"),
        (lambda: accumulate_gradients(loss, 0), ShapeError, "of loss: microbatches must be an int"),
        (
            lambda: accumulate_gradients(loss, 3)(W, X, Y), ShapeError,
            r"batch\[0\] of shape \(32, 8\) can't be cut into microbatches=3",
        ),
        (
            lambda: accumulate_gradients(lambda w, x: {"n": fnp.argmax(x)}, 2)(W, X), DTypeError,
            r"its result\['n'\] is i32\[\]: only floats have a mean",
        ),
    ],
)  # fmt: skip
def test_bad_accumulations(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


# ---- norms and means of what is cut


@pytest.mark.parametrize("cut", ["fsdp", "whole"])
def test_clip_and_mean_of_cut_arrays(cut):
    shardings = tree.map(lambda _: NamedSharding(LINE, P()), W)
    shardings = fsdp(W, LINE, min_size=1) if cut == "fsdp" else shardings
    w = device_put(W, shardings)

    @fg.jit
    def clipped(w):
        out, _ = optim.clip_by_global_norm(0.5).update(w, optim.EmptyState())
        return out, optim.global_norm(out), optim.incremental_update(out, w, 0.25)

    out, norm, mean = clipped(w)
    size = np.sqrt(sum(np.sum(v**2) for v in W.values()))
    close(norm, 0.5)
    close(out, tree.map(lambda v: v * 0.5 / size, W))
    close(mean, tree.map(lambda v: 0.25 * v * 0.5 / size + 0.75 * v, W))
    assert [m.sharding.spec for m in tree.leaves(mean)] == [s.spec for s in tree.leaves(shardings)]


def test_clip_of_a_pipelines_gradients():
    mesh = make_mesh(2, "pp")
    x, targets = batch()
    f = pipeline_value_and_grad(layer, squares, mesh=mesh, microbatches=2)
    clip = lambda g: optim.clip_by_global_norm(0.1).update(g, optim.EmptyState())[0]
    got = fg.jit(lambda p: clip(f(p, x, targets)[1]))(params(2))
    close(got, clip(fg.grad(lambda p: squares(in_a_row(p, x), targets))(params(2))))


# ---- local steps


GROUPS = make_mesh((2, 2), ("group", "data"))
INNER = optim.adam(0.01)
ROUND = RNG.normal(size=(3, 16, 8)).astype(np.float32), RNG.normal(size=(3, 16, 16))


def inner_step(w, state, rows):
    value, grads = FULL(w, *rows)
    updates, state = INNER.update(grads, state, w)
    return optim.apply_updates(w, updates), state, value


def rounds(outer, batches, mesh=GROUPS, steps=2):
    local = local_steps(inner_step, outer, mesh=mesh, axis="group")
    state, found = local.init(W, INNER.init(W)), []
    update = fg.jit(local.update)
    for _ in range(steps):
        state, losses = update(state, batches)
        found.append(np.asarray(losses))
    return state, np.concatenate(found)


def by_hand(outer, batches, groups=2, steps=2):
    """The same, group after group."""
    w, outer_state = W, outer.init(W)
    inner = [INNER.init(W)] * groups
    losses = []
    for _ in range(steps):
        ends, each = [], []
        for g in range(groups):
            here, found = w, []
            for i in range(3):
                rows = [np.split(b[i], groups)[g].astype(np.float32) for b in batches]
                here, inner[g], value = inner_step(here, inner[g], rows)
                found.append(value)
            ends.append(here)
            each.append(found)
        back = tree.map(lambda a, *b: a - sum(b) / groups, w, *ends)
        updates, outer_state = outer.update(back, outer_state, w)
        w = optim.apply_updates(w, updates)
        losses.append(np.mean(each, 0))
    return w, np.concatenate(losses)


@pytest.mark.parametrize(
    "outer", [optim.sgd(1.0), optim.sgd(0.7, momentum=0.9, nesterov=True)], ids=["mean", "nesterov"]
)
def test_local_steps_by_hand(outer):
    batches = ROUND[0], ROUND[1].astype(np.float32)
    state, losses = rounds(outer, batches)
    w, want = by_hand(outer, batches)
    close(losses, want, 1e-5)
    close(state.params, w, 1e-5)
    assert all(x.shape[0] == 2 for x in tree.leaves(state.inner))


def test_local_steps_without_a_state():
    """Gradients of parameters that all groups begin with are each group's own."""

    def step(w, inner, rows):
        value, slope = FULL(w, *rows)
        return tree.map(lambda p, g: p - 0.1 * g, w, slope), inner, value

    batches = ROUND[0], ROUND[1].astype(np.float32)
    local = local_steps(step, optim.sgd(1.0), mesh=GROUPS, axis="group")
    state, losses = fg.jit(local.update)(local.init(W, ()), batches)
    ends, each = [], []
    for g in range(2):
        w, found = W, []
        for i in range(3):
            w, _, value = step(w, (), [np.split(b[i], 2)[g] for b in batches])
            found.append(value)
        ends.append(w)
        each.append(found)
    close(losses, np.mean(each, 0), 1e-5)
    close(state.params, tree.map(lambda a, b: (a + b) / 2, *ends), 1e-5)


@pytest.mark.mpi
def test_accumulation_clipping_and_means_in_groups(ranks):
    """On virtual devices and on ranks."""
    want = jobs_steps.by_hand()
    close(jobs_steps.trained(GROUPS), want, 1e-5)
    for found in ranks(4).run("tests.parallel.jobs_steps:on_ranks"):
        close(found, want, 1e-5)


def test_local_steps_exchange_parameters_once():
    batches = ROUND[0], ROUND[1].astype(np.float32)
    local = local_steps(inner_step, optim.sgd(1.0), mesh=GROUPS, axis="group")
    state = local.init(W, INNER.init(W))
    found = fg.jit(local.update).lower(state, batches).device_analysis().collectives
    sent = {axes: nbytes for (_, axes), (_, nbytes) in found.items()}
    # An all-reduce of two devices sends what it sums; beside parameters there are three losses.
    assert sent == {("group",): sum(v.nbytes for v in W.values()) + 3 * 4}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: local_steps(1, INNER, mesh=GROUPS, axis="group"), TypeError, "must be a function"),
        (lambda: local_steps(loss, INNER, mesh=2, axis="x"), TypeError, "mesh must be a Mesh"),
        (
            lambda: local_steps(loss, INNER, mesh=GROUPS, axis="x"), ShardingError,
            "local_steps of loss: axis='x' is no axis of Mesh",
        ),
        (lambda: rounds(INNER, ()), TreeError, "batches has no leaves"),
        (
            lambda: rounds(INNER, (X[:, :7],)), ShapeError,
            r"batches\[0\] of shape \(32, 7\) must have an axis of steps, then one of rows that 2",
        ),
    ],
)  # fmt: skip
def test_bad_local_steps(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
