"""Short axes written out: interleaved, spread and cut arrays."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.emit.unroll import unrolled
from funcgrad.backends.loops.ir import INDEX, Buffer, Const, Load
from tests.backends.llvm.kernels_run import (
    BOOL,
    F32,
    at,
    check,
    kernel,
    run_interpreted,
    run_native,
)


def interleaved(n, parts, size=None):
    """out[parts·i + j] = in_j[i - j] + 0.0, or 0.0 where there is no such element."""
    ins = [Buffer(f"in{k}", F32, n, "in") for k in range(parts)]
    out = Buffer("out", F32, parts * n, "out")

    def write(b, i, j):
        total = Const(0, F32)
        for k, x in enumerate(ins):
            here = b.op("bitwise_and", BOOL, b.compare("less", at((1, j)), k + 1) or Const(1, BOOL),
                        b.compare("greater_equal", at((1, j)), k) or Const(1, BOOL))  # fmt: skip
            inside = b.compare("greater_equal", at((1, i), const=-k), 0)
            with b.guarded(b.all_of([here, inside])):
                total = b.op("add", F32, total, b.load(x, at((1, i), const=-k)))
        b.store(out, at((parts, i), (1, j)), total)

    return kernel([*ins, out], [n, size or parts], write)


@pytest.mark.parametrize(("n", "parts"), [(64, 2), (65, 2), (1000, 3), (4099, 5), (30_001, 8)])
def test_interleaved(n, parts, threads):
    k = interleaved(n, parts)
    short = unrolled(k)
    assert len(short.axes) == 1
    # Each point reads one piece.
    assert sum(isinstance(s, Load) for s in short.body) == parts
    arrays = [np.linspace(-1, 1, n, dtype=F32) / (j + 1) for j in range(parts)]
    arrays[0][:4] = np.nan, np.inf, -0.0, 0.0
    wanted = run_interpreted(k, arrays)
    np.testing.assert_array_equal(run_interpreted(short, arrays), wanted)
    for count in (1, 2, 3):
        threads(count)
        check(k, *arrays)


def test_what_stays():
    few, many = interleaved(63, 2), interleaved(1000, 9)
    assert unrolled(few) is few
    assert unrolled(many) is many
    x, y = Buffer("x", F32, 800, "in"), Buffer("y", F32, 800, "out")

    def chosen(b, i, j):
        """Nothing is read behind a guard."""
        value = b.load(x, at((8, i), (1, j)))
        positive = b.op("less", BOOL, j, Const(4, INDEX))
        b.store(y, at((8, i), (1, j)), b.op("where", F32, positive, value, Const(2, F32)))

    k = kernel([x, y], [100, 8], chosen)
    assert unrolled(k) is k
    check(k, np.arange(800, dtype=F32))


def test_two_short_axes():
    x, y = Buffer("x", F32, 500, "in"), Buffer("y", F32, 3000, "out")

    def write(b, i, j, k):
        total = Const(0, F32)
        for p, q in ((0, 1), (1, 2), (1, 0)):
            here = b.op("bitwise_and", BOOL, b.op("equal", BOOL, j, Const(p, INDEX)),
                        b.op("equal", BOOL, k, Const(q, INDEX)))  # fmt: skip
            with b.guarded(here):
                total = b.op("subtract", F32, total, b.load(x, at((1, i))))
        with b.guarded(b.op("not_equal", BOOL, k, Const(1, INDEX))):
            b.store(y, at((6, i), (3, j), (1, k)), total)

    k = kernel([x, y], [500, 2, 3], write)
    assert len(unrolled(k).axes) == 1
    arrays = [np.arange(500, dtype=F32)]
    wanted = run_interpreted(k, arrays)
    np.testing.assert_array_equal(run_interpreted(unrolled(k), arrays), wanted)


def weave(np, x, y):
    return np.stack([x, y, x * y], axis=-1).reshape(-1)


def spread(np, x, y):
    """Zeros between elements."""
    if np is fnp:
        zero = fnp.zeros((), x.dtype)
        return lax.pad(x, zero, [(0, 1, 1)]) + lax.pad(y, zero, [(1, 0, 1)])
    out = np.zeros(2 * len(x), x.dtype)
    out[::2] = x
    out[1::2] = y
    return out + np.zeros((), x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64"])
@pytest.mark.parametrize("n", [1, 70, 513, 20_001])
@pytest.mark.parametrize("f", [weave, spread])
def test_programs(f, n, dtype, threads):
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-9, 9, n).astype(dtype) for _ in range(2))
    jitted = fg.jit(lambda x, y: f(fnp, x, y))
    for count in (1, 3):
        threads(count)
        got = np.asarray(jitted(x, y))
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, f(np, x, y))


@pytest.mark.parametrize("n", [3000, 3001])
def test_gradients_of_pieces(n):
    """Cotangents of strided slices, to the second order, and of a scan in logarithmic steps."""
    x = np.linspace(0.5, 1.5, n).astype("float32")

    def f(x):
        a, b = x[0 : n - n % 3 : 3], x[1 : n - n % 3 : 3]
        return (a * b * b).sum() + lax.associative_scan(fnp.multiply, x[:300])[-1]

    second = fg.grad(lambda x: (fg.grad(f)(x) ** 2).sum())
    for g in (fg.grad(f), second):
        np.testing.assert_allclose(np.asarray(fg.jit(g)(x)), np.asarray(g(x)), rtol=2e-5, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
@pytest.mark.parametrize(("n", "parts"), [(1, 3), (2001, 3), (32_768, 5), (1_400_001, 3)])
def test_rows_of_what_is_interleaved(n, parts, dtype, threads):
    """One pass over memory makes all rows, in images of several, too."""
    rng = np.random.default_rng(n)
    x, y = rng.integers(-9, 9, (n, parts)).astype(dtype), rng.integers(-9, 9, n).astype(dtype)
    images = rng.integers(-9, 9, (3, n, parts)).astype(dtype)
    rows = fg.jit(lambda x, y: (x.T, fnp.where(y != 0, x.T, y)))
    several = fg.jit(lambda x: fnp.moveaxis(x, -1, 1))
    for count in (1, 3):
        threads(count)
        first, second = rows(x, y)
        np.testing.assert_array_equal(np.asarray(first), x.T)
        np.testing.assert_array_equal(np.asarray(second), np.where(y != 0, x.T, y))
        np.testing.assert_array_equal(np.asarray(several(images)), np.moveaxis(images, -1, 1))


@pytest.mark.parametrize(
    ("n", "parts", "axes"),
    [
        (1 << 14, 2, 1),
        (1 << 14, 7, 1),
        (1 << 14, 8, 2),  # too many
        (1 << 13, 2, 2),  # memory of small arrays begins anywhere
        ((1 << 14) + 1, 2, 2),  # the second row doesn't begin with a line
        ((1 << 20) + 1, 2, 1),  # which matters little, so far away
    ],
)
def test_which_rows_are_written_out(n, parts, axes):
    x, y = Buffer("x", F32, n * parts, "in"), Buffer("y", F32, n * parts, "out")

    def write(b, j, i):
        b.store(y, at((n, j), (1, i)), b.load(x, at((parts, i), (1, j))))

    k = kernel([x, y], [parts, n], write)
    short = unrolled(k)
    assert len(short.axes) == axes
    assert sum(isinstance(s, Load) for s in short.body) == (parts if axes == 1 else 1)
    values = np.arange(n * parts, dtype=F32)
    np.testing.assert_array_equal(run_native(k, [values])[0], values.reshape(n, parts).T.ravel())
