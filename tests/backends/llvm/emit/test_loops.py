"""Loops inside kernels, in machine code against the interpreter of the loop IR."""

import re
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.backends.llvm.emit.schedule import schedule
from funcgrad.backends.llvm.emit.split import split
from funcgrad.backends.loops.ir import Buffer, Const
from tests.backends.llvm.kernels_run import (
    BOOL,
    F32,
    F64,
    I32,
    at,
    check,
    kernel,
    matrix,
    run_native,
)

SIZES = [0, 1, 2, 3, 15, 16, 17, 1000, 1025]
SHAPES = [(1, 1), (3, 17), (16, 1000), (400, 1025), (1025, 3), (5, 0), (0, 5), (70, 64)]


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


def log_sums(m, n, axis, dtype=F64):
    """Two passes over a row, of which nothing is written."""
    x, o = Buffer("x", dtype, m * n, "in"), Buffer("o", dtype, m, "out")
    (p, q), (points, turns) = matrix(m, n, axis)

    def write(b, i):
        def load(j):
            return b.load(x, at((p, i), (q, j)))

        (top,) = b.loop(turns, lambda j, a: [b.op("maximum", dtype, a, load(j))],
                        [Const(-np.inf, dtype)], ["maximum"])  # fmt: skip
        (total,) = b.loop(
            turns,
            lambda j, a: [
                b.op("add", dtype, a, b.op("exp", dtype, b.op("subtract", dtype, load(j), top)))
            ],
            [Const(0, dtype)],
            ["add"],
        )
        b.store(o, at((1, i)), b.op("add", dtype, b.op("log", dtype, total), top))

    return kernel([x, o], [points], write)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 9, 10, 12, 15, 16, 17, 20, 31])
@pytest.mark.parametrize("make", [softmax, log_sums])
def test_short_rows(make, n, dtype, threads):
    """With NaN and infinities; the same bits in any number of threads."""
    m = 3001
    x = np.random.default_rng(n).standard_normal((m, n)).astype(dtype)
    x[5, n // 2], x[9, 0], x[-1, -1], x[17] = np.nan, np.inf, -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        check(make(m, n, 1, dtype), x.ravel(), tolerance=1e-6 if dtype == F32 else 1e-14)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(run_native(make(m, n, 1, dtype), [x.ravel()])[0])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_elements_of_short_rows_are_gathered_where_nothing_is_written():
    """Where vectors are of 512 bits."""
    for n, dtype, bits in ((10, F32, 512), (8, F64, 512), (10, F32, 256)):
        plan = schedule(log_sums(1000, n, 1, dtype), vector_bits=bits)
        assert plan.block is not None
        assert plan.rows == (n == 8 or bits == 256)
    assert schedule(sums(1000, 10, 1, F32), vector_bits=512).block is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("make", [softmax, sums, cumsum, argmax])
def test_along_axes(make, axis, m, n):
    check(make(m, n, axis), np.random.default_rng(0).standard_normal(m * n), tolerance=1e-12)


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


def test_no_loop_is_told_to_become_what_it_cannot():
    """LLVM reports such loops on the standard error, whatever the program."""
    demand = re.compile(r"llvm\.loop\.(vectorize\.(width|enable)|unroll\.(enable|full|count)|"
                        r"unroll_and_jam|distribute|pipeline)")  # fmt: skip
    sources = Path(fg.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if demand.search(path.read_text())] == []


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [1, 2])
def test_nothing_of_llvm_s_reaches_the_standard_error(monkeypatch, capfd, dtype, axis):
    """Rows whose lanes are masked, in functions that need others' features, with what has no form
    for vectors."""
    monkeypatch.setenv("FUNCGRAD_CACHE_DIR", "")
    fg.clear_caches()
    for n in (3, 6, 7, 9, 13, 23):
        x = fnp.ones((5, n, n), dtype)
        for f in (nn.log_softmax, fnp.nanstd, lambda x, axis: nn.softmax(fnp.arcsin(x), axis)):
            fg.jit(lambda x, f=f: f(x, axis=axis))(x)
        fg.jit(fg.vmap(lambda x: nn.softmax(lax.lgamma(x), axis=axis)))(x[None])
    assert capfd.readouterr() == ("", "")
