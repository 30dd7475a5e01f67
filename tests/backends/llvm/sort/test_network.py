"""The sorting network against NumPy."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.sort.network import emit_network


@pytest.mark.parametrize(("vectors", "generic"), [(2, True), (2, False), (4, False), (8, False),
                                                  (16, False)])  # fmt: skip
def test_sorts(vectors, generic, rng):
    module = ir.Module("test_network")
    network = emit_network(module, "network", vectors)
    code = Code(module, "sort", [PTR, I64], public=True)
    code.call(network, *code.args)
    code.ret()
    target = engine(Target.host().generic()) if generic else engine()
    library = target.compile(module, level=1)
    sort = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("sort"))
    memory = np.empty(1024 + 16, np.uint32)
    words = memory[-(memory.ctypes.data // 4) % 16 :][:1024]
    for count in (n for n in (32, 64, 128, 256, 512, 1024) if n >= 16 * vectors):
        for most in (1, 2, 9, 1 << 32):
            for order in (lambda x: x, np.sort, lambda x: np.sort(x)[::-1]):
                x = order(rng.integers(0, most, count, np.uint32))
                words[:] = 7
                words[:count] = x
                sort(words.ctypes.data, count)
                np.testing.assert_array_equal(words[:count], np.sort(x))
                assert (words[count:] == 7).all()
