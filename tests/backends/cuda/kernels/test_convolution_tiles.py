"""Convolutions by tiles in shared memory, simulated in several orders of threads, and assembled."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda import nvptx
from tests.backends.cuda.libraries.test_cublaslt import rounded
from tests.backends.cuda.simulated import numbers, planned
from tests.backends.cuda.test_nvptx import needs_ptxas

LAST = ("NHWC", "HWIO", "NHWC")
# Of more rows, columns and terms than tiles have, none of which they divide.
CASES = {
    "first": ((2, 17, 7, 6), (70, 17, 3, 2), {"padding": "SAME"}),
    "last": ((3, 6, 5, 18), (2, 3, 18, 20), {"padding": "SAME", "dimension_numbers": LAST}),
    "strides": ((2, 5, 15, 14), (17, 5, 3, 3), {"window_strides": (2, 1), "rhs_dilation": (1, 2),
                                               "padding": [(2, 1), (0, 3)]}),
    "holes": ((2, 6, 5, 4), (16, 6, 3, 3), {"lhs_dilation": (2, 3), "padding": [(2, 1), (1, 3)]}),
    "groups": ((4, 10, 6, 5), (34, 5, 2, 2), {"feature_group_count": 2, "padding": "VALID"}),
    "batch groups": ((16, 6, 5, 4), (32, 6, 2, 2), {"batch_group_count": 2, "padding": "SAME"}),
}  # fmt: skip
TOLERANCES = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 1e-2, "float16": 2e-3}


def of(name, dtype="float32", **more):
    """Images, kernel, and their convolution."""
    left, right, how = CASES[name]
    how = {"window_strides": (1, 1)} | how | more
    x, w = (np.asarray(fnp.asarray(numbers(*s)).astype(dtype)) for s in (left, right))
    return x, w, lambda x, w: lax.conv_general_dilated(x, w, **how)


def check(got, want, tolerance):
    want = np.asarray(want)
    assert np.abs(got.astype(want.dtype) - want).max() < tolerance * np.abs(want).max()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_results(name, dtype):
    x, w, f = of(name, dtype)
    programs = [planned(f, x, w, seed=seed) for seed in (None, 1)]
    (launch,) = [k for k in programs[0].kernels.launches if k.name.startswith("convolution")]
    assert launch.shared
    first, second = (p([x, w])[0] for p in programs)
    np.testing.assert_array_equal(first, second)
    check(first, f(x.astype("float64"), w.astype("float64")), TOLERANCES[dtype])


@pytest.mark.parametrize("name", ["last", "strides"])
def test_tensor_float(name):
    x, w, f = of(name, precision="tensorfloat32")
    program = planned(f, x, w)
    got = program([x, w])[0]
    assert any("@fg_mma_tf32" in launch.text for launch in program.kernels.launches)
    check(got, f(*(rounded(v).astype("float64") for v in (x, w))), 1e-5)
    assert np.abs(got - f(x, w)).max() > 1e-4


@pytest.mark.parametrize("name", ["first", "last"])
def test_gradients(name):
    x, w, f = of(name)

    def pulled(x, w):
        y, pull = fg.vjp(f, x, w)
        return pull(y)

    for got, want in zip(planned(pulled, x, w)([x, w]), fg.jit(pulled)(x, w), strict=True):
        check(got, want, 1e-5)


def test_wide_results_of_halves():
    x, w, f = of("first", "bfloat16", preferred_element_type="float32")
    got = planned(f, x, w)([x, w])[0]
    assert got.dtype == np.float32
    check(got, f(x, w), 1e-5)


def test_narrow_results_of_float64():
    x, w, f = of("first", "float64", preferred_element_type="float32")
    program = planned(f, x, w)
    assert any(k.name.startswith("convolution") for k in program.kernels.launches)
    got = program([x, w])[0]
    assert got.dtype == np.float32
    check(got, f(x, w), 1e-6)


def test_without_windows():
    x, w = numbers(70, 17), numbers(20, 17)
    program = planned(lambda x, w: lax.conv_general_dilated(x, w, (), ()), x, w)
    check(program([x, w])[0], x @ w.T, 1e-5)


def test_few_features_have_no_tiles():
    x, w = numbers(2, 3, 9, 9), numbers(4, 3, 3, 3)
    program = planned(lambda x, w: lax.conv(x, w, (1, 1), "SAME"), x, w)
    assert [launch.shared for launch in program.kernels.launches] == [()]


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_assembles_without_spills(arch):
    """Registers a thread, and bytes of shared memory, that each may take."""
    table = {
        "float32": (128, 8704, ""), "float64": (168, 17408, ""),
        "bfloat16": (168, 10240, "mma.sync.aligned.m16n8k16"),
        "float16": (168, 10240, "mma.sync.aligned.m16n8k16"),
        "tensorfloat32": (128, 10240, "mma.sync.aligned.m16n8k8"),
    }  # fmt: skip
    for name, (most, shared, word) in table.items():
        how = {"precision": name} if name == "tensorfloat32" else {}
        for case in ("strides", "last"):
            x, w, f = of(case, "float32" if how else name, **how)
            launches = planned(f, x, w).kernels.launches
            (launch,) = [k for k in launches if k.name.startswith("convolution")]
            text = nvptx.ptx(launch.device_text, arch)
            assert word in text
            (use,) = nvptx.assembled(text, arch).values()
            assert (use.spills, use.stack) == (0, 0), (name, use)
            assert use.registers <= most, (name, use)
            assert use.shared <= shared, (name, use)
