"""Pairs and triples of layouts on eight devices: losses, clipped gradients and means of
parameters are those of one device."""

from functools import cache, partial

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import optim, tree
from funcgrad.core.ir import interpret
from funcgrad.io.checkpoints import load, save
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    accumulate_gradients,
    device_put,
    make_mesh,
)
from funcgrad.parallel.partitioner.partition import partition
from tests.parallel.language_models import init, specs
from tests.parallel.language_models import model as model_of
from tests.parallel.partitioned import checked, counts, run, traced

# What the mesh has; sp cuts activations along the sequence over tp.
PAIRS = [
    ("gpt", {"fsdp": 4, "tp": 2}, ""),
    ("gpt", {"fsdp": 2, "tp": 4}, "sp"),
    ("gpt", {"fsdp": 2, "cp": 4}, ""),
    ("gpt", {"fsdp": 4, "pp": 2}, ""),
    ("gpt", {"tp": 4, "cp": 2}, ""),
    ("gpt", {"tp": 2, "cp": 4}, "sp"),
    ("gpt", {"tp": 4, "pp": 2}, ""),
    ("gpt", {"tp": 4, "pp": 2}, "sp"),
    ("gpt", {"cp": 4, "pp": 2}, ""),
    ("moe", {"fsdp": 2, "ep": 4}, ""),
    ("moe", {"tp": 2, "ep": 4}, ""),
    ("moe", {"tp": 2, "ep": 4}, "sp"),
    ("moe", {"cp": 4, "ep": 2}, ""),
    ("moe", {"pp": 2, "ep": 4}, ""),
    ("llama", {"fsdp": 4, "tp": 2}, "sp"),
    ("llama", {"fsdp": 2, "cp": 4}, ""),
    ("llama", {"cp": 4, "pp": 2}, ""),
    ("llama", {"fsdp": 2, "tp": 2, "cp": 2}, ""),
    ("gpt", {"fsdp": 2, "tp": 2, "pp": 2}, "sp"),
    ("llama", {"cp": 2, "tp": 2, "pp": 2}, ""),
    ("moe", {"fsdp": 2, "ep": 2, "pp": 2}, ""),
    ("moe", {"fsdp": 2, "ep": 2, "tp": 2}, ""),
]


def clipped(model, microbatches=1):
    """A function that gives the loss, gradients clipped by their global norm, and what a mean of
    the parameters over time becomes. microbatches: whose gradients are accumulated"""

    def step(params, *batch):
        both = fg.value_and_grad(model.loss)
        if microbatches > 1:
            both = accumulate_gradients(both, microbatches)
        value, grads = both(params, *batch)
        grads, _ = optim.clip_by_global_norm(0.1).update(grads, optim.EmptyState())
        after = tree.map(lambda p, g: p - g, params, grads)
        return tree.leaves((value, grads, optim.incremental_update(after, params, 0.25)))

    return step


@cache
def wanted(kind):
    """On one device."""
    args = init(kind)
    leaves, structure = tree.flatten(args)
    jaxpr, values = traced(lambda *xs: clipped(model_of(kind))(*structure.unflatten(xs)), leaves)
    return interpret(jaxpr, np, *(np.asarray(v) for v in values))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "axes", "sp"), PAIRS, ids=lambda x: "-".join(x) if isinstance(x, dict) else x
)
def test_equals_one_device(kind, axes, sp):
    compared(kind, axes, sp, 1)


@pytest.mark.parametrize(
    ("kind", "axes", "sp"),
    [("gpt", {"tp": 2, "cp": 4}, "sp"), ("moe", {"fsdp": 2, "ep": 2, "tp": 2}, "")],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else x,
)
def test_accumulated_gradients_are_those_of_one_device(kind, axes, sp):
    compared(kind, axes, sp, 2)


def compared(kind, axes, sp, microbatches):
    """Asserts that a layout gives what one device does."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    model = model_of(kind, mesh, bool(sp))
    leaves, structure = tree.flatten(init(kind))
    step = clipped(model, microbatches)
    jaxpr, values = traced(lambda *xs: step(*structure.unflatten(xs)), leaves)
    cuts = [None] * (len(values) - len(leaves)) + tree.leaves(model.shardings())
    program = checked(partition(jaxpr, mesh, cuts))
    assert counts(program)
    for got, want in zip(run(program, values), wanted(kind), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-5)


LAYOUTS = [{"fsdp": 2, "tp": 2, "pp": 2}, {"fsdp": 4, "tp": 2}, {"tp": 4, "ep": 2}, {"pp": 2}]


def test_checkpoints_load_on_other_layouts(tmp_path):
    """What one layout saved, all others load, cut as they cut it."""
    params = init("moe")[0]
    cuts = []
    for axes in LAYOUTS:
        mesh = make_mesh(tuple(axes.values()), tuple(axes))
        cuts.append(tree.map(partial(NamedSharding, mesh), specs("moe", mesh.axis_names)))
    for i, cut in enumerate(cuts):
        other = cuts[i - 1]
        save(tmp_path / str(i), tree.map(device_put, params, cut))
        like = tree.map(lambda x, s: fg.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params,
                        other)  # fmt: skip
        found = load(tmp_path / str(i), like)
        for x, want, s in zip(*map(tree.leaves, (found, params, other)), strict=True):
            assert x.sharding == s
            np.testing.assert_array_equal(np.asarray(x), want)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("size", "first", "last"),
    [
        pytest.param(4, 0, 2, marks=pytest.mark.long),
        pytest.param(4, 2, 6, marks=pytest.mark.slow),
        pytest.param(8, 6, 8, marks=pytest.mark.slow),
    ],
)
def test_on_ranks(size, first, last, ranks):
    """Eight ranks are more than most machines of tests have cores."""
    found = ranks(size).run("tests.parallel.jobs_layouts:compared", first, last, timeout=900)
    assert found == [[]] * size
