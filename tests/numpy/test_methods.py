"""Operators, methods and properties of arrays and tracers."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.core.trace import Tracer
from funcgrad.errors import ShapeError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import same

X = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]])
Y = np.array([2.0, 3.0, -2.0])
N, M = np.array([7, -7, 5], np.int32), np.array([2, 2, 3], np.int32)

OPERATORS = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b,
    lambda a, b: a // b, lambda a, b: a % b, divmod, lambda a, b: a**2 + b,
    lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b,
    lambda a, b: a > b, lambda a, b: a >= b, lambda a, b: -a + +b, lambda a, b: abs(a),
]  # fmt: skip
BITS = [
    lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ b, lambda a, b: a << b,
    lambda a, b: a >> b, lambda a, b: ~a, lambda a, b: a**b,
]  # fmt: skip


def everywhere(function, *args):
    """function of arrays, on the left, on the right, and compiled."""
    expected = function(*args)
    arrays = [Array(a) for a in args]
    same(function(*arrays), expected)
    same(function(arrays[0], *args[1:]), expected)
    if len(args) == 2:
        same(function(args[0], arrays[1]), expected)
    same(jit(function, backend="numpy")(*arrays), expected)


@pytest.mark.parametrize("function", OPERATORS)
def test_operators(function):
    everywhere(function, X, Y)


@pytest.mark.parametrize("function", [*OPERATORS, *BITS])
def test_operators_of_integers(function):
    if function is OPERATORS[3]:
        return
    everywhere(function, N, M)


def test_operators_with_numbers():
    x = fnp.array([1.0, 2.0])
    for function in OPERATORS[:7]:
        for number in (2, 2.5, True, np.float32(2)):
            same(function(x, number), function(np.asarray(x), number), dtype=False)
            same(function(number, x), function(number, np.asarray(x)), dtype=False)
    assert (2**x).tolist() == [2, 4]
    assert (x + 1).dtype == np.float32
    assert (np.ones(2, np.float32) + x).dtype == np.float32
    assert type(np.ones(2) + x) is Array
    assert type(np.float64(1) * x) is Array


def test_in_place_operators_make_new_arrays():
    x = y = fnp.array([1.0, 2.0])
    x += 1
    assert (x.tolist(), y.tolist()) == ([2, 3], [1, 2])


def test_python_functions():
    x = fnp.array(2.6)
    assert round(x).item() == 3
    assert round(x).dtype == np.int32
    assert round(x, 1).item() == np.float32(2.6)
    assert (int(x), float(fnp.array(2.5)), bool(x)) == (2, 2.5, True)
    assert [v.item() for v in fnp.array([1, 2])] == [1, 2]
    assert len(fnp.zeros((3, 2))) == 3


def test_tracers_unpack():
    def f(pair):
        a, b = pair
        return a - b

    assert jit(f, backend="numpy")(fnp.array([3.0, 1.0])).item() == 2


@pytest.mark.parametrize("other", [[1, 2], (1, 2), {1}, {1: 2}])
def test_lists_are_no_operands(other):
    x = fnp.array([1.0, 2.0])
    with pytest.raises(TypeError, match=rf"\+: an array and a {type(other).__name__}.*fnp.array"):
        x + other
    with pytest.raises(TypeError, match="fnp.array"):
        assert x == other


def test_other_types_are_left_to_them():
    x = fnp.array([1.0])
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    with pytest.raises(TypeError, match="unsupported operand"):
        x + None

    class Unit:
        def __radd__(self, other):
            return "theirs"

    assert x + Unit() == "theirs"


def test_isinstance():
    assert isinstance(fnp.zeros(2), fnp.ndarray)
    assert not isinstance(np.zeros(2), fnp.ndarray)
    seen = []
    jit(lambda x: seen.append(x) or x)(1.0)
    assert isinstance(seen[0], Tracer)
    assert isinstance(seen[0], fnp.ndarray)


def test_arrays_have_no_hash():
    with pytest.raises(TypeError, match="unhashable"):
        hash(fnp.zeros(2))


# ---- items


def test_items_and_updates():
    x = fnp.arange(4.0)
    assert x[1].item() == 1
    assert x[-1:].tolist() == [3]
    assert x.at[0].set(5.0).tolist() == [5, 1, 2, 3]
    assert jit(lambda v: v.at[1:].add(1.0), backend="numpy")(x).tolist() == [0, 2, 3, 4]


def put(x, idx, value):
    x[idx] = value


@pytest.mark.parametrize(
    ("idx", "value", "shown"),
    [
        (0, 1, "x = x.at[0].set(1)"),
        ((slice(None), 1), 2.5, "x = x.at[:, 1].set(2.5)"),
        ((Ellipsis, slice(1, None, 2)), 0, "x = x.at[..., 1::2].set(0)"),
        ((None, -1), 0, "x = x.at[None, -1].set(0)"),
        (slice(2, 4), "a" * 100, "x = x.at[2:4].set(...)"),
    ],
)
def test_assignment_shows_the_update(idx, value, shown):
    with pytest.raises(TypeError) as e:
        put(fnp.zeros((3, 3)), idx, value)
    assert shown in str(e.value)


def test_assignment_names_the_variables():
    weights, mask = fnp.zeros(3), fnp.array([True, False, True])
    with pytest.raises(TypeError, match=r"weights = weights.at\[mask\].set\(0\)"):
        weights[mask] = 0


def test_assignment_to_a_tracer():
    def f(v):
        v[0] = 1.0
        return v

    with pytest.raises(TypeError, match=r"v = v.at\[0\].set\(1.0\)"):
        jit(f)(fnp.zeros(3))


# ---- methods

METHODS = [
    lambda a: a.T, lambda a: a.mT, lambda a: a.reshape(3, 2), lambda a: a.reshape((3, -1)),
    lambda a: a.reshape(-1), lambda a: a.transpose(), lambda a: a.transpose(1, 0),
    lambda a: a.transpose((1, 0)), lambda a: a.ravel(), lambda a: a.flatten(),
    lambda a: a[None].squeeze(), lambda a: a[None].squeeze(0), lambda a: a.swapaxes(0, 1),
    lambda a: a.repeat(2, 1), lambda a: a.take(np.array([0, 2]), 1), lambda a: a.diagonal(),
    lambda a: a.trace(), lambda a: a.dot(a.T), lambda a: a.clip(0, 2), lambda a: a.round(),
    lambda a: a.conj(), lambda a: a.copy(), lambda a: a.astype("float32"), lambda a: a.cumsum(1),
    lambda a: a.cumprod(), lambda a: a.real, lambda a: a.imag,
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    method_of = lambda a: method(a)
    same(method_of(Array(X)), method(X))
    same(jit(method_of, backend="numpy")(Array(X)), method(X))


def test_sorting_methods():
    x = Array(X)
    same(x.sort(), np.sort(X))
    same(x.argsort(0), np.argsort(X, 0), dtype=False)
    same(x[0].sort().searchsorted(0.0), np.sort(X[0]).searchsorted(0.0), dtype=False)
    assert x[0].argpartition(1).shape == (3,)


def test_methods_that_return_what_values_say():
    x = Array(X)
    same(x.nonzero(), X.nonzero(), dtype=False)
    same(x.compress(np.array([True, False]), axis=0), X.compress([True, False], axis=0))
    same(
        fnp.array([0, 1]).choose([x[0, :2], x[1, :2]]),
        np.array([0, 1]).choose([X[0, :2], X[1, :2]]),
    )


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint16", "float64", "uint8"])
def test_view(dtype):
    same(Array(X).view(dtype), X.view(dtype))
    same(Array(np.array([True, False])).view("uint8"), np.uint8([1, 0]))
    for shape in [(0, 4), (3, 0), (0, 0)]:
        empty = np.zeros(shape, "float32")
        same(Array(empty).view(dtype), empty.view(dtype))


def test_view_needs_a_length_that_fits():
    with pytest.raises(ShapeError, match="multiple of 2"):
        fnp.zeros(3, "float32").view("float64")


@pytest.mark.parametrize("name", ["all", "any", "max", "mean", "min", "prod", "std", "sum", "var"])
def test_numpy_calls_the_methods(name):
    x = np.arange(6.0).reshape(2, 3)
    got = getattr(np, name)(fnp.array(x), axis=0)
    assert isinstance(got, Array)
    np.testing.assert_allclose(got, getattr(np, name)(x, axis=0), rtol=1e-6)
    with pytest.raises(
        NotImplementedError, match=f"{name}: arrays are immutable, so there is no out="
    ):
        getattr(fnp.array(x), name)(out=np.zeros(()))


class Wrapped:
    """Another library's object that says which array it is."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


def test_objects_that_say_which_array_they_are():
    x = np.array([1.0, 2.0, 3.0])

    def every(v):
        w = Wrapped(v)
        return [
            fnp.sin(w), fnp.add(w, 1), fnp.add(1.0, w), fnp.sum(w), fnp.reshape(w, (3, 1)),
            fnp.where(True, w, w), fnp.array(w), fnp.asarray(w, "float32"), fnp.stack([w, w]),
            fnp.ones(3) + w, fnp.ones(3) * w, fnp.zeros(3).at[:].set(w), fnp.arctan2(w, w),
        ]  # fmt: skip

    wants = [
        np.sin(x), x + 1, x + 1, x.sum(), x[:, None], x, x, x, [x, x], x + 1, x, x,
        np.arctan2(x, x),
    ]  # fmt: skip
    for run in (every, jit(every)):
        for got, want in zip(run(fnp.array(x)), wants, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    assert grad(lambda v: fnp.sum(fnp.square(Wrapped(v))))(fnp.array(x)).tolist() == [2, 4, 6]


def test_membership():
    x = fnp.arange(4)
    assert 3 in x
    assert 5 not in x
    with pytest.raises(ShapeError, match="the array searched must have one axis, got i32"):
        1 in fnp.ones((2, 2), int)  # noqa: B015
    with pytest.raises(ShapeError, match="the value looked for must be a number"):
        x in x  # noqa: B015
