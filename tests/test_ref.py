"""Mutable arrays as functions."""

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.errors import RefError


@pytest.mark.parametrize("around", [lambda f: f, fg.jit])
def test_functions(around):
    def f(ref):
        before = fg.ref.swap(ref, 1, 5.0)
        fg.ref.set(ref, 0, before)
        fg.ref.addupdate(ref, None, 1.0)
        return before, fg.ref.get(ref)

    ref = fg.ref.new_ref(fnp.arange(3.0))
    before, whole = around(f)(ref)
    assert (float(before), whole.tolist()) == (1.0, [2.0, 6.0, 3.0])
    assert fg.ref.freeze(ref).tolist() == [2.0, 6.0, 3.0]


@pytest.mark.parametrize("call", [fg.ref.get, fg.ref.freeze, fg.ref.free_ref])
def test_of_arrays(call):
    with pytest.raises(RefError, match="ref must be a Ref, got Array"):
        call(fnp.ones(2))
