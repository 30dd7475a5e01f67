"""The kernels that products of known sizes are said to call are those that they call; some by
themselves."""

import ctypes
import itertools

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions, micro
from funcgrad.backends.llvm.gemm.driver import ROUTED
from funcgrad.backends.llvm.gemm.words import CALL
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.core.record import replace
from tests.backends.llvm.gemm.test_functions import check, engine_for, laid_out, random

ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 18, 22, 23, 28, 63, 64]
COLUMNS = [1, 3, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 65, 100, 129, 160]
LARGE = [(700, 64), (131, 1000), (1130, 65), (1, 3000), (2, 2085), (16, 5000), (301, 2300),
         (700, 16), (333, 11), (57, 8)]  # fmt: skip


class Places:
    """The places of a way's kernels; those that aren't set count that they are called."""

    def __init__(self, dtype, way, target):
        self.dtype, self.target, self.called = dtype, target, []
        driver = functions.driver(dtype, dtype, target.target, way)
        driver.write()
        name = functions.name_of(dtype, dtype, way)
        library = functions.way_library(dtype, dtype, target, way)
        found = [g.name for g in driver.module.globals.values() if g.name.startswith(f"{name}_")]
        self.places = {x: ctypes.c_void_p.from_address(library.address(x)) for x in found}
        self.name, self.address = name, library.address(name)
        self.stub = ctypes.CFUNCTYPE(None)(lambda: self.called.append(1))

    def run(self, kernels, call):
        """A call with these kernels in their places."""
        stub = ctypes.cast(self.stub, ctypes.c_void_p).value
        for place in self.places.values():
            place.value = stub
        for k in kernels:
            code = micro.library(self.target, self.dtype, k)
            place = self.places[micro.place(self.name, k)]
            place.value = code.address(micro.symbol(self.dtype, k))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)(ctypes.addressof(call))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_kernels_that_are_called(dtype, threads, monkeypatch):
    rng, ways = np.random.default_rng(threads), {}
    before = num_threads()
    set_num_threads(threads)
    try:
        small = [(m, n) for m in ROWS for n in COLUMNS]
        for m, n in [*(small[i] for i in rng.permutation(len(small))[:110]), *LARGE, *LARGE]:
            k = int(rng.choice([1, 5, 40, 130, 300]))
            a, b, c = (
                np.ones(shape, dtype).T if rng.random() < 0.4 else np.ones(shape[::-1], dtype)
                for shape in ((k, m), (n, k), (n, m))
            )
            a[...], b[...] = rng.integers(-9, 9, a.shape), rng.integers(-9, 9, b.shape)
            call = functions._words(a, b, c, False)
            way, kernels = functions.route(dtype, dtype, dict(zip(CALL, call, strict=True)))
            if way not in ROUTED:
                assert not kernels
                continue
            if way not in ways:
                ways[way] = Places(dtype, way, engine())
            c[...] = 77
            ways[way].run(kernels, call)
            assert not ways[way].called, f"{way} {m}×{n}×{k}"
            np.testing.assert_array_equal(c, a @ b, err_msg=f"{way} {m}×{n}×{k}")
    finally:
        set_num_threads(before)
    assert len(ways) > 2 or not engine().target.has("avx512f")


@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
def test_kernels_of_other_processors(cpu):
    """As above by what modules have: each kernel that a product may call has its place."""
    target = engine_for(cpu).target
    rows = {"a_rs": 1, "a_cs": 1, "b_cs": 1, "c_cs": 1, "batch0": 1, "batch1": 1}
    planner, has = functions.driver("float32", "float32", target), {}
    for m in (*ROWS, 700):
        for n in (*COLUMNS, 900):
            for k in (4, 90, 2000):
                words = {"m": m, "n": n, "k": k, **rows, "a_rs": k, "b_rs": n, "c_rs": n}
                way, kernels = planner.route(words)
                if way in ROUTED and way not in has:
                    driver = functions.driver("float32", "float32", target, way)
                    driver.write()
                    has[way] = {g.name for g in driver.module.globals.values()}
                name = functions.name_of("float32", "float32", way)
                assert {micro.place(name, x) for x in kernels} <= has.get(way, set())
    assert has


@pytest.mark.sampled(2)
@pytest.mark.parametrize("l1", [1 << 15, 3 << 14])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_few_columns(dtype, l1):
    """Those of one vector: of more rows at once where the first cache has room for them."""
    host, rng = engine().target, np.random.default_rng(13)
    target = engine(replace(host, caches=replace(host.caches, l1=l1)))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.install(dtype, dtype, target))
    for m, n, k in itertools.product((10, 47, 173), (5, 8, 11, 16), (3, 8, 1001)):
        a, b = random(rng, (m, k), np.dtype(dtype)), random(rng, (k, n), np.dtype(dtype))
        before = random(rng, (m, n), np.dtype(dtype))
        for left, add in itertools.product((a, laid_out(a, "transposed")), (False, True)):
            c = before.copy()
            call = functions._words(left, b, c, add)
            function(ctypes.addressof(call))
            check(c, a, b, before * add)
