"""Elementwise formulas as scalar code."""

import ml_dtypes
import numpy as np
import pytest

from funcgrad.backends.loops import scalars
from funcgrad.backends.loops.builder import Builder
from funcgrad.backends.loops.interpret import run
from funcgrad.backends.loops.ir import Axis, Buffer, Index, Kernel
from funcgrad.ops.families import unary

F32, I32 = np.dtype("float32"), np.dtype("int32")


def made(impl):
    return unary("test", impl=impl, jvp="flat", doc="")


def evaluate(impl, x, out=None):
    """The formula, traced, on an array."""
    out = out or x.dtype
    b = Builder()
    source, target = Buffer("x", x.dtype, x.size, "in"), Buffer("y", out, x.size, "out")
    i = b.axis(x.size)
    at = Index(0, ((1, i),))
    b.store(target, at, scalars.trace(b, made(impl), {}, [b.load(source, at)], [x.dtype], out))
    y = np.zeros(x.size, out)
    kernel = Kernel("t", (source, target), (Axis(i, x.size),), tuple(b.blocks[0].stmts))
    run(kernel, [x, y])
    return y


FORMULAS = [
    lambda xp, x: x * 2 + 1,
    lambda xp, x: xp.where(x > 0, x, -x) ** 3,
    lambda xp, x: xp.square(x) / (1 + abs(x)),
    lambda xp, x: xp.maximum(x, 0.5).astype(np.int32) + x,
    lambda xp, x: xp.clip(x, -1, 1) - x % 3,
    lambda xp, x: xp.logical_and(x > 0, x) * x,
]


@pytest.mark.parametrize("impl", FORMULAS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_formulas_mean_what_they_mean_on_arrays(impl, dtype):
    x = np.array([-3, -1, 0, 1, 2, 5], dtype)
    wanted = impl(np, x)
    np.testing.assert_allclose(evaluate(impl, x, wanted.dtype), wanted, rtol=1e-6)


def test_narrow_floats_round_once():
    x = np.array([1.01, 3.3], ml_dtypes.bfloat16)
    got = evaluate(lambda xp, x: (x * x) * x, x)
    wide = x.astype(np.float32)
    assert got.tolist() == (wide * wide * wide).astype(ml_dtypes.bfloat16).tolist()


def test_loops():
    def power(xp, x):
        return xp.fori_loop(5, lambda i, c: (c[0] * x,), (1.0,))[0]

    def halve(xp, x):
        return xp.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2,), (x,))[0]

    x = np.array([1.5, 2, 40], F32)
    np.testing.assert_allclose(evaluate(power, x), x**5, rtol=1e-6)
    assert evaluate(halve, x).tolist() == [0.75, 1.0, 0.625]


def test_what_is_no_scalar_code_has_no_cost():
    for impl in (
        lambda xp, x: xp.sort(x),
        lambda xp, x: x if x > 0 else -x,
        lambda xp, x: x + np.arange(3),
        lambda xp, x: x.sum(),
    ):
        assert scalars.cost(made(impl), {}, [F32], F32) is None
    assert scalars.cost(made(lambda xp, x: x + x), {}, [F32], F32) == 1
    assert scalars.cost(made(lambda xp, x: x + x), {}, [np.dtype("complex64")], F32) is None
