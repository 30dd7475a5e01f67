"""Arrays that begin where a line of the caches does: they own their memory, and are like any."""

import subprocess
import sys

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.eager import aligned

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory as NumPy makes it")


def address(x):
    return x.__array_interface__["data"][0]


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
@pytest.mark.parametrize("size", [1025, 5000, aligned.HUGE_FROM + 3])
def test_copies_are_aligned_and_own_their_memory(size, dtype):
    x = np.arange(size).astype(dtype)
    copies = [aligned.copied(x, x.dtype) for _ in range(5)]
    assert all(address(c) % 64 == 0 and c.flags.owndata for c in copies)
    for c in copies:
        np.testing.assert_array_equal(c, x)
    copies[0].resize(2 * size)  # by NumPy's own functions, as when it dies
    np.testing.assert_array_equal(copies[0][:size], x)


def test_copies_keep_the_order_of_axes_and_take_a_dtype():
    x = np.arange(6000.0).reshape(60, 100).T
    copy = aligned.copied(x, np.dtype("float32"))
    assert copy.dtype == np.float32
    assert copy.flags.f_contiguous
    np.testing.assert_array_equal(copy, x)


@pytest.mark.parametrize("value", [np.float32(3), np.zeros((0, 7)), np.ones(3)])
def test_small_copies_are_numpys(value):
    np.testing.assert_array_equal(aligned.copied(value, value.dtype), value)


def test_numpys_own_arrays_stay_its_own():
    before = np._core.multiarray.get_handler_name()
    fnp.asarray(np.ones(5000))
    assert np._core.multiarray.get_handler_name() == before
    (mine,) = aligned.arrays([((5000,), np.dtype("float64"))])
    assert np._core.multiarray.get_handler_name(mine) == "funcgrad"
    assert np._core.multiarray.get_handler_name(np.empty(5000)) == before


def test_without_such_memory_it_is_numpys(monkeypatch):
    monkeypatch.setattr(aligned, "handler", lambda: None)
    x = np.arange(5000)
    np.testing.assert_array_equal(aligned.copied(x, x.dtype), x)
    assert [a.shape for a in aligned.arrays([((3, 2), x.dtype)])] == [(3, 2)]


def test_arrays_of_numpys_are_aligned_copies():
    x = np.ones((100, 100), np.float32)
    for copy in (fnp.asarray(x), fnp.array(x), fnp.asarray(x, "float64")):
        assert address(np.asarray(copy)) % 64 == 0


def test_subclasses_that_answer_for_numpys_functions_are_copied():
    class Own(np.ndarray):
        def __array_function__(self, function, types, args, kwargs):
            raise TypeError(f"no {function.__name__} of these")

    copy = aligned.copied(np.arange(5000.0).view(Own), np.dtype("float32"))
    assert type(copy) is np.ndarray
    np.testing.assert_array_equal(copy, np.arange(5000.0))


def test_arrays_outlive_what_made_their_memory():
    # As when threads make the first ones at once, and when Python ends.
    code = """if True:
        import numpy as np
        from funcgrad.core.eager import aligned
        arrays = aligned.arrays([((5000,), np.dtype("float64"))] * 50)
        aligned.handler.cache_clear()
        other = [bytes([i]) * n for n in range(100, 300) for i in range(20)]
        del arrays
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
