"""Products of operands that are described by axes, and calls in emitted code."""

import ctypes

import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.functions import OUTPUTS, declare_gemm, emit_gemm
from funcgrad.backends.llvm.gemm.words import AXES, CALL, MAX_AXES, axes_words, inner_words
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.program import GemmAxes
from tests.backends.llvm.gemm.test_functions import check, engine_for, random


@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_operands_of_axes(dtype, cpu):
    """Rows, columns and sums over several axes that overlap, go backwards or stand still."""
    target = engine_for(cpu)
    out = OUTPUTS[dtype][0]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.install(dtype, out, target))
    rng = np.random.default_rng(9)
    for m, n, k in [
        (((3, 40), (5, 1)), ((2, 30), (37, 1)), ((4, 100, 90), (3, -7, 2), (2, 1, 1))),
        (((20, 3),), ((3, 50), (4, 2)), ((3, 200, 100), (40, 1, 1))),
        (((1, 0),), ((70, 1),), ((5, 3, 70),)),
        (((300, 2),), ((3, 0), (3, 400), (21, -1)), ((9, 1, 20), (2, 600, 300), (50, 1, 2))),
        (((2, 17), (40, 1)), ((1, 5),), ((2, 0, 100), (17, 1, 1))),
        (((3, 5),), ((4, 7), (2, 2), (3, 1), (2, 9), (1, 1), (1, 1)), ((0, 1, 1), (2, 1, 1))),
    ]:
        a, b = (random(rng, (4000,), np.dtype(dtype)) for _ in "ab")
        axes = (ctypes.c_int64 * (len(AXES) * MAX_AXES))(*axes_words(GemmAxes(m, n, k)))
        first = 100
        m_a, n_b = offsets(m, 1), offsets(n, 1)
        rows = a[first + m_a[:, None] + offsets(k, 1)]
        columns = b[first + offsets(k, 2)[:, None] + n_b]
        c = np.empty((len(m_a), len(n_b)), out)
        call = functions._words(rows, columns, c, False)
        for name, value in (
            ("a", a[first:].ctypes.data),
            ("b", b[first:].ctypes.data),
            ("axes", ctypes.addressof(axes)),
        ):
            call[CALL.index(name)] = value
        function(ctypes.addressof(call))
        check(c, rows, columns)


@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_windows_in_place(dtype, cpu):
    """Either operand is the one that isn't packed; C lies either way; sums are cut or not."""
    target = engine_for(cpu)
    kind, seen = ctypes.CFUNCTYPE(None, ctypes.c_void_p), set()
    tolerance = 1e-4 if dtype == "float32" else 1e-11
    rng = np.random.default_rng(10)
    for m, n, k in [
        (((33, 9),), ((13, 20), (15, 1)), ((4, 100, 400), (3, 1, 20), (3, 1, 1))),  # by items
        (((7, 30), (11, 2)), ((46, 9),), ((4, 40, 100), (5, 1, 10))),
        (((12, 3),), ((3, 50), (4, 2)), ((30, 20, 100), (80, 1, 1))),  # cut
        (((3, 50), (9, 2)), ((48, 1),), ((53, 20, 60), (40, 1, 1))),
        (((3, 30),), ((5, 70), (43, 1)), ((4, 40, 100), (5, 1, 10))),  # lines
        (((10, 30),), ((6, 70), (9, 1)), ((4, 40, 100), (5, 1, 10))),  # short ones
        (((30, 30),), ((5, 70), (31, 1)), ((4, 40, 900), (5, 1, 10))),  # strips
        (((15, 30),), ((3, 100), (7, 64), (16, 1)), ((4, 40, 900), (5, 1, 10), (2, 3, 3))),
        (((3, 60), (47, 1)), ((22, 40),), ((3, 1000, 40), (4, 1, 3))),
        (((17, 30),), ((5, 150), (64, 2)), ((4, 1400, 900), (5, 1, 10))),  # every second element
        (((17, 30),), ((5, 151), (64, 2)), ((4, 1400, 900), (5, 1, 10))),
        (((3, 70),), ((61, 13),), ((4, 1400, 900), (35, 1, 10))),  # few columns
        (((3, 50), (9, 2)), ((48, 1),), ((4, 20, 60), (375, 1, 3))),  # of which B's follow
    ]:
        m_a, n_b = offsets(m, 1), offsets(n, 1)
        for shape, turned, add in [((1, 1), False, 0), ((2, 3), True, 1), ((1, 3), False, 1)]:
            a, b = (random(rng, (9000,), np.dtype(dtype)) for _ in "ab")
            rows = np.stack([a[i * 7 + m_a[:, None] + offsets(k, 1)] for i in range(shape[0])])
            columns = np.stack([b[i * 5 + offsets(k, 2)[:, None] + n_b] for i in range(shape[1])])
            rows, columns = rows[:, None], columns[None]
            c = random(rng, (*shape, len(m_a), len(n_b)), np.dtype(dtype))
            c = np.swapaxes(np.swapaxes(c, 2, 3).copy(), 2, 3) if turned else c
            before = c.copy() if add else 0
            whole = np.broadcast_to(rows, (*shape, *rows.shape[2:]))
            other = np.broadcast_to(columns, (*shape, *columns.shape[2:]))
            call = functions._words(whole, other, c, bool(add))
            axes = (ctypes.c_int64 * (len(AXES) * MAX_AXES))(*axes_words(GemmAxes(m, n, k)))
            for name, value in (
                ("a", a.ctypes.data), ("b", b.ctypes.data), ("axes", ctypes.addressof(axes)),
                ("a_b0", 7 if shape[0] > 1 else 0), ("b_b1", 5 if shape[1] > 1 else 0),
            ):  # fmt: skip
                call[CALL.index(name)] = value
            start, exact = c.copy(), before + rows.astype("f8") @ columns.astype("f8")
            words = dict(zip(CALL, call, strict=True)) | inner_words(GemmAxes(m, n, k))
            for way in {"", functions.route(dtype, dtype, words)[0]}:
                if cpu == "host" or not way:
                    c[...] = start
                    kind(functions.install(dtype, dtype, target, way))(ctypes.addressof(call))
                    np.testing.assert_allclose(c, exact, rtol=tolerance, atol=tolerance * 20)
                seen.add(way)
    if engine().target.has("avx512f"):
        assert seen >= {"strips", "placed", "lines", "windows"}


def offsets(axes, which):
    """Where each point of axes lies, by the strides in a place of their tuples."""
    out = np.zeros(1, np.int64)
    for axis in axes:
        out = (out[:, None] + np.arange(axis[0]) * axis[which]).ravel()
    return out


def test_emitted_call():
    m = ir.Module("test_emitted_call")
    ptr = ir.PointerType()
    f = ir.Function(m, ir.FunctionType(ir.VoidType(), [ptr, ptr, ptr]), "product")
    b = IRBuilder(f.append_basic_block())
    x, y, z = f.args
    steps = {"a_rs": 3, "a_cs": 1, "b_rs": 4, "b_cs": 1, "c_rs": 4, "c_cs": 1}
    emit_gemm(b, "float32", None, {"m": 2, "n": 4, "k": 3, "a": x, "b": y, "c": z, **steps})
    b.ret_void()
    assert declare_gemm(m, "float32") is declare_gemm(m, "float32")
    address = engine().compile(m).address("product")
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address)
    a = np.arange(6, dtype="f4").reshape(2, 3)
    w = np.arange(12, dtype="f4").reshape(3, 4)
    c = np.empty((2, 4), "f4")
    call(a.ctypes.data, w.ctypes.data, c.ctypes.data)
    np.testing.assert_array_equal(c, a @ w)
    with pytest.raises(ValueError, match=r"unknown words \['row_stride'\]"):
        emit_gemm(b, "float32", None, {"row_stride": 1})
