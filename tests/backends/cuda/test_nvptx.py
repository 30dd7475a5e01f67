"""Kernels assemble for three generations of GPUs, without spills, in few registers."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.cuda import nvptx
from tests.backends.cuda.simulated import layer_norm, numbers, planned, softmax
from tests.op_checks import by_row, distinct_params, function, operands, typical
from tests.op_samples import ROWS

needs_ptxas = pytest.mark.skipif(
    not nvptx.has_ptxas(), reason="no ptxas on PATH (CUDA's assembler)"
)
# The most registers a thread that each may take: more leave fewer threads to hide latency.
TABLE = [
    (lambda x: x * 2 + 1, 32),
    (fnp.tanh, 64),
    (fnp.sin, 64),
    (lambda x: fnp.remainder(x, 0.3), 48),
    (lambda x: x.sum(0), 40),
    (lambda x: x.T + 1, 40),
    (lambda x: fnp.argmax(x, 1), 40),
    (softmax, 40),
    (layer_norm, 48),
    (fg.grad(lambda x: (softmax(x) ** 2).sum()), 48),
]  # fmt: skip
NAMES = ["add", "tanh", "sin", "remainder", "columns", "transpose", "argmax", "softmax",
         "layer norm", "gradient of softmax"]  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_standard_kernels_assemble(arch):
    for name, (f, most) in zip(NAMES, TABLE, strict=True):
        program = planned(f, numbers(64, 1500))
        found = nvptx.assembled(nvptx.ptx(program.kernels.device_text, arch), arch)
        assert set(found) == {launch.name for launch in program.kernels.launches}
        for use in found.values():
            # Digits of 2/π for huge angles are looked up in memory of the thread.
            assert use.spills == 0, (name, use)
            assert use.stack <= 192 * (name == "sin"), (name, use)
            assert use.registers <= most, (name, use)


@needs_ptxas
@pytest.mark.slow
@by_row([row for row in ROWS if row.cases_for("jit")])
def test_kernels_of_all_ops_assemble(row, rng):
    for case in distinct_params(row):
        args = operands(row, case, rng, typical(row))
        program = planned(function(row, case), *args)
        for arch in ("sm_80", "sm_90", "sm_100") if program.kernels.launches else ():
            found = nvptx.assembled(nvptx.ptx(program.kernels.device_text, arch), arch)
            for use in found.values():
                assert use.spills == 0
                assert use.stack <= 192
                assert use.registers <= 128


@needs_ptxas
def test_what_ptxas_rejects_is_told():
    with pytest.raises(RuntimeError, match="ptxas for sm_90: .*syntax error"):
        nvptx.assembled(".version 8.0\n.target sm_90\n.address_size 64\nnothing", "sm_90")


def test_nothing_is_approximate():
    text = nvptx.ptx(planned(softmax, np.ones((4, 64), np.float32)).kernels.device_text)
    assert ".approx" not in text
    assert ".ftz" not in text


def test_other_architectures():
    text = planned(lambda x: x + 1, np.ones(8, np.float32)).kernels.device_text
    for arch in ("sm_86", "sm_89", "sm_120"):
        assert f".target {arch}" in nvptx.ptx(text, arch)
