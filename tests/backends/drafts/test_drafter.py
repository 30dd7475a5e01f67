"""Which modules write what, of those that are loaded when a program needs them."""

from funcgrad.backends.drafts import control, drafter, scalar_loops, steps
from funcgrad.backends.kernels import updates
from funcgrad.backends.llvm.kernels import depthwise, depthwise_last, eliminations, selections


def test_writers_are_found_where_they_are():
    for module in (depthwise, depthwise_last, eliminations, scalar_loops, selections, updates):
        names = {op for op, late in drafter._WRITERS.items() if late.WRITERS is module.WRITERS}
        assert names == set(module.WRITERS)


def test_steps_are_found_where_they_are():
    for module in (control, steps):
        names = {op for op, late in drafter._STEPS.items() if late.STEPS is module.STEPS}
        assert names == set(module.STEPS)
