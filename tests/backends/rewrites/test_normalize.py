"""Programs without what only transformations care for."""

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.rewrites.normalize import normalize
from funcgrad.backends.target import Target


def test_what_only_transformations_care_for_is_gone():
    def f(x):
        y = lax.stop_gradient(x)
        return y, lax.optimization_barrier(y) + 1

    program = normalize(fg.make_jaxpr(f)(1.0).jaxpr, Target("any"))
    assert [e.prim.name for e in program.eqns] == ["add"]
    assert program.outs[0] is program.ins[0]
    x = fg.numpy.ones(3)
    kept, more = fg.jit(f)(x)
    assert (kept == x).all()
    assert (more == 2).all()
