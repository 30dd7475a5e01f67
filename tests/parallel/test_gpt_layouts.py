"""The demo's GPT on every layout of examples/layouts.py: the same losses as on one device, and the
collectives that the literature counts."""

import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import random, tree

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LAYOUTS = ["ddp", "zero1", "zero2", "fsdp", "hsdp", "tensor", "sequence", "fsdp_tensor",
           "fsdp_sequence"]  # fmt: skip
STEPS, LAYERS = 20, 2


@pytest.fixture(scope="module")
def gpt():
    sys.path.insert(0, str(EXAMPLES))
    import gpt

    yield gpt
    sys.path.remove(str(EXAMPLES))


class Setting:
    """The model and its optimizer, and a text."""

    def __init__(self, gpt, layout, n=4, batch=16):
        import layouts

        self.cfg = gpt.Config(48, context=16, width=32, heads=4, layers=LAYERS)
        optimizer = gpt.make_optimizer(100, 3e-3)
        self.init = partial(gpt.init_state, cfg=self.cfg, optimizer=optimizer)
        self.key = random.key(0)
        self.types = fg.eval_shape(self.init, self.key)
        self.layout = layouts.LAYOUTS[layout](self.types, n)
        self.step = gpt.make_step(self.cfg, optimizer, batch, self.layout)
        self.codes = fnp.array(np.random.default_rng(0).integers(0, 48, 3000, np.int32))

    def losses(self):
        """Of the first steps."""
        state = fg.jit(self.init, out_shardings=self.layout.state)(self.key)
        found = []
        for i in range(STEPS):
            state, loss = self.step(state, random.fold_in(self.key, i), self.codes)
            found.append(float(loss))
        return np.array(found), state

    def program(self):
        """The per-device program of a step."""
        state = tree.map(
            lambda t, s: fg.ShapeDtypeStruct(t.shape, t.dtype, sharding=s),
            self.types, self.layout.state,
        )  # fmt: skip
        return self.step.lower(state, self.key, self.codes)


@pytest.fixture(scope="module")
def settings(gpt):
    made = {}

    def get(layout, n=4):
        if (layout, n) not in made:
            made[layout, n] = Setting(gpt, layout, n)
        return made[layout, n]

    return get


@pytest.fixture(scope="module")
def reference(settings):
    return settings("single", 1).losses()


def collectives(text):
    kinds = "psum|all_gather|psum_scatter|all_to_all|ppermute|pmax|pmin"
    return Counter(re.findall(rf"= ({kinds})\[", text))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(settings, reference, layout):
    losses, state = settings(layout).losses()
    wanted, wanted_state = reference
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    cut = settings(layout).layout.state
    for (path, x), s, w in zip(
        tree.leaves_with_path(state), tree.leaves(cut), tree.leaves(wanted_state), strict=True
    ):
        assert x.sharding.spec == s.spec, path
        np.testing.assert_allclose(np.asarray(x), np.asarray(w), rtol=2e-3, atol=2e-4)
