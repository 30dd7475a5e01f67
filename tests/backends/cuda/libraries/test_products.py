"""Products as cuBLASLt's calls: computed from these alone, they are what the step means."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.backends.cuda.libraries.products import products
from funcgrad.backends.program import GemmStep, walk
from tests.backends.cuda.simulated import numbers, planned

CASES = {
    "rows": (lambda a, b: a @ b, (5, 7), (7, 9)),
    "both turned": (lambda a, b: a.T @ b.T, (7, 5), (9, 7)),
    "first turned": (lambda a, b: a.T @ b, (7, 5), (7, 9)),
    "second turned": (lambda a, b: a @ b.T, (5, 7), (9, 7)),
    "outer": (lambda a, b: a @ b, (50, 1), (1, 90)),
    "batch": (lambda a, b: a @ b, (3, 5, 7), (3, 7, 9)),
    "heads": (lambda a, b: fnp.einsum("bqhd,bkhd->bhqk", a, b), (2, 6, 3, 8), (2, 5, 3, 8)),
    "turned result": (lambda a, b: fnp.einsum("mk,kn->nm", a, b), (5, 7), (7, 9)),
}


def steps_of(program):
    return [s for s in walk(program.program.steps) if isinstance(s, GemmStep)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_calls(name, dtype):
    f, left, right = CASES[name]
    a, b = (fnp.asarray(numbers(*shape)).astype(dtype) for shape in (left, right))
    program = planned(f, a, b)
    (step,) = steps_of(program)
    calls = products(step)
    assert calls is not None
    assert {call.compute for call in calls} == {
        np.dtype("float64" if dtype == "float64" else "float32")
    }
    wide = [np.asarray(x).astype("float64") for x in (a, b)]
    got = program([np.asarray(a), np.asarray(b)])[0].astype("float64")
    tolerance = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(got, np.asarray(f(*wide)), rtol=tolerance, atol=10 * tolerance)


def test_what_is_no_call():
    program = planned(lambda a, b: a[:, ::2] @ b, numbers(50, 140), numbers(70, 90))
    assert all(products(s) is None or s.a_strides[1] == 1 for s in steps_of(program))
    x, y = numbers(50, 140), numbers(70, 90)
    np.testing.assert_allclose(program([x, y])[0], x[:, ::2] @ y, rtol=1e-4, atol=1e-4)
    z = planned(lambda a: a @ a.T, np.ones((20, 30), np.int8))
    assert all(products(s) is None for s in steps_of(z))


def test_alignment_is_told():
    program = planned(lambda a, b: a @ b, numbers(3, 5, 7), numbers(3, 7, 9))
    (call,) = products(steps_of(program)[0])
    assert call.alignments == (4, 4, 4)
    program = planned(lambda a, b: a @ b, numbers(64, 64), numbers(64, 64))
    (call,) = products(steps_of(program)[0])
    assert call.alignments == (256, 256, 256)
