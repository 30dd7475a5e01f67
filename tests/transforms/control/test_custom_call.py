"""What calls of functions with rules of their own give these rules."""

import numpy as np
import pytest

import funcgrad as fg


@pytest.mark.parametrize("given", [2.0, 2, np.float32(2.0)], ids=repr)
def test_rules_see_arrays_for_numbers(given):
    """Whichever argument is a number, and whichever transformation gives it to the rule."""
    seen = []

    def note(*values):
        seen.extend((v.dtype, v.shape) for v in values)

    @fg.custom_jvp
    def f(x, y):
        return x * y

    @f.defjvp
    def f_jvp(primals, tangents):
        note(*primals, *tangents)
        return f(*primals), tangents[0] * primals[1]

    @fg.custom_vjp
    def g(x, y):
        return x * y

    def forward(x, y):
        note(x, y)
        return g(x, y), y

    g.defvjp(forward, lambda y, c: (c * y, None))
    for h in (f, g):
        assert float(fg.jvp(lambda x: h(x, given), (3.0,), (1.0,))[1]) == 2.0
        assert float(fg.vjp(lambda x: h(x, given), 3.0)[1](1.0)[0]) == 2.0
        assert float(fg.vmap(fg.grad(lambda x: h(x, given)))(np.ones(2, "f"))[0]) == 2.0
    assert len(seen) > 12
