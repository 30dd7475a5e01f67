"""Communicators in Python: one device alone, and what all of them check."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.runtime.run_code import released
from funcgrad.backends.rewrites.exchanges import DESCRIPTOR, DTYPES, KINDS
from funcgrad.errors import CollectiveError, ShapeError
from funcgrad.parallel.communicators.communicator import SelfCommunicator


def test_alone():
    comm, x = SelfCommunicator(), np.arange(3.0)
    for out in (comm.all_reduce(x), comm.permute(x, [(0, 0)]), comm.reduce_scatter(x[None], "max")):
        np.testing.assert_array_equal(out, x)
        assert not np.shares_memory(out, x)
    np.testing.assert_array_equal(comm.all_gather(x), [x])
    np.testing.assert_array_equal(comm.all_to_all(x[None]), [x])
    np.testing.assert_array_equal(comm.permute(x, []), 0 * x)
    comm.barrier()
    assert repr(comm) == "SelfCommunicator(rank=0, size=1)"


@pytest.mark.parametrize("what", ["reduce_scatter", "all_to_all"])
def test_rows(what):
    with pytest.raises(
        ShapeError, match=rf"{what} among 1 ranks needs .* 1 rows, got shape \(2,\)"
    ):
        getattr(SelfCommunicator(), what)(np.ones(2))


def call(comm, kind, x, out):
    words = {"kind": KINDS.index(kind), "dtype": DTYPES.index(x.dtype), "width": x.itemsize,
             "count": x.size, "source": x.ctypes.data, "to": out.ctypes.data}  # fmt: skip
    descriptor = (ctypes.c_int64 * len(DESCRIPTOR))(*[words.get(w, 0) for w in DESCRIPTOR])
    function = ctypes.c_int64.from_address(comm.address + 8 * KINDS.index(kind)).value
    return released(function, comm.address, ctypes.addressof(descriptor))


def test_native_calls_reach_python():
    comm, x, out = SelfCommunicator(), np.arange(4, dtype="int16"), np.zeros(4, "int16")
    assert call(comm, "all_reduce", x, out) == 0
    np.testing.assert_array_equal(out, x)


def test_errors_of_native_calls_are_raised():
    class Failing(SelfCommunicator):
        def all_gather(self, x):
            raise KeyError("this one")

    comm = Failing()
    for _ in range(2):
        with pytest.raises(KeyError, match="this one"):
            call(comm, "all_gather", np.ones(1), np.ones(1))
    assert isinstance(comm.failure("all_gather of f32[1]"), CollectiveError)
