"""where, nonzero, take, put and their kin against NumPy; traced, with static sizes."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax, nn, random
from funcgrad.core.array import Array
from funcgrad.core.ir import sub_jaxprs
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ConcretizationError, OutOfBoundsError, ShapeError
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.derivatives.linear import jvp
from funcgrad.transforms.jit.jit import jit
from funcgrad.transforms.jit.make_jaxpr import eval_shape, make_jaxpr
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

X = np.arange(12.0).reshape(3, 4)
Z = np.array([[0, 3, 0], [5, 0, 7]])


def run(f, *args):
    return jit(f, backend="numpy")(*args)


# ---- where


@pytest.mark.parametrize("dtype", [bool, "int32", "float16", "complex64"])
def test_where(dtype):
    x, y = np.ones((2, 1), dtype), np.zeros(3, dtype)
    same_as_numpy(fnp.where, np.where, np.array([True, False, True]), x, y)
    same_as_numpy(fnp.where, np.where, np.float32(2), x, y)
    same_as_numpy(fnp.where, np.where, np.zeros((0, 1, 1)), x, y)


def test_where_promotes_with_weak_types():
    mask = np.array([True, False])
    assert fnp.where(mask, np.int8(1), 0).dtype == np.int8
    assert fnp.where(mask, np.float16(1), 0.5).dtype == np.float16
    assert fnp.where(mask, 1, 0).weak_type
    assert fnp.where(mask, np.int32([1, 2]), 0.5).dtype == np.float32


def test_where_has_a_safe_gradient():
    safe = lambda x: fnp.where(x > 0, fnp.log(fnp.where(x > 0, x, 1.0)), 0.0)
    same(grad(safe)(0.0), np.float32(0))
    check_grad(lambda x, y: fnp.where(X > 4, x * x, y), X, X + 1)
    same_batched(lambda c, x: fnp.where(c, x, 0.0), X > 4, X)


def test_where_of_a_condition_alone():
    same(fnp.where(Z), np.where(Z), dtype=False)
    with pytest.raises(ConcretizationError, match=r"where.*`condition`.*where\(\.\.\., size=n\)"):
        run(fnp.where, Z)
    with pytest.raises(ValueError, match="give both"):
        fnp.where(Z, 1)


# ---- nonzero


@pytest.mark.parametrize("x", [Z, Z > 0, np.zeros((0, 2)), np.float32([0, np.nan, -0.0, 1j.imag])])
def test_nonzero(x):
    same(fnp.nonzero(x), np.nonzero(x), dtype=False)
    same(fnp.flatnonzero(x), np.flatnonzero(x), dtype=False)
    same(fnp.argwhere(x), np.argwhere(x), dtype=False)
    count = np.count_nonzero(x)
    for size in (0, count, count + 2):
        rows, found = (
            run(lambda x, n=size: fnp.argwhere(x, size=n, fill_value=-1), x),
            min(size, count),
        )
        same(rows[:found], np.argwhere(x)[:found], dtype=False)
        assert rows.shape == (size, x.ndim)
        assert (np.asarray(rows[found:]) == -1).all()


def test_fill_values_of_nonzero():
    same(fnp.nonzero(Z, size=4, fill_value=(7, 8))[1], [1, 0, 2, 8], dtype=False)
    same(fnp.nonzero(Z, size=4)[0], [0, 1, 1, 0], dtype=False)
    assert fnp.argwhere(np.int32(3)).shape == (1, 0)
    same_batched(lambda x: fnp.flatnonzero(x, size=2), Z)


def test_compress_and_extract():
    keep = np.array([True, False, True])
    same(fnp.compress(keep, X, 0), np.compress(keep, X, 0))
    same(fnp.compress(keep, X), np.compress(keep, X))
    same(fnp.extract(X > 4, X), np.extract(X > 4, X))
    out = run(lambda c, x: fnp.compress(c, x, 0, size=3, fill_value=-1), keep, X)
    same(out, np.vstack([X[[0, 2]], np.full((1, 4), -1.0)]))
    same(run(lambda x: fnp.extract(x > 9, x, size=4), X), [10.0, 11.0, 0.0, 0.0])
    check_grad(lambda x: fnp.extract(X > 4, x), X)
    with pytest.raises(ConcretizationError, match="extract.*size=n"):
        run(lambda x: fnp.extract(x > 9, x), X)


# ---- take and put


@pytest.mark.parametrize("mode", [None, "wrap", "clip"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_take(mode, axis):
    indices = np.array([[0, 2], [1, 1]]) if mode is None else np.array([[0, 9], [-7, 1]])
    same_as_numpy(
        lambda x, i: fnp.take(x, i, axis, mode=mode),
        lambda x, i: np.take(x, i, axis, mode=mode or "raise"),
        X,
        indices,
    )


def test_take_outside():
    with pytest.raises(OutOfBoundsError):
        fnp.take(X, np.array([3]), 0)
    assert np.isnan(run(lambda i: fnp.take(X, i, 0), np.array([3]))).all()
    same(fnp.take(np.int32([1, 2]), np.array([5, -3]), mode="fill", fill_value=9), np.int32([9, 9]))
    same(fnp.take(X, np.int32(1), 1), X[:, 1])


ALONG = [
    ((3, 4), (3, 2), 1),
    ((3, 4), (1, 4), 0),
    ((3, 4), (3, 1), 1),
    ((2, 3, 4), (2, 5, 1), 1),
    ((1, 4), (3, 2), 1),
    ((3, 0), (3, 0), 1),
]


@pytest.mark.parametrize(("shape", "indices", "axis"), ALONG)
def test_take_along_axis(shape, indices, axis, rng):
    x = rng.standard_normal(shape)
    i = (
        rng.integers(-shape[axis], max(shape[axis], 1), indices)
        if x.size
        else np.zeros(indices, int)
    )
    same_as_numpy(
        lambda x, i: fnp.take_along_axis(x, i, axis),
        lambda x, i: np.take_along_axis(x, i, axis),
        x,
        i,
    )
    if x.size:
        check_grad(lambda x: fnp.take_along_axis(x, i, axis), x)


def test_take_along_axis_outside():
    i = np.array([[4], [0], [-5]])
    with pytest.raises(OutOfBoundsError, match="index 4 is out of bounds for axis 1 with size 4"):
        fnp.take_along_axis(X, i, 1)
    same(fnp.take_along_axis(X, i, 1, mode="fill", fill_value=-1), [[-1.0], [4.0], [-1.0]])
    same(fnp.take_along_axis(X, i, 1, mode="clip"), [[3.0], [4.0], [8.0]])
    same(
        fnp.take_along_axis(X, np.array([3, 1]), None),
        np.take_along_axis(X, np.array([3, 1]), None),
    )
    same_batched(lambda x, i: fnp.take_along_axis(x, i, 0), X, np.array([[1, 2]] * 3))


def test_put_along_axis(rng):
    i = np.array([[0, 3], [1, 2], [-1, 0]])
    v = rng.standard_normal((3, 2))

    def numpy_put(x, i, v):
        x = x.copy()
        np.put_along_axis(x, i, v, 1)
        return x

    same_as_numpy(lambda x, i, v: fnp.put_along_axis(x, i, v, 1), numpy_put, X, i, v)
    check_grad(lambda x, v: fnp.put_along_axis(x, i, v, 1), X, v)
    with pytest.raises(ValueError, match="immutable"):
        fnp.put_along_axis(X, i, v, 1, inplace=True)


def test_put_and_place():
    for mode, at in (
        (None, [0, -1]),
        ("clip", [0, 99]),
        ("clip", [-1, -99]),
        ("clip", [5, -2]),
        ("wrap", [13, -13]),
    ):
        expected = X.copy()
        np.put(expected, at, [7.0, 8.0], mode or "raise")
        put = lambda x, i, m=mode: fnp.put(x, i, np.array([7.0, 8.0]), m)
        same_as_numpy(put, lambda x, i, want=expected: want, X, np.array(at))
    for values in ([5.0], [5.0, 6.0], list(range(20))):
        expected = X.copy()
        np.place(expected, X > 4, values)
        same(run(lambda x, v: fnp.place(x, x > 4, v), X, np.array(values)), expected)


ERRORS = [
    (lambda: fnp.take([1, 2], np.array([0])), TypeError, "take: a is a list"),
    (lambda: fnp.take(X, [0]), TypeError, "take: indices is a list"),
    (lambda: fnp.take(X, np.array([0.5])), TypeError, "indices must be integers"),
    (lambda: fnp.take(X, np.array([0]), mode="bend"), ValueError, "mode must be"),
    (lambda: fnp.nonzero(1.0), ShapeError, "atleast_1d"),
    (lambda: fnp.compress(X, X), ShapeError, "condition must be a vector"),
    (lambda: fnp.take_along_axis(X, np.array([0]), 0), ShapeError, "as many axes"),
    (lambda: fnp.where(X, np.ones(3), np.ones(2)), ShapeError, "where"),
    (lambda: fnp.place(X, X[0] > 1, X), ShapeError, "differ in size"),
    (lambda: fnp.put(X, np.array([12]), 1.0), OutOfBoundsError, "12 out of bounds"),
    (lambda: fnp.nonzero(Z, size=2, fill_value=(1,)), ShapeError, "each of 2 axes"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_known_values_inside_grad():
    f = lambda x: fnp.sum(x[fnp.nonzero(x > 4)] ** 2)
    same(grad(f)(Array(X)), np.where(X > 4, 2 * X, 0))


# ---- more elements than int32 counts

MANY, FAR = 2**31 + 17, 2**31 + 5
BYTES, MASK, FLOATS, NUMBERS = (ShapeDtypeStruct((MANY,), d) for d in ("int8", bool, "f4", "i4"))
PLACE, PLACES, FEW = (ShapeDtypeStruct(s, d) for s, d in [((), "i4"), ((3,), "i4"), ((3,), "int8")])
KEY = random.key(0)
OF_MANY = {
    "count_nonzero": (fnp.count_nonzero, BYTES),
    "count_nonzero of an axis": (lambda x: fnp.count_nonzero(x, 0, keepdims=True), BYTES),
    "sum": (fnp.sum, MASK), "nansum": (fnp.nansum, MASK), "cumsum": (fnp.cumsum, MASK),
    "sum as bool": (lambda x: fnp.sum(x, dtype=bool), MASK),
    "cumsum as bool": (lambda x: fnp.cumsum(x, dtype=bool), BYTES),
    "mean where": (lambda x, m: fnp.mean(x, where=m), FLOATS, MASK),
    "nanmean": (fnp.nanmean, FLOATS), "nanvar": (fnp.nanvar, FLOATS),
    "nanmedian": (fnp.nanmedian, FLOATS), "median": (fnp.median, FLOATS),
    "argmax": (fnp.argmax, BYTES), "nanargmin": (fnp.nanargmin, FLOATS),
    "nonzero": (lambda x: fnp.nonzero(x, size=3), BYTES),
    "argwhere": (lambda x: fnp.argwhere(x, size=3), BYTES),
    "compress": (lambda m, x: fnp.compress(m, x, size=3), MASK, BYTES),
    "place": (lambda x, m, v: fnp.place(x, m, v), BYTES, MASK, FEW),
    "argsort": (fnp.argsort, BYTES), "lexsort": (lambda x: fnp.lexsort((x, x)), BYTES),
    "argsort down": (lambda x: fnp.argsort(x, descending=True), BYTES),
    "sort's derivative": (lambda x: jvp(fnp.sort, (x,), (x,)), FLOATS),
    "top_k": (lambda x: lax.top_k(x, 3), BYTES),
    **{f"searchsorted by {m}": (lambda x, v, m=m: fnp.searchsorted(x, v, method=m), BYTES, FEW)
       for m in ("scan", "scan_unrolled", "sort", "compare_all")},
    "digitize": (lambda x, v: fnp.digitize(v, x), BYTES, FEW),
    "unique": (lambda x: fnp.unique(x, True, True, True, size=3), BYTES),
    "intersect1d": (lambda x, v: fnp.intersect1d(x, v, False, True, size=3), BYTES, FEW),
    "bincount": (lambda x: fnp.bincount(x, length=4), BYTES), "histogram": (fnp.histogram, FLOATS),
    "insert": (lambda x, i: fnp.insert(x, i, 1), BYTES, PLACE),
    "delete": (fnp.delete, BYTES, PLACE), "roll": (fnp.roll, BYTES, PLACE),
    "repeat": (lambda x, n: fnp.repeat(x, n, total_repeat_length=MANY), FEW, PLACES),
    "take": (fnp.take, BYTES, PLACES), "take far": (lambda x: fnp.take(x, FAR), BYTES),
    "take_along_axis": (lambda x, i: fnp.take_along_axis(x, i, 0), BYTES, PLACES),
    "x[i]": (lambda x, i: x[i], BYTES, PLACE), "x[int8]": (lambda x, i: x[i], BYTES, FEW),
    "vmap of x[i]": (lambda x, i: vmap(lambda k: x[k])(i), BYTES, PLACES),
    "x[far]": (lambda x: x[np.array([FAR, 3])], BYTES),
    "x.at[i]": (lambda x, i: x.at[i].set(1), BYTES, PLACE),
    "x.at[v]": (lambda x, i: x.at[i].add(1), BYTES, PLACES),
    "x.at[far]": (lambda x: x.at[FAR].set(1), BYTES),
    "x.at[-5]": (lambda x: x.at[-5].set(1), BYTES),
    "x.at[far:]": (lambda x: x.at[FAR:].set(1), BYTES),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i,), (3,)), BYTES, PLACE),
    "dynamic_slice far": (lambda x: lax.dynamic_slice_in_dim(x, FAR, 3), BYTES),
    "dynamic_update_slice": (lambda x, v: lax.dynamic_update_slice(x, v, (-5,)), BYTES, FEW),
    "index_take": (lambda x, i: lax.index_take(x, (i,), (0,)), BYTES, PLACES),
    "indices": (lambda: fnp.indices((MANY,)),), "tri": (lambda: fnp.tri(2, MANY),),
    "unravel_index": (lambda i: fnp.unravel_index(i, (MANY, 3)), PLACES),
    "ravel_multi_index": (lambda i: fnp.ravel_multi_index((i, i), (MANY, 3), "clip"), PLACES),
    "permutation": (lambda: random.permutation(KEY, MANY),),
    "choice": (lambda: random.choice(KEY, MANY, (3,)),),
    "choice by weight": (lambda p: random.choice(KEY, MANY, (3,), p=p), FLOATS),
    "one_hot": (lambda i: nn.one_hot(i, MANY), PLACES),
}  # fmt: skip


def most(dtype):
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def too_narrow(jaxpr):
    """Equations whose dtypes don't hold the numbers of elements that they count or address."""
    masks = set()
    for eqn in jaxpr.eqns:
        ins, outs = [v.aval for v in eqn.ins], [v.aval for v in eqn.outs]
        name, params = eqn.prim.name, eqn.params
        need, kind = 0, outs[0].dtype
        if name == "convert_element_type" and ins[0].dtype == bool:
            masks |= set(eqn.outs)
        elif name == "iota":
            need = outs[0].shape[params["dimension"]] - 1
        elif name in ("reduce_sum", "cumsum") and eqn.ins[0] in masks:
            axes = params.get("axes", (params.get("axis"),))
            need = np.prod([ins[0].shape[i] for i in axes], dtype=object)
        elif name in ("argmax", "argmin"):
            need = ins[0].shape[params["axes"][0]] - 1
        elif name == "top_k":
            need, kind = ins[0].shape[-1] - 1, outs[1].dtype
        elif name in ("dynamic_slice", "dynamic_update_slice"):
            need, kind = max(ins[0].shape), ins[-1].dtype
        elif name == "gather" or name.startswith("scatter"):
            need = max(ins[0].shape[i] for i in params["dimension_numbers"][2])
            kind = ins[1].dtype
        if need > most(kind):
            yield eqn
        for inner in sub_jaxprs(eqn):
            yield from too_narrow(inner)


@pytest.mark.parametrize("name", OF_MANY)
def test_positions_and_counts_of_many_elements_fit_their_dtypes(name):
    """By the program's types alone: nothing is as large as what is counted."""
    function, *args = OF_MANY[name]
    assert not list(too_narrow(make_jaxpr(function)(*args).jaxpr))


def test_few_elements_are_counted_in_the_default_integer():
    few, more = (ShapeDtypeStruct((n,), bool) for n in (2**31 - 1, 2**31))
    for function in (fnp.count_nonzero, fnp.sum, lambda x: fnp.bincount(x, length=2), fnp.cumsum):
        assert eval_shape(function, few).dtype == np.int32
        assert eval_shape(function, more).dtype == np.int64


ROWS = np.arange(9.0).reshape(3, 3)
INDEXED = {
    "take": lambda x, k: fnp.take(x, k, 0, mode="clip"),
    "slice": lambda x, k: x[k:], "slice to": lambda x, k: x[:k], "step": lambda x, k: x[::k],
    "get": lambda x, k: x.at[k].get(mode="clip"), "set": lambda x, k: x.at[k].set(9.0, mode="drop"),
    "dynamic_slice": lambda x, k: lax.dynamic_slice(x, (k, -k), (1, 1)),
    "dynamic_update_slice": lambda x, k: lax.dynamic_update_slice(x, x[:1], (k, k)),
    "dynamic_index_in_dim": lax.dynamic_index_in_dim,
    "roll": lambda x, k: fnp.roll(x, 3 * k + 1, 0),
    "tril": fnp.tril, "triu": fnp.triu, "tri": lambda x, k: x * fnp.tri(3, k=k),
    "eye": lambda x, k: x * fnp.eye(3, k=k), "diagonal": fnp.diagonal, "trace": fnp.trace,
    "choose": lambda x, k: fnp.choose(k, [x, -x, x + 1], mode="clip"),
    "switch": lambda x, k: lax.switch(k, [lambda x: x, lambda x: -x], x),
    "switch of a 64-bit number": lambda x, k: lax.switch(np.int64(k), [lambda x: x] * 2, x),
    "cond": lambda x, k: lax.cond(k, lambda x: x, lambda x: -x, x),
}  # fmt: skip


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", INDEXED)
def test_integers_beyond_32_bits_are_as_other_large_ones(name, sign):
    function, x = INDEXED[name], Array(ROWS)
    want = function(x, sign * 2000)
    for k in (2**31, 2**32 + 1, 2**40 + 2):
        for way in (function, lambda x, k: run(lambda x: function(x, k), x)):
            same(way(x, sign * k), np.asarray(want), dtype=False)


def test_tuples_within_an_index():
    """NumPy's rule: a tuple in an index is an array; its items may be traced."""
    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    for at in [((1, 0), (1, 2)), (((1, 0),), 0), (slice(None), (0, 2), (1, 3))]:
        np.testing.assert_array_equal(fnp.array(x)[at], x[at])
    got = jit(lambda a, i: (a[(i, 0), 1], a[((i, 0), (0, i)), 0]))(x, 1)
    np.testing.assert_array_equal(got[0], x[(1, 0), 1])
    np.testing.assert_array_equal(got[1], x[((1, 0), (0, 1)), 0])
    with pytest.raises(IndexError, match=r"tuple within an index must hold integers .*1\.5"):
        jit(lambda a, i: a[(i, 1.5), 0])(x, 1)
    with pytest.raises(TypeError, match="in rows of one length, got"):
        fnp.array(x)[((0, 1), (0,)), 0]
