"""x[idx] and x.at[idx] against NumPy: eager, traced with known indices, and with traced ones."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.core.ir import interpret
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import (
    DTypeError,
    NonConcreteBooleanIndexError,
    OutOfBoundsError,
    ShapeError,
    TracerIntegerConversionError,
)
from funcgrad.numpy.manipulation.updates import IndexUpdateHelper
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import gt
from funcgrad.ops.indexing.indexing import index, index_update
from funcgrad.ops.indexing.plan import parse_index
from tests.ops.rules import check_derivatives, check_vmap, jvp

i2 = np.array([2, -1])
i3 = np.array([[0], [-2]])
m0 = np.array([True, False, True, False])
m01 = np.arange(20).reshape(4, 5) % 3 == 0
s_ = np.s_

INDICES = [
    s_[2], s_[-1], s_[1, 2, -3], s_[:], s_[...], s_[()], s_[1:3], s_[::2], s_[::-1], s_[3:0:-2],
    s_[::-1, 1:-1, ::-2], s_[2:2], s_[5:1], s_[-100:100], s_[0, ..., 1], s_[..., 1:3], s_[None],
    s_[:, None, 1], s_[None, ..., None], s_[1, None, ::-1, None, 2], s_[..., None, 0],
    i2, s_[i2], s_[i2, 1], s_[1, i2], s_[i2, i2], s_[i2, i3], s_[i3, :, i2], s_[0, :, i2],
    s_[:, i2], s_[:, i2, 1:3], s_[:, i2, i2], s_[i2, None], s_[None, i2], s_[i2, None, i2],
    s_[:, None, i2], s_[..., i2], s_[i2, ..., 0], s_[::2, i2, ::-1], s_[1:, i3, 2:0:-1],
    s_[1, i2, 2], s_[:, 1, i2], s_[np.array(1)], s_[np.array(-1), :, i2], s_[np.zeros(0, int)],
    s_[:, np.zeros((2, 0), int)], m0, m01, s_[m0, 1], s_[m0, :, i2], s_[:, m01[0]],
    s_[..., m01[0], 0], s_[m01, 1], s_[m0, None], s_[True], s_[False], s_[True, i2], s_[1, True],
    [0, 2], s_[[1], [2]],
    s_[[]], s_[np.uint8(3)], s_[np.array([1, 2], np.int8), np.array([3, 3], np.uint64)],
    s_[np.int64(2) :, np.array(2) :],
]  # fmt: skip
X = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)


def text(idx):
    return " ".join(str(idx).split())


def same(got, expected):
    got = np.asarray(got)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(complex), expected.astype(complex))


def traced(fun, *args):
    """What a function gives as a program of its arguments."""
    jaxpr, consts = stage(lambda *xs: [fun(*xs)], [aval_of(a) for a in args])
    return interpret(jaxpr, np, *map(np.asarray, consts), *args)[0]


def split(idx):
    """The integer arrays of an index, and a function that makes the index of such arrays."""
    entries = idx if isinstance(idx, tuple) else (idx,)
    is_array = [isinstance(e, np.ndarray | np.integer) and e.dtype != bool for e in entries]
    arrays = [np.asarray(e) for e, a in zip(entries, is_array, strict=True) if a]

    def make(*given):
        rest = iter(given)
        made = tuple(next(rest) if a else e for e, a in zip(entries, is_array, strict=True))
        return made if isinstance(idx, tuple) else made[0]

    return arrays, make


@pytest.mark.parametrize("idx", INDICES, ids=text)
def test_reading(idx):
    expected = X[idx]
    same(index(Array(X), idx), expected)
    same(index(X, idx), expected)
    same(traced(lambda x: index(x, idx), X), expected)
    arrays, make = split(idx)
    for mode in (None, "clip", "promise_in_bounds"):
        got = traced(lambda x, *i: index(x, make(*i), mode=mode), X, *arrays)
        same(got, expected)
    assert parse_index(X.shape, idx).shape == expected.shape


def mixed():
    """Indices of arrays, integers, slices, new axes, and an ellipsis, which may be of no axes."""
    for n in (2, 3, 4):
        for entries in itertools.product([i2, 1, s_[:], ..., None], repeat=n):
            kinds = [type(e) for e in entries]
            axes = sum(e is not None and e is not ... for e in entries)
            if kinds.count(type(...)) == 1 and np.ndarray in kinds and axes <= X.ndim:
                yield entries


def test_an_ellipsis_keeps_arrays_apart():
    """Also one of no axes: what arrays select then comes first, as in NumPy."""
    for idx in mixed():
        arrays, make = split(idx)
        same(traced(lambda x, *i: index(x, make(*i)), X, *arrays), X[idx])
        y = np.arange(X[idx].size, dtype=X.dtype).reshape(X[idx].shape)
        fun = lambda x, y, *i: index_update(x, make(*i), y, "add")
        same(traced(fun, X, y, *arrays), numpy_update(X, idx, y, "add"))


def test_arrays_are_indices_and_bounds():
    same(index(Array(X), Array(i2)), X[i2])
    same(index(Array(X), (Array(np.array(2)), Array(m01[0]))), X[2, m01[0]])
    same(index(Array(X), slice(Array(np.array(1)), None)), X[1:])


def numpy_update(x, idx, y, op):
    out = x.copy()
    if op == "set":
        out[idx] = y
        return out
    ufuncs = {"add": np.add, "subtract": np.subtract, "mul": np.multiply, "min": np.minimum,
              "max": np.maximum, "divide": np.divide, "power": np.power}  # fmt: skip
    # ufunc.at knows no None in an index, nor 0-d masks.
    places = np.arange(x.size).reshape(x.shape)[idx]
    flat = out.reshape(-1)
    ufuncs[op].at(flat, places, np.broadcast_to(y, places.shape).astype(x.dtype))
    return flat.reshape(x.shape)


OPS = ["set", "add", "subtract", "mul", "divide", "min", "max", "power"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("idx", INDICES, ids=text)
@pytest.mark.parametrize("op", OPS)
def test_updates(idx, op, rng):
    shape = X[idx].shape
    for y in (np.float32(2), rng.integers(1, 3, shape).astype("f"), np.full(shape[-1:], 2, "f")):
        expected = numpy_update(X, idx, y, op)
        check = lambda got: np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5)
        check(index_update(Array(X), idx, Array(np.asarray(y)), op))
        check(traced(lambda x, y: index_update(x, idx, y, op), X, np.asarray(y)))
        arrays, make = split(idx)
        for mode in (None, "clip"):
            fun = lambda x, y, *i: index_update(x, make(*i), y, op, mode=mode)
            check(traced(fun, X, np.asarray(y), *arrays))


@pytest.mark.parametrize("idx", INDICES, ids=text)
def test_apply(idx):
    expected = X.copy()
    expected[idx] = X[idx] * X[idx]
    square = lambda v: mul(v, v)
    same(index_update(Array(X), idx, square, "apply"), expected)
    same(traced(lambda x: index_update(x, idx, square, "apply"), X), expected)
    arrays, make = split(idx)
    for mode in (None, "clip"):
        fun = lambda x, *i: index_update(x, make(*i), square, "apply", mode=mode)
        same(traced(fun, X, *arrays), expected)


@pytest.mark.parametrize("idx", INDICES[::3], ids=text)
def test_rules(idx, rng):
    x = X.astype(float) / 60
    check_derivatives(lambda x: index(x, idx), [x], rng, order=1)
    y = rng.standard_normal(X[idx].shape)
    check_derivatives(lambda x, y: index_update(x, idx, y, "set"), [x, y], rng, order=1)
    check_derivatives(lambda x, y: index_update(x, idx, y, "add"), [x, y], rng, order=1)
    arrays, make = split(idx)
    check_vmap(lambda x, *i: index(x, make(*i)), [x, *arrays], rng)
    check_vmap(lambda x, y, *i: index_update(x, make(*i), y, "add"), [x, y, *arrays], rng)


def test_modes_under_tracing():
    x, at = np.arange(4.0), np.array([1, 4, -4, -5])
    read = lambda **o: traced(lambda x, i: index(x, i, **o), x, at)
    same(read(), np.array([1, np.nan, 0, np.nan]))
    same(read(mode="fill"), np.array([1, np.nan, 0, np.nan]))
    same(read(mode="fill", fill_value=7), np.array([1.0, 7, 0, 7]))
    same(read(mode="clip"), np.array([1.0, 3, 0, 0]))
    put = lambda **o: traced(lambda x, i: index_update(x, i, 9.0, "set", **o), x, at)
    same(put(), np.array([9.0, 9, 2, 3]))
    same(put(mode="drop"), np.array([9.0, 9, 2, 3]))
    same(put(mode="clip"), np.array([9.0, 9, 2, 9]))
    one = lambda i, **o: traced(lambda x, i: index(x, i, **o), x, np.array(i))
    same(one(7), np.array(np.nan))
    same(one(7, mode="clip"), np.array(3.0))
    same(one(-7, mode="clip"), np.array(0.0))


def test_known_indices_follow_an_explicit_mode():
    x, at = np.arange(4.0), np.array([1, 4, -5])
    for fun in (lambda f: f(Array(x)), lambda f: traced(f, x)):
        same(fun(lambda x: index(x, at, mode="fill", fill_value=-1)), np.array([1.0, -1, -1]))
        same(fun(lambda x: index(x, at, mode="clip")), np.array([1.0, 3, 0]))
        same(fun(lambda x: index(x, 9, mode="fill")), np.array(np.nan))
        same(fun(lambda x: index(x, 9, mode="clip")), np.array(3.0))
        same(fun(lambda x: index(x, -5, mode="fill")), np.array(np.nan))
        same(fun(lambda x: index(x, -5, mode="clip")), np.array(0.0))
        same(fun(lambda x: index_update(x, -5, 9, "set", mode="drop")), x)
        same(fun(lambda x: index_update(x, at, 9, "set", mode="drop")), np.array([0.0, 9, 2, 3]))
        same(fun(lambda x: index_update(x, 9, 9, "set", mode="drop")), x)
        same(fun(lambda x: index_update(x, 9, 9, "set", mode="clip")), np.array([0.0, 1, 2, 9]))
        for outside in (-5, 4):
            put = lambda i, b=outside: index_update(np.zeros((4, 4)), (b, i), 9, "set", mode="drop")
            same(traced(put, np.array(1)), np.zeros((4, 4)))
    int_x = np.arange(3)
    same(index(Array(int_x), 3, mode="fill"), np.array(-(2**63)))


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        (4, "index 4 out of bounds for axis 0 with size 4"),
        (s_[0, -6], "index -6 out of bounds for axis 1 with size 5"),
        (s_[:, np.array([1, 5, 7])], "index 5 out of bounds for axis 1 with size 5"),
        (s_[..., np.array(3)], "index 3 out of bounds for axis 2 with size 3"),
        (np.array([2**63], np.uint64), "out of bounds for axis 0"),
    ],
)
def test_known_indices_out_of_bounds(idx, words):
    for fun in (
        lambda: index(Array(X), idx),
        lambda: traced(lambda x: index(x, idx), X),
        lambda: jvp(lambda x: index(x, idx), [Array(X)], [Array(X)]),
        lambda: index_update(Array(X), idx, 0, "set"),
        lambda: index_update(Array(X), idx, 0, "add"),
        lambda: traced(lambda x: index_update(x, idx, 0, "set"), X),
    ):
        with pytest.raises(OutOfBoundsError, match=words):
            fun()


def test_an_empty_axis_has_nothing_to_read():
    x, at = np.zeros((0, 2)), np.array([0, 1])
    same(index(Array(x), np.zeros(0, int)), x)
    same(traced(lambda x, i: index(x, i), x, at), np.full((2, 2), np.nan))
    same(traced(lambda x, i: index_update(x, i, 1.0, "add"), x, at), x)
    with pytest.raises(OutOfBoundsError):
        index(Array(x), 0)


def test_masks_that_are_traced():
    x, mask = X, m01
    for op in OPS:
        for y in (2.0, np.array([1, 2, 3], "f")):
            expected = numpy_update(x, mask, y, op)
            got = traced(lambda x, m: index_update(x, m, y, op), x, mask)
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    got = traced(lambda x, m: index_update(x, (m,), lambda v: mul(v, v), "apply"), x, m0)
    same(got, np.where(m0[:, None, None], x * x, x))
    for fun in (
        lambda x, m: index(x, m),
        lambda x, m: index(x, (m, 1)),
        lambda x, m: index_update(x, m, np.zeros((2, 5, 3), "f"), "set"),
    ):
        with pytest.raises(NonConcreteBooleanIndexError):
            traced(fun, x, m0)
    with pytest.raises(NonConcreteBooleanIndexError, match=r"bool\[4\] .*fnp.where.*size=n"):
        traced(lambda x, m: index(x, m), x, m0)


def test_masks_are_known_under_differentiation(rng):
    x = rng.standard_normal(6)
    check_derivatives(lambda v: index(v, gt(v, 0.0)), [x], rng)
    check_derivatives(lambda v: index_update(v, gt(v, 0.0), 2.0, "mul"), [x], rng)


@pytest.mark.parametrize(
    ("idx", "error", "words"),
    [
        (
            s_[0, 0, 0, 0],
            IndexError,
            "Too many indices: .* 3-dimensional, but 4 were",
        ),
        (s_[..., 0, ...], IndexError, "single ellipsis"),
        (1.5, IndexError, "an index must be made of .*got 1.5"),
        ("a", IndexError, "an index must be made of"),
        (np.array([0.5]), IndexError, r"integers or booleans, got f64\[1\]"),
        (
            m0[:3],
            IndexError,
            r"did not match .* from 0: they are \(4,\), .* index \(3,\)",
        ),
        (
            s_[0, m0],
            IndexError,
            r"did not match .* from 1: they are \(5,\), .* index \(4,\)",
        ),
        (s_[i2, np.array([1, 2, 3])], ShapeError, r"do not broadcast: .*\(2,\), \(3,\)"),
    ],
)
def test_errors(idx, error, words):
    for fun in (
        lambda: index(Array(X), idx),
        lambda: traced(lambda x: index(x, idx), X),
        lambda: index_update(Array(X), idx, 0, "set"),
    ):
        with pytest.raises(error, match=words):
            fun()


def test_a_slice_needs_known_bounds():
    with pytest.raises(TracerIntegerConversionError, match="lax.dynamic_slice_in_dim"):
        traced(lambda x, i: index(x, slice(i, i)), X, np.array(1))


def test_the_value_must_fit():
    x = Array(np.zeros((2, 3), np.int32))
    with pytest.raises(ShapeError, match=r"x.at\[...\].set: the value i32\[2\] .*shape \(3,\)"):
        index_update(x, 0, Array(np.zeros(2, np.int32)), "set")
    with pytest.raises(ShapeError, match="does not broadcast"):
        index_update(x, Array(np.ones((2, 3), bool)), np.zeros((2, 2), int), "set")
    with pytest.raises(DTypeError, match=r"x.at\[...\].add: the value f32\[\] does not fit"):
        index_update(x, 0, 1.5, "add")
    same(index_update(x, 0, np.ones((1, 1, 3), np.int64), "set"), np.array([[1] * 3, [0] * 3], "i"))


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", ml_dtypes.bfloat16, ml_dtypes.int4])
def test_dtypes(dtype):
    x = np.arange(6).astype(dtype).reshape(2, 3)
    same(index(Array(x), s_[::-1, i3 + 2]), x[::-1, i3 + 2])
    expected = x.copy()
    expected[1, i3] = x[0, 2]
    same(index_update(Array(x), s_[1, i3], Array(x[0, 2:3]), "set"), expected)
    update = lambda x: index_update(x, s_[1, i3], index(x, s_[0, 2:3]), "set")
    same(traced(update, x), expected)


def test_weakness_stays():
    x = Array(np.arange(3.0, dtype="f"), weak_type=True)
    assert index(x, 1).weak_type
    assert index(x, s_[i2[:0]]).weak_type
    assert not index(Array(np.ones(2)), 1).weak_type


def test_the_array_is_not_written_to():
    x = Array(np.zeros(3, np.float32))
    for op in OPS:
        index_update(x, np.array([0, 0]), 1.0, op)
        index_update(x, 1, 1.0, op)
    same(x, np.zeros(3, np.float32))


def test_programs_of_static_indices_are_slices():
    def names(fun):
        jaxpr, _ = stage(lambda x: [fun(x)], [aval_of(X)])
        return [e.prim.name for e in jaxpr.eqns]

    assert names(lambda x: index(x, s_[1])) == ["slice", "reshape"]
    assert names(lambda x: index(x, s_[...])) == []
    assert names(lambda x: index(x, s_[::-1])) == ["rev"]
    assert names(lambda x: index(x, i2)) == ["gather"]
    assert "scatter" not in names(lambda x: index_update(x, s_[1:], 0.0, "add"))
    assert names(lambda x: index_update(x, s_[1:, ::2], 0.0, "set"))[-1] == "select_n"


def test_at():
    x = Array(np.array([4.0, 9, 16]))
    at = IndexUpdateHelper(x)
    same(at[0].set(5.0), np.array([5.0, 9, 16]))
    same(at[1:].add(1), np.array([4.0, 10, 17]))
    same(at[1:].subtract(1), np.array([4.0, 8, 15]))
    same(at[i2[1:]].multiply(2), np.array([4.0, 9, 32]))
    same(at[-1].mul(2), np.array([4.0, 9, 32]))
    same(at[...].divide(2), np.array([2.0, 4.5, 8]))
    same(at[0].power(2), np.array([16.0, 9, 16]))
    same(at[:].min(8), np.array([4.0, 8, 8]))
    same(at[:].max(8), np.array([8.0, 9, 16]))
    same(at[1].apply(lambda v: mul(v, v)), np.array([4.0, 81, 16]))
    same(at[5].get(mode="fill", fill_value=-1), np.array(-1.0))
    same(at[np.array([0, 7])].get(mode="clip", unique_indices=True), np.array([4.0, 16]))
    assert "IndexUpdateRef" in repr(at[0])
    assert "IndexUpdateHelper" in repr(at)
