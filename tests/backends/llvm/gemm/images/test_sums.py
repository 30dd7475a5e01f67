"""Gradients of kernels whose features come last: which way they go, its kernels, its results."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.words import AXES, CALL, MAX_AXES, axes_words, inner_words
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.backends.program import GemmAxes
from tests.backends.llvm.gemm.test_functions import engine_for
from tests.backends.llvm.gemm.test_micro import Places

# Images, places, stride; elements of the kernel's lines and columns, channels, features.
SHAPES = {
    "few channels": (5, (20, 21), 1, (5, 5), 1, 6),
    "one vector": (4, (24, 24), 1, (5, 5), 6, 16),
    "more than one": (12, (17, 16), 2, (3, 3), 16, 17),
    "two": (8, (20, 20), 2, (3, 4), 3, 32),
    "three, and some": (10, (30, 30), 1, (1, 5), 16, 52),
    "lines of the kernel apart": (2, (26, 28), 1, (8, 3), 24, 65),
}


def product(shape, dtype):
    """Operands, the axes of their product, its words, and what it is."""
    images, (height, width), step, (lines, columns), channels, n = SHAPES[shape]
    rng = np.random.default_rng(7)
    tall, wide = height * step + lines - 1, width * step + columns - 1
    a = rng.integers(-4, 5, (images, tall, wide, channels)).astype(dtype)
    b = rng.integers(-4, 5, (images, height, width, n)).astype(dtype)
    line, image = wide * channels, tall * wide * channels
    axes = GemmAxes(
        ((lines, line), (columns * channels, 1)) if lines > 1 else ((columns * channels, 1),),
        ((n, 1),),
        ((images, image, height * width * n), (height, step * line, width * n),
         (width, step * channels, n)),
    )  # fmt: skip
    m, k = lines * columns * channels, images * height * width
    words = {"batch0": 1, "batch1": 1, "m": m, "n": n, "k": k, "c_rs": n, "c_cs": 1}
    wanted = np.zeros((lines, columns, channels, n))
    for y, x in np.ndindex(lines, columns):
        reached = a[:, y : y + height * step : step, x : x + width * step : step]
        wanted[y, x] = np.einsum("nhwi,nhwo->io", reached, b)
    return (a, b), axes, words, wanted.reshape(m, n)


def way(axes, words):
    known = {**words, "axes": 1, **inner_words(axes)}
    return functions.route("float32", "float32", known)[0]


@pytest.mark.parametrize("cpu", ["host", "haswell", "znver4"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums(shape, dtype, cpu):
    target = engine_for(cpu)
    (a, b), axes, words, wanted = product(shape, dtype)
    planner = functions.driver(dtype, dtype, target.target)
    found, kernels = planner.route({**words, "axes": 1, **inner_words(axes)})
    if not target.target.has("avx2"):
        assert found != "sums"
        return
    assert found == "sums"
    places, before = Places(dtype, "sums", target), num_threads()
    table = (ctypes.c_int64 * (len(AXES) * MAX_AXES))(*axes_words(axes))
    try:
        for threads, add in (1, False), (1, True), (2, False), (3, True):
            set_num_threads(threads)
            c = np.full(wanted.shape, 7, dtype)
            given = {**words, "a": a.ctypes.data, "b": b.ctypes.data, "c": c.ctypes.data,
                     "axes": ctypes.addressof(table), "add": add}  # fmt: skip
            call = (ctypes.c_int64 * len(CALL))(*(given.get(name, 0) for name in CALL))
            places.run(kernels, call)
            assert not places.called
            np.testing.assert_array_equal(c, wanted + 7 * add)
    finally:
        set_num_threads(before)


def test_others():
    """Short sums, and few tasks, go other ways; so does what doesn't lie together."""
    _, axes, words, _ = product("one vector", "float32")
    assert way(axes, words) == ("sums" if default_target().has("avx2") else "placed")
    assert way(axes, {**words, "k": 240}) != "sums"
    assert way(axes, {**words, "n": 8192, "c_rs": 8192}) != "sums"
    assert way(axes, {**words, "c_rs": 1, "c_cs": words["m"]}) != "sums"
    assert way(axes, {**words, "batch1": 3}) != "sums"
    assert way(GemmAxes(((5, 174), (10, 3)), axes.n, axes.k), words) != "sums"
