"""What tests of layouts run on ranks."""

import numpy as np

import funcgrad as fg
from funcgrad import tree
from funcgrad.parallel import NamedSharding, P, device_put, make_mesh, reshard
from tests.parallel.language_models import init
from tests.parallel.language_models import model as model_of

PAIRS = [("llama", {"cp": 2, "pp": 2}), ("moe", {"fsdp": 2, "ep": 2})]


def pairs():
    """Losses and gradients on all ranks against those of one device; what differs is returned."""
    wrong = []
    for kind, axes in PAIRS:
        model, args = model_of(kind, make_mesh(tuple(axes.values()), tuple(axes))), init(kind)
        wanted = tree.leaves(fg.jit(fg.value_and_grad(model_of(kind).loss))(*args))
        got = fg.jit(fg.value_and_grad(model.loss))(*tree.map(device_put, args, model.shardings()))
        whole = NamedSharding(model.mesh, P())
        for i, (g, w) in enumerate(zip(tree.leaves(got), wanted, strict=True)):
            if not np.allclose(np.asarray(reshard(g, whole)), w, rtol=2e-3, atol=1e-4):
                wrong.append((kind, *axes, i))
    return wrong
