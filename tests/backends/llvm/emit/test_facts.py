"""What the emitter finds out about a kernel's statements."""

import numpy as np

import funcgrad as fg
from funcgrad.backends.llvm.emit.emitter import emit
from funcgrad.backends.llvm.native.target import Target
from tests.backends.checks import program


def test_chains_of_gathers_run_side_by_side(rng):
    table, start = (rng.integers(0, 999, n).astype(np.int32) for n in (999, 1234))

    def follow(t, i):
        return [t[t[t[t[i]]]]]

    (kernel,) = program(follow, table, start)[2].kernels()
    emitted = emit(kernel, "f", {}, Target.host())
    assert '"llvm.loop.interleave.count", i32 4' in emitted.definitions.text([emitted.text])
    (found,) = fg.jit(follow)(table, start)
    np.testing.assert_array_equal(found, table[table[table[table[start]]]])
