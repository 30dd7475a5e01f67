"""`pipeline`: the stages in a row, and the derivatives of that, by every schedule."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import ScheduleError, ShapeError, ShardingError, TreeError
from funcgrad.parallel import NamedSharding, P, device_put, make_mesh, pipeline, shard_map
from funcgrad.parallel.mapping.varying_programs import collectives
from funcgrad.parallel.pipelines import gpipe, one_f_one_b
from tests.parallel.pipelines.models import batch, close, in_a_row, layer, params

X, TARGETS = batch()
LINE = make_mesh(2, "pp")


def piped(stage=layer, mesh=LINE, microbatches=4, **options):
    return lambda p, x: pipeline(stage, p, x, mesh=mesh, microbatches=microbatches, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("stages", "ranks", "microbatches", "schedule"),
    [
        (4, 4, 8, "gpipe"),
        (4, 2, 4, "1f1b"),
        (6, 2, 2, "interleaved"),
        (4, 2, 4, "zb-h1"),
        (8, 2, 4, "zb-v"),
        (2, 1, 1, "1f1b"),
        (2, 2, 4, one_f_one_b(2, 4)),
    ],
)
def test_stages_in_a_row(stages, ranks, microbatches, schedule):
    f = piped(mesh=make_mesh(ranks, "pp"), microbatches=microbatches, schedule=schedule)
    p = params(stages)
    loss = lambda f: lambda p, x: fnp.sum((f(p, x) - TARGETS) ** 2)
    got = fg.jit(lambda p, x: (f(p, x), fg.grad(loss(f), (0, 1))(p, x)))(p, X)
    close(got, (in_a_row(p, X), fg.grad(loss(in_a_row), (0, 1))(p, X)), 1e-4)


def test_eager_and_forward_mode():
    p, f = params(2), piped()
    close(f(p, X), in_a_row(p, X))
    tangents = (params(2, seed=5), TARGETS)
    close(fg.jvp(f, (p, X), tangents), fg.jvp(in_a_row, (p, X), tangents), 1e-4)


def test_vmap():
    p, xs = params(2), np.stack([X, TARGETS])
    got = fg.jit(fg.vmap(piped(), (None, 0)))(p, xs)
    close(got, fg.vmap(in_a_row, (None, 0))(p, xs))


def test_trees_of_activations():
    """A stage may hand on what it doesn't change, and integers."""

    def stage(w, h):
        return {"y": h["y"] + w * h["skip"], "skip": h["skip"], "count": h["count"] + 1}

    x = {"y": X, "skip": TARGETS, "count": np.zeros(8, np.int32)}
    w = np.array([1.0, 2.0], np.float32)
    got = pipeline(stage, w, x, mesh=LINE, microbatches=2)
    close(got, {"y": X + 3 * TARGETS, "skip": TARGETS, "count": np.full(8, 2)})


def test_stages_that_are_layers():
    p = params(4)
    grouped = {k: v.reshape(2, 2, *v.shape[1:]) for k, v in p.items()}
    f = piped(lambda w, h: in_a_row(w, h, fg.checkpoint(layer)))
    loss = lambda f: lambda p: fnp.sum(f(p, X) ** 2)
    got = fg.jit(fg.grad(loss(f)))(grouped)
    want = fg.grad(loss(in_a_row))(p)
    close({k: np.reshape(v, want[k].shape) for k, v in got.items()}, want, 1e-4)


def test_idle_ranks_compute_nothing_that_matters():
    """A stage whose value and derivative at 0 are infinite."""
    stage = lambda w, h: w / h + fnp.log(h)
    w, x = np.ones(2, np.float32), np.abs(X) + 1
    f = lambda f: lambda w, x: fnp.sum(f(w, x))
    row = lambda w, x: stage(w[1], stage(w[0], x))
    got = fg.jit(fg.value_and_grad(f(piped(stage)), (0, 1)))(w, x)
    close(got, fg.value_and_grad(f(row), (0, 1))(w, x), 1e-4)


def test_sent_between_neighbours_alone():
    jaxpr = fg.make_jaxpr(piped())(params(2), X).jaxpr
    assert sorted(name for name, _ in collectives(jaxpr)) == ["ppermute", "psum_invariant"]


def test_other_axes_of_the_mesh_are_free():
    """Batch and weights are cut over another axis; stages are cut as their parameters are."""
    mesh = make_mesh((2, 2), ("pp", "data"))
    p = params(2)
    cut = {k: device_put(v, NamedSharding(mesh, P("pp", "data"))) for k, v in p.items()}
    x = device_put(X, NamedSharding(mesh, P("data")))
    f = piped(mesh=mesh, microbatches=2)
    loss = lambda f: lambda p, x: fnp.sum(f(p, x) ** 2)
    got = fg.jit(fg.grad(loss(f)))(cut, x)
    close(got, fg.grad(loss(in_a_row))(p, X), 1e-4)
    assert all(g.sharding.spec[0] == "pp" for g in got.values())


# ---- what is refused


BAD = {
    "mesh": ({"mesh": 4}, TypeError, "pipeline: mesh must be a Mesh, got 4"),
    "axis": (
        {"axis": "stage"}, ShardingError,
        r"pipeline: axis='stage' is no axis of Mesh\('pp': 2\)",
    ),
    "microbatches": (
        {"microbatches": 3}, ShapeError,
        r"pipeline: x of shape \(8, 6\) can't be cut into microbatches=3 of equal size",
    ),
    "no microbatches": (
        {"microbatches": 0}, ScheduleError, "microbatches must be an integer ≥ 1, got micro",
    ),
    "no number": ({"microbatches": "4"}, ScheduleError, "got microbatches='4'"),
    "schedule": ({"schedule": "2f"}, ScheduleError, "there is no schedule '2f'"),
    "other ranks": (
        {"schedule": gpipe(4, 4)}, ScheduleError, "of 4 ranks and 4 microbatches, but 2 ranks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    options, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        piped(**options)(params(2), X)


@pytest.mark.parametrize(
    ("p", "kind", "words"),
    [
        (params(3), ShapeError, "first axis of params counts 3 stages, which 2 ranks of the mesh"),
        ({"w": X, "b": X[0]}, ShapeError, r"params\['b'\] has 6 and params\['w'\] 8"),
        ({"w": 1.0}, ShapeError, r"params\['w'\] is a scalar: its first axis must count"),
        ({}, TreeError, "params has no leaves"),
        ({"w": "x"}, TypeError, r"params\['w'\] must be an array, got 'x'"),
    ],
)
def test_bad_params(p, kind, words):
    with pytest.raises(kind, match=words):
        piped()(p, X)


def test_other_things_that_are_refused():
    with pytest.raises(TypeError, match="pipeline: stage must be a function, got 5"):
        piped(5)(params(2), X)
    inside = shard_map(
        lambda x: piped()(params(2), x), mesh=LINE, in_specs=P("pp"), out_specs=P("pp")
    )
    with pytest.raises(ShardingError, match="pipeline: axis='pp' is that of a shard_map around it"):
        inside(X)
    meeting = lambda w, h: h + fg.lax.psum(w["b"], "pp")
    with pytest.raises(ShardingError, match="devices take different ways"):
        piped(meeting)(params(2), X)


def test_stages_that_no_schedule_has():
    with pytest.raises(ShapeError, match="counts 6 stages, no multiple of the 4 of the schedule"):
        piped(schedule="zb-v")(params(6), X)


@pytest.mark.parametrize(
    ("x", "kind", "words"),
    [
        ({"a": 1.0}, ShapeError, r"x\['a'\] of shape \(\) can't be cut"),
        (np.zeros((0, 6)), ShapeError, "can't be cut into microbatches=4"),
        ({"a": "b"}, TypeError, r"x\['a'\] must be an array, got 'b'"),
        ([], TreeError, "x has no leaves"),
    ],
)
def test_bad_batches(x, kind, words):
    with pytest.raises(kind, match=words):
        piped()(params(2), x)


@pytest.mark.parametrize(
    ("stage", "kind", "words"),
    [
        (lambda p, h: h[:, :2], ShapeError, r"takes f32\[2,6\] and gives f32\[2,2\]"),
        (lambda p, h: h.astype("int32"), ShapeError, r"takes f32\[2,6\] and gives i32\[2,6\]"),
        (lambda p, h: (h, h), TreeError, "a stage must give what it takes, but <lambda> takes"),
    ],
)
def test_stages_that_give_something_else(stage, kind, words):
    with pytest.raises(kind, match=words):
        piped(stage)(params(2), X)
