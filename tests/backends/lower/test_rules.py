"""Each kind of op, lowered to loops, against its meaning."""

import inspect

import ml_dtypes
import numpy as np
import pytest

import funcgrad as fg
from funcgrad.backends.lower import convolution, index, rules, windows
from funcgrad.core.aval import ShapedArray
from funcgrad.core.primitive import Primitive
from funcgrad.errors import FuncgradError
from funcgrad.ops import random
from funcgrad.ops.base import broadcast_p, sum_p, transpose_p
from funcgrad.ops.convolution import pooling
from funcgrad.ops.cumulative import cummax_p, cumsum_p
from funcgrad.ops.elementwise import arithmetic, compare, convert, rounding, transcendental
from funcgrad.ops.families import add
from funcgrad.ops.indexing.gather import GatherDimensionNumbers, gather, scatter_add_p
from funcgrad.ops.indexing.windows import GatherScatterMode, ScatterDimensionNumbers
from funcgrad.ops.indexing.windows_at import dynamic_slice_p, dynamic_update_slice_p
from funcgrad.ops.reduce import argmax_p, argmin_p, max_p, min_p, prod_p
from funcgrad.ops.shape import concatenate_p, iota_p, pad_p, reshape_p, rev_p, slice_p
from funcgrad.ops.sort import sort_p
from tests.backends.checks import check, floats, hosts, integers, kernels

mul, exp = arithmetic.mul, transcendental.exp
MODULES = (arithmetic, compare, convert, rounding, transcendental)
OPS = {add.name: add} | {
    p.name: p for m in MODULES for p in vars(m).values() if isinstance(p, Primitive)
}
OPS = {name: p for name, p in OPS.items() if p.elementwise}
PARAMS = {
    "integer_pow": {"y": 3},
    "round": {"rounding_method": rounding.RoundingMethod.TO_NEAREST_EVEN},
    "convert_element_type": {"new_dtype": np.dtype("int32")},
    "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 4},
}
DTYPES = [
    "float32",
    "float64",
    "float16",
    ml_dtypes.bfloat16,
    "int32",
    "uint8",
    "bool",
    "complex64",
]


def operand_count(prim):
    named = list(inspect.signature(prim.impl).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in named):
        return 3
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in named) - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(OPS))
def test_elementwise(name, dtype):
    prim, params, dtype = OPS[name], PARAMS.get(name, {}), np.dtype(dtype)
    if name == "bitcast_convert_type":
        params = {"new_dtype": np.dtype(f"u{dtype.itemsize}")}
    n = operand_count(prim)
    args = [(np.abs(floats(7, seed=i)) + 0.5).astype(dtype) for i in range(n)]
    if name == "select_n":
        args[0] = np.array([0, 1, 1, 0, 1, 0, 0], bool)
    if dtype.kind == "i":
        args = [integers(7, low=1, high=9, seed=i) for i in range(n)]
    try:
        prim.abstract(*(ShapedArray(a.shape, a.dtype) for a in args), **params)
    except (FuncgradError, TypeError):
        return
    planned = check(lambda *xs: [prim.bind(*xs, **params)], *args)
    assert dtype.kind == "c" or name in ("complex", "conj") or not hosts(planned), hosts(planned)


def test_structure_is_one_kernel():
    def fun(x, y):
        a = transpose_p.bind(x, permutation=(1, 0))
        a = rev_p.bind(a, dimensions=(0,))
        b = slice_p.bind(y, start_indices=(1, 0), limit_indices=(4, 8), strides=(1, 2))
        wide = broadcast_p.bind(b, shape=(3, 4), broadcast_dimensions=(0, 1))
        return [reshape_p.bind(mul.bind(a, wide), new_sizes=(2, 6))]

    planned = check(fun, floats(4, 3), floats(5, 8), exact=True)
    assert kernels(planned) == 1
    assert planned.arena_bytes == 0


@pytest.mark.parametrize(
    "config", [((1, 2, 0), (0, 0, 0)), ((-1, 1, 2), (2, -2, 0)), ((0, 0, 1), (-1, -1, 0))]
)
def test_pad(config):
    def fun(x, v):
        return [pad_p.bind(add.bind(x, x), v, padding_config=config),
                pad_p.bind(x, np.float32(0), padding_config=config)]  # fmt: skip

    check(fun, floats(4, 6), np.float32(7), exact=True)


def test_concatenate_and_iota():
    def fun(x, y):
        i = iota_p.bind(dtype=np.dtype("float32"), shape=(3, 2), dimension=1)
        both = concatenate_p.bind(x, exp(y), i, dimension=1)
        return [mul.bind(both, both), reshape_p.bind(both, new_sizes=(24,))]

    check(fun, floats(3, 5), floats(3, 1))


@pytest.mark.parametrize("prim", [sum_p, max_p, min_p, prod_p], ids=str)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2), ()])
@pytest.mark.parametrize("dtype", ["float32", "int16", ml_dtypes.bfloat16], ids=str)
def test_reductions(prim, axes, dtype):
    x = integers(3, 4, 5, low=1, high=3).astype(dtype)
    planned = check(lambda x: [prim.bind(mul.bind(x, x), axes=axes)], x)
    assert kernels(planned) == 1


@pytest.mark.parametrize("prim", [argmax_p, argmin_p], ids=str)
def test_positions(prim):
    x = integers(4, 6, dtype="float32")
    x[1, 3] = x[1, 5] = np.nan
    for axis in (0, 1):
        params = {"axes": (axis,), "index_dtype": np.dtype("int32")}
        check(lambda x, params=params: [prim.bind(x, **params)], x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prim", [argmax_p, argmin_p], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "int32", "bool"])
def test_positions_beside_each_other(prim, dtype):
    """Ties, NaN, infinities and zeros of both signs; along rows, columns and transposed ones."""
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, 1.0, 2.0, -3.0, np.inf, -np.inf, np.nan]
    kinds = np.array(special) if np.dtype(dtype).kind in "fV" else np.array([-128, 0, 1, 127])
    for shape in ((1, 1024), (3, 1100), (5, 4, 300), (2, 40, 130)):
        x = rng.choice(kinds, shape).astype(dtype)
        for axis in range(len(shape)):
            params = {"axes": (axis,), "index_dtype": np.dtype("int32")}
            last = {"axes": (len(shape) - 1 - axis,), "index_dtype": np.dtype("int64")}

            def fun(x, params=params, last=last):
                turned = transpose_p.bind(x, permutation=tuple(range(x.ndim))[::-1])
                return [prim.bind(x, **params), prim.bind(turned, **last)]

            for got, want in zip(fg.jit(fun)(x), fun(fg.numpy.asarray(x)), strict=True):
                np.testing.assert_array_equal(got, want)
    x, params = integers(2, 3, 512).astype(dtype), {"axes": (1,), "index_dtype": np.dtype("int32")}
    planned = check(lambda x: [prim.bind(x, **params)], x)
    assert not hosts(planned)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_running(axis, reverse):
    def fun(x):
        return [p.bind(x, axis=axis, reverse=reverse) for p in (cumsum_p, cummax_p)]

    assert not hosts(check(fun, floats(3, 5, 4)))


def test_dynamic_slices():
    def fun(x, u, i, j):
        a = dynamic_slice_p.bind(x, i, j, slice_sizes=(2, 3))
        return [a, dynamic_update_slice_p.bind(x, mul.bind(u, u), i, j)]

    for i, j in [(0, 0), (3, 100), (-5, 2)]:
        check(fun, floats(5, 6), floats(2, 3), np.int32(i), np.int32(j), exact=True)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_gather(mode):
    numbers = GatherDimensionNumbers((1,), (0,), (0,))
    at = np.array([[0], [5], [2], [9 if mode != "promise_in_bounds" else 3]], np.int32)

    def fun(x, i):
        return [gather(exp(x), i, numbers, (1, 3), mode=mode)]

    check(fun, floats(6, 3), at)


@pytest.mark.parametrize("shape", [(6, 3), (6, 128)])
@pytest.mark.parametrize("unique", [False, True])
def test_scatter_add(shape, unique):
    at = np.array([[0], [5], [2], [1 if unique else 5], [17]], np.int32)
    params = {
        "dimension_numbers": ScatterDimensionNumbers((1,), (0,), (0,)),
        "indices_are_sorted": False,
        "unique_indices": unique,
        "mode": GatherScatterMode.FILL_OR_DROP,
    }

    def fun(x, i, u):
        return [scatter_add_p.bind(x, i, mul.bind(u, u), **params)]

    assert not hosts(check(fun, floats(*shape), at, floats(5, shape[1])))


def test_host():
    def fun(x):
        (y,) = sort_p.bind(mul.bind(x, x), dimension=0, is_stable=True, num_keys=1)
        return [add.bind(y, x)]

    assert hosts(check(fun, floats(9))) == ["sort"]


def test_zero_sizes():
    def fun(x, y):
        return [add.bind(x, x), sum_p.bind(x, axes=(0,)), concatenate_p.bind(x, y, dimension=0)]

    check(fun, floats(0, 3), floats(2, 3))


@pytest.mark.parametrize("prim", ["sum", "max", "min"])
def test_pooling(prim):
    params = {
        "window_dimensions": (1, 3, 2), "window_strides": (1, 2, 1), "base_dilation": (1, 1, 2),
        "padding": ((0, 0), (1, 1), (0, 2)), "window_dilation": (1, 2, 1),
    }  # fmt: skip
    op = getattr(pooling, f"window_{prim}_p")
    assert not hosts(check(lambda x: [op.bind(exp(x), **params)], floats(2, 7, 5)))


def test_random_bits():
    def fun(k, x):
        return list(random.threefry2x32_p.bind(k, k, x, x))

    assert not hosts(check(fun, np.uint32(7), np.arange(9, dtype=np.uint32), exact=True))


def test_complex_runs_on_the_host():
    def fun(x):
        return [mul.bind(x, x), reshape_p.bind(x, new_sizes=(6,)), sum_p.bind(x, axes=(0,))]

    check(fun, (floats(2, 3) + 1j * floats(2, 3, seed=1)).astype(np.complex64))


# How far windows of 4 by 3 reach beyond one element, which the first or the last may miss.
@pytest.mark.parametrize(
    "pads", [((3, 3), (2, 2)), ((3, 4), (2, 2)), ((4, 1), (0, 2)), ((1, 2), (2, 2))]
)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_windows_of_one_element(pads, op):
    reduction = getattr(pooling, f"window_{op}_p")
    params = {
        "window_dimensions": (1, 4, 3), "window_strides": (1, 1, 2), "padding": ((0, 0), *pads),
        "base_dilation": (1, 2, 1), "window_dilation": (1, 1, 1),
    }  # fmt: skip
    check(lambda x: [reduction.bind(x, **params)], floats(5, 1, 1), exact=True)


@pytest.mark.parametrize("module", [convolution, index, windows])
def test_rules_of_rare_ops_are_found_in_their_modules(module):
    found = {name for name, late in rules._RARE.items() if late.RULES is module.RULES}
    assert found == set(module.RULES)
