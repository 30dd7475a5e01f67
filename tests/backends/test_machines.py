"""What targets that make machine code have in common."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.cuda.machine import CUDA
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.plan import plan
from funcgrad.backends.program import HostStep
from funcgrad.ops.sharding import sharding_constraint_p


@pytest.mark.parametrize("target", [CPU, CUDA], ids=lambda t: t.name)
def test_a_sharding_constraint_on_one_device_is_no_step(target):
    mesh = fg.make_mesh((1,), ("x",))
    cut = fg.NamedSharding(mesh, fg.P("x"))
    made = fg.make_jaxpr(lambda x: sharding_constraint_p.bind(x * 2, sharding=cut) + 1)
    program = plan(made(np.ones(4, np.float32)).jaxpr, [False], "f", target)
    assert not any(isinstance(s, HostStep) for s in program.steps)
    assert len(program.kernels()) == 1
