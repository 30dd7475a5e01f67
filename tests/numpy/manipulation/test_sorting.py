"""Sorting and searching against NumPy."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.transforms.jit.jit import jit
from tests.numpy.compare import check_grad, same, same_as_numpy, same_batched

DTYPES = [bool, "int8", "uint32", "float16", "float32", "complex64"]


def sample(dtype, shape, rng):
    x = rng.integers(0, 5, shape).astype(dtype)
    return x + 1j * rng.integers(0, 3, shape).astype(np.float32) if x.dtype.kind == "c" else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_sort_and_argsort(dtype, axis, rng):
    for shape in ((4, 5), (0, 3), (3, 0)):
        x = sample(dtype, shape, rng)
        same_as_numpy(lambda x: fnp.sort(x, axis), lambda x: np.sort(x, axis), x)
        same_as_numpy(
            lambda x: fnp.argsort(x, axis),
            lambda x: np.argsort(x, axis, kind="stable"),
            x,
            dtype=False,
        )
        same(fnp.partition(x, 0 if x.size else [], axis), np.sort(x, axis))
    assert fnp.argsort(x).dtype == np.int32


def test_descending():
    x = np.array([3.0, np.nan, 1.0, 3.0])
    same(fnp.sort(x, descending=True), [np.nan, 3.0, 3.0, 1.0])
    same(fnp.argsort(x, descending=True), [1, 0, 3, 2], dtype=False)


def test_partitions(rng):
    x = rng.standard_normal((3, 7))
    for k in (2, -3):
        out = np.asarray(fnp.take_along_axis(x, fnp.argpartition(x, k), 1))
        same(out[:, k], np.partition(x, k)[:, k])
        assert (out[:, :k] <= out[:, k, None]).all()
        same(fnp.partition(x, (1, k))[:, k], np.partition(x, k)[:, k])


def test_lexsort(rng):
    keys = rng.integers(0, 3, (3, 20))
    same(fnp.lexsort(keys), np.lexsort(keys), dtype=False)
    same(fnp.lexsort((keys[0], keys[1] / 2)), np.lexsort((keys[0], keys[1] / 2)), dtype=False)
    deep = rng.integers(0, 2, (2, 4, 5))
    same(fnp.lexsort(deep, axis=0), np.lexsort(deep, axis=0), dtype=False)
    with pytest.raises(ShapeError, match="keys must have one shape"):
        fnp.lexsort((keys[0], keys[0, :3]))


def test_sort_complex():
    x = np.array([3.0, 1.0])
    same(fnp.sort_complex(x), np.sort_complex(x))
    assert fnp.sort_complex(x.astype(np.float32)).dtype == np.complex64


def test_transforms(rng):
    x = rng.standard_normal((3, 4))
    check_grad(lambda x: fnp.sort(x, 0), x)
    check_grad(lambda x: fnp.sort(x, None, descending=True) ** 2, x)
    same_batched(fnp.sort, x)
    same_batched(fnp.argsort, x)


# ---- search

METHODS = ["scan", "scan_unrolled", "sort", "compare_all"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(method, side, rng):
    nan = np.nan
    cases = [
        (np.array([1.0, 2, 2, 3]), np.array([[0.0, 2, 9], [1, 2.5, 3]])),
        (np.array([1.0, 2, nan, nan]), np.array([nan, 3.0, -np.inf])),
        (np.sort(rng.integers(0, 9, 30)), rng.integers(-1, 11, 20)),
        (np.zeros(0), np.ones(2)),
        (np.ones(3), np.zeros(0)),
        (np.float32([1]), np.float32(1)),
    ]
    for a, v in cases:
        same_as_numpy(
            lambda a, v: fnp.searchsorted(a, v, side, method=method),
            lambda a, v: np.searchsorted(a, v, side),
            a,
            v,
            dtype=False,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_of_every_length(side, dtype, rng):
    for n in [*range(1, 9), 63, 64, 65, 129, 1000, 40_001]:
        most = min(n, 30_000)
        a = np.sort(rng.integers(-most, most, n)).astype(dtype)
        v = [a[:: max(1, n // 50)], rng.integers(-most - 1, most + 2, 50)]
        v = np.concatenate(v).astype(dtype)
        if dtype == np.float32:
            a[n - n // 5 :] = np.nan
            v = np.concatenate([v, np.float32([np.nan, np.inf, -np.inf, -0.0])])
        found = jit(lambda a, v: fnp.searchsorted(a, v, side))(a, v)
        np.testing.assert_array_equal(found, np.searchsorted(a, v, side))


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_of_many(side, rng):
    a, v = (rng.standard_normal(n).astype(np.float32) for n in (3001, 1 << 14))
    a, v = np.sort(a), v.reshape(128, 128)
    v[::3] = a[: v[::3].size % 3000 + 1][0]
    found = jit(lambda a, v: fnp.searchsorted(a, v, side))(a, v)
    np.testing.assert_array_equal(found, np.searchsorted(a, v, side))


def test_searchsorted_with_a_sorter(rng):
    a, v = rng.standard_normal(9), rng.standard_normal(4)
    order = np.argsort(a)
    same_as_numpy(
        lambda a, v, s: fnp.searchsorted(a, v, sorter=s),
        lambda a, v, s: np.searchsorted(a, v, sorter=s),
        a,
        v,
        order,
        dtype=False,
    )
    same_batched(lambda a, v: fnp.searchsorted(a, v), np.sort(a.reshape(3, 3)), v[:3])


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("bins", [[0.0, 1, 1, 2], [2.0, 1, 0], [1.0], []])
def test_digitize(right, bins):
    x = np.array([[-1.0, 0, 0.5], [1, 2, 7]])
    same_as_numpy(
        lambda x, b: fnp.digitize(x, b, right),
        lambda x, b: np.digitize(x, b, right),
        x,
        np.array(bins),
        dtype=False,
    )


def test_digitize_by_methods():
    x, bins = np.array([0.5, 1.0]), np.array([0.0, 1.0, 2.0])
    for method in METHODS:
        out = jit(lambda x, m=method: fnp.digitize(x, bins, method=m), backend="numpy")(x)
        same(out, [1, 2], dtype=False)


X = np.ones((2, 3))
ERRORS = [
    (lambda: fnp.sort([3, 1]), TypeError, "sort: a is a list"),
    (lambda: fnp.sort(X, 2), ShapeError, "sort: axis 2 is out of range"),
    (lambda: fnp.sort(X, order="f"), ValueError, "order must be None"),
    (lambda: fnp.partition(X, 3), ShapeError, "kth 3 is out of range"),
    (lambda: fnp.searchsorted(X, 1.0), ShapeError, "a must be a vector"),
    (lambda: fnp.searchsorted(X[0], 1.0, "middle"), ValueError, "'left' or 'right'"),
    (lambda: fnp.searchsorted(X[0], 1.0, method="guess"), ValueError, "method must be one of"),
    (lambda: fnp.searchsorted(X[0], 1j), DTypeError, "searchsorted.*: need real numbers"),
    (lambda: fnp.digitize(X, X), ShapeError, "bins must be a vector"),
]


@pytest.mark.parametrize(("call", "error", "words"), ERRORS)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_positions_of_a_dtype():
    x = np.array([3, 1, 2])
    for dtype in ("int64", "uint8", "int16"):
        assert fnp.argsort(x, dtype=dtype).dtype == dtype
        places = fnp.ravel_multi_index((x - 1, x), (4, 5), dtype=dtype)
        assert (places.dtype, places.tolist()) == (dtype, [13, 1, 7])
