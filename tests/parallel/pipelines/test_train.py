"""`pipeline_value_and_grad`: losses and gradients of one device, by every schedule."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import DTypeError, ScheduleError, ShapeError, ShardingError, TreeError
from funcgrad.parallel import (
    make_mesh,
    pipeline_value_and_grad,
)
from funcgrad.parallel.pipelines import Schedule, zb_h1
from tests.parallel.pipelines import jobs
from tests.parallel.pipelines.models import (
    batch,
    check,
    close,
    embed,
    entropy,
    head,
    in_a_row,
    language_loss,
    layer,
    params,
    shared,
    squares,
    texts,
)

JOBS = "tests.parallel.pipelines.jobs"
LINE = make_mesh(2, "pp")
X, TARGETS = batch()
IDS, WORDS = texts()


def trained(stage=layer, loss=squares, mesh=LINE, microbatches=4, **options):
    return pipeline_value_and_grad(stage, loss, mesh=mesh, microbatches=microbatches, **options)


@pytest.mark.parametrize(
    ("stages", "ranks", "microbatches", "schedule"),
    [
        (2, 2, 1, "1f1b"),
        (1, 1, 2, "1f1b"),
        (3, 3, 8, "zb-h1"),
        (2, 1, 2, "zb-v"),
    ],
)
def test_one_device(stages, ranks, microbatches, schedule):
    check(stages, ranks, microbatches, schedule)


def test_own_table():
    """Stages placed anyhow, and a whole backward pass beside one in halves."""
    rows = [
        [("F", 1, 0), ("F", 1, 1), ("I", 1, 0), ("B", 1, 1), ("W", 1, 0)],
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("I", 0, 1), ("W", 0, 1)],
        [("F", 2, 0), ("B", 2, 0), ("F", 2, 1), ("B", 2, 1)],
    ]
    check(6, 3, 2, Schedule("mine", rows))


def test_tied_embedding():
    """What comes before the first stage and what comes after the last share a weight."""
    f = trained(loss=entropy, first=embed, last=head)
    model = (params(4), shared())
    got = fg.jit(f)(model, IDS, WORDS)
    close(got, fg.value_and_grad(language_loss)(model, IDS, WORDS))


def test_head_alone():
    f = trained(loss=entropy, last=lambda s, h: h @ s)
    w = shared()["words"].T
    model, h = (params(2), w), X[:, None]
    got = fg.jit(f)(model, h, WORDS[:, :1])
    plain = lambda model: entropy(in_a_row(model[0], h) @ model[1], WORDS[:, :1])
    close(got, fg.value_and_grad(plain)(model))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_stages_of_checkpointed_layers(schedule):
    stage = lambda w, h: in_a_row(w, h, fg.checkpoint(layer))
    p = params(4)
    grouped = {k: v.reshape(2, 2, *v.shape[1:]) for k, v in p.items()}
    value, grads = fg.jit(trained(stage, schedule=schedule))(grouped, X, TARGETS)
    want = fg.value_and_grad(lambda p: squares(in_a_row(p, X), TARGETS))(p)
    close((value, {k: np.reshape(v, p[k].shape) for k, v in grads.items()}), want)


@pytest.mark.parametrize("schedule", jobs.SCHEDULES)
def test_losses_of_twenty_steps(schedule):
    close(jobs.losses(schedule, make_mesh(2, "pp")), jobs.losses_alone(), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("names", [["1f1b", "zb-v"], ["gpipe", "interleaved"], ["zb-h1", "mine"]])
def test_on_ranks(names, ranks):
    want = jobs.losses_alone()
    for found in ranks(4).run(f"{JOBS}:losses_of_all", names):
        for schedule, losses in found.items():
            np.testing.assert_allclose(losses, want, rtol=1e-5, err_msg=schedule)


def test_on_ranks_with_another_axis(ranks):
    want = jobs.losses_alone()
    for found in ranks(4).run(f"{JOBS}:losses_of_grids"):
        for layout, losses in found.items():
            np.testing.assert_allclose(losses, want, rtol=1e-5, err_msg=layout)


def test_bad_tables_are_refused_on_ranks(ranks):
    for message in ranks(4).run(f"{JOBS}:deadlock"):
        assert "schedule 'mine' deadlocks: rank 0 waits with B0 of stage 0" in message


REFUSED = {
    "stages": ("ShapeError", "params counts 6 stages, which 4 ranks of the mesh axis 'pp' can't"),
    "microbatches": ("ShapeError", "x of shape (8, 6) can't be cut into microbatches=3 of equal"),
    "list": ("ShapeError", "counts 3 stages, which 4 ranks of the mesh axis 'pp' can't share"),
    "axis": ("ShardingError", "moe: axis='ep' must name a mesh axis of the shard_map around it"),
    "capacity": ("ArgumentError", "moe: capacity_factor must be positive, or None to drop nothing"),
    "ring": ("ShardingError", "ring_attention: axis='cp' must name a mesh axis of the shard_map"),
}


def test_what_is_refused_is_refused_on_all_ranks(ranks):
    for found, total in ranks(4).run(f"{JOBS}:refused"):
        assert total == 6
        assert found.keys() == REFUSED.keys()
        for name, (kind, words) in REFUSED.items():
            assert found[name][0] == kind
            assert words in found[name][1]


@pytest.mark.parametrize("layout", ["fsdp", "tp"])
def test_inside_of_a_stage(layout):
    close(jobs.losses_of_grids(jobs.GRID_STEPS, [layout])[layout], jobs.losses_alone()[:3], 1e-5)


def test_narrow_weights_have_gradients_summed_in_float32():
    p = {k: v.astype("bfloat16") for k, v in params(2).items()}
    stage = lambda w, h: layer({k: v.astype("float32") for k, v in w.items()}, h)
    value, grads = fg.jit(trained(stage, microbatches=8))(p, X, TARGETS)
    whole = lambda p: squares(in_a_row(p, X, stage), TARGETS)
    want_value, want = fg.value_and_grad(whole)(p)
    close(value, want_value)
    for g, w in zip(tree.leaves(grads), tree.leaves(want), strict=True):
        assert g.dtype == "bfloat16"
        np.testing.assert_allclose(g.astype("float32"), w.astype("float32"), rtol=2e-2, atol=1e-3)


def test_float64():
    p = {k: v.astype("float64") for k, v in params(2).items()}
    x, targets = X.astype("float64"), TARGETS.astype("float64")
    value, grads = fg.jit(trained())(p, x, targets)
    assert value.dtype == grads["w"].dtype == "float64"
    want = fg.value_and_grad(lambda p: squares(in_a_row(p, x), targets))(p)
    close((value, grads), want, 1e-12)


def test_residuals_are_kept_as_the_schedule_says():
    """The loop carries as many microbatches' residuals as 1F1B keeps, one place more."""

    def carried(schedule):
        jaxpr = fg.make_jaxpr(trained(schedule=schedule, microbatches=8))(params(2), X, TARGETS)
        body = next(e for e in jaxpr.jaxpr.eqns if e.prim.name == "shard_map").params["jaxpr"]
        scan = next(e for e in body.eqns if e.prim.name == "scan")
        n = scan.params["n_consts"]
        carry = scan.ins[n : n + scan.params["n_carry"]]
        return {a.aval.shape[0] for a in carry if a.aval.shape[1:] == (1, 6)}

    assert carried("gpipe") == {8 + 1}
    assert carried("1f1b") == {2 + 1}


def test_loss_without_derivative():
    f = trained(loss=lambda y, t: fnp.mean(t))
    value, grads = f(params(2), X, TARGETS)
    close((value, grads), (np.mean(TARGETS), tree.map(np.zeros_like, params(2))))


def test_vmap():
    many = np.stack([X, X + 1])
    f = trained(microbatches=2)
    got = fg.jit(fg.vmap(f, (None, 0, None)))(params(2), many, TARGETS)
    want = fg.vmap(
        lambda x: fg.value_and_grad(lambda p: squares(in_a_row(p, x), TARGETS))(params(2))
    )
    close(got, want(many), 1e-4)


def test_gradients_of_gradients():
    """The whole is differentiable, as any function."""
    f = trained(microbatches=2)
    norm = lambda f: lambda p: sum(fnp.sum(g**2) for g in tree.leaves(f(p)))
    got = fg.jit(fg.grad(norm(lambda p: f(p, X, TARGETS)[1])))(params(2))
    whole = fg.grad(lambda p: squares(in_a_row(p, X), TARGETS))
    close(got, fg.grad(norm(whole))(params(2)), 1e-4)


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"axis": "x"}, ShardingError, "pipeline_value_and_grad: axis='x' is no axis of"),
        ({"microbatches": 5}, ShapeError, r"x of shape \(8, 6\) can't be cut into microbatches=5"),
        ({"schedule": zb_h1(3, 4)}, ScheduleError, "'zb-h1' is of 3 ranks and 4 microbatches"),
        ({"loss": lambda y, t: y}, ShapeError, r"<lambda> must return a scalar, got f32\[2,6\]"),
        ({"loss": lambda y, t: (y, t)}, TypeError, "<lambda> must return a scalar, got <class"),
        ({"loss": lambda y, t: 1}, TypeError, "<lambda> must return a scalar, got <class 'int'>"),
        ({"loss": lambda y, t: fnp.argmax(y)}, DTypeError, "must return a real float, got i32"),
        ({"first": embed}, TreeError, r"params must be a pair \(params of the stages, shared\)"),
    ],
)
def test_bad_arguments(options, kind, words):
    with pytest.raises(kind, match=words):
        trained(**options)(params(2), X, TARGETS)


def test_no_functions():
    with pytest.raises(TypeError, match="stage must be a function, got 3"):
        trained(3)
    with pytest.raises(TypeError, match="loss must be a function, got None"):
        trained(loss=None)


def test_bad_targets_and_params():
    with pytest.raises(TreeError, match="^pipeline_value_and_grad: targets has no leaves"):
        trained()(params(2), X, None)
    with pytest.raises(ShapeError, match=r"targets of shape \(6, 6\) can't be cut"):
        trained()(params(2), X, TARGETS[:6])
    with pytest.raises(DTypeError, match=r"params\['n'\] is i32\[2\]: only floats have gradients"):
        trained()({**params(2), "n": np.arange(2, dtype=np.int32)}, X, TARGETS)


# ---- what comes with the loss


def test_aux():
    """Means over microbatches, beside the value and the gradient without it."""
    mesh = make_mesh(2, "pp")
    w, x = fnp.ones((2, 3, 3)) / 3, fnp.arange(24.0).reshape(8, 3) / 24
    stage = lambda w, h: fnp.tanh(h @ w)
    loss = lambda y, t: fnp.mean((y - t) ** 2)
    more = lambda y, t: (loss(y, t), {"top": fnp.mean(y, 0), "error": fnp.mean(abs(y - t))})
    both = partial(pipeline_value_and_grad, stage, mesh=mesh, microbatches=4)
    (value, aux), grads = fg.jit(both(more, has_aux=True))(w, x, x)
    want, want_grads = fg.jit(both(loss))(w, x, x)
    assert float(value) == float(want)
    np.testing.assert_array_equal(grads, want_grads)
    y = stage(w[1], stage(w[0], x))
    np.testing.assert_allclose(aux["top"], fnp.mean(y, 0), rtol=1e-5)
    np.testing.assert_allclose(aux["error"], fnp.mean(abs(y - x)), rtol=1e-5)
    with pytest.raises(TypeError, match=r"has_aux, .* must return a pair \(loss, aux\), got"):
        both(loss, has_aux=True)(w, x, x)
    with pytest.raises(DTypeError, match=r"aux\['n'\] .* only floats have a mean"):
        both(lambda y, t: (loss(y, t), {"n": fnp.int32(1)}), has_aux=True)(w, x, x)
