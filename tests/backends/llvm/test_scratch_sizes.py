"""Scratch memory as memory_analysis tells it, against what the allocator gave."""

import ctypes

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.backends.llvm.gemm import functions as gemm
from funcgrad.backends.llvm.gemm.steps import product_call, product_kind
from funcgrad.backends.llvm.native.engine import Engine
from funcgrad.backends.llvm.native.target import default_target
from funcgrad.backends.llvm.runtime import pool, scratch
from funcgrad.backends.llvm.scratch_sizes import scratch_size
from funcgrad.backends.program import GemmStep

LAYOUTS = {"NCHW": ("NCHW", "OIHW", "NCHW"), "NHWC": ("NHWC", "HWIO", "NHWC")}
# Images, size, channels, features.
CASES = [
    ((4, (16, 16), 32, 48), "float64"),
    ((2, (33, 17), 64, 64), "float32"),
    ((16, (32, 32), 32, 16), "float32"),
]
BYTES = (2, (33, 17), 64, 72)


def convolution(layout, kind):
    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[layout])

    if kind == "forward":
        return conv
    if kind == "doubled":
        return lambda x, w: lax.conv_general_dilated(x, w, (1, 1), [(2, 2)] * 2, (2, 2))
    argnum = ("operand", "kernel").index(kind)

    def gradient(x, w, g):
        return fg.vjp(conv, x, w)[1](g)[argnum]

    return gradient


def given(layout, kind, size, dtype):
    n, (h, w), channels, features = size
    x, y = (n, channels, h, w), (n, features, h, w)
    kernel = (features, channels, *((4, 4) if kind == "doubled" else (3, 3)))
    if layout == "NHWC":
        x, y, kernel = (n, h, w, channels), (n, h, w, features), (3, 3, channels, features)
    rng = np.random.default_rng(0)
    shapes = (x, kernel) if kind in ("forward", "doubled") else (x, kernel, y)
    return [fnp.array(rng.normal(size=s).astype(dtype)) for s in shapes]


def taken(compiled, *args):
    """Bytes of the blocks that a call took, which are powers of two with room to spare."""
    compiled(*args)
    scratch.release()
    compiled(*args)
    return scratch.release()


@pytest.mark.parametrize(("size", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("kind", ["forward", "operand", "kernel"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_tiles(layout, kind, size, dtype):
    pool.set_num_threads(1)
    args = given(layout, kind, size, dtype)
    compiled = fg.jit(convolution(layout, kind)).lower(*args).compile()
    memory = compiled.memory_analysis()
    ((nbytes, what, place),) = memory.scratch
    assert what.startswith(f"tiles of {dtype}")
    assert "lax.conv_general_dilated" in place
    assert memory["scratch_size_in_bytes"] == nbytes
    # Blocks are powers of two; what a task of the end takes is small, after others have given back.
    assert nbytes <= taken(compiled, *args) <= 3 * nbytes


# What is compiled while a test asks calls its function ever after.
functions = []


@pytest.fixture
def takes(monkeypatch):
    """An engine of its own, and the sizes that its code asks the allocator for."""
    asked, address = [], scratch._address
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)
    give_some = function(address("fg_scratch_take"))
    take = function(lambda n: (asked.append(n), give_some(n))[1])
    functions.append(take)
    own = {"fg_scratch_take": ctypes.cast(take, ctypes.c_void_p).value}
    monkeypatch.setattr(scratch, "_address", lambda name: own.get(name) or address(name))
    return Engine(default_target()), asked, take


@pytest.mark.parametrize(("size", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("kind", ["forward", "operand", "kernel", "doubled"])
def test_tiles_to_the_byte(kind, size, dtype, takes):
    check_bytes(fg.jit(convolution("NCHW", kind)), given("NCHW", kind, size, dtype), takes)


def test_tiles_of_bytes_to_the_byte(takes):
    def conv(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS["NHWC"],
            preferred_element_type=fnp.int32,
        )  # fmt: skip

    args = [x.astype("int8") for x in given("NHWC", "forward", BYTES, "float32")]
    check_bytes(fg.jit(conv), args, takes)


def check_bytes(fun, args, takes):
    """What the product of a program asks for is what is told before."""
    pool.set_num_threads(1)
    target, asked, _ = takes
    steps = fun.lower(*args)._executable().program.steps
    (step,) = (s for s in steps if isinstance(s, GemmStep))
    call, memory, kept = product_call(step), np.zeros(1 << 21), []
    words = (ctypes.c_int64 * len(call.words))(*call.words)
    for name in "abc":
        words[call.places[name]] = memory.ctypes.data + 512
    for name, table in call.tables.items():
        kept.append((ctypes.c_int64 * len(table))(*table))
        words[call.places[name]] = ctypes.addressof(kept[-1])
    kind = product_kind(step)
    way = kind[-1]
    function = gemm.install(*kind[:2], target, way)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(ctypes.addressof(words))
    if way in ("winograd", "winograd_phases", "winograd_bytes"):
        asked.pop(0)  # tables of where elements lie, which aren't counted
    # A task takes what the one before it gave back.
    assert scratch_size(step) == sum(set(asked))


def test_tasks_that_share_tiles_are_no_more_than_products():
    """Threads beyond the 16 products of a kernel's gradient have nothing to take."""
    args = given("NCHW", "kernel", CASES[0][0], "float32")
    steps = fg.jit(convolution("NCHW", "kernel")).lower(*args)._executable().program.steps
    (step,) = (s for s in steps if isinstance(s, GemmStep))
    sizes, before = [], pool.num_threads()
    for threads in (8, 16, 64):
        pool.set_num_threads(threads)
        sizes.append(scratch_size(step))
    pool.set_num_threads(before)
    assert sizes[0] < sizes[1] == sizes[2]


@pytest.mark.parametrize("threads", [1, 2])
def test_bands(threads):
    def f(x, w, v):
        return fnp.maximum(x @ w, 0) @ v

    pool.set_num_threads(threads)
    args = fnp.ones((200_000, 16)), fnp.ones((16, 24)), fnp.ones((24, 8))
    compiled = fg.jit(f).lower(*args).compile()
    memory = compiled.memory_analysis()
    band = next(s for s in fg.jit(f).lower(*args)._executable().program.steps if s.band).band
    assert [(n, what) for n, what, _ in memory.scratch] == [(threads * band, "bands of rows")]
    assert memory["scratch_size_in_bytes"] == threads * band
    assert "scratch memory, of one at a time:\n" in str(memory)
    assert "fnp.maximum(x @ w, 0) @ v" in str(memory)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["attention", "attention_backward", "attention_joint"])
def test_attention(op, threads):
    def forward(*xs):
        return nn.dot_product_attention(*xs, is_causal=True)

    def backward(*xs):
        return fg.grad(lambda *xs: fnp.sum(forward(*xs) ** 2), argnums=(0, 1, 2))(*xs)

    def joint(*xs):
        return fg.vjp(forward, *xs)[1](xs[0])

    pool.set_num_threads(threads)
    x = fnp.array(np.random.default_rng(0).normal(size=(2, 1000, 8, 48)).astype("f4"))
    fun = {"attention": forward, "attention_backward": backward, "attention_joint": joint}[op]
    compiled = fg.jit(fun).lower(x, x, x).compile()
    memory = compiled.memory_analysis()
    found = {what: n for n, what, _ in memory.scratch}
    passes = ["attention", op] if op == "attention_backward" else [op]
    assert sorted(found) == [f"tasks of {name}" for name in passes]
    assert "dot_product_attention" in memory.scratch[0][2]
    assert memory["scratch_size_in_bytes"] == max(found.values())
    if threads == 1:
        assert max(found.values()) <= taken(compiled, x, x, x) <= 3 * sum(found.values())
    else:
        pool.set_num_threads(1)
        one = compiled.memory_analysis().scratch
        assert [n for n, *_ in memory.scratch] == [threads * n for n, *_ in one]


def test_programs_without_any():
    memory = fg.jit(fnp.sin).lower(fnp.ones(3)).compile().memory_analysis()
    assert memory["scratch_size_in_bytes"] == 0
    assert memory.scratch == []
    assert "scratch memory" not in str(memory)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_tiles_cost_what_the_convolution_says(layout):
    (n, (h, w), channels, features), dtype = CASES[1]
    args = given(layout, "forward", CASES[1][0], dtype)
    by_tiles = fg.jit(convolution(layout, "forward")).lower(*args)
    assert by_tiles.cost_analysis()["flops"] == 2 * 9 * n * h * w * channels * features
