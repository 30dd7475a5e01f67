"""Sorts by buckets: which rows they take, and that these are in order, equal keys as they were."""

import ctypes
import functools

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I32, I64, PTR, Code
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool, scratch
from funcgrad.backends.llvm.sort.buckets import Buckets, Row, room
from funcgrad.backends.llvm.sort.functions import install
from funcgrad.backends.llvm.sort.radix import LONG, Radix

TOP = (1 << 32) - 1


@functools.cache
def function(width: int, block: int):
    """i64 (n, words, sorted, scratch, scratch): whether words of a width were sorted.

    block: of words in the network's registers
    """
    word = ir.IntType(width)

    def rank(code, job, i, lanes=0):
        if not lanes:
            x = code.b.load(code.at(job.pointer_at("x"), i, word), typ=word)
            return x if width == 32 else code.b.trunc(code.b.lshr(x, word(32)), I32)
        vector = ir.VectorType(word, lanes)
        x = code.b.load(code.at(job.pointer_at("x"), i, word), typ=vector, align=4)
        if width == 64:
            shift = ir.Constant(vector, [32] * lanes)
            x = code.b.trunc(code.b.lshr(x, shift), ir.VectorType(I32, lanes))
        return x

    def word_at(code, job, i):
        return code.b.load(code.at(job.pointer_at("x"), i, word), typ=word)

    def write(code, job, i, x):
        code.store(x, code.at(job.pointer_at("out"), i, word))

    pool.bind(engine())
    scratch.bind(engine())
    module = ir.Module(f"test_buckets{width}_{block}")
    row = Row(word, ("x", "out"), rank, word_at, write)
    buckets = Buckets(module, row, Radix(module, word, width - 32, 32), block)
    code = Code(module, "sort", [I64, PTR, PTR, PTR, PTR], public=True, result=I64)
    n, x, out, *blocks = code.args
    code.ret(code.b.zext(buckets.run(code, n, [x, out], blocks), I64))
    address = engine().compile(module, level=1).address("sort")
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4)(address)


def sort(keys, width, block=256):
    """Keys in order and, where words have room for that, their places; None if it isn't taken."""
    n = len(keys)
    words = keys if width == 32 else keys.astype(np.uint64) << np.uint64(32)
    words = words if width == 32 else words | np.arange(n, dtype=np.uint64)
    out = np.full(n + 1, 77, words.dtype)
    blocks = [np.empty(room(n), words.dtype) for _ in range(2)]
    arrays = (words, out, *blocks)
    if not function(width, block)(n, *(a.ctypes.data for a in arrays)):
        return None
    assert out[n] == 77
    return out[:n]


def cases(n, rng):
    """Keys of several kinds, and whether they are spread well enough."""
    spread = rng.integers(0, TOP, n, np.uint32, endpoint=True)
    ends = np.where(np.arange(n) % 2, np.uint32(0), np.uint32(TOP))
    few = rng.integers(5, 300, n).astype(np.uint32)
    outlier = few.copy()
    outlier[n // 3] = TOP
    ties = spread.copy()
    ties[: n // 10] = spread[-1]
    return {
        "spread": (spread, True), "up": (np.sort(spread), True),
        "down": (np.sort(spread)[::-1].copy(), True), "equal": (few * 0 + np.uint32(9), True),
        "few": (few, True), "most": (few * 0 + np.uint32(TOP), True),
        "near": (few + spread % np.uint32(9), True),
        "ends": (ends, False), "outlier": (outlier, False), "ties": (ties, True),
        "half": (np.where(np.arange(n) % 2, spread, few), False),
    }  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("n", [LONG, 70_001, 150_000])
def test_kinds(n, width, threads, rng):
    pool.set_num_threads(threads)
    for name, (keys, taken) in cases(n, rng).items():
        got = sort(keys, width)
        assert (got is not None) == taken, name
        if taken and width == 32:
            np.testing.assert_array_equal(got, np.sort(keys), err_msg=name)
        elif taken:
            order = np.argsort(keys, kind="stable")
            np.testing.assert_array_equal(got & np.uint64(TOP), order, err_msg=name)
            np.testing.assert_array_equal(got >> np.uint64(32), keys[order], err_msg=name)


@pytest.mark.parametrize("n", [LONG + 3, 280_000])
@pytest.mark.parametrize(("width", "block"), [(32, 256), (64, 256), (32, 32), (64, 128)])
def test_buckets_of_all_sizes(n, width, block, rng):
    """Sizes around those of networks, and around the ways that a bucket may go."""
    count = -(-(n // 200) // 16) * 16
    each = TOP // count
    sizes = [0, 1, 2, 12, 13, 16, 31, 32, 33, 64, 65, 255, 256, 257, 300, 512, 513, 1000, 1024]
    sizes = [1025, 3000, *sizes * count]
    keys, left = [np.uint32([0, TOP])], n - 2
    for d, size in zip(rng.permutation(np.arange(1, count - 1)), sizes, strict=False):
        part = rng.integers(d * each + count, (d + 1) * each, min(size, left))
        keys.append(part.astype(np.uint32))
        left -= len(part)
    keys.append(rng.integers(0, TOP, left, np.uint32))
    keys = rng.permutation(np.concatenate(keys))
    got = sort(keys, width, block)
    assert got is not None
    order = np.argsort(keys, kind="stable")
    want = keys[order] if width == 32 else keys[order].astype(np.uint64) << np.uint64(32)
    np.testing.assert_array_equal(got, want if width == 32 else want | order.astype(np.uint64))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_sorts_of_arrays(dtype, rng):
    for keys, _ in cases(LONG + 9, rng).values():
        x = keys.view(dtype)
        order = np.argsort(x, kind="stable")
        np.testing.assert_array_equal(fg.jit(lax.sort)(x), x[order])
        np.testing.assert_array_equal(fg.jit(fg.numpy.argsort)(x), order)
        for payload in (np.arange(len(x)).astype(np.int8), x[::-1].copy()):
            got = fg.jit(lax.sort_key_val)(x, payload)
            np.testing.assert_array_equal(got[0], x[order])
            np.testing.assert_array_equal(got[1], payload[order])


@pytest.mark.parametrize("name", ["fg_sort_int32__", "fg_sort_uint32__4_4"])
def test_any_processor(name, rng):
    address = install(name, engine(Target.host().generic()))
    x = rng.integers(0, TOP, LONG + 77, np.uint32)
    x = x.view(np.int32) if "int32__" in name and "uint" not in name else x
    arrays = [x] if name.endswith("__") else [x, np.arange(len(x), dtype=np.int32)]
    outs = [np.empty_like(a) for a in arrays]
    call = [1, len(x), 1, len(x), *(a.ctypes.data for a in (*arrays, *outs))]
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)((ctypes.c_int64 * len(call))(*call))
    order = np.argsort(x, kind="stable")
    for a, out in zip(arrays, outs, strict=True):
        np.testing.assert_array_equal(out, a[order])
