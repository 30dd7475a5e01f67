"""The copy of an array with the zeros around it, and parts of it, against np.pad."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm.images import frames
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.backends.program import Frame
from tests.backends.llvm.gemm.test_functions import engine_for

FRAMES = [
    Frame(0, 0, 3, ((5, 2, 1),)),
    Frame(0, 4, 1, ((100, 0, 3),)),
    Frame(0, 0, 4, ((3, 1, 1), (40, 1, 1))),
    Frame(0, 0, 2, ((3, 0, 2), (16, 17, 0))),
    Frame(0, 0, 3, ((2, 3, 0), (3, 0, 1), (31, 1, 18))),
    Frame(0, 0, 70, ((1, 0, 0), (2, 2, 2), (1, 0, 900))),
]


def padded(frame, dtype):
    """An array, and as it is with its zeros, one element after the other."""
    shape = (frame.planes, *(n for n, _, _ in frame.axes))
    x = np.random.default_rng(0).integers(1, 100, shape).astype(dtype)
    return x, np.pad(x, [(0, 0), *((low, high) for _, low, high in frame.axes)]).ravel()


def words(frame):
    found = frames.frame_words(frame)
    return (ctypes.c_int64 * len(found))(*found)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("cpu", ["host", "x86-64"])
def test_whole(frame, dtype, cpu):
    x, exact = padded(frame, dtype)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)
    function = kind(frames.install(x.itemsize, engine_for(cpu)))
    before, table = num_threads(), words(frame)
    for threads in (1, 3):
        set_num_threads(threads)
        out = np.full(exact.size + 32, 7, dtype)
        function(out[16:].ctypes.data, x.ctypes.data, ctypes.addressof(table))
        np.testing.assert_array_equal(out[16:-16], exact)
        assert (out[:16] == 7).all()
        assert (out[-16:] == 7).all()
    set_num_threads(before)


@pytest.mark.parametrize("masks", [True, False])
def test_parts(masks):
    if masks and not engine().target.has("avx512f"):
        pytest.skip("masks are dear on this processor")
    module = ir.Module("parts")
    function = frames.framed_function(module, ir.FloatType(), 16, masks)
    function.linkage = "external"
    address = engine().compile(module, level=1).address(function.name)
    i64, ptr = ctypes.c_int64, ctypes.c_void_p
    run = ctypes.CFUNCTYPE(None, ptr, ptr, ptr, i64, i64)(address)
    rng = np.random.default_rng(1)
    for frame in FRAMES:
        x, exact = padded(frame, "float32")
        given = words(frame)
        for _ in range(40):
            first = int(rng.integers(exact.size))
            count = int(rng.integers(min(200, exact.size - first) + 1))
            out = np.full(count + 32, 7, "float32")
            place = out[16:].ctypes.data
            run(place, x.ctypes.data, ctypes.addressof(given), first, count)
            np.testing.assert_array_equal(out[16 : 16 + count], exact[first : first + count])
            assert (np.delete(out, np.s_[16 : 16 + count]) == 7).all()
