"""The calls that an op makes, found out: every op gives the bits that its `impl` gives."""

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.aval import ShapedArray
from funcgrad.core.closed import with_constants
from funcgrad.core.eager.impl_calls import Constant, impl_calls
from funcgrad.core.eager.numpy_calls import numpy_calls
from funcgrad.core.ir import eval_jaxpr
from funcgrad.core.process.float_errors import errors, loud, quiet
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.base import sum_p, transpose_p
from funcgrad.ops.elementwise import arithmetic, transcendental
from tests.op_checks import arrays, function, special_args
from tests.op_samples import ROWS

F32 = ShapedArray((2, 3), "float32")


def run_quietly(run, values):
    before = errors()
    try:
        quiet()
        return run(*map(np.asarray, values))
    finally:
        loud(before)


def check_bits(fun, args):
    """What a function of arrays does, as a list of calls, gives the bits of op by op."""
    jaxpr = with_constants(*stage(fun, [aval_of(a) for a in args]))
    run = numpy_calls(jaxpr)
    for got, want in zip(run_quietly(run, args), eval_jaxpr(jaxpr, *args), strict=True):
        assert type(got) is np.ndarray
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == np.asarray(want).tobytes()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "row", [r for r in ROWS if not r.axis and not r.prim.effect and r.staged], ids=str
)
def test_every_op_gives_its_bits(row, rng):
    for dtype in row.dtypes:
        for case in row.cases_for("eager"):
            args = arrays(case.make(rng, dtype))
            if args:
                check_bits(function(row, case), args)
        if dtype in row.special:
            check_bits(function(row, row.cases[0]), arrays(special_args(row, dtype)))


@pytest.mark.parametrize("shape", [(), (1,), (0, 2), (3, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64"])
def test_operators_broadcast_by_themselves(shape, dtype, rng):
    x = fnp.array(rng.standard_normal((4, 3, 2) if 0 not in shape else (4, 0, 2)).astype(dtype))
    y = fnp.array(rng.standard_normal(shape).astype(dtype))
    if shape == (3, 2):
        x = x.at[0, 0].set(np.inf)
    check_bits(lambda x, y: [x + y, y - x, fnp.sum(x * y) / y, (x / (y + 1)) * y], [x, y])
    check_bits(
        lambda x, y: [fnp.broadcast_to(y, x.shape), fnp.broadcast_to(y, x.shape) + x], [x, y]
    )
    check_bits(lambda x, y: [fnp.broadcast_to(y, x.shape) + fnp.broadcast_to(y, x.shape)], [x, y])
    check_bits(lambda x, y: [fnp.sin(fnp.broadcast_to(y, x.shape)) + x], [x, y])


def calls_of(prim, *avals, **params):
    found = impl_calls(prim.impl, avals, params)
    return None if found is None else [call.function for call in found[0]]


def test_what_is_found():
    assert calls_of(transcendental.tanh, F32) == [np.tanh]
    assert calls_of(arithmetic.rsqrt, F32)[0] is np.sqrt
    assert calls_of(transpose_p, F32, permutation=(1, 0)) == [np.ndarray.transpose]
    (call,), _ = impl_calls(sum_p.impl, [F32], {"axes": (0,)})
    assert call.keywords == {"axis": (0,), "dtype": np.float32}
    half, _ = impl_calls(lambda xp, x: x * 0.5, [F32], {})
    assert half[0].operands == (0, Constant(0.5))


@pytest.mark.parametrize(
    "impl",
    [
        lambda xp, x: x,
        lambda xp, x: xp.sin(x) if x[0, 0] > 0 else xp.cos(x),
        lambda xp, x: xp.sin(x) if x.any() else xp.cos(x),
        lambda xp, x: xp.sin(x) if (x > 0) else xp.cos(x),
        lambda xp, x: np.sin(x),
        lambda xp, x: np.asarray(x) * 2,
        lambda xp, x: xp.concatenate([x, x]),
        lambda xp, x: xp.add.reduce([x, x]),
        lambda xp, x: x.astype(np.float64),
        lambda xp, x: xp.sin(xp.sin(xp.sin(xp.sin(xp.sin(x))))),
        lambda xp, x: next(xp.sin(y) for y in x),
        lambda xp, x: xp.sin(x, where=x),
        lambda xp, x: xp.float64(1.0),
        lambda xp, x: (xp.sin(x), xp.cos(x))[0],
        lambda xp, x: 1 / 0,
    ],
)
def test_what_is_not_found(impl):
    assert impl_calls(impl, [F32], {}) is None


def test_large_operands_are_as_they_were():
    assert impl_calls(arithmetic.mul.impl, [ShapedArray((1 << 16,), "float32")] * 2, {}) is None
    assert impl_calls(lax.iota, [], {}) is None
