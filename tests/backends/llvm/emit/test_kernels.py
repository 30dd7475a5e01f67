"""Modules of kernels; those that are over in no time aren't optimized, and give the same bits."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.llvm.emit.kernels import merge

TINY = np.arange(4, dtype=np.float32)


def modules(fun, *args):
    return fg.jit(fun).lower(*args).as_text("llvm").count("; ModuleID")


@pytest.mark.parametrize(
    ("fun", "x", "apart"),
    [
        (lambda x: x * 2 + 1, TINY, 0),
        (fnp.tanh, np.float32(1), 0),
        (lambda x: x * 2 + 1, np.arange(400, dtype=np.float32), 1),
        (lambda x: fnp.sum(x * x), TINY, 1),  # a loop
        (lambda x: (fnp.arctan2(x, x + 1) ** 1.5) ** x, np.arange(8.0), 1),
    ],
)
def test_tiny_kernels_stand_in_the_module_of_the_program(fun, x, apart):
    assert modules(fun, x) == 1 + apart


def test_kernels_that_a_program_repeats_are_optimized():
    def body(c, x):
        return c, fnp.sort(x) * 2

    assert modules(lambda x: lax.scan(body, 0, x), np.ones((3, 4), np.float32)) > 1


SHARED = "call void @fg_parallel_for("


def decays(turns):
    def f(x):
        return lax.fori_loop(0, turns, lambda i, x: fnp.exp(-x), x)

    return f


@pytest.mark.parametrize(("turns", "shared"), [(1, False), (7, False), (17, True), (100, True)])
def test_threads_share_smaller_kernels_that_loops_repeat(turns, shared, rng):
    x = rng.random(16_000, np.float32)
    f = fg.jit(decays(turns))
    assert (SHARED in f.lower(x).as_text("llvm")) is shared
    wanted = x
    for _ in range(turns):
        wanted = fg.jit(lambda x: fnp.exp(-x))(wanted)
    for threads in (1, 2, 3):
        fg.set_num_threads(threads)
        np.testing.assert_array_equal(f(x), wanted)


@pytest.mark.parametrize("size", [16_000, 100])
def test_turns_of_loops_in_loops_count_and_those_of_while_are_many(size, rng):
    x = rng.random(size, np.float32)

    def nested(x):
        return lax.fori_loop(0, 7, lambda i, x: decays(7)(x), x)

    def until(x):
        return lax.while_loop(lambda x: x[0] > 9, lambda x: fnp.exp(-x), x)

    for f in (nested, until):
        assert (SHARED in fg.jit(f).lower(x).as_text("llvm")) is (size == 16_000)


def test_equal_kernels_stand_there_once():
    def f(x):
        return fnp.sort(fnp.sort(x * 2) * 2) * 2

    assert fg.jit(f).lower(TINY).as_text("llvm").count("define void @fg_k") == 1
    np.testing.assert_array_equal(fg.jit(f)(TINY), TINY * 8)


FLOATS = ("float16", "bfloat16", "float32", "float64")
ONE = "tanh exp log sin tan sqrt sign floor rint log1p expm1 arctan cosh cbrt negative reciprocal"
TWO = "add multiply divide power maximum minimum floor_divide remainder arctan2 hypot logaddexp"
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 3e4, -7e4, 1e30, 0.5, 2.0, -0.3]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32", "uint16", "int64"])
@pytest.mark.parametrize("name", [*ONE.split(), *TWO.split()])
def test_bits_are_those_of_long_kernels(name, dtype, rng):
    dtype = fg.dtypes.canonical(dtype)
    if dtype.kind in "iu":
        least = 0 if dtype.kind == "u" else -9
        arrays = rng.integers(least, 100, 160), rng.integers(least, 9, 160)
    else:
        wide = rng.normal(size=(2, 160)) * np.exp(rng.normal(size=(2, 160)) * 3)
        wide[0, :14], wide[1, :14] = SPECIAL, SPECIAL[::-1]
        arrays = tuple(wide)
    with np.errstate(all="ignore"):
        args = [a.astype(dtype) for a in arrays[: 2 if name in TWO.split() else 1]]
    fun = fg.jit(getattr(fnp, name))
    try:
        whole = np.asarray(fun(*args))
    except TypeError:
        pytest.skip(f"{name} is not of {dtype}")
    for width in (1, 8):
        parts = [fun(*[a[i : i + width] for a in args]) for i in range(0, 64, width)]
        got, wanted = np.concatenate(list(map(np.asarray, parts))), whole[:64]
        numbers = got == got
        np.testing.assert_array_equal(numbers, wanted == wanted)
        assert got[numbers].tobytes() == wanted[numbers].tobytes()


def test_merging_keeps_definitions_once_and_metadata_apart():
    one = 'define void @a() {\n  ret void, !x !0\n}\n\ndeclare float @"f"(float)\n\n!0 = !{}\n'
    two = "define void @b() {\n  ret void, !x !1\n}\n\ndeclare float @f(float)\n\n"
    two += "!0 = !{}\n!1 = !{!0}\n"
    merged = merge([one, two])
    assert merged.count("declare") == 1
    assert "ret void, !x !2" in merged
    assert "!2 = !{!1}" in merged
