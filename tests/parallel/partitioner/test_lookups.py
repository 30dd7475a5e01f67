"""Reading and writing by position in axes that devices hold blocks of."""

import itertools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.sharding import P
from tests.parallel.partitioned import counts
from tests.parallel.partitioner.test_localize import compare

rng = np.random.default_rng(0)

# ---- lookups

MODES = ["fill", "clip", "promise_in_bounds"]
ROWS_AND_COLUMNS = [P("x"), P(None, "x"), P("x", "y"), P(("x", "y")), P(None, ("y", "x")), P()]


def indices(mode, high, shape, dtype="int32"):
    low = 0 if mode == "promise_in_bounds" or np.dtype(dtype).kind == "u" else -high - 3
    top = high if mode == "promise_in_bounds" else high + 3
    return rng.integers(low, top, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "uint32", "int64"])
@pytest.mark.parametrize("mode", MODES)
def test_lookup_in_a_cut_axis(mode, dtype):
    table = rng.random((16, 4)).astype("float32")
    i = indices(mode, 16, (8, 3), dtype)
    for spec, where in itertools.product(ROWS_AND_COLUMNS, [P(), P("x"), P("y")]):
        compare(lambda t, i: t.at[i].get(mode=mode), [table, i], spec, where)


@pytest.mark.parametrize("mode", MODES)
def test_lookup_by_two_indices(mode):
    table = rng.random((8, 4, 2)).astype("float32")
    i, j = indices(mode, 8, (6,)), indices(mode, 4, (6,))
    for spec in ROWS_AND_COLUMNS:
        compare(lambda t, i, j: t.at[i, j].get(mode=mode), [table, i, j], spec, P(), P())


def test_lookup_by_unsigned_indices_of_64_bits_and_of_flags():
    i = rng.integers(0, 8, (4,)).astype("uint64")
    compare(lambda t, i: t.at[i].get(mode="clip"), [rng.random((8, 2)), i], P("x"), P())
    compare(lambda t, i: t.at[i].get(mode="clip"), [rng.random((8, 2)) > 0.5, i], P("x"), P())


@pytest.mark.parametrize("kind", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("mode", MODES)
def test_updates_of_a_cut_axis(kind, mode):
    table, new = rng.random((16, 4)), rng.random((8, 4))
    i = rng.permutation(16)[:8].astype("int32")
    i[:2] += 0 if mode == "promise_in_bounds" else 20
    for spec, where in itertools.product(ROWS_AND_COLUMNS, [P(), P("x"), P("y")]):
        fun = lambda t, i, u: getattr(t.at[i], kind)(u, mode=mode)
        compare(fun, [table, i, new], spec, where, where)


def test_added_updates_of_a_cut_batch_are_summed():
    """Each device adds its own updates; the operand counts once."""
    table, i, new = rng.random((16, 4)), rng.integers(0, 16, 8).astype("int32"), rng.random((8, 4))
    fun = lambda t, i, u: t.at[i].add(u)
    program = compare(fun, [table, i, new], P(), P("x"), P("x"))
    assert counts(program) == {"psum": 1}


# ---- windows of one element


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(("y", "x"))])
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int64", "uint64"])
def test_a_row_of_a_cut_axis(spec, dtype):
    """The device that has it gives it to the others; starts outside are moved inside."""
    x, row = rng.random((8, 4)).astype("float32"), rng.random((1, 4)).astype("float32")
    low = 0 if dtype.startswith("u") else -2
    for i in (low, 3, 7, 11):
        start = np.asarray(i, dtype)
        zero = np.zeros((), dtype)
        compare(
            lambda x, i, o: lax.dynamic_slice(x, (i, o), (1, 4)), [x, start, zero], spec, P(), P()
        )
        compare(
            lambda x, i, o: lax.dynamic_slice(x, (i, o), (1, 1)), [x, start, zero], spec, P(), P()
        )
        update = lambda x, r, i, o: lax.dynamic_update_slice(x, r, (i, o))
        compare(update, [x, row, start, zero], spec, P(), P(), P())
        compare(update, [x, row[:, :1], start, zero], spec, P(), P(), P())


def test_a_static_row_sends_the_row_alone():
    x = rng.random((8, 4)).astype("float32")
    program = compare(lambda x: x[5] * 2, [x], P("x"))
    assert counts(program) == {"psum": 1}
    compare(lambda x: x[5, 1:], [x], P("x", "y"))
    compare(lambda x: x[5, ::2], [x], P("x", "y"))
    compare(lambda x: (x > 0)[5], [x], P("x"))
    compare(lambda x: x[-1], [x], P("x"))
    compare(lambda x: fg.grad(lambda x: fnp.sum(x[5] ** 2))(x), [x], P("x"))
