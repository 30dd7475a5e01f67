"""Products as kernels, against NumPy: all strides, batches, integers, complex numbers."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.cuda.executable import SimulatedProgram
from funcgrad.backends.program import GemmStep, walk
from tests.backends.cuda.libraries.test_products import CASES
from tests.backends.cuda.simulated import numbers, program_of

MORE = {
    "reversed": (lambda a, b: a[::-1] @ b[:, ::-1], (40, 30), (30, 20)),
    "steps": (lambda a, b: a[:, ::2] @ b, (40, 60), (30, 20)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64"])
@pytest.mark.parametrize("name", ["both turned", "heads", *MORE])
def test_kernels(name, dtype):
    f, left, right = (CASES | MORE)[name]
    a, b = (np.asarray(fnp.asarray(4 * numbers(*shape)).astype(dtype)) for shape in (left, right))
    if dtype == "complex64":
        a = a * np.complex64(1 + 2j)
    program = SimulatedProgram(program_of(f, a, b), is_call=lambda s: False)
    assert not [s for s in walk(program.program.steps) if isinstance(s, GemmStep)]
    wide = [x.astype("complex128" if dtype == "complex64" else "float64") for x in (a, b)]
    got, want = program([a, b])[0], np.asarray(f(*wide))
    if dtype == "int8":
        np.testing.assert_array_equal(got, want.astype(np.int64).astype(np.int8))
    else:
        most = (1e-2 if dtype == "bfloat16" else 1e-6) * np.abs(want).max()
        assert np.abs(got.astype(want.dtype) - want).max() < most


def test_nothing_to_add():
    program = SimulatedProgram(program_of(lambda a, b: a @ b, np.ones((3, 0)), np.ones((0, 4))))
    np.testing.assert_array_equal(program([np.ones((3, 0)), np.ones((0, 4))])[0], np.zeros((3, 4)))
