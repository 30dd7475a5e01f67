"""Differences, integrals, interpolation, windows, and functions applied along axes."""

import io

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.derivatives.grad import grad
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5))
T = np.array([0.0, 0.5, 0.7, 2.0, 3.5])


# ---- differences


@pytest.mark.parametrize(
    "options",
    [{}, {"n": 2}, {"axis": 0}, {"n": 0}, {"n": 9}, {"prepend": 0.0}, {"append": X[:, :2]},
     {"prepend": 1.0, "append": 2.0, "n": 2}],
)  # fmt: skip
def test_diff(options):
    same_as_numpy(lambda v: fnp.diff(v, **options), lambda v: np.diff(v, **options), X)
    same_as_numpy(lambda v: fnp.diff(v, **options | {"n": 0}), lambda v: v, X)


def test_diff_of_bools_and_integers():
    same_as_numpy(fnp.diff, np.diff, np.array([True, False, False, True]))
    same_as_numpy(fnp.diff, np.diff, np.array([3, 1, 2], np.uint8))


def test_ediff1d():
    same_as_numpy(fnp.ediff1d, np.ediff1d, X)
    ends = {"to_begin": np.array([7.0, 8.0]), "to_end": 9.0}
    same_as_numpy(lambda v: fnp.ediff1d(v, **ends), lambda v: np.ediff1d(v, **ends), X)


@pytest.mark.parametrize(
    ("args", "options"),
    [((), {}), ((2.0,), {}), ((), {"axis": 1}), ((T,), {"axis": 1}), ((0.5, T), {}),
     ((), {"axis": (1, 0)})],
)  # fmt: skip
def test_gradient(args, options):
    same_as_numpy(lambda v: fnp.gradient(v, *args, **options),
                  lambda v: list(np.gradient(v, *args, **options))
                  if options.get("axis", (0, 0)) not in (0, 1) else
                  np.gradient(v, *args, **options), X)  # fmt: skip
    check_grad(lambda v: fnp.gradient(v, *args, **options), X)


def test_trapezoid():
    same_as_numpy(fnp.trapezoid, np.trapezoid, X)
    same_as_numpy(lambda y: fnp.trapezoid(y, dx=0.5, axis=0),
                  lambda y: np.trapezoid(y, dx=0.5, axis=0), X)  # fmt: skip
    same_as_numpy(fnp.trapezoid, np.trapezoid, X, T)
    same_as_numpy(fnp.trapezoid, np.trapezoid, X, np.cumsum(np.abs(X), 1))
    check_grad(fnp.trapezoid, X, T)


def test_unwrap():
    walk = np.cumsum(RNG.uniform(-3, 3, (3, 20)), axis=1)
    same_as_numpy(fnp.unwrap, np.unwrap, np.angle(np.exp(1j * walk)))
    same_as_numpy(lambda v: fnp.unwrap(v, axis=0, period=4.0),
                  lambda v: np.unwrap(v, axis=0, period=4.0), walk)  # fmt: skip
    same_as_numpy(lambda v: fnp.unwrap(v, 4.0), lambda v: np.unwrap(v, 4.0), walk)
    whole = np.array([0, 100, 210, 359, 20, 190, 10])
    same_as_numpy(lambda v: fnp.unwrap(v, period=360), lambda v: np.unwrap(v, period=360), whole)


def test_interp():
    x = np.array([-1.0, 0.0, 0.2, 0.5, 0.6, 1.9, 3.5, 9.0])
    f = np.array([1.0, -2.0, 4.0, 0.5, 3.0])
    same_as_numpy(fnp.interp, np.interp, x, T, f)
    for options in ({"left": -7.0, "right": 8.0}, {"period": 3.0}, {"period": -2.5}):
        same_as_numpy(lambda a, b, c, o=options: fnp.interp(a, b, c, **o),
                      lambda a, b, c, o=options: np.interp(a, b, c, **o), x, T, f)  # fmt: skip
    same(fnp.interp(x, T, f * 1j), np.interp(x, T, f * 1j))
    same(fnp.interp(x[:3], np.array([0.0]), np.array([2.0])), np.full(3, 2.0))
    check_grad(fnp.interp, np.array([0.2, 1.0, 3.0]), T, f)
    steps = np.array([0.0, 1.0, 1.0, 2.0])
    assert np.isfinite(grad(lambda p: fnp.interp(1.0, p, steps))(steps)).all()


@pytest.mark.parametrize("name", ["bartlett", "blackman", "hamming", "hanning"])
@pytest.mark.parametrize("n", [-1, 0, 1, 2, 5, 8])
def test_windows(name, n):
    same(getattr(fnp, name)(n), getattr(np, name)(n), dtype=False, rtol=1e-5)


def test_kaiser():
    same(fnp.kaiser(7, 3.5), np.kaiser(7, 3.5), dtype=False, rtol=1e-5)
    with pytest.raises(TypeError, match="kaiser: M must be an integer"):
        fnp.kaiser(2.5, 1.0)


# ---- functions along axes


def test_vectorize_of_scalars():
    f = fnp.vectorize(lambda x, y: fnp.where(x > y, x, y * 2))
    a, b = X[:1], X[:, :1]
    same(f(a, b), np.where(a > b, a, b * 2))
    same(jit(f, backend="numpy")(a, b), np.where(a > b, a, b * 2))
    check_grad(f, a, b + 0.1)


def test_vectorize_with_a_signature():
    product = fnp.vectorize(fnp.matmul, signature="(n,k),(k,m)->(n,m)")
    a, b = RNG.standard_normal((3, 1, 2, 4)), RNG.standard_normal((5, 4, 3))
    same(product(a, b), a @ b)
    both = fnp.vectorize(lambda v: (fnp.sum(v), v * 2), signature="(n)->(),(n)")
    same(both(X), (X.sum(1), X * 2))


def test_vectorize_excludes():
    f = fnp.vectorize(lambda x, names, scale=1.0: x * len(names) * scale, excluded={1, "scale"})
    same(f(X, ["a", "b"], scale=2.0), X * 4)
    g = fnp.vectorize(lambda x, y=None: x if y is None else x + y)
    same(g(X, y=X), X + X)
    same(g(X, None), X)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fnp.vectorize(lambda x: x, signature="(n)"), ValueError, "signature must read"),
        (lambda: fnp.vectorize(lambda x: x, signature="(n)->(n)")(1.0), ShapeError, "lacks"),
        (lambda: fnp.vectorize(lambda x, y: x, signature="(n),(n)->(n)")(X[0], X[0, :2]),
         ShapeError, "core axis n has sizes 5 and 2"),
        (lambda: fnp.vectorize(lambda x: x, signature="(n)->()")(X), ShapeError, "core axes"),
        (lambda: fnp.vectorize(lambda x: x, signature="(n),()->()")(X), TypeError, "2 arguments"),
        (lambda: fnp.vectorize(lambda x, y: x)(X, X[:, :2]), ShapeError, "broadcast"),
        (lambda: fnp.vectorize(lambda x: x, excluded={1.5}), TypeError, "excluded"),
        (lambda: fnp.diff(X, -1), ValueError, "diff: n"),
        (lambda: fnp.gradient(X[:1]), ShapeError, "two or more samples"),
        (lambda: fnp.gradient(X, 1.0, 2.0, 3.0), TypeError, "3 distances"),
        (lambda: fnp.interp(1.0, T, X), ShapeError, "interp: xp and fp"),
        (lambda: fnp.interp(1j, T, T), DTypeError, "interp.*: need real numbers"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_apply_along_axis(axis):
    x = RNG.standard_normal((2, 3, 4))
    for f, g in ((fnp.sum, np.sum), (lambda v: v * 2, lambda v: v * 2),
                 (lambda v: fnp.outer(v, v), lambda v: np.outer(v, v))):  # fmt: skip
        same(fnp.apply_along_axis(f, axis, x), np.apply_along_axis(g, axis, x))
    same_batched(lambda v: fnp.apply_along_axis(fnp.cumsum, 0, v), x)


def test_apply_over_axes():
    x = RNG.standard_normal((2, 3, 4))
    same(fnp.apply_over_axes(fnp.sum, x, (0, 2)), np.apply_over_axes(np.sum, x, (0, 2)))
    with pytest.raises(ShapeError, match="keep or drop"):
        fnp.apply_over_axes(lambda v, axis: v[0, 0], x, 0)


# ---- files


def test_files():
    file = io.BytesIO()
    fnp.save(file, Array(X))
    file.seek(0)
    same(fnp.load(file), X)
    file = io.BytesIO()
    fnp.savez(file, Array(T), x=Array(X))
    file.seek(0)
    found = fnp.load(file)
    same([found["x"], found["arr_0"]], [X, T])
    assert fnp.fromiter((i for i in range(9)), float, count=2).tolist() == [0, 1]


def test_interp_extrapolates():
    x, xp, fp = np.array([-1.0, 0.5, 4.0]), np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 3.0])
    assert fnp.interp(x, xp, fp, "extrapolate", "extrapolate").tolist() == [-2, 1, 5]
    assert fnp.interp(x, xp, fp, left="extrapolate").tolist() == [-2, 1, 3]
    assert fnp.interp(x, xp, fp, 7.0, "extrapolate").tolist() == [7, 1, 5]
