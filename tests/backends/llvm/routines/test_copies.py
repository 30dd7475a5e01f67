"""Copies shared among threads: each byte once, none beside, at any alignment."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.routines import copies
from funcgrad.backends.llvm.runtime import pool
from funcgrad.core.record import replace


def copier(target):
    address = copies.install(Engine(target))
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["host", "generic"])
@pytest.mark.parametrize("large", [1 << 10, 1 << 40])
def test_copies(name, large, threads):
    target = Target.named(name)
    target = replace(target, caches=replace(target.caches, l3=2 * large))
    pool.set_num_threads(threads)
    run, rng = copier(target), np.random.default_rng(0)
    for n in (0, 1, 63, 64, 1000, 4096, (1 << 17) + 5, (1 << 19) + 100):
        for i, j in ((0, 0), (1, 0), (16, 48), (7, 3)):
            source = rng.integers(0, 255, n + 256, np.uint8)
            to = np.zeros(n + 256, np.uint8)
            a, b = (-x.ctypes.data % 64 + k for x, k in ((source, i), (to, j)))
            run(to.ctypes.data + b, source.ctypes.data + a, n)
            np.testing.assert_array_equal(to[b : b + n], source[a : a + n])
            assert not to[:b].any()
            assert not to[b + n :].any()


def test_of_programs():
    x = np.arange(300_000, dtype=np.float32)

    def f(x):
        return x, x.at[7].set(2.0)

    for result in fg.jit(f)(x):
        want = x.copy()
        want[7] = result[7]
        np.testing.assert_array_equal(result, want)
