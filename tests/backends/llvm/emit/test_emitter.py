"""Kernels in machine code against the interpreter of the loop IR."""

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.emit.schedule import coalesce, is_harmless, schedule
from funcgrad.backends.llvm.emit.split import identity
from funcgrad.backends.loops.ir import (
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


@pytest.mark.sampled(2)
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


@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum", "bitwise_and",
                                     "bitwise_or", "bitwise_xor"])  # fmt: skip
def test_identities(combine):
    for dtype in INTEGERS + (FLOATS if not combine.startswith("bitwise") else []):
        x = samples(dtype, 50)
        e = np.asarray(identity(combine, dtype), dtype)
        np.testing.assert_array_equal(getattr(np, combine)(e, x), x)


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


def test_in_place():
    x, o = Buffer("x", F32, 1000, "in"), Buffer("o", F32, 1000, "out")
    k = kernel([x, o], [1000], lambda b, i: b.store(
        o, at((1, i)), b.op("exp", F32, b.load(x, at((1, i))))), in_place=((1, 0),))  # fmt: skip
    check(k, np.linspace(-1, 1, 1000).astype(F32), tolerance=1e-6)
