"""A barrier to sharing takes one pytree and gives it back."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree

TREES = [1.0, (1.0, 2.0), {"a": np.ones(2), "b": [np.zeros(3), 4]}, ()]


@pytest.mark.parametrize("given", TREES, ids=str)
def test_trees_pass(given):
    for f in (lax.optimization_barrier, fg.jit(lax.optimization_barrier)):
        out = f(given)
        assert tree.structure(out) == tree.structure(given)
        tree.map(np.testing.assert_array_equal, out, given)


def test_transforms_pass():
    barrier = lax.optimization_barrier
    f = lambda x: fnp.sum(barrier({"y": x * x})["y"])
    x = fnp.arange(3.0)
    assert fg.grad(f)(x).tolist() == [0, 2, 4]
    assert fg.jit(fg.grad(f))(x).tolist() == [0, 2, 4]
    assert fg.vmap(barrier)((x, x))[1].tolist() == x.tolist()
    with pytest.raises(TypeError):
        barrier(x, x)
