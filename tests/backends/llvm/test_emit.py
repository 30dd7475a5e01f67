"""Kernels in machine code against the interpreter of the loop IR."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm import pool
from funcgrad.backends.llvm.emit_kernels import merge
from funcgrad.backends.llvm.emit_schedule import coalesce, is_harmless, schedule
from funcgrad.backends.llvm.emit_split import identity, split
from funcgrad.backends.loops import (
    BITS,
    INDEX,
    MATH,
    OPS,
    OTHER,
    PREDICATES,
    Buffer,
    Const,
    Index,
    Load,
)
from tests.backends.llvm.kernels_run import (
    BOOL,
    F32,
    F64,
    I32,
    at,
    check,
    kernel,
    matrix,
    pointwise,
    run_interpreted,
    run_native,
)

FLOATS = [F32, F64]
INTEGERS = [np.dtype(c) for c in "bhiqBHIQ"]
NARROW = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
SIZES = [0, 1, 2, 3, 15, 16, 17, 1000, 1025]
FLOAT_ONLY = {*MATH, "power", "divide", "sqrt", "copysign", "nextafter", "floor", "ceil", "rint",
              "trunc", "isnan", "isinf", "isfinite", "signbit"}  # fmt: skip
NO_BOOL = {"subtract", "negative", "sign", "remainder", "fmod", "floor_divide"}
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-310, 1e-38, 3.4e38,
           -3.4e38, 0.5, -0.5, 1.5, 2.5, -2.5, 88.0, -104.0, 710.0, 1e-8, 20.0, -300.0]  # fmt: skip


@pytest.fixture(autouse=True)
def threads():
    before = pool.num_threads()
    yield pool.set_num_threads
    pool.set_num_threads(before)


def samples(dtype, n, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.integers(0, 2, n).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
        small = rng.integers(0 if dtype.kind == "u" else -5, 6, n).astype(dtype)
        x = np.where(np.arange(n) % 3 == 0, small, x)
        x[:2] = info.min, info.max
        return x
    with np.errstate(all="ignore"):
        x = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype)
        special = rng.permutation(np.array(SPECIAL).astype(dtype))
        x[: len(special)] = special
    return x


def assert_close(got, wanted, ulps):
    if got.dtype.kind not in "fV" or not ulps:
        np.testing.assert_array_equal(got, wanted)
        if got.dtype.kind == "f":
            known = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(wanted[known]))
        return
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    steps = np.abs(got[finite] - wanted[finite]) / np.spacing(np.abs(wanted[finite]))
    assert steps.max(initial=0) <= ulps


def dtypes_of(name):
    if name in FLOAT_ONLY:
        return FLOATS
    if name in BITS:
        return [*INTEGERS, BOOL] if name.startswith("bitwise") and name[8:] != "count" else INTEGERS
    return FLOATS + INTEGERS + ([] if name in NO_BOOL else [BOOL])


@pytest.mark.parametrize("name", [n for n in OPS if n not in OTHER])
def test_scalar_op(name):
    for dtype in dtypes_of(name):
        if name == "invert" and dtype == BOOL:
            continue
        out = BOOL if name in PREDICATES else dtype
        k = pointwise(name, [dtype] * OPS[name], out, 257)
        xs = [samples(dtype, 257, seed) for seed in range(OPS[name])]
        (got,), (wanted,) = run_native(k, xs), run_interpreted(k, xs)
        if name in ("maximum", "minimum") and dtype.kind == "f":
            # Which zero is the greater one is left open.
            got, wanted = got + dtype.type(0), wanted + dtype.type(0)
        assert_close(got, wanted, 4 if name in MATH or name == "power" else 0)


def equal(got, wanted):
    """Assert equality, which numpy doesn't know of narrow floats that are NaN."""
    if got.dtype == NARROW[1]:
        got, wanted = got.astype(float), wanted.astype(float)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source", [BOOL, *INTEGERS, *NARROW, *FLOATS], ids=str)
def test_conversions(source):
    """To floats, anything; to integers, what fits."""
    for targets in ([BOOL, *NARROW, *FLOATS], INTEGERS):
        x = samples(source, 300)
        if source in (*NARROW, *FLOATS) and targets is INTEGERS:
            wide = np.abs(np.nan_to_num(x.astype(float)))
            x = np.where(wide < 127, wide, 3).astype(source)
        given = Buffer("x", source, x.size, "in")
        outs = [Buffer(f"o{i}", d, x.size, "out") for i, d in enumerate(targets) if d != source]

        def write(b, i, given=given, outs=outs):
            for o in outs:
                b.store(o, at((1, i)), b.convert(b.load(given, at((1, i))), o.dtype))

        k = kernel([given, *outs], [x.size], write)
        for got, wanted in zip(run_native(k, [x]), run_interpreted(k, [x]), strict=True):
            equal(got, wanted)


def test_doubles_round_once_to_halves():
    """A double just above a tie of halves, which float32 can't tell from the tie."""
    x = np.array(
        [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-40, 65519.999999, 6e-8]
    )
    k = pointwise("convert", [F64], NARROW[0], x.size)
    np.testing.assert_array_equal(run_native(k, [x])[0], x.astype(np.float16))


@pytest.mark.parametrize("dtype", [F32, F64, I32, BOOL, *NARROW], ids=str)
def test_where_and_bitcast(dtype):
    k = pointwise("where", [BOOL, dtype, dtype], dtype, 300)
    xs = [samples(BOOL, 300), samples(dtype, 300), samples(dtype, 300, 1)]
    equal(run_native(k, xs)[0], run_interpreted(k, xs)[0])
    if dtype != BOOL:
        to = np.dtype(f"u{dtype.itemsize}")
        k = pointwise("bitcast", [dtype], to, 300)
        np.testing.assert_array_equal(run_native(k, xs[1:2])[0], xs[1].view(to))


def test_integer_power_wraps():
    k = pointwise("power", [I32, I32], I32, 5)
    xs = np.array([3, -2, 7, 0, 10], I32), np.array([4, 5, 30, 0, 9], I32)
    np.testing.assert_array_equal(run_native(k, xs)[0], xs[0] ** xs[1])


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_by_constants(name, dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.concatenate([np.arange(100), [least, least + 1, most - 1, most, most // 2 + 1]])
    x = x.astype(dtype) - dtype.type(50 if least else 0)
    for divisor in (0, 1, 2, 3, 8, 64, most // 2 + 1, most, -1 if least else 5, -8 if least else 7):
        ends = Buffer("x", dtype, len(x), "in"), Buffer("o", dtype, len(x), "out")

        def write(b, i, ends=ends, divisor=divisor):
            value = b.op(name, dtype, b.load(ends[0], at((1, i))), Const(int(divisor), dtype))
            b.store(ends[1], at((1, i)), value)

        k = kernel(ends, [len(x)], write)
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(x, dtype.type(divisor))
        np.testing.assert_array_equal(run_native(k, [x])[0], wanted)


# ---- loops


def softmax(m, n, axis, dtype=F64):
    x, o = Buffer("x", dtype, m * n, "in"), Buffer("o", dtype, m * n, "out")
    (p, q), (points, turns) = matrix(m, n, axis)

    def write(b, i):
        def load(j):
            return b.load(x, at((p, i), (q, j)))

        def exp(j):
            return b.op("exp", dtype, b.op("subtract", dtype, load(j), top))

        (top,) = b.loop(turns, lambda j, a: [b.op("maximum", dtype, a, load(j))],
                        [Const(-np.inf, dtype)], ["maximum"])  # fmt: skip
        (total,) = b.loop(turns, lambda j, a: [b.op("add", dtype, a, exp(j))], [Const(0, dtype)],
                          ["add"])  # fmt: skip

        def out(j):
            b.store(o, at((p, i), (q, j)), b.op("divide", dtype, exp(j), total))

        b.loop(turns, out, parallel=True)

    return kernel([x, o], [points], write)


def sums(m, n, axis, dtype=F64, combine="add", start=0):
    x = Buffer("x", dtype, m * n, "in")
    (p, q), (points, turns) = matrix(m, n, axis)
    o = Buffer("o", dtype, points, "out")

    def write(b, i):
        (r,) = b.loop(turns, lambda j, a: [b.op(combine, dtype, a, b.load(x, at((p, i), (q, j))))],
                      [Const(start, dtype)], [combine])  # fmt: skip
        b.store(o, at((1, i)), b.op("add", dtype, r, r))

    return kernel([x, o], [points], write)


def cumsum(m, n, axis):
    x, o = Buffer("x", F64, m * n, "in"), Buffer("o", F64, m * n, "out")
    (p, q), (points, turns) = matrix(m, n, axis)

    def write(b, i):
        def turn(j, a):
            s = b.op("add", F64, a, b.load(x, at((p, i), (q, j))))
            b.store(o, at((p, i), (q, j)), s)
            return [s]

        b.loop(turns, turn, [Const(0, F64)])

    return kernel([x, o], [points], write)


def argmax(m, n, axis):
    x = Buffer("x", F64, m * n, "in")
    (p, q), (points, turns) = matrix(m, n, axis)
    o = Buffer("o", I32, points, "out")

    def write(b, i):
        def turn(j, best, place):
            v = b.load(x, at((p, i), (q, j)))
            more = b.op("greater", BOOL, v, best)
            here = b.op("where", I32, more, b.convert(j, I32), place)
            return [b.op("where", F64, more, v, best), here]

        b.store(o, at((1, i)), b.loop(turns, turn, [Const(-np.inf, F64), Const(0, I32)])[1])

    return kernel([x, o], [points], write)


def transpose(m, n, dtype=F32):
    x, o = Buffer("x", dtype, m * n, "in"), Buffer("o", dtype, m * n, "out")
    return kernel(
        [x, o],
        [n, m],
        lambda b, i, j: b.store(o, at((m, i), (1, j)), b.load(x, at((1, i), (n, j)))),
    )


SHAPES = [(1, 1), (3, 17), (16, 1000), (400, 1025), (1025, 3), (5, 0), (0, 5), (70, 64)]


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("make", [softmax, sums, cumsum, argmax])
def test_along_axes(make, axis, m, n):
    check(make(m, n, axis), np.random.default_rng(0).standard_normal(m * n), tolerance=1e-12)


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [np.dtype("int8"), F32, F64], ids=str)
def test_transpose(m, n, dtype):
    check(transpose(m, n, dtype), np.arange(m * n).astype(dtype))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("n", [*SIZES, 300_001])
def test_whole_reductions_are_shared_by_threads(threads, count, n):
    threads(count)
    x = np.random.default_rng(0).standard_normal(n)
    for combine, start in (("add", 1.5), ("maximum", -np.inf), ("minimum", 0.0)):
        wanted = 2 * getattr(np, combine).reduce(x, initial=start)
        np.testing.assert_allclose(run_native(sums(1, n, 1, F64, combine, start), [x]), [[wanted]])
    ints = (x * 10).astype(I32)
    for combine in ("add", "multiply", "maximum", "bitwise_xor"):
        wanted = 2 * getattr(np, combine).reduce(ints, initial=I32.type(3), dtype=I32)
        assert run_native(sums(1, n, 1, I32, combine, 3), [ints])[0] == wanted


def test_threads_never_change_a_result(threads):
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(F32)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(run_native(sums(1, x.size, 1, F32), [x])[0])
    assert results[0] == results[1] == results[2]


def test_tall_columns_are_split_and_short_rows_not():
    assert len(split(sums(30_000, 7, 0))[0]) == 2
    assert len(split(sums(7, 30, 1))[0]) == 1
    check(sums(30_000, 7, 0), np.random.default_rng(0).standard_normal(210_000), tolerance=1e-11)


def test_two_loops_are_split_one_after_the_other():
    n = 400_000
    x, o = Buffer("x", F64, n, "in"), Buffer("o", F64, 1, "out")

    def write(b):
        (s,) = b.loop(n, lambda i, a: [b.op("add", F64, a, b.load(x, at((1, i))))],
                      [Const(0, F64)], ["add"])  # fmt: skip
        mean = b.op("divide", F64, s, Const(n, F64))

        def square(i, a):
            d = b.op("subtract", F64, b.load(x, at((1, i))), mean)
            return [b.op("add", F64, a, b.op("multiply", F64, d, d))]

        b.store(o, at(), b.loop(n, square, [Const(0, F64)], ["add"])[0])

    k = kernel([x, o], [], write)
    assert len(split(k)[0]) == 3
    x = np.random.default_rng(0).standard_normal(n) + 3
    np.testing.assert_allclose(run_native(k, [x])[0], [np.var(x) * n])


@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum", "bitwise_and",
                                     "bitwise_or", "bitwise_xor"])  # fmt: skip
def test_identities(combine):
    for dtype in INTEGERS + (FLOATS if not combine.startswith("bitwise") else []):
        x = samples(dtype, 50)
        e = np.asarray(identity(combine, dtype), dtype)
        np.testing.assert_array_equal(getattr(np, combine)(e, x), x)


@pytest.mark.parametrize("n", SIZES)
def test_guards(n):
    lo, hi = 3, 5
    x, o = Buffer("x", F32, max(n, 1), "in"), Buffer("o", F32, n + lo + hi, "out")

    def write(b, i):
        low = b.op("greater_equal", BOOL, i, Const(lo, INDEX))
        with b.guarded(b.op("bitwise_and", BOOL, low, b.op("less", BOOL, i, Const(lo + n, INDEX)))):
            v = b.load(x, at((1, i), const=-lo))
        b.store(o, at((1, i)), v)
        with b.guarded(low):
            b.store(o, at((1, i)), b.op("add", F32, v, Const(1, F32)))

    check(kernel([x, o], [n + lo + hi], write), np.arange(max(n, 1)).astype(F32))


@pytest.mark.parametrize("store", [False, True])
def test_guards_in_blocks_of_points(store):
    """What only a guarded access reads first is there for those after it, guarded or not."""
    m, n = 40, 30
    places, x = Buffer("p", I32, m, "in"), Buffer("x", F32, m * n, "in")
    o, q = Buffer("o", F32, m * n, "out"), Buffer("q", F32, m * n, "inout")

    def write(b, i):
        p = b.load(places, at((1, i)))

        def turn(j):
            with b.guarded(b.op("greater_equal", BOOL, j, Const(3, INDEX))):
                if store:
                    b.store(q, at((1, p), (m, j)), Const(2, F32))
                v = b.load(x, at((1, p), (m, j)))
            b.store(o, at((m, j), (1, i)), b.op("add", F32, v, b.convert(p, F32)))

        b.loop(n, turn, parallel=True)

    k = kernel([places, x, o, q], [m], write)
    assert schedule(k).block is not None
    rng = np.random.default_rng(0)
    check(k, rng.permutation(m).astype(I32), rng.normal(size=m * n).astype(F32),
          np.zeros(m * n, F32))  # fmt: skip


@pytest.mark.parametrize("n", [3, 8, 16, 17, 34])
@pytest.mark.parametrize("dtype", [F32, F64, BOOL])
@pytest.mark.parametrize("outside", [False, True])
def test_guarded_loads_of_one_element_in_a_row(n, dtype, outside):
    """An element that is the same in a whole row is read without asking, if there is one for every
    row; where its guard is false it counts as 0 all the same."""
    m = 40
    x, o = Buffer("x", dtype, m, "in"), Buffer("o", dtype, m * n, "out")

    def write(b, i, j):
        conditions = [b.op("greater_equal", BOOL, j, Const(2, INDEX))]
        if outside:
            conditions.append(b.op("less", BOOL, i, Const(m - 3, INDEX)))
        with b.guarded(b.all_of(conditions)):
            v = b.load(x, at((1, i), const=3 if outside else 0))
        b.store(o, at((n, i), (1, j)), v)

    values = np.ones(m, bool) if dtype == BOOL else np.arange(1, m + 1).astype(dtype)
    if dtype != BOOL:
        values[::5] = np.nan
    k = kernel([x, o], [m, n], write)
    load = next(s for s in k.body if isinstance(s, Load))
    assert is_harmless(load, schedule(k)) is not outside
    check(k, values)


@pytest.mark.parametrize("n", [7, 8, 14, 16, 31, 32])
@pytest.mark.parametrize("pads", [((1, 0), (1, 0)), ((1, 1), (1, 1)), ((0, 1), (3, 3))])
def test_padding_of_short_rows(n, pads):
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=(3, 5, n, n)).astype(F32), rng.normal(size=5).astype(F32)
    x[1, 2, 0, :] = np.nan
    b[3] = np.inf
    width = ((0, 0), (0, 0), *pads)
    got = fg.jit(lambda x, b: fnp.pad(fnp.maximum(x + b[:, None, None], 0), width))(x, b)
    np.testing.assert_array_equal(got, np.pad(np.maximum(x + b[:, None, None], 0), width))


@pytest.mark.parametrize("n", [16, 33, 1000])
def test_guards_on_both_sides(n):
    """A guarded load whose index is known where an earlier guard fails."""
    x, y, z = (Buffer(c, F32, n, "in") for c in "xyz")
    o, total = Buffer("o", F32, n, "out"), Buffer("t", F32, 1, "out")
    one = Const(1, F32)

    def write(b):
        def turn(i, a):
            up, down = Index(1, ((1, i),)), Index(-1, ((1, i),))
            more = b.op("less", BOOL, b.integer(up), Const(n, INDEX))
            with b.guarded(more):
                v = b.op("where", F32, more, b.load(x, up), one)
            v = b.op("multiply", F32, v, b.load(z, at((1, i))))
            before = b.op("greater_equal", BOOL, b.integer(down), Const(0, INDEX))
            with b.guarded(before):
                w = b.op("where", F32, before, b.load(y, down), one)
            v = b.op("multiply", F32, v, w)
            b.store(o, at((1, i)), v)
            return [b.op("add", F32, a, v)]

        (r,) = b.loop(n, turn, [Const(0, F32)], ["add"], parallel=True)
        b.store(total, at(), r)

    arrays = [np.random.default_rng(k).uniform(0.5, 1, n).astype(F32) for k in range(3)]
    check(kernel([x, y, z, o, total], [], write), *arrays, tolerance=1e-3)


@pytest.mark.parametrize("n", SIZES)
def test_while_loops(n):
    x, o = Buffer("x", I32, n, "in"), Buffer("o", I32, n, "out")

    def write(b, i):
        def turn(c, k):
            odd = b.op("equal", BOOL, b.op("bitwise_and", I32, c, Const(1, I32)), Const(1, I32))
            up = b.op("add", I32, b.op("multiply", I32, c, Const(3, I32)), Const(1, I32))
            half = b.op("floor_divide", I32, c, Const(2, I32))
            return [b.op("where", I32, odd, up, half), b.op("add", I32, k, Const(1, I32))]

        def more(c, k):
            return b.op("greater", BOOL, c, Const(1, I32))

        b.store(o, at((1, i)), b.while_(more, turn, [b.load(x, at((1, i))), Const(0, I32)])[1])

    check(kernel([x, o], [n], write), np.arange(1, n + 1, dtype=I32))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 17), (40, 1025), (7, 30_000), (64, 2048)])
def test_scratch(threads, m, n):
    threads(3)
    x, o = Buffer("x", F32, m * n, "in"), Buffer("o", F32, m * n, "out")
    s = Buffer("s", F32, n, "scratch")

    def write(b, i):
        def fill(j):
            b.store(s, at((1, j)), b.op("add", F32, b.load(x, at((n, i), (1, j))), Const(2, F32)))

        def reverse(j):
            b.store(o, at((n, i), (1, j)), b.load(s, at((-1, j), const=n - 1)))

        b.loop(n, fill, parallel=True)
        b.loop(n, reverse, parallel=True)

    check(kernel([x, o, s], [m], write), np.arange(m * n).astype(F32))


def test_gather_and_scatter():
    t, places = Buffer("t", F32, 170, "in"), Buffer("p", I32, 50, "in")
    o = Buffer("o", F32, 850, "out")

    def gather(b, i, j):
        p = b.op("maximum", I32, b.load(places, at((1, i))), Const(0, I32))
        p = b.op("minimum", I32, p, Const(9, I32))
        b.store(o, at((17, i), (1, j)), b.load(t, at((17, p), (1, j))))

    rng = np.random.default_rng(0)
    numbers = rng.integers(-3, 14, 50).astype(I32)
    check(kernel([t, places, o], [50, 17], gather), rng.normal(size=170).astype(F32), numbers)

    x, to = Buffer("x", F32, 50, "in"), Buffer("to", F32, 10, "inout")

    def scatter(b):
        def turn(i):
            p = b.load(places, at((1, i)))
            b.store(to, at((1, p)), b.op("add", F32, b.load(to, at((1, p))), b.load(x, at((1, i)))))

        b.loop(50, turn)

    k = kernel([places, x, to], [], scatter)
    check(k, numbers % 10, rng.normal(size=50).astype(F32), np.ones(10, F32), tolerance=1e-6)


def test_coalescing():
    x, o = Buffer("x", F32, 60, "in"), Buffer("o", F32, 60, "out")
    flat = kernel([x, o], [3, 4, 5], lambda b, i, j, k: b.store(
        o, at((20, i), (5, j), (1, k)), b.load(x, at((20, i), (5, j), (1, k)))))  # fmt: skip
    assert [a.size for a in coalesce(flat)[0]] == [60]
    check(flat, np.arange(60).astype(F32))
    part = kernel([x, o], [3, 4, 5], lambda b, i, j, k: b.store(
        o, at((20, i), (5, j), (1, k)), b.load(x, at((20, i), (1, k)))))  # fmt: skip
    assert [a.size for a in coalesce(part)[0]] == [3, 4, 5]
    check(part, np.arange(60).astype(F32))


@pytest.mark.parametrize("sizes", [(2, 300_000), (300_000, 2), (1000, 700), (700_001,)])
def test_parts_for_threads_cover_all_points(threads, sizes):
    threads(3)
    n = int(np.prod(sizes))
    row, o = Buffer("x", F32, sizes[-1], "in"), Buffer("o", F32, n, "out")

    def write(b, *axes):
        steps = np.cumprod([1, *sizes[:0:-1]])[::-1]
        here = at(*zip(map(int, steps), axes, strict=True))
        b.store(o, here, b.op("sqrt", F32, b.load(row, at((1, axes[-1])))))

    k = kernel([row, o], sizes, write)
    assert schedule(k).lead > 0
    check(k, np.arange(sizes[-1]).astype(F32))


def test_in_place():
    x, o = Buffer("x", F32, 1000, "in"), Buffer("o", F32, 1000, "out")
    k = kernel([x, o], [1000], lambda b, i: b.store(
        o, at((1, i)), b.op("exp", F32, b.load(x, at((1, i))))), in_place=((1, 0),))  # fmt: skip
    check(k, np.linspace(-1, 1, 1000).astype(F32), tolerance=1e-6)


def test_merging_keeps_definitions_once_and_metadata_apart():
    one = 'define void @a() {\n  ret void, !x !0\n}\n\ndeclare float @"f"(float)\n\n!0 = !{}\n'
    two = "define void @b() {\n  ret void, !x !1\n}\n\ndeclare float @f(float)\n\n"
    two += "!0 = !{}\n!1 = !{!0}\n"
    merged = merge([one, two])
    assert merged.count("declare") == 1
    assert "ret void, !x !2" in merged
    assert "!2 = !{!1}" in merged


@pytest.mark.parametrize("width", [8, 16, 24, 32])
def test_short_rows_are_not_gathered(width):
    x = fnp.ones((1000, 3 * width))
    for fun in (lambda x: x[:, :width] + 1, lambda x: x + fnp.sum(x, 1, keepdims=True)):
        assert "gather" not in fg.jit(fun).lower(x).as_text("llvm")
