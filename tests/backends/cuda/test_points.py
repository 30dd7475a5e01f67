"""Elementwise kernels have the CPU's bits, and read and write 16 bytes at once."""

import re

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.nvptx import ptx
from funcgrad.errors import CompileError
from tests.backends.cuda.simulated import numbers, planned, simulated


def several(x):
    y = x[::-1] * 100
    return fnp.exp(x), fnp.tanh(x), fnp.log(abs(y)), lax.erf(x), fnp.sin(y), x**3, fnp.sqrt(abs(x))


def test_bits_are_those_of_the_cpu():
    x = numbers(33, 40)
    for got, want in zip(simulated(several)(x), fg.jit(several)(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("f", "dtype", "vector"),
    [
        (lambda x: x * 2, "float32", 4),
        (lambda x: x + x[0], "float32", 4),
        (lambda x: x.astype("bfloat16"), "float32", 8),
        (lambda x: x.astype("float32"), "int8", 4),
        (lambda x: x * 2, "float64", 2),
    ],
    ids=["flat", "rows", "narrow result", "wide result", "float64"],
)
def test_accesses_of_16_bytes(f, dtype, vector):
    program = planned(f, np.ones((8, 64), dtype))
    (launch,) = program.kernels.launches
    assert (launch.plan.kind, launch.plan.vector) == ("points", vector)
    text = ptx(program.kernels.device_text)
    stores = re.findall(r"st\.global\S*", text)
    assert stores in (["st.global.v4.b32"], ["st.global.v2.b64"])


def test_sizes_that_no_vector_divides():
    program = planned(lambda x: x * 2, np.ones((3, 7), np.float32))
    assert program.kernels.launches[0].plan.vector == 1
    np.testing.assert_array_equal(program([numbers(3, 7)])[0], numbers(3, 7) * 2)


def test_columns_keep_their_totals_in_registers():
    program = planned(lambda x: x.sum(0), numbers(50, 300))
    (launch,) = program.kernels.launches
    assert launch.plan.kind == "columns"
    assert launch.plan.grid * launch.plan.block >= 300
    assert "local" not in ptx(program.kernels.device_text)
    np.testing.assert_allclose(program([numbers(50, 300)])[0], numbers(50, 300).sum(0), rtol=1e-5)


def test_more_points_than_32_bits_count():
    with pytest.raises(CompileError, match="backend 'cuda': kernel .* counts to .*cut its arrays"):
        planned(lambda x: x + 1, fg.ShapeDtypeStruct((1 << 32,), "float32"))
