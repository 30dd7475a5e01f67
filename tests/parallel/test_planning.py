"""`plan`: sizes of meshes on paper."""

import math

import pytest

from funcgrad.errors import ArgumentError
from funcgrad.parallel import AbstractMesh, Cluster, ModelShape, plan

SMALL = ModelShape(layers=32, width=4096, heads=32, sequence=4096, vocabulary=32768, batch=256)
LARGE = ModelShape(
    layers=128, width=16384, heads=128, kv_heads=8, sequence=8192, vocabulary=131072, batch=2048,
    hidden=53248, gated=True,
)  # fmt: skip
LONG = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, sequence=2**20, vocabulary=131072, batch=16
)
EXPERTS = ModelShape(
    layers=32, width=4096, heads=32, kv_heads=8, sequence=8192, vocabulary=32768, batch=1024,
    hidden=14336, gated=True, experts=64, top_k=2,
)  # fmt: skip
MEMORY = 80e9
CASES = [(SMALL, 8), (SMALL, 64), (SMALL, 1024), (LARGE, 1024), (LARGE, 4096), (LARGE, 16384),
         (LONG, 256), (EXPERTS, 256)]  # fmt: skip


@pytest.mark.parametrize(("shape", "devices"), CASES)
def test_sizes_fit(shape, devices):
    found = plan(shape, devices, MEMORY)
    sizes = found.sizes
    assert math.prod(sizes.values()) == devices == found.mesh.size
    assert found.bytes <= MEMORY
    assert found.bytes == sum(found.memory.values())
    texts, rest = divmod(shape.batch, sizes["dp"] * sizes["fsdp"] * sizes["ep"])
    assert not rest
    assert texts % found.microbatches == 0
    assert shape.layers % sizes["pp"] == 0
    assert sizes["tp"] <= 8
    assert 0 < found.utilization < 1
    # One reason for each axis.
    used = [a for a, n in sizes.items() if n > 1]
    assert [r.split()[0] for r in found.reasons[: len(used)]] == used


def test_parameters_are_those_of_the_models():
    # Llama 3 has 405e9 in 126 layers.
    assert LARGE.parameters == pytest.approx(128 / 126 * 405e9, rel=0.01)
    assert SMALL.parameters == pytest.approx(6.57e9, rel=0.01)
    assert EXPERTS.flops < 6 * EXPERTS.parameters * EXPERTS.batch * EXPERTS.sequence


def test_state_is_sixteen_bytes_a_parameter():
    """ZeRO: 16 Ψ / R where parameters, gradients and state are cut over R devices."""
    found = plan(SMALL, 64, MEMORY, fsdp=64)
    assert found.memory["parameters and optimizer"] == 16 * SMALL.parameters / 64
    assert plan(SMALL, 8, 2e11, dp=8).memory["parameters and optimizer"] == 16 * SMALL.parameters


def test_idle_time_is_the_schedules():
    found = plan(LARGE, 4096, MEMORY)
    p, m = found.sizes["pp"], found.microbatches
    assert p > 1
    idle = found.seconds["idle in the pipeline"] / found.seconds["work"]
    assert idle == pytest.approx((p - 1) / m)


def test_what_kind_of_model_takes_which_axis():
    assert plan(LONG, 256, MEMORY).sizes["cp"] > 8
    assert plan(EXPERTS, 256, MEMORY).sizes["ep"] > 1
    slow = plan(SMALL, 64, MEMORY, cluster=Cluster(across=1e9))
    assert slow.step > plan(SMALL, 64, MEMORY).step
    tight = plan(SMALL, 64, 20e9)
    assert tight.checkpoint or tight.microbatches > 1


def test_reasons_say_what_there_would_be():
    reasons = plan(LONG, 256, MEMORY).reasons
    assert any(r.startswith("cp ") and "without it a device needs" in r for r in reasons)
    reasons = plan(SMALL, 64, MEMORY).reasons
    assert any("times as long (" in r for r in reasons)
    tight = plan(SMALL, 8, 20e9, fsdp=8)
    assert tight.checkpoint
    assert "checkpoints: without them a device needs" in tight.reasons[-1]


def test_given_sizes():
    found = plan(LARGE, 4096, MEMORY, pp=16, tp=8)
    assert (found.sizes["pp"], found.sizes["tp"]) == (16, 8)
    assert "pp 16: as given" in found.reasons


def test_texts_and_pages():
    found = plan(SMALL, 64, MEMORY)
    assert str(found).splitlines()[0].split() == ["mesh", "fsdp", "64"]
    assert "a device keeps" in str(found)
    assert "<b>6.58 G parameters on 64 devices</b>" in found._repr_html_()
    assert plan(SMALL, 1, 1e12).mesh == AbstractMesh((1,), ("dp",))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plan(SMALL, 0, MEMORY), "plan: devices must be an integer ≥ 1, got 0"),
        (lambda: plan(SMALL, 8.0, MEMORY), "plan: devices must be an integer ≥ 1, got 8.0"),
        (lambda: plan(SMALL, 8, 0), "plan: memory must be bytes of a device, got 0"),
        (lambda: plan("gpt", 8, 1), "plan: shape must be a ModelShape, got 'gpt'"),
        (lambda: plan(SMALL, 8, 1, xp=2), "there is no axis 'xp'; there are pp, dp, fsdp, cp"),
        (lambda: plan(SMALL, 8, 1, tp=0), "plan: tp must be an integer ≥ 1, got 0"),
        (lambda: plan(SMALL, 8, 1e9), "nothing fits in 1 GB of 8 devices; .* needs least"),
        (lambda: plan(SMALL, 7, MEMORY), "no sizes of pp, dp, .* make 7 devices for ModelShape"),
        (lambda: plan(SMALL, 8, MEMORY, tp=3), "make 8 devices .* with {'tp': 3}"),
        (lambda: ModelShape(0, 8, 2, 4, 4, 1), "layers must be an integer ≥ 1, got 0"),
        (lambda: ModelShape(1, 8, 3, 4, 4, 1), "heads=3 don't divide width=8"),
        (lambda: ModelShape(1, 8, 4, 4, 4, 1, kv_heads=3), "kv_heads=3 don't divide heads=4"),
        (lambda: ModelShape(1, 8, 4, 4, 4, 1, top_k=2), "top_k=2 of experts=1"),
    ],
)
def test_bad_numbers(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
