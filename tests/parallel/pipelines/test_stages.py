"""Stages that have nothing in common: their losses and gradients are those on one device."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import DTypeError, ShapeError, TreeError
from funcgrad.parallel import (
    NamedSharding,
    P,
    PackedStages,
    device_put,
    make_mesh,
    pack_stages,
    pipeline,
    pipeline_value_and_grad,
)
from tests.parallel.pipelines.models import close, entropy
from tests.parallel.pipelines.unlike import (
    IDS,
    TARGETS,
    begin,
    embed,
    head,
    loss_alone,
    loss_in_two,
    params,
    widened,
)

LINE = make_mesh(2, "pp")


def trained(stages, mesh=LINE, microbatches=4, **options):
    return pipeline_value_and_grad(stages, entropy, mesh=mesh, microbatches=microbatches, **options)


def in_two():
    first, second, third = params()
    return [(first, second), third]


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb-h1", marks=pytest.mark.slow)])
def test_one_device(schedule):
    """An embedding in the first stage, a skip to the last one, whole and halved backward passes."""
    p = in_two()
    found = fg.jit(trained([begin, head], schedule=schedule))(p, IDS, TARGETS)
    assert type(found[1]) is list
    close(found, fg.value_and_grad(loss_in_two)(p))


@pytest.mark.slow
def test_on_ranks(ranks):
    want = fg.value_and_grad(loss_alone)(params())
    for found in ranks(4).run("tests.parallel.pipelines.jobs:unlike_stages"):
        close(found, want)


@pytest.mark.slow
def test_packed_and_cut_over_another_axis():
    """A rank has its own stage's weights alone, a part of them if they are cut, and so have
    gradients and the state of an optimizer."""
    mesh = make_mesh((2, 2), ("pp", "data"))
    packed = pack_stages(in_two())
    cut = NamedSharding(mesh, P("pp", "data"))
    own = device_put(packed, tree.map(lambda _: cut, packed))
    ids, targets = (device_put(x, NamedSharding(mesh, P("data"))) for x in (IDS, TARGETS))
    f = trained([begin, fg.checkpoint(head)], mesh=mesh, microbatches=2)
    value, grads = fg.jit(f, out_shardings=(None, tree.map(lambda _: cut, packed)))(
        own, ids, targets
    )
    assert isinstance(grads, PackedStages)
    (array,) = grads.arrays.values()
    assert array.sharding.spec == P("pp", "data")
    want = fg.value_and_grad(loss_in_two)(in_two())
    close((value, grads.unpack()), (want[0], tuple(want[1])))


def test_tied_embedding():
    """What comes before the first stage and after the last one share a weight, whose gradient is
    the sum of both ranks'."""
    (words, second, _), rng = params(), np.random.default_rng(3)
    middle = (rng.normal(size=(10, 6)) / 3).astype(np.float32)
    stages = [widened, head]
    tied = trained(stages, first=embed, last=lambda p, h: h @ p["words"].T, microbatches=2)
    found = fg.jit(tied)(((second, (middle,)), words), IDS, TARGETS)

    def alone(p):
        own, shared = p
        h = head(own[1], widened(own[0], embed(shared, IDS)))
        return entropy(h @ shared["words"].T, TARGETS)

    close(found, fg.value_and_grad(alone)(((second, (middle,)), words)))


@pytest.mark.slow
def test_pipeline_as_a_function():
    p = in_two()
    f = lambda p: entropy(pipeline([begin, head], p, IDS, mesh=LINE, microbatches=4), TARGETS)
    close(fg.jit(fg.value_and_grad(f))(p), fg.value_and_grad(loss_in_two)(p))


# ---- what is refused


@pytest.mark.parametrize(
    ("stages", "given", "kind", "words"),
    [
        ([begin, 3], in_two(), TypeError, r"stage\[1\] must be a function, got 3"),
        ([], in_two(), TypeError, "a list of functions, got none"),
        ([begin, head], params(), ShapeError, "2 stages are given, and the params of 3"),
        ([begin, head], {"w": IDS}, TreeError, "params must be a list or tuple .* got dict"),
        ([begin, head], [1.0, "x"], TypeError, r"params\[1\] must be an array, got 'x'"),
        ([begin, head], [1.0, {"n": IDS}], DTypeError, r"params\[1\]\['n'\] is i32.*: only float"),
        ([embed, widened, head], params(), ShapeError, "counts 3 stages, which 2 ranks of the"),
        ([begin, head] * 2, in_two() * 2, ShapeError, "4 stages are given, but the schedule '1f1b"),
    ],
)
def test_bad_stages(stages, given, kind, words):
    with pytest.raises(kind, match=f"^pipeline_value_and_grad: .*{words}"):
        trained(stages)(given, IDS, TARGETS)


def test_a_result_without_rows():
    stages = [lambda p, h: h * p, lambda p, h: {"sum": fnp.sum(h) * p}]
    with pytest.raises(ShapeError, match=r"<lambda> gives f32\[\] for result\['sum'\]"):
        pipeline(stages, [1.0, 2.0], fnp.ones((8, 3)), mesh=LINE, microbatches=4)


def test_stages_that_do_not_fit():
    """The error is that of the stage's own operation."""
    with pytest.raises(TypeError, match="matmul"):
        trained([head, begin])(in_two()[::-1], IDS, TARGETS)
