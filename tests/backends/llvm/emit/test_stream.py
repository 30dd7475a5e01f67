"""Results that are written past the caches: the same values, wherever they lie."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.build import Built, assemble, kernel_cache
from funcgrad.backends.llvm.emit.stream import streams
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.loops.ir import Buffer
from funcgrad.core.ir import interpret
from funcgrad.core.record import replace
from tests.backends.checks import floats, integers, program, same
from tests.backends.llvm.kernels_run import F32, kernel, pointwise
from tests.backends.llvm.kernels_run import check as check_kernel

DTYPES = ["bool", "int8", "float16", "bfloat16", "int32", "float32", "float64"]


@pytest.fixture
def all_stream(monkeypatch):
    """Results of any size are written past the caches."""
    kernel_cache().forget()
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    monkeypatch.setattr(Target, "stream_bytes", property(lambda self: 1))
    yield
    kernel_cache().forget()


def values(dtype, *shape):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return (np.arange(np.prod(shape)) * 7 % 101 - 50).reshape(shape).astype(dtype)


def check(fun, *arrays, exact=False):
    """Compare the compiled program with its ops one by one."""
    jaxpr, consts, planned = program(fun, *arrays)
    arrays = [*consts, *arrays]
    got = assemble(planned)(arrays)
    for w, g, v in zip(interpret(jaxpr, np, *arrays), got, jaxpr.outs, strict=True):
        same(np.asarray(g), np.asarray(w).astype(v.aval.dtype), exact)


def llvm(fun, *arrays):
    return Built(program(fun, *arrays)[2]).as_text("llvm")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements(all_stream, threads, dtype, count):
    threads(count)
    for n in (1, 15, 64, 65, 1000, 70_001):
        check(lambda x: [fnp.maximum(x, x[::-1]), x == x[0]], values(dtype, n), exact=True)


@pytest.mark.parametrize("shape", [(3, 64), (5, 1000), (4, 1024), (7, 31), (2, 3, 320), (130, 192)])
def test_rows(all_stream, shape):
    x = floats(*shape)
    check(lambda x: [fg.nn.softmax(x, -1), x - fnp.mean(x, -1, keepdims=True)], x)
    check(lambda x: [fnp.swapaxes(x, 0, -1), fnp.swapaxes(x, 0, -1).astype("float64")], x)
    check(lambda x: [fnp.concatenate([x, x[..., :64], x], -1), fnp.roll(x, 5, -1)], x)
    check(lambda x: [fnp.pad(x, [(1, 1)] * (x.ndim - 1) + [(16, 32)]), x[..., ::2] + 1], x)
    check(lambda x: [fnp.cumsum(x, 0), fnp.repeat(x, 2, 0)], x)


def test_results_of_several_types(all_stream):
    def f(x, y):
        return [x > y, (x - y).astype("float64"), (x + y).astype("float16"), x.astype("int8")]

    for shape in ((1000,), (30, 512), (9, 77)):
        check(f, floats(*shape), floats(*shape))


@pytest.mark.parametrize("offset", [0, 4, 16, 60])
def test_donated_memory_at_any_address(all_stream, offset):
    step = fg.jit(lambda x, y: (y * 2 + x.sum(), x - 1.0), donate_argnums=(0,))
    for n in (100, 5000, 70_003):
        whole = np.zeros(n + 64, np.float32)
        first = (-whole.ctypes.data % 64 + offset) // 4
        x = whole[first : first + n]
        x[:] = np.arange(n) % 13
        before, y = x.copy(), np.arange(n, dtype=np.float32)
        a, b = step(x, y)
        np.testing.assert_allclose(a, y * 2 + before.sum(), rtol=1e-6)
        np.testing.assert_array_equal(b, before - 1)
        assert not whole[:first].any()
        assert not whole[first + n :].any()


def test_in_place(all_stream):
    for shape in ((9, 640), (5, 33)):
        step = fg.jit(lambda x: fg.nn.softmax(x, -1), donate_argnums=(0,))
        x = floats(*shape)
        want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        np.testing.assert_allclose(step(x.copy()), want, rtol=1e-5)
        np.testing.assert_allclose(step(fnp.asarray(x.copy())), want, rtol=1e-5)


def test_which(monkeypatch):
    a = pointwise("add", [F32, F32], F32, 1 << 12)
    assert len(streams(a, 1 << 14)) == 1
    assert not streams(a, 1 << 15)
    assert not streams(a, 0)
    # The caches hold one operand and most of a result. Scratch is to stay in them, alone.
    one = pointwise("negative", [F32], F32, 1 << 12)
    assert not streams(one, 1 << 14)
    assert len(streams(one, (1 << 14) * 4 // 5)) == 1
    rows = replace(one, buffers=(*one.buffers, Buffer("tmp0", F32, 16, "scratch")))
    assert len(streams(rows, 1 << 14)) == 1
    nothing_read = kernel(a.params, [1 << 12], lambda b, i: None)
    assert not streams(nothing_read, 1)
    twice = replace(a, body=(*a.body, a.body[-1]))
    assert not streams(twice, 1)
    check_kernel(a, floats(1 << 12), floats(1 << 12))


def test_sums_of_rows(all_stream):
    """A row's loop over its updates ends where values say, before the row is written."""
    i, y = integers(9000, low=0, high=1 << 14), integers(9000, 192).astype("float32")

    def sums(i, y):
        return [fnp.zeros((1 << 14, 192)).at[i].add(y)]

    assert "!nontemporal" in llvm(sums, i, y)
    check(sums, i, y, exact=True)


def test_text(all_stream):
    x = floats(64, 256)
    assert "!nontemporal" in llvm(lambda x: [x + 1], x)
    assert "fence seq_cst" in llvm(lambda x: [x + 1], x)
    # Rows that don't begin with a line; more arithmetic than memory; nothing read.
    assert "!nontemporal" not in llvm(lambda x: [x[:, 1:] + x[:, :-1]], x)
    assert "!nontemporal" not in llvm(lambda x: [fnp.sin(x) * fnp.exp(x)], x)
    assert "!nontemporal" not in llvm(lambda x: [fnp.zeros((1000, 100)) + x[0, 0]], x)
