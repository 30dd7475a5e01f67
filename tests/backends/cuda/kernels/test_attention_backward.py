"""Attention's cotangents by tensor cores' words, simulated: beside the op's meaning."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import nn
from funcgrad.backends.cuda import nvptx
from funcgrad.backends.cuda.executable import SimulatedProgram
from funcgrad.transforms.attention.attention import attention_backward_p, attention_p
from tests.backends.cuda.simulated import numbers, planned, program_of
from tests.backends.cuda.test_nvptx import needs_ptxas

LENGTHS = np.array([5, 33], np.int32), np.array([40, 7], np.int32)
# Shapes of query and key, which keys a query sees, and what else is given.
CASES = {
    "plain": ((1, 40, 2, 16), (1, 37, 2, 16), (None, None), ()),
    "causal, grouped heads": ((2, 40, 4, 16), (2, 48, 2, 16), (None, 0), ()),
    "windows": ((1, 70, 1, 16), (1, 90, 1, 16), (9, 20), ()),
    "many features": ((1, 33, 2, 80), (1, 32, 1, 80), (None, 0), ()),
    "lengths": ((2, 33, 1, 16), (2, 40, 1, 16), (5, None), LENGTHS),
    "bias": ((1, 33, 2, 16), (1, 40, 1, 16), (5, None), (numbers(1, 2, 33, 40),)),
    "bias that broadcasts, mask": (
        (2, 33, 2, 16), (2, 40, 2, 16), (None, None),
        (numbers(1, 2, 33, 1), numbers(2, 1, 33, 40) > -1),
    ),
}  # fmt: skip


def backward(q, k, see, given, dtype):
    """The op and its operands, as forward leaves them."""
    q, *kv = (fnp.asarray(0.7 * numbers(*s)).astype(dtype) for s in (q, k, k))
    how = {"scale": q.shape[3] ** -0.5, "before": see[0], "after": see[1]}
    results = attention_p.bind(q, *kv, *given, **how)
    ct = fnp.asarray(numbers(*q.shape) + 0.1).astype(dtype)
    bias_too = any(x.ndim == 4 and x.dtype != bool for x in given)

    def op(*args):
        return attention_backward_p.bind(*args, bias_too=bias_too, **how)

    return op, [np.asarray(x) for x in (q, *kv, *results, ct, *given)]


def check(found, wanted, dtype):
    tolerance = 2e-2 if dtype == "bfloat16" else 3e-3
    for got, want in zip(found, wanted, strict=True):
        got, want = (np.asarray(x).astype("float32") for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_cotangents(name):
    dtype = "bfloat16" if "causal" in name else "float16"
    op, args = backward(*CASES[name], dtype)
    program = planned(op, *args)
    launches = [launch.name for launch in program.kernels.launches]
    count = 3 if name == "many features" else 2
    assert sum(launch.startswith("attention_of_") for launch in launches) == count, launches
    check(program(args), op(*args), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_cotangents_on_a_gpu(name, dtype):
    op, args = backward(*CASES[name], dtype)
    check(fg.jit(op, backend="cuda")(*args), op(*args), dtype)


def test_bits_are_the_same_in_all_orders_of_threads():
    op, args = backward(*CASES["lengths"], "bfloat16")
    first, second = (planned(op, *args, seed=seed)(args) for seed in (None, 1))
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rows_that_see_nothing_have_no_cotangents():
    op, args = backward(*CASES["lengths"], "float16")
    dq, dk, dv = planned(op, *args)(args)
    for ct in (dq[0, 5:], dk[1, 7:], dv[1, 7:]):
        assert not ct.any()


def test_gradients_go_by_both_passes():
    args = [fnp.asarray(numbers(1, 64, 2, 16)).astype("float16") for _ in range(3)]

    def loss(q, k, v):
        # Read where they lie: turned, and every other place.
        q, k = q[:, ::-1], fnp.concatenate([k, k], 1)[:, ::2]
        return (nn.dot_product_attention(q, k, v, is_causal=True).astype("float32") ** 2).sum()

    f = fg.grad(loss, argnums=(0, 1, 2))
    program = planned(f, *args)
    names = [launch.name for launch in program.kernels.launches]
    assert sum(name.startswith("attention") for name in names) == 3
    check(program(args), fg.jit(f)(*args), "bfloat16")


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_assembles_without_spills(arch):
    for d, see, biased in ((64, (None, 0), False), (128, (9, 20), True)):
        shape, half = fg.ShapeDtypeStruct, "bfloat16"
        q, k = shape((1, 64, 2, d), half), shape((1, 64, 1, d), half)
        given = [shape((1, 2, 64, 64), "float32")] if biased else []
        how = {"scale": 0.1, "before": see[0], "after": see[1], "bias_too": biased}
        program = SimulatedProgram(
            program_of(lambda *args, how=how: attention_backward_p.bind(*args, **how), q, k, k, q,
                       shape((1, 2, 2, 64), "float32"), q, *given)
        )  # fmt: skip
        text = nvptx.ptx(program.kernels.device_text, arch)
        for use in nvptx.assembled(text, arch).values():
            assert (use.spills, use.stack) == (0, 0)
            assert use.registers <= (192 if d == 64 else 255)
