"""Attention forward by tensor cores' words, simulated, in several orders of threads."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.backends.cuda import nvptx
from tests.backends.cuda.simulated import numbers, planned
from tests.backends.cuda.test_nvptx import needs_ptxas

CASES = {
    "plain": ((2, 40, 2, 16), (2, 37, 2, 16), {}),
    "causal": ((1, 50, 2, 32), (1, 50, 2, 32), {"is_causal": True}),
    "windows": ((1, 70, 1, 16), (1, 90, 1, 16), {"local_window_size": (9, 20)}),
    "grouped heads": ((1, 33, 4, 48), (1, 40, 2, 48), {}),
}


def operands(name, dtype):
    q, k, how = CASES[name]
    arrays = [fnp.asarray(numbers(*s)).astype(dtype) for s in (q, k, k)]
    return [np.asarray(x) for x in arrays], how


def check(got, want, dtype):
    tolerance = 2e-2 if dtype == "bfloat16" else 3e-3
    got, want = (np.asarray(x).astype("float32") for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_forward(name, dtype):
    args, how = operands(name, dtype)

    def f(q, k, v):
        return nn.dot_product_attention(q, k, v, **how)

    programs = [planned(f, *args, seed=seed) for seed in (None, 1)]
    (launch,) = programs[0].kernels.launches
    assert launch.name.startswith("attention")
    first, second = (p(args)[0] for p in programs)
    np.testing.assert_array_equal(first, second)
    check(first, fg.jit(f)(*args), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_forward_on_a_gpu(name, dtype):
    args, how = operands(name, dtype)

    def f(q, k, v):
        return nn.dot_product_attention(q, k, v, **how)

    check(fg.jit(f, backend="cuda")(*args), fg.jit(f)(*args), dtype)


def test_lengths_and_rows_that_see_nothing():
    (q, k, v), _ = operands("plain", "float16")
    lengths = np.array([5, 30], np.int32), np.array([0, 21], np.int32)

    def f(q, k, v, a, b):
        return nn.dot_product_attention(q, k, v, query_seq_lengths=a, key_value_seq_lengths=b)

    args = [q, k, v, *lengths]
    program = planned(f, *args)
    assert any(launch.name.startswith("attention") for launch in program.kernels.launches)
    check(program(args)[0], fg.jit(f)(*args), "float16")


def test_biases_and_masks():
    (q, k, v), _ = operands("grouped heads", "bfloat16")
    bias, mask = numbers(1, 4, 33, 40), numbers(1, 1, 33, 40) > -1

    def f(q, k, v, bias, mask):
        return nn.dot_product_attention(q, k, v, bias, mask)

    program = planned(f, q, k, v, bias, mask)
    assert any(launch.name.startswith("attention") for launch in program.kernels.launches)
    check(program([q, k, v, bias, mask])[0], fg.jit(f)(q, k, v, bias, mask), "bfloat16")


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_assembles_without_spills(arch):
    for d, dtype in ((64, "bfloat16"), (128, "float16")):
        x = fnp.zeros((1, 64, 2, d), dtype)
        program = planned(
            lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), x, x, x
        )
        text = nvptx.ptx(program.kernels.device_text, arch)
        assert "mma.sync.aligned.m16n8k16" in text
        (use,) = nvptx.assembled(text, arch).values()
        assert (use.spills, use.stack) == (0, 0)
        assert use.registers <= (128 if d == 64 else 200)
