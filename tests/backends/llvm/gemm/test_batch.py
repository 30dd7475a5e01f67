"""Batches of small products: any sizes and strides that the way takes, beside NumPy."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.batch import MANY, Batch, merge_batches
from funcgrad.backends.llvm.gemm.trial import Facts, Trial
from funcgrad.backends.llvm.gemm.words import CALL
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.runtime.pool import num_threads, set_num_threads
from funcgrad.core.record import replace
from tests.backends.llvm.gemm.test_functions import engine_for
from tests.backends.llvm.gemm.test_micro import Places

SIZES = [*range(2, 18), 20, 23, 24, 31, 32, 33, 40, 48, 65]


@pytest.fixture(params=["host", "znver4"])
def target(request):
    """Of processors that fetch ahead by themselves, and of others, whose code runs here, too."""
    host = engine().target
    if not host.has("avx512f"):
        pytest.skip("needs AVX-512")
    return host if request.param == "host" else replace(host, cpu=request.param)


@pytest.fixture(params=[1, 3])
def threads(request):
    before = num_threads()
    set_num_threads(request.param)
    yield
    set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.usefixtures("threads")
def test_batches(dtype, target, rng):
    places, planner = None, functions.driver(dtype, dtype, target)
    heights = set()
    for _ in range(150):
        m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
        shape = (int(rng.integers(1, 5)), int(rng.integers(MANY, 30)))
        a, b = random(rng, (*shape, m, k), dtype), random(rng, (*shape, k, n), dtype)
        a = np.swapaxes(np.swapaxes(a, 2, 3).copy(), 2, 3) if rng.random() < 0.3 else a
        b = np.swapaxes(np.swapaxes(b, 2, 3).copy(), 2, 3) if rng.random() < 0.3 else b
        # Items in any order, and rows of C that are apart.
        b = b[:, ::-1] if rng.random() < 0.3 else b
        room = random(rng, (*shape, m, n + 3), dtype)
        c, add = room[..., :n], bool(rng.random() < 0.3)
        expected, beyond = a @ b + (c if add else 0), room[..., n:].copy()
        call = functions._words(a, b, c, add)
        way, kernels = planner.route(dict(zip(CALL, call, strict=True)))
        if way != Batch.name:
            continue
        places = places or Places(dtype, way, engine(target))
        places.run(kernels, call)
        assert not places.called, f"{m}×{n}×{k}"
        np.testing.assert_array_equal(c, expected, err_msg=f"{m}×{n}×{k}")
        np.testing.assert_array_equal(room[..., n:], beyond)
        heights |= {kernel.rows for kernel in kernels}
    assert len(heights) > 8


def random(rng, shape, dtype):
    """Small integers, whose sums are exact."""
    return rng.integers(-9, 9, shape).astype(dtype)


def test_what_goes_other_ways(target):
    planner = functions.driver("float32", "float32", target)

    def way(batch, m, n, k, **other):
        words = {"m": m, "n": n, "k": k, "a_rs": k, "a_cs": 1, "b_rs": n, "b_cs": 1, "c_rs": n,
                 "c_cs": 1, "batch0": 1, "batch1": batch, "a_b1": m * k, "b_b1": k * n,
                 "c_b1": m * n}  # fmt: skip
        return planner.route({**words, **other})[0]

    assert way(MANY, 32, 32, 32) == way(1 << 20, 9, 17, 3) == "batch"
    assert way(MANY, 32, 32, 32, a_rs=1, a_cs=32) == "batch"
    assert way(MANY, 64, 3, 8) == way(MANY, 64, 8, 64) == "batch"
    few, apart, turned = way(MANY - 1, 32, 32, 32), way(99, 8, 8, 8, b_rs=9), way(99, 64, 4, 64)
    assert "batch" not in (few, apart, turned)
    assert way(MANY, 32, 32, 48, b_rs=1, b_cs=48) == way(MANY, 64, 8, 9, b_rs=1, b_cs=9) == "batch"
    assert "batch" not in (way(99, 8, 9, 64, b_rs=1, b_cs=64), way(99, 9, 9, 200, b_rs=1, b_cs=200))
    assert "batch" not in (way(99, 4, 256, 64), way(99, 1, 9, 9))
    # A batch of A with one B is a single product.
    assert way(99, 32, 32, 32, b_b1=0) != "batch"
    assert (way(99, 64, 64, 64) == "batch") == (not target.follows_strides)
    assert way(99, 256, 256, 256) != "batch"


@pytest.mark.parametrize(
    ("cpu", "dtype"), [("x86-64", "float32"), ("haswell", "float32"), ("host", "complex64")]
)
def test_few_registers(cpu, dtype):
    """Sums of complex numbers take two for each vector of a tile."""
    planner = functions.driver(dtype, dtype, engine_for(cpu).target)
    assert planner.batch is None


def test_merged_batches():
    words = dict.fromkeys(CALL, 1) | {"batch1": 5, "m": 4, "a_rs": 8, "c_rs": 6}
    merged = Facts()
    for name, value in (words | {"a_b1": 32, "c_b1": 24, "b_b1": 0}).items():
        merged[name] = value
    merge_batches(Trial(merged), merged)
    assert (merged["m"].value, merged["batch1"].value) == (20, 1)
    for name, value in (words | {"a_b1": 32, "c_b1": 24}).items():
        merged[name] = value
    merge_batches(Trial(merged), merged)
    assert (merged["m"].value, merged["batch1"].value) == (4, 5)


@pytest.mark.parametrize("shape", [(50, 12, 9, 20), (1000, 32, 32, 32), (3, 40, 5, 33, 17)])
def test_programs(shape, rng):
    *batch, m, k, n = shape
    a, b = rng.normal(size=(*batch, m, k)), rng.normal(size=(*batch, k, n))
    a, b = a.astype("f4"), b.astype("f4")
    got = fg.jit(lambda a, b: a @ b)(a, b)
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)
    turned = fg.jit(lambda a, b: fg.numpy.swapaxes(a, -1, -2) @ b)(np.swapaxes(a, -1, -2).copy(), b)
    np.testing.assert_allclose(turned, a @ b, rtol=1e-4, atol=1e-4)
