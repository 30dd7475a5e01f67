"""Window reductions against loops over windows, and the gradients of pooling."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from funcgrad.core.array import Array
from funcgrad.errors import DTypeError, ShapeError
from funcgrad.ops.convolution.padding import dilated, padtype_to_pads, positions
from funcgrad.ops.convolution.pooling import reduce_window, select_and_gather_add_p, window_params
from funcgrad.ops.elementwise import arithmetic
from funcgrad.ops.elementwise.arithmetic import mul
from funcgrad.ops.elementwise.compare import ge
from funcgrad.ops.families import add
from funcgrad.ops.reduce import highest, lowest
from tests.ops.rules import check_derivatives, check_dims, check_transpose, check_vmap, jvp, vjp

# shape, window, strides, padding, base dilation, window dilation
CASES = [
    ((7,), (3,), (1,), "VALID", (1,), (1,)),
    ((7,), (3,), (2,), "SAME", (1,), (1,)),
    ((5,), (2,), (1,), ((2, 1),), (2,), (1,)),
    ((9,), (3,), (2,), ((-1, -2),), (1,), (2,)),
    ((4, 5), (2, 3), (1, 2), "SAME_LOWER", (1, 1), (1, 1)),
    ((3, 4), (2, 2), (2, 1), ((1, 0), (0, 2)), (2, 3), (2, 1)),
    ((1, 4, 4, 2), (1, 2, 2, 1), (1, 2, 2, 1), "VALID", (1,) * 4, (1,) * 4),
    ((2,), (4,), (1,), "VALID", (1,), (1,)),
    ((0, 3), (2, 2), (1, 1), ((1, 1), (0, 0)), (1, 1), (1, 1)),
]
OPS = {
    "sum": (add, lambda dtype: np.zeros((), dtype), np.sum),
    "max": (arithmetic.max, lowest, np.max),
    "min": (arithmetic.min, highest, np.min),
    "prod": (mul, lambda dtype: np.ones((), dtype), np.prod),
}
cases = pytest.mark.parametrize("case", CASES, ids=str)
ops = pytest.mark.parametrize("op", OPS)


def windows(x, fill, case):
    """Every window of x, written as slowly and plainly as can be: counts + window."""
    _, window, strides, padding, base, dilation = case
    reach = [dilated(w, d) for w, d in zip(window, dilation, strict=True)]
    pads = padtype_to_pads(x.shape, reach, strides, padding)
    size = [dilated(n, b) + lo + hi for n, b, (lo, hi) in zip(x.shape, base, pads, strict=True)]
    wide = np.full(size, fill, x.dtype)
    for at in itertools.product(*map(range, x.shape)):
        to = tuple(lo + i * b for i, (lo, _), b in zip(at, pads, base, strict=True))
        if all(0 <= t < n for t, n in zip(to, size, strict=True)):
            wide[to] = x[at]
    counts = [positions(n, r, s) for n, r, s in zip(size, reach, strides, strict=True)]
    out = np.empty((*counts, *window), x.dtype)
    for at in itertools.product(*map(range, counts)):
        for k in itertools.product(*map(range, window)):
            place = zip(at, strides, k, dilation, strict=True)
            out[(*at, *k)] = wide[tuple(i * s + j * d for i, s, j, d in place)]
    return out


def pool(op, x, case, dtype=np.float64):
    function, identity, _ = OPS[op]
    return reduce_window(x, identity(np.dtype(dtype)), function, *case[1:])


@cases
@ops
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_values(case, op, dtype, rng):
    x = (rng.standard_normal(case[0]) * 3).astype(dtype)
    got = pool(op, Array(x), case, dtype)
    _, identity, function = OPS[op]
    rank = x.ndim
    expected = windows(x, identity(x.dtype), case)
    expected = function(expected, axis=tuple(range(rank, 2 * rank)), keepdims=False)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


@cases
@ops
def test_rules(case, op, rng):
    fun = lambda x: pool(op, x, case)
    x = rng.standard_normal(case[0])
    check_derivatives(fun, [x], rng, tol=1e-4)
    check_vmap(fun, [x], rng)
    check_dims(fun, [x])
    if op == "sum":
        check_transpose(fun, [case[0]], rng)


@cases
def test_selecting_ops(case, rng):
    x = rng.integers(0, 3, case[0]).astype(np.float64)
    g = rng.standard_normal(case[0])
    params = window_params(Array(x).aval, *case[1:])
    fun = lambda g, x: select_and_gather_add_p.bind(g, x, select_prim=ge, **params)
    rank = x.ndim
    seen, moved = windows(x, -np.inf, case), windows(g, 0, case)
    counts = seen.shape[:rank]
    flat = (*counts, np.prod(case[1]))
    first = seen.reshape(flat).argmax(-1)[..., None]
    expected = np.take_along_axis(moved.reshape(flat), first, -1)[..., 0]
    np.testing.assert_array_equal(np.asarray(fun(Array(g), Array(x))), expected)
    check_vmap(fun, [g, x], rng)
    check_dims(fun, [g, x])
    check_transpose(lambda g: fun(g, Array(x)), [case[0]], rng)
    ct = rng.standard_normal(counts)
    check_vmap(lambda ct, x: vjp(lambda g: fun(g, x), [Array(g)], [ct]), [ct, x], rng)
    check_dims(lambda ct: vjp(lambda g: fun(g, Array(x)), [Array(g)], [ct]), [ct])


def test_max_pool_gradient_goes_to_the_first_maximum():
    x = np.array([1.0, 3.0, 3.0, 0.0])
    fun = lambda x: pool("max", x, (None, (2,), (2,), "VALID"))
    (t,) = jvp(fun, [Array(x)], [Array(np.array([1.0, 2.0, 4.0, 8.0]))])
    assert np.asarray(t).tolist() == [2, 4]
    (ct,) = vjp(lambda x: pool("max", x, (None, (3,), (1,), "SAME")), [Array(x)], [np.ones(4)])
    assert np.asarray(ct).tolist() == [0, 3, 1, 0]


def test_small_dtypes_and_bool(rng):
    x = rng.standard_normal(40).astype(ml_dtypes.bfloat16)
    case = (None, (20,), (7,), "VALID")
    got = np.asarray(pool("sum", x, case, ml_dtypes.bfloat16))
    wide = np.lib.stride_tricks.sliding_window_view(x.astype(np.float32), 20)[::7].sum(-1)
    np.testing.assert_array_equal(got, wide.astype(ml_dtypes.bfloat16))
    flags = np.array([True, False, False, False])
    got = reduce_window(flags, False, arithmetic.max, (2,), (1,), "VALID")
    assert np.asarray(got).tolist() == [True, False, False]


def test_nan_wins_a_window():
    x = np.array([1.0, np.nan, 3.0, 4.0])
    got = np.asarray(pool("max", x, (None, (2,), (1,), "VALID")))
    np.testing.assert_array_equal(got, [np.nan, np.nan, 4])
    (t,) = jvp(
        lambda x: pool("max", x, (None, (2,), (1,), "VALID")),
        [Array(x)],
        [Array(np.array([1.0, 2.0, 3.0, 4.0]))],
    )
    assert np.asarray(t).tolist() == [2, 2, 4]


def test_init_counts_once_and_fills_the_padding():
    x = np.arange(4, dtype=np.float32)
    got = reduce_window(x, 10.0, add, (2,), (1,), ((1, 0),))
    assert np.asarray(got).tolist() == [20, 11, 13, 15]


def test_several_operands_in_order(rng):
    """Affine maps under composition, which is associative and not commutative."""
    a, b = rng.standard_normal((2, 3, 6))
    compose = lambda f, g: (mul(f[0], g[0]), add(mul(f[1], g[0]), g[1]))
    one, zero = np.float64(1), np.float64(0)
    got = reduce_window((a, b), (one, zero), compose, (2, 3), (1, 2), "VALID")
    for i, j in itertools.product(range(2), range(2)):
        slope, offset = 1.0, 0.0
        for p, q in itertools.product(range(2), range(3)):
            slope, offset = (
                slope * a[i + p, 2 * j + q],
                offset * a[i + p, 2 * j + q] + b[i + p, 2 * j + q],
            )
        np.testing.assert_allclose(np.asarray(got[0])[i, j], slope)
        np.testing.assert_allclose(np.asarray(got[1])[i, j], offset)


def test_errors():
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(ShapeError, match="reduce_window: window_dimensions .* each axis of f32"):
        reduce_window(x, 0.0, add, (2,), (1,), "VALID")
    with pytest.raises(ShapeError, match="window_strides must be positive"):
        reduce_window(x, 0.0, add, (2, 2), (1, 0), "VALID")
    with pytest.raises(ValueError, match="'VALID', 'SAME', 'SAME_LOWER' or pairs, got 'FULL'"):
        reduce_window(x, 0.0, add, (2, 2), (1, 1), "FULL")
    with pytest.raises(ShapeError, match=r"pair \(low, high\) for each of 2 axes"):
        reduce_window(x, 0.0, add, (2, 2), (1, 1), [(1, 1)])
    with pytest.raises(ShapeError, match="takes more than f32"):
        reduce_window(x, 0.0, add, (2, 2), (1, 1), [(-3, -3), (0, 0)])
    low = lowest(np.dtype("complex64"))
    with pytest.raises(DTypeError, match="reduce_window_max: not defined for c64"):
        reduce_window(x.astype(np.complex64), low, arithmetic.max, (2, 2), (1, 1), "VALID")
    with pytest.raises(TypeError, match="reduce_window: init_value must have the structure"):
        reduce_window((x, x), 0.0, add, (2, 2), (1, 1), "VALID")
