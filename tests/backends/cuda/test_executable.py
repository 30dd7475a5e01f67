"""Whole programs on the simulator: every op by its row of samples, control flow, donation."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from tests.backends.cuda.simulated import numbers, planned, simulated, softmax
from tests.op_checks import by_row, distinct_params, operands, special_args, typical
from tests.op_samples import ROWS
from tests.test_ops_compiled import check_jit

JIT = [row for row in ROWS if row.cases_for("jit")]


@pytest.mark.sampled(3)
@by_row(JIT)
def test_ops(row, rng):
    cases = row.cases_for("jit")
    args = [operands(row, c, rng, typical(row)) for c in cases]
    check_jit(row, cases, args, jit=simulated)


@pytest.mark.slow
@by_row(JIT)
def test_ops_of_other_dtypes(row, rng):
    cases = row.cases_for("jit")
    for dtype in row.dtypes:
        if dtype != typical(row):
            check_jit(row, cases, [operands(row, c, rng, dtype) for c in cases], jit=simulated)


@pytest.mark.slow
@by_row([row for row in JIT if row.special])
def test_special_values(row):
    cases = distinct_params(row)
    for dtype in row.special:
        if dtype in row.dtypes:
            check_jit(row, cases, [special_args(row, dtype)] * len(cases), jit=simulated)


def test_loops_and_branches():
    def f(x):
        total, rows = lax.scan(lambda c, r: (c + r, softmax(c * r)), x[0], x)
        n = lax.while_loop(lambda v: v.sum() < 50, lambda v: v * 2 + 1, fnp.abs(total))
        return lax.cond(n[0] > 3, lambda v: v + rows[-1], lambda v: v - rows[0], n)

    x = numbers(5, 40)
    np.testing.assert_allclose(simulated(f)(x), fg.jit(f)(x), rtol=2e-5)


def test_gradients_of_a_layer():
    def loss(w, b, x, y):
        return ((fnp.tanh(x @ w + b) - y) ** 2).mean()

    args = numbers(6, 8), numbers(8), numbers(20, 6), numbers(20, 8)
    got = simulated(fg.grad(loss, argnums=(0, 1)))(*args)
    for g, want in zip(got, fg.grad(loss, argnums=(0, 1))(*args), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unique", [True, False])
def test_scattered_updates(unique):
    def f(x, i, u):
        return x.at[i].add(u, unique_indices=unique)

    x, u = numbers(20, 64), numbers(4, 64)
    i = np.array([3, 4 if unique else 3, 7, 19])
    program = planned(f, x, i, u)
    assert [launch.plan.kind for launch in program.kernels.launches]
    np.testing.assert_array_equal(program([x, i, u])[0], fg.jit(f)(x, i, u))


def test_a_donated_array_is_written_over():
    def double(x):
        return x * 2

    program = planned(double, numbers(64, 8), donated=[True])
    assert program.program.aliases == {0: 0}
    np.testing.assert_array_equal(program([numbers(64, 8)])[0], numbers(64, 8) * 2)


def test_no_points_no_launch():
    program = planned(lambda x: x + 1, np.zeros((0, 3), np.float32))
    assert program.kernels.launches == ()
    assert program([np.zeros((0, 3), np.float32)])[0].shape == (0, 3)


def test_texts():
    program = planned(softmax, numbers(4, 100))
    assert "max_exp_sum_div" in program.as_text("loops")
    assert "call i32 @fg_xor" in program.as_text("llvm")
    assert "shfl.sync.bfly.b32" in program.as_text("ptx")
    with pytest.raises(ValueError, match="no stage 'machine'"):
        program.as_text("machine")
