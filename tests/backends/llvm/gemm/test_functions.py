import ctypes
import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.llvm.gemm import functions, micro
from funcgrad.backends.llvm.gemm.functions import OUTPUTS, gemm
from funcgrad.backends.llvm.gemm.words import CALL
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target, default_target
from funcgrad.backends.llvm.runtime import pool
from funcgrad.core.record import replace

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(t) for t in ("float32", "float64", "float16")] + [BF16]
INTEGERS = [np.dtype("int8"), np.dtype("int32")]
SIZES = [
    (1, 1, 1), (2, 3, 4), (4, 4, 4), (7, 5, 3), (8, 8, 8), (16, 16, 16), (13, 33, 65),
    (1, 300, 200), (300, 1, 200), (3, 500, 64), (500, 5, 64), (8, 40, 129), (1, 1, 1000),
    (14, 32, 100), (15, 31, 97), (120, 110, 90), (130, 97, 391), (257, 70, 40), (29, 2100, 20),
]  # fmt: skip


def random(rng, shape, dtype):
    if dtype.kind == "i":
        return rng.integers(-100, 100, shape).astype(dtype)
    normal = rng.standard_normal
    return (normal((*shape, 2)) @ [1, 1j] if dtype.kind == "c" else normal(shape)).astype(dtype)


def laid_out(x, layout):
    """The same values, laid out another way in memory."""
    x = x.copy()
    if layout == "transposed":
        return np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2)
    if layout == "strided":
        y = np.zeros((*x.shape[:-2], x.shape[-2] * 2, x.shape[-1] * 3), x.dtype)[..., ::2, ::3]
        y[...] = x
        return y
    return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1] if layout == "reversed" else x


def check(c, a, b, before=0.0):
    """c against float64, or complex128, with a bound of k roundings; exact for integers."""
    if c.dtype.kind == "i":
        expected = a.astype(np.int64) @ b.astype(np.int64) + np.int64(before)
        np.testing.assert_array_equal(c, expected.astype(np.int32))
        return
    wide = np.complex128 if c.dtype.kind == "c" else np.float64
    af, bf = a.astype(wide), b.astype(wide)
    acc = np.float64 if a.dtype in (np.float64, np.complex128) else np.float32
    size = np.abs(af) @ np.abs(bf) + np.abs(before)
    allowed = (np.finfo(acc).eps * (a.shape[-1] + 2) + float(ml_dtypes.finfo(c.dtype).eps)) * size
    error = np.abs(c.astype(wide) - (af @ bf + before))
    assert (error <= allowed + 1e-7).all(), (error - allowed).max()


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_and_dtypes(size, dtype):
    rng = np.random.default_rng(sum(size))
    m, n, k = size
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    for out in OUTPUTS[dtype.name]:
        c = np.full((m, n), 77).astype(BF16 if out == "bfloat16" else out)
        check(gemm(a, b, c), a, b)


@pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("float64"), BF16], ids=str)
@pytest.mark.parametrize(
    "size", [(5, 6, 7), (1, 40, 70), (40, 1, 70), (3, 50, 80), (90, 110, 100)], ids=str
)
def test_layouts(size, dtype):
    rng = np.random.default_rng(1)
    m, n, k = size
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    layouts = ("plain", "transposed", "strided", "reversed")
    for la, lb, lc in itertools.product(layouts, repeat=3):
        c = laid_out(np.full((m, n), 5).astype(dtype), lc)
        check(gemm(laid_out(a, la), laid_out(b, lb), c), a, b)
        frame = c.base
        if lc == "strided" and frame is not None:
            untouched = np.ones(frame.shape, bool)
            untouched[::2, ::3] = False
            assert not frame[untouched].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("size", [(4, 5, 6), (1, 30, 90), (100, 90, 110), (20, 30, 1700)], ids=str)
def test_add(size, dtype):
    rng = np.random.default_rng(2)
    dtype = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    m, n, k = size
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    for out in OUTPUTS[dtype.name]:
        before = random(rng, (m, n), BF16 if out == "bfloat16" else np.dtype(out))
        c = gemm(a, b, before.copy(), add=True)
        start = before if c.dtype.kind == "i" else before.astype(np.float64)
        if c.dtype.kind == "i":
            np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64) + start)
        else:
            check(c, a, b, start)


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided"])
@pytest.mark.parametrize("k", [97, 130, 801, 1700])
def test_pairs_of_narrow_numbers_are_summed_exactly(k, layout):
    """Whole numbers are exact in bfloat16 and their sums in float32; int8 to its extremes."""
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((261, k), (k, 75)))
    a[0], b[:, 0] = -128, -128
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(gemm(laid_out(a, layout), laid_out(b, layout)), wanted)
    a, b = (x.clip(-64, 64).astype(BF16) for x in (a, b))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    c = np.empty(wanted.shape, np.float32)
    np.testing.assert_array_equal(gemm(laid_out(a, layout), laid_out(b, layout), c), wanted)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_empty(dtype):
    for m, n, k in itertools.product((0, 1, 20), repeat=3):
        if 0 in (m, n, k):
            a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
            c = np.full((m, n), 3, OUTPUTS[dtype][0])
            assert (gemm(a, b, c.copy()) == 0).all()
            assert (gemm(a, b, c.copy(), add=True) == 3).all()
    assert gemm(np.ones((0, 2, 3), "f4"), np.ones((0, 3, 4), "f4")).shape == (0, 2, 4)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch_a", "batch_b", "size"),
    [
        ((6,), (6,), (4, 4, 4)),
        ((200,), (1,), (5, 7, 9)),
        ((1,), (40,), (32, 20, 16)),
        ((3, 1), (1, 4), (17, 33, 40)),
        ((2, 3, 2), (2, 1, 1), (8, 9, 10)),
        ((), (5,), (60, 50, 70)),
        ((2,), (), (150, 140, 130)),
    ],
    ids=str,
)
def test_batches(threads, batch_a, batch_b, size):
    pool.set_num_threads(threads)
    rng = np.random.default_rng(3)
    m, n, k = size
    a = random(rng, (*batch_a, m, k), np.dtype("float32"))
    b = random(rng, (*batch_b, k, n), np.dtype("float32"))
    check(gemm(a, b), a, b)
    check(gemm(laid_out(a, "reversed"), laid_out(b, "transposed")), a, b)


def test_batch_dimensions_that_are_not_contiguous():
    rng = np.random.default_rng(4)
    q, k = (random(rng, (3, 20, 4, 16), np.dtype("float32")) for _ in range(2))
    a, b = q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)
    check(gemm(a, b), a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [(6, 6, 6), (1, 40, 70), (40, 1, 70), (100, 110, 120)], ids=str)
def test_nan_and_infinity_stay_where_they_belong(size, dtype):
    m, n, k = size
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    a[m // 2, k // 2], a[0, 0] = np.nan, np.inf
    c = gemm(a, b).astype(np.float64)
    expected = np.full((m, n), float(k))
    expected[0] = np.inf
    expected[m // 2] = np.nan
    np.testing.assert_array_equal(c, expected)
    b[0, 0] = 0
    assert np.isnan(gemm(a, b)[0, 0].astype(np.float64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conversions_round_as_numpy_does(dtype):
    """A product with 1 shows widening and rounding of every 16-bit pattern and of its midpoints."""
    dtype = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    every = np.arange(65536, dtype=np.uint16).view(dtype)[:, None]
    with np.errstate(all="ignore"):
        one = np.ones((1, 1), dtype)
        same = gemm(every, one)
        wide = gemm(every, one, np.empty(every.shape, np.float32))
        half = np.full((1, 1), 0.5, dtype)
        halved = gemm(every, half)
        np.testing.assert_array_equal(wide, every.astype(np.float32))
        np.testing.assert_array_equal(same.astype(np.float32), every.astype(np.float32))
        expected = (every.astype(np.float32) * np.float32(0.5)).astype(dtype)
        np.testing.assert_array_equal(halved.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("size", [(300, 300, 300), (1, 5000, 100), (5000, 1, 100), (200, 200, 900)])
def test_threads_do_not_change_the_result(size):
    rng = np.random.default_rng(5)
    m, n, k = size
    a, b = random(rng, (m, k), np.dtype("float32")), random(rng, (k, n), np.dtype("float32"))
    results = []
    for threads in (1, 2, 3):
        pool.set_num_threads(threads)
        results.append(gemm(a, b))
        results.append(gemm(a, laid_out(b, "transposed")))
    for c in results[2:]:
        np.testing.assert_array_equal(c, results[0 if c is results[2] or c is results[4] else 1])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [(70, 41, 300), (131, 16, 513), (33, 1030, 270), (400, 9, 40)])
def test_slices_whose_rows_are_pages_apart(size, threads):
    """What lies well in a cache is read in place, else by way of panels."""
    pool.set_num_threads(threads)
    rng = np.random.default_rng(10)
    m, n, k = size
    a = random(rng, (m, 1024), np.dtype("float32"))[:, :k]
    b = random(rng, (k, 2048), np.dtype("float32"))[:, 3 : 3 + n]
    frame = np.full((m, 1024 + n), 7, np.float32)
    for right in (b, laid_out(b, "transposed"), laid_out(b, "reversed")):
        check(gemm(a, right, frame[:, 5 : 5 + n]), a, right)
        check(gemm(laid_out(a, "transposed"), right, frame[:, 5 : 5 + n]), a, right)
    assert (frame[:, :5] == 7).all()
    assert (frame[:, 5 + n :] == 7).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.dtype(t) for t in ("float32", "float64", "int8")] + [BF16])
@pytest.mark.parametrize("size", [(1003, 301, 531), (260, 1100, 2100), (263, 70, 6)])
def test_operands_packed_by_several_threads(size, dtype):
    """Contiguous along panels, they are cut along k, else by panels."""
    rng = np.random.default_rng(13)
    m, n, k = size
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    for left, right in (("transposed", "plain"), ("plain", "transposed")):
        results = []
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            results.append(gemm(laid_out(a, left), laid_out(b, right)))
            np.testing.assert_array_equal(results[-1], results[0])
        check(results[0], a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize(
    "size",
    [(64, 64, 4096), (5, 41, 30001), (100, 20, 9000), (33, 1, 200000),
     # Parts that are as long as those that are worth being cut.
     (32, 32, 16384), (512, 32, 4096), (64, 64, 16384)],
)  # fmt: skip
def test_long_sums(size, dtype):
    """They are cut along k, at the same places for any number of threads."""
    rng = np.random.default_rng(11)
    m, n, k = size
    a, b = random(rng, (m, k), np.dtype(dtype)), random(rng, (k, n), np.dtype(dtype))
    before = random(rng, (m, n), np.dtype(OUTPUTS[dtype][0]))
    for left, right in ((a, b), (laid_out(a, "transposed"), laid_out(b, "transposed"))):
        results = []
        for threads in (1, 2, 3):
            pool.set_num_threads(threads)
            results.append(gemm(left, right, laid_out(before, "strided"), add=True))
        check(results[0], a, b, before)
        for c in results[1:]:
            np.testing.assert_array_equal(c, results[0])
    check(gemm(a, b, laid_out(np.empty_like(before), "transposed")), a, b)


@pytest.mark.parametrize("size", [(9, 130, 600), (31, 1025, 513), (47, 66, 700), (130, 900, 290)])
def test_few_rows(size):
    """The ways that serve up to so many rows, and the first beyond them."""
    rng = np.random.default_rng(12)
    for more in (0, 2):
        m, n, k = size[0] + more, *size[1:]
        a, b = random(rng, (m, k), np.dtype("float32")), random(rng, (k, n), np.dtype("float32"))
        for left, right in itertools.product(
            (a, laid_out(a, "transposed")), (b, laid_out(b, "transposed"))
        ):
            for threads in (1, 2):
                pool.set_num_threads(threads)
                check(gemm(left, right), a, b)


def test_random_shapes():
    rng = np.random.default_rng(6)
    for _ in range(60):
        m, n, k = (int(x) for x in 2 ** rng.uniform(0, 8, 3))
        a = laid_out(
            random(rng, (m, k), np.dtype("float32")), rng.choice(["plain", "transposed", "strided"])
        )
        b = laid_out(
            random(rng, (k, n), np.dtype("float32")), rng.choice(["plain", "transposed", "strided"])
        )
        check(gemm(a, b), a, b)


def test_blocks_larger_than_the_packing_buffers():
    rng = np.random.default_rng(7)
    a = random(rng, (1600, 40), np.dtype("float32"))
    b = random(rng, (40, 2100), np.dtype("float32"))
    check(gemm(a, b), a, b)
    a, b = (
        random(rng, (20, 4000), np.dtype("float64")),
        random(rng, (4000, 60), np.dtype("float64")),
    )
    check(gemm(a, b), a, b)


def engine_for(cpu):
    """The engine of a processor whose code this one runs, too."""
    host = engine().target
    if cpu == "host":
        return engine()
    if not (host.triple.startswith("x86_64") and host.has("avx2")):
        pytest.skip("this processor does not run the code")
    if cpu in ("znver4", "sapphirerapids"):
        if not host.has("avx512bf16"):
            pytest.skip("this processor has no products of pairs of bfloat16")
        return engine(replace(host, cpu=cpu))
    features = {"haswell": "+avx,+avx2,+fma,+f16c", "sandybridge": "+avx"}
    return engine(Target(host.triple, cpu, features.get(cpu, "")))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "znver4", "sapphirerapids"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_other_targets(dtype, cpu):
    """Other tiles, without masks for 16 bits, or without masks and fma at all."""
    target = engine_for(cpu)
    numpy_type = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    out = OUTPUTS[dtype][0]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.install(dtype, out, target))
    rng = np.random.default_rng(8)
    for m, n, k in [
        (1, 1, 1),
        (5, 9, 30),
        (100, 70, 300),
        (1, 100, 64),
        (100, 1, 64),
        (29, 16, 5000),
        (310, 197, 213),  # columns of B that tasks pack for themselves, though they could read it
        (80, 2000, 13),  # all of B, for short sums
    ]:
        a, b = random(rng, (m, k), numpy_type), random(rng, (k, n), numpy_type)
        b = laid_out(b, "transposed" if m % 2 else "plain")
        c = np.empty((m, n), BF16 if out == "bfloat16" else out)
        call = functions._words(a, b, c, False)
        function(ctypes.addressof(call))
        check(c, a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpu", ["host", "x86-64", "haswell", "znver4", "sapphirerapids"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_are_rounded_once(dtype, cpu):
    """By each tile where one block has all of k, else at the end: the bits are those of float32."""
    target = engine_for(cpu)
    numpy_type = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    whole, rounded = (
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.install(dtype, out, target))
        for out in ("float32", dtype)
    )

    def multiply(function, c, add=False):
        call = functions._words(a, b, c, add)  # held while the function reads it
        function(ctypes.addressof(call))

    rng = np.random.default_rng(12)
    for threads, (m, n, k) in enumerate(
        [(130, 97, 391), (1300, 40, 150), (150, 2100, 100), (140, 150, 4200), (257, 300, 530)], 1
    ):
        pool.set_num_threads(threads)
        a, b = random(rng, (m, k), numpy_type), random(rng, (k, n), numpy_type)
        sums = np.empty((m, n), np.float32)
        multiply(whole, sums)
        before = random(rng, (m, n), numpy_type)
        for layout in ("plain", "transposed", "strided"):
            c = laid_out(np.full_like(before, np.nan), layout)
            multiply(rounded, c)
            assert (c == sums.astype(numpy_type)).all()
            c = laid_out(before, layout)
            multiply(rounded, c, add=True)
            assert (c == (before.astype(np.float32) + sums).astype(numpy_type)).all()


def test_bad_arguments():
    x = np.ones((2, 3), "f4")
    with pytest.raises(ValueError, match=r"a has shape \(2, 3\) and b \(2, 3\)"):
        gemm(x, x)
    with pytest.raises(TypeError, match="a is float32 and b is float64"):
        gemm(x, np.ones((3, 2)))
    with pytest.raises(TypeError, match="a is int64"):
        gemm(x.astype("i8"), x.T.astype("i8"))
    with pytest.raises(ValueError, match=r"out is float32\(3, 3\), the product float32 of shape"):
        gemm(x, x.T, np.empty((3, 3), "f4"))
    with pytest.raises(ValueError, match="no product of float32 into float64"):
        functions.install("float32", "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "complex64"])
def test_one_way_gives_what_all_give(dtype):
    rng, seen = np.random.default_rng(0), set()
    sizes = [1, 2, 7, 8, 9, 24, 33, 64, 129, 257]
    for _ in range(60):
        m, n, k = (int(rng.choice(sizes)) for _ in range(3))
        a, b, c = (
            np.ones(shape, dtype).T if rng.random() < 0.3 else np.ones(shape[::-1], dtype)
            for shape in ((k, m), (n, k), (n, m))
        )
        a[...], b[...] = rng.integers(-9, 9, a.shape), rng.integers(-9, 9, b.shape)
        call = functions._words(a, b, c, False)
        way, kernels = functions.route(dtype, dtype, dict(zip(CALL, call, strict=True)))
        seen.add(way)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        for chosen in {way, ""}:
            c[...] = -1
            for kernel in kernels if chosen else ():
                place = micro.place(functions.name_of(dtype, dtype, way), kernel)
                at = functions.way_library(dtype, dtype, engine(), way).address(place)
                code = micro.library(engine(), dtype, kernel)
                address = code.address(micro.symbol(dtype, kernel))
                ctypes.c_void_p.from_address(at).value = address
            function(functions.install(dtype, dtype, way=chosen))(ctypes.addressof(call))
            np.testing.assert_array_equal(c, a @ b, err_msg=f"{chosen} {m}×{n}×{k}")
    assert len(seen) > 3 or not default_target().has("avx512f")


def test_ways_of_batches_and_of_none():
    rows = {"a_rs": 4, "a_cs": 1, "b_rs": 4, "b_cs": 1, "c_rs": 4, "c_cs": 1}
    few = {"m": 4, "n": 4, "k": 4, **rows}
    batch = {"batch1": 4096, "a_b1": 16, "c_b1": 16}
    assert functions.route("float32", "float32", {**few, **batch, "n": 999})[0]
    assert functions.route("float32", "float32", {**few, "k": 0}) == ("", [])
    assert functions.route("float32", "float32", {**few, "axes": 1, "k": 0}) == ("", [])
    assert functions.route("float16", "float16", few) == ("", [])
