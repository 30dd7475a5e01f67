"""Sorts as generated code against the host's: all dtypes, NaN, ties, zeros of both signs."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.backends.llvm.cpu import CPU
from funcgrad.backends.llvm.host_steps import host_steps
from funcgrad.backends.llvm.native.engine import engine
from funcgrad.backends.llvm.native.target import Target
from funcgrad.backends.llvm.runtime import pool
from funcgrad.backends.llvm.sort.functions import install
from funcgrad.backends.llvm.sort.keys import NAMES
from funcgrad.backends.plan import plan
from tests.backends.checks import program, same


def drawn(rng, name, shape, few):
    """Numbers of a dtype, of few different values or many; floats with all that is special."""
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    if dtype.kind in "biu":
        x = rng.integers(-3, 4, shape) if few else rng.integers(-(1 << 63), (1 << 63) - 1, shape)
        return x.astype(dtype)
    x = rng.integers(-3, 4, shape) if few else 100 * rng.standard_normal(shape)
    kinds = rng.random(shape)
    for i, special in enumerate((np.nan, -0.0, 0.0, np.inf, -np.inf)):
        x = np.where((kinds > i / 10) & (kinds < (i + 1) / 10), special, x)
    return x.astype(dtype)


def places(shape, axis):
    lead = [-1 if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape(lead), shape).copy()


def check(fun, *arrays):
    """The compiled function's results are exactly those of op by op; nothing runs in Python."""
    planned = program(fun, *arrays)[2]
    assert not host_steps(planned.steps)
    wanted = fun(*(fg.numpy.asarray(a) for a in arrays))
    for got, want in zip(fg.jit(fun)(*arrays), wanted, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        if got.dtype.name == "bfloat16":
            assert want.dtype == got.dtype
            got, want = got.astype(np.float32), want.astype(np.float32)
        same(got, want, exact=True)


SHAPES = [((0,), 0), ((1,), 0), ((7,), 0), ((3, 0), 0), ((5, 40), 1), ((40, 5), 0), ((3, 33, 2), 1)]


@pytest.mark.parametrize("name", NAMES)
def test_sorts(name, rng):
    for shape, axis in [*SHAPES, ((20, 300), 0)]:
        for few in (False, True):
            x = drawn(rng, name, shape, few)
            check(lambda x, axis=axis: [lax.sort(x, axis)], x)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", ["int16", "uint32", "bfloat16", "float64"])
def test_what_goes_with_keys(name, width, rng):
    dtype = {1: "u1", 2: "f2", 4: "i4", 8: "f8", 16: "c16"}[width]
    for shape, axis in SHAPES:
        x, with_it = drawn(rng, name, shape, True), places(shape, axis).astype(dtype)
        check(lambda x, y, axis=axis: lax.sort_key_val(x, y, axis), x, with_it)


@pytest.mark.parametrize("name", ["bool", "uint64", "float16", "float32"])
def test_several_keys(name, rng):
    for shape, axis in SHAPES:
        first, second = drawn(rng, "int64", shape, True), drawn(rng, name, shape, False)
        check(
            lambda a, b, c, axis=axis: lax.sort((a, b, c), axis, num_keys=2),
            first, second, places(shape, axis),
        )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["uint8", "float32", "float64", "int32"])
def test_long_rows(name, threads, rng):
    pool.set_num_threads(threads)
    for few in (False, True):
        x = drawn(rng, name, (2, 70_001), few)
        check(lambda x: [lax.sort(x, 1)], x)
        check(lambda x: [lax.sort(x[0])], x)
        check(lambda x: [lax.argsort(x[0])], x)
        check(lambda x: lax.sort_key_val(x, lax.rev(x, [1]), 1), x)


TOP = [n for n in NAMES if not n.endswith("64")]


@pytest.mark.parametrize("name", TOP)
def test_top(name, rng):
    for shape, ks in [((7,), (0, 1, 7)), ((3, 40), (8, 16, 17, 40)), ((2, 2, 1500), (3, 16, 30))]:
        for few in (False, True):
            x = drawn(rng, name, shape, few)
            for k in ks:
                check(lambda x, k=k: lax.top_k(x, k), x)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("order", ["random", "up", "down", "equal"])
def test_top_of_long_rows(order, threads, rng):
    pool.set_num_threads(threads)
    x = rng.standard_normal((1, 70_001)).astype(np.float32)
    x = {"up": np.sort(x), "down": np.sort(x)[:, ::-1].copy(), "equal": x * 0}.get(order, x)
    for k in (8, 50, 69_000, 70_001):
        check(lambda x, k=k: lax.top_k(x, k), x)


@pytest.mark.parametrize("name", ["fg_sort_float32__", "fg_top_float32", "fg_few_float32"])
def test_any_processor(name, rng):
    """The same code for a processor with nothing but the oldest registers."""
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        install(name, engine(Target.host().generic()))
    )
    x = drawn(rng, "float32", (5, 300), False)
    k = 15 if "few" in name else 20
    values, places = np.empty((5, k), np.float32), np.empty((5, k), np.int32)
    out = np.empty_like(x)
    arrays = [x, out] if "sort" in name else [x, values, places]
    call = [5, 300, 1, k, *(a.ctypes.data for a in arrays)]
    function((ctypes.c_int64 * len(call))(*call))
    if "sort" in name:
        np.testing.assert_array_equal(out, np.sort(x))
    else:
        wanted = lax.top_k(fg.numpy.asarray(x), k)
        np.testing.assert_array_equal(values, np.asarray(wanted[0]))
        np.testing.assert_array_equal(places, np.asarray(wanted[1]))


def test_complex_keys_are_the_hosts(rng):
    x = (rng.standard_normal(9) + 1j).astype(np.complex64)
    jaxpr, _, planned = program(lambda x: [lax.sort(x)], x)
    assert [s.params["prim"].name for s in host_steps(planned.steps)] == ["sort"]
    assert plan(jaxpr, [False], "test", CPU).steps
    np.testing.assert_array_equal(np.asarray(fg.jit(lax.sort)(x)), np.sort(x))
