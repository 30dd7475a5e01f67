"""cuBLASLt's calls on a stand-in of its signatures: layouts, alignments, errors."""

import ctypes
from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.backends.cuda.devices.device import CudaError
from funcgrad.backends.cuda.libraries import cublaslt
from funcgrad.backends.cuda.libraries.products import Operand, Product
from funcgrad.backends.program import Ref
from funcgrad.core.record import replace
from tests.backends.cuda.libraries.test_products import CASES
from tests.backends.cuda.simulated import numbers
from tests.backends.cuda.stand_in import on_fake

TOLERANCES = {
    "float32": 1e-5, "float64": 1e-13, "bfloat16": 2e-2, "float16": 2e-3, "complex64": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ["rows", "heads", "turned result"])
def test_programs(name, dtype, fake, gpu):
    f, left, right = CASES[name]
    a, b = (np.asarray(fnp.asarray(numbers(*shape)).astype(dtype)) for shape in (left, right))
    program = on_fake(f, fake, gpu, a, b)
    wide = [x.astype("complex128" if dtype == "complex64" else "float64") for x in (a, b)]
    want, tolerance = np.asarray(f(*wide)), TOLERANCES[dtype]
    got = program([a, b])[0].astype(want.dtype)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=10 * tolerance)
    assert program.loaded.calls


def rounded(x):
    """float32 as TensorFloat-32: 10 bits behind the first one."""
    bits = x.view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)


def test_tensor_float_where_it_is_asked_for(fake, gpu):
    a, b = numbers(16, 32), numbers(32, 8)

    def default(a, b):
        with fg.default_matmul_precision("tensorfloat32"):
            return a @ b

    def gradient(a, b):
        return fg.grad(lambda a: fnp.matmul(a, b, precision="high").sum())(a)

    for f in (
        default,
        lambda a, b: lax.dot(a, b, precision=lax.Precision.HIGH),
        lambda a, b: fnp.einsum("ij,jk->ik", a, b, precision="tensorfloat32"),
        lambda a, b: fg.vmap(partial(fnp.dot, precision="high"), (0, None))(a[None], b)[0],
    ):
        got = on_fake(f, fake, gpu, a, b)([a, b])[0]
        np.testing.assert_allclose(got, rounded(a) @ rounded(b), rtol=1e-5, atol=1e-5)
        assert abs(got - a @ b).max() > 1e-4
    found = on_fake(gradient, fake, gpu, a, b)([a, b])[0]
    np.testing.assert_allclose(found, np.ones((16, 8)) @ rounded(b).T, rtol=1e-5, atol=1e-5)
    for how in (None, "highest", "default", ("high", "highest")):
        got = on_fake(partial(fnp.matmul, precision=how), fake, gpu, a, b)([a, b])[0]
        np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(fnp.matmul(a, b, precision="high"), fnp.matmul(a, b))
    with pytest.raises(ValueError, match="matmul: precision must be None, .* got 'exact'"):
        fnp.matmul(a, b, precision="exact")


def product(dtype="float32", m=6, n=4, k=5):
    kind, at = np.dtype(dtype), Ref("arena")
    sides = (Operand(kind, at, leading, 0) for leading in (m, k, m))
    return Product(kind, m, n, k, 1, *sides)


def test_alignments_are_told(fake, gpu):
    gpu.lt.bind(product())
    least = (ctypes.c_uint32 * 4)()
    fake.lt_least(least)
    assert list(least) == [256] * 4
    shifted = replace(product().first, ref=Ref("arena", offset=8))
    gpu.lt.bind(replace(product(), first=shifted))
    fake.lt_least(least)
    assert list(least) == [8, 256, 256, 256]


def test_errors_have_the_statuses_names(fake, gpu):
    with pytest.raises(CudaError, match="LayoutCreate: CUBLAS_STATUS_INVALID_VALUE"):
        gpu.lt.bind(short())
    fake.lt_refuse(15)
    with pytest.raises(CudaError, match="AlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED"):
        gpu.lt.bind(product())
    fake.lt_refuse(77)
    with pytest.raises(CudaError, match="AlgoGetHeuristic: status 77"):
        gpu.lt.bind(product())
    fake.lt_refuse(0)


def short():
    """A product whose first matrix has columns that would overlap."""
    return replace(product(), first=replace(product().first, leading=2))


def test_a_call_that_fails_names_program_and_product(fake, gpu):
    a, b = numbers(5, 7), numbers(7, 9)
    program = on_fake(lambda a, b: a @ b, fake, gpu, a, b)
    fake.lt_fail(13)
    with pytest.raises(CudaError, match="a product 9x5x7: CUBLAS_STATUS_EXECUTION_FAILED"):
        program([a, b])
    fake.lt_fail(0)
    np.testing.assert_allclose(program([a, b])[0], a @ b, rtol=1e-5)


def test_without_the_library():
    with pytest.raises(CudaError, match=r"no cuBLASLt \(libnothing.so\) on this machine"):
        cublaslt.Lt("libnothing.so")
