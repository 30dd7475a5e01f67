"""What tests of layouts run on ranks."""

import numpy as np

import funcgrad as fg
from funcgrad import tree
from funcgrad.parallel import NamedSharding, P, device_put, make_mesh, reshard
from tests.parallel.language_models import init
from tests.parallel.language_models import model as model_of

PAIRS = [
    ("llama", {"cp": 2, "pp": 2}, False),
    ("moe", {"fsdp": 2, "ep": 2}, False),
    ("gpt", {"fsdp": 2, "tp": 2}, True),
    ("llama", {"tp": 2, "cp": 2}, True),
    ("moe", {"tp": 2, "ep": 2}, False),
    ("gpt", {"tp": 2, "pp": 2}, False),
]
TRIPLES = [
    ("llama", {"fsdp": 2, "tp": 2, "cp": 2}, True),
    ("moe", {"fsdp": 2, "ep": 2, "pp": 2}, False),
]


def compared(first, last):
    """Losses and gradients on all ranks against those of one device; what differs is returned."""
    wrong = []
    for kind, axes, sp in (PAIRS + TRIPLES)[first:last]:
        model, args = model_of(kind, make_mesh(tuple(axes.values()), tuple(axes)), sp), init(kind)
        wanted = tree.leaves(fg.jit(fg.value_and_grad(model_of(kind).loss))(*args))
        got = fg.jit(fg.value_and_grad(model.loss))(*tree.map(device_put, args, model.shardings()))
        whole = NamedSharding(model.mesh, P())
        for i, (g, w) in enumerate(zip(tree.leaves(got), wanted, strict=True)):
            if not np.allclose(np.asarray(reshard(g, whole)), w, rtol=2e-3, atol=1e-4):
                wrong.append((kind, *axes, i))
    return wrong
