"""Steps that CuPy runs on views of a program's memory, on a stand-in of it that has NumPy's
functions and looks at what it is given."""

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda.devices.device import OutOfDeviceMemory
from funcgrad.backends.cuda.libraries import by_cupy
from funcgrad.backends.program import HostStep, walk
from tests.backends.cuda.simulated import numbers, program_of
from tests.backends.cuda.stand_in import on_fake
from tests.op_checks import by_row, distinct_params, function, operands, typical
from tests.op_samples import ROWS


class Namespace:
    """NumPy's functions as CuPy's, on memory that the driver's stand-in has given."""

    def __init__(self, fake):
        self.fake = fake
        self.taken = 0
        self.cuda = SimpleNamespace(
            Device=lambda number: nullcontext(), Stream=SimpleNamespace(null=nullcontext())
        )

    def __getattr__(self, name):
        return getattr(np, name)

    def asarray(self, x, dtype=None):
        seen = getattr(x, "__cuda_array_interface__", None)
        if seen is None:
            return np.asarray(x, dtype)
        (at, fixed), dtype = seen["data"], np.dtype(seen["typestr"])
        assert not fixed
        assert seen["version"] == 3
        n = int(np.prod(seen["shape"])) * dtype.itemsize
        assert self.fake.fake_holds(ctypes.c_size_t(at), ctypes.c_size_t(n))
        self.taken += 1
        return np.frombuffer((ctypes.c_char * n).from_address(at), dtype).reshape(seen["shape"])


@pytest.fixture
def arrays(fake, gpu):
    """The stand-in, in place of the CuPy that a GPU has."""
    fake.fake_holds.argtypes = None
    gpu.arrays = Namespace(fake)
    return gpu.arrays


def waiting(x):
    values, vectors = fnp.linalg.eigh(x @ x.T)
    return fnp.fft.fft(vectors * values @ vectors.T).real


def test_programs(fake, gpu, arrays):
    x = numbers(5, 5)
    program = on_fake(waiting, fake, gpu, x)
    for _ in range(2):
        np.testing.assert_allclose(program([x])[0], fg.jit(waiting)(x), rtol=2e-4, atol=1e-4)
    assert arrays.taken == 2 * 5  # eigh's three, and two of the FFT's


def test_memory_that_is_short(fake, gpu, arrays):
    def full(x, **how):
        raise MemoryError("Out of memory allocating 8 bytes")

    arrays.fft = SimpleNamespace(rfftn=full)
    program = on_fake(lambda x: fnp.fft.rfft(x).real, fake, gpu, numbers(5, 5))
    with pytest.raises(OutOfDeviceMemory, match="fft: CuPy: Out of memory allocating 8 bytes"):
        program([numbers(5, 5)])


@pytest.mark.sampled(1)
@by_row([row for row in ROWS if row.cases_for("jit")])
def test_which_ops_are_taken(row, rng):
    """All that runs on the host but what calls the user's functions, and CuPy's missing dtypes."""
    for case in distinct_params(row)[:2]:
        args = operands(row, case, rng, typical(row))
        for s in walk(program_of(function(row, case), *args).steps):
            if isinstance(s, HostStep):
                of_users = "callback" in s.prim.name or s.prim.name == "pullback"
                known = all(v.aval.dtype.isbuiltin == 1 for v in (*s.ins, *s.outs))
                assert by_cupy.takes(s) == (known and not of_users), s.prim
