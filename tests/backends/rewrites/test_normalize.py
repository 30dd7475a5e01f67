"""Which ops are written as others, and by whom."""

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.rewrites import running
from funcgrad.backends.rewrites import exchanges, normalize


def test_running_sums_are_rewritten():
    found = {op for op, rewrite in normalize._REWRITES.items() if rewrite is normalize._running}
    assert found == set(running._HOW)


def test_what_only_transformations_care_for_is_gone():
    def f(x):
        y = lax.stop_gradient(x)
        return y, lax.optimization_barrier(y) + 1

    program = normalize.normalize(fg.make_jaxpr(f)(1.0).jaxpr)
    assert [e.prim.name for e in program.eqns] == ["add"]
    assert program.outs[0] is program.ins[0]
    x = fg.numpy.ones(3)
    kept, more = fg.jit(f)(x)
    assert (kept == x).all()
    assert (more == 2).all()


def test_collectives_are_rewritten():
    found = {op for op, rewrite in normalize._REWRITES.items() if rewrite is normalize._collective}
    assert found == set(exchanges.REWRITES)
