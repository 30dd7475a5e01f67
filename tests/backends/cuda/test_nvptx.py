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
# The most registers a thread may take, as more leave fewer threads to hide latency, and the most
# bytes of shared memory a block may: rows are held there, each of which is read once.
ROW = 1500 * 4 + 32
TABLE = {
    "add": (lambda x: x * 2 + 1, 32, 0),
    "tanh": (fnp.tanh, 64, 0),
    "sin": (fnp.sin, 64, 0),
    "remainder": (lambda x: fnp.remainder(x, 0.3), 48, 0),
    "columns": (lambda x: x.sum(0), 40, 0),
    "transpose": (lambda x: x.T + 1, 40, 0),
    "cast to float8": (lambda x: x.astype("float8_e4m3fn"), 32, 0),
    "argmax": (lambda x: fnp.argmax(x, 1), 40, 32),
    "softmax": (softmax, 40, ROW),
    "layer norm": (layer_norm, 48, 32),
    "gradient of softmax": (fg.grad(lambda x: (softmax(x) ** 2).sum()), 48, ROW),
}


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_standard_kernels_assemble(arch):
    for name, (f, registers, shared) in TABLE.items():
        program = planned(f, numbers(64, 1500))
        found = nvptx.assembled(nvptx.ptx(program.kernels.device_text, arch), arch)
        assert set(found) == {launch.name for launch in program.kernels.launches}
        for use in found.values():
            assert use.spills == use.stack == 0, (name, use)
            assert use.registers <= registers, (name, use)
            assert use.shared <= shared, (name, use)


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
