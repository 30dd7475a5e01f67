"""Products whose tasks pack their own rows of A, or columns of B."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions
from funcgrad.backends.llvm.gemm.functions import OUTPUTS, gemm
from funcgrad.backends.llvm.gemm.kernels import Kernels
from funcgrad.backends.llvm.gemm.own import packing_rows
from funcgrad.backends.llvm.gemm.pack import FORMATS, Tile
from funcgrad.backends.llvm.native import ir
from funcgrad.backends.llvm.native.code import I64, PTR, Code
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool

BF16 = np.dtype(ml_dtypes.bfloat16)
# Tasks are rows of the first, columns of the others, wherever caches are as large as is usual.
SIZES = [
    (1500, 60, 70), (1451, 97, 333), (1920, 64, 1030), (1345, 31, 40), (2300, 45, 2000),
    (70, 1100, 90), (61, 531, 1100), (100, 2200, 40), (57, 600, 2300),
    # B beyond a core's second cache: of tall products, and of others that read it in place.
    (910, 601, 1025), (301, 509, 1009),
    # More rows than are packed at a time for tasks of columns.
    (2310, 523, 33),
    # Several panels of A to a part, packed in two steps along k that aren't whole vectors.
    (300, 590, 1030),
]  # fmt: skip


def operands(size, dtype, seed=0):
    rng = np.random.default_rng(seed)
    m, n, k = size
    draw = rng.integers(-100, 100, (m + n, k)) if dtype.kind == "i" else rng.normal(size=(m + n, k))
    whole = draw.astype(dtype)
    return whole[:m], whole[m:].T


def rows(x):
    """The same values, contiguous along rows."""
    return np.ascontiguousarray(x)


def columns(x):
    """The same values, contiguous along columns, a page and more apart."""
    frame = np.zeros((x.shape[1], x.shape[0] + 1030), x.dtype)
    frame[:, 3 : 3 + x.shape[0]] = x.T
    return frame[:, 3 : 3 + x.shape[0]].T


def check(c, a, b, before=0.0):
    """Against float64, within a rounding a term."""
    wide = [x.astype(np.float64) for x in (a, b)]
    size = abs(wide[0]) @ abs(wide[1]) + abs(before)
    eps = 0.0 if c.dtype.kind == "i" else float(ml_dtypes.finfo(c.dtype).eps)
    acc = 0.0 if c.dtype.kind == "i" else np.finfo(np.float64 if eps < 1e-9 else np.float32).eps
    assert (abs(c - (wide[0] @ wide[1] + before)) <= (acc * (a.shape[1] + 2) + eps) * size).all()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [np.dtype(t) for t in ("float32", "float64", "int32", "int8")])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_any_layout_and_number_of_threads(size, dtype):
    a, b = operands(size, dtype)
    for left, right in ((rows, rows), (rows, columns), (columns, rows), (columns, columns)):
        x, y, results = left(a), right(b), []
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            results.append(gemm(x, y))
            np.testing.assert_array_equal(results[-1], results[0])
        check(results[0], a, b)


def test_rows_that_tasks_pack_for_each_other():
    """Whoever comes first packs them, and who comes meanwhile packs them for itself."""
    a, b = operands((61, 2200, 70), np.dtype("float32"), 4)
    a, b = rows(a), rows(b)
    pool.set_num_threads(1)
    expected = gemm(a, b)
    pool.set_num_threads(5)
    for _ in range(100):
        np.testing.assert_array_equal(gemm(a, b), expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_in_a_frame_that_grow(size, threads):
    pool.set_num_threads(threads)
    a, b = operands(size, np.dtype("float32"), 1)
    m, n, _ = size
    for turned in (False, True):
        frame = np.full((m + 5, n + 9), 7, np.float32)
        frame = frame.T.copy().T if turned else frame
        inside = frame[2 : 2 + m, 4 : 4 + n]
        gemm(columns(a), rows(b), inside, add=True)
        check(inside, a, b, 7.0)
        inside[...] = 7
        assert (frame == 7).all()


@pytest.mark.parametrize("size", [SIZES[1], SIZES[6]], ids=str)
def test_what_is_not_a_number_stays_in_its_row_and_column(size):
    a, b = operands(size, np.dtype("float32"), 2)
    a[5, 3], a[-1, -1], b[2, 7], b[-1, -1] = np.nan, np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = a @ b
    for left, right in ((rows, rows), (columns, rows)):
        c = gemm(left(a), right(b))
        np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(c), np.isinf(expected))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpu", ["x86-64", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
def test_other_targets(dtype, cpu):
    """Narrower tiles, with masks that are dear or none."""
    host = engine().target
    if not (host.triple.startswith("x86_64") and host.has("avx2")):
        pytest.skip("this processor does not run the code")
    target = engine(Target(host.triple, cpu, "+avx,+avx2,+fma,+f16c" if cpu == "haswell" else ""))
    for out in OUTPUTS[dtype]:
        address = functions.install(dtype, out, target)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        for size in SIZES:
            a, b = operands(size, BF16 if dtype == "bfloat16" else np.dtype(dtype), 3)
            for left in (rows, columns):
                c = np.empty((size[0], size[1]), BF16 if out == "bfloat16" else out)
                x, y = left(a), rows(b)
                call = functions._words(x, y, c, False)
                function(ctypes.addressof(call))
                check(c, a, b)


def test_rows_are_packed_while_they_are_multiplied():
    """For any k, of a tile whose rows are a page apart or next to each other."""
    fmt = FORMATS["float32"]
    tile = Tile.of(engine().target, fmt)

    def write():
        code = Code(ir.Module("rows"), "rows", [I64, PTR, I64, PTR, PTR, PTR, *[I64] * 5], True)
        code.call(packing_rows(Kernels(code.module, fmt, tile, engine().target)), *code.args)
        code.ret()
        return code.module

    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(
        engine().compile(write).address("rows")
    )
    rng = np.random.default_rng(3)
    for k, step in ((1, 1), (15, 15), (16, 1024), (17, 40), (47, 1025), (160, 160), (1031, 2048)):
        a = rng.integers(-9, 9, (tile.rows, step)).astype(np.float32)
        b = rng.integers(-9, 9, (k, tile.cols)).astype(np.float32)
        panel = np.full((k + 2, tile.rows), 7, np.float32)
        c = np.full((tile.rows, tile.cols + 3), 5, np.float32)
        places = (panel[1:], a, b, c)
        to, *others = (x.ctypes.data for x in places)
        function(step, to, k, *others, tile.cols + 3, 1, tile.rows, tile.cols, 1)
        np.testing.assert_array_equal(c[:, : tile.cols], a[:, :k] @ b + 5)
        np.testing.assert_array_equal(panel[1:-1], a[:, :k].T)
        assert (panel[[0, -1]] == 7).all()
        assert (c[:, tile.cols :] == 5).all()
