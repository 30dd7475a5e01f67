"""Ufuncs' methods against NumPy's: of the library's functions and of the user's, at once, compiled
and mapped."""

import copy
import pickle

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.eager import functions
from funcgrad.transforms.batching.vmap import vmap
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same

NAMES = [n for n in dir(fnp) if isinstance(getattr(fnp, n), fnp.ufunc)]
BINARY = [n for n in NAMES if getattr(fnp, n).nin == 2]
FRACTIONS = ("logaddexp", "logaddexp2")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHAPES = [(3,), (4, 3), (2, 1, 3), (0, 3), (3, 0)]


def minus(x, y):
    assert np.shape(x) == np.shape(y) == ()
    return x - y


def times(x, y):
    assert np.shape(x) == np.shape(y) == ()
    return x * y


OURS = {"minus": (fnp.frompyfunc(minus, 2, 1), np.subtract),
        "times": (fnp.frompyfunc(times, 2, 1, identity=1), np.multiply)}  # fmt: skip


def pair(name):
    return OURS[name] if name in OURS else (getattr(fnp, name), getattr(np, name))


def operand(name, shape, rng, dtype=None):
    x = rng.integers(1, 5, shape)
    return x.astype(dtype or ("int32" if name in BITS else "float32"))


def agree(f, g, *args):
    """f(*args) is g(*args), at once, compiled and mapped; what can't be, raises either way."""
    arrays = [Array(np.asarray(a)) for a in args]
    try:
        want = np.asarray(g(*args))
    except ValueError:
        for run in (f, jit(f)):
            with pytest.raises(ValueError):
                run(*arrays)
        return
    for got in (f(*arrays), jit(f)(*arrays), vmap(f)(*(fnp.stack([a, a]) for a in arrays))[1]):
        np.testing.assert_allclose(np.asarray(got), want, rtol=2e-6, atol=1e-6)
        assert np.shape(got) == want.shape


def test_what_is_a_ufunc():
    assert {"add", "subtract", "maximum", "logaddexp", "negative"} <= set(NAMES)
    for name in NAMES:
        ours, theirs = getattr(fnp, name), getattr(np, name)
        assert (ours.nin, ours.nout, ours.nargs) == (theirs.nin, theirs.nout, theirs.nargs - 1)
        assert ours.identity == theirs.identity
        assert repr(ours) == f"<fnp.ufunc {name!r}>"
        assert pickle.loads(pickle.dumps(ours)) is ours
        assert copy.deepcopy(ours) is ours
        assert ours.__doc__ == ours._func.__doc__
        for fact in ("nin", "nout", "nargs", "identity"):
            with pytest.raises(AttributeError):
                setattr(ours, fact, None)
    again = fnp.frompyfunc(minus, 2, 1)
    assert again == OURS["minus"][0]
    assert hash(again) == hash(OURS["minus"][0])
    assert again != fnp.frompyfunc(times, 2, 1)
    assert pickle.loads(pickle.dumps(again)) == again


def test_calls_are_those_of_the_functions():
    x = fnp.arange(4)
    for name in NAMES:
        f = getattr(fnp, name)
        args = [x] * f.nin
        same(f(*args), np.asarray(f._func(*args)))
        with pytest.raises(TypeError):
            f(*args, x, x)
    assert functions.activate() in (True, False)  # native code does the calls from now on
    same(fnp.add(x, x), np.asarray(x) * 2)
    with pytest.raises(TypeError):
        fnp.add(x)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [*BINARY, *OURS])
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions(name, shape, rng):
    f, g = pair(name)
    x, mask = operand(name, shape, rng), rng.integers(0, 2, shape).astype(bool)
    for axis in (None, *range(-len(shape), len(shape))):
        if axis is None and f.identity is None and name not in ("maximum", "minimum"):
            continue  # in no order, says NumPy
        for o in ({}, {"keepdims": True}, {"initial": 2}):
            agree(lambda x: f.reduce(x, axis, **o), lambda x: g.reduce(x, axis, **o), x)
        o = {"initial": 3} if f.identity is None else {}
        agree(lambda x, m: f.reduce(x, axis, where=m, **o),
              lambda x, m: g.reduce(x, axis, where=m, **o), x, mask)  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [*BINARY, *OURS])
@pytest.mark.parametrize("shape", SHAPES)
def test_accumulations_and_slices(name, shape, rng):
    f, g = pair(name)
    x = operand(name, shape, rng)
    for axis in range(-len(shape), len(shape)):
        agree(lambda x: f.accumulate(x, axis), lambda x: g.accumulate(x, axis), x)
        if shape[axis] > 2:
            for i in ([0], [0, 2], [2, 0, 1], [1, 1, 2], [0, 1, 2]):
                starts = np.array(i)
                agree(lambda x, i: f.reduceat(x, i, axis), lambda x, i: g.reduceat(x, i, axis),
                      x, starts)  # fmt: skip


@pytest.mark.parametrize("name", [*BINARY, *OURS])
def test_pairs(name, rng):
    f, g = pair(name)
    for a, b in (((), (3,)), ((2,), (3,)), ((2, 3), (4,)), ((2,), ()), ((0,), (2,))):
        x, y = operand(name, a, rng), operand(name, b, rng)
        want = np.asarray(g.outer(x, y))
        for run in (f.outer, jit(f.outer)):
            same(run(x, y), want, rtol=2e-6, dtype=False)


@pytest.mark.parametrize("name", [*NAMES, *OURS])
@pytest.mark.parametrize(
    "at", [np.array([0, 2, 0, -1]), 1, slice(0, 3, 2), (np.array([1, 1, 3]), 2)], ids=str
)
def test_updates(name, at, rng):
    """An element that is selected twice is combined twice, in order."""
    f, g = pair(name)
    x = operand(name, (4, 3), rng)
    b = [operand(name, np.shape(x[at]), rng)] if f.nin == 2 else []
    if name.startswith("logical"):
        x, *b = (v > 2 for v in (x, *b))
    want = x.copy()
    g.at(want, at, *b)
    agree(lambda x, *b: f.at(x, at, *b, inplace=False), lambda *_: want, x, *b)
    if isinstance(at, np.ndarray):
        agree(lambda x, i, *b: f.at(x, i, *b, inplace=False), lambda *_: want, x, at, *b)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "float16"])
@pytest.mark.parametrize("name", BINARY)
def test_dtypes(name, dtype):
    f, x = getattr(fnp, name), np.array([1, 0, 1]).astype(dtype)
    if (name in BITS and dtype == "float16") or (name, dtype) == ("subtract", "bool"):
        with pytest.raises(TypeError):
            f.reduce(x)
        return
    kind = f(x, x).dtype
    wide = "int32" if name in ("add", "multiply") and dtype in ("bool", "int8") else kind
    assert f.reduce(x).dtype == f.accumulate(x).dtype == wide
    assert f.reduceat(x, np.array([0, 2])).dtype == kind
    assert f.outer(x, x).dtype == f.at(x, np.array([0, 0]), x[:2], inplace=False).dtype == kind
    if name not in BITS and not name.startswith("logical"):
        assert f.reduce(x, dtype="float64").dtype == f.accumulate(x, dtype="float64").dtype == float


def test_derivatives(rng):
    x = rng.standard_normal((4, 3))
    for name in ("add", "multiply", "subtract", "logaddexp", "maximum", *OURS):
        f, _ = pair(name)
        check_grad(f.reduce, x)
        check_grad(f.accumulate, x)
        check_grad(lambda x, f=f: f.reduceat(x, np.array([0, 2])), x)
        if name not in ("multiply", "maximum"):  # whose derivatives don't exist where updates meet
            check_grad(lambda x, y, f=f: f.at(x, np.array([0, 0]), y, inplace=False), x, x[:2])
    double = fnp.frompyfunc(lambda x, y: (x + y, x * y), 2, 2)
    assert [o.tolist() for o in double(np.arange(2.0), 3.0)] == [[3, 4], [0, 3]]
    assert float(grad(lambda x: double(x, 3.0)[1])(2.0)) == 3.0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: fnp.negative.reduce(np.ones(2)), ValueError, "two operands"),
        (lambda: fnp.frompyfunc(lambda x: x, 1, 1).outer(1, 2), ValueError, "two operands"),
        (lambda: fnp.subtract.reduce(np.ones(0)), ValueError, "no identity"),
        (lambda: fnp.maximum.reduce(np.ones(2), where=np.array([True, False])), ValueError,
         "where= needs initial="),
        (lambda: fnp.bitwise_or.reduce(np.arange(2), where=np.arange(2)), ValueError, "bools"),
        (lambda: fnp.add.at(np.ones(2), 0, 1.0), NotImplementedError, "inplace=False"),
        (lambda: fnp.add.at(np.ones(2), 0, inplace=False), TypeError, "2 operands, got 1"),
        (lambda: fnp.add.reduce(np.ones(2), out=np.ones(())), NotImplementedError, "no out="),
        (lambda: fnp.add.reduceat(np.ones(3), np.ones((1, 1), int)), ValueError, "a vector"),
        (lambda: fnp.frompyfunc(3, 1, 1), TypeError, "func"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
