"""The benchmarks' programs at tiny sizes, planned for a GPU and simulated: the CPU's results."""

from functools import partial

import numpy as np
import pytest

import funcgrad as fg
from benchmarks import compare
from benchmarks.case import leaves
from benchmarks.cases import all_cases, find
from benchmarks.libraries import Functional, Namespace, to_numpy
from tests.backends.cuda.simulated import simulated

# Of these the first call, at any size, or the import is what is measured: they have their model.
KEYS = [key for key, case in all_cases("tiny").items() if case.measure == "call"]


def results(key, jit):
    """What a case gives, whose programs, its own and those within, are compiled by `jit`."""
    case, ours = find(key, "tiny"), Functional("funcgrad")
    inputs = ours.inputs(case, case.inputs(np.random.default_rng(0)))
    work = partial(case.work, Namespace(**{**vars(ours.namespace), "jit": jit}))
    return [to_numpy(x) for x in leaves((jit(work) if case.jit else work)(*inputs))]


@pytest.mark.long
@pytest.mark.sampled(8)
@pytest.mark.parametrize("key", KEYS)
def test_case(key):
    got, want = results(key, simulated), results(key, fg.jit)
    assert got
    assert compare.difference(got, want, find(key, "tiny").tolerance) is None
