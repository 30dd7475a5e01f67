"""Attention on many devices: cotangents of a bias that they share."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh
from funcgrad.transforms.attention.attention import KEPT, attention
from tests.parallel.partitioned import checked, partitioned, run

LENGTH = KEPT + 32


@pytest.mark.parametrize("cut", [("batch",), ("heads",), ("batch", "heads")])
@pytest.mark.parametrize("shape", [(1, 4, 9, LENGTH), (4, 1, 1, LENGTH), (1, 1, 9, 1)], ids=str)
def test_bias_that_devices_share(shape, cut, rng):
    """Its gradient is summed over those that have a part of it."""
    mesh = AbstractMesh((2, 2), ("x", "y"))
    xs = [rng.normal(size=(4, n, 4, 8)) for n in (9, LENGTH, LENGTH)]
    mask = rng.random((4, 1, 1, LENGTH)) > 0.3

    def fun(q, k, v, bias, mask):
        value = lambda *xs: fnp.sum(fnp.sin(attention(*xs[:3], (), xs[3], mask, scale=0.3)))
        return list(fg.grad(value, argnums=(0, 1, 2, 3))(q, k, v, bias))

    axes = [("x",) if "batch" in cut else (), (), ("y",) if "heads" in cut else (), ()]
    cuts = [tuple(axes)] * 3 + [((),) * 4] * 2
    program, jaxpr, values = partitioned(fun, [*xs, rng.normal(size=shape), mask], mesh, cuts)
    checked(program)
    found = [e for e in program.jaxpr.eqns if e.prim.name == "attention_backward"]
    local = (2 if "batch" in cut else 4, 9, 2 if "heads" in cut else 4, 8)
    assert [e.ins[0].aval.shape for e in found] == [local]
    wanted = interpret(jaxpr, np, *(np.asarray(v) for v in values))
    for g, w in zip(run(program, values), wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-12)
