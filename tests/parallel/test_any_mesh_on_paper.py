"""Models on meshes of thousands of devices, on paper: bytes kept and sent are those of the
formulas, and the program is as long as for a few devices."""

import sys
from pathlib import Path

import pytest

from funcgrad import random, tree
from funcgrad.parallel import AbstractMesh

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LAYERS, WIDTH, CONTEXT = 32, 2048, 512
THOUSANDS = pytest.mark.parametrize("devices", [pytest.param(4096, marks=pytest.mark.long), 16384])


@pytest.fixture(scope="module")
def any_mesh():
    sys.path.insert(0, str(EXAMPLES))
    import any_mesh

    yield any_mesh
    sys.path.remove(str(EXAMPLES))


def analysed(any_mesh, kind, sizes, microbatches=8):
    """What a device does for one text a device of the batch (and microbatch), and the parameters of
    all layers."""
    cfg = any_mesh.Config(kind, 1024, LAYERS, WIDTH, heads=32, experts=8, context=CONTEXT)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    model = any_mesh.Model(cfg, mesh, microbatches=microbatches)
    texts = sizes["fsdp"] * sizes.get("ep", 1) * (microbatches if "pp" in sizes else 1)
    types = any_mesh.fg.eval_shape(lambda: any_mesh.init_params(random.key(0), cfg))
    parameters = {k: sum(x.size for x in tree.leaves(v)) for k, v in types.items()}
    return any_mesh.on_paper(model, texts), parameters


def near(n):
    return pytest.approx(n, rel=0.05)


def sent(found, axis, *kinds):
    """The bytes that a device sends along an axis alone, in some kinds of collectives."""
    return sum(n for (kind, axes), (_, n) in found.collectives.items()
               if axes == (axis,) and kind in kinds)  # fmt: skip


def around(n, nbytes):
    """What each of n devices sends of an array of so many bytes that all of them gather."""
    return (n - 1) / n * nbytes


@THOUSANDS
def test_weights_heads_and_sequences_are_cut(any_mesh, devices):
    sizes = {"fsdp": devices // 16, "cp": 2, "tp": 8}
    found, parameters = analysed(any_mesh, "llama", sizes)
    kept = 4 * sum(parameters.values()) / (sizes["fsdp"] * 8)
    # Norms are whole on all devices, as are tokens, almost.
    small = 4 * WIDTH * (2 * LAYERS + 1)
    assert found.argument_bytes == near(kept + small)
    # Weights are gathered twice and their gradients scattered.
    layers = 4 * parameters["layers"] / 8
    assert sent(found, "fsdp", "all_gather", "reduce_scatter") == near(
        3 * around(sizes["fsdp"], layers)
    )
    # Two sums a layer forward, and two backward, of a device's activations.
    activations = CONTEXT // 2 * WIDTH * 4
    assert sent(found, "tp", "all_reduce") == near(4 * LAYERS * 2 * around(8, activations))
    # Keys and values of half as many heads go round, and backward their cotangents with them.
    keys = 2 * activations / 2 / 8
    assert sent(found, "cp", "permute") == near(LAYERS * 3 * keys)


@THOUSANDS
def test_layers_are_cut(any_mesh, devices):
    sizes = {"pp": 16, "fsdp": devices // 128, "tp": 8}
    found, parameters = analysed(any_mesh, "gpt", sizes)
    ticks = 8 + 16 - 1
    # Embeddings are on all stages; norms, and places but for fsdp, are whole.
    kept = parameters["layers"] / 16 + parameters["embed"]
    small = (2 * LAYERS / 16 + 1) * WIDTH + parameters["places"] / sizes["fsdp"]
    tokens = 2 * 8 * CONTEXT
    assert found.argument_bytes == near(4 * (kept / (sizes["fsdp"] * 8) + small + tokens))
    # A message a tick, forward and backward, of a microbatch's text, whose features tp cuts.
    message = CONTEXT * WIDTH * 4 / 8
    assert found.collectives["permute", ("pp",)] == (2 * ticks, near(2 * ticks * message))
    # In lockstep all ranks gather weights in all ticks.
    layers = ticks * 4 * parameters["layers"] / (16 * 8)
    assert sent(found, "fsdp", "all_gather") == near(2 * around(sizes["fsdp"], layers))


@THOUSANDS
def test_experts_are_cut(any_mesh, devices):
    sizes = {"fsdp": devices // 8, "ep": 8}
    found, _ = analysed(any_mesh, "moe", sizes)
    # Rows there and back, of all choices to each device, and their cotangents.
    rows = 8 * 2 * CONTEXT * WIDTH * 4
    assert sent(found, "ep", "all_to_all") == near(4 * LAYERS * around(8, rows))


def test_programs_are_as_long_for_all_devices(any_mesh):
    counts = [
        analysed(any_mesh, "llama", {"pp": 4, "fsdp": n // 16, "tp": 4})[0].counts
        for n in (256, 16384)
    ]
    # What sends less may be another exchange, of the embedding.
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
