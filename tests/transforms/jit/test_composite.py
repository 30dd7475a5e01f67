"""Functions as units of a program, and branches for processors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

tangent = lax.composite(lambda x: fnp.sin(x) / fnp.cos(x), name="my.tangent")
power = lax.composite(lambda x, *, n: x**n, name="my.power", version=2)


def test_it_is_a_call_by_its_name():
    (eqn,) = fg.make_jaxpr(tangent)(1.0).jaxpr.eqns
    assert eqn.params["name"] == "my.tangent"
    (eqn,) = fg.make_jaxpr(lambda x: power(x, n=3))(1.0).jaxpr.eqns
    assert eqn.params["name"] == "my.power.v2"


@pytest.mark.parametrize("way", [lambda f: f, fg.jit, fg.vmap])
def test_it_means_its_decomposition(way):
    x = fnp.arange(1.0, 4.0)
    np.testing.assert_allclose(way(tangent)(x), np.tan(np.asarray(x)), rtol=1e-5)
    np.testing.assert_allclose(fg.grad(tangent)(0.5), 1 / np.cos(0.5) ** 2, rtol=1e-5)
    assert power(2.0, n=3) == 8.0
    assert power(2.0, n=2) == 4.0


def test_names_that_are_none():
    with pytest.raises(TypeError, match="composite: name must be a text, got 3"):
        lax.composite(fnp.sin, name=3)
    with pytest.raises(TypeError, match="composite"):
        lax.composite(3, name="three")


def test_branches_of_processors():
    branches = {"cpu": lambda x: x + 1, "cuda": lambda x: x + 2}
    assert lax.platform_dependent(2.0, **branches) == 3.0
    assert fg.jit(lambda x: lax.platform_dependent(x, **branches))(2.0) == 3.0
    assert lax.platform_dependent(2.0, tpu=lambda x: x, default=lambda x: x * 5) == 10.0
    with pytest.raises(NotImplementedError, match="a branch for tpu, and no default, .* on cpu"):
        lax.platform_dependent(2.0, tpu=lambda x: x)
    with pytest.raises(TypeError, match="platform_dependent"):
        lax.platform_dependent(2.0, cpu=3)
